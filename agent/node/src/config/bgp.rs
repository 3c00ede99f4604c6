//! How VIPs are announced by BGP: this node's speaker, its neighbours, and what a VIP says to them.

use super::{Config, InterfaceName, Vip, VipAddress, milliseconds};
use holdfast_bgp::types::{Asn, Families, Family, Prefix, RouterId};
use holdfast_bgp::wire::community::GRACEFUL_SHUTDOWN;
use serde::{Serialize, Serializer};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

/// Index of a neighbour in [`Bgp::neighbors`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct NeighborId(pub u16);

/// The speaker of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bgp {
    /// Our autonomous system.
    #[serde(serialize_with = "asn")]
    pub asn: Asn,
    /// Our identifier, unique in our autonomous system.
    #[serde(serialize_with = "router_id")]
    pub router_id: RouterId,
    /// Where it comes from.
    pub router_id_from: RouterIdFrom,
    /// Neighbours may connect to us; `false`: another speaker has the port.
    pub listen: bool,
    /// Where they connect to.
    pub listen_port: u16,
    /// Restart time that we ask for, whole seconds, 1 to 4095 (RFC 4724). `None`: no graceful restart.
    #[serde(rename = "graceful_restart_ms", serialize_with = "optional_milliseconds")]
    pub graceful_restart: Option<Duration>,
    /// In file order, each address (with its interface) once.
    pub neighbors: Vec<Neighbor>,
}

/// Where the router identifier comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterIdFrom {
    /// `bgp.router_id`.
    Configured,
    /// The IPv4 address in `source` of the first neighbour that has one.
    Source,
    /// The IPv4 address of `cluster.listen`.
    Cluster,
    /// Made from the node's name.
    NodeName,
}

/// A router that VIPs are announced to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Neighbor {
    /// Unique among neighbours: a name, or the address as it is written.
    pub name: String,
    /// `None`: unnumbered, the one router on `interface` that is heard or connects.
    pub address: Option<IpAddr>,
    /// Always there for link-local and unnumbered neighbours; else the connection is bound to it.
    pub interface: Option<InterfaceName>,
    /// Its autonomous system.
    pub asn: NeighborAs,
    /// Where it listens.
    pub port: u16,
    /// Hold time that we offer: zero (no keepalives), or 3 s to 65535 s, whole seconds.
    #[serde(rename = "hold_time_ms", serialize_with = "milliseconds")]
    pub hold_time: Duration,
    /// From one attempt to connect to the next, the first time; then it doubles.
    #[serde(rename = "connect_retry_ms", serialize_with = "milliseconds")]
    pub connect_retry: Duration,
    /// We never connect, only listen.
    pub passive: bool,
    /// Our address on the connection.
    pub source: Option<IpAddr>,
    /// The file with the TCP MD5 key (RFC 2385): 1 to 80 bytes but for a line's end. It is read by [`password`].
    pub password_file: Option<PathBuf>,
    /// TTL or hop limit that we send with, unless `ttl_security` is there.
    pub multihop: u8,
    /// GTSM (RFC 5082): the neighbour is at most this many hops away; we send with 255 and take 256 less it, at least.
    pub ttl_security: Option<u8>,
    /// What is announced to it.
    #[serde(serialize_with = "families")]
    pub families: Families,
    /// Capabilities are offered; `false` only for routers that refuse any, which are told IPv4 routes only.
    pub capabilities: bool,
    /// IPv4 routes with an IPv6 next hop (RFC 8950).
    pub extended_next_hop: bool,
    /// BFD beside the session.
    pub bfd: Option<Bfd>,
    /// What is said to it otherwise than to others.
    pub overrides: Overrides,
    /// Next hops that it is told instead of those of the VIPs.
    pub next_hop: NextHops,
}

/// The autonomous system of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighborAs {
    /// This one; ours: the neighbour is internal.
    Exactly(Asn),
    /// Ours.
    Internal,
    /// Any but ours.
    External,
}

