//! What others are told of this node: the peers, programs that know keepalived's states, hooks. Last in a turn, since
//! nothing here waits for it.
//!
//! What this module refuses to do: decide, and write the journal.

use crate::bgp;
use crate::config::{HookEvent, Member, VipId};
use crate::decide::{Participation, VipPlan};
use crate::io::{Output, UnitState};
use crate::node::Node;
use crate::world::VipView;
use holdfast_statesync::message::{BalancerReport, Fitness, Message, Role, VipReport};
use holdfast_vrrp::State;
use std::time::{Duration, Instant};

/// Between reports when nothing changes, at most.
const REPORT: Duration = Duration::from_millis(100);
/// A report that would need a wake-up of its own goes out so much earlier, in the last turn before it; with an advert,
/// which wakes the peers anyway, still earlier.
const REPORT_EARLY: Duration = Duration::from_millis(40);
const REPORT_WITH_ADVERT: Duration = Duration::from_millis(60);

impl Node {
    /// Tells all peers what we are and can. After everything else of a turn, the units' next deadlines included.
    pub(crate) fn report(&mut self, now: Instant) {
        let Some(channel) = &mut self.channel else { return };
        let early = if self.out.adverts.is_empty() { REPORT_EARLY } else { REPORT_WITH_ADVERT };
        let last = self.timers.first().is_none_or(|next| next > self.report_at);
        let due = if last { self.report_at <= now + early } else { self.report_at <= now };
        let news = self.report_of.take();
        let all = std::mem::take(&mut self.report_due) || due || news.len() == self.vips.len();
        if !all && news.is_empty() {
            return;
        }
        if all {
            self.report_at = now + REPORT;
        }
        self.report_sequence = self.report_sequence.saturating_add(1);
        let units = (0..).map(VipId).zip(self.config.vips.iter().zip(&self.world.vips).zip(&self.vips));
        // Each entry stands for itself: between two reports of all, what changed is enough. During an election of a
        // thousand virtual routers a report of all at each change would keep both nodes from everything else.
        let units = units.filter(|(id, _)| all || news.binary_search(id).is_ok());
        let vips = units.map(|(_, ((vip, view), run))| VipReport {
            vip: vip.name.as_str().to_owned(),
            fitness: run.fitness,
            role: role(vip, view, &self.world),
            role_epoch: view.role_epoch,
            priority: run.priority,
            role_age_ms: u32::try_from(crate::io::age_ms(now, view.since)).unwrap_or(u32::MAX),
            standing: Some(run.standing),
        });
        let balancers = self.config.balancers.iter().zip(&self.world.balancers).map(|(balancer, view)| {
            let fitness = match view.state {
                crate::io::BalancerState::Unknown { .. } => Fitness::Unknown,
                crate::io::BalancerState::Alive { .. } => Fitness::Fit,
                crate::io::BalancerState::Gone { .. } => Fitness::Unfit,
            };
            BalancerReport { balancer: balancer.name.as_str().to_owned(), fitness, verdict: Some(view.judged.verdict) }
        });
        let message =
            Message::Report { sequence: self.report_sequence, vips: vips.collect(), balancers: balancers.collect() };
        channel.handle(now, holdfast_statesync::channel::Input::Broadcast { message: &message });
        self.tell_fingerprint(now);
        self.drain_channel(now);
    }

    /// What each unit is, in the words of those who know keepalived's, when that changed.
    pub(crate) fn tell_states(&mut self) {
        if !self.synced {
            return;
        }
        for id in self.touched.sorted() {
            let run = self.run(id);
            let plan = self.plan.vips.get(usize::from(id.0));
            let can = |plan: &VipPlan| plan.participation != Participation::Off && plan.fitness != Fitness::Unfit;
            let state = match run.router.state() {
                State::Active => UnitState::Active,
                _ if self.vip_config(id).anycast() && self.view(id).bgp.offered.is_some() => UnitState::Active,
                _ if self.stop.is_some() => UnitState::Stopped,
                _ if plan.is_some_and(can) => UnitState::Backup,
                _ => UnitState::Fault,
            };
            // A start is no fault just because the sockets are still being opened.
            let starts = run.told.is_none() && state == UnitState::Fault && !self.world.opening.is_empty();
            if run.told != Some(state) && !starts {
                let priority = run.priority;
                self.run_mut(id).told = Some(state);
                self.out.rest.push(Output::State { vip: id, state, priority });
            }
        }
    }

    /// Hooks for this, one run for each VIP of the unit, with the reason in words.
    pub(crate) fn hooks(&mut self, id: VipId, on: HookEvent, reason: &str) {
        let word = match on {
            HookEvent::Active => "active",
            HookEvent::Backup => "backup",
            HookEvent::Fault => "fault",
        };
        let unit = self.vip_config(id);
        let group = unit.group.then(|| ("HOLDFAST_GROUP".to_owned(), unit.name.as_str().to_owned()));
        let environment = |member: &Member| {
            let told = [
                ("HOLDFAST_VIP".to_owned(), member.name.as_str().to_owned()),
                ("HOLDFAST_EVENT".to_owned(), word.to_owned()),
                ("HOLDFAST_REASON".to_owned(), reason.to_owned()),
            ];
            told.into_iter().chain(group.clone()).collect::<Vec<_>>()
        };
        if !self.config.hooks.iter().any(|configured| configured.on.contains(&on)) {
            return;
        }
        let environments: Vec<_> = unit.members.iter().map(environment).collect();
        for (hook, configured) in (0..).zip(&self.config.hooks) {
            if configured.on.contains(&on) {
                let runs = environments.iter().cloned().map(|environment| Output::RunHook { hook, environment });
                self.out.rest.extend(runs);
            }
        }
    }
}

/// What the peers are told that we are.
fn role(vip: &crate::config::Vip, view: &VipView, world: &crate::world::World) -> Role {
    match view.state {
        State::Active => Role::Active,
        State::Backup => Role::Backup,
        State::Initialize if !vip.anycast() || !view.bgp.held => Role::Out,
        State::Initialize if bgp::announced(vip, view, world) => Role::Active,
        State::Initialize => Role::Backup,
    }
}
