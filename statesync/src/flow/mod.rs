//! Flow replication: the kernel's connection table for the VIPs, at every peer, always. Pure: [`Flows`] is told what
//! happens and says what to do.
//!
//! # Whose a flow is
//!
//! Each flow has one *owner*: a node, in one life of its kernel. Only the owner tells its state and its end; the others
//! hold *replicas*, in their kernels, ready. Ownership moves by a *claim* with a higher generation: of a whole VIP by
//! the node that its election names, or of one flow by a node through which its packets come (an event that no netlink
//! socket caused, or a timeout that packets renewed). With a shared VIP (ECMP) clients' packets come to any node, and
//! answers to the one that has the flow's SNAT address: there the flows of such an address (a *source*) are claimed, by
//! the node that its election names, and no other takes them by packets while that one lives. Two claims of one
//! generation are decided by the election, else by the lower node id; whoever loses makes its entry a replica. What a node does with its own entries of a VIP
//! that it gave away: it writes them anew without window checks, so that they are of use when the VIP comes back, and
//! exports no delete of them.
//!
//! A replica's timeout in the kernel is a *lease*, renewed at a third of it while the owner is heard. So a replica never
//! goes by its own timer while the owner lives; if it goes otherwise (someone flushed the table), it is put back.
//! A flow that nobody owns any more (its node rebooted, nobody claimed) ends with its lease.
//!
//! # How it gets to the peers
//!
//! Nothing is queued but the numbers of changed flows ("dirty keys"), once each: what is sent is always the latest state,
//! a peer that is slow or was away gets each flow once, and memory is bounded by the table. Batches (`wire` has their
//! form) are numbered; a receiver applies a batch only if it is newer than all that it applied before, so order needs no
//! further care; what wasn't applied is known from the acknowledgements, and its flows are dirty again.
//!
//! Lanes: *urgent* (new flows, claims, ends with reuse), *refresh* (other changes), *bulk* (whole shards), in this order
//! but for each tenth batch, which is bulk's. A flow's shard is given by a keyed hash; the nodes agree on the oldest key.
//!
//! `verify` compares digests of settled shards all the time; shards that differ are sent whole and replace what the
//! peer had. That is the first snapshot, its resumption, and the repair. A peer for which all shards were found equal is
//! *in sync*, with the age of this fact; see [`Flows::outbound`], [`Flows::inbound`], [`Flows::may_promote`].
//!
//! # The kernel
//!
//! [`Output::Kernel`] asks for creates, updates and deletes of replicas, at most [`KERNEL_WINDOW`] unanswered; each flow is
//! compared with what the kernel was last known to have, so nothing is lost if one is refused. `audit` reads the whole
//! table now and then, and after lost events.
//!
//! # When there is too much
//!
//! The table holds `max_flows`. When it is full a flow of the shortest-lived class that there is goes (a replica from the
//! kernel too, an own one only from the peers), or the new one isn't taken if it is no better; counted and told. Peers
//! learn it, and stop repairing at full speed. All else is bounded by the table or by constants, each with its answer.
//!
//! What this module refuses to do: look at a clock, a socket or the kernel; delete a flow that isn't the sender's; believe a
//! peer about a VIP that it doesn't share with us; replicate what ends on this host (proxied connections) or needs
//! a helper, a SYN proxy or shifted sequence numbers: these are counted.

mod audit;
mod claim;
mod dict;
mod explain;
mod facts;
mod gate;
mod hash;
mod incoming;
mod index;
mod kernel;
mod model;
mod outgoing;
mod peer;
mod record;
mod room;
mod source;
mod table;
mod types;
mod verify;
mod wire;

pub use explain::{Explanation, Listed, NotReplicated, Survival, Whose};
pub use gate::{NotReady, Told, Watermark};
pub use kernel::KERNEL_WINDOW;
pub use types::{
    Class, Config, Counters, Direction, Elected, Event, Input, Mode, NodeId, Op, Output, PEERS_MAX, SOURCES_MAX,
    SourceId, Tag, Ticket, Times, VIPS_MAX, VipConfig, VipId, Why,
};
pub use wire::BATCH_MAX;

use crate::channel::PeerId;
use audit::Audit;
use claim::{Job, Seat};
use facts::FlowKey;
use hash::HashKey;
use kernel::Kernel;
use peer::Peer;
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use record::Id;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use table::Table;
use wire::Writer;

/// Events for the journal of one kind per minute; more are counted.
pub const EVENTS_PER_MINUTE: u32 = 6;

/// Outputs that wait to be drained. Beyond, what can be said again is dropped.
pub const OUTPUTS_MAX: usize = 65_536;

/// This node's owner number.
pub(crate) const ME: u8 = 0;

