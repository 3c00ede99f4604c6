//! How a cluster is made, and the configuration that follows for each host.

use crate::kernel::Kernel;
use crate::net::HOSTS_MAX;
use crate::peer::PeerOptions;
use crate::plane::Looks;
use holdfast_node::config::{
    Balancer, BalancerId, BalancerKind, Check, CheckId, Cluster, Config, GatewayMethod, Group, GroupMember,
    InterfaceName, LastNode, Leg, Member, Name, Partition, Peer, Probe, ProcessSource, StateSync, SyncMode, SyncVip,
    Track, Tracked, Vip, VipAddress, VipId, VrrpConfig,
};
use holdfast_vrrp::{AdvertInterval, Family, Priority, Version, Vrid, types::link_local};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// What the unit consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One IPv4 address on `eth0`.
    V4,
    /// IPv4 and IPv6 on `eth0`.
    Dual,
    /// A group: one member on `eth0`, one on `eth1`, IPv4.
    Group,
    /// The same with both families.
    DualGroup,
}

/// A second interface that is watched (shapes that have no leg on it).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackOptions {
    /// What it costs; `None`: it makes the node unfit.
    pub weight: Option<u8>,
    /// Counts as up only after this.
    pub up_delay: Duration,
}

/// How a cluster is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Hosts, 2 to 5.
    pub hosts: usize,
    /// With `[cluster]`.
    pub channel: bool,
    /// The unit.
    pub shape: Shape,
    /// VRRPv2 (shapes without IPv6, whole seconds).
    pub version2: bool,
    /// Adverts go to each peer by its address.
    pub unicast: bool,
    /// Advert interval, milliseconds.
    pub interval_ms: u64,
    /// By host; hosts beyond its end have 254, 253, …
    pub priorities: Vec<u8>,
    /// RFC 9568 Preempt_Mode of all.
    pub preempt: bool,
    /// See the configuration.
    pub preempt_delay: Duration,
    /// See the configuration.
    pub startup_delay: Duration,
    /// See the configuration.
    pub track: Option<TrackOptions>,
    /// See the configuration.
    pub partition: Partition,
    /// What the last node does.
    pub last_node: LastNode,
    /// How the agents look at their balancers.
    pub looks: Looks,
    /// The unit names a group of checks and none that asks by itself.
    pub check_group: bool,
    /// With `[statesync]`, where there is a channel.
    pub flows: bool,
    /// The last host runs another implementation.
    pub plain: Option<PeerOptions>,
    /// The run's seed.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hosts: 2,
            channel: true,
            shape: Shape::V4,
            version2: false,
            unicast: false,
            interval_ms: 100,
            priorities: vec![],
            preempt: true,
            preempt_delay: Duration::ZERO,
            startup_delay: Duration::ZERO,
            track: None,
            partition: Partition::Both,
            last_node: LastNode::Keep,
            looks: Looks::Whole,
            check_group: false,
            flows: false,
            plain: None,
            seed: 1,
        }
    }
}

impl Options {
    /// The priority of a host.
    pub fn priority(&self, i: usize) -> u8 {
        let plain = self.plain.filter(|_| i + 1 == self.hosts).map(|peer| peer.priority);
        let default = || 254 - u8::try_from(i).expect("few hosts");
        plain.or_else(|| self.priorities.get(i).copied()).unwrap_or_else(default)
    }

    /// The longest advert interval of any host.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.max(self.plain.map_or(0, |peer| peer.interval_ms)))
    }

    /// The longest time that any host waits for a silent owner.
    pub fn down_time(&self) -> Duration {
        let skew = if self.version2 { Duration::from_secs(1) } else { self.interval() };
        self.interval() * 3 + skew
    }

    /// This host's flows are replicated.
    pub fn replicates(&self, i: usize) -> bool {
        self.flows && self.channel && !self.is_plain(i)
    }

    /// This host runs another implementation.
    pub fn is_plain(&self, i: usize) -> bool {
        self.plain.is_some() && i + 1 == self.hosts
    }
}

/// Host names.
pub fn name(i: usize) -> String {
    format!("lb{}", i + 1)
}

/// Where a host's channel listens.
pub fn channel_address(i: usize) -> SocketAddr {
    SocketAddr::from(([10, 1, 0, 11 + u8::try_from(i).expect("few hosts")], 7712))
}

/// The address of the segment's router.
pub const GATEWAY_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 0, 1));
/// The check of the balancer.
pub const WEB: CheckId = CheckId(0);
/// The group that has the check of the balancer as its member, where there is one.
pub const GROUP: CheckId = CheckId(1);

/// The check of the gateway, where there is one.
pub fn gateway_check(options: &Options) -> Option<CheckId> {
    (options.partition == Partition::Gateway).then_some(CheckId(1 + u16::from(options.check_group)))
}

fn text(s: &str) -> Name {
    Name::new(s).expect("a valid name")
}

