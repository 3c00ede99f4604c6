//! From samples to figures, from figures to a verdict, and both printed: tables for people, JSON for programs.

use crate::balancer::Kind;
use crate::clock::{MS, Ns, ms_between};
use crate::drills::{Drill, Expect, Of};
use crate::fabric::{Lb, VRID};
use crate::faults::Fault;
use crate::load::fresh;
use crate::metrics::{
    Advert, Answer, Class, Flow, GRACE, Held, Sample, Span, Spread, advert_lateness_ms, broken_flows, dual_advertisers,
    dual_holders, outage, percentile, role_changes, total_ms,
};
use crate::run::UDP_INTERVAL;
use crate::watch::{address::POLL, reference::VOID, wire};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Everything one run recorded.
#[derive(Debug)]
pub struct Measured {
    /// Time between two fresh requests.
    pub interval: Ns,
    /// Adverts' interval.
    pub adverts: Ns,
    /// When the noise floor's measurement began.
    pub steady: Ns,
    /// When the fault was injected.
    pub fault: Ns,
    /// When its repair began.
    pub repair: Ns,
    /// When lb1 alone was Active again.
    pub settled: Ns,
    /// The end.
    pub end: Ns,
    /// The fault is a return to lb1: it goes from lb2 to lb1.
    pub failback: bool,
    /// The MACs of lb1 and lb2.
    pub macs: [[u8; 6]; 2],
    /// Fresh requests.
    pub fresh: fresh::Log,
    /// UDP probes.
    pub udp: Vec<Sample>,
    /// Long-lived connections.
    pub flows: Vec<Flow>,
    /// The segment.
    pub wire: wire::Log,
    /// The kernels' addresses.
    pub held: Vec<Held>,
    /// The reference thread's lateness.
    pub late: Vec<(Ns, Ns)>,
    /// Why measuring ran without real-time priority.
    pub realtime: Option<String>,
}

/// One run's figures.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// Figures by key; `None`: it never happened.
    pub numbers: std::collections::BTreeMap<&'static str, Option<f64>>,
    /// What can't be said in figures, by key.
    pub words: std::collections::BTreeMap<&'static str, String>,
    /// Why it says nothing.
    pub void: Option<String>,
    /// What happened, ms after the fault.
    pub timeline: Vec<(f64, String)>,
    /// Why measuring ran without real-time priority.
    pub realtime: Option<String>,
    /// The agent's own events.
    pub journal: Vec<String>,
}

impl Run {
    /// The timeline as text.
    #[must_use]
    pub fn timeline_text(&self) -> String {
        let mut s = String::new();
        for (t, what) in &self.timeline {
            let _ = writeln!(s, "  {t:>9.1} ms  {what}");
        }
        s
    }
}

/// A drill's outcome.
#[derive(Debug, Clone)]
pub struct Report {
    /// The drill.
    pub scenario: String,
    /// What was put to the test.
    pub subject: String,
    /// The balancer, with its version.
    pub balancer: String,
    /// With the peers' channel.
    pub channel: bool,
    /// Without the fault.
    pub twin: bool,
    /// Compared with the figures themselves.
    pub strict: bool,
    /// The machine.
    pub machine: String,
    /// All runs, void ones too.
    pub runs: Vec<Run>,
    /// Valid runs that were wanted.
    pub wanted: usize,
    /// Runs that broke off.
    pub errors: Vec<String>,
    /// Why it can't be run with this subject.
    pub skipped: Option<String>,
    /// Each expectation: text, whether it held.
    pub verdicts: Vec<(String, bool)>,
    /// All of them held, in as many valid runs as were wanted, and nothing broke off.
    pub pass: bool,
}

/// When the VIP began to go back to lb1: the repair, or, when lb1 came back by itself, the first sign of it on the
/// wire after lb2 had taken over.
fn failback_from(m: &Measured) -> Ns {
    let ours = |a: &&Advert| a.vrid == VRID && a.at >= m.fault && a.at < m.repair;
    let adverts = || m.wire.adverts.iter().filter(ours);
    let Some(taken) = adverts().find(|a| a.source == Lb::Lb2.front() && a.priority > 0) else { return m.repair };
    let back = adverts().filter(|a| a.at > taken.at).find(|a| match Lb::with_front(a.source) {
        Some(Lb::Lb1) => a.priority > 0,
        Some(Lb::Lb2) => a.priority == 0,
        None => false,
    });
    back.map_or(m.repair, |a| a.at)
}

