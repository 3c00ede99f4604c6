//! From what flows went through to figures; `METRICS.md` defines each.

use super::net::Path;
use super::record::{Kind, Record};
use crate::clock::{MS, Ns, ms_between};
use crate::fabric::Lb;
use crate::metrics::{Flow, Sample, Span, broken_flows, outage};
use crate::report::Run;
use crate::run::UDP_INTERVAL;
use std::fmt::Write;

/// One move of the VIP.
#[derive(Debug, Clone, Copy)]
pub struct Move {
    /// From whom.
    pub from: Lb,
    /// When it began.
    pub fault: Ns,
    /// When the other one alone was owner.
    pub taken: Ns,
}

/// Everything one run recorded.
#[derive(Debug)]
pub struct Measured {
    /// The moves, in order.
    pub moves: Vec<Move>,
    /// The end.
    pub end: Ns,
    /// What became of each flow.
    pub records: Vec<Record>,
    /// Bytes that each bulk flow was to move each way.
    pub bytes: u64,
    /// The probes of the address.
    pub probes: Vec<Sample>,
    /// How late the machine was at worst.
    pub machine_late: Ns,
    /// How late the clients were at worst.
    pub clients_late: Ns,
}

/// A bulk flow's figure is in megabytes of this.
pub const MEGABYTE: u64 = 1_000_000;

fn flows<'a>(records: &'a [Record], of: impl Fn(&Record) -> bool + 'a) -> Vec<Flow> {
    records.iter().filter(|r| of(r)).map(|r| r.flow).collect()
}

/// The figures of one run.
#[must_use]
pub fn figures(m: &Measured) -> Run {
    let mut run = Run::default();
    let first = m.moves.first().map_or(m.end, |x| x.fault);
    let ends = m.moves.iter().skip(1).map(|x| x.fault).chain([m.end]);
    let spans: Vec<(&Move, Span)> = m.moves.iter().zip(ends).map(|(x, to)| (x, Span { from: x.fault, to })).collect();
    let over_moves = |flows: &[Flow]| {
        let each = spans.iter().map(|(_, s)| broken_flows(flows, *s));
        each.fold((0, 0), |(b, n), (broken, all)| (b + broken, n + all))
    };
    let mut set = |key: &'static str, v: f64| {
        run.numbers.insert(key, Some(v));
    };
    let (broken, all) = over_moves(&flows(&m.records, |_| true));
    set("moves", m.moves.len() as f64);
    set("broken_flows", broken as f64);
    set("flow_moves", all as f64);
    for kind in Kind::ALL {
        set(kind.broken_key(), over_moves(&flows(&m.records, |r| r.kind == kind)).0 as f64);
    }
    for path in Path::ALL {
        set(path.broken_key(), over_moves(&flows(&m.records, |r| r.path == path)).0 as f64);
    }
    // Of one that stays silent nothing is known until it speaks.
    let (lost, tcp) = over_moves(&flows(&m.records, |r| !matches!(r.kind, Kind::Udp | Kind::Idle)));
    set("survived_tcp", (tcp - lost) as f64);
    let unbroken = || m.records.iter().filter(|r| r.flow.broken.is_none());
    // One that wasn't ended in order, with nothing wrong with it, isn't whole either.
    let in_error = |r: &&Record| r.wrong || (r.flow.broken.is_none() && !r.whole);
    set("hash_errors", m.records.iter().filter(in_error).count() as f64);
    let bulk = || unbroken().filter(|r| r.kind == Kind::Bulk);
    set("bulk_short", bulk().filter(|r| r.moved < m.bytes).count() as f64);
    set("bulk_mb_min", bulk().map(|r| r.moved).min().unwrap_or(0) as f64 / MEGABYTE as f64);

    let (mut worst, mut excess, mut longest, mut takeover) = (0.0_f64, f64::MIN, 0.0_f64, 0.0_f64);
    for (x, span) in &spans {
        let away = outage(&m.probes, UDP_INTERVAL, *span).longest_ms;
        let waited = m.records.iter().map(|r| r.waiting.longest(*span)).max().unwrap_or(0);
        let stall = ms_between(0, waited);
        let (broken, all) = broken_flows(&flows(&m.records, |_| true), *span);
        worst = worst.max(stall);
        excess = excess.max(stall - 2.0 * away);
        longest = longest.max(away);
        takeover = takeover.max(ms_between(x.fault, x.taken));
        let (at, from, to) = (ms_between(first, x.fault), x.from.name(), x.from.other().name());
        let mut text = format!("{from} → {to}: {broken} of {all} flows break");
        let _ = write!(text, ", longest stall {stall:.0} ms, outage {away:.0} ms");
        run.timeline.push((at, text));
    }
    run.numbers.extend([
        ("outage_ms", Some(longest)),
        ("takeover_ms", Some(takeover)),
        ("stall_ms", Some(worst)),
        ("stall_excess_ms", (!spans.is_empty()).then_some(excess)),
        ("machine_late_ms", Some(ms_between(0, m.machine_late))),
        ("prober_late_ms", Some(ms_between(0, m.clients_late))),
    ]);
    run
}

