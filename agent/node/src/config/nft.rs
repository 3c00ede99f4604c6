//! `[[nft.service]]`: what the embedded balancer serves, resolved. Services that have the same backends under the same
//! rules share one [`BackendSet`], and with it one lookup table.

use super::{Check, Name};
use serde::Serialize;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Most services of a configuration.
pub const SERVICES_MAX: usize = 4_096;
/// Most distinct backend sets.
pub const SETS_MAX: usize = 1_024;
/// Most backends of one set.
pub const BACKENDS_MAX: usize = 256;
/// Most distinct checks of backends.
pub const BACKEND_CHECKS_MAX: usize = 16_384;
/// Heaviest weight of a backend.
pub const WEIGHT_MAX: u16 = 256;
/// Most source addresses of a service.
pub const SNAT_MAX: usize = 64;

/// Everything that the embedded balancer does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Nft {
    /// In file order.
    pub services: Vec<Service>,
    /// By [`SetId`]; each used by at least one service.
    pub sets: Vec<BackendSet>,
    /// Checks of backends, each once. Their [`super::CheckId`]s follow those of `Config::checks`.
    pub probes: Vec<Check>,
}

/// Index of a set in [`Nft::sets`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct SetId(pub u16);

/// One port of one VIP.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Service {
    /// The VIP, as the operator named it.
    pub vip: Name,
    /// TCP or UDP.
    pub protocol: Transport,
    /// The VIP's port.
    pub port: u16,
    /// Where it is served, and the backends of that family.
    pub addresses: Vec<(IpAddr, SetId)>,
    /// How packets come back.
    pub mode: NatMode,
    /// What decides on the backend.
    pub affinity: Affinity,
    /// This node's source addresses; empty with [`NatMode::Snat`]: its own address towards the backend.
    pub snat: Vec<IpAddr>,
    /// Largest TCP segment that either side is told it may send.
    pub mss: Option<u16>,
    /// What becomes of flows whose backend is down.
    pub on_down: OnDown,
}

/// What a service speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// The number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    /// As it is written in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// Whether the backends see the client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NatMode {
    /// They see an address of this node, and answer to that.
    Snat,
    /// They see the client's; their way back must lead through this node.
    Dnat,
}

/// What becomes of the flows of a backend that its check takes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDown {
    /// They stay with it.
    Keep,
    /// They are forgotten: the next packet of each finds another backend.
    Cut,
}

impl OnDown {
    /// What is done unless the configuration says otherwise. A TCP client learns by itself that its connection is dead, and
    /// the connection may outlive a short failure; a UDP client that keeps its port learns nothing.
    pub fn usual(protocol: Transport) -> Self {
        match protocol {
            Transport::Tcp => Self::Keep,
            Transport::Udp => Self::Cut,
        }
    }
}

/// What decides on the backend of a new flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Affinity {
    /// The client's address.
    Source,
    /// Both addresses and both ports.
    Flow,
}

/// Backends of one address family, and the rules by which they are taken out and back in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BackendSet {
    /// Sorted by address, each once: the order in the file doesn't matter.
    pub backends: Vec<Backend>,
    /// Percent: with fewer healthy ones than this, all are used. 0: never.
    pub panic_threshold: u8,
    /// Percent of the backends that checks may take out at a time; always at least one.
    pub max_ejection: u8,
    /// How long the share of a backend that comes back grows to what it should be.
    #[serde(rename = "slow_start_ms", serialize_with = "super::milliseconds")]
    pub slow_start: Duration,
}

impl BackendSet {
    /// IPv6.
    pub fn is_six(&self) -> bool {
        self.backends.first().is_some_and(|backend| backend.address.is_ipv6())
    }
}

/// One backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Backend {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its share, ≥ 1, relative to the others'.
    pub weight: u16,
    /// Index in [`Nft::probes`]; `None`: it always counts as healthy.
    pub probe: Option<u16>,
}
