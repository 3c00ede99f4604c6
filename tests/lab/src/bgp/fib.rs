//! The router's kernel as rtnetlink tells it: every event of a route to the VIP, with the next hops that it left.

use crate::clock::{Ns, now};
use crate::load::Stopper;
use crate::netns::Netns;
use anyhow::{Context, Result};
use rtnetlink::packet_core::{NLM_F_REPLACE, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteVia};
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// rtnetlink's groups for routes (rtnetlink.h).
const GROUPS: [u32; 2] = [7, 11];
/// The kernel's main table; tables of the lab's own don't count.
const MAIN: u32 = 254;

/// Next hops with their weights.
pub type Hops = BTreeMap<IpAddr, u16>;

/// A route event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When it was read.
    pub at: Ns,
    /// The route's destination.
    pub to: IpAddr,
    /// Its next hops from then on; none: there is no route.
    pub hops: Hops,
    /// The next hops are others than before (a route may be written again as it is).
    pub changed: bool,
    /// They are the same in another order: where classic next hops are used the kernel spreads flows by their place, so
    /// this moves flows that no node gave away.
    pub reordered: bool,
}

/// A route to a destination as it was told last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Route {
    hops: Hops,
    order: Vec<IpAddr>,
}

/// Told of each change, on the watching thread.
pub type Listener = Box<dyn FnMut(&Event) + Send>;

/// The running watcher.
#[derive(Debug)]
pub struct Fib {
    stopper: Stopper,
    log: Arc<Mutex<Vec<Event>>>,
}

impl Fib {
    /// Watches host routes to `wanted` in `ns`; `listener` hears of changes, of what is there at the start too.
    ///
    /// # Errors
    /// The namespace, or the socket.
    pub fn start(ns: &Netns, wanted: Vec<IpAddr>, mut listener: Option<Listener>) -> Result<Self> {
        let log: Arc<Mutex<Vec<Event>>> = Arc::default();
        let socket = ns.inside(|| {
            let mut s = Socket::new(NETLINK_ROUTE).context("rtnetlink socket")?;
            s.bind(&SocketAddr::new(0, 0)).context("bind rtnetlink")?;
            GROUPS.iter().try_for_each(|g| s.add_membership(*g)).context("join rtnetlink's groups")?;
            s.set_non_blocking(true)?;
            s.set_rx_buf_sz(4_i32 << 20)?;
            Ok(s)
        })?;
        // Subscribed first, read then: a change in between is heard.
        let mut state: BTreeMap<IpAddr, Route> = BTreeMap::new();
        for to in wanted {
            let order = in_order(ns, to)?;
            let hops: Hops = order.iter().copied().collect();
            state.insert(to, Route { hops: hops.clone(), order: order.iter().map(|(hop, _)| *hop).collect() });
            let event = Event { at: now(), to, hops, changed: true, reordered: false };
            if let Some(l) = &mut listener {
                l(&event);
            }
            if let Ok(mut log) = log.lock() {
                log.push(event);
            }
        }
        let shared = log.clone();
        let stopper = Stopper::spawn("fib", move |stop| {
            while !stop() {
                let tick = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                let mut fds = [PollFd::new(&socket, PollFlags::IN)];
                let _interrupted = poll(&mut fds, Some(&tick));
                while let Ok((bytes, _)) = socket.recv_from_full() {
                    let at = now();
                    for (message, replaces, added) in routes(&bytes) {
                        let Some(event) = apply(&mut state, &message, replaces, added, at) else { continue };
                        if let (true, Some(l)) = (event.changed, &mut listener) {
                            l(&event);
                        }
                        if let Ok(mut log) = shared.lock() {
                            log.push(event);
                        }
                    }
                }
            }
            Ok(())
        })?;
        Ok(Self { stopper, log })
    }

    /// The watching thread, to give it priority.
    #[must_use]
    pub fn thread(&self) -> i32 {
        self.stopper.thread()
    }

    /// The next hops to `to` now.
    #[must_use]
    pub fn hops(&self, to: IpAddr) -> Hops {
        let find = |l: &Vec<Event>| l.iter().rev().find(|e| e.to == to).map(|e| e.hops.clone());
        self.log.lock().ok().and_then(|l| find(&l)).unwrap_or_default()
    }

