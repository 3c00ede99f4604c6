//! What keeper and worker tell each other over their SOCK_SEQPACKET pair, one message per packet.
//!
//! The agent encodes these with postcard; a packet that doesn't decode, or is longer than [`MESSAGE_MAX`], is
//! dropped and counted, never fatal. The worker speaks first: [`ToKeeper::Hello`], answered by [`ToWorker::Boot`].
//! These types hold no policy; what the keeper does with them is [`Keeper`](super::Keeper)'s.

mod routing;

pub use routing::{BFD_MAX, BfdReport, BfdSpec, BfdState, BgpGrace, BgpSession, FAREWELL_MAX, describe_diagnostic};

use crate::kernel::{Route, Rule, Vmac};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// Longest packet, in bytes. Below the default send buffer of a unix socket, so that one always fits.
pub const MESSAGE_MAX: usize = 65_536;
/// Captured output of an [`ToKeeper::Exec`] beyond this many bytes is read and thrown away.
pub const OUTPUT_MAX: usize = 4_096;

/// Worker to keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToKeeper {
    /// First message of a worker (the keeper answers with [`ToWorker::Boot`]), and again whenever a reload changes
    /// a limit (then it is not answered).
    Hello {
        /// Without a [`ToKeeper::Beat`] for this long the worker counts as hung. The keeper takes at least 300 ms, and
        /// counts from the first beat or record: until then a worker has 10 s since its start.
        hang_limit: Duration,
        /// How long VIPs may wait for a new worker at most. The keeper takes at most 200 ms, and at most twice the
        /// VIP's interval.
        resume_limit: Duration,
    },
    /// The protocol thread is alive. To be sent at least every 50 ms from that thread's own loop.
    Beat,
    /// Replaces the former record of that VIP. The send socket of the resign's interface may travel with it
    /// (SCM_RIGHTS); without one the keeper opens its own.
    Owner(VipRecord),
    /// Run this balancer and keep it running. Idempotent: one that runs with the same argv is left alone and
    /// reported with [`ToWorker::Balancer`].
    StartBalancer {
        /// The balancer's name in the configuration.
        name: String,
        /// Program and arguments, never a shell.
        argv: Vec<String>,
        /// Signal that lets it finish its connections (SIGUSR1 for haproxy, SIGQUIT for nginx). When it must stop,
        /// this comes first, SIGTERM 5 s later; `None`: SIGTERM at once. SIGKILL is always 5 s after SIGTERM.
        soft_stop: Option<i32>,
    },
    /// Stop it and don't start it again.
    StopBalancer {
        /// The balancer's name in the configuration.
        name: String,
    },
    /// Run a program once with a worker's rights taken away; answered by [`ToWorker::ExecDone`].
    Exec {
        /// Comes back with the answer.
        token: u64,
        /// Program and arguments, never a shell.
        argv: Vec<String>,
        /// Added to the keeper's own environment.
        environment: Vec<(String, String)>,
        /// After this SIGTERM to its process group, 500 ms later SIGKILL.
        timeout: Duration,
    },
    /// The complete list of BFD sessions that are to run. What is in both lists is left alone, but for changed timers,
    /// which change live; what isn't wanted any more says AdminDown. Answered by one [`ToWorker::Bfd`] for each.
    Bfd(Vec<BfdSpec>),
    /// A BGP session was established, its socket comes along; or it ended.
    BgpSession(BgpSession),
    /// All is released, the worker is about to exit: nothing is left to undo. Records that still hold something
    /// are undone at once, without grace.
    Stopped,
    /// Start another worker beside this one, to take its place; answered by [`ToWorker::Leave`] when it is ready, or by
    /// [`ToWorker::NotReplaced`].
    Replace,
}

/// What the keeper must know of a VIP to undo the worker's work and to let a new worker resume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VipRecord {
    /// The VIP's name in the configuration.
    pub vip: String,
    /// Its router is Active.
    pub active: bool,
    /// Grows at each change of role.
    pub role_epoch: u64,
    /// What may be in the kernel because of us, in the order in which it is to be undone ([`Undo`] sorts so). To be
    /// recorded before it is added and dropped from the record after it is removed. Neither active nor anything to undo:
    /// the record is forgotten.
    pub undo: Vec<Undo>,
    /// The priority-0 adverts to send on the worker's behalf; empty: none.
    pub resign: Vec<Resign>,
    /// Advert interval: how long a resume may take.
    pub interval: Duration,
    /// The balancers behind it that the keeper runs ([`ToKeeper::StartBalancer`]).
    pub balancers: Vec<String>,
    /// Legs whose adverts have the pseudo-header's checksum because their peers were heard to use that, and whether they
    /// go out with the RFC's as well: for the next worker.
    pub pseudo_header: Vec<(u16, bool)>,
    /// It is announced by BGP: its addresses stay when the worker dies, as its routes do.
    pub bgp: Option<BgpGrace>,
}