/// What is remembered of a VIP.
#[derive(Debug)]
struct Vip {
    seat: Seat,
    /// Highest generation seen.
    top: u32,
    /// Generation of new flows while no peer that could claim the VIP is heard: higher than any claim that we may miss.
    /// So what began on both sides of a partition survives it, and what only seems to live on the lonely side doesn't.
    alone: Option<u32>,
    /// The last such generation.
    lonely: u32,
}

/// What goes to the caller.
#[derive(Debug, Default)]
struct Outbox {
    queue: VecDeque<Output>,
    /// Events of each kind in the minute that began then.
    events: [(Option<Instant>, u32); 8],
}

/// The flow side. See the module documentation.
#[derive(Debug)]
pub struct Flows {
    config: Config,
    addresses: HashMap<IpAddr, VipId>,
    /// Addresses of this host: what is sent to one of them ends here.
    local: HashSet<IpAddr>,
    table: Table,
    vips: Vec<Vip>,
    sources: Vec<Seat>,
    source_of: HashMap<IpAddr, SourceId>,
    peers: Vec<Peer>,
    /// This run.
    run: u64,
    /// Who drew the key: run and node. The oldest wins, so a node that restarts takes that of the others.
    birth: (u64, u32),
    jobs: VecDeque<Job>,
    kernel: Kernel,
    audit: Audit,
    /// Flows that are still too young.
    young: BinaryHeap<Reverse<(Instant, Id)>>,
    /// Our flows that clash at a peer.
    clashes: BTreeSet<(FlowKey, PeerId)>,
    counters: Counters,
    outbox: Outbox,
    writer: Writer,
    /// Memory of batches that are over, for those to come.
    spare_keys: Vec<Vec<(Id, u8)>>,
    spare_buffers: Vec<Vec<u8>>,
    started: Instant,
    /// When `run` has something to do.
    next: Instant,
}

impl Flows {
    /// Begins with an empty table and asks for a dump of the kernel's: drain [`poll_output`](Self::poll_output) right
    /// away. `seed` is fresh randomness. More peers or VIPs than [`PEERS_MAX`] and [`VIPS_MAX`] are left out.
    pub fn new(mut config: Config, seed: [u8; 32], now: Instant) -> Self {
        let mut rng = ChaCha20Rng::from_seed(seed);
        config.peers.truncate(PEERS_MAX);
        config.vips.truncate(VIPS_MAX);
        config.sources.truncate(SOURCES_MAX);
        config.tag.bits = config.tag.bits.clamp(4, 8);
        config.tag.shift = config.tag.shift.min(32 - config.tag.bits);
        let key = HashKey([rng.next_u64(), rng.next_u64()]);
        let mut addresses = HashMap::new();
        for (index, vip) in config.vips.iter().enumerate() {
            addresses.extend(vip.addresses.iter().map(|address| (*address, VipId(index as u8))));
        }
        let mut source_of = HashMap::new();
        for (place, addresses) in (0..).map(SourceId).zip(&config.sources) {
            source_of.extend(addresses.iter().map(|address| (*address, place)));
        }
        let sharing: Vec<(u8, bool)> = config.vips.iter().map(|vip| (vip.peers, vip.shared)).collect();
        let vip = |_: &VipConfig| Vip { seat: Seat::new(now), top: 0, alone: None, lonely: u32::MAX };
        let peers = config.peers.iter().enumerate();
        let mut flows = Self {
            table: Table::new(key, config.max_flows, &sharing, &config.sources),
            sources: vec![Seat::new(now); config.sources.len()],
            source_of,
            vips: config.vips.iter().map(vip).collect(),
            peers: peers.map(|(index, node)| Peer::new(*node, index, now)).collect(),
            run: rng.next_u64(),
            birth: (config.epoch, config.node.0),
            addresses,
            local: HashSet::new(),
            jobs: VecDeque::new(),
            kernel: Kernel::new(now),
            audit: Audit::new(now),
            young: BinaryHeap::new(),
            clashes: BTreeSet::new(),
            counters: Counters::default(),
            outbox: Outbox::default(),
            writer: Writer::default(),
            spare_keys: Vec::new(),
            spare_buffers: Vec::new(),
            started: now,
            next: now,
            config,
        };
        flows.run(now);
        flows
    }

