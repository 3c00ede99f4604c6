//! What the plane's own files say, in one form for all planes, and what is found wrong with it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Findings of one balancer; more help nobody.
pub(super) const FINDINGS_MAX: usize = 100;

/// Where something stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct At {
    pub(super) file: String,
    /// From 1; 0: the file as a whole.
    pub(super) line: usize,
}

/// Something that somebody should look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// Of [`super::rules::RULES`].
    pub(super) rule: &'static str,
    pub(super) at: At,
    pub(super) cause: String,
    pub(super) consequence: String,
    pub(super) remedy: String,
}

/// What is listened on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bind {
    /// `None`: every address.
    pub(super) ip: Option<IpAddr>,
    pub(super) ports: (u16, u16),
    /// Binds to addresses that aren't there.
    pub(super) anywhere: bool,
    pub(super) at: At,
}

/// What a request for a path gets without asking a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnAnswer {
    pub(super) path: String,
    /// Also everything below it.
    pub(super) prefix: bool,
    /// It fails when the pool is empty.
    pub(super) judges_pool: bool,
    /// HAProxy's `monitor-uri`.
    pub(super) monitor: bool,
    pub(super) at: At,
}

/// A listener with what is behind it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Front {
    pub(super) name: String,
    pub(super) binds: Vec<Bind>,
    pub(super) own: Vec<OwnAnswer>,
    /// What a client gets when no backend is up; `None`: the connection is closed.
    pub(super) empty_status: Option<u16>,
    /// It can't be said which paths are answered how.
    pub(super) opaque: bool,
}

/// How fast a plane takes a backend out that doesn't answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Detection {
    pub(super) min: Duration,
    pub(super) max: Duration,
    /// `inter 2s, fall 3`.
    pub(super) how: String,
    pub(super) at: At,
}

/// Backends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) name: String,
    pub(super) backends: usize,
    /// Of the slowest backend.
    pub(super) detection: Option<Detection>,
    /// Between two checks of the fastest checked backend; `None`: not checked by itself.
    pub(super) every: Option<Duration>,
    /// Backends that are checked.
    pub(super) checked: usize,
    pub(super) at: At,
}

/// Everything that one balancer's files say.
#[derive(Debug, Default)]
pub(super) struct Plane {
    pub(super) fronts: Vec<Front>,
    pub(super) pools: Vec<Pool>,
    pub(super) findings: Vec<Finding>,
    /// Lines for people: what was computed, what could not be read.
    pub(super) facts: Vec<String>,
    /// Findings beyond the most that are told.
    pub(super) untold: usize,
}

impl Plane {
    pub(super) fn find(
        &mut self,
        rule: &'static str,
        at: &At,
        cause: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        if self.findings.len() < FINDINGS_MAX {
            let (cause, consequence, remedy) = (cause.into(), consequence.into(), remedy.into());
            self.findings.push(Finding { rule, at: at.clone(), cause, consequence, remedy });
        } else {
            self.untold += 1;
        }
    }
}

/// A check of ours.
#[derive(Debug, Clone)]
pub(super) struct OurCheck {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    /// Path, and statuses that pass.
    pub(super) http: Option<(String, Vec<(u16, u16)>)>,
    /// How long it takes to fail, at least and at most.
    pub(super) min: Duration,
    pub(super) max: Duration,
}

/// What a plane's files are held against.
#[derive(Debug, Clone, Default)]
pub(super) struct Ours {
    pub(super) vips: Vec<IpAddr>,
    pub(super) checks: Vec<OurCheck>,
    /// Nodes of the cluster, this one included.
    pub(super) nodes: u32,
    /// The kernel lets anybody bind to an address that isn't there (IPv4, IPv6).
    pub(super) nonlocal: (bool, bool),
    /// The agent asks the plane's admin side too.
    pub(super) admin: bool,
}

/// `2s`, `500ms`, `1500ms`.
pub(super) fn shown(time: Duration) -> String {
    crate::config::duration::show(time)
}

/// `1 server`, `2 servers`.
pub(super) fn many(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
