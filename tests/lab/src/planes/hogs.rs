//! Clients that begin a request and never end it: each holds a connection for as long as it is let.

use crate::load::Stopper;
use crate::netns::Netns;
use anyhow::Result;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::time::Duration;

/// New ones in one step, at most …
const STEP_MAX: usize = 50;
/// … and the pause after it.
const PAUSE: Duration = Duration::from_millis(20);
/// One that isn't taken within this time waits in the queue of somebody who is full.
const PATIENCE: Duration = Duration::from_millis(100);

/// They leave when this is dropped.
#[derive(Debug)]
pub struct Hogs(#[allow(dead_code, reason = "holds the thread")] Stopper);

impl Hogs {
    /// So many from `ns` to `to`. One that is sent away comes back.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(ns: &Netns, to: SocketAddrV4, count: usize) -> Result<Self> {
        let ns = ns.clone();
        Ok(Self(Stopper::spawn("hogs", move |stop| {
            ns.enter()?;
            let mut all: Vec<TcpStream> = Vec::with_capacity(count);
            while !stop() {
                all.retain_mut(holds);
                for _ in all.len()..count.min(all.len() + STEP_MAX) {
                    match begin(to.into()) {
                        Ok(hog) => all.push(hog),
                        Err(_) => break,
                    }
                }
                std::thread::sleep(PAUSE);
            }
            Ok(())
        })?))
    }
}

fn begin(to: SocketAddr) -> std::io::Result<TcpStream> {
    let mut c = TcpStream::connect_timeout(&to, PATIENCE)?;
    c.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n")?;
    c.set_nonblocking(true)?;
    Ok(c)
}

/// The other end hasn't closed it, or answered.
fn holds(c: &mut TcpStream) -> bool {
    matches!(c.read(&mut [0; 512]), Err(e) if e.kind() == ErrorKind::WouldBlock)
}
