//! What lies between the protocol thread and the runtime: every queue, its limit, and what happens when it's full.

use super::api::{Asked, REQUESTS_MAX, Recorded, WorkerFigures};
use super::fifo::Line;
use crate::balancer::report::{REPORTS_MAX, Seen};
use crate::check;
use crate::os::sched;
use holdfast_node::config::{CheckId, VIPS_MAX, VipId};
use holdfast_node::conntrack::Sample;
use holdfast_node::drain::Intents;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};

/// Events on their way to ring, log and disk. Full → dropped and counted; the ids show the gap.
const EVENTS_MAX: usize = 4_096;
/// Probes on their way to those who run them, as many together as the node starts at a time. Full → the probes fail at
/// once, saying so.
const PROBES_MAX: usize = 256;
/// Results of probes, up to 64 together. Full → they wait in their tasks, and the node's own deadline counts them as
/// overdue.
const RESULTS_MAX: usize = 32;
/// States on their way to the notify fifo. Full → dropped and counted; the next change of that VIP tells the truth.
const LINES_MAX: usize = 2 * VIPS_MAX;
/// Disable files that came or went. Full → the reader waits, and then tells what is true by then.
const DISABLED_MAX: usize = 64;
/// Looks at the connection table. Full → the reader waits, and then looks anew.
const CONNTRACK_MAX: usize = 2;
/// Things to log. Full → dropped and counted.
const NOTES_MAX: usize = 64;

/// A probe to run.
#[derive(Debug)]
pub(super) struct StartProbe {
    pub(super) check: CheckId,
    pub(super) sequence: u64,
    pub(super) timeout: Duration,
}

/// Something for the log that is no event of the node. The protocol thread doesn't format; the runtime does.
#[derive(Debug)]
pub(super) enum Note {
    /// Scheduling or memory is not as it should be.
    Not(sched::Reason),
    /// The channel's socket can't be bound; tried again every second.
    ChannelBind { listen: SocketAddr, errno: i32 },
    /// It is bound, after it had failed.
    ChannelBound { listen: SocketAddr },
    /// The kernel's events can't be read; tried again.
    Monitor { errno: i32 },
    /// Nobody can connect to us by BGP; tried again every second.
    BgpListen { port: u16, errno: i32 },
    /// The keeper is gone.
    KeeperGone,
    /// The keeper wants us to stop.
    Stop { deadline: Duration },
    /// Not released within the deadline: what is left is the keeper's and the kernel's.
    StopLate,
    /// The sync thread could not begin.
    Sync(std::io::Error),
    /// SIGHUP.
    Reload,
    /// The keeper gave a VIP away.
    Lapsed { vip: String },
}

/// The protocol thread's ends.
#[derive(Debug)]
pub(super) struct ProtocolEnds {
    pub(super) requests: mpsc::Receiver<Asked>,
    pub(super) results: mpsc::Receiver<Vec<check::Done>>,
    pub(super) planes: mpsc::Receiver<Seen>,
    /// Of the balancers, in their order: look now. Wishes that meet become one.
    pub(super) looks: Vec<Arc<Notify>>,
    pub(super) disabled: mpsc::Receiver<(VipId, bool)>,
    /// Looks at the connection table.
    pub(super) conntrack: mpsc::Receiver<Result<Sample, String>>,
    pub(super) events: mpsc::Sender<Recorded>,
    pub(super) probes: mpsc::Sender<Vec<StartProbe>>,
    pub(super) intents: watch::Sender<Intents>,
    pub(super) figures: watch::Sender<Arc<WorkerFigures>>,
    pub(super) notes: mpsc::Sender<Note>,
    /// `None`: no fifo is configured.
    pub(super) lines: Option<mpsc::Sender<Line>>,
    pub(super) disk: Arc<DiskFigures>,
}

/// The runtime's ends.
#[derive(Debug)]
pub(super) struct RuntimeEnds {
    pub(super) requests: mpsc::Sender<Asked>,
    pub(super) results: mpsc::Sender<Vec<check::Done>>,
    pub(super) planes: mpsc::Sender<Seen>,
    pub(super) looks: Vec<Arc<Notify>>,
    pub(super) disabled: mpsc::Sender<(VipId, bool)>,
    pub(super) conntrack: mpsc::Sender<Result<Sample, String>>,
    pub(super) events: mpsc::Receiver<Recorded>,
    pub(super) probes: mpsc::Receiver<Vec<StartProbe>>,
    /// Only the last intents count: a newer one overwrites what isn't stored yet.
    pub(super) intents: watch::Receiver<Intents>,
    pub(super) figures: watch::Receiver<Arc<WorkerFigures>>,
    pub(super) notes: mpsc::Receiver<Note>,
    pub(super) lines: mpsc::Receiver<Line>,
    pub(super) disk: Arc<DiskFigures>,
}

/// Counted where the disk is written, shown with the rest.
#[derive(Debug, Default)]
pub(super) struct DiskFigures {
    errors: AtomicU64,
    dropped: AtomicU64,
}

impl DiskFigures {
    pub(super) fn add(&self, errors: u64, dropped: u64) {
        self.errors.fetch_add(errors, Ordering::Relaxed);
        self.dropped.fetch_add(dropped, Ordering::Relaxed);
    }

    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// All queues. `stored`: intents that are on disk already; `balancers`: how many there are.
pub(super) fn pair(stored: Intents, fifo: bool, balancers: usize) -> (ProtocolEnds, RuntimeEnds) {
    let (requests_in, requests) = mpsc::channel(REQUESTS_MAX);
    let (results_in, results) = mpsc::channel(RESULTS_MAX);
    let (planes_in, planes) = mpsc::channel(REPORTS_MAX);
    let looks: Vec<Arc<Notify>> = (0..balancers).map(|_| Arc::default()).collect();
    let (disabled_in, disabled) = mpsc::channel(DISABLED_MAX);
    let (conntrack_in, conntrack) = mpsc::channel(CONNTRACK_MAX);
    let (events, events_out) = mpsc::channel(EVENTS_MAX);
    let (probes, probes_out) = mpsc::channel(PROBES_MAX);
    let (intents, intents_out) = watch::channel(stored);
    let (figures, figures_out) = watch::channel(Arc::default());
    let (notes, notes_out) = mpsc::channel(NOTES_MAX);
    let (lines, lines_out) = mpsc::channel(LINES_MAX);
    let lines = fifo.then_some(lines);
    let disk = Arc::<DiskFigures>::default();
    let protocol = ProtocolEnds {
        requests,
        results,
        planes,
        looks: looks.clone(),
        disabled,
        conntrack,
        events,
        probes,
        intents,
        figures,
        notes,
        lines,
        disk: Arc::clone(&disk),
    };
    let runtime = RuntimeEnds {
        requests: requests_in,
        results: results_in,
        planes: planes_in,
        looks,
        disabled: disabled_in,
        conntrack: conntrack_in,
        events: events_out,
        probes: probes_out,
        intents: intents_out,
        figures: figures_out,
        notes: notes_out,
        lines: lines_out,
        disk,
    };
    (protocol, runtime)
}
