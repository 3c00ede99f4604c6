//! How well this node would serve a VIP, and what a holder does that serves badly.

use super::judge::{asks, asks_balancer, leaves, recovers};
use super::{Standing, Verdict};
use crate::config::{BalancerId, Check, CheckId, Config, VipId};
use crate::decide::{Judge, LEAST, Leave, Participation};
use crate::io::{BalancerState, Failure};
use crate::mutants;
use crate::plane::{Judged, Sign};
use crate::reasons::Reason;
use crate::world::{CheckState, World};
use holdfast_statesync::channel::PeerId;
use holdfast_statesync::message::Fitness;
use holdfast_vrrp::{Priority, State};
use std::time::{Duration, Instant};

/// How long backends must all be down until a peer that still has some counts: its balancer may find out later than
/// ours, by an interval of its own checks, and then a VIP would move for nothing.
const POOL_MARGIN: Duration = Duration::from_secs(3);
/// Within this time a peer's word on what it found has come.
const TOLD: Duration = Duration::from_millis(200);

/// How well a VIP is served where this is the verdict on its balancer.
pub(crate) const fn of(verdict: Verdict) -> Standing {
    match verdict {
        Verdict::Dead | Verdict::Hung | Verdict::Failing => Standing::Bad,
        Verdict::Sick | Verdict::PoolEmpty | Verdict::Leaving => Standing::Poor,
        Verdict::Saturated => Standing::Full,
        Verdict::Unsupervised | Verdict::BadReload => Standing::Degraded,
        Verdict::Unknown | Verdict::Serving | Verdict::Reloading => Standing::Good,
    }
}

/// The priority of a node that doesn't own the unit, so that all who stand better are before it, in the same order
/// among themselves as far as there is room.
pub(crate) fn behind(standing: Standing, priority: u16) -> u16 {
    let behind = match standing {
        Standing::Good => priority,
        Standing::Degraded => LEAST + 1 + priority / 16,
        Standing::Full | Standing::Poor | Standing::Bad => LEAST,
    };
    if mutants::off("stands-behind") { priority } else { behind.min(priority) }
}

/// What a node can do for a VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Health {
    /// What is said to all.
    pub fitness: Fitness,
    /// The same more exactly.
    pub standing: Standing,
    /// One that is `Poor`: from then on a peer that says that it does better is believed.
    settles: Option<Instant>,
}

impl Health {
    /// What the peers are told beside this fitness, which may be worse than our own.
    pub(crate) fn said(&self, fitness: Fitness) -> Standing {
        match fitness {
            Fitness::Fit => self.standing,
            Fitness::Unfit if self.standing == Standing::Poor => Standing::Poor,
            _ => Standing::Bad,
        }
    }

    /// It serves badly, and the peers have had the time to see the same at home and to say so.
    pub(crate) fn settled(&self, now: Instant) -> bool {
        self.settles.is_none_or(|at| at <= now) || mutants::off("poor-margin")
    }
}

/// When the decision on a VIP changes by itself, as far as its balancers go.
pub(crate) fn turning_points(config: &Config, world: &World, id: VipId) -> impl Iterator<Item = Instant> {
    let vip = config.vips.get(usize::from(id.0));
    let balancers = vip.map_or(&[][..], |vip| &vip.balancers);
    let empty = balancers.iter().filter_map(|id| pool_settles(&world.balancers.get(usize::from(id.0))?.judged));
    let checks = vip.map_or(&[][..], |vip| &vip.checks);
    let failing = checks.iter().filter_map(|id| check_settles(config, world, *id));
    let held = world.vips.get(usize::from(id.0)).and_then(|view| view.hold_down.until());
    let recovery = recovery(config, world, id);
    let recovered = world.peers.iter().filter_map(move |peer| Some(*peer.recovered.get(&id)? + recovery));
    empty.chain(failing).chain(held).chain(recovered).chain(world.unread_until)
}

/// Within this time after a peer is well again this node is, too, if what ailed both was the same: its check, or its
/// balancer's, may be the last to find out.
fn recovery(config: &Config, world: &World, id: VipId) -> Duration {
    let Some(vip) = config.vips.get(usize::from(id.0)) else { return Duration::ZERO };
    let failed = |id: &CheckId| world.checks.get(usize::from(id.0)).is_some_and(|c| c.state == CheckState::Failed);
    let mut passes = Duration::ZERO;
    for named in vip.checks.iter().filter(|id| failed(id)) {
        leaves(config, *named, &mut |id, check| {
            if failed(&id) {
                passes = passes.max(recovers(check) + TOLD);
            }
        });
    }
    let empty = vip.balancers.iter().filter_map(|id| pool_settles(&world.balancers.get(usize::from(id.0))?.judged));
    let pool = if empty.count() > 0 { POOL_MARGIN } else { Duration::ZERO };
    passes.max(pool)
}

