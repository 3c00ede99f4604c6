//! One turn: what is due runs, then decide, then act, in the order in which outputs save the most time.
//!
//! Becoming Active: ledger → advert → addresses → announcements → claims and reports → journal. Leaving: priority 0 and
//! "take it now" first, then the ledger and the removal (or, with linger, the removal when the successor is seen).

use crate::announce::Announcer;
use crate::bgp::Unfinished;
use crate::config::{HookEvent, Tracked, VipId};
use crate::decide::{Leave, LegPath, Participation, VipPlan, decide_one, socket_of, stands_until};
use crate::diff::{BATCH, BATCH_PAUSE, EARLY, Key, Want, Wanted, diff};
use crate::extras::Extras;
use crate::io::{Link, Output, SocketKey, Step};
use crate::journal::Kind;
use crate::kernel::Vmac;
use crate::legs::LegIndex;
use crate::mutants;
use crate::node::Node;
use crate::status::fitness_word;
use crate::vip::VipRun;
use crate::world::{Fault, FaultKind, Leaving, VipView, Withheld};
use holdfast_statesync::message::{Fitness, Message};
use holdfast_vrrp::{Input, LegId, Priority, State};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a resumed VIP counts as fit while nothing is known.
pub(crate) const ASSUMED_FIT: Duration = Duration::from_secs(1);
/// All is decided anew this often, whatever changed: what should have been noticed and wasn't doesn't stay wrong.
const REDECIDE: Duration = Duration::from_secs(1);
/// Units whose time has come in one turn, those that wait longest first; the others follow in the next one, after what
/// was heard meanwhile.
const UNITS: usize = 100;
/// Decisions in one turn. Each follows from a change by the one before, and three suffice for any chain of ours; what
/// is left waits for the next turn.
const ROUNDS: usize = 6;

impl Node {
    pub(crate) fn view(&self, id: VipId) -> &VipView {
        self.world.vips.get(usize::from(id.0)).expect("ids of VIPs come from the configuration")
    }

    pub(crate) fn view_mut(&mut self, id: VipId) -> &mut VipView {
        self.touched.insert(id);
        self.world.vips.get_mut(usize::from(id.0)).expect("ids of VIPs come from the configuration")
    }

    pub(crate) fn run(&self, id: VipId) -> &VipRun {
        self.vips.get(usize::from(id.0)).expect("ids of VIPs come from the configuration")
    }

    pub(crate) fn run_mut(&mut self, id: VipId) -> &mut VipRun {
        self.touched.insert(id);
        self.vips.get_mut(usize::from(id.0)).expect("ids of VIPs come from the configuration")
    }

    pub(crate) fn vip_config(&self, id: VipId) -> &crate::config::Vip {
        self.config.vips.get(usize::from(id.0)).expect("ids of VIPs come from the configuration")
    }

