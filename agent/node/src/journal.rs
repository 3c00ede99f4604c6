//! Events with cause chains: what happened, and which earlier event made it happen.
//!
//! The journal refuses to format or to write: an [`Event`] is plain data, the agent adds the wall time and stores it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// One journal entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Grows by one from entry to entry, over restarts too.
    pub id: u64,
    /// The entry that caused this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<u64>,
    /// Entries of the same fault that were left out before this one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub suppressed: u64,
    /// What happened.
    #[serde(flatten)]
    pub kind: Kind,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// How loud an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Ordinary course of things.
    Info,
    /// Works, but somebody should look.
    Warning,
    /// Service or redundancy suffers.
    Fault,
}

/// What happened. VIPs, peers, checks and balancers by their configured names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(missing_docs, reason = "each variant says what its fields hold; `why` and `how` are words for people")]
pub enum Kind {
    /// The node began its work.
    Started { node: String, epoch: u64 },
    /// The node was told to leave in order.
    Stopping { deadline_ms: u64 },
    /// Everything is released.
    Stopped,
    /// A VIP's router changed its state.
    VipState { vip: String, from: String, to: String, reason: String, role_epoch: u64 },
    /// What this node thinks of its own ability to serve a VIP changed.
    VipFitness { vip: String, from: String, to: String, why: String },
    /// The effective priority changed.
    VipPriority { vip: String, from: u8, to: u8, why: String },
    /// We give a VIP away. `to`: the peer that was told to take it.
    Resign { vip: String, to: Option<String>, linger: bool, why: String },
    /// A peer was seen as owner after we gave the VIP away.
    PeerTook { vip: String, peer: String, after_ms: u64 },
    /// A peer told us to take a VIP, and we did or did not.
    TakeNow { vip: String, peer: String, taken: bool, why: String },
    /// A peer claimed a VIP that we hold; it is probed.
    Claimed { vip: String, peer: String },
    /// How the probe of a claimer ended.
    ClaimProbed { vip: String, peer: String, answered: bool, others_answered: bool },
    /// A peer told us that it keeps the VIP which we took: we release.
    Keep { vip: String, peer: String },
    /// The keeper gave the VIP away in our stead: we were too slow.
    Lapsed { vip: String },
    /// This node keeps a VIP although it can't serve it well: nobody is better.
    FailOpen { vip: String, why: String },
    /// This node gives the VIP away although no other is known to be able to serve.
    LastNode { vip: String, why: String },
    /// An address that we own (or in its place a route, rule or device, named as such) vanished and was put back.
    AddressVanished { vip: String, address: String },
    /// An address vanishes again and again.
    AddressFault { vip: String, address: String, times: u32, why: String },
    /// An address (or route, rule, device) that carries our mark but isn't owned was removed at start.
    Scrubbed { address: String, ifindex: u32 },
    /// A change of the kernel failed.
    StepFailed { step: String, why: String, retry_ms: u64 },
    /// A change of the kernel works again.
    StepRecovered { step: String },
    /// A link went up or down, came or vanished.
    Link { interface: String, up: bool, present: bool },
    /// Adverts can't be sent.
    SendFailed { vip: String, errno: i32 },
    /// Adverts go out again after a gap.
    SendRecovered { vip: String, gap_ms: u64 },
    /// A single probe failed.
    ProbeFailed { check: String, sequence: u64, why: String },
    /// A check's state changed.
    CheckState { check: String, passed: bool, why: String },
    /// Something that a check saw, that changes no verdict: a certificate that ends soon.
    CheckNote { check: String, note: String },
    /// A balancer's state changed.
    BalancerState { balancer: String, state: String, why: String },
    /// What is thought of a balancer changed; `why`: the evidence.
    BalancerVerdict { balancer: String, from: String, to: String, why: String },
    /// A VIP was lost here once too often: this node stands behind the others for a while.
    HeldDown { vip: String, for_ms: u64 },
    /// A peer's channel came up.
    PeerUp { peer: String, epoch: u64 },
    /// A peer's channel went silent, or it said goodbye.
    PeerDown { peer: String, goodbye: bool },
    /// This node stood still.
    Stalled { late_ms: u64 },
    /// An owner announced its addresses again because somebody else had claimed them.
    Reasserted { vip: String, why: String },
    /// A drain began.
    DrainStarted { who: String, reason: String, forced: Vec<String> },
    /// A drain was refused.
    DrainRefused { who: String, interlock: String, why: String },
    /// A drain ended: nothing is left here.
    DrainDone { who: String, ms: u64 },
    /// A drain ended otherwise: aborted, deadline, peer lost.
    DrainEnded { who: String, how: String },
    /// The node takes part again.
    Undrained { who: String },
    /// A BGP session with a router is up.
    NeighborUp { neighbor: String, asn: u32, hold_time_ms: u64 },
    /// It is down.
    NeighborDown { neighbor: String, why: String, up_ms: u64 },
    /// A session doesn't come about: one of us refuses what the other says, or it can't be protected.
    NeighborRefused { neighbor: String, why: String },
    /// BFD with a router changed.
    BfdState { neighbor: String, from: String, to: String, why: String },
    /// A VIP is announced from now on, or in another form: `normal`, `down`, `disabled`, `graceful_shutdown`. `neighbors`:
    /// of how many that are up.
    RouteAnnounced { vip: String, form: String, neighbors: usize, why: String },
    /// It is withdrawn.
    RouteWithdrawn { vip: String, why: String },
    /// It flapped, and is held back.
    RouteDamped { vip: String, for_ms: u64 },
    /// A route can't be told to a router.
    RouteUnsent { neighbor: String, prefix: String, why: String },
    /// Its disable file came or went.
    Disabled { vip: String, disabled: bool },
    /// A backend of the embedded balancer passed or failed its check.
    BackendState { backend: String, up: bool, why: String },
    /// How a pool uses its backends changed: `normal`, `ejection-limited`, `panic`, `fail-open`. `pool`: a service of it.
    PoolMode { pool: String, mode: String, why: String },
    /// An operator took a backend out, or put it back.
    BackendDrained { who: String, backend: String, drained: bool },
    /// Somebody changed the embedded balancer's table, and it is put back.
    TableTouched,
    /// The connection table is at another level: `fine`, `filling`, `high`, `full`, `unknown`.
    ConntrackLevel { from: String, to: String, why: String },
    /// It lost something since the last look: packets of new connections, or entries of others to make room.
    ConntrackLost { dropped: u64, early_dropped: u64, why: String },
    /// It will be full if as many new connections come as now. `rate`: in a second; `forecast`: entries in the end.
    ConntrackForecast { full_in_s: u64, rate: u64, forecast: u64, limit: u64 },
    /// This node took a VIP though not all of its flows were known to be here: it had waited for them,
    /// if that could be of use.
    PromotedUnsynced { vip: String, why: String, waited_ms: u64 },
    /// It gave one away though not all of its flows were known to be at the peer.
    MovedUnsynced { vip: String, peer: String, why: String },
    /// A peer has all flows of this node (`outbound`), or this node all of the peer's, from now on; or no longer.
    FlowSync { peer: String, outbound: bool, in_sync: bool, why: String },
    /// All flows of a VIP are this node's from now on.
    FlowsClaimed { vip: String, generation: u32 },
    /// Something that the replication of flows met.
    FlowNotice { what: String },
    /// Why no flows can be replicated at all; empty: they can again.
    SyncTrouble { why: String },
    /// This worker ends, and another one, this process, goes on with all that it has.
    WorkerReplaced { who: String, pid: u32 },
    /// No other worker takes this one's place, by this interlock.
    UpgradeRefused { who: String, interlock: String, why: String },
    /// VRRP noticed something on the segment.
    VrrpNotice { vip: String, what: String },
}