fn pool_settles(judged: &Judged) -> Option<Instant> {
    judged.since(|sign| matches!(sign, Sign::NoBackend(_))).map(|since| since + POOL_MARGIN)
}

/// A peer that asks the same in the same way has found the same by then, if it is there to be found. Of a group: all
/// that makes it fail.
fn check_settles(config: &Config, world: &World, id: CheckId) -> Option<Instant> {
    let mut settles = None;
    leaves(config, id, &mut |id, check| {
        let failing = world.failing.get(usize::from(id.0)).and_then(|failing| failing.as_ref());
        settles = settles.max(failing.map(|failing| failing.since + check.interval + check.timeout + TOLD));
    });
    settles
}

/// Why a check that fails doesn't mean that a VIP can't be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Excuse {
    /// What it comes to, the verdict on the balancer has told already.
    Told,
    /// It is served badly.
    Poor,
}

/// What is found out about one VIP, bit by bit.
struct Finding {
    unfit: bool,
    unknown: bool,
    standing: Standing,
    settles: Option<Instant>,
}

impl Finding {
    fn at_most(&mut self, standing: Standing) {
        self.standing = self.standing.min(standing);
    }

    /// Served badly; with several causes the first that is settled counts.
    fn poor(&mut self, settles: Instant) {
        self.at_most(Standing::Poor);
        self.settles = Some(self.settles.map_or(settles, |at| at.min(settles)));
    }
}

