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

/// The connection table, once it is more than fine.
pub(crate) fn conntrack(view: &ConntrackStatus) -> String {
    format!("connection table {} for {}: {}\n", view.level, age(view.age_ms), one_line(&view.why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::status::{EvidenceStatus, OldWorkerStatus};

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
