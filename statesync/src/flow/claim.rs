//! Claims of a whole VIP, or of all that a node had. What is claimed changes hands at once as far as anybody can see; the
//! records follow in the background, a piece per turn, or when one is touched. A claim is one short message: each node
//! does the same to its own copy, and the digests find what differed.

use super::facts::State;
use super::peer::{ClaimNote, Control};
use super::record::{CLASH, DEAD, FRESH, IN_KERNEL, Id, REFUSED, YOUNG};
use super::table::{state_of, with_state};
use super::types::{Elected, Event, NodeId, VipId};
use super::{Flows, ME};
use crate::ct::Entry;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Records per turn.
const STEP: u32 = 4096;

/// Between two claims of a VIP: doubled each time while flows of others keep appearing, as when two nodes both think that
/// they are elected.
pub(crate) const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How far the generation of flows of a lonely node is above all that it knew: more than the claims that it may miss.
const ALONE: u32 = 1024;

/// Jobs at once; more are done on the spot.
const JOBS_MAX: usize = 64;

/// Something to be done to all records that match.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    vip: Option<VipId>,
    kind: Kind,
    cursor: Id,
    end: Id,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// They get this owner and generation; of this node's only, if given.
    Claim { owner: u8, generation: u32, from: Option<u8> },
    /// Our own are written into the kernel anew.
    Refresh,
    /// The leases of this owner's are renewed.
    Renew { owner: u8 },
}

impl Flows {
    pub(super) fn on_elected(&mut self, now: Instant, vip: VipId, elected: Elected) {
        let Some(state) = self.vips.get_mut(usize::from(vip.0)) else { return };
        let before = std::mem::replace(&mut state.elected, elected);
        if before == elected {
            return;
        }
        state.claim_at = now;
        state.claim_pause = PAUSE_MIN;
        state.claimed = None;
        self.arm(now);
        if before == Elected::Me && !crate::mutants::off("refresh-on-release") {
            self.add_job(Job { vip: Some(vip), kind: Kind::Refresh, cursor: 0, end: self.table.end() });
        }
    }

    pub(super) fn on_inherit(&mut self, now: Instant, index: usize) {
        let Some(node) = self.peers.get(index).map(|peer| peer.node) else { return };
        let generation = self.vips.iter().map(|vip| vip.top).max().unwrap_or(0).saturating_add(1);
        self.claim(now, None, Some((index, node)), generation);
    }

    /// A VIP that is ours alone has no flows of others: claims them as long as there are some.
    pub(super) fn check_claims(&mut self, now: Instant) {
        for place in 0..self.vips.len() {
            let vip = VipId(place as u8);
            let Some(state) = self.vips.get(place) else { continue };
            let alone = state.elected == Elected::Me && self.vip_config(vip).is_some_and(|config| !config.shared);
            if !alone || self.foreign(vip) == 0 || self.jobs.iter().any(|job| job.is_claim_of(vip)) {
                continue;
            }
            if now < state.claim_at {
                let at = state.claim_at;
                self.arm(at);
                continue;
            }
            let generation = state.top.saturating_add(1);
            self.claim(now, Some(vip), None, generation);
        }
    }

    /// Live flows of a VIP that aren't ours.
    pub(super) fn foreign(&self, vip: VipId) -> u32 {
        (1..super::table::OWNERS as u8).map(|owner| self.table.count(vip, owner)).sum()
    }

