//! Observations of the host: links, addresses, how steps ended, balancers and checks.

use crate::checks::Verdict;
use crate::config::{BalancerId, CheckId, HookEvent, Tracked, VipId};
use crate::diff::Key;
use crate::extras::Extras;
use crate::io::{Address, BalancerState, CheckError, Failure, FlowFilter, Link, Output, Step, StepError};
use crate::journal::Kind;
use crate::kernel::{Route, Rule, Vmac};
use crate::mutants;
use crate::node::Node;
use crate::plane::leaves;
use crate::world::{CheckState, Fault, FaultKind};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Additions of an owned address that fail in a row until the VIP can't be held here (10 + 20 + 40 ms).
const ADD_FAILURES: u32 = 3;
/// Foreign addresses remembered per interface; more are ignored (the first ones hold the primary).
const FOREIGN_MAX: usize = 1024;
const VANISH_FAULT: Duration = Duration::from_secs(1);

impl Node {
    pub(crate) fn on_link(&mut self, now: Instant, link: Link) {
        // The same name under another index: the old one is gone, whether or not we were told.
        let stale = self.world.links.named(&link.name).map(|old| old.ifindex).filter(|old| *old != link.ifindex);
        if let Some(ifindex) = stale {
            self.on_link_gone(now, ifindex);
        }
        let old = self.world.links.insert(link.clone());
        if let Some(vmac) = Vmac::named(&link.name) {
            self.actual.vmac_seen(vmac);
        }
        if link.up && old.as_ref().is_some_and(|old| !old.up) {
            self.actual.link_up(link.ifindex);
        }
        let same = old.as_ref().is_some_and(|old| old.up == link.up && old.name == link.name);
        if !same {
            self.dirty.all = true;
            self.legs = None;
            if self.uses(&link.name) {
                let kind = Kind::Link { interface: link.name.as_str().to_owned(), up: link.up, present: true };
                self.event(now, None, kind);
            }
        }
    }

    pub(crate) fn on_link_gone(&mut self, now: Instant, ifindex: u32) {
        let Some(link) = self.world.links.remove(ifindex) else { return };
        self.world.foreign.remove(&ifindex);
        if let Some(vmac) = Vmac::named(&link.name)
            && self.actual.vmac_gone(vmac)
            && let Some(id) = self.unit_with(|extras| extras.vmacs.contains(&vmac))
        {
            self.on_extra_vanished(now, id, format!("device {vmac}"));
        }
        self.actual.link_gone(ifindex);
        self.dirty.all = true;
        self.legs = None;
        if self.uses(&link.name) {
            let kind = Kind::Link { interface: link.name.as_str().to_owned(), up: false, present: false };
            self.event(now, None, kind);
        }
    }

    fn uses(&self, name: &crate::config::InterfaceName) -> bool {
        let on = |vip: &crate::config::Vip| {
            let tracked = |t: &crate::config::Track| matches!(&t.what, Tracked::Interface { name: n, .. } if n == name);
            vip.legs.iter().any(|leg| leg.interface == *name)
                || vip.addresses.iter().any(|a| a.interface == *name)
                || vip.tracks.iter().any(tracked)
        };
        self.config.vips.iter().any(on)
    }

    pub(crate) fn on_address(&mut self, address: Address) {
        let key = (address.ifindex, address.ip, address.prefix);
        if address.marked || self.managed.contains(&address.ip) {
            self.reconcile_due |= !self.actual.present(&key);
            // An IPv6 address is acknowledged before the kernel answers for it; the event comes when it does. An
            // announcement before that makes a neighbour ask in vain, or answer us in vain: each costs it a second.
            let first = self.actual.seen(key);
            if first && key.1.is_ipv6() && !self.is_anycast(&key.1) && self.announced.insert((key.0, key.1)) {
                self.announcements.push_back((key.0, key.1));
            }
            self.note_landed(&key.1);
            self.note_held(&key.1);
            return;
        }
        let foreign = self.world.foreign.entry(address.ifindex).or_default();
        let full = foreign.len() >= FOREIGN_MAX;
        match foreign.iter_mut().find(|a| a.ip == address.ip && a.prefix == address.prefix) {
            Some(known) if *known == address => return,
            Some(known) => *known = address,
            None if full => return,
            None => foreign.push(address),
        }
        self.dirty.all = true;
    }

