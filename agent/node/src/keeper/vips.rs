//! The undo records: what the kernel and the segment still show because of a worker, and for how long a dead
//! worker's VIPs wait for the next one.

use super::Out;
use super::ipc::{MESSAGE_MAX, Undo, VipRecord};
use super::mutants;
use super::routers::Routers;
use super::types::{Event, Output, UndoReason};
use crate::config::VIPS_MAX;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Records beyond this are refused with an event: a dead worker's, and those of the next one, whose configuration may
/// have other VIPs.
const RECORDS_MAX: usize = 2 * VIPS_MAX;
/// No VIP waits longer than this for a new worker.
const GRACE_MAX: Duration = Duration::from_millis(200);
/// Nor an announced one, whatever the worker said: what nobody refreshes is gone by then.
const BGP_GRACE_MAX: Duration = Duration::from_secs(3_600);
/// Bytes of one part of what waits: a packet has room for the rest of its message as well.
const PART: usize = MESSAGE_MAX / 2;
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Entry {
    record: VipRecord,
    /// `Some`: its worker is dead; a new one may resume it until then.
    held_until: Option<Instant>,
}

impl Entry {
    /// Announced only: nobody but routers waits for it.
    fn is_anycast(&self) -> bool {
        self.record.bgp.is_some() && self.record.resign.is_empty()
    }

    fn grace(&self, limit: Duration) -> Duration {
        match self.record.bgp {
            Some(bgp) if self.is_anycast() => bgp.grace.min(BGP_GRACE_MAX),
            _ => self.record.interval.saturating_mul(2).min(GRACE_MAX).min(limit),
        }
    }
}

/// VIPs that wait, (name, role epoch), and of those the legs that learnt their peers' checksum.
pub(super) type Held = (Vec<(String, u64)>, Vec<(String, Vec<(u16, bool)>)>);

/// A removal that has not been confirmed.
#[derive(Debug)]
struct Pending {
    /// It failed and is tried again then.
    retry_at: Option<Instant>,
    /// The wait before that.
    wait: Duration,
}

/// All records.
#[derive(Debug, Default)]
pub(super) struct Vips {
    entries: BTreeMap<String, Entry>,
    /// How many records of the living worker name it: nobody looks at all of them for what is to be removed.
    kept: BTreeMap<Undo, usize>,
    /// How many wait until when: nobody looks at all of them to learn that it isn't time.
    waiting: BTreeMap<Instant, usize>,
    /// What isn't confirmed to be removed.
    pending: BTreeMap<Undo, Pending>,
    /// None of them is tried again before.
    retry_at: Option<Instant>,
    /// Removed while a killed worker may still have been running: removed once more when it is gone.
    again: BTreeSet<Undo>,
    /// A killed worker may still be running.
    pub(super) dying: bool,
}

impl Vips {
    /// The living worker replaces the record of a VIP.
    pub(super) fn replace(&mut self, record: VipRecord, out: &mut Out) {
        let name = record.vip.clone();
        let former = self.take(&name);
        for undo in &record.undo {
            self.pending.remove(undo);
        }
        let empty = !record.active && record.undo.is_empty();
        if !empty && self.entries.len() >= RECORDS_MAX {
            out.event(Event::Refused { what: "too many VIPs to remember" });
        } else if !empty {
            for undo in &record.undo {
                *self.kept.entry(*undo).or_default() += 1;
            }
            self.entries.insert(name.clone(), Entry { record: record.clone(), held_until: None });
        }
        let Some(Entry { record: former, held_until: Some(_) }) = former else { return };
        if record.active {
            out.event(Event::Resumed { vip: name });
        } else {
            // The new worker came up as Backup: it doesn't know the former advert, so nobody else would send it.
            let resigned = former.active && !former.resign.is_empty();
            out.extend(former.resign.into_iter().filter(|_| former.active).map(Output::SendResign));
            let (removed, why) = (former.undo.len(), UndoReason::NotResumed);
            out.event(Event::Undone { vip: name, resigned, removed, why });
        }
        // What the new worker doesn't know of, it can't release.
        for undo in former.undo.iter().filter(|undo| !record.undo.contains(undo)) {
            self.remove(*undo, out);
        }
    }