/// Bidirectional forwarding detection with a neighbour (RFC 5880).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bfd {
    /// What we want to send at and are ready to take.
    #[serde(rename = "interval_ms", serialize_with = "milliseconds")]
    pub interval: Duration,
    /// Intervals without a packet until the neighbour takes us for dead, ≥ 1.
    pub multiplier: u8,
    /// Over routers (RFC 5883, port 4784); else directly (RFC 5881, port 3784, TTL 255 both ways).
    pub multihop: bool,
    /// TTL that a packet must have at least; 255 without `multihop`.
    pub min_ttl: u8,
}

impl Bfd {
    /// How long a dead path goes unnoticed at most, if the neighbour has the same settings.
    pub fn detection(&self) -> Duration {
        self.interval * u32::from(self.multiplier)
    }
}

/// What is announced with an address, but for its next hop and AS path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attributes {
    /// Communities (RFC 1997), the higher 16 bits the AS.
    #[serde(serialize_with = "communities")]
    pub communities: Vec<u32>,
    /// Large communities (RFC 8092).
    pub large: Vec<[u32; 3]>,
    /// Extended communities (RFC 4360) as on the wire.
    pub extended: Vec<[u8; 8]>,
    /// MULTI_EXIT_DISC; always sent, since routers differ in what its absence means.
    pub med: u32,
    /// LOCAL_PREF; sent to internal neighbours only.
    pub local_pref: u32,
    /// How often our AS stands in the path beside the once that it must.
    pub prepend: u8,
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            communities: Vec::new(),
            large: Vec::new(),
            extended: Vec::new(),
            med: 0,
            local_pref: LOCAL_PREF,
            prepend: 0,
        }
    }
}

/// The LOCAL_PREF that routers have for what comes without one.
pub const LOCAL_PREF: u32 = 100;

/// What is said otherwise: only what is there counts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Overrides {
    /// See [`Attributes::communities`].
    #[serde(serialize_with = "optional_communities")]
    pub communities: Option<Vec<u32>>,
    /// See [`Attributes::large`].
    pub large: Option<Vec<[u32; 3]>>,
    /// See [`Attributes::extended`].
    pub extended: Option<Vec<[u8; 8]>>,
    /// See [`Attributes::med`].
    pub med: Option<u32>,
    /// See [`Attributes::local_pref`].
    pub local_pref: Option<u32>,
    /// See [`Attributes::prepend`].
    pub prepend: Option<u8>,
}

/// Next hops; what isn't there is our own address on the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct NextHops {
    /// Of IPv4 routes.
    pub ipv4: Option<Ipv4Addr>,
    /// Of IPv6 routes, and of IPv4 routes by RFC 8950.
    pub ipv6: Option<Ipv6Addr>,
}

/// How a unit is announced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VipBgp {
    /// While all is well.
    pub attributes: Attributes,
    /// What the link-bandwidth community says, which [`VipBgp::attributes_for`] adds.
    pub link_bandwidth: Option<LinkBandwidth>,
    /// Who hears of it, in file order; never empty.
    pub neighbors: Vec<NeighborId>,
    /// Where routers send what is for it.
    pub next_hop: NextHops,
    /// After its start the agent announces nothing for this long.
    #[serde(rename = "announce_delay_ms", serialize_with = "milliseconds")]
    pub announce_delay: Duration,
    /// Between the withdrawal and the removal of the address.
    #[serde(rename = "withdraw_wait_ms", serialize_with = "milliseconds")]
    pub withdraw_wait: Duration,
    /// In a drain, between graceful shutdown (RFC 8326) and the withdrawal.
    #[serde(rename = "drain_wait_ms", serialize_with = "milliseconds")]
    pub drain_wait: Duration,
    /// What is done while the node can't serve.
    pub on_down: Unwell,
    /// While this file is there, it is disabled.
    pub disable_file: Option<PathBuf>,
    /// What is done while it is disabled.
    pub on_disabled: Unwell,
    /// Added to the MED for each address before one in its VIP's list.
    pub increase: u32,
    /// That list begins after this many addresses, and goes on with those at its end.
    pub rotate: u16,
    /// Others that announce it too, below which a node that can't serve stays. At least 1.
    pub min_announcing: u16,
    /// Changes that come too often are held back.
    pub damping: Option<Damping>,
    /// With VRRP: the node is demoted until a neighbour was up for this long.
    #[serde(rename = "settle_ms", serialize_with = "milliseconds")]
    pub settle: Duration,
}

