//! Routes that move with a VIP: add, remove, list ours, ask which way the kernel would send. Synchronous, so that the
//! keeper can use it without a runtime.
//!
//! Every route (and rule, [`super::rule`]) that we add carries our number as its routing protocol ([`PROTOCOL`]): only
//! such ones are ever removed, and what a crash left behind is found by it. An admin who wants to read a name instead
//! of a number in `ip route` adds a line to `/etc/iproute2/rt_protos` (or a file in `rt_protos.d/`):
//!
//! ```text
//! 244 holdfast
//! ```
//!
//! What this module refuses to do: decide, retry, touch a route of another, or make routes with several next hops.

use super::addr::step_error;
use super::link;
use super::netlink::{Ack, HEADER, Message, NetlinkSocket, attributes, push_attribute, push_request, set_option};
use holdfast_node::config;
use holdfast_node::io::StepError;
use holdfast_node::kernel;
use nix::sys::socket::SockProtocol;
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

/// Our routing protocol number, the same as the mark of our addresses. Unused in the table that iproute2 ships, and
/// above what the kernel uses itself.
pub const PROTOCOL: u8 = super::addr::MARK;

/// The table in which the kernel looks when no rule says otherwise.
pub const TABLE_MAIN: u32 = 254;

/// What the kernel makes of metric 0 in IPv6.
const IPV6_METRIC: u32 = 1024;

const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;

/// `struct rtmsg`: family, destination length, source length, tos, table, protocol, scope, type, flags.
const ROUTE_HEADER: usize = 12;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;

const RTN_UNICAST: u8 = 1;
const RTNH_F_ONLINK: u32 = 4;
const SCOPE_UNIVERSE: u8 = 0;
const SCOPE_LINK: u8 = 253;
const SCOPE_NOWHERE: u8 = 255;

/// An address with a prefix length; length 0 is everything of its family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    ip: IpAddr,
    length: u8,
}

impl Prefix {
    /// The network of `ip` with this prefix length (the host's bits are cleared); `None`: longer than the address.
    #[must_use]
    pub fn new(ip: IpAddr, length: u8) -> Option<Self> {
        let ip = match ip {
            IpAddr::V4(four) => {
                let mask = u32::MAX.checked_shl(32_u32.checked_sub(length.into())?).unwrap_or(0);
                IpAddr::from(Ipv4Addr::from_bits(four.to_bits() & mask))
            }
            IpAddr::V6(six) => {
                let mask = u128::MAX.checked_shl(128_u32.checked_sub(length.into())?).unwrap_or(0);
                IpAddr::from(Ipv6Addr::from_bits(six.to_bits() & mask))
            }
        };
        Some(Self { ip, length })
    }

    /// Everything of the family of `like`.
    #[must_use]
    pub fn all(like: IpAddr) -> Self {
        let ip = if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        Self { ip, length: 0 }
    }

    /// The network's address.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        self.ip
    }

    /// The prefix length.
    #[must_use]
    pub fn length(self) -> u8 {
        self.length
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.length == 0 { f.write_str("default") } else { write!(f, "{}/{}", self.ip, self.length) }
    }
}

/// A route with one next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// Destination; its family is the route's.
    pub to: Prefix,
    /// Next hop, of the same family; `None`: the destination is on the segment.
    pub via: Option<IpAddr>,
    /// Interface; `None`: the kernel finds it by `via`.
    pub ifindex: Option<u32>,
    /// Table; 0 means [`TABLE_MAIN`].
    pub table: u32,
    /// The address that connections over it get as their source. It must be there before the route; when it goes, the
    /// kernel takes the route away in the main table, and leaves it in all others.
    pub source: Option<IpAddr>,
    /// Preference, lower wins. 0 is the kernel's default (IPv6: 1024).
    pub metric: u32,
    /// `via` is on the segment although no prefix says so.
    pub onlink: bool,
}

impl Route {
    /// A route to `to` in the main table, with nothing else said.
    #[must_use]
    pub fn to(to: Prefix) -> Self {
        Self { to, via: None, ifindex: None, table: TABLE_MAIN, source: None, metric: 0, onlink: false }
    }

