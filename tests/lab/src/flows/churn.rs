//! Flows that come and go: a new connection every few milliseconds, a word on it, and the oldest ends.

use super::net::Path;
use super::server::{Hello, Wants};
use crate::load::Stopper;
use crate::netns::Netns;
use anyhow::Result;
use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Connections that are open at once.
const OPEN: usize = 100;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(4);
/// What a connection may take to be there.
const CONNECT: Duration = Duration::from_millis(300);

/// The running thread.
#[derive(Debug)]
pub struct Churn {
    stopper: Stopper,
    opened: Arc<AtomicU64>,
}

impl Churn {
    /// Begins, from `ns`.
    ///
    /// # Errors
    /// The thread.
    pub fn start(ns: &Netns) -> Result<Self> {
        let opened = Arc::new(AtomicU64::new(0));
        let (ns, count) = (ns.clone(), opened.clone());
        let stopper = Stopper::spawn("flow-churn", move |stop| {
            ns.enter()?;
            let mut open = VecDeque::new();
            for path in Path::ALL.iter().cycle() {
                if stop() {
                    break;
                }
                if let Ok(mut c) = TcpStream::connect_timeout(&path.address(), CONNECT) {
                    let _what_breaks_now_is_no_matter = c.write_all(&Hello { wants: Wants::Echo, seed: 1 }.bytes());
                    count.fetch_add(1, Ordering::AcqRel);
                    open.push_back(c);
                }
                if open.len() > OPEN {
                    open.pop_front();
                }
                std::thread::sleep(PAUSE);
            }
            Ok(())
        })?;
        Ok(Self { stopper, opened })
    }

    /// Ends it; how many connections there were.
    ///
    /// # Errors
    /// The thread failed.
    pub fn finish(self) -> Result<u64> {
        self.stopper.finish()?;
        Ok(self.opened.load(Ordering::Acquire))
    }
}
