//! What people put together today: HAProxy, a BGP daemon, and something between them that withdraws the route. ExaBGP has
//! its own health check; the others get what nothing can beat, a watcher that runs the daemon's own withdraw command the
//! moment the balancer's pidfd says that it is gone.

use super::{Fault, Kind, Place, Speaker, haproxy};
use crate::bgp::net::{Node, ROUTER, VIP};
use crate::bgp::router::{NODE_AS, ROUTER_AS, find};
use crate::clock::{Ns, now};
use crate::fabric::{ip_batch, wait_for};
use crate::load::Stopper;
use crate::process::{Pidfd, Proc};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

#[derive(Debug, Default)]
struct Host {
    daemon: Option<Proc>,
    balancer: Option<Proc>,
    watcher: Option<Stopper>,
}

/// One of the kinds, on all nodes.
#[derive(Debug)]
pub struct Glue {
    kind: Kind,
    hosts: BTreeMap<Node, Host>,
}

impl Glue {
    /// Checks that it is installed.
    ///
    /// # Errors
    /// [`crate::env::Lacks`].
    pub fn new(kind: Kind) -> Result<Self> {
        let programs: &[&str] = match kind {
            Kind::Exabgp | Kind::ExabgpDefault => &["exabgp", "curl"],
            Kind::Gobgp => &["gobgpd", "gobgp"],
            Kind::Bird => &["bird", "birdc"],
            Kind::Holdfast => &[],
        };
        programs.iter().try_for_each(|p| find(p).map(|_| ()))?;
        Ok(Self { kind, hosts: BTreeMap::new() })
    }

    fn checks_itself(&self) -> bool {
        matches!(self.kind, Kind::Exabgp | Kind::ExabgpDefault)
    }

    fn start_balancer(&mut self, place: &Place, node: Node) -> Result<()> {
        let argv = haproxy(&place.net, node)?;
        let (program, arguments) = argv.split_first().context("a command has a program")?;
        let mut c = place.net.node(node).command(program);
        c.args(arguments);
        let log = place.net.file(&format!("{}-haproxy.log", node.name()));
        let p = Proc::start(format!("haproxy on {}", node.name()), c, &log)?;
        let watched = Pidfd::open(p.pid())?;
        let withdraw = self.command(place, node, false);
        let host = self.hosts.entry(node).or_default();
        host.balancer = Some(p);
        let Some(mut withdraw) = withdraw else { return Ok(()) };
        host.watcher = Some(Stopper::spawn("pidfd", move |stop| {
            while !stop() {
                if watched.wait_ended(Duration::from_millis(50)) {
                    withdraw.output().context("withdraw")?;
                    break;
                }
            }
            Ok(())
        })?);
        Ok(())
    }

    /// The daemon's own command that announces or withdraws; ExaBGP's health check has none.
    fn command(&self, place: &Place, node: Node, announce: bool) -> Option<Command> {
        let ns = place.net.node(node);
        match self.kind {
            Kind::Gobgp => {
                let mut c = ns.command("gobgp");
                c.args(["global", "rib", if announce { "add" } else { "del" }, &format!("{VIP}/32")]);
                if announce {
                    c.args(["nexthop", &node.front().to_string()]);
                }
                c.args(["-a", "ipv4"]);
                Some(c)
            }
            Kind::Bird => {
                let mut c = ns.command("birdc");
                c.arg("-s").arg(file(place, node, "ctl")).args([if announce { "enable" } else { "disable" }, "vips"]);
                Some(c)
            }
            _ => None,
        }
    }