/// Times that a late machine measured say nothing: strictly, nothing of the run does.
pub fn judge_lateness(run: &mut Run, late: Ns, strict: bool) {
    if late <= crate::watch::reference::VOID {
        return;
    }
    let why = format!("the machine was {} ms late", late / MS);
    let broke = |key: &str| run.numbers.get(key).copied().flatten().is_some_and(|n| n > 0.0);
    // What is broken stays so: a machine that is late by that much breaks no connection.
    if strict && !broke("broken_flows") && !broke("hash_errors") {
        run.void = Some(why);
        return;
    }
    for key in ["stall_ms", "stall_excess_ms", "outage_ms", "takeover_ms"] {
        run.numbers.insert(key, None);
    }
    run.words.insert("times", format!("not measured: {why}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Class;

    fn record(kind: Kind, path: Path, broken_ms: Option<u64>) -> Record {
        let mut r = Record { moved: 5 * MEGABYTE, whole: broken_ms.is_none(), ..Record::new(kind, path) };
        r.flow = Flow { established: 0, broken: broken_ms.map(|t| (t * MS, Class::Timeout)), requests: 1, node: 255 };
        r
    }

    fn measured(records: Vec<Record>) -> Measured {
        let at = |from, ms: u64| Move { from, fault: ms * MS, taken: (ms + 300) * MS };
        Measured {
            moves: vec![at(Lb::Lb1, 1000), at(Lb::Lb2, 5000)],
            end: 9000 * MS,
            records,
            bytes: 4 * MEGABYTE,
            probes: Vec::new(),
            machine_late: 0,
            clients_late: 0,
        }
    }

    fn number(run: &Run, key: &str) -> f64 {
        run.numbers.get(key).copied().flatten().expect("a figure")
    }

    #[test]
    fn a_flow_counts_at_every_move_that_it_lived_to_see() {
        let mut late = record(Kind::Talk, Path::Snat6, None);
        late.flow.established = 2000 * MS;
        let run = figures(&measured(vec![
            record(Kind::Talk, Path::Dnat4, None),
            record(Kind::Bulk, Path::Snat4, Some(1400)),
            record(Kind::Udp, Path::Dnat4, Some(6000)),
            late,
            record(Kind::Idle, Path::Dnat6, None),
        ]));
        // 4 at the first move, 4 at the second.
        assert_eq!((number(&run, "flow_moves"), number(&run, "broken_flows")), (8.0, 2.0));
        assert_eq!(
            (number(&run, "broken_bulk"), number(&run, "broken_udp"), number(&run, "broken_talk")),
            (1.0, 1.0, 0.0)
        );
        assert_eq!((number(&run, "broken_snat4"), number(&run, "broken_dnat4")), (1.0, 1.0));
        assert_eq!(number(&run, "survived_tcp"), 3.0);
    }

    #[test]
    fn a_bulk_flow_that_moved_too_little_is_short_and_bytes_that_are_not_right_are_errors() {
        let mut wrong = record(Kind::Bulk, Path::Dnat4, Some(1500));
        wrong.wrong = true;
        let mut short = record(Kind::Bulk, Path::Dnat6, None);
        short.moved = 3 * MEGABYTE;
        let mut not_ended = record(Kind::Talk, Path::Snat6, None);
        not_ended.whole = false;
        let run = figures(&measured(vec![wrong, short, not_ended, record(Kind::Bulk, Path::Snat4, None)]));
        assert_eq!((number(&run, "hash_errors"), number(&run, "bulk_short")), (2.0, 1.0));
        assert_eq!(number(&run, "bulk_mb_min"), 3.0);
    }

    #[test]
    fn the_stall_that_counts_is_the_one_beyond_twice_its_own_outage() {
        let mut r = record(Kind::Talk, Path::Dnat4, None);
        for (from, to) in [(990, 1700), (5000, 5400)] {
            r.waiting.asked(from * MS);
            r.waiting.answered(to * MS, false);
        }
        let probe = |ms: u64, class| Sample { sent: ms * MS, done: ms * MS, class, node: 0 };
        let mut m = measured(vec![r]);
        m.probes =
            vec![probe(999, Class::Ok), probe(1000, Class::Timeout), probe(1300, Class::Ok), probe(5001, Class::Ok)];
        let run = figures(&m);
        assert_eq!((number(&run, "stall_ms"), number(&run, "outage_ms")), (710.0, 300.0));
        // 710 - 2 × 300 at the first move, 400 - 0 at the second.
        assert_eq!(number(&run, "stall_excess_ms"), 400.0);
    }

    #[test]
    fn a_late_machine_says_nothing_of_times_and_everything_of_what_broke() {
        let clean = || figures(&measured(vec![record(Kind::Talk, Path::Dnat4, None)]));
        let broken = || figures(&measured(vec![record(Kind::Talk, Path::Dnat4, Some(1400))]));
        let judged = |mut run: Run, late: Ns, strict| {
            judge_lateness(&mut run, late * MS, strict);
            (run.void.is_some(), run.numbers["stall_ms"].is_some())
        };
        assert_eq!(judged(clean(), 50, true), (false, true));
        assert_eq!(judged(clean(), 51, true), (true, true));
        assert_eq!(judged(clean(), 51, false), (false, false));
        assert_eq!(judged(broken(), 51, true), (false, false));
    }
}