impl Kind {
    /// How loud this is.
    pub fn severity(&self) -> Severity {
        match self {
            Self::FailOpen { .. } | Self::LastNode { .. } | Self::AddressFault { .. } | Self::SendFailed { .. } => {
                Severity::Fault
            }
            Self::ConntrackLost { dropped, .. } if *dropped > 0 => Severity::Fault,
            Self::ConntrackLevel { to, .. } if to == "full" => Severity::Fault,
            Self::ConntrackLevel { to, .. } if to == "filling" || to == "high" => Severity::Warning,
            Self::ConntrackLost { .. } | Self::ConntrackForecast { .. } => Severity::Warning,
            Self::StepFailed { .. }
            | Self::Lapsed { .. }
            | Self::AddressVanished { .. }
            | Self::ProbeFailed { .. }
            | Self::Claimed { .. }
            | Self::Keep { .. }
            | Self::Stalled { .. }
            | Self::Reasserted { .. }
            | Self::DrainRefused { .. }
            | Self::DrainEnded { .. }
            | Self::UpgradeRefused { .. }
            | Self::VrrpNotice { .. } => Severity::Warning,
            Self::NeighborDown { .. }
            | Self::NeighborRefused { .. }
            | Self::RouteDamped { .. }
            | Self::RouteUnsent { .. } => Severity::Warning,
            Self::BfdState { from, to, .. } if from == "Up" && to != "Up" => Severity::Warning,
            Self::CheckState { passed: false, .. } | Self::PeerDown { goodbye: false, .. } => Severity::Warning,
            Self::BackendState { up: false, .. } | Self::TableTouched => Severity::Warning,
            Self::PoolMode { mode, .. } if mode != "normal" => Severity::Warning,
            Self::BalancerState { state, .. } if state == "gone" => Severity::Fault,
            Self::BalancerVerdict { to, .. } => match to.as_str() {
                "hung" | "failing" | "dead" => Severity::Fault,
                "serving" | "reloading" | "unknown" => Severity::Info,
                _ => Severity::Warning,
            },
            Self::PromotedUnsynced { .. } | Self::MovedUnsynced { .. } | Self::FlowNotice { .. } => Severity::Warning,
            Self::FlowSync { in_sync: false, .. } => Severity::Warning,
            Self::SyncTrouble { why } if !why.is_empty() => Severity::Fault,
            Self::HeldDown { .. } => Severity::Warning,
            Self::Link { up: false, .. } => Severity::Warning,
            _ => Severity::Info,
        }
    }

