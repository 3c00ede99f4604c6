//! From VIPs to what moves as one: a VIP by itself, or all VIPs of a group.

use super::weights::Proof;
use super::{Checks, Known, TrackRead, VipItem, VipRead, track};
use crate::config::duration::show;
use crate::config::tree::{Place, Sink};
use holdfast_node::config::{BalancerId, CheckId, Member, Name, Track, Tracked, Vip};
use holdfast_vrrp::Priority;
use std::collections::{HashMap, HashSet};

/// Of all members of a group together: each is looked at in every decision.
const TRACKS_MAX: usize = 64;

/// All units in the order of their first VIPs; `None` if anything of any VIP is wrong.
pub(in crate::config) fn units(vips: Vec<VipRead>, known: &Known<'_>, sink: &mut Sink) -> Option<Vec<Vip>> {
    let mut units: Vec<Vec<VipRead>> = Vec::new();
    let mut groups: HashMap<Name, usize> = HashMap::new();
    for vip in vips {
        let Some((group, _)) = &vip.group else {
            units.push(vec![vip]);
            continue;
        };
        match groups.get(group).and_then(|at| units.get_mut(*at)) {
            Some(unit) => unit.push(vip),
            None => {
                groups.insert(group.clone(), units.len());
                units.push(vec![vip]);
            }
        }
    }
    let units: Vec<Option<Vip>> = units.into_iter().map(|members| unit(members, known, sink)).collect();
    units.into_iter().collect()
}

fn unit(members: Vec<VipRead>, known: &Known<'_>, sink: &mut Sink) -> Option<Vip> {
    let complete = members.iter().all(|vip| vip.item.is_some() && vip.name.is_some());
    let items: Vec<(&VipRead, &VipItem)> = members.iter().filter_map(|vip| Some((vip, vip.item.as_ref()?))).collect();
    let before = sink.len();
    agree(&items, sink);
    let tracks = tracks(&items, sink);
    let hard = depends(&items, &tracks, known, sink);
    weights(&items, &tracks, sink);
    if !complete || sink.len() > before {
        return None;
    }
    let (first, lead) = items.first()?;
    let group = first.group.as_ref().map(|(name, _)| name);
    let rivals = items.iter().map(|(_, item)| &item.vrrp.rivals).find(|rivals| !rivals.is_empty());
    let mut vrrp = lead.vrrp.clone();
    vrrp.rivals = rivals.cloned().unwrap_or_default();
    let mut vip =
        Vip::single(group.or_else(|| first.name.as_ref().map(|(name, _)| name))?.clone(), Vec::new(), Vec::new(), vrrp);
    vip.group = group.is_some();
    vip.members.clear();
    (vip.announce, vip.last_node) = (lead.announce, lead.last_node);
    vip.bgp.clone_from(&lead.bgp);
    (vip.balancers, vip.checks) = hard;
    vip.tracks = tracks.into_iter().map(|read| read.track).filter(stands_alone).collect();
    for read in members {
        let (name, item) = (read.name?.0, read.item?);
        vip.members.push(Member { name, addresses: item.own });
        vip.legs.extend(item.legs);
        vip.addresses.extend(item.addresses);
        vip.routes.extend(read.routes.into_iter().map(|(route, _)| route));
        vip.rules.extend(read.rules.into_iter().map(|(rule, _)| rule));
    }
    Some(vip)
}

/// A check or balancer whose failure is a failure of the node is just one more that must be well.
fn stands_alone(track: &Track) -> bool {
    track.weight.is_some() || matches!(track.what, Tracked::Interface { .. })
}

/// What is one in a unit must be said alike by all its members.
fn agree(items: &[(&VipRead, &VipItem)], sink: &mut Sink) {
    let Some(((first, lead), others)) = items.split_first() else { return };
    for (other, item) in others {
        if !held_alike((first, lead), (other, item), sink) {
            continue;
        }
        for ((key, ours), (_, theirs)) in shared(lead).into_iter().zip(shared(item)) {
            if ours == theirs || key == "rivals" && (ours.is_empty() || theirs.is_empty()) {
                continue;
            }
            let leader = first.name.as_ref().map_or("the first", |(name, _)| name.as_str());
            let shown = |text: String| if text.is_empty() { "none".to_owned() } else { text };
            let what = format!(
                "{key} is {} here and {} in {leader}: the vips of a group are one unit and have it alike",
                shown(theirs),
                shown(ours),
            );
            let place = |at: &str| item.places.iter().find(|(key, _)| *key == at).map(|(_, place)| place);
            let Some(place) = place(key).or_else(|| other.group.as_ref().map(|(_, place)| place)) else { continue };
            sink.at(place, what);
        }
    }
}

