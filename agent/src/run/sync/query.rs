//! What can be asked of the thread that replicates flows, and what it answers.
//!
//! A question crosses over a bounded queue, and the answer is made between two turns. The longest one is a list, which may
//! have to look at every flow: no more than the table may hold.

use holdfast_node::sync::{NotReady, Why};
use holdfast_statesync::ct::{Layer4, Tuple, Zone};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

pub use super::super::api::Unavailable;

/// Questions that wait for the thread. Full → [`Unavailable::Busy`].
pub const QUERIES_MAX: usize = 16;
/// Most flows in one answer.
pub const LIST_MAX: usize = 10_000;
/// A thread that doesn't answer for so long is busy.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Query {
    /// How it is: [`Answer::Summary`].
    Summary,
    /// Flows that are held, own ones and replicas: [`Answer::Flows`]. At most `limit` of them ([`LIST_MAX`] bounds it).
    List {
        /// Of this replicated VIP only, or of all VIPs of this group.
        vip: Option<String>,
        /// So many at most.
        limit: usize,
    },
    /// Whether this flow would survive on each peer: [`Answer::Explained`].
    Explain {
        /// What it is, as its client sends it.
        flow: FlowName,
    },
}

/// A flow as people write it: `tcp 198.51.100.7:40000 192.0.2.10:80`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowName {
    /// Number above IP: 6 TCP, 17 UDP.
    pub protocol: u8,
    /// The client.
    pub source: SocketAddr,
    /// The VIP and its port.
    pub destination: SocketAddr,
    /// The zone of this direction; 0 where no zones are used.
    pub zone: u16,
}

impl FlowName {
    /// The zone, for the kernel.
    #[must_use]
    pub const fn zone(&self) -> Zone {
        Zone::both(self.zone)
    }

    /// As the kernel tells it by. `None`: neither TCP nor UDP, or of two families.
    #[must_use]
    pub fn tuple(&self) -> Option<Tuple> {
        let layer4 = match self.protocol {
            Layer4::TCP => Layer4::Tcp { source: self.source.port(), destination: self.destination.port() },
            Layer4::UDP => Layer4::Udp { source: self.source.port(), destination: self.destination.port() },
            _ => return None,
        };
        let addresses = holdfast_statesync::ct::Addresses::new(self.source.ip(), self.destination.ip())?;
        Some(Tuple { addresses, layer4 })
    }
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "one at a time, and moved once")]
pub enum Answer {
    /// To [`Query::Summary`].
    Summary(Summary),
    /// To [`Query::List`].
    Flows(Flows),
    /// To [`Query::Explain`].
    Explained(Explained),
    /// It can't be answered; in words.
    Refused(String),
}

/// How it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Why nothing can be replicated at all, in words.
    pub failing: Option<String>,
    /// In the order of the configuration.
    pub vips: Vec<VipSummary>,
    /// In the order of the configuration.
    pub peers: Vec<PeerSummary>,
    /// Records in the table, ended ones that peers have to learn of among them, and how many it may hold.
    pub records: u64,
    /// Its limit.
    pub max_flows: u64,
    /// Bytes of memory that they take.
    pub memory: u64,
    /// Replicas that can't be in this kernel: refused, or their address and port behind the NAT is another flow's.
    pub not_in_kernel: u64,
    /// Who else on this host sets which events flows tell of, as `table chain`: flows may be missed because of it.
    pub other_filters: Vec<String>,
    /// Counted since the worker's start: (name, value).
    pub counters: Vec<(Cow<'static, str>, u64)>,
    /// Refused operations on the kernel's table, by error: (what the kernel said, how often).
    pub kernel_errors: Vec<(String, u64)>,
}

/// A replicated VIP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VipSummary {
    /// As the operator named it: of a group, the group's.
    pub name: String,
    /// The VIPs of a group; else the one of this name.
    pub members: Vec<String>,
    /// From when on: `assured`, `syn`, `after 5s`, `off`.
    pub mode: String,
    /// Who owns it: `here`, the name of a peer, or `unknown`.
    pub owner: String,
    /// Its flows that are ours.
    pub own: u64,
    /// Replicas here.
    pub replicas: u64,
    /// Whether it can be taken with all its flows; else why not, in words.
    pub not_ready: Option<String>,
}

