//! Starting and stopping the agent again and again: nothing may be left behind.
//!
//! One host, no channel. Some starts are stopped at once, some in the middle of starting, every tenth only after the
//! VIP was held: a stop must be clean at any moment.

use crate::balancer::Kind;
use crate::fabric::{Fabric, Lb, wait_for};
use crate::subject::holdfast::Holdfast;
use crate::subject::{INTERVAL, Place, Subject};
use crate::watch::address::holds_vip;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// How long after its start the agent is stopped, in turn, ms; `None`: once it holds the VIP.
const PAUSES: [Option<u64>; 10] =
    [Some(0), Some(2), Some(5), Some(10), Some(20), Some(40), Some(80), Some(160), Some(320), None];
/// A stop may take so long.
const STOP: Duration = Duration::from_secs(10);
/// Until the VIP is held.
const ACTIVE: Duration = Duration::from_secs(10);

/// What a host has that an agent could leave behind: kind and name.
type Inventory = BTreeMap<String, usize>;

/// Starts and stops `times` times; returns what was left behind, or went wrong, with the round.
///
/// # Errors
/// The machine can't run it, or the agent couldn't be started at all.
pub fn start_stop(binary: &Path, times: u32) -> Result<Vec<String>> {
    crate::env::require_basics()?;
    let fabric = Fabric::up(false)?;
    let place = Place { fabric, balancer: Kind::best(), channel: false, vips: 1, adverts: INTERVAL, busy: Vec::new() };
    let mut subject = Holdfast::new(binary.to_owned());
    subject.prepare(&place, Lb::Lb1)?;
    place.balancer.nat(&place.fabric, Lb::Lb1, true)?;
    let before = settled_inventory(&place)?;
    let mut left = Vec::new();
    for round in 0..times {
        let ns = place.fabric.lb(Lb::Lb1);
        let agent = subject.start_only(&place, Lb::Lb1)?;
        match PAUSES[round as usize % PAUSES.len()] {
            Some(ms) => std::thread::sleep(Duration::from_millis(ms)),
            None => {
                let active = wait_for(ACTIVE, Duration::from_millis(10), || ns.inside(|| Ok(holds_vip())))?;
                if !active {
                    let log = std::fs::read_to_string(agent.log()).unwrap_or_default();
                    let lines: Vec<&str> = log.lines().collect();
                    let end = lines[lines.len().saturating_sub(20)..].join("\n");
                    bail!("round {round}: the agent didn't hold the VIP within {} s:\n{end}", ACTIVE.as_secs());
                }
            }
        }
        if !agent.stop(STOP) {
            left.push(format!("round {round}: the agent didn't stop within {} s of SIGTERM", STOP.as_secs()));
        }
        // What ends asynchronously (a socket in the kernel's hands) gets a moment, a process doesn't get long.
        let clean = || Ok(difference(&before, &inventory(&place)?).is_empty());
        if !wait_for(Duration::from_millis(500), Duration::from_millis(5), clean)? {
            left.extend(difference(&before, &inventory(&place)?).into_iter().map(|d| format!("round {round}: {d}")));
            if left.len() > 20 {
                break;
            }
            // Each thing is reported once: clear what would show again.
            place.fabric.lb(Lb::Lb1).pids().into_iter().for_each(crate::process::kill_pid);
            std::thread::sleep(Duration::from_millis(100));
            std::fs::remove_dir_all(place.file("lb1-run"))?;
            std::fs::create_dir_all(place.file("lb1-run"))?;
        }
    }
    subject.stop();
    Ok(left)
}

/// Waits until nothing changes any more by itself: the kernel adds IPv6 routes some time after a link came up.
fn settled_inventory(place: &Place) -> Result<Inventory> {
    std::thread::sleep(Duration::from_secs(2));
    let mut last = inventory(place)?;
    wait_for(Duration::from_secs(10), Duration::from_secs(2), || {
        let now = inventory(place)?;
        let same = now == last;
        last = now;
        Ok(same)
    })?;
    Ok(last)
}

