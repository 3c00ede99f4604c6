//! Checks that a peer holds exactly our flows: digests of shards, exact although flows change all the time.
//!
//! Batches are applied in their order, and a shard takes part only while all its flows are acknowledged. So when the
//! peer applies the batch with a shard's digest, its copy is what ours was when the digest was made, or it differs.
//!
//! A *round* asks for all shards once, by groups of 64 where a whole group is settled; what doesn't answer or isn't
//! settled is asked again after [`TICK`]. Shards that differ go to the bulk lane, which also is how a peer gets the
//! first snapshot, and how that resumes: what was equal isn't sent again. When all shards were found equal, the peer is
//! in sync as of the round's begin, and is told so.

use super::Flows;
use super::index::SHARDS;
use super::peer::{Control, ShardSet};
use super::types::Why;
use std::time::{Duration, Instant};

/// Between two attempts within a round.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Digests of single groups that go out in one attempt.
const GROUPS_PER_TICK: u32 = 16;

/// The group number that stands for sums of groups.
pub(crate) const ALL_GROUPS: u8 = 255;

/// Longest pause before a shard that still differs is sent again.
const AGAIN_MAX: Duration = Duration::from_secs(5);

/// While the peer's table is full, this is between two rounds.
const FULL_PAUSE: Duration = Duration::from_secs(30);

const GROUPS: u8 = (SHARDS / 64) as u8;

/// The state of the check of one peer.
#[derive(Debug)]
pub(crate) struct Verify {
    pub(crate) round: u8,
    started: Instant,
    pub(crate) next: Instant,
    /// Shards found equal in this round.
    equal: ShardSet,
    /// Groups whose sums differed: their shards are asked for one by one.
    suspect: u64,
    /// Group at which the next attempt begins.
    turn: u8,
    /// Begin of the last round in which all were equal, in this session.
    pub(crate) equal_at: Option<Instant>,
    /// Something was found to differ in this round.
    pub(crate) differs: bool,
    /// Shards sent in this round. One that still differs is sent again only at `again_at`, at growing pauses: a peer that
    /// refuses a flow would be sent its shard for ever.
    sent: ShardSet,
    again_at: Instant,
    pause: Duration,
    /// The answers to the present attempt may have them sent again.
    may_repeat: bool,
}

impl Verify {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            round: 0,
            started: now,
            next: now,
            equal: ShardSet::default(),
            suspect: 0,
            turn: 0,
            equal_at: None,
            differs: false,
            sent: ShardSet::default(),
            again_at: now,
            pause: TICK,
            may_repeat: false,
        }
    }

    /// A new session: nothing is known.
    pub(crate) fn restart(&mut self, now: Instant) {
        *self = Self { round: self.round.wrapping_add(1), ..Self::new(now) };
    }

    fn new_round(&mut self, now: Instant, next: Instant) {
        *self =
            Self { round: self.round.wrapping_add(1), started: now, next, equal_at: self.equal_at, ..Self::new(now) };
    }
}

/// Whose flows a sum is over.
#[derive(Debug, Clone, Copy)]
enum Of {
    /// Ours, that the peer of this bit is to have.
    Ours(u8),
    /// That peer's.
    Peers(u8),
}

impl Flows {
    /// Asks what is due. Returns when to come again.
    pub(super) fn verify(&mut self, now: Instant, index: usize) -> Option<Instant> {
        // While claims are being carried out or the kernel is being read, our own table says little.
        if self.reading() || !self.jobs.is_empty() {
            return None;
        }
        let peer = self.peers.get_mut(index)?;
        if !peer.is_open() {
            return None;
        }
        if now < peer.verify.next {
            return Some(peer.verify.next);
        }
        let asked = self.ask(now, index);
        let verify = &mut self.peers.get_mut(index)?.verify;
        verify.next = now + TICK;
        if asked {
            self.arm(now);
        }
        self.peers.get(index).map(|peer| peer.verify.next)
    }

    /// Puts the digests of one attempt on the way. `true`: there were some.
    fn ask(&mut self, now: Instant, index: usize) -> bool {
        let Some(peer) = self.peers.get_mut(index) else { return false };
        let verify = &mut peer.verify;
        verify.may_repeat = verify.sent.len() > 0 && now >= verify.again_at;
        if verify.may_repeat {
            verify.again_at = now + verify.pause;
            verify.pause = (verify.pause * 2).min(AGAIN_MAX);
        }
        let bit = peer.bit;
        let (round, mut mask, mut sums, mut single) = (peer.verify.round, 0u64, Vec::new(), 0);
        let first = peer.verify.turn;
        for step in 0..GROUPS {
            let group = (first + step) % GROUPS;
            let shards = u16::from(group) * 64..u16::from(group) * 64 + 64;
            let unequal = !peer.verify.equal.group(group);
            if unequal == 0 {
                continue;
            }
            let settled = shards.clone().filter(|shard| peer.tx.unsettled[usize::from(*shard)] == 0);
            let settled = settled.fold(0u64, |bits, shard| bits | 1 << (shard % 64)) & !peer.tx.bulk.group(group);
            if settled == u64::MAX && peer.verify.suspect >> group & 1 == 0 {
                mask |= 1 << group;
                continue;
            }
            let ask = settled & unequal;
            if ask == 0 || single >= GROUPS_PER_TICK {
                continue;
            }
            single += 1;
            peer.verify.turn = (group + 1) % GROUPS;
            let of_group: Vec<u64> = shards
                .filter(|shard| ask >> (shard % 64) & 1 == 1)
                .map(|shard| self.table.own_digest(peer.bit, shard))
                .collect();
            peer.tx.push_control(Control::Digests { round, group, mask: ask, sums: of_group });
        }
        for group in (0..GROUPS).filter(|group| mask >> group & 1 == 1) {
            sums.push(self.group_sum(Of::Ours(bit), group));
        }
        let any = mask != 0 || single > 0;
        if mask != 0
            && let Some(peer) = self.peers.get_mut(index)
        {
            peer.tx.push_control(Control::Digests { round, group: ALL_GROUPS, mask, sums });
        }
        any
    }

