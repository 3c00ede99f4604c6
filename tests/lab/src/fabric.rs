//! The network every drill runs in, made of namespaces:
//!
//! ```text
//!   client ─┐                         ┌─ b1
//!   obs ────┤ br0 (sw) ─ lb1 ─ br1 ───┼─ b2
//!           └────────── lb2 ───┘      └─ b3        lb1 ── eth2 ── lb2   (the peers' channel)
//! ```
//!
//! `eth0` faces the client (192.168.77.0/24, the VIP is .10), `eth1` the backends (10.2.0.0/24), `eth2` is the
//! channel's own link (10.1.0.0/24). `obs` only watches and probes: it has its own MAC, so that its ARP probes never
//! refresh the client's neighbour entry, which would hide a missing gratuitous ARP.

use crate::clock::{Ns, now};
use crate::netns::Netns;
use crate::residue::Residue;
use anyhow::{Context, Result, bail};
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// The virtual IP.
pub const VIP: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 10);
/// The VIP's VRID.
pub const VRID: u8 = 10;
/// The backends' addresses.
pub const BACKENDS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(10, 2, 0, 21), Ipv4Addr::new(10, 2, 0, 22), Ipv4Addr::new(10, 2, 0, 23)];
/// The port backends listen on.
pub const BACKEND_PORT: u16 = 8080;
/// The UDP echo responder's port on both load balancers.
pub const ECHO_PORT: u16 = 7007;

/// One of the two load balancers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lb {
    /// Priority 254: Active when all is well.
    Lb1,
    /// Priority 253.
    Lb2,
}

impl Lb {
    /// Both, in order.
    pub const BOTH: [Self; 2] = [Self::Lb1, Self::Lb2];

    /// Its name, also its namespace's last part.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lb1 => "lb1",
            Self::Lb2 => "lb2",
        }
    }

    /// 0 or 1.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Lb1 => 0,
            Self::Lb2 => 1,
        }
    }

    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Lb1 => Self::Lb2,
            Self::Lb2 => Self::Lb1,
        }
    }

    /// VRRP priority.
    #[must_use]
    pub fn priority(self) -> u8 {
        match self {
            Self::Lb1 => 254,
            Self::Lb2 => 253,
        }
    }

    /// Address towards the client.
    #[must_use]
    pub fn front(self) -> Ipv4Addr {
        match self {
            Self::Lb1 => Ipv4Addr::new(192, 168, 77, 11),
            Self::Lb2 => Ipv4Addr::new(192, 168, 77, 12),
        }
    }

    /// Address towards the backends.
    #[must_use]
    pub fn back(self) -> Ipv4Addr {
        match self {
            Self::Lb1 => Ipv4Addr::new(10, 2, 0, 11),
            Self::Lb2 => Ipv4Addr::new(10, 2, 0, 12),
        }
    }

    /// Address on the channel's link.
    #[must_use]
    pub fn channel(self) -> Ipv4Addr {
        match self {
            Self::Lb1 => Ipv4Addr::new(10, 1, 0, 11),
            Self::Lb2 => Ipv4Addr::new(10, 1, 0, 12),
        }
    }

    /// Which one has that address towards the client.
    #[must_use]
    pub fn with_front(ip: Ipv4Addr) -> Option<Self> {
        Self::BOTH.into_iter().find(|l| l.front() == ip)
    }

    /// The name of its port on the client-side bridge.
    #[must_use]
    pub fn port(self) -> String {
        format!("p-{}", self.name())
    }
}

/// A long-running `ip` or `bridge` in batch mode, so that a fault costs one write and no program start.
#[derive(Debug)]
pub struct Batch {
    child: Child,
    input: Option<ChildStdin>,
    complaints: PathBuf,
}

