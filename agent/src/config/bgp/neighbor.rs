//! One `[[bgp.neighbor]]`.

use super::attributes::{next_hop, overrides};
use crate::config::tree::{Place, Sink, Table, Value};
use crate::config::values::{absolute_path, count, duration, flat, interface, name, seconds, shown};
use crate::config::{schema, vip::host};
use holdfast_bgp::session::{MAX_CONNECT_RETRY, MAX_HOLD, MIN_CONNECT_RETRY, MIN_HOLD};
use holdfast_bgp::types::{Asn, Families, Family};
use holdfast_node::config::{Bfd, InterfaceName, Neighbor, NeighborAs};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

const ACCEPTED_ADDRESS: &str = "the router's address, as \"10.0.0.1\", \"2001:db8::1\" or \"fe80::1%eth0\"";
const ACCEPTED_AS: &str = "1 to 4294967294 but not 23456 or 65535, \"internal\" or \"external\"";
const ACCEPTED_BFD: &str = "true, false, or { interval = \"300ms\", multiplier = 3 }";
const BFD_INTERVAL: Duration = Duration::from_millis(300);
const BFD_INTERVAL_MIN: Duration = Duration::from_millis(10);
const BFD_INTERVAL_MAX: Duration = Duration::from_secs(60);
const BFD_MULTIPLIER: u8 = 3;

/// A neighbour with the places that the cross checks talk about.
#[derive(Debug)]
pub(in crate::config) struct NeighborRead {
    pub(in crate::config) table: Place,
    pub(in crate::config) name: Option<(String, Place)>,
    /// Where it is, and where that is written. `None`: wrong.
    pub(super) remote: Option<(Remote, Place)>,
    /// Our own end, which can't be a VIP.
    pub(super) source: Option<(IpAddr, Place)>,
    pub(super) next_hop: Option<Place>,
    pub(super) password: Option<(PathBuf, Place)>,
    /// The key `families`; without it they follow from the VIPs.
    pub(super) families: Option<(Families, Place)>,
    /// All of it, if nothing is wrong; `families` only as far as they are written.
    pub(super) item: Option<Neighbor>,
}

/// Where a neighbour is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Remote {
    /// `None`: unnumbered.
    pub(super) address: Option<IpAddr>,
    pub(super) interface: Option<InterfaceName>,
}

impl Remote {
    fn link_local(&self) -> bool {
        self.address.is_none_or(|ip| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()))
    }

    fn family(&self) -> Family {
        self.address.map_or(Family::Ipv6, Family::of)
    }
}

