//! `[statesync]`: whose established flows the peers hold, too.

use super::duration::show;
use super::schema;
use super::sections::ClusterRead;
use super::tree::{Place, Sink, Table, Value};
use super::values::{duration, flat, name, socket_address, word};
use super::vip::VipRead;
use holdfast_node::config::{
    Name, SYNC_PEERS_MAX, SYNC_VIPS_MAX, StateSync, SyncFilter, SyncMark, SyncMode, SyncVip, Vip, VipId,
};
use holdfast_statesync::flow::{NodeId, Tag};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(600);
const LEASE_MIN: Duration = Duration::from_secs(30);
const LEASE_MAX: Duration = Duration::from_secs(86_400);
const AFTER_MIN: Duration = Duration::from_millis(100);
const AFTER_MAX: Duration = Duration::from_secs(86_400);
const MAX_FLOWS: usize = 1 << 20;
const MAX_FLOWS_LEAST: i64 = 1_000;
const MAX_FLOWS_MOST: i64 = 16_000_000;
const EVENT_BUFFER_LEAST: i64 = 65_536;
const EVENT_BUFFER_MOST: i64 = 1 << 30;
const ACCEPTED: &str = "[\"web\", { vip = \"dns\", mode = \"syn\" }]";
const MODES: [(&str, SyncMode); 3] = [("assured", SyncMode::Assured), ("syn", SyncMode::Syn), ("off", SyncMode::Off)];

/// The section as written.
#[derive(Debug)]
pub(super) struct SyncRead {
    vips: Vec<(Name, Place, SyncMode)>,
    listen: Option<SocketAddr>,
    lease: Duration,
    max_flows: usize,
    mark: SyncMark,
    filter: SyncFilter,
    event_buffer: usize,
}

/// `[statesync]`. Outer `None`: wrong.
pub(super) fn read(
    root: &Table<'_>,
    node: Option<&(Name, Place)>,
    cluster: Option<&ClusterRead>,
    vips: &[VipRead],
    sink: &mut Sink,
) -> Option<Option<SyncRead>> {
    let Some(value) = root.get("statesync") else { return Some(None) };
    let table = value.table("a [statesync] section", sink)?;
    table.known_keys(&schema::STATESYNC, sink);
    match cluster {
        None if root.get("cluster").is_none() => {
            let accepted = "a [cluster] section: flows go to its peers";
            value.refuse("has no peers", accepted, sink);
        }
        None => {}
        Some(_) => {}
    }
    let default = mode(&table, sink);
    let listen = flat(table.get("listen").map(|value| listen(&value, cluster, sink)));
    let lease = table.get("lease").map_or(Some(LEASE), |value| duration(&value, LEASE_MIN, LEASE_MAX, sink));
    let max_flows = table.get("max_flows").map_or(Some(MAX_FLOWS), |value| {
        let accepted = format!("{MAX_FLOWS_LEAST} to {MAX_FLOWS_MOST} flows");
        let read = value.integer_in(MAX_FLOWS_LEAST..MAX_FLOWS_MOST + 1, &accepted, sink)?;
        usize::try_from(read).ok()
    });
    let event_buffer = table.get("event_buffer").map_or(Some(StateSync::EVENT_BUFFER), |value| {
        let accepted = format!("{EVENT_BUFFER_LEAST} to {EVENT_BUFFER_MOST} bytes");
        let read = value.integer_in(EVENT_BUFFER_LEAST..EVENT_BUFFER_MOST + 1, &accepted, sink)?;
        usize::try_from(read).ok()
    });
    let mark = mark(&table, sink);
    if let Some(cluster) = cluster {
        peers(&value, node, cluster, mark.unwrap_or_default(), sink);
    }
    let filters = [("kernel", SyncFilter::Kernel), ("user", SyncFilter::User)];
    let filter = table.get("filter").map_or(Some(SyncFilter::Kernel), |value| word(&value, &filters, sink));
    let listed = table.require("vips", ACCEPTED, sink).and_then(|v| listed(&v, default.flatten(), vips, sink));
    let (listen, vips) = (listen?, listed?);
    default?;
    let (lease, max_flows, mark, filter, event_buffer) = (lease?, max_flows?, mark?, filter?, event_buffer?);
    Some(Some(SyncRead { vips, listen, lease, max_flows, mark, filter, event_buffer }))
}

