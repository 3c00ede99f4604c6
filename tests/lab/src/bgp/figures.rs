//! From what one BGP run recorded to its figures; pure. `METRICS.md` says in words what this module says in code.

use super::fib;
use super::message::Said;
use super::net::{Node, VIP};
use super::wire::Seen;
use crate::clock::{Ns, ms_between};
use crate::load::fresh;
use crate::metrics::{Class, Flow, GRACE, Sample, Span, broken_flows, outage};
use crate::report::{Run, ground};
use std::net::IpAddr;

/// Everything one run recorded.
#[derive(Debug)]
pub struct Measured {
    /// Time between two fresh requests.
    pub interval: Ns,
    /// When the noise floor's measurement began.
    pub steady: Ns,
    /// When the fault was injected.
    pub fault: Ns,
    /// When the process that was killed was gone, for whoever watches it.
    pub ended: Option<Ns>,
    /// When its repair began.
    pub repair: Ns,
    /// The end.
    pub end: Ns,
    /// The node that it is about; `None`: the router.
    pub victim: Option<Node>,
    /// The fault was left out: what is said of any node counts.
    pub twin: bool,
    /// All nodes.
    pub nodes: Vec<Node>,
    /// Fresh requests.
    pub fresh: fresh::Log,
    /// Long-lived connections.
    pub flows: Vec<Flow>,
    /// What was said.
    pub wire: Vec<Seen>,
    /// The router's table.
    pub fib: Vec<fib::Event>,
    /// The reference thread's lateness.
    pub late: Vec<(Ns, Ns)>,
    /// Why measuring ran without real-time priority.
    pub realtime: Option<String>,
}

/// Whether a node is a next hop in an event.
fn has(e: &fib::Event, n: Node) -> bool {
    e.hops.keys().any(|h| Node::with_address(*h) == Some(n))
}

/// A request that failed while the router moved its flow: it was open when the table changed.
fn open_at_a_change(s: &Sample, changes: &[Ns]) -> bool {
    changes.iter().any(|&t| s.sent <= t && t <= s.done)
}

