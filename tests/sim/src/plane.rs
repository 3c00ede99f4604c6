//! A simulated balancer: what it is like, and so what everybody finds who looks at it or asks it.

use holdfast_node::io::{Admin, Failure, Level, OldWorker, PlaneReport, Pool, Reload};
use holdfast_node::plane::{Standing, Verdict};
use std::time::{Duration, Instant};

/// From start to start of two looks, but for a jitter.
pub const POLL: Duration = Duration::from_millis(500);
/// How long an admin side is waited for that says nothing.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long one takes that answers.
const ROUND_TRIP: Duration = Duration::from_millis(2);
/// A balancer that is like this for so long has been found out: two looks, `fall` or `rise` of the checks.
pub const FOUND_OUT: Duration = Duration::from_millis(2000);

/// The balancer of a host, as it really is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// Serves.
    Alive,
    /// Gone; the supervisor sees it at once.
    Dead,
    /// There, but answers nothing and does nothing.
    Hung,
    /// The same, by a signal; its accept queue fills up.
    Stopped,
    /// There, and doesn't listen any more.
    Closed,
    /// Full: the admin side answers, others wait in vain or are reset.
    Saturated,
    /// Answers with errors, though its backends are up.
    Sick,
    /// Answers with errors, since all its backends are down.
    PoolEmpty,
    /// Serves, with old and new processes side by side.
    Reloading,
    /// Serves, and says that it is about to stop.
    Leaving,
    /// Serves without its master.
    Unsupervised,
}

/// How well the agents look at their balancers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Looks {
    /// Not at all: only whether they live.
    None,
    /// At their processes and sockets.
    Processes,
    /// At these, and their admin side is asked.
    Whole,
}

impl Plane {
    /// How well a VIP is served, as far as those can know who look so.
    pub fn standing(self, looks: Looks) -> Standing {
        match self.verdict(looks) {
            Verdict::Unknown | Verdict::Serving | Verdict::Reloading => Standing::Good,
            Verdict::Unsupervised | Verdict::BadReload => Standing::Degraded,
            Verdict::Saturated => Standing::Full,
            Verdict::Sick | Verdict::PoolEmpty | Verdict::Leaving => Standing::Poor,
            Verdict::Dead | Verdict::Hung | Verdict::Failing => Standing::Bad,
        }
    }

    /// What should be thought of it by those who look so, and ask it.
    pub fn verdict(self, looks: Looks) -> Verdict {
        match (self, looks) {
            (Self::Dead, _) => Verdict::Dead,
            (Self::Closed, _) => Verdict::Failing,
            (Self::Hung | Self::Stopped | Self::Saturated, Looks::None) => Verdict::Failing,
            (Self::Hung | Self::Stopped, _) => Verdict::Hung,
            (Self::Saturated, _) => Verdict::Saturated,
            (Self::PoolEmpty, Looks::Whole) => Verdict::PoolEmpty,
            (Self::Sick | Self::PoolEmpty, _) => Verdict::Sick,
            (Self::Reloading, Looks::Whole) => Verdict::Reloading,
            (Self::Leaving, Looks::Whole) => Verdict::Leaving,
            (Self::Unsupervised, Looks::Whole) => Verdict::Unsupervised,
            (Self::Alive | Self::Reloading | Self::Leaving | Self::Unsupervised, _) => Verdict::Serving,
        }
    }

    /// How a check that asks it ends; `None`: not at all. `luck`: of those that wait in vain some are reset.
    pub(crate) fn answer(self, luck: bool) -> Option<Result<(), Failure>> {
        match self {
            Self::Alive | Self::Reloading | Self::Leaving | Self::Unsupervised => Some(Ok(())),
            Self::Dead | Self::Closed => Some(Err(Failure::Refused)),
            Self::Sick | Self::PoolEmpty => Some(Err(Failure::Answered)),
            Self::Saturated if luck => Some(Err(Failure::Other)),
            Self::Saturated | Self::Hung | Self::Stopped => None,
        }
    }

    /// It has so much to do that it spends processor time all the while.
    pub(crate) fn busy(self) -> bool {
        self == Self::Saturated
    }

    /// It can't spend any.
    pub(crate) fn still(self) -> bool {
        matches!(self, Self::Dead | Self::Hung | Self::Stopped)
    }

    /// What one look finds, and how long it takes. `ticks`: processor time so far.
    pub(crate) fn report(self, looks: Looks, now: Instant, pid: u32, ticks: u64) -> (PlaneReport, Duration) {
        let whole = looks == Looks::Whole;
        let silent = matches!(self, Self::Hung | Self::Stopped);
        let admin = match (whole, silent) {
            (false, _) => Admin::NotConfigured,
            (true, true) => Admin::Silent { why: format!("no answer in {} ms", PATIENCE.as_millis()) },
            (true, false) => Admin::Answers { took: ROUND_TRIP },
        };
        let full = self == Self::Saturated;
        let queue = Level { now: if full || self == Self::Stopped { 101 } else { 0 }, limit: 100 };
        let connections = Level { now: if full { 1000 } else { 10 }, limit: 1000 };
        let up = if self == Self::PoolEmpty { 0 } else { 3 };
        let running = self == Self::Reloading;
        let old = running.then_some(OldWorker { pid: pid.saturating_sub(1), since: now });
        let asked = whole && !silent;
        let report = PlaneReport {
            admin,
            connections: asked.then_some(connections),
            queue: Some(queue),
            files: Some(Level { now: 40, limit: 1024 }),
            backends: asked.then_some(Pool { up, total: 3 }),
            stopped: self == Self::Stopped,
            cpu_ticks: Some(ticks),
            supervised: !whole || self != Self::Unsupervised,
            reload: Reload {
                generation: u64::from(pid),
                running: whole && running,
                old: old.into_iter().filter(|_| whole).collect(),
                failed: 0,
            },
            leaving: asked && self == Self::Leaving,
        };
        (report, if whole && silent { PATIENCE } else { ROUND_TRIP })
    }
}