    /// The route of the configuration out of this interface; `None`: its prefix is longer than an address.
    #[must_use]
    pub fn configured(ifindex: u32, route: &config::Route) -> Option<Self> {
        let &config::Route { to: (to, length), via, interface: _, table, source, metric } = route;
        let to = Prefix::new(to, length)?;
        let metric = metric.unwrap_or(0);
        Some(Self { to, via, ifindex: Some(ifindex), table, source, metric, onlink: false })
    }

    /// As the kernel lists it.
    fn normal(mut self) -> Self {
        if self.table == 0 {
            self.table = TABLE_MAIN;
        }
        if self.metric == 0 && self.to.ip.is_ipv6() {
            self.metric = IPV6_METRIC;
        }
        self
    }

    /// Whether the kernel has room for one of them only.
    fn excludes(&self, other: &Self) -> bool {
        (self.to, self.table, self.metric) == (other.to, other.table, other.metric)
    }

    /// Whether `listed`, which the kernel shows, is what was asked for. An interface that wasn't asked for may be any.
    fn is_served_by(&self, listed: &Self) -> bool {
        let Self { to, via, ifindex, table, source, metric, onlink } = *listed;
        (to, via, table, source, metric, onlink)
            == (self.to, self.via, self.table, self.source, self.metric, self.onlink)
            && (self.ifindex.is_none() || self.ifindex == ifindex)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to)?;
        if let Some(via) = self.via {
            write!(f, " via {via}")?;
        }
        if let Some(ifindex) = self.ifindex {
            write!(f, " dev {}", link::name(ifindex))?;
        }
        if self.table != TABLE_MAIN && self.table != 0 {
            write!(f, " table {}", self.table)?;
        }
        if let Some(source) = self.source {
            write!(f, " src {source}")?;
        }
        if self.metric != 0 {
            write!(f, " metric {}", self.metric)?;
        }
        f.write_str(if self.onlink { " onlink" } else { "" })
    }
}

impl From<kernel::Route> for Route {
    fn from(route: kernel::Route) -> Self {
        let kernel::Route { to, via, ifindex, table, source, metric } = route;
        let to = Prefix { ip: to.ip, length: to.length };
        Self { to, via, ifindex: Some(ifindex), table, source, metric, onlink: false }
    }
}

/// Fails for one without an interface, which we don't make.
impl TryFrom<Route> for kernel::Route {
    type Error = ();

    fn try_from(route: Route) -> Result<Self, ()> {
        let Route { to, via, ifindex, table, source, metric, onlink: _ } = route.normal();
        let to = kernel::Prefix { ip: to.ip, length: to.length };
        Ok(Self { to, via, ifindex: ifindex.ok_or(())?, table, source, metric })
    }
}

/// Which way the kernel would send to an address now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Interface it would leave by.
    pub ifindex: u32,
    /// Next hop; `None`: the address itself is on the segment.
    pub via: Option<IpAddr>,
    /// The source address that the kernel would choose.
    pub source: Option<IpAddr>,
}

/// A socket that changes and lists routes and rules, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct RouteSocket {
    pub(super) netlink: NetlinkSocket,
}

impl RouteSocket {
    /// Opens the socket. Changes need CAP_NET_ADMIN, both now and when they are made.
    ///
    /// # Errors
    /// Whatever the system says about the socket.
    pub fn open() -> io::Result<Self> {
        let netlink = NetlinkSocket::open(SockProtocol::NetlinkRoute)?;
        // Lists only what is asked for; without it (before Linux 4.20) it lists all, and we sort it out.
        let _ = set_option(netlink.as_fd(), libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, 1);
        Ok(Self { netlink })
    }

