//! The sections that stand alone: checks, hooks, the channel.

use super::schema;
use super::tree::{Place, Sink, Table, Value};
use super::values::{absolute_path, argv, count, duration, name, public_key, socket_address, target_address, word};
use super::{duration as text, probe};
use holdfast_node::config::{Check, CheckId, Cluster, Hook, HookEvent, Name, Peer};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Most sections of each kind: far above what one host can use, low enough to bound everything behind.
pub(super) const BALANCERS_MAX: usize = 64;
pub(super) const CHECKS_MAX: usize = 1024;
pub(super) const VIPS_MAX: usize = holdfast_node::config::VIPS_MAX;
pub(super) const PEERS_MAX: usize = 16;
pub(super) const HOOKS_MAX: usize = 64;

const PACE: Pace = Pace {
    interval: Duration::from_secs(1),
    interval_min: Duration::from_millis(10),
    fast_interval: Duration::from_millis(200),
    timeout: Duration::from_secs(1),
};
const PROBE_INTERVAL_MAX: Duration = Duration::from_secs(3600);
const FAST_INTERVAL_MIN: Duration = Duration::from_millis(10);
const PROBE_TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// So much of the interval is jitter, if nothing is said.
const JITTER_PART: u32 = 10;
pub(super) const FALL: u8 = 3;
pub(super) const RISE: u8 = 2;
const HOOK_TIMEOUT: Duration = Duration::from_secs(10);
const HOOK_TIMEOUT_MIN: Duration = Duration::from_millis(100);
const HOOK_TIMEOUT_MAX: Duration = Duration::from_secs(600);

/// Something that has a name which others refer to. Its place is known even if the rest of it is wrong.
#[derive(Debug)]
pub(super) struct Named<T> {
    /// The name as far as it is one.
    pub(super) name: Option<(Name, Place)>,
    /// The whole, if nothing is wrong with it.
    pub(super) item: Option<T>,
}

impl<T> Named<T> {
    pub(super) fn new(table: &Table<'_>, sink: &mut Sink) -> Self {
        let value = table.require("name", Name::ACCEPTED, sink);
        let name = value.and_then(|value| Some((name(&value, sink)?, value.place)));
        Self { name, item: None }
    }

    pub(super) fn name(&self) -> Option<Name> {
        self.name.as_ref().map(|(name, _)| name.clone())
    }
}

pub(super) fn named_vip<T>(table: &Table<'_>, sink: &mut Sink) -> Named<T> {
    Named::new(table, sink)
}

/// `[node]`.
pub(super) fn node(root: &Table<'_>, sink: &mut Sink) -> Option<(Name, Place)> {
    let accepted = "a [node] section with this host's name";
    let table = root.require("node", accepted, sink)?.table(accepted, sink)?;
    table.known_keys(&schema::NODE, sink);
    let value = table.require("name", Name::ACCEPTED, sink)?;
    Some((name(&value, sink)?, value.place))
}

/// One `[[check]]`.
pub(super) fn check(table: &Table<'_>, id: CheckId, later: &mut probe::Later, sink: &mut Sink) -> Named<Check> {
    table.known_keys(&schema::CHECK, sink);
    let mut named = Named::new(table, sink);
    let probe = probe::read(table, id, later, sink);
    let asks = !probe::GROUPS.into_iter().any(|key| table.get(key).is_some());
    // What is wrong with the schedule of a group was said: it has none.
    let times = if asks { times(table, &PACE, sink) } else { Some(Times::default()) };
    let mut counted = |key, default| match table.get(key).filter(|_| asks) {
        Some(value) => count(&value, sink),
        None => Some(if asks { default } else { 1 }),
    };
    let (fall, rise) = (counted("fall", FALL), counted("rise", RISE));
    let shared = table.get("shared").map_or(Some(false), |value| value.boolean(sink));
    later.add(named.name.as_ref().map(|(name, _)| name.as_str()), id, shared.unwrap_or(true));
    named.item = (|| {
        let Times { interval, fast_interval, timeout, jitter } = times?;
        Some(Check {
            name: named.name()?,
            probe: probe?,
            interval,
            fast_interval,
            timeout,
            jitter,
            fall: fall?,
            rise: rise?,
            shared: shared?,
        })
    })();
    named
}

