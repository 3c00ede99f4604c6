//! `holdfast check`: is this a configuration, what does it promise, and what should somebody look at.

mod bgp;
mod planes;
mod sync;

use super::{budget, exit, render};
use crate::config::{self, ConfigErrors, Mtus};
use holdfast_node::config::{
    BalancerId, Check, CheckId, Config, InterfaceName, Leg, Partition, Probe, Track, Tracked, Vip, VipAddress,
};
use holdfast_node::status::Warning;
use holdfast_vrrp::Priority;
use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::time::Duration;

/// Below this an advert can be late enough on a busy host, without real-time scheduling, to move an address.
const REALTIME_BELOW: Duration = Duration::from_millis(50);
/// Ethernet's.
const MTU: usize = 1500;
/// Any priority shows whether it is permitted.
const REALTIME_PRIORITY: u8 = 1;

/// Looks over a file.
/// `rate`: requests in a second, to say how many a failure costs.
pub(super) fn run(file: &Path, json: bool, rate: Option<u32>) -> u8 {
    // An interface that isn't there yet is judged by what nearly all have.
    let here = Mtus::here();
    match config::load_for(file, &|interface| here.of(interface).or(Some(MTU))) {
        Ok(config) => {
            let planes = planes::report(&config);
            let mut warnings = warnings(&config);
            warnings.extend(planes.warnings());
            if json {
                let mut model = model(file, &config, &warnings);
                if let Some(model) = model.as_object_mut() {
                    model.insert("planes".to_owned(), planes.model());
                    model.insert("budget".to_owned(), serde_json::json!(budget::losses(&config, rate)));
                }
                render::out(&format!("{model}\n"));
            } else {
                let mut text = summary(file, &config, &here, &warnings);
                text.push_str(&budget::told(&config, rate));
                for (balancer, fact) in &planes.facts {
                    let _ = writeln!(text, "balancer {balancer}: {fact}");
                }
                render::out(&text);
            }
            exit::OK
        }
        Err(errors) => {
            if json {
                render::out(&format!("{}\n", refusal(&errors)));
            } else {
                eprint!("{}", errors.render(render::colour_on_stderr()));
                let n = errors.findings.len();
                eprintln!("holdfast: {}: {n} {}", file.display(), if n == 1 { "error" } else { "errors" });
            }
            errors.exit_code()
        }
    }
}

fn model(file: &Path, config: &Config, warnings: &[Warning]) -> serde_json::Value {
    serde_json::json!({
        "schema": 1,
        "ok": true,
        "file": file.display().to_string(),
        "config": config,
        "computed": budget::times(config),
        "warnings": warnings,
    })
}

fn refusal(errors: &ConfigErrors) -> serde_json::Value {
    let kind = match errors.kind {
        config::Kind::Syntax => "syntax",
        config::Kind::Semantics => "semantics",
    };
    let errors_json: Vec<_> = errors
        .findings
        .iter()
        .map(|f| {
            serde_json::json!({
                "line": f.line, "column": f.column, "path": f.path, "what": f.what, "accepted": f.accepted,
            })
        })
        .collect();
    serde_json::json!({ "schema": 1, "ok": false, "file": errors.file, "kind": kind, "errors": errors_json })
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn summary(file: &Path, config: &Config, here: &Mtus, warnings: &[Warning]) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}: ok", file.display());
    let peers = config.cluster.as_ref().map_or(0, |cluster| cluster.peers.len());
    let _ = writeln!(
        text,
        "node {}: {}, {}, {}, {}, {}",
        config.node,
        count(config.vips.iter().map(|vip| vip.members.len()).sum(), "VIP"),
        count(config.balancers.len(), "balancer"),
        count(config.checks.len(), "check"),
        count(peers, "peer"),
        count(config.hooks.len(), "hook"),
    );
    if let Some(speaker) = &config.bgp {
        text.push_str(&bgp::speaker(speaker));
    }
    for vip in &config.vips {
        text.push_str(&promise(config, vip, here));
    }
    for warning in warnings {
        let _ = writeln!(text, "warning: {}; {}", warning.text, warning.remedy);
    }
    text
}

/// `vip web`, `group edge`.
struct Label<'v>(&'v Vip);

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", if self.0.group { "group" } else { "vip" }, self.0.name)
    }
}

/// Addresses of a line; there may be a thousand.
const ADDRESSES_SHOWN: usize = 8;

