//! `[[nft.service]]`: the embedded balancer's services, and the backend sets that they come to.

use super::cross;
use super::probe::http;
use super::schema;
use super::sections::{FALL, Named, Pace, RISE, Times, times};
use super::tree::{Place, Sink, Table, Value};
use super::values::{count, duration, flat, host_address, name, shown, target_address, word};
use super::vip::VipRead;
use holdfast_node::config::{
    Affinity, BACKEND_CHECKS_MAX, BACKENDS_MAX, Backend, BackendSet, Balancer, BalancerId, BalancerKind, Check, Name,
    NatMode, Nft, OnDown, Probe, SERVICES_MAX, SETS_MAX, SNAT_MAX, Service, SetId, Transport, Vip, WEIGHT_MAX,
};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const ACCEPTED_BACKENDS: &str = "[\"ip:port\", …] or { address = \"ip:port\", weight = 1 }";
const ACCEPTED_CHECK: &str = "{ interval = \"2s\", … }, with http = \"/path\" for a request; or false";
/// Slower than a `[[check]]`: there is one of these for each backend.
const PACE: Pace = Pace {
    interval: Duration::from_secs(2),
    interval_min: Duration::from_millis(50),
    fast_interval: Duration::from_millis(500),
    timeout: Duration::from_secs(1),
};
const SLOW_START_MAX: Duration = Duration::from_secs(3600);

/// All services, with the places that are told of later.
#[derive(Debug)]
pub(super) struct NftRead {
    item: Option<Nft>,
    /// Of each service: its VIP, and where that is named.
    vips: Vec<(Name, Place)>,
}

/// `[nft]`, and that there is a balancer for it.
pub(super) fn nft(
    root: &Table<'_>,
    balancers: &[Named<Balancer>],
    vips: &[VipRead],
    addresses: &cross::Addresses<'_>,
    sink: &mut Sink,
) -> Option<NftRead> {
    let kinds = balancers.iter().filter_map(|named| Some((named.item.as_ref()?.kind, &named.name.as_ref()?.1)));
    let mut embedded = kinds.filter(|(kind, _)| *kind == BalancerKind::Nft).map(|(_, place)| place);
    let (first, second) = (embedded.next(), embedded.next());
    if let Some(place) = second {
        sink.at(place, "is the second balancer with kind = \"nft\": one serves all services");
    }
    let Some(value) = root.get("nft") else {
        if let Some(place) = first {
            let accepted = Some("at least one [[nft.service]] with its backends".to_owned());
            let what = "is of kind \"nft\", and there is nothing that it serves".to_owned();
            sink.push(place.span.clone(), &place.path, what, accepted);
        }
        return None;
    };
    let table = value.table("[[nft.service]] sections", sink)?;
    table.known_keys(&schema::NFT, sink);
    // A balancer that is wrong is told as such.
    if first.is_none() && balancers.iter().all(|named| named.item.is_some()) {
        let accepted = "a [[balancer]] with kind = \"nft\"";
        value.refuse("has no balancer: nothing would load it", accepted, sink);
    }
    if table.get("service").is_none() {
        table.require("service", "at least one [[nft.service]] section", sink);
    }
    let mut maker = Maker::default();
    let mut named = Vec::new();
    let mut seen: HashMap<(IpAddr, Transport, u16), String> = HashMap::new();
    let mut complete = true;
    for table in table.tables("service", SERVICES_MAX, sink) {
        match service(&table, vips, addresses, &mut maker, sink) {
            Some((service, place)) => {
                for (ip, _) in &service.addresses {
                    let key = (*ip, service.protocol, service.port);
                    if let Some(first) = seen.get(&key) {
                        let what =
                            format!("{} port {} of {ip} is already {first}", service.protocol.word(), service.port);
                        sink.at(&table.place, what);
                        break;
                    }
                    seen.insert(key, table.place.path.clone());
                }
                named.push((service.vip.clone(), place));
                maker.nft.services.push(service);
            }
            None => complete = false,
        }
    }
    if maker.nft.sets.len() > SETS_MAX {
        value.refuse(
            &format!("has {} distinct sets of backends", maker.nft.sets.len()),
            &format!("at most {SETS_MAX}"),
            sink,
        );
    }
    if maker.nft.probes.len() > BACKEND_CHECKS_MAX {
        let what = format!("has {} distinct checks of backends", maker.nft.probes.len());
        value.refuse(&what, &format!("at most {BACKEND_CHECKS_MAX}"), sink);
    }
    Some(NftRead { item: complete.then_some(maker.nft), vips: named })
}

