//! What the flow side is given and what it gives back.

use crate::channel::PeerId;
use crate::ct::{self, Key, Replica};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Most peers: their state is kept in one bit each per flow.
pub const PEERS_MAX: usize = 8;

/// Most VIPs (each may have several addresses).
pub const VIPS_MAX: usize = 255;

/// Names a node to all others: the same number everywhere, for example a hash of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The number of the node of this name: FNV-1a, which every version keeps. Two names may have one number; then one
    /// of the nodes needs another name.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        Self(name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)))
    }
}

/// Most sources.
pub const SOURCES_MAX: usize = 254;

/// A VIP's place in [`Config::vips`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipId(pub u8);

/// A source's place in [`Config::sources`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u8);

/// From when on a VIP's flows are replicated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// When the kernel calls them assured: short ones cost nothing.
    #[default]
    Assured,
    /// At their first packet, for paths on which the answer takes another node.
    Syn,
    /// When they are assured and this old.
    After(Duration),
    /// Never.
    Off,
}

/// One VIP whose flows are replicated.
#[derive(Debug, Clone)]
pub struct VipConfig {
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// From when on.
    pub mode: Mode,
    /// Several nodes serve it at once (ECMP): nobody claims all of its flows, but with a source those that have it.
    pub shared: bool,
    /// The peers that share it with us, bit n for [`PeerId`] n: others can't touch its flows and aren't told of them.
    pub peers: u8,
}

/// Which bits of the kernel's mark are ours: they say whose replica an entry is, and 0 that it is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// Position of the lowest bit.
    pub shift: u8,
    /// How many (4 to 8).
    pub bits: u8,
}

impl Default for Tag {
    /// The upper 8 bits.
    fn default() -> Self {
        Self { shift: 24, bits: 8 }
    }
}

impl Tag {
    /// The bits in their place.
    #[must_use]
    pub const fn mask(self) -> u32 {
        ((1u32 << self.bits) - 1) << self.shift
    }

    /// The value that names this node; never 0.
    #[must_use]
    pub const fn of(self, node: NodeId) -> u32 {
        let values = (1u32 << self.bits) - 1;
        (1 + node.0 % values) << self.shift
    }
}

/// What kind of life a flow has. In the order in which they go when there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// A query of ICMP.
    Icmp = 0,
    /// UDP, one way.
    UdpSingle = 1,
    /// TCP that isn't open yet, or is closing.
    TcpBrief = 2,
    /// UDP both ways.
    UdpStream = 3,
    /// Open TCP.
    TcpOpen = 4,
}

impl Class {
    /// All of them, the first to go first.
    pub const ALL: [Self; 5] = [Self::Icmp, Self::UdpSingle, Self::TcpBrief, Self::UdpStream, Self::TcpOpen];
}

/// Times, and what the kernel's own are: an owner's entries have those, a replica has the lease.
#[derive(Debug, Clone)]
pub struct Times {
    /// A replica's life in the kernel. It is renewed at a third of it as long as its owner is heard.
    pub lease: Duration,
    /// Between two checks that a peer's table is the same as ours.
    pub verify: Duration,
    /// Between two audits of the kernel's table.
    pub audit: Duration,
    /// The kernel's timeout per class, in the order of [`Class::ALL`], in seconds.
    pub kernel_s: [u32; 5],
}

impl Default for Times {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(600),
            verify: Duration::from_secs(2),
            audit: Duration::from_secs(30),
            kernel_s: [30, 30, 120, 120, 432_000],
        }
    }
}

/// What the flow side is built from.
#[derive(Debug, Clone)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// Which life of this kernel's table: greater than that of every earlier one (the time of boot in milliseconds), and
    /// the same as before when only the agent restarted. With the node it names the owner of a flow.
    pub boot: u64,
    /// This run of the agent, as the channel has it: greater than that of every earlier run.
    pub epoch: u64,
    /// The netlink port id of our own socket: events that it caused are no news. 0: not known yet.
    pub port_id: u32,
    /// The peers, at most [`PEERS_MAX`]; their place is their [`PeerId`], as in the flow lanes' channel.
    pub peers: Vec<NodeId>,
    /// The VIPs, at most [`VIPS_MAX`].
    pub vips: Vec<VipConfig>,
    /// Sources, at most [`SOURCES_MAX`], in the same order on all nodes: where what backends answer to flows of shared VIPs
    /// comes to. Each has its addresses and is at one node at a time, by an election of its own. Flows whose SNAT address
    /// is one of them belong to the node that it names.
    pub sources: Vec<Vec<IpAddr>>,
    /// Most flows that are held; beyond, those of the shortest-lived class go first.
    pub max_flows: usize,
    /// Our bits of the mark.
    pub tag: Tag,
    /// Times.
    pub times: Times,
}

