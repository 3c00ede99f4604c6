//! What the kernel has of our replicas, and what it is asked to do about it. Each flow stands in a queue at most once and
//! has at most one operation on its way; what is to be done is decided when its turn comes.

use super::facts::replica;
use super::peer::Control;
use super::record::{
    CLASH, DEAD, DELETING, EXISTED, IN_KERNEL, Id, PENDING, QUEUED, REFUSED, REPLACE, RESTAMP, Record, UPDATING,
};
use super::table::state_of;
use super::types::{Event, Op, Output, Ticket};
use super::{Flows, ME, peer_id};
use crate::ct::Mark;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Operations without an answer.
pub const KERNEL_WINDOW: usize = 2048;

/// Of these: flows of a peer's snapshot. What changes now is written after no more of them than this, some milliseconds'
/// worth, however many wait.
const BULK_WINDOW: usize = KERNEL_WINDOW / 4;

/// Of these: renewed leases, which can wait.
const LATER_WINDOW: usize = KERNEL_WINDOW / 2;

/// How finely a third of the lease is divided.
const LEASE_TICK: Duration = Duration::from_millis(50);

const ENOENT: i32 = 2;
const EAGAIN: i32 = 11;
const EEXIST: i32 = 17;

/// The queues.
#[derive(Debug)]
pub(crate) struct Kernel {
    soon: VecDeque<Id>,
    /// Of a snapshot: not before what changes now.
    bulk: VecDeque<Id>,
    later: VecDeque<Id>,
    on_way: usize,
    /// Of these: creates and deletes.
    urgent_on_way: usize,
    /// Where the renewal of leases stands, and since when.
    cursor: Id,
    ticked_at: Instant,
}

impl Kernel {
    pub(crate) fn new(now: Instant) -> Self {
        let (soon, bulk, later) = Default::default();
        Self { soon, bulk, later, on_way: 0, urgent_on_way: 0, cursor: 0, ticked_at: now }
    }

    pub(crate) fn memory(&self) -> usize {
        (self.soon.capacity() + self.bulk.capacity() + self.later.capacity()) * size_of::<Id>()
    }

    /// Changes that wait, and creates and deletes on their way; renewed leases don't count.
    pub(crate) fn behind(&self) -> usize {
        self.soon.len() + self.bulk.len() + self.urgent_on_way
    }
}

impl Flows {
    /// Something has to be done about a flow in the kernel, soon.
    pub(super) fn want(&mut self, id: Id) {
        if let Some(record) = self.table.local_mut(id)
            && !record.local(QUEUED)
        {
            record.local |= QUEUED;
            self.kernel.soon.push_back(id);
        }
    }

    /// The same for a flow of a snapshot.
    pub(super) fn want_of_many(&mut self, id: Id) {
        if let Some(record) = self.table.local_mut(id)
            && !record.local(QUEUED)
        {
            record.local |= QUEUED;
            self.kernel.bulk.push_back(id);
        }
    }

    /// Its entry is to be written again, when there is time.
    pub(super) fn restamp(&mut self, id: Id) {
        if let Some(record) = self.table.local_mut(id) {
            record.local |= RESTAMP;
            if !record.local(QUEUED) {
                record.local |= QUEUED;
                self.kernel.later.push_back(id);
            }
        }
    }

    /// Hands out operations as far as the window allows.
    pub(super) fn pump_kernel(&mut self) {
        while self.kernel.on_way < KERNEL_WINDOW {
            let Some(id) = self.kernel.soon.pop_front() else { break };
            self.plan(id);
        }
        while self.kernel.on_way < BULK_WINDOW && self.kernel.soon.is_empty() {
            let Some(id) = self.kernel.bulk.pop_front() else { break };
            self.plan(id);
        }
        while self.kernel.on_way < LATER_WINDOW && self.kernel.soon.is_empty() && self.kernel.bulk.is_empty() {
            let Some(id) = self.kernel.later.pop_front() else { break };
            self.plan(id);
        }
    }