impl NftRead {
    /// A VIP whose balancer is another one would stay where the embedded one doesn't work.
    pub(super) fn resolve(self, units: &[Vip], balancers: &[Named<Balancer>], sink: &mut Sink) -> Option<Nft> {
        let is_nft = |named: &Named<Balancer>| named.item.as_ref().is_some_and(|b| b.kind == BalancerKind::Nft);
        let id = balancers.iter().position(is_nft).and_then(|at| u16::try_from(at).ok()).map(BalancerId)?;
        for (vip, place) in &self.vips {
            let unit = units.iter().find(|unit| unit.members.iter().any(|member| member.name == *vip));
            if unit.is_some_and(|unit| !unit.balancers.contains(&id)) {
                let what =
                    format!("`{vip}` depends on another balancer: it would stay on a node that can't serve this");
                let accepted = Some("a vip whose `balancer` is the one with kind = \"nft\"".to_owned());
                sink.push(place.span.clone(), &place.path, what, accepted);
            }
        }
        self.item
    }
}

/// Collects sets and checks, each once.
#[derive(Debug, Default)]
struct Maker {
    nft: Nft,
    probes: HashMap<String, u16>,
}

/// The rules of a set.
#[derive(Debug, Clone)]
struct Rules {
    check: Option<CheckRead>,
    panic_threshold: u8,
    max_ejection: u8,
    slow_start: Duration,
}

/// Path, host, and the statuses that pass.
type HttpRead = (String, Option<String>, Vec<(u16, u16)>);

/// How each backend is asked.
#[derive(Debug, Clone)]
struct CheckRead {
    http: Option<HttpRead>,
    port: Option<u16>,
    times: Times,
    fall: u8,
    rise: u8,
}

impl Maker {
    fn set(&mut self, backends: &[(SocketAddr, u16)], rules: &Rules) -> Option<SetId> {
        let mut items: Vec<Backend> = Vec::with_capacity(backends.len());
        for (address, weight) in backends {
            let probe = match &rules.check {
                Some(check) => Some(self.probe(*address, check)?),
                None => None,
            };
            items.push(Backend { address: *address, weight: *weight, probe });
        }
        items.sort_by_key(|backend| backend.address);
        let Rules { panic_threshold, max_ejection, slow_start, .. } = *rules;
        let set = BackendSet { backends: items, panic_threshold, max_ejection, slow_start };
        let at = self.nft.sets.iter().position(|known| *known == set).unwrap_or_else(|| {
            self.nft.sets.push(set);
            self.nft.sets.len() - 1
        });
        u16::try_from(at).ok().map(SetId)
    }

    fn probe(&mut self, backend: SocketAddr, check: &CheckRead) -> Option<u16> {
        let target = SocketAddr::new(backend.ip(), check.port.unwrap_or_else(|| backend.port()));
        let key = format!("{target} {check:?}");
        if let Some(known) = self.probes.get(&key) {
            return Some(*known);
        }
        let at = u16::try_from(self.nft.probes.len()).ok()?;
        self.nft.probes.push(check.of(target, &format!("backend-{at}"))?);
        self.probes.insert(key, at);
        Some(at)
    }
}

impl CheckRead {
    fn of(&self, target: SocketAddr, name: &str) -> Option<Check> {
        let mut probe = match &self.http {
            None => Probe::tcp(target),
            Some((path, host, _)) => Probe::http(target, host.as_deref().unwrap_or(&target.to_string()), path),
        };
        if let (Probe::Http(http), Some((_, _, expect))) = (&mut probe, &self.http) {
            http.expect.clone_from(expect);
        }
        Some(Check {
            name: Name::new(name)?,
            probe,
            interval: self.times.interval,
            fast_interval: self.times.fast_interval,
            timeout: self.times.timeout,
            jitter: self.times.jitter,
            fall: self.fall,
            rise: self.rise,
            shared: false,
        })
    }
}