    fn tell(&self, place: &Place, node: Node, announce: bool) -> Result<()> {
        if self.checks_itself() {
            // The health check looks at this file.
            let disabled = file(place, node, "disabled");
            if announce {
                let _absent = std::fs::remove_file(disabled);
            } else {
                std::fs::write(disabled, "")?;
            }
            return Ok(());
        }
        let mut c = self.command(place, node, announce).context("this daemon has a command")?;
        let out = c.output().context("run the daemon's client")?;
        if !out.status.success() {
            bail!("{c:?}: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        Ok(())
    }

    fn start_daemon(&mut self, place: &Place, node: Node) -> Result<()> {
        let ns = place.net.node(node);
        let mut c = match self.kind {
            Kind::Bird => {
                std::fs::write(file(place, node, "bird.conf"), bird(place, node))?;
                let mut c = ns.command(find("bird")?);
                c.arg("-f").arg("-c").arg(file(place, node, "bird.conf")).arg("-s").arg(file(place, node, "ctl"));
                c.arg("-P").arg(file(place, node, "bird.pid"));
                c
            }
            Kind::Gobgp => {
                std::fs::write(file(place, node, "gobgp.toml"), gobgp(place, node))?;
                let mut c = ns.command(find("gobgpd")?);
                c.args(["-t", "toml", "--api-hosts", "127.0.0.1:50051", "-f"]).arg(file(place, node, "gobgp.toml"));
                c
            }
            Kind::Exabgp | Kind::ExabgpDefault => {
                std::fs::write(file(place, node, "exabgp.conf"), self.exabgp(place, node))?;
                let mut c = ns.command(find("exabgp")?);
                c.arg(file(place, node, "exabgp.conf"));
                for (key, value) in [
                    ("daemon_user", "root"),
                    ("daemon_drop", "false"),
                    ("api_cli", "false"),
                    ("api_ack", "true"),
                    ("log_destination", "stderr"),
                    ("log_all", "false"),
                    ("cache_attributes", "false"),
                ] {
                    c.env(format!("exabgp_{key}"), value);
                }
                c
            }
            Kind::Holdfast => bail!("Holdfast is no glue"),
        };
        c.env("PYTHONUNBUFFERED", "1");
        let log = file(place, node, "daemon.log");
        let daemon = Proc::start(format!("{} on {}", self.kind.name(), node.name()), c, &log)?;
        self.hosts.entry(node).or_default().daemon = Some(daemon);
        if self.kind == Kind::Gobgp {
            let told = || Ok(self.tell(place, node, true).is_ok());
            if !wait_for(Duration::from_secs(10), Duration::from_millis(50), told)? {
                bail!("gobgpd on {} takes no route", node.name());
            }
        }
        Ok(())
    }

    fn exabgp(&self, place: &Place, node: Node) -> String {
        let (front, name) = (node.front(), node.name());
        let pace = match self.kind {
            Kind::Exabgp => "--interval 0.1 --fast-interval 0.05 --fall 1 --rise 1",
            _ => "",
        };
        let disabled = file(place, node, "disabled").display().to_string();
        format!(
            "process check {{\n run /usr/bin/python3 -m exabgp healthcheck --no-syslog --no-ip-setup --withdraw-on-down \
             {pace} --disable {disabled} --ip {VIP}/32 --name {name} --cmd \"curl -sf -m 1 -o /dev/null http://127.0.0.1/\";\n \
             encoder text;\n}}\nneighbor {ROUTER} {{\n router-id {front};\n local-address {front};\n local-as {NODE_AS};\n \
             peer-as {ROUTER_AS};\n hold-time {};\n family {{\n  ipv4 unicast;\n }}\n api {{\n  processes [ check ];\n }}\n}}\n",
            place.hold_s
        )
    }
}

fn file(place: &Place, node: Node, what: &str) -> PathBuf {
    place.net.file(&format!("{}-{what}", node.name()))
}

fn bird(place: &Place, node: Node) -> String {
    let (front, hold) = (node.front(), place.hold_s);
    let (mut bfd, mut on) = (String::new(), "");
    if let Some(b) = place.bfd {
        bfd = format!(
            "protocol bfd {{ interface \"eth0\" {{ interval {0} ms; idle tx interval {0} ms; multiplier {1}; }}; }}\n",
            b.interval_ms, b.multiplier
        );
        on = "bfd on; ";
    }
    format!(
        "log \"{}\" all;\nrouter id {front};\nprotocol device {{ scan time 10; }}\n{bfd}\
         protocol static vips {{ ipv4; route {VIP}/32 unreachable; }}\n\
         protocol bgp uplink {{\n local {front} as {NODE_AS};\n neighbor {ROUTER} as {ROUTER_AS};\n direct;\n hold time {hold};\n \
         connect delay time 1; connect retry time 1; error wait time 1, 2; {on}\n \
         ipv4 {{ import none; export where proto = \"vips\"; next hop self; }};\n}}\n",
        file(place, node, "bird.log").display()
    )
}

fn gobgp(place: &Place, node: Node) -> String {
    format!(
        "[global.config]\n  as = {NODE_AS}\n  router-id = \"{}\"\n  port = 179\n[[neighbors]]\n  [neighbors.config]\n    \
         neighbor-address = \"{ROUTER}\"\n    peer-as = {ROUTER_AS}\n  [neighbors.timers.config]\n    connect-retry = 1\n    \
         hold-time = {}\n    keepalive-interval = {}\n",
        node.front(),
        place.hold_s,
        (place.hold_s / 3).max(1)
    )
}

impl Speaker for Glue {
    fn version(&self) -> String {
        let (program, flag) = match self.kind {
            Kind::Bird => ("bird", "--version"),
            Kind::Gobgp => ("gobgpd", "--version"),
            _ => ("exabgp", "--version"),
        };
        let out = Command::new(program).arg(flag).output();
        let said = out.map(|o| format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr)));
        let said = said.unwrap_or_default();
        let number = said.split_whitespace().find(|w| w.starts_with(|c: char| c.is_ascii_digit()));
        format!("{} {}", self.kind.name(), number.unwrap_or("?"))
    }