/// Reads one. `listen`: others may connect to us; `None` if that is wrong.
pub(super) fn neighbor(table: &Table<'_>, own: Option<Asn>, listen: Option<bool>, sink: &mut Sink) -> NeighborRead {
    table.known_keys(&schema::NEIGHBOR, sink);
    let remote = remote(table, sink);
    let named = table.get("name").map(|value| Some((name(&value, sink)?.as_str().to_owned(), value.place)));
    let named = named.unwrap_or_else(|| {
        let (remote, place) = remote.as_ref()?;
        Some((shown_remote(remote), place.clone()))
    });
    let asn = neighbor_as(table, sink);
    let internal = match (asn, own) {
        (Some(NeighborAs::Exactly(asn)), Some(own)) => asn == own,
        (asn, _) => asn == Some(NeighborAs::Internal),
    };
    let usual = Neighbor::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), NeighborAs::External);
    let port = table.get("port").map_or(Some(usual.port), |value| port(&value, sink));
    let hold_time = table.get("hold_time").map_or(Some(usual.hold_time), |value| hold_time(&value, sink));
    let connect_retry = table
        .get("connect_retry")
        .map_or(Some(usual.connect_retry), |value| duration(&value, MIN_CONNECT_RETRY, MAX_CONNECT_RETRY, sink));
    let passive = table.get("passive").map_or(Some(false), |value| {
        let passive = value.boolean(sink)?;
        if passive && listen == Some(false) {
            value.refuse("would never be connected: bgp.listen is false", "one of passive and listen = false", sink);
            return None;
        }
        Some(passive)
    });
    let at = remote.as_ref().map(|(remote, _)| remote);
    let source = table.get("source").map(|value| Some((source(&value, at, sink)?, value.place)));
    let password = table.get("password_file").map(|value| Some((absolute_path(&value, sink)?, value.place)));
    let hops = hops(table, at, internal, sink);
    let capabilities = table.get("capabilities").map_or(Some(true), |value| value.boolean(sink));
    let families = table.get("families").map(|value| Some((families(&value, sink)?, value.place)));
    let extended_next_hop = table.get("extended_next_hop").map_or(Some(false), |value| {
        let on = value.boolean(sink)?;
        if on && at.is_some_and(|at| at.family() == Family::Ipv4) {
            value.refuse("has no effect over IPv4: our next hop is an IPv4 address", "neighbours over IPv6", sink);
            return None;
        }
        Some(on)
    });
    if capabilities == Some(false)
        && let Some(value) = table.get("capabilities")
    {
        let ipv6 = matches!(&families, Some(Some((families, _))) if families.ipv6);
        if ipv6 || extended_next_hop == Some(true) {
            let what = "leaves IPv4 routes with IPv4 next hops only: all else is agreed on by capabilities";
            value.refuse(what, "true", sink);
        }
    }
    let bfd = bfd(table, at, hops, sink);
    let overrides = overrides(table, sink);
    let next_hop = next_hop(table, sink);
    let (source, password, families) = (flat(source), flat(password), flat(families));
    let item = (|| {
        let remote = at?;
        let (multihop, ttl_security) = hops?;
        let base = Neighbor::new(remote.address.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)), asn?);
        Some(Neighbor {
            name: named.as_ref()?.0.clone(),
            address: remote.address,
            interface: remote.interface.clone(),
            port: port?,
            hold_time: hold_time?,
            connect_retry: connect_retry?,
            passive: passive?,
            source: source.as_ref()?.as_ref().map(|(ip, _)| *ip),
            password_file: password.as_ref()?.as_ref().map(|(path, _)| path.clone()),
            multihop,
            ttl_security,
            families: families.as_ref()?.as_ref().map_or(base.families, |(families, _)| *families),
            capabilities: capabilities?,
            extended_next_hop: extended_next_hop?,
            bfd: bfd?,
            overrides: overrides?,
            next_hop: next_hop?,
            ..base
        })
    })();
    NeighborRead {
        table: table.place.clone(),
        name: named,
        source: source.flatten(),
        password: password.flatten(),
        families: families.flatten(),
        next_hop: table.get("next_hop").map(|value| value.place),
        remote,
        item,
    }
}

fn shown_remote(remote: &Remote) -> String {
    match (remote.address, &remote.interface) {
        (Some(ip), Some(interface)) if remote.link_local() => format!("{ip}%{interface}"),
        (Some(ip), _) => ip.to_string(),
        (None, Some(interface)) => interface.to_string(),
        (None, None) => String::new(),
    }
}

/// The keys `address` and `interface`.
fn remote(table: &Table<'_>, sink: &mut Sink) -> Option<(Remote, Place)> {
    let device = table.get("interface").map(|value| Some((interface(&value, sink)?, value)));
    let device = flat(device)?;
    let Some(value) = table.get("address") else {
        let Some((device, value)) = device else {
            let accepted = "address, or interface alone for the router at the other end of a link";
            let what = "says not where the router is".to_owned();
            sink.push(table.place.span.clone(), &table.place.path, what, Some(accepted.to_owned()));
            return None;
        };
        return Some((Remote { address: None, interface: Some(device) }, value.place));
    };
    let text = value.string(ACCEPTED_ADDRESS, sink)?;
    let (ip, zone) = match text.split_once('%') {
        Some((ip, zone)) => (ip, Some(zone)),
        None => (text, None),
    };
    let wrong = match ip.parse::<IpAddr>() {
        Ok(ip) if host(ip).is_err() && !ip.is_loopback() => format!("{ip} is not the address of a router"),
        Ok(ip) => match on_link(ip, zone, device.map(|(device, _)| device)) {
            Ok(remote) => return Some((remote, value.place)),
            Err(why) => why,
        },
        Err(_) if text.contains('/') => format!("`{}` has a prefix: this is one address", shown(text)),
        Err(_) if text.parse::<std::net::SocketAddr>().is_ok() => {
            format!("`{}` has a port, which is a key of its own", shown(text))
        }
        Err(_) => format!("`{}` is not an address (names are not resolved)", shown(text)),
    };
    value.refuse(&wrong, ACCEPTED_ADDRESS, sink);
    None
}

