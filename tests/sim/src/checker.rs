//! What must always hold (DESIGN section 4), checked after every event of a run.

use crate::cluster::Cluster;
use crate::net::Wire;
use crate::plane::{FOUND_OUT, Plane};
use holdfast_node::config::{LastNode, Partition};
use holdfast_node::decide::Participation;
use holdfast_node::plane::Standing;
use holdfast_node::world::Withheld;
use holdfast_statesync::message::Fitness;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Invariant 1: nodes that hear each other own a VIP together no longer than one interval and this.
const DUAL_SLACK: Duration = Duration::from_millis(20);
/// Invariant 7: what a crash leaves behind is gone after this.
const LEFTOVER_MAX: Duration = Duration::from_secs(3);
/// Invariant 2: how long an unfit node may hold on beside a fit, reachable one, beside two down times. Detection by
/// checks, one try of a hand-over and its retry are within it.
const UNFIT_MAX: Duration = Duration::from_millis(2500);
/// One that serves badly gives its peers the time to see the same at home.
const POOR_MAX: Duration = Duration::from_millis(3000 + 2500);
/// What only looks can find out is found at the next one.
pub(crate) const UNSEEN: Duration = Duration::from_millis(700);
/// Until a node that was started or mended knows what it can: sockets, and the checks' `rise`.
pub const VERDICTS: Duration = Duration::from_millis(1000);

/// The running observations behind the invariants.
#[derive(Debug, Default)]
pub struct Checker {
    dual_since: BTreeMap<(usize, usize), Instant>,
    crashed_since: BTreeMap<usize, Instant>,
    unfit_since: BTreeMap<usize, Instant>,
    eligible_since: BTreeMap<usize, Instant>,
    answers_since: BTreeMap<usize, Instant>,
    /// Longest time two hosts that hear each other owned the VIP.
    pub longest_dual: Duration,
    /// Time without any owner, summed from the first owner on.
    pub unowned: Duration,
    unowned_since: Option<Instant>,
    ever_owned: bool,
}

impl Checker {
    /// Nothing seen yet.
    pub fn new(_origin: Instant) -> Self {
        Self::default()
    }

    /// Looks at the cluster after an event. `Err` says which invariant broke and how.
    pub fn look(&mut self, cluster: &mut Cluster) -> Result<(), String> {
        let now = cluster.now();
        for i in 0..cluster.hosts.len() {
            let able = cluster.eligible(i) && cluster.hosts[i].responsive(now);
            let claims = cluster.may_claim(i) || cluster.claims_still(i);
            if able || claims && cluster.hosts[i].responsive(now) {
                cluster.hosts[i].able_at = Some(now);
            }
            let said =
                cluster.hosts[i].node.as_ref().and_then(|node| node.plan().vips.first()).map(|plan| plan.standing);
            if said >= Some(Standing::Degraded) {
                cluster.hosts[i].said_well_at = Some(now);
            }
            if said >= Some(Standing::Poor) {
                cluster.hosts[i].said_poor_at = Some(now);
            }
            let answers = cluster.may_serve(i, Standing::Poor) && cluster.hosts[i].responsive(now);
            for (holds, since) in [(able, &mut self.eligible_since), (answers, &mut self.answers_since)] {
                if holds {
                    since.entry(i).or_insert(now);
                } else {
                    since.remove(&i);
                }
            }
        }
        let owns: Vec<bool> = cluster.hosts.iter().map(crate::host::Host::owns).collect();
        self.owners(cluster, &owns, now)?;
        self.duals(cluster, &owns, now)?;
        self.leftovers(cluster, now)?;
        self.verdicts(cluster)?;
        self.unfit(cluster, &owns, now)
    }

    /// Somebody owns the VIP unless nobody can.
    fn owners(&mut self, cluster: &Cluster, owns: &[bool], now: Instant) -> Result<(), String> {
        if owns.iter().any(|owns| *owns) {
            self.ever_owned = true;
            if let Some(since) = self.unowned_since.take() {
                self.unowned += now - since;
            }
            return Ok(());
        }
        if self.ever_owned {
            self.unowned_since.get_or_insert(now);
        }
        let options = cluster.options();
        if options.partition != Partition::Both {
            return Ok(());
        }
        let limit = options.down_time() * 2 + options.startup_delay + VERDICTS;
        let calm = |i: &usize| cluster.calm_since(*i).is_some_and(|since| now - since > limit);
        let waited = self.unowned_since.is_some_and(|since| now - since > limit);
        let idle = self.eligible_since.iter().find(|(i, since)| now - **since > limit && calm(i));
        match idle {
            Some((i, since)) if waited => Err(format!(
                "liveness: {} can serve since {:?} and nobody owns the VIP (limit {limit:?})",
                cluster.hosts[*i].name,
                now - *since
            )),
            _ => Ok(()),
        }
    }

