//! What is put to the test: two hosts' worth of a program that holds the VIP.

pub mod holdfast;
pub mod keepalived;

use crate::balancer::Kind;
use crate::fabric::{Fabric, Lb, VIP, VRID};
use crate::faults::Fault;
use crate::process::Proc;
use anyhow::Result;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

/// Adverts' interval where a drill doesn't say otherwise.
pub const INTERVAL: Duration = Duration::from_millis(100);

/// Which subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubjectKind {
    /// The agent.
    #[default]
    Holdfast,
    /// keepalived with the best it offers: VRRPv3, 100 ms, a track file fed by a pidfd watcher.
    Keepalived,
}

/// The place a subject runs in.
#[derive(Debug)]
pub struct Place {
    /// The network.
    pub fabric: Fabric,
    /// The balancer.
    pub balancer: Kind,
    /// With the peers' channel (a subject without one ignores it).
    pub channel: bool,
    /// How many VIPs: the drills' one and, to measure what more cost, others after it.
    pub vips: u8,
    /// Adverts' interval.
    pub adverts: Duration,
    /// Busy loops of a fault; they end with this.
    pub busy: Vec<Proc>,
}

impl Place {
    /// A file in the temporary directory.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.fabric.directory().join(name)
    }

    /// Each VIP: its number, its address, its VRID.
    pub fn addresses(&self) -> impl Iterator<Item = (u8, Ipv4Addr, u8)> {
        let [a, b, c, d] = VIP.octets();
        (0..self.vips).map(move |n| {
            // The first is the fabric's; the others lie where no host is.
            let ip = if n == 0 { VIP } else { Ipv4Addr::new(a, b, c, d.wrapping_add(120).wrapping_add(n)) };
            (n, ip, VRID.wrapping_add(n))
        })
    }
}

/// Two hosts' worth of the program under test.
pub trait Subject {
    /// Its name and version.
    fn version(&self) -> String;

    /// Why `fault` makes no sense for it; `None`: it does.
    fn lacks(&self, fault: Fault) -> Option<String>;

    /// Starts everything on `lb`: the program, and the balancer if the program doesn't.
    ///
    /// # Errors
    /// Something didn't start.
    fn start(&mut self, place: &Place, lb: Lb) -> Result<()>;

    /// The balancer's pid on `lb`.
    ///
    /// # Errors
    /// There is none.
    fn balancer(&self, place: &Place, lb: Lb) -> Result<i32>;

    /// The pid of the process that does the work on `lb`.
    ///
    /// # Errors
    /// There is none.
    fn worker(&self, lb: Lb) -> Result<i32>;

    /// Every pid of the program itself on `lb`, children first.
    fn agent(&self, lb: Lb) -> Vec<i32>;

    /// Starts the program on `lb` after all of it was killed; the balancer lived on.
    ///
    /// # Errors
    /// It didn't start.
    fn start_again(&mut self, place: &Place, lb: Lb) -> Result<()>;

    /// Makes it impossible for the worker of `lb` to start, or possible again.
    ///
    /// # Errors
    /// A file can't be replaced.
    fn worker_can_start(&mut self, place: &Place, lb: Lb, can: bool) -> Result<()>;

    /// Has the worker of `lb` replaced by a new one, in order; returns when that one works.
    ///
    /// # Errors
    /// It was refused or failed.
    fn upgrade(&mut self, place: &Place, lb: Lb) -> Result<()>;

    /// After the balancer of `lb` was killed: bring it back, if the program doesn't do so.
    ///
    /// # Errors
    /// It didn't start.
    fn mend_balancer(&mut self, place: &Place, lb: Lb) -> Result<()>;

    /// Takes `lb` out of service for maintenance; returns when it is done.
    ///
    /// # Errors
    /// It was refused or failed.
    fn drain(&mut self, place: &Place, lb: Lb) -> Result<()>;

    /// Brings it back.
    ///
    /// # Errors
    /// It was refused or failed.
    fn undrain(&mut self, place: &Place, lb: Lb) -> Result<()>;

    /// A program that should run and has ended, by name.
    fn ended(&mut self) -> Option<String>;

    /// Ends everything on both hosts.
    fn stop(&mut self);

    /// The program's own account of what happened on `lb` since `since`, if it has one.
    fn journal(&self, place: &Place, lb: Lb) -> Vec<String>;
}