/// A check's schedule, of which nothing is said.
#[derive(Debug)]
pub(super) struct Pace {
    pub(super) interval: Duration,
    /// Shortest that may be said.
    pub(super) interval_min: Duration,
    pub(super) fast_interval: Duration,
    pub(super) timeout: Duration,
}

impl Pace {
    pub(super) fn times(&self) -> Times {
        let Self { interval, fast_interval, timeout, .. } = *self;
        Times { interval, fast_interval, timeout, jitter: interval / JITTER_PART }
    }
}

/// A check's schedule; all zero for a group, which has none.
#[derive(Debug, Clone, Default)]
pub(super) struct Times {
    pub(super) interval: Duration,
    pub(super) fast_interval: Duration,
    pub(super) timeout: Duration,
    pub(super) jitter: Duration,
}

pub(super) fn times(table: &Table<'_>, pace: &Pace, sink: &mut Sink) -> Option<Times> {
    let mut read = |key, least| {
        let value = table.get(key)?;
        let read = duration(&value, least, PROBE_INTERVAL_MAX, sink);
        Some((read, value))
    };
    let interval = read("interval", pace.interval_min);
    let fast = read("fast_interval", FAST_INTERVAL_MIN);
    let timeout = read("timeout", PROBE_TIMEOUT_MIN);
    let interval = interval.map_or(Some(pace.interval), |(read, _)| read)?;
    let mut within = |given: Option<(Option<Duration>, Value<'_>)>, default: Duration| match given {
        None => Some(default.min(interval)),
        Some((read, value)) => {
            let read = read?;
            if read > interval {
                let what = format!("{} is longer than interval ({})", text::show(read), text::show(interval));
                value.refuse(&what, &format!("at most {}", text::show(interval)), sink);
                return None;
            }
            Some(read)
        }
    };
    let fast = within(fast, pace.fast_interval);
    let timeout = within(timeout, pace.timeout);
    let jitter = table
        .get("jitter")
        .map_or_else(|| Some(interval / JITTER_PART), |value| duration(&value, Duration::ZERO, interval / 2, sink));
    Some(Times { interval, fast_interval: fast?, timeout: timeout?, jitter: jitter? })
}

/// One `[[hook]]`.
pub(super) fn hook(table: &Table<'_>, sink: &mut Sink) -> Named<Hook> {
    table.known_keys(&schema::HOOK, sink);
    let mut named = Named::new(table, sink);
    let on = table.require("on", "active, backup, fault", sink).and_then(|value| hook_events(&value, sink));
    let exec = table
        .require("exec", "[\"/absolute/path\", \"argument\", …]", sink)
        .and_then(|value| argv(&value, false, sink));
    let timeout = table
        .get("timeout")
        .map_or(Some(HOOK_TIMEOUT), |value| duration(&value, HOOK_TIMEOUT_MIN, HOOK_TIMEOUT_MAX, sink));
    named.item = (|| Some(Hook { name: named.name()?, on: on?, exec: exec?, timeout: timeout? }))();
    named
}

fn hook_events(value: &Value<'_>, sink: &mut Sink) -> Option<Vec<HookEvent>> {
    const WORDS: [(&str, HookEvent); 3] =
        [("active", HookEvent::Active), ("backup", HookEvent::Backup), ("fault", HookEvent::Fault)];
    let accepted = "a list of active, backup, fault";
    if !value.is_array() {
        return word(value, &WORDS, sink).map(|event| vec![event]);
    }
    let items = value.array(accepted, sink)?;
    let mut events = Vec::new();
    for item in &items {
        let event = word(item, &WORDS, sink)?;
        if events.contains(&event) {
            item.refuse("is there twice", accepted, sink);
            return None;
        }
        events.push(event);
    }
    if events.is_empty() {
        value.refuse("is empty: the hook would never run", accepted, sink);
        return None;
    }
    Some(events)
}