    fn group_sum(&self, of: Of, group: u8) -> u64 {
        let first = u16::from(group) * 64;
        // Not a plain sum: two shards that swapped their sums would go unseen.
        (first..first + 64).fold(0, |sum: u64, shard| {
            sum.rotate_left(1).wrapping_add(match of {
                Of::Ours(peer) => self.table.own_digest(peer, shard),
                Of::Peers(owner) => self.table.digest(owner, shard),
            })
        })
    }

    /// The peer asks whether we hold what it has.
    pub(super) fn on_digests(
        &mut self,
        now: Instant,
        index: usize,
        (check, round, group, mask): (u32, u8, u8, u64),
        sums: impl Iterator<Item = u64>,
    ) {
        // Replicas that an earlier run left would be missing: they would all be sent again.
        let early = self.knows_nothing() && !crate::mutants::off("read-before-answer");
        if check != self.key_check() || !self.jobs.is_empty() || early {
            return;
        }
        let owner = self.owner_of(index);
        let mut equal = 0u64;
        for (bit, sum) in (0..64u8).filter(|bit| mask >> bit & 1 == 1).zip(sums) {
            let ours = match group {
                ALL_GROUPS => self.group_sum(Of::Peers(owner), bit),
                group => self.table.digest(owner, (u16::from(group) * 64).saturating_add(u16::from(bit))),
            };
            equal |= u64::from(ours == sum) << bit;
        }
        let full = self.is_full();
        if let Some(peer) = self.peers.get_mut(index) {
            peer.tx.push_control(Control::Answer { round, group, compared: mask, equal, full });
        }
        self.arm(now);
    }

    /// The peer's answer.
    pub(super) fn on_answer(
        &mut self,
        now: Instant,
        index: usize,
        (round, group, compared, equal): (u8, u8, u64, u64),
        full: bool,
    ) {
        let interval = self.config.times.verify;
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.full = full;
        if round != peer.verify.round || (group != ALL_GROUPS && group >= GROUPS) {
            return;
        }
        let mut news = false;
        for bit in (0..64u8).filter(|bit| compared >> bit & 1 == 1) {
            let same = equal >> bit & 1 == 1;
            if group == ALL_GROUPS {
                let first = u16::from(bit) * 64;
                if same {
                    (first..first + 64).for_each(|shard| peer.verify.equal.set(shard));
                } else {
                    peer.verify.suspect |= 1 << bit;
                    news = true;
                }
                continue;
            }
            let shard = u16::from(group) * 64 + u16::from(bit);
            if same {
                peer.verify.equal.set(shard);
            } else if peer.verify.sent.has(shard) || (full && peer.verify.differs) {
                if peer.verify.may_repeat {
                    peer.tx.bulk.set(shard);
                }
            } else {
                peer.verify.sent.set(shard);
                peer.tx.bulk.set(shard);
                news = true;
            }
            peer.verify.differs |= !same;
        }
        // What differs is asked for more closely without a pause.
        if news {
            peer.verify.next = now;
        }
        if peer.verify.equal.len() == SHARDS {
            let began = peer.verify.started;
            peer.verify.equal_at = Some(began);
            peer.verify.new_round(now + interval, now + interval);
            peer.tx.push_control(Control::InSync { at: began });
        } else if full && peer.verify.differs && group != ALL_GROUPS {
            // It can't take them all: asking and sending at full speed would help nobody.
            peer.verify.next = now + FULL_PAUSE.min(interval * 10);
        }
        self.arm(now);
    }

    /// Why the peer doesn't hold all our flows for sure.
    pub(super) fn outbound_why(&self, now: Instant, index: usize) -> Option<Why> {
        let peer = self.peers.get(index)?;
        if !peer.is_open() {
            return Some(Why::NoSession);
        }
        if self.reading() {
            return Some(Why::Reading);
        }
        match peer.verify.equal_at {
            None if peer.full => Some(Why::PeerFull),
            None if peer.verify.differs => Some(Why::Differs),
            None => Some(Why::NotCompared),
            Some(at) if now.saturating_duration_since(at) > self.stale_after() => {
                Some(if peer.full { Why::PeerFull } else { Why::Stale })
            }
            Some(_) => None,
        }
    }

    /// Why we don't hold all the peer's flows for sure.
    pub(super) fn inbound_why(&self, now: Instant, index: usize) -> Option<Why> {
        let peer = self.peers.get(index)?;
        if !peer.is_open() {
            return Some(Why::NoSession);
        }
        match peer.rx.equal_at {
            None => Some(Why::NotCompared),
            Some(at) if now.saturating_duration_since(at) > self.stale_after() => Some(Why::Stale),
            Some(_) => None,
        }
    }

    /// After this time a comparison says nothing any more.
    fn stale_after(&self) -> Duration {
        self.config.times.verify * 5
    }
}
