//! The legs while the router runs: sources, learnt checksums, and the encoded adverts, which are rebuilt only when
//! something in them changes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::checksums::Checksums;
use super::io::{Heard, Packet};
use super::{Notice, Output, Router, RouterConfig};
use crate::leg::LegConfig;
use crate::mutants;
use crate::types::{AdvertInterval, Family, LegId, Priority, Version};
use crate::wire::{Advert, ChecksumForm};

/// What is known of a leg beside its configuration.
#[derive(Debug)]
pub(super) struct Leg {
    /// Known from the first `Source` on.
    pub(super) source: Option<IpAddr>,
    /// The last advert of another router on this leg.
    pub(super) heard: Option<Heard>,
    /// When the last advert with our own priority was heard.
    pub(super) equal_at: Option<Instant>,
    pub(super) checksums: Checksums,
    /// The advert at our present priority, once it was needed.
    advert: Option<Arc<[Packet]>>,
    /// The advert with priority 0, whenever there is a source: it must be at hand.
    resign: Option<Arc<[Packet]>>,
}

impl Leg {
    pub(super) fn new(config: &LegConfig) -> Self {
        Self {
            source: None,
            heard: None,
            equal_at: None,
            checksums: Checksums::new(config),
            advert: None,
            resign: None,
        }
    }

    /// Something in the packets changed: the regular one is made when it is needed, the last one now.
    fn rebuild(&mut self, config: &LegConfig, interval: AdvertInterval) {
        self.advert = None;
        let forms = self.checksums.forms();
        self.resign = self.source.map(|source| encode(config, Priority::RESIGN, interval, forms, source));
    }

    /// Only our priority changed.
    pub(super) fn new_priority(&mut self) {
        self.advert = None;
    }

    fn packets(&mut self, config: &LegConfig, priority: Priority, interval: AdvertInterval) -> Option<Send> {
        let source = self.source?;
        let forms = self.checksums.forms();
        let packets = self.advert.get_or_insert_with(|| encode(config, priority, interval, forms, source));
        Some((source, Arc::clone(packets)))
    }

    fn resignation(&self) -> Option<Send> {
        Some((self.source?, Arc::clone(self.resign.as_ref()?)))
    }
}

type Send = (IpAddr, Arc<[Packet]>);

fn encode(
    config: &LegConfig,
    priority: Priority,
    interval: AdvertInterval,
    forms: &[ChecksumForm],
    source: IpAddr,
) -> Arc<[Packet]> {
    let addresses = config.addresses.clone();
    let advert = Advert { version: config.version, vrid: config.vrid, priority, interval, addresses };
    let packet = |destination, form| Packet { destination, payload: advert.encode(form, source, destination) };
    let destinations = config.transport.destinations(config.family());
    destinations.flat_map(|to| forms.iter().map(move |form| (to, *form))).map(|(to, form)| packet(to, form)).collect()
}

impl Router {
    /// The source of a leg's adverts, once known.
    pub fn source(&self, leg: LegId) -> Option<IpAddr> {
        self.legs.get(leg.index())?.source
    }

    /// The last valid advert of another router on this leg. A leg that is silent for longer than
    /// [`active_down`](Self::active_down) while others are heard is cut off, or has a peer that holds the rest alone.
    pub fn heard_on(&self, leg: LegId) -> Option<Heard> {
        self.legs.get(leg.index())?.heard
    }

    /// The advert with priority 0 of a leg, encoded, with its source: for one who must send it when this router no
    /// longer can. `None`: no such leg, or no source yet.
    pub fn resign_packets(&self, leg: LegId) -> Option<(IpAddr, Arc<[Packet]>)> {
        self.legs.get(leg.index())?.resignation()
    }

    /// The checksum form that a leg sends (of two, the first), and a peer whose form is another, if any was heard lately.
    pub fn checksum(&self, leg: LegId) -> (ChecksumForm, Option<(IpAddr, ChecksumForm)>) {
        match self.legs.get(leg.index()) {
            Some(leg) => (leg.checksums.sent(), leg.checksums.mismatch()),
            None => (ChecksumForm::Message, None),
        }
    }

    /// Whether a leg's adverts go out with the pseudo-header's checksum, and if so whether with the RFC's as well.
    pub fn pseudo_header(&self, leg: LegId) -> Option<bool> {
        let forms = self.legs.get(leg.index())?.checksums.forms();
        forms.contains(&ChecksumForm::PseudoHeader).then(|| forms.contains(&ChecksumForm::Message))
    }