    /// Decides about one flow.
    fn plan(&mut self, id: Id) {
        let Some(record) = self.table.local_mut(id) else { return };
        record.local &= !QUEUED;
        if record.local(PENDING) {
            // The answer decides anew.
            return;
        }
        let record = *record;
        let mine = record.owner == ME;
        let present = record.local(IN_KERNEL);
        let (bit, clear) = match (record.has(DEAD), present) {
            (true, true) if !mine => (DELETING, 0),
            (true, _) => return self.free_if_idle(id),
            (false, true) if record.local(REPLACE) && !mine => (DELETING, 0),
            (false, true) if record.local(RESTAMP) => (UPDATING, RESTAMP),
            (false, true) => return,
            (false, false) if record.local(EXISTED) => (UPDATING, RESTAMP),
            // An own flow comes here only if it was claimed before its replica was created.
            (false, false) => (0, RESTAMP | REPLACE),
        };
        let Some(op) = self.op(&record, bit) else { return };
        if let Some(record) = self.table.local_mut(id) {
            record.local = (record.local | PENDING | bit) & !clear;
        }
        self.kernel.on_way += 1;
        self.kernel.urgent_on_way += usize::from(bit != UPDATING);
        self.counters.kernel_ops += 1;
        self.outbox.queue.push_back(Output::Kernel { ticket: Ticket(id), op });
    }

    fn op(&self, record: &Record, bit: u16) -> Option<Op> {
        let key = self.table.flow_key(record)?;
        if bit == DELETING {
            let id = (record.kernel_id != 0).then_some(record.kernel_id);
            return Some(Op::Delete { key: key.kernel_key()?, id });
        }
        let tag_mask = self.config.tag.mask();
        let (timeout_s, tag) = if record.owner == ME {
            (self.config.times.kernel_s[record.class() as usize], 0)
        } else {
            let lease = self.config.times.lease.as_secs().clamp(1, u64::from(u32::MAX)) as u32;
            (lease, self.config.tag.of(self.node_of(record.owner)))
        };
        // Bits that aren't ours are told once, at the create; later they are the host's own.
        let mark = if bit == UPDATING {
            Mark { value: tag, mask: tag_mask }
        } else {
            Mark { value: record.mark & !tag_mask | tag, mask: u32::MAX }
        };
        let made = replica(&key, &self.table.nat(record), &state_of(record), timeout_s, mark)?;
        Some(if bit == UPDATING { Op::Update(made) } else { Op::Create(made) })
    }

    /// What came of an operation.
    pub(super) fn on_done(&mut self, now: Instant, ticket: Ticket, result: Result<(), i32>) {
        let id = ticket.0;
        let Some(record) = self.table.local_mut(id).filter(|record| record.local(PENDING)) else { return };
        self.kernel.on_way = self.kernel.on_way.saturating_sub(1);
        let (deleting, updating) = (record.local(DELETING), record.local(UPDATING));
        record.local &= !(PENDING | DELETING | UPDATING);
        self.kernel.urgent_on_way = self.kernel.urgent_on_way.saturating_sub(usize::from(!updating));
        match result {
            Ok(()) | Err(ENOENT) if deleting => {
                record.local &= !IN_KERNEL;
                record.kernel_id = 0;
                self.want(id);
            }
            Ok(()) => {
                // An update after "exists" leaves the NAT as it was: the next audit looks.
                let clashed = record.local(CLASH);
                record.local = (record.local | IN_KERNEL) & !(EXISTED | CLASH | REFUSED);
                if !updating {
                    record.kernel_id = 0;
                }
                if clashed {
                    self.tell_clash(id, false);
                }
                let again = self
                    .table
                    .get(id)
                    .is_some_and(|record| record.has(DEAD) || record.local & (RESTAMP | REPLACE) != 0);
                if again {
                    self.want(id);
                }
            }
            Err(EEXIST) if !deleting && !updating => {
                record.local |= EXISTED;
                self.want(id);
            }
            Err(ENOENT) if updating && record.local(EXISTED) && crate::mutants::off("clash") => {
                record.local = (record.local | IN_KERNEL) & !EXISTED;
            }
            Err(ENOENT) if updating && record.local(EXISTED) => {
                // It exists, and doesn't: the other direction's tuple is another flow's. It is never remapped.
                let news = !record.local(CLASH);
                record.local = record.local & !EXISTED | CLASH;
                if news {
                    self.on_clash(now, id);
                }
                self.free_if_idle(id);
            }
            Err(ENOENT) if updating => {
                record.local &= !IN_KERNEL;
                record.kernel_id = 0;
                if record.owner != ME {
                    self.want(id);
                }
            }
            // Once more at once, then with the next audit.
            Err(EAGAIN) if !record.local(REFUSED) => {
                record.local |= REFUSED;
                self.want(id);
            }
            Err(errno) => {
                record.local = (record.local | REFUSED) & !EXISTED;
                // An ended replica that the kernel keeps goes by its lease.
                if record.has(DEAD) {
                    record.local &= !IN_KERNEL;
                }
                self.counters.kernel_refused += 1;
                self.event(now, Event::KernelRefused { errno });
                self.free_if_idle(id);
            }
        }
        self.pump_kernel();
    }

