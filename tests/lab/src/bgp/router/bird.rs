//! BIRD 2 as the router.

use super::{Neighbour, Remote, Router, Setup, find};
use crate::bgp::net::{Net, Node, ROUTER};
use crate::fabric::wait_for;
use crate::netns::Netns;
use crate::process::{Proc, tail};
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The daemon.
#[derive(Debug)]
pub struct Bird {
    ns: Netns,
    setup: Setup,
    daemons: Vec<Proc>,
    home: PathBuf,
    started: bool,
}

impl Bird {
    /// One that isn't started yet.
    ///
    /// # Errors
    /// BIRD isn't installed, or its directory can't be made.
    pub fn new(net: &Net, setup: Setup) -> Result<Self> {
        find("bird")?;
        let home = net.file("rt-bird");
        std::fs::create_dir_all(&home)?;
        Ok(Self { ns: net.ns("rt"), setup, daemons: Vec::new(), home, started: false })
    }

    fn configuration(&self) -> String {
        let mut t = format!(
            "log \"{}\" all;\nrouter id {ROUTER};\nprotocol device {{ scan time 10; }}\n",
            self.home.join("bird.log").display()
        );
        // Without the second it writes the kernel's table before its peers have told it anything: an empty one.
        let keep = if self.setup.retain { "persist; graceful restart on; " } else { "" };
        if self.setup.retain {
            t += "graceful restart wait 20;\n";
        }
        for (name, family) in [("k4", "ipv4"), ("k6", "ipv6")] {
            let _ = writeln!(
                t,
                "protocol kernel {name} {{ {keep}merge paths on limit 8; \
                 {family} {{ import none; export where source = RTS_BGP; }}; }}"
            );
        }
        if self.setup.neighbours.iter().any(|n| n.multihop.is_some()) {
            t += "protocol direct { ipv4; ipv6; }\n";
        }
        if let Some(b) = self.setup.bfd() {
            let _ = writeln!(
                t,
                "protocol bfd {{ interface \"eth1\" {{ interval {0} ms; idle tx interval {0} ms; multiplier {1}; }}; }}",
                b.interval_ms, b.multiplier
            );
        }
        self.setup.neighbours.iter().for_each(|n| self.session(n, &mut t));
        t
    }

    fn session(&self, n: &Neighbour, t: &mut String) {
        let name = n.node.name();
        let (asn, hold) = (self.setup.asn, n.hold_s);
        let Remote::Address(remote) = n.remote else { return };
        let scoped = match remote {
            std::net::IpAddr::V6(ip) if ip.segments()[0] == 0xfe80 => " % 'eth1'",
            _ => "",
        };
        let _ = writeln!(
            t,
            "protocol bgp {name} {{\n  local {} as {asn};\n  neighbor {remote}{scoped} as {};",
            n.local, n.asn
        );
        // Next hops beyond a link are looked up in its own table.
        let (reach, gateway) = match n.multihop {
            None => ("direct".to_owned(), "direct"),
            Some(hops) => (format!("multihop {hops}"), "recursive"),
        };
        let _ = writeln!(t, "  {reach};\n  hold time {hold}; keepalive time {};", (hold / 3).max(1));
        let _ = writeln!(t, "  connect delay time 1; connect retry time 1; error wait time 1, 2;");
        if n.bfd.is_some() {
            let _ = writeln!(t, "  bfd on;");
        }
        if let Some(p) = &n.password {
            let _ = writeln!(t, "  password \"{p}\";");
        }
        if n.ttl_security {
            let _ = writeln!(t, "  ttl security on;");
        }
        if n.two_octet {
            let _ = writeln!(t, "  enable as4 off;");
        }
        if n.passive {
            let _ = writeln!(t, "  passive on;");
        }
        if self.setup.retain {
            let _ = writeln!(t, "  graceful restart on;");
        }
        let extended = if n.extended_next_hop { "extended next hop on; " } else { "" };
        let mut import = "import all".to_owned();
        if !n.weights.is_empty() {
            let each = n.weights.iter().map(|(kind, value, weight)| {
                format!("if (generic, {kind:#010x}, {value:#010x}) ~ bgp_ext_community then weight = {weight}; ")
            });
            import = format!("import filter {{ {}accept; }}", each.collect::<String>());
        }
        if n.ipv4 {
            let _ = writeln!(t, "  ipv4 {{ {import}; export none; gateway {gateway}; {extended}}};");
        }
        if n.ipv6 {
            let _ = writeln!(t, "  ipv6 {{ import all; export none; gateway {gateway}; }};");
        }
        let _ = writeln!(t, "}}");
    }

    /// What `birdc` answers.
    ///
    /// # Errors
    /// No answer.
    pub fn ask(&self, words: &str) -> Result<String> {
        let out = Command::new(find("birdc")?)
            .arg("-s")
            .arg(self.home.join("ctl"))
            .args(words.split(' '))
            .output()
            .context("run birdc")?;
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        if !out.status.success() {
            bail!("birdc {words}: {said}{}", String::from_utf8_lossy(&out.stderr));
        }
        Ok(said)
    }
}

impl Router for Bird {
    fn start(&mut self) -> Result<()> {
        let (file, ctl) = (self.home.join("bird.conf"), self.home.join("ctl"));
        std::fs::write(&file, self.configuration())?;
        let _absent = std::fs::remove_file(&ctl);
        let mut c = self.ns.command(find("bird")?);
        c.arg("-f").arg("-c").arg(file).arg("-s").arg(&ctl).arg("-P").arg(self.home.join("pid"));
        if self.setup.retain && self.started {
            c.arg("-R"); // it waits for its peers before it touches the kernel's routes
        }
        self.started = true;
        self.daemons = vec![Proc::start("bird on rt", c, &self.home.join("out.log"))?];
        if !wait_for(Duration::from_secs(10), Duration::from_millis(10), || Ok(self.ask("show status").is_ok()))? {
            bail!("bird doesn't answer: {}", tail(&self.home.join("out.log"), 5));
        }
        Ok(())
    }

    fn daemons(&mut self) -> &mut Vec<Proc> {
        &mut self.daemons
    }

    fn established(&self, node: Node) -> bool {
        self.ask(&format!("show protocols {}", node.name())).is_ok_and(|s| s.contains("Established"))
    }

    fn bfd_up(&self, node: Node) -> bool {
        let front = node.front().to_string();
        let up =
            |l: &str| l.split_whitespace().collect::<Vec<_>>().get(..3).is_some_and(|w| w[0] == front && w[2] == "Up");
        self.ask("show bfd sessions").is_ok_and(|s| s.lines().any(up))
    }

    fn clear(&self) -> Result<()> {
        let names = self.setup.neighbours.iter().map(|n| n.node.name());
        names.into_iter().try_for_each(|name| self.ask(&format!("restart {name}")).map(|_| ()))
    }

    fn told(&self) -> String {
        let asked = ["show protocols all", "show bfd sessions", "show route all"];
        let said = asked.map(|q| self.ask(q).unwrap_or_else(|e| format!("{e:#}\n"))).concat();
        format!("{said}{}", tail(&self.home.join("bird.log"), 25))
    }
}