/// What a unit is and how fast it moves.
fn promise(config: &Config, vip: &Vip, here: &Mtus) -> String {
    let mut text = String::new();
    let mut addresses: Vec<String> =
        vip.addresses.iter().take(ADDRESSES_SHOWN).map(|a| format!("{}/{}", a.ip, a.prefix)).collect();
    let more = vip.addresses.len().saturating_sub(ADDRESSES_SHOWN);
    if more > 0 {
        addresses.push(format!("and {more} more"));
    }
    let vrrp = &vip.vrrp;
    let members: Vec<&str> = vip.members.iter().map(|member| member.name.as_str()).collect();
    let held = if vip.anycast() {
        let on = vip.addresses.first().map_or("lo", |address| address.interface.as_str());
        format!(" on {on}, on every node that can serve")
    } else {
        format!("; priority {}, adverts every {}", vrrp.priority, config::duration::show(vrrp.interval.duration()))
    };
    let _ = writeln!(
        text,
        "{}{}: {}{held}",
        Label(vip),
        if vip.group { format!(" ({})", members.join(", ")) } else { String::new() },
        addresses.join(", "),
    );
    for leg in &vip.legs {
        let _ = writeln!(text, "  {}", on_the_wire(leg, here));
    }
    let line = |text: &mut String, what: &str, time: String| {
        let _ = writeln!(text, "  {what:<44} {time} (computed)");
    };
    for balancer in vip.balancers.iter().filter_map(|id| config.balancers.get(usize::from(id.0))) {
        line(&mut text, &format!("detect: process of {} ends", balancer.name), "at once".to_owned());
    }
    for check in budget::checks(config, vip) {
        let (detect, recover) = (budget::detect(check, config), budget::recover(check, config));
        let what = format!("detect: {} gives no answer", check.name);
        line(&mut text, &what, format!("{} to {}", render::span(detect.min), render::span(detect.max)));
        let what = format!("recover: {} answers again", check.name);
        line(&mut text, &what, format!("{} to {}", render::span(recover.min), render::span(recover.max)));
    }
    for track in &vip.tracks {
        let _ = writeln!(text, "  {}", tracked(config, vip, track));
    }
    let worst = budget::checks(config, vip).map(|check| budget::detect(check, config).max).max();
    if let (Some(speaker), Some(own)) = (&config.bgp, &vip.bgp) {
        text.push_str(&bgp::promise(speaker, vip, own, worst));
    }
    text.push_str(&sync::promise(config, vip));
    if vip.anycast() {
        return text;
    }
    let v2 = if budget::by_v2(vip) { ", skew of VRRPv2" } else { "" };
    line(&mut text, &format!("take over: the owner gives it away{v2}"), render::span(budget::skew(vip)));
    line(&mut text, "take over: the owner falls silent", render::span(budget::silent(vip)));
    if let Some(worst) = worst {
        let both = worst + budget::skew(vip);
        line(&mut text, "worst case: hung here until served elsewhere", render::span(both));
    }
    if !vrrp.preempt_delay.is_zero() {
        let delay = config::duration::show(vrrp.preempt_delay);
        let _ = writeln!(text, "  a lower owner is left alone for {delay} after this node became able");
    }
    if !vrrp.startup_delay.is_zero() {
        let delay = config::duration::show(vrrp.startup_delay);
        let _ = writeln!(text, "  nothing is taken for {delay} after the agent's start");
    }
    let _ = writeln!(text, "  {}", cut_off(config, vip));
    text
}

/// One leg: `IPv4: VRID 10 on eth0, VRRPv3 by multicast; 1 address in an advert of 32 bytes, MTU 1500`.
fn on_the_wire(leg: &Leg, here: &Mtus) -> String {
    let way = if leg.peers.is_empty() {
        "by multicast".to_owned()
    } else {
        let peers: Vec<String> = leg.peers.iter().map(ToString::to_string).collect();
        format!("to {} (TTL at least {})", peers.join(", "), leg.min_ttl)
    };
    let source = leg.source.map(|source| format!(" from {source}")).unwrap_or_default();
    let vmac = if leg.vmac { ", virtual MAC" } else { "" };
    let mtu = match here.of(&leg.interface) {
        Some(mtu) => format!("MTU {mtu}"),
        None => format!("MTU {MTU} assumed"),
    };
    format!(
        "{}: VRID {} on {}, VRRPv{} {way}{source}{vmac}; {} in an advert of {} bytes, {mtu}",
        leg.family,
        leg.vrid,
        leg.interface,
        leg.version,
        if leg.advertised.len() == 1 { "1 address".to_owned() } else { format!("{} addresses", leg.advertised.len()) },
        config::packet_len(leg),
    )
}

