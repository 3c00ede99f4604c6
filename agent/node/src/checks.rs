//! The schedule of the readiness checks and their verdicts.
//!
//! Start-anchored: the next probe starts `interval` after the start of the last one, whatever that one does. A probe
//! that has no result at start + `timeout` counts as a failure at that moment, and what it says later is only counted:
//! a stuck target delays nothing. Each result resets the other counter.
//!
//! This module refuses to judge what a verdict means for a VIP ([`crate::decide`] does).

use crate::config::{Check, CheckId};
use crate::world::{CheckState, CheckView};
use std::collections::BTreeMap;
use std::time::Instant;

/// Probes of one check that may be out at a time (a timeout longer than the interval); full: the next one waits for
/// the first deadline.
const OUTSTANDING_MAX: usize = 32;

/// What happened to a check; the caller writes the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub check: CheckId,
    pub sequence: u64,
    /// Why the probe failed.
    pub failure: Option<String>,
    /// The state changed to this.
    pub changed: Option<CheckState>,
    /// Something that decisions depend on changed.
    pub news: bool,
}

/// One check's schedule.
#[derive(Debug)]
struct Schedule {
    next_start: Instant,
    last_start: Option<Instant>,
    sequence: u64,
    /// Sequence and deadline of the probes that are out.
    out: BTreeMap<u64, Instant>,
    successes: u32,
    failures: u32,
    last: Option<(Instant, Result<(), String>)>,
}

/// All checks. Verdicts are kept in the world's views, which the caller passes in.
#[derive(Debug)]
pub(crate) struct Checks {
    schedules: Vec<Schedule>,
    /// Results that came too late or twice.
    pub(crate) late: u64,
}

/// A probe to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    pub check: CheckId,
    pub sequence: u64,
    pub timeout: std::time::Duration,
}

impl Checks {
    pub(crate) fn new(count: usize, now: Instant) -> Self {
        let schedule = |_| Schedule {
            next_start: now,
            last_start: None,
            sequence: 0,
            out: BTreeMap::new(),
            successes: 0,
            failures: 0,
            last: None,
        };
        Self { schedules: (0..count).map(schedule).collect(), late: 0 }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.schedules.iter().filter_map(Schedule::wake).min()
    }

    /// Overdue probes fail, due probes start.
    pub(crate) fn timer(
        &mut self,
        now: Instant,
        checks: &[Check],
        views: &mut [CheckView],
    ) -> (Vec<Verdict>, Vec<Start>) {
        let (mut verdicts, mut starts) = (Vec::new(), Vec::new());
        let each = (0..).map(CheckId).zip(&mut self.schedules).zip(checks).zip(views);
        for (((id, schedule), check), view) in each {
            while let Some((&sequence, _)) = schedule.out.iter().find(|(_, deadline)| **deadline <= now) {
                schedule.out.remove(&sequence);
                let failure = Some(format!("no answer in {} ms", check.timeout.as_millis()));
                verdicts.push(schedule.result(now, check, id, sequence, failure, view));
            }
            if schedule.next_start <= now && schedule.out.len() < OUTSTANDING_MAX {
                schedule.sequence += 1;
                schedule.last_start = Some(now);
                schedule.out.insert(schedule.sequence, now + check.timeout);
                // After a stall one probe makes up for all that were missed.
                schedule.next_start = now + schedule.pace(check, view);
                starts.push(Start { check: id, sequence: schedule.sequence, timeout: check.timeout });
            }
        }
        (verdicts, starts)
    }

    /// A result. `None`: late, unknown, or given twice.
    pub(crate) fn done(
        &mut self,
        now: Instant,
        id: CheckId,
        sequence: u64,
        failure: Option<String>,
        checks: &[Check],
        views: &mut [CheckView],
    ) -> Option<Verdict> {
        let index = usize::from(id.0);
        let (schedule, check, view) = (self.schedules.get_mut(index)?, checks.get(index)?, views.get_mut(index)?);
        match schedule.out.remove(&sequence) {
            // The deadline is the node's: an answer that comes after it is no answer.
            Some(deadline) if now <= deadline || failure.is_some() => {
                Some(schedule.result(now, check, id, sequence, failure, view))
            }
            Some(_) => {
                self.late += 1;
                let failure = Some(format!("no answer in {} ms", check.timeout.as_millis()));
                Some(schedule.result(now, check, id, sequence, failure, view))
            }
            None => {
                self.late += 1;
                None
            }
        }
    }

