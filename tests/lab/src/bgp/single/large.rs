//! A neighbour with a table as large as the Internet's: what the agent's memory does, and the adverts of a VRRP beside.

use super::adverts::Adverts;
use super::agent::Agent;
use super::neighbor::Neighbor;
use super::{Options, Outcome, lateness, network};
use crate::clock::{MS, Ns, SECOND, ms_between, now, sleep_until};
use crate::fabric::wait_for;
use crate::metrics::percentile;
use crate::process::make_realtime;
use crate::repeat::PRIORITY;
use crate::watch::reference::Reference;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::time::Duration;

/// Issue 4: memory grows by less than this with a million routes.
const GROWTH_KIB: u64 = 10 * 1024;
/// What it may grow by whatever the table.
const SPARE_KIB: u64 = 1024;
/// The VRRP beside.
const INTERVAL: Ns = 20 * MS;
/// An advert that comes later than this after its time is late: half an interval, of the three that a Backup waits.
const LATE_MS: f64 = 10.0;
/// The table is told, taken back, and told again.
const ROUNDS: [bool; 3] = [true, false, true];

const VIPS: &str = "\n[[vip]]\nname = \"web\"\naddresses = [\"10.99.0.1/32\"]\nbgp = {}\n\n[[vip]]\nname = \"beside\"\n\
                    addresses = [\"10.80.0.99/32\"]\n\
                    vrrp = { interface = \"eth2\", vrid = 9, priority = 254, interval = \"20ms\" }\n";

/// What memory may grow by with a table of that size: of a small one, too, less than it would take to keep it.
fn growth_limit(routes: u64) -> u64 {
    (GROWTH_KIB * routes / 1_000_000 + SPARE_KIB).min(GROWTH_KIB)
}

/// A line of `/proc/PID/status`, KiB.
fn status(pid: i32, key: &str) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the worker's status")?;
    let line = text.lines().find_map(|l| l.strip_prefix(key)).with_context(|| format!("no {key}"))?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}

pub(super) fn ask(o: &Options<'_>) -> Result<Outcome> {
    let net = network()?;
    let mut neighbor = Neighbor::new(net.ns("rt"));
    let mut agent = Agent::new(o.holdfast);
    neighbor.come()?;
    let adverts = Adverts::start(&net)?;
    let reference = Reference::start()?;
    let realtime = make_realtime(reference.thread(), 90).and_then(|()| make_realtime(adverts.thread(), PRIORITY));
    agent.start(&net, VIPS)?;
    let up = || Ok(neighbor.state().complete && neighbor.state().table.len() == 1 && adverts.count() > 50);
    if !wait_for(Duration::from_secs(20), Duration::from_millis(20), up)? {
        bail!("no route, or no adverts, after 20 s\n{}", agent.told(&net));
    }
    // What starting takes is over.
    sleep_until(now() + 2 * SECOND);
    adverts.finish(INTERVAL)?;
    reference.finish()?;

    let worker = agent.worker()?;
    let before = status(worker, "VmRSS:")?;
    // proc(5): the high-water mark begins anew.
    std::fs::write(format!("/proc/{worker}/clear_refs"), "5").context("reset the peak of its memory")?;
    let adverts = Adverts::start(&net)?;
    let reference = Reference::start()?;
    let realtime = realtime
        .and_then(|()| make_realtime(reference.thread(), 90))
        .and_then(|()| make_realtime(adverts.thread(), PRIORITY));
    let (from, mut expected, mut spent) = (now(), 0, Vec::new());
    for announce in ROUNDS {
        let began = now();
        if !neighbor.tell(o.count, announce, Duration::from_secs(120))? {
            bail!("the table wasn't taken within 120 s\n{}", agent.told(&net));
        }
        if announce {
            expected += o.count as u64;
        }
        let counted = || Ok(received(&agent, &net)? >= expected);
        if !wait_for(Duration::from_secs(60), Duration::from_millis(100), counted)? {
            bail!("{} of {expected} routes were counted\n{}", received(&agent, &net)?, agent.told(&net));
        }
        spent.push(ms_between(began, now()));
    }
    let span_ms = ms_between(from, now());
    let late = adverts.finish(INTERVAL)?;
    let (machine_late_ms, void) = lateness(&reference.finish()?);
    let (after, peak) = (status(worker, "VmRSS:")?, status(worker, "VmHWM:")?);
    let grown = peak.max(after).saturating_sub(before);
    let (sessions, routes) = {
        let s = neighbor.state();
        (s.sessions, s.table.len())
    };
    let same = agent.worker()? == worker;

    // On a shared machine, in an everyday build: three times the figure, and what the machine was late.
    let limit = if o.strict { LATE_MS } else { 3.0 * LATE_MS + machine_late_ms };
    let count = late.iter().filter(|l| **l > limit).count();
    // That so many came says that none was left out at the end.
    let enough = late.len() as f64 >= span_ms / ms_between(0, INTERVAL) * 0.95;
    let pass = grown < growth_limit(o.count as u64) && count == 0 && enough && sessions == 1 && routes == 1 && same;
    let of = |p: f64| percentile(&late, p).unwrap_or(f64::INFINITY);
    let (p99, max) = (of(0.99), of(1.0));
    Ok(Outcome {
        pass,
        void: void && !pass,
        note: format!(
            "{} routes told, taken back and told in {:.1} s: memory + {grown} KiB at its peak (from {before} KiB); of {} \
             adverts {count} late, p99 {p99:.2} ms, max {max:.2} ms (the machine {machine_late_ms:.2} ms)",
            o.count,
            span_ms / 1000.0,
            late.len(),
        ),
        details: if pass { String::new() } else { agent.told(&net) },
        json: json!({
            "case": "large-table", "routes": o.count, "rounds_ms": spent, "rss_before_kib": before, "rss_after_kib": after,
            "rss_peak_kib": peak, "growth_kib": grown, "adverts": late.len(), "adverts_late": count,
            "late_p99_ms": p99, "late_max_ms": max, "machine_late_ms": machine_late_ms, "sessions": sessions,
            "realtime": realtime.is_ok(), "pass": pass, "void": void && !pass,
        }),
    })
}

/// Routes of the neighbour that the agent has counted.
fn received(agent: &Agent, net: &crate::bgp::net::Net) -> Result<u64> {
    let said = agent.ask(net, &["neighbors"])?;
    said["neighbors"][0]["received"].as_u64().with_context(|| format!("no count of routes in {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_kept_is_noticed_whatever_its_size() {
        // A prefix and a pointer to what is said of it, and nothing else.
        const ROUTE: u64 = 18 + 8;
        for routes in [100_000, 300_000, 1_000_000] {
            assert!(growth_limit(routes) < ROUTE * routes / 1024, "{routes}");
        }
        assert_eq!(growth_limit(1_000_000), GROWTH_KIB);
    }
}
