//! The kernel of a simulated host: links, addresses with lifetimes, open VRRP sockets. Steps change it, nothing else
//! does but faults. Its times are the host's own: a host whose clock stands still keeps its addresses.

use holdfast_node::config::InterfaceName;
use holdfast_node::io::{Address, Link, SocketKey, Step, StepError};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// How long the kernel takes to tell of a change.
pub const EVENT_DELAY: Duration = Duration::from_micros(80);

/// What a change did to the address list, for the monitor's events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// An address is there or was refreshed.
    There(Address),
    /// An address is gone.
    Gone(u32, IpAddr, u8),
}

/// An interface.
#[derive(Debug, Clone)]
pub struct Interface {
    /// Its name; `eth0` is on segment 0, `eth1` on segment 1.
    pub name: InterfaceName,
    /// Changes when it is made anew.
    pub ifindex: u32,
    /// It is there.
    pub present: bool,
    /// Carrier.
    pub carrier: bool,
    /// Its own IPv4 address; it never moves.
    pub base4: Ipv4Addr,
    /// Its own link-local address.
    pub base6: Ipv6Addr,
    /// It has its own addresses.
    pub based: bool,
}

impl Interface {
    /// Frames pass.
    pub fn works(&self) -> bool {
        self.present && self.carrier
    }

    /// The link as the kernel reports it.
    pub fn link(&self) -> Link {
        let [_, _, net, last] = self.base4.octets();
        Link {
            ifindex: self.ifindex,
            name: self.name.clone(),
            up: self.carrier,
            mac: [2, 0, 0, 0, net, last],
            mtu: 1500,
        }
    }

    /// Its own addresses as the kernel reports them.
    pub fn own(&self) -> [Address; 2] {
        let own = |ip, prefix| Address {
            ifindex: self.ifindex,
            ip,
            prefix,
            marked: false,
            secondary: false,
            tentative: false,
        };
        [own(IpAddr::V4(self.base4), 24), own(IpAddr::V6(self.base6), 64)]
    }
}

/// Interface index, address, prefix length.
pub type Key = (u32, IpAddr, u8);

/// See the module documentation.
#[derive(Debug)]
pub struct Kernel {
    /// By segment.
    pub interfaces: [Interface; 2],
    /// VIP addresses and when they run out, by the host's clock.
    pub vips: BTreeMap<Key, Instant>,
    /// Open VRRP sockets.
    pub open: BTreeSet<SocketKey>,
    next_index: u32,
}

impl Kernel {
    /// The n-th host's.
    pub fn new(n: u8) -> Self {
        let interface = |segment: u8| Interface {
            name: InterfaceName::new(&format!("eth{segment}")).expect("a valid interface name"),
            ifindex: 2 + u32::from(segment),
            present: true,
            carrier: true,
            base4: Ipv4Addr::new(192, 168, segment, 11 + n),
            // Ordered the other way round than the IPv4 addresses.
            base6: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, u16::from(segment), 0x100 - u16::from(n)),
            based: true,
        };
        Self { interfaces: [interface(0), interface(1)], vips: BTreeMap::new(), open: BTreeSet::new(), next_index: 4 }
    }

    /// The interface with this index, and its segment.
    pub fn by_index(&self, ifindex: u32) -> Option<(u8, &Interface)> {
        (0..).zip(&self.interfaces).find(|(_, i)| i.present && i.ifindex == ifindex)
    }

    /// All links as the kernel reports them.
    pub fn links(&self) -> Vec<Link> {
        self.interfaces.iter().filter(|i| i.present).map(Interface::link).collect()
    }

    /// All addresses as the kernel reports them.
    pub fn addresses(&self) -> Vec<Address> {
        let based = self.interfaces.iter().filter(|i| i.present && i.based);
        based.flat_map(Interface::own).chain(self.vips.keys().map(|key| vip(*key))).collect()
    }

    /// A VIP address of either family stands on an interface of this segment that has carrier.
    pub fn answers(&self, segment: u8) -> bool {
        let interface = &self.interfaces[usize::from(segment)];
        interface.works() && self.vips.keys().any(|key| key.0 == interface.ifindex)
    }

    /// Executes a step.
    pub fn step(&mut self, now: Instant, step: &Step) -> (Result<(), StepError>, Option<Change>) {
        let missing = |what: &str| (Err(StepError { errno: 19, what: format!("{what}: no such device") }), None);
        match *step {
            Step::AddAddress { ifindex, ip, prefix, lifetime } => {
                if self.by_index(ifindex).is_none() {
                    return missing("add address");
                }
                self.vips.insert((ifindex, ip, prefix), now + lifetime);
                (Ok(()), Some(Change::There(vip((ifindex, ip, prefix)))))
            }
            Step::RemoveAddress { ifindex, ip, prefix } => {
                let gone = self.vips.remove(&(ifindex, ip, prefix)).map(|_| Change::Gone(ifindex, ip, prefix));
                (Ok(()), gone)
            }
            Step::Announce { ifindex, ip } => {
                if self.vips.keys().any(|key| (key.0, key.1) == (ifindex, ip)) {
                    (Ok(()), None)
                } else {
                    (Err(StepError { errno: 99, what: format!("announce {ip}: not ours") }), None)
                }
            }
            Step::OpenVrrp { socket } => {
                if socket.ifindex.is_some_and(|ifindex| self.by_index(ifindex).is_none()) {
                    return missing("open socket");
                }
                self.open.insert(socket);
                (Ok(()), None)
            }
            Step::CloseVrrp { socket } => {
                self.open.remove(&socket);
                (Ok(()), None)
            }
            _ => (Ok(()), None),
        }
    }

    /// Drops what has run out.
    pub fn expire(&mut self, now: Instant) -> Vec<Change> {
        let dead: Vec<Key> = self.vips.iter().filter(|&(_, &until)| until <= now).map(|(&key, _)| key).collect();
        dead.into_iter().filter_map(|key| self.delete(key)).collect()
    }

    /// When the next address runs out.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.vips.values().min().copied()
    }

    /// An address goes.
    pub fn delete(&mut self, key: Key) -> Option<Change> {
        self.vips.remove(&key).map(|_| Change::Gone(key.0, key.1, key.2))
    }

    /// Somebody deletes a VIP address by hand.
    pub fn delete_first(&mut self) -> Option<Change> {
        let key = *self.vips.keys().next()?;
        self.delete(key)
    }

    /// An interface vanishes with all that is on it. What it was.
    pub fn unplug(&mut self, segment: u8) -> u32 {
        let interface = &mut self.interfaces[usize::from(segment)];
        interface.present = false;
        let ifindex = interface.ifindex;
        self.vips.retain(|key, _| key.0 != ifindex);
        self.open.retain(|socket| socket.ifindex != Some(ifindex));
        ifindex
    }

    /// It comes back under its old name with another index.
    pub fn plug(&mut self, segment: u8) {
        let interface = &mut self.interfaces[usize::from(segment)];
        if !interface.present {
            interface.present = true;
            interface.ifindex = self.next_index;
            self.next_index += 1;
        }
    }
}

fn vip((ifindex, ip, prefix): Key) -> Address {
    Address { ifindex, ip, prefix, marked: true, secondary: false, tentative: false }
}
