//! `[[vip]]`: addresses, how they are held, and what they depend on. Each section is read by itself; `units` makes of
//! them what moves as one.

mod address;
mod bgp;
mod legs;
mod moved;
mod track;
pub(super) mod units;
mod vrrp;
mod weights;

use super::bgp::NeighborRead;
use super::probe::Later;
use super::schema;
use super::sections::named_vip;
use super::tree::{Place, Sink, Table, Value};
use super::values::{name, shown, word};
pub(super) use address::{AddressRead, host};
pub(super) use bgp::BgpOfVip;
use holdfast_bgp::types::Prefix;
use holdfast_node::config::{
    AnnounceConfig, Balancer, BalancerId, Check, CheckId, InterfaceName, LastNode, Leg, Name, Partition, Probe, Route,
    Rule, VipAddress, VipBgp, VrrpConfig,
};
use holdfast_vrrp::{AdvertInterval, Family, Priority, Vrid};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;
use track::TrackRead;

/// A VIP with the places that the cross checks talk about.
#[derive(Debug)]
pub(super) struct VipRead {
    pub(super) name: Option<(Name, Place)>,
    pub(super) group: Option<(Name, Place)>,
    pub(super) addresses: Vec<AddressRead>,
    pub(super) routers: Vec<RouterRead>,
    /// Its peers and sources, which can't be VIPs.
    pub(super) stays: Vec<(IpAddr, Place)>,
    pub(super) routes: Vec<(Route, Place)>,
    pub(super) rules: Vec<(Rule, Place)>,
    /// How it is announced by BGP, if it is.
    pub(super) bgp: Option<BgpOfVip>,
    /// All of it, if nothing is wrong.
    pub(super) item: Option<VipItem>,
}

impl VipRead {
    /// The routes to its addresses, if nothing is wrong with it.
    pub(super) fn announced(&self) -> Option<impl Iterator<Item = Prefix>> {
        let item = self.item.as_ref()?;
        Some(item.addresses.iter().filter_map(|address| address.announced(item.legs.is_empty())))
    }
}

/// A virtual router on the wire.
#[derive(Debug)]
pub(super) struct RouterRead {
    pub(super) interface: InterfaceName,
    pub(super) vrid: Vrid,
    pub(super) family: Family,
    pub(super) peers: Vec<IpAddr>,
    pub(super) place: Place,
    /// Of the addresses, for findings about the advert's size.
    pub(super) addresses_place: Place,
    /// With its IP header.
    pub(super) packet_len: usize,
}

/// A VIP that is right by itself.
#[derive(Debug)]
pub(super) struct VipItem {
    vrrp: VrrpConfig,
    bgp: Option<VipBgp>,
    legs: Vec<Leg>,
    addresses: Vec<VipAddress>,
    /// Without the derived one.
    own: Vec<IpAddr>,
    /// With whether it's named or the default.
    balancer: Option<(BalancerId, bool)>,
    checks: Checks,
    tracks: Vec<TrackRead>,
    announce: AnnounceConfig,
    last_node: LastNode,
    /// Where the keys stand that members of a group must have alike.
    places: Vec<(&'static str, Place)>,
}

/// Which checks must pass.
#[derive(Debug)]
enum Checks {
    /// `checks` isn't there: all, but for the one that only tells partitions.
    All,
    /// Those that are named.
    Named(Vec<CheckId>),
}

/// What a VIP can refer to, found by name.
pub(super) struct Known<'k> {
    balancers: Names,
    checks: Names,
    check_items: Vec<Option<&'k Check>>,
    later: &'k Later,
    neighbors: Names,
    /// `[bgp]` is there.
    bgp: bool,
    /// `[cluster]` is there.
    cluster: bool,
}

/// Names in file order, and where each is.
struct Names {
    at: HashMap<String, u16>,
    len: usize,
    section: &'static str,
    all: String,
}