/// A link-local address has an interface: its zone, or the key.
fn on_link(ip: IpAddr, zone: Option<&str>, device: Option<InterfaceName>) -> Result<Remote, String> {
    let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let interface = match zone {
        Some(_) if !link_local => return Err(format!("{ip} is not link-local, and has no zone")),
        Some(zone) => {
            let zone = InterfaceName::new(zone).ok_or_else(|| format!("`{}` is not an interface name", shown(zone)))?;
            if let Some(device) = device.filter(|device| *device != zone) {
                return Err(format!("is on {zone}, and interface says {device}"));
            }
            Some(zone)
        }
        None if link_local && device.is_none() => return Err(format!("{ip} is link-local: on which interface?")),
        None => device,
    };
    Ok(Remote { address: Some(ip), interface })
}

fn neighbor_as(table: &Table<'_>, sink: &mut Sink) -> Option<NeighborAs> {
    let value = table.require("asn", ACCEPTED_AS, sink)?;
    match value.as_str() {
        Some("internal") => Some(NeighborAs::Internal),
        Some("external") => Some(NeighborAs::External),
        Some(other) => {
            value.refuse(&format!("`{}` is not an AS number", shown(other)), ACCEPTED_AS, sink);
            None
        }
        None => super::asn(&value, ACCEPTED_AS, sink).map(NeighborAs::Exactly),
    }
}

pub(super) fn port(value: &Value<'_>, sink: &mut Sink) -> Option<u16> {
    value.integer_in(1..65_536, "1 to 65535", sink).and_then(|n| u16::try_from(n).ok())
}

/// RFC 4271 section 4.2: zero, or at least three seconds.
fn hold_time(value: &Value<'_>, sink: &mut Sink) -> Option<Duration> {
    let accepted = "\"0s\" (no keepalives), or whole seconds from 3s to 65535s";
    if value.as_str().is_some_and(|text| crate::config::duration::parse(text) == Ok(Duration::ZERO)) {
        return Some(Duration::ZERO);
    }
    seconds(value, MIN_HOLD, MAX_HOLD, accepted, sink)
}

fn source(value: &Value<'_>, at: Option<&Remote>, sink: &mut Sink) -> Option<IpAddr> {
    let accepted = "an address that this node has for good, of the neighbour's address family";
    let text = value.string(accepted, sink)?;
    let wrong = match text.parse::<IpAddr>() {
        Ok(ip) if host(ip).is_err() && !ip.is_loopback() => format!("{ip} is not the address of a host"),
        Ok(ip) => match at {
            Some(at) if at.address.is_none() => {
                "has no effect without address: the link-local address of the interface is used".to_owned()
            }
            Some(at) if Family::of(ip) != at.family() => {
                format!("{ip} is {}, and the neighbour is {}", Family::of(ip), at.family())
            }
            Some(at) if at.link_local() != matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()) => {
                "is link-local, or the neighbour is, but not both".to_owned()
            }
            Some(at) if at.address == Some(ip) => "is the neighbour's own address".to_owned(),
            _ => return Some(ip),
        },
        Err(_) => format!("`{}` is not an address (names are not resolved)", shown(text)),
    };
    value.refuse(&wrong, accepted, sink);
    None
}

