//! The kernel's table against ours: a dump marks what it sees, then a sweep looks at what wasn't seen. At the start, after
//! lost events, and every now and then. The sweep goes in pieces, between other work.

use super::record::{CLASH, COLOUR, DEAD, IN_KERNEL, Id, MISSED, PENDING, QUEUED, REFUSED, REPLACE, YOUNG};
use super::types::{Event, Output};
use super::{Flows, ME};
use crate::ct::Entry;
use std::time::{Duration, Instant};

/// Slots that one turn looks at.
const STEP: u32 = 4096;

/// After a dump that was cut off, and before the second look at what the first one didn't see.
const AGAIN: Duration = Duration::from_secs(1);

/// A dump that isn't answered for this long is asked for anew.
const DUMP_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Nothing until then.
    Rest { until: Instant },
    /// The kernel tells its table; given up then.
    Dump { until: Instant },
    /// Looking at what wasn't seen.
    Sweep { cursor: Id, end: Id, missed: bool },
}

/// Where the audit stands.
#[derive(Debug)]
pub(crate) struct Audit {
    phase: Phase,
    colour: u16,
    /// The table was read since the start, or since events were lost.
    done: bool,
    /// The table was read since the start.
    begun: bool,
    /// Events were lost while the kernel was telling: once more.
    again: bool,
    /// Where the search for a flow that can go stands.
    pub(crate) hand: Id,
}

impl Audit {
    pub(crate) fn new(now: Instant) -> Self {
        Self { phase: Phase::Rest { until: now }, colour: 0, done: false, begun: false, again: false, hand: 0 }
    }

    /// What a record that is made now has: it counts as seen.
    pub(crate) fn colour(&self) -> u16 {
        self.colour
    }
}

impl Flows {
    /// The kernel's table isn't known (yet, or any more).
    pub(super) fn reading(&self) -> bool {
        !self.audit.done
    }

    /// What was in the kernel when this run began isn't known yet.
    pub(super) fn knows_nothing(&self) -> bool {
        !self.audit.begun
    }

    pub(super) fn on_overrun(&mut self, now: Instant) {
        self.counters.overruns += 1;
        self.event(now, Event::Overrun);
        self.audit.done = false;
        match &mut self.audit.phase {
            Phase::Rest { until } => *until = now,
            Phase::Dump { .. } | Phase::Sweep { .. } => self.audit.again = true,
        }
        self.arm(now);
    }

    pub(super) fn step_audit(&mut self, now: Instant) {
        match self.audit.phase {
            Phase::Rest { until } | Phase::Dump { until } if now < until => self.arm(until),
            Phase::Rest { .. } | Phase::Dump { .. } => {
                let until = now + DUMP_LIMIT;
                self.audit.phase = Phase::Dump { until };
                self.audit.colour ^= COLOUR;
                self.audit.again = false;
                self.arm(until);
                self.outbox.queue.push_back(Output::Dump);
            }
            Phase::Sweep { cursor, end, missed } => self.sweep(now, cursor, end, missed),
        }
    }

    pub(super) fn on_dumped(&mut self, now: Instant, entry: &Entry) {
        let Some((vip, key, nat)) = self.eligible(entry) else { return };
        let Some(id) = self.table.find(&key) else {
            let before = self.table.len();
            self.adopt(now, vip, &key, &nat, entry);
            self.counters.audit_repairs += u64::from(self.table.len() > before && self.audit.done);
            return;
        };
        self.settle(id);
        let colour = self.audit.colour;
        let Some(record) = self.table.local_mut(id) else { return };
        record.local = record.local & !(COLOUR | MISSED) | colour;
        if record.owner == ME {
            let before = record.version;
            self.on_own_news(now, id, vip, &nat, entry);
            let changed = self.table.get(id).is_some_and(|record| record.version != before);
            self.counters.audit_repairs += u64::from(changed && self.audit.done);
            return;
        }
        if record.has(DEAD) || record.local(PENDING) {
            return;
        }
        record.local |= IN_KERNEL;
        if let Some(kernel_id) = entry.id {
            record.kernel_id = kernel_id;
        }
        let record = *record;
        if self.table.nat(&record) != nat {
            self.counters.audit_repairs += 1;
            if let Some(record) = self.table.local_mut(id) {
                record.local |= REPLACE;
            }
            self.want(id);
        } else if self.follows_packets(&record) && self.is_active(now, record.owner, entry.timeout_s) {
            self.claim_flow(now, id, entry);
        }
        self.flush_full(now);
    }

