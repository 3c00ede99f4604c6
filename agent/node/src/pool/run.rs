//! The node's part: verdicts of backend checks, operators' drains, and the steps to the kernel.

use super::{Balance, Cut, Pools};
use crate::checks::Verdict;
use crate::config::{BalancerId, BalancerKind, CheckId};
use crate::io::{Answer, BalancerState, Output, PlaneReport, Pool, Step, StepError};
use crate::journal::Kind;
use crate::node::Node;
use crate::world::CheckState;
use holdfast_statesync::channel::Input;
use holdfast_statesync::message::Message;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// See [`Node::tell_fingerprint`].
const REPORTS: u64 = 10;

/// It would leave a service without any backend.
pub const LAST_BACKEND: &str = "last-backend";
/// No service has such a backend.
pub const NO_BACKEND: &str = "no-such-backend";

impl Node {
    /// Everything of the embedded balancer that is due.
    pub(crate) fn run_pools(&mut self, now: Instant) {
        let Some(pools) = &mut self.pools else { return };
        let (verdicts, starts) = pools.run_checks(now);
        pools.ramp(now);
        for verdict in verdicts {
            self.on_backend_verdict(now, verdict);
        }
        let first = self.config.checks.len();
        for start in starts {
            let Ok(id) = u16::try_from(first + usize::from(start.check.0)) else { continue };
            let (check, sequence, timeout) = (CheckId(id), start.sequence, start.timeout);
            self.out.rest.push(Output::StartCheck { check, sequence, timeout });
        }
    }

    /// A check's id as one of [`crate::config::Nft::probes`], if it is one of these.
    pub(crate) fn backend_check(&self, id: CheckId) -> Option<CheckId> {
        let at = usize::from(id.0).checked_sub(self.config.checks.len())?;
        self.pools.as_ref()?;
        u16::try_from(at).ok().map(CheckId)
    }

    pub(crate) fn on_backend_check(&mut self, now: Instant, id: CheckId, sequence: u64, failure: Option<String>) {
        let Some(pools) = &mut self.pools else { return };
        for verdict in pools.check_done(now, id, sequence, failure) {
            self.on_backend_verdict(now, verdict);
        }
    }

    fn on_backend_verdict(&mut self, now: Instant, verdict: Verdict) {
        let Some(pools) = &mut self.pools else { return };
        let index = usize::from(verdict.check.0);
        let name = pools.backend_name(index);
        let before = pools.views.get(index).and_then(|view| view.event);
        let mut event = before;
        if let Some(why) = &verdict.failure {
            self.count("backend_probes_failed");
            let kind = Kind::ProbeFailed { check: name.clone(), sequence: verdict.sequence, why: why.clone() };
            event = self.event(now, None, kind).or(before);
        }
        let Some(state) = verdict.changed else { return };
        let up = state == CheckState::Passed;
        let why = verdict.failure.unwrap_or_default();
        let cause = if up { None } else { event };
        let event = self.event(now, cause, Kind::BackendState { backend: name, up, why }).or(event);
        let Some(pools) = &mut self.pools else { return };
        if let Some(view) = pools.views.get_mut(index) {
            view.event = event;
        }
        let modes: Vec<_> = pools.sets.iter().map(|set| set.mode).collect();
        pools.checked(now, verdict.check);
        let mut said = Vec::new();
        for (id, (set, before)) in (0..).map(crate::config::SetId).zip(pools.sets.iter().zip(modes)) {
            if set.mode != before {
                let (up, all) = set.healthy();
                said.push(Kind::PoolMode {
                    pool: pools.service_of(id),
                    mode: set.mode.word().to_owned(),
                    why: format!("{up} of {all} backends are healthy"),
                });
            }
        }
        for kind in said {
            self.event(now, event, kind);
        }
        self.tell_pool(now);
    }

