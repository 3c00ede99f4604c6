//! The router's routing daemons: FRR or BIRD, with what a session can be asked to have.

pub mod bird;
pub mod frr;

use super::net::{Net, Node, ROUTER};
use crate::env::{Lacks, find_program};
use crate::process::Proc;
use anyhow::{Result, bail};
use rustix::process::Signal;
use std::net::IpAddr;
use std::path::PathBuf;

/// The router's AS.
pub const ROUTER_AS: u32 = 65_000;
/// The nodes' AS where they have one of their own.
pub const NODE_AS: u32 = 65_001;

/// Which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// bird 2.
    Bird,
    /// zebra, bgpd and bfdd of FRR.
    Frr,
}

impl Kind {
    /// As in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bird => "bird",
            Self::Frr => "frr",
        }
    }

    /// It, with what it is to have; not started.
    ///
    /// # Errors
    /// [`Lacks`], or its directory can't be made.
    pub fn router(self, net: &Net, setup: Setup) -> Result<Box<dyn Router>> {
        Ok(match self {
            Self::Bird => Box::new(bird::Bird::new(net, setup)?),
            Self::Frr => Box::new(frr::Frr::new(net, setup)?),
        })
    }
}

/// BFD on a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bfd {
    /// Both ways, ms.
    pub interval_ms: u32,
    /// Packets that may be missed.
    pub multiplier: u8,
}

/// Whom the router speaks to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// A node's address.
    Address(IpAddr),
    /// Whoever is on `eth1`, over its link-local address (FRR's unnumbered peering).
    Interface,
}

/// A session.
#[derive(Debug, Clone)]
pub struct Neighbour {
    /// The node.
    pub node: Node,
    /// By what address.
    pub remote: Remote,
    /// From what address.
    pub local: IpAddr,
    /// Its AS; the router's own: iBGP.
    pub asn: u32,
    /// Hold time, s.
    pub hold_s: u16,
    /// TCP MD5.
    pub password: Option<String>,
    /// GTSM: only hop limits of 255.
    pub ttl_security: bool,
    /// IPv4 routes.
    pub ipv4: bool,
    /// IPv6 routes.
    pub ipv6: bool,
    /// IPv4 routes with IPv6 next hops.
    pub extended_next_hop: bool,
    /// The router takes no capability 65: it knows ASes of two octets.
    pub two_octet: bool,
    /// BFD.
    pub bfd: Option<Bfd>,
    /// Only waits to be called.
    pub passive: bool,
    /// Not on its link: so many hops at most.
    pub multihop: Option<u8>,
    /// Communities that say a weight (their eight octets, in two halves), and which: for a router that has to be told.
    pub weights: Vec<(u32, u32, u32)>,
}

impl Neighbour {
    /// eBGP over IPv4 with IPv4 routes, nothing else.
    #[must_use]
    pub fn plain(node: Node) -> Self {
        Self {
            node,
            remote: Remote::Address(node.front().into()),
            local: ROUTER.into(),
            asn: NODE_AS,
            hold_s: 9,
            password: None,
            ttl_security: false,
            ipv4: true,
            ipv6: false,
            extended_next_hop: false,
            two_octet: false,
            bfd: None,
            passive: false,
            multihop: None,
            weights: Vec::new(),
        }
    }
}

/// What the router is to have.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Its AS.
    pub asn: u32,
    /// Its sessions.
    pub neighbours: Vec<Neighbour>,
    /// Its routes stay in the kernel while it restarts, and it asks its peers to bear with it.
    pub retain: bool,
}

impl Setup {
    /// Those sessions.
    #[must_use]
    pub fn new(neighbours: Vec<Neighbour>) -> Self {
        Self { asn: ROUTER_AS, neighbours, retain: false }
    }

    /// The sessions' BFD (all have the same).
    #[must_use]
    pub fn bfd(&self) -> Option<Bfd> {
        self.neighbours.iter().find_map(|n| n.bfd)
    }
}

/// A routing daemon that can be told things.
pub trait Router {
    /// Starts it.
    ///
    /// # Errors
    /// A program can't be started, or says nothing within 10 s.
    fn start(&mut self) -> Result<()>;
    /// Its processes; none: it wasn't started, or was killed.
    fn daemons(&mut self) -> &mut Vec<Proc>;
    /// SIGKILL for all of it, at once: none sees another one go.
    fn kill(&mut self) {
        for d in self.daemons().iter() {
            let _gone = d.fd().signal(Signal::STOP);
        }
        for mut d in self.daemons().drain(..) {
            d.kill();
        }
    }
    /// Whether its session with `node` is established.
    fn established(&self, node: Node) -> bool;
    /// Whether its BFD session with `node` is up.
    fn bfd_up(&self, node: Node) -> bool;
    /// Ends and begins all sessions anew.
    ///
    /// # Errors
    /// It doesn't answer.
    fn clear(&self) -> Result<()>;
    /// What it says of its sessions and routes, for people.
    fn told(&self) -> String;
    /// Whether it still runs.
    fn alive(&mut self) -> bool {
        !self.daemons().is_empty() && self.daemons().iter_mut().all(Proc::alive)
    }
}

/// The version, for reports; its name where it isn't installed.
#[must_use]
pub fn version(kind: Kind) -> String {
    let (program, flag) = match kind {
        Kind::Bird => (find("bird"), "--version"),
        Kind::Frr => (find("bgpd"), "--version"),
    };
    let out = program.ok().and_then(|p| std::process::Command::new(p).arg(flag).output().ok());
    let said = out.map(|o| format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr)));
    let number =
        said.as_deref().and_then(|s| s.split_whitespace().find(|w| w.starts_with(|c: char| c.is_ascii_digit())));
    format!("{} {}", kind.name(), number.unwrap_or("?"))
}

/// A program, also in FRR's own directory.
///
/// # Errors
/// [`Lacks`].
pub fn find(name: &str) -> Result<PathBuf> {
    let frr = PathBuf::from("/usr/lib/frr").join(name);
    match find_program(name).or_else(|| frr.is_file().then_some(frr)) {
        Some(program) => Ok(program),
        None => bail!(Lacks(format!("{name} (packages frr, bird2, gobgpd, exabgp)"))),
    }
}