    /// The worker is dead: Active VIPs wait for a new one, the others are undone. A VIP without a running balancer
    /// doesn't wait.
    pub(super) fn hold(
        &mut self,
        now: Instant,
        limit: Duration,
        runs: impl Fn(&str) -> bool,
        routers: &mut Routers,
        out: &mut Out,
    ) {
        let mut gone = Vec::new();
        for (name, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.held_until.is_none()) {
            if !entry.record.active {
                gone.push((name.clone(), UndoReason::Left));
            } else if entry.record.balancers.iter().any(|balancer| !runs(balancer)) {
                gone.push((name.clone(), UndoReason::Balancer));
            } else {
                let until = now + entry.grace(limit);
                entry.held_until = Some(until);
                release(&mut self.kept, &entry.record);
                *self.waiting.entry(until).or_default() += 1;
            }
        }
        self.undo(now, gone, routers, out);
    }

    /// Undoes what no worker has resumed in time. Returns (VIP, role epoch) of each.
    pub(super) fn lapse(&mut self, now: Instant, routers: &mut Routers, out: &mut Out) -> Vec<(String, u64)> {
        if mutants::off("keeper-grace") || self.waiting.first_key_value().is_none_or(|(until, _)| *until > now) {
            return Vec::new();
        }
        let late = |entry: &Entry| entry.held_until.is_some_and(|until| until <= now);
        let lapsed: Vec<(String, u64)> =
            self.entries.iter().filter(|(_, e)| late(e)).map(|(n, e)| (n.clone(), e.record.role_epoch)).collect();
        let names = lapsed.iter().map(|(name, _)| (name.clone(), UndoReason::Lapsed)).collect();
        self.undo(now, names, routers, out);
        lapsed
    }

    /// Undoes everything.
    pub(super) fn undo_all(&mut self, now: Instant, why: UndoReason, routers: &mut Routers, out: &mut Out) {
        let all = self.entries.keys().map(|name| (name.clone(), why)).collect();
        self.undo(now, all, routers, out);
    }

    /// The worker hangs. VRRP's peers must not wait; routes stay where they are, as after a crash.
    pub(super) fn undo_hung(&mut self, now: Instant, routers: &mut Routers, out: &mut Out) {
        let hung = self.entries.iter().filter(|(_, entry)| !entry.is_anycast());
        let hung = hung.map(|(name, _)| (name.clone(), UndoReason::Hung)).collect();
        self.undo(now, hung, routers, out);
    }

    /// Undoes the VIPs that wait for a worker and whose balancer just ended.
    pub(super) fn balancer_ended(&mut self, now: Instant, balancer: &str, routers: &mut Routers, out: &mut Out) {
        let theirs = |entry: &Entry| entry.held_until.is_some() && entry.record.balancers.iter().any(|b| b == balancer);
        let gone = self.entries.iter().filter(|(_, e)| theirs(e)).map(|(n, _)| (n.clone(), UndoReason::Balancer));
        let gone = gone.collect();
        self.undo(now, gone, routers, out);
    }

    /// A killed worker's last words: what it meant to add must not stay.
    pub(super) fn remove_late(&mut self, record: &VipRecord, out: &mut Out) {
        for undo in &record.undo {
            self.remove(*undo, out);
        }
    }

    /// The killed worker is gone for certain: what was removed meanwhile is removed once more, since its last system
    /// call may have added it again.
    pub(super) fn confirm(&mut self, out: &mut Out) {
        self.dying = false;
        for undo in std::mem::take(&mut self.again) {
            self.remove(undo, out);
        }
    }

