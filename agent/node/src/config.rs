//! The validated configuration. A value of these types that exists is valid; text is parsed in the agent.

use holdfast_vrrp::{AdvertInterval, ChecksumMode, Family, Priority, Version, Vrid};
use serde::{Serialize, Serializer};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Index of a VIP in [`Config::vips`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct VipId(pub u16);
/// Index of a check in [`Config::checks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct CheckId(pub u16);
/// Index of a balancer in [`Config::balancers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct BalancerId(pub u16);

/// A name: 1..=63 of `[A-Za-z0-9._-]`, starting with a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// What [`Name::new`] accepts, for messages.
    pub const ACCEPTED: &'static str = "1 to 63 of A-Z a-z 0-9 . _ -, starting with a letter or digit";

    /// `None`: not a name.
    pub fn new(text: &str) -> Option<Self> {
        let first = text.bytes().next()?;
        let rest = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        (first.is_ascii_alphanumeric() && text.len() <= 63 && text.bytes().all(rest)).then(|| Self(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A Linux interface name, 1..=15 bytes without `/`, `:`, whitespace or NUL, and not `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName(String);

impl InterfaceName {
    /// What [`InterfaceName::new`] accepts, for messages.
    pub const ACCEPTED: &'static str = "a Linux interface name: 1 to 15 bytes without '/', ':' or white space";

    /// `None`: the kernel would not take it as a name (`dev_valid_name`).
    pub fn new(text: &str) -> Option<Self> {
        let refused = |c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace() || c.is_control();
        let fits = (1..=15).contains(&text.len()) && text != "." && text != "..";
        (fits && !text.contains(refused)).then(|| Self(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The same for each: text out, text into JSON.
macro_rules! text {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
    )*};
}
text!(Name, InterfaceName);

/// Everything the node needs to know, cross-checked: every index is in range, every name unique.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Config {
    /// This node's name.
    pub node: Name,
    /// Balancers in file order.
    pub balancers: Vec<Balancer>,
    /// Checks in file order.
    pub checks: Vec<Check>,
    /// VIPs in file order.
    pub vips: Vec<Vip>,
    /// The peers' channel; `None`: VRRP alone.
    pub cluster: Option<Cluster>,
    /// Hooks in file order.
    pub hooks: Vec<Hook>,
    /// Where changes of state are written in keepalived's form.
    pub fifo: Option<PathBuf>,
}

/// A balancer that is already there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Balancer {
    /// Unique among balancers.
    pub name: Name,
    /// What it is.
    pub kind: BalancerKind,
    /// How its processes are found.
    pub source: ProcessSource,
    /// Stats or admin socket (haproxy).
    pub admin: Option<PathBuf>,
}

/// The kinds this version wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BalancerKind {
    /// HAProxy.
    Haproxy,
    /// Any process: alive or not is all that is known.
    Process,
}

/// How the balancer's processes are found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessSource {
    /// A systemd unit: its cgroup.
    Unit(String),
    /// The keeper starts it: argv, never a shell.
    Command(Vec<String>),
    /// A file with the pid.
    Pidfile(PathBuf),
}

/// A readiness check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Unique among checks.
    pub name: Name,
    /// What it does.
    pub probe: Probe,
    /// From start to start of two probes.
    #[serde(rename = "interval_ms", serialize_with = "milliseconds")]
    pub interval: Duration,
    /// Used while one result disagrees with the state.
    #[serde(rename = "fast_interval_ms", serialize_with = "milliseconds")]
    pub fast_interval: Duration,
    /// Without an answer until then it counts as failed; never longer than `interval`.
    #[serde(rename = "timeout_ms", serialize_with = "milliseconds")]
    pub timeout: Duration,
    /// Failures in a row until it counts as failed, ≥ 1.
    pub fall: u8,
    /// Successes in a row until it counts as passed, ≥ 1.
    pub rise: u8,
    /// Depends on something every node shares: may warn, never withdraws.
    pub shared: bool,
}

/// What a check does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// GET; success is a complete response with a status in `expect`.
    Http {
        /// Where to connect.
        address: SocketAddr,
        /// The Host header.
        host: String,
        /// Path and query.
        path: String,
        /// Ranges of statuses that pass, both ends included.
        expect: Vec<(u16, u16)>,
    },
    /// The connection is accepted.
    Tcp {
        /// Where to connect.
        address: SocketAddr,
    },
    /// Exit status 0. Absolute path, no shell; run by the keeper.
    Exec {
        /// The program and its arguments.
        argv: Vec<String>,
    },
    /// A router or another host of the segment answers.
    Gateway {
        /// Who is asked.
        target: IpAddr,
        /// Out of this interface; `None`: as the host routes (Icmp only).
        interface: Option<InterfaceName>,
        /// How it is asked.
        method: GatewayMethod,
    },
}

/// How a gateway is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GatewayMethod {
    /// ARP request or neighbour solicitation.
    Neighbour,
    /// ICMP echo request.
    Icmp,
}

/// What moves as one and is held by one state machine: a VIP, or all VIPs of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vip {
    /// Unique among VIPs and groups; the same on every node. The group's name where there is one.
    pub name: Name,
    /// `name` is a group's.
    pub group: bool,
    /// The VIPs as written: one, or those of the group. Never empty.
    pub members: Vec<Member>,
    /// Virtual routers on the wire, in file order, IPv4 before IPv6. Never empty; indexed by `LegId`.
    pub legs: Vec<Leg>,
    /// Of all members; at least one; no address twice in a configuration.
    pub addresses: Vec<VipAddress>,
    /// Balancers that must serve, each once.
    pub balancers: Vec<BalancerId>,
    /// All must pass, but for those that [`Track`]s weigh.
    pub checks: Vec<CheckId>,
    /// How it is held.
    pub vrrp: VrrpConfig,
    /// What else decides.
    pub tracks: Vec<Track>,
    /// Routes that move with it.
    pub routes: Vec<Route>,
    /// Rules that move with it.
    pub rules: Vec<Rule>,
    /// How it is announced.
    pub announce: AnnounceConfig,
    /// What the last node does when it fails too.
    pub last_node: LastNode,
}

/// A VIP as the operator wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Member {
    /// Unique among VIPs.
    pub name: Name,
    /// Its own addresses.
    pub addresses: Vec<IpAddr>,
}

/// One address of a VIP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VipAddress {
    /// The address.
    pub ip: IpAddr,
    /// Prefix length as added to the interface.
    pub prefix: u8,
    /// Differs from the VRRP interface only when given.
    pub interface: InterfaceName,
    /// In the adverts' list.
    pub advertise: bool,
    /// The IPv6 router's own link-local address, made from the VRID (RFC 9568 section 5.2.9), not written by anybody.
    pub derived: bool,
}

/// A virtual router on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Leg {
    /// Where adverts are sent and heard.
    pub interface: InterfaceName,
    /// Unique on its interface in its family.
    #[serde(serialize_with = "vrid")]
    pub vrid: Vrid,
    /// IPv6 is always 3.
    #[serde(serialize_with = "version")]
    pub version: Version,
    /// Of its addresses.
    #[serde(serialize_with = "family")]
    pub family: Family,
    /// In the order of the adverts, 1 to 255.
    pub advertised: Vec<IpAddr>,
    /// Empty: multicast. Else adverts go to these and are taken from these only.
    pub peers: Vec<IpAddr>,
    /// Unicast: TTL or hop limit that an advert must have at least.
    pub min_ttl: u8,
    /// `None`: the interface's primary address (IPv6: its link-local one).
    pub source: Option<IpAddr>,
    /// How the checksum is made.
    #[serde(serialize_with = "checksum")]
    pub checksum: ChecksumMode,
    /// The addresses stand on a device with the virtual router's own link address (RFC 9568 section 7.3).
    pub vmac: bool,
}

/// How a unit is held by VRRP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VrrpConfig {
    /// 1..=254, or 255 for the address owner.
    #[serde(serialize_with = "priority")]
    pub priority: Priority,
    /// Advert interval.
    #[serde(rename = "interval_ms", serialize_with = "advert_interval")]
    pub interval: AdvertInterval,
    /// RFC 9568 Preempt_Mode.
    pub preempt: bool,
    /// A lower one that is Active is left alone for this long after this node became able.
    #[serde(rename = "preempt_delay_ms", serialize_with = "milliseconds")]
    pub preempt_delay: Duration,
    /// After its start the agent takes nothing for this long.
    #[serde(rename = "startup_delay_ms", serialize_with = "milliseconds")]
    pub startup_delay: Duration,
    /// RFC 9568 Accept_Mode: the host takes traffic to the addresses.
    pub accept: bool,
    /// Who may own it when no peer is heard.
    pub partition: Partition,
    /// The check that [`Partition::Gateway`] goes by.
    pub gateway: Option<CheckId>,
    /// Priorities of the other nodes, as far as the operator told: what weights are proven against.
    pub rivals: Vec<u8>,
}

/// Who may own a VIP on a node that hears no peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Partition {
    /// Each side takes it (VRRP as the RFC has it).
    Both,
    /// The side whose gateway answers.
    Gateway,
    /// Nobody.
    Neither,
}

/// Something beside balancer and checks that decides whether, or how well, a unit can be held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Track {
    /// What is looked at.
    pub what: Tracked,
    /// Added to the priority while it fails (1..=253 lost). `None`: failing is a failure of the node.
    pub weight: Option<u8>,
}

/// See [`Track`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tracked {
    /// An interface beside those of the legs and addresses.
    Interface {
        /// Which.
        name: InterfaceName,
        /// Counts as up after it was up for this long.
        #[serde(rename = "up_delay_ms", serialize_with = "milliseconds")]
        up_delay: Duration,
        /// Counts as down after it was down for this long.
        #[serde(rename = "down_delay_ms", serialize_with = "milliseconds")]
        down_delay: Duration,
    },
    /// A check.
    Check(CheckId),
    /// A balancer.
    Balancer(BalancerId),
}

/// A route that moves with a unit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Route {
    /// Destination; prefix length 0: default.
    pub to: (IpAddr, u8),
    /// Next hop.
    pub via: Option<IpAddr>,
    /// Out of this interface.
    pub interface: InterfaceName,
    /// 254: main.
    pub table: u32,
    /// Preferred source.
    pub source: Option<IpAddr>,
    /// Metric.
    pub metric: Option<u32>,
}

/// A routing rule that moves with a unit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Rule {
    /// Source prefix.
    pub from: Option<(IpAddr, u8)>,
    /// Destination prefix.
    pub to: Option<(IpAddr, u8)>,
    /// Table looked up.
    pub table: u32,
    /// Its place among the rules.
    pub priority: u32,
}

impl Vip {
    /// A VIP by itself, with defaults for all that isn't given.
    pub fn single(name: Name, addresses: Vec<VipAddress>, legs: Vec<Leg>, vrrp: VrrpConfig) -> Self {
        Self {
            members: vec![Member { name: name.clone(), addresses: addresses.iter().map(|a| a.ip).collect() }],
            name,
            group: false,
            legs,
            addresses,
            balancers: Vec::new(),
            checks: Vec::new(),
            vrrp,
            tracks: Vec::new(),
            routes: Vec::new(),
            rules: Vec::new(),
            announce: AnnounceConfig::default(),
            last_node: LastNode::Keep,
        }
    }
}

impl Vip {
    /// The leg on whose device an address stands, if it has one: the leg that advertises it, or another address of the
    /// same member.
    pub fn vmac_leg(&self, address: &VipAddress) -> Option<&Leg> {
        if !self.legs.iter().any(|leg| leg.vmac) {
            return None;
        }
        let family = if address.ip.is_ipv4() { Family::V4 } else { Family::V6 };
        let fits = |leg: &&Leg| leg.vmac && leg.interface == address.interface && leg.family == family;
        if let Some(leg) = self.legs.iter().filter(fits).find(|leg| leg.advertised.contains(&address.ip)) {
            return Some(leg);
        }
        let member = self.members.iter().find(|member| member.addresses.contains(&address.ip))?;
        self.legs.iter().filter(fits).find(|leg| leg.advertised.iter().any(|ip| member.addresses.contains(ip)))
    }
}

impl Leg {
    /// VRRPv3 by multicast, with defaults for all that isn't given. `advertised`: 1 to 255 addresses of one family.
    pub fn multicast(interface: InterfaceName, vrid: Vrid, advertised: Vec<IpAddr>) -> Self {
        let family = if advertised.iter().all(IpAddr::is_ipv4) { Family::V4 } else { Family::V6 };
        Self {
            interface,
            vrid,
            version: Version::V3,
            family,
            advertised,
            peers: Vec::new(),
            min_ttl: 255,
            source: None,
            checksum: ChecksumMode::Auto,
            vmac: false,
        }
    }
}

impl VrrpConfig {
    /// As the RFC has it, with defaults for all that isn't given.
    pub fn new(priority: Priority, interval: AdvertInterval) -> Self {
        Self {
            priority,
            interval,
            preempt: true,
            preempt_delay: Duration::ZERO,
            startup_delay: Duration::ZERO,
            accept: true,
            partition: Partition::Both,
            gateway: None,
            rivals: Vec::new(),
        }
    }
}

/// `192.0.2.0/24`.
struct Prefix(IpAddr, u8);

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0, self.1)
    }
}

/// As `ip route` writes it.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Prefix(self.to.0, self.to.1).fmt(f)?;
        if let Some(via) = self.via {
            write!(f, " via {via}")?;
        }
        write!(f, " dev {} table {}", self.interface, self.table)?;
        if let Some(source) = self.source {
            write!(f, " src {source}")?;
        }
        self.metric.map_or(Ok(()), |metric| write!(f, " metric {metric}"))
    }
}

/// As `ip rule` writes it.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            Some((ip, prefix)) => write!(f, "from {}", Prefix(ip, prefix))?,
            None => f.write_str("from all")?,
        }
        if let Some((ip, prefix)) = self.to {
            write!(f, " to {}", Prefix(ip, prefix))?;
        }
        write!(f, " lookup {} priority {}", self.table, self.priority)
    }
}

/// How addresses are announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct AnnounceConfig {
    /// Announcements of an address right after becoming Active, 1..=20.
    pub repeat: u8,
    /// The burst comes again after this; zero: never.
    #[serde(rename = "second_ms", serialize_with = "milliseconds")]
    pub second: Duration,
    /// One announcement each this long; zero: never.
    #[serde(rename = "refresh_ms", serialize_with = "milliseconds")]
    pub refresh: Duration,
}

impl Default for AnnounceConfig {
    fn default() -> Self {
        Self { repeat: 4, second: Duration::from_secs(5), refresh: Duration::ZERO }
    }
}

/// What the last node does when it can't serve either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LastNode {
    /// Stays and answers as well as it can (fail open).
    Keep,
    /// Gives the address away though nobody can take it.
    Withdraw,
}

/// The peers' channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cluster {
    /// Local address and port of the control lane; port + 1 is kept for the flow lanes.
    pub listen: SocketAddr,
    /// The secret key, as `holdfast keygen` writes it.
    pub key_file: PathBuf,
    /// At least one.
    pub peers: Vec<Peer>,
}

/// Another agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Its `[node] name`.
    pub name: Name,
    /// Where its channel listens.
    pub address: SocketAddr,
    /// One or two.
    #[serde(serialize_with = "keys")]
    pub public_keys: Vec<[u8; 32]>,
}

/// A program to run when something happens. Runs are ordered, bounded in time, and never waited for by a protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hook {
    /// Unique among hooks.
    pub name: Name,
    /// When it runs.
    pub on: Vec<HookEvent>,
    /// argv with an absolute path; never a shell.
    pub exec: Vec<String>,
    /// It is killed then.
    #[serde(rename = "timeout_ms", serialize_with = "milliseconds")]
    pub timeout: Duration,
}

/// What a hook can be attached to. It is told by environment: HOLDFAST_VIP (each VIP of a group
/// in turn), HOLDFAST_EVENT, HOLDFAST_REASON, and HOLDFAST_GROUP where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HookEvent {
    /// A VIP became Active here.
    Active,
    /// A VIP became Backup here.
    Backup,
    /// A VIP can't be held here.
    Fault,
}

fn milliseconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn vrid<S: Serializer>(vrid: &Vrid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(vrid.get())
}

fn priority<S: Serializer>(priority: &Priority, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(priority.get())
}

fn version<S: Serializer>(version: &Version, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(match version {
        Version::V2 => 2,
        Version::V3 => 3,
    })
}

fn family<S: Serializer>(family: &Family, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    })
}

fn checksum<S: Serializer>(mode: &ChecksumMode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match mode {
        ChecksumMode::Auto => "auto",
        ChecksumMode::Rfc9568 => "rfc9568",
        ChecksumMode::PseudoHeader => "pseudo-header",
    })
}

fn advert_interval<S: Serializer>(interval: &AdvertInterval, serializer: S) -> Result<S::Ok, S::Error> {
    milliseconds(&interval.duration(), serializer)
}

fn keys<S: Serializer>(keys: &[[u8; 32]], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(keys.iter().map(holdfast_statesync::encode_key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_1_to_63_safe_characters_and_starts_with_a_letter_or_digit() {
        for good in ["a", "lb1", "9", "web.example-1_x", &"x".repeat(63)] {
            assert_eq!(Name::new(good).as_ref().map(Name::as_str), Some(good));
        }
        for bad in ["", "-a", ".a", "_a", "a b", "a/b", "ä", "a\n", &"x".repeat(64)] {
            assert_eq!(Name::new(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn an_interface_name_is_what_the_kernel_takes() {
        for good in ["eth0", "e", "br-lan.10", "enp0s31f6", "a23456789012345", "üx"] {
            assert_eq!(InterfaceName::new(good).as_ref().map(InterfaceName::as_str), Some(good));
        }
        for bad in ["", ".", "..", "a/b", "eth0:1", "a b", "a\tb", "a\0b", "a234567890123456"] {
            assert_eq!(InterfaceName::new(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn durations_are_written_in_milliseconds_and_keys_as_text() {
        let hook = Hook {
            name: Name::new("h").expect("a name"),
            on: vec![HookEvent::Active],
            exec: vec!["/bin/true".to_owned()],
            timeout: Duration::from_millis(1500),
        };
        let value = serde_json::to_value(&hook).expect("plain data");
        assert_eq!(
            value,
            serde_json::json!({"name": "h", "on": ["active"], "exec": ["/bin/true"], "timeout_ms": 1500})
        );
        let peer = Peer {
            name: Name::new("lb2").expect("a name"),
            address: SocketAddr::from(([10, 0, 0, 2], 7712)),
            public_keys: vec![[0; 32]],
        };
        let value = serde_json::to_value(&peer).expect("plain data");
        assert_eq!(value["public_keys"][0], "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
        assert_eq!(value["address"], "10.0.0.2:7712");
    }
}
