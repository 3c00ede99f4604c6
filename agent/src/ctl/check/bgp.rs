//! What `check` says of BGP: what is announced to whom, how fast a failure is out of the routers, and what is seldom
//! meant.

use super::{ADDRESSES_SHOWN, Label, budget, render};
use crate::config::duration::show;
use holdfast_bgp::types::Families;
use holdfast_bgp::wire::community::{BLACKHOLE, GRACEFUL_SHUTDOWN};
use holdfast_node::config::{Bgp, Config, Neighbor, NeighborId, Overrides, RouterIdFrom, Unwell, Vip, VipBgp};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::time::Duration;

/// A virtual machine may not run for so long, on a host that is busy with others.
const BFD_SAFE: Duration = Duration::from_millis(50);
/// Without BFD a session must not end because of a busy second.
const HOLD_SAFE: Duration = Duration::from_secs(9);
/// Longer than any restart of the agent; what is stale for longer is a black hole if the host is dead.
const RESTART_SAFE: Duration = Duration::from_secs(60);
/// What slow routers take to follow a withdrawal, and some more.
const WITHDRAW_SAFE: Duration = Duration::from_millis(100);
/// 32 bits of bytes per second, where older routers stop counting.
const BANDWIDTH_SAFE: u64 = 8 * u32::MAX as u64;

/// The speaker and its neighbours.
pub(super) fn speaker(bgp: &Bgp) -> String {
    let mut text = String::new();
    let from = match bgp.router_id_from {
        RouterIdFrom::Configured => "configured",
        RouterIdFrom::Source => "from a neighbour's source",
        RouterIdFrom::Cluster => "from cluster.listen",
        RouterIdFrom::NodeName => "made from the node's name",
    };
    let listens = if bgp.listen { format!("listens on port {}", bgp.listen_port) } else { "doesn't listen".to_owned() };
    let restart = bgp.graceful_restart.map_or_else(|| "off".to_owned(), show);
    let _ = writeln!(
        text,
        "bgp: AS {}, router id {} ({from}), {listens}, graceful restart {restart}",
        bgp.asn, bgp.router_id
    );
    for neighbor in &bgp.neighbors {
        let _ = writeln!(text, "  {}", one(bgp, neighbor));
    }
    text
}

/// `neighbor r1: 10.0.0.1, AS 65000 (external), IPv4; hold time 9s; BFD 50ms × 3 = 150ms; TTL 1; no MD5`.
fn one(bgp: &Bgp, neighbor: &Neighbor) -> String {
    let place = match (neighbor.address, &neighbor.interface) {
        (Some(ip), Some(interface)) => format!("{ip} on {interface}"),
        (Some(ip), None) => ip.to_string(),
        (None, Some(interface)) => format!("whoever is on {interface}"),
        (None, None) => String::new(),
    };
    let side = if neighbor.internal(bgp.asn) { "internal" } else { "external" };
    let asn = match neighbor.asn.to_string() {
        number if number.starts_with(|c: char| c.is_ascii_digit()) => format!("AS {number} ({side})"),
        word => word,
    };
    let hold = if neighbor.hold_time.is_zero() { "none".to_owned() } else { show(neighbor.hold_time) };
    let bfd = neighbor.bfd.as_ref().map_or_else(
        || "no BFD".to_owned(),
        |bfd| {
            let far = if bfd.multihop { format!(", multihop, TTL at least {}", bfd.min_ttl) } else { String::new() };
            format!("BFD {} × {} = {}{far}", show(bfd.interval), bfd.multiplier, show(bfd.detection()))
        },
    );
    let ttl = match neighbor.min_ttl() {
        Some(least) => format!("TTL 255, at least {least}"),
        None => format!("TTL {}", neighbor.ttl()),
    };
    let md5 = if neighbor.password_file.is_some() { "MD5" } else { "no MD5" };
    let passive = if neighbor.passive { ", passive" } else { "" };
    let far_hop = if neighbor.extended_next_hop { " with IPv6 next hops too" } else { "" };
    format!(
        "neighbor {}: {place}, {asn}{passive}, {}{far_hop}; hold time {hold}; {bfd}; {ttl}; {md5}",
        neighbor.name,
        families(neighbor.families),
    )
}

