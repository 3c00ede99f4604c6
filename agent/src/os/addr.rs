//! Addresses: add, refresh, remove, list. Synchronous, so that the keeper can use it without a runtime.
//!
//! Every address that we add is marked ([`MARK`]), makes no prefix route, and has a lifetime that somebody must
//! refresh: when both of our processes are killed the kernel itself drops it.
//!
//! What this module refuses to do: decide, retry, or touch an address that it can tell is another's.

use super::link;
use super::netlink::{Ack, Message, NetlinkSocket, attributes, push_request};
use holdfast_node::config::InterfaceName;
use holdfast_node::io::{Address, Link, StepError};
use nix::sys::socket::SockProtocol;
use rtnetlink::packet_core::{Emitable, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeader, AddressHeaderFlags, AddressMessage, AddressProtocol, AddressScope,
    CacheInfo,
};
use rtnetlink::packet_route::link::{LinkFlags, LinkHeader};
use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// Our value of `IFA_PROTO`. The kernel uses 1..=3; the rest is free, and `ip address show` prints `proto 0xf4`.
pub const MARK: u8 = 0xF4;

/// Requests per datagram; the answers fit the receive buffer several times over.
pub const BATCH: usize = 100;

pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
pub(super) const RTM_NEWADDR: u16 = 20;
pub(super) const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_EXT_MASK: u16 = 29;
const RTEXT_FILTER_SKIP_STATS: u32 = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_PROTO: u16 = 11;
const IFA_FLAGS: u16 = 8;
const IFA_F_SECONDARY: u32 = 0x01;
const IFA_F_OPTIMISTIC: u32 = 0x04;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;

/// An address to add or refresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Interface.
    pub ifindex: u32,
    /// Address.
    pub ip: IpAddr,
    /// Prefix length, 0..=32 or 0..=128.
    pub prefix: u8,
    /// How long the kernel keeps it without a refresh; whole seconds, rounded up.
    pub lifetime: Duration,
}

/// A socket that changes and lists addresses, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct AddressSocket {
    netlink: NetlinkSocket,
    /// Cleared when the kernel refuses IFA_PROTO.
    mark: bool,
}

impl AddressSocket {
    /// Opens the socket. Changes need CAP_NET_ADMIN, both now and when they are made.
    ///
    /// # Errors
    /// Whatever the system says about the socket.
    pub fn open() -> io::Result<Self> {
        Ok(Self { netlink: NetlinkSocket::open(SockProtocol::NetlinkRoute)?, mark: true })
    }

    /// The number by which the kernel names this socket in events of IPv4 addresses that it caused
    /// ([`Monitor::pass_over`](super::monitor::Monitor::pass_over)).
    ///
    /// # Errors
    /// None that the system documents.
    pub fn port(&self) -> io::Result<u32> {
        self.netlink.port()
    }

    /// False once the kernel has refused our mark (before Linux 5.18).
    #[must_use]
    pub fn marks(&self) -> bool {
        self.mark
    }

    /// Adds the address or refreshes its lifetime. An IPv6 address is finished by the kernel a little after it has
    /// acknowledged it, told by an event: before that it neither answers solicitations nor takes packets. And each
    /// addition or refresh of one makes the kernel report all groups of the interface anew (two MLD reports). One that is
    /// there with the same prefix length but without our mark
    /// becomes ours: whether that may be is the node's to decide, which sees it unmarked beforehand.
    ///
    /// # Errors
    /// `EEXIST` when IPv6 has the address with another prefix length (the kernel has room for one only, and it isn't
    /// ours), else the kernel's answer; `ETIMEDOUT` when it gave none within 200 ms.
    pub fn add(&mut self, ifindex: u32, ip: IpAddr, prefix: u8, lifetime: Duration) -> Result<(), StepError> {
        let wanted = Wanted { ifindex, ip, prefix, lifetime };
        self.add_many(&[wanted]).pop().unwrap_or(Ok(()))
    }

    /// Adds or refreshes all of them, [`BATCH`] per system call; one result for each, in order.
    pub fn add_many(&mut self, wanted: &[Wanted]) -> Vec<Result<(), StepError>> {
        let mut results = Vec::with_capacity(wanted.len());
        for chunk in wanted.chunks(BATCH) {
            self.add_chunk(chunk, &mut results);
        }
        results
    }