    /// This node stood still for `late`: answers may be there that it had no time to read.
    pub(crate) fn stalled(&mut self, late: std::time::Duration) {
        for schedule in &mut self.schedules {
            for deadline in schedule.out.values_mut() {
                *deadline += late;
            }
        }
    }

    /// What this check asks is new: what it said so far, and what is out, says nothing. It has to pass `rise` times
    /// again, at the fast pace.
    pub(crate) fn forget(&mut self, id: CheckId, now: Instant, checks: &[Check], views: &mut [CheckView]) {
        let index = usize::from(id.0);
        let (Some(schedule), Some(check), Some(view)) =
            (self.schedules.get_mut(index), checks.get(index), views.get_mut(index))
        else {
            return;
        };
        schedule.out.clear();
        schedule.successes = 0;
        view.clean = false;
        if view.state == CheckState::Passed {
            view.state = CheckState::Unknown;
            view.since = now;
        }
        schedule.next_start = schedule.last_start.map_or(now, |start| now.max(start + schedule.pace(check, view)));
    }

    /// Successes and failures in a row, and the last result with its time.
    #[allow(clippy::type_complexity, reason = "read in one place")]
    pub(crate) fn counts(&self, id: CheckId) -> (u32, u32, Option<&(Instant, Result<(), String>)>) {
        let schedule = self.schedules.get(usize::from(id.0));
        schedule.map_or((0, 0, None), |s| (s.successes, s.failures, s.last.as_ref()))
    }
}

impl Schedule {
    fn wake(&self) -> Option<Instant> {
        let start = (self.out.len() < OUTSTANDING_MAX).then_some(self.next_start);
        self.out.values().copied().chain(start).min()
    }

    fn disagrees(&self, view: &CheckView) -> bool {
        match view.state {
            CheckState::Unknown => true,
            CheckState::Passed => !view.clean,
            CheckState::Failed => self.successes > 0,
        }
    }

    fn pace(&self, check: &Check, view: &CheckView) -> std::time::Duration {
        if self.disagrees(view) { check.fast_interval.min(check.interval) } else { check.interval }
    }

    fn result(
        &mut self,
        now: Instant,
        check: &Check,
        id: CheckId,
        sequence: u64,
        failure: Option<String>,
        view: &mut CheckView,
    ) -> Verdict {
        let before = (view.state, view.clean);
        if failure.is_none() {
            self.failures = 0;
            self.successes = self.successes.saturating_add(1);
            if self.successes >= u32::from(check.rise) {
                view.state = CheckState::Passed;
                view.clean = true;
            }
        } else {
            self.successes = 0;
            self.failures = self.failures.saturating_add(1);
            view.clean = false;
            if self.failures >= u32::from(check.fall) {
                view.state = CheckState::Failed;
            }
        }
        if view.state != before.0 {
            view.since = now;
        }
        self.last = Some((now, failure.clone().map_or(Ok(()), Err)));
        if let Some(start) = self.last_start {
            // A result that disagrees brings the next probe forward, one that agrees again puts it back.
            self.next_start = now.max(start + self.pace(check, view));
        }
        // A success can end what a single failure began: `rise` counts without a change of state.
        let news = (view.state, view.clean) != before;
        Verdict { check: id, sequence, failure, changed: (view.state != before.0).then_some(view.state), news }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Name, Probe};
    use std::time::Duration;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn check(interval: u64, timeout: u64) -> Check {
        Check {
            name: Name::new("web").expect("a name"),
            probe: Probe::Tcp { address: "127.0.0.1:80".parse().expect("an address") },
            interval: ms(interval),
            fast_interval: ms(50),
            timeout: ms(timeout),
            fall: 2,
            rise: 3,
            shared: false,
        }
    }

    struct Bench {
        checks: Checks,
        config: Vec<Check>,
        views: Vec<CheckView>,
        start: Instant,
        now: Instant,
    }

    impl Bench {
        fn new(check: Check) -> Self {
            #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
            let now = Instant::now();
            let view = CheckView { state: CheckState::Unknown, clean: false, since: now, event: None };
            Self { checks: Checks::new(1, now), config: vec![check], views: vec![view], start: now, now }
        }

        /// Goes to the next thing that is due: when it is, in milliseconds, and what it brings.
        fn next(&mut self) -> (u128, Vec<Verdict>, Vec<Start>) {
            self.now = self.checks.poll_timeout().expect("always something to do").max(self.now);
            let (verdicts, starts) = self.checks.timer(self.now, &self.config, &mut self.views);
            ((self.now - self.start).as_millis(), verdicts, starts)
        }