    fn duals(&mut self, cluster: &Cluster, owns: &[bool], now: Instant) -> Result<(), String> {
        for a in 0..owns.len() {
            for b in a + 1..owns.len() {
                if !(owns[a] && owns[b]) {
                    self.dual_since.remove(&(a, b));
                    continue;
                }
                // Between equals the lowest leg decides, which must pass frames then.
                let equal = cluster.running_priority(a) == cluster.running_priority(b)
                    || cluster.options().priority(a) == cluster.options().priority(b);
                let awake = [a, b].iter().all(|&i| cluster.hosts[i].responsive(now));
                if !awake || !cluster.hear_each_other(a, b, equal) {
                    self.dual_since.remove(&(a, b));
                    continue;
                }
                let since = *self.dual_since.entry((a, b)).or_insert(now);
                self.longest_dual = self.longest_dual.max(now - since);
                let limit = cluster.interval_of(a).max(cluster.interval_of(b)) + DUAL_SLACK;
                if now - since > limit {
                    return Err(format!(
                        "invariant 1: {} and {} hear each other and both own the VIP for {:?} (limit {limit:?})",
                        cluster.hosts[a].name,
                        cluster.hosts[b].name,
                        now - since
                    ));
                }
            }
        }
        Ok(())
    }

    fn leftovers(&mut self, cluster: &Cluster, now: Instant) -> Result<(), String> {
        for (i, host) in cluster.hosts.iter().enumerate() {
            let asleep = host.paused_until.is_some_and(|until| until > now);
            if host.runs() || host.kernel.vips.is_empty() || asleep {
                self.crashed_since.remove(&i);
                continue;
            }
            let since = *self.crashed_since.entry(i).or_insert(now);
            if now - since > LEFTOVER_MAX {
                return Err(format!(
                    "invariant 7: {} crashed {:?} ago and its address is still there",
                    host.name,
                    now - since
                ));
            }
        }
        Ok(())
    }

    /// What is thought of a balancer is what it is like, once there was the time to find out.
    fn verdicts(&mut self, cluster: &Cluster) -> Result<(), String> {
        for (i, host) in cluster.hosts.iter().enumerate().filter(|(i, _)| cluster.found_out(*i)) {
            let Some(balancer) = host.node.as_ref().and_then(|node| node.world().balancers.first()) else { continue };
            let (is, thought) = (host.plane.verdict(cluster.options().looks), balancer.judged.verdict);
            if is != thought {
                let name = &cluster.hosts[i].name;
                return Err(format!("verdict: {name}'s balancer is {is:?} and is taken for {thought:?}"));
            }
        }
        Ok(())
    }

    fn unfit(&mut self, cluster: &Cluster, owns: &[bool], now: Instant) -> Result<(), String> {
        for i in 0..cluster.hosts.len() {
            let host = &cluster.hosts[i];
            // One that serves and owns it too is out of its hearing, and the others follow that one.
            let served = (0..owns.len()).any(|j| j != i && owns[j] && cluster.serves(j));
            let standing = cluster.standing(i);
            let holds_on = owns[i] && !served && standing < Standing::Full && host.responsive(now);
            if !(holds_on && (0..owns.len()).any(|j| j != i && self.does_better(cluster, i, j, standing))) {
                self.unfit_since.remove(&i);
                continue;
            }
            let limit = if standing == Standing::Poor { POOR_MAX } else { UNFIT_MAX };
            let limit = limit + cluster.options().down_time() * 2;
            let since = *self.unfit_since.entry(i).or_insert(now);
            if now - since > limit {
                return Err(format!(
                    "invariant 2: {} owns the VIP with its balancer {:?} for {:?} beside a node that can serve",
                    host.name,
                    host.plane,
                    now - since
                ));
            }
        }
        Ok(())
    }

