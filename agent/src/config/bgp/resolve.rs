//! From what was read of `[bgp]` and of the VIPs to the speaker: who is told what, and whether that can be.

use super::neighbor::{NeighborRead, Remote};
use super::{BgpRead, ClusterRead};
use crate::config::cross::Addresses;
use crate::config::tree::{Place, Sink};
use crate::config::vip::{BgpOfVip, VipRead};
use holdfast_bgp::types::{Families, Family};
use holdfast_node::config::{Bgp, Name, Neighbor, Overrides, Unwell, VipBgp};
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

/// Bytes of a message (RFC 4271 section 4.1).
const MESSAGE_MAX: usize = 4096;
/// Header, the two lengths, and all but AS path and communities: ORIGIN, MED, LOCAL_PREF, and MP_REACH with two next
/// hops and one address, which is longer than NEXT_HOP with one address behind.
const FIXED: usize = 19 + 4 + 4 + 7 + 7 + (4 + 5 + 32 + 17);

/// A VIP that is announced, with what is announced of it.
struct Announced<'v> {
    read: &'v VipRead,
    bgp: &'v BgpOfVip,
    item: &'v VipBgp,
    families: Families,
}

/// Outer `None`: wrong. Checks across `[bgp]`, the VIPs and the channel.
pub(in crate::config) fn resolve(
    bgp: Option<&BgpRead>,
    vips: &[VipRead],
    node: Option<&Name>,
    cluster: Option<&ClusterRead>,
    addresses: &Addresses<'_>,
    sink: &mut Sink,
) -> Option<Option<Bgp>> {
    let Some(bgp) = bgp else { return Some(None) };
    let before = sink.len();
    unique(&bgp.neighbors, sink);
    keys(&bgp.neighbors, sink);
    stays(bgp, vips, addresses, sink);
    let announced: Vec<Announced<'_>> = vips.iter().filter_map(announced).collect();
    once(&announced, sink);
    let neighbors: Option<Vec<Neighbor>> =
        bgp.neighbors.iter().map(|read| neighbor(bgp, read, &announced, sink)).collect();
    let neighbors = neighbors?;
    for vip in &announced {
        reached(vip, &neighbors, sink);
        fits(vip, &neighbors, sink);
    }
    let (router_id, router_id_from) = bgp.identifier(node?, cluster)?;
    if sink.len() > before || !bgp.whole {
        return None;
    }
    Some(Some(Bgp {
        asn: bgp.asn?,
        router_id,
        router_id_from,
        listen: bgp.listen?,
        listen_port: bgp.listen_port?,
        graceful_restart: bgp.graceful_restart?,
        neighbors,
    }))
}

fn announced(read: &VipRead) -> Option<Announced<'_>> {
    let (bgp, addresses) = (read.bgp.as_ref()?, read.announced()?);
    let families = addresses.map(|prefix| prefix.family()).collect();
    Some(Announced { read, bgp, item: bgp.item()?, families })
}

/// Names and places of neighbours are unique, and an interface has one that is unnumbered or several that aren't.
fn unique(neighbors: &[NeighborRead], sink: &mut Sink) {
    let mut names: HashMap<&str, &Place> = HashMap::new();
    for (name, place) in neighbors.iter().filter_map(|read| read.name.as_ref()) {
        match names.get(name.as_str()) {
            Some(first) if first.path != place.path => {
                // Two without a name are told by their addresses.
                if place.path.ends_with(".name") || first.path.ends_with(".name") {
                    sink.at(place, format!("the name `{name}` is already that of {}", first.path));
                }
            }
            _ => {
                names.insert(name, place);
            }
        }
    }
    let mut seen: HashMap<(Option<IpAddr>, Option<&str>), &Place> = HashMap::new();
    for (remote, place) in neighbors.iter().filter_map(|read| read.remote.as_ref()) {
        let Remote { address, interface } = remote;
        let near = address.is_none_or(|ip| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()));
        let on = interface.as_ref().map(AsRef::as_ref).filter(|_| near);
        if let Some(first) = seen.get(&(*address, on)) {
            sink.at(place, format!("is already {}: who connects is told by its address", first.path));
            continue;
        }
        seen.insert((*address, on), place);
    }
    let unnumbered = neighbors.iter().filter_map(|read| read.remote.as_ref()).filter(|(r, _)| r.address.is_none());
    for (lonely, place) in unnumbered {
        let others = seen
            .iter()
            .find(|((ip, on), _)| ip.is_some() && on.is_some() && *on == lonely.interface.as_ref().map(AsRef::as_ref));
        if let Some((_, other)) = others {
            let what = format!("is anybody on that interface, and {} is somebody there", other.path);
            sink.at(place, what);
        }
    }
}