impl Names {
    fn of<'n>(names: impl ExactSizeIterator<Item = Option<&'n str>>, section: &'static str) -> Self {
        let len = names.len();
        let mut at = HashMap::new();
        let mut all: Vec<&str> = Vec::new();
        for (n, name) in (0..).zip(names) {
            let Some(name) = name else { continue };
            at.entry(name.to_owned()).or_insert(n);
            all.push(name);
        }
        // A refusal names what there is, but not a thousand of them.
        let more = all.len().saturating_sub(NAMES_SHOWN);
        let mut shown = all.iter().take(NAMES_SHOWN).copied().collect::<Vec<_>>().join(", ");
        if more > 0 {
            shown.push_str(&format!(" and {more} more"));
        }
        Self { at, len, section, all: shown }
    }

    /// The index of what `value` names.
    fn refer(&self, value: &Value<'_>, sink: &mut Sink) -> Option<u16> {
        let section = self.section;
        let accepted =
            if self.len == 0 { format!("the name of a {section} section (there is none)") } else { self.all.clone() };
        let text = value.string(&accepted, sink)?;
        let at = self.at.get(text).copied();
        if at.is_none() {
            value.refuse(&format!("there is no {section} named `{}`", shown(text)), &accepted, sink);
        }
        at
    }
}

/// Names in a message.
const NAMES_SHOWN: usize = 16;

impl<'k> Known<'k> {
    pub(super) fn new(
        balancers: &[super::sections::Named<Balancer>],
        checks: &'k [super::sections::Named<Check>],
        later: &'k Later,
        neighbors: Option<&[NeighborRead]>,
        cluster: bool,
    ) -> Self {
        let balancer_names = balancers.iter().map(|b| b.name.as_ref().map(|(name, _)| name.as_str()));
        let check_names = checks.iter().map(|c| c.name.as_ref().map(|(name, _)| name.as_str()));
        let all = neighbors.unwrap_or_default();
        let neighbor_names = all.iter().map(|n| n.name.as_ref().map(|(name, _)| name.as_str()));
        Self {
            balancers: Names::of(balancer_names, "[[balancer]]"),
            checks: Names::of(check_names, "[[check]]"),
            later,
            check_items: checks.iter().map(|c| c.item.as_ref()).collect(),
            neighbors: Names::of(neighbor_names, "[[bgp.neighbor]]"),
            bgp: neighbors.is_some(),
            cluster,
        }
    }

    fn check(&self, id: CheckId) -> Option<&Check> {
        self.check_items.get(usize::from(id.0)).copied().flatten()
    }
}

