//! From what one run recorded to its figures; pure. `METRICS.md` says in words what this module says in code.

use super::situation::Expected;
use super::verdicts::Change;
use crate::clock::{Ns, ms_between};
use crate::fabric::{Lb, VRID};
use crate::load::fresh;
use crate::metrics::{Class, Flow, Held, Span, broken_flows, dual_holders, outage, role_changes, total_ms};
use crate::report::{Run, ground};
use crate::watch::wire;

/// Everything one run recorded.
#[derive(Debug)]
pub struct Measured {
    /// Time between two fresh requests.
    pub interval: Ns,
    /// When the noise floor's measurement began.
    pub steady: Ns,
    /// When the situation came about.
    pub fault: Ns,
    /// When its repair began.
    pub repair: Ns,
    /// When all was well again.
    pub settled: Ns,
    /// The end.
    pub end: Ns,
    /// Why lb1, just before the repair, kept the VIP although it couldn't serve it well, if it said so.
    pub open: Option<String>,
    /// The MACs of lb1 and lb2.
    pub macs: [[u8; 6]; 2],
    /// Fresh requests.
    pub fresh: fresh::Log,
    /// Long-lived connections.
    pub flows: Vec<Flow>,
    /// What was thought of the planes.
    pub verdicts: Vec<Change>,
    /// The segment.
    pub wire: wire::Log,
    /// The kernels' addresses.
    pub held: Vec<Held>,
    /// The reference thread's lateness.
    pub late: Vec<(Ns, Ns)>,
    /// Why measuring ran without real-time priority.
    pub realtime: Option<String>,
}

/// The figures of one run.
#[must_use]
pub fn figures(m: &Measured, expected: Expected) -> Run {
    let mut run = Run { realtime: m.realtime.clone(), ..Run::default() };
    let mut set = |key: &'static str, v: Option<f64>| {
        run.numbers.insert(key, v);
    };
    let noise = Span { from: m.steady, to: m.fault };
    let (during, after) = (Span { from: m.fault, to: m.repair }, Span { from: m.repair, to: m.end });
    let since = |t: Ns| ms_between(m.fault, t);

    let o = outage(&m.fresh.samples, m.interval, during);
    set("requests", Some(o.requests as f64));
    set("failed", Some(o.failed as f64));
    set("failed_percent", (o.requests > 0).then(|| 100.0 * o.failed as f64 / o.requests as f64));
    set("outage_ms", Some(o.longest_ms));
    let (broken, flows) = broken_flows(&m.flows, during);
    set("broken_flows", Some(broken as f64));
    set("flows", Some(flows as f64));
    let back = outage(&m.fresh.samples, m.interval, after);
    set("failback_failed", Some(back.failed as f64));
    set("failback_outage_ms", Some(back.longest_ms));
    set("settle_ms", Some(ms_between(m.repair, m.settled)));

    let lb1 = || m.verdicts.iter().filter(|c| c.lb == Lb::Lb1 && during.holds(c.at));
    let awaited = lb1().find(|c| expected.verdicts.contains(&c.verdict.as_str()));
    set("verdict_ms", awaited.map(|c| since(c.at)));
    let last = expected.verdicts.last().and_then(|v| lb1().find(|c| c.verdict == *v));
    set("last_verdict_ms", last.map(|c| since(c.at)));
    let fitting = |c: &&Change| expected.verdicts.iter().chain(expected.also).any(|v| *v == c.verdict);
    set("other_verdicts", Some(lb1().filter(|c| !fitting(c)).count() as f64));
    let whole = Span { from: m.steady, to: m.end };
    set("verdict_changes", Some(m.verdicts.iter().filter(|c| whole.holds(c.at)).count() as f64));

    set("unsaid", Some(if m.open.is_some() { 0.0 } else { 1.0 }));

    let claims = || m.wire.answers.iter().filter(|a| whole.holds(a.at) && a.at >= m.fault);
    set("takeover_ms", claims().find(|a| a.mac == m.macs[Lb::Lb2.index()]).map(|a| since(a.at)));
    let gone = m.held.iter().find(|h| h.lb == Lb::Lb1 && !h.present && during.holds(h.at));
    set("address_gone_ms", gone.map(|h| since(h.at)));
    let changes = |span| Some(role_changes(&m.wire.adverts, VRID, span) as f64);
    set("role_changes", changes(during));
    set("failback_role_changes", changes(after));
    set("noise_role_changes", changes(noise));
    let dual = dual_holders(&m.wire.answers, wire::PROBE, Span { from: m.fault, to: m.end });
    set("dual_holder_ms", Some(total_ms(&dual)));

    ground(&mut run, &m.fresh, m.interval, &m.late, noise, m.end);
    let mut words: Vec<&str> = lb1().map(|c| c.verdict.as_str()).collect();
    run.words.insert("verdicts", words.join(", "));
    // Where none is waited for: what it was thought to be in between.
    words.retain(|w| *w != "serving");
    words.dedup();
    let verdict = last.or(awaited);
    run.words.insert("verdict", verdict.map_or_else(|| words.join(", "), |c| c.verdict.clone()));
    run.words.insert("fails_open", m.open.clone().unwrap_or_default());
    run.words.insert("evidence", verdict.map(|c| c.why.clone()).unwrap_or_default());
    run.timeline = timeline(m, &o);
    run
}

