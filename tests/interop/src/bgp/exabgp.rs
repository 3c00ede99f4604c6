//! ExaBGP as the router: it has no table of its own, but tells a helper what it hears, and the helper writes it down.

use anyhow::{Result, bail};
use holdfast_lab::bgp::net::{Net, Node, ROUTER};
use holdfast_lab::bgp::router::{Neighbour, Remote, Router, Setup, find, tail};
use holdfast_lab::netns::Netns;
use holdfast_lab::process::Proc;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The daemon.
#[derive(Debug)]
pub struct Exabgp {
    ns: Netns,
    setup: Setup,
    daemon: Option<Proc>,
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
        Ok(Self { ns: net.ns("rt"), setup, daemon: None, file, heard, helper, log })
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

    /// Whether the last it heard of that host is that there is a route.
    #[must_use]
    pub fn has(&self, vip: IpAddr) -> bool {
        state(&self.heard).1.contains(&vip)
    }
}

/// Whether a session is up, and the hosts that were announced in it, by what was written down.
fn state(file: &Path) -> (bool, BTreeSet<IpAddr>) {
    let text = std::fs::read_to_string(file).unwrap_or_default();
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
        self.daemon = Some(Proc::start("exabgp on rt", c, &self.log)?);
        std::thread::sleep(Duration::from_millis(500));
        if !self.alive() {
            bail!("exabgp ended at once: {}", tail(&self.log, 12));
        }
        Ok(())
    }

    fn kill(&mut self) {
        if let Some(mut d) = self.daemon.take() {
            d.kill();
        }
    }

    fn stop(&mut self) {
        if let Some(mut d) = self.daemon.take() {
            d.stop(Duration::from_secs(5));
        }
    }

    fn established(&self, _node: Node) -> bool {
        state(&self.heard).0
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

    fn alive(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(Proc::alive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_heard_last_counts_and_a_session_that_ends_takes_its_routes_along() {
        let file = std::env::temp_dir().join(format!("holdfast-exabgp-{}", std::process::id()));
        let update = |what: &str| format!("{{\"neighbor\":{{\"message\":{{\"update\":{what}}}}}}}\n");
        let up = "{\"neighbor\":{\"state\":\"up\"}}\n";
        let come = update("{\"announce\":{\"ipv4 unicast\":{\"10.60.0.11\":[{\"nlri\":\"10.99.0.1/32\"}]}}}");
        let go = update("{\"withdraw\":{\"ipv4 unicast\":[{\"nlri\":\"10.99.0.1/32\"}]}}");
        let down = "{\"neighbor\":{\"state\":\"down\"}}\n";
        let of = |text: String| {
            std::fs::write(&file, text).expect("a temporary file");
            let (up, hosts) = state(&file);
            (up, hosts.len())
        };
        assert_eq!(of(format!("{up}{come}")), (true, 1));
        assert_eq!(of(format!("{up}{come}{go}")), (true, 0));
        assert_eq!(of(format!("{up}{come}{down}")), (false, 0));
        let _gone = std::fs::remove_file(&file);
    }
}