/// The figures of one run; see `METRICS.md`.
#[must_use]
pub fn figures(m: &Measured, drill: &Drill) -> Run {
    let mut run = Run { realtime: m.realtime.clone(), ..Run::default() };
    let (loser, winner) = if m.failback { (Lb::Lb2, Lb::Lb1) } else { (Lb::Lb1, Lb::Lb2) };
    let back = if m.failback { m.end } else { failback_from(m) };
    let (whole, during) = (Span { from: m.fault, to: m.end }, Span { from: m.fault, to: back });
    let (noise, after) = (Span { from: m.steady, to: m.fault }, Span { from: back, to: m.end });
    let mut set = |key: &'static str, v: Option<f64>| {
        run.numbers.insert(key, v);
    };

    let o = outage(&m.fresh.samples, m.interval, during);
    set("outage_ms", Some(o.longest_ms));
    set("outage_sum_ms", Some(o.sum_ms));
    set("failed", Some(o.failed as f64));
    set("requests", Some(o.requests as f64));
    for class in [Class::Refused, Class::Reset, Class::Timeout, Class::Truncated, Class::Wrong, Class::Unreachable] {
        let key = match class {
            Class::Refused => "failed_refused",
            Class::Reset => "failed_reset",
            Class::Timeout => "failed_timeout",
            Class::Truncated => "failed_truncated",
            Class::Wrong => "failed_wrong",
            Class::Unreachable | Class::Ok => "failed_unreachable",
        };
        set(key, Some(o.by_class.get(class.name()).copied().unwrap_or(0) as f64));
    }
    // Cut off by the move itself: sent shortly before the new owner tells the segment, and not answered.
    let in_flight = |to: Lb, span: Span| {
        let claims = |a: &&Answer| a.gratuitous && a.at + IN_FLIGHT >= span.from && a.mac == m.macs[to.index()];
        let moved = m.wire.answers.iter().find(claims).map(|a| a.at);
        let near = |s: &&Sample| moved.is_some_and(|t| s.sent <= t && s.sent + IN_FLIGHT >= t);
        let failed = |s: &&Sample| span.holds(s.belongs_at()) && s.class != Class::Ok;
        m.fresh.samples.iter().filter(failed).filter(near).count() as f64
    };
    set("failed_in_flight", Some(in_flight(winner, during)));
    let u = outage(&m.udp, UDP_INTERVAL, during);
    set("udp_outage_ms", Some(u.longest_ms));
    set("udp_lost", Some(u.failed as f64));
    let (broken, flows) = broken_flows(&m.flows, during);
    set("broken_flows", Some(broken as f64));
    set("flows", Some(flows as f64));
    if !m.failback {
        let f = outage(&m.fresh.samples, m.interval, after);
        set("failback_outage_ms", Some(f.longest_ms));
        set("failback_failed", Some(f.failed as f64));
        let cut = in_flight(Lb::Lb1, after);
        set("failback_in_flight", Some(cut));
        set("failback_lost", Some(f.failed as f64 - cut));
        set("failback_udp_outage_ms", Some(outage(&m.udp, UDP_INTERVAL, after).longest_ms));
        set("failback_broken_flows", Some(broken_flows(&m.flows, after).0 as f64));
        set("settle_ms", Some(ms_between(m.repair, m.settled)));
    }

    let since = |t: Ns| ms_between(m.fault, t);
    let ads = || m.wire.adverts.iter().filter(|a| a.vrid == VRID && whole.holds(a.at));
    let resigned = ads().find(|a| a.source == loser.front() && a.priority == 0).map(|a| a.at);
    let active = ads().find(|a| a.source == winner.front() && a.priority > 0).map(|a| a.at);
    let mac = |lb: Lb| m.macs[lb.index()];
    let claims = || m.wire.answers.iter().filter(|a| whole.holds(a.at));
    let claimed = claims().find(|a| a.mac == mac(winner)).map(|a| a.at);
    let first = |lb: Lb, present: bool, from: Ns| {
        m.held.iter().find(|h| h.lb == lb && h.present == present && h.at >= from).map(|h| h.at)
    };
    let gone = first(loser, false, m.fault).filter(|&t| t < m.end);
    set("detect_ms", [resigned, active, claimed, gone].into_iter().flatten().min().map(since));
    set("takeover_ms", claimed.map(since));
    if drill.fault == Fault::SilentDrop {
        set("blind_excess_ms", blind_excess(m, winner, loser));
    }
    set("peer_active_ms", active.map(since));
    set("address_gone_ms", gone.filter(|&t| t < back.max(m.fault + 1)).map(since));
    if drill.fault == Fault::AddressDeleted {
        // Gone and back between two polls: it was back within one.
        let returned = match gone {
            Some(t) => first(loser, true, t).map(since),
            None => Some(ms_between(0, POLL)),
        };
        set("address_back_ms", returned);
    }
    // The last sign of a second owner: after the fault for the loser, after the repair for the winner.
    let last_answer = |lb: Lb, s: Span| claims().filter(|a| a.mac == mac(lb) && s.holds(a.at)).map(|a| a.at).max();
    // When the VIP goes back, the returning owner claims it a moment before it adverts.
    let settled = Span { to: back.saturating_sub(2 * wire::PROBE).max(m.fault), ..during };
    if claimed.is_some() {
        set("one_answerer_ms", Some(last_answer(loser, settled).map_or(0.0, since)));
    }
    let interval = m.adverts;
    let answering = dual_holders(&m.wire.answers, wire::PROBE, whole);
    let advertising = dual_advertisers(&m.wire.adverts, VRID, interval, whole);
    set("dual_holder_ms", Some(total_ms(&answering)));
    set("dual_advert_ms", Some(total_ms(&advertising)));
    if !m.failback {
        // Shorter than a probe is adverts crossing in a hand-over.
        let real = |s: &&Span| s.to >= m.repair && s.to - s.from >= wire::PROBE;
        let last = answering.iter().chain(&advertising).filter(real).map(|s| s.to).max();
        set("one_owner_ms", Some(last.map_or(0.0, |t| ms_between(m.repair, t))));
    }
    set("role_changes", Some(role_changes(&m.wire.adverts, VRID, during) as f64));

    set("noise_role_changes", Some(role_changes(&m.wire.adverts, VRID, noise) as f64));
    set("noise_udp_outage_ms", Some(outage(&m.udp, UDP_INTERVAL, noise).longest_ms));
    let late = advert_lateness_ms(&m.wire.adverts, loser.front(), interval, noise);
    let tenth = ms_between(0, interval) / 10.0;
    set("late_adverts", Some(late.iter().filter(|&&l| l > tenth).count() as f64));
    set("advert_late_p99_ms", percentile(&late, 0.99));
    if drill.fault == Fault::BusyHost {
        let busy = advert_lateness_ms(&m.wire.adverts, loser.front(), interval, during);
        set("advert_late_max_ms", percentile(&busy, 1.0));
    }
    ground(&mut run, &m.fresh, m.interval, &m.late, noise, m.end);
    run.timeline = timeline(m, back, &o);
    run
}

