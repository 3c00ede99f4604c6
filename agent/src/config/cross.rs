//! What must be true between sections.

use super::MtuOf;
use super::probe::Later;
use super::sections::{ClusterRead, Named};
use super::tree::{Place, Sink};
use super::vip::{AddressRead, RouterRead, VipRead};
use holdfast_node::config::{Balancer, Check, CheckId, InterfaceName, Name, ProcessSource};
use holdfast_vrrp::Family;
use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::net::IpAddr;

/// Reports every key that was there before, with the path of the first.
fn unique<'p, K: Eq + Hash + Display>(
    items: impl IntoIterator<Item = (K, &'p Place)>,
    what: impl Fn(&K, &str) -> String,
    sink: &mut Sink,
) {
    let mut seen: HashMap<K, &Place> = HashMap::new();
    for (key, place) in items {
        if let Some(first) = seen.get(&key) {
            let what = what(&key, &first.path);
            sink.at(place, what);
        } else {
            seen.insert(key, place);
        }
    }
}

/// Names are unique within their kind.
pub(super) fn unique_names<T>(items: &[Named<T>], sink: &mut Sink) {
    names(items.iter().filter_map(|named| named.name.as_ref()), sink);
}

fn names<'p>(names: impl Iterator<Item = &'p (Name, Place)>, sink: &mut Sink) {
    let names = names.map(|(name, place)| (name.as_str(), place));
    unique(names, |name, first| format!("the name `{name}` is already that of {first}"), sink);
}

/// Two balancers can't be the same processes.
pub(super) fn balancers(balancers: &[Named<Balancer>], sink: &mut Sink) {
    unique_names(balancers, sink);
    let sources = balancers.iter().filter_map(|named| {
        let (_, place) = named.name.as_ref()?;
        let source = match &named.item.as_ref()?.source {
            ProcessSource::Unit(unit) => format!("unit {unit}"),
            ProcessSource::Pidfile(path) => format!("pidfile {}", path.display()),
            // The same program may run twice.
            ProcessSource::Command(_) | ProcessSource::Kernel => return None,
        };
        Some((source, place))
    });
    unique(sources, |source, first| format!("has the same {source} as {}", first.trim_end_matches(".name")), sink);
}

/// Names, addresses, virtual routers, routes and rules are unique.
pub(super) fn vips(vips: &[VipRead], sink: &mut Sink) {
    names(vips.iter().filter_map(|vip| vip.name.as_ref()), sink);
    let named: HashMap<&Name, &Place> =
        vips.iter().filter_map(|vip| vip.name.as_ref()).map(|(name, place)| (name, place)).collect();
    for (group, place) in vips.iter().filter_map(|vip| vip.group.as_ref()) {
        if let Some(vip) = named.get(group) {
            let vip = vip.path.trim_end_matches(".name");
            sink.at(place, format!("`{group}` is the name of {vip}: a group has a name of its own"));
        }
    }
    addresses(vips, sink);
    let routers = || vips.iter().flat_map(|vip| &vip.routers);
    let on_the_wire = routers()
        .map(|router| (format!("vrid {} on {} for {}", router.vrid, router.interface, router.family), &router.place));
    unique(on_the_wire, |router, first| format!("{router} is already {first}"), sink);
    // On one interface they are told apart above.
    let by_sender = routers().flat_map(|router| {
        router.peers.iter().map(move |peer| (format!("vrid {} with the peer {peer}", router.vrid), router))
    });
    let mut seen: HashMap<String, &RouterRead> = HashMap::new();
    for (key, router) in by_sender {
        let first = *seen.entry(key.clone()).or_insert(router);
        if first.interface != router.interface {
            let what = format!(
                "{key} is already {}: unicast adverts are told apart by VRID and sender, not by interface",
                first.place.path
            );
            sink.at(&router.place, what);
            break;
        }
    }
    let routes = vips.iter().flat_map(|vip| &vip.routes).map(|(route, place)| {
        let metric = route.metric.map(|metric| format!(" with metric {metric}")).unwrap_or_default();
        (format!("the route to {}/{} in table {}{metric}", route.to.0, route.to.1, route.table), place)
    });
    unique(routes, |route, first| format!("{route} is already {first}"), sink);
    let rules = vips.iter().flat_map(|vip| &vip.rules).map(|(rule, place)| (format!("the rule `{rule}`"), place));
    unique(rules, |rule, first| format!("{rule} is already {first}"), sink);
}

