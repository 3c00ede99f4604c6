//! What the network of the BGP drills needs beyond: nodes that forward, an address of each node's own that backends
//! answer to, rules, and a host that loses its power.

use crate::bgp::net::{BACKENDS, Net, Node, ROUTER, VIP};
use crate::fabric::{ip_batch, nft, sysctl};
use crate::flows::net::{Rules, filter, tracking};
use crate::process::{Pidfd, kill_pid};
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Stdio;

/// The VIP's port.
pub const PORT: u16 = 8002;
/// The backends' port.
pub const BACKEND_PORT: u16 = crate::flows::net::BACKEND_PORT;
/// All addresses that nodes translate to.
const SNATS: &str = "10.70.0.96/28";

/// Where `n`'s flows come from, as backends see them: on whatever node has it.
#[must_use]
pub fn snat(n: Node) -> Ipv4Addr {
    Ipv4Addr::new(10, 70, 0, u8::try_from(97 + n.0).unwrap_or(u8::MAX))
}

/// Makes the nodes forward.
///
/// # Errors
/// The kernel lacks something.
pub fn prepare(net: &Net, rules: Rules) -> Result<()> {
    net.ns("rt").inside(|| {
        // By addresses, protocol and ports of each packet, as routers do. The other policy would take the hash that the
        // client's kernel gave the packet, which it draws anew whenever it sends a segment again.
        let settings = [("net/ipv4/fib_multipath_hash_fields", "0x37"), ("net/ipv4/fib_multipath_hash_policy", "3")];
        settings.iter().try_for_each(|(key, value)| sysctl(key, value))
    })?;
    for n in net.nodes() {
        net.node(n).inside(|| {
            sysctl("net/ipv4/ip_forward", "1")?;
            sysctl("net/ipv4/conf/all/send_redirects", "0")?;
            sysctl("net/ipv4/conf/default/send_redirects", "0")
        })?;
        // The first that asks loads what tracks connections: before, its settings aren't there.
        entries(net, n)?;
        net.node(n).inside(|| {
            tracking("tcp_loose", if rules == Rules::Strict { "0" } else { "1" })?;
            // As the guide has it: once the router has moved a flow, no node sees both of its directions.
            tracking("tcp_be_liberal", "1")
        })?;
        nft(&net.node(n), &filter(rules))?;
    }
    Ok(())
}

/// The namespace of the backends, and their addresses.
#[must_use]
pub fn backends(net: &Net) -> (crate::netns::Netns, Vec<IpAddr>) {
    (net.ns("be"), BACKENDS.into_iter().map(IpAddr::V4).collect())
}

