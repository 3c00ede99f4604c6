//! What replicates: Holdfast, or conntrackd as well as it can be set up, on both hosts.

use anyhow::{Context, Result, bail};
use holdfast_lab::balancer::Kind as Balancer;
use holdfast_lab::clock::Ns;
use holdfast_lab::env::{self, Lacks, find_program};
use holdfast_lab::fabric::{BACKENDS, Fabric, Lb, VIP, VRID, wait_for};
use holdfast_lab::process::Proc;
use holdfast_lab::subject::holdfast::Holdfast;
use holdfast_lab::subject::{INTERVAL, Place, Subject as _};
use holdfast_lab::watch::address::holds_vip;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// What replicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Holdfast.
    Holdfast,
    /// conntrackd, FT-FW.
    Conntrackd {
        /// It holds the peer's flows itself until they are committed; else they go to the kernel at once.
        cache: bool,
    },
}

impl Kind {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Holdfast => "holdfast",
            Self::Conntrackd { cache: false } => "conntrackd",
            Self::Conntrackd { cache: true } => "conntrackd with its cache",
        }
    }
}

/// Two hosts' worth of it, and the network; in the order in which they are dropped.
#[derive(Debug)]
pub struct Pair {
    /// Which.
    pub kind: Kind,
    agents: Option<Holdfast>,
    daemons: [Option<Proc>; 2],
    /// The hosts.
    pub place: Place,
}

impl Pair {
    /// The network, with nothing running yet.
    ///
    /// # Errors
    /// [`Lacks`], or the network can't be built.
    pub fn new(kind: Kind, holdfast: Option<&Path>, keep: bool, entries: u32) -> Result<Self> {
        let wanted: &[&str] = if kind == Kind::Holdfast { &["nft"] } else { &["nft", "conntrackd"] };
        for program in wanted {
            if find_program(program).is_none() {
                bail!(Lacks((*program).into()));
            }
        }
        let agents = match kind {
            Kind::Holdfast => Some(
                Holdfast::new(env::holdfast(holdfast)?)
                    .with_sections(Lb::BOTH.map(|_| services(entries)))
                    .with_vips(Lb::BOTH.map(vip)),
            ),
            Kind::Conntrackd { .. } => None,
        };
        let fabric = Fabric::up(keep)?;
        for lb in Lb::BOTH {
            fabric.lb(lb).inside(|| Ok(std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?))?;
        }
        let place =
            Place { fabric, balancer: Balancer::Forward, channel: true, vips: 1, adverts: INTERVAL, busy: Vec::new() };
        Ok(Self { kind, agents, daemons: [None, None], place })
    }

    /// Its name and version.
    #[must_use]
    pub fn version(&self) -> String {
        match &self.agents {
            Some(agents) => agents.version(),
            None => self.kind.name().to_owned(),
        }
    }

    /// Starts it on `lb`; returns when it answers.
    ///
    /// # Errors
    /// It didn't start.
    pub fn start(&mut self, lb: Lb) -> Result<()> {
        match &mut self.agents {
            Some(agents) => agents.start(&self.place, lb),
            None => self.start_daemon(lb),
        }
    }

    /// Starts both, and waits until lb1 serves and what happens there is known at lb2.
    ///
    /// # Errors
    /// It didn't come to that.
    pub fn up(&mut self) -> Result<()> {
        self.start(Lb::Lb1)?;
        self.serves(Lb::Lb1)?;
        self.start(Lb::Lb2)?;
        std::thread::sleep(Duration::from_millis(500));
        self.alive()
    }

    /// Waits until `lb` has the VIP.
    ///
    /// # Errors
    /// It doesn't get it.
    pub fn serves(&mut self, lb: Lb) -> Result<()> {
        if self.kind != Kind::Holdfast {
            return Ok(());
        }
        let host = self.place.fabric.lb(lb);
        let has = || host.inside(|| Ok(holds_vip()));
        if !wait_for(Duration::from_secs(15), Duration::from_millis(20), has)? {
            let journal = self.journal(lb).join("\n    ");
            bail!("{} didn't get the VIP within 15 s\n    {journal}", lb.name());
        }
        Ok(())
    }

    /// Whether all of it runs.
    ///
    /// # Errors
    /// A program that should run has ended.
    pub fn alive(&mut self) -> Result<()> {
        let ended = match &mut self.agents {
            Some(agents) => agents.ended(),
            None => self.daemons.iter_mut().flatten().find_map(|d| (!d.alive()).then(|| d.label.clone())),
        };
        match ended {
            Some(label) => bail!("{label} has ended"),
            None => Ok(()),
        }
    }

