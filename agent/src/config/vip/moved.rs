//! What moves with the addresses of a VIP (`routes`, `rules`), and how they are announced (`announce`).

use super::address::{host, prefix_length};
use crate::config::schema;
use crate::config::tree::{Place, Sink, Table, Value};
use crate::config::values::{duration, flat, host_address, interface, shown};
use holdfast_node::config::{AnnounceConfig, InterfaceName, Route, Rule};
use holdfast_vrrp::Family;
use std::net::IpAddr;
use std::time::Duration;

const ACCEPTED_ROUTE: &str = "{ to = \"default\", via = \"192.0.2.1\", table = 100 }";
const ACCEPTED_RULE: &str = "{ from = \"192.0.2.10/32\", table = 100, priority = 1000 }";
const ACCEPTED_PREFIX: &str = "a network as \"10.0.0.0/8\" or \"2001:db8::/32\"";
/// Of one VIP; each is kept right by looking at it.
const ENTRIES_MAX: usize = 256;
/// The kernel's main table.
const TABLE_MAIN: u32 = 254;
/// Burst of announcements.
const REPEAT_MAX: i64 = 20;
const SECOND_MAX: Duration = Duration::from_secs(60);
const REFRESH_MIN: Duration = Duration::from_secs(1);
const REFRESH_MAX: Duration = Duration::from_secs(3600);

/// The key `routes`. `vrrp_interface`: where a route without `interface` goes out; `anycast`: there is none.
pub(super) fn routes(
    vip: &Table<'_>,
    vrrp_interface: Option<&InterfaceName>,
    anycast: bool,
    sink: &mut Sink,
) -> Option<Vec<(Route, Place)>> {
    entries(vip, "routes", ACCEPTED_ROUTE, sink, |table, sink| {
        if anycast {
            table.require("interface", "an interface: without vrrp there is none to take", sink)?;
        }
        route(table, vrrp_interface, sink)
    })
}

/// The key `rules`.
pub(super) fn rules(vip: &Table<'_>, sink: &mut Sink) -> Option<Vec<(Rule, Place)>> {
    entries(vip, "rules", ACCEPTED_RULE, sink, rule)
}

fn entries<T>(
    vip: &Table<'_>,
    key: &str,
    accepted: &str,
    sink: &mut Sink,
    read: impl Fn(&Table<'_>, &mut Sink) -> Option<T>,
) -> Option<Vec<(T, Place)>> {
    let Some(value) = vip.get(key) else { return Some(Vec::new()) };
    let items = value.array(&format!("a list of {accepted}"), sink)?;
    if items.is_empty() || items.len() > ENTRIES_MAX {
        value.refuse(&format!("has {} elements", items.len()), &format!("1 to {ENTRIES_MAX}"), sink);
        return None;
    }
    let all: Vec<Option<(T, Place)>> = items
        .iter()
        .map(|item| {
            let table = item.table(accepted, sink)?;
            Some((read(&table, sink)?, item.place.clone()))
        })
        .collect();
    all.into_iter().collect()
}

fn route(table: &Table<'_>, vrrp_interface: Option<&InterfaceName>, sink: &mut Sink) -> Option<Route> {
    table.known_keys(&schema::ROUTE, sink);
    let accepted = "\"default\" or a network as \"10.0.0.0/8\"";
    let to = table.require("to", accepted, sink);
    let default = to.as_ref().is_some_and(|value| value.as_str() == Some("default"));
    let destination = match &to {
        Some(value) if !default => prefix(value, 0, sink),
        _ => None,
    };
    let family = destination.map(|(ip, _)| Family::of(ip));
    let of_family = |key: &str, accepted: &str, family: Option<Family>, sink: &mut Sink| {
        table.get(key).map(|value| host_address(&value, family, accepted, sink))
    };
    let via = of_family("via", "the next hop, of the destination's address family", family, sink);
    let family = family.or_else(|| via.flatten().map(Family::of));
    let source = of_family("source", "the source address preferred, of the destination's address family", family, sink);
    let family = family.or_else(|| source.flatten().map(Family::of));
    let destination = match (default, family, &to) {
        (false, ..) => destination,
        (true, Some(Family::V4), _) => Some((IpAddr::from([0; 4]), 0)),
        (true, Some(Family::V6), _) => Some((IpAddr::from([0_u16; 8]), 0)),
        (true, None, Some(value)) if via.is_none() && source.is_none() => {
            value.refuse("says not of which address family", "0.0.0.0/0, ::/0, or default with via or source", sink);
            None
        }
        (true, None, _) => None,
    };
    let out = table.get("interface").map_or_else(|| vrrp_interface.cloned(), |value| interface(&value, sink));
    let in_table = table.get("table").map_or(Some(TABLE_MAIN), |value| table_number(&value, sink));
    let metric = table.get("metric").map(|value| {
        let n = value.integer_in(0..i64::from(u32::MAX) + 1, "0 to 4294967295", sink)?;
        u32::try_from(n).ok()
    });
    Some(Route {
        to: destination?,
        via: flat(via)?,
        interface: out?,
        table: in_table?,
        source: flat(source)?,
        metric: flat(metric)?,
    })
}

fn rule(table: &Table<'_>, sink: &mut Sink) -> Option<Rule> {
    table.known_keys(&schema::RULE, sink);
    let from = table.get("from").map(|value| (prefix(&value, 1, sink), value));
    let to = table.get("to").map(|value| (prefix(&value, 1, sink), value));
    if from.is_none() && to.is_none() {
        let accepted = Some("from, to or both".to_owned());
        sink.push(table.place.span.clone(), &table.place.path, "would take all traffic".to_owned(), accepted);
    }
    let in_table = table.require("table", "1 to 4294967295", sink).and_then(|value| table_number(&value, sink));
    // 0 is the kernel's own look-up of local addresses, 32766 that of the main table.
    let accepted = "1 to 32765, lowest first";
    let priority = table
        .require("priority", accepted, sink)
        .and_then(|value| value.integer_in(1..32_766, accepted, sink))
        .and_then(|n| u32::try_from(n).ok());
    if let (Some((Some(from), _)), Some((Some(to), value))) = (&from, &to)
        && from.0.is_ipv4() != to.0.is_ipv4()
    {
        let family = Family::of(from.0);
        value.refuse("is of another address family than from", &format!("an {family} network"), sink);
        return None;
    }
    let (from, to) = (flat(from.map(|(prefix, _)| prefix))?, flat(to.map(|(prefix, _)| prefix))?);
    if from.is_none() && to.is_none() {
        return None;
    }
    Some(Rule { from, to, table: in_table?, priority: priority? })
}

fn table_number(value: &Value<'_>, sink: &mut Sink) -> Option<u32> {
    let accepted = "1 to 4294967295 but not 255, the kernel's table of local addresses";
    let n = value.integer_in(1..i64::from(u32::MAX) + 1, accepted, sink)?;
    if n == 255 {
        value.refuse("255 is the kernel's own", accepted, sink);
        return None;
    }
    u32::try_from(n).ok()
}

fn prefix(value: &Value<'_>, least: u8, sink: &mut Sink) -> Option<(IpAddr, u8)> {
    let text = value.string(ACCEPTED_PREFIX, sink)?;
    parse_prefix(text, least).map_err(|why| value.refuse(&why, ACCEPTED_PREFIX, sink)).ok()
}

fn parse_prefix(text: &str, least: u8) -> Result<(IpAddr, u8), String> {
    let Some((ip, length)) = text.split_once('/') else {
        let ip = text.parse::<IpAddr>();
        let wrong = if ip.is_ok() { "has no prefix length" } else { "is not a network" };
        return Err(format!("`{}` {wrong}", shown(text)));
    };
    let ip: IpAddr = ip.parse().map_err(|_| format!("`{}` is not an address", shown(ip)))?;
    let length = prefix_length(length, Family::of(ip), least)?;
    let network = masked(ip, length);
    if network != ip {
        return Err(format!("{ip}/{length} has bits beyond its prefix, the network is {network}/{length}"));
    }
    if length > 0 && host(ip).is_err() && !ip.is_unspecified() {
        return Err(format!("{ip}/{length} is no network that hosts are in"));
    }
    Ok((ip, length))
}

fn masked(ip: IpAddr, length: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
            IpAddr::V4((u32::from(ip) & mask).into())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
            IpAddr::V6((u128::from(ip) & mask).into())
        }
    }
}