    /// Events since `from`.
    #[must_use]
    pub fn since(&self, from: Ns) -> Vec<Event> {
        self.log.lock().map(|l| l.iter().filter(|e| e.at >= from).cloned().collect()).unwrap_or_default()
    }

    /// Stops and returns all events.
    ///
    /// # Errors
    /// The thread failed.
    pub fn finish(self) -> Result<Vec<Event>> {
        self.stopper.finish()?;
        Ok(self.log.lock().map(|l| l.clone()).unwrap_or_default())
    }
}

/// Route messages in what a read gave: the message, whether it replaces, whether it adds.
fn routes(bytes: &[u8]) -> Vec<(RouteMessage, bool, bool)> {
    let mut all = Vec::new();
    let mut rest = bytes;
    while let Ok(m) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) {
        let length = usize::try_from(m.header.length).unwrap_or(0).next_multiple_of(4);
        let replaces = m.header.flags & NLM_F_REPLACE != 0;
        match m.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(r)) => all.push((r, replaces, true)),
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelRoute(r)) => all.push((r, replaces, false)),
            _ => {}
        }
        match rest.get(length..) {
            Some(next) if length > 0 && !next.is_empty() => rest = next,
            _ => break,
        }
    }
    all
}

/// What a message makes of the routes; `None`: it isn't about one of them.
fn apply(state: &mut BTreeMap<IpAddr, Route>, m: &RouteMessage, replaces: bool, added: bool, at: Ns) -> Option<Event> {
    let to = destination(m)?;
    let route = state.get_mut(&to)?;
    let before = &route.hops;
    let order: Vec<IpAddr> = hops(m).map(|(hop, _)| hop).collect();
    let told: Hops = hops(m).collect();
    // IPv4: one message is the whole route. IPv6: hops may come and go one by one.
    let after = match (added, to.is_ipv6() && !replaces) {
        (true, false) => told,
        (true, true) => before.iter().map(|(k, v)| (*k, *v)).chain(told).collect(),
        (false, true) => before.iter().filter(|(k, _)| !told.contains_key(k)).map(|(k, v)| (*k, *v)).collect(),
        (false, false) => Hops::new(),
    };
    let changed = after != *before;
    // Told whole, or not to be compared.
    let reordered = !changed && to.is_ipv4() && !route.order.is_empty() && order != route.order;
    *route = Route { hops: after.clone(), order };
    Some(Event { at, to, hops: after, changed, reordered })
}

/// The destination, if it is a host and in the main table.
fn destination(m: &RouteMessage) -> Option<IpAddr> {
    let table = m.attributes.iter().find_map(|a| if let RouteAttribute::Table(t) = a { Some(*t) } else { None });
    if table.unwrap_or_else(|| m.header.table.into()) != MAIN {
        return None;
    }
    let to =
        m.attributes.iter().find_map(|a| if let RouteAttribute::Destination(d) = a { address(d) } else { None })?;
    let host = if to.is_ipv4() { 32 } else { 128 };
    (m.header.destination_prefix_length == host).then_some(to)
}