    /// Takes an input. Drain [`poll_output`](Self::poll_output) before the next one, but for runs of `Kernel` and
    /// `Dumped`, after which it may wait.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) {
        match input {
            Input::Kernel(event) => self.on_kernel(now, event),
            Input::Drained => self.flush_all(now),
            Input::Overrun => self.on_overrun(now),
            Input::Dumped(entry) => self.on_dumped(now, entry),
            Input::DumpEnd { complete } => self.on_dump_end(now, complete),
            Input::Done { ticket, result } => self.on_done(now, ticket, result),
            Input::PeerUp { peer } => self.on_peer_up(now, usize::from(peer.0)),
            Input::PeerDown { peer } => self.on_peer_down(now, usize::from(peer.0)),
            Input::Batch { peer, bytes } => self.on_batch(now, usize::from(peer.0), bytes),
            Input::Elected { vip, elected } => self.on_elected(now, vip, elected),
            Input::SourceElected { source, elected } => self.on_source_elected(now, source, elected),
            Input::Timer => {}
        }
        self.pump_kernel();
        if now >= self.next || self.flush_at().is_some_and(|at| now >= at) {
            self.run(now);
        }
    }

    /// What to do now, in order; `None`: nothing left.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outbox.queue.pop_front()
    }

    /// When `handle(Timer)` wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        Some(self.flush_at().map_or(self.next, |at| at.min(self.next)))
    }

    /// What was counted so far.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes that the shadow table and the lanes take.
    pub fn memory(&self) -> usize {
        let lanes = |peer: &Peer| (peer.tx.urgent.capacity() + peer.tx.refresh.capacity()) * size_of::<Id>();
        self.table.memory() + self.peers.iter().map(lanes).sum::<usize>() + self.kernel.memory()
    }

    /// The netlink port id of our own socket, when it is known.
    pub fn set_port_id(&mut self, port_id: u32) {
        self.config.port_id = port_id;
    }

    /// The addresses of this host, as they are now: a flow whose backend is one of them ends here, and can't be replicated.
    pub fn set_local(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.local.clear();
        self.local.extend(addresses);
    }

    /// Does all that is due, and says when to come again.
    fn run(&mut self, now: Instant) {
        self.next = now + Duration::from_secs(1);
        self.grow_up(now);
        self.check_claims(now);
        self.step_jobs(now);
        self.step_audit(now);
        self.step_leases(now);
        self.pump_kernel();
        for index in 0..self.peers.len() {
            self.check_retry(now, index);
            if let Some(at) = self.verify(now, index) {
                self.arm(at);
            }
            self.flush_due(now, index);
            self.note_sync(now, index);
        }
    }

    /// Makes `run` come no later than this.
    fn arm(&mut self, at: Instant) {
        self.next = self.next.min(at);
    }

    /// The owner number of a peer's present life.
    fn owner_of(&self, index: usize) -> u8 {
        let parity = self.peers.get(index).map_or(0, |peer| peer.parity);
        (2 * (1 + index)) as u8 + parity
    }

    /// The peer that an owner number belongs to; `None`: this node.
    const fn peer_of(owner: u8) -> Option<usize> {
        (owner as usize / 2).checked_sub(1)
    }

    fn node_of(&self, owner: u8) -> NodeId {
        Self::peer_of(owner).and_then(|index| self.peers.get(index)).map_or(self.config.node, |peer| peer.node)
    }

    /// Whether the owner is of a life that is over.
    fn is_past(&self, owner: u8) -> bool {
        Self::peer_of(owner).is_some_and(|index| self.owner_of(index) != owner)
    }

    /// Whether this node serves the VIP.
    fn serves(&self, vip: VipId) -> bool {
        self.vips.get(usize::from(vip.0)).is_some_and(|vip| vip.seat.elected == Elected::Me)
    }

    fn vip_config(&self, vip: VipId) -> Option<&VipConfig> {
        self.config.vips.get(usize::from(vip.0))
    }

    /// Peers with an open session that share this VIP.
    fn open_peers(&self, vip: VipId) -> u8 {
        let shared = self.vip_config(vip).map_or(0, |vip| vip.peers);
        self.peers.iter().filter(|peer| peer.is_open()).fold(0, |bits, peer| bits | peer.bit) & shared
    }

    /// Names the key, so that shards of different keys aren't mixed up.
    fn key_check(&self) -> u32 {
        self.table.key().hash(&[]) as u32
    }

    fn emit(&mut self, output: Output) {
        if self.outbox.queue.len() < OUTPUTS_MAX {
            self.outbox.queue.push_back(output);
        }
    }

    fn event(&mut self, now: Instant, event: Event) {
        let kind = match event {
            Event::InSync { .. } => 0,
            Event::OutOfSync { .. } => 1,
            Event::Claimed { .. } => 2,
            Event::Full { .. } => 3,
            Event::Clash { .. } => 4,
            Event::Overrun => 5,
            Event::KernelRefused { .. } => 6,
            Event::Inherited { .. } => 7,
        };
        let (began, count) = &mut self.outbox.events[kind];
        if began.is_none_or(|began| now.saturating_duration_since(began) >= Duration::from_secs(60)) {
            (*began, *count) = (Some(now), 0);
        }
        *count += 1;
        if *count > EVENTS_PER_MINUTE {
            self.counters.events_suppressed += 1;
        } else {
            self.emit(Output::Event(event));
        }
    }
}

fn peer_id(index: usize) -> PeerId {
    PeerId(index as u16)
}
