//! What announces the VIP on each node: Holdfast, or what people put together today.

pub mod glue;
pub mod holdfast;

use super::net::{BACKENDS, Net, Node};
use super::router::Bfd;
use crate::balancer;
use crate::clock::Ns;
use anyhow::Result;

/// Which speaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The agent.
    #[default]
    Holdfast,
    /// ExaBGP with its healthcheck process at its fastest.
    Exabgp,
    /// ExaBGP with its healthcheck process at its defaults.
    ExabgpDefault,
    /// GoBGP, told by a watcher of the balancer's pidfd.
    Gobgp,
    /// BIRD, told by a watcher of the balancer's pidfd.
    Bird,
}

impl Kind {
    /// As in reports and options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Holdfast => "holdfast",
            Self::Exabgp => "exabgp",
            Self::ExabgpDefault => "exabgp-default",
            Self::Gobgp => "gobgp",
            Self::Bird => "bird",
        }
    }
}

/// Where a speaker runs.
#[derive(Debug)]
pub struct Place {
    /// The network.
    pub net: Net,
    /// The sessions' hold time, s.
    pub hold_s: u16,
    /// The sessions' BFD.
    pub bfd: Option<Bfd>,
}

/// What is done to lb1 (or, where it says so, to the router).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL to the balancer.
    BalancerKilled,
    /// SIGSTOP to the balancer.
    BalancerHung,
    /// SIGSTOP to everything on the host.
    HostFrozen,
    /// The node's port at the switch goes down: the router's own link stays up.
    CableCut,
    /// SIGKILL to the agent's worker.
    WorkerKilled,
    /// The operator has the agent's worker replaced.
    WorkerRestarted,
    /// The operator drains the node.
    Drain,
    /// The router's daemons are killed and start again.
    RouterRestarted,
}

/// A speaker and the balancer beside it, on all nodes.
pub trait Speaker {
    /// Its name and version.
    fn version(&self) -> String;
    /// Why `fault` makes no sense for it; `None`: it does.
    fn lacks(&self, fault: Fault) -> Option<String>;
    /// Starts it, and the balancer if it doesn't do so itself.
    ///
    /// # Errors
    /// Something didn't start.
    fn start(&mut self, place: &Place, node: Node) -> Result<()>;
    /// The balancer's pid.
    ///
    /// # Errors
    /// There is none.
    fn balancer(&self, place: &Place, node: Node) -> Result<i32>;
    /// The pid of the worker, for a speaker that has one.
    ///
    /// # Errors
    /// There is none.
    fn worker(&self, node: Node) -> Result<i32>;
    /// Has the worker replaced by a new one, in order; returns when that was ordered, when the new one answers.
    ///
    /// # Errors
    /// It was refused or failed.
    fn upgrade(&mut self, place: &Place, node: Node) -> Result<Ns>;
    /// Brings the balancer back after it was killed, if the speaker doesn't do so itself.
    ///
    /// # Errors
    /// It doesn't come.
    fn mend_balancer(&mut self, place: &Place, node: Node) -> Result<()>;
    /// Takes the node out; returns when that was ordered, when it is done.
    ///
    /// # Errors
    /// It was refused or failed.
    fn drain(&mut self, place: &Place, node: Node) -> Result<Ns>;
    /// Brings it back.
    ///
    /// # Errors
    /// It was refused or failed.
    fn undrain(&mut self, place: &Place, node: Node) -> Result<()>;
    /// A program that should run and has ended, by name.
    fn ended(&mut self) -> Option<String>;
    /// Its own account of what happened on `node`.
    fn journal(&self, place: &Place, node: Node) -> Vec<String>;
}

/// HAProxy's command line on `node`, its configuration written.
///
/// # Errors
/// HAProxy isn't installed, or the file can't be written.
pub fn haproxy(net: &Net, node: Node) -> Result<Vec<String>> {
    let name = node.name();
    balancer::haproxy(net.file(&format!("{name}-haproxy.cfg")), &name, &BACKENDS)
}