fn service(
    table: &Table<'_>,
    vips: &[VipRead],
    addresses: &cross::Addresses<'_>,
    maker: &mut Maker,
    sink: &mut Sink,
) -> Option<(Service, Place)> {
    table.known_keys(&schema::NFT_SERVICE, sink);
    let vip = table.require("vip", "the name of a vip", sink).and_then(|value| vip(&value, vips, sink));
    let transports = [("tcp", Transport::Tcp), ("udp", Transport::Udp)];
    let protocol = table.require("protocol", "tcp, udp", sink).and_then(|value| word(&value, &transports, sink));
    let port = table.require("port", "1 to 65535", sink).and_then(|value| port(&value, sink));
    let modes = [("snat", NatMode::Snat), ("dnat", NatMode::Dnat)];
    let mode = table.get("mode").map_or(Some(NatMode::Snat), |value| word(&value, &modes, sink));
    let affinities = [("flow", Affinity::Flow), ("source", Affinity::Source)];
    let affinity = table.get("affinity").map_or(Some(Affinity::Flow), |value| word(&value, &affinities, sink));
    let on_down = table.get("on_down").map(|value| word(&value, &[("keep", OnDown::Keep), ("cut", OnDown::Cut)], sink));
    let backends = table.require("backends", ACCEPTED_BACKENDS, sink).and_then(|v| backends(&v, addresses, sink));
    let rules = rules(table, protocol, sink);
    let snat = table.get("snat").map_or_else(|| Some(Vec::new()), |value| snat(&value, mode, sink));
    let mss = flat(table.get("mss").map(|value| {
        if protocol == Some(Transport::Udp) {
            value.refuse("goes with tcp only", "mss with protocol = \"tcp\"", sink);
            return None;
        }
        value.integer_in(536..9_001, "536 to 9000", sink).and_then(|n| u16::try_from(n).ok())
    }))?;
    let ((name, place, own), backends) = (vip?, backends?);
    let (protocol, port, mode, affinity, snat, rules) = (protocol?, port?, mode?, affinity?, snat?, rules?);
    let on_down = flat(on_down)?.unwrap_or_else(|| OnDown::usual(protocol));
    let mut served = Vec::new();
    for six in [false, true] {
        let of_family: Vec<(SocketAddr, u16)> =
            backends.iter().copied().filter(|(address, _)| address.is_ipv6() == six).collect();
        let ips: Vec<IpAddr> = own.iter().copied().filter(|ip| ip.is_ipv6() == six).collect();
        let family = if six { "IPv6" } else { "IPv4" };
        let wrong = match (ips.is_empty(), of_family.is_empty()) {
            (true, false) => Some(format!("has {family} backends, and `{name}` has no {family} address")),
            (false, true) => Some(format!("has no {family} backend, and `{name}` has an {family} address")),
            (false, false) => None,
            (true, true) => continue,
        };
        if let Some(what) = wrong {
            let path = format!("{}.backends", table.place.path);
            let accepted =
                Some("backends of the address families of the vip: nothing here translates between them".to_owned());
            sink.push(table.place.span.clone(), &path, what, accepted);
            return None;
        }
        let set = maker.set(&of_family, &rules)?;
        served.extend(ips.into_iter().map(|ip| (ip, set)));
    }
    Some((Service { vip: name, protocol, port, addresses: served, mode, affinity, snat, mss, on_down }, place))
}

/// The VIP of this name, and its addresses that anybody but neighbours can reach.
fn vip(value: &Value<'_>, vips: &[VipRead], sink: &mut Sink) -> Option<(Name, Place, Vec<IpAddr>)> {
    let wanted = name(value, sink)?;
    let named = |vip: &&VipRead| vip.name.as_ref().is_some_and(|(name, _)| *name == wanted);
    let Some(vip) = vips.iter().find(named) else {
        let all: Vec<&str> = vips.iter().filter_map(|vip| Some(vip.name.as_ref()?.0.as_str())).take(20).collect();
        value.refuse(&format!("there is no vip `{wanted}`"), &all.join(", "), sink);
        return None;
    };
    let link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let own = vip.addresses.iter().filter(|address| !address.derived).map(|address| address.ip);
    Some((wanted, value.place.clone(), own.filter(|ip| !link_local(ip)).collect()))
}

fn port(value: &Value<'_>, sink: &mut Sink) -> Option<u16> {
    value.integer_in(1..65_536, "1 to 65535", sink).and_then(|n| u16::try_from(n).ok())
}

fn backends(value: &Value<'_>, vips: &cross::Addresses<'_>, sink: &mut Sink) -> Option<Vec<(SocketAddr, u16)>> {
    let items = value.array(ACCEPTED_BACKENDS, sink)?;
    if items.is_empty() || items.len() > BACKENDS_MAX {
        value.refuse(&format!("has {} elements", items.len()), &format!("1 to {BACKENDS_MAX} backends"), sink);
        return None;
    }
    let mut all: BTreeMap<SocketAddr, u16> = BTreeMap::new();
    let mut right = true;
    for item in &items {
        let read = if item.is_table() {
            let table = item.table(ACCEPTED_BACKENDS, sink)?;
            table.known_keys(&schema::NFT_BACKEND, sink);
            let address = table.require("address", "ip:port", sink).and_then(|value| backend(&value, vips, sink));
            let weight = table.get("weight").map_or(Some(1), |value| {
                let most = i64::from(WEIGHT_MAX);
                value.integer_in(1..most + 1, &format!("1 to {most}"), sink).and_then(|n| u16::try_from(n).ok())
            });
            address.zip(weight)
        } else {
            backend(item, vips, sink).map(|address| (address, 1))
        };
        match read {
            Some((address, _)) if all.contains_key(&address) => {
                item.refuse(&format!("{address} is there twice"), ACCEPTED_BACKENDS, sink);
                right = false;
            }
            Some((address, weight)) => drop(all.insert(address, weight)),
            None => right = false,
        }
    }
    right.then(|| all.into_iter().collect())
}

