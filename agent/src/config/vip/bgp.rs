//! The table `bgp` of a VIP: how it is announced.

use super::Known;
use crate::config::bgp::{next_hop, overrides, rate, whole};
use crate::config::schema::{self, Section};
use crate::config::tree::{Place, Sink, Table, Value};
use crate::config::values::{absolute_path, count, duration, flat};
use holdfast_node::config::{Attributes, Damping, LOCAL_PREF, LinkBandwidth, NeighborId, Overrides, Unwell, VipBgp};
use std::collections::HashSet;
use std::time::Duration;

const ACCEPTED_BGP: &str = "{} or { communities = [\"65000:100\"], med = 100 }";
const ACCEPTED_WORSE: &str = "\"withdraw\", or what is announced instead, as { med = 1000 }";
const ACCEPTED_DAMPING: &str =
    "true, false, or { half_life = \"15s\", suppress = 2000, reuse = 750, max = \"60s\" }; a withdrawal adds 1000";
const ACCEPTED_BANDWIDTH: &str = "bits per second as \"10G\", or { rate = \"10G\", transitive = true }";
const DELAY_MAX: Duration = Duration::from_secs(3600);
const WITHDRAW_WAIT_MAX: Duration = Duration::from_secs(60);
const DRAIN_WAIT_MAX: Duration = Duration::from_secs(600);
/// Without it, `max` would have to be believed in.
const HALF_LIFE_MIN: Duration = Duration::from_secs(1);
const DAMPING_MAX: Duration = Duration::from_secs(24 * 3600);
/// No route flaps so often that more would mean anything.
const PENALTY_MAX: i64 = 1_000_001;

/// What was read of it.
#[derive(Debug)]
pub(in crate::config) struct BgpOfVip {
    /// All of it, if nothing is wrong.
    pub(super) item: Option<VipBgp>,
    pub(in crate::config) place: Place,
    /// Where its neighbours are named, if they are.
    pub(in crate::config) named: Option<Place>,
    /// Its next hops, which can't be VIPs.
    pub(in crate::config) next_hop: Option<Place>,
}

impl BgpOfVip {
    pub(in crate::config) fn item(&self) -> Option<&VipBgp> {
        self.item.as_ref()
    }
}

/// The key `bgp`. `vrrp`: the VIP is held by VRRP too.
pub(super) fn bgp(vip: &Table<'_>, known: &Known<'_>, vrrp: bool, sink: &mut Sink) -> Option<BgpOfVip> {
    let value = vip.get("bgp")?;
    let place = value.place.clone();
    let nothing = BgpOfVip { item: None, place: place.clone(), named: None, next_hop: None };
    let Some(table) = value.table(ACCEPTED_BGP, sink) else { return Some(nothing) };
    table.known_keys(&schema::VIP_BGP, sink);
    let neighbors = neighbors(&table, known, sink);
    let item = read(&table, neighbors, vrrp, sink);
    let at = |key: &str| table.get(key).map(|value| value.place);
    Some(BgpOfVip { item, place, named: at("neighbors"), next_hop: at("next_hop") })
}

fn neighbors(table: &Table<'_>, known: &Known<'_>, sink: &mut Sink) -> Option<Vec<NeighborId>> {
    if !known.bgp {
        let accepted = "[bgp] with asn and at least one [[bgp.neighbor]]".to_owned();
        let what = "needs a [bgp] section: there is nobody to announce to".to_owned();
        sink.push(table.place.span.clone(), &table.place.path, what, Some(accepted));
        return None;
    }
    let Some(value) = table.get("neighbors") else {
        return Some((0..known.neighbors.len).filter_map(|n| u16::try_from(n).ok()).map(NeighborId).collect());
    };
    let accepted = "a list of names of [[bgp.neighbor]] sections; absent: all";
    let items = value.array(accepted, sink)?;
    if items.is_empty() {
        value.refuse("is empty: nobody would hear of it", accepted, sink);
        return None;
    }
    let (mut ids, mut seen, mut wrong) = (Vec::new(), HashSet::new(), false);
    for item in &items {
        match known.neighbors.refer(item, sink).map(NeighborId) {
            Some(id) if !seen.insert(id) => {
                item.refuse("is there twice", "each neighbour once", sink);
                wrong = true;
            }
            Some(id) => ids.push(id),
            None => wrong = true,
        }
    }
    ids.sort_unstable();
    (!wrong).then_some(ids)
}

