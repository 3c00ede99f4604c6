//! Balancers in the status: the verdict on each, and what it rests on.

use super::{age, one_line, table};
use holdfast_node::status::{BalancerStatus, ConntrackStatus};

/// The table, and below it the evidence where there is any.
pub(crate) fn rows(balancers: &[BalancerStatus]) -> String {
    let row = |b: &BalancerStatus| {
        let pid = b.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let (name, kind, state) = (b.name.clone(), b.kind.clone(), b.state.clone());
        vec![name, kind, state, age(b.age_ms), b.verdict.clone(), age(b.verdict_age_ms), pid]
    };
    let mut text = table(&["BALANCER", "KIND", "STATE", "SINCE", "VERDICT", "FOR", "PID"], balancers.iter().map(row));
    for b in balancers {
        let mut line = |what: &str| text.push_str(&format!("  {}: {}\n", b.name, one_line(what)));
        if let Some(why) = b.why.as_ref().filter(|_| b.evidence.is_empty()) {
            line(why);
        }
        for evidence in &b.evidence {
            line(&format!("{}, for {}", evidence.what, age(evidence.age_ms)));
        }
        let shown = OLD_SHOWN.min(b.old.len());
        for old in b.old.iter().take(shown) {
            line(&format!("old process {} still finishes, for {}", old.pid, age(old.age_ms)));
        }
        if b.old.len() > shown {
            line(&format!("and {} more old processes", b.old.len() - shown));
        }
    }
    text
}

/// More old processes than this are counted only.
const OLD_SHOWN: usize = 4;

/// The connection table.
pub(crate) fn conntrack(view: &ConntrackStatus) -> String {
    let of = if view.limit == 0 { "no limit".to_owned() } else { format!("{} % of {}", view.used_percent, view.limit) };
    let full = view.full_in_s.map(|s| format!(", full in {s} s (computed)")).unwrap_or_default();
    let lost = match view.dropped.saturating_add(view.early_dropped) {
        0 => String::new(),
        lost => format!(", {lost} lost"),
    };
    format!(
        "connection table {} for {}: {} entries ({of}), {} new a second (computed){lost}{full}\n",
        one_line(&view.level),
        age(view.age_ms),
        view.count,
        view.new_per_s,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::status::{EvidenceStatus, OldWorkerStatus};

    #[test]
    fn the_connection_table_is_one_line_with_what_is_computed_named_as_such() {
        let view = ConntrackStatus { level: "fine".to_owned(), age_ms: 61_000, count: 5, ..ConntrackStatus::default() };
        assert_eq!(
            conntrack(&view),
            "connection table fine for 1m01s: 5 entries (no limit), 0 new a second (computed)\n"
        );
        let view = ConntrackStatus {
            level: "full".to_owned(),
            limit: 100,
            used_percent: 96,
            count: 96,
            new_per_s: 3,
            full_in_s: Some(2),
            dropped: 1,
            early_dropped: 1,
            ..view
        };
        let expected = "connection table full for 1m01s: 96 entries (96 % of 100), 3 new a second (computed), 2 lost, \
                        full in 2 s (computed)\n";
        assert_eq!(conntrack(&view), expected);
    }

    #[test]
    fn a_balancer_comes_with_what_its_verdict_rests_on() {
        let balancer = BalancerStatus {
            name: "haproxy".to_owned(),
            kind: "haproxy".to_owned(),
            state: "alive".to_owned(),
            pid: Some(7),
            age_ms: 61_000,
            verdict: "pool-empty".to_owned(),
            verdict_age_ms: 1_500,
            evidence: vec![EvidenceStatus { what: "all 3 backends are down".to_owned(), age_ms: 1_500 }],
            old: (1..=6).map(|pid| OldWorkerStatus { pid, age_ms: 90_000 }).collect(),
            ..BalancerStatus::default()
        };
        let expected = "\
BALANCER  KIND     STATE  SINCE  VERDICT     FOR   PID
haproxy   haproxy  alive  1m01s  pool-empty  1.5s  7
  haproxy: all 3 backends are down, for 1.5s
  haproxy: old process 1 still finishes, for 1m30s
  haproxy: old process 2 still finishes, for 1m30s
  haproxy: old process 3 still finishes, for 1m30s
  haproxy: old process 4 still finishes, for 1m30s
  haproxy: and 2 more old processes
";
        assert_eq!(rows(&[balancer]), expected);
    }
}