impl Judge<'_> {
    /// What this node can do by itself, whatever operators want.
    pub(crate) fn health(&self, reasons: &mut Vec<Reason>) -> Health {
        let view = self.view();
        let holder = view.state == State::Active || self.vip.anycast() && (view.bgp.held || view.resume.is_some());
        let mut found = Finding { unfit: false, unknown: false, standing: Standing::Good, settles: None };
        self.host(holder, &mut found, reasons);
        for id in &self.vip.balancers {
            self.balancer(*id, &mut found, reasons);
        }
        for id in &self.vip.checks {
            if let Some(check) = self.config.checks.get(usize::from(id.0)) {
                self.check(*id, check, holder, &mut found, reasons);
            }
        }
        self.room(holder, &mut found, reasons);
        let fitness = if found.unfit {
            Fitness::Unfit
        } else if found.unknown && view.assumed_fit_until.is_some_and(|until| self.now < until) {
            reasons.insert(0, Reason::AssumedFit);
            Fitness::Fit
        } else if found.unknown {
            Fitness::Unknown
        } else if found.standing == Standing::Poor {
            Fitness::Unfit
        } else {
            if found.standing == Standing::Good {
                reasons.push(Reason::Fit);
            }
            Fitness::Fit
        };
        let standing = match fitness {
            Fitness::Fit => found.standing.max(Standing::Full),
            _ if found.unfit || found.unknown => Standing::Bad,
            _ => found.standing,
        };
        Health { fitness, standing, settles: found.settles.max(found.settles.and(self.world.unread_until)) }
    }

    /// What a node needs beside a balancer.
    fn host(&self, holder: bool, found: &mut Finding, reasons: &mut Vec<Reason>) {
        let view = self.view();
        if let Some(fault) = view.fault.filter(|f| self.now < f.until) {
            found.unfit = true;
            reasons.push(Reason::Fault(fault.kind));
        }
        if let Some(since) = view.send_failing_since.filter(|_| holder) {
            let age = self.now.saturating_duration_since(since);
            // The advert that is due at that very moment may be the one that goes out.
            if age > self.vip.vrrp.interval.duration() * 2 {
                found.unfit = true;
                reasons.push(Reason::SendFailing(age));
            }
        }
        // An address of the unit on another interface can't be had while that is down: then none of the unit is.
        for address in &self.vip.addresses {
            let own = self.vip.legs.iter().any(|leg| leg.interface == address.interface);
            let reason = match self.world.link(&address.interface) {
                _ if own => continue,
                Some(link) if link.up => continue,
                Some(_) => Reason::LinkDown(address.interface.as_str().to_owned()),
                None => Reason::LinkMissing(address.interface.as_str().to_owned()),
            };
            found.unfit = true;
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        for (at, track) in self.vip.tracks.iter().enumerate().filter(|(_, track)| track.weight.is_none()) {
            if self.track_fails(at, track) {
                found.unfit = true;
                reasons.push(Reason::TrackFails(self.track_name(track)));
            }
        }
    }

    fn balancer(&self, id: BalancerId, found: &mut Finding, reasons: &mut Vec<Reason>) {
        let name = self.config.balancers.get(usize::from(id.0)).map(|b| b.name.as_str().to_owned());
        let balancer = name.unwrap_or_default();
        let Some(view) = self.world.balancers.get(usize::from(id.0)) else {
            found.unknown = true;
            return;
        };
        match &view.state {
            BalancerState::Alive { .. } => {}
            BalancerState::Gone { why, .. } => {
                found.unfit = true;
                reasons.push(Reason::BalancerGone { balancer, why: why.clone() });
                return;
            }
            BalancerState::Unknown { why } => {
                found.unknown = true;
                reasons.push(Reason::BalancerUnknown { balancer, why: why.clone() });
                return;
            }
        }
        let verdict = view.judged.verdict;
        let asked = |id: &CheckId| asks(self.config, *id);
        let fails = |id: &CheckId| {
            asked(id) && self.world.checks.get(usize::from(id.0)).is_some_and(|c| c.state == CheckState::Failed)
        };
        match verdict {
            // Where checks ask it, each VIP goes by its own.
            Verdict::Hung if !self.vip.checks.iter().any(asked) => found.unfit = true,
            Verdict::Hung | Verdict::Sick if self.vip.checks.iter().any(fails) => {}
            Verdict::Hung | Verdict::Sick => return,
            Verdict::PoolEmpty => found.poor(pool_settles(&view.judged).unwrap_or(self.now)),
            Verdict::Leaving => found.poor(view.judged.since),
            Verdict::Saturated | Verdict::Unsupervised | Verdict::BadReload => found.at_most(of(verdict)),
            Verdict::Unknown | Verdict::Serving | Verdict::Dead | Verdict::Failing | Verdict::Reloading => return,
        }
        reasons.push(Reason::Balancer { balancer, verdict, why: view.judged.why() });
    }

    fn check(&self, id: CheckId, check: &Check, holder: bool, found: &mut Finding, reasons: &mut Vec<Reason>) {
        let Some(seen) = self.world.checks.get(usize::from(id.0)) else { return };
        let name = || check.name.as_str().to_owned();
        match seen.state {
            // Holder bias: the one who holds it leaves at `fall`; a backup is out at the first failure.
            CheckState::Passed if holder || seen.clean || check.shared => {}
            CheckState::Passed => {
                found.unfit = true;
                reasons.push(Reason::CheckUnclean(name()));
            }
            CheckState::Failed if check.shared => reasons.push(Reason::SharedCheckFailed(name())),
            CheckState::Failed => {
                match self.excuse(id, check, holder) {
                    None => found.unfit = true,
                    Some(Excuse::Poor) => {
                        found.poor(check_settles(self.config, self.world, id).unwrap_or(self.now));
                    }
                    Some(Excuse::Told) => {}
                }
                reasons.push(Reason::CheckFailed(name()));
            }
            CheckState::Unknown if check.shared => {}
            CheckState::Unknown => {
                found.unknown = true;
                reasons.push(Reason::CheckUnknown(name()));
            }
        }
    }

    /// A check fails because of something that is less than not being able to serve. `None`: nothing says so. A group
    /// is excused when each member is that fails.
    fn excuse(&self, id: CheckId, check: &Check, holder: bool) -> Option<Excuse> {
        if check.shared {
            return None;
        }
        let (mut all, mut excuse) = (true, None);
        leaves(self.config, id, &mut |id, check| {
            if self.world.checks.get(usize::from(id.0)).is_none_or(|view| view.state != CheckState::Failed) {
                return;
            }
            let own = self.excuse_alone(id, check, holder);
            all &= own.is_some();
            excuse = excuse.max(own);
        });
        excuse.filter(|_| all)
    }

    fn excuse_alone(&self, id: CheckId, check: &Check, holder: bool) -> Option<Excuse> {
        if !asks_balancer(check) {
            return None;
        }
        let how = self.world.failing.get(usize::from(id.0))?.as_ref()?.how;
        let verdicts = self.vip.balancers.iter().filter_map(|id| self.world.balancers.get(usize::from(id.0)));
        let excuse = |verdict: Verdict| match (verdict, how) {
            // A full one is asked in vain and serves all the same. Nobody has that excuse who doesn't listen any more.
            (Verdict::Saturated, Failure::Silent | Failure::Other) if holder => {
                (!mutants::off("saturated-stays")).then_some(Excuse::Told)
            }
            // One that holds nothing can't show that it serves: better than one that doesn't, and no more.
            (Verdict::Saturated, Failure::Silent | Failure::Other) => {
                (!mutants::off("full-beats-dead")).then_some(Excuse::Poor)
            }
            (Verdict::Sick, Failure::Answered) => (!mutants::off("sick-compares")).then_some(Excuse::Poor),
            (Verdict::PoolEmpty, Failure::Answered) => (!mutants::off("sick-compares")).then_some(Excuse::Told),
            _ => None,
        };
        verdicts.filter_map(|view| excuse(view.judged.verdict)).max()
    }

    /// Whether there is room for more here, and trust that it stays.
    fn room(&self, holder: bool, found: &mut Finding, reasons: &mut Vec<Reason>) {
        let conntrack = &self.world.conntrack;
        if conntrack.refuses_more() && !mutants::off("conntrack-defers") {
            found.at_most(Standing::Full);
            reasons.push(Reason::ConntrackFull(conntrack.why.clone()));
        }
        if !holder
            && !self.vip.anycast()
            && self.view().resume.is_none()
            && let Some(reason) = self.not_in_sync()
        {
            found.at_most(Standing::Degraded);
            reasons.push(reason);
        }
        let until = self.view().hold_down.held_until(self.now).filter(|_| !holder && !self.vip.anycast());
        if let Some(until) = until {
            found.at_most(Standing::Full);
            reasons.push(Reason::HeldDown(until - self.now));
        }
    }

    /// Active, and answers badly: leaves only for one that does better, and not before that one can have seen the same
    /// at home. Invariant 3 of DESIGN section 4 in its strictest form: who isn't heard of isn't better.
    pub(crate) fn poor_holder(
        &self,
        health: &Health,
        fail_open: &mut bool,
        reasons: &mut Vec<Reason>,
    ) -> (Participation, Option<Leave>) {
        let stays = Participation::Run { priority: self.settled_priority(Standing::Good, reasons) };
        let mut better = self.world.peers_at_least(self.id, Standing::Degraded, self.now);
        better.retain(|_| !mutants::off("poor-leaves"));
        if !health.settled(self.now) {
            let left = health.settles.map_or(Duration::ZERO, |at| at.saturating_duration_since(self.now));
            reasons.push(Reason::Compares(left));
            return (stays, None);
        }
        // What ailed all may be over, and this node the last to find out: then it would move for nothing.
        let recovery = recovery(self.config, self.world, self.id);
        let left = |peer: &PeerId| {
            let at = self.world.peers.get(usize::from(peer.0))?.recovered.get(&self.id)?;
            (*at + recovery).checked_duration_since(self.now).filter(|left| !left.is_zero())
        };
        let best = better.iter().find(|peer| left(peer).is_none()).copied();
        if let (None, Some(left)) = (best, better.iter().filter_map(left).min()) {
            reasons.push(Reason::Compares(left));
            return (stays, None);
        }
        // Better ones that the channel doesn't reach preempt it; those that are full don't.
        let priority = Priority::from_wire(u8::try_from(LEAST).unwrap_or(u8::MAX)).min(self.vip.vrrp.priority);
        let behind = Participation::Run { priority };
        if let Some(peer) = best {
            let leave = self.hand_over(peer, reasons);
            // Who doesn't go now waits for nothing: it would begin to wait again and again.
            let waits = leave.is_some() && self.flushes(&[peer], reasons);
            return if waits { (stays, None) } else { (behind, leave) };
        }
        *fail_open = true;
        self.nobody_better(reasons);
        (behind, None)
    }

    /// Why it is kept although it is served badly here.
    pub(crate) fn nobody_better(&self, reasons: &mut Vec<Reason>) {
        if !self.world.all_peers_known(self.id, self.now) {
            reasons.push(Reason::PeersUnknown);
            return;
        }
        reasons.push(Reason::NobodyBetter);
        // A balancer that died here says nothing of the others.
        if !reasons.iter().any(Reason::is_dead) && self.world.all_peers_fail(self.id, self.now) {
            reasons.insert(0, Reason::Everywhere);
        }
    }
}