/// Open flows to the VIP in `n`'s connection table: the client's port, and what backends answer to.
///
/// # Errors
/// conntrack isn't there, or failed.
pub fn entries(net: &Net, n: Node) -> Result<BTreeMap<u16, IpAddr>> {
    let mut c = net.node(n).command("conntrack");
    let out = c.args(["-L", "-p", "tcp", "-d", &VIP.to_string()]).output().context("start conntrack")?;
    if !out.status.success() {
        bail!("conntrack -L: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).lines().filter_map(entry).collect())
}

fn entry(line: &str) -> Option<(u16, IpAddr)> {
    let open = line.contains("[ASSURED]") && line.contains(" ESTABLISHED ");
    let of =
        |key: &str, nth: usize| line.split_whitespace().filter_map(|w| w.strip_prefix(key)).nth(nth).map(str::to_owned);
    let wanted = open && of("dport=", 0)? == PORT.to_string();
    let (port, answered) = (of("sport=", 0)?.parse().ok()?, of("dst=", 1)?.parse().ok()?);
    wanted.then_some((port, answered))
}

/// Which node the router sends flows from each of the client's ports to now.
///
/// # Errors
/// `ip` can't be run.
pub fn paths(net: &Net, ports: &BTreeSet<u16>) -> Result<BTreeMap<u16, Node>> {
    let client = crate::bgp::net::CLIENT;
    let script: String = ports
        .iter()
        .map(|p| format!("route get {VIP} from {client} iif eth0 ipproto tcp sport {p} dport {PORT}\n"))
        .collect();
    let mut c = std::process::Command::new("ip");
    c.args(["-n", net.ns("rt").name(), "-oneline", "-batch", "-"]);
    c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = c.spawn().context("start ip")?;
    let mut stdin = child.stdin.take().context("stdin was asked for")?;
    let feeder = std::thread::spawn(move || stdin.write_all(script.as_bytes()));
    let out = child.wait_with_output()?;
    let _said_by_ip_itself = feeder.join();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let said: Vec<Option<Node>> = text.lines().filter(|l| l.contains(&VIP.to_string())).map(hop).collect();
    if said.len() != ports.len() {
        bail!("{} of {} paths: {}", said.len(), ports.len(), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(ports.iter().zip(said).filter_map(|(p, n)| Some((*p, n?))).collect())
}

/// The next hop in a line of `ip route get`.
fn hop(line: &str) -> Option<Node> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let via = words.windows(2).find(|w| w[0] == "via")?[1];
    Node::with_address(via.parse().ok()?)
}

/// Whether `n`'s kernel has this address.
#[must_use]
pub fn holds(net: &Net, n: Node, ip: Ipv4Addr) -> bool {
    let found = net.node(n).inside(|| {
        let mut all = nix::ifaddrs::getifaddrs()?;
        Ok(all.any(|a| a.address.and_then(|s| s.as_sockaddr_in().map(|s| s.ip())) == Some(ip)))
    });
    found.unwrap_or(false)
}

fn cables(net: &Net, n: Node, plugged: bool) -> Result<()> {
    let (name, state) = (n.name(), if plugged { "up" } else { "down" });
    let ports = [n.port(), format!("q-{name}"), format!("c-{name}")];
    let script: String = ports.iter().map(|p| format!("link set dev {p} {state}\n")).collect();
    ip_batch(Some(&net.ns("sw")), &script)
}

/// The power of `n` goes: no process does anything any more, no cable has a carrier, and what its kernel knew is gone.
///
/// # Errors
/// It could not be done.
pub fn power_off(net: &Net, n: Node) -> Result<()> {
    let pids = net.node(n).pids();
    let all: Vec<Pidfd> = pids.iter().filter_map(|&p| Pidfd::open(p).ok()).collect();
    // First nobody acts, then nothing is heard, then they end: none of them gets to say a last word.
    for p in &all {
        let _ended = p.signal(Signal::STOP);
    }
    cables(net, n, false)?;
    pids.into_iter().for_each(kill_pid);
    let script = format!("addr flush dev lo to {VIP}/32\naddr flush dev eth1 to {SNATS}\n");
    ip_batch(Some(&net.node(n)), &script)?;
    nft(&net.node(n), "flush ruleset\n")?;
    let flushed = net.node(n).command("conntrack").arg("-F").output().context("start conntrack")?;
    if !flushed.status.success() {
        bail!("conntrack -F: {}", String::from_utf8_lossy(&flushed.stderr).trim());
    }
    Ok(())
}

/// Power again: the cables, the way to the router, and the host's own rules. Programs are started by whoever starts them.
///
/// # Errors
/// It could not be done.
pub fn power_on(net: &Net, n: Node, rules: Rules) -> Result<()> {
    nft(&net.node(n), &filter(rules))?;
    cables(net, n, true)?;
    // With the carrier went the routes over the link.
    std::thread::sleep(std::time::Duration::from_millis(100));
    ip_batch(Some(&net.node(n)), &format!("route replace default via {ROUTER}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_flow_to_the_service_is_read_with_what_backends_answer_to() {
        let line = |state: &str, port: u16, end: &str| {
            format!(
                "tcp      6 431999 {state} src=10.50.0.2 dst=10.99.0.1 sport=40000 dport={port} src=10.70.0.21 \
                 dst=10.70.0.98 sport=9000 dport=40000 {end}mark=0 use=1"
            )
        };
        let wanted = Some((40000, IpAddr::V4(snat(Node(1)))));
        assert_eq!(entry(&line("ESTABLISHED", PORT, "[ASSURED] ")), wanted);
        assert_eq!(entry(&line("ESTABLISHED", 7007, "[ASSURED] ")), None);
        assert_eq!(entry(&line("ESTABLISHED", PORT, "")), None);
        assert_eq!(entry(&line("TIME_WAIT", PORT, "[ASSURED] ")), None);
        assert_eq!(entry(""), None);
    }

    #[test]
    fn a_next_hop_is_read_from_what_ip_says() {
        let said = "10.99.0.1 from 10.50.0.2 via 10.60.0.13 dev eth1 mark 0x4d \\    cache iif eth0 ";
        assert_eq!(hop(said), Some(Node(2)));
        assert_eq!(hop("broadcast 10.99.0.1 dev lo"), None);
    }
}
