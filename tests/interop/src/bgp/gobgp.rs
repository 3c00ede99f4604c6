//! gobgpd as the router; it has a table, but without zebra no way into the kernel's.

use anyhow::{Context, Result, bail};
use holdfast_lab::bgp::net::{Net, Node, ROUTER};
use holdfast_lab::bgp::router::{Neighbour, Remote, Router, Setup, find};
use holdfast_lab::fabric::wait_for;
use holdfast_lab::netns::Netns;
use holdfast_lab::process::{Proc, tail};
use serde_json::Value;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The daemon.
#[derive(Debug)]
pub struct Gobgp {
    ns: Netns,
    setup: Setup,
    daemons: Vec<Proc>,
    file: PathBuf,
    log: PathBuf,
}

impl Gobgp {
    /// One that isn't started yet.
    ///
    /// # Errors
    /// It isn't installed.
    pub fn new(net: &Net, setup: Setup) -> Result<Self> {
        find("gobgpd")?;
        find("gobgp")?;
        Ok(Self {
            ns: net.ns("rt"),
            setup,
            daemons: Vec::new(),
            file: net.file("rt-gobgp.toml"),
            log: net.file("rt-gobgp.log"),
        })
    }

    fn configuration(&self) -> String {
        let mut t = format!("[global.config]\n  as = {}\n  router-id = \"{ROUTER}\"\n  port = 179\n", self.setup.asn);
        for n in &self.setup.neighbours {
            let Remote::Address(remote) = n.remote else { continue };
            let _ = writeln!(
                t,
                "[[neighbors]]\n  [neighbors.config]\n    neighbor-address = \"{remote}\"\n    peer-as = {}",
                n.asn
            );
            if let Some(p) = &n.password {
                let _ = writeln!(t, "    auth-password = \"{p}\"");
            }
            let _ = writeln!(
                t,
                "  [neighbors.timers.config]\n    connect-retry = 1\n    idle-hold-time-after-reset = 1\n    \
                 hold-time = {}\n    keepalive-interval = {}",
                n.hold_s,
                (n.hold_s / 3).max(1)
            );
            let _ = writeln!(t, "  [neighbors.transport.config]\n    local-address = \"{}\"", n.local);
            if n.passive {
                let _ = writeln!(t, "    passive-mode = true");
            }
            if n.ttl_security {
                let _ = writeln!(t, "  [neighbors.ttl-security.config]\n    enabled = true\n    ttl-min = 255");
            }
            families(n, &mut t);
        }
        t
    }

    fn ask(&self, words: &[&str]) -> Result<Value> {
        let out = self.ns.command("gobgp").args(words).arg("-j").output().context("run gobgp")?;
        let said = String::from_utf8_lossy(&out.stdout);
        if !out.status.success() {
            bail!("gobgp {words:?}: {said}{}", String::from_utf8_lossy(&out.stderr));
        }
        Ok(serde_json::from_str(&said).unwrap_or_default())
    }

    /// Whether it has a route to that host.
    #[must_use]
    pub fn has(&self, vip: IpAddr) -> bool {
        let (family, length) = if vip.is_ipv4() { ("ipv4", 32) } else { ("ipv6", 128) };
        let table = self.ask(&["global", "rib", "-a", family]).unwrap_or_default();
        table.as_object().is_some_and(|t| t.contains_key(&format!("{vip}/{length}")))
    }

    fn remote(&self, node: Node) -> Option<String> {
        self.setup.neighbours.iter().find(|n| n.node == node).and_then(|n| match n.remote {
            Remote::Address(ip) => Some(ip.to_string()),
            Remote::Interface => None,
        })
    }
}

fn families(n: &Neighbour, t: &mut String) {
    for name in [n.ipv4.then_some("ipv4-unicast"), n.ipv6.then_some("ipv6-unicast")].into_iter().flatten() {
        let _ = writeln!(
            t,
            "  [[neighbors.afi-safis]]\n    [neighbors.afi-safis.config]\n      afi-safi-name = \"{name}\""
        );
    }
}

impl Router for Gobgp {
    fn start(&mut self) -> Result<()> {
        std::fs::write(&self.file, self.configuration())?;
        let mut c = self.ns.command(find("gobgpd")?);
        c.args(["-t", "toml", "--api-hosts", "127.0.0.1:50051", "-f"]).arg(&self.file);
        self.daemons = vec![Proc::start("gobgpd on rt", c, &self.log)?];
        let answers = || Ok(self.ask(&["neighbor"]).is_ok_and(|v| !v.is_null()));
        if !wait_for(Duration::from_secs(15), Duration::from_millis(50), answers)? {
            bail!("gobgpd doesn't answer: {}", tail(&self.log, 5));
        }
        Ok(())
    }

    fn daemons(&mut self) -> &mut Vec<Proc> {
        &mut self.daemons
    }

    fn established(&self, node: Node) -> bool {
        const ESTABLISHED: u64 = 6;
        let Some(remote) = self.remote(node) else { return false };
        let said = self.ask(&["neighbor", &remote]).unwrap_or_default();
        said["state"]["session_state"].as_u64() == Some(ESTABLISHED)
    }

    fn bfd_up(&self, _node: Node) -> bool {
        false
    }

    fn clear(&self) -> Result<()> {
        bail!("after a reset it stays idle for 30 s: it is started anew")
    }

    fn told(&self) -> String {
        let said = self.ask(&["neighbor"]).map_or_else(|e| format!("{e:#}"), |v| v.to_string());
        format!("{said}\n{}", tail(&self.log, 25))
    }
}
