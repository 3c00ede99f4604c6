//! What flows need beyond the fabric of all drills: IPv6, load balancers that forward, a way back through the one that
//! has the VIP, rules, and a host that loses its power.

use crate::clock::Ns;
use crate::fabric::{BACKENDS, Fabric, Lb, VIP, ip_batch, nft, sysctl, wait_for};
use crate::process::{Pidfd, Stat, kill_pid};
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The VIP's IPv6 address.
pub const VIP6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 0x10);
/// The backends' way to the clients; moves with the VIP.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 1);
/// The same for IPv6.
pub const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 1);
/// Where SNAT's flows come from; moves with the VIP.
pub const SNAT: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 100);
/// The same for IPv6.
pub const SNAT6: Ipv6Addr = Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 0x100);
/// The VIP's port of the services whose backends see the client, TCP and UDP.
pub const DNAT_PORT: u16 = 8001;
/// That of those whose backends see [`SNAT`].
pub const SNAT_PORT: u16 = 8002;
/// The backends' port.
pub const BACKEND_PORT: u16 = 9000;
/// How long the kernel keeps a UDP flow after its last packet, seconds.
pub const UDP_TIMEOUT_S: u32 = 6;

/// How hard the load balancers' rules are on packets of flows that they don't know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rules {
    /// `nf_conntrack_tcp_loose = 0`, and what is invalid or begins in the middle is dropped.
    #[default]
    Strict,
    /// The kernel's default: a flow may be picked up in the middle.
    Loose,
}

impl Rules {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Loose => "loose",
        }
    }
}

/// How a flow reaches its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// IPv4, the backend sees the client.
    Dnat4,
    /// IPv4, the backend sees an address of the balancer.
    Snat4,
    /// As `Dnat4`, IPv6.
    Dnat6,
    /// As `Snat4`, IPv6.
    Snat6,
}

impl Path {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Dnat4, Self::Snat4, Self::Dnat6, Self::Snat6];

    /// Where clients connect to.
    #[must_use]
    pub fn address(self) -> SocketAddr {
        match self {
            Self::Dnat4 => (VIP, DNAT_PORT).into(),
            Self::Snat4 => (VIP, SNAT_PORT).into(),
            Self::Dnat6 => (VIP6, DNAT_PORT).into(),
            Self::Snat6 => (VIP6, SNAT_PORT).into(),
        }
    }

    /// The figure of its broken flows.
    #[must_use]
    pub fn broken_key(self) -> &'static str {
        match self {
            Self::Dnat4 => "broken_dnat4",
            Self::Snat4 => "broken_snat4",
            Self::Dnat6 => "broken_dnat6",
            Self::Snat6 => "broken_snat6",
        }
    }
}

/// The backends: node, and its addresses.
pub fn backends() -> impl Iterator<Item = (&'static str, [IpAddr; 2])> {
    ["b1", "b2", "b3"]
        .into_iter()
        .zip(BACKENDS)
        .map(|(node, ip)| (node, [ip.into(), sixth(0x2, ip.octets()[3]).into()]))
}

/// Host `n` of network `fd00:<net>::/64`.
fn sixth(net: u16, n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, net, 0, 0, 0, 0, 0, n.into())
}