/// One decision holds and announces all of them. `false`: the rest can't be compared.
fn held_alike((first, lead): (&VipRead, &VipItem), (other, item): (&VipRead, &VipItem), sink: &mut Sink) -> bool {
    let by = |item: &VipItem| match (item.legs.is_empty(), &item.bgp) {
        (true, _) => "by bgp alone",
        (false, Some(_)) => "by vrrp and bgp",
        (false, None) => "by vrrp alone",
    };
    let (ours, theirs) = (by(item), by(lead));
    let leader = first.name.as_ref().map_or("the first", |(name, _)| name.as_str());
    let what = if ours != theirs {
        format!("is held {ours} here and {theirs} in {leader}: the vips of a group are one unit and have it alike")
    } else if item.bgp != lead.bgp {
        format!("bgp is another one here than in {leader}: the vips of a group are one unit and have it alike")
    } else {
        return true;
    };
    let place = item.places.iter().find(|(key, _)| *key == "bgp").map(|(_, place)| place);
    if let Some(place) = place.or_else(|| other.group.as_ref().map(|(_, place)| place)) {
        sink.at(place, what);
    }
    ours == theirs
}

fn shared(item: &VipItem) -> [(&'static str, String); 11] {
    let vrrp = &item.vrrp;
    let announce = &item.announce;
    let list = |rivals: &[u8]| rivals.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    [
        ("priority", vrrp.priority.to_string()),
        ("interval", show(vrrp.interval.duration())),
        ("preempt", vrrp.preempt.to_string()),
        ("preempt_delay", show(vrrp.preempt_delay)),
        ("startup_delay", show(vrrp.startup_delay)),
        ("accept", vrrp.accept.to_string()),
        ("partition", word(&vrrp.partition)),
        ("gateway", vrrp.gateway.map(|id| format!("check {}", id.0)).unwrap_or_default()),
        ("rivals", list(&vrrp.rivals)),
        ("last_node", word(&item.last_node)),
        ("announce", format!("{}, {}, {}", announce.repeat, show(announce.second), show(announce.refresh))),
    ]
}

/// A word of the configuration as it is written there.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// The tracks of all members, each once.
fn tracks(items: &[(&VipRead, &VipItem)], sink: &mut Sink) -> Vec<TrackRead> {
    let mut united: Vec<TrackRead> = Vec::new();
    let shared = items.len() > 1;
    for read in items.iter().flat_map(|(_, item)| &item.tracks) {
        match united.iter().find(|other| track::same(&other.track.what, &read.track.what)) {
            None if shared && united.len() == TRACKS_MAX => {
                sink.at(&read.place, format!("is one too many: the vips of a group have {TRACKS_MAX} tracks at most"));
                break;
            }
            None => united.push(read.clone()),
            Some(other) if other.track == read.track => {}
            Some(other) => {
                sink.at(&read.place, format!("differs from {}, and both vips are one unit", other.place.path))
            }
        }
    }
    united
}

/// Balancers and checks that must be well: what the members name, and what their tracks add; not what is weighed.
fn depends(
    items: &[(&VipRead, &VipItem)],
    tracks: &[TrackRead],
    known: &Known<'_>,
    sink: &mut Sink,
) -> (Vec<BalancerId>, Vec<CheckId>) {
    let weighed = |what: &Tracked| tracks.iter().find(|t| t.track.weight.is_some() && t.track.what == *what);
    let (mut balancers, mut checks) = (Once::default(), Once::default());
    for (vip, item) in items {
        // What another member of the group weighs and this one names can't be both.
        let own = |weighed: &TrackRead| item.tracks.iter().any(|t| t.track.what == weighed.track.what);
        let mut refuse = |weighed: &TrackRead, what: &str| {
            let name = vip.name.as_ref().map_or("another", |(name, _)| name.as_str());
            let what = format!("is weighed here, but {name} of the same group {what}");
            sink.at(&weighed.place, what);
        };
        if let Some((id, named)) = item.balancer {
            match weighed(&Tracked::Balancer(id)) {
                None => balancers.push(id),
                Some(weighed) if !named || own(weighed) => {}
                Some(weighed) => refuse(weighed, "has it as its balancer, which must be well"),
            }
        }
        match &item.checks {
            Checks::All => {
                let all = (0..known.checks.len).filter_map(|at| u16::try_from(at).ok()).map(CheckId);
                let all = all.filter(|id| known.later.counts_by_itself(*id));
                let tells_partitions = |id: &CheckId| item.vrrp.gateway == Some(*id);
                all.filter(|id| !tells_partitions(id) && weighed(&Tracked::Check(*id)).is_none())
                    .for_each(|id| checks.push(id));
            }
            Checks::Named(named) => {
                for id in named {
                    match weighed(&Tracked::Check(*id)) {
                        None => checks.push(*id),
                        Some(weighed) if own(weighed) => {}
                        Some(weighed) => refuse(weighed, "names it in checks, which must be well"),
                    }
                }
            }
        }
    }
    for read in tracks.iter().filter(|read| read.track.weight.is_none()) {
        match read.track.what {
            Tracked::Check(id) => checks.push(id),
            Tracked::Balancer(id) => balancers.push(id),
            Tracked::Interface { .. } => {}
        }
    }
    (balancers.items, checks.items)
}

/// In order of appearance, each once.
struct Once<T> {
    items: Vec<T>,
    seen: HashSet<T>,
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self { items: Vec::new(), seen: HashSet::new() }
    }
}

