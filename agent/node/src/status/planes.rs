//! What the status says of balancers: the verdict on each, what it rests on, and how old all of that is; and of what a
//! node has for all of them.

use super::{Verdict as Judgement, Warning};
use crate::conntrack::level_word;
use crate::io::{BalancerState, ConntrackLevel, age_ms};
use crate::node::Node;
use crate::plane::{Judged, Standing, Verdict, standing};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// One balancer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BalancerStatus {
    /// Name.
    pub name: String,
    /// Kind.
    pub kind: String,
    /// `unknown`, `alive`, `gone`.
    pub state: String,
    /// Its main process.
    pub pid: Option<u32>,
    /// Why it is unknown or gone.
    pub why: Option<String>,
    /// Milliseconds since the state changed.
    pub age_ms: u64,
    /// What is thought of it: `unknown`, `serving`, `dead`, `hung`, `failing`, `sick`, `pool-empty`, `leaving`,
    /// `saturated`, `unsupervised`, `bad-reload`, `reloading`.
    #[serde(default)]
    pub verdict: String,
    /// Milliseconds since the verdict changed.
    #[serde(default)]
    pub verdict_age_ms: u64,
    /// What that rests on, the weightiest first.
    #[serde(default)]
    pub evidence: Vec<EvidenceStatus>,
    /// Milliseconds since it was last looked at; absent: it isn't, or not yet.
    #[serde(default)]
    pub looked_age_ms: Option<u64>,
    /// Reloads that took effect, as far as it counts them.
    #[serde(default)]
    pub generation: Option<u64>,
    /// Old processes that still finish what they have.
    #[serde(default)]
    pub old: Vec<OldWorkerStatus>,
}

/// See [`BalancerStatus::evidence`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvidenceStatus {
    /// What is seen.
    pub what: String,
    /// Milliseconds since it has been seen without a break.
    pub age_ms: u64,
}

/// See [`BalancerStatus::old`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldWorkerStatus {
    /// Process.
    pub pid: u32,
    /// Milliseconds since it was first seen to be an old one.
    pub age_ms: u64,
}

/// The kernel's connection table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConntrackStatus {
    /// `fine`, `filling`, `high`, `full`.
    pub level: String,
    /// The figures, as they were when the level changed.
    pub why: String,
    /// Milliseconds since the level changed.
    pub age_ms: u64,
    /// Entries.
    pub count: u64,
    /// Entries that it may have; 0: no limit.
    pub limit: u64,
    /// Of the limit.
    pub used_percent: u64,
    /// New entries in a second, computed from what there are and how long they stay.
    pub new_per_s: u64,
    /// Seconds until it is full at this rate, computed; absent: never.
    pub full_in_s: Option<u64>,
    /// Packets dropped for want of an entry, since the agent started.
    pub dropped: u64,
    /// Entries thrown out for others.
    pub early_dropped: u64,
    /// Entries that were there already.
    pub insert_failed: u64,
    /// The peers' limits, as far as they said.
    pub peers: BTreeMap<String, u64>,
}

/// This node's own standing still.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallStatus {
    /// How long, the last time.
    pub late_ms: u64,
    /// Milliseconds since then.
    pub age_ms: u64,
}

/// A VIP that was lost here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldDownStatus {
    /// Losses as they weigh now, in hundredths.
    pub losses_percent: u64,
    /// Milliseconds for which others still go first.
    pub left_ms: u64,
}

