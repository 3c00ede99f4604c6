//! What goes into a [`Node`](crate::Node) and what comes out of it. The agent and the simulator both speak just this.

use crate::config::{BalancerId, CheckId, InterfaceName, VipId};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

/// Something happened. Handed to `Node::handle(now, input)` one at a time; drain `poll_output` after each.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub enum Input<'a> {
    /// `poll_timeout` has passed.
    Timer,
    /// A whole IPv4 packet (header included) with protocol 112, as a raw socket on this interface gave it.
    Vrrp { ifindex: u32, packet: &'a [u8] },
    /// How sending an advert ended; errors are an observation.
    AdvertSent { vip: VipId, result: Result<(), SendError> },
    /// A datagram on the channel's socket. Not authenticated yet.
    Datagram { from: SocketAddr, bytes: &'a [u8] },
    /// The answer to [`Output::ArpProbe`].
    ArpProbed { vip: VipId, target: Ipv4Addr, outcome: ProbeOutcome },
    /// A link is there or changed.
    Link(Link),
    /// A link is gone.
    LinkGone { ifindex: u32 },
    /// An address is there (ours or not) or was changed.
    Address(Address),
    /// An address is gone.
    AddressGone { ifindex: u32, ip: IpAddr, prefix: u8 },
    /// The complete state, after start or an overrun of the event socket: replaces what was known.
    Resync { links: &'a [Link], addresses: &'a [Address] },
    /// How a step ended. Every [`Output::Step`] is answered by exactly one of these, in order.
    StepDone { step: Step, result: Result<(), StepError> },
    /// What the supervisor sees of a balancer.
    Balancer { balancer: BalancerId, state: BalancerState },
    /// The keeper has given this VIP away in the worker's stead (resume took too long, or beats were missed): priority 0
    /// is sent, its addresses are removed. A router that is still Active in this role epoch goes to Backup.
    Lapsed { vip: VipId, role_epoch: u64 },
    /// How a probe ended. Late and unknown sequence numbers are ignored and counted.
    CheckDone { check: CheckId, sequence: u64, result: Result<(), CheckError> },
    /// An operator's request; answered by [`Output::Answer`] with the same token, or by several (progress).
    Operator { token: u64, request: Request },
    /// SIGTERM, or the keeper vanished: leave in order. [`Output::Stopped`] follows within `deadline`.
    Stop { deadline: Duration },
}

/// Who answered an [`Output::ArpProbe`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The target itself: frames pass between us.
    Target,
    /// Not the target, but another neighbour: this node isn't the one that is cut off.
    Others,
    /// Nobody at all.
    Nobody,
}

/// Why sending failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendError {
    /// The system's error number.
    pub errno: i32,
}

/// A network interface as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub struct Link {
    pub ifindex: u32,
    pub name: InterfaceName,
    /// IFF_UP and IFF_LOWER_UP (carrier).
    pub up: bool,
    pub mac: [u8; 6],
    pub mtu: u32,
}

/// An address as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub struct Address {
    pub ifindex: u32,
    pub ip: IpAddr,
    pub prefix: u8,
    /// Carries our IFA_PROTO mark.
    pub marked: bool,
    /// Secondary (never chosen as source).
    pub secondary: bool,
}

/// A step failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepError {
    /// The system's error number.
    pub errno: i32,
    /// What was tried, in words: `add 192.0.2.10/32 dev eth0: operation not permitted`.
    pub what: String,
}

/// What is known of a balancer's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub enum BalancerState {
    /// Not looked at yet, or its pidfile or unit isn't there.
    Unknown { why: String },
    /// It runs.
    Alive { pid: u32 },
    /// It died (pidfd fired, no successor).
    Gone { pid: u32, why: String },
}

/// Why a check failed, in a few words for people: `connection refused`, `no answer in 200ms`, `status 503`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub struct CheckError {
    pub what: String,
    /// When it was found, for the overdue rule the node's own deadline wins.
    pub overdue: bool,
}

/// What an operator asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub enum Request {
    /// Take this node out. `at_unix_ms`: wall clock of the request (the node has none). `force`: interlocks by name.
    Drain { reason: String, who: String, at_unix_ms: u64, deadline: Duration, force: Vec<String>, dry_run: bool },
    /// Take part again.
    Undrain { who: String },
    /// Status now.
    Status,
}