/// What numbers are made of names must tell the nodes apart, in as many bits as the mark has for them.
fn peers(value: &Value<'_>, node: Option<&(Name, Place)>, cluster: &ClusterRead, mark: SyncMark, sink: &mut Sink) {
    if cluster.peers.len() > SYNC_PEERS_MAX {
        let what = format!("has {} peers", cluster.peers.len());
        value.refuse(&what, &format!("at most {SYNC_PEERS_MAX} [[cluster.peer]] sections"), sink);
    }
    let addresses = cluster.peers.iter().filter_map(|peer| peer.address.as_ref());
    for (address, place) in cluster.listen.iter().chain(addresses) {
        if address.port() == u16::MAX {
            sink.at(place, "leaves no port for the flow lanes, which use port + 1");
        }
    }
    let mut ids: HashMap<NodeId, &Name> = HashMap::new();
    let mut tags: HashMap<u32, &Name> = HashMap::new();
    let tag = Tag { shift: mark.shift, bits: mark.bits };
    let all = node.into_iter().chain(cluster.peers.iter().filter_map(|peer| peer.name.as_ref()));
    for (name, place) in all {
        let id = NodeId::of_name(name.as_str());
        let first = ids.get(&id).or_else(|| tags.get(&tag.of(id))).filter(|first| **first != name);
        if let Some(first) = first {
            let what =
                format!("`{name}` and `{first}` have the same number in flow replication (it is made of the name)");
            let accepted = Some("another name for one of the two nodes".to_owned());
            sink.push(place.span.clone(), &place.path, what, accepted);
            return;
        }
        ids.insert(id, name);
        tags.insert(tag.of(id), name);
    }
}

/// `mode` and `after`. Outer `None`: wrong; inner: nothing is said.
fn mode(table: &Table<'_>, sink: &mut Sink) -> Option<Option<SyncMode>> {
    let mode = flat(table.get("mode").map(|value| word(&value, &MODES, sink)));
    let after = flat(table.get("after").map(|value| duration(&value, AFTER_MIN, AFTER_MAX, sink)));
    match (mode?, after?) {
        (None | Some(SyncMode::Assured), Some(after)) => Some(Some(SyncMode::After(after))),
        (Some(_), Some(after)) => {
            if let Some(value) = table.get("after") {
                let what = format!("{} goes with mode = \"assured\"", show(after));
                value.refuse(&what, "mode = \"assured\", or no mode", sink);
            }
            None
        }
        (mode, None) => Some(mode),
    }
}

fn listen(value: &Value<'_>, cluster: Option<&ClusterRead>, sink: &mut Sink) -> Option<SocketAddr> {
    let accepted = "ip:port of this node, as \"10.1.0.11:7713\"";
    let address = socket_address(value.string(accepted, sink)?);
    let control = cluster.and_then(|cluster| cluster.listen.as_ref()).map(|(listen, _)| *listen);
    let wrong = match address {
        Err(why) => why,
        Ok(address) if address.ip().is_multicast() => "is a multicast address".to_owned(),
        Ok(address) if control == Some(address) => {
            "is cluster.listen: the flow lanes have a socket of their own".to_owned()
        }
        Ok(address) if control.is_some_and(|control| control.is_ipv4() != address.is_ipv4()) => {
            "is not of the address family of cluster.listen".to_owned()
        }
        // Peers send to our cluster port + 1.
        Ok(address) if control.is_some_and(|control| u32::from(control.port()) + 1 != u32::from(address.port())) => {
            format!("has port {}: peers send to cluster.listen's port + 1", address.port())
        }
        Ok(address) => return Some(address),
    };
    value.refuse(&wrong, accepted, sink);
    None
}