    /// `j` would serve better than `i`, which does so like this, and `i` can be told, or is preempted.
    fn does_better(&self, cluster: &Cluster, i: usize, j: usize, standing: Standing) -> bool {
        let (speak, options, now) = (cluster.speak(i, j), cluster.options(), cluster.now());
        match standing {
            // An error page is better than nothing.
            Standing::Bad if speak && options.last_node == LastNode::Keep => {
                self.could_take(cluster, i, j, now) || self.for_a_while(cluster, &self.answers_since, i, j, now)
            }
            Standing::Bad => self.could_take(cluster, i, j, now),
            // A full one is no better, and of an owner that serves badly its priority alone tells no more than that it
            // is low: where nobody may preempt that is left alone.
            _ => {
                let well = cluster.standing(j) >= Standing::Degraded;
                well && (speak || options.preempt) && self.could_take(cluster, i, j, now)
            }
        }
    }

    /// `j` has been able to serve for a while, hears `i` on both wires, and nobody took it out.
    fn could_take(&self, cluster: &Cluster, i: usize, j: usize, now: Instant) -> bool {
        self.for_a_while(cluster, &self.eligible_since, i, j, now)
    }

    fn for_a_while(
        &self,
        cluster: &Cluster,
        since: &BTreeMap<usize, Instant>,
        i: usize,
        j: usize,
        now: Instant,
    ) -> bool {
        let wait = Duration::from_secs(1) + cluster.options().startup_delay;
        let group_cut = !cluster.hear_each_other(i, j, true);
        since.get(&j).is_some_and(|since| now - *since > wait)
            && cluster.calm_since(j).is_some_and(|since| now - since > wait)
            && !group_cut
            && cluster.net.sound(Wire::Channel, i, j)
    }
}

impl Cluster {
    /// Hosts whose word that they can serve must have reached this one over the channel by now.
    pub fn could_be_told(&self, i: usize) -> Vec<usize> {
        let others = (0..self.hosts.len()).filter(|&j| j != i && !self.hosts[j].plain && self.options().channel);
        others.filter(|&j| self.checker.could_take(self, i, j, self.now())).collect()
    }

    /// How well the host would serve, as its balancer and what else is tracked hard really are. One that is full
    /// without being the owner can't show that it answers.
    pub fn standing(&self, i: usize) -> Standing {
        let standing = self.standing_of_owner(i);
        let full = self.hosts[i].plane == Plane::Saturated && !self.hosts[i].owns();
        if full { standing.min(Standing::Poor) } else { standing }
    }

    /// The same, if it is the owner.
    pub(crate) fn standing_of_owner(&self, i: usize) -> Standing {
        let (host, options) = (&self.hosts[i], self.options());
        if host.plain {
            return Standing::Good;
        }
        let hard = options.track.is_some_and(|track| track.weight.is_none());
        let room = if host.table_full { Standing::Full } else { Standing::Good };
        match host.plane.standing(options.looks) {
            _ if hard && !host.kernel.interfaces[1].works() => Standing::Bad,
            standing => standing.min(room),
        }
    }

    /// It answers, and well.
    pub fn serves(&self, i: usize) -> bool {
        self.standing(i) >= Standing::Full
    }

    /// There was time enough to find out what its balancer is like.
    pub(crate) fn found_out(&self, i: usize) -> bool {
        self.is_known_for(i, FOUND_OUT)
    }

    /// Its balancer is like this for so long, and its agent was there to see it.
    pub(crate) fn is_known_for(&self, i: usize, time: Duration) -> bool {
        let (host, now) = (&self.hosts[i], self.now());
        let long = |since: Instant| now - since > time;
        let asked = host.config.vips.iter().all(|vip| !vip.checks.is_empty());
        asked && host.responsive(now) && long(host.plane_since) && self.calm_since(i).is_some_and(long)
    }

    /// They are peers on the channel.
    fn speak(&self, a: usize, b: usize) -> bool {
        self.options().channel && !self.hosts[a].plain && !self.hosts[b].plain
    }

    /// A host that can own the VIP, as things really are, and is allowed to.
    pub fn eligible(&self, i: usize) -> bool {
        self.may_serve(i, Standing::Full)
    }