    /// Adds the route. There already as ours: success if it's the same, else the old one is replaced (for some
    /// microseconds there is none).
    ///
    /// # Errors
    /// `EEXIST` when another's route has this destination, table and metric; else the kernel's answer (`ENETUNREACH`:
    /// the next hop is not on a segment; `ENETDOWN`: the interface is down; `EINVAL`: the source isn't there);
    /// `ETIMEDOUT` when it gave none within 200 ms.
    pub fn add_route(&mut self, route: &Route) -> Result<(), StepError> {
        let route = route.normal();
        let object = || format!("add route {route}");
        let ack = self.change(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, |out| encode(&route, out));
        if !matches!(&ack, Ok(ack) if ack.errno == libc::EEXIST) {
            return check(ack, &[], object);
        }
        let ours = self.our_routes_in(route.to.ip.is_ipv6(), Some(route.table));
        let ours =
            ours.map_err(|e| step_error(e.raw_os_error().unwrap_or(libc::EIO), None, "CAP_NET_ADMIN", object()))?;
        if ours.iter().any(|listed| route.is_served_by(listed)) {
            return Ok(());
        }
        for old in ours.iter().filter(|listed| listed.excludes(&route)) {
            self.delete_route(old)?;
        }
        let ack = self.change(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, |out| encode(&route, out));
        if matches!(&ack, Ok(ack) if ack.errno == libc::EEXIST) {
            let what = format!(
                "{}: table {} has a route to {} with that metric already, and it isn't ours",
                object(),
                route.table,
                route.to
            );
            return Err(StepError { errno: libc::EEXIST, what });
        }
        check(ack, &[], object)
    }

    /// Removes exactly this route, if it is ours. Gone already (or its interface) is success, and so is another's
    /// in its place, which stays.
    ///
    /// # Errors
    /// The kernel's answer; `ETIMEDOUT` when it gave none within 200 ms.
    pub fn remove_route(&mut self, route: &Route) -> Result<(), StepError> {
        let route = route.normal();
        // The kernel takes a metric of 0 for any: it might hit another route of ours.
        if route.metric == 0
            && let Ok(ours) = self.our_routes_in(false, Some(route.table))
            && !ours.iter().any(|listed| route.is_served_by(listed))
        {
            return Ok(());
        }
        self.delete_route(&route)
    }

    fn delete_route(&mut self, route: &Route) -> Result<(), StepError> {
        let ack = self.change(RTM_DELROUTE, 0, |out| {
            encode(route, out);
            // Whatever scope it got.
            if let Some(scope) = out.get_mut(HEADER + 6) {
                *scope = if route.to.ip.is_ipv4() { SCOPE_NOWHERE } else { SCOPE_UNIVERSE };
            }
        });
        check(ack, &[libc::ESRCH, libc::ENODEV, libc::ENETUNREACH], || format!("remove route {route}"))
    }

    /// Every route of ours, in all tables.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn our_routes(&mut self) -> io::Result<Vec<Route>> {
        let mut all = self.our_routes_in(false, None)?;
        all.extend(self.our_routes_in(true, None)?);
        Ok(all)
    }

    fn our_routes_in(&mut self, six: bool, table: Option<u32>) -> io::Result<Vec<Route>> {
        let mut body = header(six);
        if let Some(protocol) = body.get_mut(5) {
            *protocol = PROTOCOL;
        }
        if let Some(table) = table {
            push_attribute(&mut body, RTA_TABLE, &table.to_ne_bytes());
        }
        let mut found = Vec::new();
        let listed = self.netlink.dump(RTM_GETROUTE, &body, &mut found, Vec::clear, |found, message| {
            if let Some((route, PROTOCOL)) = parse(message)
                && table.is_none_or(|table| table == route.table)
            {
                found.push(route);
            }
        });
        match listed {
            // A table in which there never was a route.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
            other => other.map(|()| found),
        }
    }

    /// Which way the kernel would send to `target`, over this interface if one is given.
    ///
    /// # Errors
    /// `ENETUNREACH`, `EHOSTUNREACH`: no way; `ENODEV`: no such interface.
    pub fn way(&mut self, target: IpAddr, interface: Option<u32>) -> io::Result<Way> {
        let sequence = self.netlink.sequence(1);
        let mut datagram = Vec::with_capacity(64);
        push_request(&mut datagram, RTM_GETROUTE, NLM_F_ACK, sequence, |out| {
            let mut body = header(target.is_ipv6());
            if let Some(length) = body.get_mut(1) {
                *length = if target.is_ipv4() { 32 } else { 128 };
            }
            push_ip(&mut body, RTA_DST, target);
            if let Some(interface) = interface {
                push_attribute(&mut body, RTA_OIF, &interface.to_ne_bytes());
            }
            out.extend_from_slice(&body);
        });
        let mut found = None;
        let acks = self.netlink.transact(&datagram, sequence, 1, |_, message| {
            if let Some((route, _)) = parse(message)
                && let Some(ifindex) = route.ifindex
            {
                found = Some(Way { ifindex, via: route.via, source: route.source });
            }
        })?;
        let errno = acks.first().and_then(Option::as_ref).map_or(libc::ETIMEDOUT, |ack| ack.errno);
        match found {
            Some(way) => Ok(way),
            None => Err(io::Error::from_raw_os_error(if errno == 0 { libc::ENETUNREACH } else { errno })),
        }
    }

    /// Sends one request and returns what the kernel said. The body is appended behind the header.
    pub(super) fn change(&mut self, kind: u16, flags: u16, body: impl FnOnce(&mut Vec<u8>)) -> Result<Ack, i32> {
        let sequence = self.netlink.sequence(1);
        let mut datagram = Vec::with_capacity(128);
        push_request(&mut datagram, kind, flags | NLM_F_ACK, sequence, body);
        match self.netlink.transact(&datagram, sequence, 1, |_, _| ()) {
            Ok(acks) => acks.into_iter().next().flatten().ok_or(libc::ETIMEDOUT),
            Err(e) => Err(e.raw_os_error().unwrap_or(libc::EIO)),
        }
    }
}

