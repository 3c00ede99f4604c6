//! Peers and clients beyond a router: unicast adverts that lose a hop, and a neighbour table that only a gratuitous ARP
//! mends.

use anyhow::{Context, Result, ensure};
use holdfast_interop::agent::Agent;
use holdfast_interop::{said, skipped};
use holdfast_lab::fabric::{Fabric, Lb, VIP, wait_for};
use holdfast_lab::netns::Netns;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const STEP: Duration = Duration::from_millis(50);
/// Far more than three intervals of 100 ms and the skew, for a busy machine.
const SOON: Duration = Duration::from_secs(10);

/// Two hosts with a router between them: a (10.9.1.2) - r - b (10.9.2.2).
struct Routed {
    names: [String; 3],
    directory: PathBuf,
}

impl Routed {
    fn new(test: &str) -> Result<Self> {
        let names = ["a", "r", "b"].map(|n| format!("hfr{}{test}-{n}", std::process::id()));
        let directory = std::env::temp_dir().join(&names[1]);
        std::fs::create_dir_all(&directory)?;
        let routed = Self { names, directory };
        for name in &routed.names {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        for (n, host) in [(1, 0), (2, 2)] {
            let (host, router) = (&routed.names[host], &routed.names[1]);
            let port = format!("eth{n}");
            ip(&["-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", &port, "netns", router])?;
            ip(&["-n", host, "addr", "add", &format!("10.9.{n}.2/24"), "dev", "eth0"])?;
            ip(&["-n", router, "addr", "add", &format!("10.9.{n}.1/24"), "dev", &port])?;
            ip(&["-n", host, "link", "set", "eth0", "up"])?;
            ip(&["-n", router, "link", "set", &port, "up"])?;
            ip(&["-n", host, "route", "add", "default", "via", &format!("10.9.{n}.1")])?;
        }
        let forward =
            Netns::named(routed.names[1].clone()).command("sysctl").args(["-qw", "net.ipv4.ip_forward=1"]).output()?;
        ensure!(forward.status.success(), "{}", said(&forward));
        Ok(routed)
    }

    fn agent(&self, lb: Lb, min_ttl: &str) -> Result<Agent> {
        let (host, peer, priority) = match lb {
            Lb::Lb1 => (0, "10.9.2.2", 200),
            Lb::Lb2 => (2, "10.9.1.2", 100),
        };
        let toml = format!(
            "[node]\nname = \"{}\"\n\n[[vip]]\nname = \"web\"\naddresses = [\"198.51.100.9/32\"]\n\
             vrrp = {{ interface = \"eth0\", vrid = 7, priority = {priority}, interval = \"100ms\", \
             peers = [\"{peer}\"]{min_ttl} }}\n",
            lb.name()
        );
        Agent::start_with(&Netns::named(self.names[host].clone()), lb, &self.directory, &toml)
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        for name in &self.names {
            for pid in Netns::named(name.clone()).pids() {
                holdfast_lab::process::kill_pid(pid);
            }
            let _gone = ip(&["netns", "del", name]);
        }
        let _gone = std::fs::remove_dir_all(&self.directory);
    }
}

fn ip(words: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(words).output().context("run ip")?;
    ensure!(output.status.success(), "ip {}: {}", words.join(" "), said(&output));
    Ok(())
}

#[test]
fn unicast_adverts_that_lost_a_hop_are_refused_and_counted_by_default() -> Result<()> {
    if skipped(&["ip"]) {
        return Ok(());
    }
    let routed = Routed::new("d")?;
    let (one, two) = (routed.agent(Lb::Lb1, "")?, routed.agent(Lb::Lb2, "")?);
    one.becomes("active", SOON)?;
    // It hears nobody that it may believe.
    two.becomes("active", SOON)?;
    let refused = wait_for(SOON, STEP, || Ok(two.counter("adverts_refused_ttl_below_minimum")? >= 5))?;
    ensure!(refused, "{}", two.status()?["counters"]);
    ensure!(two.counter("adverts_received")? == 0, "{}", two.status()?["counters"]);
    Ok(())
}

#[test]
fn unicast_peers_beyond_a_router_agree_with_min_ttl_and_fail_over() -> Result<()> {
    if skipped(&["ip"]) {
        return Ok(());
    }
    let routed = Routed::new("m")?;
    let (one, two) = (routed.agent(Lb::Lb1, ", min_ttl = 254")?, routed.agent(Lb::Lb2, ", min_ttl = 254")?);
    one.becomes("active", SOON)?;
    two.becomes("backup", SOON)?;
    let heard = wait_for(SOON, STEP, || Ok(two.counter("adverts_received")? >= 5))?;
    ensure!(heard, "{}", two.status()?["counters"]);
    ensure!(two.state()? == "backup", "{}", two.events()?);
    let leg = &two.status()?["vips"][0]["legs"][0];
    ensure!(leg["peers"][0] == "10.9.1.2", "{leg}");
    one.kill();
    two.becomes("active", SOON)
}

#[test]
fn clients_beyond_a_router_follow_the_address_though_the_router_never_asks_again() -> Result<()> {
    if skipped(&["ip", "ping"]) {
        return Ok(());
    }
    let fabric = Fabric::up(false)?;
    // The client's host is the router here, and what it knows of a neighbour stays for an hour. What lies behind it is
    // an address on its loopback.
    let router = fabric.ns("client");
    for setting in ["net.ipv4.neigh.eth0.base_reachable_time_ms=3600000", "net.ipv4.neigh.eth0.gc_stale_time=3600"] {
        let set = router.command("sysctl").args(["-qw", setting]).output()?;
        ensure!(set.status.success(), "{}", said(&set));
    }
    ip(&["-n", router.name(), "addr", "add", "10.77.0.1/32", "dev", "lo"])?;
    for lb in Lb::BOTH {
        ip(&["-n", fabric.lb(lb).name(), "route", "add", "10.77.0.1/32", "via", "192.168.77.1"])?;
    }
    let mut one = Agent::start(&fabric, Lb::Lb1, 254)?;
    one.becomes("active", SOON)?;
    let two = Agent::start(&fabric, Lb::Lb2, 253)?;
    two.becomes("backup", SOON)?;

    let mut ping = router.command("ping");
    ping.args(["-I", "10.77.0.1", "-i", "0.01", "-c", "300", "-W", "1", "-q", &VIP.to_string()]);
    let ping = std::thread::spawn(move || ping.output());
    std::thread::sleep(Duration::from_secs(1));
    // An orderly stop: priority 0, then the skew time of 253, about a millisecond.
    ensure!(one.keeper.stop(SOON), "the agent didn't stop");
    two.becomes("active", SOON)?;
    let output = ping.join().expect("it doesn't panic")?;
    let text = said(&output);
    let lost = text.split(", ").find_map(|part| part.strip_suffix(" received")?.parse::<u32>().ok());
    let lost = 300 - lost.with_context(|| text.clone())?;
    println!("{lost} of 300 echoes lost, 10 ms apart");
    // 100 ms of them at most (facts: complaint 48), and as much again for a busy machine.
    ensure!(lost <= 20, "{lost} of 300 lost:\n{text}\n{}", two.events()?);
    Ok(())
}
