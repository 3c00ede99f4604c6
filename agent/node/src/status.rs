//! What `status` says (DESIGN section 3), with the age of every value. Its JSON is a public interface: `schema` 1.

mod checks;
mod judge;
mod neighbor;
mod planes;
mod sessions;
mod sync;

use crate::config::{Leg, Member, VipId};
use crate::decide::{VipPlan, decide};
use crate::io::age_ms;
use crate::node::Node;
use crate::pool::status::PoolStatus;
use crate::segment::state_word;
use holdfast_statesync::message::{Fitness, Role};
use holdfast_vrrp::wire::ChecksumForm;
use holdfast_vrrp::{Family, LegId, State, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

pub use neighbor::{BfdStatus, NeighborError, NeighborStatus};
pub use planes::{BalancerStatus, ConntrackStatus, EvidenceStatus, HoldDownStatus, OldWorkerStatus, StallStatus};
pub use sync::{SyncDirection, SyncPeerStatus, SyncStatus, SyncVipStatus};

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
    /// BGP neighbours in file order.
    #[serde(default)]
    pub neighbors: Vec<NeighborStatus>,
    /// Balancers in file order.
    pub balancers: Vec<BalancerStatus>,
    /// Checks in file order.
    pub checks: Vec<CheckStatus>,
    /// The embedded balancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolStatus>,
    /// The kernel's connection table, once something is known of it.
    #[serde(default)]
    pub conntrack: Option<ConntrackStatus>,
    /// The replication of flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncStatus>,
    /// The last time that this node itself stood still for longer than its peers wait.
    #[serde(default)]
    pub stall: Option<StallStatus>,
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
    /// The group that it moves with.
    #[serde(default)]
    pub group: Option<String>,
    /// `active`, `backup`, `off`; of one that BGP alone announces: `announced`, `waiting` (it would be, and no router
    /// listens, or its address isn't there yet), `withdrawn`.
    pub state: String,
    /// Name of the node that owns it as far as is known (an address when its name isn't known); of one that BGP alone
    /// announces: of all that announce it.
    pub owner: Option<String>,
    /// Milliseconds since `state` changed.
    pub age_ms: u64,
    /// Its addresses.
    pub addresses: Vec<AddressStatus>,
    /// Effective priority; 0: takes no part.
    pub priority: u8,
    /// Configured priority.
    pub configured_priority: u8,
    /// VRRP interface (of the first leg).
    pub interface: String,
    /// Virtual router identifier (of the first leg).
    pub vrid: u8,
    /// Its virtual routers on the wire: one for each address family.
    #[serde(default)]
    pub legs: Vec<LegStatus>,
    /// Advert interval, milliseconds.
    pub interval_ms: u64,
    /// `unknown`, `fit`, `unfit`, `withheld`.
    pub fitness: String,
    /// Milliseconds since `fitness` changed.
    pub fitness_age_ms: u64,
    /// How well this node would serve it: `bad`, `poor`, `full`, `degraded`, `good`.
    #[serde(default)]
    pub standing: String,
    /// It was lost here lately.
    #[serde(default)]
    pub hold_down: Option<HoldDownStatus>,
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
    /// How it is announced by BGP.
    #[serde(default)]
    pub route: Option<RouteStatus>,
}

/// How a VIP is announced by BGP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteStatus {
    /// `normal`, `down`, `disabled`, `graceful_shutdown`; absent: withdrawn.
    pub form: Option<String>,
    /// Neighbours that are up and hear of it.
    pub told: Vec<String>,
    /// All that are to hear of it.
    pub neighbors: Vec<String>,
}