/// An address is there once; a link-local one once on its interface.
fn addresses(vips: &[VipRead], sink: &mut Sink) {
    let mut seen: HashMap<(IpAddr, Option<&InterfaceName>), &AddressRead> = HashMap::new();
    for address in vips.iter().flat_map(|vip| &vip.addresses) {
        let link_local = matches!(address.ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let key = (address.ip, address.interface.as_ref().filter(|_| link_local));
        match seen.get(&key) {
            None => {
                seen.insert(key, address);
            }
            // Both are of one VRID on one interface, which is refused as such.
            Some(first) if first.derived && address.derived => {}
            Some(first) => {
                let of = if first.derived { ", which it's derived from" } else { "" };
                sink.at(&address.place, format!("{} is already {}{of}", address.ip, first.place.path));
            }
        }
    }
}

/// An advert fits one packet of its interface: receivers drop fragments.
pub(super) fn adverts(vips: &[VipRead], mtu: MtuOf<'_>, sink: &mut Sink) {
    let mut known: HashMap<&InterfaceName, Option<usize>> = HashMap::new();
    for router in vips.iter().flat_map(|vip| &vip.routers) {
        let mtu = *known.entry(&router.interface).or_insert_with(|| mtu(&router.interface));
        if let Some(mtu) = mtu.filter(|mtu| router.packet_len > *mtu) {
            let one = if router.family == Family::V4 { 4 } else { 16 };
            let less = (router.packet_len - mtu).div_ceil(one);
            let what = format!(
                "makes {} adverts of {} bytes: larger than the MTU of {} ({mtu})",
                router.family, router.packet_len, router.interface
            );
            let accepted = format!("advertise = false for at least {less} of the {} addresses", router.family);
            sink.push(router.addresses_place.span.clone(), &router.addresses_place.path, what, Some(accepted));
        }
    }
}

/// The addresses of all VIPs, by address.
pub(super) struct Addresses<'a>(HashMap<IpAddr, &'a AddressRead>);

impl<'a> Addresses<'a> {
    pub(super) fn of(vips: &'a [VipRead]) -> Self {
        let mut by_ip = HashMap::new();
        for address in vips.iter().flat_map(|vip| &vip.addresses) {
            by_ip.entry(address.ip).or_insert(address);
        }
        Self(by_ip)
    }

    pub(super) fn get(&self, ip: IpAddr) -> Option<&'a Place> {
        self.0.get(&ip).map(|address| &address.place)
    }
}

/// Peers and sources are addresses that stay where they are.
pub(super) fn stays(vips: &[VipRead], addresses: &Addresses<'_>, sink: &mut Sink) {
    for (ip, place) in vips.iter().flat_map(|vip| &vip.stays) {
        if let Some(vip) = addresses.get(*ip) {
            sink.at(place, format!("{ip} is {}: adverts come from addresses that stay on their node", vip.path));
        }
    }
}

/// A check that goes to a VIP can only pass on the node that holds it: no other would ever take over.
pub(super) fn checks(checks: &[Named<Check>], later: &Later, addresses: &Addresses<'_>, sink: &mut Sink) {
    unique_names(checks, sink);
    for (_, check) in (0..).map(CheckId).zip(checks).filter(|(id, _)| !later.is_canary(*id)) {
        let (Some(item), Some((_, place))) = (&check.item, &check.name) else { continue };
        let Some(ip) = item.probe.target() else { continue };
        if let Some(vip) = addresses.get(ip) {
            let what = format!("checks {ip}, which is {}: only the node that holds it could pass", vip.path);
            let table = Place { span: place.span.clone(), path: place.path.trim_end_matches(".name").to_owned() };
            sink.push(table.span.clone(), &table.path, what, Some("an address that every node has".to_owned()));
        }
    }
}

/// The channel: peers are others, each is one, and neither end is a VIP.
pub(super) fn cluster(cluster: &ClusterRead, node: Option<&(Name, Place)>, vips: &Addresses<'_>, sink: &mut Sink) {
    names(cluster.peers.iter().filter_map(|peer| peer.name.as_ref()), sink);
    for (name, place) in cluster.peers.iter().filter_map(|peer| peer.name.as_ref()) {
        if node.is_some_and(|(own, _)| own == name) {
            sink.at(place, format!("`{name}` is this node's own name"));
        }
    }
    let addresses = || cluster.peers.iter().filter_map(|peer| peer.address.as_ref());
    let places = addresses().map(|(address, place)| (*address, place));
    unique(places, |address, first| format!("{address} is already {first}"), sink);
    let keys = cluster
        .peers
        .iter()
        .flat_map(|peer| &peer.keys)
        .map(|(key, place)| (holdfast_statesync::encode_key(key), place));
    unique(keys, |_, first| format!("is already {first}: a key names one peer"), sink);

    if let Some((listen, place)) = &cluster.listen {
        let ip = listen.ip();
        if let Some(vip) = vips.get(ip) {
            sink.at(place, format!("{ip} is {}: the channel needs an address that stays on this node", vip.path));
        }
        for (address, place) in addresses() {
            if address == listen {
                sink.at(place, format!("{address} is this node's own cluster.listen"));
            } else if address.is_ipv4() != listen.is_ipv4() {
                sink.at(place, format!("{address} is not of the address family of cluster.listen ({listen})"));
            }
        }
    }
    for (address, place) in addresses() {
        let ip = address.ip();
        if let Some(vip) = vips.get(ip) {
            sink.at(place, format!("{ip} is {}: the channel needs an address that stays on the peer", vip.path));
        }
    }
}