fn tracked(config: &Config, vip: &Vip, track: &Track) -> String {
    let check = |id: &CheckId| config.checks.get(usize::from(id.0)).map_or("", |check| check.name.as_str());
    let what = match &track.what {
        Tracked::Interface { name, up_delay, down_delay } => format!(
            "interface {name} (up after {}, down after {})",
            config::duration::show(*up_delay),
            config::duration::show(*down_delay)
        ),
        Tracked::Check(id) => format!("check {}", check(id)),
        Tracked::Balancer(id) => {
            format!("balancer {}", config.balancers.get(usize::from(id.0)).map_or("", |b| b.name.as_str()))
        }
    };
    match track.weight {
        None => format!("track: without {what} this node can't serve"),
        Some(weight) => {
            let left = vip.vrrp.priority.get().saturating_sub(weight).max(2);
            format!("track: without {what} priority {} becomes {left}", vip.vrrp.priority)
        }
    }
}

/// What the policy of partitions means, in words.
fn cut_off(config: &Config, vip: &Vip) -> String {
    let gateway = vip.vrrp.gateway.and_then(|id| config.checks.get(usize::from(id.0)));
    match vip.vrrp.partition {
        Partition::Both => "cut off from all peers: takes it, so each side of a partition has it".to_owned(),
        Partition::Gateway => {
            let gateway = gateway.map_or("", |check| check.name.as_str());
            format!("cut off from all peers: takes it if check {gateway} passes, else leaves it")
        }
        Partition::Neither => {
            "cut off from all peers: leaves it, also when the peer is dead and not cut off".to_owned()
        }
    }
}

/// What is valid and still worth a look. Depends on this machine where it says "here".
fn warnings(config: &Config) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |text: String, remedy: &str| warnings.push(Warning { text, remedy: remedy.to_owned() });
    if config.cluster.is_none() && config.vips.iter().all(Vip::anycast) {
        warn(
            "without [cluster] nodes know nothing of each other's health: a drain can't tell whether anybody else \
             announces, and a shared failure withdraws the address everywhere"
                .to_owned(),
            "add [cluster] with one [[cluster.peer]] per other node",
        );
    } else if config.cluster.is_none() {
        warn(
            "without [cluster] nodes know nothing of each other's health: a hand-over waits for the skew time, a drain \
             can't tell whether anybody takes over, a shared failure empties every node, and equal priorities are kept \
             apart by a jitter only"
                .to_owned(),
            "add [cluster] with one [[cluster.peer]] per other node",
        );
    }
    for vip in &config.vips {
        let name = Label(vip);
        let interval = vip.vrrp.interval.duration();
        if interval < REALTIME_BELOW {
            warn(
                format!(
                    "{name}: adverts every {} need real-time scheduling, `holdfast run` refuses to start without",
                    config::duration::show(interval)
                ),
                "see that the unit has LimitRTPRIO= and a real-time budget, or use 50ms and more",
            );
        }
        let weighed = |of: fn(&Tracked) -> bool| vip.tracks.iter().any(|track| of(&track.what));
        if budget::checks(config, vip).next().is_none() && !weighed(|what| matches!(what, Tracked::Check(_))) {
            warn(
                format!("{name}: no check: a balancer that hangs but doesn't die is never noticed"),
                "add a [[check]] with http through the real listener",
            );
        }
        if vip.balancers.is_empty() && !weighed(|what| matches!(what, Tracked::Balancer(_))) {
            warn(
                format!("{name}: no balancer: its death is noticed by checks only, not at once"),
                "add a [[balancer]]",
            );
        }
        let network = |a: &&VipAddress| !vip.anycast() && a.prefix != if a.ip.is_ipv4() { 32 } else { 128 };
        for address in vip.addresses.iter().filter(network) {
            warn(
                format!("{name}: {}/{} is added without a route to its network", address.ip, address.prefix),
                "use /32, for IPv6 /128; the interface's own address has the network",
            );
        }
        protocol(config, vip, &mut warn);
    }
    unused(config, &mut warn);
    bgp::warnings(config, &mut warn);
    sync::warnings(config, &mut warn);
    for check in &config.checks {
        if check.timeout > check.fast_interval {
            warn(
                format!(
                    "check {}: timeout ({}) is longer than fast_interval ({}): while it fails, probes overlap",
                    check.name,
                    config::duration::show(check.timeout),
                    config::duration::show(check.fast_interval)
                ),
                "fine if what it asks bears it; else make timeout at most fast_interval",
            );
        }
    }
    machine(config, &mut warn);
    warnings
}

