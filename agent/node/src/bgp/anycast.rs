//! The decision on a unit that is announced by BGP alone: every node that can serve announces it, and the routers
//! spread what comes for it over all of them. There is no owner and nothing to claim; what is decided here is whether
//! this node is one of those, and what it says of itself.

use super::{NEIGHBOR_GRACE, any_up};
use crate::config::{Form, LastNode, Unwell, VipBgp};
use crate::decide::{Judge, Participation, VipPlan};
use crate::extras::{self, Extras};
use crate::mutants;
use crate::plane::Standing;
use crate::plane::standing::Health;
use crate::reasons::Reason;
use crate::world::Withheld;
use holdfast_statesync::message::Fitness;
use std::collections::BTreeSet;

impl Judge<'_> {
    /// What should be of a unit without legs.
    pub(crate) fn anycast(&self, bgp: &VipBgp) -> VipPlan {
        let view = &self.view().bgp;
        let mut reasons = Vec::new();
        let mut fail_open = false;
        let health = self.health(&mut reasons);
        let announce = self.form(bgp, &health, &mut fail_open, &mut reasons);
        let fitness = self.said_fitness(health.fitness, &mut reasons);
        match view.offered {
            Some(_) if announce.is_some() => reasons.push(Reason::Announced),
            _ if announce.is_some() => {
                let first = self.flows_first().or_else(|| self.way_back_first());
                reasons.push(first.unwrap_or(Reason::AddressesFirst));
            }
            _ => {}
        }
        let stays = view.stays_until.is_some_and(|until| self.now < until);
        let holds = announce.is_some() || stays;
        let addresses = if holds { self.addresses() } else { BTreeSet::new() };
        let extras = if holds { extras::of(self.vip, self.world, addresses.len()) } else { Extras::default() };
        VipPlan {
            participation: Participation::Observe,
            path: Some(Vec::new()),
            fitness,
            standing: health.said(fitness),
            leave: None,
            addresses,
            extras,
            fail_open,
            announce,
            reasons,
        }
    }

    /// Whether it is to be announced here already, by this worker or the one before.
    fn held(&self) -> bool {
        let view = self.view();
        view.bgp.held || view.resume.is_some()
    }

    /// How it should be announced; `None`: not at all.
    fn form(&self, bgp: &VipBgp, health: &Health, fail_open: &mut bool, reasons: &mut Vec<Reason>) -> Option<Form> {
        let own = health.fitness;
        let view = &self.view().bgp;
        let dead = reasons.iter().any(Reason::is_dead);
        if let Some(withheld) = self.world.withheld {
            let stopping = withheld == Withheld::Stopping;
            reasons.insert(0, if stopping { Reason::Stopping } else { Reason::Drained });
            let told = view.shutdown_until.is_none_or(|until| self.now < until);
            let shuts_down = !stopping && self.held() && told && own == Fitness::Fit && !bgp.drain_wait.is_zero();
            if shuts_down {
                return Some(Form::GracefulShutdown);
            }
            // It has sent what it could when the routers send what comes elsewhere.
            let others = self.world.able_peers(self.id, self.now);
            let stays = self.held() && self.flushes(&others, reasons);
            return view.offered.filter(|_| stays);
        }
        if view.disabled {
            reasons.insert(0, Reason::Disabled);
            return (bgp.on_disabled != Unwell::Withdraw && !dead).then_some(Form::Disabled);
        }
        let delayed = self.world.started + bgp.announce_delay;
        if !self.held() && self.now < delayed && !mutants::off("announce-delay") {
            reasons.insert(0, Reason::AnnounceDelay(delayed - self.now));
            return None;
        }
        if own == Fitness::Fit {
            let room = self.held() || health.standing > Standing::Full || !self.others_do(bgp, Standing::Full);
            return (room && self.undamped(bgp, reasons)).then_some(Form::Normal);
        }
        // One that answers badly stays, unless enough others do better and can have seen the same at home.
        if health.standing == Standing::Poor && self.held() && self.vip.last_node == LastNode::Keep {
            if !health.settled(self.now) {
                return Some(Form::Normal);
            }
            if !self.others_do(bgp, Standing::Degraded) {
                *fail_open = true;
                self.nobody_better(reasons);
                return Some(Form::Normal);
            }
        }
        if own == Fitness::Unfit && bgp.on_down != Unwell::Withdraw && !dead {
            reasons.push(Reason::AnnouncedWorse);
            return Some(Form::Down);
        }
        *fail_open = self.fails_open(bgp, own, reasons);
        fail_open.then_some(Form::Normal)
    }

    /// It comes and goes no more often than is wanted; or too few others are there, and then that counts more.
    fn undamped(&self, bgp: &VipBgp, reasons: &mut Vec<Reason>) -> bool {
        let until = self.view().bgp.penalty.held_until(self.now);
        let Some(until) = until.filter(|_| !self.held() && !mutants::off("damping")) else { return true };
        if self.config.cluster.is_some() && self.able() < usize::from(bgp.min_announcing) {
            return true;
        }
        reasons.insert(0, Reason::Damped(until - self.now));
        false
    }

    /// This node can't serve, and too few others can: DESIGN section 4, 2.
    fn fails_open(&self, bgp: &VipBgp, own: Fitness, reasons: &mut Vec<Reason>) -> bool {
        if self.vip.last_node == LastNode::Withdraw {
            reasons.push(Reason::Withdraw);
            return false;
        }
        let enough = usize::from(bgp.min_announcing);
        if self.able() >= enough {
            let best = self.world.able_peers(self.id, self.now).first().map(|peer| self.peer_name(*peer));
            reasons.extend(best.map(Reason::PeerCanServe));
            return false;
        }
        let (held, last_resort) = (self.held(), self.view().last_resort);
        // While no router is there everybody says that it can't serve, and for a while after.
        let up_since = self.view().bgp.up_since.filter(|_| any_up(self.vip, self.world));
        let told = up_since.is_some_and(|since| held || since + NEIGHBOR_GRACE <= self.now);
        if !(told || held && last_resort) {
            return false;
        }
        // Two that fail in the same moment both believe that the other one serves, and both come back. One that was
        // never well doesn't come beside somebody who stays.
        if !held && (own != Fitness::Unfit || self.world.announcing_peers(self.id, self.now) >= enough) {
            return false;
        }
        // What was known when it began still counts: a channel that falls silent makes nobody better.
        if held && last_resort || self.world.heard_peers_known(self.now) {
            reasons.push(Reason::NobodyBetter);
            return true;
        }
        reasons.push(Reason::PeersUnknown);
        false
    }

    /// As many others as are wanted announce it, and stand at least like this.
    fn others_do(&self, bgp: &VipBgp, standing: Standing) -> bool {
        let others = self.world.peers_at_least(self.id, standing, self.now);
        let announcing = others.iter().filter(|peer| self.world.active(**peer, self.id, self.now)).count();
        announcing >= usize::from(bgp.min_announcing)
    }

    /// Peers whose fresh word is that they can serve it.
    fn able(&self) -> usize {
        self.world.able_peers(self.id, self.now).len()
    }

    /// What the others are told: who can't say it to any router can't serve, however well its balancer is.
    fn said_fitness(&self, own: Fitness, reasons: &mut Vec<Reason>) -> Fitness {
        if self.world.withheld.is_some() || self.view().bgp.disabled {
            return Fitness::Withheld;
        }
        if own != Fitness::Fit {
            return own;
        }
        if !any_up(self.vip, self.world) {
            reasons.insert(0, Reason::NoNeighbor);
            let starts = self.now < self.world.started + NEIGHBOR_GRACE;
            return if starts { Fitness::Unknown } else { Fitness::Unfit };
        }
        if reasons.iter().any(|reason| matches!(reason, Reason::Damped(_))) { Fitness::Unfit } else { Fitness::Fit }
    }
}