    pub(crate) fn on_address_gone(&mut self, now: Instant, key: Key) {
        let (ifindex, ip, prefix) = key;
        if let Some(foreign) = self.world.foreign.get_mut(&ifindex) {
            let before = foreign.len();
            foreign.retain(|a| !(a.ip == ip && a.prefix == prefix));
            self.dirty.all |= foreign.len() != before;
        }
        self.record_address(&key.1);
        self.note_lost(&key.1);
        if self.actual.gone(key, now) {
            self.on_vanished(now, key);
        }
    }

    /// An address of ours went away by somebody else's hand: back in this very turn, and announced.
    fn on_vanished(&mut self, now: Instant, key: Key) {
        self.reconcile_due = true;
        let owners = (0..).map(VipId).zip(&self.plan.vips).filter(|(_, plan)| plan.addresses.contains(&key));
        let Some(id) = owners.map(|(id, _)| id).next() else { return };
        self.count("addresses_vanished");
        let address = format!("{}/{}", key.1, key.2);
        let kind = Kind::AddressVanished { vip: self.vip_name(id), address: address.clone() };
        let event = self.event(now, None, kind);
        self.announcer(id).reassert(now);
        self.limit_vanishing(now, id, address, event);
    }

    /// Put back, as often as that is of use.
    fn limit_vanishing(&mut self, now: Instant, id: VipId, address: String, event: Option<u64>) {
        if self.run_mut(id).vanished_too_often(now) {
            let until = now + VANISH_FAULT;
            self.view_mut(id).fault = Some(Fault { kind: FaultKind::AddressVanishes, until });
            let (times, why) = (crate::vip::VANISH_MAX as u32, FaultKind::AddressVanishes.to_string());
            let kind = Kind::AddressFault { vip: self.vip_name(id), address, times, why: why.clone() };
            self.event(now, event, kind);
            self.hooks(id, HookEvent::Fault, &why);
            self.dirty.units.insert(id);
        }
    }

    /// A route, rule or device of ours went away by somebody else's hand: back in this very turn.
    fn on_extra_vanished(&mut self, now: Instant, id: VipId, what: String) {
        self.count("extras_vanished");
        let kind = Kind::AddressVanished { vip: self.vip_name(id), address: what.clone() };
        let event = self.event(now, None, kind);
        self.limit_vanishing(now, id, what, event);
    }

    fn unit_with(&self, test: impl Fn(&Extras) -> bool) -> Option<VipId> {
        (0..).map(VipId).zip(&self.plan.vips).find(|(_, plan)| test(&plan.extras)).map(|(id, _)| id)
    }

    /// All routes and rules that carry our mark. The first time, what nobody wants is a former run's, and goes.
    pub(crate) fn on_ours(&mut self, now: Instant, routes: &[Route], rules: &[Rule]) {
        self.reconcile_due = true;
        let (routes, rules) = (routes.iter().copied().collect(), rules.iter().copied().collect());
        let (lost_routes, lost_rules) = self.actual.resync_ours(&routes, &rules);
        for route in lost_routes {
            if let Some(id) = self.unit_with(|extras| extras.routes.contains(&route)) {
                self.on_extra_vanished(now, id, format!("route {route}"));
            }
        }
        for rule in lost_rules {
            if let Some(id) = self.unit_with(|extras| extras.rules.contains(&rule)) {
                self.on_extra_vanished(now, id, format!("rule {rule}"));
            }
        }
        if std::mem::replace(&mut self.ours_known, true) {
            return;
        }
        let scrubbed_routes = routes.iter().filter(|r| self.unit_with(|e| e.routes.contains(r)).is_none());
        let scrubbed_rules = rules.iter().filter(|r| self.unit_with(|e| e.rules.contains(r)).is_none());
        let said: Vec<(String, u32)> = scrubbed_routes
            .map(|route| (format!("route {route}"), route.ifindex))
            .chain(scrubbed_rules.map(|rule| (format!("rule {rule}"), 0)))
            .collect();
        for (address, ifindex) in said {
            self.event(now, None, Kind::Scrubbed { address, ifindex });
        }
    }