        fn done(&mut self, sequence: u64, ok: bool) -> Option<Verdict> {
            let failure = (!ok).then(|| "refused".to_owned());
            self.checks.done(self.now, CheckId(0), sequence, failure, &self.config, &mut self.views)
        }
    }

    #[test]
    fn the_first_probe_starts_at_once_and_quick_ones_follow_until_rise() {
        let mut bench = Bench::new(check(500, 200));
        let mut times = vec![];
        for sequence in 1..=4 {
            let (at, _, starts) = bench.next();
            assert_eq!(starts.len(), 1);
            times.push(at);
            bench.done(sequence, true);
        }
        assert_eq!(times, [0, 50, 100, 600], "rise is 3; after it the interval counts from the start of the third");
        assert_eq!(bench.views[0].state, CheckState::Passed);
    }

    #[test]
    fn a_stuck_target_delays_nothing_and_fails_at_its_deadline() {
        let mut bench = Bench::new(check(50, 120));
        let mut starts = vec![];
        let mut failures = vec![];
        while starts.len() < 5 {
            let (at, verdicts, started) = bench.next();
            starts.extend(started.iter().map(|_| at));
            failures.extend(verdicts.iter().map(|v| (at, v.sequence)));
        }
        assert_eq!(starts, [0, 50, 100, 150, 200], "start-anchored");
        assert_eq!(failures, [(120, 1), (170, 2)]);
        assert_eq!(bench.views[0].state, CheckState::Failed);
        assert_eq!(bench.done(1, true), None, "a late answer changes nothing");
        assert_eq!(bench.checks.late, 1);
    }

    #[test]
    fn each_result_resets_the_other_counter() {
        let mut bench = Bench::new(check(100, 40));
        // fall 2, rise 3: no two failures in a row, so never failed; then two in a row.
        for (sequence, ok) in (1..).zip([true, true, true, false, true, false, true, true, false]) {
            while bench.next().2.is_empty() {}
            bench.done(sequence, ok);
            assert_ne!(bench.views[0].state, CheckState::Failed, "after {sequence}");
        }
        assert!(!bench.views[0].clean, "but a backup would be out");
        while bench.next().2.is_empty() {}
        let verdict = bench.done(10, false).expect("in time");
        assert_eq!(verdict.changed, Some(CheckState::Failed));
    }

    #[test]
    fn one_result_that_disagrees_brings_the_next_probe_forward() {
        let mut bench = Bench::new(check(1_000, 40));
        for sequence in 1..=3 {
            bench.next();
            bench.done(sequence, true);
        }
        let (at, ..) = bench.next();
        assert_eq!(at, 1_100);
        bench.done(4, false);
        let (at, ..) = bench.next();
        assert_eq!(at, 1_150, "fast_interval after the start of the one that failed");
    }

    #[test]
    fn after_a_stall_outstanding_probes_get_the_time_that_was_lost() {
        let mut bench = Bench::new(check(100, 40));
        bench.next();
        bench.now += ms(5_000);
        bench.checks.stalled(ms(5_000));
        let verdict = bench.done(1, true).expect("not late: we were");
        assert_eq!(verdict.failure, None);
    }

    /// keepalived issues with scripts that hang: the next run was only planned when the last one had ended.
    #[test]
    fn a_program_that_hangs_and_ignores_sigterm_is_a_fault_within_two_intervals_and_its_timeout() {
        let (interval, timeout) = (1_000, 500);
        let mut bench = Bench::new(Check { fast_interval: ms(interval), ..check(interval, timeout) });
        let mut up = vec![];
        for sequence in 1..=3 {
            let (at, ..) = bench.next();
            bench.done(sequence, true);
            up.push(at);
        }
        assert_eq!(bench.views[0].state, CheckState::Passed);
        // From now on it sleeps for ten seconds. The keeper needs another 500 ms to get rid of each run, and says so.
        let hangs_since = bench.now;
        let mut killed = Vec::new();
        while bench.views[0].state == CheckState::Passed {
            let (_, _, starts) = bench.next();
            killed.extend(starts.iter().map(|start| (bench.now + ms(timeout + 500), start.sequence)));
            let now = bench.now;
            let over: Vec<u64> = killed.iter().filter(|(at, _)| *at <= now).map(|(_, sequence)| *sequence).collect();
            for sequence in over {
                assert_eq!(bench.done(sequence, false), None, "the deadline was quicker");
            }
        }
        let took = bench.now - hangs_since;
        assert_eq!(took, ms(2 * interval + timeout), "the first run that hangs starts an interval later");
        let (_, _, starts) = bench.next();
        assert_eq!(starts.len(), 1, "and the next run is planned");
    }
}
