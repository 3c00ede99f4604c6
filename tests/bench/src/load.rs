//! The load: flows to the VIP, written into a host's connection table at a rate. No packets: what is measured is what
//! events cost, not what forwarding does.

use crate::netlink::{ASSURED, CLOSE_WAIT, ESTABLISHED, Flow, Netlink, SEEN_REPLY, SYN_SENT};
use anyhow::{Result, bail};
use holdfast_lab::clock::{Ns, SECOND, ms_between, now, sleep_until};
use holdfast_lab::fabric::{BACKENDS, VIP};
use holdfast_lab::netns::Netns;
use std::net::Ipv4Addr;

/// Clients' ports per address.
const PORTS: u32 = 60_000;
/// The first client.
const CLIENTS: u32 = 0x0a80_0001;
/// What the kernel says of a flow that goes both ways.
const OPEN: u32 = SEEN_REPLY | ASSURED;
/// How long entries live, seconds.
const LIFE_S: u32 = 7200;
/// Sleeping less isn't worth it.
const DOZE: Ns = 50_000;

/// Flow number `index`.
#[must_use]
pub fn flow(index: u32) -> Flow {
    let client = Ipv4Addr::from_bits(CLIENTS + index / PORTS);
    let port = 1024 + (index % PORTS) as u16;
    let backend = BACKENDS[index as usize % BACKENDS.len()];
    Flow { client: (client, port), vip: (VIP, 80), backend: (backend, 9000) }
}

/// The number of a flow by its client.
#[must_use]
pub fn index_of(client: (u32, u16)) -> Option<usize> {
    let (address, port) = (client.0.checked_sub(CLIENTS)?, client.1.checked_sub(1024)?);
    Some((address * PORTS) as usize + usize::from(port))
}

/// What happens to flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// New ones, open at once.
    Insert,
    /// Their state changes, there and back.
    Update,
    /// They go.
    Delete,
    /// Each begins, opens and, when so many others have followed, ends: three events.
    Churn {
        /// So many live at a time.
        live: u32,
    },
}

impl Kind {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Churn { .. } => "churn",
        }
    }
}

/// What is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// What happens.
    pub kind: Kind,
    /// From this flow on.
    pub first: u32,
    /// To so many flows.
    pub flows: u32,
    /// Events per second; 0: as fast as can be.
    pub rate: u32,
    /// Events (churn: flows) that are written at once.
    pub burst: u32,
    /// Keep when each was written.
    pub stamps: bool,
}

/// What was done.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// Events.
    pub events: u64,
    /// From the first to the last, s.
    pub seconds: f64,
    /// When each flow's (first) event was written.
    pub stamps: Vec<Ns>,
}

impl Done {
    /// Events per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.events as f64 / self.seconds.max(1e-9)
    }
}

impl Load {
    /// `flows` from `first` on, not paced.
    #[must_use]
    pub fn of(kind: Kind, first: u32, flows: u32) -> Self {
        Self { kind, first, flows, rate: 0, burst: 32, stamps: false }
    }

    /// Does it in `ns`.
    ///
    /// # Errors
    /// The kernel refused something.
    pub fn run(&self, ns: &Netns) -> Result<Done> {
        ns.inside(|| self.write())
    }

    fn write(&self) -> Result<Done> {
        let mut netlink = Netlink::open(0)?;
        let mut done = Done::default();
        let began = now();
        let mut next = 0;
        while next < self.flows {
            if self.rate > 0 {
                let due = began + done.events * SECOND / u64::from(self.rate);
                if due > now() + DOZE {
                    sleep_until(due);
                }
            }
            let end = (next + self.burst.max(1)).min(self.flows);
            for index in next..end {
                if self.stamps {
                    done.stamps.push(now());
                }
                done.events += self.put(&mut netlink, index);
            }
            netlink.flush()?;
            next = end;
        }
        done.seconds = ms_between(began, now()) / 1000.0;
        if !netlink.refused.is_empty() {
            bail!("the kernel refused some of the load (errno: how often): {:?}", netlink.refused);
        }
        Ok(done)
    }

    fn put(&self, netlink: &mut Netlink, index: u32) -> u64 {
        let this = flow(self.first + index);
        match self.kind {
            Kind::Insert => netlink.create(&this, ESTABLISHED, OPEN, LIFE_S),
            Kind::Update => netlink.update(&this, CLOSE_WAIT, OPEN),
            Kind::Delete => netlink.delete(&this),
            Kind::Churn { live } => {
                netlink.create(&this, SYN_SENT, 0, 120);
                netlink.update(&this, ESTABLISHED, OPEN);
                if let Some(old) = index.checked_sub(live) {
                    netlink.delete(&flow(self.first + old));
                    return 3;
                }
                return 2;
            }
        }
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flow_has_a_client_of_its_own_and_is_known_by_it() {
        for index in [0, 1, PORTS - 1, PORTS, 1_234_567] {
            let (address, port) = flow(index).client;
            assert_eq!(index_of((address.to_bits(), port)), Some(index as usize));
        }
        assert_eq!(index_of((CLIENTS - 1, 2000)), None);
        assert_eq!(index_of((CLIENTS, 1023)), None);
    }
}