    pub(crate) fn on_resync(&mut self, now: Instant, links: &[Link], addresses: &[Address]) {
        self.count("resyncs");
        let present: BTreeSet<u32> = links.iter().map(|l| l.ifindex).collect();
        let gone: Vec<u32> =
            self.world.links.iter().map(|link| link.ifindex).filter(|i| !present.contains(i)).collect();
        for ifindex in gone {
            self.on_link_gone(now, ifindex);
        }
        for link in links {
            self.on_link(now, link.clone());
        }
        self.world.foreign = BTreeMap::new();
        let mut dump = BTreeSet::new();
        for address in addresses {
            if address.marked || self.managed.contains(&address.ip) {
                dump.insert((address.ifindex, address.ip, address.prefix));
            } else {
                self.on_address(address.clone());
            }
        }
        for key in self.actual.resync(&dump, now) {
            self.on_vanished(now, key);
        }
        if !std::mem::replace(&mut self.synced, true) {
            for address in addresses {
                self.adopt_or_scrub(now, address);
            }
            let resumed = self.world.vips.iter().any(|view| view.resume.is_some());
            for link in links.iter().filter(|link| !resumed && Vmac::named(&link.name).is_some()) {
                let (address, ifindex) = (format!("device {}", link.name), link.ifindex);
                self.event(now, None, Kind::Scrubbed { address, ifindex });
            }
        }
        self.dirty.all = true;
    }

    /// At start: what a former run left behind is ours. What nobody resumes isn't wanted, and the turn removes it.
    fn adopt_or_scrub(&mut self, now: Instant, address: &Address) {
        let key = (address.ifindex, address.ip, address.prefix);
        let resumed = self.config.vips.iter().zip(&self.world.vips).any(|(vip, view)| {
            view.resume.is_some() && vip.addresses.iter().any(|a| a.ip == address.ip && a.prefix == address.prefix)
        });
        let managed = self.managed.contains(&address.ip);
        if resumed {
            self.actual.adopt(key);
        } else if address.marked || managed && mutants::off("scrub-only-marked") {
            self.actual.adopt(key);
            let address = format!("{}/{}", key.1, key.2);
            self.event(now, None, Kind::Scrubbed { address, ifindex: key.0 });
        }
    }

