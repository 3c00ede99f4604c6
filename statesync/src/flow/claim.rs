//! Claims of a whole VIP, or of what belongs to a source. What is claimed changes hands at once as far as anybody can see; the
//! records follow in the background, a piece per turn, or when one is touched. A claim is one short message: each node
//! does the same to its own copy, and the digests find what differed.

use super::facts::State;
use super::peer::{ClaimNote, Control};
use super::record::{CLASH, DEAD, FRESH, IN_KERNEL, Id, REFUSED, YOUNG};
use super::table::{PLAIN, state_of, with_state};
use super::types::{Elected, Event, NodeId, SourceId, VipId};
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

/// What has one holder, by an election: when it is claimed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat {
    pub(super) elected: Elected,
    /// Our last claim, while we are elected: said again to a peer that was away.
    pub(super) claimed: Option<u32>,
    /// When it may be claimed (again), and the pause after that.
    claim_at: Instant,
    claim_pause: Duration,
}

impl Seat {
    pub(crate) fn new(now: Instant) -> Self {
        Self { elected: Elected::Unknown, claimed: None, claim_at: now, claim_pause: PAUSE_MIN }
    }

    /// Takes in a result. What it was before, if it is another.
    pub(super) fn elect(&mut self, now: Instant, elected: Elected) -> Option<Elected> {
        let before = self.elected;
        if before == elected {
            return None;
        }
        *self = Self { elected, ..Self::new(now) };
        Some(before)
    }

    fn note_claim(&mut self, now: Instant, generation: u32) {
        self.claimed = Some(generation);
        if now >= self.claim_at + PAUSE_MAX {
            self.claim_pause = PAUSE_MIN;
        }
        self.claim_at = now + self.claim_pause;
        self.claim_pause = (self.claim_pause * 2).min(PAUSE_MAX);
    }
}

/// Which flows are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    All,
    Vip(VipId),
    /// Of shared VIPs, of the source of this number, as the table counts them.
    Source(u8),
}

/// Something to be done to all records that match.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    scope: Scope,
    kind: Kind,
    cursor: Id,
    end: Id,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// They get this owner and generation; only what this node left behind, if given.
    Claim { owner: u8, generation: u32, from: Option<u8> },
    /// Our own are written into the kernel anew.
    Refresh,
    /// The leases of this owner's are renewed.
    Renew { owner: u8 },
}

impl Flows {
    pub(super) fn on_elected(&mut self, now: Instant, vip: VipId, elected: Elected) {
        let Some(vip_state) = self.vips.get_mut(usize::from(vip.0)) else { return };
        let before = vip_state.seat.elect(now, elected);
        self.after_election(now, Scope::Vip(vip), before);
    }

    pub(super) fn after_election(&mut self, now: Instant, scope: Scope, before: Option<Elected>) {
        let Some(before) = before else { return };
        self.arm(now);
        if before == Elected::Me && !crate::mutants::off("refresh-on-release") {
            self.add_job(Job { scope, kind: Kind::Refresh, cursor: 0, end: self.table.end() });
        }
    }

    /// A VIP that is ours alone has no flows of others: claims them as long as there are some.
    pub(super) fn check_claims(&mut self, now: Instant) {
        for place in 0..self.vips.len() {
            let vip = VipId(place as u8);
            let Some(seat) = self.vips.get(place).map(|vip| vip.seat) else { continue };
            let alone = seat.elected == Elected::Me && self.vip_config(vip).is_some_and(|config| !config.shared);
            if alone && self.foreign(vip) > 0 && self.may_claim(now, Scope::Vip(vip), seat) {
                let generation = self.vips.get(place).map_or(0, |vip| vip.top).saturating_add(1);
                self.claim(now, Scope::Vip(vip), None, generation);
            }
        }
        self.check_sources(now);
    }

    /// Whether it is time for a claim; if not yet, it comes back in time.
    pub(super) fn may_claim(&mut self, now: Instant, scope: Scope, seat: Seat) -> bool {
        let is_claim = |job: &Job| matches!(job.kind, Kind::Claim { owner: ME, .. }) && job.scope == scope;
        if self.jobs.iter().any(is_claim) {
            return false;
        }
        if now < seat.claim_at {
            self.arm(seat.claim_at);
            return false;
        }
        true
    }

    /// Live flows of a VIP that aren't ours.
    pub(super) fn foreign(&self, vip: VipId) -> u32 {
        (1..super::table::OWNERS as u8).map(|owner| self.table.count(vip, owner)).sum()
    }

