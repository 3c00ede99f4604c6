//! FRR as the router: zebra, bgpd and, where sessions have BFD, bfdd.

use super::{Neighbour, Remote, Router, Setup, find};
use crate::bgp::net::{Net, Node, ROUTER};
use crate::fabric::wait_for;
use crate::netns::Netns;
use crate::process::{Proc, tail};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The daemons.
#[derive(Debug)]
pub struct Frr {
    ns: Netns,
    setup: Setup,
    daemons: Vec<Proc>,
    /// Its files and sockets: they belong to FRR's own user, so no other file may lie there.
    home: PathBuf,
}

impl Frr {
    /// One that isn't started yet.
    ///
    /// # Errors
    /// FRR isn't installed, or its directory can't be made.
    pub fn new(net: &Net, setup: Setup) -> Result<Self> {
        ["zebra", "bgpd", "bfdd", "vtysh"].iter().try_for_each(|p| find(p).map(|_| ()))?;
        let home = net.file("rt-frr");
        std::fs::create_dir_all(&home)?;
        Ok(Self { ns: net.ns("rt"), setup, daemons: Vec::new(), home })
    }

    fn bgpd(&self) -> String {
        let asn = self.setup.asn;
        let mut t = format!(
            "router bgp {asn}\n bgp router-id {ROUTER}\n no bgp ebgp-requires-policy\n no bgp default ipv4-unicast\n \
             bgp bestpath as-path multipath-relax\n bgp enforce-first-as\n"
        );
        if self.setup.retain {
            t += " bgp graceful-restart\n bgp graceful-restart preserve-fw-state\n";
        }
        self.setup.neighbours.iter().for_each(|n| self.session(n, &mut t));
        for family in ["ipv4", "ipv6"] {
            let wanted = |n: &&Neighbour| if family == "ipv4" { n.ipv4 } else { n.ipv6 };
            if !self.setup.neighbours.iter().any(|n| wanted(&n)) {
                continue;
            }
            let _ = writeln!(t, " address-family {family} unicast\n  maximum-paths 8\n  maximum-paths ibgp 8");
            for n in self.setup.neighbours.iter().filter(wanted) {
                let _ = writeln!(t, "  neighbor {} activate", name(n));
            }
            let _ = writeln!(t, " exit-address-family");
        }
        t + "exit\n"
    }

    fn session(&self, n: &Neighbour, t: &mut String) {
        let (peer, hold) = (name(n), n.hold_s);
        match n.remote {
            Remote::Address(_) => {
                let _ = writeln!(t, " neighbor {peer} remote-as {}", n.asn);
                if peer.starts_with("fe80") {
                    let _ = writeln!(t, " neighbor {peer} interface eth1");
                }
            }
            Remote::Interface => {
                let _ = writeln!(t, " neighbor {peer} interface remote-as {}", n.asn);
            }
        }
        let _ = writeln!(t, " neighbor {peer} timers {} {hold}\n neighbor {peer} timers connect 1", (hold / 3).max(1));
        let _ = writeln!(t, " neighbor {peer} advertisement-interval 0");
        if let Some(p) = &n.password {
            let _ = writeln!(t, " neighbor {peer} password {p}");
        }
        if n.ttl_security {
            let _ = writeln!(t, " neighbor {peer} ttl-security hops 1");
        }
        if let Some(hops) = n.multihop {
            let _ = writeln!(t, " neighbor {peer} ebgp-multihop {hops}\n neighbor {peer} update-source {}", n.local);
        }
        if n.two_octet {
            let _ = writeln!(t, " neighbor {peer} dont-capability-negotiate");
        }
        if n.extended_next_hop {
            let _ = writeln!(t, " neighbor {peer} capability extended-nexthop");
        }
        if n.passive {
            let _ = writeln!(t, " neighbor {peer} passive");
        }
        if n.bfd.is_some() {
            let _ = writeln!(t, " neighbor {peer} bfd\n neighbor {peer} bfd profile lab");
        }
    }

    fn bfdd(&self) -> Option<String> {
        let b = self.setup.bfd()?;
        Some(format!(
            "bfd\n profile lab\n  detect-multiplier {}\n  transmit-interval {1}\n  receive-interval {1}\n exit\nexit\n",
            b.multiplier, b.interval_ms
        ))
    }

