//! What a plane is to these drills.

use super::envoy::Envoy;
use super::haproxy::Haproxy;
use super::nginx::Nginx;
use super::situation::{Expected, Situation};
use crate::fabric::{Fabric, Lb};
use crate::netns::Netns;
use crate::process::{Pidfd, Stat};
use anyhow::Result;
use std::fmt;
use std::path::PathBuf;
use std::process::Output;

/// Which plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// HAProxy, master and worker.
    Haproxy,
    /// nginx, master and worker.
    Nginx,
    /// Envoy below a hot restarter.
    Envoy,
}

impl Kind {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 3] = [Self::Haproxy, Self::Nginx, Self::Envoy];

    /// Its name on the command line and in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Envoy => "envoy",
        }
    }

    /// What the drills know of it.
    #[must_use]
    pub fn plane(self) -> Box<dyn Plane> {
        match self {
            Self::Haproxy => Box::new(Haproxy),
            Self::Nginx => Box::new(Nginx),
            Self::Envoy => Box::new(Envoy),
        }
    }
}

/// One of the two hosts, as a plane sees it.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// The network.
    pub fabric: &'a Fabric,
    /// Which one.
    pub lb: Lb,
}

impl Host<'_> {
    /// A file of this host.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.fabric.directory().join(format!("{}-{name}", self.lb.name()))
    }

    /// The same as text, for configurations.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        self.file(name).to_string_lossy().into_owned()
    }

    /// Its namespace.
    #[must_use]
    pub fn ns(&self) -> Netns {
        self.fabric.lb(self.lb)
    }

    /// The living processes of the plane, whoever their parents are: what runs here under one of these names.
    #[must_use]
    pub fn processes(&self, names: &[&str]) -> Vec<Stat> {
        let all = self.ns().pids().into_iter().filter_map(Stat::of);
        all.filter(|s| s.alive() && names.contains(&s.comm.as_str())).collect()
    }
}

/// HAProxy, nginx or Envoy. `main` is the process that was started: the master, or the only one.
///
/// What it serves, on the VIP and on 127.0.0.1, both port 80: every request goes to one of the three backends, spread
/// evenly, and the answer gets a header `x-lb` with the host's name. It checks its backends itself, several times a
/// second. It binds the VIP on the host that doesn't hold it, too. As many as [`Plane::connections`] clients are served.
pub trait Plane: fmt::Debug {
    /// Its name and version.
    fn version(&self) -> String;

    /// Names that the kernel has for its processes.
    fn processes(&self) -> &'static [&'static str];

    /// Writes its configuration; `broken`: one that it refuses.
    ///
    /// # Errors
    /// A file can't be written.
    fn configure(&self, host: Host<'_>, broken: bool) -> Result<()>;

    /// The program and its arguments.
    ///
    /// # Errors
    /// [`crate::env::Lacks`] when it isn't installed.
    fn command(&self, host: Host<'_>) -> Result<Vec<String>>;

    /// What stands in `[[balancer]]` beside `name`, `kind` and `pidfile`: lines of TOML.
    fn section(&self, host: Host<'_>) -> String;

    /// Those of its processes that serve now.
    fn workers(&self, host: Host<'_>, main: i32) -> Vec<i32>;

    /// Whether others than `old` serve now, and the next reload may be asked for.
    fn reloaded(&self, host: Host<'_>, main: i32, old: &[i32]) -> bool {
        let new = self.workers(host, main);
        !new.is_empty() && new.iter().all(|pid| !old.contains(pid))
    }

    /// Whether it says how often it was reloaded.
    fn counts_reloads(&self) -> bool {
        true
    }

    /// The process that watches over those that serve; `None`: nobody does.
    fn master(&self, main: i32) -> Option<i32>;

    /// Why it can't get into that situation; `None`: it can.
    fn lacks(&self, situation: Situation) -> Option<&'static str>;

    /// What must come of it.
    fn expected(&self, situation: Situation) -> Expected;

    /// How many connections it may have.
    fn connections(&self) -> usize;

    /// Tells it to end in order.
    ///
    /// # Errors
    /// It can't be told.
    fn exit(&self, host: Host<'_>, main: &Pidfd) -> Result<()>;

    /// Tells it to reload, without waiting for what comes of it.
    ///
    /// # Errors
    /// It can't be told.
    fn reload(&self, host: Host<'_>, main: &Pidfd) -> Result<()>;

    /// Makes it take connections more slowly than they come, or takes that back.
    ///
    /// # Errors
    /// It can't be done.
    fn slow(&self, host: Host<'_>, main: i32, on: bool) -> Result<()>;
}

/// The number in what a program says of its version: the first word with a dot between two of `separator`, or after it.
pub(super) fn first_word_of_version(out: std::io::Result<Output>, separator: char) -> Option<String> {
    let out = out.ok()?;
    let said = [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned()).concat();
    let mut words = said.split(|c: char| c == separator || c.is_whitespace());
    let number = |w: &&str| w.contains('.') && w.starts_with(|c: char| c.is_ascii_digit());
    words.find(number).map(str::to_owned)
}