    pub(crate) fn vip_name(&self, id: VipId) -> String {
        self.vip_config(id).name.as_str().to_owned()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = VipId> + use<> {
        (0..u16::try_from(self.vips.len()).unwrap_or(u16::MAX)).map(VipId)
    }

    /// The index of legs, as the links are now.
    pub(crate) fn legs(&mut self) -> &LegIndex {
        self.legs.get_or_insert_with(|| LegIndex::new(&self.config, &self.world))
    }

    /// What should be of one unit, judged now.
    pub(crate) fn decide(&self, now: Instant, id: VipId) -> VipPlan {
        decide_one(&self.config, &self.world, &self.managed, now, (id, self.vip_config(id)))
    }

    /// The keeper may have to know something new of this unit.
    pub(crate) fn record(&mut self, id: VipId) {
        self.records.insert(id);
        self.reconcile_due = true;
    }

    /// The same of the unit that an address belongs to.
    pub(crate) fn record_address(&mut self, ip: &IpAddr) {
        if let Some(id) = self.owner_of.get(ip).copied() {
            self.record(id);
        }
    }

    /// The same of every unit that has more than addresses.
    pub(crate) fn record_extras(&mut self) {
        for at in 0..self.with_extras.len() {
            self.with_extras.get(at).copied().into_iter().for_each(|id| self.record(id));
        }
    }

    /// No segment hears of this address: it is nobody's to claim.
    pub(crate) fn is_anycast(&self, ip: &IpAddr) -> bool {
        self.owner_of.get(ip).is_some_and(|id| self.vip_config(*id).anycast())
    }

    /// Everything that is due at `now`.
    pub(crate) fn run_due(&mut self, now: Instant) {
        self.run_checks(now);
        self.run_pools(now);
        self.run_channel(now);
        let due: Vec<VipId> = self.timers.due(now).take(UNITS).collect();
        due.into_iter().for_each(|id| self.touched.insert(id));
        let units = self.touched.sorted();
        self.run_routers(now, &units);
        self.advertise_together(now);
        self.run_sessions(now);
        // What stands until this very moment still stands.
        let aged: Vec<VipId> = self.ages.due(now).collect();
        aged.into_iter().for_each(|id| self.dirty.units.insert(id));
        self.dirty.all |= self.decided_at.is_none_or(|at| now.saturating_duration_since(at) >= REDECIDE)
            || self.drain.as_ref().is_some_and(|drain| drain.deadline <= now)
            || self.stop.as_ref().is_some_and(|stop| !stop.releasing && stop.deadline <= now);
        if std::mem::take(&mut self.judge_due) || self.dirty.all {
            // Looks grow old, too.
            self.judge_balancers(now);
        }
        for _ in 0..ROUNDS {
            self.expire(now);
            if self.dirty.is_clean() {
                break;
            }
            let all = std::mem::take(&mut self.dirty.all);
            let mut units = self.dirty.units.take();
            if all {
                self.decided_at = Some(now);
                units = self.ids().collect();
            }
            if self.synced {
                self.decide_units(now, all, &units);
                if self.unfinished.is_some() {
                    return;
                }
            }
            // Nothing is known of the kernel before that, and unknown is not bad: only what operators want goes on.
            self.run_operations(now);
        }
        self.speak(now);
        self.hold_back(now);
        if self.reconcile_due || self.reconcile_at.is_some_and(|at| at <= now) {
            self.reconcile(now, now);
        }
        self.balance(now);
        if !self.records.is_empty() {
            self.write_records();
        }
        self.announce(now);
        self.tell_states();
        self.finish_stop(now);
    }

    /// Decides on these, all on the same state of the world, then acts on each.
    fn decide_units(&mut self, now: Instant, all: bool, units: &[VipId]) {
        self.debounce(now, units);
        if all || std::mem::take(&mut self.sockets_changed) {
            self.reconcile_due = true;
            self.neighbors_moved = true;
            self.sync_sockets();
        }
        let plans = units.iter().map(|id| (*id, self.decide(now, *id)));
        let mut plans: Vec<(VipId, VipPlan)> = plans.collect();
        if self.withdraw_first(now, &plans) {
            let now_on = plans.extract_if(.., |(id, _)| !self.vip_config(*id).anycast()).collect();
            let later = std::mem::replace(&mut plans, now_on);
            self.unfinished = Some(Unfinished { all, plans: later });
        }
        self.take_plans(now, all, plans);
    }

    /// What a turn before this one left undone.
    pub(crate) fn finish_plans(&mut self, now: Instant) {
        if let Some(Unfinished { all, plans }) = self.unfinished.take() {
            self.take_plans(now, all, plans);
        }
    }

    /// Acts on plans, all of them made on the same state of the world.
    fn take_plans(&mut self, now: Instant, all: bool, plans: Vec<(VipId, VipPlan)>) {
        if all {
            self.actual.look_at_all();
        }
        let units: Vec<VipId> = plans.iter().map(|(id, _)| *id).collect();
        for (id, new) in plans {
            let announced = |plan: &VipPlan| plan.announce.is_some();
            let Some(before) = self.plan.vips.get(usize::from(id.0)).map(announced) else { continue };
            self.gate_routes(now, id, (before, announced(&new)));
            let Some(plan) = self.plan.vips.get_mut(usize::from(id.0)) else { continue };
            let moved = plan.path != new.path || plan.addresses != new.addresses || plan.extras != new.extras;
            let old = std::mem::replace(plan, new);
            if all || moved {
                self.want_addresses(now, id, &old.addresses);
                self.record(id);
            }
        }
        for id in units {
            self.apply(now, id);
            self.ages.set(id, stands_until(&self.config, &self.world, now, id));
        }
    }

    /// Times that have passed, of the units in hand.
    fn expire(&mut self, now: Instant) {
        self.expire_gates(now);
        for id in self.touched.sorted() {
            let Some(view) = self.world.vips.get_mut(usize::from(id.0)) else { continue };
            let over = |leaving: &mut Leaving| match leaving.until {
                Some(until) => until <= now,
                // The router waits to take it back; if it was stopped, there is nothing to wait for.
                None => view.state == State::Initialize,
            };
            let mut changed = view.leaving.take_if(over).is_some();
            changed |= view.fault.take_if(|fault| fault.until <= now).is_some();
            changed |= view.assumed_fit_until.take_if(|until| *until <= now).is_some();
            changed |= view.relisten_until.take_if(|until| *until <= now).is_some();
            changed |= view.bgp.stays_until.take_if(|until| *until <= now).is_some();
            if changed {
                // Addresses that were held back aren't any more.
                self.reconcile_due = true;
                let units = self.world.ways.back(id).chain(self.world.ways.users(id));
                units.for_each(|id| self.dirty.units.insert(id));
            }
            let Some(view) = self.world.vips.get(usize::from(id.0)) else { continue };
            if changed || view.tracks.iter().any(|track| track.turns_at.is_some_and(|at| at <= now)) {
                self.dirty.units.insert(id);
            }
        }
    }

    fn wanted_sockets(&self) -> BTreeSet<SocketKey> {
        if !self.synced || self.stop.as_ref().is_some_and(|stop| stop.releasing) {
            return BTreeSet::new();
        }
        let legs = self.config.vips.iter().flat_map(|vip| &vip.legs);
        legs.filter_map(|leg| Some(socket_of(leg, self.world.link(&leg.interface)?.ifindex))).collect()
    }

    /// Tracked interfaces, as they count.
    fn debounce(&mut self, now: Instant, units: &[VipId]) {
        for id in units.iter().copied() {
            let tracks = self.vip_config(id).tracks.iter().enumerate();
            let looks: Vec<_> = tracks
                .filter_map(|(at, track)| match &track.what {
                    Tracked::Interface { name, up_delay, down_delay } => {
                        Some((at, self.world.is_up(name), *up_delay, *down_delay))
                    }
                    Tracked::Check(_) | Tracked::Balancer(_) => None,
                })
                .collect();
            for (at, up, up_delay, down_delay) in looks {
                if let Some(seen) = self.view_mut(id).tracks.get_mut(at) {
                    seen.observe(now, up, up_delay, down_delay);
                }
            }
        }
    }

    /// The world's view of sockets: open ones, and those that are opened in this very turn or on their way.
    fn sync_sockets(&mut self) {
        let wanted = self.wanted_sockets();
        let (open, _) = self.actual.sockets();
        self.world.opening =
            wanted.iter().filter(|key| !open.contains(key) && !self.actual.open_fails(**key)).copied().collect();
        self.world.sockets = open.into_iter().filter(|key| wanted.contains(key)).collect();
    }

    /// Brings one VIP's router to what the plan says.
    fn apply(&mut self, now: Instant, id: VipId) {
        let Some(plan) = self.plan.vips.get(usize::from(id.0)).cloned() else { return };
        if self.vip_config(id).anycast() {
            self.apply_anycast(now, id, &plan);
        } else {
            self.apply_router(now, id, &plan);
        }
        self.apply_routes(now, id);
        self.note_flush(now, id);
        self.tell_elected(now, id);
    }

    fn apply_router(&mut self, now: Instant, id: VipId, plan: &VipPlan) {
        let took_part = self.run(id).router.state() != State::Initialize;
        self.note_fitness(now, id, plan);
        if let Some(path) = &plan.path {
            self.take_path(now, id, path);
        }
        let active = self.run(id).router.state() == State::Active;
        let served = active && (self.run(id).served || plan.fitness == Fitness::Fit);
        if self.run(id).served != served {
            self.run_mut(id).served = served;
        }
        if let Some(leave) = plan.leave.filter(|_| active) {
            self.leave(now, id, leave, plan);
        }
        let state = self.run(id).router.state();
        match (plan.participation, &plan.path) {
            (Participation::Run { priority }, Some(_)) if state == State::Initialize => {
                if let Some(epoch) = self.view_mut(id).resume.take() {
                    self.view_mut(id).role_epoch = epoch;
                    for (leg, as_well) in std::mem::take(&mut self.view_mut(id).resume_pseudo_header) {
                        self.run_mut(id).router.assume_pseudo_header(LegId(leg), as_well);
                    }
                    self.route(now, id, Input::Resume { priority });
                } else {
                    self.route(now, id, Input::Start { priority });
                }
            }
            (Participation::Run { priority }, _) => self.route(now, id, Input::Priority(priority)),
            (Participation::Off | Participation::Observe, _) => {
                if self.synced && self.view(id).resume.is_some() {
                    self.view_mut(id).resume = None;
                    self.dirty.units.insert(id);
                }
                if state != State::Initialize {
                    self.route(now, id, Input::Stop);
                }
                if took_part && plan.participation == Participation::Off {
                    self.hooks(id, HookEvent::Fault, &first_reason(plan));
                }
            }
        }
        self.note_priority(now, id, plan);
        let active = self.run(id).router.state() == State::Active;
        let fit = plan.fitness == Fitness::Fit;
        let last_resort = self.view(id).last_resort;
        if active && plan.fail_open && !last_resort {
            self.view_mut(id).last_resort = true;
            self.dirty.units.insert(id);
            let kind = Kind::FailOpen { vip: self.vip_name(id), why: first_reason(plan) };
            self.event(now, self.run(id).fitness_event, kind);
        } else if last_resort && fit {
            self.view_mut(id).last_resort = false;
            self.dirty.units.insert(id);
        }
    }

    /// The ways in use from now on.
    fn take_path(&mut self, now: Instant, id: VipId, path: &[LegPath]) {
        let old = self.run_mut(id).path.replace(path.to_vec());
        let moved = |old: &[LegPath]| old.iter().zip(path).any(|(old, new)| old.ifindex != new.ifindex);
        if old.as_deref().is_some_and(moved) && self.run(id).router.state() != State::Initialize {
            // An interface was made anew under its old name: a new segment, for all we know. The last word goes the
            // old way, to whoever is still there.
            self.run_mut(id).path.clone_from(&old);
            self.route(now, id, Input::Stop);
            self.run_mut(id).path = Some(path.to_vec());
        }
        for (leg, way) in (0..).map(LegId).zip(path) {
            let same = old.as_ref().and_then(|old| old.get(usize::from(leg.0))).is_some_and(|o| o.source == way.source);
            if !same {
                self.route(now, id, Input::Source { leg, source: way.source });
            }
        }
    }

    pub(crate) fn note_fitness(&mut self, now: Instant, id: VipId, plan: &VipPlan) {
        if self.run(id).standing != plan.standing {
            self.run_mut(id).standing = plan.standing;
            self.report_of.insert(id);
        }
        let old = self.run(id).fitness;
        if old == plan.fitness {
            return;
        }
        let vip = self.vip_config(id);
        let balancers = vip.balancers.iter().filter_map(|b| self.world.balancers.get(usize::from(b.0)));
        let balancers = balancers.flat_map(|view| [view.event, view.judged.event]).flatten();
        let checks = vip.checks.iter().filter_map(|c| self.world.checks.get(usize::from(c.0))?.event);
        let operator = self.drain.as_ref().and_then(|d| d.event).or_else(|| self.stop.as_ref().and_then(|s| s.event));
        let withheld = plan.fitness == Fitness::Withheld;
        let cause = if withheld { operator } else { checks.chain(balancers).max() };
        let kind = Kind::VipFitness {
            vip: self.vip_name(id),
            from: fitness_word(old).to_owned(),
            to: fitness_word(plan.fitness).to_owned(),
            why: first_reason(plan),
        };
        let event = self.event(now, cause, kind);
        let run = self.run_mut(id);
        run.fitness = plan.fitness;
        run.fitness_since = now;
        run.fitness_event = event;
        self.report_of.insert(id);
    }

    fn note_priority(&mut self, now: Instant, id: VipId, plan: &VipPlan) {
        let to = match plan.participation {
            Participation::Run { priority } => priority.get(),
            Participation::Off | Participation::Observe => 0,
        };
        let from = std::mem::replace(&mut self.run_mut(id).priority, to);
        if from != to {
            let kind = Kind::VipPriority { vip: self.vip_name(id), from, to, why: first_reason(plan) };
            self.event(now, self.run(id).fitness_event, kind);
            self.report_of.insert(id);
        }
    }

    /// Gives a VIP away: priority 0 and "take it now" first.
    fn leave(&mut self, now: Instant, id: VipId, leave: Leave, plan: &VipPlan) {
        let comes_back = matches!(plan.participation, Participation::Run { .. });
        // What still waits for its flows isn't there to stay.
        let leave = Leave { linger: leave.linger && !self.is_gated(now, id), ..leave };
        let to = leave.to.map(|peer| self.peer_name(peer));
        let kind = Kind::Resign { vip: self.vip_name(id), to, linger: leave.linger, why: first_reason(plan) };
        let event = self.event(now, self.run(id).fitness_event, kind);
        if leave.to.is_none() && self.world.withheld == Some(Withheld::Stopping) {
            let why = "the last node known able to serve stops".to_owned();
            self.event(now, event, Kind::LastNode { vip: self.vip_name(id), why });
        }
        self.note_move(now, id, leave, event);
        if self.view(id).send_failing_since.is_some() {
            let until = now + self.run_mut(id).fault_time(now);
            self.view_mut(id).fault = Some(Fault { kind: FaultKind::SendFails, until });
        }
        let mut until = (!comes_back).then(|| now + self.run(id).router.active_down());
        if let Some(stop) = &self.stop {
            until = Some(until.map_or(stop.linger_until, |until| until.min(stop.linger_until)));
        }
        // To whom it fell while nothing well was known of it, and nothing well since, has nothing to lose.
        let served = self.run(id).served || mutants::off("hold-down-served");
        if !leave.planned && self.world.withheld.is_none() && plan.fitness == Fitness::Unfit && served {
            self.lost(now, id, event);
        }
        self.run_mut(id).cause = event;
        self.route(now, id, if comes_back { Input::Resign } else { Input::Stop });
        let view = self.view_mut(id);
        view.leaving = Some(Leaving { since: now, linger: leave.linger, until, planned: leave.planned, event });
        if let Some(peer) = leave.to {
            view.handed_at = Some(now);
            let role_epoch = view.role_epoch;
            let message = Message::TakeNow { vip: self.vip_name(id), role_epoch, linger: leave.linger };
            self.send_urgent(now, peer, &message);
        }
        self.dirty.units.insert(id);
    }

    /// What the kernel should have, and the steps there.
    fn reconcile(&mut self, now: Instant, until: Instant) {
        self.reconcile_due = false;
        if !self.synced {
            self.reconcile_at = None;
            self.reconcile_join = None;
            return;
        }
        let mut wanted = Wanted { sockets: self.wanted_sockets(), guard: self.wanted_guard(), ..Wanted::default() };
        wanted.flows = self.wanted_flows();
        if self.actual.any_vmac() {
            // Which of them leave, and their addresses with them, is another question each time.
            self.actual.look_at_all();
            let device = |link: &Link| Some((Vmac::named(&link.name)?, link.ifindex));
            wanted.devices = self.world.links.iter().filter_map(device).collect();
        }
        for id in &self.with_extras {
            if let Some(plan) = self.plan.vips.get(usize::from(id.0)) {
                self.want_extras(plan, &mut wanted);
            }
        }
        let diff = diff(&wanted, &mut self.actual, now, until);
        for step in diff.steps {
            self.actual.issued(&step, now);
            let first = matches!(step, Step::OpenVrrp { .. });
            if first { &mut self.out.first } else { &mut self.out.steps }.push(Output::Step(step));
        }
        for key @ (ifindex, ip, _) in diff.added {
            // Else its event announces it: what came before that would be lost, and with it a second.
            if self.is_anycast(&ip) || !self.actual.answers(&key, now) {
                continue;
            }
            self.out.announces.push(Output::Step(Step::Announce { ifindex, ip }));
        }
        self.reconcile_at = diff.next;
        self.reconcile_join = diff.join;
        // What waits for what was done just now.
        let free = |freed: &bool| *freed;
        self.reconcile_again = !(wanted.routes.values().all(free) && wanted.rules.values().all(free));
        self.actual.tidy(now);
        self.write_records();
    }

    /// Refreshes what would wake us before the units do, now that their next deadlines are known.
    pub(crate) fn refresh_early(&mut self, now: Instant) {
        let next = self.timers.first().unwrap_or(now + EARLY);
        let may = self.reconcile_join.is_some_and(|at| at <= now);
        if may && self.reconcile_at.is_some_and(|at| at < next) {
            self.reconcile(now, next);
        }
    }

    /// Tells which addresses of a unit are wanted, now that its plan is another than the one with these.
    fn want_addresses(&mut self, now: Instant, id: VipId, old: &BTreeSet<Key>) {
        let holds_back = self.holds_back(now, id);
        let (Some(run), Some(plan)) = (self.vips.get_mut(usize::from(id.0)), self.plan.vips.get(usize::from(id.0)))
        else {
            return;
        };
        run.holds_back = holds_back;
        old.difference(&plan.addresses).for_each(|key| self.actual.want(*key, Want::No, None));
        let want = if holds_back { Want::Held } else { Want::Yes };
        let anycast = self.config.vips.get(usize::from(id.0)).filter(|vip| vip.anycast());
        let lifetime = anycast.and_then(|vip| Some(vip.bgp.as_ref()?.lifetime(&self.config)));
        plan.addresses.iter().for_each(|key| self.actual.want(*key, want, lifetime));
    }

    /// Units that begin or end to hold their addresses back, of those in hand.
    fn hold_back(&mut self, now: Instant) {
        for id in self.touched.sorted() {
            if self.holds_back(now, id) != self.run(id).holds_back {
                self.want_addresses(now, id, &BTreeSet::new());
                self.reconcile_due = true;
            }
        }
    }

    /// Whether addresses of this unit that aren't there must not be added now.
    fn holds_back(&self, now: Instant, id: VipId) -> bool {
        let view = self.view(id);
        let vanishes = view.fault.is_some_and(|f| f.kind == FaultKind::AddressVanishes && now < f.until);
        vanishes || view.relisten_until.is_some_and(|until| now < until) || self.is_gated(now, id)
    }

    /// Routes and rules of a unit, and whether what they come after is there.
    fn want_extras(&self, plan: &VipPlan, wanted: &mut Wanted) {
        let Extras { incomplete, vmacs, routes, rules } = &plan.extras;
        wanted.vmacs.extend(vmacs);
        if routes.is_empty() && rules.is_empty() {
            return;
        }
        let held = *incomplete || plan.addresses.iter().any(|key| !self.actual.present(key));
        for route in routes {
            let up = self.world.links.get(route.ifindex).is_some_and(|link| link.up);
            *wanted.routes.entry(*route).or_default() |= !held && up;
        }
        let routed = !held && routes.iter().all(|route| self.actual.routes.settled(route));
        for rule in rules {
            *wanted.rules.entry(*rule).or_default() |= routed;
        }
    }

    /// Addresses of units with `accept = false`, from the start to the end of the agent, wherever they are now.
    fn wanted_guard(&self) -> BTreeSet<IpAddr> {
        if self.stop.as_ref().is_some_and(|stop| stop.releasing) {
            return BTreeSet::new();
        }
        let guarded = self.config.vips.iter().filter(|vip| !vip.vrrp.accept);
        guarded.flat_map(|vip| vip.addresses.iter().map(|address| address.ip)).collect()
    }

    /// Announcements that are due, of addresses that are there.
    fn announce(&mut self, now: Instant) {
        let mut issued: Option<BTreeSet<(u32, IpAddr)>> = None;
        for id in self.touched.sorted() {
            let due = self.run_mut(id).announcer.take_due(now);
            let Some(plan) = self.plan.vips.get(usize::from(id.0)) else { continue };
            if !due || self.run(id).router.state() != State::Active {
                continue;
            }
            let issued = issued.get_or_insert_with(|| self.out.announces.iter().filter_map(announced).collect());
            for &(ifindex, ip, prefix) in &plan.addresses {
                let there = self.actual.answers(&(ifindex, ip, prefix), now) && !issued.contains(&(ifindex, ip));
                if there && self.announced.insert((ifindex, ip)) {
                    self.announcements.push_back((ifindex, ip));
                }
            }
        }
        if self.announce_at.is_some_and(|at| now < at) {
            return;
        }
        let batch = self.announcements.len().min(BATCH);
        for (ifindex, ip) in self.announcements.drain(..batch) {
            self.announced.remove(&(ifindex, ip));
            self.out.announces.push(Output::Step(Step::Announce { ifindex, ip }));
        }
        self.announce_at = (batch > 0).then(|| now + BATCH_PAUSE);
    }

    pub(crate) fn announcer(&mut self, id: VipId) -> &mut Announcer {
        &mut self.run_mut(id).announcer
    }
}

fn announced(output: &Output) -> Option<(u32, IpAddr)> {
    match output {
        Output::Step(Step::Announce { ifindex, ip }) => Some((*ifindex, *ip)),
        _ => None,
    }
}

/// The first and weightiest reason, in words.
pub(crate) fn first_reason(plan: &VipPlan) -> String {
    plan.reasons.first().map(ToString::to_string).unwrap_or_default()
}

/// Whether a priority is the one that nobody runs at by choice.
pub(crate) fn is_last_resort(priority: Priority, configured: Priority) -> bool {
    priority == Priority::LAST_RESORT && configured != Priority::LAST_RESORT
}