    fn add_chunk(&mut self, chunk: &[Wanted], results: &mut Vec<Result<(), StepError>>) {
        let foreign = self.foreign_prefixes(chunk);
        let ours: Vec<Wanted> = chunk.iter().zip(&foreign).filter(|(_, f)| f.is_none()).map(|(w, _)| *w).collect();
        let mut acks = self.submit(&ours, self.mark);
        // A kernel that knows no IFA_PROTO may say so instead of ignoring it.
        for (ack, one) in acks.iter_mut().zip(&ours) {
            let refused = matches!(ack, Ok(a) if a.errno == libc::EINVAL || a.errno == libc::EOPNOTSUPP);
            if refused
                && self.mark
                && let Some(Ok(again)) = self.submit(std::slice::from_ref(one), false).pop()
                && again.errno == 0
            {
                self.mark = false;
                *ack = Ok(again);
            }
        }
        let mut acks = acks.into_iter();
        for (one, foreign) in chunk.iter().zip(foreign) {
            results.push(match foreign {
                Some(prefix) => Err(foreign_error(one, prefix)),
                None => check(acks.next().unwrap_or(Err(libc::ETIMEDOUT)), &[libc::EEXIST], || {
                    describe("add", one.ifindex, one.ip, one.prefix)
                }),
            });
        }
    }

    /// Sends the additions and collects what the kernel said of each.
    fn submit(&mut self, wanted: &[Wanted], mark: bool) -> Vec<Result<Ack, i32>> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let first = self.netlink.sequence(u32::try_from(wanted.len()).expect("at most BATCH"));
        let mut datagram = Vec::with_capacity(wanted.len() * 96);
        for (sequence, one) in (first..).zip(wanted) {
            push_request(&mut datagram, RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, sequence, |out| {
                emit(&addition(one, mark), out);
            });
        }
        self.acknowledged(&datagram, first, wanted.len())
    }

    fn acknowledged(&self, datagram: &[u8], first: u32, count: usize) -> Vec<Result<Ack, i32>> {
        match self.netlink.transact(datagram, first, count, |_, _| ()) {
            Ok(acks) => acks.into_iter().map(|ack| ack.ok_or(libc::ETIMEDOUT)).collect(),
            Err(e) => vec![Err(e.raw_os_error().unwrap_or(libc::EIO)); count],
        }
    }

    /// For each address the prefix length under which IPv6 already has it, where that isn't the wanted one. Adding it
    /// would change the lifetime of the other, which is not ours to end. IPv4 keeps both side by side.
    fn foreign_prefixes(&mut self, wanted: &[Wanted]) -> Vec<Option<u8>> {
        let mut found = vec![None; wanted.len()];
        let six: Vec<usize> = (0..wanted.len()).filter(|i| wanted.get(*i).is_some_and(|w| w.ip.is_ipv6())).collect();
        if six.is_empty() {
            return found;
        }
        let first = self.netlink.sequence(u32::try_from(six.len()).expect("at most BATCH"));
        let mut datagram = Vec::with_capacity(six.len() * 48);
        for (sequence, one) in (first..).zip(six.iter().filter_map(|i| wanted.get(*i))) {
            push_request(&mut datagram, RTM_GETADDR, NLM_F_ACK, sequence, |out| {
                emit(&exactly(one.ifindex, one.ip, 128), out)
            });
        }
        // No answer (not there, or an error): the addition itself will tell.
        let _ = self.netlink.transact(&datagram, first, six.len(), |position, message| {
            let Some((_, address)) = parse_address(message) else { return };
            let Some(slot) = six.get(position).copied() else { return };
            if let (Some(one), Some(entry)) = (wanted.get(slot), found.get_mut(slot))
                && address.ip == one.ip
                && address.ifindex == one.ifindex
                && address.prefix != one.prefix
            {
                *entry = Some(address.prefix);
            }
        });
        found
    }

    /// Removes exactly this address with exactly this prefix length; already gone (or its interface) is success.
    ///
    /// # Errors
    /// The kernel's answer; `ETIMEDOUT` when it gave none within 200 ms.
    pub fn remove(&mut self, ifindex: u32, ip: IpAddr, prefix: u8) -> Result<(), StepError> {
        let sequence = self.netlink.sequence(1);
        let mut datagram = Vec::with_capacity(64);
        push_request(&mut datagram, RTM_DELADDR, NLM_F_ACK, sequence, |out| emit(&exactly(ifindex, ip, prefix), out));
        let ack = self.acknowledged(&datagram, sequence, 1).pop().unwrap_or(Err(libc::EIO));
        check(ack, &[libc::EADDRNOTAVAIL, libc::ENODEV], || describe("remove", ifindex, ip, prefix))
    }

    /// Every address of every interface.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn dump_addresses(&mut self) -> io::Result<Vec<Address>> {
        let mut header = [0; ADDRESS_HEADER];
        AddressHeader { family: AddressFamily::Unspec, ..AddressHeader::default() }.emit(&mut header);
        let mut found = Vec::new();
        self.netlink.dump(RTM_GETADDR, &header, &mut found, Vec::clear, |found, message| {
            if let Some((RTM_NEWADDR, address)) = parse_address(message) {
                found.push(address);
            }
        })?;
        Ok(found)
    }

    /// Every interface.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn dump_links(&mut self) -> io::Result<Vec<Link>> {
        let mut body = vec![0; LINK_HEADER];
        LinkHeader::default().emit(&mut body);
        body.extend_from_slice(&8u16.to_ne_bytes());
        body.extend_from_slice(&IFLA_EXT_MASK.to_ne_bytes());
        body.extend_from_slice(&RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        let mut found = Vec::new();
        self.netlink.dump(RTM_GETLINK, &body, &mut found, Vec::clear, |found, message| {
            if let Some(LinkChange::There(link)) = parse_link(message) {
                found.push(link);
            }
        })?;
        Ok(found)
    }
}

