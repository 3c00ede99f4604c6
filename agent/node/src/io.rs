//! What goes into a [`Node`](crate::Node) and what comes out of it. The agent and the simulator both speak just this.

use crate::config::{BalancerId, CheckId, InterfaceName, NeighborId, VipId};
use crate::conntrack::Sample;
use crate::keeper::ipc::{BfdSpec, BfdState, BgpGrace, BgpSession, Resign};
use crate::kernel::{Route, Rule, Vmac};
use crate::pool::{Balance, Cut};
use crate::sync::{Elected, SyncEvent, SyncWord};
use holdfast_bgp::ConnId;
use holdfast_vrrp::{Family, LegId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Something happened. Handed to `Node::handle(now, input)` one at a time; drain `poll_output` after each.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub enum Input<'a> {
    /// `poll_timeout` has passed.
    Timer,
    /// A packet with protocol 112, as a raw socket gave it; `ifindex`: where it came in.
    Vrrp { ifindex: u32, packet: Packet<'a> },
    /// How sending an [`Output::Advert`] ended: an error if it went to nobody. Errors are an observation.
    AdvertSent { vip: VipId, leg: LegId, result: Result<(), SendError> },
    /// A datagram on the channel's socket. Not authenticated yet.
    Datagram { from: SocketAddr, bytes: &'a [u8] },
    /// The answer to [`Output::Probe`].
    Probed { vip: VipId, target: IpAddr, outcome: ProbeOutcome },
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
    /// Every route and rule that carries our mark, after start and whenever one of them may have changed: replaces what
    /// was known.
    Ours { routes: &'a [Route], rules: &'a [Rule] },
    /// How a step ended. Every [`Output::Step`] is answered by exactly one of these, in order but for
    /// [`Step::Guard`], [`Step::EventFilter`], [`Step::Balance`] and [`Step::Cut`].
    StepDone { step: Step, result: Result<(), StepError> },
    /// Somebody else changed the embedded balancer's table, or events that would say so were lost.
    TableTouched,
    /// What the supervisor sees of a balancer.
    Balancer { balancer: BalancerId, state: BalancerState },
    /// What an adapter saw of a balancer in one look; replaces what it saw before. Process death has its own, faster
    /// way ([`Input::Balancer`]).
    Plane { balancer: BalancerId, report: PlaneReport },
    /// A look at the kernel's connection table, about once a second, or why there can't be one.
    Conntrack { sample: Result<Sample, String> },
    /// How the replication of flows stands.
    Sync(SyncWord),
    /// Something about it for the journal.
    SyncEvent(SyncEvent),
    /// The keeper has given this VIP away in the worker's stead (resume took too long, or beats were missed): priority 0
    /// is sent, its addresses are removed. A router that is still Active in this role epoch goes to Backup.
    Lapsed { vip: VipId, role_epoch: u64 },
    /// How a probe ended. Late and unknown sequence numbers are ignored and counted. `note`: what somebody should know
    /// though it changes no verdict: a certificate that ends soon. It stands until a result comes without it.
    CheckDone { check: CheckId, sequence: u64, result: Result<(), CheckError>, note: Option<String> },
    /// Of a connection with a router.
    Bgp { neighbor: NeighborId, input: BgpInput<'a> },
    /// What BFD in the keeper says of a router: at each change, and after each [`Output::Bfd`]. `diag`: the code on the
    /// wire (RFC 5880 section 4.1).
    Bfd { neighbor: NeighborId, state: BfdState, diag: u8 },
    /// The disable file of a VIP is there, or gone: to be told at start where one is configured, and at each change.
    Disabled { vip: VipId, disabled: bool },
    /// An operator's request; answered by [`Output::Answer`] with the same token, or by several (progress).
    Operator { token: u64, request: Request },
    /// The answer to [`Output::Replace`]: another worker, this process, is ready, and ours ends with this; or why none is.
    Replaced { result: Result<u32, String> },
    /// SIGTERM, or the keeper vanished: leave in order. [`Output::Stopped`] follows within `deadline`.
    Stop { deadline: Duration },
}

/// What a connection with a router does. Connections are named as [`ConnId`] says; what is said of one that the session
/// no longer knows is ignored.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub enum BgpInput<'a> {
    /// What [`BgpOutput::Connect`] asked for is there. `local`: next hop "self".
    Connected { conn: ConnId, local: SocketAddr, remote: SocketAddr },
    /// It failed; in words.
    ConnectFailed { conn: ConnId, why: String },
    /// The router dialled: from its address, with the protection that is configured. `conn` is odd and new.
    Accepted { conn: ConnId, local: SocketAddr, remote: SocketAddr },
    /// Received, at most 64 KiB in a turn.
    Bytes { conn: ConnId, bytes: &'a [u8] },
    /// It is gone, by whoever's will; why, if it wasn't an orderly end.
    Closed { conn: ConnId, why: Option<String> },
    /// So much of what was to be sent is still with us: after each [`BgpOutput::Send`] that left something, and each time
    /// that the socket took some of it, down to 0.
    Queued { conn: ConnId, bytes: usize },
    /// The address of one that is known by its interface only, as soon as that is known, and when it is another.
    Found { remote: IpAddr },
    /// Why it can be neither dialled nor accepted at the moment (an option that protects it can't be set), in words; shown
    /// in the status. `None`: it can.
    Problem { why: Option<String> },
}

/// A VRRP packet as it came from a raw socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub enum Packet<'a> {
    /// With its IP header.
    V4(&'a [u8]),
    /// An IPv6 raw socket gives the header's fields apart.
    V6 { source: Ipv6Addr, destination: Ipv6Addr, hop_limit: u8, message: &'a [u8] },
}

/// Who answered an [`Output::Probe`].
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
    /// Duplicate address detection hasn't ended, or ended badly (never chosen as source).
    pub tentative: bool,
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

/// What an adapter saw of a balancer in one look. What it can't know is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaneReport {
    /// Its admin side.
    pub admin: Admin,
    /// The connections that it counts itself, and their limit (`maxconn`, `worker_connections`).
    pub connections: Option<Level>,
    /// The fullest accept queue of its listeners (`Recv-Q` of `Send-Q`).
    pub queue: Option<Level>,
    /// Open descriptors of the process that has fewest left, of its limit.
    pub files: Option<Level>,
    /// Its backends, as it judges them itself.
    pub backends: Option<Pool>,
    /// A serving process is stopped or stuck in the kernel (state `T`, `t` or `D`).
    pub stopped: bool,
    /// Processor time of all serving processes together. None spent between two reports, with a silent admin side: it
    /// makes no progress.
    pub cpu_ticks: Option<u64>,
    /// Its master lives (nginx's orphans: false).
    pub supervised: bool,
    /// Its reloads.
    pub reload: Reload,
    /// It says itself that it is about to stop, or fails its own health check on purpose.
    pub leaving: bool,
}

impl Default for PlaneReport {
    /// A balancer of which nothing but its processes is known, and nothing bad of these.
    fn default() -> Self {
        Self {
            admin: Admin::NotConfigured,
            connections: None,
            queue: None,
            files: None,
            backends: None,
            stopped: false,
            cpu_ticks: None,
            supervised: true,
            reload: Reload::default(),
            leaving: false,
        }
    }
}

/// A balancer's admin side (stats socket, status page).
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub enum Admin {
    /// There is none to ask.
    NotConfigured,
    /// The round trip took so long.
    Answers { took: Duration },
    /// It refused, or said nothing in time; in words.
    Silent { why: String },
}

/// A count and its limit, 0: without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub struct Level {
    pub now: u64,
    pub limit: u64,
}

/// Backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Those that can take requests.
    pub up: u32,
    /// All that are configured and not in maintenance.
    pub total: u32,
}

/// What is known of a balancer's reloads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reload {
    /// Grows with each reload that took effect.
    pub generation: u64,
    /// The running configuration is older than so many failed attempts to replace it; 0: it is the last one asked for.
    pub failed: u64,
    /// A reload is under way: old and new processes serve side by side.
    pub running: bool,
    /// Old processes that still finish what they have, at most [`OLD_WORKERS_MAX`].
    pub old: Vec<OldWorker>,
}

