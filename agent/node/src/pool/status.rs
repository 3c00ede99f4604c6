//! What `status` says of the embedded balancer.

use super::Pools;
use crate::config::{NatMode, SetId};
use crate::io::age_ms;
use crate::node::Node;
use crate::status::Warning;
use crate::world::CheckState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// The embedded balancer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Hexadecimal; the same on every node that sends new flows to the same backends.
    pub fingerprint: String,
    /// The table is in the kernel.
    pub loaded: bool,
    /// Why the last change of it failed.
    pub why: Option<String>,
    /// In file order.
    pub services: Vec<ServiceStatus>,
    /// Backend sets.
    pub sets: Vec<SetStatus>,
}

/// One service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// The VIP's name.
    pub vip: String,
    /// `tcp`, `udp`.
    pub protocol: String,
    /// The VIP's port.
    pub port: u16,
    /// `snat`, `dnat`.
    pub mode: String,
    /// By address: the index of its set in [`PoolStatus::sets`].
    pub addresses: BTreeMap<String, u16>,
}

/// One backend set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetStatus {
    /// `normal`, `ejection-limited`, `panic`, `fail-open`.
    pub mode: String,
    /// Slots of its lookup table.
    pub slots: u32,
    /// Sorted by address.
    pub backends: Vec<BackendStatus>,
}

/// One backend of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendStatus {
    /// Where it listens.
    pub address: String,
    /// `up`, `down`, `unknown`, `drained`.
    pub state: String,
    /// Milliseconds since what its check says changed.
    pub age_ms: u64,
    /// It gets new flows.
    pub in_service: bool,
    /// Its share grows.
    pub ramping: bool,
    /// Slots that are its.
    pub slots: u32,
    /// The last result of its check: `ok` or why not.
    pub last: Option<String>,
    /// New flows sent to it since the table was loaded; absent: not read.
    #[serde(default)]
    pub flows: Option<u64>,
}

/// New flows don't go where another node would send them.
pub(crate) fn differs(node: &Node) -> Option<Warning> {
    let own = node.pools.as_ref()?.fingerprint();
    let peers = node.config.cluster.iter().flat_map(|c| &c.peers).zip(&node.world.peers);
    let others = peers.filter(|(_, view)| view.pool.is_some_and(|theirs| theirs != own));
    let names: Vec<String> = others.map(|(peer, _)| peer.name.as_str().to_owned()).collect();
    (!names.is_empty()).then(|| Warning {
        text: format!(
            "the balancing table of {} is another one: what fails over goes to other backends",
            names.join(", ")
        ),
        remedy: "give every node the same services, backends, weights and affinity in [[nft.service]]".to_owned(),
    })
}

impl Node {
    pub(crate) fn pool_status(&self, now: Instant) -> Option<PoolStatus> {
        self.pools.as_ref().map(|pools| of(pools, now))
    }
}

fn of(pools: &Pools, now: Instant) -> PoolStatus {
    let services = pools.services.iter().map(|service| ServiceStatus {
        vip: service.vip.as_str().to_owned(),
        protocol: service.protocol.word().to_owned(),
        port: service.port,
        mode: if service.mode == NatMode::Snat { "snat" } else { "dnat" }.to_owned(),
        addresses: service.addresses.iter().map(|(ip, SetId(set))| (ip.to_string(), *set)).collect(),
    });
    let sets = pools.sets.iter().map(|set| {
        let mut slots = vec![0_u32; set.addresses.len()];
        for owner in set.table.iter() {
            if let Some(count) = slots.get_mut(usize::from(*owner)) {
                *count += 1;
            }
        }
        let backends = set.addresses.iter().zip(&set.backends).zip(&set.probes).zip(slots);
        let backend = |(((address, run), probe), slots): (
            ((&std::net::SocketAddr, &super::set::BackendRun), &Option<u16>),
            u32,
        )| {
            let last = probe.and_then(|probe| pools.checks.counts(crate::config::CheckId(probe)).last);
            let state = match run.health {
                _ if run.drained => "drained",
                CheckState::Passed => "up",
                CheckState::Failed => "down",
                CheckState::Unknown => "unknown",
            };
            BackendStatus {
                address: address.to_string(),
                state: state.to_owned(),
                age_ms: age_ms(now, run.since),
                in_service: run.in_service,
                ramping: run.ramp_from.is_some(),
                slots,
                last: last.map(|(_, result)| result.clone().err().unwrap_or_else(|| "ok".to_owned())),
                flows: None,
            }
        };
        SetStatus {
            mode: set.mode.word().to_owned(),
            slots: set.layout.size(),
            backends: backends.map(backend).collect(),
        }
    });
    PoolStatus {
        fingerprint: format!("{:016x}", pools.fingerprint()),
        loaded: pools.kernel.is_loaded(),
        why: pools.kernel.why.clone(),
        services: services.collect(),
        sets: sets.collect(),
    }
}