fn emit(message: &AddressMessage, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + message.buffer_len(), 0);
    if let Some(body) = out.get_mut(start..) {
        message.emit(body);
    }
}

/// Names an address exactly, for removal and look-up.
fn exactly(ifindex: u32, ip: IpAddr, prefix: u8) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.prefix_len = prefix;
    message.header.index = ifindex;
    message.attributes.push(AddressAttribute::Local(ip));
    message.attributes.push(AddressAttribute::Address(ip));
    message
}

fn addition(wanted: &Wanted, mark: bool) -> AddressMessage {
    let mut message = exactly(wanted.ifindex, wanted.ip, wanted.prefix);
    let mut flags = AddressFlags::Noprefixroute;
    if wanted.ip.is_ipv6() {
        // The address moves between nodes: waiting for duplicate detection would be an outage.
        flags |= AddressFlags::Nodad;
        message.header.flags = AddressHeaderFlags::Nodad;
    }
    message.header.scope = AddressScope::Universe;
    message.attributes.push(AddressAttribute::Flags(flags));
    let valid = u32::try_from(wanted.lifetime.as_millis().div_ceil(1000)).unwrap_or(u32::MAX - 1).max(1);
    let mut cache = CacheInfo::default();
    cache.ifa_valid = valid;
    // IPv6: deprecated from the start, so that it's never chosen as the source of a connection of this host. IPv4 has
    // no such choice, and a /32 is never primary for another destination.
    cache.ifa_preferred = if wanted.ip.is_ipv6() { 0 } else { valid };
    message.attributes.push(AddressAttribute::CacheInfo(cache));
    if mark {
        message.attributes.push(AddressAttribute::Protocol(AddressProtocol::from(MARK)));
    }
    message
}

fn describe(verb: &str, ifindex: u32, ip: IpAddr, prefix: u8) -> String {
    format!("{verb} {ip}/{prefix} dev {}", link::name(ifindex))
}

fn foreign_error(wanted: &Wanted, prefix: u8) -> StepError {
    let mut what = describe("add", wanted.ifindex, wanted.ip, wanted.prefix);
    let _ = write!(what, ": {}/{prefix} is there already and isn't ours", wanted.ip);
    StepError { errno: libc::EEXIST, what }
}

/// Success, or an error with the object named.
fn check(ack: Result<Ack, i32>, fine: &[i32], object: impl FnOnce() -> String) -> Result<(), StepError> {
    let (errno, text) = match ack {
        Ok(ack) if ack.errno == 0 || fine.contains(&ack.errno) => return Ok(()),
        Ok(ack) => (ack.errno, ack.text),
        Err(errno) => (errno, None),
    };
    Err(step_error(errno, text.as_deref(), "CAP_NET_ADMIN", object()))
}