/// Old processes told of one balancer; more are left out.
pub const OLD_WORKERS_MAX: usize = 64;

/// A process of a former generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldWorker {
    /// Its pid.
    pub pid: u32,
    /// When it was first seen to be an old one.
    pub since: Instant,
}

/// How full the connection table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ConntrackLevel {
    /// Not looked at, or not in use.
    #[default]
    Unknown,
    /// Room enough.
    Fine,
    /// Filling: somebody should look.
    Filling,
    /// Nearly full.
    High,
    /// Full, or so nearly that new connections are lost: no further VIPs are taken unless nobody else can.
    Full,
}

/// Why a check failed, in a few words for people: `connection refused`, `no answer in 200ms`, `status 503`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub struct CheckError {
    pub what: String,
    pub how: Failure,
}

/// What a failed check says of what it asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Nothing was heard by the deadline; whatever an adapter says, the node's own deadline wins.
    Silent,
    /// It answered, and not with what is expected: a status outside the set, a body that doesn't match.
    Answered,
    /// Nobody listens there. However full the one who should is, his listener would be there.
    Refused,
    /// Anything else: reset, not an answer at all, the check itself couldn't run.
    Other,
}

impl From<String> for CheckError {
    fn from(what: String) -> Self {
        Self { what, how: Failure::Other }
    }
}