/// A peer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSummary {
    /// Its name.
    pub name: String,
    /// There is a session on the flow lanes.
    pub up: bool,
    /// Our flows there.
    pub outbound: DirectionSummary,
    /// Its flows here.
    pub inbound: DirectionSummary,
    /// Its flows that are held here.
    pub replicas: u64,
    /// Changed flows of ours that it didn't acknowledge yet.
    pub behind: u64,
    /// From when a change happened to when the peer said that it has it, of the last minute.
    pub lag: Option<Lag>,
    /// How far it is with what it was sent; `None`: there is no session.
    #[serde(default)]
    pub watermark: Option<Watermark>,
    /// Bytes of batches, before they are encrypted, to it and from it since the worker's start.
    #[serde(default)]
    pub bytes_sent: u64,
    /// The other way.
    #[serde(default)]
    pub bytes_received: u64,
}

/// How far a peer is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watermark {
    /// Batches sent in this session.
    pub sent: u32,
    /// All batches up to this one are settled.
    pub settled: u32,
    /// For so long the oldest change waits that isn't acknowledged.
    pub waits_ms: Option<u64>,
}

/// One side of a pair of nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionSummary {
    /// In sync.
    pub in_sync: bool,
    /// Why not: a short word ([`why_word`]).
    pub why: Option<Cow<'static, str>>,
    /// For so long.
    pub since_ms: u64,
    /// All was found equal so long ago.
    pub equal_ms: Option<u64>,
}

/// Percentiles, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lag {
    /// Samples.
    pub count: u64,
    /// Half of them are at most this.
    pub p50_us: u64,
    /// 99 of 100.
    pub p99_us: u64,
    /// The largest.
    pub max_us: u64,
    /// Counted from when the kernel says that the change happened; else from when it was read.
    #[serde(default)]
    pub by_kernel: bool,
}

/// Figures for whoever counts, made once a second; names stay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SyncFigures {
    /// Records in the table.
    pub records: u64,
    /// How many it may hold.
    pub max_flows: u64,
    /// Bytes of memory that they take.
    pub memory: u64,
    /// In the order of the configuration.
    pub peers: Vec<PeerSummary>,
    /// Counted since the worker's start.
    pub counters: BTreeMap<&'static str, u64>,
    /// Refused operations on the kernel's table, by what it said.
    pub kernel_errors: BTreeMap<&'static str, u64>,
}

/// Flows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flows {
    /// Them.
    pub flows: Vec<Flow>,
    /// There are more.
    pub more: bool,
}

/// A flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Its VIP, as the operator named it.
    pub vip: String,
    /// `tcp`, `udp`, `icmp`, `icmp6`.
    pub protocol: Cow<'static, str>,
    /// The client (ICMP: port 0).
    pub source: SocketAddr,
    /// The VIP.
    pub destination: SocketAddr,
    /// Where it goes.
    pub backend: Option<SocketAddr>,
    /// Whose it is: `here`, a peer's name, or a peer's name with `(before it started anew)`.
    pub owner: String,
    /// What kind of life it has: `icmp`, `udp-single`, `tcp-brief`, `udp-stream`, `tcp-open`.
    pub class: Cow<'static, str>,
    /// It is in this node's kernel.
    pub here: bool,
}

/// Whether a flow would survive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// The VIP that it goes to, if that is replicated.
    pub vip: Option<String>,
    /// What this node knows of it.
    pub standing: Standing,
    /// Whose it is, as in [`Flow::owner`]; of known flows.
    pub owner: Option<String>,
    /// It is in this node's kernel: it would survive here.
    pub here: bool,
    /// Of known flows: each peer.
    pub peers: Vec<Survival>,
    /// What this node's kernel has of it: where it goes.
    pub backend: Option<SocketAddr>,
    /// What the backend sees.
    pub seen_as: Option<SocketAddr>,
}