/// What all figures of a run stand on: the clients' service in the second before the fault (`noise`), and how late the
/// machine and the clients were from then until `end`. Lateness may void the run.
pub(crate) fn ground(run: &mut Run, fresh: &fresh::Log, interval: Ns, late: &[(Ns, Ns)], noise: Span, end: Ns) {
    let n = outage(&fresh.samples, interval, noise);
    let quiet = fresh.samples.iter().filter(|s| noise.holds(s.sent) && s.class == Class::Ok);
    let latency: Vec<f64> = quiet.map(|s| ms_between(s.sent, s.done)).collect();
    let all = Span { to: end, ..noise };
    let worst = |l: &[(Ns, Ns)]| l.iter().filter(|(t, _)| all.holds(*t)).map(|(_, l)| *l).max().unwrap_or(0);
    let (machine, prober) = (worst(late), worst(&fresh.late));
    run.numbers.extend([
        ("noise_failed", Some(n.failed as f64)),
        ("noise_outage_ms", Some(n.longest_ms)),
        ("noise_latency_p50_ms", percentile(&latency, 0.5)),
        ("noise_latency_p99_ms", percentile(&latency, 0.99)),
        ("machine_late_ms", Some(ms_between(0, machine))),
        ("prober_late_ms", Some(ms_between(0, prober))),
    ]);
    if machine.max(prober) > VOID {
        run.void = Some(format!("the machine was {:.0} ms late", ms_between(0, machine.max(prober))));
    }
}