/// What an operator asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub enum Request {
    /// Take this node out. `at_unix_ms`: wall clock of the request (the node has none). `force`: interlocks by name.
    Drain { reason: String, who: String, at_unix_ms: u64, deadline: Duration, force: Vec<String>, dry_run: bool },
    /// Take part again.
    Undrain { who: String },
    /// Give a backend of the embedded balancer no new flows (`drain`), or let it have them again. `backend`: its address,
    /// with or without the port.
    Pool { who: String, backend: String, drain: bool },
    /// Give everything to another worker, a newer one perhaps, without anybody's noticing.
    Upgrade { who: String },
    /// Status now.
    Status,
}

/// What the caller must do now, in order.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub enum Output {
    /// Send these VRRP payloads, each to its destination, with TTL 255 from `source` on the interface; report once with
    /// `AdvertSent`.
    Advert { vip: VipId, leg: LegId, ifindex: u32, source: IpAddr, packets: Arc<[holdfast_vrrp::Packet]> },
    /// Send on the channel's socket.
    Datagram { to: SocketAddr, bytes: Vec<u8> },
    /// Change the kernel (the only way this happens); report with `StepDone`.
    Step(Step),
    /// Who has `target` on this segment? `tries` ARP requests (IPv6: neighbour solicitations) from `source`, `wait` after
    /// each; at the same time the same question to a few neighbours that the kernel knows there. Report with `Probed`.
    Probe { vip: VipId, ifindex: u32, source: IpAddr, target: IpAddr, tries: u8, wait: Duration },
    /// Run this probe, give up after `timeout`; report with `CheckDone`.
    StartCheck { check: CheckId, sequence: u64, timeout: Duration },
    /// Look at this balancer now, whenever the next look would be: a check that asks it has just begun to fail, and the
    /// answer ([`Input::Plane`]) is wanted before that counts.
    Look { balancer: BalancerId },
    /// What a unit is here has changed, in the words of keepalived; for programs that listen to these.
    State { vip: VipId, state: UnitState, priority: u8 },
    /// Run a hook through the keeper; nothing waits for it.
    RunHook { hook: u16, environment: Vec<(String, String)> },
    /// Of a connection with a router: right after priority 0 and "take it now", before all that changes the kernel.
    Bgp { neighbor: NeighborId, output: BgpOutput },
    /// For the sync thread: whose a unit with replicated flows is from now on (announced by BGP alone: ours as long as we
    /// announce it), or one that flows move with ([`Config::flow_sources`](crate::config::Config::flow_sources)). Comes before the steps that remove its addresses, since what the kernel forgets after that is no end
    /// of a flow; to be handed on before they are carried out.
    Elected { vip: VipId, elected: Elected },
    /// For the keeper: a session was established on `conn`, whose socket is to be duplicated; or it ended (no `conn`).
    BgpSession { conn: Option<ConnId>, session: BgpSession },
    /// For the keeper: all BFD sessions that are to run.
    Bfd(Vec<BfdSpec>),
    /// What the keeper must know to undo our work and to let a new worker resume. Replaces the former record of
    /// this VIP. Comes before the steps it covers.
    Owner(OwnerRecord),
    /// A journal entry: to be written, counted and shown.
    Event(crate::journal::Event),
    /// Store this across restarts (atomically), replacing what was stored.
    Persist(crate::drain::Intents),
    /// Answer to an operator.
    Answer { token: u64, answer: Answer },
    /// Have another worker started beside this one; report with `Replaced`.
    Replace,
    /// All is released: the process may end.
    Stopped,
}

/// What is to be done with a connection to a router.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub enum BgpOutput {
    /// Dial it.
    Connect { conn: ConnId },
    /// Send all of it, after what was to be sent before.
    Send { conn: ConnId, bytes: Vec<u8> },
    /// Once all is sent, close in order (FIN; read and drop what comes until the router's own).
    Close { conn: ConnId },
    /// Close at once, whatever is unsent; also ends an attempt to dial.
    Abort { conn: ConnId },
}

