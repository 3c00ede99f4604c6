//! Addresses that we hold but don't accept packets for (RFC 9568 section 6.4.3, Accept_Mode False): a gateway's
//! address forwards, and is no way into the gateway itself.

use super::batch::{Batch, Chain, Hook, KeyType, Policy, TABLE};
use super::expr::{Base, Comparison, Expression, Verdict};
use super::socket::NftSocket;
use holdfast_node::io::StepError;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

/// More would not fit one datagram. They are refused as a whole: half a guard is none.
pub const GUARDED_MAX: usize = 2_048;

const CHAIN: &str = "vip_input";
const SET4: &str = "guarded4";
const SET6: &str = "guarded6";
/// Before the rules of people (`filter`, 0), which could accept what is to be dropped only for their own table anyway.
const PRIORITY: i32 = -10;
const ICMPV6: u8 = 58;
/// Neighbour solicitation, neighbour advertisement: never filtered (RFC 9568 section 6.4.3). ARP isn't IP at all.
const NEIGHBOUR_DISCOVERY: [u8; 2] = [135, 136];

/// Keeps the kernel's packet filter to a set of addresses whose input is dropped.
#[derive(Debug)]
pub struct Guard {
    socket: NftSocket,
}

impl Guard {
    /// Opens the socket; changes need CAP_NET_ADMIN.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`: the kernel has no netfilter; else whatever the system says about the socket.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: NftSocket::open()? })
    }

    /// Input to these is dropped from now on, but neighbour discovery, and to no others. Empty: the table goes.
    ///
    /// # Errors
    /// With the object named; then nothing has changed (`ETIMEDOUT`: that isn't known).
    pub fn set(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<(), StepError> {
        if addresses.is_empty() {
            return self.remove();
        }
        if addresses.len() > GUARDED_MAX {
            let what = format!("nftables: guard {} addresses: at most {GUARDED_MAX} are possible", addresses.len());
            return Err(StepError { errno: libc::E2BIG, what });
        }
        self.socket.commit(&batch(addresses))
    }

    /// Removes the table; gone already is success.
    ///
    /// # Errors
    /// With the object named.
    pub fn remove(&mut self) -> Result<(), StepError> {
        self.socket.remove(TABLE)
    }

    /// Whether the table is there: somebody may have flushed the whole rule set.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn is_there(&mut self) -> io::Result<bool> {
        self.socket.has(TABLE)
    }
}

fn batch(addresses: &BTreeSet<IpAddr>) -> Batch {
    let four = addresses.iter().filter_map(|ip| if let IpAddr::V4(ip) = ip { Some(ip.octets()) } else { None });
    let six = addresses.iter().filter_map(|ip| if let IpAddr::V6(ip) = ip { Some(ip.octets()) } else { None });
    let mut batch = Batch::new();
    batch.replace_table();
    batch.add_set(SET4, KeyType::Ipv4, four);
    batch.add_set(SET6, KeyType::Ipv6, six);
    batch.add_chain(Chain { name: CHAIN, hook: Hook::Input, priority: PRIORITY, policy: Policy::Accept });
    for kind in NEIGHBOUR_DISCOVERY {
        let kind = [
            Expression::Payload { base: Base::Transport, offset: 0, length: 1 },
            Expression::Compare(Comparison::Equal, vec![kind]),
            Expression::Verdict(Verdict::Accept),
        ];
        let rule = Expression::ipv6().into_iter().chain(Expression::transport(ICMPV6)).chain(kind);
        batch.add_rule(CHAIN, rule);
    }
    let thrown = |set| [Expression::Lookup(set), Expression::Counter, Expression::Verdict(Verdict::Drop)];
    let four = Expression::ipv4().into_iter().chain([Expression::ipv4_destination()]);
    batch.add_rule(CHAIN, four.chain(thrown(SET4)));
    let six = Expression::ipv6().into_iter().chain([Expression::ipv6_destination()]);
    batch.add_rule(CHAIN, six.chain(thrown(SET6)));
    batch
}
