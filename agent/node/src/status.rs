//! What `status` says (DESIGN section 3), with the age of every value. Its JSON is a public interface: `schema` 1.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The one-word judgement; also the exit code of `holdfast status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every VIP has an owner that can serve, and another node could take over.
    Ok,
    /// Works, with less redundancy or by failing open.
    Degraded,
    /// A VIP has no owner, or two.
    Critical,
}

/// Status of this node and of what it knows of the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version of this form.
    pub schema: u32,
    /// See [`Verdict`].
    pub verdict: Verdict,
    /// The verdict in one line for people: `2/2 nodes, web on lb1, can lose 1`.
    pub summary: String,
    /// This node's name.
    pub node: String,
    /// The run of this agent (see [`crate::io::Boot::epoch`]).
    pub epoch: u64,
    /// Milliseconds since this run began.
    pub age_ms: u64,
    /// VIPs in file order.
    pub vips: Vec<VipStatus>,
    /// Peers in file order.
    pub peers: Vec<PeerStatus>,
    /// Balancers in file order.
    pub balancers: Vec<BalancerStatus>,
    /// Checks in file order.
    pub checks: Vec<CheckStatus>,
    /// The drain in force.
    pub drain: Option<DrainStatus>,
    /// Counters by name, growing since the start of this run.
    pub counters: BTreeMap<String, u64>,
    /// What somebody should look at, with what to do about it.
    pub warnings: Vec<Warning>,
}

/// One VIP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VipStatus {
    /// Name.
    pub name: String,
    /// `active`, `backup`, `off`.
    pub state: String,
    /// Name of the node that owns it as far as is known (an address when its name isn't known).
    pub owner: Option<String>,
    /// Milliseconds since `state` changed.
    pub age_ms: u64,
    /// Its addresses.
    pub addresses: Vec<AddressStatus>,
    /// Effective priority; 0: takes no part.
    pub priority: u8,
    /// Configured priority.
    pub configured_priority: u8,
    /// VRRP interface.
    pub interface: String,
    /// Virtual router identifier.
    pub vrid: u8,
    /// Advert interval, milliseconds.
    pub interval_ms: u64,
    /// `unknown`, `fit`, `unfit`, `withheld`.
    pub fitness: String,
    /// Milliseconds since `fitness` changed.
    pub fitness_age_ms: u64,
    /// Kept although unfit, since nobody is better.
    pub fail_open: bool,
    /// Why it is as it is, most important first.
    pub reasons: Vec<String>,
    /// What the peers say of this VIP.
    pub peers: Vec<PeerView>,
    /// The last advert that was heard.
    pub heard: Option<HeardStatus>,
    /// Grows at each change of role.
    pub role_epoch: u64,
}

/// One address of a VIP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressStatus {
    /// With prefix length: `192.0.2.10/32`.
    pub address: String,
    /// Interface.
    pub interface: String,
    /// Is in the kernel of this node.
    pub present: bool,
    /// Milliseconds since it was last refreshed by us.
    pub age_ms: Option<u64>,
}

/// What a peer says of one VIP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerView {
    /// Peer.
    pub name: String,
    /// `out`, `backup`, `active`; `unknown` when stale.
    pub role: String,
    /// `unknown`, `fit`, `unfit`, `withheld`; `unknown` when stale.
    pub fitness: String,
    /// Its effective priority.
    pub priority: Option<u8>,
    /// Age of the report.
    pub age_ms: Option<u64>,
}

/// An advert.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeardStatus {
    /// Sender.
    pub from: String,
    /// Its priority.
    pub priority: u8,
    /// Its age.
    pub age_ms: u64,
}

/// One peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Name.
    pub name: String,
    /// A report not older than 300 ms is here.
    pub reachable: bool,
    /// Age of its last report; absent: none in this run.
    pub age_ms: Option<u64>,
    /// Its channel's address.
    pub address: String,
    /// Its run.
    pub epoch: Option<u64>,
    /// It said goodbye.
    pub left: bool,
    /// Its balancers as it reports them.
    pub balancers: BTreeMap<String, String>,
}

/// One balancer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckStatus {
    /// Name.
    pub name: String,
    /// `unknown`, `passed`, `failed`.
    pub state: String,
    /// Milliseconds since the state changed.
    pub age_ms: u64,
    /// Only warns.
    pub shared: bool,
    /// The last result: `ok` or why not.
    pub last: Option<String>,
    /// Age of the last result.
    pub last_age_ms: Option<u64>,
    /// Successes in a row.
    pub successes: u32,
    /// Failures in a row.
    pub failures: u32,
}

/// The drain in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainStatus {
    /// Who asked.
    pub who: String,
    /// Why.
    pub reason: String,
    /// Wall clock of the request, Unix milliseconds.
    pub since_unix_ms: u64,
    /// Wall clock of its end.
    pub until_unix_ms: Option<u64>,
    /// `moving` or `drained`.
    pub phase: String,
    /// Milliseconds since the request (or since this run began).
    pub age_ms: u64,
    /// What it waits for.
    pub waits_for: Vec<String>,
}

/// Something to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// What is wrong.
    pub text: String,
    /// What to do about it.
    pub remedy: String,
}