    /// Whether packets renewed a replica's timeout: it is none that a lease can have. Nobody renews that of an owner that
    /// is gone.
    fn is_active(&self, now: Instant, owner: u8, timeout_s: Option<u32>) -> bool {
        let lease_s = self.config.times.lease.as_secs();
        let peer = Self::peer_of(owner).and_then(|index| self.peers.get(index)).filter(|_| self.is_left(owner));
        let gone_at = peer.and_then(|peer| if self.is_past(owner) { peer.past_since } else { peer.seen_at });
        let gone_s = gone_at.map_or(0, |at| now.saturating_duration_since(at).as_secs());
        timeout_s.map(u64::from).is_some_and(|left| left + gone_s > lease_s + 2 || left + gone_s < lease_s / 3)
    }

    pub(super) fn on_dump_end(&mut self, now: Instant, complete: bool) {
        if !matches!(self.audit.phase, Phase::Dump { .. }) {
            return;
        }
        self.audit.phase = if complete {
            Phase::Sweep { cursor: 0, end: self.table.end(), missed: false }
        } else {
            Phase::Rest { until: now + AGAIN }
        };
        self.arm(now);
        self.flush_all(now);
    }

    fn sweep(&mut self, now: Instant, cursor: Id, end: Id, mut missed: bool) {
        let stop = cursor.saturating_add(STEP).min(end);
        for id in cursor..stop {
            missed |= self.sweep_one(now, id);
        }
        if stop < end {
            self.audit.phase = Phase::Sweep { cursor: stop, end, missed };
            self.arm(now);
            return;
        }
        let pause = if missed { AGAIN } else { self.config.times.audit };
        let until = if self.audit.again { now } else { now + pause };
        self.audit.done = !self.audit.again;
        self.audit.begun = true;
        self.audit.phase = Phase::Rest { until };
        self.counters.audits += 1;
        self.arm(until);
    }

    /// Looks at one record after a dump. `true`: it wasn't seen, and the next dump decides.
    fn sweep_one(&mut self, now: Instant, id: Id) -> bool {
        let colour = self.audit.colour;
        self.settle(id);
        let Some(record) = self.table.local_mut(id) else { return false };
        let seen = record.local & COLOUR == colour;
        // The next dump has the other colour: only what it sees has that, then.
        record.local = record.local & !COLOUR | colour;
        if record.has(DEAD) || record.local & (PENDING | QUEUED) != 0 {
            return false;
        }
        if record.owner != ME {
            let retry = record.local & (CLASH | REFUSED) != 0;
            if seen && !retry {
                return false;
            }
            let gone = record.local(IN_KERNEL) && !seen;
            if gone {
                record.local &= !IN_KERNEL;
                record.kernel_id = 0;
            }
            record.local &= !REFUSED;
            let owner = record.owner;
            if !self.lease_holds(now, owner) {
                // It ended with its lease.
                self.forget(id);
            } else if !crate::mutants::off("refill") {
                self.counters.refilled += u64::from(gone);
                self.want(id);
            }
            return false;
        }
        if seen {
            return false;
        }
        let record = *record;
        let counts = self.sees_the_end(&record);
        if !record.local(IN_KERNEL) && !counts {
            return false;
        }
        if !record.local(MISSED) {
            if let Some(record) = self.table.local_mut(id) {
                record.local |= MISSED;
            }
            return true;
        }
        if record.has(YOUNG) || counts || crate::mutants::off("fence") {
            // Its end was lost.
            self.counters.audit_repairs += 1;
            self.end(now, id);
        } else if let Some(record) = self.table.local_mut(id) {
            record.local &= !(IN_KERNEL | MISSED);
        }
        false
    }
}