    /// What the balancer's verdict is made of.
    fn tell_pool(&mut self, now: Instant) {
        let (Some(pools), Some(id)) = (&self.pools, self.nft_balancer()) else { return };
        // The service that is worst off speaks for all; one that has been drained of everything says nothing.
        let sets = pools.sets.iter().map(super::set::SetRun::healthy).filter(|(_, all)| *all > 0);
        let worst = sets.min_by_key(|(up, all)| up * 1_000 / all);
        let (up, total) = worst.unwrap_or_default();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let backends = Some(Pool { up: count(up), total: count(total) });
        self.on_plane(now, id, PlaneReport { backends, ..PlaneReport::default() });
    }

    /// With every tenth report the peers hear whether this node's table is theirs.
    pub(crate) fn tell_fingerprint(&mut self, now: Instant) {
        let (Some(pools), Some(channel)) = (&self.pools, &mut self.channel) else { return };
        if self.report_sequence.is_multiple_of(REPORTS) {
            let message = Message::Pool { fingerprint: pools.fingerprint() };
            channel.handle(now, Input::Broadcast { message: &message });
        }
    }

    /// The balancer that this is.
    pub(crate) fn nft_balancer(&self) -> Option<BalancerId> {
        let at = self.config.balancers.iter().position(|balancer| balancer.kind == BalancerKind::Nft)?;
        u16::try_from(at).ok().map(BalancerId)
    }

    /// The next step to the kernel, if there is one to be taken now. From the first look at the kernel to the end of
    /// the agent, whoever owns the VIPs: a backup that takes over is ready.
    pub(crate) fn balance(&mut self, now: Instant) {
        let wanted = !self.stop.as_ref().is_some_and(|stop| stop.releasing);
        if wanted && !self.synced {
            return;
        }
        let Some(pools) = self.pools.as_mut() else {
            // A former configuration may have had services.
            let unload = self.former_table.as_mut().and_then(|kernel| kernel.unload(now));
            self.out.steps.extend(unload.map(|balance| Output::Step(Step::Balance(balance))));
            return;
        };
        let late = pools.kernel.poll_timeout().is_some_and(|at| at <= now);
        if std::mem::take(&mut pools.due) || !wanted || late {
            let balance = pools.kernel.next(now, wanted, &pools.services, &pools.sets);
            self.out.steps.extend(balance.map(|balance| Output::Step(Step::Balance(balance))));
        }
        if wanted && pools.kernel.is_settled() {
            let cut = pools.cuts.next(now, &pools.services, &pools.sets);
            self.out.steps.extend(cut.map(|cut| Output::Step(Step::Cut(cut))));
        }
    }

    pub(crate) fn on_cut(&mut self, now: Instant, cut: &Cut, result: Result<(), StepError>) {
        let failure = result.err().map(|e| e.what);
        let Some(pools) = self.pools.as_mut() else { return };
        if !pools.cuts.done(now, cut, failure.is_none()) {
            return;
        }
        let retry_ms = pools.cuts.poll_timeout().map_or(0, |at| crate::io::age_ms(at, now));
        if let Some(why) = failure {
            self.count("steps_failed");
            self.event(now, None, Kind::StepFailed { step: cut_text(cut), why, retry_ms });
        }
    }

    /// An address of ours is here.
    pub(crate) fn note_held(&mut self, ip: &IpAddr) {
        self.pools.iter_mut().for_each(|pools| pools.cuts.took(ip));
    }

    /// It isn't any more.
    pub(crate) fn note_lost(&mut self, ip: &IpAddr) {
        self.pools.iter_mut().for_each(|pools| pools.cuts.lost(ip));
    }

    pub(crate) fn on_balanced(&mut self, now: Instant, balance: &Balance, result: Result<(), StepError>) {
        let kernel = self.pools.as_mut().map(|pools| &mut pools.kernel).or(self.former_table.as_mut());
        let Some(kernel) = kernel else { return };
        let failed_before = kernel.why.is_some();
        let failure = result.err().map(|e| e.what);
        if !kernel.done(now, balance, failure.clone()) {
            return;
        }
        let retry_ms = kernel.poll_timeout().map_or(0, |at| crate::io::age_ms(at, now));
        self.former_table.take_if(|kernel| kernel.is_clean());
        if let Some(pools) = &mut self.pools {
            // What changed meanwhile.
            pools.due = true;
            pools.cuts.look();
        }
        let step = balance_text(balance);
        let state = match failure {
            Some(why) => {
                self.count("steps_failed");
                self.event(now, None, Kind::StepFailed { step, why: why.clone(), retry_ms });
                BalancerState::Gone { pid: 0, why }
            }
            None => {
                if failed_before {
                    self.event(now, None, Kind::StepRecovered { step });
                }
                BalancerState::Alive { pid: 0 }
            }
        };
        if *balance == Balance::Unload {
            return;
        }
        if let Some(id) = self.nft_balancer() {
            self.on_balancer(now, id, state);
        }
        self.tell_pool(now);
    }