/// The figures of one run.
#[must_use]
pub fn figures(m: &Measured) -> Run {
    let mut run = Run { realtime: m.realtime.clone(), ..Run::default() };
    let mut set = |key: &'static str, v: Option<f64>| {
        run.numbers.insert(key, v);
    };
    let noise = Span { from: m.steady, to: m.fault };
    // A router that was started again is repaired when all is at rest: what that costs is the fault's.
    let during = Span { from: m.fault, to: if m.victim.is_some() { m.repair } else { m.end } };
    let after = Span { from: m.repair, to: m.end };
    let since = |t: Ns| ms_between(m.fault, t);
    let vip = IpAddr::V4(VIP);

    let o = outage(&m.fresh.samples, m.interval, during);
    set("outage_ms", Some(o.longest_ms));
    set("failed", Some(o.failed as f64));
    set("requests", Some(o.requests as f64));
    let changes: Vec<Ns> = m.fib.iter().filter(|e| e.to == vip && e.changed).map(|e| e.at).collect();
    let failed = || m.fresh.samples.iter().filter(|s| s.class != Class::Ok && during.holds(s.belongs_at()));
    let in_flight = failed().filter(|s| open_at_a_change(s, &changes)).count();
    set("failed_in_flight", Some(in_flight as f64));
    set("failed_lost", Some((o.failed - in_flight) as f64));
    // Sent when the victim was no next hop any more.
    let fib = || m.fib.iter().filter(|e| e.to == vip);
    let gone = m.victim.and_then(|n| fib().find(|e| e.at >= m.fault && !has(e, n)).map(|e| e.at));
    set("failed_elsewhere", gone.map(|t| failed().filter(|s| s.sent > t).count() as f64));
    let (broken, flows) = broken_flows(&m.flows, during);
    set("broken_flows", Some(broken as f64));
    set("flows", Some(flows as f64));
    let elsewhere: Vec<Flow> =
        m.flows.iter().copied().filter(|f| m.victim.is_none_or(|n| usize::from(f.node) != n.0)).collect();
    set("broken_elsewhere", Some(broken_flows(&elsewhere, during).0 as f64));
    if m.victim.is_some() {
        let returned = || m.fresh.samples.iter().filter(|s| s.class != Class::Ok && after.holds(s.belongs_at()));
        let (all, cut) = (returned().count(), returned().filter(|s| open_at_a_change(s, &changes)).count());
        set("failback_failed", Some(all as f64));
        set("failback_in_flight", Some(cut as f64));
        set("failback_lost", Some((all - cut) as f64));
    }

    let events = |s: Span| fib().filter(|e| s.holds(e.at)).count() as f64;
    set("fib_events", Some(events(during)));
    set("fib_changes", Some(fib().filter(|e| e.changed && during.holds(e.at)).count() as f64));
    set("fib_reordered", Some(fib().filter(|e| e.reordered && during.holds(e.at)).count() as f64));
    set("noise_fib_events", Some(events(noise)));
    set("fib_ms", gone.filter(|t| during.holds(*t)).map(since));
    let who = m.victim.filter(|_| !m.twin);
    let said = || m.wire.iter().filter(|s| during.holds(s.at) && who.is_none_or(|n| s.node == n));
    let withdraws = |s: &&Seen| s.by_node && withdraws(&s.said, vip);
    let withdrawn = said().find(withdraws).map(|s| s.at);
    set("withdraw_ms", withdrawn.map(since));
    set("exit_ms", m.ended.map(since));
    set("withdraw_after_exit_ms", m.ended.zip(withdrawn).map(|(ended, said)| ms_between(ended, said)));
    let first = said().find(|s| s.by_node && withdraws(s) || ends(&s.said)).map(|s| s.at);
    set("detect_ms", first.map(since));
    set("sessions_ended", Some(said().filter(|s| ends(&s.said) && !bfd(&s.said)).count() as f64));
    set("bfd_flaps", Some(flaps(m, during) as f64));
    set("announced_ms", announced(m, if m.victim.is_some() { m.fault } else { m.repair }));
    set("back_ms", back(m).map(|t| ms_between(m.repair, t)));

    ground(&mut run, &m.fresh, m.interval, &m.late, noise, m.end);
    run.timeline = timeline(m);
    run
}

fn withdraws(said: &Said, vip: IpAddr) -> bool {
    matches!(said, Said::Update(u) if u.withdrawn.iter().any(|(ip, _)| *ip == vip))
}

fn announces(said: &Said, vip: IpAddr) -> bool {
    matches!(said, Said::Update(u) if u.announced.iter().any(|(ip, _)| *ip == vip))
}

fn bfd(said: &Said) -> bool {
    matches!(said, Said::Bfd { .. })
}

/// The end of a session, by whatever means; a BFD packet counts when it says Down.
fn ends(said: &Said) -> bool {
    match said {
        Said::Notification { .. } | Said::Fin | Said::Reset => true,
        Said::Bfd { state, .. } => *state == 1,
        _ => false,
    }
}

/// How often BFD left Up, by what either side said.
fn flaps(m: &Measured, span: Span) -> usize {
    let mut count = 0;
    for n in &m.nodes {
        for by_node in [true, false] {
            let mut up = false;
            for s in m.wire.iter().filter(|s| s.node == *n && s.by_node == by_node && s.at < span.to) {
                let Said::Bfd { state, .. } = s.said else { continue };
                if up && state != 3 && s.at >= span.from {
                    count += 1;
                }
                up = state == 3;
            }
        }
    }
    count
}

/// From `from` until every node it is about has announced the VIP anew.
fn announced(m: &Measured, from: Ns) -> Option<f64> {
    let vip = IpAddr::V4(VIP);
    let who: Vec<Node> = m.victim.map_or_else(|| m.nodes.clone(), |n| vec![n]);
    let first = |n: &Node| {
        let of = m.wire.iter().find(|s| s.at >= from && s.node == *n && s.by_node && announces(&s.said, vip));
        of.map(|s| s.at)
    };
    let all: Option<Vec<Ns>> = who.iter().map(first).collect();
    all.and_then(|a| a.into_iter().max()).map(|t| ms_between(from, t))
}