/// How much later than three intervals and its skew time after the last advert that it can have heard the winner
/// spoke (RFC 9568 section 6.1).
fn blind_excess(m: &Measured, winner: Lb, loser: Lb) -> Option<f64> {
    let adverts = || m.wire.adverts.iter().filter(|a| a.vrid == VRID && a.priority > 0);
    let last = adverts().filter(|a| a.source == loser.front() && a.at < m.fault).map(|a| a.at).max()?;
    let first = adverts().find(|a| a.source == winner.front() && a.at >= m.fault).map(|a| a.at)?;
    let skew = m.adverts * (256 - u64::from(winner.priority())) / 256;
    Some(ms_between(last, first) - ms_between(0, 3 * m.adverts + skew))
}

/// A fault says something only about a pair that was at rest: why this one wasn't, in the second before its fault.
#[must_use]
pub fn unrest(run: &Run) -> Option<String> {
    let n = |key: &str| run.numbers.get(key).copied().flatten().unwrap_or(0.0);
    let (failed, changes) = (n("noise_failed"), n("noise_role_changes"));
    (failed + changes > 0.0)
        .then(|| format!("no rest before the fault: {failed:.0} requests failed, {changes:.0} role changes"))
}

fn timeline(m: &Measured, back: Ns, o: &crate::metrics::Outage) -> Vec<(f64, String)> {
    let mut all: Vec<(Ns, String)> = vec![(m.fault, "fault".into()), (m.settled, "lb1 alone is Active".into())];
    if !m.failback {
        all.push((m.repair, "repair".into()));
    }
    if back < m.repair {
        all.push((back, "the VIP goes back to lb1".into()));
    }
    let mut advertised: std::collections::BTreeMap<&str, Ns> = std::collections::BTreeMap::new();
    for a in m.wire.adverts.iter().filter(|a| a.vrid == VRID && a.at < m.end) {
        let who = Lb::with_front(a.source).map_or("unknown", Lb::name);
        if a.priority == 0 {
            all.push((a.at, format!("advert from {who}: resigns (priority 0)")));
        } else if advertised.insert(who, a.at).is_none_or(|t| a.at > t + 3 * m.adverts) {
            all.push((a.at, format!("advert from {who}: Active, priority {}", a.priority)));
        }
    }
    let mut seen: std::collections::BTreeMap<(&str, bool), Ns> = std::collections::BTreeMap::new();
    for a in m.wire.answers.iter().filter(|a| a.at < m.end) {
        let who = m.macs.iter().position(|x| *x == a.mac).map_or("unknown", |i| Lb::BOTH[i].name());
        // Only the first of a series is news.
        let news = seen.insert((who, a.gratuitous), a.at).is_none_or(|t| a.at > t + 3 * wire::PROBE);
        match (news, a.gratuitous) {
            (true, true) => all.push((a.at, format!("gratuitous ARP from {who}"))),
            (true, false) => all.push((a.at, format!("{who} answers ARP for the VIP"))),
            (false, _) => {}
        }
    }
    for h in m.held.iter().filter(|h| h.at < m.end) {
        all.push((h.at, format!("{}'s kernel {} the VIP", h.lb.name(), if h.present { "has" } else { "lost" })));
    }
    if let Some(from) = o.from {
        let to = from + (o.longest_ms * MS as f64) as u64;
        all.push((from, format!("client: first failed request of {}", o.failed)));
        all.push((to, format!("client: served again, outage {:.0} ms", o.longest_ms)));
    }
    let failed = m.fresh.samples.iter().filter(|s| s.class != Class::Ok && s.sent + GRACE >= m.fault);
    for s in failed.take(FAILURES_SHOWN) {
        let took = ms_between(s.sent, s.done);
        all.push((s.sent, format!("client: a request is sent that will fail ({} after {took:.1} ms)", s.class.name())));
    }
    let before = m.flows.iter().filter(|f| f.established < m.fault);
    let mut flows: Vec<_> = before.filter_map(|f| f.broken).filter(|(t, _)| *t >= m.fault && *t < m.end).collect();
    flows.sort();
    if let Some((t, class)) = flows.first() {
        all.push((*t, format!("client: first of {} long-lived flows breaks ({})", flows.len(), class.name())));
    }
    all.retain(|(t, _)| *t + GRACE >= m.fault);
    all.sort();
    all.into_iter().map(|(t, s)| (ms_between(m.fault, t), s)).collect()
}