/// One virtual router on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LegStatus {
    /// `ipv4`, `ipv6`.
    pub family: String,
    /// Of VRRP: 2 or 3.
    pub version: u8,
    /// Interface.
    pub interface: String,
    /// Virtual router identifier.
    pub vrid: u8,
    /// Where our adverts come from, once known.
    pub source: Option<String>,
    /// Unicast peers; empty: multicast.
    pub peers: Vec<String>,
    /// The checksum that we send: `message` (RFC 9568) or `pseudo-header`.
    pub checksum: String,
    /// A peer that uses another one.
    pub checksum_mismatch: Option<ChecksumMismatch>,
}

/// See [`LegStatus`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChecksumMismatch {
    /// The peer's address.
    pub peer: String,
    /// `message` or `pseudo-header`.
    pub form: String,
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
    /// `bad`, `poor`, `full`, `degraded`, `good`; absent when stale or unsaid.
    #[serde(default)]
    pub standing: Option<String>,
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
    /// Its balancers as it reports them: whether they can serve.
    pub balancers: BTreeMap<String, String>,
    /// What it thinks of them, see [`BalancerStatus::verdict`], as far as that is fresh.
    #[serde(default)]
    pub verdicts: BTreeMap<String, String>,
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
    /// What is asked: `http`, `tcp`, …, `canary`, `group`.
    pub kind: String,
    /// What somebody should know though it changes no verdict: a certificate that ends soon, who answers for a VIP.
    pub note: Option<String>,
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

/// Status of a node at `now`.
pub(crate) fn of(node: &Node, now: Instant) -> Status {
    let plan = decide(&node.config, &node.world, now);
    let rows: Vec<(VipId, VipStatus)> =
        node.ids().zip(&plan.vips).flat_map(|(id, plan)| members(node, id, plan, now)).collect();
    let peers = peers(node, now);
    let neighbors = sessions::neighbors(node, now);
    let (verdict, summary, warnings) = judge::judge(node, &rows, &peers, &neighbors, now);
    let warnings = warnings.into_iter().chain(crate::pool::status::differs(node)).collect();
    let mut counters = node.counters.clone();
    let adverts = &node.adverts;
    let of_adverts = [
        ("adverts_sent", adverts.sent),
        ("adverts_received", adverts.received),
        ("adverts_checksum_pseudo_header", adverts.pseudo_header),
    ];
    counters.extend(of_adverts.map(|(name, count)| (name.to_owned(), count)));
    counters.insert("checks_late".to_owned(), node.checks.late);
    counters.extend(node.refused.counters());
    if let Some(channel) = &node.channel {
        counters.insert("channel_refused".to_owned(), channel.counters().refused());
    }
    Status {
        schema: 1,
        verdict,
        summary,
        node: node.config.node.as_str().to_owned(),
        epoch: node.epoch,
        age_ms: age_ms(now, node.started),
        vips: rows.into_iter().map(|(_, vip)| vip).collect(),
        peers,
        neighbors,
        balancers: planes::balancers(node, now),
        checks: checks::rows(node, now),
        pool: node.pool_status(now),
        conntrack: planes::conntrack(node, now),
        sync: sync::of(node, now),
        stall: planes::stall(node, now),
        drain: drain(node, now),
        counters,
        warnings,
    }
}

/// One row for each VIP of a unit, as the operator wrote them.
fn members(node: &Node, id: VipId, plan: &VipPlan, now: Instant) -> Vec<(VipId, VipStatus)> {
    node.vip_config(id).members.iter().map(|member| (id, vip(node, id, member, plan, now))).collect()
}

fn leg(node: &Node, id: VipId, leg: LegId, config: &Leg) -> LegStatus {
    let router = &node.run(id).router;
    let (sent, mismatch) = router.checksum(leg);
    let word = |form: ChecksumForm| form.counter().to_owned();
    LegStatus {
        family: if config.family == Family::V4 { "ipv4" } else { "ipv6" }.to_owned(),
        version: if config.version == Version::V2 { 2 } else { 3 },
        interface: config.interface.as_str().to_owned(),
        vrid: config.vrid.get(),
        source: router.source(leg).map(|ip| ip.to_string()),
        peers: config.peers.iter().map(ToString::to_string).collect(),
        checksum: word(sent),
        checksum_mismatch: mismatch.map(|(peer, form)| ChecksumMismatch { peer: peer.to_string(), form: word(form) }),
    }
}