fn read(table: &Table<'_>, neighbors: Option<Vec<NeighborId>>, vrrp: bool, sink: &mut Sink) -> Option<VipBgp> {
    let attributes = overrides(table, sink).map(attributes);
    let link_bandwidth = link_bandwidth(table, sink);
    let next_hop = next_hop(table, sink);
    let default = VipBgp::to(Vec::new());
    let mut time = |key: &str, most: Duration, default: Duration| {
        table.get(key).map_or(Some(default), |value| duration(&value, Duration::ZERO, most, sink))
    };
    let announce_delay = time("announce_delay", DELAY_MAX, default.announce_delay);
    let withdraw_wait = time("withdraw_wait", WITHDRAW_WAIT_MAX, default.withdraw_wait);
    let drain_wait = time("drain_wait", DRAIN_WAIT_MAX, default.drain_wait);
    let settle = time("settle", DELAY_MAX, default.settle);
    if let Some(value) = table.get("settle").filter(|_| !vrrp) {
        value.refuse("has no effect without vrrp: what isn't settled isn't announced", "settle with vrrp", sink);
    }
    let on_down = unwell(table, "on_down", &schema::ON_DOWN, sink);
    let on_disabled = unwell(table, "on_disabled", &schema::ON_DISABLED, sink);
    let disable_file = table.get("disable_file").map(|value| absolute_path(&value, sink));
    if let Some(value) = table.get("on_disabled").filter(|_| disable_file.is_none()) {
        value.refuse("has no effect without disable_file", "both or none of them", sink);
    }
    let increase = table.get("increase").map_or(Some(0), |value| whole(&value, sink));
    let rotate = table.get("rotate").map_or(Some(0), |value| {
        let n = value.integer_in(0..1024, "0 to 1023", sink)?;
        if increase == Some(0) && n > 0 {
            value.refuse("has no effect without increase: all addresses are alike", "both or none of them", sink);
            return None;
        }
        u16::try_from(n).ok()
    });
    let min_announcing =
        table.get("min_announcing").map_or(Some(default.min_announcing), |value| count(&value, sink).map(u16::from));
    let damping = damping(table, sink);
    Some(VipBgp {
        attributes: attributes?,
        link_bandwidth: link_bandwidth?,
        neighbors: neighbors?,
        next_hop: next_hop?,
        announce_delay: announce_delay?,
        withdraw_wait: withdraw_wait?,
        drain_wait: drain_wait?,
        on_down: on_down?,
        disable_file: flat(disable_file)?,
        on_disabled: on_disabled?,
        increase: increase?,
        rotate: rotate?,
        min_announcing: min_announcing?,
        damping: damping?,
        settle: settle?,
    })
}

fn attributes(written: Overrides) -> Attributes {
    Attributes {
        communities: written.communities.unwrap_or_default(),
        large: written.large.unwrap_or_default(),
        extended: written.extended.unwrap_or_default(),
        med: written.med.unwrap_or_default(),
        local_pref: written.local_pref.unwrap_or(LOCAL_PREF),
        prepend: written.prepend.unwrap_or_default(),
    }
}