/// What a unit is on this node, for programs that know keepalived's states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitState {
    /// Active.
    Active,
    /// Backup, or withheld by an operator.
    Backup,
    /// It can't be held here.
    Fault,
    /// The agent stops.
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
    /// Open these raw VRRP sockets (one that receives, one that sends), and join the group if it is a segment's.
    OpenVrrp { socket: SocketKey },
    /// Close them.
    CloseVrrp { socket: SocketKey },
    /// Add this route, marked as ours.
    AddRoute { route: Route },
    /// Remove exactly this route of ours.
    RemoveRoute { route: Route },
    /// Add this rule, marked as ours.
    AddRule { rule: Rule },
    /// Remove exactly this rule of ours.
    RemoveRule { rule: Rule },
    /// These addresses, and no others, take no traffic but neighbour discovery (`accept = false`). The kernel may be busy
    /// with somebody else's rules: what comes after doesn't wait for it, and its answer comes when it is done.
    Guard { addresses: BTreeSet<IpAddr> },
    /// Have the kernel tell of flows. Its answer comes when it is done, as that of the one before.
    EventFilter { filter: FlowFilter },
    /// Create the device with the virtual router's link address, and set its parent up for it.
    AddVmac { vmac: Vmac },
    /// Remove it, if it is ours, with all that is on it; with the last one the parent is as it was.
    RemoveVmac { vmac: Vmac },
    /// Change the embedded balancer's table. Takes its time: what comes after doesn't wait for it, and its answer comes
    /// when it is done.
    Balance(Balance),
    /// Have these flows of the embedded balancer forgotten. Answered when it is done, as the ones before.
    Cut(Arc<Cut>),
}

/// Of which flows the kernel tells.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub enum FlowFilter {
    /// As it would without us: the setting (`nf_conntrack_events`) is as it was before, no rule of ours is there.
    #[default]
    Off,
    /// Of all of them.
    All,
    /// Of forwarded flows to these addresses, and of no others.
    Of(BTreeMap<IpAddr, FlowEvents>),
}

/// From when on the kernel tells of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowEvents {
    /// From its first packet on.
    AtSyn,
    /// When it is assured.
    AtAssured,
}

/// Which VRRP sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketKey {
    /// Address family.
    pub family: Family,
    /// The segment whose group it joins. `None`: unicast, bound to no interface, since a routed answer may come in
    /// anywhere.
    pub ifindex: Option<u32>,
}

impl SocketKey {
    /// Those through which an advert to this destination goes out of this interface.
    pub fn towards(ifindex: u32, destination: IpAddr) -> Self {
        Self { family: Family::of(destination), ifindex: destination.is_multicast().then_some(ifindex) }
    }
}

impl fmt::Display for SocketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self.family {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        };
        match self.ifindex {
            Some(ifindex) => write!(f, "the VRRP socket for {family} on interface {ifindex}"),
            None => write!(f, "the unicast VRRP socket for {family}"),
        }
    }
}

/// See [`Output::Owner`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, the comments add what they do not")]
pub struct OwnerRecord {
    pub vip: VipId,
    /// Router is Active; without a router: it is announced.
    pub active: bool,
    /// Grows at each change of role.
    pub role_epoch: u64,
    /// Addresses that may be in the kernel because of us.
    pub addresses: Vec<(u32, IpAddr, u8)>,
    /// Likewise routes, rules and devices.
    pub routes: Vec<Route>,
    pub rules: Vec<Rule>,
    pub vmacs: Vec<Vmac>,
    /// The priority-0 adverts to send on our behalf, one or more for each leg; empty: none.
    pub resign: Vec<Resign>,
    /// Advert interval: how long a resume may take.
    pub interval: Duration,
    /// Legs of an Active whose adverts have the pseudo-header's checksum, and whether they go out with the RFC's as well:
    /// learnt, and to be known by the next worker.
    pub pseudo_header: Vec<(u16, bool)>,
    /// It is announced by BGP: how long its addresses stay without a worker.
    pub bgp: Option<BgpGrace>,
}

/// What a new worker is told at its start.
#[derive(Debug, Clone, Default)]
pub struct Boot {
    /// Names the run of this agent to the peers: larger than every former one (wall clock at start, ns).
    pub epoch: u64,
    /// Seed of the node's random numbers (jitter, handshakes).
    pub seed: [u8; 32],
    /// VIPs that the former worker held and still has in the kernel: (VIP name, role epoch). Resume as Active, or (without
    /// VRRP) as announced.
    pub resume: Vec<(String, u64)>,
    /// Of these, [`OwnerRecord::pseudo_header`] where it isn't empty.
    pub pseudo_header: Vec<(String, Vec<(u16, bool)>)>,
    /// The former worker had BGP sessions, and what they announced still serves: the first OPENs may say so (RFC 4724).
    pub bgp_restarting: bool,
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