fn vip(node: &Node, id: VipId, member: &Member, plan: &VipPlan, now: Instant) -> VipStatus {
    let (config, view, run) = (node.vip_config(id), node.view(id), node.run(id));
    let address = |a: &crate::config::VipAddress| {
        let key = node.world.link(&a.interface).map(|link| (link.ifindex, a.ip, a.prefix));
        AddressStatus {
            address: format!("{}/{}", a.ip, a.prefix),
            interface: a.interface.as_str().to_owned(),
            present: key.is_some_and(|key| node.actual.present(&key)),
            age_ms: key.and_then(|key| node.actual.refreshed(&key)).map(|at| age_ms(now, at)),
        }
    };
    let heard = view.heard.map(|h| HeardStatus {
        from: h.from.to_string(),
        priority: h.priority.get(),
        age_ms: age_ms(now, h.at),
    });
    let of_member = |leg: &&Leg| leg.advertised.iter().any(|ip| member.addresses.contains(ip));
    let first = config.legs.iter().find(of_member);
    let legs = (0..).map(LegId).zip(&config.legs).filter(|(_, leg)| of_member(leg));
    VipStatus {
        name: member.name.as_str().to_owned(),
        group: config.group.then(|| config.name.as_str().to_owned()),
        state: if config.anycast() { anycast_word(node, id) } else { state_word(view.state) }.to_owned(),
        owner: owner(node, id, now),
        age_ms: age_ms(now, view.since),
        addresses: config.addresses.iter().filter(|a| member.addresses.contains(&a.ip)).map(address).collect(),
        priority: run.priority,
        configured_priority: if config.anycast() { 0 } else { config.vrrp.priority.get() },
        interface: first.map(|leg| leg.interface.as_str().to_owned()).unwrap_or_default(),
        vrid: first.map_or(0, |leg| leg.vrid.get()),
        legs: legs.map(|(l, config)| leg(node, id, l, config)).collect(),
        interval_ms: if config.anycast() {
            0
        } else {
            u64::try_from(config.vrrp.interval.duration().as_millis()).unwrap_or(u64::MAX)
        },
        fitness: fitness_word(plan.fitness).to_owned(),
        fitness_age_ms: age_ms(now, run.fitness_since),
        standing: plan.standing.word().to_owned(),
        hold_down: planes::hold_down(view, now),
        fail_open: view.last_resort || plan.fail_open,
        reasons: plan.reasons.iter().map(ToString::to_string).collect(),
        peers: peer_views(node, id, now),
        heard,
        role_epoch: view.role_epoch,
        route: sessions::route(node, id),
    }
}

/// The owner as far as is known: ourselves, else who says so over the channel, else who was heard on the segment.
fn owner(node: &Node, id: VipId, now: Instant) -> Option<String> {
    let view = node.view(id);
    if node.vip_config(id).anycast() {
        return announcers(node, id, now);
    }
    if view.state == State::Active {
        return Some(node.config.node.as_str().to_owned());
    }
    if let Some(peer) = node.world.active_peer(id, now) {
        return Some(node.peer_name(peer));
    }
    let fresh = |h: &crate::world::HeardAdvert| {
        h.priority != holdfast_vrrp::Priority::RESIGN
            && now.saturating_duration_since(h.at) <= h.interval.duration() * 4
    };
    view.heard.filter(fresh).map(|h| h.from.to_string())
}

/// See [`VipStatus::state`].
fn anycast_word(node: &Node, id: VipId) -> &'static str {
    let view = node.view(id);
    match view.bgp.held {
        true if crate::bgp::announced(node.vip_config(id), view, &node.world) => "announced",
        true => "waiting",
        false => "withdrawn",
    }
}