fn mark(table: &Table<'_>, sink: &mut Sink) -> Option<SyncMark> {
    let default = SyncMark::default();
    let mut number = |key, otherwise: u8, least: i64, most: i64| {
        table.get(key).map_or(Some(otherwise), |value| {
            let accepted = format!("{least} to {most}");
            value.integer_in(least..most + 1, &accepted, sink).and_then(|n| u8::try_from(n).ok())
        })
    };
    let bits = number("mark_bits", default.bits, 4, 8)?;
    let shift = number("mark_shift", default.shift.min(32 - bits), 0, 28)?;
    if shift + bits > 32 {
        if let Some(value) = table.get("mark_shift") {
            value.refuse(&format!("leaves no room for {bits} bits"), &format!("at most {}", 32 - bits), sink);
        }
        return None;
    }
    Some(SyncMark { shift, bits })
}

fn listed(
    value: &Value<'_>,
    default: Option<SyncMode>,
    vips: &[VipRead],
    sink: &mut Sink,
) -> Option<Vec<(Name, Place, SyncMode)>> {
    let items = value.array(ACCEPTED, sink)?;
    if items.is_empty() || items.len() > SYNC_VIPS_MAX {
        value.refuse(&format!("has {} elements", items.len()), &format!("1 to {SYNC_VIPS_MAX} VIPs"), sink);
        return None;
    }
    let mut all: Vec<(Name, Place, SyncMode)> = Vec::new();
    let mut right = true;
    for item in &items {
        let read = if item.is_table() {
            let table = item.table(ACCEPTED, sink)?;
            table.known_keys(&schema::STATESYNC_VIP, sink);
            let vip = table.require("vip", "the name of a vip or group", sink);
            let vip = vip.and_then(|value| known(&value, vips, sink).map(|name| (name, value.place)));
            vip.zip(mode(&table, sink))
        } else {
            known(item, vips, sink).map(|name| ((name, item.place.clone()), None))
        };
        match read {
            Some(((name, place), _)) if all.iter().any(|(first, ..)| *first == name) => {
                sink.at(&place, format!("`{name}` is there twice"));
                right = false;
            }
            Some(((name, place), mode)) => {
                all.push((name, place, mode.or(default).unwrap_or(SyncMode::Assured)));
            }
            None => right = false,
        }
    }
    right.then_some(all)
}

/// A name that there is.
fn known(value: &Value<'_>, vips: &[VipRead], sink: &mut Sink) -> Option<Name> {
    let wanted = name(value, sink)?;
    let names = || vips.iter().flat_map(|vip| [vip.name.as_ref(), vip.group.as_ref()]).flatten().map(|(name, _)| name);
    if names().any(|name| *name == wanted) {
        return Some(wanted);
    }
    let mut all: Vec<&str> = names().map(Name::as_str).collect();
    all.dedup();
    all.truncate(20);
    value.refuse(&format!("there is no vip `{wanted}`"), &all.join(", "), sink);
    None
}

impl SyncRead {
    /// With the units that the VIPs move with.
    pub(super) fn resolve(self, units: &[Vip], sink: &mut Sink) -> Option<StateSync> {
        let mut vips: Vec<SyncVip> = Vec::with_capacity(self.vips.len());
        for (name, place, mode) in self.vips {
            // What is wrong with the VIPs was said.
            let (vip, unit) = (0..)
                .map(VipId)
                .zip(units)
                .find(|(_, unit)| unit.name == name || unit.members.iter().any(|member| member.name == name))?;
            if vips.iter().any(|first| first.vip == vip) {
                sink.at(&place, format!("`{name}` is of the group `{}`, which is there already", unit.name));
                return None;
            }
            let link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
            if unit.addresses.iter().all(|address| link_local(&address.ip)) {
                sink.at(&place, format!("`{name}` has link-local addresses only: nothing is forwarded from there"));
                return None;
            }
            vips.push(SyncVip { vip, mode });
        }
        let Self { listen, lease, max_flows, mark, filter, event_buffer, .. } = self;
        Some(StateSync { listen, vips, lease, max_flows, mark, filter, event_buffer })
    }
}