impl Batch {
    /// Starts it for the namespace `ns`; what it complains about goes to a file in `directory`.
    ///
    /// # Errors
    /// The program can't be started.
    pub(crate) fn start(program: &str, ns: &Netns, directory: &Path) -> Result<Self> {
        let complaints = directory.join(format!("{}-{program}.err", ns.name()));
        let mut child = Command::new(program)
            .args(["-force", "-n", ns.name(), "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&complaints)?)
            .spawn()
            .with_context(|| format!("start {program}"))?;
        let input = child.stdin.take();
        Ok(Self { child, input, complaints })
    }

    /// Runs one line; returns the time just before it was written.
    ///
    /// # Errors
    /// The program ended.
    pub fn line(&mut self, line: &str) -> Result<Ns> {
        let input = self.input.as_mut().context("batch is open until dropped")?;
        let t = now();
        input.write_all(format!("{line}\n").as_bytes()).context("write to the batch")?;
        input.flush()?;
        Ok(t)
    }

    /// What the program complained about so far; empty when every line worked.
    #[must_use]
    pub fn complaints(&self) -> String {
        std::fs::read_to_string(&self.complaints).unwrap_or_default()
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        drop(self.input.take()); // end of file ends it
        let _reaped = self.child.wait();
    }
}

/// The namespaces, their wiring, and the hands that change it. Dropping it removes everything.
#[derive(Debug)]
pub struct Fabric {
    residue: Residue,
    switch_ip: Batch,
    switch_bridge: Batch,
    lb_ip: [Batch; 2],
}

/// Every namespace's last part.
pub const NODES: [&str; 8] = ["sw", "client", "obs", "lb1", "lb2", "b1", "b2", "b3"];

impl Fabric {
    /// Builds it.
    ///
    /// # Errors
    /// Not root, iproute2 missing, or the kernel lacks veth or bridge; what was built is removed again.
    pub fn up(keep_directory: bool) -> Result<Self> {
        let residue = Residue::create(keep_directory)?;
        Self::build(&residue).inspect_err(|_| residue.remove())
    }

    fn build(residue: &Residue) -> Result<Self> {
        let p = &residue.prefix;
        let ns = |node: &str| Netns::named(format!("{p}-{node}"));
        let mut script: String = NODES.iter().map(|n| format!("netns add {p}-{n}\n")).collect();
        let mut veth = |a: &str, adev: &str, b: &str, bdev: &str| {
            script += &format!("link add name {adev} netns {p}-{a} type veth peer name {bdev} netns {p}-{b}\n");
        };
        for node in ["client", "obs", "lb1", "lb2"] {
            veth(node, "eth0", "sw", &format!("p-{node}"));
        }
        for node in ["lb1", "lb2"] {
            veth(node, "eth1", "sw", &format!("q-{node}"));
        }
        for node in ["b1", "b2", "b3"] {
            veth(node, "eth0", "sw", &format!("q-{node}"));
        }
        veth("lb1", "eth2", "lb2", "eth2");
        ip_batch(None, &script)?;
        for node in NODES {
            ns(node).inside(|| {
                // dad_transmits and accept_dad: an IPv6 address must not be tentative for a second.
                sysctl("net/ipv6/conf/all/dad_transmits", "0")?;
                sysctl("net/ipv6/conf/default/dad_transmits", "0")?;
                sysctl("net/ipv6/conf/default/accept_dad", "0")?;
                sysctl("net/ipv4/ip_forward", "0")?;
                sysctl("net/ipv4/conf/all/rp_filter", "0")?;
                sysctl("net/ipv4/conf/default/rp_filter", "0")
            })?;
        }
        ip_batch(Some(&ns("sw")), &switch_script())?;
        let host = |addresses: &[(&str, Ipv4Addr)]| {
            let mut s = String::from("link set dev lo up\n");
            for (dev, ip) in addresses {
                s += &format!("addr add {ip}/24 dev {dev}\nlink set dev {dev} up\n");
            }
            s
        };
        ip_batch(Some(&ns("client")), &host(&[("eth0", Ipv4Addr::new(192, 168, 77, 1))]))?;
        ip_batch(Some(&ns("obs")), &host(&[("eth0", Ipv4Addr::new(192, 168, 77, 2))]))?;
        for lb in Lb::BOTH {
            let links = [("eth0", lb.front()), ("eth1", lb.back()), ("eth2", lb.channel())];
            ip_batch(Some(&ns(lb.name())), &host(&links))?;
        }
        for (node, ip) in ["b1", "b2", "b3"].into_iter().zip(BACKENDS) {
            ip_batch(Some(&ns(node)), &host(&[("eth0", ip)]))?;
        }
        Ok(Self {
            residue: residue.clone(),
            switch_ip: Batch::start("ip", &ns("sw"), &residue.directory)?,
            switch_bridge: Batch::start("bridge", &ns("sw"), &residue.directory)?,
            lb_ip: [
                Batch::start("ip", &ns("lb1"), &residue.directory)?,
                Batch::start("ip", &ns("lb2"), &residue.directory)?,
            ],
        })
    }

    /// A node's namespace.
    #[must_use]
    pub fn ns(&self, node: &str) -> Netns {
        Netns::named(format!("{}-{node}", self.residue.prefix))
    }

    /// A load balancer's namespace.
    #[must_use]
    pub fn lb(&self, lb: Lb) -> Netns {
        self.ns(lb.name())
    }

    /// The processes that live on `lb`, but for the tool that changes its network.
    #[must_use]
    pub fn processes(&self, lb: Lb) -> Vec<i32> {
        let tool = i32::try_from(self.lb_ip[lb.index()].child.id()).ok();
        self.lb(lb).pids().into_iter().filter(|p| Some(*p) != tool).collect()
    }

    /// The temporary directory, readable by all.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.residue.directory
    }

    /// `hf<pid>x<random>`.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.residue.prefix
    }

    /// Keeps the directory when the fabric goes.
    pub fn keep_directory(&mut self) -> PathBuf {
        self.residue.keep_directory = true;
        self.residue.register();
        self.residue.directory.clone()
    }

    /// Leaves namespaces and directory in place when this value goes (`lab up`).
    pub fn leave(self) -> Residue {
        let r = self.residue.clone();
        std::mem::forget(self);
        r
    }