/// What is done when a unit isn't well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unwell {
    /// The route is withdrawn.
    Withdraw,
    /// It is announced with these; communities take the place of the VIP's.
    Announce(Overrides),
}

/// Damping of a route that flaps (after RFC 2439, at our end).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damping {
    /// The penalty is half of it after this long.
    #[serde(rename = "half_life_ms", serialize_with = "milliseconds")]
    pub half_life: Duration,
    /// Above this penalty the route isn't announced.
    pub suppress: u32,
    /// Below this one it is again.
    pub reuse: u32,
    /// Never held back for longer; no penalty is higher than what has become `reuse` after it.
    #[serde(rename = "max_ms", serialize_with = "milliseconds")]
    pub max: Duration,
}

impl Damping {
    /// Penalty of each withdrawal.
    pub const PENALTY: u32 = 1000;

    /// The highest penalty that counts: it has become `reuse` after `max`.
    pub fn ceiling(&self) -> u32 {
        let half_lives = self.max.as_secs_f64() / self.half_life.as_secs_f64().max(0.001);
        let ceiling = f64::from(self.reuse) * half_lives.exp2();
        // A cast of a float saturates.
        ceiling as u32
    }
}

/// A weight for unequal multipath, as the link-bandwidth community says it (draft-ietf-idr-link-bandwidth).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LinkBandwidth {
    /// Bits per second.
    pub bits: u64,
    /// Whether it is passed on to other autonomous systems.
    pub transitive: bool,
}

impl LinkBandwidth {
    /// Bits per second of a weight of 1. Only the ratio counts; 255 of it are less than the 34 Gbit/s above which older
    /// routers miscount.
    pub const WEIGHT: u64 = 100_000_000;

    /// As on the wire.
    pub fn community(self, asn: Asn) -> [u8; 8] {
        let kind = if self.transitive { 0x00 } else { 0x40 };
        let [high, low] = asn.two_octets().to_be_bytes();
        // IEEE 754 single, bytes per second: nothing that is lost here changes a ratio by more than 1 in 10 million.
        let [a, b, c, d] = (self.bits as f32 / 8.0).to_be_bytes();
        [kind, 0x04, high, low, a, b, c, d]
    }
}

/// How a unit is announced at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// All is well.
    Normal,
    /// The node can't serve.
    Down,
    /// Its disable file is there.
    Disabled,
    /// It is about to be withdrawn (RFC 8326).
    GracefulShutdown,
}

impl VipBgp {
    /// Announced to these, with defaults for all that isn't given.
    pub fn to(neighbors: Vec<NeighborId>) -> Self {
        Self {
            attributes: Attributes::default(),
            link_bandwidth: None,
            neighbors,
            next_hop: NextHops::default(),
            announce_delay: Duration::ZERO,
            withdraw_wait: Duration::from_secs(1),
            drain_wait: Duration::from_secs(2),
            on_down: Unwell::Withdraw,
            disable_file: None,
            on_disabled: Unwell::Withdraw,
            increase: 0,
            rotate: 0,
            min_announcing: 1,
            damping: None,
            settle: Duration::from_secs(10),
        }
    }