/// What is there now and wasn't before.
fn difference(before: &Inventory, now: &Inventory) -> Vec<String> {
    now.iter().filter(|(k, n)| **n > before.get(*k).copied().unwrap_or(0)).map(|(k, n)| format!("{k} (×{n})")).collect()
}

fn inventory(place: &Place) -> Result<Inventory> {
    let ns = place.fabric.lb(Lb::Lb1);
    let mut all = Inventory::new();
    let mut note = |what: String| *all.entry(what).or_default() += 1;
    for pid in ns.pids() {
        let comm = crate::process::Stat::of(pid).map(|s| s.comm).unwrap_or_default();
        note(format!("process {comm}"));
    }
    for line in ns.inside(|| Ok(sockets()))? {
        note(line);
    }
    let addresses = ns.command("ip").args(["-o", "addr"]).output().context("list addresses")?;
    for line in String::from_utf8_lossy(&addresses.stdout).lines() {
        let words: Vec<&str> = line.split_whitespace().skip(1).take(3).collect();
        note(format!("address {}", words.join(" ")));
    }
    let routes = ns.command("ip").args(["route", "show", "table", "all"]).output().context("list routes")?;
    String::from_utf8_lossy(&routes.stdout).lines().for_each(|l| note(format!("route {}", l.trim())));
    if crate::env::find_program("nft").is_some() {
        let rules = ns.command("nft").args(["list", "ruleset"]).output().context("list rules")?;
        String::from_utf8_lossy(&rules.stdout).lines().for_each(|l| note(format!("rule {}", l.trim())));
    }
    for setting in ns.inside(|| Ok(settings()))? {
        note(setting);
    }
    let mut files = Vec::new();
    list_files(&place.file("lb1-run"), &mut files);
    files.into_iter().for_each(|f| note(format!("file {f}")));
    Ok(all)
}

/// Sockets of the calling thread's namespace, without addresses that change from run to run. A closed TCP
/// connection's TIME_WAIT is the kernel's, not a socket of anyone.
fn sockets() -> Vec<String> {
    const TIME_WAIT: &str = "06";
    let mut all = Vec::new();
    for table in ["raw", "raw6", "packet", "udp", "udp6", "tcp", "tcp6", "unix"] {
        let text = std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let tcp = table.starts_with("tcp");
            if tcp && fields.get(3) == Some(&TIME_WAIT) {
                continue;
            }
            all.push(format!("socket {table}"));
        }
    }
    all
}

fn settings() -> Vec<String> {
    let mut all = Vec::new();
    for scope in ["all", "default", "eth0", "eth1", "lo"] {
        for key in ["arp_announce", "arp_ignore", "arp_filter", "rp_filter", "accept_local", "forwarding"] {
            let path = format!("/proc/sys/net/ipv4/conf/{scope}/{key}");
            let value = std::fs::read_to_string(&path).unwrap_or_default();
            all.push(format!("setting {scope}/{key} = {}", value.trim()));
        }
    }
    all
}

fn list_files(dir: &Path, into: &mut Vec<String>) {
    for e in std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
        let path = e.path();
        if e.file_type().is_ok_and(|t| t.is_dir()) {
            list_files(&path, into);
        } else if path.extension().is_none_or(|x| x != "lock") {
            // A lock file stays by design: whoever removed it could remove another's.
            into.push(e.file_name().to_string_lossy().into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_is_left_behind() {
        let before = Inventory::from([("socket udp".to_owned(), 1), ("route a".to_owned(), 1)]);
        let now = Inventory::from([("socket udp".to_owned(), 2), ("process x".to_owned(), 1)]);
        assert_eq!(difference(&before, &now), ["process x (×1)", "socket udp (×2)"]);
        assert!(difference(&now, &now).is_empty());
    }
}
