//! The thread that replicates flows: the kernel's connection table for the VIPs, at every peer.
//!
//! | module | does |
//! |---|---|
//! | `turns` | the loop |
//! | `audits` | how the kernel's table is read |
//! | `kernel` | events, dumps and writes, in an order that can be relied on |
//! | `telling` | the word for the node, how old changes are |
//! | `link` | the queues between this thread and the protocol thread |
//! | [`query`], `answer` | what the control API may ask |
//! | `life` | the number of this life of the kernel's table |
//!
//! It has a socket, sessions and a priority of its own: neither a resynchronisation nor a storm of events is ever in the way
//! of adverts and verdicts, and the protocol thread never waits for it.
//!
//! What this module refuses to do: decide whose a flow is ([`holdfast_statesync::flow`] does) or whose a VIP is (the node
//! does).

mod answer;
mod audits;
mod kernel;
mod life;
mod link;
pub mod query;
mod telling;
mod turns;

pub(super) use life::number as life;
pub(super) use link::SyncLink;

use super::queues::Note;
use super::startup::fill_random;
use crate::config::duration::show;
use crate::os::ct;
use holdfast_node::config::{Cluster, Config, StateSync, SyncMode};
use holdfast_node::io::Boot;
use holdfast_statesync::channel::{ChannelConfig, PeerConfig, PeerId};
use holdfast_statesync::flow::{self, NodeId, Tag, Times, VipConfig};
use link::Ends;
use query::{DirectionSummary, PeerSummary, Summary, SyncHandle, VipSummary};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// What the thread is given.
struct Setup {
    flow: flow::Config,
    channel: ChannelConfig,
    listen: SocketAddr,
    names: Names,
    run: u64,
    /// Bytes of room for events of the kernel.
    room: usize,
    figures: watch::Sender<Arc<query::SyncFigures>>,
    /// Of the flow side, and of the channel.
    seeds: [[u8; 32]; 2],
    ends: Ends,
}

/// How operators call what has a number here.
#[derive(Debug, Clone, Default)]
struct Names {
    vips: Vec<VipName>,
    peers: Vec<String>,
    /// The most flows that are held.
    max_flows: u64,
}

#[derive(Debug, Clone)]
struct VipName {
    name: String,
    mode: String,
    /// The VIPs of a group, or the one of this name, with their addresses.
    members: Vec<(String, Vec<IpAddr>)>,
}

/// Starts the thread, in the network namespace of the caller. `None`: nothing is to be replicated.
///
/// # Errors
/// In words.
pub(super) fn start(
    config: &Config,
    boot: &Boot,
    life: u64,
    notes: &mpsc::Sender<Note>,
) -> Result<Option<(SyncLink, SyncHandle)>, String> {
    let (Some(sync), Some(cluster), Some(secret_key)) = (&config.statesync, &config.cluster, &boot.secret_key) else {
        return Ok(None);
    };
    let mut seeds = [[0; 32]; 2];
    for seed in &mut seeds {
        fill_random(seed).map_err(|e| format!("random numbers: {e}"))?;
    }
    let (handle, queries) = SyncHandle::new();
    let (figures, seen) = watch::channel(Arc::default());
    let handle = handle.with_figures(seen);
    let (link, ends) = link::pair(config, queries, notes.clone());
    let setup = Setup {
        flow: flow_config(config, sync, cluster, (life, boot.epoch)),
        channel: ChannelConfig {
            secret_key: secret_key.clone(),
            epoch: boot.epoch,
            peers: cluster
                .peers
                .iter()
                .map(|peer| PeerConfig {
                    name: peer.name.as_str().to_owned(),
                    address: lanes(peer.address),
                    public_keys: peer.public_keys.clone(),
                })
                .collect(),
        },
        listen: sync.listen.unwrap_or_else(|| lanes(cluster.listen)),
        names: names(config, sync, cluster),
        run: boot.epoch,
        room: sync.event_buffer,
        figures,
        seeds,
        ends,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| format!("sync thread's runtime: {e}"))?;
    let thread = std::thread::Builder::new().name("sync".to_owned());
    // Its turns have limits of their own; tokio's would stop it in the middle of one.
    thread
        .spawn(move || {
            // A change is as late at the peer as this thread is at its events.
            crate::os::sched::short_turns();
            runtime.block_on(tokio::task::unconstrained(turns::run(setup)));
        })
        .map_err(|e| format!("sync thread: {e}"))?;
    Ok(Some((link, handle)))
}

/// Where the flow lanes of the node with this control lane are.
fn lanes(control: SocketAddr) -> SocketAddr {
    SocketAddr::new(control.ip(), control.port().saturating_add(1))
}