/// Whom a VIP's election named.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Elected {
    /// Not known.
    #[default]
    Unknown,
    /// This node serves it. With a shared VIP: this node serves it, too.
    Me,
    /// This peer.
    Peer(PeerId),
}

/// Names an operation on the kernel's table until its result is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u32);

/// Something happened.
#[derive(Debug)]
pub enum Input<'a> {
    /// The kernel tells of a flow.
    Kernel(&'a ct::Event),
    /// No event waits any more: what was gathered goes out.
    Drained,
    /// Events were lost (ENOBUFS): the kernel's table is asked anew.
    Overrun,
    /// An entry of the dump that [`Output::Dump`] asked for.
    Dumped(&'a ct::Entry),
    /// That dump is over. `complete`: it wasn't cut off or disturbed.
    DumpEnd {
        /// All entries were told.
        complete: bool,
    },
    /// What came of an operation: `Err` has the errno.
    Done {
        /// Which.
        ticket: Ticket,
        /// Its result.
        result: Result<(), i32>,
    },
    /// The channel has a session with this peer.
    PeerUp {
        /// Which.
        peer: PeerId,
    },
    /// It lost it.
    PeerDown {
        /// Which.
        peer: PeerId,
    },
    /// A batch that the channel authenticated.
    Batch {
        /// Its sender.
        peer: PeerId,
        /// Its content.
        bytes: &'a [u8],
    },
    /// The election of a VIP has this result now. Told before the address goes, it is also the fence behind which
    /// nothing is deleted at peers any more.
    Elected {
        /// Which VIP.
        vip: VipId,
        /// Its result.
        elected: Elected,
    },
    /// The election of a source has this result now: who is named claims the flows that are translated to it. Those
    /// without a SNAT address that a node left behind are claimed by whom the first source names that has a result: it may
    /// be their gateway. Told before the address goes, as with a VIP.
    SourceElected {
        /// Which source.
        source: SourceId,
        /// Its result.
        elected: Elected,
    },
    /// `poll_timeout` has passed.
    Timer,
}

/// What is to be done in the kernel's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Create it, exclusively.
    Create(Replica),
    /// Change it; without its NAT, which can't be changed.
    Update(Replica),
    /// Remove it. With the kernel's name for it, where that is known: another connection of the same tuple stays.
    Delete {
        /// Which.
        key: Key,
        /// The kernel's name for it.
        id: Option<u32>,
    },
}

/// What the caller must do now, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this to the peer by the flow lanes' channel. A failed send needs no answer.
    Send {
        /// To whom.
        peer: PeerId,
        /// At most [`BATCH_MAX`](super::BATCH_MAX) bytes.
        bytes: Vec<u8>,
    },
    /// Do this in the kernel's table and tell the result ([`Input::Done`]), in order.
    Kernel {
        /// Comes back with the result.
        ticket: Ticket,
        /// What.
        op: Op,
    },
    /// Dump the kernel's table ([`Input::Dumped`], then [`Input::DumpEnd`]).
    Dump,
    /// For the journal.
    Event(Event),
}