    /// Somebody else changed or flushed our table: it comes back as a whole.
    pub(crate) fn on_table_touched(&mut self, now: Instant) {
        let Some(pools) = &mut self.pools else { return };
        if pools.kernel.touched(now) {
            self.count("tables_touched");
            self.event(now, None, Kind::TableTouched);
        }
        if let Some(pools) = &mut self.pools {
            pools.due = true;
        }
    }

    /// `pool drain` and `pool undrain`.
    pub(crate) fn on_pool_request(&mut self, now: Instant, token: u64, who: String, backend: &str, drain: bool) {
        let refused = |interlock: &str, why: String| Answer::Refused { interlock: interlock.to_owned(), why };
        let Some(pools) = &mut self.pools else {
            let why = "this node has no [[nft.service]]".to_owned();
            self.answer(token, refused(NO_BACKEND, why));
            return;
        };
        let named = pools.named(backend);
        if named.is_empty() {
            let some: BTreeSet<SocketAddr> = pools.sets.iter().flat_map(|s| s.addresses.iter().copied()).collect();
            let known: Vec<String> = some.iter().take(16).map(ToString::to_string).collect();
            let why = format!("{backend} is no backend here; there are {}", known.join(", "));
            self.answer(token, refused(NO_BACKEND, why));
            return;
        }
        if let Some(set) = pools.emptied_by(&named).filter(|_| drain) {
            let why = format!("{} would have no backend left", pools.service_of(set));
            self.answer(token, refused(LAST_BACKEND, why));
            return;
        }
        pools.drain(now, &named, drain);
        let texts: Vec<String> = named.iter().map(ToString::to_string).collect();
        for address in named {
            if drain {
                self.intents.backends.insert(address);
            } else {
                self.intents.backends.remove(&address);
            }
        }
        self.out.rest.push(Output::Persist(self.intents.clone()));
        let backend = texts.join(", ");
        self.event(now, None, Kind::BackendDrained { who, backend: backend.clone(), drained: drain });
        let done = if drain {
            format!("{backend}: no new flows from this node; those that are established go on")
        } else {
            format!("{backend}: takes new flows from this node again")
        };
        self.answer(token, Answer::Done(done));
        self.tell_pool(now);
    }
}

/// For journal and messages.
pub(crate) fn balance_text(balance: &Balance) -> String {
    match balance {
        Balance::Load(ruleset) => format!("load {} services over {} sets", ruleset.services.len(), ruleset.sets.len()),
        Balance::Change(changes) => {
            let slots: usize = changes.iter().map(|change| change.slots.len()).sum();
            format!("change {slots} slots of {} sets", changes.len())
        }
        Balance::Unload => "remove the balancing table".to_owned(),
    }
}

/// For journal and messages.
pub(crate) fn cut_text(cut: &Cut) -> String {
    format!("forget flows of {} services whose backend is down", cut.services.len())
}

impl Pools {
    /// The backend that a check is of, for people.
    fn backend_name(&self, check: usize) -> String {
        let user = self.users.get(check).and_then(|users| users.first());
        let address = user.and_then(|(set, backend)| self.sets.get(*set)?.addresses.get(*backend));
        address.map(ToString::to_string).unwrap_or_default()
    }

    /// Nothing of ours is in the kernel, and no change is on its way.
    pub(crate) fn is_clean(&self) -> bool {
        self.kernel.is_clean()
    }
}