/// multihop and ttl_security.
fn hops(table: &Table<'_>, at: Option<&Remote>, internal: bool, sink: &mut Sink) -> Option<(u8, Option<u8>)> {
    let before = sink.len();
    let link_local = at.is_some_and(Remote::link_local);
    let multihop = table.get("multihop").map(|value| {
        let hops = count(&value, sink)?;
        if hops > 1 && link_local {
            value.refuse("is more than link-local addresses can bridge", "1", sink);
            return None;
        }
        Some(hops)
    });
    let security = table.get("ttl_security").map(|value| {
        let accepted = "false, true (one hop), or the hops to the neighbour: 1 to 254";
        let hops = match value.as_bool() {
            Some(false) => return Some(None),
            Some(true) => 1,
            None => value.integer_in(1..255, accepted, sink).and_then(|n| u8::try_from(n).ok())?,
        };
        if table.get("multihop").is_some() {
            let what = "doesn't go with multihop: it sends with TTL 255 and says itself how far the neighbour is";
            value.refuse(what, "one of them", sink);
            return None;
        }
        if hops > 1 && link_local {
            value.refuse("is more than link-local addresses can bridge", "true, 1", sink);
            return None;
        }
        Some(Some(hops))
    });
    let (multihop, security) = (flat(multihop)?, flat(security)?);
    let default = if internal && !link_local { 255 } else { 1 };
    (sink.len() == before).then_some((multihop.unwrap_or(default), security.flatten()))
}

fn families(value: &Value<'_>, sink: &mut Sink) -> Option<Families> {
    let accepted = "a list of ipv4, ipv6, or one of them";
    let items = value.array(accepted, sink)?;
    let mut families = Families::NONE;
    for item in &items {
        let family = crate::config::values::word(item, &[("ipv4", Family::Ipv4), ("ipv6", Family::Ipv6)], sink)?;
        if families.contains(family) {
            item.refuse("is there twice", accepted, sink);
            return None;
        }
        families = families.with(family);
    }
    if families.is_empty() {
        value.refuse("is empty: nothing could be announced", accepted, sink);
        return None;
    }
    Some(families)
}

/// The key `bfd`. Outer `None`: wrong.
fn bfd(table: &Table<'_>, at: Option<&Remote>, hops: Option<(u8, Option<u8>)>, sink: &mut Sink) -> Option<Option<Bfd>> {
    let Some(value) = table.get("bfd") else { return Some(None) };
    let written = table.get("multihop").is_some();
    let far = hops.map_or(1, |(multihop, security)| security.unwrap_or(if written { multihop } else { 1 }));
    // What comes over n hops arrives with 256 less n. Said to be over routers, an internal neighbour is as far away as its
    // session allows for.
    let most = hops.map_or(1, |(multihop, security)| security.unwrap_or(multihop));
    let least = 255 - most.saturating_sub(1);
    let bfd = |interval, multiplier, multihop: bool, min_ttl: Option<u8>| Bfd {
        interval,
        multiplier,
        multihop,
        min_ttl: if multihop { min_ttl.unwrap_or(least) } else { 255 },
    };
    match value.as_bool() {
        Some(false) => return Some(None),
        Some(true) => return Some(Some(bfd(BFD_INTERVAL, BFD_MULTIPLIER, far > 1, None))),
        None => {}
    }
    let keys = value.table(ACCEPTED_BFD, sink)?;
    keys.known_keys(&schema::BFD, sink);
    let interval = keys
        .get("interval")
        .map_or(Some(BFD_INTERVAL), |value| duration(&value, BFD_INTERVAL_MIN, BFD_INTERVAL_MAX, sink));
    let multiplier = keys.get("multiplier").map_or(Some(BFD_MULTIPLIER), |value| count(&value, sink));
    let multihop = keys.get("multihop").map_or(Some(far > 1), |value| {
        let multihop = value.boolean(sink)?;
        if multihop && at.is_some_and(Remote::link_local) {
            value.refuse("is more than link-local addresses can bridge", "false", sink);
            return None;
        }
        if !multihop && far > 1 {
            let what = format!("can't be false: the neighbour is up to {far} hops away");
            value.refuse(&what, "true", sink);
            return None;
        }
        Some(multihop)
    });
    let min_ttl = keys.get("min_ttl").map(|value| {
        if multihop == Some(false) {
            value.refuse("goes with multihop only: one hop away arrives with 255", "multihop = true", sink);
            return None;
        }
        count(&value, sink)
    });
    let min_ttl = flat(min_ttl)?;
    Some(Some(bfd(interval?, multiplier?, multihop?, min_ttl)))
}

/// The router identifier that the address of a connection makes.
pub(super) fn ipv4(ip: IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V4(ip) if !ip.is_unspecified() && !ip.is_loopback() => Some(ip),
        _ => None,
    }
}