    /// Entries that may repeat quickly are limited by this key.
    fn limit_key(&self) -> Option<String> {
        match self {
            Self::ProbeFailed { check, .. } => Some(format!("probe {check}")),
            Self::BalancerVerdict { balancer, to, .. } => Some(format!("verdict {balancer} {to}")),
            Self::StepFailed { step, .. } => Some(format!("step {step}")),
            Self::SendFailed { vip, .. } => Some(format!("send {vip}")),
            Self::AddressVanished { vip, address } => Some(format!("vanished {vip} {address}")),
            Self::FailOpen { vip, why } => Some(format!("open {vip} {why}")),
            Self::Reasserted { vip, .. } => Some(format!("reassert {vip}")),
            Self::VrrpNotice { vip, what } => Some(format!("notice {vip} {what}")),
            Self::Claimed { vip, peer } => Some(format!("claim {vip} {peer}")),
            Self::Link { interface, .. } => Some(format!("link {interface}")),
            Self::SendRecovered { vip, .. } => Some(format!("sent {vip}")),
            Self::Stalled { .. } => Some("stall".to_owned()),
            Self::BackendState { backend, .. } => Some(format!("backend {backend}")),
            Self::TableTouched => Some("table".to_owned()),
            Self::SyncTrouble { why } => Some(format!("sync {why}")),
            Self::NeighborRefused { neighbor, .. } => Some(format!("refused {neighbor}")),
            Self::NeighborDown { neighbor, .. } => Some(format!("neighbor down {neighbor}")),
            Self::NeighborUp { neighbor, .. } => Some(format!("neighbor up {neighbor}")),
            Self::BfdState { neighbor, .. } => Some(format!("bfd {neighbor}")),
            Self::RouteUnsent { neighbor, prefix, .. } => Some(format!("unsent {neighbor} {prefix}")),
            Self::ConntrackLost { .. } => Some("conntrack lost".to_owned()),
            Self::ConntrackForecast { .. } => Some("conntrack forecast".to_owned()),
            Self::ConntrackLevel { to, .. } => Some(format!("conntrack {to}")),
            Self::TakeNow { vip, peer, taken: false, .. } => Some(format!("take {vip} {peer}")),
            _ => None,
        }
    }
}