/// Every address that moves with the VIP: address and prefix, interface.
#[must_use]
pub fn floating() -> [(String, &'static str); 6] {
    [
        (format!("{VIP}/32"), "eth0"),
        (format!("{VIP6}/128"), "eth0"),
        (format!("{GATEWAY}/32"), "eth1"),
        (format!("{GATEWAY6}/128"), "eth1"),
        (format!("{SNAT}/32"), "eth1"),
        (format!("{SNAT6}/128"), "eth1"),
    ]
}

/// Makes `fabric` forward.
///
/// # Errors
/// The kernel lacks something.
pub fn prepare(fabric: &Fabric, rules: Rules) -> Result<()> {
    for (node, devices) in [("client", &["eth0"][..]), ("b1", &["eth0"]), ("b2", &["eth0"]), ("b3", &["eth0"])] {
        no_duplicates(fabric, node, devices)?;
    }
    ip_batch(Some(&fabric.ns("client")), &format!("addr add {}/64 dev eth0 nodad\n", sixth(0x77, 1)))?;
    for (node, [_, six]) in backends() {
        let script = format!(
            "addr add {six}/64 dev eth0 nodad\nroute add default via {GATEWAY}\nroute add default via {GATEWAY6}\n"
        );
        ip_batch(Some(&fabric.ns(node)), &script)?;
    }
    for lb in Lb::BOTH {
        no_duplicates(fabric, lb.name(), &["eth0", "eth1", "eth2"])?;
        fabric.lb(lb).inside(|| {
            sysctl("net/ipv4/ip_forward", "1")?;
            sysctl("net/ipv4/conf/all/send_redirects", "0")?;
            sysctl("net/ipv6/conf/all/forwarding", "1")?;
            Ok(())
        })?;
        // The first that asks loads what tracks connections; before, these files aren't there, and what is missing would
        // be left as it is.
        entries(fabric, lb)?;
        fabric.lb(lb).inside(|| {
            tracking("tcp_loose", if rules == Rules::Strict { "0" } else { "1" })?;
            tracking("udp_timeout_stream", &UDP_TIMEOUT_S.to_string())
        })?;
        ip_batch(Some(&fabric.lb(lb)), &sixth_addresses(lb))?;
        nft(&fabric.lb(lb), &filter(rules))?;
    }
    Ok(())
}

/// Unlike what [`sysctl`] sets, without these a drill isn't what it says.
pub(super) fn tracking(what: &str, value: &str) -> Result<()> {
    let file = format!("/proc/sys/net/netfilter/nf_conntrack_{what}");
    std::fs::write(&file, value).with_context(|| format!("set {file} to {value}"))
}

/// Without this an IPv6 address that comes back with the carrier would be of no use for a second.
fn no_duplicates(fabric: &Fabric, node: &str, devices: &[&str]) -> Result<()> {
    fabric.ns(node).inside(|| {
        for d in devices {
            sysctl(&format!("net/ipv6/conf/{d}/accept_dad"), "0")?;
            sysctl(&format!("net/ipv6/conf/{d}/dad_transmits"), "0")?;
        }
        Ok(())
    })
}

fn sixth_addresses(lb: Lb) -> String {
    let [front, back] = [lb.front(), lb.back()].map(|ip| ip.octets()[3]);
    format!("addr add {}/64 dev eth0 nodad\naddr add {}/64 dev eth1 nodad\n", sixth(0x77, front), sixth(0x2, back))
}

/// What the host itself filters, whoever balances.
pub(super) fn filter(rules: Rules) -> String {
    match rules {
        Rules::Loose => String::new(),
        Rules::Strict => "table inet drill {\n chain early {\n type filter hook prerouting priority -150\n \
             ct state invalid counter drop\n }\n chain forward {\n type filter hook forward priority 0\n \
             ct state new tcp flags & (fin|syn|rst|ack) != syn counter drop\n }\n}\n"
            .to_owned(),
    }
}

/// How long processes may take to stop: a thread does when it runs next.
const STOPPED: Duration = Duration::from_millis(500);

/// The power of `lb` goes: no process does anything any more, no cable has a carrier, and what its kernel knew is gone.
/// Returns when the cables lost it.
///
/// # Errors
/// It could not be done.
pub fn power_off(fabric: &mut Fabric, lb: Lb) -> Result<Ns> {
    let pids = fabric.processes(lb);
    let all: Vec<Pidfd> = pids.iter().filter_map(|&p| Pidfd::open(p).ok()).collect();
    // First nobody acts, then nothing is heard, then they end: none of them gets to say a last word.
    for p in &all {
        let _ended = p.signal(Signal::STOP);
    }
    if !wait_for(STOPPED, Duration::ZERO, || Ok(all.iter().all(|p| is_stopped(p.pid()))))? {
        bail!("the processes on {} didn't stop within {} ms", lb.name(), STOPPED.as_millis());
    }
    let at = fabric.host_cables(lb, false)?;
    pids.into_iter().for_each(kill_pid);
    // The addresses first: the clients' side asks the kernel for them.
    let script = format!(
        "addr flush dev eth0 scope global\naddr flush dev eth1 scope global\n\
         addr add {}/24 dev eth0\naddr add {}/24 dev eth1\n{}",
        lb.front(),
        lb.back(),
        sixth_addresses(lb)
    );
    ip_batch(Some(&fabric.lb(lb)), &script)?;
    nft(&fabric.lb(lb), "flush ruleset\n")?;
    let flushed = fabric.lb(lb).command("conntrack").arg("-F").output().context("start conntrack")?;
    if !flushed.status.success() {
        bail!("conntrack -F: {}", String::from_utf8_lossy(&flushed.stderr).trim());
    }
    Ok(at)
}

/// Each of its threads has stopped, or it has ended. The signal alone is not enough: it is one thread that takes it, and
/// the others go on until that one ran. A protocol thread with priority then sees the cables go and hands over.
pub(super) fn is_stopped(pid: i32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let state = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        Some(Stat::parse(&stat)?.state)
    };
    tasks.filter_map(state).all(|state| matches!(state, 'T' | 't' | 'Z' | 'X'))
}