fn backend(value: &Value<'_>, vips: &cross::Addresses<'_>, sink: &mut Sink) -> Option<SocketAddr> {
    let text = value.string(ACCEPTED_BACKENDS, sink)?;
    let address = target_address(text).map_err(|why| value.refuse(&why, ACCEPTED_BACKENDS, sink)).ok()?;
    let ip = address.ip();
    let wrong = if ip.is_loopback() {
        Some(format!("{ip} is a loopback address: what comes from outside is never forwarded there"))
    } else {
        vips.get(ip).map(|vip| format!("{ip} is {}: flows would go in a circle", vip.path))
    };
    if let Some(wrong) = wrong {
        value.refuse(&wrong, "the address of another host", sink);
        return None;
    }
    Some(address)
}

fn snat(value: &Value<'_>, mode: Option<NatMode>, sink: &mut Sink) -> Option<Vec<IpAddr>> {
    let accepted = "addresses of this node, as [\"10.2.0.11\"]";
    if mode == Some(NatMode::Dnat) {
        value.refuse("goes with mode = \"snat\": with dnat the backends see the client's address", "nothing", sink);
        return None;
    }
    let items = value.array(accepted, sink)?;
    if items.is_empty() || items.len() > SNAT_MAX {
        value.refuse(&format!("has {} elements", items.len()), &format!("1 to {SNAT_MAX} addresses"), sink);
        return None;
    }
    let mut all = Vec::new();
    for item in &items {
        let ip = host_address(item, None, accepted, sink)?;
        if all.contains(&ip) || ip.is_loopback() {
            item.refuse(
                &format!("{ip} {}", if ip.is_loopback() { "is a loopback address" } else { "is there twice" }),
                accepted,
                sink,
            );
            return None;
        }
        all.push(ip);
    }
    Some(all)
}

fn rules(table: &Table<'_>, protocol: Option<Transport>, sink: &mut Sink) -> Option<Rules> {
    let percent = |key: &str, least: i64, default: u8, sink: &mut Sink| {
        table.get(key).map_or(Some(default), |value| {
            let accepted = format!("{least} to 100 percent");
            value.integer_in(least..101, &accepted, sink).and_then(|n| u8::try_from(n).ok())
        })
    };
    let panic_threshold = percent("panic_threshold", 0, 0, sink);
    let max_ejection = percent("max_ejection", 1, 100, sink);
    let slow_start = table
        .get("slow_start")
        .map_or(Some(Duration::ZERO), |value| duration(&value, Duration::ZERO, SLOW_START_MAX, sink));
    let check = match table.get("check") {
        // There is nothing that every UDP service would answer.
        None => Some((protocol != Some(Transport::Udp)).then(CheckRead::plain)),
        Some(value) if value.is_table() => {
            value.table(ACCEPTED_CHECK, sink).and_then(|table| check(&table, sink)).map(Some)
        }
        Some(value) => match value.boolean(sink) {
            Some(false) => Some(None),
            Some(true) => Some(Some(CheckRead::plain())),
            None => None,
        },
    };
    let (panic_threshold, max_ejection, slow_start, check) = (panic_threshold?, max_ejection?, slow_start?, check?);
    Some(Rules { check, panic_threshold, max_ejection, slow_start })
}

impl CheckRead {
    fn plain() -> Self {
        Self { http: None, port: None, times: PACE.times(), fall: FALL, rise: RISE }
    }
}

fn check(table: &Table<'_>, sink: &mut Sink) -> Option<CheckRead> {
    table.known_keys(&schema::NFT_CHECK, sink);
    let path = table.get("http").map(|value| {
        let accepted = "the path of a request, as \"/healthz\"";
        let text = value.string(accepted, sink)?;
        match http::request_path(text) {
            Ok(path) if text.starts_with('/') => return Some(path),
            Ok(_) => value.refuse(&format!("`{}` can't be asked for", shown(text)), accepted, sink),
            Err(why) => value.refuse(&why, accepted, sink),
        }
        None
    });
    if path.is_none() {
        for only_http in ["host", "expect"] {
            if let Some(value) = table.get(only_http) {
                value.refuse("goes with http only", "nothing without http = \"/path\"", sink);
            }
        }
    }
    let host = flat(table.get("host").map(|value| http::host(&value, sink)));
    let expect = http::statuses(table, sink);
    let port = flat(table.get("port").map(|value| port(&value, sink)));
    let times = times(table, &PACE, sink);
    let fall = table.get("fall").map_or(Some(FALL), |value| count(&value, sink));
    let rise = table.get("rise").map_or(Some(RISE), |value| count(&value, sink));
    let (path, host, expect) = (flat(path)?, host?, expect?);
    let http = path.map(|path| (path, host, expect));
    Some(CheckRead { http, port: port?, times: times?, fall: fall?, rise: rise? })
}