    fn lacks(&self, fault: Fault) -> Option<String> {
        match fault {
            Fault::WorkerKilled | Fault::WorkerRestarted => Some(format!("{} has no worker", self.kind.name())),
            Fault::BalancerHung if !self.checks_itself() => Some("a watcher of a process doesn't see it hang".into()),
            _ => None,
        }
    }

    fn start(&mut self, place: &Place, node: Node) -> Result<()> {
        // Whoever sets up the glue puts the address there himself, for good.
        ip_batch(Some(&place.net.node(node)), &format!("addr add {VIP}/32 dev lo\n"))?;
        self.start_balancer(place, node)?;
        self.start_daemon(place, node)
    }

    fn balancer(&self, _place: &Place, node: Node) -> Result<i32> {
        let host = self.hosts.get(&node).and_then(|h| h.balancer.as_ref());
        Ok(host.context("the balancer isn't running")?.pid())
    }

    fn worker(&self, _node: Node) -> Result<i32> {
        bail!("{} has no worker", self.kind.name())
    }

    fn upgrade(&mut self, _place: &Place, _node: Node) -> Result<Ns> {
        bail!("{} has no worker", self.kind.name())
    }

    fn mend_balancer(&mut self, place: &Place, node: Node) -> Result<()> {
        if self.hosts.get_mut(&node).and_then(|h| h.balancer.as_mut()).is_some_and(Proc::alive) {
            return Ok(());
        }
        self.start_balancer(place, node)?;
        if self.checks_itself() {
            return Ok(());
        }
        // Not before it serves.
        let ns = place.net.node(node);
        let serves = || Ok(ns.inside(|| Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, 80)).is_ok())).unwrap_or(false));
        if !wait_for(Duration::from_secs(10), Duration::from_millis(10), serves)? {
            bail!("haproxy on {} doesn't listen", node.name());
        }
        self.tell(place, node, true)
    }

    fn drain(&mut self, place: &Place, node: Node) -> Result<Ns> {
        let t = now();
        self.tell(place, node, false)?;
        Ok(t)
    }

    fn undrain(&mut self, place: &Place, node: Node) -> Result<()> {
        self.tell(place, node, true)
    }

    fn ended(&mut self) -> Option<String> {
        let all = self.hosts.values_mut().flat_map(|h| [&mut h.daemon, &mut h.balancer]);
        all.flatten().find_map(|p| (!p.alive()).then(|| p.label.clone()))
    }

    fn journal(&self, _place: &Place, _node: Node) -> Vec<String> {
        Vec::new()
    }
}