    pub(crate) fn on_step_done(&mut self, now: Instant, step: &Step, result: Result<(), StepError>) {
        if let Step::Balance(balance) = step {
            self.on_balanced(now, balance, result);
            return;
        }
        if let Step::Cut(cut) = step {
            self.on_cut(now, cut, result);
            return;
        }
        let failure = result.as_ref().err().map(|e| e.what.as_str());
        let retry = self.actual.done(step, failure, now);
        if let Step::OpenVrrp { socket } | Step::CloseVrrp { socket } = step {
            self.sockets_changed = true;
            let users = self.legs().users(*socket).to_vec();
            users.into_iter().for_each(|id| self.dirty.units.insert(id));
        }
        match step {
            Step::AddAddress { ip, .. } => {
                self.note_landed(ip);
                if result.is_ok() {
                    self.note_held(ip);
                }
            }
            Step::RemoveAddress { ip, .. } => {
                self.record_address(ip);
                self.note_lost(ip);
            }
            // Addresses may have waited for it.
            Step::Guard { .. } => self.reconcile_due = true,
            _ => {}
        }
        self.reconcile_due |= self.reconcile_again;
        if matches!(step, Step::RemoveRoute { .. } | Step::RemoveRule { .. } | Step::RemoveVmac { .. }) {
            self.record_extras();
        }
        match (result, retry) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => {
                self.event(now, None, Kind::StepRecovered { step: step_text(step) });
            }
            (Err(_), None) => self.count("announcements_failed"),
            (Err(_), Some(retry)) => {
                self.count("steps_failed");
                self.reconcile_due = true;
                let retry_ms = crate::io::age_ms(retry.at, now);
                let kind = Kind::StepFailed { step: step_text(step), why: retry.why, retry_ms };
                let event = self.event(now, None, kind);
                if let Step::AddVmac { vmac } = step
                    && retry.failures >= ADD_FAILURES
                    && let Some(id) = self.unit_with(|extras| extras.vmacs.contains(vmac))
                {
                    self.on_refused(now, id, format!("device {vmac}"), event);
                }
                if let Step::AddAddress { ifindex, ip, prefix, .. } = step
                    && retry.failures >= ADD_FAILURES
                {
                    let key = (*ifindex, *ip, *prefix);
                    let mut owners = (0..).map(VipId).zip(&self.plan.vips);
                    let owner = owners.find(|(_, plan)| plan.addresses.contains(&key)).map(|(id, _)| id);
                    if let Some(id) = owner {
                        self.on_refused(now, id, format!("{ip}/{prefix}"), event);
                    }
                }
            }
        }
    }

    /// An owner without its address (or the device that this is to stand on) would draw traffic into nothing.
    fn on_refused(&mut self, now: Instant, id: VipId, address: String, cause: Option<u64>) {
        if self.view(id).fault.is_some_and(|f| f.kind == FaultKind::AddressRefused && now < f.until) {
            return;
        }
        let until = now + self.run_mut(id).fault_time(now);
        self.view_mut(id).fault = Some(Fault { kind: FaultKind::AddressRefused, until });
        let why = FaultKind::AddressRefused.to_string();
        let kind = Kind::AddressFault { vip: self.vip_name(id), address, times: ADD_FAILURES, why: why.clone() };
        self.event(now, cause, kind);
        self.hooks(id, HookEvent::Fault, &why);
        self.dirty.units.insert(id);
    }

    pub(crate) fn on_balancer(&mut self, now: Instant, id: BalancerId, state: BalancerState) {
        let Some(view) = self.world.balancers.get_mut(usize::from(id.0)) else { return };
        if view.state == state {
            return;
        }
        let (word, why) = match &state {
            BalancerState::Unknown { why } => ("unknown", why.clone()),
            BalancerState::Alive { pid: 0 } => ("alive", "its table is loaded".to_owned()),
            BalancerState::Alive { pid } => ("alive", format!("pid {pid}")),
            BalancerState::Gone { why, .. } => ("gone", why.clone()),
        };
        let died = matches!(state, BalancerState::Gone { .. });
        if !matches!(state, BalancerState::Alive { .. }) {
            view.plane = None;
        }
        view.state = state;
        view.since = now;
        self.dirty.all = true;
        self.report_due = true;
        if died {
            self.forget_checks_of(now, id);
        }
        let name = self.config.balancers.get(usize::from(id.0)).map(|b| b.name.as_str().to_owned());
        let kind = Kind::BalancerState { balancer: name.unwrap_or_default(), state: word.to_owned(), why };
        let event = self.event(now, None, kind);
        if let Some(view) = self.world.balancers.get_mut(usize::from(id.0)) {
            view.event = event;
        }
        self.judge_balancer(now, id);
    }

    /// A dead balancer's results say nothing of the one that is started in its place, however soon that is.
    fn forget_checks_of(&mut self, now: Instant, balancer: BalancerId) {
        let theirs = |vip: &&crate::config::Vip| vip.balancers.contains(&balancer);
        let checks: BTreeSet<CheckId> =
            self.config.vips.iter().filter(theirs).flat_map(|vip| vip.checks.iter().copied()).collect();
        for id in checks {
            if self.config.checks.get(usize::from(id.0)).is_some_and(|check| !check.shared) {
                self.checks.forget(id, now, &self.config.checks, &mut self.world.checks);
                self.note_result(now, id, None);
                let mut members = Vec::new();
                leaves(&self.config, id, &mut |member, _| members.push(member));
                members.into_iter().filter(|member| *member != id).for_each(|id| self.note_result(now, id, None));
            }
        }
        for id in self.ids() {
            let assumed = self.view(id).assumed_fit_until.is_some();
            if assumed && self.vip_config(id).balancers.contains(&balancer) {
                self.view_mut(id).assumed_fit_until = None;
            }
        }
    }

    pub(crate) fn run_checks(&mut self, now: Instant) {
        if self.checks.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        let (verdicts, starts) = self.checks.timer(now, &self.config.checks, &mut self.world.checks);
        for verdict in verdicts {
            self.on_verdict(now, verdict, Failure::Silent);
        }
        for start in starts {
            let (check, sequence, timeout) = (start.check, start.sequence, start.timeout);
            self.out.rest.push(Output::StartCheck { check, sequence, timeout });
        }
    }

    pub(crate) fn on_check_done(
        &mut self,
        now: Instant,
        id: CheckId,
        sequence: u64,
        result: Result<(), CheckError>,
        note: Option<String>,
    ) {
        // An answer that was good but late is as good as none.
        let how = result.as_ref().err().map_or(Failure::Silent, |e| e.how);
        let failure = result.err().map(|e| e.what);
        if let Some(id) = self.backend_check(id) {
            self.on_backend_check(now, id, sequence, failure);
            return;
        }
        let outcome = (failure, note);
        let verdicts = self.checks.done(now, id, sequence, outcome, &self.config.checks, &mut self.world.checks);
        for verdict in verdicts {
            self.on_verdict(now, verdict, how);
        }
    }

    /// `how`: it failed, if it did.
    fn on_verdict(&mut self, now: Instant, verdict: Verdict, how: Failure) {
        let index = usize::from(verdict.check.0);
        let name = self.config.checks.get(index).map(|c| c.name.as_str().to_owned()).unwrap_or_default();
        let before = self.world.checks.get(index).and_then(|view| view.event);
        // A group fails as the member did that made it fail.
        let failed = verdict.failure.is_some() || verdict.changed == Some(CheckState::Failed);
        let mut event = before;
        if verdict.noted {
            let note = self.checks.counts(verdict.check).note.unwrap_or_default().to_owned();
            self.event(now, None, Kind::CheckNote { check: name.clone(), note });
        }
        if let Some(why) = &verdict.failure {
            self.count("probes_failed");
            let kind = Kind::ProbeFailed { check: name.clone(), sequence: verdict.sequence, why: why.clone() };
            event = self.event(now, None, kind).or(before);
        }
        if let Some(state) = verdict.changed {
            let passed = state == CheckState::Passed;
            let why = verdict.failure.or(verdict.why).unwrap_or_default();
            let cause = if passed { None } else { event };
            event = self.event(now, cause, Kind::CheckState { check: name, passed, why }).or(event);
        }
        self.dirty.all |= verdict.news;
        if let Some(view) = self.world.checks.get_mut(index) {
            view.event = event;
        }
        self.note_result(now, verdict.check, failed.then_some(how));
    }
}

