//! The schedule on virtual time.

use super::*;
use crate::config::{Name, Probe};
use std::time::Duration;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn check(interval: u64, timeout: u64) -> Check {
    Check {
        name: Name::new("web").expect("a name"),
        probe: Probe::tcp("127.0.0.1:80".parse().expect("an address")),
        interval: ms(interval),
        fast_interval: ms(50),
        timeout: ms(timeout),
        jitter: Duration::ZERO,
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
        let config = vec![check];
        let checks = Checks::new(&config, [7; 32], now);
        Self { checks, config, views: vec![view], start: now, now }
    }

    /// Goes to the next thing that is due: when it is, in milliseconds, and what it brings.
    fn next(&mut self) -> (u128, Vec<Verdict>, Vec<Start>) {
        self.now = self.checks.poll_timeout().expect("always something to do").max(self.now);
        let (verdicts, starts) = self.checks.timer(self.now, &self.config, &mut self.views);
        ((self.now - self.start).as_millis(), verdicts, starts)
    }

    fn done(&mut self, sequence: u64, ok: bool) -> Option<Verdict> {
        let failure = (!ok).then(|| "refused".to_owned());
        let outcome = (failure, None);
        self.checks.done(self.now, CheckId(0), sequence, outcome, &self.config, &mut self.views).pop()
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
