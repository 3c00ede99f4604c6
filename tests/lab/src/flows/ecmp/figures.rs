//! From what flows went through to figures; `METRICS.md` defines each.

use super::drills::LAG;
use super::load::Record;
use crate::bgp::net::Node;
use crate::clock::{MS, Ns, ms_between};
use crate::flows::record::Kind;
use crate::metrics::{Flow, Span, broken_flows};
use crate::report::Run;
use std::collections::BTreeMap;

/// Everything one run recorded.
#[derive(Debug)]
pub struct Measured {
    /// Who leaves.
    pub victim: Node,
    /// When that began.
    pub fault: Ns,
    /// When it was no next hop any more.
    pub gone: Option<Ns>,
    /// When another node had its address.
    pub taken: Option<Ns>,
    /// When its return began.
    pub back: Ns,
    /// When it was a next hop again.
    pub returned: Option<Ns>,
    /// The end.
    pub end: Ns,
    /// Nothing was done.
    pub twin: bool,
    /// By the client's port: which node the router sent a flow to before and after the node had left, and after it was
    /// back.
    pub paths: [BTreeMap<u16, Node>; 3],
    /// By the client's port: which node's address backends answered to before.
    pub answers: BTreeMap<u16, Node>,
    /// What became of each flow.
    pub records: Vec<Record>,
    /// The agents' own p99 of their lag, ms.
    pub lag_ms: Option<f64>,
    /// How late the machine was at worst.
    pub machine_late: Ns,
    /// How late the clients were at worst.
    pub clients_late: Ns,
}

fn flows<'a>(records: &'a [Record], of: impl Fn(&Record) -> bool + 'a) -> Vec<Flow> {
    records.iter().filter(|r| of(r)).map(|r| r.flow).collect()
}

/// The figures of one run.
#[must_use]
pub fn figures(m: &Measured) -> Run {
    let mut run = Run::default();
    let (leave, back) = (Span { from: m.fault, to: m.back }, Span { from: m.back, to: m.end });
    let old = |r: &Record| r.flow.established + LAG <= m.fault;
    let on = |r: &Record, phase: usize| m.paths[phase].get(&r.port).copied();
    let leaving = |r: &Record| on(r, 0) == Some(m.victim);
    let within = |of: &dyn Fn(&Record) -> bool, span: Span| broken_flows(&flows(&m.records, of), span);
    let moved = |from: usize| {
        let each = m.paths[from].iter().filter(|(_, n)| **n != m.victim);
        each.filter(|(p, n)| m.paths[from + 1].get(p).is_some_and(|to| to != *n && *to != m.victim)).count()
    };
    let mut set = |key: &'static str, v: f64| {
        run.numbers.insert(key, Some(v));
    };
    let (broken, all) = within(&old, leave);
    set("flows", all as f64);
    set("broken_flows", broken as f64);
    set("broken_percent", 100.0 * broken as f64 / all.max(1) as f64);
    let (young, all_young) = within(&|r| !old(r), leave);
    set("young_flows", all_young as f64);
    set("broken_young", young as f64);
    let (lost, all_leaving) = within(&|r| old(r) && leaving(r), leave);
    set("leaving_flows", all_leaving as f64);
    set("broken_leaving", lost as f64);
    set("broken_elsewhere", (broken - lost) as f64);
    // Of one that stays silent nothing is known until it speaks.
    let (lost, talking) = within(&|r| leaving(r) && r.kind == Kind::Talk, leave);
    set("survived_leaving", (talking - lost) as f64);
    set("moved_elsewhere", moved(0) as f64);
    let (broken, all) = within(&|_| true, back);
    set("return_flows", all as f64);
    set("return_broken", broken as f64);
    set("return_moved_elsewhere", moved(1) as f64);
    // One that wasn't ended in order, with nothing wrong with it, isn't whole either.
    let in_error = |r: &&Record| r.wrong || (r.flow.broken.is_none() && !r.whole);
    set("hash_errors", m.records.iter().filter(in_error).count() as f64);
    let of_leave = |r: &&Record| r.flow.broken.is_some_and(|(t, _)| leave.holds(t));
    let ages = m.records.iter().filter(of_leave).map(|r| m.fault.saturating_sub(r.flow.established));
    let oldest = ages.max().map(|a| ms_between(0, a));

    let stall = |span: Span| m.records.iter().map(|r| r.waiting.longest(span)).max().map(|w| ms_between(0, w));
    let since = |t: Option<Ns>, from: Ns| t.map(|t| ms_between(from, t)).filter(|_| !m.twin);
    run.numbers.extend([
        ("broken_age_max_ms", oldest),
        ("stall_ms", stall(leave)),
        ("return_stall_ms", stall(back)),
        ("fib_ms", since(m.gone, m.fault)),
        ("takeover_ms", since(m.taken, m.fault)),
        ("back_ms", since(m.returned, m.back)),
        ("lag_p99_ms", m.lag_ms),
        ("machine_late_ms", Some(ms_between(0, m.machine_late))),
        ("prober_late_ms", Some(ms_between(0, m.clients_late))),
    ]);
    run.words.insert("how_broken", how_broken(m));
    run
}