/// What is allowed and seldom meant, of how a unit is held.
fn protocol(config: &Config, vip: &Vip, warn: &mut impl FnMut(String, &str)) {
    let (name, vrrp) = (Label(vip), &vip.vrrp);
    if vip.group && vip.members.len() == 1 {
        warn(
            format!("{name}: {} is its only member", vip.members.first().map_or("", |m| m.name.as_str())),
            "give the other vips the same group, or remove it",
        );
    }
    if vrrp.priority == Priority::OWNER {
        warn(
            format!(
                "{name}: priority 255 is that of the address's owner: it takes the address at its start without \
                 listening, preempts always, and no weight lowers it"
            ),
            "use 254 unless the address is this host's own for good",
        );
    }
    if vrrp.rivals.contains(&vrrp.priority.get()) {
        let equal = if config.cluster.is_some() {
            "with [cluster] the node with the larger name waits at the next lower one"
        } else {
            "without [cluster] only a jitter by address keeps both from taking over at once"
        };
        warn(
            format!("{name}: another node has priority {} too; {equal}", vrrp.priority),
            "give each node its own: 254, 253, …",
        );
    }
    if !vrrp.accept {
        warn(
            format!("{name}: accept = false drops what is sent to the addresses, also for a balancer of this host"),
            "fine for a router that only forwards; a load balancer needs accept = true",
        );
    }
    if vrrp.partition == Partition::Neither {
        warn(
            format!("{name}: partition = \"neither\": if the peer dies as a whole, nobody takes over"),
            "use \"gateway\", or \"both\", unless two owners are worse than none",
        );
    }
    if vip.legs.iter().any(|leg| leg.vmac) {
        warn(
            format!("{name}: vmac = true sends frames from 00:00:5e:00:01:VRID (IPv6 00:00:5e:00:02:VRID)"),
            "switches with port security, hypervisors and clouds drop foreign source addresses: allow them there",
        );
    }
    if vip.legs.iter().any(|leg| leg.peers.is_empty()) && vip.legs.iter().any(|leg| !leg.peers.is_empty()) {
        warn(
            format!("{name}: some of its members speak by multicast, others to peers"),
            "fine if meant; a network that drops multicast silences the former",
        );
    }
}

/// What nothing refers to.
fn unused(config: &Config, warn: &mut impl FnMut(String, &str)) {
    let (mut checks, mut balancers) = (HashSet::new(), HashSet::new());
    for vip in &config.vips {
        checks.extend(vip.checks.iter().copied().chain(vip.vrrp.gateway));
        balancers.extend(vip.balancers.iter().copied());
        for track in &vip.tracks {
            match track.what {
                Tracked::Check(id) => drop(checks.insert(id)),
                Tracked::Balancer(id) => drop(balancers.insert(id)),
                Tracked::Interface { .. } => {}
            }
        }
    }
    // What a group consists of; a canary is nobody's.
    checks.extend(config.checks.iter().flat_map(|check| check.probe.members()));
    let canary = |check: &Check| matches!(check.probe, Probe::Canary(_));
    let unused = |(id, check): &(CheckId, &Check)| !checks.contains(id) && !canary(check);
    for (_, check) in (0..).map(CheckId).zip(&config.checks).filter(unused) {
        warn(format!("check {}: no vip depends on it", check.name), "name it in a vip's checks, or remove it");
    }
    for (_, balancer) in (0..).map(BalancerId).zip(&config.balancers).filter(|(id, _)| !balancers.contains(id)) {
        warn(format!("balancer {}: no vip depends on it", balancer.name), "name it in a vip's balancer, or remove it");
    }
}

/// Missing interfaces of which each has its line.
const MISSING_SHOWN: usize = 8;