/// An error in words: what was tried, the system's reason, and what is missing where we know.
pub(crate) fn step_error(errno: i32, text: Option<&str>, capability: &str, object: String) -> StepError {
    let mut what = object;
    let reason = io::Error::from_raw_os_error(errno).to_string();
    let reason = reason.split(" (os error").next().unwrap_or_default();
    let _ = write!(what, ": {}", reason.to_lowercase());
    if let Some(text) = text {
        let _ = write!(what, " ({text})");
    }
    if errno == libc::EPERM {
        let _ = write!(what, " (missing {capability})");
    }
    StepError { errno, what }
}

/// Reads `RTM_NEWADDR` or `RTM_DELADDR` (the kind is returned too); `None` for all else.
pub(super) fn parse_address(message: &Message<'_>) -> Option<(u16, Address)> {
    if message.kind != RTM_NEWADDR && message.kind != RTM_DELADDR {
        return None;
    }
    let header = AddressHeader::parse(message.payload).ok()?;
    let (mut local, mut address, mut marked) = (None, None, false);
    let mut flags = u32::from(header.flags.bits());
    for (kind, value) in attributes(message.payload.get(ADDRESS_HEADER..)?) {
        match kind {
            IFA_LOCAL => local = parse_ip(value),
            IFA_ADDRESS => address = parse_ip(value),
            // All of them; the header has room for the first eight.
            IFA_FLAGS => flags = value.try_into().map_or(flags, u32::from_ne_bytes),
            IFA_PROTO => marked = value.first() == Some(&MARK),
            _ => {}
        }
    }
    // On a point-to-point link IFA_ADDRESS is the other end's; IPv6 has IFA_LOCAL only there.
    let ip = local.or(address)?;
    let secondary = flags & IFA_F_SECONDARY != 0;
    let (ifindex, prefix) = (header.index, header.prefix_len);
    let tentative = flags & IFA_F_DADFAILED != 0 || flags & (IFA_F_TENTATIVE | IFA_F_OPTIMISTIC) == IFA_F_TENTATIVE;
    Some((message.kind, Address { ifindex, ip, prefix, marked, secondary, tentative }))
}

pub(super) fn parse_ip(value: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(value) {
        return Some(IpAddr::from(four));
    }
    <[u8; 16]>::try_from(value).ok().map(IpAddr::from)
}

/// What a link message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LinkChange {
    There(Link),
    Gone(u32),
}