/// The kernel knows a TCP MD5 key by the address alone: on two interfaces one link-local address has one key, or none.
fn keys(neighbors: &[NeighborRead], sink: &mut Sink) {
    let mut seen: HashMap<IpAddr, (Option<&Path>, &Place)> = HashMap::new();
    for read in neighbors {
        let Some((Remote { address: Some(address), .. }, place)) = &read.remote else { continue };
        if !matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
            continue;
        }
        let key = read.password.as_ref().map(|(path, _)| path.as_path());
        let (first, at) = *seen.entry(*address).or_insert((key, place));
        if first != key {
            let here = read.password.as_ref().map_or(place, |(_, place)| place);
            let other = at.path.trim_end_matches(".address");
            sink.at(here, format!("has the same link-local address as {other}, and must have the same password_file"));
        }
    }
}

/// Neighbours, our own ends and next hops are addresses that stay where they are.
fn stays(bgp: &BgpRead, vips: &[VipRead], addresses: &Addresses<'_>, sink: &mut Sink) {
    let mut refuse = |ip: IpAddr, place: &Place, why: &str| {
        if let Some(vip) = addresses.get(ip) {
            sink.at(place, format!("{ip} is {}: {why}", vip.path));
        }
    };
    for read in &bgp.neighbors {
        if let Some((Remote { address: Some(ip), .. }, place)) = &read.remote {
            refuse(*ip, place, "a neighbour is another host");
        }
        if let Some((ip, place)) = &read.source {
            refuse(*ip, place, "the connection needs an address that stays on this node");
        }
        if let (Some(place), Some(item)) = (&read.next_hop, &read.item) {
            for ip in next_hops(item.next_hop.ipv4, item.next_hop.ipv6) {
                refuse(ip, place, "a next hop is an address that stays on this node");
            }
        }
    }
    if let Some((id, place)) = &bgp.router_id {
        refuse(IpAddr::V4(*id), place, "every node that announces it would have the same identifier");
    }
    for bgp in vips.iter().filter_map(|vip| vip.bgp.as_ref()) {
        if let (Some(place), Some(item)) = (&bgp.next_hop, bgp.item()) {
            for ip in next_hops(item.next_hop.ipv4, item.next_hop.ipv6) {
                refuse(ip, place, "a next hop is an address that stays on this node");
            }
        }
    }
}

fn next_hops(ipv4: Option<std::net::Ipv4Addr>, ipv6: Option<std::net::Ipv6Addr>) -> impl Iterator<Item = IpAddr> {
    ipv4.map(IpAddr::V4).into_iter().chain(ipv6.map(IpAddr::V6))
}

