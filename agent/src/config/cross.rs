//! What must be true between sections.

use super::sections::{ClusterRead, Named};
use super::tree::{Place, Sink};
use super::vip::VipRead;
use holdfast_node::config::{Balancer, Check, Name, Probe, ProcessSource};
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
            ProcessSource::Command(_) => return None,
        };
        Some((source, place))
    });
    unique(sources, |source, first| format!("has the same {source} as {}", first.trim_end_matches(".name")), sink);
}

/// Names, addresses and virtual routers are unique.
pub(super) fn vips(vips: &[VipRead], sink: &mut Sink) {
    names(vips.iter().filter_map(|vip| vip.named.name.as_ref()), sink);
    let addresses = vips.iter().flat_map(|vip| vip.addresses.iter().map(|(ip, place)| (*ip, place)));
    unique(addresses, |ip, first| format!("{ip} is already {first}"), sink);
    let routers = vips.iter().filter_map(|vip| {
        let (interface, vrid, place) = vip.router.as_ref()?;
        Some((format!("vrid {} on {interface}", vrid.get()), place))
    });
    unique(routers, |router, first| format!("{router} is already {first}"), sink);
}

/// A check that goes to a VIP can only pass on the node that holds it: no other would ever take over.
pub(super) fn checks(checks: &[Named<Check>], vips: &[VipRead], sink: &mut Sink) {
    unique_names(checks, sink);
    for check in checks {
        let (Some(item), Some((_, place))) = (&check.item, &check.name) else { continue };
        let (Probe::Http { address, .. } | Probe::Tcp { address }) = &item.probe else { continue };
        let vip = vips.iter().flat_map(|vip| &vip.addresses).find(|(ip, _)| IpAddr::V4(*ip) == address.ip());
        if let Some((ip, vip)) = vip {
            let what = format!("checks {ip}, which is {}: only the node that holds it could pass", vip.path);
            let table = Place { span: place.span.clone(), path: place.path.trim_end_matches(".name").to_owned() };
            sink.push(table.span.clone(), &table.path, what, Some("an address that every node has".to_owned()));
        }
    }
}

/// The channel: peers are others, each is one, and neither end is a VIP.
pub(super) fn cluster(cluster: &ClusterRead, node: Option<&(Name, Place)>, vips: &[VipRead], sink: &mut Sink) {
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

    let vip_of = |ip: IpAddr| vips.iter().flat_map(|vip| &vip.addresses).find(|(vip, _)| IpAddr::V4(*vip) == ip);
    if let Some((listen, place)) = &cluster.listen {
        if let Some((ip, vip)) = vip_of(listen.ip()) {
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
        if let Some((ip, vip)) = vip_of(address.ip()) {
            sink.at(place, format!("{ip} is {}: the channel needs an address that stays on the peer", vip.path));
        }
    }
}
