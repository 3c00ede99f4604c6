//! ExaBGP as the router: it has no table of its own, but tells a helper what it hears, and the helper writes it down.

use anyhow::{Result, bail};
use holdfast_lab::bgp::net::{Net, Node, ROUTER};
use holdfast_lab::bgp::router::{Neighbour, Remote, Router, Setup, find};
use holdfast_lab::netns::Netns;
use holdfast_lab::process::{Proc, tail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The daemon.
#[derive(Debug)]
pub struct Exabgp {
    ns: Netns,
    setup: Setup,
    daemons: Vec<Proc>,
    file: PathBuf,
    heard: PathBuf,
    helper: PathBuf,
    log: PathBuf,
}

impl Exabgp {
    /// One that isn't started yet.
    ///
    /// # Errors
    /// It isn't installed.
    pub fn new(net: &Net, setup: Setup) -> Result<Self> {
        find("exabgp")?;
        let [file, heard, helper, log] =
            ["rt-exabgp.conf", "rt-exabgp.json", "rt-exabgp.sh", "rt-exabgp.log"].map(|f| net.file(f));
        // The shell stays, and with it the helper's own output: ExaBGP ends a helper that closes that.
        std::fs::write(&helper, format!("#!/bin/sh\ncat >> {}\ntrue\n", heard.display()))?;
        std::fs::set_permissions(&helper, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        Ok(Self { ns: net.ns("rt"), setup, daemons: Vec::new(), file, heard, helper, log })
    }

    fn configuration(&self) -> String {
        let mut t = format!("process heard {{\n run {};\n encoder json;\n}}\n", self.helper.display());
        for n in &self.setup.neighbours {
            self.session(n, &mut t);
        }
        t
    }

    fn session(&self, n: &Neighbour, t: &mut String) {
        let Remote::Address(remote) = n.remote else { return };
        let _ = writeln!(
            t,
            "neighbor {remote} {{\n router-id {ROUTER};\n local-address {};\n local-as {};\n peer-as {};\n hold-time {};",
            n.local, self.setup.asn, n.asn, n.hold_s
        );
        if let Some(p) = &n.password {
            let _ = writeln!(t, " md5-password \"{p}\";");
        }
        if n.ttl_security {
            let _ = writeln!(t, " outgoing-ttl 255;\n incoming-ttl 255;");
        }
        if n.passive {
            let _ = writeln!(t, " passive true;");
        }
        let four = if n.two_octet { "disable" } else { "enable" };
        let _ = writeln!(t, " capability {{\n  asn4 {four};\n  route-refresh enable;\n }}\n family {{");
        for family in [n.ipv4.then_some("ipv4"), n.ipv6.then_some("ipv6")].into_iter().flatten() {
            let _ = writeln!(t, "  {family} unicast;");
        }
        let _ = writeln!(
            t,
            " }}\n api {{\n  processes [ heard ];\n  neighbor-changes;\n  receive {{\n   parsed;\n   update;\n  }}\n }}\n}}"
        );
    }

    /// What the helper wrote down.
    fn state(&self) -> (bool, BTreeSet<IpAddr>) {
        state(&std::fs::read_to_string(&self.heard).unwrap_or_default())
    }

    /// Whether the last it heard of that host is that there is a route.
    #[must_use]
    pub fn has(&self, vip: IpAddr) -> bool {
        self.state().1.contains(&vip)
    }
}

/// Whether a session is up, and the hosts that were announced in it, by what was written down.
fn state(text: &str) -> (bool, BTreeSet<IpAddr>) {
    let (mut up, mut hosts) = (false, BTreeSet::new());
    for line in text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok()) {
        let neighbor = &line["neighbor"];
        match neighbor["state"].as_str() {
            Some("up") => up = true,
            Some("down") => {
                up = false;
                hosts.clear();
            }
            _ => {}
        }
        let update = &neighbor["message"]["update"];
        for family in ["ipv4 unicast", "ipv6 unicast"] {
            // Announced: a list for each next hop. Withdrawn: one list.
            for list in update["announce"][family].as_object().into_iter().flat_map(|o| o.values()) {
                hosts.extend(nlri(list));
            }
            for host in nlri(&update["withdraw"][family]) {
                hosts.remove(&host);
            }
        }
    }
    (up, hosts)
}

fn nlri(list: &Value) -> Vec<IpAddr> {
    let all = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let host = |v: &Value| v["nlri"].as_str()?.split('/').next()?.parse().ok();
    all.iter().filter_map(host).collect()
}

impl Router for Exabgp {
    fn start(&mut self) -> Result<()> {
        std::fs::write(&self.file, self.configuration())?;
        // A helper that outlives its daemon for a moment writes to the old one.
        let _absent = std::fs::remove_file(&self.heard);
        let mut c = self.ns.command(find("exabgp")?);
        c.arg(&self.file);
        let local = self.setup.neighbours.first().map_or_else(|| ROUTER.into(), |n| n.local).to_string();
        for (key, value) in [
            ("daemon_user", "root"),
            ("daemon_drop", "false"),
            ("api_cli", "false"),
            ("tcp_bind", local.as_str()),
            ("tcp_port", "179"),
            ("log_destination", "stderr"),
            ("log_reactor", "true"),
        ] {
            c.env(format!("exabgp_{key}"), value);
        }
        self.daemons = vec![Proc::start("exabgp on rt", c, &self.log)?];
        std::thread::sleep(Duration::from_millis(500));
        if !self.alive() {
            bail!("exabgp ended at once: {}", tail(&self.log, 12));
        }
        Ok(())
    }

    fn daemons(&mut self) -> &mut Vec<Proc> {
        &mut self.daemons
    }

    fn established(&self, _node: Node) -> bool {
        self.state().0
    }

    fn bfd_up(&self, _node: Node) -> bool {
        false
    }

    fn clear(&self) -> Result<()> {
        bail!("it is started anew")
    }

    fn told(&self) -> String {
        format!("{}{}", tail(&self.heard, 10), tail(&self.log, 25))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_heard_last_counts_and_a_session_that_ends_takes_its_routes_along() {
        let update = |what: &str| format!("{{\"neighbor\":{{\"message\":{{\"update\":{what}}}}}}}\n");
        let up = "{\"neighbor\":{\"state\":\"up\"}}\n";
        let come = update("{\"announce\":{\"ipv4 unicast\":{\"10.60.0.11\":[{\"nlri\":\"10.99.0.1/32\"}]}}}");
        let go = update("{\"withdraw\":{\"ipv4 unicast\":[{\"nlri\":\"10.99.0.1/32\"}]}}");
        let down = "{\"neighbor\":{\"state\":\"down\"}}\n";
        let of = |text: String| {
            let (up, hosts) = state(&text);
            (up, hosts.len())
        };
        assert_eq!(of(format!("{up}{come}")), (true, 1));
        assert_eq!(of(format!("{up}{come}{go}")), (true, 0));
        assert_eq!(of(format!("{up}{come}{down}")), (false, 0));
    }
}