fn families(families: Families) -> String {
    families.iter().map(|family| family.to_string()).collect::<Vec<_>>().join(" and ")
}

/// What a unit announces, and how long it takes until routers don't send it anything more.
pub(super) fn promise(bgp: &Bgp, vip: &Vip, own: &VipBgp, detect: Option<Duration>) -> String {
    let mut text = String::new();
    let told: Vec<&Neighbor> = own.neighbors.iter().filter_map(|id| bgp.neighbor(*id)).collect();
    let names: Vec<&str> = told.iter().take(ADDRESSES_SHOWN).map(|neighbor| neighbor.name.as_str()).collect();
    let mut routes: Vec<String> = vip.announced().take(ADDRESSES_SHOWN).map(|(_, prefix)| prefix.to_string()).collect();
    if let Some(more) = vip.announced().count().checked_sub(ADDRESSES_SHOWN).filter(|more| *more > 0) {
        routes.push(format!("and {more} more"));
    }
    let _ = writeln!(text, "  announced to {}: {}", names.join(", "), routes.join(", "));
    let mut line = |what: &str, time: String, how: &str| {
        let _ = writeln!(text, "  {what:<44} {time} ({how})");
    };
    line("withdraw: the node can't serve", "at once".to_owned(), "computed");
    line("withdraw: the router's own time", "BIRD 0.4ms, FRR 62ms".to_owned(), "measured, median");
    if let Some(worst) = detect {
        line("worst case: hung here until withdrawn", render::span(worst), "computed");
    }
    for neighbor in &told {
        let what = format!("host frozen or path cut: seen by {}", neighbor.name);
        match budget::silent_to(neighbor) {
            Some((after, by)) => {
                // RFC 8538: to a router that agrees to it, the end of the hold time is the begin of a graceful restart.
                let kept = bgp.graceful_restart.filter(|_| by == "hold time");
                let more = kept.map(|more| format!(", and up to {} more if it keeps routes", show(more)));
                line(&what, format!("{} by {by}{}", render::span(after), more.unwrap_or_default()), "computed");
            }
            None => line(&what, "never: neither BFD nor hold time".to_owned(), "computed"),
        }
    }
    let _ = writeln!(
        text,
        "  drain: graceful shutdown for {}, withdrawal, {} later the address goes",
        show(own.drain_wait),
        show(own.withdraw_wait)
    );
    for (when, unwell) in [("can't serve", &own.on_down), ("is disabled", &own.on_disabled)] {
        if let Unwell::Announce(worse) = unwell {
            let _ = writeln!(text, "  while it {when}: announced with {}", said(worse));
        }
    }
    if !own.announce_delay.is_zero() {
        let _ = writeln!(text, "  nothing is announced for {} after the agent's start", show(own.announce_delay));
    }
    if let Some(damping) = &own.damping {
        let _ = writeln!(text, "  flapping holds it back for {} at most", show(damping.max));
    }
    text
}

fn said(worse: &Overrides) -> String {
    let numbers = [
        ("med", worse.med.map(u64::from)),
        ("local_pref", worse.local_pref.map(u64::from)),
        ("prepend", worse.prepend.map(u64::from)),
    ];
    let mut parts: Vec<String> =
        numbers.iter().filter_map(|(name, value)| Some(format!("{name} {}", (*value)?))).collect();
    if worse.communities.is_some() || worse.large.is_some() || worse.extended.is_some() {
        parts.push("communities of its own".to_owned());
    }
    parts.join(", ")
}

