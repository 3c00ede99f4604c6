//! What `neighbors` says: the routers that VIPs are announced to, how it stands with each, and why.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One BGP neighbour.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NeighborStatus {
    /// Name.
    pub name: String,
    /// Its address; absent: unnumbered, and not found yet.
    pub address: Option<String>,
    /// Where it is, if the configuration says so.
    pub interface: Option<String>,
    /// Its autonomous system: as it said itself, else as configured (`65000`, `internal`, `external`).
    pub asn: String,
    /// It is of our own autonomous system.
    pub internal: bool,
    /// Its router identifier, once it said so.
    pub router_id: Option<String>,
    /// `idle`, `connect`, `active`, `open-sent`, `open-confirm`, `established`.
    pub state: String,
    /// Milliseconds since `state` changed: the uptime of an established session.
    pub age_ms: u64,
    /// Our address on the connection.
    pub local: Option<String>,
    /// Prefixes that it has from us.
    pub announced: u64,
    /// Prefixes that it should have from us.
    pub wanted: u64,
    /// Prefixes that it can't be sent, and why: no such family or next hop was negotiated.
    pub unsendable: Vec<String>,
    /// Prefixes that it announced; all are counted and dropped.
    pub received: u64,
    /// What both ends agreed on, in words: `ipv4`, `ipv6`, `4-octet AS`, `graceful restart 120s`, `route refresh` …
    pub capabilities: Vec<String>,
    /// The hold time agreed on, milliseconds; 0: none.
    pub hold_time_ms: Option<u64>,
    /// The last thing that ended or prevented a session.
    pub last_error: Option<NeighborError>,
    /// Counters by name, growing since the start of this run.
    pub counters: BTreeMap<String, u64>,
    /// BFD, if it is configured.
    pub bfd: Option<BfdStatus>,
}

/// See [`NeighborStatus`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighborError {
    /// In words, with what to do about it where we know.
    pub text: String,
    /// Its age.
    pub age_ms: u64,
}

/// BFD with a neighbour.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BfdStatus {
    /// `admin-down`, `down`, `init`, `up`; `unknown` before the keeper says.
    pub state: String,
    /// Milliseconds since `state` changed.
    pub age_ms: u64,
    /// Why it isn't up: the diagnostic in words.
    pub diagnostic: Option<String>,
    /// What was configured, milliseconds.
    pub interval_ms: u64,
    /// What was configured.
    pub multiplier: u8,
}