    /// All adverts first, since peers count from the advert; then what routers must know; then the rest.
    fn undo(&mut self, now: Instant, names: Vec<(String, UndoReason)>, routers: &mut Routers, out: &mut Out) {
        let gone: Vec<_> = names.into_iter().filter_map(|(name, why)| Some((self.take(&name)?.record, why))).collect();
        for (record, _) in gone.iter().filter(|(record, _)| record.active) {
            out.extend(record.resign.iter().cloned().map(Output::SendResign));
        }
        if gone.iter().any(|(record, _)| record.active && record.bgp.is_some()) {
            routers.forsake(now, out);
        }
        for (record, why) in gone {
            for undo in &record.undo {
                self.remove(*undo, out);
            }
            let resigned = record.active && !record.resign.is_empty();
            out.event(Event::Undone { vip: record.vip, resigned, removed: record.undo.len(), why });
        }
    }

    fn take(&mut self, name: &str) -> Option<Entry> {
        let entry = self.entries.remove(name)?;
        match entry.held_until {
            None => release(&mut self.kept, &entry.record),
            Some(until) => count_down(&mut self.waiting, &until),
        }
        Some(entry)
    }

    /// Unless the living worker has recorded the same, for whatever VIP.
    fn remove(&mut self, undo: Undo, out: &mut Out) {
        if self.kept.contains_key(&undo) {
            return;
        }
        if self.dying {
            self.again.insert(undo);
        }
        self.pending.entry(undo).or_insert(Pending { retry_at: None, wait: Duration::ZERO });
        out.push(Output::Remove(undo));
    }

    /// How a removal ended.
    pub(super) fn removed(&mut self, now: Instant, undo: Undo, result: Result<(), String>, out: &mut Out) {
        let Some(pending) = self.pending.get_mut(&undo) else { return };
        let Err(what) = result else {
            self.pending.remove(&undo);
            return;
        };
        pending.wait = pending.wait.saturating_mul(2).clamp(RETRY_FIRST, RETRY_MAX);
        let retry_at = now + pending.wait;
        pending.retry_at = Some(retry_at);
        self.retry_at = Some(self.retry_at.map_or(retry_at, |at| at.min(retry_at)));
        out.event(Event::RemoveFailed { undo, what, retry_in: pending.wait });
    }

    /// Tries again what failed.
    pub(super) fn retry(&mut self, now: Instant, out: &mut Out) {
        if self.retry_at.is_none_or(|at| at > now) {
            return;
        }
        for (undo, pending) in &mut self.pending {
            if pending.retry_at.is_some_and(|at| at <= now) {
                pending.retry_at = None;
                out.push(Output::Remove(*undo));
            }
        }
        self.retry_at = self.pending.values().filter_map(|pending| pending.retry_at).min();
    }

    /// Nothing is recorded, and every removal is confirmed.
    pub(super) fn is_clean(&self) -> bool {
        self.entries.is_empty() && self.pending.is_empty() && self.again.is_empty()
    }

    /// VIPs that wait, in parts that fit into a message each.
    pub(super) fn held(&self) -> Vec<Held> {
        let (mut parts, mut part, mut room) = (Vec::new(), Held::default(), PART);
        for (name, entry) in self.entries.iter().filter(|(_, entry)| entry.held_until.is_some()) {
            let learnt = &entry.record.pseudo_header;
            // At most: numbers as they are encoded, names with their length.
            let size = 2 * (name.len() + 5) + 10 + 5 + 4 * learnt.len();
            if size > room {
                parts.push(std::mem::take(&mut part));
                room = PART;
            }
            room = room.saturating_sub(size);
            part.0.push((name.clone(), entry.record.role_epoch));
            if !learnt.is_empty() {
                part.1.push((name.clone(), learnt.clone()));
            }
        }
        parts.push(part);
        parts
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let held = self.waiting.keys().next().copied().filter(|_| !mutants::off("keeper-grace"));
        held.into_iter().chain(self.retry_at).min()
    }
}

/// A record is no longer one of the living worker's.
fn release(kept: &mut BTreeMap<Undo, usize>, record: &VipRecord) {
    record.undo.iter().for_each(|undo| count_down(kept, undo));
}

fn count_down<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
