//! From evidence to a verdict: a pure function of what is known of one balancer.

use super::{Sign, Verdict};
use crate::config::{BalancerId, BalancerKind, Check, CheckId, Config, Probe};
use crate::io::{Admin, BalancerState, Failure};
use crate::world::{CheckState, World};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Checks that are named among the signs; of the others only the number is told.
const NAMED: usize = 8;

/// Whether what a check finds says something of a balancer.
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

/// The checks that ask a balancer: of every VIP that it serves.
pub(crate) fn checks_of(config: &Config, balancer: BalancerId) -> Vec<CheckId> {
    let vips = config.vips.iter().filter(|vip| vip.balancers.contains(&balancer));
    let checks: BTreeSet<CheckId> = vips.flat_map(|vip| vip.checks.iter().copied()).collect();
    let asks = |id: &CheckId| config.checks.get(usize::from(id.0)).is_some_and(asks_balancer);
    checks.into_iter().filter(asks).collect()
}

/// The verdict on a balancer and the signs that it rests on, the weightiest first. `checks`: as [`checks_of`] gives.
pub(crate) fn judge(
    config: &Config,
    world: &World,
    now: Instant,
    id: BalancerId,
    checks: &[CheckId],
) -> (Verdict, Vec<Sign>) {
    let Some(view) = world.balancers.get(usize::from(id.0)) else { return (Verdict::Unknown, Vec::new()) };
    match &view.state {
        BalancerState::Gone { why, .. } => return (Verdict::Dead, vec![Sign::Gone(why.clone())]),
        BalancerState::Unknown { why } => return (Verdict::Unknown, vec![Sign::NotFound(why.clone())]),
        BalancerState::Alive { .. } => {}
    }
    let mut signs = Vec::new();
    let (mut mute, mut answered, mut unknown, mut more) = (false, false, false, 0);
    for id in checks {
        let index = usize::from(id.0);
        let (Some(check), Some(seen)) = (config.checks.get(index), world.checks.get(index)) else { continue };
        let sign: fn(String) -> Sign =
            match (seen.state, world.failing.get(index).and_then(|f| f.as_ref()).map(|f| f.how)) {
                (CheckState::Failed, Some(Failure::Answered)) => {
                    answered = true;
                    Sign::CheckAnswered
                }
                (CheckState::Failed, Some(Failure::Silent)) => {
                    mute = true;
                    Sign::CheckSilent
                }
                // It has begun to pass again, and hasn't passed often enough: what it failed by before.
                (CheckState::Failed, Some(Failure::Refused | Failure::Other) | None) => {
                    mute = true;
                    Sign::CheckFails
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
    let Some(plane) = view.plane.as_ref().filter(|plane| plane.fresh(now)) else {
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
    let stuck = plane.no_progress().filter(|sign| *sign == Sign::Stopped || plane.says_nothing() && mute);
    let full: Vec<Sign> = plane.full().collect();
    // nginx answers for itself through the workers that are full.
    let same = config.balancers.get(usize::from(id.0)).is_some_and(|b| b.kind == BalancerKind::Nginx);
    // What failed while it was full has the time to pass again. Nobody has that excuse who doesn't listen any more.
    let silent = |id: &CheckId| {
        let (check, failing) = (config.checks.get(usize::from(id.0))?, world.failing.get(usize::from(id.0))?.as_ref()?);
        (failing.how != Failure::Answered).then_some((check, failing))
    };
    let was_full = mute
        && checks.iter().filter_map(silent).all(|(check, failing)| {
            failing.how != Failure::Refused && plane.was_full(now, failing.since, recovers(check))
        });
    let saturated = (!full.is_empty() || was_full) && plane.works(same);
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
    let hung = if checks.is_empty() { plane.hangs_by_looks() } else { mute && hangs };
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