/// What the caller must do now, in order.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub enum Output {
    /// Send a VRRP payload to 224.0.0.18 with TTL 255 from `source` on the interface; report with `AdvertSent`.
    Advert { vip: VipId, ifindex: u32, source: Ipv4Addr, payload: Vec<u8> },
    /// Send on the channel's socket.
    Datagram { to: SocketAddr, bytes: Vec<u8> },
    /// Change the kernel (the only way this happens); report with `StepDone`.
    Step(Step),
    /// Who has `target` on this segment? `tries` ARP requests from `source`, `wait` after each; at the same time the same
    /// question to a few neighbours that the kernel knows there. Report with `ArpProbed`.
    ArpProbe { vip: VipId, ifindex: u32, source: Ipv4Addr, target: Ipv4Addr, tries: u8, wait: Duration },
    /// Run this probe, give up after `timeout`; report with `CheckDone`.
    StartCheck { check: CheckId, sequence: u64, timeout: Duration },
    /// Run a hook through the keeper; nothing waits for it.
    RunHook { hook: u16, environment: Vec<(String, String)> },
    /// What the keeper must know to undo our work and to let a new worker resume. Replaces the former record of
    /// this VIP. Comes before the steps it covers.
    Owner(OwnerRecord),
    /// A journal entry: to be written, counted and shown.
    Event(crate::journal::Event),
    /// Store this across restarts (atomically), replacing what was stored.
    Persist(crate::drain::Intents),
    /// Answer to an operator.
    Answer { token: u64, answer: Answer },
    /// All is released: the process may end.
    Stopped,
}

/// One change to the kernel. Idempotent: adding what is there or removing what is gone is success.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub enum Step {
    /// Add or refresh (lifetime, mark, no prefix route).
    AddAddress { ifindex: u32, ip: IpAddr, prefix: u8, lifetime: Duration },
    /// Remove exactly this address and prefix.
    RemoveAddress { ifindex: u32, ip: IpAddr, prefix: u8 },
    /// One gratuitous ARP (or unsolicited NA) with the link address read at send time.
    Announce { ifindex: u32, ip: IpAddr },
    /// Open the raw VRRP socket of this interface and join the group.
    OpenVrrp { ifindex: u32, interface: InterfaceName },
    /// Close it.
    CloseVrrp { ifindex: u32 },
}

/// See [`Output::Owner`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub struct OwnerRecord {
    pub vip: VipId,
    /// Router is Active.
    pub active: bool,
    /// Grows at each change of role.
    pub role_epoch: u64,
    /// Addresses that may be in the kernel because of us.
    pub addresses: Vec<(u32, IpAddr, u8)>,
    /// The priority-0 advert to send on our behalf: interface index, source, payload.
    pub resign: Option<(u32, Ipv4Addr, Vec<u8>)>,
    /// Advert interval: how long a resume may take.
    pub interval: Duration,
}

/// What a new worker is told at its start.
#[derive(Debug, Clone, Default)]
pub struct Boot {
    /// Names the run of this agent to the peers: larger than every former one (wall clock at start, ns).
    pub epoch: u64,
    /// Seed of the node's random numbers (jitter, handshakes).
    pub seed: [u8; 32],
    /// VIPs that the former worker held and still has in the kernel: (VIP name, role epoch). Resume as Active.
    pub resume: Vec<(String, u64)>,
    /// Stored intents (drains).
    pub intents: crate::drain::Intents,
    /// The channel's static secret key (none: no `[cluster]`).
    pub secret_key: Option<holdfast_statesync::SecretKey>,
    /// Last journal id written, so that ids go on.
    pub last_event_id: u64,
}

/// Answer to a [`Request`]. Each request gets any number of `Progress` and then exactly one other.
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Status as asked.
    Status(Box<crate::status::Status>),
    /// The drain goes on; a line for people.
    Progress(String),
    /// Done; a line for people.
    Done(String),
    /// Refused by this interlock (exit 10).
    Refused { interlock: String, why: String },
    /// The deadline passed (exit 11).
    Deadline(String),
    /// Aborted by another request (exit 12).
    Aborted(String),
    /// The peer was lost meanwhile (exit 13).
    PeerLost(String),
}

/// Instants leave the node only as ages.
pub fn age_ms(now: Instant, then: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(then).as_millis()).unwrap_or(u64::MAX)
}
