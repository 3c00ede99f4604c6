//! Whether the kernels of lb1 and lb2 have the VIP, polled every [`POLL`].

use crate::clock::{MS, Ns, now, sleep_until};
use crate::fabric::{Fabric, Lb, VIP};
use crate::load::Stopper;
use crate::metrics::Held;
use anyhow::Result;
use std::sync::{Arc, Mutex};

/// The resolution of "address gone" and "address there".
pub const POLL: Ns = 2 * MS;

/// The running poll, one thread per load balancer.
#[derive(Debug)]
pub struct Addresses {
    threads: Vec<Stopper>,
    changes: Arc<Mutex<Vec<Held>>>,
}

impl Addresses {
    /// Polls both.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn start(fabric: &Fabric) -> Result<Self> {
        let changes = Arc::new(Mutex::new(Vec::new()));
        let mut threads = Vec::new();
        for lb in Lb::BOTH {
            let (ns, shared) = (fabric.lb(lb), changes.clone());
            threads.push(Stopper::spawn("address", move |stop| {
                ns.enter()?;
                let mut last = None;
                let mut due = now();
                while !stop() {
                    let present = holds_vip();
                    if last != Some(present) {
                        last = Some(present);
                        if let Ok(mut c) = shared.lock() {
                            c.push(Held { at: now(), lb, present });
                        }
                    }
                    due = (due + POLL).max(now());
                    sleep_until(due);
                }
                Ok(())
            })?);
        }
        Ok(Self { threads, changes })
    }

    /// The polling threads, to give them priority.
    #[must_use]
    pub fn threads(&self) -> Vec<i32> {
        self.threads.iter().map(Stopper::thread).collect()
    }

    /// Whether `lb` has the VIP now.
    #[must_use]
    pub fn held(&self, lb: Lb) -> bool {
        self.changes.lock().is_ok_and(|c| c.iter().rev().find(|h| h.lb == lb).is_some_and(|h| h.present))
    }

    /// Stops and returns the changes.
    ///
    /// # Errors
    /// A thread failed.
    pub fn finish(self) -> Result<Vec<Held>> {
        self.threads.into_iter().try_for_each(Stopper::finish)?;
        Ok(self.changes.lock().map(|c| c.clone()).unwrap_or_default())
    }
}

/// Asks the kernel of the calling thread's namespace.
#[must_use]
pub fn holds_vip() -> bool {
    nix::ifaddrs::getifaddrs().is_ok_and(|mut all| {
        all.any(|a| a.address.and_then(|s| s.as_sockaddr_in().map(|s| s.ip())).is_some_and(|ip| ip == VIP))
    })
}
