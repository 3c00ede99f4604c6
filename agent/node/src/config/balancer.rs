//! What is already there and serves: the data plane.

use super::{Name, milliseconds};
use serde::Serialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How often a balancer's admin side is asked unless the configuration says otherwise.
pub const POLL: Duration = Duration::from_millis(500);

/// A balancer that is already there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Balancer {
    /// Unique among balancers.
    pub name: Name,
    /// What it is.
    pub kind: BalancerKind,
    /// How its processes are found.
    pub source: ProcessSource,
    /// Where it can be asked how it is: haproxy's stats socket, nginx's `stub_status`, Envoy's admin address.
    pub admin: Option<Admin>,
    /// haproxy's master CLI (`-S`): the only one that still hears a worker which is leaving.
    pub master: Option<PathBuf>,
    /// Its own configuration files, for `holdfast check`.
    pub config: Vec<PathBuf>,
    /// From start to start of two looks at it, but for a jitter.
    #[serde(rename = "poll_ms", serialize_with = "milliseconds")]
    pub poll: Duration,
}

impl Balancer {
    /// One of which nothing is known but how to find its processes.
    pub const fn new(name: Name, kind: BalancerKind, source: ProcessSource) -> Self {
        Self { name, kind, source, admin: None, master: None, config: Vec::new(), poll: POLL }
    }
}

/// The kinds this version wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BalancerKind {
    /// HAProxy: master and workers, or a single process.
    Haproxy,
    /// nginx: master and workers.
    Nginx,
    /// Envoy: one process for each epoch, perhaps below a hot restarter.
    Envoy,
    /// Our own table in the kernel: no process.
    Nft,
    /// Any process: whether it lives, listens and runs is all that is known.
    Process,
}

impl BalancerKind {
    /// As it is written in the configuration.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Envoy => "envoy",
            Self::Nft => "nft",
            Self::Process => "process",
        }
    }
}

/// How the balancer's processes are found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessSource {
    /// A systemd unit: its cgroup.
    Unit(String),
    /// The keeper starts it: argv, never a shell.
    Command(Vec<String>),
    /// A file with the pid.
    Pidfile(PathBuf),
    /// It has none: the kernel does the work.
    Kernel,
}

/// Where a balancer is asked how it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Admin {
    /// A socket that speaks HAProxy's command language.
    Socket(PathBuf),
    /// HTTP.
    Http {
        /// Where to connect.
        at: HttpAt,
        /// Of nginx's status page; of Envoy's admin side it is what stands before its own paths (`/` as a rule).
        path: String,
    },
}

/// Where an HTTP admin side listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HttpAt {
    /// Address and port.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl fmt::Display for HttpAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}