/// Something to be removed from the kernel. The order of the variants is that of undoing: rules, routes, devices (with
/// all that is on them), addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Undo {
    /// A rule of ours.
    Rule(Rule),
    /// A route of ours.
    Route(Route),
    /// The device of a virtual router.
    Vmac(Vmac),
    /// An address.
    Address(VipAddress),
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => write!(f, "rule {rule}"),
            Self::Route(route) => write!(f, "route {route} on interface {}", route.ifindex),
            Self::Vmac(vmac) => write!(f, "device {vmac}"),
            Self::Address(VipAddress { ifindex, ip, prefix }) => write!(f, "{ip}/{prefix} on interface {ifindex}"),
        }
    }
}

/// One address on one interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VipAddress {
    /// Interface index.
    pub ifindex: u32,
    /// The address.
    pub ip: IpAddr,
    /// Prefix length as in the kernel.
    pub prefix: u8,
}

/// A VRRP advert of priority 0, prepared beforehand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resign {
    /// Interface to send it on.
    pub ifindex: u32,
    /// Source address of the IP header.
    pub source: IpAddr,
    /// The group, or a unicast peer.
    pub destination: IpAddr,
    /// The VRRP payload, checksum included.
    pub payload: Vec<u8>,
}

/// Keeper to worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToWorker {
    /// The answer to the first [`ToKeeper::Hello`].
    Boot {
        /// VIPs the former worker held and that are still held for this one, less those that came before
        /// ([`ToWorker::Held`]): (VIP name, role epoch). Say
        /// [`ToKeeper::Owner`] for each at once, active or not.
        resume: Vec<(String, u64)>,
        /// Of these, [`VipRecord::pseudo_header`] where it isn't empty.
        pseudo_header: Vec<(String, Vec<(u16, bool)>)>,
        /// Workers that ended unasked since the keeper started.
        crashed_before: u32,
        /// How the former worker ended, for the journal; empty for the first one.
        former_end: String,
        /// The former worker had established BGP sessions, the neighbours still keep the routes, and what they lead to
        /// stands: the first OPEN to each may say that we restart (RFC 4724, Restart State).
        bgp_restarting: bool,
        /// The keeper has what came with the greeting, and hears beats that are left there. Else they must be messages.
        pulse: bool,
    },
    /// A BFD session changed its state, or was asked for by [`ToKeeper::Bfd`].
    Bfd(BfdReport),
    /// The worker was too late to resume this VIP: the keeper has resigned and undone it. A worker that
    /// still believes it is Active in this role epoch must go to Backup.
    Lapsed {
        /// The VIP's name.
        vip: String,
        /// The epoch it was held in.
        role_epoch: u64,
    },
    /// The balancer runs, as this process.
    Balancer {
        /// The balancer's name.
        name: String,
        /// Its process.
        pid: u32,
        /// Start time of that process, in clock ticks since boot (field 22 of /proc/PID/stat).
        start_time: u64,
    },
    /// The balancer's process ended. Unless it was to stop, the keeper starts it again by itself.
    BalancerExited {
        /// The balancer's name.
        name: String,
        /// Its process; 0: it could not be started.
        pid: u32,
        /// In words: `exit status 1`, `signal 9`, `can't start: …`.
        what: String,
    },
    /// How an [`ToKeeper::Exec`] ended.
    ExecDone {
        /// The token it was asked with.
        token: u64,
        /// How it ended.
        result: ExecResult,
        /// The first [`OUTPUT_MAX`] bytes of stdout and stderr.
        output: Vec<u8>,
    },
    /// SIGHUP: read the configuration again.
    Reload,
    /// Leave in order within this time, then [`ToKeeper::Stopped`] and exit.
    Stop {
        /// From now.
        deadline: Duration,
    },
    /// Comes before [`ToWorker::Boot`], as often as it takes, when what is to be resumed fits into no single packet: the
    /// first parts of both lists.
    Held {
        /// As in [`ToWorker::Boot`].
        resume: Vec<(String, u64)>,
        /// As in [`ToWorker::Boot`].
        pseudo_header: Vec<(String, Vec<(u16, bool)>)>,
    },
    /// Another worker is ready: end at once and leave everything as it is, in the kernel and on the wire.
    Leave {
        /// The other one's process.
        pid: u32,
    },
    /// No other worker could take over: go on.
    NotReplaced {
        /// In words.
        why: String,
    },
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExecResult {
    /// It exited with this status.
    Status(i32),
    /// This signal ended it, not sent by us.
    Signal(i32),
    /// It took too long and was killed.
    TimedOut,
    /// It could not be started, or too many run already.
    NotStarted(String),
}
