//! The table `vrrp` of a VIP: what all its legs share, and what makes a leg.

use super::address::host;
use crate::config::tree::{Place, Sink, Table, Value};
use crate::config::values::{self, flat, interface, shown, word};
use crate::config::{duration, schema};
use holdfast_node::config::{InterfaceName, Partition, VrrpConfig};
use holdfast_vrrp::{AdvertInterval, ChecksumMode, Family, Priority, Version, Vrid};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

pub(super) const ACCEPTED_VRRP: &str = "{ interface = \"eth0\", vrid = 10, priority = 254 }";
const ACCEPTED_PRIORITY: &str = "1 to 254, highest wins; 255 for the owner of the address";
/// 100 ms: blind failover in 0.3 s without real-time scheduling being a must.
const ADVERT_INTERVAL: Duration = Duration::from_millis(100);
/// VRRPv2 knows whole seconds only.
const ADVERT_INTERVAL_V2: Duration = Duration::from_secs(1);
/// Longest that an operator may have a node wait.
const DELAY_MAX: Duration = Duration::from_secs(3600);
/// A packet goes to each of them every interval.
const PEERS_MAX: usize = 32;
/// More routers than a segment has for one address.
const RIVALS_MAX: usize = 32;

/// What was read of the table.
#[derive(Debug, Default)]
pub(super) struct VrrpRead {
    pub(super) interface: Option<InterfaceName>,
    pub(super) vrid: Option<(Vrid, Place)>,
    /// What each leg is made of.
    pub(super) legs: Option<LegKeys>,
    /// What the unit is held by; `gateway` is still missing.
    pub(super) config: Option<VrrpConfig>,
    /// Where the keys stand that members of a group must have alike.
    pub(super) places: Vec<(&'static str, Place)>,
}

/// What makes legs of addresses.
#[derive(Debug, Clone)]
pub(super) struct LegKeys {
    pub(super) version: (Version, Place),
    pub(super) interval: AdvertInterval,
    pub(super) interval_place: Place,
    pub(super) checksum: Option<(ChecksumMode, Place)>,
    pub(super) peers: Option<(Vec<(IpAddr, Place)>, Place)>,
    pub(super) source: Option<(IpAddr, Place)>,
    pub(super) source6: Option<(IpAddr, Place)>,
    pub(super) min_ttl: u8,
    pub(super) link_local: Option<(Ipv6Addr, Place)>,
    pub(super) vmac: Option<Place>,
}

/// Keys that members of a group must have alike.
const SHARED: [&str; 9] =
    ["priority", "interval", "preempt", "preempt_delay", "startup_delay", "accept", "partition", "gateway", "rivals"];

/// The key `vrrp`.
pub(super) fn vrrp(vip: &Table<'_>, sink: &mut Sink) -> VrrpRead {
    let table = vip.get("vrrp").and_then(|value| value.table(ACCEPTED_VRRP, sink));
    let Some(table) = table else { return VrrpRead::default() };
    table.known_keys(&schema::VRRP, sink);
    let interface = table.require("interface", InterfaceName::ACCEPTED, sink).and_then(|value| interface(&value, sink));
    let vrid = table.require("vrid", "1 to 255", sink).and_then(|value| {
        let number = value.integer_in(1..256, "1 to 255", sink)?;
        Some((Vrid::new(number).ok()?, value.place))
    });
    let version = version(&table, sink);
    let interval = advert_interval(&table, version.as_ref().map(|(version, _)| *version), sink);
    let config = config(&table, interval, sink);
    let legs = leg_keys(&table, version, interval, sink);
    let places = SHARED.into_iter().filter_map(|key| Some((key, table.get(key)?.place))).collect();
    VrrpRead { interface, vrid, legs, config, places }
}

fn version(table: &Table<'_>, sink: &mut Sink) -> Option<(Version, Place)> {
    let accepted = "3, or 2 for IPv4 peers that know no other";
    let Some(value) = table.get("version") else { return Some((Version::V3, table.place.clone())) };
    let version = value.integer_in(2..4, accepted, sink)?;
    Some((if version == 2 { Version::V2 } else { Version::V3 }, value.place))
}

/// `version`: `None` if that is wrong; then only what no version takes is wrong here.
fn advert_interval(table: &Table<'_>, version: Option<Version>, sink: &mut Sink) -> Option<AdvertInterval> {
    let v2 = version == Some(Version::V2);
    let accepted = if v2 {
        "with version = 2: 1s to 255s in whole seconds"
    } else {
        "10ms to 40950ms in steps of 10ms, as \"100ms\""
    };
    let default = if v2 { ADVERT_INTERVAL_V2 } else { ADVERT_INTERVAL };
    let Some(value) = table.get("interval") else { return AdvertInterval::from_duration(default).ok() };
    let text = value.string(accepted, sink)?;
    let read = duration::parse(text).and_then(|given| {
        let interval = if v2 {
            let seconds = (given.as_millis() % 1000 == 0).then(|| u8::try_from(given.as_secs()).ok()).flatten();
            seconds.and_then(|seconds| AdvertInterval::from_seconds(seconds).ok())
        } else {
            AdvertInterval::from_duration(given).ok()
        };
        let what = if v2 && given.as_millis() % 1000 != 0 {
            "is not whole seconds, and VRRPv2 has no others"
        } else {
            "is not an advert interval"
        };
        interval.ok_or_else(|| format!("`{}` {what}", shown(text)))
    });
    read.map_err(|why| value.refuse(&why, accepted, sink)).ok()
}

fn config(table: &Table<'_>, interval: Option<AdvertInterval>, sink: &mut Sink) -> Option<VrrpConfig> {
    let accepted = "1 to 254, as 254 on the preferred node and 253 on the other";
    let priority = table.require("priority", accepted, sink).and_then(|value| priority(&value, sink));
    let owner = priority == Some(Priority::OWNER);
    let preempt = table.get("preempt").map_or(Some(true), |value| {
        let preempt = value.boolean(sink)?;
        if owner && !preempt {
            value.refuse("has no effect with priority 255: an owner always preempts", "true", sink);
            return None;
        }
        Some(preempt)
    });
    let preempt_delay = table.get("preempt_delay").map_or(Some(Duration::ZERO), |value| {
        let delay = values::duration(&value, Duration::ZERO, DELAY_MAX, sink)?;
        if delay > Duration::ZERO && (owner || preempt == Some(false)) {
            let why = if owner { "with priority 255: an owner always preempts" } else { "with preempt = false" };
            value.refuse(&format!("has no effect {why}"), "one or the other", sink);
            return None;
        }
        Some(delay)
    });
    let startup_delay = table
        .get("startup_delay")
        .map_or(Some(Duration::ZERO), |value| values::duration(&value, Duration::ZERO, DELAY_MAX, sink));
    let accept = table.get("accept").map_or(Some(true), |value| {
        let accept = value.boolean(sink)?;
        if owner && !accept {
            value.refuse("has no effect with priority 255: an owner takes what is sent to it", "true", sink);
            return None;
        }
        Some(accept)
    });
    let partition = table.get("partition").map_or(Some(Partition::Both), |value| {
        let words = [("both", Partition::Both), ("gateway", Partition::Gateway), ("neither", Partition::Neither)];
        word(&value, &words, sink)
    });
    let rivals = table.get("rivals").map_or_else(|| Some(Vec::new()), |value| rivals(&value, sink));
    Some(VrrpConfig {
        preempt: preempt?,
        preempt_delay: preempt_delay?,
        startup_delay: startup_delay?,
        accept: accept?,
        partition: partition?,
        rivals: rivals?,
        ..VrrpConfig::new(priority?, interval?)
    })
}

fn priority(value: &Value<'_>, sink: &mut Sink) -> Option<Priority> {
    match value.integer_in(0..256, ACCEPTED_PRIORITY, sink)? {
        0 => {
            value.refuse("0 means in an advert that the sender gives the address away", ACCEPTED_PRIORITY, sink);
            None
        }
        255 => Some(Priority::OWNER),
        n => Priority::configured(n).ok(),
    }
}

fn rivals(value: &Value<'_>, sink: &mut Sink) -> Option<Vec<u8>> {
    let accepted = "the priorities of the other nodes, 1 to 255, as [253]";
    let items = value.array(accepted, sink)?;
    if items.is_empty() || items.len() > RIVALS_MAX {
        value.refuse(&format!("has {} elements", items.len()), accepted, sink);
        return None;
    }
    let read: Vec<Option<u8>> =
        items.iter().map(|item| item.integer_in(1..256, accepted, sink).and_then(|n| u8::try_from(n).ok())).collect();
    read.into_iter().collect()
}

fn leg_keys(
    table: &Table<'_>,
    version: Option<(Version, Place)>,
    interval: Option<AdvertInterval>,
    sink: &mut Sink,
) -> Option<LegKeys> {
    let checksum = table.get("checksum").map(|value| {
        let words = [
            ("auto", ChecksumMode::Auto),
            ("rfc9568", ChecksumMode::Rfc9568),
            ("pseudo-header", ChecksumMode::PseudoHeader),
        ];
        Some((word(&value, &words, sink)?, value.place))
    });
    let peers = table.get("peers").map(|value| Some((peers(&value, sink)?, value.place)));
    let source = table.get("source").map(|value| Some((source_of(&value, Family::V4, sink)?, value.place)));
    let source6 = table.get("source6").map(|value| Some((source_of(&value, Family::V6, sink)?, value.place)));
    let min_ttl = table.get("min_ttl").map_or(Some(255), |value| {
        if table.get("peers").is_none() {
            let what = "goes with peers only: what is sent to all never leaves the segment, and arrives with 255";
            value.refuse(what, "1 to 255 with peers", sink);
            return None;
        }
        values::count(&value, sink)
    });
    let link_local = table.get("link_local").map(|value| Some((link_local(&value, sink)?, value.place)));
    let vmac = table.get("vmac").map(|value| {
        let on = value.boolean(sink)?;
        if on && table.get("peers").is_some() {
            let what = "doesn't go with peers: a virtual MAC is for a segment, and its adverts go to all of it";
            value.refuse(what, "either vmac = true or peers", sink);
            return None;
        }
        Some(on.then_some(value.place))
    });
    let interval_place = table.get("interval").map_or_else(|| table.place.clone(), |value| value.place);
    Some(LegKeys {
        version: version?,
        interval: interval?,
        interval_place,
        checksum: flat(checksum)?,
        peers: flat(peers)?,
        source: flat(source)?,
        source6: flat(source6)?,
        min_ttl: min_ttl?,
        link_local: flat(link_local)?,
        vmac: flat(vmac)?.flatten(),
    })
}

fn peers(value: &Value<'_>, sink: &mut Sink) -> Option<Vec<(IpAddr, Place)>> {
    let accepted = "a list of the other nodes' addresses, as [\"10.0.0.2\"]; without the key adverts go by multicast";
    let items = value.array(accepted, sink)?;
    if items.is_empty() || items.len() > PEERS_MAX {
        let what = if items.is_empty() {
            "is empty: adverts would go to nobody, and nobody's would be taken".to_owned()
        } else {
            format!("has {} peers: at most {PEERS_MAX}", items.len())
        };
        value.refuse(&what, accepted, sink);
        return None;
    }
    let mut peers: Vec<(IpAddr, Place)> = Vec::new();
    let mut wrong = false;
    for item in &items {
        match values::host_address(item, None, "an address of another node, as \"10.0.0.2\"", sink) {
            Some(ip) if peers.iter().any(|(peer, _)| *peer == ip) => {
                item.refuse("is there twice", "each peer once", sink);
                wrong = true;
            }
            Some(ip) => peers.push((ip, item.place.clone())),
            None => wrong = true,
        }
    }
    (!wrong).then_some(peers)
}

fn source_of(value: &Value<'_>, family: Family, sink: &mut Sink) -> Option<IpAddr> {
    let accepted = match family {
        Family::V4 => "an IPv4 address that this node has for good, as \"10.0.0.1\"",
        Family::V6 => "an IPv6 address that this node has for good, as \"fe80::1\"",
    };
    values::host_address(value, Some(family), accepted, sink)
}

fn link_local(value: &Value<'_>, sink: &mut Sink) -> Option<Ipv6Addr> {
    let accepted = "a link-local address of fe80::/64, as \"fe80::1\"";
    let text = value.string(accepted, sink)?;
    match text.parse::<Ipv6Addr>() {
        Ok(ip) if ip.segments()[..4] == [0xfe80, 0, 0, 0] && host(IpAddr::V6(ip)).is_ok() => return Some(ip),
        Ok(ip) => value.refuse(&format!("{ip} is not link-local"), accepted, sink),
        Err(_) => value.refuse(&format!("`{}` is not an IPv6 address", shown(text)), accepted, sink),
    }
    None
}
