//! The checks in a status, and what they say that changes no decision.

use super::CheckStatus;
use crate::config::{Check, CheckId, Probe};
use crate::io::age_ms;
use crate::node::Node;
use crate::world::{CheckState, CheckView};
use std::time::Instant;

fn each(node: &Node) -> impl Iterator<Item = (CheckId, &Check, &CheckView)> {
    (0..).map(CheckId).zip(&node.config.checks).zip(&node.world.checks).map(|((id, check), view)| (id, check, view))
}

pub(super) fn rows(node: &Node, now: Instant) -> Vec<CheckStatus> {
    let row = |(id, check, view): (CheckId, &Check, &CheckView)| {
        let counts = node.checks.counts(id);
        CheckStatus {
            name: check.name.as_str().to_owned(),
            state: match view.state {
                CheckState::Unknown => "unknown",
                CheckState::Passed => "passed",
                CheckState::Failed => "failed",
            }
            .to_owned(),
            age_ms: age_ms(now, view.since),
            shared: check.shared,
            kind: check.probe.kind().to_owned(),
            note: counts.note.map(str::to_owned),
            last: counts.last.map(|(_, result)| result.clone().err().unwrap_or_else(|| "ok".to_owned())),
            last_age_ms: counts.last.map(|(at, _)| age_ms(now, *at)),
            successes: counts.successes,
            failures: counts.failures,
        }
    };
    each(node).map(row).collect()
}

/// Canaries that fail, and certificates that end, each with its remedy. What a check of a VIP says is among the reasons
/// of that VIP.
pub(super) fn warnings(node: &Node) -> Vec<(String, &'static str)> {
    let mut found = Vec::new();
    for (id, check, view) in each(node) {
        let counts = node.checks.counts(id);
        let canary = matches!(check.probe, Probe::Canary(_));
        if canary && view.state == CheckState::Failed {
            let why = counts.last.and_then(|(_, result)| result.as_ref().err()).map_or("", String::as_str);
            found.push((
                format!("canary {}: {why}", check.name),
                "asked from here over the wire: see `holdfast status` on the owner, and what lies between",
            ));
        } else if let Some(note) = counts.note.filter(|_| !canary) {
            found.push((format!("check {}: {note}", check.name), "renew the certificate that is served there"));
        }
    }
    found
}
