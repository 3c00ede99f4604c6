//! From the plan to the routes: what is told to whom, and what is written down of it.

use super::neighbors_of;
use crate::config::{Form, HookEvent, VipId};
use crate::decide::VipPlan;
use crate::journal::Kind;
use crate::mutants;
use crate::node::Node;
use crate::reasons::Reason;
use crate::turn::first_reason;
use crate::world::Withheld;
use holdfast_statesync::message::Fitness;
use std::time::Instant;

/// Plans of units without legs whose withdrawals have been said, and that are to be acted on.
#[derive(Debug)]
pub(crate) struct Unfinished {
    /// All units were decided on.
    pub all: bool,
    /// One of each.
    pub plans: Vec<(VipId, VipPlan)>,
}

impl Node {
    /// Brings a unit without legs to what the plan says, its routes aside.
    pub(crate) fn apply_anycast(&mut self, now: Instant, id: VipId, plan: &VipPlan) {
        self.note_fitness(now, id, plan);
        if let Some(epoch) = self.view_mut(id).resume.take() {
            self.view_mut(id).role_epoch = epoch;
            self.dirty.units.insert(id);
        }
        let last_resort = self.view(id).last_resort;
        if plan.fail_open && !last_resort {
            let kind = Kind::FailOpen { vip: self.vip_name(id), why: first_reason(plan) };
            self.event(now, self.run(id).fitness_event, kind);
        }
        if plan.fail_open != last_resort {
            self.view_mut(id).last_resort = plan.fail_open;
            self.report_due = true;
        }
    }

    /// What the neighbours are to be told of a unit, as the plan and the kernel are now.
    pub(crate) fn apply_routes(&mut self, now: Instant, id: VipId) {
        let Some(plan) = self.plan.vips.get(usize::from(id.0)) else { return };
        let Some(bgp) = &self.vip_config(id).bgp else { return };
        let (drain_wait, withheld) = (bgp.drain_wait, self.world.withheld);
        let (held, announce) = (plan.announce.is_some(), plan.announce);
        let view = &self.view(id).bgp;
        let offered = view.offered;
        // Up: the addresses first. One that vanishes later is put back at once, and the route stays; if it can't be, that
        // is a fault, and the plan says so.
        let announce = announce.filter(|_| offered.is_some() || !self.is_gated(now, id));
        let form = announce.filter(|_| offered.is_some() || self.landed(id) || mutants::off("address-before-route"));
        let form = form.filter(|_| offered.is_some() || self.has_way_back(id));
        if view.held != held {
            self.view_mut(id).bgp.held = held;
            self.dirty.units.insert(id);
        }
        if !matches!(withheld, Some(Withheld::Drained { .. })) {
            if self.view(id).bgp.shutdown_until.is_some() {
                self.view_mut(id).bgp.shutdown_until = None;
            }
        } else if announce == Some(Form::GracefulShutdown) && self.view(id).bgp.shutdown_until.is_none() {
            self.view_mut(id).bgp.shutdown_until = Some(now + drain_wait);
            self.dirty.units.insert(id);
        }
        if held && self.view(id).bgp.stays_until.is_some() {
            self.view_mut(id).bgp.stays_until = None;
        }
        if form != offered || self.run(id).withdrew.is_some() {
            self.offer(now, id, form);
        }
    }

    /// Tells the routers which routes go with these plans, and nobody else. True: there are some.
    ///
    /// The journal, the records and the addresses of thousands of units take far longer, and until they hear of it routers
    /// send here what nobody serves.
    pub(crate) fn withdraw_first(&mut self, now: Instant, plans: &[(VipId, VipPlan)]) -> bool {
        if !self.speakers.started || self.speakers.stopped {
            return false;
        }
        let mut some = false;
        for (id, _) in plans.iter().filter(|(_, plan)| plan.announce.is_none()) {
            if self.view(*id).bgp.offered.is_some() && self.vip_config(*id).anycast() {
                self.run_mut(*id).withdrew = self.view_mut(*id).bgp.offered.take();
                self.speakers.withdrawn(*id);
                some = true;
            }
        }
        if some {
            self.speak(now);
        }
        some
    }

    /// Every address of a unit is in the kernel.
    pub(crate) fn landed(&self, id: VipId) -> bool {
        let Some(plan) = self.plan.vips.get(usize::from(id.0)) else { return false };
        // Added in this order: the last one is there last.
        !plan.extras.incomplete && plan.addresses.iter().rev().all(|key| self.actual.landed(key))
    }