/// Success, or an error with the object named.
pub(super) fn check(ack: Result<Ack, i32>, fine: &[i32], object: impl FnOnce() -> String) -> Result<(), StepError> {
    let (errno, text) = match ack {
        Ok(ack) if ack.errno == 0 || fine.contains(&ack.errno) => return Ok(()),
        Ok(ack) => (ack.errno, ack.text),
        Err(errno) => (errno, None),
    };
    Err(step_error(errno, text.as_deref(), "CAP_NET_ADMIN", object()))
}

/// An empty `struct rtmsg`, for listing.
fn header(six: bool) -> Vec<u8> {
    let mut body = vec![0; ROUTE_HEADER];
    if let Some(family) = body.first_mut() {
        *family = family_number(six);
    }
    body
}

pub(super) fn family_number(six: bool) -> u8 {
    let family = if six { libc::AF_INET6 } else { libc::AF_INET };
    u8::try_from(family).expect("2 and 10")
}

pub(super) fn push_ip(out: &mut Vec<u8>, kind: u16, ip: IpAddr) {
    match ip {
        IpAddr::V4(four) => push_attribute(out, kind, &four.octets()),
        IpAddr::V6(six) => push_attribute(out, kind, &six.octets()),
    }
}

pub(super) fn parse_ip(value: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(value) {
        return Some(IpAddr::from(four));
    }
    <[u8; 16]>::try_from(value).ok().map(IpAddr::from)
}

pub(super) fn parse_u32(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}

fn encode(route: &Route, out: &mut Vec<u8>) {
    let six = route.to.ip.is_ipv6();
    let scope = if six || route.via.is_some() { SCOPE_UNIVERSE } else { SCOPE_LINK };
    // The table's number doesn't fit a byte in general: it is in an attribute.
    out.extend_from_slice(&[family_number(six), route.to.length, 0, 0, 0, PROTOCOL, scope, RTN_UNICAST]);
    let flags = if route.onlink { RTNH_F_ONLINK } else { 0 };
    out.extend_from_slice(&flags.to_ne_bytes());
    push_attribute(out, RTA_TABLE, &route.table.to_ne_bytes());
    if route.to.length > 0 {
        push_ip(out, RTA_DST, route.to.ip);
    }
    if let Some(via) = route.via {
        push_ip(out, RTA_GATEWAY, via);
    }
    if let Some(ifindex) = route.ifindex {
        push_attribute(out, RTA_OIF, &ifindex.to_ne_bytes());
    }
    if let Some(source) = route.source {
        push_ip(out, RTA_PREFSRC, source);
    }
    if route.metric != 0 {
        push_attribute(out, RTA_PRIORITY, &route.metric.to_ne_bytes());
    }
}