    /// The same of one that serves at least so well.
    fn may_serve(&self, i: usize, least: Standing) -> bool {
        let host = &self.hosts[i];
        let Some(node) = &host.node else { return host.peer.is_some() && host.linked() };
        if !self.may_own(i) {
            return false;
        }
        let world = node.world();
        let withheld = matches!(world.withheld, Some(Withheld::Drained { .. } | Withheld::Stopping));
        let settled = world.vips[0].fault.is_none();
        self.standing(i) >= least
            && host.linked()
            && !host.mute
            && !withheld
            && settled
            && host.intents.drain.is_none()
            && !host.stopping
    }

    /// `partition = "neither"`: a host owns nothing while no other one is there to speak with it over the channel.
    fn may_own(&self, i: usize) -> bool {
        let other = |j: usize| j != i && self.hosts[j].node.is_some();
        let free = self.hosts[i].plain || self.options().partition != Partition::Neither;
        free || (0..self.hosts.len()).any(other)
    }

    /// A host that can't know better than that it is able: that its adverts don't go out, a Backup never finds.
    fn may_claim(&self, i: usize) -> bool {
        let host = &self.hosts[i];
        let withheld = host.node.as_ref().is_none_or(|node| node.world().withheld.is_some());
        self.serves(i) && host.linked() && !withheld
    }

    /// One that could serve a moment ago and hasn't found out yet that it can't.
    fn claims_still(&self, i: usize) -> bool {
        let host = &self.hosts[i];
        let plan = host.node.as_ref().and_then(|node| node.plan().vips.first());
        let fit = plan.is_some_and(|plan| plan.fitness == Fitness::Fit);
        fit && self.now() - host.plane_since <= UNSEEN
    }

    /// The priority that a host runs at now.
    fn running_priority(&self, i: usize) -> u8 {
        let plan = self.hosts[i].node.as_ref().and_then(|node| node.plan().vips.first());
        match plan.map(|plan| plan.participation) {
            Some(Participation::Run { priority }) => priority.get(),
            _ => self.options().priority(i),
        }
    }

    /// The priority that a host runs at when it is well.
    pub fn effective_priority(&self, i: usize) -> u8 {
        let weight = self.options().track.and_then(|track| track.weight);
        let down = !self.hosts[i].kernel.interfaces[1].works() && !self.hosts[i].plain;
        let lost = weight.filter(|_| down && !self.hosts[i].config.vips[0].tracks.is_empty()).unwrap_or(0);
        self.options().priority(i).saturating_sub(lost).max(2)
    }

    /// A host's own advert interval.
    pub fn interval_of(&self, i: usize) -> Duration {
        let plain = self.options().plain.filter(|_| self.hosts[i].plain);
        Duration::from_millis(plain.map_or_else(|| self.options().interval_ms, |peer| peer.interval_ms))
    }

    /// Hosts that may be the owner when all has settled; empty: nobody has to be.
    pub fn candidates(&self) -> Vec<usize> {
        let eligible: Vec<usize> = (0..self.hosts.len()).filter(|&i| self.eligible(i)).collect();
        if !eligible.is_empty() || self.options().last_node == LastNode::Withdraw {
            return eligible;
        }
        (0..self.hosts.len()).filter(|&i| self.hosts[i].runs() && self.hosts[i].linked() && self.may_own(i)).collect()
    }

    /// An owner that serves badly and that nobody can tell so, where nobody may preempt it: a low priority alone doesn't
    /// say that its owner fails.
    pub fn is_left_alone(&self, i: usize) -> bool {
        let told = self.candidates().iter().any(|&j| self.speak(i, j) || self.hosts[j].plain);
        self.standing(i) == Standing::Poor && !self.options().preempt && !told
    }

    /// Of the candidates those that win if all may preempt. One that isn't wholly well keeps its priority if it is
    /// the owner, and is behind the others if it isn't.
    pub fn best(&self) -> Vec<usize> {
        let candidates = self.candidates();
        let well = |i: &usize| self.standing(*i) == Standing::Good;
        let top = candidates.iter().filter(|i| well(i)).map(|&i| self.effective_priority(i)).max();
        let first = |i: usize| Some(self.effective_priority(i)) >= top;
        let stays = |i: usize| !well(&i) && (top.is_none() || self.hosts[i].owns() && first(i));
        candidates.into_iter().filter(|&i| Some(self.effective_priority(i)) == top && well(&i) || stays(i)).collect()
    }
}
