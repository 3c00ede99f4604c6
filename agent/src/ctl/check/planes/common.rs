//! What is the same for all planes.

use super::model::{Bind, Front, OurCheck, Ours, OwnAnswer, Plane, many, shown};
use std::net::IpAddr;
use std::time::Duration;

/// A check this much slower than the plane's own, and …
const SLOWER: u32 = 4;
/// … slower than this is told.
const SLOW: Duration = Duration::from_secs(10);
/// Checks of one backend in a second that are no load.
const PROBES_FINE: f64 = 10.0;

/// Holds a plane against what we do.
pub(super) fn judge(plane: &mut Plane, ours: &Ours) {
    nonlocal(plane, ours);
    for check in &ours.checks {
        judge_check(plane, check, ours);
    }
    rates(plane, ours);
}

fn nonlocal(plane: &mut Plane, ours: &Ours) {
    let binds: Vec<Bind> = plane.fronts.iter().flat_map(|front| front.binds.clone()).collect();
    for bind in binds {
        let Some(ip) = bind.ip.filter(|ip| ours.vips.contains(ip)) else { continue };
        let (key, allowed) = match ip {
            IpAddr::V4(_) => ("net.ipv4.ip_nonlocal_bind", ours.nonlocal.0),
            IpAddr::V6(_) => ("net.ipv6.ip_nonlocal_bind", ours.nonlocal.1),
        };
        if bind.anywhere || allowed {
            continue;
        }
        plane.find(
            "nonlocal-bind",
            &bind.at,
            format!("listens on {ip}, which is a VIP, and {key} is 0 here"),
            "where the VIP isn't, the balancer can't start or reload: this node could never take it over",
            format!("sysctl -w {key}=1, or listen on every address, or bind with `transparent` (Envoy: freebind)"),
        );
    }
}

/// What a check gets from a listener.
enum Answer<'f> {
    Own(&'f OwnAnswer),
    Pool,
}

fn answer<'f>(front: &'f Front, path: &str) -> Answer<'f> {
    let path = path.split('?').next().unwrap_or_default();
    let fits = |own: &&OwnAnswer| if own.prefix { path.starts_with(&own.path) } else { path == own.path };
    front.own.iter().filter(fits).max_by_key(|own| (!own.prefix, own.path.len())).map_or(Answer::Pool, Answer::Own)
}

fn judge_check(plane: &mut Plane, check: &OurCheck, ours: &Ours) {
    let listens = |bind: &Bind| {
        (bind.ports.0..=bind.ports.1).contains(&check.address.port())
            && bind.ip.is_none_or(|ip| ip == check.address.ip())
    };
    let Some((front, bind)) =
        plane.fronts.iter().find_map(|f| f.binds.iter().find(|b| listens(b)).map(|bind| (f.clone(), bind.clone())))
    else {
        return;
    };
    let name = &check.name;
    let Some((path, expect)) = &check.http else {
        plane.facts.push(format!("check {name} asks {}: the kernel accepts for it even while it hangs", front.name));
        return;
    };
    let passes = |status: u16| expect.iter().any(|(from, to)| (*from..=*to).contains(&status));
    let at = match answer(&front, path) {
        Answer::Own(own) if own.judges_pool => {
            plane.find(
                "pool-empty",
                &own.at,
                format!("check {name} asks {path}, which fails when its backends are down"),
                "this node becomes unfit though its balancer is well, and every other node with the same backends too",
                "let it answer for the balancer alone; the agent learns from `admin` that the pool is empty, and stays",
            );
            return;
        }
        Answer::Own(own) => {
            plane.facts.push(format!(
                "check {name} asks {path}, which the balancer answers by itself: the backends' state doesn't matter"
            ));
            if own.monitor && !ours.admin {
                plane.find(
                    "monitor-uri",
                    &own.at.clone(),
                    format!("check {name} asks monitor-uri {path}, and nothing else asks the balancer"),
                    "when maxconn is reached this isn't answered either: a balancer that is only full looks dead",
                    "configure `admin` (the stats socket): it answers while full, and tells full from dead",
                );
            }
            return;
        }
        Answer::Pool if front.opaque => {
            plane.facts.push(format!("check {name} asks {path}: what answers it can't be told from the files"));
            return;
        }
        Answer::Pool => bind.at,
    };
    match front.empty_status {
        Some(status) if passes(status) => {
            plane.facts.push(format!("with all backends down check {name} gets {status} and passes"));
        }
        Some(status) => plane.find(
            "pool-empty",
            &at,
            format!("check {name} asks through to the backends: with all of them down it gets {status} and fails"),
            "this node becomes unfit though its balancer is well, and every other node with the same backends too",
            format!("add {status} to `expect`, or ask a path that the balancer answers by itself"),
        ),
        None => plane.facts.push(format!("with all backends down check {name} gets no answer and fails")),
    }
    compare(plane, check);
}

/// Whose detection is faster.
fn compare(plane: &mut Plane, check: &OurCheck) {
    let slowest = plane.pools.iter().filter_map(|pool| pool.detection.clone()).max_by_key(|detection| detection.max);
    let Some(theirs) = slowest else { return };
    let name = &check.name;
    let range = format!("{} to {} ({})", shown(theirs.min), shown(theirs.max), theirs.how);
    let own = format!("{} to {}", shown(check.min), shown(check.max));
    plane.facts.push(format!("check {name} fails after {own}; the balancer takes a dead backend out after {range}"));
    if check.min <= theirs.max {
        plane.find(
            "detection-faster",
            &theirs.at,
            format!("check {name} can fail after {}, before a dead backend is out ({range})", shown(check.min)),
            "requests of the check go to that backend meanwhile: one dead backend of many moves the VIP",
            "check the backends faster, give the check a larger fall or interval, or let it ask what the balancer answers \
             by itself",
        );
    } else if check.max > theirs.max.saturating_mul(SLOWER) && check.max > SLOW {
        plane.find(
            "detection-slower",
            &theirs.at,
            format!("check {name} fails after {own}, the balancer knows of a dead backend after {range}"),
            "errors go to clients for so long though it is known",
            "give the check a shorter interval, fast_interval or timeout",
        );
    }
}

fn rates(plane: &mut Plane, ours: &Ours) {
    let nodes = f64::from(ours.nodes.max(1));
    for pool in plane.pools.clone() {
        let Some(every) = pool.every.filter(|every| !every.is_zero()) else { continue };
        let each = nodes / every.as_secs_f64();
        plane.facts.push(format!(
            "pool {}: {} of {} checked every {}, by {} {each:.1} times a second each",
            pool.name,
            pool.checked,
            many(pool.backends, "backend"),
            shown(every),
            many(usize::try_from(ours.nodes.max(1)).unwrap_or(usize::MAX), "node"),
        ));
        if each > PROBES_FINE {
            plane.find(
                "probe-rate",
                &pool.at,
                format!("pool {}: each backend is checked {each:.1} times a second by all nodes together", pool.name),
                "checks are a load of their own, and grow with each node",
                "check less often",
            );
        }
    }
}