/// All nodes that announce it, as far as is known.
fn announcers(node: &Node, id: VipId, now: Instant) -> Option<String> {
    let here = anycast_word(node, id) == "announced";
    let here = here.then(|| node.config.node.as_str().to_owned());
    let peers = node.config.cluster.iter().flat_map(|c| &c.peers).zip(&node.world.peers);
    let active =
        |(_, view): &(_, &crate::world::PeerView)| view.vip(id, now).is_some_and(|report| report.role == Role::Active);
    let peers = peers.filter(active).map(|(peer, _)| peer.name.as_str().to_owned());
    let names: Vec<String> = here.into_iter().chain(peers).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn peer_views(node: &Node, id: VipId, now: Instant) -> Vec<PeerView> {
    let each = node.config.cluster.iter().flat_map(|c| &c.peers).zip(&node.world.peers);
    each.map(|(peer, view)| {
        let report = view.vip(id, now);
        PeerView {
            name: peer.name.as_str().to_owned(),
            role: report.map_or("unknown", |r| role_word(r.role)).to_owned(),
            fitness: report.map_or("unknown", |r| fitness_word(r.fitness)).to_owned(),
            standing: report.and_then(|r| r.standing).map(|s| s.word().to_owned()),
            priority: report.map(|r| r.priority),
            age_ms: view.vips.get(&id).map(|(at, _)| age_ms(now, *at)),
        }
    })
    .collect()
}

fn peers(node: &Node, now: Instant) -> Vec<PeerStatus> {
    let each = node.config.cluster.iter().flat_map(|c| &c.peers).zip(&node.world.peers);
    each.map(|(peer, view)| {
        let balancers = view.balancers.iter().map(|(name, (at, fitness, _))| {
            let fresh = crate::world::PeerView::fresh(*at, now);
            (name.clone(), if fresh { fitness_word(*fitness) } else { "unknown" }.to_owned())
        });
        let verdicts = view.balancers.iter().filter(|(_, (at, ..))| crate::world::PeerView::fresh(*at, now));
        let verdicts = verdicts.filter_map(|(name, (.., verdict))| Some((name.clone(), (*verdict)?.word().to_owned())));
        PeerStatus {
            name: peer.name.as_str().to_owned(),
            reachable: view.reachable(now),
            age_ms: view.heard_at.map(|at| age_ms(now, at)),
            address: peer.address.to_string(),
            epoch: (view.epoch != 0).then_some(view.epoch),
            left: view.left,
            balancers: balancers.collect(),
            verdicts: verdicts.collect(),
        }
    })
    .collect()
}

fn drain(node: &Node, now: Instant) -> Option<DrainStatus> {
    let intent = node.intents.drain.as_ref()?;
    let waits = node.ids().filter(|id| {
        let view = node.view(*id);
        view.state == State::Active || view.leaving.is_some()
    });
    let waits_for: Vec<String> = waits.map(|id| node.vip_name(id)).collect();
    Some(DrainStatus {
        who: intent.who.clone(),
        reason: intent.reason.clone(),
        since_unix_ms: intent.since_unix_ms,
        until_unix_ms: intent.until_unix_ms,
        phase: if waits_for.is_empty() { "drained" } else { "moving" }.to_owned(),
        age_ms: age_ms(now, node.drain.as_ref().map_or(node.started, |d| d.started)),
        waits_for,
    })
}

fn role_word(role: Role) -> &'static str {
    match role {
        Role::Out => "out",
        Role::Backup => "backup",
        Role::Active => "active",
    }
}

/// For journal and status.
pub(crate) fn fitness_word(fitness: Fitness) -> &'static str {
    match fitness {
        Fitness::Unknown => "unknown",
        Fitness::Fit => "fit",
        Fitness::Unfit => "unfit",
        Fitness::Withheld => "withheld",
    }
}
