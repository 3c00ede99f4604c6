//! `[bgp]`: the speaker and its neighbours.

mod attributes;
mod community;
mod neighbor;
mod resolve;

use super::schema;
use super::sections::ClusterRead;
use super::tree::{Place, Sink, Table, Value};
use super::values::{seconds, shown};
pub(super) use attributes::{next_hop, overrides, whole};

/// Bandwidths as people write them.
pub(super) mod rate {
    pub(in crate::config) use super::community::{ACCEPTED_RATE as ACCEPTED, rate as parse};
}

use holdfast_bgp::session::MAX_RESTART;
use holdfast_bgp::types::{Asn, RouterId};
use holdfast_node::config::{Name, RouterIdFrom};
pub(super) use neighbor::NeighborRead;
pub(super) use resolve::resolve;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

/// Each has a connection, timers and a table of its own.
const NEIGHBORS_MAX: usize = 64;
const ACCEPTED_AS: &str = "1 to 4294967294 but not 23456 or 65535, as 65010";
const RESTART_MIN: Duration = Duration::from_secs(1);
const RESTART: Duration = Duration::from_secs(15);
const PORT: u16 = 179;

/// The section with the places that the cross checks talk about.
#[derive(Debug)]
pub(super) struct BgpRead {
    asn: Option<Asn>,
    /// As written, with its place.
    router_id: Option<(Ipv4Addr, Place)>,
    listen: Option<bool>,
    listen_port: Option<u16>,
    /// Outer `None`: wrong.
    graceful_restart: Option<Option<Duration>>,
    pub(super) neighbors: Vec<NeighborRead>,
    /// Everything so far was right.
    whole: bool,
}

/// `[bgp]`, if it is there.
pub(super) fn bgp(root: &Table<'_>, sink: &mut Sink) -> Option<BgpRead> {
    let before = sink.len();
    let table = root.get("bgp")?.table("a [bgp] section", sink)?;
    table.known_keys(&schema::BGP, sink);
    let own = table.require("asn", ACCEPTED_AS, sink).and_then(|value| asn(&value, ACCEPTED_AS, sink));
    let router_id = table.get("router_id").and_then(|value| Some((router_id(&value, sink)?, value.place)));
    let listen = table.get("listen").map_or(Some(true), |value| value.boolean(sink));
    let listen_port = table.get("listen_port").map_or(Some(PORT), |value| {
        if listen == Some(false) {
            value.refuse("has no effect with listen = false", "one of them", sink);
            return None;
        }
        neighbor::port(&value, sink)
    });
    let graceful_restart =
        table.get("graceful_restart").map_or(Some(Some(RESTART)), |value| graceful_restart(&value, sink));
    if table.get("neighbor").is_none() {
        table.require("neighbor", "at least one [[bgp.neighbor]] section", sink);
    }
    let sections = table.tables("neighbor", NEIGHBORS_MAX, sink);
    let neighbors = sections.iter().map(|table| neighbor::neighbor(table, own, listen, sink)).collect();
    let whole = sink.len() == before;
    Some(BgpRead { asn: own, router_id, listen, listen_port, graceful_restart, neighbors, whole })
}

/// RFC 7607, 6793, 7300: numbers that nobody has.
fn asn(value: &Value<'_>, accepted: &str, sink: &mut Sink) -> Option<Asn> {
    let n = value.integer_in(0..i64::from(u32::MAX) + 1, accepted, sink)?;
    let asn = u32::try_from(n).ok()?;
    let why = match asn {
        0 => "0 is nobody's",
        23_456 => "23456 stands for numbers that don't fit 16 bits",
        65_535 | u32::MAX => "the last number is reserved",
        _ => return Some(Asn(asn)),
    };
    value.refuse(why, accepted, sink);
    None
}

/// RFC 6286: any but zero.
fn router_id(value: &Value<'_>, sink: &mut Sink) -> Option<Ipv4Addr> {
    let accepted = "four numbers as in an IPv4 address, unique in the AS, as \"10.0.0.11\"";
    let text = value.string(accepted, sink)?;
    match text.parse::<Ipv4Addr>() {
        Ok(id) if id.is_unspecified() => value.refuse("0.0.0.0 is no identifier", accepted, sink),
        Ok(id) => return Some(id),
        Err(_) => value.refuse(&format!("`{}` is not an identifier", shown(text)), accepted, sink),
    }
    None
}

fn graceful_restart(value: &Value<'_>, sink: &mut Sink) -> Option<Option<Duration>> {
    if value.as_str() == Some("off") {
        return Some(None);
    }
    let accepted = "\"off\", or whole seconds from 1s to 4095s";
    seconds(value, RESTART_MIN, MAX_RESTART, accepted, sink).map(Some)
}

impl BgpRead {
    /// The identifier, and where it comes from. What is derived depends on the text alone, never on the addresses that
    /// happen to be there: a VIP on `lo` would be every node's.
    fn identifier(&self, node: &Name, cluster: Option<&ClusterRead>) -> Option<(RouterId, RouterIdFrom)> {
        let configured = self.router_id.as_ref().map(|(id, _)| (*id, RouterIdFrom::Configured));
        let source = || {
            let sources = self.neighbors.iter().filter_map(|read| read.source.as_ref());
            let mut sources = sources.filter_map(|(ip, _)| neighbor::ipv4(*ip));
            sources.next().map(|ip| (ip, RouterIdFrom::Source))
        };
        let listen = || {
            let (listen, _) = cluster?.listen.as_ref()?;
            neighbor::ipv4(listen.ip()).map(|ip| (ip, RouterIdFrom::Cluster))
        };
        let name = || (of_name(node), RouterIdFrom::NodeName);
        let (id, from) = configured.or_else(source).or_else(listen).unwrap_or_else(name);
        Some((RouterId::new(id)?, from))
    }

    /// Each file is there, only for those that may know it, and is a key.
    pub(super) fn passwords(&self, wrong: &dyn Fn(&Path) -> Option<String>, sink: &mut Sink) {
        for (path, place) in self.neighbors.iter().filter_map(|read| read.password.as_ref()) {
            if let Some(why) = wrong(path) {
                let accepted = "a file of 1 to 80 bytes that others than its owner and group can't read";
                let what = format!("{}: {why}", path.display());
                sink.push(place.span.clone(), &place.path, what, Some(accepted.to_owned()));
            }
        }
    }
}

/// FNV-1a, brought into what old routers take for an identifier: 1.0.0.0 to 223.255.255.255, but 127.0.0.0/8.
fn of_name(node: &Name) -> Ipv4Addr {
    let hash =
        node.as_str().bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let [a, b, c, d] = hash.to_be_bytes();
    // 222 values: 1 to 126 and 128 to 223.
    let a = match a % 222 {
        low @ 0..126 => low + 1,
        high => high + 2,
    };
    Ipv4Addr::new(a, b, c, d)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_identifier_of_a_name_is_the_same_in_every_version() {
        let of = |name: &str| of_name(&Name::new(name).expect("a name"));
        assert_eq!(of("lb1"), of("lb1"));
        assert_ne!(of("lb1"), of("lb2"));
        // Another one would end every session at an upgrade.
        assert_eq!(of("lb1").to_string(), "143.94.152.14");
    }

    proptest! {
        #[test]
        fn old_routers_take_the_identifier_of_any_name(name in "[a-z0-9][a-z0-9._-]{0,62}") {
            let id = of_name(&Name::new(&name).expect("a name"));
            let first = id.octets()[0];
            prop_assert!((1..=223).contains(&first) && first != 127, "{}", id);
        }
    }
}
