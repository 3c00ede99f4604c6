//! `holdfast check`: is this a configuration, what does it promise, and what should somebody look at.

use super::{budget, exit, render};
use crate::config::{self, ConfigErrors};
use holdfast_node::config::{Config, Vip};
use holdfast_node::status::Warning;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// Below this an advert can be late enough on a busy host, without real-time scheduling, to move an address.
const REALTIME_BELOW: Duration = Duration::from_millis(50);
/// Ethernet's.
const MTU: usize = 1500;
/// Any priority shows whether it is permitted.
const REALTIME_PRIORITY: u8 = 1;

/// Looks over a file.
pub(super) fn run(file: &Path, json: bool) -> u8 {
    // An interface that isn't there yet is judged by what nearly all have.
    match config::load_for(file, &|interface| config::mtu(interface).or(Some(MTU))) {
        Ok(config) => {
            let warnings = warnings(&config);
            if json {
                render::out(&format!("{}\n", model(file, &config, &warnings)));
            } else {
                render::out(&summary(file, &config, &warnings));
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

fn summary(file: &Path, config: &Config, warnings: &[Warning]) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}: ok", file.display());
    let peers = config.cluster.as_ref().map_or(0, |cluster| cluster.peers.len());
    let _ = writeln!(
        text,
        "node {}: {}, {}, {}, {}, {}",
        config.node,
        count(config.vips.len(), "VIP"),
        count(config.balancers.len(), "balancer"),
        count(config.checks.len(), "check"),
        count(peers, "peer"),
        count(config.hooks.len(), "hook"),
    );
    for vip in &config.vips {
        text.push_str(&promise(config, vip));
    }
    for warning in warnings {
        let _ = writeln!(text, "warning: {}; {}", warning.text, warning.remedy);
    }
    text
}

/// What a VIP is and how fast it moves.
fn promise(config: &Config, vip: &Vip) -> String {
    let mut text = String::new();
    let addresses: Vec<String> = vip.addresses.iter().map(|a| format!("{}/{}", a.ip, a.prefix)).collect();
    let vrrp = &vip.vrrp;
    let legs: Vec<String> = vip.legs.iter().map(|leg| format!("{} on {}", leg.vrid, leg.interface)).collect();
    let _ = writeln!(
        text,
        "vip {}: {} by VRRP {}, priority {}, adverts every {}",
        vip.name,
        addresses.join(", "),
        legs.join(", "),
        vrrp.priority,
        config::duration::show(vrrp.interval.duration()),
    );
    let line = |text: &mut String, what: &str, time: String| {
        let _ = writeln!(text, "  {what:<44} {time} (computed)");
    };
    for balancer in vip.balancers.iter().filter_map(|id| config.balancers.get(usize::from(id.0))) {
        line(&mut text, &format!("detect: process of {} ends", balancer.name), "at once".to_owned());
    }
    for check in budget::checks(config, vip) {
        let detect = budget::detect(check);
        let what = format!("detect: {} gives no answer", check.name);
        line(&mut text, &what, format!("{} to {}", render::span(detect.min), render::span(detect.max)));
    }
    line(&mut text, "take over: the owner gives it away", render::span(budget::skew(vip)));
    line(&mut text, "take over: the owner falls silent", render::span(budget::silent(vip)));
    if let Some(worst) = budget::checks(config, vip).map(|check| budget::detect(check).max).max() {
        let both = worst + budget::skew(vip);
        line(&mut text, "worst case: hung here until served elsewhere", render::span(both));
    }
    text
}

/// What is valid and still worth a look. Depends on this machine where it says "here".
fn warnings(config: &Config) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |text: String, remedy: &str| warnings.push(Warning { text, remedy: remedy.to_owned() });
    if config.cluster.is_none() {
        warn(
            "without [cluster] nodes know nothing of each other's health: a hand-over waits for the skew time, a drain \
             can't tell whether anybody takes over, and a shared failure empties every node"
                .to_owned(),
            "add [cluster] with one [[cluster.peer]] per other node",
        );
    }
    for vip in &config.vips {
        let name = &vip.name;
        let interval = vip.vrrp.interval.duration();
        if interval < REALTIME_BELOW {
            warn(
                format!(
                    "vip {name}: adverts every {} need real-time scheduling, `holdfast run` refuses to start without",
                    config::duration::show(interval)
                ),
                "see that the unit has LimitRTPRIO= and a real-time budget, or use 50ms and more",
            );
        }
        if budget::checks(config, vip).next().is_none() {
            warn(
                format!("vip {name}: no check: a balancer that hangs but doesn't die is never noticed"),
                "add a [[check]] with http through the real listener",
            );
        }
        if vip.balancers.is_empty() {
            warn(
                format!("vip {name}: no balancer: its death is noticed by checks only, not at once"),
                "add a [[balancer]]",
            );
        }
        for address in vip.addresses.iter().filter(|address| address.prefix != 32) {
            warn(
                format!("vip {name}: {}/{} is added without a route to its network", address.ip, address.prefix),
                "use /32; the interface's own address has the network",
            );
        }
    }
    unused(config, &mut warn);
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

/// What nothing refers to.
fn unused(config: &Config, warn: &mut impl FnMut(String, &str)) {
    for (at, check) in config.checks.iter().enumerate() {
        if !config.vips.iter().any(|vip| vip.checks.iter().any(|id| usize::from(id.0) == at)) {
            warn(format!("check {}: no vip depends on it", check.name), "name it in a vip's checks, or remove it");
        }
    }
    for (at, balancer) in config.balancers.iter().enumerate() {
        if !config.vips.iter().any(|vip| vip.balancers.iter().any(|id| usize::from(id.0) == at)) {
            warn(
                format!("balancer {}: no vip depends on it", balancer.name),
                "name it in a vip's balancer, or remove it",
            );
        }
    }
}

/// What isn't as it should be on this machine. The file may be meant for another one: only warnings.
fn machine(config: &Config, warn: &mut impl FnMut(String, &str)) {
    let mut interfaces: Vec<_> = config.vips.iter().flat_map(|vip| &vip.legs).map(|leg| &leg.interface).collect();
    interfaces.extend(config.vips.iter().flat_map(|vip| vip.addresses.iter().map(|address| &address.interface)));
    interfaces.sort();
    interfaces.dedup();
    for interface in interfaces {
        if nix::net::if_::if_nametoindex(interface.as_str()).is_err() {
            warn(format!("there is no interface {interface} here"), "see `ip link`; the agent waits for it to come");
        }
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
}