/// A prefix is one route: two addresses can't both be announced by it.
fn once(announced: &[Announced<'_>], sink: &mut Sink) {
    let mut seen = HashMap::new();
    for vip in announced {
        for prefix in vip.read.announced().into_iter().flatten() {
            // Single addresses are unique by themselves.
            if prefix.length() == prefix.family().bits() {
                continue;
            }
            if let Some(first) = seen.insert(prefix, &vip.bgp.place) {
                let what = format!("announces {prefix}, which {} announces too: a route is of one address", first.path);
                sink.at(&vip.bgp.place, what);
            }
        }
    }
}

/// Whether a neighbour can be told routes of a family: `vip`'s next hop is one that isn't the connection's own.
fn carries(neighbor: &Neighbor, family: Family, vip: Option<&VipBgp>) -> bool {
    if family == Family::Ipv6 && !neighbor.capabilities {
        return false;
    }
    match (family, neighbor.over_ipv6()) {
        (Family::Ipv4, false) | (Family::Ipv6, true) => true,
        (Family::Ipv4, true) => {
            neighbor.extended_next_hop
                || neighbor.next_hop.ipv4.is_some()
                || vip.is_some_and(|vip| vip.next_hop.ipv4.is_some())
        }
        (Family::Ipv6, false) => neighbor.next_hop.ipv6.is_some() || vip.is_some_and(|vip| vip.next_hop.ipv6.is_some()),
    }
}

/// What would let it carry a family that isn't its own.
fn remedy(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "extended_next_hop = true (RFC 8950), or next_hop = { ipv4 = \"…\" }, or a neighbour over IPv4",
        Family::Ipv6 => "next_hop = { ipv6 = \"…\" }, or a neighbour over IPv6",
    }
}

