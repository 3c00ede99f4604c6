//! What a check does: exactly one of a dozen kinds, with the keys that go with it.

mod canary;
mod group;
pub(super) mod http;
mod tls;

use super::tree::{Place, Sink, Table, Value};
use super::values::{absolute_path, argv, duration, flat, host_address, interface, shown, target_address, word};
pub(super) use canary::resolve;
use holdfast_node::config::{CheckId, Datagram, Endpoint, File, GatewayMethod, Payload, Probe, ProxyVersion, Stream};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Keys that say what is done.
const KINDS: [&str; 12] =
    ["http", "tcp", "tls", "udp", "unix", "exec", "file", "address", "gateway", "all", "any", "weighted"];
/// Those that ask nothing themselves.
pub(super) const GROUPS: [&str; 3] = ["all", "any", "weighted"];

/// Which kinds the other keys go with.
const GOES_WITH: [(&str, &[&str]); 17] = [
    ("host", &["http"]),
    ("body", &["http"]),
    ("method", &["http", "gateway"]),
    ("interface", &["gateway", "address"]),
    ("expect", &["http", "tcp", "tls", "udp", "unix"]),
    ("send", &["tcp", "tls", "udp", "unix"]),
    ("proxy", &["http", "tcp", "tls", "unix"]),
    ("server_name", &["tls", "http"]),
    ("verify", &["tls", "http"]),
    ("ca_file", &["tls", "http"]),
    ("expiry_warning_days", &["tls", "http"]),
    ("present", &["file"]),
    ("max_age", &["file"]),
    ("at_least", &["weighted"]),
    ("canary", &["http", "tcp", "tls", "gateway"]),
    ("fall", ASKS),
    ("rise", ASKS),
];
/// All but groups.
const ASKS: &[&str] = &["http", "tcp", "tls", "udp", "unix", "exec", "file", "address", "gateway"];
/// As `fall`: a group has no schedule.
const SCHEDULE: [&str; 4] = ["interval", "fast_interval", "timeout", "jitter"];

const ACCEPTED_TARGET: &str = "ip:port, as \"127.0.0.1:80\"";
const MAX_AGE_MIN: Duration = Duration::from_secs(1);
const MAX_AGE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// unix(7): what fits into a socket's address, with the NUL at its end.
const SOCKET_PATH_MAX: usize = 107;

/// What can only be read once other sections are.
#[derive(Debug, Default)]
pub(super) struct Later {
    /// Checks that stand before the one that is read.
    by_name: HashMap<String, KnownCheck>,
    /// Checks with `canary = true`, and where that stands.
    canaries: HashMap<CheckId, Place>,
    /// Checks that are in a group.
    members: HashSet<CheckId>,
}

#[derive(Debug)]
struct KnownCheck {
    id: CheckId,
    shared: bool,
    canary: bool,
}

impl Later {
    /// A check was read. Of two with one name the first is meant; that there are two is told elsewhere.
    pub(super) fn add(&mut self, name: Option<&str>, id: CheckId, shared: bool) {
        let Some(name) = name else { return };
        let canary = self.is_canary(id);
        self.by_name.entry(name.to_owned()).or_insert(KnownCheck { id, shared, canary });
    }

    /// It only warns, and is about a VIP.
    pub(super) fn is_canary(&self, id: CheckId) -> bool {
        self.canaries.contains_key(&id)
    }

    /// A VIP that names no checks goes by this one: it is no part of another, and no canary.
    pub(super) fn counts_by_itself(&self, id: CheckId) -> bool {
        !self.is_canary(id) && !self.members.contains(&id)
    }
}