/// Power again: the cables, and the host's own rules. Programs are started by whoever starts them.
///
/// # Errors
/// It could not be done.
pub fn power_on(fabric: &mut Fabric, lb: Lb, rules: Rules) -> Result<()> {
    nft(&fabric.lb(lb), &filter(rules))?;
    fabric.host_cables(lb, true)?;
    Ok(())
}

/// How many flows to the VIP `lb`'s connection table has: those that clients' datagrams and segments keep alive.
///
/// # Errors
/// conntrack isn't there, or failed.
pub fn entries(fabric: &Fabric, lb: Lb) -> Result<usize> {
    let mut n = 0;
    for (family, vip) in [("ipv4", VIP.to_string()), ("ipv6", VIP6.to_string())] {
        let mut c = fabric.lb(lb).command("conntrack");
        let out = c.args(["-L", "-f", family, "-d", &vip]).output().context("start conntrack")?;
        if !out.status.success() {
            bail!("conntrack -L: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        n += text.lines().filter(|l| is_a_drills_flow(l)).count();
    }
    Ok(n)
}

/// To a service, and open: TCP that has answered, UDP that is kept.
fn is_a_drills_flow(line: &str) -> bool {
    let of_a_service = [DNAT_PORT, SNAT_PORT].iter().any(|p| line.contains(&format!(" dport={p} ")));
    of_a_service && line.contains("[ASSURED]") && !["TIME_WAIT", "CLOSE ", "LAST_ACK"].iter().any(|s| line.contains(s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_is_open_and_goes_to_a_service() {
        let flow = |state: &str, port: u16, end: &str| {
            format!(
                "tcp      6 431999 {state} src=192.168.77.1 dst=192.168.77.10 sport=40000 dport={port} src=10.2.0.21 \
                 dst=192.168.77.1 sport=9000 dport=40000 {end}mark=0 use=1"
            )
        };
        assert!(is_a_drills_flow(&flow("ESTABLISHED", DNAT_PORT, "[ASSURED] ")));
        assert!(is_a_drills_flow(&flow("CLOSE_WAIT", SNAT_PORT, "[ASSURED] ")));
        assert!(!is_a_drills_flow(&flow("ESTABLISHED", 7007, "[ASSURED] ")));
        assert!(!is_a_drills_flow(&flow("ESTABLISHED", DNAT_PORT, "[UNREPLIED] ")));
        assert!(!is_a_drills_flow(&flow("CLOSE", DNAT_PORT, "[ASSURED] ")));
    }
}