fn step_text(step: &Step) -> String {
    match step {
        Step::AddAddress { ifindex, ip, prefix, .. } => format!("add {ip}/{prefix} on interface {ifindex}"),
        Step::RemoveAddress { ifindex, ip, prefix } => format!("remove {ip}/{prefix} from interface {ifindex}"),
        Step::Announce { ifindex, ip } => format!("announce {ip} on interface {ifindex}"),
        Step::OpenVrrp { socket } => format!("open {socket}"),
        Step::CloseVrrp { socket } => format!("close {socket}"),
        Step::AddRoute { route } => format!("add route {route} on interface {}", route.ifindex),
        Step::RemoveRoute { route } => format!("remove route {route} from interface {}", route.ifindex),
        Step::AddRule { rule } => format!("add rule {rule}"),
        Step::RemoveRule { rule } => format!("remove rule {rule}"),
        Step::Guard { addresses } => format!("guard {} addresses from traffic", addresses.len()),
        Step::EventFilter { filter: FlowFilter::Off } => "have the kernel no longer tell of flows".to_owned(),
        Step::EventFilter { .. } => "have the kernel tell of flows".to_owned(),
        Step::AddVmac { vmac } => format!("add device {vmac} on interface {}", vmac.parent),
        Step::Balance(balance) => crate::pool::balance_text(balance),
        Step::Cut(cut) => crate::pool::cut_text(cut),
        Step::RemoveVmac { vmac } => format!("remove device {vmac} from interface {}", vmac.parent),
    }
}