/// One `[[vip]]`.
pub(super) fn vip(table: &Table<'_>, known: &Known<'_>, sink: &mut Sink) -> VipRead {
    table.known_keys(&schema::VIP, sink);
    let named = named_vip::<()>(table, sink);
    let group = table.get("group").map(|value| Some((name(&value, sink)?, value.place)));
    let balancer = balancer(table, &known.balancers, sink);
    let checks = checks(table, &known.checks, sink);
    let last_node = table.get("last_node").map_or(Some(LastNode::Keep), |value| {
        word(&value, &[("keep", LastNode::Keep), ("withdraw", LastNode::Withdraw)], sink)
    });
    let holds = Holds::of(table, sink);
    let mut vrrp = vrrp::vrrp(table, sink);
    let bgp = bgp::bgp(table, known, holds.vrrp, sink);
    let gateway = gateway(table, &vrrp, known, sink);
    let lo = holds.anycast().then(lo).flatten();
    let mut addresses = address::addresses(table, lo.as_ref().or(vrrp.interface.as_ref()), holds.anycast(), sink);
    let legs = if holds.anycast() {
        vrrp.config = unheld();
        Some(legs::Legs { legs: Vec::new(), link_local: None })
    } else {
        legs(&vrrp, &addresses, sink)
    };
    let own_interfaces: Vec<&InterfaceName> =
        vrrp.interface.iter().chain(addresses.read.iter().filter_map(|read| read.interface.as_ref())).collect();
    let tracks = track::tracks(table, known, &own_interfaces, sink);
    let routes = moved::routes(table, vrrp.interface.as_ref(), holds.anycast(), sink);
    let rules = moved::rules(table, sink);
    let announce = moved::announce(table, sink);
    if let Some(value) = table.get("announce").filter(|_| holds.anycast()) {
        let what = "has no effect without vrrp: an address that every node has is nobody's on a segment";
        value.refuse(what, "announce with vrrp", sink);
    }

    let mut routers = Vec::new();
    if let (Some(legs), Some((_, vrid_place)), Some(addresses_place)) = (&legs, &vrrp.vrid, &addresses.place) {
        routers.extend(legs.legs.iter().map(|leg| RouterRead {
            interface: leg.interface.clone(),
            vrid: leg.vrid,
            family: leg.family,
            peers: leg.peers.clone(),
            place: vrid_place.clone(),
            addresses_place: addresses_place.clone(),
            packet_len: crate::config::packet_len(leg),
        }));
    }
    let own: Vec<IpAddr> = addresses.all.iter().flatten().map(|a| a.ip).collect();
    let mut legs = legs;
    if let Some((address, read)) = legs.as_mut().and_then(|legs| legs.link_local.take()) {
        addresses.all.iter_mut().for_each(|all| all.push(address.clone()));
        addresses.read.push(read);
    }
    let mut stays = Vec::new();
    if let Some(keys) = &vrrp.legs {
        stays.extend(keys.peers.iter().flat_map(|(peers, _)| peers.iter().cloned()));
        stays.extend(keys.source.iter().chain(&keys.source6).cloned());
    }
    let item = (|| {
        let mut config = vrrp.config?;
        config.gateway = gateway?;
        let mut places = vrrp.places;
        places
            .extend(["last_node", "announce", "bgp"].into_iter().filter_map(|key| Some((key, table.get(key)?.place))));
        Some(VipItem {
            vrrp: config,
            bgp: bgp.as_ref().map_or(Some(None), |bgp| bgp.item.clone().map(Some))?,
            legs: legs?.legs,
            addresses: addresses.all?,
            own,
            balancer: balancer?.map(|id| (id, table.get("balancer").is_some())),
            checks: checks?,
            tracks: tracks?,
            announce: announce?,
            last_node: last_node?,
            places,
        })
    })();
    let item = item.filter(|_| routes.is_some() && rules.is_some() && group.as_ref().is_none_or(Option::is_some));
    VipRead {
        name: named.name,
        group: group.flatten(),
        addresses: addresses.read,
        routers,
        stays,
        routes: routes.unwrap_or_default(),
        rules: rules.unwrap_or_default(),
        bgp,
        item,
    }
}

/// By what a VIP is held, as far as it says.
#[derive(Clone, Copy)]
struct Holds {
    vrrp: bool,
    bgp: bool,
}

impl Holds {
    fn of(vip: &Table<'_>, sink: &mut Sink) -> Self {
        let holds = Self { vrrp: vip.get("vrrp").is_some(), bgp: vip.get("bgp").is_some() };
        if !holds.vrrp && !holds.bgp {
            let what = "says not how it is held: it has neither vrrp nor bgp".to_owned();
            let accepted = format!("vrrp = {}, or bgp = {{}} with a [bgp] section, or both", vrrp::ACCEPTED_VRRP);
            sink.push(vip.place.span.clone(), &vip.place.path, what, Some(accepted));
        }
        holds
    }

    /// By BGP alone.
    const fn anycast(self) -> bool {
        self.bgp && !self.vrrp
    }
}

/// Where an address stands that every node has.
fn lo() -> Option<InterfaceName> {
    InterfaceName::new("lo")
}

/// Of a VIP that no virtual router holds: nobody looks at it.
fn unheld() -> Option<VrrpConfig> {
    let interval = AdvertInterval::from_duration(Duration::from_secs(1)).ok()?;
    Some(VrrpConfig::new(Priority::configured(100).ok()?, interval))
}

