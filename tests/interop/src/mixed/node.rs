//! What a router under test can be told to do.

use super::cell::{Cell, Family, Kind, Version, address6, link_local};
use super::frr::Frr;
use super::holdfast::Holdfast;
use super::keepalived::Keepalived;
use anyhow::{Context, Result, bail};
use holdfast_lab::fabric::{Fabric, Lb, ip_batch};
use holdfast_lab::netns::Netns;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// One router. Steps are synchronous as far as the router's own tools are; whether the address followed is read off
/// the wire.
pub trait Node {
    /// Starts it as after a boot, with the priority it had.
    ///
    /// # Errors
    /// It can't be started, or died at once.
    fn start(&mut self) -> Result<()>;
    /// SIGKILL for all its processes. What they had put into the kernel stays.
    ///
    /// # Errors
    /// It wasn't running.
    fn kill(&mut self) -> Result<()>;
    /// What a reboot would do to what it had put into the kernel.
    ///
    /// # Errors
    /// `ip` can't be run.
    fn wipe(&mut self) -> Result<()>;
    /// Stops it in order.
    ///
    /// # Errors
    /// It doesn't end.
    fn stop(&mut self) -> Result<()>;
    /// Takes it out for maintenance by the means it has.
    ///
    /// # Errors
    /// It refuses.
    fn drain(&mut self) -> Result<()>;
    /// Takes it in again.
    ///
    /// # Errors
    /// It refuses.
    fn undrain(&mut self) -> Result<()>;
    /// Changes its priority while it runs.
    ///
    /// # Errors
    /// It refuses.
    fn set_priority(&mut self, priority: u8) -> Result<()>;
    /// Kills the process that speaks VRRP and leaves the one that watches it.
    ///
    /// # Errors
    /// There is none.
    fn crash(&mut self) -> Result<()> {
        bail!("only ours is told to")
    }
    /// What it has to complain about, if it can tell; asked at the end of each round.
    ///
    /// # Errors
    /// It has died.
    fn complaint(&mut self) -> Result<Option<String>>;
    /// The end of its logs.
    fn logs(&self) -> String;
}

/// Where a router is and what it is to speak.
#[derive(Debug, Clone)]
pub struct Seat {
    /// Its namespace.
    pub ns: Netns,
    /// Which of the two.
    pub lb: Lb,
    /// For its files, with its own name first.
    pub directory: PathBuf,
    /// What the pair speaks.
    pub cell: Cell,
    /// The priority it starts with.
    pub priority: u8,
}

impl Seat {
    /// On `lb` of the fabric; gives the host its IPv6 addresses, and no router's advertisement changes it.
    ///
    /// # Errors
    /// `ip`, or a setting that the kernel refuses.
    pub fn new(fabric: &Fabric, lb: Lb, cell: Cell, priority: u8) -> Result<Self> {
        let seat = Self { ns: fabric.lb(lb), lb, directory: fabric.directory().to_owned(), cell, priority };
        seat.sysctl("net/ipv6/conf/eth0/accept_ra", "0")?;
        let (global, link) = (address6(lb.index()), link_local(lb.index()));
        seat.ip(&format!(
            "addr flush dev eth0 scope link\naddr add {link}/64 dev eth0 nodad\naddr add {global}/64 dev eth0 nodad\n"
        ))?;
        Ok(seat)
    }

    /// The router that the cell wants here.
    ///
    /// # Errors
    /// A program is missing.
    pub fn node(self) -> Result<Box<dyn Node>> {
        Ok(match self.cell.kind(self.lb.index()) {
            Kind::Holdfast => Box::new(Holdfast::new(self)?),
            Kind::Keepalived => Box::new(Keepalived::new(self)?),
            Kind::Frr => Box::new(Frr::new(self)?),
        })
    }

    /// A file of this router's own.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{}-{name}", self.lb.name()))
    }

    /// Runs `ip` lines here.
    ///
    /// # Errors
    /// The first that fails.
    pub fn ip(&self, lines: &str) -> Result<()> {
        ip_batch(Some(&self.ns), lines)
    }

    /// Runs `ip` lines here, each whatever the ones before it came to: for what may be gone already.
    ///
    /// # Errors
    /// `ip` can't be started.
    pub fn ip_anyway(&self, lines: &str) -> Result<()> {
        for line in lines.lines() {
            let words = ["-n", self.ns.name()].into_iter().chain(line.split(' '));
            std::process::Command::new("ip").args(words).output().context("run ip")?;
        }
        Ok(())
    }

    /// Sets a kernel setting of this host.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn sysctl(&self, path: &str, value: &str) -> Result<()> {
        let file = Path::new("/proc/sys").join(path);
        self.ns.inside(|| std::fs::write(&file, value).with_context(|| format!("set {path} to {value}")))
    }

    /// This router's own address.
    #[must_use]
    pub fn own(&self, family: Family) -> IpAddr {
        source(self.lb, family)
    }

    /// The other's.
    #[must_use]
    pub fn peer(&self, family: Family) -> IpAddr {
        source(self.lb.other(), family)
    }

    /// 2 or 3.
    #[must_use]
    pub fn version(&self) -> u8 {
        if self.cell.version == Version::V2 { 2 } else { 3 }
    }
}

/// The address that a router's adverts come from.
fn source(lb: Lb, family: Family) -> IpAddr {
    match family {
        Family::V4 => lb.front().into(),
        Family::V6 => link_local(lb.index()).into(),
    }
}

/// The last lines of a file.
#[must_use]
pub fn tail(file: &Path, lines: usize) -> String {
    let text = std::fs::read(file).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    let kept = all.get(all.len().saturating_sub(lines)..).unwrap_or_default();
    format!("--- {}\n{}\n", file.display(), kept.join("\n"))
}