/// What is allowed and seldom meant.
pub(super) fn warnings(config: &Config, warn: &mut impl FnMut(String, &str)) {
    let Some(bgp) = &config.bgp else { return };
    let announced = || config.vips.iter().filter_map(|vip| Some((vip, vip.bgp.as_ref()?)));
    let used: HashSet<NeighborId> = announced().flat_map(|(_, own)| own.neighbors.iter().copied()).collect();
    if used.is_empty() {
        warn("bgp: no vip is announced".to_owned(), "add bgp = {} to a vip, or remove [bgp]");
    }
    restart(bgp, warn);
    for (id, neighbor) in bgp.each() {
        if !used.is_empty() && !used.contains(&id) {
            warn(format!("neighbor {}: no vip is announced to it", neighbor.name), "name it in a vip's bgp.neighbors");
        }
        session(neighbor, warn);
    }
    for (vip, own) in announced() {
        route(config, bgp, vip, own, warn);
    }
}

fn restart(bgp: &Bgp, warn: &mut impl FnMut(String, &str)) {
    match bgp.graceful_restart {
        None => warn(
            "bgp: graceful_restart = \"off\": a crash of the agent takes this node's routes away".to_owned(),
            "leave it at 15s, and configure graceful restart (as helper) on the routers",
        ),
        Some(time) if time > RESTART_SAFE => warn(
            format!(
                "bgp: graceful_restart = \"{}\": routers that don't let BFD end it send to a dead host for so long",
                show(time)
            ),
            "two or three times what a restart of the agent takes: 15s to 30s",
        ),
        Some(_) => {}
    }
}

fn session(neighbor: &Neighbor, warn: &mut impl FnMut(String, &str)) {
    let name = &neighbor.name;
    match &neighbor.bfd {
        Some(bfd) if bfd.interval < BFD_SAFE => warn(
            format!(
                "neighbor {name}: BFD every {} takes a host for dead that stood still for {}",
                show(bfd.interval),
                show(bfd.detection())
            ),
            "50ms × 3 holds under load on virtual machines; less only on hardware of its own",
        ),
        Some(bfd) if bfd.multiplier < 3 => warn(
            format!("neighbor {name}: BFD with multiplier {} takes a lost packet for a dead host", bfd.multiplier),
            "use 3 or more",
        ),
        Some(_) => {}
        None if neighbor.hold_time.is_zero() => warn(
            format!("neighbor {name}: with neither hold time nor BFD a frozen host keeps its routes for ever"),
            "add bfd, or a hold_time of 9s",
        ),
        None if neighbor.hold_time < HOLD_SAFE => warn(
            format!(
                "neighbor {name}: hold_time {} without BFD: a router that is busy for a moment ends the session",
                show(neighbor.hold_time)
            ),
            "use bfd = { interval = \"50ms\" } for speed, and leave the hold time at 9s",
        ),
        None => warn(
            format!(
                "neighbor {name}: no BFD: a frozen host or a cut path is noticed after the hold time only ({})",
                show(neighbor.hold_time)
            ),
            "add bfd = { interval = \"50ms\", multiplier = 3 }, on the router too",
        ),
    }
    let unreadable = |path: &std::path::PathBuf| {
        std::fs::File::open(path).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    };
    if let Some(path) = neighbor.password_file.as_ref().filter(|path| unreadable(path)) {
        warn(
            format!("neighbor {name}: {} is not for you to read, so it was not looked at", path.display()),
            "run `check` as root",
        );
    }
}

