//! From evidence to a verdict: a pure function of what is known of one balancer.

use super::{PlaneView, Sign, Verdict};
use crate::config::{BalancerId, BalancerKind, Check, CheckId, Config, Probe};
use crate::io::{Admin, BalancerState, Failure};
use crate::mutants;
use crate::world::{CheckState, Failing, World};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Checks that are named among the signs; of the others only the number is told.
const NAMED: usize = 8;

/// A check that asks a balancer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asking {
    pub check: CheckId,
    /// What VIPs name that it counts for: itself, or groups. A member says nothing of the balancer while its group
    /// doesn't mind.
    named: BTreeSet<CheckId>,
}

/// Whether what a check finds by itself says something of a balancer.
pub(crate) fn asks_balancer(check: &Check) -> bool {
    let asks = match check.probe {
        Probe::Http(_) | Probe::Tcp(_) | Probe::Tls(_) | Probe::Udp(_) | Probe::Unix(_) | Probe::Exec { .. } => true,
        Probe::File(_) | Probe::Address { .. } | Probe::Gateway { .. } | Probe::Canary(_) | Probe::Group(_) => false,
    };
    asks && !check.shared
}

/// Within this time a check that failed passes, once there is nothing any more that makes it fail.
pub(crate) fn recovers(check: &Check) -> Duration {
    let further = u32::from(check.rise).saturating_sub(1);
    check.interval + check.timeout + check.fast_interval.max(check.timeout) * further
}

/// The checks behind one that a VIP names: itself, or of a group those that are members to the last.
pub(crate) fn leaves<'c>(config: &'c Config, id: CheckId, each: &mut impl FnMut(CheckId, &'c Check)) {
    let Some(check) = config.checks.get(usize::from(id.0)) else { return };
    if !matches!(check.probe, Probe::Group(_)) {
        return each(id, check);
    }
    // Members stand before their group: this ends.
    check.probe.members().filter(|member| *member < id).for_each(|member| leaves(config, member, each));
}

/// Whether a check that a VIP names asks its balancer: by itself, or by a member.
pub(crate) fn asks(config: &Config, id: CheckId) -> bool {
    let mut asks = false;
    leaves(config, id, &mut |_, check| asks |= asks_balancer(check));
    asks && config.checks.get(usize::from(id.0)).is_some_and(|check| !check.shared)
}

/// The checks that ask a balancer, in order: of every VIP that it serves, and the members of its groups.
pub(crate) fn checks_of(config: &Config, balancer: BalancerId) -> Vec<Asking> {
    let mut asking: BTreeMap<CheckId, BTreeSet<CheckId>> = BTreeMap::new();
    let vips = config.vips.iter().filter(|vip| vip.balancers.contains(&balancer));
    for named in vips.flat_map(|vip| vip.checks.iter().copied()) {
        if config.checks.get(usize::from(named.0)).is_some_and(|check| check.shared) {
            continue;
        }
        leaves(config, named, &mut |id, check| {
            let group = id != named;
            if asks_balancer(check) && !(group && mutants::off("group-members-ask")) {
                asking.entry(id).or_default().insert(named);
            }
        });
    }
    asking.into_iter().map(|(check, named)| Asking { check, named }).collect()
}