pub(super) fn balancers(node: &Node, now: Instant) -> Vec<BalancerStatus> {
    let each = node.config.balancers.iter().zip(&node.world.balancers);
    each.map(|(balancer, view)| {
        let (state, pid, why) = match &view.state {
            BalancerState::Unknown { why } => ("unknown", None, Some(why.clone())),
            BalancerState::Alive { pid } => ("alive", Some(*pid).filter(|pid| *pid > 0), None),
            BalancerState::Gone { pid, why } => ("gone", Some(*pid).filter(|pid| *pid > 0), Some(why.clone())),
        };
        let plane = view.plane.as_ref();
        let old = plane.into_iter().flat_map(|plane| &plane.report.reload.old);
        BalancerStatus {
            name: balancer.name.as_str().to_owned(),
            kind: balancer.kind.word().to_owned(),
            state: state.to_owned(),
            pid,
            why,
            age_ms: age_ms(now, view.since),
            verdict: view.judged.verdict.word().to_owned(),
            verdict_age_ms: age_ms(now, view.judged.since),
            evidence: evidence(&view.judged, now),
            looked_age_ms: plane.map(|plane| age_ms(now, plane.at)),
            generation: plane.map(|plane| plane.report.reload.generation),
            old: old.map(|old| OldWorkerStatus { pid: old.pid, age_ms: age_ms(now, old.since) }).collect(),
        }
    })
    .collect()
}

fn evidence(judged: &Judged, now: Instant) -> Vec<EvidenceStatus> {
    let one = |e: &crate::plane::Evidence| EvidenceStatus { what: e.sign.to_string(), age_ms: age_ms(now, e.since) };
    judged.evidence.iter().map(one).collect()
}

pub(super) fn conntrack(node: &Node, now: Instant) -> Option<ConntrackStatus> {
    let (watch, view) = (&node.conntrack, &node.world.conntrack);
    let sample = watch.last()?;
    let peers = node.config.cluster.iter().flat_map(|c| &c.peers).zip(&node.world.peers);
    let limits = peers.filter_map(|(peer, view)| Some((peer.name.as_str().to_owned(), view.table_limit?)));
    Some(ConntrackStatus {
        level: level_word(view.level).to_owned(),
        why: view.why.clone(),
        age_ms: age_ms(now, view.since),
        count: sample.count,
        limit: sample.limit,
        used_percent: sample.used_permille() / 10,
        new_per_s: watch.rate(),
        full_in_s: watch.full_in_s(),
        dropped: sample.lost.dropped,
        early_dropped: sample.lost.early_dropped,
        insert_failed: sample.lost.insert_failed,
        peers: limits.collect(),
    })
}

pub(super) fn stall(node: &Node, now: Instant) -> Option<StallStatus> {
    let (late, at) = node.stalled?;
    Some(StallStatus { late_ms: age_ms(at + late, at), age_ms: age_ms(now, at) })
}

pub(super) fn hold_down(view: &crate::world::VipView, now: Instant) -> Option<HoldDownStatus> {
    let losses = view.hold_down.losses(now);
    let left_ms = view.hold_down.held_until(now).map_or(0, |until| age_ms(until, now));
    // A cast of a float saturates.
    (losses >= 0.01).then_some(HoldDownStatus { losses_percent: (losses * 100.0) as u64, left_ms })
}

/// What somebody should look at though the VIPs are served.
pub(super) fn warnings(node: &Node) -> Vec<(Judgement, Warning)> {
    let mut found = Vec::new();
    let mut say = |text: String, remedy: &str| {
        found.push((Judgement::Degraded, Warning { text, remedy: remedy.to_owned() }));
    };
    for (balancer, view) in node.config.balancers.iter().zip(&node.world.balancers) {
        let remedy = match view.judged.verdict {
            // A VIP that can't be served says why itself.
            verdict if matches!(standing::of(verdict), Standing::Bad | Standing::Good | Standing::Poor) => continue,
            Verdict::Saturated => {
                "raise its limit if the host has room, or add a node: moving the VIP would move the load along"
            }
            Verdict::Unsupervised => "start it anew when the VIPs are elsewhere: nothing would restart or reload it",
            _ => "correct its configuration and reload it: until then it runs an old one",
        };
        let (name, verdict) = (&balancer.name, view.judged.verdict.word());
        say(format!("balancer {name} is {verdict}: {}", view.judged.why()), remedy);
    }
    let conntrack = &node.world.conntrack;
    if conntrack.level >= ConntrackLevel::Filling {
        let text = format!("the kernel's connection table is {}: {}", level_word(conntrack.level), conntrack.why);
        say(text, "raise net.netfilter.nf_conntrack_max on all nodes alike, or shorten its timeouts");
    }
    found
}
