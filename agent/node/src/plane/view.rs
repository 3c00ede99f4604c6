//! What looks at one balancer gave, one after the other.

use super::Sign;
use crate::io::{Admin, Level, PlaneReport};
use crate::mutants;
use std::time::{Duration, Instant};

/// Looks that may be missed before what the last one gave says nothing any more, and …
const LOOKS: u32 = 4;
/// … the time that one may take beside.
const LOOK: Duration = Duration::from_secs(1);
/// A silent admin side in so many looks in a row counts by itself where no check asks the balancer.
const SILENT_LOOKS: u32 = 3;

/// What is remembered of a balancer's looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaneView {
    /// The last look.
    pub report: PlaneReport,
    /// When it came.
    pub at: Instant,
    /// How often it is looked at; `None`: when something changes.
    poll: Option<Duration>,
    /// So many looks in a row had this processor time.
    still: u32,
    /// So many looks in a row found the admin side silent.
    silent: u32,
    /// So many looks in a row found a process stopped.
    stopped: u32,
    /// Its connections, queue and descriptors are at their limit: until they are well below it.
    full: [bool; 3],
    /// When the last of them was not any more.
    emptied: Option<Instant>,
}

impl PlaneView {
    /// The first look. `poll`: how often others will follow; `None`: when there is something new to be told.
    pub(crate) fn new(now: Instant, report: PlaneReport, poll: Option<Duration>) -> Self {
        let mut view = Self {
            report: PlaneReport::default(),
            at: now,
            poll,
            still: 0,
            silent: 0,
            stopped: 0,
            full: [false; 3],
            emptied: None,
        };
        view.take(now, report);
        view
    }

    /// Another look.
    pub(crate) fn take(&mut self, now: Instant, report: PlaneReport) {
        let count = |goes_on: bool, so_far: u32| if goes_on { so_far.saturating_add(1) } else { 0 };
        // The first look at a value says nothing of progress.
        let same = report.cpu_ticks.is_some() && report.cpu_ticks == self.report.cpu_ticks;
        self.still = count(same, self.still);
        self.silent = count(matches!(report.admin, Admin::Silent { .. }), self.silent);
        self.stopped = count(report.stopped, self.stopped);
        // What is full of connections counts at the last one; a backlog and descriptors are lost before.
        let seen = [(report.connections, 100), (report.queue, 90), (report.files, 95)];
        let was_full = self.full.contains(&true);
        for (full, (level, enter)) in self.full.iter_mut().zip(seen) {
            *full = level.is_some_and(|level| share(level) >= if *full { LEAVE } else { enter });
        }
        if was_full && !self.full.contains(&true) {
            self.emptied = Some(now);
        }
        self.at = now;
        self.report = report;
    }

    /// Whether the last look still says something.
    pub(crate) fn fresh(&self, now: Instant) -> bool {
        self.poll.is_none_or(|poll| now.saturating_duration_since(self.at) <= poll * LOOKS + LOOK)
    }

    /// It was full within this time, and later than `since`.
    pub(crate) fn was_full(&self, now: Instant, since: Instant, within: Duration) -> bool {
        self.emptied.is_some_and(|at| since <= at && now.saturating_duration_since(at) <= within)
    }

    /// What is at its limit.
    pub(crate) fn full(&self) -> impl Iterator<Item = Sign> {
        let PlaneReport { connections, queue, files, .. } = &self.report;
        let signs = [connections.map(Sign::Connections), queue.map(Sign::Queue), files.map(Sign::Files)];
        self.full.into_iter().zip(signs).filter(|(full, _)| *full).filter_map(|(_, sign)| sign)
    }

    /// It is stopped, or spends no processor time.
    pub(crate) fn no_progress(&self) -> Option<Sign> {
        let still = (self.still > 0).then_some(Sign::NoProgress);
        if self.report.stopped { Some(Sign::Stopped) } else { still }
    }

    /// It works as far as can be told: its admin side answers; or there is none to ask, or one that waits in the `same`
    /// queues as everybody, and it spends processor time.
    pub(crate) fn works(&self, same: bool) -> bool {
        let runs = self.report.cpu_ticks.is_some() && self.no_progress().is_none();
        let works = match self.report.admin {
            Admin::Answers { .. } => true,
            Admin::Silent { .. } => same && runs,
            Admin::NotConfigured => runs,
        };
        works || mutants::off("saturated-works")
    }

    /// The admin side doesn't contradict that it hangs.
    pub(crate) fn says_nothing(&self) -> bool {
        !matches!(self.report.admin, Admin::Answers { .. })
    }

    /// It hangs by what looks alone say, for where no check asks it.
    pub(crate) fn hangs_by_looks(&self) -> bool {
        let long = self.silent >= SILENT_LOOKS && self.no_progress().is_some();
        let stopped = self.stopped >= SILENT_LOOKS && self.says_nothing();
        (long || stopped) && !mutants::off("hung-without-checks")
    }
}

/// What is full stays so until it is below this share of its limit, in percent.
const LEAVE: u64 = 80;

/// In percent of the limit; 0 where there is none.
fn share(level: Level) -> u64 {
    level.now.saturating_mul(100).checked_div(level.limit).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Instant {
        #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
        Instant::now()
    }

    fn full(view: &PlaneView) -> usize {
        view.full().count()
    }

    #[test]
    fn what_is_at_its_limit_stays_full_until_it_is_well_below() {
        let now = origin();
        let report = |now, limit| PlaneReport { connections: Some(Level { now, limit }), ..PlaneReport::default() };
        let mut view = PlaneView::new(now, report(999, 1000), Some(Duration::from_millis(500)));
        assert_eq!(full(&view), 0);
        let course = [(1000, 1), (999, 1), (800, 1), (799, 0), (999, 0), (1001, 1)];
        for (connections, expected) in course {
            view.take(now, report(connections, 1000));
            assert_eq!(full(&view), expected, "at {connections}");
        }
        view.take(now, report(u64::MAX, 0));
        assert_eq!(full(&view), 0, "without a limit there is no full");
    }

    #[test]
    fn a_backlog_and_descriptors_are_full_before_the_last_one() {
        let now = origin();
        let (queue, files) = (Some(Level { now: 90, limit: 100 }), Some(Level { now: 95, limit: 100 }));
        let report = PlaneReport { queue, files, ..PlaneReport::default() };
        let view = PlaneView::new(now, report, Some(Duration::from_millis(500)));
        let signs: Vec<Sign> = view.full().collect();
        assert!(matches!(&signs[..], [Sign::Queue(_), Sign::Files(_)]), "{signs:?}");
    }

    #[test]
    fn progress_needs_two_looks_to_be_missed() {
        let now = origin();
        let report = |ticks| PlaneReport { cpu_ticks: ticks, ..PlaneReport::default() };
        let mut view = PlaneView::new(now, report(Some(7)), Some(Duration::from_millis(500)));
        assert_eq!(view.no_progress(), None, "the first look says nothing of it");
        view.take(now, report(Some(7)));
        assert_eq!(view.no_progress(), Some(Sign::NoProgress));
        view.take(now, report(Some(8)));
        assert_eq!(view.no_progress(), None);
        view.take(now, report(None));
        view.take(now, report(None));
        assert_eq!(view.no_progress(), None, "who can't know says nothing");
    }

    #[test]
    fn a_look_says_nothing_any_more_once_several_were_missed() {
        let now = origin();
        let view = PlaneView::new(now, PlaneReport::default(), Some(Duration::from_millis(500)));
        assert!(view.fresh(now + Duration::from_millis(3_000)));
        assert!(!view.fresh(now + Duration::from_millis(3_001)));
    }
}