    /// Switch-side port of `lb` down: the host loses its carrier. Returns the time.
    ///
    /// # Errors
    /// The switch's `ip` ended.
    pub fn cable(&mut self, lb: Lb, plugged: bool) -> Result<Ns> {
        let state = if plugged { "up" } else { "down" };
        self.switch_ip.line(&format!("link set dev {} {state}", lb.port()))
    }

    /// All cables of `lb`: to the clients, to the backends, to the other one. Returns the time of the first.
    ///
    /// # Errors
    /// A tool that changes the network ended.
    pub fn host_cables(&mut self, lb: Lb, plugged: bool) -> Result<Ns> {
        let state = if plugged { "up" } else { "down" };
        let at = self.cable(lb, plugged)?;
        self.switch_ip.line(&format!("link set dev q-{} {state}", lb.name()))?;
        self.lb_ip[lb.other().index()].line(&format!("link set dev eth2 {state}"))?;
        Ok(at)
    }

    /// The switch drops every frame from and to that port while its carrier stays up. Returns the time.
    ///
    /// # Errors
    /// The switch's `bridge` ended.
    pub fn forwarding(&mut self, lb: Lb, on: bool) -> Result<Ns> {
        self.port_forwarding(&lb.port(), on)
    }

    /// [`Self::forwarding`] for any client-side port, by its name on the switch.
    ///
    /// # Errors
    /// The switch's `bridge` ended.
    pub fn port_forwarding(&mut self, port: &str, on: bool) -> Result<Ns> {
        self.switch_bridge.line(&format!("link set dev {port} state {}", if on { 3 } else { 0 }))
    }

    /// Takes the VIP from `lb`'s eth0 behind the agent's back. Returns the time.
    ///
    /// # Errors
    /// The host's `ip` ended.
    pub fn delete_vip(&mut self, lb: Lb) -> Result<Ns> {
        self.lb_ip[lb.index()].line(&format!("addr del {VIP}/32 dev eth0"))
    }
}

impl Fabric {
    /// What the tools that change the network complained about; a fault that failed shows here.
    #[must_use]
    pub fn complaints(&self) -> String {
        let all = [&self.switch_ip, &self.switch_bridge, &self.lb_ip[0], &self.lb_ip[1]];
        all.map(Batch::complaints).concat()
    }

    /// The MAC of `lb` on the client's segment.
    ///
    /// # Errors
    /// The namespace or its eth0 is gone.
    pub fn mac(&self, lb: Lb) -> Result<[u8; 6]> {
        self.lb(lb).inside(|| {
            let eth0 = pnet::datalink::interfaces().into_iter().find(|i| i.name == "eth0");
            Ok(eth0.and_then(|i| i.mac).context("eth0 has a MAC")?.octets())
        })
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.residue.remove();
    }
}

fn switch_script() -> String {
    let mut s = String::from("link set dev lo up\n");
    for br in ["br0", "br1"] {
        s += &format!("link add name {br} type bridge forward_delay 0 stp_state 0 mcast_snooping 0\n");
        s += &format!("link set dev {br} up\n");
    }
    let front = ["client", "obs", "lb1", "lb2"].map(|n| (format!("p-{n}"), "br0"));
    let back = ["lb1", "lb2", "b1", "b2", "b3"].map(|n| (format!("q-{n}"), "br1"));
    for (port, br) in front.into_iter().chain(back) {
        s += &format!("link set dev {port} master {br}\nlink set dev {port} up\n");
    }
    s
}

pub(crate) fn sysctl(path: &str, value: &str) -> Result<()> {
    let file = Path::new("/proc/sys").join(path);
    if !file.exists() {
        return Ok(()); // a kernel without IPv6, say
    }
    std::fs::write(&file, value).with_context(|| format!("set {path} to {value}"))
}

/// Runs a batch of `ip` lines, in `ns` when given.
///
/// # Errors
/// The first line that fails, with what `ip` said.
pub fn ip_batch(ns: Option<&Netns>, script: &str) -> Result<()> {
    let mut c = Command::new("ip");
    if let Some(ns) = ns {
        c.args(["-n", ns.name()]);
    }
    c.args(["-batch", "-"]);
    fed(c, "ip", script)
}

/// Loads nftables rules in `ns`.
///
/// # Errors
/// nft isn't installed, or what it refused.
pub(crate) fn nft(ns: &Netns, script: &str) -> Result<()> {
    let mut c = ns.command("nft");
    c.args(["-f", "-"]);
    fed(c, "nft", script)
}

fn fed(mut command: Command, name: &str, script: &str) -> Result<()> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("start {name}"))?;
    child.stdin.take().context("stdin was asked for")?.write_all(script.as_bytes())?;
    let out = child.wait_with_output()?;
    if !out.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}

/// Polls `done` every `step` until it is true or `timeout` has passed.
///
/// # Errors
/// Whatever `done` returns.
pub fn wait_for(timeout: Duration, step: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<bool> {
    let end = now() + u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX / 2);
    loop {
        if done()? {
            return Ok(true);
        }
        if now() >= end {
            return Ok(false);
        }
        std::thread::sleep(step);
    }
}