impl Report {
    /// An empty one: as a drill is run when nothing else is said.
    #[must_use]
    pub fn new(scenario: &str, subject: String, balancer: Kind) -> Self {
        Self {
            scenario: scenario.into(),
            subject,
            balancer: balancer.version(),
            channel: false,
            twin: false,
            strict: false,
            machine: crate::env::describe(),
            runs: Vec::new(),
            wanted: 1,
            errors: Vec::new(),
            skipped: None,
            verdicts: Vec::new(),
            pass: false,
        }
    }

    /// Runs that count.
    #[must_use]
    pub fn valid(&self) -> usize {
        self.runs.iter().filter(|r| r.void.is_none()).count()
    }

    fn values(&self, key: &str) -> Vec<f64> {
        self.runs.iter().filter(|r| r.void.is_none()).filter_map(|r| *r.numbers.get(key)?).collect()
    }

    /// It has the runs that were wanted, and nothing broke off: fewer prove nothing.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.errors.is_empty() && self.valid() >= self.wanted.max(1)
    }

    /// Compares so many valid runs with what is expected.
    pub fn judge_by(&mut self, expect: &[Expect], wanted: usize) {
        self.wanted = wanted;
        let expect = expect.iter().filter(|e| e.applies(self.channel));
        let mut verdicts: Vec<(String, bool)> = expect.map(|e| self.verdict(e, self.strict)).collect();
        if self.valid() < wanted.max(1) {
            verdicts.push((format!("{} valid runs of {wanted}", self.valid()), false));
        }
        self.pass = self.complete() && verdicts.iter().all(|(_, held)| *held);
        self.verdicts = verdicts;
    }

    fn verdict(&self, e: &Expect, strict: bool) -> (String, bool) {
        let values = self.values(e.key);
        let limit = e.limit(strict);
        let (value, name) = match e.of {
            Of::Median => (Spread::of(&values).map(|s| s.median), "median"),
            Of::P99 => (percentile(&values, 0.99), "p99"),
            Of::Max => (Spread::of(&values).map(|s| s.max), "max"),
        };
        let complete = !e.must || values.len() == self.valid();
        match value {
            Some(v) => {
                let missing = if complete { "" } else { ", in some runs it never happened" };
                (format!("{} {name} {v:.1} ≤ {limit:.1}{missing}", e.key), v <= limit && complete)
            }
            None => (format!("{} never happened", e.key), !e.must),
        }
    }

    /// As DESIGN section 3 has it.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut keys: Vec<&'static str> = self.runs.iter().flat_map(|r| r.numbers.keys().copied()).collect();
        keys.sort_unstable();
        keys.dedup();
        let summary: Map<String, Value> = keys
            .iter()
            .filter_map(|k| Some((k, Spread::of(&self.values(k))?)))
            .map(|(k, s)| ((*k).to_owned(), json!({"min": s.min, "median": s.median, "max": s.max})))
            .collect();
        let run = |r: &Run| {
            let mut o: Map<String, Value> = r.numbers.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
            o.extend(r.words.iter().map(|(k, v)| ((*k).to_owned(), json!(v))));
            o.insert("void".into(), json!(r.void));
            let lines: Vec<Value> = r.timeline.iter().map(|(t, s)| json!({"ms": t, "what": s})).collect();
            o.insert("timeline".into(), json!(lines));
            Value::Object(o)
        };
        json!({
            "schema": 1, "scenario": self.scenario, "subject": self.subject, "balancer": self.balancer,
            "channel": self.channel, "twin": self.twin, "strict": self.strict, "machine": self.machine,
            "pass": self.pass, "skipped": self.skipped, "errors": self.errors,
            "expectations": self.verdicts.iter().map(|(t, h)| json!({"text": t, "held": h})).collect::<Vec<_>>(),
            "realtime": self.runs.iter().all(|r| r.realtime.is_none()),
            "runs": self.runs.iter().filter(|r| r.void.is_none()).map(run).collect::<Vec<_>>(),
            "void_runs": self.runs.iter().filter(|r| r.void.is_some()).map(run).collect::<Vec<_>>(),
            "summary": summary,
        })
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut s = String::new();
        let channel = if self.channel { "with the channel" } else { "without a channel" };
        let twin = if self.twin { ", fault left out" } else { "" };
        let _ =
            writeln!(s, "{}: {}, {}, {channel}{twin}; {}", self.scenario, self.subject, self.balancer, self.machine);
        if let Some(why) = &self.skipped {
            let _ = writeln!(s, "  skipped: {why}");
            return s;
        }
        if let Some(why) = self.runs.iter().find_map(|r| r.realtime.as_ref()) {
            let _ = writeln!(s, "  measured without real-time priority: {why}");
        }
        if let Some(r) = self.runs.iter().rfind(|r| r.void.is_none()) {
            let _ = writeln!(s, "  the last run, ms after the fault:");
            s += &r.timeline_text();
        }
        let void = self.runs.len() - self.valid();
        let _ = writeln!(s, "  {} valid runs, {void} void, {} broke off", self.valid(), self.errors.len());
        for r in self.runs.iter().filter_map(|r| r.void.as_ref()) {
            let _ = writeln!(s, "    void: {r}");
        }
        for e in &self.errors {
            let _ = writeln!(s, "    broke off: {e}");
        }
        let _ = writeln!(s, "  {:<26}{:>10}{:>10}{:>10}", "", "min", "median", "max");
        for key in TABLE {
            if let Some(v) = Spread::of(&self.values(key)) {
                let _ = writeln!(s, "  {key:<26}{:>10.1}{:>10.1}{:>10.1}", v.min, v.median, v.max);
            }
        }
        for (text, held) in &self.verdicts {
            let _ = writeln!(s, "  {} {text}", if *held { "ok  " } else { "FAIL" });
        }
        let _ = writeln!(s, "  {}", if self.pass { "PASS" } else { "FAIL" });
        s
    }
}