    /// Claims all in a scope; `from`: what this peer left behind there.
    pub(super) fn claim(&mut self, now: Instant, scope: Scope, from: Option<usize>, generation: u32) {
        self.raise_tops(scope, generation, u8::MAX);
        let seat = match (scope, from) {
            (_, Some(index)) => self.peers.get_mut(index).map(|peer| &mut peer.left),
            (Scope::Vip(vip), None) => self.vips.get_mut(usize::from(vip.0)).map(|vip| &mut vip.seat),
            (Scope::Source(source), None) => self.sources.get_mut(usize::from(source).wrapping_sub(1)),
            (Scope::All, None) => None,
        };
        let Some(seat) = seat else { return };
        seat.note_claim(now, generation);
        let kind = Kind::Claim { owner: ME, generation, from: from.map(|index| (index + 1) as u8) };
        self.add_job(Job { scope, kind, cursor: 0, end: self.table.end() });
        match scope {
            Scope::Vip(vip) => {
                self.counters.vip_claims += 1;
                self.event(now, Event::Claimed { vip, generation });
            }
            Scope::Source(source) => {
                self.counters.source_claims += 1;
                // What has no source has been claimed by the holder of the first one that is known.
                let source = source.checked_sub(1).map(SourceId).or_else(|| self.heir()).unwrap_or(SourceId(0));
                self.event(now, Event::Inherited { source, generation });
            }
            Scope::All => {}
        }
        let from = from.and_then(|index| self.peers.get(index)).map(|peer| peer.node);
        let note = ClaimNote { generation, from, vip: self.name_of(scope) };
        for index in 0..self.peers.len() {
            let shares = self.shares_any(scope, index);
            let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.is_open() && shares) else { continue };
            peer.tx.push_control(Control::Claim(note));
            self.arm(now);
        }
    }

    /// By which address a scope is named in a claim.
    fn name_of(&self, scope: Scope) -> Option<IpAddr> {
        match scope {
            Scope::Vip(vip) => self.vip_config(vip)?.addresses.first().copied(),
            Scope::Source(source) => {
                let place = source.checked_sub(1).map(SourceId).or_else(|| self.heir())?;
                self.config.sources.get(usize::from(place.0))?.first().copied()
            }
            Scope::All => None,
        }
    }

    /// What a claim is of.
    fn scope_of(&self, name: Option<IpAddr>, from: Option<NodeId>) -> Option<Scope> {
        let name = name?;
        if let Some(vip) = self.addresses.get(&name) {
            return Some(Scope::Vip(*vip));
        }
        let source = self.source_of.get(&name)?.0 + 1;
        Some(Scope::Source(if from.is_some() { PLAIN } else { source }))
    }

    /// The VIPs that a scope has flows of.
    fn vips_of(&self, scope: Scope) -> impl Iterator<Item = VipId> + use<'_> {
        let vips = (0..).map(VipId).zip(&self.config.vips);
        vips.filter(move |(id, vip)| match scope {
            Scope::All => true,
            Scope::Vip(of) => *id == of,
            Scope::Source(_) => vip.shared,
        })
        .map(|(id, _)| id)
    }

    fn shares_any(&self, scope: Scope, index: usize) -> bool {
        self.vips_of(scope).any(|vip| self.shares(vip, index))
    }

    /// The highest generation that is known of what a scope has.
    pub(super) fn top_of(&self, scope: Scope) -> u32 {
        let tops = self.vips_of(scope).filter_map(|vip| self.vips.get(usize::from(vip.0)));
        tops.map(|vip| vip.top).max().unwrap_or(0)
    }

    /// Raises it, where these peers share the VIP.
    fn raise_tops(&mut self, scope: Scope, generation: u32, peers: u8) {
        let of: Vec<VipId> = self.vips_of(scope).collect();
        for vip in of {
            let shared = self.vip_config(vip).is_some_and(|vip| peers == u8::MAX || vip.peers & peers != 0);
            if let Some(state) = self.vips.get_mut(usize::from(vip.0)).filter(|_| shared) {
                state.top = state.top.max(generation);
            }
        }
    }

    /// What a peer that was away has to know at once: our claims, and that its flows here live on.
    pub(super) fn on_return(&mut self, now: Instant, index: usize) {
        let mut notes = Vec::new();
        for place in 0..self.vips.len() {
            let vip = VipId(place as u8);
            let shares = self.shares(vip, index);
            let Some(state) = self.vips.get_mut(place).filter(|_| shares) else { continue };
            state.alone = None;
            if let Seat { elected: Elected::Me, claimed: Some(generation), .. } = state.seat {
                notes.push((Scope::Vip(vip), None, generation));
            }
        }
        for (source, seat) in (PLAIN + 1..).zip(&self.sources) {
            if let Seat { elected: Elected::Me, claimed: Some(generation), .. } = *seat {
                notes.push((Scope::Source(source), None, generation));
            }
        }
        if let Some(peer) = self.peers.get_mut(index)
            && let Some(generation) = peer.left.claimed.take()
        {
            notes.push((Scope::Source(PLAIN), Some(peer.node), generation));
        }
        for (scope, from, generation) in notes {
            let note = ClaimNote { generation, from, vip: self.name_of(scope) };
            if !self.shares_any(scope, index) || note.vip.is_none() {
                continue;
            }
            if let Some(peer) = self.peers.get_mut(index) {
                peer.tx.push_control(Control::Claim(note));
            }
            self.claim_again(now, note);
        }
        let owner = self.owner_of(index);
        self.add_job(Job { scope: Scope::All, kind: Kind::Renew { owner }, cursor: 0, end: self.table.end() });
        self.arm(now);
    }

    /// A claim was lost on the way and will be said again: what came meanwhile is claimed, too.
    pub(super) fn claim_again(&mut self, now: Instant, note: ClaimNote) {
        let Some(scope) = self.scope_of(note.vip, note.from) else { return };
        let from = note.from.and_then(|node| self.peers.iter().position(|peer| peer.node == node));
        let from = from.and_then(|index| u8::try_from(index + 1).ok());
        let kind = Kind::Claim { owner: ME, generation: note.generation, from };
        let end = self.table.end();
        // Done at once: it has to be before the claim goes out.
        let job = Job { scope, kind, cursor: 0, end };
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
        let scope = self.scope_of(vip, from).filter(|scope| match scope {
            Scope::Vip(_) => vip.and_then(|address| self.shared_vip(index, address)).is_some(),
            scope => self.shares_any(*scope, index),
        });
        let Some(scope) = scope else {
            self.counters.unlisted += 1;
            return;
        };
        let from = match from {
            Some(node) if node == self.config.node => Some(0),
            Some(node) => match self.peers.iter().position(|peer| peer.node == node) {
                Some(place) => Some((place + 1) as u8),
                None => return,
            },
            None => None,
        };
        self.raise_tops(scope, generation, 1 << index);
        let kind = Kind::Claim { owner: self.owner_of(index), generation, from };
        self.add_job(Job { scope, kind, cursor: 0, end: self.table.end() });
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
        let is_in = match job.scope {
            Scope::All => true,
            Scope::Vip(of) => of == vip,
            Scope::Source(of) => self.table.source(&record) == Some(of),
        };
        if record.has(DEAD) || record.has(YOUNG) || !is_in {
            return;
        }
        match job.kind {
            Kind::Refresh if record.owner == ME && record.local(IN_KERNEL) => self.restamp(id),
            Kind::Renew { owner } if record.owner == owner && record.local(IN_KERNEL) => self.restamp(id),
            Kind::Refresh | Kind::Renew { .. } => {}
            // Those that the claimer has already are of this generation, too: a claim of one between, which comes later,
            // would take them from it there, while others hold that they are its.
            Kind::Claim { owner, generation, from: None } if record.owner == owner => {
                if record.generation < generation && !crate::mutants::off("claim-raises-own") {
                    self.table.raise(id, generation);
                }
            }
            Kind::Claim { owner, generation, from } => {
                let is_from = from.is_none_or(|node| record.owner / 2 == node && self.is_left(record.owner));
                // A claim is of what the claimer has. What is still on its way there stays ours until it is claimed again.
                let has_it = Self::peer_of(owner).and_then(|index| self.peers.get(index)).is_none_or(|peer| {
                    // In a session that is new nothing was compared: only what began while we were alone can be new to it.
                    let lonely = self.vips.get(usize::from(vip.0)).map_or(u32::MAX, |vip| vip.lonely);
                    // Whom an election names gives nothing away on such a guess: the claimer may have been away, not knowing
                    // that it lost what it claims.
                    let guessed = record.generation < lonely && !self.is_elected_for(&record);
                    let told = peer.verify.equal_at.is_some() || guessed;
                    record.owner != ME || (record.unacked & peer.bit == 0 && told)
                });
                let shares = Self::peer_of(owner).is_none_or(|index| self.shares(vip, index));
                if is_from
                    && shares
                    && (has_it || crate::mutants::off("claim-what-it-has"))
                    && record.owner != owner
                    && self.gives_way(&record, (generation, owner))
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