    /// What [`pseudo_header`](Self::pseudo_header) told of a former run of this router, given before `Resume`. Its peers
    /// may be silent Backups that understand no other form, so nobody would teach it again before one of them took over.
    /// Counts with [`ChecksumMode::Auto`](crate::ChecksumMode::Auto) until a peer is heard.
    pub fn assume_pseudo_header(&mut self, leg: LegId, as_well: bool) {
        let (Some(leg), Some(config)) = (self.legs.get_mut(leg.index()), self.config.legs.get(leg.index())) else {
            return;
        };
        leg.checksums.assume(match as_well {
            true => &[ChecksumForm::Message, ChecksumForm::PseudoHeader],
            false => &[ChecksumForm::PseudoHeader],
        });
        leg.rebuild(config, self.config.interval);
    }

    /// Other legs, after a reload. The state, the priority and the timers stay: a leg that joins demotes nobody. An
    /// Active speaks on new and changed legs as soon as their source is known; on a leg that went it falls silent without
    /// a priority 0, which would make a peer that still has it take the whole unit.
    ///
    /// [`LegId`]s are counted anew. A leg that has its like among the old ones (VRID, version, family and transport, and
    /// no other that fits as well) keeps its source; give the source of every leg again, which changes nothing where it
    /// is the same. An empty list is ignored.
    pub fn set_legs(&mut self, now: Instant, legs: Vec<LegConfig>) {
        self.set_config(now, RouterConfig { legs, ..self.config.clone() });
    }

    /// Another configuration, after a reload; legs as with [`set_legs`](Self::set_legs). A new interval counts from the
    /// next advert on, which a shorter one brings forward. A new `preempt_delay` is counted from when the old one was.
    pub fn set_config(&mut self, now: Instant, config: RouterConfig) {
        if config.legs.is_empty() {
            return;
        }
        let old_config = std::mem::replace(&mut self.config, config);
        let mut old: Vec<Option<Leg>> = std::mem::take(&mut self.legs).into_iter().map(Some).collect();
        let new_interval = old_config.interval != self.config.interval;
        let mut speak = Vec::new();
        for (at, config) in self.config.legs.iter().enumerate() {
            let kept = matching(at, &self.config.legs, &old_config.legs);
            let leg = kept.and_then(|from| Some((from, old.get_mut(from)?.take()?)));
            let (mut leg, changed) = match leg {
                Some((from, leg)) => (leg, old_config.legs.get(from) != Some(config)),
                None => (Leg::new(config), true),
            };
            if changed || new_interval {
                leg.checksums.set_mode(config);
                leg.rebuild(config, self.config.interval);
            }
            if changed {
                speak.push(at);
            }
            self.legs.push(leg);
        }
        self.lead_source = self.legs.iter().find_map(|leg| leg.source);
        self.timing = keeps_time_of(&self.config.legs);
        self.tie = None;
        if new_interval {
            self.bring_forward(now);
        }
        if self.may_speak() {
            for at in speak {
                self.send_advert_on(at);
            }
        }
    }

    pub(super) fn on_source(&mut self, leg: LegId, source: IpAddr) {
        let may_speak = self.may_speak();
        let interval = self.config.interval;
        let (Some(leg_state), Some(config)) = (self.legs.get_mut(leg.index()), self.config.legs.get(leg.index()))
        else {
            return;
        };
        if leg_state.source == Some(source) || Family::of(source) != config.family() {
            return;
        }
        let first = leg_state.source.replace(source).is_none();
        leg_state.rebuild(config, interval);
        self.lead_source = self.legs.iter().find_map(|leg| leg.source);
        if first && may_speak {
            self.send_advert_on(leg.index());
        }
    }

    /// Whether an advert of `source` heard on this leg is our own: from the leg's own source, or looped back from
    /// another leg whose advert it is word for word. (By the source alone it couldn't be told there: a link-local
    /// address of ours on one segment may be another host's on the next.)
    pub(super) fn is_own(&self, at: usize, source: IpAddr, advert: &Advert) -> bool {
        let legs = self.legs.iter().zip(&self.config.legs).enumerate();
        let mut from_there = legs.filter(|(_, (leg, _))| leg.source == Some(source));
        from_there.any(|(leg, (_, config))| {
            leg == at || config.vrid == advert.vrid && config.addresses.same_set(&advert.addresses)
        })
    }