/// Reads the one of the kinds that is given.
pub(super) fn read(check: &Table<'_>, id: CheckId, later: &mut Later, sink: &mut Sink) -> Option<Probe> {
    let given: Vec<(&str, Value<'_>)> = KINDS.into_iter().filter_map(|key| Some((key, check.get(key)?))).collect();
    let [(kind, value)] = given.as_slice() else {
        let what = match given.as_slice() {
            [] => "has nothing to do".to_owned(),
            several => format!("has {}", several.iter().map(|(key, _)| *key).collect::<Vec<_>>().join(" and ")),
        };
        let accepted = format!("exactly one of {}", KINDS.join(", "));
        sink.push(check.place.span.clone(), &check.place.path, what, Some(accepted));
        return None;
    };
    let before = sink.len();
    belongs(check, kind, sink);
    if sink.len() > before {
        return None;
    }
    let canary = canary::asked(check, id, later, sink)?;
    match *kind {
        "http" => http::read(check, value, sink),
        "tcp" => stream(check, target(value, sink).map(Endpoint::Ip), sink).map(Probe::Tcp),
        "tls" => {
            let address = target(value, sink)?;
            let tls = tls::read(check, &address.ip().to_string(), sink);
            let stream = stream(check, Some(Endpoint::Ip(address)), sink)?;
            Some(Probe::Tls(Stream { tls: Some(tls?), ..stream }))
        }
        "udp" => udp(check, value, sink),
        "unix" => {
            let path = absolute_path(value, sink).and_then(|path| {
                let path = path.to_string_lossy().into_owned();
                unix_socket(&path).map_err(|why| value.refuse(&why, "an absolute path", sink)).ok()
            });
            stream(check, path, sink).map(Probe::Unix)
        }
        "exec" => argv(value, false, sink).map(|argv| Probe::Exec { argv }),
        "file" => file(check, value, sink),
        "address" => {
            let ip = host_address(value, None, "an address without a prefix, as \"192.0.2.9\"", sink);
            let interface = flat(check.get("interface").map(|value| interface(&value, sink)))?;
            Some(Probe::Address { ip: ip?, interface })
        }
        "gateway" if canary => canary::neighbour(check, value, sink),
        "gateway" => gateway(check, value, sink),
        group => group::read(group, check, value, later, sink),
    }
}

/// Keys that mean nothing with this kind.
fn belongs(check: &Table<'_>, kind: &str, sink: &mut Sink) {
    let schedule = SCHEDULE.into_iter().map(|key| (key, ASKS));
    for (key, kinds) in GOES_WITH.into_iter().chain(schedule) {
        let Some(value) = check.get(key).filter(|_| !kinds.contains(&kind)) else { continue };
        if kinds.len() == ASKS.len() {
            let what = format!("means nothing with {kind}, which asks nothing itself");
            value.refuse(&what, "these keys on the checks that it names", sink);
        } else {
            value.refuse(&format!("goes with {} only", kinds.join(", ")), &format!("nothing with {kind}"), sink);
        }
    }
}

fn target(value: &Value<'_>, sink: &mut Sink) -> Option<SocketAddr> {
    let text = value.string(ACCEPTED_TARGET, sink)?;
    target_address(text).map_err(|why| value.refuse(&why, ACCEPTED_TARGET, sink)).ok()
}

fn unix_socket(path: &str) -> Result<Endpoint, String> {
    if path.len() > SOCKET_PATH_MAX {
        return Err(format!("`{}` is longer than the {SOCKET_PATH_MAX} bytes of a socket's path", shown(path)));
    }
    Ok(Endpoint::Unix(PathBuf::from(path)))
}

/// What is said on a connection, without TLS.
fn stream(check: &Table<'_>, endpoint: Option<Endpoint>, sink: &mut Sink) -> Option<Stream> {
    let proxy = proxy(check, sink);
    let send = flat(check.get("send").map(|value| payload(&value, sink)));
    let expect = flat(check.get("expect").map(|value| payload(&value, sink)));
    Some(Stream { endpoint: endpoint?, tls: None, proxy: proxy?, send: send?, expect: expect? })
}

fn udp(check: &Table<'_>, value: &Value<'_>, sink: &mut Sink) -> Option<Probe> {
    let address = target(value, sink);
    let accepted = "what a server answers to: without a question there is no answer";
    let send = check.require("send", accepted, sink).and_then(|value| payload(&value, sink));
    let expect = flat(check.get("expect").map(|value| payload(&value, sink)));
    Some(Probe::Udp(Datagram { address: address?, send: send?, expect: expect? }))
}

/// Text, or `{ hex = "…" }`.
fn payload(value: &Value<'_>, sink: &mut Sink) -> Option<Payload> {
    let accepted = "text, or { hex = \"00ff\" }, of 1 to 1024 bytes";
    let payload = if value.is_table() {
        let table = value.table(accepted, sink)?;
        table.known_keys(&super::schema::PAYLOAD, sink);
        let hex = table.require("hex", accepted, sink)?;
        let text = hex.string(accepted, sink)?;
        Payload::from_hex(text)
    } else {
        let text = value.string(accepted, sink)?;
        Payload::new(text.as_bytes().to_vec())
    };
    if payload.is_none() {
        value.refuse("is not what can be sent or looked for", accepted, sink);
    }
    payload
}

/// Outer `None`: wrong.
fn proxy(check: &Table<'_>, sink: &mut Sink) -> Option<Option<ProxyVersion>> {
    let words = [("v1", ProxyVersion::V1), ("v2", ProxyVersion::V2)];
    flat(check.get("proxy").map(|value| word(&value, &words, sink)))
}

fn file(check: &Table<'_>, value: &Value<'_>, sink: &mut Sink) -> Option<Probe> {
    let path = absolute_path(value, sink);
    let present = check.get("present").map_or(Some(true), |value| value.boolean(sink));
    let max_age = check.get("max_age").map(|value| {
        if present == Some(false) {
            value.refuse("has no effect on a file that must not be there", "one of them", sink);
            return None;
        }
        duration(&value, MAX_AGE_MIN, MAX_AGE_MAX, sink)
    });
    Some(Probe::File(File { path: path?, present: present?, max_age: flat(max_age)? }))
}

fn gateway(check: &Table<'_>, value: &Value<'_>, sink: &mut Sink) -> Option<Probe> {
    let target = host_address(value, None, "the address of a router or another host, as \"192.0.2.1\"", sink);
    let words = [("neighbour", GatewayMethod::Neighbour), ("icmp", GatewayMethod::Icmp)];
    let method = check.get("method").map_or(Some(GatewayMethod::Neighbour), |value| word(&value, &words, sink));
    let interface = check.get("interface").map(|value| interface(&value, sink));
    let (target, method) = (target?, method?);
    let on_link = matches!(target, IpAddr::V6(ip) if ip.is_unicast_link_local());
    if interface.is_none() && (method == GatewayMethod::Neighbour || on_link) {
        let why = if on_link { "a link-local address is one of an interface" } else { "neighbours are asked on one" };
        let path = format!("{}.interface", check.place.path);
        let accepted =
            Some("the interface that the gateway is on; or method = \"icmp\" for as the host routes".to_owned());
        sink.push(check.place.span.clone(), &path, format!("is missing: {why}"), accepted);
        return None;
    }
    Some(Probe::Gateway { target, interface: flat(interface)?, method })
}