fn route(config: &Config, bgp: &Bgp, vip: &Vip, own: &VipBgp, warn: &mut impl FnMut(String, &str)) {
    let name = Label(vip);
    let others = config.cluster.as_ref().map(|cluster| cluster.peers.len());
    match others {
        None if own.min_announcing > 1 => warn(
            format!("{name}: min_announcing = {} has no effect without [cluster]", own.min_announcing),
            "add [cluster] with one [[cluster.peer]] per other node",
        ),
        Some(others) if usize::from(own.min_announcing) > others => warn(
            format!(
                "{name}: min_announcing = {} and {others} other nodes in the cluster: it is never withdrawn because this \
                 node can't serve",
                own.min_announcing
            ),
            "less than there are nodes",
        ),
        _ => {}
    }
    for address in vip.addresses.iter().filter(|address| vip.anycast() && address.interface.as_str() != "lo") {
        warn(
            format!(
                "{name}: {} stands on {}: every node that announces it answers for it on that segment",
                address.ip, address.interface
            ),
            "leave interface out: then it stands on lo",
        );
    }
    if own.withdraw_wait < WITHDRAW_SAFE {
        warn(
            format!(
                "{name}: withdraw_wait = \"{}\": routers still send for a while (FRR about 65ms)",
                show(own.withdraw_wait)
            ),
            "use 1s",
        );
    }
    if let Some(bandwidth) = own.link_bandwidth.filter(|bandwidth| bandwidth.bits > BANDWIDTH_SAFE) {
        warn(
            format!("{name}: link_bandwidth of {} bit/s is more than older routers can count", bandwidth.bits),
            "only the ratio between the nodes counts: use less than 34G on all, or weight",
        );
    }
    for (community, what) in [
        (BLACKHOLE, "blackhole makes routers drop all that is sent to it"),
        (GRACEFUL_SHUTDOWN, "graceful-shutdown makes it the last choice at all times; a drain adds it by itself"),
    ] {
        if own.attributes.communities.contains(&community) {
            warn(format!("{name}: the community {what}"), "remove it, unless that is meant");
        }
    }
    let internal = own.neighbors.iter().filter_map(|id| bgp.neighbor(*id)).any(|n| n.internal(bgp.asn));
    let worse = [&own.on_down, &own.on_disabled];
    let only_local = worse.iter().any(|unwell| match unwell {
        Unwell::Announce(worse) => {
            worse.local_pref.is_some() && Overrides { local_pref: None, ..(*worse).clone() } == Overrides::default()
        }
        Unwell::Withdraw => false,
    });
    if !internal && (own.attributes.local_pref != holdfast_node::config::LOCAL_PREF || only_local) {
        warn(
            format!("{name}: local_pref is for internal neighbours, and it has none: nobody hears of it"),
            "use med or prepend",
        );
    }
}

#[cfg(test)]
mod tests {
    use crate::config;
    use crate::ctl::check::{summary, warnings};
    use holdfast_node::config::Config;
    use std::path::Path;

