//! What speaks for us on a node: the agent; or BIRD, to show what is the peer's or the harness's doing.

use super::cell::{Cell, Feature, HOPS, Routes, Transport};
use anyhow::{Context, Result, bail, ensure};
use holdfast_lab::agent::worker_of;
use holdfast_lab::bgp::net::{Net, Node, VIP, VIP6};
use holdfast_lab::bgp::router::{ROUTER_AS, find};
use holdfast_lab::fabric::wait_for;
use holdfast_lab::netns::Netns;
use holdfast_lab::process::{Pidfd, Proc, children, tail};
use rustix::process::Signal;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The restart time that we ask for.
pub const RESTART: Duration = Duration::from_secs(5);
/// Where something listens while the node is fit.
const SERVICE: u16 = 8088;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The agent.
    Holdfast,
    /// BIRD.
    Bird,
}

/// One node's speaker.
#[derive(Debug)]
pub struct Ours {
    kind: Kind,
    cell: Cell,
    node: Node,
    ns: Netns,
    /// Its files, with its name first.
    files: PathBuf,
    daemon: Option<Proc>,
    service: Option<Service>,
}

/// What the node serves: takes each connection and closes it. (Connections that nobody takes fill the queue, after a
/// hundred checks the next one would not be answered.)
#[derive(Debug)]
struct Service {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    fn open() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, SERVICE))?;
        listener.set_nonblocking(true)?;
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                if listener.accept().is_err() {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        Ok(Self { ended, thread: Some(thread) })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

impl Ours {
    /// One that isn't started yet.
    ///
    /// # Errors
    /// It isn't there.
    pub fn new(kind: Kind, cell: Cell, node: Node, net: &Net) -> Result<Self> {
        match kind {
            Kind::Holdfast => crate::holdfast().map(|_| ())?,
            Kind::Bird => find("bird").map(|_| ())?,
        }
        Ok(Self { kind, cell, node, ns: net.node(node), files: net.directory().into(), daemon: None, service: None })
    }

    fn file(&self, what: &str) -> PathBuf {
        self.files.join(format!("{}-{what}", self.node.name()))
    }

    /// Starts it, fit.
    ///
    /// # Errors
    /// A file, or the program.
    pub fn start(&mut self, key: Option<&str>) -> Result<()> {
        self.fit(true)?;
        let command = match self.kind {
            Kind::Holdfast => {
                if let Some(key) = key {
                    let file = self.file("bgp.key");
                    std::fs::write(&file, format!("{key}\n"))?;
                    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
                }
                std::fs::write(self.file("holdfast.toml"), self.toml())?;
                let mut c = self.ns.command(crate::holdfast()?);
                c.arg("run").args(self.places());
                c
            }
            Kind::Bird => {
                std::fs::write(self.file("bird.conf"), self.bird(key))?;
                let mut c = self.ns.command(find("bird")?);
                c.arg("-f").arg("-c").arg(self.file("bird.conf")).arg("-s").arg(self.file("ctl"));
                c.arg("-P").arg(self.file("pid"));
                c
            }
        };
        self.daemon =
            Some(Proc::start(format!("{:?} on {}", self.kind, self.node.name()), command, &self.file("log"))?);
        std::thread::sleep(Duration::from_millis(150));
        let alive = self.daemon.as_mut().is_some_and(Proc::alive);
        ensure!(alive, "{:?} ended at once: {}", self.kind, tail(&self.file("log"), 8));
        Ok(())
    }

    fn places(&self) -> Vec<String> {
        let path = |what: &str| self.file(what).display().to_string();
        ["--config", &path("holdfast.toml"), "--runtime-dir", &path("run"), "--state-dir", &path("state")]
            .map(str::to_owned)
            .into()
    }

    fn toml(&self) -> String {
        let cell = &self.cell;
        let quoted = |all: &[String]| all.iter().map(|a| format!("\"{a}\"")).collect::<Vec<_>>().join(", ");
        let vips: Vec<String> =
            cell.vips().iter().map(|v| if v.is_ipv4() { format!("{v}/32") } else { format!("{v}/128") }).collect();
        let families: &[&str] = match cell.routes {
            Routes::V4 => &["ipv4"],
            Routes::V6 => &["ipv6"],
            Routes::Both => &["ipv4", "ipv6"],
        };
        let families: Vec<String> = families.iter().map(|f| (*f).to_owned()).collect();
        let weight = cell.weight(self.node).map(|w| format!("weight = {w}")).unwrap_or_default();
        let mut t = format!(
            "[node]\nname = \"{}\"\n\n[[check]]\nname = \"service\"\ntcp = \"127.0.0.1:{SERVICE}\"\ninterval = \"100ms\"\n\
             fast_interval = \"100ms\"\ntimeout = \"90ms\"\nfall = 2\nrise = 2\n\n\
             [[vip]]\nname = \"web\"\naddresses = [{}]\nbgp = {{ {weight} }}\n\n\
             [bgp]\nasn = {}\nrouter_id = \"{}\"\n",
            self.node.name(),
            quoted(&vips),
            cell.our_as(),
            self.node.front(),
        );
        if cell.feature == Feature::Restart {
            let _ = writeln!(t, "graceful_restart = \"{}s\"", RESTART.as_secs());
        } else {
            let _ = writeln!(t, "graceful_restart = \"off\"");
        }
        if cell.feature == Feature::TheyPassive {
            let _ = writeln!(t, "listen = false");
        }
        let _ = writeln!(t, "\n[[bgp.neighbor]]\nname = \"rt\"\nhold_time = \"9s\"\nconnect_retry = \"1s\"");
        let _ = match cell.transport {
            Transport::Unnumbered => writeln!(t, "interface = \"eth0\""),
            Transport::LinkLocal => writeln!(t, "address = \"{}%eth0\"", cell.router()),
            Transport::V4 | Transport::V6 => writeln!(t, "address = \"{}\"", cell.router()),
        };
        let asn = if cell.internal { "\"internal\"".to_owned() } else { ROUTER_AS.to_string() };
        let _ = writeln!(t, "asn = {asn}\nfamilies = [{}]", quoted(&families));
        if cell.password().is_some() {
            let _ = writeln!(t, "password_file = \"{}\"", self.file("bgp.key").display());
        }
        if cell.feature == Feature::Gtsm {
            let _ = writeln!(t, "ttl_security = 1");
        }
        if cell.feature == Feature::Multihop {
            let _ = writeln!(t, "multihop = {HOPS}");
        }
        // Over one family the routes of the other need a next hop that is told.
        if cell.routes == Routes::Both && cell.transport == Transport::V4 {
            let _ = writeln!(t, "next_hop = {{ ipv6 = \"{}\" }}", self.node.front6());
        }
        if cell.routes == Routes::Both && cell.transport == Transport::V6 {
            let _ = writeln!(t, "next_hop = {{ ipv4 = \"{}\" }}", self.node.front());
        }
        if cell.extended_next_hop() {
            let _ = writeln!(t, "extended_next_hop = true");
        }
        if cell.feature == Feature::WePassive {
            let _ = writeln!(t, "passive = true");
        }
        if let Some(b) = cell.bfd() {
            let _ = writeln!(t, "bfd = {{ interval = \"{}ms\", multiplier = {} }}", b.interval_ms, b.multiplier);
        }
        t
    }

    fn bird(&self, key: Option<&str>) -> String {
        let (cell, own) = (&self.cell, self.cell.node(self.node));
        let scope =
            if matches!(cell.transport, Transport::LinkLocal | Transport::Unnumbered) { " % 'eth0'" } else { "" };
        let reach = if cell.feature == Feature::Multihop { format!("multihop {HOPS}") } else { "direct".to_owned() };
        let mut t = format!(
            "log \"{}\" all;\nrouter id {};\nprotocol device {{ scan time 10; }}\n\
             protocol static v4 {{ ipv4; route {VIP}/32 unreachable; }}\nprotocol static v6 {{ ipv6; route {VIP6}/128 unreachable; }}\n",
            self.file("bird.log").display(),
            self.node.front()
        );
        if let Some(b) = cell.bfd() {
            let _ = writeln!(
                t,
                "protocol bfd {{ interface \"eth0\" {{ interval {0} ms; idle tx interval {0} ms; multiplier {1}; }}; }}",
                b.interval_ms, b.multiplier
            );
        }
        if cell.transport == Transport::Unnumbered {
            // FRR learns a neighbour on an interface from its router advertisements.
            t += "protocol radv { interface \"eth0\" { max ra interval 4; }; }\n";
        }
        let _ = writeln!(
            t,
            "protocol bgp uplink {{\n local {own} as {};\n neighbor {}{scope} as {ROUTER_AS};\n {reach};\n hold time 9;\n \
             connect delay time 1; connect retry time 1; error wait time 1, 2;",
            cell.our_as(),
            cell.router()
        );
        if let Some(key) = key {
            let _ = writeln!(t, " password \"{key}\";");
        }
        let restart = format!("graceful restart on; graceful restart time {};", RESTART.as_secs());
        for (wanted, line) in [
            (cell.feature == Feature::Gtsm, "ttl security on;"),
            (cell.feature == Feature::WePassive, "passive on;"),
            (cell.feature == Feature::Bfd, "bfd on;"),
            (cell.feature == Feature::Restart, &restart),
        ] {
            if wanted {
                let _ = writeln!(t, " {line}");
            }
        }
        let extended = if cell.extended_next_hop() { "extended next hop on;" } else { "" };
        let hop4 = if cell.extended_next_hop() || cell.transport == Transport::V4 {
            "next hop self;".to_owned()
        } else {
            format!("next hop address {};", self.node.front())
        };
        let hop6 = if cell.transport == Transport::V4 {
            format!("next hop address {};", self.node.front6())
        } else {
            "next hop self;".to_owned()
        };
        if cell.routes != Routes::V6 {
            let weight = cell.weight(self.node).map(|w| 1_000_000 * w);
            let _ = writeln!(
                t,
                " ipv4 {{ import none; export filter {{ if source != RTS_STATIC then reject; {} accept; }}; {hop4} {extended} }};",
                weight
                    .map(|w| {
                        let (asn, bits) = (cell.our_as(), f32::to_bits(w as f32));
                        format!("bgp_ext_community.add((generic, 0x0004{asn:04x}, 0x{bits:08x}));")
                    })
                    .unwrap_or_default()
            );
        }
        if cell.routes != Routes::V4 {
            let _ = writeln!(t, " ipv6 {{ import none; export where source = RTS_STATIC; {hop6} }};");
        }
        t + "}\n"
    }

    /// Whether what the node serves works.
    ///
    /// # Errors
    /// The port can't be had, or BIRD doesn't answer.
    pub fn fit(&mut self, fit: bool) -> Result<()> {
        match (fit, &self.service) {
            (true, None) => {
                self.service = Some(self.ns.inside(Service::open)?);
            }
            (false, _) => self.service = None,
            _ => {}
        }
        if self.kind == Kind::Bird && self.daemon.is_some() {
            for vips in ["v4", "v6"] {
                let mut c = Command::new(find("birdc")?);
                c.arg("-s").arg(self.file("ctl")).args([if fit { "enable" } else { "disable" }, vips]);
                crate::checked("birdc", &c.output().context("run birdc")?)?;
            }
        }
        Ok(())
    }

    fn pid(&self) -> Result<i32> {
        Ok(self.daemon.as_ref().context("it runs")?.pid())
    }

    /// Kills the process that speaks, which is started again.
    ///
    /// # Errors
    /// There is none.
    pub fn crash(&mut self, key: Option<&str>) -> Result<()> {
        if self.kind == Kind::Bird {
            self.die()?;
            return self.start(key);
        }
        Pidfd::open(worker_of(self.pid()?)?)?.signal(Signal::KILL).map(|_| ())
    }

    fn all(&self) -> Result<Vec<Pidfd>> {
        let keeper = self.pid()?;
        let mut all = vec![Pidfd::open(keeper)?];
        all.extend(children(keeper).into_iter().filter_map(|c| Pidfd::open(c.pid).ok()));
        Ok(all)
    }

    /// SIGSTOP for all of it, or SIGCONT.
    ///
    /// # Errors
    /// It isn't running.
    pub fn freeze(&self, frozen: bool) -> Result<()> {
        for p in self.all()? {
            let _ended = p.signal(if frozen { Signal::STOP } else { Signal::CONT });
        }
        Ok(())
    }

    /// SIGKILL for all of it at once.
    ///
    /// # Errors
    /// It isn't running.
    pub fn die(&mut self) -> Result<()> {
        self.freeze(true)?;
        for p in self.all()?.iter().rev() {
            let _gone = p.signal(Signal::KILL);
        }
        self.daemon = None;
        Ok(())
    }

    /// Stops it in order.
    ///
    /// # Errors
    /// It doesn't end.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(mut d) = self.daemon.take()
            && !d.stop(Duration::from_secs(10))
        {
            bail!("{:?} on {} didn't stop within 10 s", self.kind, self.node.name());
        }
        Ok(())
    }

    /// Whether a VIP is on the node.
    ///
    /// # Errors
    /// `ip` can't be run.
    pub fn holds_vips(&self) -> Result<bool> {
        let out = self.ns.command("ip").args(["-br", "addr"]).output().context("run ip")?;
        let said = crate::checked("ip addr", &out)?;
        Ok(self.cell.vips().iter().any(|v| said.contains(&format!(" {v}/"))))
    }

    /// What it says of its neighbours.
    #[must_use]
    pub fn told(&self) -> String {
        let mut t = String::new();
        if self.kind == Kind::Holdfast {
            for words in [&["status"][..], &["neighbors"], &["events"]] {
                let mut c = self.ns.command(crate::holdfast().unwrap_or_default());
                let said = c.args(words).args(self.places()).output().map(|o| crate::said(&o)).unwrap_or_default();
                let lines: Vec<&str> = said.lines().collect();
                let _ = writeln!(t, "--- holdfast {}", words.join(" "));
                lines.iter().skip(lines.len().saturating_sub(25)).for_each(|l| t += &format!("    {l}\n"));
            }
        }
        t + &tail(&self.file("log"), 15) + &tail(&self.file("bird.log"), 15)
    }

    /// Whether it is ours that speaks.
    #[must_use]
    pub fn is_holdfast(&self) -> bool {
        self.kind == Kind::Holdfast
    }

    /// Waits for something.
    ///
    /// # Errors
    /// What `done` says.
    pub fn wait(limit: Duration, done: impl FnMut() -> Result<bool>) -> Result<bool> {
        wait_for(limit, Duration::from_millis(10), done)
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _may_be_gone = self.freeze(false);
        let _may_be_gone = self.stop();
    }
}