/// The key `announce`.
pub(super) fn announce(vip: &Table<'_>, sink: &mut Sink) -> Option<AnnounceConfig> {
    let default = AnnounceConfig::default();
    let Some(value) = vip.get("announce") else { return Some(default) };
    let table = value.table("{ repeat = 4, second = \"5s\", refresh = \"0s\" }", sink)?;
    table.known_keys(&schema::ANNOUNCE, sink);
    let repeat = table.get("repeat").map_or(Some(default.repeat), |value| {
        value.integer_in(1..REPEAT_MAX + 1, "1 to 20", sink).and_then(|n| u8::try_from(n).ok())
    });
    let second =
        table.get("second").map_or(Some(default.second), |value| duration(&value, Duration::ZERO, SECOND_MAX, sink));
    let refresh = table.get("refresh").map_or(Some(default.refresh), |value| {
        let refresh = duration(&value, Duration::ZERO, REFRESH_MAX, sink)?;
        if refresh > Duration::ZERO && refresh < REFRESH_MIN {
            value.refuse("is too often for what is only a refresh", "0s for never, or 1s to 1h", sink);
            return None;
        }
        Some(refresh)
    });
    Some(AnnounceConfig { repeat: repeat?, second: second?, refresh: refresh? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_a_prefix_and_nothing_beyond_it() {
        let of = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert_eq!(parse_prefix("10.0.0.0/8", 1), Ok((of("10.0.0.0"), 8)));
        assert_eq!(parse_prefix("2001:db8::/32", 1), Ok((of("2001:db8::"), 32)));
        assert_eq!(parse_prefix("0.0.0.0/0", 0), Ok((of("0.0.0.0"), 0)));
        assert_eq!(parse_prefix("::/0", 0), Ok((of("::"), 0)));
        assert_eq!(parse_prefix("192.0.2.10/32", 1), Ok((of("192.0.2.10"), 32)));
        for (text, why) in [
            ("10.0.0.0", "no prefix length"),
            ("all", "not a network"),
            ("10.0.0.1/8", "the network is 10.0.0.0/8"),
            ("2001:db8::1/64", "the network is 2001:db8::/64"),
            ("0.0.0.0/0", "not a prefix length of 1 to 32"),
            ("224.0.0.0/4", "no network that hosts are in"),
            ("10.0.0.0/", "not a prefix length"),
            ("/8", "not an address"),
        ] {
            let refused = parse_prefix(text, 1).expect_err(text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
