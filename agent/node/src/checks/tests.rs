//! The schedule on virtual time.

use super::*;
use crate::config::{Name, Probe};
use proptest::prelude::*;
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
        Self::of(vec![check])
    }

    fn of(config: Vec<Check>) -> Self {
        #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
        let now = Instant::now();
        let view = CheckView { state: CheckState::Unknown, clean: false, since: now, event: None };
        let checks = Checks::new(&config, [7; 32], now);
        Self { checks, views: vec![view; config.len()], config, start: now, now }
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
fn many_that_are_due_at_once_start_some_at_a_time_and_each_has_all_of_its_time() {
    // They are due again before all of them have started: none may be passed over for that.
    let mut bench = Bench::of(vec![Check { fast_interval: ms(10), ..check(500, 200) }; 300]);
    let mut first = vec![None; 300];
    while first.contains(&None) {
        let (at, verdicts, starts) = bench.next();
        assert!(starts.len() <= STARTS_MAX && verdicts.is_empty(), "{at} ms");
        for start in starts {
            first[usize::from(start.check.0)].get_or_insert(at);
        }
    }
    let expected: Vec<_> = (0..300).map(|n| Some(n / 64 * 5)).collect();
    assert_eq!(first, expected);
    let (at, verdicts) = loop {
        let (at, verdicts, _) = bench.next();
        if !verdicts.is_empty() {
            break (at, verdicts);
        }
    };
    assert_eq!((at, verdicts.len(), verdicts[0].check), (200, 64, CheckId(0)), "each from its own start");
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

/// One check on virtual time, whose target answers at once or not at all.
struct Target {
    bench: Bench,
    /// Probes that start now are answered.
    answers: bool,
}

impl Target {
    /// It has answered long enough for a verdict; the last probe started right now.
    fn well(check: Check) -> Self {
        let mut target = Self { bench: Bench::new(check), answers: true };
        target.until(CheckState::Passed);
        // From here on at the steady pace.
        target.start();
        target
    }

    /// Goes on until a probe starts.
    fn start(&mut self) {
        while !self.step() {}
    }

    /// The next thing that is due; true: a probe started.
    fn step(&mut self) -> bool {
        let (_, _, starts) = self.bench.next();
        for start in &starts {
            if self.answers {
                self.bench.done(start.sequence, true);
            }
        }
        !starts.is_empty()
    }

    fn until(&mut self, state: CheckState) {
        while self.bench.views[0].state != state {
            self.step();
        }
    }

    /// How long the state takes to follow when the target changes just before the next probe starts, or just after the
    /// last one did.
    fn follows(&mut self, just_before: bool) -> Duration {
        let to = if self.answers { CheckState::Failed } else { CheckState::Passed };
        let schedule = &self.bench.checks.schedules[0];
        let at = if just_before { schedule.next_start } else { schedule.last_start }.expect("it is asked");
        self.answers = !self.answers;
        self.until(to);
        self.bench.now - at
    }
}

fn configured(interval: u64, fast: u64, timeout: u64, fall: u8, rise: u8) -> Check {
    Check { fast_interval: ms(fast), fall, rise, ..check(interval, timeout) }
}

/// From a hang to the verdict, and from an answer to it, each at best and at worst, as the schedule really goes.
fn lived(check: &Check) -> (Range, Range) {
    let well = || Target::well(check.clone());
    let hung = || {
        let mut target = well();
        target.answers = false;
        target.until(CheckState::Failed);
        // From here on at the steady pace: what is still out fails, then the next one starts.
        target.start();
        while target.bench.checks.poll_timeout() < target.bench.checks.schedules[0].next_start {
            target.step();
        }
        target
    };
    let both = |state: &dyn Fn() -> Target| Range { min: state().follows(true), max: state().follows(false) };
    (both(&well), both(&hung))
}

fn seconds(min: u64, max: u64) -> Range {
    Range { min: Duration::from_secs(min), max: Duration::from_secs(max) }
}

/// Interval, timeout, fall, rise in seconds: what five articles on load balancing say of them.
#[test]
fn detection_and_recovery_of_the_books_come_out_to_the_second() {
    for ((interval, timeout, fall, rise), detects, recovers) in [
        ((10, 2, 2, 3), seconds(12, 22), seconds(20, 30)),
        ((2, 1, 3, 2), seconds(5, 7), seconds(2, 4)),
        ((2, 2, 3, 2), seconds(6, 8), seconds(2, 4)),
        ((30, 5, 2, 5), seconds(35, 65), seconds(120, 150)),
        ((5, 2, 1, 1), seconds(2, 7), seconds(0, 5)),
    ] {
        let check = configured(interval * 1_000, interval * 1_000, timeout * 1_000, fall, rise);
        assert_eq!(lived(&check), (detects, recovers), "{interval} s, {timeout} s, fall {fall}, rise {rise}");
        let of = crate::tests::lab::config(0, 254, &[]);
        assert_eq!((detection(&check, &of), recovery(&check, &of)), (detects, recovers), "computed");
    }
    // Thirty seconds twice at 200 requests a second: what is lost until the timeout of the second probe begins.
    let lost = (seconds(35, 65).max - Duration::from_secs(5)).as_secs() * 200;
    assert_eq!(lost, 12_000);
}

/// Rise 2, fall 3: `+` passed, `-` failed, `.` no verdict yet, after each result.
#[test]
fn the_traces_of_rise_2_and_fall_3_come_out_result_by_result() {
    for (results, states) in [
        ("++---++", ".+++--+"),
        ("++--+--+---", ".+++++++++-"),
        ("---+-++-++", "..----++++"),
        ("+-+--+++--+", "......+++++"),
    ] {
        let mut bench = Bench::new(configured(100, 100, 40, 3, 2));
        let mut seen = String::new();
        for (sequence, result) in (1..).zip(results.chars()) {
            while bench.next().2.is_empty() {}
            bench.done(sequence, result == '+');
            seen.push(match bench.views[0].state {
                CheckState::Unknown => '.',
                CheckState::Passed => '+',
                CheckState::Failed => '-',
            });
        }
        assert_eq!(seen, states, "{results}");
    }
}

proptest! {
    /// Whatever the numbers: what is computed is what the schedule does, and jitter moves no bound.
    #[test]
    fn the_schedule_keeps_to_what_is_computed(
        interval in 2..2_000_u64,
        (fast, timeout, jitter) in (0.0..1.0_f64, 0.0..1.0_f64, 0.0..0.5_f64),
        (fall, rise) in (1..6_u8, 1..6_u8),
        phase in 0.0..1.0_f64,
    ) {
        let part = |share: f64| ((interval as f64 * share) as u64).max(1);
        let check = configured(interval, part(fast), part(timeout), fall, rise);
        let of = crate::tests::lab::config(0, 254, &[]);
        let (detects, recovers) = (detection(&check, &of), recovery(&check, &of));
        prop_assert_eq!(lived(&check), (detects, recovers));

        // With jitter, and the change anywhere between two probes.
        let mut target = Target::well(Check { jitter: Duration::from_millis(interval).mul_f64(jitter), ..check });
        let schedule = &target.bench.checks.schedules[0];
        let (last, next) = schedule.last_start.zip(schedule.next_start).expect("it is asked");
        prop_assert!(next - last <= ms(interval), "never later");
        let at = last + (next - last).mul_f64(phase);
        target.answers = false;
        target.until(CheckState::Failed);
        let took = target.bench.now - at;
        prop_assert!(detects.min <= took && took <= detects.max, "{:?} of {:?}", took, detects);
    }
}

#[test]
fn jitter_spreads_the_probes_of_many_checks_and_never_delays_one() {
    let jittered = Check { jitter: ms(100), ..configured(1_000, 1_000, 40, 3, 1) };
    let mut target = Target::well(jittered);
    let mut gaps = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let schedule = &target.bench.checks.schedules[0];
        gaps.insert(schedule.next_start.zip(schedule.last_start).map(|(next, last)| next - last).expect("asked"));
        target.start();
    }
    assert!(gaps.len() > 25, "{gaps:?}");
    assert!(gaps.iter().all(|gap| (ms(900)..=ms(1_000)).contains(gap)), "{gaps:?}");
}

#[test]
fn checks_that_may_start_go_along_with_one_that_does_a_few_at_a_time() {
    let jittered = Check { jitter: ms(50), ..configured(500, 500, 40, 2, 1) };
    let mut bench = Bench::of(vec![jittered; 20]);
    let mut last = vec![None; 20];
    let (mut turns, mut probes, mut widest) = (0, 0, 0);
    for _ in 0..200 {
        let (_, _, starts) = bench.next();
        for start in &starts {
            let index = usize::from(start.check.0);
            if let Some(last) = last[index].replace(bench.now) {
                let gap: Duration = bench.now - last;
                assert!((ms(450)..=ms(500)).contains(&gap), "{gap:?}");
            }
            let outcome = (None, None);
            bench.checks.done(bench.now, start.check, start.sequence, outcome, &bench.config, &mut bench.views);
        }
        // The first go all at once.
        if bench.now > bench.start {
            (turns, probes, widest) = (turns + 1, probes + starts.len(), widest.max(starts.len()));
        }
    }
    assert!(probes > 5 * turns, "{probes} in {turns} turns");
    assert!(widest <= 1 + TOGETHER_MAX, "{widest}");
}

#[test]
fn a_check_whose_results_disagree_goes_at_its_own_time() {
    let jittered = Check { jitter: ms(200), ..configured(500, 500, 40, 2, 1) };
    let mut bench = Bench::of(vec![jittered; 2]);
    let (_, _, starts) = bench.next();
    for (start, failure) in starts.iter().zip([None, Some("refused".to_owned())]) {
        bench.checks.done(bench.now, start.check, start.sequence, (failure, None), &bench.config, &mut bench.views);
    }
    let (at, _, starts) = bench.next();
    assert!((300..500).contains(&at) && starts.iter().all(|start| start.check == CheckId(0)), "{at}: {starts:?}");
}

/// Two checks and a group of both.
fn grouped(at_least: u32) -> (Checks, Vec<Check>, Vec<CheckView>, Instant) {
    let mut bench = Bench::new(check(100, 40));
    let members = [0, 1].map(|n| crate::config::GroupMember { check: CheckId(n), weight: 1 }).to_vec();
    let group = Check { probe: Probe::Group(crate::config::Group { members, at_least }), ..check(100, 40) };
    let other = Check { name: Name::new("other").expect("a name"), ..check(100, 40) };
    bench.config.extend([other, group]);
    let views = vec![bench.views[0].clone(); 3];
    (Checks::new(&bench.config, [7; 32], bench.now), bench.config, views, bench.now)
}

#[test]
fn a_group_follows_its_members_and_says_who_fails() {
    let (mut checks, config, mut views, mut now) = grouped(2);
    let mut last = None;
    let mut fails = false;
    while !fails || views[2].state != CheckState::Failed {
        now = checks.poll_timeout().expect("always something to do").max(now);
        let (_, starts) = checks.timer(now, &config, &mut views);
        for start in starts {
            assert_ne!(start.check, CheckId(2), "nothing is asked for a group");
            let failure = (fails && start.check == CheckId(1)).then(|| "refused".to_owned());
            let verdicts = checks.done(now, start.check, start.sequence, (failure, None), &config, &mut views);
            last = verdicts.into_iter().find(|verdict| verdict.check == CheckId(2)).or(last);
        }
        if views[2].clean {
            assert_eq!(last.as_ref().and_then(|verdict| verdict.changed), Some(CheckState::Passed));
            fails = true;
        }
    }
    let last = last.expect("it changed");
    assert_eq!(last.changed, Some(CheckState::Failed));
    assert_eq!(last.why.as_deref(), Some("other not passed: 1 of 2, 2 needed"));
    assert_eq!(views[0].state, CheckState::Passed);
}

#[test]
fn what_is_forgotten_of_a_group_is_forgotten_of_its_members() {
    let (mut checks, config, mut views, now) = grouped(1);
    for view in &mut views {
        (view.state, view.clean) = (CheckState::Passed, true);
    }
    checks.forget(CheckId(2), now, &config, &mut views);
    assert!(views.iter().all(|view| view.state == CheckState::Unknown && !view.clean));
}

#[test]
fn a_note_stands_until_a_result_comes_without_it() {
    let mut bench = Bench::new(check(100, 40));
    let mut done = |note: Option<&str>, ok: bool| {
        while bench.next().2.is_empty() {}
        let sequence = bench.checks.schedules[0].sequence;
        let outcome = ((!ok).then(|| "refused".to_owned()), note.map(str::to_owned));
        let verdict = bench.checks.done(bench.now, CheckId(0), sequence, outcome, &bench.config, &mut bench.views);
        (verdict[0].noted, bench.checks.counts(CheckId(0)).note.map(str::to_owned))
    };
    let ends = Some("ends in 9 days".to_owned());
    assert_eq!(done(None, true), (false, None));
    assert_eq!(done(Some("ends in 9 days"), true), (true, ends.clone()));
    assert_eq!(done(Some("ends in 9 days"), true), (false, ends.clone()), "said once");
    assert_eq!(done(None, false), (false, ends), "a failure knows nothing of it");
    assert_eq!(done(None, true), (false, None), "renewed");
}

/// What all schedules together say, looked at one by one.
fn earliest(checks: &Checks) -> Option<Instant> {
    let wake = |schedule: &super::Schedule| {
        let start = schedule.may_start().map(|at| checks.pause.map_or(at, |until| at.max(until)));
        schedule.out.values().copied().chain(start).min()
    };
    checks.schedules.iter().filter_map(wake).min()
}

/// What each group would be if it were judged now, whatever else happened.
fn groups_as_judged(bench: &Bench) -> Vec<(CheckState, bool)> {
    let mut views = bench.views.clone();
    let mut states = Vec::new();
    for (at, check) in bench.config.iter().enumerate() {
        if let Probe::Group(group) = &check.probe {
            (views[at].state, views[at].clean) = super::group::judge(group, &views);
            states.push((views[at].state, views[at].clean));
        }
    }
    states
}

proptest! {
    #[test]
    fn a_turn_over_what_is_due_finds_what_one_over_all_would(
        course in proptest::collection::vec((0..6_u16, 0..5_u8, 0..400_u64), 1..80),
    ) {
        let group = |members: &[u16], at_least| Check {
            probe: Probe::Group(crate::config::Group {
                members: members.iter().map(|n| crate::config::GroupMember { check: CheckId(*n), weight: 1 }).collect(),
                at_least,
            }),
            ..check(500, 200)
        };
        let single = |n: u64| check(100 + 100 * n, 60 + 70 * n);
        let mut bench = Bench::of(vec![
            single(0), single(1), single(2), single(3), group(&[0, 1], 2), group(&[2, 4], 1), group(&[3, 5], 2),
        ]);
        let mut out = std::collections::BTreeMap::<u16, u64>::new();
        for (n, what, wait) in course {
            bench.now += ms(wait);
            let (config, views, now) = (&bench.config, &mut bench.views, bench.now);
            match what {
                0 => bench.checks.stalled(ms(wait)),
                1 => bench.checks.forget(CheckId(n), now, config, views),
                2 | 3 => {
                    if let Some(sequence) = out.remove(&n) {
                        let failure = (what == 3).then(|| "refused".to_owned());
                        bench.checks.done(now, CheckId(n), sequence, (failure, None), config, views);
                    }
                }
                _ => {}
            }
            let (_, starts) = bench.checks.timer(now, config, views);
            out.extend(starts.iter().map(|start| (start.check.0, start.sequence)));
            prop_assert_eq!(bench.checks.poll_timeout(), earliest(&bench.checks));
            let groups: Vec<_> = bench.views[4..].iter().map(|view| (view.state, view.clean)).collect();
            prop_assert_eq!(groups, groups_as_judged(&bench));
        }
    }
}

/// Not a limit but a figure: what a turn of a node with so many checks costs.
#[test]
#[ignore = "a figure, for a machine that does nothing else"]
fn the_cost_of_a_turn_with_a_thousand_checks() {
    let mut bench = Bench::of(vec![check(500, 200); 1000]);
    let (mut turns, mut results) = (0_u32, 0_u32);
    #[allow(clippy::disallowed_methods, reason = "the cost on this machine")]
    let clock = Instant::now();
    while bench.now - bench.start < Duration::from_secs(20) {
        let (_, _, starts) = bench.next();
        turns += 1;
        for Start { check, sequence, .. } in starts {
            let (config, views) = (&bench.config, &mut bench.views);
            bench.checks.done(bench.now, check, sequence, (None, None), config, views);
            bench.checks.poll_timeout();
            results += 1;
        }
    }
    println!("{:?} for {turns} turns and {results} results", clock.elapsed());
}