/// link_bandwidth or weight. Outer `None`: wrong.
fn link_bandwidth(table: &Table<'_>, sink: &mut Sink) -> Option<Option<LinkBandwidth>> {
    let weight = table.get("weight").map(|value| {
        let weight = count(&value, sink)?;
        if table.get("link_bandwidth").is_some() {
            value.refuse("doesn't go with link_bandwidth: both say the same community", "one of them", sink);
            return None;
        }
        Some(LinkBandwidth { bits: u64::from(weight) * LinkBandwidth::WEIGHT, transitive: false })
    });
    let Some(value) = table.get("link_bandwidth") else { return flat(weight) };
    let weight = flat(weight)?;
    if !value.is_table() {
        let bits = bits(&value, sink)?;
        return weight.is_none().then_some(Some(LinkBandwidth { bits, transitive: false }));
    }
    let keys = value.table(ACCEPTED_BANDWIDTH, sink)?;
    keys.known_keys(&schema::LINK_BANDWIDTH, sink);
    let bits = keys.require("rate", rate::ACCEPTED, sink).and_then(|value| bits(&value, sink));
    let transitive = keys.get("transitive").map_or(Some(false), |value| value.boolean(sink));
    Some(Some(LinkBandwidth { bits: bits?, transitive: transitive? }))
}

fn bits(value: &Value<'_>, sink: &mut Sink) -> Option<u64> {
    let text = value.string(ACCEPTED_BANDWIDTH, sink)?;
    rate::parse(text).map_err(|why| value.refuse(&why, rate::ACCEPTED, sink)).ok()
}

/// on_down, on_disabled.
fn unwell(table: &Table<'_>, key: &str, section: &Section, sink: &mut Sink) -> Option<Unwell> {
    let Some(value) = table.get(key) else { return Some(Unwell::Withdraw) };
    match value.as_str() {
        Some("withdraw") => return Some(Unwell::Withdraw),
        Some(_) => {
            value.refuse("is not known", ACCEPTED_WORSE, sink);
            return None;
        }
        None => {}
    }
    let keys = value.table(ACCEPTED_WORSE, sink)?;
    let before = sink.len();
    keys.known_keys(section, sink);
    let overrides = overrides(&keys, sink)?;
    if overrides == Overrides::default() && sink.len() == before {
        value.refuse("changes nothing: routers would go on as if all were well", ACCEPTED_WORSE, sink);
        return None;
    }
    Some(Unwell::Announce(overrides))
}

/// Outer `None`: wrong.
fn damping(table: &Table<'_>, sink: &mut Sink) -> Option<Option<Damping>> {
    let default = Damping {
        half_life: Duration::from_secs(15),
        suppress: 2 * Damping::PENALTY,
        reuse: 3 * Damping::PENALTY / 4,
        max: Duration::from_secs(60),
    };
    let Some(value) = table.get("damping") else { return Some(None) };
    match value.as_bool() {
        Some(on) => return Some(on.then_some(default)),
        None if value.is_table() => {}
        None => {
            value.refuse_type(ACCEPTED_DAMPING, sink);
            return None;
        }
    }
    let keys = value.table(ACCEPTED_DAMPING, sink)?;
    keys.known_keys(&schema::DAMPING, sink);
    let half_life =
        keys.get("half_life").map_or(Some(default.half_life), |value| duration(&value, HALF_LIFE_MIN, DELAY_MAX, sink));
    let max = keys.get("max").map_or(Some(default.max), |value| duration(&value, HALF_LIFE_MIN, DAMPING_MAX, sink));
    let mut penalty = |key: &str, default: u32| {
        keys.get(key).map_or(Some(default), |value| {
            let n = value.integer_in(1..PENALTY_MAX, "1 to 1000000; a withdrawal adds 1000", sink)?;
            u32::try_from(n).ok()
        })
    };
    let suppress = penalty("suppress", default.suppress);
    let reuse = penalty("reuse", default.reuse);
    let damping = Damping { half_life: half_life?, suppress: suppress?, reuse: reuse?, max: max? };
    if damping.reuse >= damping.suppress {
        let what = format!("reuse ({}) is not below suppress ({})", damping.reuse, damping.suppress);
        value.refuse(&what, ACCEPTED_DAMPING, sink);
        return None;
    }
    if damping.ceiling() <= damping.suppress {
        let what = format!(
            "would never hold anything back: with this max the penalty reaches {} at most, and suppress is {}",
            damping.ceiling(),
            damping.suppress
        );
        value.refuse(&what, "a longer max, a shorter half_life or a lower suppress", sink);
        return None;
    }
    Some(Some(damping))
}