    /// Its processes on `lb`.
    #[must_use]
    pub fn pids(&self, lb: Lb) -> Vec<i32> {
        match &self.agents {
            Some(agents) => agents.agent(lb),
            None => self.daemons[lb.index()].iter().map(Proc::pid).collect(),
        }
    }

    /// The process that reads the events.
    ///
    /// # Errors
    /// There is none.
    pub fn reader(&self, lb: Lb) -> Result<i32> {
        match &self.agents {
            Some(agents) => agents.worker(lb),
            None => self.daemons[lb.index()].as_ref().map(Proc::pid).context("conntrackd doesn't run"),
        }
    }

    /// Tells a conntrackd something; what doesn't need to be told is left alone.
    ///
    /// # Errors
    /// It failed.
    pub fn tell_conntrackd(&self, lb: Lb, word: &str) -> Result<()> {
        if self.kind == Kind::Holdfast {
            return Ok(());
        }
        let mut c = self.place.fabric.lb(lb).command("conntrackd");
        let out = c.arg("-C").arg(self.conf(lb)).arg(word).output().context("run conntrackd")?;
        if !out.status.success() {
            bail!("conntrackd {word}: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        Ok(())
    }

    /// What a conntrackd says of itself.
    #[must_use]
    pub fn conntrackd_says(&self, lb: Lb) -> String {
        let mut c = self.place.fabric.lb(lb).command("conntrackd");
        let out = c.arg("-C").arg(self.conf(lb)).arg("-s").output();
        out.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
    }

    /// How many flows a conntrackd holds for its peer.
    #[must_use]
    pub fn cached(&self, lb: Lb) -> u64 {
        let said = self.conntrackd_says(lb);
        let line = said.split_once("cache external:").and_then(|(_, of_it)| {
            of_it.lines().find(|l| l.contains("active connections:")).and_then(|l| l.split(':').nth(1))
        });
        line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
    }

    /// Holdfast's client on `lb`, with what it said.
    ///
    /// # Errors
    /// It failed.
    pub fn client(&self, lb: Lb, words: &[&str]) -> Result<String> {
        self.agents.as_ref().context("this isn't Holdfast")?.client(&self.place, lb, words)
    }

    /// Its own account on `lb`.
    #[must_use]
    pub fn journal(&self, lb: Lb) -> Vec<String> {
        self.agents.as_ref().map(|a| a.journal(&self.place, lb)).unwrap_or_default()
    }

    fn conf(&self, lb: Lb) -> PathBuf {
        self.place.file(&format!("{}-conntrackd.conf", lb.name()))
    }

    fn start_daemon(&mut self, lb: Lb) -> Result<()> {
        let name = lb.name();
        for of_the_last in ["lock", "ctl"] {
            let _absent = std::fs::remove_file(self.place.file(&format!("{name}-conntrackd.{of_the_last}")));
        }
        std::fs::write(self.conf(lb), conntrackd_config(&self.place, lb, self.kind))?;
        load_rules(&self.place, lb)?;
        let mut c = self.place.fabric.lb(lb).command("conntrackd");
        c.arg("-C").arg(self.conf(lb));
        let log = self.place.file(&format!("{name}-conntrackd-out.log"));
        self.daemons[lb.index()] = Some(Proc::start(format!("conntrackd on {name}"), c, &log)?);
        let answers = || Ok(self.conntrackd_says(lb).contains("active connections:"));
        if !wait_for(Duration::from_secs(20), Duration::from_millis(5), answers)? {
            bail!("conntrackd on {name} didn't answer within 20 s");
        }
        Ok(())
    }

    /// Ends everything.
    pub fn stop(&mut self) {
        if let Some(agents) = &mut self.agents {
            agents.stop();
        }
        for d in &mut self.daemons {
            if let Some(mut d) = d.take() {
                let _else_it_is_killed = d.stop(Duration::from_secs(2));
            }
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Processor time of all threads of `pids` so far, by the scheduler's own account.
#[must_use]
pub fn cpu(pids: &[i32]) -> Ns {
    let mut sum = 0;
    for pid in pids {
        for t in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().filter_map(Result::ok) {
            let text = std::fs::read_to_string(t.path().join("schedstat")).unwrap_or_default();
            sum += text.split(' ').next().and_then(|n| n.parse::<Ns>().ok()).unwrap_or(0);
        }
    }
    sum
}

/// Resident memory of `pids`, bytes.
#[must_use]
pub fn resident(pids: &[i32]) -> u64 {
    let each = pids.iter().map(|pid| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("Rss:"));
        line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0) * 1024
    });
    each.sum()
}

/// Bytes and packets that `lb` sent on the peers' link.
///
/// # Errors
/// They can't be read.
pub fn sent(fabric: &Fabric, lb: Lb) -> Result<(u64, u64)> {
    let text = fabric.lb(lb).inside(|| Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?))?;
    let line = text.lines().find_map(|l| l.trim().strip_prefix("eth2:")).context("there is an eth2")?;
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    Ok((numbers.get(8).copied().unwrap_or(0), numbers.get(9).copied().unwrap_or(0)))
}

fn vip(lb: Lb) -> String {
    format!(
        "[[vip]]\nname = \"web\"\naddresses = [\"{VIP}/32\"]\nchecks = []\n\
         vrrp = {{ interface = \"eth0\", vrid = {VRID}, priority = {}, interval = \"100ms\", preempt = false }}\n\n",
        lb.priority()
    )
}

fn services(entries: u32) -> String {
    let backends: Vec<String> = BACKENDS.iter().map(|ip| format!("\"{ip}:9000\"")).collect();
    format!(
        "[[balancer]]\nname = \"l4\"\nkind = \"nft\"\n\n[[nft.service]]\nvip = \"web\"\nprotocol = \"tcp\"\nport = 80\n\
         backends = [{}]\nmode = \"dnat\"\ncheck = false\n\n[statesync]\nvips = [\"web\"]\nmax_flows = {}\n\n",
        backends.join(", "),
        // What the default is, and room for what ends and begins.
        (entries + entries / 4).max(1 << 20),
    )
}

/// Hooks that are alive, as a balancer has them.
fn load_rules(place: &Place, lb: Lb) -> Result<()> {
    let backends = BACKENDS.iter().enumerate().map(|(i, ip)| format!("{i} : {ip} . 9000"));
    let rules = format!(
        "table ip bench {{\n chain pre {{\n  type nat hook prerouting priority -100\n  ip daddr {VIP} tcp dport 80 dnat \
         to jhash ip saddr . tcp sport mod {} seed 0xbeef map {{ {} }}\n }}\n}}\n",
        BACKENDS.len(),
        backends.collect::<Vec<_>>().join(", ")
    );
    let mut c = place.fabric.lb(lb).command("nft");
    let mut nft = c.args(["-f", "-"]).stdin(Stdio::piped()).spawn().context("start nft")?;
    let mut input = nft.stdin.take().context("nft reads")?;
    input.write_all(b"flush ruleset\n").and_then(|()| input.write_all(rules.as_bytes())).context("write to nft")?;
    drop(input);
    if !nft.wait()?.success() {
        bail!("nft refused the rules");
    }
    // As the agent has it: entries that are older than a listener tell, too.
    place.fabric.lb(lb).inside(|| Ok(std::fs::write("/proc/sys/net/netfilter/nf_conntrack_events", "1")?))
}

/// With queues that hold whatever is sent here, so that nothing of it is about limits.
fn conntrackd_config(place: &Place, lb: Lb, kind: Kind) -> String {
    let file = |what: &str| place.file(&format!("{}-conntrackd.{what}", lb.name())).display().to_string();
    let (own, peer) = (lb.channel(), lb.other().channel());
    let direct = if kind == (Kind::Conntrackd { cache: true }) { "no" } else { "yes" };
    format!(
        "Sync {{\n  Mode FTFW {{\n    ResendQueueSize 524288\n    ACKWindowSize 300\n    PurgeTimeout 60\n    \
         StartupResync no\n    DisableExternalCache {direct}\n  }}\n  \
         UDP {{\n    IPv4_address {own}\n    IPv4_Destination_Address {peer}\n    Port 3780\n    Interface eth2\n    \
         SndSocketBuffer 33554432\n    RcvSocketBuffer 33554432\n    Checksum on\n  }}\n  Options {{\n    \
         TCPWindowTracking off\n  }}\n}}\n\
         General {{\n  HashSize 524288\n  HashLimit 4194304\n  LogFile {}\n  Syslog off\n  LockFile {}\n  \
         UNIX {{\n    Path {}\n  }}\n  NetlinkBufferSize 33554432\n  NetlinkBufferSizeMaxGrowth 134217728\n  \
         NetlinkOverrunResync yes\n  NetlinkEventsReliable off\n  EventIterationLimit 100\n  \
         Filter From Kernelspace {{\n    Protocol Accept {{\n      TCP\n      UDP\n    }}\n    Address Ignore {{\n      \
         IPv4_address 127.0.0.1\n      IPv4_address {own}\n      IPv4_address {peer}\n    }}\n  }}\n}}\n",
        file("log"),
        file("lock"),
        file("ctl"),
    )
}