/// The verdict on a balancer and the signs that it rests on, the weightiest first. `checks`: as [`checks_of`] gives.
pub(crate) fn judge(
    config: &Config,
    world: &World,
    now: Instant,
    id: BalancerId,
    checks: &[Asking],
) -> (Verdict, Vec<Sign>) {
    let Some(view) = world.balancers.get(usize::from(id.0)) else { return (Verdict::Unknown, Vec::new()) };
    match &view.state {
        BalancerState::Gone { why, .. } => return (Verdict::Dead, vec![Sign::Gone(why.clone())]),
        BalancerState::Unknown { why } => return (Verdict::Unknown, vec![Sign::NotFound(why.clone())]),
        BalancerState::Alive { .. } => {}
    }
    let mut signs = Vec::new();
    let plane = view.plane.as_ref().filter(|plane| plane.fresh(now));
    // `mute`: it doesn't answer; `silent`: though somebody may be there; `lasting`: and not only from when it was full.
    let (mut mute, mut silent, mut lasting) = (false, false, false);
    let (mut answered, mut unknown, mut more) = (false, false, 0);
    let state = |id: &CheckId| world.checks.get(usize::from(id.0)).map(|view| view.state);
    for Asking { check, named } in checks {
        let index = usize::from(check.0);
        let (Some(check), Some(seen)) = (config.checks.get(index), world.checks.get(index)) else { continue };
        if !named.iter().any(|named| state(named) == Some(seen.state)) {
            continue;
        }
        let failing = world.failing.get(index).and_then(|failing| failing.as_ref());
        // What failed while it was full has the time to pass again. Nobody has that excuse who doesn't listen any more.
        let passes_soon = |failing: &Failing| {
            let full = |plane: &PlaneView| plane.was_full(now, failing.since, recovers(check));
            failing.how != Failure::Refused && plane.is_some_and(full)
        };
        let sign: fn(String) -> Sign = match (seen.state, failing.map(|failing| failing.how)) {
            (CheckState::Failed, Some(Failure::Answered)) => {
                answered = true;
                Sign::CheckAnswered
            }
            (CheckState::Failed, how) => {
                mute = true;
                lasting |= !failing.is_some_and(passes_soon);
                // An idle process spends no time either: who doesn't listen any more needn't hang.
                silent |= how != Some(Failure::Refused) || mutants::off("refused-is-not-hung");
                // Another failure, or none: it has begun to pass again, and hasn't passed often enough.
                if how == Some(Failure::Silent) { Sign::CheckSilent } else { Sign::CheckFails }
            }
            (CheckState::Unknown, _) => {
                unknown = true;
                Sign::CheckUnknown
            }
            (CheckState::Passed, _) => continue,
        };
        if signs.len() < NAMED {
            signs.push(sign(check.name.as_str().to_owned()));
        } else {
            more += 1;
        }
    }
    if more > 0 {
        signs.push(Sign::MoreChecks(more));
    }
    let Some(plane) = plane else {
        let verdict = match (mute, answered, unknown) {
            (true, ..) => Verdict::Failing,
            (_, true, _) => Verdict::Sick,
            (.., true) => Verdict::Unknown,
            _ => Verdict::Serving,
        };
        return (verdict, signs);
    };
    let report = &plane.report;
    match &report.admin {
        Admin::Silent { why } => signs.push(Sign::AdminSilent(why.clone())),
        // An answer is worth telling where something else is wrong.
        Admin::Answers { took } if mute || answered => signs.push(Sign::AdminAnswers(*took)),
        Admin::Answers { .. } | Admin::NotConfigured => {}
    }
    let stuck = plane.no_progress().filter(|sign| *sign == Sign::Stopped || plane.says_nothing() && silent);
    let full: Vec<Sign> = plane.full().collect();
    // nginx answers for itself through the workers that are full.
    let same = config.balancers.get(usize::from(id.0)).is_some_and(|b| b.kind == BalancerKind::Nginx);
    let saturated = (!full.is_empty() || mute && !lasting) && plane.works(same);
    signs.extend(full);
    let empty = report.backends.filter(|pool| pool.up == 0 && pool.total > 0);
    match (empty, report.backends) {
        (Some(pool), _) => signs.push(Sign::NoBackend(pool)),
        (None, Some(pool)) if answered => signs.push(Sign::Backends(pool)),
        _ => {}
    }
    let hangs = stuck.is_some() && plane.says_nothing();
    signs.extend(stuck);
    if report.leaving {
        signs.push(Sign::Leaving);
    }
    if !report.supervised {
        signs.push(Sign::NoMaster);
    }
    if report.reload.failed > 0 {
        signs.push(Sign::ReloadFailed(report.reload.failed));
    }
    if report.reload.running {
        signs.push(Sign::Reloads(report.reload.old.len()));
    }
    // Without a check the looks must do; one that has a check waits for its `fall`.
    let hung = if checks.is_empty() { plane.hangs_by_looks() } else { silent && hangs };
    let verdict = if hung {
        Verdict::Hung
    } else if mute && !saturated {
        Verdict::Failing
    } else if empty.is_some() {
        Verdict::PoolEmpty
    } else if answered {
        Verdict::Sick
    } else if report.leaving {
        Verdict::Leaving
    } else if saturated {
        Verdict::Saturated
    } else if unknown {
        Verdict::Unknown
    } else if !report.supervised {
        Verdict::Unsupervised
    } else if report.reload.failed > 0 {
        Verdict::BadReload
    } else if report.reload.running {
        Verdict::Reloading
    } else {
        Verdict::Serving
    };
    (verdict, signs)
}