    /// An address is in the kernel: whose routes waited for it may go out.
    pub(crate) fn note_landed(&mut self, ip: &std::net::IpAddr) {
        let Some(id) = self.owner_of.get(ip).copied() else { return };
        let view = &self.view(id).bgp;
        if view.held && view.offered.is_none() && self.landed(id) {
            self.dirty.units.insert(id);
        }
        self.touch_ways(id);
    }

    fn offer(&mut self, now: Instant, id: VipId, form: Option<Form>) {
        let Some(plan) = self.plan.vips.get(usize::from(id.0)) else { return };
        let (why, cause) = (first_reason(plan), self.route_cause(id));
        let (unfit, offered) = (plan.fitness == Fitness::Unfit, self.view(id).bgp.offered);
        let anycast = self.vip_config(id).anycast();
        let was = self.run_mut(id).withdrew.take().or(offered);
        self.view_mut(id).bgp.offered = form;
        match form {
            Some(_) => self.speakers.announced(now, id),
            None if offered.is_some() => self.speakers.withdrawn(id),
            None => {}
        }
        self.report_due = true;
        let vip = self.vip_name(id);
        let event = match form {
            Some(form) => {
                let neighbors = self.neighbors_up(id);
                self.event(
                    now,
                    cause,
                    Kind::RouteAnnounced { vip, form: form_word(form).to_owned(), neighbors, why: why.clone() },
                )
            }
            None => self.event(now, cause, Kind::RouteWithdrawn { vip, why: why.clone() }),
        };
        if was.is_some() == form.is_some() || !anycast {
            return;
        }
        // A unit without a router has its change of role here.
        let view = self.view_mut(id);
        view.since = now;
        view.role_epoch = view.role_epoch.saturating_add(1);
        self.records.insert(id);
        self.count("role_changes");
        if form.is_some() {
            self.hooks(id, HookEvent::Active, &why);
            return;
        }
        self.hooks(id, if unfit { HookEvent::Fault } else { HookEvent::Backup }, &why);
        self.withdrawn(now, id, event);
    }

    /// The route is gone: the addresses stay for what is still on its way to them. By our own verdict it is a flap.
    fn withdrawn(&mut self, now: Instant, id: VipId, cause: Option<u64>) {
        let Some(bgp) = &self.vip_config(id).bgp else { return };
        let (wait, damping) = (bgp.withdraw_wait, bgp.damping.clone());
        let until = now + wait;
        let until = self.stop.as_ref().map_or(until, |stop| until.min(stop.linger_until));
        let own = self.world.withheld.is_none() && !self.view(id).bgp.disabled;
        let view = self.view_mut(id);
        view.bgp.stays_until = (until > now).then_some(until);
        let held_back = damping.filter(|_| own).and_then(|damping| view.bgp.penalty.flap(now, &damping));
        self.reconcile_due = true;
        self.dirty.units.insert(id);
        self.touch_ways(id);
        if let Some(until) = held_back {
            let kind = Kind::RouteDamped { vip: self.vip_name(id), for_ms: crate::io::age_ms(until, now) };
            self.event(now, cause, kind);
        }
    }

    /// What made the routes of a unit change.
    fn route_cause(&self, id: VipId) -> Option<u64> {
        let operator = self.stop.as_ref().and_then(|s| s.event).or_else(|| self.drain.as_ref().and_then(|d| d.event));
        let run = self.run(id);
        operator.filter(|_| self.world.withheld.is_some()).or(run.cause).or(run.fitness_event)
    }

    /// It runs at the lowest priority only because no router has had a session with it for long enough.
    pub(crate) fn demoted(&self, id: VipId) -> bool {
        let plan = self.plan.vips.get(usize::from(id.0));
        plan.is_some_and(|p| p.fitness == Fitness::Fit && p.reasons.contains(&Reason::BgpNotSettled))
    }

    /// How many of a unit's neighbours are up.
    pub(crate) fn neighbors_up(&self, id: VipId) -> usize {
        let up = |n: &&crate::config::NeighborId| {
            self.world.neighbors.get(usize::from(n.0)).is_some_and(|n| n.up_since.is_some())
        };
        neighbors_of(self.vip_config(id)).iter().filter(up).count()
    }

    /// A unit without legs is still ours: told, or its addresses wait for the last that is on its way.
    pub(crate) fn anycast_here(&self, id: VipId) -> bool {
        let view = &self.view(id).bgp;
        self.vip_config(id).anycast() && (view.held || view.offered.is_some() || view.stays_until.is_some())
    }
}

/// For journal and status.
pub(crate) fn form_word(form: Form) -> &'static str {
    match form {
        Form::Normal => "normal",
        Form::Down => "down",
        Form::Disabled => "disabled",
        Form::GracefulShutdown => "graceful_shutdown",
    }
}
