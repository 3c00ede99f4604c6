//! Looks at balancers, results of checks and the connection table become observations, and these verdicts.

use super::{Asking, Evidence, PlaneView, Verdict, judge};
use crate::config::{BalancerId, BalancerKind, CheckId, VipId};
use crate::io::{BalancerState, Failure, OLD_WORKERS_MAX, Output, PlaneReport, age_ms};
use crate::journal::Kind;
use crate::node::Node;
use crate::world::{CheckState, Failing};
use std::time::Instant;

impl Node {
    /// A look at a balancer.
    pub(crate) fn on_plane(&mut self, now: Instant, id: BalancerId, mut report: PlaneReport) {
        let Some(balancer) = self.config.balancers.get(usize::from(id.0)) else { return };
        // Nobody looks at our own table: what was last told of it stands until something else is.
        let poll = (balancer.kind != BalancerKind::Nft).then_some(balancer.poll);
        let Some(view) = self.world.balancers.get_mut(usize::from(id.0)) else { return };
        // A look that was under way when it died says nothing of the next one.
        if !matches!(view.state, BalancerState::Alive { .. }) {
            self.count("looks_late");
            return;
        }
        report.reload.old.truncate(OLD_WORKERS_MAX);
        match &mut view.plane {
            Some(plane) => plane.take(now, report),
            None => view.plane = Some(PlaneView::new(now, report, poll)),
        }
        self.judge_balancer(now, id);
    }

    /// How a check ended: `None`, well (or what it said so far says nothing any more).
    pub(crate) fn note_result(&mut self, now: Instant, id: CheckId, failure: Option<Failure>) {
        let fall = self.config.checks.get(usize::from(id.0)).map_or(1, |check| u32::from(check.fall));
        let passes = self.world.checks.get(usize::from(id.0)).is_some_and(|view| view.state != CheckState::Failed);
        let Some(failing) = self.world.failing.get_mut(usize::from(id.0)) else { return };
        let before = *failing;
        match (failure, failing.as_mut()) {
            (Some(how), Some(failing)) => failing.again(how, fall),
            (Some(how), None) => *failing = Some(Failing { how, mute: 0, since: now }),
            (None, _) if passes => *failing = None,
            (None, _) => {}
        }
        let (begins, changed) =
            (before.is_none() && failing.is_some(), before.map(|f| f.how) != failing.map(|f| f.how));
        for balancer in (0..).map(BalancerId).take(self.asking.len()) {
            let asks = |checks: &Vec<Asking>| checks.binary_search_by_key(&id, |asking| asking.check).is_ok();
            if !self.asking.get(usize::from(balancer.0)).is_some_and(asks) {
                continue;
            }
            if begins {
                self.out.rest.push(Output::Look { balancer });
            }
            // Once in a turn, however many checks end in it.
            self.judge_due |= changed;
        }
    }

    /// Judges all of them anew.
    pub(crate) fn judge_balancers(&mut self, now: Instant) {
        (0..).map(BalancerId).take(self.asking.len()).for_each(|id| self.judge_balancer(now, id));
    }

    /// Judges one balancer anew.
    pub(crate) fn judge_balancer(&mut self, now: Instant, id: BalancerId) {
        let Some(checks) = self.asking.get(usize::from(id.0)) else { return };
        let (verdict, signs) = judge(&self.config, &self.world, now, id, checks);
        let because = checks.iter().filter_map(|c| self.world.checks.get(usize::from(c.check.0))?.event).max();
        let Some(view) = self.world.balancers.get_mut(usize::from(id.0)) else { return };
        let old = std::mem::take(&mut view.judged.evidence);
        let since = |sign: &_| old.iter().find(|e| e.sign.same_kind(sign)).map_or(now, |e| e.since);
        view.judged.evidence = signs.into_iter().map(|sign| Evidence { since: since(&sign), sign }).collect();
        let from = std::mem::replace(&mut view.judged.verdict, verdict);
        if from == verdict {
            return;
        }
        view.judged.since = now;
        let (why, state_event) = (view.judged.why(), view.event);
        self.dirty.all = true;
        self.report_due = true;
        // What is plain from its processes and checks has its own entry already.
        if plain(from) && plain(verdict) {
            return;
        }
        let balancer = self.config.balancers.get(usize::from(id.0)).map(|b| b.name.as_str().to_owned());
        let (from, to) = (from.word().to_owned(), verdict.word().to_owned());
        let kind = Kind::BalancerVerdict { balancer: balancer.unwrap_or_default(), from, to, why };
        let cause = because.max(state_event);
        let event = self.event(now, cause, kind);
        if let Some(view) = self.world.balancers.get_mut(usize::from(id.0)) {
            view.judged.event = event;
        }
    }

    /// A VIP is given away because this node can't serve it, or serves it badly.
    pub(crate) fn lost(&mut self, now: Instant, id: VipId, cause: Option<u64>) {
        if let Some(time) = self.view_mut(id).hold_down.lost(now) {
            let kind = Kind::HeldDown { vip: self.vip_name(id), for_ms: age_ms(now + time, now) };
            self.event(now, cause, kind);
        }
    }
}

const fn plain(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Unknown | Verdict::Serving | Verdict::Dead | Verdict::Failing)
}