    /// Learns the form of a peer's checksum; whether what we send changed by it.
    pub(super) fn learn_checksum(&mut self, now: Instant, id: LegId, peer: IpAddr, form: ChecksumForm) -> bool {
        let (Some(leg), Some(config)) = (self.legs.get_mut(id.index()), self.config.legs.get(id.index())) else {
            return false;
        };
        let before = leg.checksums.forms();
        let mismatch = leg.checksums.learn(now, peer, form);
        let changed = leg.checksums.forms() != before;
        if changed {
            leg.rebuild(config, self.config.interval);
        }
        if let Some((peer, its)) = mismatch {
            self.push(Output::Notice(Notice::ChecksumMismatch { leg: id, peer, its }));
        }
        changed
    }

    /// Whether an equal priority heard on this leg is decided here: by the sender's address on the lowest leg where both
    /// sides can be compared. Higher legs decide only if the lower ones have had two intervals to hear an equal, and
    /// heard none; else two nodes whose addresses are ordered differently on two legs would both give way, or neither.
    pub(super) fn decides_tie(&mut self, now: Instant, at: usize, interval: AdvertInterval) -> bool {
        let patience: Duration = 2 * interval.max(self.config.interval).duration();
        let since = match self.tie {
            Some(tie) if now.saturating_duration_since(tie.last) <= patience => tie.since,
            _ => now,
        };
        self.tie = Some(Tie { since, last: now });
        if let Some(leg) = self.legs.get_mut(at) {
            leg.equal_at = Some(now);
        }
        if mutants::off("lead-leg-tie-break") {
            return true;
        }
        if self.legs.get(at).is_none_or(|leg| leg.source.is_none()) {
            return false;
        }
        let mut lower = self.legs.iter().take(at).filter(|leg| leg.source.is_some()).peekable();
        if lower.peek().is_none() {
            return true;
        }
        let silent = |leg: &Leg| leg.equal_at.is_none_or(|heard| now.saturating_duration_since(heard) > patience);
        now.saturating_duration_since(since) >= patience && lower.all(silent)
    }

    /// An advert on every leg.
    pub(super) fn send_advert(&mut self) {
        for at in 0..self.legs.len() {
            self.send_advert_on(at);
        }
    }

    /// An advert on one leg, unless it has no source.
    pub(super) fn send_advert_on(&mut self, at: usize) {
        let (Some(leg), Some(config)) = (self.legs.get_mut(at), self.config.legs.get(at)) else { return };
        let packets = leg.packets(config, self.priority, self.config.interval);
        self.send(at, packets);
    }

    /// An advert with priority 0 on every leg.
    pub(super) fn send_resignation(&mut self) {
        for at in 0..self.legs.len() {
            let packets = self.legs.get(at).and_then(Leg::resignation);
            self.counters.resigned += u64::from(packets.is_some());
            self.send(at, packets);
        }
    }

    fn send(&mut self, at: usize, packets: Option<Send>) {
        let (Some((source, packets)), Ok(leg)) = (packets, u16::try_from(at)) else { return };
        self.counters.sent += 1;
        self.push(Output::Send { leg: LegId(leg), source, packets });
    }
}

/// Since when, and when last, an advert with our own priority was heard while Active.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tie {
    since: Instant,
    last: Instant,
}

/// Which old leg goes on as the new one at this place: the same in the same place, else the one that is like it, if
/// there is one only on either side.
fn matching(at: usize, new: &[LegConfig], old: &[LegConfig]) -> Option<usize> {
    let config = new.get(at)?;
    let alike = |other: &LegConfig| {
        (other.vrid, other.version, other.family()) == (config.vrid, config.version, config.family())
            && other.transport == config.transport
    };
    // Two legs with one VRID are on two interfaces, which we don't know: then only the addresses tell them apart.
    let same = |other: &LegConfig| alike(other) && other.addresses == config.addresses;
    let only = |legs: &[LegConfig], like: &dyn Fn(&LegConfig) -> bool| {
        let mut places = legs.iter().enumerate().filter(|(_, leg)| like(leg)).map(|(place, _)| place);
        places.next().filter(|_| places.next().is_none())
    };
    if only(new, &same).is_some()
        && let Some(place) = only(old, &same)
    {
        return Some(place);
    }
    only(new, &alike).and_then(|_| only(old, &alike))
}

/// Whether the unit keeps VRRPv2's time: one leg that speaks it is enough, since all legs share the timers.
pub(super) fn keeps_time_of(legs: &[LegConfig]) -> Version {
    legs.iter().map(|leg| leg.version).min().unwrap_or_default()
}