    /// What `neighbor` is told of an address at `position` (see [`Vip::bgp_position`]). `None`: nothing, it's withdrawn.
    pub fn attributes_for(&self, bgp: &Bgp, neighbor: &Neighbor, form: Form, position: u32) -> Option<Attributes> {
        let mut attributes = self.attributes.clone();
        let unwell = match form {
            Form::Down => Some(&self.on_down),
            Form::Disabled => Some(&self.on_disabled),
            Form::Normal | Form::GracefulShutdown => None,
        };
        let worse = match unwell {
            Some(Unwell::Withdraw) => return None,
            Some(Unwell::Announce(worse)) => Some(worse),
            None => None,
        };
        if let Some(worse) = worse {
            replace(&mut attributes.communities, worse.communities.as_ref());
            replace(&mut attributes.large, worse.large.as_ref());
            replace(&mut attributes.extended, worse.extended.as_ref());
        }
        if let Some(bandwidth) = self.link_bandwidth {
            attributes.extended.push(bandwidth.community(bgp.asn));
        }
        let own = &neighbor.overrides;
        add(&mut attributes.communities, own.communities.as_ref());
        add(&mut attributes.large, own.large.as_ref());
        add(&mut attributes.extended, own.extended.as_ref());
        // What is worse than all is well must be so to each neighbour.
        for overrides in std::iter::once(own).chain(worse) {
            attributes.med = overrides.med.unwrap_or(attributes.med);
            attributes.local_pref = overrides.local_pref.unwrap_or(attributes.local_pref);
            attributes.prepend = overrides.prepend.unwrap_or(attributes.prepend);
        }
        attributes.med = attributes.med.saturating_add(self.increase.saturating_mul(position));
        if form == Form::GracefulShutdown {
            add(&mut attributes.communities, Some(&vec![GRACEFUL_SHUTDOWN]));
            (attributes.med, attributes.local_pref) = (u32::MAX, 0);
        }
        Some(attributes)
    }

    /// The next hops that `neighbor` is told. What isn't there is our own address.
    pub fn next_hops_for(&self, neighbor: &Neighbor) -> NextHops {
        let (own, other) = (self.next_hop, neighbor.next_hop);
        NextHops { ipv4: other.ipv4.or(own.ipv4), ipv6: other.ipv6.or(own.ipv6) }
    }

    /// How long routers may keep its routes after a crash of the worker: the keeper holds the connections for half the
    /// hold time, and only then the restart time begins.
    pub fn grace(&self, config: &Config) -> Duration {
        let bgp = config.bgp.as_ref();
        let held = self.neighbors.iter().filter_map(|id| Some(bgp?.neighbor(*id)?.hold_time / 2)).max();
        let restart = bgp.and_then(|bgp| bgp.graceful_restart);
        held.unwrap_or_default() + restart.unwrap_or_default()
    }

    /// How long the kernel keeps an address of a unit without legs that nobody refreshes: longer than the routers keep
    /// its route after a crash, so that what they send still finds it.
    pub fn lifetime(&self, config: &Config) -> Duration {
        self.grace(config) + LIFETIME_MORE
    }
}

/// Beyond what the routers wait.
const LIFETIME_MORE: Duration = Duration::from_secs(5);

fn replace<T: Clone>(list: &mut Vec<T>, with: Option<&Vec<T>>) {
    if let Some(with) = with {
        list.clone_from(with);
    }
}