/// Reads `RTM_NEWROUTE`: the route and its protocol. `None` for all else, for cached routes and for routes with
/// several next hops (we make none).
pub(super) fn parse(message: &Message<'_>) -> Option<(Route, u8)> {
    if message.kind != RTM_NEWROUTE {
        return None;
    }
    let head: &[u8; ROUTE_HEADER] = message.payload.first_chunk()?;
    let [family, length, _, _, table, protocol, _, _, a, b, c, d] = *head;
    let six = i32::from(family) == libc::AF_INET6;
    let any = if six { IpAddr::from(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
    let mut route = Route::to(Prefix::new(any, length)?);
    route.table = table.into();
    route.onlink = u32::from_ne_bytes([a, b, c, d]) & RTNH_F_ONLINK != 0;
    for (kind, value) in attributes(message.payload.get(ROUTE_HEADER..)?) {
        match kind {
            RTA_DST => route.to = Prefix::new(parse_ip(value)?, length)?,
            RTA_GATEWAY => route.via = parse_ip(value),
            RTA_VIA => route.via = value.get(2..).and_then(parse_ip),
            RTA_OIF => route.ifindex = parse_u32(value),
            RTA_PREFSRC => route.source = parse_ip(value),
            RTA_PRIORITY => route.metric = parse_u32(value)?,
            RTA_TABLE => route.table = parse_u32(value)?,
            RTA_MULTIPATH => return None,
            _ => {}
        }
    }
    Some((route, protocol))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::config::InterfaceName;
    use proptest::prelude::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn listed(route: &Route) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(route, &mut bytes);
        bytes
    }

    fn message(payload: &[u8]) -> Message<'_> {
        Message { kind: RTM_NEWROUTE, flags: 0, sequence: 1, payload }
    }

    #[test]
    fn a_prefix_has_no_host_bits_and_is_never_longer_than_its_address() {
        assert_eq!(Prefix::new(ip("192.0.2.99"), 24).expect("fits").to_string(), "192.0.2.0/24");
        assert_eq!(Prefix::new(ip("2001:db8::99"), 64).expect("fits").to_string(), "2001:db8::/64");
        assert_eq!(Prefix::new(ip("192.0.2.99"), 32).expect("fits").to_string(), "192.0.2.99/32");
        assert_eq!(Prefix::new(ip("192.0.2.99"), 0), Some(Prefix::all(ip("0.0.0.0"))));
        assert_eq!(Prefix::new(ip("192.0.2.99"), 33), None);
        assert_eq!(Prefix::new(ip("::"), 129), None);
    }

    #[test]
    fn a_configured_route_keeps_all_that_was_said() {
        let interface = InterfaceName::new("eth0").expect("valid");
        let (via, source, metric) = (Some(ip("192.0.2.1")), Some(ip("192.0.2.10")), Some(10));
        let written = config::Route { to: (ip("0.0.0.0"), 0), via, interface, table: 100, source, metric };
        let route = Route::configured(u32::MAX, &written).expect("valid");
        assert_eq!(route.to_string(), "default via 192.0.2.1 dev #4294967295 table 100 src 192.0.2.10 metric 10");
        assert_eq!(Route::configured(7, &config::Route { to: (ip("0.0.0.0"), 33), ..written }), None);
    }

    #[test]
    fn what_is_asked_for_reads_back_and_no_part_of_it_makes_the_parser_panic() {
        for (to, via) in [("198.51.100.0", "10.0.0.9"), ("2001:db8::", "fe80::9")] {
            let to = Prefix::new(ip(to), 24).expect("fits");
            let route = Route {
                to,
                via: Some(ip(via)),
                ifindex: Some(3),
                table: 70_000,
                source: Some(ip(via)),
                metric: 5,
                onlink: true,
            };
            let bytes = listed(&route);
            assert_eq!(parse(&message(&bytes)), Some((route, PROTOCOL)));
            for cut in 0..bytes.len() {
                let _ = parse(&message(&bytes[..cut]));
            }
            assert_eq!(parse(&Message { kind: RTM_DELROUTE, ..message(&bytes) }), None);
        }
    }

    proptest! {
        #[test]
        fn no_message_makes_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            let _ = parse(&message(&bytes));
        }
    }
}