/// What operators want to know; at most [`EVENTS_PER_MINUTE`](super::EVENTS_PER_MINUTE) of a kind per minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A peer holds all our flows (`outbound`), or we all of its, since now.
    InSync {
        /// Which.
        peer: PeerId,
        /// Our flows at the peer; else its flows here.
        outbound: bool,
    },
    /// That ended.
    OutOfSync {
        /// Which.
        peer: PeerId,
        /// Our flows at the peer; else its flows here.
        outbound: bool,
        /// Why.
        why: Why,
    },
    /// The flows of a VIP are ours from now on.
    Claimed {
        /// Which VIP.
        vip: VipId,
        /// The claim's generation.
        generation: u32,
    },
    /// The flows that belong to a source are ours from now on.
    Inherited {
        /// Which source.
        source: SourceId,
        /// The claim's generation.
        generation: u32,
    },
    /// There is no room: flows of this class and shorter-lived ones are not held.
    Full {
        /// The class.
        class: Class,
    },
    /// Two flows use the same address and port behind the NAT: this one has no replica here.
    Clash {
        /// The flow.
        key: Key,
    },
    /// The kernel's events were lost; its table is asked anew.
    Overrun,
    /// The kernel refused an operation.
    KernelRefused {
        /// The errno.
        errno: i32,
    },
}

/// Why a flow wouldn't survive on a peer, or a direction isn't in sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// There is no session with the peer.
    NoSession,
    /// The session is new: nothing was compared yet.
    NotCompared,
    /// Shards differ and are being sent.
    Differs,
    /// The last comparison that found both equal is too old.
    Stale,
    /// Our own table was not read yet, since the start or an overrun.
    Reading,
    /// The peer's table is full.
    PeerFull,
}

/// How much one side of a pair of nodes has of the other's flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Direction {
    /// All of them, as checked at this time; `None`: not since the session began.
    pub equal_at: Option<Instant>,
    /// Why not, if it isn't in sync.
    pub why: Option<Why>,
    /// Since when it is as it is.
    pub since: Instant,
    /// Changed flows that aren't sent or acknowledged yet (our own direction only).
    pub behind: usize,
}

/// What was counted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events of the kernel.
    pub kernel_events: u64,
    /// Of these: caused by ourselves.
    pub own_echoes: u64,
    /// Of these: not for a VIP of ours.
    pub not_for_vips: u64,
    /// Of these: flows that end on this host (proxied, or their backend is here): they can't be replicated.
    pub proxied: u64,
    /// Of these: carrying what isn't replicated (helpers, SYN proxy, shifted sequence numbers).
    pub not_carried: u64,
    /// Flows removed on their owner's word.
    pub removed: u64,
    /// Deletes by someone who isn't the flow's owner: ignored.
    pub foreign_deletes: u64,
    /// Deletes applied that weren't the owner's. Always 0.
    pub foreign_deletes_applied: u64,
    /// Replicas that went from the kernel without their owner's word, and were put back.
    pub refilled: u64,
    /// Flows that two nodes claimed.
    pub conflicts: u64,
    /// Replicas that couldn't be created because another flow has their address and port.
    pub clashes: u64,
    /// Flows that had to go, or weren't taken, because the table is full.
    pub shed: u64,
    /// Overruns.
    pub overruns: u64,
    /// Audits that were completed.
    pub audits: u64,
    /// What audits put right: flows that no event told of, that went unseen, or that had changed.
    pub audit_repairs: u64,
    /// Flows claimed one by one, because their packets came here.
    pub claims: u64,
    /// Claims of a whole VIP.
    pub vip_claims: u64,
    /// Claims of all that belongs to a source, or that a node left behind.
    pub source_claims: u64,
    /// Batches sent, and their bytes.
    pub batches_sent: u64,
    /// Bytes of these.
    pub bytes_sent: u64,
    /// Records in these.
    pub records_sent: u64,
    /// Batches applied.
    pub batches_applied: u64,
    /// Batches that came twice or too late.
    pub batches_late: u64,
    /// Batches of another version or session.
    pub batches_foreign: u64,
    /// Batches that don't decode.
    pub malformed: u64,
    /// Records for VIPs that aren't shared with the sender.
    pub unlisted: u64,
    /// Fields and records of a later version: skipped.
    pub unknown: u64,
    /// Batches that were lost on the way.
    pub batches_lost: u64,
    /// Shards sent because they differed.
    pub shards_sent: u64,
    /// Operations on the kernel's table.
    pub kernel_ops: u64,
    /// Of these: refused.
    pub kernel_refused: u64,
    /// Events for the journal that were left out: too many of a kind.
    pub events_suppressed: u64,
}