    fn claim(&mut self, now: Instant, vip: Option<VipId>, from: Option<(usize, NodeId)>, generation: u32) {
        for (place, state) in self.vips.iter_mut().enumerate() {
            if vip.is_none_or(|vip| usize::from(vip.0) == place) {
                state.top = state.top.max(generation);
                if vip.is_some() {
                    state.claimed = Some(generation);
                }
                if now >= state.claim_at + PAUSE_MAX {
                    state.claim_pause = PAUSE_MIN;
                }
                state.claim_at = now + state.claim_pause;
                state.claim_pause = (state.claim_pause * 2).min(PAUSE_MAX);
            }
        }
        self.counters.vip_claims += 1;
        let kind = Kind::Claim { owner: ME, generation, from: from.map(|(index, _)| (index + 1) as u8) };
        self.add_job(Job { vip, kind, cursor: 0, end: self.table.end() });
        if let Some(vip) = vip {
            self.event(now, Event::Claimed { vip, generation });
        }
        let address = vip.and_then(|vip| self.vip_config(vip)?.addresses.first().copied());
        let note = ClaimNote { generation, from: from.map(|(_, node)| node), vip: address };
        for index in 0..self.peers.len() {
            let shares = vip.and_then(|vip| self.vip_config(vip)).is_none_or(|vip| vip.peers >> index & 1 == 1);
            let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.is_open() && shares) else { continue };
            peer.tx.push_control(Control::Claim(note));
            self.arm(now);
        }
    }

    /// What a peer that was away has to know at once: our claims, and that its flows here live on.
    pub(super) fn on_return(&mut self, now: Instant, index: usize) {
        for place in 0..self.vips.len() {
            let vip = VipId(place as u8);
            if !self.shares(vip, index) {
                continue;
            }
            let address = self.vip_config(vip).and_then(|vip| vip.addresses.first().copied());
            let Some(state) = self.vips.get_mut(place) else { continue };
            state.alone = None;
            let claimed = state.claimed.filter(|_| state.elected == Elected::Me);
            if let (Some(generation), Some(peer)) = (claimed, self.peers.get_mut(index)) {
                let note = ClaimNote { generation, from: None, vip: address };
                peer.tx.push_control(Control::Claim(note));
                self.claim_again(now, note);
            }
        }
        let owner = self.owner_of(index);
        self.add_job(Job { vip: None, kind: Kind::Renew { owner }, cursor: 0, end: self.table.end() });
        self.arm(now);
    }

    /// A claim was lost on the way and will be said again: what came meanwhile is claimed, too.
    pub(super) fn claim_again(&mut self, now: Instant, note: ClaimNote) {
        let vip = note.vip.and_then(|address| self.addresses.get(&address).copied());
        let from = note.from.and_then(|node| self.peers.iter().position(|peer| peer.node == node));
        let from = from.and_then(|index| u8::try_from(index + 1).ok());
        let kind = Kind::Claim { owner: ME, generation: note.generation, from };
        let end = self.table.end();
        // Done at once: it has to be before the claim goes out.
        let job = Job { vip, kind, cursor: 0, end };
        (0..end).for_each(|id| self.apply(&job, id));
        self.arm(now);
    }

    /// A peer went: VIPs that no other peer shares are ours alone to open flows for.
    pub(super) fn on_leave(&mut self) {
        for place in 0..self.vips.len() {
            let peers = self.open_peers(VipId(place as u8));
            if let Some(state) = self.vips.get_mut(place).filter(|state| peers == 0 && state.alone.is_none()) {
                state.lonely = state.top.saturating_add(ALONE);
                state.alone = Some(state.lonely);
            }
        }
    }

    /// A peer claims.
    pub(super) fn on_claim(
        &mut self,
        now: Instant,
        index: usize,
        (generation, from, vip): (u32, Option<NodeId>, Option<IpAddr>),
    ) {
        let vip = match vip {
            Some(address) => match self.shared_vip(index, address) {
                Some(vip) => Some(vip),
                None => {
                    self.counters.unlisted += 1;
                    return;
                }
            },
            None => None,
        };
        let from = match from {
            Some(node) if node == self.config.node => Some(0),
            Some(node) => match self.peers.iter().position(|peer| peer.node == node) {
                Some(place) => Some((place + 1) as u8),
                None => return,
            },
            None => None,
        };
        // Without a VIP only what one node left behind can be claimed.
        if vip.is_none() && from.is_none() {
            return;
        }
        for place in 0..self.vips.len() {
            let of = VipId(place as u8);
            let shares = self.shares(of, index) && vip.is_none_or(|vip| vip == of);
            if let Some(state) = self.vips.get_mut(place).filter(|_| shares) {
                state.top = state.top.max(generation);
            }
        }
        let kind = Kind::Claim { owner: self.owner_of(index), generation, from };
        self.add_job(Job { vip, kind, cursor: 0, end: self.table.end() });
        self.arm(now);
    }

    fn add_job(&mut self, job: Job) {
        while self.jobs.len() >= JOBS_MAX {
            self.step_job(u32::MAX);
        }
        self.jobs.push_back(job);
    }

    /// Goes on with the oldest job.
    pub(super) fn step_jobs(&mut self, now: Instant) {
        if !self.jobs.is_empty() {
            self.step_job(STEP);
        }
        if !self.jobs.is_empty() {
            self.arm(now);
        }
    }

    fn step_job(&mut self, count: u32) {
        let Some(job) = self.jobs.front().copied() else { return };
        let end = job.cursor.saturating_add(count).min(job.end);
        for id in job.cursor..end {
            self.apply(&job, id);
        }
        if end >= job.end {
            self.jobs.pop_front();
        } else if let Some(job) = self.jobs.front_mut() {
            job.cursor = end;
        }
    }

    /// Does to one record what the jobs will do to it: before anybody looks at whose it is.
    pub(super) fn settle(&mut self, id: Id) {
        for place in 0..self.jobs.len() {
            let Some(job) = self.jobs.get(place).copied() else { return };
            if (job.cursor..job.end).contains(&id) {
                self.apply(&job, id);
            }
        }
    }

    fn apply(&mut self, job: &Job, id: Id) {
        let Some(record) = self.table.get(id).copied() else { return };
        let vip = self.table.vip(&record);
        if record.has(DEAD) || record.has(YOUNG) || job.vip.is_some_and(|of| of != vip) {
            return;
        }
        match job.kind {
            Kind::Refresh if record.owner == ME && record.local(IN_KERNEL) => self.restamp(id),
            Kind::Renew { owner } if record.owner == owner && record.local(IN_KERNEL) => self.restamp(id),
            Kind::Refresh | Kind::Renew { .. } => {}
            Kind::Claim { owner, generation, from } => {
                let is_from = from.is_none_or(|node| record.owner / 2 == node);
                // A claim is of what the claimer has. What is still on its way there stays ours until it is claimed again.
                let has_it = Self::peer_of(owner).and_then(|index| self.peers.get(index)).is_none_or(|peer| {
                    // In a session that is new nothing was compared: only what began while we were alone can be new to it.
                    let lonely = self.vips.get(usize::from(vip.0)).map_or(u32::MAX, |vip| vip.lonely);
                    let told = peer.verify.equal_at.is_some() || record.generation < lonely;
                    record.owner != ME || (record.unacked & peer.bit == 0 && told)
                });
                let shares = Self::peer_of(owner).is_none_or(|index| self.shares(vip, index));
                if is_from
                    && shares
                    && (has_it || crate::mutants::off("claim-what-it-has"))
                    && record.owner != owner
                    && self.gives_way(vip, (record.generation, record.owner), (generation, owner))
                {
                    self.hand_over(id, owner, generation);
                }
            }
        }
    }

    pub(super) fn shares(&self, vip: VipId, index: usize) -> bool {
        self.vip_config(vip).is_some_and(|vip| index < super::PEERS_MAX && vip.peers >> index & 1 == 1)
    }

    /// Packets of a flow that another node owns come through here: it is ours now.
    pub(super) fn claim_flow(&mut self, now: Instant, id: Id, entry: &Entry) {
        if crate::mutants::off("claim-by-packets") {
            return;
        }
        let Some(record) = self.table.get(id).copied() else { return };
        let vip = self.table.vip(&record);
        let state = State::of(entry, Some(state_of(&record)));
        let changed = with_state(record, &state, self.config.tag.mask());
        let kernel_id = entry.id.unwrap_or(record.kernel_id);
        self.table.change(id, |record| {
            *record = changed;
            record.owner = ME;
            record.generation = record.generation.saturating_add(1);
            record.kernel_id = kernel_id;
            record.flags &= !(FRESH | DEAD);
            record.local = record.local & !(CLASH | REFUSED) | IN_KERNEL;
        });
        self.counters.claims += 1;
        self.raise_top(vip, id);
        self.restamp(id);
        self.touch(now, id, true);
    }

    /// Gives a record another owner. Its entry in the kernel gets a lease, or loses it.
    pub(super) fn hand_over(&mut self, id: Id, owner: u8, generation: u32) {
        let Some(record) = self.table.get(id).copied() else { return };
        if record.owner == ME {
            self.acknowledge_all(&record);
            self.clear_clashes(&record);
        }
        self.table.change(id, |record| {
            (record.owner, record.generation) = (owner, generation);
            (record.unsent, record.unacked) = (0, 0);
        });
        if record.local(IN_KERNEL) {
            self.restamp(id);
        } else {
            self.want(id);
        }
    }
}

impl Job {
    fn is_claim_of(&self, vip: VipId) -> bool {
        matches!(self.kind, Kind::Claim { owner: ME, .. }) && self.vip.is_none_or(|of| of == vip)
    }
}