    fn on_clash(&mut self, now: Instant, id: Id) {
        self.counters.clashes += 1;
        let key = self.table.get(id).and_then(|record| self.table.flow_key(record)).and_then(|key| key.kernel_key());
        if let Some(key) = key {
            self.event(now, Event::Clash { key });
        }
        self.tell_clash(id, true);
        self.flush_all(now);
    }

    /// Tells a flow's owner whether it clashes here.
    fn tell_clash(&mut self, id: Id, clashes: bool) {
        let Some(record) = self.table.get(id).copied() else { return };
        let Some(key) = self.table.flow_key(&record) else { return };
        if let Some(peer) = Self::peer_of(record.owner).and_then(|index| self.peers.get_mut(index)) {
            peer.tx.push_control(Control::Clash { key, clashes });
        }
    }

    /// A peer says of one of our flows whether it clashes there.
    pub(super) fn on_clash_told(&mut self, index: usize, key: super::facts::FlowKey, clashes: bool) {
        if !clashes {
            self.clashes.remove(&(key, peer_id(index)));
        } else if self.clashes.len() < super::room::CLASHES_MAX
            && self.table.find(&key).is_some_and(|id| self.is_mine(id))
        {
            self.clashes.insert((key, peer_id(index)));
        }
    }

    /// Forgets the clashes of a flow.
    pub(super) fn clear_clashes(&mut self, record: &Record) {
        if self.clashes.is_empty() {
            return;
        }
        if let Some(key) = self.table.flow_key(record) {
            (0..self.peers.len()).for_each(|index| {
                self.clashes.remove(&(key, peer_id(index)));
            });
        }
    }

    /// Renews the leases of replicas: each one once in a third of it.
    pub(super) fn step_leases(&mut self, now: Instant) {
        let period = self.config.times.lease / 3;
        let tick = LEASE_TICK.min(period).max(Duration::from_millis(1));
        let passed = now.saturating_duration_since(self.kernel.ticked_at);
        if passed < tick {
            let at = self.kernel.ticked_at + tick;
            self.arm(at);
            return;
        }
        self.arm(now + tick);
        let end = self.table.end();
        // Rounded up, so that a round is over in time.
        let part = passed.as_micros().min(period.as_micros()) * u128::from(end) / period.as_micros().max(1);
        let count = (part as u32 + 1).min(end);
        self.kernel.ticked_at = now;
        for _ in 0..count {
            let id = self.kernel.cursor;
            self.kernel.cursor = if id + 1 >= end { 0 } else { id + 1 };
            self.renew(now, id);
        }
    }

    fn renew(&mut self, now: Instant, id: Id) {
        let Some(record) = self.table.get(id).copied() else { return };
        if record.owner == ME || record.has(DEAD) {
            return;
        }
        if !self.lease_holds(now, record.owner) {
            // Nobody vouches for it: it ends with its lease, here and in the kernel.
            if record.local & (PENDING | QUEUED) == 0 && self.lapsed(now, record.owner) {
                if let Some(record) = self.table.local_mut(id) {
                    record.local &= !IN_KERNEL;
                }
                self.forget(id);
            }
            return;
        }
        let alive = Self::peer_of(record.owner).and_then(|index| self.peers.get(index)).is_some_and(|peer| peer.up);
        if alive && record.local(IN_KERNEL) && !crate::mutants::off("lease") {
            self.restamp(id);
        }
    }

    /// Whether an owner's last lease is over for sure.
    fn lapsed(&self, now: Instant, owner: u8) -> bool {
        let peer = Self::peer_of(owner).and_then(|index| self.peers.get(index));
        let over = |at: Instant| now.saturating_duration_since(at) > self.config.times.lease;
        match peer {
            Some(peer) if self.is_past(owner) => peer.past_since.is_none_or(over),
            // What an earlier run left is kept for a lease although its owner wasn't heard yet: it is renewed when that one
            // comes, and its entry in the kernel ends by itself if it doesn't.
            Some(peer) => over(peer.seen_at.unwrap_or(self.started)),
            None => false,
        }
    }
}