fn address(a: &RouteAddress) -> Option<IpAddr> {
    match a {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}

/// In their order.
fn hops(m: &RouteMessage) -> impl Iterator<Item = (IpAddr, u16)> {
    let single = gateway(&m.attributes).map(|g| (g, 1));
    let many =
        m.attributes.iter().filter_map(|a| if let RouteAttribute::MultiPath(all) = a { Some(all) } else { None });
    let many = many.flatten().filter_map(|h| Some((gateway(&h.attributes)?, u16::from(h.hops) + 1)));
    many.chain(single)
}

fn gateway(all: &[RouteAttribute]) -> Option<IpAddr> {
    all.iter().find_map(|a| match a {
        RouteAttribute::Gateway(g) => address(g),
        RouteAttribute::Via(RouteVia::Inet(ip)) => Some((*ip).into()),
        RouteAttribute::Via(RouteVia::Inet6(ip)) => Some((*ip).into()),
        _ => None,
    })
}

/// What is there now, as `ip` has it.
///
/// # Errors
/// `ip` can't be run, or says what can't be read.
pub fn present(ns: &Netns, to: IpAddr) -> Result<Hops> {
    Ok(in_order(ns, to)?.into_iter().collect())
}

fn in_order(ns: &Netns, to: IpAddr) -> Result<Vec<(IpAddr, u16)>> {
    let family = if to.is_ipv4() { "-4" } else { "-6" };
    let out = std::process::Command::new("ip")
        .args(["-n", ns.name(), family, "-j", "route", "show", "table", "main", &to.to_string()])
        .output()
        .context("run ip route")?;
    let routes: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
    let via = |v: &serde_json::Value| {
        let text = v["gateway"].as_str().or_else(|| v["via"]["host"].as_str())?;
        text.parse::<IpAddr>().ok()
    };
    let weight = |v: &serde_json::Value| v["weight"].as_u64().and_then(|w| u16::try_from(w).ok()).unwrap_or(1);
    let all = routes.as_array().map(Vec::as_slice).unwrap_or_default();
    let many = all.iter().flat_map(|r| r["nexthops"].as_array().map(Vec::as_slice).unwrap_or_default());
    Ok(many.chain(all).filter_map(|h| Some((via(h)?, weight(h)))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtnetlink::packet_route::AddressFamily;
    use rtnetlink::packet_route::route::RouteNextHop;
    use std::net::Ipv4Addr;

    fn message(to: IpAddr, via: &[IpAddr]) -> RouteMessage {
        let mut m = RouteMessage::default();
        (m.header.address_family, m.header.destination_prefix_length) =
            if to.is_ipv4() { (AddressFamily::Inet, 32) } else { (AddressFamily::Inet6, 128) };
        m.header.table = 254;
        m.attributes.push(RouteAttribute::Destination(to.into()));
        m.attributes.extend(via.iter().map(|g| RouteAttribute::Gateway((*g).into())).take(1));
        m
    }

    #[test]
    fn an_ipv4_message_is_the_whole_route_and_an_ipv6_one_may_be_a_hop() {
        let (v4, a4): (IpAddr, IpAddr) = (Ipv4Addr::new(10, 99, 0, 1).into(), Ipv4Addr::new(10, 60, 0, 11).into());
        let b4 = IpAddr::from(Ipv4Addr::new(10, 60, 0, 12));
        let (v6, a6, b6): (IpAddr, IpAddr, IpAddr) = (
            "2001:db8::1".parse().expect("an address"),
            "fe80::1".parse().expect("an address"),
            "fe80::2".parse().expect("an address"),
        );
        let mut state: BTreeMap<IpAddr, Route> = [(v4, Route::default()), (v6, Route::default())].into();
        let mut say = |to, via, replaces, added| {
            apply(&mut state, &message(to, &[via]), replaces, added, 1)
                .map(|e| (e.hops.into_keys().collect::<Vec<_>>(), e.changed))
        };
        assert_eq!(say(v4, a4, false, true), Some((vec![a4], true)));
        assert_eq!(say(v4, b4, true, true), Some((vec![b4], true)));
        assert_eq!(say(v4, b4, true, true), Some((vec![b4], false)));
        assert_eq!(say(v4, b4, false, false), Some((vec![], true)));
        assert_eq!(say(v6, a6, false, true), Some((vec![a6], true)));
        assert_eq!(say(v6, b6, false, true), Some((vec![a6, b6], true)));
        assert_eq!(say(v6, a6, false, false), Some((vec![b6], true)));
        assert_eq!(say(v6, a6, true, true), Some((vec![a6], true)));
        assert_eq!(say(a4, a4, true, true), None);
    }

    #[test]
    fn the_same_hops_in_another_order_are_told_apart() {
        let v4 = IpAddr::from(Ipv4Addr::new(10, 99, 0, 1));
        let [a, b] = [11, 12].map(|n| IpAddr::from(Ipv4Addr::new(10, 60, 0, n)));
        let mut state: BTreeMap<IpAddr, Route> = [(v4, Route::default())].into();
        let mut say = |via: &[IpAddr]| {
            let mut m = message(v4, &[]);
            let hop = |gateway: &IpAddr| {
                let mut hop = RouteNextHop::default();
                hop.attributes.push(RouteAttribute::Gateway((*gateway).into()));
                hop
            };
            m.attributes.push(RouteAttribute::MultiPath(via.iter().map(hop).collect()));
            apply(&mut state, &m, true, true, 1).map(|e| (e.changed, e.reordered))
        };
        assert_eq!(say(&[a, b]), Some((true, false)));
        assert_eq!(say(&[a, b]), Some((false, false)));
        assert_eq!(say(&[b, a]), Some((false, true)));
        assert_eq!(say(&[b]), Some((true, false)));
    }
}