/// Reads `RTM_NEWLINK` or `RTM_DELLINK`; `None` for all else, and for what a bridge says of its ports: there
/// `RTM_DELLINK` means that the port left the bridge, not that the interface is gone.
pub(super) fn parse_link(message: &Message<'_>) -> Option<LinkChange> {
    if message.kind != RTM_NEWLINK && message.kind != RTM_DELLINK {
        return None;
    }
    let header = LinkHeader::parse(message.payload).ok()?;
    if header.interface_family != AddressFamily::Unspec {
        return None;
    }
    if message.kind == RTM_DELLINK {
        return Some(LinkChange::Gone(header.index));
    }
    let (mut name, mut mac, mut mtu) = (None, [0; 6], 0);
    for (kind, value) in attributes(message.payload.get(LINK_HEADER..)?) {
        match kind {
            IFLA_IFNAME => name = std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok(),
            IFLA_ADDRESS => mac = value.try_into().unwrap_or(mac),
            IFLA_MTU => mtu = value.try_into().map_or(0, u32::from_ne_bytes),
            _ => {}
        }
    }
    let up = header.flags.contains(LinkFlags::Up) && header.flags.contains(LinkFlags::LowerUp);
    Some(LinkChange::There(Link { ifindex: header.index, name: InterfaceName::new(name?)?, up, mac, mtu }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn wanted(ip: impl Into<IpAddr>, prefix: u8, lifetime: Duration) -> Wanted {
        Wanted { ifindex: 7, ip: ip.into(), prefix, lifetime }
    }

    fn encoded(wanted: &Wanted, mark: bool) -> Vec<u8> {
        let mut out = Vec::new();
        emit(&addition(wanted, mark), &mut out);
        out
    }

    fn address_message(payload: &[u8]) -> Message<'_> {
        Message { kind: RTM_NEWADDR, flags: 0, sequence: 1, payload }
    }

    #[test]
    fn what_is_asked_for_reads_back_with_its_mark() {
        for (one, mark) in [
            (wanted(Ipv4Addr::new(192, 0, 2, 10), 32, Duration::from_secs(2)), true),
            (wanted(Ipv6Addr::LOCALHOST, 128, Duration::from_secs(2)), false),
        ] {
            let bytes = encoded(&one, mark);
            let expected = Address {
                ifindex: 7,
                ip: one.ip,
                prefix: one.prefix,
                marked: mark,
                secondary: false,
                tentative: false,
            };
            assert_eq!(parse_address(&address_message(&bytes)), Some((RTM_NEWADDR, expected)));
            for cut in 0..bytes.len() {
                let _ = parse_address(&address_message(&bytes[..cut]));
            }
            assert_eq!(parse_address(&Message { kind: RTM_NEWLINK, ..address_message(&bytes) }), None);
        }
    }

    #[test]
    fn a_lifetime_is_whole_seconds_rounded_up_and_never_none_or_for_ever() {
        let valid = |lifetime| {
            addition(&wanted(Ipv4Addr::LOCALHOST, 32, lifetime), true).attributes.iter().find_map(|a| match a {
                AddressAttribute::CacheInfo(cache) => Some((cache.ifa_valid, cache.ifa_preferred)),
                _ => None,
            })
        };
        assert_eq!(valid(Duration::ZERO), Some((1, 1)));
        assert_eq!(valid(Duration::from_millis(2000)), Some((2, 2)));
        assert_eq!(valid(Duration::from_millis(2001)), Some((3, 3)));
        assert_eq!(valid(Duration::MAX), Some((u32::MAX - 1, u32::MAX - 1)));
    }

    #[test]
    fn the_other_end_of_a_point_to_point_link_is_not_our_address() {
        let mut message = exactly(7, Ipv4Addr::new(10, 0, 0, 1).into(), 32);
        message.attributes = vec![
            AddressAttribute::Address(Ipv4Addr::new(10, 0, 0, 2).into()),
            AddressAttribute::Local(Ipv4Addr::new(10, 0, 0, 1).into()),
        ];
        let mut bytes = Vec::new();
        emit(&message, &mut bytes);
        let (_, found) = parse_address(&address_message(&bytes)).expect("an address");
        assert_eq!(found.ip, IpAddr::from(Ipv4Addr::new(10, 0, 0, 1)));
    }

    fn link_bytes(family: AddressFamily) -> Vec<u8> {
        let flags = LinkFlags::Up | LinkFlags::LowerUp;
        let header = LinkHeader { interface_family: family, index: 7, flags, ..LinkHeader::default() };
        let mut bytes = vec![0; LINK_HEADER];
        header.emit(&mut bytes);
        let values: [(u16, &[u8]); 3] =
            [(IFLA_IFNAME, b"eth0\0"), (IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]), (IFLA_MTU, &1500u32.to_ne_bytes())];
        for (kind, value) in values {
            bytes.extend_from_slice(&u16::try_from(value.len() + 4).expect("short").to_ne_bytes());
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn a_link_reads_with_name_mac_and_carrier_and_a_bridge_port_is_not_a_link() {
        let bytes = link_bytes(AddressFamily::Unspec);
        let message = Message { kind: RTM_NEWLINK, flags: 0, sequence: 0, payload: &bytes };
        let Some(LinkChange::There(link)) = parse_link(&message) else { panic!("a link") };
        assert_eq!((link.ifindex, link.name.as_str(), link.up, link.mtu), (7, "eth0", true, 1500));
        assert_eq!(link.mac, [2, 0, 0, 0, 0, 1]);
        for cut in 0..bytes.len() {
            let _ = parse_link(&Message { payload: &bytes[..cut], ..message });
        }
        assert_eq!(parse_link(&Message { kind: RTM_DELLINK, ..message }), Some(LinkChange::Gone(7)));
        let port = link_bytes(AddressFamily::Bridge);
        assert_eq!(parse_link(&Message { kind: RTM_DELLINK, payload: &port, ..message }), None);
    }

    #[test]
    fn an_error_names_the_object_the_reason_and_what_is_missing() {
        let error = step_error(libc::EPERM, Some("why"), "CAP_NET_ADMIN", "add x".to_owned());
        assert_eq!(error.what, "add x: operation not permitted (why) (missing CAP_NET_ADMIN)");
    }
}