    fn config(vip: &str, bgp: &str, neighbor: &str, rest: &str) -> Config {
        let text = format!(
            "[node]\nname = \"lb1\"\n[[check]]\nname = \"web\"\ntcp = \"127.0.0.1:80\"\n[[vip]]\nname = \"web\"\n\
             addresses = [\"192.0.2.10\"]\nbgp = {{ {vip} }}\n[bgp]\nasn = 65010\n{bgp}\n[[bgp.neighbor]]\nname = \"r1\"\n\
             address = \"10.0.0.1\"\nasn = 65000\n{neighbor}\n{rest}"
        );
        config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn texts(config: &Config) -> Vec<String> {
        warnings(config).into_iter().map(|warning| warning.text).collect()
    }

    #[test]
    fn the_promise_names_the_speaker_the_neighbours_and_how_long_a_failure_lasts() {
        let config = config(
            "on_down = { med = 1000 }, drain_wait = \"3s\"",
            "",
            "source = \"10.0.0.11\"\nttl_security = true\nbfd = { interval = \"50ms\" }",
            "[[bgp.neighbor]]\nname = \"r2\"\naddress = \"10.0.0.2\"\nasn = \"internal\"",
        );
        let text = summary(Path::new("f"), &config, &config::Mtus::default(), &[]);
        for part in [
            "bgp: AS 65010, router id 10.0.0.11 (from a neighbour's source), listens on port 179, graceful restart 15s",
            "neighbor r1: 10.0.0.1, AS 65000 (external), IPv4; hold time 9s; BFD 50ms × 3 = 150ms; TTL 255, at least 255; no MD5",
            "neighbor r2: 10.0.0.2, internal, IPv4; hold time 9s; no BFD; TTL 255; no MD5",
            "vip web: 192.0.2.10/32 on lo, on every node that can serve",
            "announced to r1, r2: 192.0.2.10/32",
            "detect: web gives no answer",
            "host frozen or path cut: seen by r1          150ms by BFD (computed)",
            "host frozen or path cut: seen by r2          9000ms by hold time, and up to 15s more if it keeps routes (computed)",
            "drain: graceful shutdown for 3s, withdrawal, 1s later the address goes",
            "while it can't serve: announced with med 1000",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        for part in ["priority", "take over", "cut off"] {
            assert!(!text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_derived_identifier_is_told_with_where_it_comes_from() {
        let text = summary(Path::new("f"), &config("", "", "", ""), &config::Mtus::default(), &[]);
        assert!(text.contains("router id 143.94.152.14 (made from the node's name)"), "{text}");
    }

    #[test]
    fn what_is_seldom_meant_is_a_warning_and_only_then() {
        let bfd = "bfd = { interval = \"50ms\" }";
        let cluster = "[cluster]\nlisten = \"10.1.0.11:7712\"\nkey_file = \"/nonexistent/key\"\n[[cluster.peer]]\nname = \"lb2\"\n\
                       address = \"10.1.0.12:7712\"\npublic_keys = [\"KjMFXgCkl3bVbBQ8sg1Z3xGT3cVp5a9Qm0eG3S9uY1E=\"]";
        for (vip, bgp, neighbor, rest, part) in [
            ("", "", "", "", "no BFD: a frozen host or a cut path is noticed after the hold time only (9s)"),
            ("", "", "hold_time = \"3s\"", "", "hold_time 3s without BFD"),
            ("", "", "hold_time = \"0s\"", "", "keeps its routes for ever"),
            (
                "",
                "",
                "bfd = { interval = \"20ms\" }",
                "",
                "BFD every 20ms takes a host for dead that stood still for 60ms",
            ),
            ("", "", "bfd = { interval = \"50ms\", multiplier = 1 }", "", "multiplier 1 takes a lost packet"),
            ("", "graceful_restart = \"off\"", bfd, "", "graceful_restart = \"off\": a crash"),
            ("", "graceful_restart = \"2m\"", bfd, "", "graceful_restart = \"2m\": routers"),
            ("min_announcing = 2", "", bfd, "", "min_announcing = 2 has no effect without [cluster]"),
            ("min_announcing = 2", "", bfd, cluster, "min_announcing = 2 and 1 other nodes"),
            ("withdraw_wait = \"0s\"", "", bfd, "", "routers still send for a while"),
            ("link_bandwidth = \"40G\"", "", bfd, "", "more than older routers can count"),
            ("communities = [\"blackhole\"]", "", bfd, "", "blackhole makes routers drop"),
            ("communities = [\"graceful-shutdown\"]", "", bfd, "", "the last choice at all times"),
            ("local_pref = 200", "", bfd, "", "local_pref is for internal neighbours"),
            (
                "neighbors = [\"r1\"]",
                "",
                bfd,
                "[[bgp.neighbor]]\naddress = \"10.0.0.2\"\nasn = 1\nbfd = true",
                "neighbor 10.0.0.2: no vip is announced to it",
            ),
        ] {
            let texts = texts(&config(vip, bgp, neighbor, rest));
            assert!(texts.iter().any(|text| text.contains(part)), "{part}: {texts:?}");
        }
        let plain = texts(&config("min_announcing = 1", "", bfd, cluster));
        for part in
            ["BFD", "graceful", "min_announcing", "withdraw_wait", "link_bandwidth", "local_pref", "neighbor", "on lo"]
        {
            assert!(!plain.iter().any(|text| text.contains(part)), "{part}: {plain:?}");
        }
    }

    #[test]
    fn an_address_that_every_node_has_on_a_segment_is_a_warning() {
        let text = "[node]\nname = \"lb1\"\n[[vip]]\nname = \"web\"\nbgp = {}\n\
                    addresses = [{ ip = \"192.0.2.10\", interface = \"nosuch0\" }]\n[bgp]\nasn = 65010\n[[bgp.neighbor]]\n\
                    address = \"10.0.0.1\"\nasn = 65000\n";
        let texts = texts(&config::parse(text, "test").unwrap_or_else(|errors| panic!("{errors}")));
        assert!(texts.iter().any(|text| text.contains("192.0.2.10 stands on nosuch0")), "{texts:?}");
    }
}