/// What isn't there yet.
fn add<T: Clone + PartialEq>(list: &mut Vec<T>, more: Option<&Vec<T>>) {
    for item in more.into_iter().flatten() {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

impl Bgp {
    /// A neighbour by its index.
    pub fn neighbor(&self, id: NeighborId) -> Option<&Neighbor> {
        self.neighbors.get(usize::from(id.0))
    }

    /// All neighbours with their indices.
    pub fn each(&self) -> impl Iterator<Item = (NeighborId, &Neighbor)> {
        (0..).map(NeighborId).zip(&self.neighbors)
    }
}

impl Neighbor {
    /// A neighbour with defaults for all that isn't given.
    pub fn new(address: IpAddr, asn: NeighborAs) -> Self {
        Self {
            name: address.to_string(),
            address: Some(address),
            interface: None,
            asn,
            port: 179,
            hold_time: Duration::from_secs(9),
            connect_retry: Duration::from_secs(2),
            passive: false,
            source: None,
            password_file: None,
            multihop: if asn == NeighborAs::Internal { 255 } else { 1 },
            ttl_security: None,
            families: Families::NONE.with(Family::of(address)),
            capabilities: true,
            extended_next_hop: false,
            bfd: None,
            overrides: Overrides::default(),
            next_hop: NextHops::default(),
        }
    }

    /// Of our own autonomous system.
    pub fn internal(&self, own: Asn) -> bool {
        match self.asn {
            NeighborAs::Exactly(asn) => asn == own,
            NeighborAs::Internal => true,
            NeighborAs::External => false,
        }
    }

    /// TTL or hop limit that we send with.
    pub const fn ttl(&self) -> u8 {
        if self.ttl_security.is_some() { 255 } else { self.multihop }
    }

    /// TTL or hop limit below which nothing is taken.
    pub const fn min_ttl(&self) -> Option<u8> {
        match self.ttl_security {
            // RFC 5082: one hop away arrives with 255.
            Some(hops) => Some(255 - hops.saturating_sub(1)),
            None => None,
        }
    }

    /// The connection is over IPv6.
    pub const fn over_ipv6(&self) -> bool {
        !matches!(self.address, Some(IpAddr::V4(_)))
    }
}

impl Vip {
    /// Announced by BGP alone: it has no legs and no role on a segment.
    pub const fn anycast(&self) -> bool {
        self.legs.is_empty()
    }

    /// The routes to its addresses.
    pub fn announced(&self) -> impl Iterator<Item = (&VipAddress, Prefix)> {
        let anycast = self.anycast();
        self.addresses.iter().filter_map(move |address| Some((address, address.announced(anycast)?)))
    }

    /// The place of an address in its VIP's list, after [`VipBgp::rotate`]: what [`VipBgp::increase`] counts.
    pub fn bgp_position(&self, ip: IpAddr) -> u32 {
        let rotate = self.bgp.as_ref().map_or(0, |bgp| usize::from(bgp.rotate));
        let place = |member: &super::Member| {
            let (at, n) = (member.addresses.iter().position(|own| *own == ip)?, member.addresses.len());
            u32::try_from((at + n - rotate % n) % n).ok()
        };
        self.members.iter().find_map(place).unwrap_or_default()
    }
}

/// The key of the text of a password file: its bytes but for one line's end.
///
/// # Errors
/// In words: it is empty or longer than [`PASSWORD_MAX`] bytes. The text is in no message.
pub fn password(text: &[u8]) -> Result<&[u8], String> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let key = text.strip_suffix(b"\r").unwrap_or(text);
    match key.len() {
        0 => Err("is empty".to_owned()),
        n if n > PASSWORD_MAX => Err(format!("has {n} bytes: a TCP MD5 key has at most {PASSWORD_MAX}")),
        _ if key.contains(&b'\n') => Err("has more than one line".to_owned()),
        _ => Ok(key),
    }
}

/// `TCP_MD5SIG_MAXKEYLEN` of the kernel.
pub const PASSWORD_MAX: usize = 80;

/// As the file says it.
impl fmt::Display for NeighborAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(asn) => write!(f, "{}", asn.0),
            Self::Internal => f.write_str("internal"),
            Self::External => f.write_str("external"),
        }
    }
}

impl Serialize for NeighborAs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Exactly(asn) => serializer.serialize_u32(asn.0),
            word => serializer.collect_str(word),
        }
    }
}

fn asn<S: Serializer>(asn: &Asn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u32(asn.0)
}

fn router_id<S: Serializer>(id: &RouterId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&id.get())
}

fn optional_milliseconds<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => milliseconds(duration, serializer),
        None => serializer.serialize_none(),
    }
}

fn families<S: Serializer>(families: &Families, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(families.iter().map(|family| match family {
        Family::Ipv4 => "ipv4",
        Family::Ipv6 => "ipv6",
    }))
}

/// `65000:100`.
fn community(community: u32) -> String {
    format!("{}:{}", community >> 16, community & 0xffff)
}

fn communities<S: Serializer>(list: &[u32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(list.iter().map(|c| community(*c)))
}

fn optional_communities<S: Serializer>(list: &Option<Vec<u32>>, serializer: S) -> Result<S::Ok, S::Error> {
    match list {
        Some(list) => communities(list, serializer),
        None => serializer.serialize_none(),
    }
}