fn flow_config(config: &Config, sync: &StateSync, cluster: &Cluster, (life, epoch): (u64, u64)) -> flow::Config {
    let times = Times::default();
    let link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let units = sync.vips.iter().filter_map(|vip| Some((vip, config.vips.get(usize::from(vip.vip.0))?)));
    flow::Config {
        node: NodeId::of_name(config.node.as_str()),
        boot: life,
        epoch,
        port_id: 0,
        peers: cluster.peers.iter().map(|peer| NodeId::of_name(peer.name.as_str())).collect(),
        vips: units
            .map(|(vip, unit)| VipConfig {
                addresses: unit.addresses.iter().map(|address| address.ip).filter(|ip| !link_local(ip)).collect(),
                mode: vip.mode,
                shared: unit.anycast(),
                peers: u8::MAX,
            })
            .collect(),
        sources: sources(config),
        max_flows: sync.max_flows,
        tag: Tag { shift: sync.mark.shift, bits: sync.mark.bits },
        times: Times { lease: sync.lease, kernel_s: ct::timeouts(times.kernel_s), ..times },
    }
}

/// Addresses of the units that flows move with.
fn sources(config: &Config) -> Vec<Vec<IpAddr>> {
    let units = config.flow_sources();
    let units = units.iter().filter_map(|id| config.vips.get(usize::from(id.0)));
    units
        .map(|unit| unit.addresses.iter().filter(|address| !address.derived).map(|address| address.ip).collect())
        .collect()
}

fn names(config: &Config, sync: &StateSync, cluster: &Cluster) -> Names {
    let name = |vip: &holdfast_node::config::SyncVip| {
        config.vips.get(usize::from(vip.vip.0)).map_or_else(String::new, |unit| unit.name.as_str().to_owned())
    };
    let members = |vip: &holdfast_node::config::SyncVip| {
        let unit = config.vips.get(usize::from(vip.vip.0));
        let members = unit.into_iter().flat_map(|unit| &unit.members);
        members.map(|member| (member.name.as_str().to_owned(), member.addresses.clone())).collect()
    };
    let mode = |mode: SyncMode| match mode {
        SyncMode::Assured => "assured".to_owned(),
        SyncMode::Syn => "syn".to_owned(),
        SyncMode::After(after) => format!("after {}", show(after)),
        SyncMode::Off => "off".to_owned(),
    };
    Names {
        vips: sync
            .vips
            .iter()
            .map(|vip| VipName { name: name(vip), mode: mode(vip.mode), members: members(vip) })
            .collect(),
        peers: cluster.peers.iter().map(|peer| peer.name.as_str().to_owned()).collect(),
        max_flows: sync.max_flows as u64,
    }
}

impl VipName {
    fn member_names(&self) -> Vec<String> {
        self.members.iter().map(|(name, _)| name.clone()).collect()
    }
}

impl Names {
    /// The place of a replicated VIP or group; of a VIP of a group with the addresses that are its own.
    fn find(&self, name: &str) -> Option<(usize, Option<&[IpAddr]>)> {
        if let Some(place) = self.vips.iter().position(|vip| vip.name == name) {
            return Some((place, None));
        }
        let member = |vip: &VipName| vip.members.iter().position(|(member, _)| member == name);
        let (place, member) = self.vips.iter().enumerate().find_map(|(place, vip)| Some((place, member(vip)?)))?;
        let (_, addresses) = self.vips.get(place)?.members.get(member)?;
        Some((place, Some(addresses)))
    }

    fn peer(&self, peer: PeerId) -> String {
        self.peers.get(usize::from(peer.0)).cloned().unwrap_or_default()
    }

    fn vip(&self, vip: flow::VipId) -> String {
        self.vips.get(usize::from(vip.0)).map(|vip| vip.name.clone()).unwrap_or_default()
    }

    /// While nothing is known.
    fn empty_summary(&self, failing: &str) -> Summary {
        let unknown = || DirectionSummary { in_sync: false, why: Some("reading".into()), since_ms: 0, equal_ms: None };
        let vip = |vip: &VipName| VipSummary {
            name: vip.name.clone(),
            members: vip.member_names(),
            mode: vip.mode.clone(),
            owner: "unknown".to_owned(),
            own: 0,
            replicas: 0,
            not_ready: Some(failing.to_owned()),
        };
        let peer = |name: &String| PeerSummary {
            name: name.clone(),
            outbound: unknown(),
            inbound: unknown(),
            ..PeerSummary::default()
        };
        Summary {
            failing: Some(failing.to_owned()),
            vips: self.vips.iter().map(vip).collect(),
            peers: self.peers.iter().map(peer).collect(),
            max_flows: self.max_flows,
            ..Summary::default()
        }
    }
}