    fn daemon(&mut self, what: &str, configuration: &str, more: &[&str]) -> Result<()> {
        let file = self.home.join(format!("{what}.conf"));
        std::fs::write(&file, format!("hostname rt\n{configuration}"))?;
        let vty = format!("{what}.vty");
        let _absent = std::fs::remove_file(self.home.join(&vty));
        let mut c = self.ns.command(find(what)?);
        c.arg("-f").arg(&file).arg("-i").arg(self.home.join(format!("{what}.pid")));
        c.arg("-z").arg(self.home.join("zserv")).arg("--vty_socket").arg(&self.home).args([
            "-A",
            "127.0.0.1",
            "-P",
            "0",
        ]);
        c.arg("--log").arg(format!("file:{}", self.home.join(format!("{what}.log")).display())).args(more);
        let out = self.home.with_file_name(format!("rt-{what}.log"));
        self.daemons.push(Proc::start(format!("{what} on rt"), c, &out)?);
        let wanted = if what == "zebra" { "zserv" } else { &vty };
        let path = self.home.join(wanted);
        if !wait_for(Duration::from_secs(10), Duration::from_millis(10), || Ok(path.exists()))? {
            bail!("{what} makes no {wanted}: {}", tail(&out, 5));
        }
        Ok(())
    }

    /// What `vtysh` answers.
    ///
    /// # Errors
    /// No answer.
    pub fn ask(&self, lines: &[&str]) -> Result<String> {
        let mut c = Command::new(find("vtysh")?);
        c.arg("--vty_socket").arg(&self.home);
        lines.iter().for_each(|line| {
            c.args(["-c", line]);
        });
        let out = c.output().context("run vtysh")?;
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        if !out.status.success() {
            bail!("vtysh {lines:?}: {said}{}", String::from_utf8_lossy(&out.stderr));
        }
        Ok(said)
    }

    fn json(&self, question: &str) -> Value {
        self.ask(&[question]).ok().and_then(|s| serde_json::from_str(&s).ok()).unwrap_or_default()
    }

    fn peer(&self, node: Node) -> Option<String> {
        self.setup.neighbours.iter().find(|n| n.node == node).map(name)
    }
}

/// What FRR calls it.
fn name(n: &Neighbour) -> String {
    match n.remote {
        Remote::Address(ip) => ip.to_string(),
        Remote::Interface => "eth1".to_owned(),
    }
}

impl Router for Frr {
    fn start(&mut self) -> Result<()> {
        self.daemons.clear();
        let _absent = std::fs::remove_file(self.home.join("zserv"));
        let owned = Command::new("chown").args(["-R", "frr:frr"]).arg(&self.home).output().context("run chown")?;
        ensure!(owned.status.success(), "chown: {}", String::from_utf8_lossy(&owned.stderr));
        let keep: &[&str] = if self.setup.retain { &["-K", "30"] } else { &[] };
        self.daemon("zebra", "", keep)?;
        if let Some(bfd) = self.bfdd() {
            let socket = self.home.join("bfdd.sock").display().to_string();
            self.daemon("bfdd", &bfd, &["--bfdctl", &socket])?;
        }
        let bgpd = self.bgpd();
        self.daemon("bgpd", &bgpd, &["-p", "179"])
    }

    fn daemons(&mut self) -> &mut Vec<Proc> {
        &mut self.daemons
    }

    fn established(&self, node: Node) -> bool {
        let Some(peer) = self.peer(node) else { return false };
        let said = self.json(&format!("show bgp neighbors {peer} json"));
        said[&peer]["bgpState"] == "Established"
    }

    fn bfd_up(&self, node: Node) -> bool {
        let Some(peer) = self.peer(node) else { return false };
        let all = self.json("show bfd peers json");
        all.as_array().is_some_and(|a| a.iter().any(|p| p["peer"] == peer.as_str() && p["status"] == "up"))
    }

    fn clear(&self) -> Result<()> {
        self.ask(&["clear bgp *"]).map(|_| ())
    }

    fn told(&self) -> String {
        let asked =
            ["show bgp neighbors", "show bfd peers", "show bgp ipv4 unicast", "show bgp ipv6 unicast", "show ip route"];
        let said = asked.map(|q| self.ask(&[q]).unwrap_or_else(|e| format!("{e:#}\n"))).concat();
        format!("{said}{}{}", tail(&self.home.join("bgpd.log"), 25), tail(&self.home.join("zebra.log"), 10))
    }
}