impl<T: Copy + Eq + std::hash::Hash> Once<T> {
    fn push(&mut self, item: T) {
        if self.seen.insert(item) {
            self.items.push(item);
        }
    }
}

/// Each weight can have its effect.
fn weights(items: &[(&VipRead, &VipItem)], tracks: &[TrackRead], sink: &mut Sink) {
    let weighed: Vec<(u8, &Place)> =
        tracks.iter().filter_map(|read| Some((read.track.weight?, read.weight.as_ref()?))).collect();
    let (Some((_, first)), Some((_, lead))) = (weighed.first(), items.first()) else { return };
    let priority = lead.vrrp.priority;
    let rivals = items.iter().map(|(_, item)| &item.vrrp.rivals).find(|rivals| !rivals.is_empty());
    let mut refuse = |place: &Place, what: String, accepted: &str| {
        sink.push(place.span.clone(), &place.path, what, Some(accepted.to_owned()));
    };
    if lead.legs.is_empty() {
        let what = "has no effect without vrrp: there is no priority to lose".to_owned();
        return refuse(first, what, "no weight: failing is then a failure of the node");
    }
    if priority == Priority::OWNER {
        let what = "has no effect with priority 255: an owner's priority never changes".to_owned();
        return refuse(first, what, "no weight, or a priority of 1 to 254");
    }
    let Some(rivals) = rivals else {
        let what = "can't be shown to have an effect: the other nodes' priorities aren't known".to_owned();
        return refuse(first, what, "vrrp.rivals = [253], the other nodes' priorities; or no weight");
    };
    let lost: Vec<u8> = weighed.iter().map(|(weight, _)| *weight).collect();
    let proof = Proof { priority: priority.get(), rivals, weights: &lost };
    let shown = |list: &[u8]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let effects = proof.effects();
    for ((at, (weight, place)), _) in weighed.iter().enumerate().zip(effects).filter(|(_, effect)| !effect) {
        let others = if lost.len() > 1 { ", whatever else fails" } else { "" };
        let what = format!(
            "-{weight} has no effect: with priority {priority} against {} it changes nobody's order{others}",
            shown(rivals)
        );
        let enough = |least: &u8| {
            let mut lost = lost.clone();
            lost.iter_mut().skip(at).take(1).for_each(|weight| *weight = *least);
            Proof { weights: &lost, ..proof }.effects().get(at) == Some(&true)
        };
        // Each try is a proof of its own.
        let few = lost.len() <= 4 && rivals.len() <= 4;
        let accepted = match (1..=253_u8).find(|least| few && enough(least)) {
            Some(least) => format!("-{least} to -253; or no weight: failing is then a failure of the node"),
            None => "no weight: failing is then a failure of the node".to_owned(),
        };
        refuse(place, what, &accepted);
    }
}