/// How flows broke, for people: the path before and after, whose address they had, what they did and how it ended.
fn how_broken(m: &Measured) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for r in &m.records {
        let Some((t, class)) = r.flow.broken else { continue };
        let name = |n: Option<&Node>| n.map_or_else(|| "?".to_owned(), |n| n.name());
        let [before, after, later] = [0, 1, 2].map(|phase| name(m.paths[phase].get(&r.port)));
        let (path, when) = match (t < m.fault, t < m.back) {
            (true, _) => (before, "before the fault"),
            (false, true) => (format!("{before} → {after}"), "after it left"),
            (false, false) => (format!("{before} → {after} → {later}"), "after its return"),
        };
        let kind = if r.kind == Kind::Idle { "idle" } else { "talking" };
        let of = name(m.answers.get(&r.port));
        *counts.entry(format!("{path} with the address of {of}, {kind}, {when}: {}", class.name())).or_default() += 1;
    }
    counts.iter().map(|(what, n)| format!("{n} × {what}")).collect::<Vec<_>>().join("; ")
}

/// Times that a late machine measured say nothing. What broke and what didn't stays: all that is expected is counted.
pub fn judge_lateness(run: &mut Run, late: Ns) {
    if late <= crate::watch::reference::VOID {
        return;
    }
    let why = format!("the machine was {} ms late", late / MS);
    for key in ["stall_ms", "return_stall_ms", "fib_ms", "takeover_ms", "back_ms"] {
        run.numbers.insert(key, None);
    }
    run.words.insert("times", format!("not measured: {why}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::stall::Waiting;
    use crate::metrics::Class;

    fn record(port: u16, established_ms: u64, broken_ms: Option<u64>) -> Record {
        let broken = broken_ms.map(|t| (t * MS, Class::Timeout));
        let flow = Flow { established: established_ms * MS, broken, requests: 1, node: 255 };
        let whole = broken_ms.is_none();
        Record { kind: Kind::Talk, port, flow, wrong: false, whole, waiting: Waiting::default() }
    }

    /// The node leaves at 1,000 ms and comes back at 5,000. Ports 1 and 2 are on it.
    fn measured(records: Vec<Record>) -> Measured {
        let paths = |nodes: [usize; 4]| (1..).zip(nodes.map(Node)).collect();
        Measured {
            victim: Node(0),
            fault: 1000 * MS,
            gone: Some(1150 * MS),
            taken: None,
            back: 5000 * MS,
            returned: Some(6000 * MS),
            end: 9000 * MS,
            twin: false,
            paths: [paths([0, 0, 1, 2]), paths([1, 2, 2, 2]), paths([0, 0, 1, 2])],
            answers: BTreeMap::new(),
            records,
            lag_ms: None,
            machine_late: 0,
            clients_late: 0,
        }
    }

    fn number(run: &Run, key: &str) -> f64 {
        run.numbers.get(key).copied().flatten().expect("a figure")
    }

    #[test]
    fn a_flow_that_was_younger_than_the_lag_is_counted_apart() {
        let run = figures(&measured(vec![
            record(1, 0, None),
            record(2, 0, Some(3000)),
            record(3, 0, None),
            record(4, 0, Some(7000)),
            record(5, 990, Some(3000)),
        ]));
        let all = ["flows", "broken_flows", "young_flows", "broken_young", "return_flows", "return_broken"];
        assert_eq!(all.map(|k| number(&run, k)), [4.0, 1.0, 1.0, 1.0, 3.0, 1.0]);
        assert_eq!((number(&run, "broken_percent"), number(&run, "broken_age_max_ms")), (25.0, 1000.0));
    }

    #[test]
    fn flows_of_the_node_that_leaves_and_those_that_the_router_moved_beside_are_told_apart() {
        let run = figures(&measured(vec![
            record(1, 0, None),
            record(2, 0, Some(3000)),
            record(3, 0, Some(3000)),
            record(4, 0, None),
        ]));
        let all = ["leaving_flows", "broken_leaving", "broken_elsewhere", "survived_leaving", "moved_elsewhere"];
        assert_eq!(all.map(|k| number(&run, k)), [2.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!((number(&run, "fib_ms"), number(&run, "back_ms")), (150.0, 1000.0));
        let said = run.words.get("how_broken").expect("words");
        assert!(said.contains("1 × lb1 → lb3 with the address of ?, talking, after it left: timeout"), "{said}");
    }

    #[test]
    fn a_late_machine_says_nothing_of_times_and_everything_of_what_broke() {
        let judged = |late: Ns| {
            let mut run = figures(&measured(vec![record(1, 0, Some(3000))]));
            judge_lateness(&mut run, late * MS);
            (run.void.is_some(), run.numbers["fib_ms"].is_some(), number(&run, "broken_flows"))
        };
        assert_eq!(judged(50), (false, true, 1.0));
        assert_eq!(judged(51), (false, false, 1.0));
    }
}