/// `[notify]`. Outer `None`: wrong.
pub(super) fn notify(root: &Table<'_>, sink: &mut Sink) -> Option<Option<PathBuf>> {
    let accepted = "a [notify] section with fifo = \"/run/holdfast/notify\"";
    let Some(value) = root.get("notify") else { return Some(None) };
    let table = value.table(accepted, sink)?;
    table.known_keys(&schema::NOTIFY, sink);
    absolute_path(&table.require("fifo", "the absolute path of a fifo", sink)?, sink).map(Some)
}

/// What the cross checks need of the channel, and the channel if nothing is wrong with it.
#[derive(Debug)]
pub(super) struct ClusterRead {
    pub(super) listen: Option<(SocketAddr, Place)>,
    pub(super) peers: Vec<PeerRead>,
    pub(super) item: Option<Cluster>,
}

/// One peer.
#[derive(Debug)]
pub(super) struct PeerRead {
    pub(super) name: Option<(Name, Place)>,
    pub(super) address: Option<(SocketAddr, Place)>,
    pub(super) keys: Vec<([u8; 32], Place)>,
    item: Option<Peer>,
}

/// `[cluster]`.
pub(super) fn cluster(root: &Table<'_>, sink: &mut Sink) -> Option<ClusterRead> {
    let table = root.get("cluster")?.table("a [cluster] section", sink)?;
    table.known_keys(&schema::CLUSTER, sink);
    let accepted = "ip:port of this node, as \"10.1.0.11:7712\"";
    let listen = table.require("listen", accepted, sink).and_then(|value| {
        let text = value.string(accepted, sink)?;
        match socket_address(text) {
            Ok(address) if address.ip().is_multicast() => value.refuse("is a multicast address", accepted, sink),
            Ok(address) if address.port() == u16::MAX => {
                value.refuse("leaves no port for the flow lanes, which use port + 1", "ports 1 to 65534", sink);
            }
            Ok(address) => return Some((address, value.place)),
            Err(why) => value.refuse(&why, accepted, sink),
        }
        None
    });
    let key_file = table
        .require("key_file", "the path of the secret key that `holdfast keygen` writes", sink)
        .and_then(|value| absolute_path(&value, sink));
    if table.get("peer").is_none() {
        table.require("peer", "at least one [[cluster.peer]] section", sink);
    }
    let peers: Vec<PeerRead> = table.tables("peer", PEERS_MAX, sink).iter().map(|table| peer(table, sink)).collect();
    let item = (|| {
        let peers: Option<Vec<Peer>> = peers.iter().map(|peer| peer.item.clone()).collect();
        let peers = peers.filter(|peers| !peers.is_empty())?;
        Some(Cluster { listen: listen.as_ref()?.0, key_file: key_file?, peers })
    })();
    Some(ClusterRead { listen, peers, item })
}

fn peer(table: &Table<'_>, sink: &mut Sink) -> PeerRead {
    table.known_keys(&schema::PEER, sink);
    let named: Named<()> = Named::new(table, sink);
    let accepted = "ip:port of the peer, as \"10.1.0.12:7712\"";
    let address = table.require("address", accepted, sink).and_then(|value| {
        let text = value.string(accepted, sink)?;
        match target_address(text) {
            Ok(address) => Some((address, value.place)),
            Err(why) => {
                value.refuse(&why, accepted, sink);
                None
            }
        }
    });
    let keys = table.require("public_keys", "one public key, two while rotating", sink).and_then(|value| {
        let accepted = "[\"key\"], two keys while rotating";
        let items = value.array(accepted, sink)?;
        if !(1..=2).contains(&items.len()) {
            value.refuse(&format!("has {} keys", items.len()), accepted, sink);
            return None;
        }
        items.into_iter().map(|item| Some((public_key(&item, sink)?, item.place))).collect::<Option<Vec<_>>>()
    });
    let item = (|| {
        Some(Peer {
            name: named.name()?,
            address: address.as_ref()?.0,
            public_keys: keys.as_ref()?.iter().map(|(key, _)| *key).collect(),
        })
    })();
    PeerRead { name: named.name, address, keys: keys.unwrap_or_default(), item }
}
