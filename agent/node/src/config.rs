//! The validated configuration. A value of these types that exists is valid; text is parsed in the agent.

use holdfast_vrrp::{AdvertInterval, Priority, Vrid};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Index of a VIP in [`Config::vips`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipId(pub u16);
/// Index of a check in [`Config::checks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckId(pub u16);
/// Index of a balancer in [`Config::balancers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BalancerId(pub u16);

/// A name: 1..=63 of `[A-Za-z0-9._-]`, starting with a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// A Linux interface name, 1..=15 bytes without `/`, whitespace or NUL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName(String);

/// Everything the node needs to know, cross-checked: every index is in range, every name unique.
#[derive(Debug, Clone, PartialEq, Eq)]
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
}

/// A balancer that is already there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balancer {
    pub name: Name,
    pub kind: BalancerKind,
    pub source: ProcessSource,
    /// Stats or admin socket (haproxy).
    pub admin: Option<PathBuf>,
}

/// The kinds this version wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BalancerKind {
    Haproxy,
    Process,
}

/// How the balancer's processes are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessSource {
    /// A systemd unit: its cgroup.
    Unit(String),
    /// The keeper starts it: argv, never a shell.
    Command(Vec<String>),
    Pidfile(PathBuf),
}

/// A readiness check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub name: Name,
    pub probe: Probe,
    pub interval: Duration,
    /// Used while one result disagrees with the state.
    pub fast_interval: Duration,
    pub timeout: Duration,
    /// Failures in a row until it counts as failed, ≥ 1.
    pub fall: u8,
    /// Successes in a row until it counts as passed, ≥ 1.
    pub rise: u8,
    /// Depends on something every node shares: may warn, never withdraws.
    pub shared: bool,
}

/// What a check does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// GET; success is a complete response with a status in `expect`.
    Http { address: SocketAddr, host: String, path: String, expect: Vec<(u16, u16)> },
    /// The connection is accepted.
    Tcp { address: SocketAddr },
    /// Exit status 0. Absolute path, no shell; run by the keeper.
    Exec { argv: Vec<String> },
}

/// A virtual IP: addresses that move together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vip {
    pub name: Name,
    pub addresses: Vec<VipAddress>,
    /// `None`: no balancer is wrapped for this VIP.
    pub balancer: Option<BalancerId>,
    pub checks: Vec<CheckId>,
    pub vrrp: VrrpConfig,
    pub last_node: LastNode,
}

/// One address of a VIP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VipAddress {
    pub ip: IpAddr,
    pub prefix: u8,
    /// Differs from the VRRP interface only when given.
    pub interface: InterfaceName,
    /// In the adverts' list.
    pub advertise: bool,
}

/// How a VIP is held by VRRP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VrrpConfig {
    pub interface: InterfaceName,
    pub vrid: Vrid,
    pub priority: Priority,
    pub interval: AdvertInterval,
    pub preempt: bool,
}

/// What the last node does when it can't serve either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastNode {
    Keep,
    Withdraw,
}

/// The peers' channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    pub listen: SocketAddr,
    pub key_file: PathBuf,
    pub peers: Vec<Peer>,
}

/// Another agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub name: Name,
    pub address: SocketAddr,
    /// One or two.
    pub public_keys: Vec<[u8; 32]>,
}

/// A program to run when something happens. Runs are ordered, bounded in time, and never waited for by a protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    pub name: Name,
    pub on: Vec<HookEvent>,
    pub exec: Vec<String>,
    pub timeout: Duration,
}

/// What a hook can be attached to. It is told by environment: HOLDFAST_VIP, HOLDFAST_EVENT, HOLDFAST_REASON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookEvent {
    Active,
    Backup,
    Fault,
}