/// When, after the repair, all nodes were next hops for good.
fn back(m: &Measured) -> Option<Ns> {
    let vip = IpAddr::V4(VIP);
    let whole = |e: &fib::Event| m.nodes.iter().all(|n| has(e, *n));
    let mut since = None;
    for e in m.fib.iter().filter(|e| e.to == vip && e.at < m.end) {
        since = match (whole(e), since) {
            (true, None) => Some(e.at),
            (true, known) => known,
            (false, _) => None,
        };
    }
    since.map(|t| t.max(m.repair))
}

fn timeline(m: &Measured) -> Vec<(f64, String)> {
    const FAILURES_SHOWN: usize = 6;
    let vip = IpAddr::V4(VIP);
    let mut all: Vec<(Ns, String)> = vec![(m.fault, "fault".into()), (m.repair, "repair".into())];
    for e in m.fib.iter().filter(|e| e.to == vip) {
        let hops: Vec<String> =
            e.hops.keys().map(|h| Node::with_address(*h).map_or_else(|| h.to_string(), Node::name)).collect();
        let hops = if hops.is_empty() { "nothing".to_owned() } else { hops.join(" ") };
        all.push((
            e.at,
            format!(
                "router's table: {hops}{}",
                match (e.changed, e.reordered) {
                    (true, _) => "",
                    (false, true) => " (in another order)",
                    (false, false) => " (as before)",
                }
            ),
        ));
    }
    let mut state: std::collections::BTreeMap<(Node, bool), u8> = std::collections::BTreeMap::new();
    for s in &m.wire {
        let who = if s.by_node { s.node.name() } else { format!("router to {}", s.node.name()) };
        let what = match &s.said {
            Said::Keepalive => continue,
            Said::Bfd { state: now, diagnostic } => {
                if state.insert((s.node, s.by_node), *now) == Some(*now) {
                    continue;
                }
                let name = ["AdminDown", "Down", "Init", "Up"].get(usize::from(*now)).copied().unwrap_or("?");
                format!("BFD {name}, diagnostic {diagnostic}")
            }
            Said::Update(u) if u.end_of_rib => "End-of-RIB".to_owned(),
            Said::Update(u) => format!(
                "UPDATE: {} announced, {} withdrawn{}",
                u.announced.len(),
                u.withdrawn.len(),
                if u.shutdown { ", graceful shutdown" } else { "" }
            ),
            other => format!("{other:?}"),
        };
        all.push((s.at, format!("{who}: {what}")));
    }
    let failed = m.fresh.samples.iter().filter(|s| s.class != Class::Ok && s.sent + GRACE >= m.fault);
    for s in failed.take(FAILURES_SHOWN) {
        let took = ms_between(s.sent, s.done);
        all.push((s.sent, format!("client: a request is sent that will fail ({} after {took:.1} ms)", s.class.name())));
    }
    all.retain(|(t, _)| *t + GRACE >= m.fault && *t <= m.end);
    all.sort();
    all.into_iter().map(|(t, s)| (ms_between(m.fault, t), s)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bgp::message::Update;
    use crate::clock::MS;

    const fn sample(sent: u64, done: u64, class: Class) -> Sample {
        Sample { sent: sent * MS, done: done * MS, class, node: 0 }
    }

    fn event(at: u64, nodes: &[usize]) -> fib::Event {
        let hops = nodes.iter().map(|n| (Node(*n).front().into(), 1)).collect();
        fib::Event { at: at * MS, to: VIP.into(), hops, changed: true, reordered: false }
    }

    fn says(at: u64, said: Said) -> Seen {
        Seen { at: at * MS, node: Node(0), by_node: true, said, ttl: 1, signed: false, v6: false }
    }

    fn run(wire: Vec<Seen>, fib: Vec<fib::Event>, samples: Vec<Sample>) -> Run {
        figures(&measured(wire, fib, samples))
    }

    fn measured(wire: Vec<Seen>, fib: Vec<fib::Event>, samples: Vec<Sample>) -> Measured {
        Measured {
            interval: 5 * MS,
            steady: 0,
            fault: 1000 * MS,
            ended: Some(1003 * MS),
            repair: 2000 * MS,
            end: 4000 * MS,
            victim: Some(Node(0)),
            twin: false,
            nodes: vec![Node(0), Node(1)],
            fresh: fresh::Log { samples, late: Vec::new() },
            flows: Vec::new(),
            wire,
            fib,
            late: Vec::new(),
            realtime: None,
        }
    }

    fn gone() -> Said {
        Said::Update(Update { withdrawn: vec![(VIP.into(), 32)], ..Update::default() })
    }

    #[test]
    fn a_withdrawal_is_dated_on_the_wire_and_in_the_table_and_the_return_by_its_last_change() {
        let fib =
            vec![event(0, &[0, 1]), event(1010, &[1]), event(2100, &[0, 1]), event(2200, &[1]), event(2300, &[0, 1])];
        let r = run(vec![says(1004, gone())], fib, Vec::new());
        let n = |k: &str| r.numbers[k];
        assert_eq!((n("withdraw_ms"), n("fib_ms"), n("back_ms")), (Some(4.0), Some(10.0), Some(300.0)));
        assert_eq!((n("exit_ms"), n("withdraw_after_exit_ms")), (Some(3.0), Some(1.0)));
        assert_eq!((n("sessions_ended"), n("fib_events"), n("noise_fib_events")), (Some(0.0), Some(1.0), Some(1.0)));
    }

    #[test]
    fn what_was_open_when_the_table_changed_is_counted_apart() {
        let samples = vec![
            sample(1005, 1006, Class::Refused), // before the switch
            sample(1009, 1011, Class::Reset),   // open at the switch
            sample(1020, 1021, Class::Reset),   // after it, elsewhere
        ];
        let r = run(vec![], vec![event(0, &[0, 1]), event(1010, &[1])], samples);
        let n = |k: &str| r.numbers[k];
        assert_eq!((n("failed"), n("failed_in_flight"), n("failed_lost")), (Some(3.0), Some(1.0), Some(2.0)));
        assert_eq!(n("failed_elsewhere"), Some(1.0));
    }

    #[test]
    fn a_session_of_another_node_that_ends_counts_in_a_twin_and_where_the_router_is_the_victim() {
        let wire = || vec![Seen { node: Node(1), ..says(1001, Said::Fin) }];
        let of = |change: fn(&mut Measured)| {
            let mut m = measured(wire(), vec![event(0, &[0, 1])], Vec::new());
            change(&mut m);
            figures(&m).numbers["sessions_ended"]
        };
        assert_eq!(of(|_| {}), Some(0.0));
        assert_eq!(of(|m| m.twin = true), Some(1.0));
        assert_eq!(of(|m| m.victim = None), Some(1.0));
    }

    #[test]
    fn a_router_is_back_when_all_is_at_rest_again_and_until_then_everything_counts() {
        let samples = vec![sample(3000, 3001, Class::Refused)];
        let table = vec![event(0, &[0, 1]), event(3000, &[1]), event(3100, &[0, 1])];
        let mut m = measured(vec![], table, samples);
        let of = |m: &Measured, key: &str| figures(m).numbers.get(key).copied().flatten();
        assert_eq!((of(&m, "failed"), of(&m, "fib_events")), (Some(0.0), Some(0.0)));
        assert_eq!(of(&m, "failback_failed"), Some(1.0));
        m.victim = None;
        m.fib.push(fib::Event { changed: false, ..event(3200, &[0, 1]) });
        assert_eq!((of(&m, "failed"), of(&m, "fib_events"), of(&m, "fib_changes")), (Some(1.0), Some(3.0), Some(2.0)));
        assert_eq!(of(&m, "failback_failed"), None);
    }

    #[test]
    fn a_flap_is_bfd_leaving_up_and_not_its_first_words() {
        let bfd = |at, state| says(at, Said::Bfd { state, diagnostic: 0 });
        let of = |wire| run(wire, vec![event(0, &[0, 1])], Vec::new()).numbers["bfd_flaps"];
        assert_eq!(of(vec![bfd(1001, 1), bfd(1002, 2), bfd(1003, 3)]), Some(0.0));
        assert_eq!(of(vec![bfd(900, 3), bfd(1002, 1), bfd(1003, 3), bfd(1004, 3)]), Some(1.0));
    }
}