fn timeline(m: &Measured, o: &crate::metrics::Outage) -> Vec<(f64, String)> {
    let mut all: Vec<(Ns, String)> =
        vec![(m.fault, "fault".into()), (m.repair, "repair".into()), (m.settled, "all is well".into())];
    for c in &m.verdicts {
        let why = if c.why.is_empty() { String::new() } else { format!(": {}", c.why) };
        all.push((c.at, format!("{}'s plane is {}{why}", c.lb.name(), c.verdict)));
    }
    for h in &m.held {
        all.push((h.at, format!("{}'s kernel {} the VIP", h.lb.name(), if h.present { "has" } else { "lost" })));
    }
    if let Some(from) = o.from {
        all.push((from, format!("client: the longest outage begins, {:.0} ms, {} failed", o.longest_ms, o.failed)));
    }
    if let Some(s) = m.fresh.samples.iter().find(|s| s.class != Class::Ok && s.sent >= m.fault) {
        all.push((s.sent, format!("client: the first request that fails is sent ({})", s.class.name())));
    }
    all.retain(|(t, _)| *t >= m.steady && *t < m.end);
    all.sort();
    all.into_iter().map(|(t, s)| (ms_between(m.fault, t), s)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::situation::Reaction;
    use super::*;
    use crate::clock::MS;
    use crate::metrics::{Advert, Answer, Sample};

    fn measured(verdicts: &[(Lb, u64, &str)]) -> Measured {
        let change = |&(lb, at, verdict): &(Lb, u64, &str)| Change {
            at: at * MS,
            lb,
            verdict: verdict.to_owned(),
            why: String::new(),
        };
        let sample = |n: u64| {
            let class = if (500..600).contains(&n) { Class::Refused } else { Class::Ok };
            Sample { sent: n * 2 * MS, done: n * 2 * MS + MS / 2, class, node: 0 }
        };
        let advert = |lb: Lb, at: u64| Advert {
            at: at * MS,
            source: lb.front(),
            vrid: VRID,
            priority: lb.priority(),
            interval_ms: 100,
        };
        let adverts = vec![advert(Lb::Lb1, 900), advert(Lb::Lb2, 1_010), advert(Lb::Lb1, 3_000)];
        let answers = vec![Answer { at: 1_015 * MS, mac: [2; 6], gratuitous: true }];
        Measured {
            interval: 2 * MS,
            steady: 10 * MS,
            fault: 1_000 * MS,
            repair: 2_000 * MS,
            settled: 3_000 * MS,
            end: 4_000 * MS,
            open: None,
            macs: [[1; 6], [2; 6]],
            fresh: fresh::Log { samples: (0..2_000).map(sample).collect(), late: Vec::new() },
            flows: Vec::new(),
            verdicts: verdicts.iter().map(change).collect(),
            wire: wire::Log { adverts, answers },
            held: Vec::new(),
            late: Vec::new(),
            realtime: None,
        }
    }

    #[test]
    fn the_verdict_that_is_waited_for_has_its_time_and_every_other_on_lb1_is_counted() {
        let m = measured(&[
            (Lb::Lb1, 5, "serving"),
            (Lb::Lb1, 1_004, "failing"),
            (Lb::Lb2, 1_005, "sick"),
            (Lb::Lb1, 1_012, "dead"),
            (Lb::Lb1, 2_500, "serving"),
        ]);
        let run = figures(&m, Expected::new(&["dead"], Reaction::Moves));
        let n = |key: &str| run.numbers.get(key).copied().flatten();
        assert_eq!((n("verdict_ms"), n("other_verdicts"), n("verdict_changes")), (Some(12.0), Some(1.0), Some(4.0)));
        assert_eq!(
            (n("role_changes"), n("failback_role_changes"), n("takeover_ms")),
            (Some(1.0), Some(1.0), Some(15.0))
        );
        assert_eq!((n("failed"), n("requests"), n("failed_percent")), (Some(100.0), Some(500.0), Some(20.0)));
        assert_eq!(run.words["verdicts"], "failing, dead");
        let also = figures(&m, Expected::new(&["dead"], Reaction::Moves).also(&["failing"]));
        assert_eq!(also.numbers["other_verdicts"], Some(0.0));
    }

    #[test]
    fn a_verdict_that_never_came_is_missing_and_not_zero() {
        let run = figures(&measured(&[]), Expected::new(&["hung"], Reaction::Moves));
        assert_eq!(run.numbers["verdict_ms"], None);
        assert_eq!(run.words["verdicts"], "");
    }
}