/// What isn't as it should be on this machine. The file may be meant for another one: only warnings.
fn machine(config: &Config, warn: &mut impl FnMut(String, &str)) {
    let mut interfaces: Vec<_> = config.vips.iter().flat_map(|vip| &vip.legs).map(|leg| &leg.interface).collect();
    interfaces.extend(config.vips.iter().flat_map(|vip| vip.addresses.iter().map(|address| &address.interface)));
    interfaces.extend(config.vips.iter().flat_map(|vip| vip.routes.iter().map(|route| &route.interface)));
    interfaces.extend(config.vips.iter().flat_map(|vip| &vip.tracks).filter_map(|track| match &track.what {
        Tracked::Interface { name, .. } => Some(name),
        _ => None,
    }));
    interfaces.extend(config.checks.iter().filter_map(|check| match &check.probe {
        Probe::Gateway { interface, .. } => interface.as_ref(),
        _ => None,
    }));
    interfaces.extend(config.bgp.iter().flat_map(|bgp| &bgp.neighbors).filter_map(|n| n.interface.as_ref()));
    interfaces.sort();
    interfaces.dedup();
    let missing = |interface: &&InterfaceName| nix::net::if_::if_nametoindex(interface.as_str()).is_err();
    let missing: Vec<&InterfaceName> = interfaces.into_iter().filter(missing).collect();
    for interface in missing.iter().take(MISSING_SHOWN) {
        warn(format!("there is no interface {interface} here"), "see `ip link`; the agent waits for it to come");
    }
    if let Some(more) = missing.len().checked_sub(MISSING_SHOWN).filter(|more| *more > 0) {
        warn(format!("there are no interfaces here for {more} more names"), "see `ip link`; the agent waits for them");
    }
    let Some(cluster) = &config.cluster else { return };
    match crate::run::secret_key(&cluster.key_file) {
        Err(why) => warn(format!("the agent can't start here: {why}"), "see `holdfast keygen`"),
        Ok(secret) => {
            let own = holdfast_statesync::public_key(&secret);
            for peer in cluster.peers.iter().filter(|peer| peer.public_keys.contains(&own)) {
                warn(
                    format!("peer {} has the public key of this node's own key file", peer.name),
                    "each node has a key of its own: `holdfast keygen` on each",
                );
            }
        }
    }
}

/// Whether this process may schedule in real time; the reason if not. Tried on a thread of its own.
pub(super) fn realtime_permitted() -> Result<(), String> {
    std::thread::spawn(|| crate::os::sched::realtime(REALTIME_PRIORITY).map_err(|reason| reason.to_string()))
        .join()
        .unwrap_or_else(|_| Err("it could not be tried".to_owned()))
}