/// A failed request sent so shortly before the VIP moved was in flight then.
const IN_FLIGHT: Ns = 10 * MS;

/// How many failed requests the timeline names one by one.
const FAILURES_SHOWN: usize = 6;

/// What the table for people shows, in order; the JSON has all.
const TABLE: &[&str] = &[
    "outage_ms",
    "outage_sum_ms",
    "verdict_ms",
    "other_verdicts",
    "verdict_changes",
    "failed",
    "failed_percent",
    "failed_in_flight",
    "requests",
    "udp_outage_ms",
    "broken_flows",
    "flows",
    "broken_percent",
    "broken_age_max_ms",
    "broken_young",
    "young_flows",
    "broken_leaving",
    "leaving_flows",
    "moved_elsewhere",
    "return_broken",
    "return_flows",
    "flow_moves",
    "hash_errors",
    "bulk_mb_min",
    "stall_ms",
    "stall_excess_ms",
    "return_stall_ms",
    "detect_ms",
    "peer_active_ms",
    "takeover_ms",
    "address_gone_ms",
    "address_back_ms",
    "one_answerer_ms",
    "dual_holder_ms",
    "dual_advert_ms",
    "role_changes",
    "one_owner_ms",
    "settle_ms",
    "failback_outage_ms",
    "failback_failed",
    "failback_in_flight",
    "failback_lost",
    "failback_udp_outage_ms",
    "failback_broken_flows",
    "late_adverts",
    "advert_late_p99_ms",
    "withdraw_ms",
    "exit_ms",
    "withdraw_after_exit_ms",
    "fib_ms",
    "fib_events",
    "fib_changes",
    "fib_reordered",
    "failed_lost",
    "broken_elsewhere",
    "sessions_ended",
    "bfd_flaps",
    "announced_ms",
    "back_ms",
    "noise_failed",
    "noise_fib_events",
    "noise_role_changes",
    "noise_outage_ms",
    "noise_udp_outage_ms",
    "noise_latency_p50_ms",
    "noise_latency_p99_ms",
    "machine_late_ms",
    "prober_late_ms",
];
