//! The kernel of a simulated host: links, addresses with lifetimes, open VRRP sockets. Steps change it, nothing else
//! does but faults.

use holdfast_node::config::InterfaceName;
use holdfast_node::io::{Address, Link, SocketKey, Step, StepError};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// The only interface of a simulated host.
pub const IFINDEX: u32 = 2;

/// What a change did to the address list, for the monitor's events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// An address is there or was refreshed.
    There(Address),
    /// An address is gone.
    Gone(IpAddr, u8),
}

/// See the module documentation.
#[derive(Debug)]
pub struct Kernel {
    /// The interface's own address; it never moves.
    pub base: Ipv4Addr,
    /// Carrier.
    pub carrier: bool,
    /// VIP addresses and when they run out.
    pub vips: BTreeMap<(IpAddr, u8), Instant>,
    /// Open VRRP sockets.
    pub open: BTreeSet<SocketKey>,
    /// Announcements sent, with their time: the last one tells where clients' ARP caches point.
    pub announced: Option<Instant>,
}

impl Kernel {
    /// A host with this address.
    pub fn new(base: Ipv4Addr) -> Self {
        Self { base, carrier: true, vips: BTreeMap::new(), open: BTreeSet::new(), announced: None }
    }

    /// The link as the kernel reports it.
    pub fn link(&self) -> Link {
        let name = InterfaceName::new("eth0").expect("eth0 is a valid interface name");
        let [_, _, _, last] = self.base.octets();
        Link { ifindex: IFINDEX, name, up: self.carrier, mac: [2, 0, 0, 0, 0, last], mtu: 1500 }
    }

    /// All addresses as the kernel reports them.
    pub fn addresses(&self) -> Vec<Address> {
        let own = Address {
            ifindex: IFINDEX,
            ip: IpAddr::V4(self.base),
            prefix: 24,
            marked: false,
            secondary: false,
            tentative: false,
        };
        std::iter::once(own).chain(self.vips.keys().map(|&(ip, prefix)| Self::vip(ip, prefix))).collect()
    }

    fn vip(ip: IpAddr, prefix: u8) -> Address {
        Address { ifindex: IFINDEX, ip, prefix, marked: true, secondary: false, tentative: false }
    }

    /// Executes a step.
    pub fn step(&mut self, now: Instant, step: &Step) -> (Result<(), StepError>, Option<Change>) {
        match *step {
            Step::AddAddress { ip, prefix, lifetime, .. } => {
                self.vips.insert((ip, prefix), now + lifetime);
                (Ok(()), Some(Change::There(Self::vip(ip, prefix))))
            }
            Step::RemoveAddress { ip, prefix, .. } => {
                let gone = self.vips.remove(&(ip, prefix)).map(|_| Change::Gone(ip, prefix));
                (Ok(()), gone)
            }
            Step::Announce { ip, .. } => {
                if self.vips.keys().any(|&(have, _)| have == ip) {
                    self.announced = Some(now);
                    (Ok(()), None)
                } else {
                    (Err(StepError { errno: 99, what: format!("announce {ip}: not ours") }), None)
                }
            }
            Step::OpenVrrp { socket } => {
                self.open.insert(socket);
                (Ok(()), None)
            }
            Step::CloseVrrp { socket } => {
                self.open.remove(&socket);
                (Ok(()), None)
            }
            Step::AddRoute { .. }
            | Step::RemoveRoute { .. }
            | Step::AddRule { .. }
            | Step::RemoveRule { .. }
            | Step::Guard { .. }
            | Step::AddVmac { .. }
            | Step::RemoveVmac { .. } => (Ok(()), None),
        }
    }

    /// Drops what has run out.
    pub fn expire(&mut self, now: Instant) -> Vec<Change> {
        let dead: Vec<_> = self.vips.iter().filter(|&(_, &until)| until <= now).map(|(&key, _)| key).collect();
        dead.into_iter()
            .map(|key| {
                self.vips.remove(&key);
                Change::Gone(key.0, key.1)
            })
            .collect()
    }

    /// When the next address runs out.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.vips.values().min().copied()
    }

    /// Somebody deletes a VIP address by hand.
    pub fn delete_first(&mut self) -> Option<Change> {
        let key = *self.vips.keys().next()?;
        self.vips.remove(&key);
        Some(Change::Gone(key.0, key.1))
    }
}

/// How long the kernel takes to tell of a change.
pub const EVENT_DELAY: Duration = Duration::from_micros(80);