/// Advert intervals under 50 ms are refused where real-time scheduling isn't permitted.
pub(super) fn realtime_suffices(config: &Config, permitted: fn() -> Result<(), String>) -> Result<(), String> {
    let short = config.vips.iter().find(|vip| vip.vrrp.interval.duration() < REALTIME_BELOW);
    let Some(vip) = short else { return Ok(()) };
    permitted().map_err(|why| {
        format!(
            "vip {}: adverts every {} need real-time scheduling: {why}; accepted without it: 50ms and more",
            vip.name,
            config::duration::show(vip.vrrp.interval.duration())
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(interval: &str) -> Config {
        let text = format!(
            "[node]\nname = \"a\"\n[[vip]]\nname = \"v\"\naddresses = [\"192.0.2.1/32\"]\n\
             vrrp = {{ interface = \"nosuch0\", vrid = 1, priority = 254, interval = \"{interval}\" }}\n"
        );
        config::parse(&text, "test").expect("valid")
    }

    #[test]
    fn short_advert_intervals_are_refused_without_real_time_scheduling_and_only_those() {
        let forbidden = || Err("not permitted by RLIMIT_RTPRIO".to_owned());
        assert_eq!(realtime_suffices(&config("50ms"), forbidden), Ok(()));
        assert_eq!(realtime_suffices(&config("40ms"), || Ok(())), Ok(()));
        let refused = realtime_suffices(&config("40ms"), forbidden).expect_err("not permitted");
        assert!(refused.contains("vip v: adverts every 40ms") && refused.contains("RLIMIT_RTPRIO"), "{refused}");
    }

    #[test]
    fn what_is_missing_on_this_machine_or_weak_is_a_warning() {
        let texts: Vec<String> = warnings(&config("20ms")).into_iter().map(|w| w.text).collect();
        for part in
            ["without [cluster]", "need real-time scheduling", "no check", "no balancer", "no interface nosuch0 here"]
        {
            assert!(texts.iter().any(|text| text.contains(part)), "{part}: {texts:?}");
        }
    }

    fn of(head: &str, addresses: &str, vrrp: &str, rest: &str) -> Config {
        let text = format!(
            "[node]\nname = \"a\"\n{head}\n[[vip]]\nname = \"v\"\naddresses = {addresses}\n\
             vrrp = {{ interface = \"nosuch0\", vrid = 1, {vrrp} }}\n{rest}"
        );
        config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[test]
    fn the_legs_of_a_vip_are_told_with_the_size_of_their_adverts() {
        let both = "[\"192.0.2.1/32\", \"2001:db8::1/128\"]";
        let config = of("", both, "priority = 254", "");
        let text = promise(&config, &config.vips[0], &Mtus::default());
        for part in [
            "vip v: 192.0.2.1/32, 2001:db8::1/128, fe80::200:5eff:fe00:201/128; priority 254",
            "IPv4: VRID 1 on nosuch0, VRRPv3 by multicast; 1 address in an advert of 32 bytes, MTU 1500 assumed",
            "IPv6: VRID 1 on nosuch0, VRRPv3 by multicast; 2 addresses in an advert of 80 bytes, MTU 1500 assumed",
            "cut off from all peers: takes it",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let v2 = of("", both, "priority = 100, version = 2, peers = [\"10.0.0.2\", \"fe80::2\"], min_ttl = 254", "");
        let text = promise(&v2, &v2.vips[0], &Mtus::default());
        for part in
            ["VRRPv2 to 10.0.0.2 (TTL at least 254)", "VRRPv3 to fe80::2", "gives it away, skew of VRRPv2", "609ms"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_group_is_told_once_with_its_members() {
        let second = "group = \"edge\"\n[[vip]]\nname = \"w\"\ngroup = \"edge\"\naddresses = [\"10.2.0.1/32\"]\n\
                      vrrp = { interface = \"nosuch1\", vrid = 1, priority = 254 }\n";
        let config = of("", "[\"192.0.2.1/32\"]", "priority = 254", second);
        let text = summary(Path::new("f"), &config, &Mtus::default(), &[]);
        assert!(text.contains("2 VIPs") && text.contains("group edge (v, w): 192.0.2.1/32, 10.2.0.1/32"), "{text}");
        assert!(text.contains("VRID 1 on nosuch0") && text.contains("VRID 1 on nosuch1"), "{text}");
    }

    #[test]
    fn what_is_seldom_meant_is_a_warning() {
        let check = "[[check]]\nname = \"c\"\ntcp = \"127.0.0.1:80\"";
        let one = "[\"192.0.2.1/32\"]";
        for (vrrp, rest, part) in [
            ("priority = 255", "", "priority 255 is that of the address's owner"),
            (
                "priority = 254, rivals = [254]",
                "",
                "another node has priority 254 too; without [cluster] only a jitter",
            ),
            ("priority = 254, accept = false", "", "accept = false drops"),
            ("priority = 254, vmac = true", "", "vmac = true sends frames"),
            ("priority = 254", "group = \"g\"", "group g: v is its only member"),
        ] {
            let texts: Vec<String> = warnings(&of(check, one, vrrp, rest)).into_iter().map(|w| w.text).collect();
            assert!(texts.iter().any(|text| text.contains(part)), "{part}: {texts:?}");
        }
        let plain: Vec<String> = warnings(&of(check, one, "priority = 254", "")).into_iter().map(|w| w.text).collect();
        for part in ["255", "another node", "accept", "vmac", "only member", "partition"] {
            assert!(!plain.iter().any(|text| text.contains(part)), "{part}: {plain:?}");
        }
    }

    #[test]
    fn a_weight_is_told_with_the_priority_that_it_leaves() {
        let check = "[[check]]\nname = \"c\"\ntcp = \"127.0.0.1:80\"";
        let track = "track = [{ check = \"c\", weight = -20 }, { interface = \"nosuch1\", up_delay = \"2s\" }]";
        let config = of(check, "[\"192.0.2.1/32\"]", "priority = 254, rivals = [253]", track);
        let text = promise(&config, &config.vips[0], &Mtus::default());
        assert!(text.contains("track: without check c priority 254 becomes 234"), "{text}");
        assert!(text.contains("track: without interface nosuch1 (up after 2s, down after 0ms) this node"), "{text}");
        assert!(!text.contains("detect: c"), "{text}");
        let texts: Vec<String> = warnings(&config).into_iter().map(|w| w.text).collect();
        assert!(!texts.iter().any(|text| text.contains("no vip depends on it")), "{texts:?}");
    }
}
