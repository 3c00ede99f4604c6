//! `track` of a VIP: what else decides whether, or how well, it can be held.

use super::Known;
use crate::config::schema;
use crate::config::tree::{Place, Sink, Table, Value};
use crate::config::values::{duration, interface};
use holdfast_node::config::{BalancerId, CheckId, InterfaceName, Track, Tracked};
use std::time::Duration;

const ACCEPTED_TRACK: &str =
    "{ interface = \"eth1\" }, { check = \"web\", weight = -20 } or { balancer = \"haproxy\", weight = -50 }";
/// Each is looked at in every decision, and weights are proven in all their sums.
const TRACKS_MAX: usize = 32;
/// Longer than any link flaps.
const DELAY_MAX: Duration = Duration::from_secs(600);
const WEIGHT: &str =
    "-1 to -253, what the priority loses while it fails; without weight failing is a failure of the node";

/// One entry and where it stands.
#[derive(Debug, Clone)]
pub(super) struct TrackRead {
    pub(super) track: Track,
    pub(super) place: Place,
    /// Of its weight.
    pub(super) weight: Option<Place>,
}

/// The key `track`. `own`: interfaces that the VIP is on.
pub(super) fn tracks(
    vip: &Table<'_>,
    known: &Known<'_>,
    own: &[&InterfaceName],
    sink: &mut Sink,
) -> Option<Vec<TrackRead>> {
    let Some(value) = vip.get("track") else { return Some(Vec::new()) };
    let accepted = format!("a list of {ACCEPTED_TRACK}");
    let items = value.array(&accepted, sink)?;
    if items.is_empty() || items.len() > TRACKS_MAX {
        value.refuse(&format!("has {} elements", items.len()), &format!("1 to {TRACKS_MAX}"), sink);
        return None;
    }
    let mut read: Vec<TrackRead> = Vec::new();
    let mut wrong = false;
    for item in &items {
        match track(item, known, own, sink) {
            Some(track) if read.iter().any(|other| same(&other.track.what, &track.track.what)) => {
                item.refuse("is there twice", "each once", sink);
                wrong = true;
            }
            Some(track) => read.push(track),
            None => wrong = true,
        }
    }
    (!wrong).then_some(read)
}

/// Whether both look at the same thing, whatever their delays.
pub(super) fn same(a: &Tracked, b: &Tracked) -> bool {
    match (a, b) {
        (Tracked::Interface { name: a, .. }, Tracked::Interface { name: b, .. }) => a == b,
        (a, b) => a == b,
    }
}

fn track(item: &Value<'_>, known: &Known<'_>, own: &[&InterfaceName], sink: &mut Sink) -> Option<TrackRead> {
    let table = item.table(ACCEPTED_TRACK, sink)?;
    table.known_keys(&schema::TRACK, sink);
    let given: Vec<(&str, Value<'_>)> =
        ["interface", "check", "balancer"].into_iter().filter_map(|key| Some((key, table.get(key)?))).collect();
    let weight = table.get("weight").map(|value| {
        let accepted = WEIGHT;
        let lost = value.integer_in(-253..0, accepted, sink).and_then(|n| u8::try_from(-n).ok())?;
        Some((lost, value.place))
    });
    let [(key, value)] = given.as_slice() else {
        let what = if given.is_empty() {
            "says not what is tracked".to_owned()
        } else {
            format!("has {}", given.iter().map(|(key, _)| *key).collect::<Vec<_>>().join(" and "))
        };
        item.refuse(&what, "exactly one of interface, check, balancer", sink);
        return None;
    };
    let what = match *key {
        "interface" => tracked_interface(&table, value, own, weight.is_some(), sink),
        key => {
            let mut wrong = false;
            for only in ["up_delay", "down_delay"] {
                if let Some(delay) = table.get(only) {
                    delay.refuse("goes with interface only", "rise and fall of the [[check]]", sink);
                    wrong = true;
                }
            }
            let what =
                if key == "check" { check(value, known, weight.is_some(), sink) } else { balancer(value, known, sink) };
            what.filter(|_| !wrong)
        }
    };
    let weight = match weight {
        None => None,
        Some(weight) => Some(weight?),
    };
    let (lost, weight_place) = weight.unzip();
    Some(TrackRead { track: Track { what: what?, weight: lost }, place: item.place.clone(), weight: weight_place })
}

fn tracked_interface(
    table: &Table<'_>,
    value: &Value<'_>,
    own: &[&InterfaceName],
    weighs: bool,
    sink: &mut Sink,
) -> Option<Tracked> {
    let name = interface(value, sink);
    let mut delay = |key: &str| {
        table.get(key).map_or(Some(Duration::ZERO), |value| duration(&value, Duration::ZERO, DELAY_MAX, sink))
    };
    let (up, down) = (delay("up_delay"), delay("down_delay"));
    let (name, up_delay, down_delay) = (name?, up?, down?);
    if own.contains(&&name) {
        if weighs {
            let what = format!("the vip is on {name}: without it this node can't hold it, whatever the priority");
            value.refuse(&what, "other interfaces; or no weight", sink);
            return None;
        }
        if let Some(down) = table.get("down_delay").filter(|_| down_delay > Duration::ZERO) {
            let what = format!("has no effect: the vip is on {name}, and can't be held without it for a moment");
            down.refuse(&what, "up_delay", sink);
            return None;
        }
    }
    Some(Tracked::Interface { name, up_delay, down_delay })
}

fn check(value: &Value<'_>, known: &Known<'_>, weighs: bool, sink: &mut Sink) -> Option<Tracked> {
    let id = CheckId(known.checks.refer(value, sink)?);
    if known.check(id).is_some_and(|check| check.shared) || known.later.is_canary(id) {
        let what = if weighs { "is shared: every node would lose the same" } else { "is shared: it only ever warns" };
        value.refuse(what, "a check without shared = true", sink);
        return None;
    }
    Some(Tracked::Check(id))
}

fn balancer(value: &Value<'_>, known: &Known<'_>, sink: &mut Sink) -> Option<Tracked> {
    Some(Tracked::Balancer(BalancerId(known.balancers.refer(value, sink)?)))
}