/// The configuration of a host.
pub fn config(options: &Options, i: usize, publics: &[[u8; 32]]) -> Config {
    assert!((2..HOSTS_MAX).contains(&options.hosts), "two to five hosts");
    let check = |name: &str, probe| Check {
        name: text(name),
        probe,
        interval: Duration::from_millis(100),
        fast_interval: Duration::from_millis(100),
        timeout: Duration::from_millis(100),
        jitter: Duration::ZERO,
        fall: 2,
        rise: 2,
        shared: false,
    };
    let gateway = Probe::Gateway {
        target: GATEWAY_ADDRESS,
        interface: InterfaceName::new("eth0"),
        method: GatewayMethod::Neighbour,
    };
    let mut checks = vec![check("web", Probe::tcp(SocketAddr::from(([127, 0, 0, 1], 80))))];
    if options.check_group {
        let members = vec![GroupMember { check: WEB, weight: 1 }];
        checks.push(check("all", Probe::Group(Group { members, at_least: 1 })));
    }
    if options.partition == Partition::Gateway {
        checks.push(check("gw", gateway));
    }
    let kind = if options.looks == Looks::Whole { BalancerKind::Haproxy } else { BalancerKind::Process };
    Config {
        node: text(&name(i)),
        balancers: vec![Balancer::new(text("plane"), kind, ProcessSource::Command(vec!["/bin/plane".to_owned()]))],
        checks,
        vips: vec![vip(options, i)],
        bgp: None,
        cluster: (options.channel && !options.is_plain(i)).then(|| Cluster {
            listen: channel_address(i),
            key_file: "/nowhere".into(),
            peers: (0..options.hosts)
                .filter(|&j| j != i && !options.is_plain(j))
                .map(|j| Peer { name: text(&name(j)), address: channel_address(j), public_keys: vec![publics[j]] })
                .collect(),
        }),
        statesync: options
            .replicates(i)
            .then(|| StateSync::new(vec![SyncVip { vip: VipId(0), mode: SyncMode::Assured }])),
        hooks: vec![],
        nft: None,
        conntrack: Default::default(),
        fifo: None,
    }
}

/// The unit on one host.
fn vip(options: &Options, i: usize) -> Vip {
    let interval = AdvertInterval::from_duration(Duration::from_millis(options.interval_ms)).expect("a valid interval");
    let priority = Priority::configured(options.priority(i)).expect("a valid priority");
    let group = matches!(options.shape, Shape::Group | Shape::DualGroup);
    let dual = matches!(options.shape, Shape::Dual | Shape::DualGroup);
    let (mut members, mut legs, mut addresses) = (vec![], vec![], vec![]);
    for segment in 0..=u8::from(group) {
        let mut own = vec![];
        for family in [Some(Family::V4), dual.then_some(Family::V6)].into_iter().flatten() {
            let (leg, these) = leg(options, i, segment, family);
            legs.push(leg);
            own.extend(these.iter().filter(|a| !a.derived).map(|a| a.ip));
            addresses.extend(these);
        }
        members.push(Member { name: text(if segment == 0 { "web" } else { "inside" }), addresses: own });
    }
    let tracks = options.track.filter(|_| !group).map(|track| Track {
        what: Tracked::Interface {
            name: InterfaceName::new("eth1").expect("a valid interface"),
            up_delay: track.up_delay,
            down_delay: Duration::ZERO,
        },
        weight: track.weight,
    });
    let vrrp = VrrpConfig {
        preempt: options.preempt,
        preempt_delay: options.preempt_delay,
        startup_delay: options.startup_delay,
        partition: options.partition,
        gateway: gateway_check(options),
        ..VrrpConfig::new(priority, interval)
    };
    let unit = if group { "edge" } else { "web" };
    Vip {
        group,
        members,
        balancers: vec![BalancerId(0)],
        checks: vec![if options.check_group { GROUP } else { WEB }],
        tracks: tracks.into_iter().collect(),
        last_node: options.last_node,
        ..Vip::single(text(unit), addresses, legs, vrrp)
    }
}

fn leg(options: &Options, i: usize, segment: u8, family: Family) -> (Leg, Vec<VipAddress>) {
    let interface = InterfaceName::new(&format!("eth{segment}")).expect("a valid interface");
    let vrid = Vrid::new(10 + i64::from(segment)).expect("a valid VRID");
    let address =
        |ip, prefix, derived| VipAddress { ip, prefix, interface: interface.clone(), advertise: true, derived };
    let addresses = match family {
        Family::V4 => vec![address(IpAddr::V4(Ipv4Addr::new(192, 168, segment, 100)), 32, false)],
        Family::V6 => vec![
            address(IpAddr::V6(link_local(vrid)), 64, true),
            address(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, u16::from(segment), 0, 0, 0, 0x100)), 128, false),
        ],
    };
    let mut leg = Leg::multicast(interface.clone(), vrid, addresses.iter().map(|a| a.ip).collect());
    if options.version2 {
        leg.version = Version::V2;
    }
    if options.unicast {
        let bases = (0..options.hosts).filter(|&j| j != i).map(|j| {
            let kernel = Kernel::new(u8::try_from(j).expect("few hosts"));
            let interface = &kernel.interfaces[usize::from(segment)];
            match family {
                Family::V4 => IpAddr::V4(interface.base4),
                Family::V6 => IpAddr::V6(interface.base6),
            }
        });
        leg.peers = bases.collect();
    }
    (leg, addresses)
}
