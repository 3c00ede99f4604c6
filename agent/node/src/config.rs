//! The validated configuration. A value of these types that exists is valid; text is parsed in the agent.

mod balancer;
mod bgp;
mod conntrack;
mod nft;
mod probe;
mod statesync;
mod vip;

pub use balancer::{Admin, Balancer, BalancerKind, HttpAt, POLL, ProcessSource};
pub use bgp::{
    Attributes, Bfd, Bgp, Damping, Form, LOCAL_PREF, LinkBandwidth, Neighbor, NeighborAs, NeighborId, NextHops,
    Overrides, PASSWORD_MAX, RouterIdFrom, Unwell, VipBgp, password,
};
pub use conntrack::Conntrack;
pub use nft::{
    Affinity, BACKEND_CHECKS_MAX, BACKENDS_MAX, Backend, BackendSet, NatMode, Nft, OnDown, SERVICES_MAX, SETS_MAX,
    SNAT_MAX, Service, SetId, Transport, WEIGHT_MAX,
};
pub use probe::{
    Canary, Check, Datagram, Endpoint, File, GatewayMethod, Group, GroupMember, Http, HttpMethod, Payload, Probe,
    ProxyVersion, Stream, Tls,
};
pub(crate) use statesync::sync_mode_text;
pub use statesync::{
    FLOW_SOURCES_MAX, SYNC_PEERS_MAX, SYNC_VIPS_MAX, StateSync, SyncFilter, SyncMark, SyncMode, SyncVip,
};
pub use vip::{AnnounceConfig, Leg, Member, Partition, Route, Rule, Track, Tracked, Vip, VipAddress, VrrpConfig};

use serde::{Serialize, Serializer};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Most VIPs of a configuration: far above what one host can use, low enough to bound everything behind.
pub const VIPS_MAX: usize = 8_192;

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
    /// The BGP speaker; there if any VIP is announced.
    pub bgp: Option<Bgp>,
    /// The peers' channel; `None`: VRRP alone.
    pub cluster: Option<Cluster>,
    /// The replication of flows to the peers; `None`: none.
    pub statesync: Option<StateSync>,
    /// Hooks in file order.
    pub hooks: Vec<Hook>,
    /// The embedded balancer; there if a balancer is of that kind.
    pub nft: Option<Nft>,
    /// When the connection table is to be worried about.
    pub conntrack: Conntrack,
    /// Where changes of state are written in keepalived's form.
    pub fifo: Option<PathBuf>,
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