/// What is known of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It is replicated, or will be when it is old enough.
    Known,
    /// This node can't hold it: another flow has its address and port behind the NAT.
    Clash,
    /// Its destination is no replicated VIP.
    NotForVips,
    /// The VIP's mode is off.
    Off,
    /// No kernel entry: it is over, or never was here.
    Absent,
    /// It ends on this host (a proxy's): no replica can help. Drain, and affinity by stick table or cookie, are the answer.
    Proxied,
    /// It needs a helper, a SYN proxy or shifted sequence numbers.
    NotCarried,
    /// It isn't assured yet.
    NotAssured,
    /// It is in this kernel, and nothing stands against it: it will be replicated in a moment.
    Soon,
}

/// Whether a flow would survive on a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survival {
    /// The peer.
    pub peer: String,
    /// It would.
    pub survives: bool,
    /// Why not, in words; or why, if there is something to say.
    pub why: Option<String>,
}

/// A question on its way.
#[derive(Debug)]
pub struct Asked {
    /// What.
    pub query: Query,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Answer>,
}

/// Asks the sync thread. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SyncHandle {
    queries: mpsc::Sender<Asked>,
    figures: watch::Receiver<Arc<SyncFigures>>,
}

impl SyncHandle {
    /// A handle and where its questions arrive. The worker makes one; tests may make their own.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<Asked>) {
        let (queries, asked) = mpsc::channel(QUERIES_MAX);
        (Self { queries, figures: watch::channel(Arc::default()).1 }, asked)
    }

    /// The same, with figures.
    #[must_use]
    pub fn with_figures(self, figures: watch::Receiver<Arc<SyncFigures>>) -> Self {
        Self { figures, ..self }
    }

    /// The last figures, at most a second old while the thread isn't stuck. Waits for nothing.
    #[must_use]
    pub fn figures(&self) -> Arc<SyncFigures> {
        Arc::clone(&self.figures.borrow())
    }

    /// Asks, and waits for the answer (five seconds at most).
    ///
    /// # Errors
    /// [`Unavailable::Busy`]: too many questions wait, or it doesn't answer; [`Unavailable::Stopping`]: the thread ended.
    pub async fn ask(&self, query: Query) -> Result<Answer, Unavailable> {
        let (reply, answer) = oneshot::channel();
        match self.queries.try_send(Asked { query, reply }) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => return Err(Unavailable::Busy),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(Unavailable::Stopping),
        }
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(Unavailable::Stopping),
            Err(_) => Err(Unavailable::Busy),
        }
    }
}

/// A short word for why a direction isn't in sync.
#[must_use]
pub const fn why_word(why: Why) -> &'static str {
    match why {
        Why::NoSession => "no-session",
        Why::NotCompared => "not-compared",
        Why::Differs => "differs",
        Why::Stale => "stale",
        Why::Reading => "reading",
        Why::PeerFull => "peer-full",
    }
}

/// Why a VIP isn't ready, in words; `peer` names a peer by its place.
#[must_use]
pub fn not_ready_text(not_ready: NotReady, peer: impl Fn(usize) -> String) -> String {
    match not_ready {
        NotReady::Reading => "this kernel's connection table is still being read".to_owned(),
        NotReady::Peer(id, why) => format!("not all flows of {} are here ({})", peer(usize::from(id.0)), why_word(why)),
        NotReady::Kernel { behind } => format!("{behind} replicas wait to be written into the kernel"),
    }
}

/// The addresses of a flow that the kernel knows: where it goes, and what the backend sees.
#[must_use]
pub(super) fn translated(reply: &Tuple) -> (SocketAddr, SocketAddr) {
    let of = |ip: IpAddr, port: Option<u16>| SocketAddr::new(ip, port.unwrap_or(0));
    let backend = of(reply.addresses.source(), Some(reply.layer4.source_port()));
    (backend, of(reply.addresses.destination(), reply.layer4.destination_port()))
}