/// Entries of one limited kind that pass at once …
const BURST: u32 = 5;
/// … within this time; the rest is counted.
const BURST_WINDOW: Duration = Duration::from_secs(60);
/// Keys remembered at most; full: the oldest window is forgotten (it then may write [`BURST`] entries anew).
const KEYS_MAX: usize = 1024;

#[derive(Debug)]
struct Limit {
    since: Instant,
    passed: u32,
    suppressed: u64,
}

/// Numbers events and holds repeated ones back.
#[derive(Debug)]
pub(crate) struct Journal {
    last_id: u64,
    limits: BTreeMap<String, Limit>,
}

impl Journal {
    pub(crate) fn new(last_id: u64) -> Self {
        Self { last_id, limits: BTreeMap::new() }
    }

    /// The entry to write, or `None` when it was held back.
    pub(crate) fn record(&mut self, now: Instant, cause: Option<u64>, kind: Kind) -> Option<Event> {
        let mut suppressed = 0;
        if let Some(key) = kind.limit_key() {
            if !self.limits.contains_key(&key) && self.limits.len() >= KEYS_MAX {
                let oldest = self.limits.iter().min_by_key(|(_, l)| l.since).map(|(k, _)| k.clone());
                if let Some(oldest) = oldest {
                    self.limits.remove(&oldest);
                }
            }
            let limit = self.limits.entry(key).or_insert(Limit { since: now, passed: 0, suppressed: 0 });
            if now.saturating_duration_since(limit.since) >= BURST_WINDOW {
                suppressed = limit.suppressed;
                *limit = Limit { since: now, passed: 0, suppressed: 0 };
            }
            if limit.passed >= BURST {
                limit.suppressed = limit.suppressed.saturating_add(1);
                return None;
            }
            limit.passed += 1;
        }
        self.last_id = self.last_id.saturating_add(1);
        Some(Event { id: self.last_id, cause, suppressed, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Kind {
        Kind::ProbeFailed { check: "web".to_owned(), sequence: 1, why: "refused".to_owned() }
    }

    #[test]
    fn repeated_faults_are_held_back_and_counted_in_the_next_that_passes() {
        #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
        let now = Instant::now();
        let mut journal = Journal::new(41);
        let written: Vec<u64> = (0..100).filter_map(|_| journal.record(now, None, failed())).map(|e| e.id).collect();
        assert_eq!(written, [42, 43, 44, 45, 46], "ids go on where the last run ended");
        let other = Kind::ProbeFailed { check: "other".to_owned(), sequence: 1, why: String::new() };
        assert!(journal.record(now, None, other).is_some(), "each fault has its own limit");
        let next = journal.record(now + BURST_WINDOW, Some(3), failed()).expect("a new window");
        assert_eq!((next.id, next.cause, next.suppressed), (48, Some(3), 95));
    }

    #[test]
    fn a_change_of_state_is_never_held_back() {
        #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
        let now = Instant::now();
        let mut journal = Journal::new(0);
        let kind = || Kind::PeerUp { peer: "lb2".to_owned(), epoch: 1 };
        assert_eq!((0..1_000).filter_map(|_| journal.record(now, None, kind())).count(), 1_000);
    }

    #[test]
    fn an_entry_is_one_flat_object() {
        let event = Event { id: 7, cause: Some(6), suppressed: 0, kind: failed() };
        let text = serde_json::to_string(&event).expect("JSON");
        assert_eq!(text, r#"{"id":7,"cause":6,"event":"probe_failed","check":"web","sequence":1,"why":"refused"}"#);
        assert_eq!(serde_json::from_str::<Event>(&text).expect("an event"), event);
    }
}
