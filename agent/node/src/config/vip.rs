//! Units: what moves as one, its legs on the wire, and how it is held.

use super::bgp::VipBgp;
use super::{BalancerId, CheckId, InterfaceName, LastNode, Name, milliseconds};
use holdfast_bgp::types::Prefix;
use holdfast_vrrp::{AdvertInterval, ChecksumMode, Family, Priority, Version, Vrid};
use serde::{Serialize, Serializer};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// What moves as one and is held by one state machine: a VIP, or all VIPs of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vip {
    /// Unique among VIPs and groups; the same on every node. The group's name where there is one.
    pub name: Name,
    /// `name` is a group's.
    pub group: bool,
    /// The VIPs as written: one, or those of the group. Never empty.
    pub members: Vec<Member>,
    /// Virtual routers on the wire, in file order, IPv4 before IPv6; indexed by `LegId`. Empty if it is announced by BGP
    /// alone (see [`Vip::anycast`]).
    pub legs: Vec<Leg>,
    /// Of all members; at least one; no address twice in a configuration.
    pub addresses: Vec<VipAddress>,
    /// Balancers that must serve, each once.
    pub balancers: Vec<BalancerId>,
    /// All must pass, but for those that [`Track`]s weigh.
    pub checks: Vec<CheckId>,
    /// How it is held; without a meaning if there are no legs.
    pub vrrp: VrrpConfig,
    /// How it is announced by BGP.
    pub bgp: Option<VipBgp>,
    /// What else decides.
    pub tracks: Vec<Track>,
    /// Routes that move with it.
    pub routes: Vec<Route>,
    /// Rules that move with it.
    pub rules: Vec<Rule>,
    /// How it is announced on its segments.
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
    /// Who may own it when no peer is reached over the channel.
    pub partition: Partition,
    /// The check that [`Partition::Gateway`] goes by.
    pub gateway: Option<CheckId>,
    /// Priorities of the other nodes, as far as the operator told: what weights are proven against.
    pub rivals: Vec<u8>,
}

/// Who may own a VIP on a node that reaches no peer over the channel.
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

impl VipAddress {
    /// The route by which it is announced; `None`: it isn't. `anycast`: its VIP is held by BGP alone. Then it is the
    /// prefix that it has on its interface, else the address alone, since its network has a route already.
    pub fn announced(&self, anycast: bool) -> Option<Prefix> {
        let link_local = matches!(self.ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        if link_local || anycast && !self.advertise {
            return None;
        }
        if anycast { Prefix::new(self.ip, self.prefix) } else { Some(Prefix::host(self.ip)) }
    }
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
            bgp: None,
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
struct Network(IpAddr, u8);

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0, self.1)
    }
}

/// As `ip route` writes it.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Network(self.to.0, self.to.1).fmt(f)?;
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
            Some((ip, prefix)) => write!(f, "from {}", Network(ip, prefix))?,
            None => f.write_str("from all")?,
        }
        if let Some((ip, prefix)) = self.to {
            write!(f, " to {}", Network(ip, prefix))?;
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
