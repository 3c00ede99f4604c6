//! Which connections the peers hold, too.

use super::{Config, VipId, milliseconds};
use serde::{Serialize, Serializer};
use std::net::SocketAddr;
use std::time::Duration;

/// Most VIPs whose flows are replicated (each may have several addresses).
pub const SYNC_VIPS_MAX: usize = holdfast_statesync::flow::VIPS_MAX;
/// Most peers that they are replicated to.
pub const SYNC_PEERS_MAX: usize = holdfast_statesync::flow::PEERS_MAX;

/// The replication of flows. There is a `[cluster]` with at most [`SYNC_PEERS_MAX`] peers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateSync {
    /// Units whose flows are replicated, each once, 1 to [`SYNC_VIPS_MAX`].
    pub vips: Vec<SyncVip>,
    /// Local address and port of the flow lanes; `None`: the cluster's, port + 1.
    pub listen: Option<SocketAddr>,
    /// How long a flow lives on a peer after its owner was last heard.
    #[serde(rename = "lease_ms", serialize_with = "milliseconds")]
    pub lease: Duration,
    /// Most flows held.
    pub max_flows: usize,
    /// Which bits of the kernel's mark are ours.
    pub mark: SyncMark,
    /// Where what isn't replicated is sorted out.
    pub filter: SyncFilter,
    /// Bytes of room for events of the kernel that aren't read yet; the kernel takes twice that for its bookkeeping.
    pub event_buffer: usize,
}

/// One unit whose flows are replicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SyncVip {
    /// Which.
    pub vip: VipId,
    /// From when on.
    #[serde(serialize_with = "mode")]
    pub mode: SyncMode,
}

/// From when on a flow is replicated.
pub type SyncMode = holdfast_statesync::flow::Mode;

/// Bits of the kernel's connection mark that name whose replica an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SyncMark {
    /// Position of the lowest bit.
    pub shift: u8,
    /// How many, 4 to 8; `shift + bits` is at most 32.
    pub bits: u8,
}

impl Default for SyncMark {
    fn default() -> Self {
        let tag = holdfast_statesync::flow::Tag::default();
        Self { shift: tag.shift, bits: tag.bits }
    }
}

/// See [`StateSync::filter`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncFilter {
    /// In the kernel, by rules in a table of ours: other traffic costs nothing.
    #[default]
    Kernel,
    /// Here: no rule is added, each event of the whole host is looked at.
    User,
}

fn mode<S: Serializer>(mode: &SyncMode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&sync_mode_text(*mode))
}

/// For people, and in JSON.
pub(crate) fn sync_mode_text(mode: SyncMode) -> String {
    match mode {
        SyncMode::Assured => "assured".to_owned(),
        SyncMode::Syn => "syn".to_owned(),
        SyncMode::After(after) => format!("after {} ms", after.as_millis()),
        SyncMode::Off => "off".to_owned(),
    }
}

/// Most units that flows of others move with.
pub const FLOW_SOURCES_MAX: usize = holdfast_statesync::flow::SOURCES_MAX;

impl Config {
    /// With a unit in [`StateSync`] that several nodes serve at once: the units whose holder has the flows that are answered
    /// at them. That is each unit with a router whose own flows aren't replicated, since what other nodes translate to isn't
    /// known here. By name, so that all nodes have the same, at most [`FLOW_SOURCES_MAX`].
    pub fn flow_sources(&self) -> Vec<VipId> {
        let replicated = || self.statesync.iter().flat_map(|sync| &sync.vips).filter(|sync| sync.mode != SyncMode::Off);
        let spread = |id: VipId| self.vips.get(usize::from(id.0)).is_some_and(super::Vip::anycast);
        if !replicated().any(|sync| spread(sync.vip)) {
            return Vec::new();
        }
        let units = (0..).map(VipId).zip(&self.vips);
        let mut found: Vec<_> =
            units.filter(|(id, unit)| !unit.anycast() && !replicated().any(|sync| sync.vip == *id)).collect();
        found.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        found.truncate(FLOW_SOURCES_MAX);
        found.into_iter().map(|(id, _)| id).collect()
    }
}

impl StateSync {
    /// What [`StateSync::event_buffer`] is without a word about it: 50,000 events.
    pub const EVENT_BUFFER: usize = 32 << 20;

    /// These units, all else as it is without a word about it.
    pub fn new(vips: Vec<SyncVip>) -> Self {
        Self {
            vips,
            listen: None,
            lease: holdfast_statesync::flow::Times::default().lease,
            max_flows: 1 << 20,
            mark: SyncMark::default(),
            filter: SyncFilter::default(),
            event_buffer: Self::EVENT_BUFFER,
        }
    }
}
