//! What is said with a route: the keys that a VIP, its states and a neighbour have in common.

use super::community::{self, ACCEPTED, ACCEPTED_EXTENDED, ACCEPTED_LARGE};
use crate::config::tree::{Sink, Table, Value};
use crate::config::values::{flat, host_address};
use holdfast_node::config::{NextHops, Overrides};
use holdfast_vrrp::Family;
use std::net::IpAddr;

/// A path that is longer is taken by few.
const PREPEND_MAX: i64 = 32;

/// communities, large_communities, extended_communities, med, local_pref, prepend.
pub(in crate::config) fn overrides(table: &Table<'_>, sink: &mut Sink) -> Option<Overrides> {
    let communities = list(table, "communities", ACCEPTED, community::standard, sink);
    let large = list(table, "large_communities", ACCEPTED_LARGE, community::large, sink);
    let extended = list(table, "extended_communities", ACCEPTED_EXTENDED, community::extended, sink);
    let med = number(table, "med", sink);
    let local_pref = number(table, "local_pref", sink);
    let prepend = table.get("prepend").map(|value| {
        let n = value.integer_in(0..PREPEND_MAX + 1, &format!("0 to {PREPEND_MAX}"), sink)?;
        u8::try_from(n).ok()
    });
    Some(Overrides {
        communities: flat(communities)?,
        large: flat(large)?,
        extended: flat(extended)?,
        med: flat(med)?,
        local_pref: flat(local_pref)?,
        prepend: flat(prepend)?,
    })
}

/// The key `next_hop`. `None`: wrong.
pub(in crate::config) fn next_hop(table: &Table<'_>, sink: &mut Sink) -> Option<NextHops> {
    let accepted = "{ ipv4 = \"10.0.0.11\", ipv6 = \"2001:db8::11\" }, one or both; absent: our own address";
    let Some(value) = table.get("next_hop") else { return Some(NextHops::default()) };
    let table = value.table(accepted, sink)?;
    table.known_keys(&crate::config::schema::NEXT_HOP, sink);
    if table.get("ipv4").is_none() && table.get("ipv6").is_none() {
        value.refuse("says none", accepted, sink);
        return None;
    }
    let ipv4 = table.get("ipv4").map(|value| {
        match host_address(&value, Some(Family::V4), "an IPv4 address that the routers reach", sink)? {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        }
    });
    let ipv6 = table.get("ipv6").map(|value| {
        let accepted = "an IPv6 address that the routers reach, not link-local";
        match host_address(&value, Some(Family::V6), accepted, sink)? {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                value.refuse(
                    &format!("{ip} is link-local: it goes along by itself where it is of use"),
                    accepted,
                    sink,
                );
                None
            }
            IpAddr::V6(ip) => Some(ip),
            IpAddr::V4(_) => None,
        }
    });
    Some(NextHops { ipv4: flat(ipv4)?, ipv6: flat(ipv6)? })
}

fn number(table: &Table<'_>, key: &str, sink: &mut Sink) -> Option<Option<u32>> {
    table.get(key).map(|value| whole(&value, sink))
}

/// 32 bits.
pub(in crate::config) fn whole(value: &Value<'_>, sink: &mut Sink) -> Option<u32> {
    let n = value.integer_in(0..i64::from(u32::MAX) + 1, "0 to 4294967295", sink)?;
    u32::try_from(n).ok()
}

fn list<T: PartialEq>(
    table: &Table<'_>,
    key: &str,
    accepted: &str,
    parse: impl Fn(&str) -> Result<T, String>,
    sink: &mut Sink,
) -> Option<Option<Vec<T>>> {
    let value = table.get(key)?;
    let read = |sink: &mut Sink| {
        let items = value.array(&format!("a list of {accepted}"), sink)?;
        let mut all = Vec::new();
        let mut wrong = false;
        for item in &items {
            let Some(text) = item.string(accepted, sink) else {
                wrong = true;
                continue;
            };
            match parse(text) {
                Ok(one) if all.contains(&one) => item.refuse("is there twice", "each once", sink),
                Ok(one) => {
                    all.push(one);
                    continue;
                }
                Err(why) => item.refuse(&why, accepted, sink),
            }
            wrong = true;
        }
        (!wrong).then_some(all)
    };
    Some(read(sink))
}