fn legs(vrrp: &vrrp::VrrpRead, addresses: &address::Addresses, sink: &mut Sink) -> Option<legs::Legs> {
    let (vrid, vrid_place) = vrrp.vrid.as_ref()?;
    let parts = legs::Parts {
        interface: vrrp.interface.as_ref()?,
        vrid: *vrid,
        vrid_place,
        addresses: addresses.all.as_ref()?,
        addresses_place: addresses.place.as_ref()?,
        keys: vrrp.legs.as_ref()?,
    };
    parts.legs(sink)
}

/// Outer `None`: wrong. `Some(None)`: this VIP wraps no balancer.
fn balancer(table: &Table<'_>, balancers: &Names, sink: &mut Sink) -> Option<Option<BalancerId>> {
    let Some(value) = table.get("balancer") else {
        if balancers.len > 1 {
            let what = format!("is missing, and there are {} balancers", balancers.len);
            let path = format!("{}.balancer", table.place.path);
            sink.push(table.place.span.clone(), &path, what, Some(balancers.all.clone()));
            return None;
        }
        return Some((balancers.len > 0).then_some(BalancerId(0)));
    };
    Some(Some(BalancerId(balancers.refer(&value, sink)?)))
}

fn checks(table: &Table<'_>, checks: &Names, sink: &mut Sink) -> Option<Checks> {
    let Some(value) = table.get("checks") else { return Some(Checks::All) };
    let mut ids = Vec::new();
    let mut seen = HashSet::new();
    let mut wrong = false;
    for item in value.array("a list of names of [[check]] sections", sink)? {
        match checks.refer(&item, sink).map(CheckId) {
            Some(id) if !seen.insert(id) => {
                item.refuse("is there twice", "each check once", sink);
                wrong = true;
            }
            Some(id) => ids.push(id),
            None => wrong = true,
        }
    }
    (!wrong).then_some(Checks::Named(ids))
}

/// `vrrp.gateway`, and whether it goes with `vrrp.partition`. Outer `None`: wrong.
fn gateway(vip: &Table<'_>, vrrp: &vrrp::VrrpRead, known: &Known<'_>, sink: &mut Sink) -> Option<Option<CheckId>> {
    let accepted = "the name of a [[check]] with gateway or exec";
    let table = vip.get("vrrp").filter(Value::is_table).and_then(|value| value.table(accepted, sink));
    let value = table.as_ref().and_then(|table| table.get("gateway"));
    let partition = vrrp.config.as_ref().map(|config| config.partition);
    let at = table.as_ref().and_then(|table| table.get("partition")).map(|value| value.place);
    let Some(value) = value else {
        let Some((partition, place)) = partition.zip(at) else { return Some(None) };
        if partition == Partition::Gateway {
            let what = "needs a gateway to go by".to_owned();
            sink.push(
                place.span,
                &place.path,
                what,
                Some("gateway = \"NAME\", the name of a [[check]] with gateway".to_owned()),
            );
            return None;
        }
        if partition == Partition::Neither && !known.cluster {
            let what =
                "needs [cluster]: a backup hears nobody else on the segment, and would never take over".to_owned();
            sink.push(place.span, &place.path, what, Some("both or gateway without [cluster]".to_owned()));
            return None;
        }
        return Some(None);
    };
    let id = CheckId(known.checks.refer(&value, sink)?);
    let asks = |check: &Check| matches!(check.probe, Probe::Gateway { .. } | Probe::Exec { .. });
    if known.check(id).is_some_and(|check| !asks(check)) || known.later.is_canary(id) {
        value.refuse(
            "doesn't ask a gateway: what this host answers itself tells nothing of the segment",
            accepted,
            sink,
        );
        return None;
    }
    if partition.is_some_and(|partition| partition != Partition::Gateway) {
        value.refuse("has no effect without partition = \"gateway\"", "both or none of them", sink);
        return None;
    }
    Some(Some(id))
}
