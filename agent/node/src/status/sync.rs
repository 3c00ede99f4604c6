//! What the status says of the replication of flows: per peer and direction, and per VIP.

use crate::config::sync_mode_text;
use crate::io::age_ms;
use crate::node::Node;
use crate::sync::{Direction, Elected, Why, why_text};
use holdfast_statesync::channel::PeerId;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A direction that is broken for so long is told; a session that begins takes its time.
const BROKEN: Duration = Duration::from_secs(5);

/// The replication of flows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SyncStatus {
    /// Milliseconds since the sync thread last said how it is; absent: it never did. All else is as it was then.
    pub age_ms: Option<u64>,
    /// Why nothing can be replicated at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// How old a change was when the last peer had it, median of the last minute, microseconds; absent: there was none.
    pub lag_us: Option<u64>,
    /// The units with replicated flows, in the order of their configuration.
    pub vips: Vec<SyncVipStatus>,
    /// The peers that flows are replicated to.
    pub peers: Vec<SyncPeerStatus>,
}

/// One unit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SyncVipStatus {
    /// Its name.
    pub name: String,
    /// `assured`, `syn`, `after 5000 ms`, `off`.
    pub mode: String,
    /// All that peers have of its flows is in this node's kernel: it may come here.
    pub ready: bool,
    /// What is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Whose it is, as the sync thread was told: a node's name; absent: not known.
    pub owner: Option<String>,
    /// Its addresses wait for flows, for so many milliseconds at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_ms: Option<u64>,
    /// Its flows here, replicas among them.
    pub flows: u64,
    /// Those that are too young to be replicated.
    pub young: u64,
}

/// One peer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SyncPeerStatus {
    /// Its name.
    pub name: String,
    /// This node's flows there.
    pub outbound: SyncDirection,
    /// Its flows here.
    pub inbound: SyncDirection,
    /// Nothing of ours is on its way to it.
    pub flushed: bool,
    /// Its flows that this node holds.
    pub flows: u64,
}

/// One direction.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SyncDirection {
    /// Both sides were found to have the same not long ago.
    pub in_sync: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Milliseconds since it is as it is.
    pub since_ms: u64,
    /// Milliseconds since both sides were last found to have the same; absent: not in this session.
    pub compared_ms: Option<u64>,
    /// Changed flows that wait to be sent or acknowledged.
    pub behind: u64,
}

pub(super) fn of(node: &Node, now: Instant) -> Option<SyncStatus> {
    let (config, view) = (node.config.statesync.as_ref()?, node.world.sync.as_ref()?);
    let last = view.last();
    let word = last.map(|(_, word)| word);
    let vips = config.vips.iter().enumerate().map(|(place, sync)| {
        let said = word.and_then(|word| word.vips.get(place));
        let missing = view.ready(sync.vip, now).err();
        SyncVipStatus {
            name: node.vip_name(sync.vip),
            mode: sync_mode_text(sync.mode),
            ready: missing.is_none(),
            why: missing.map(|missing| missing.text(|peer| node.peer_name(peer))),
            owner: match node.run(sync.vip).elected {
                Some(Elected::Me) => Some(node.config.node.as_str().to_owned()),
                Some(Elected::Peer(peer)) => Some(node.peer_name(peer)),
                Some(Elected::Unknown) | None => None,
            },
            waits_ms: node.view(sync.vip).flows.gate.map(|gate| age_ms(gate.until, now)),
            flows: said.map_or(0, |said| said.flows),
            young: said.map_or(0, |said| said.young),
        }
    });
    let peers = word.map(|word| word.peers.as_slice()).unwrap_or_default();
    let peers = (0..).map(PeerId).zip(peers).map(|(peer, said)| SyncPeerStatus {
        name: node.peer_name(peer),
        outbound: direction(&said.outbound, now),
        inbound: direction(&said.inbound, now),
        flushed: said.flushed,
        flows: said.flows,
    });
    Some(SyncStatus {
        age_ms: last.map(|(at, _)| age_ms(now, *at)),
        trouble: word.and_then(|word| word.trouble.clone()),
        lag_us: word.and_then(|word| word.lag).map(|lag| u64::try_from(lag.as_micros()).unwrap_or(u64::MAX)),
        vips: vips.collect(),
        peers: peers.collect(),
    })
}

fn direction(direction: &Direction, now: Instant) -> SyncDirection {
    SyncDirection {
        in_sync: direction.why.is_none(),
        why: direction.why.map(|why| why_text(why).to_owned()),
        since_ms: age_ms(now, direction.since),
        compared_ms: direction.equal_at.map(|at| age_ms(now, at)),
        behind: u64::try_from(direction.behind).unwrap_or(u64::MAX),
    }
}

/// What somebody should look at, each with its remedy.
pub(super) fn warnings(node: &Node, now: Instant) -> Vec<(String, &'static str)> {
    let Some(view) = node.world.sync.as_ref().filter(|_| node.stop.is_none()) else { return Vec::new() };
    let mut found = Vec::new();
    let starts = now < node.started + BROKEN;
    let Some((_, word)) = view.last().filter(|(at, _)| now < *at + crate::sync::WORD_MAX) else {
        if !starts {
            let remedy = "see the agent's log for what its sync thread says; until then a move breaks connections";
            found.push(("the thread that replicates flows says nothing".to_owned(), remedy));
        }
        return found;
    };
    if let Some(why) = &word.trouble {
        let remedy = "mend what the reason names; until then a move breaks connections";
        found.push((format!("no flows are replicated: {why}"), remedy));
        return found;
    }
    for (peer, said) in (0..).map(PeerId).zip(&word.peers) {
        let reachable = node.world.peers.get(usize::from(peer.0)).is_some_and(|peer| peer.reachable(now));
        let name = node.peer_name(peer);
        let both =
            [(&said.outbound, format!("this node's flows at {name}")), (&said.inbound, format!("flows of {name}"))];
        for (direction, what) in both {
            let Some(why) = direction.why.filter(|_| reachable && direction.since + BROKEN <= now) else { continue };
            let remedy = match why {
                Why::NoSession => {
                    "see that UDP to the cluster's port + 1 (or [statesync] listen) passes both ways, and that both nodes \
                     have [statesync]"
                }
                Why::PeerFull => "raise max_flows in [statesync] on that node",
                _ => "it should mend itself; `holdfast peers` shows how far it is",
            };
            found.push((format!("{what} aren't in sync: {}", why_text(why)), remedy));
        }
    }
    found
}