/// The whole of a neighbour: its families are those that are written, or else what the VIPs need and it can carry.
fn neighbor(bgp: &BgpRead, read: &NeighborRead, announced: &[Announced<'_>], sink: &mut Sink) -> Option<Neighbor> {
    let mut neighbor = read.item.clone()?;
    let at = bgp.neighbors.iter().position(|other| std::ptr::eq(other, read))?;
    let told = announced.iter().filter(|vip| vip.item.neighbors.iter().any(|id| usize::from(id.0) == at));
    let told: Vec<&Announced<'_>> = told.collect();
    let can =
        |family| carries(&neighbor, family, None) || told.iter().any(|v| carries(&neighbor, family, Some(v.item)));
    if let Some((families, place)) = &read.families {
        for family in families.iter().filter(|family| !can(*family)) {
            let over = if neighbor.over_ipv6() { Family::Ipv6 } else { Family::Ipv4 };
            let what = format!("{family} routes need a next hop, and over {over} we have none of theirs");
            sink.push(place.span.clone(), &place.path, what, Some(remedy(family).to_owned()));
        }
        return Some(neighbor);
    }
    let wanted: Families = told.iter().flat_map(|vip| vip.families.iter()).filter(|family| can(*family)).collect();
    let own = if neighbor.over_ipv6() { Family::Ipv6 } else { Family::Ipv4 };
    if !can(own) && wanted.is_empty() {
        let what = "over IPv6 and without capabilities nothing can be announced".to_owned();
        sink.push(read.table.span.clone(), &read.table.path, what, Some(remedy(Family::Ipv4).to_owned()));
        return None;
    }
    neighbor.families = if wanted.is_empty() { Families::NONE.with(own) } else { wanted };
    Some(neighbor)
}

/// Somebody hears of each of its families, and whoever is named hears of something.
fn reached(vip: &Announced<'_>, neighbors: &[Neighbor], sink: &mut Sink) {
    let its: Vec<&Neighbor> = vip.item.neighbors.iter().filter_map(|id| neighbors.get(usize::from(id.0))).collect();
    let hears =
        |neighbor: &Neighbor, family| neighbor.families.contains(family) && carries(neighbor, family, Some(vip.item));
    let place = vip.bgp.named.as_ref().unwrap_or(&vip.bgp.place);
    for family in vip.families.iter() {
        if its.iter().any(|neighbor| hears(neighbor, family)) {
            continue;
        }
        let names: Vec<&str> = its.iter().take(8).map(|neighbor| neighbor.name.as_str()).collect();
        let one = vip.read.announced().into_iter().flatten().find(|prefix| prefix.family() == family);
        let one = one.map(|prefix| prefix.ip().to_string()).unwrap_or_default();
        let what = format!("{one} is {family}, and no neighbour of it takes {family} routes ({})", names.join(", "));
        sink.push(place.span.clone(), &place.path, what, Some(format!("at the neighbour: {}", remedy(family))));
    }
    if vip.bgp.named.is_none() {
        return;
    }
    for deaf in its.iter().filter(|neighbor| !vip.families.iter().any(|family| hears(neighbor, family))) {
        let has: Vec<String> = vip.families.iter().map(|family| family.to_string()).collect();
        let what = format!("{} takes no {} routes: it would never hear of it", deaf.name, has.join(" or "));
        sink.at(place, what);
    }
}

/// What is said with one address fits one message, however it is with the VIP at the moment.
fn fits(vip: &Announced<'_>, neighbors: &[Neighbor], sink: &mut Sink) {
    let states = [("", None), ("on_down", Some(&vip.item.on_down)), ("on_disabled", Some(&vip.item.on_disabled))];
    for neighbor in vip.item.neighbors.iter().filter_map(|id| neighbors.get(usize::from(id.0))) {
        for (state, unwell) in states {
            let worse = match unwell {
                Some(Unwell::Withdraw) => continue,
                Some(Unwell::Announce(worse)) => Some(worse),
                None => None,
            };
            let len = message_len(vip.item, &neighbor.overrides, worse);
            if len > MESSAGE_MAX {
                let state = if state.is_empty() { String::new() } else { format!(" ({state})") };
                let what = format!(
                    "says up to {len} bytes of one address to {}{state}: a message has {MESSAGE_MAX} at most",
                    neighbor.name
                );
                let place = &vip.bgp.place;
                sink.push(place.span.clone(), &place.path, what, Some("fewer communities".to_owned()));
                return;
            }
        }
    }
}

/// Of the largest message that announces one address. What is there twice counts twice.
fn message_len(vip: &VipBgp, own: &Overrides, worse: Option<&Overrides>) -> usize {
    fn count<T>(base: &[T], worse: Option<&Vec<T>>, own: Option<&Vec<T>>) -> usize {
        worse.map_or(base.len(), Vec::len) + own.map_or(0, Vec::len)
    }
    let attribute = |len: usize| match len {
        0 => 0,
        1..=255 => 3 + len,
        _ => 4 + len,
    };
    let base = &vip.attributes;
    // Graceful shutdown is one more.
    let standard = 1 + count(&base.communities, worse.and_then(|w| w.communities.as_ref()), own.communities.as_ref());
    let large = count(&base.large, worse.and_then(|w| w.large.as_ref()), own.large.as_ref());
    let extended = usize::from(vip.link_bandwidth.is_some())
        + count(&base.extended, worse.and_then(|w| w.extended.as_ref()), own.extended.as_ref());
    let prepend = worse.and_then(|w| w.prepend).or(own.prepend).unwrap_or(base.prepend);
    // To a router of 16 bits it goes along as AS4_PATH once more.
    let path = 2 * attribute(2 + 4 * (1 + usize::from(prepend)));
    FIXED + path + attribute(4 * standard) + attribute(12 * large) + attribute(8 * extended)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::config::Attributes;

    #[test]
    fn each_list_counts_in_the_length_of_a_message() {
        let with = |communities: usize, large: usize| {
            let attributes =
                Attributes { communities: vec![0; communities], large: vec![[0; 3]; large], ..Attributes::default() };
            message_len(&VipBgp { attributes, ..VipBgp::to(Vec::new()) }, &Overrides::default(), None)
        };
        assert_eq!(with(1, 0) - with(0, 0), 4);
        assert_eq!(with(0, 1) - with(0, 0), 15);
        // From 256 bytes on the length has two.
        assert_eq!(with(63, 0) - with(62, 0), 5);
        let own = Overrides { communities: Some(vec![0; 3]), ..Overrides::default() };
        assert_eq!(message_len(&VipBgp::to(Vec::new()), &own, None) - with(0, 0), 12);
    }
}
