//! The schedule of the readiness checks and their verdicts.
//!
//! Start-anchored: the next probe starts `interval` after the start of the last one, whatever that one does. A probe
//! that has no result at start + `timeout` counts as a failure at that moment, and what it says later is only counted:
//! a stuck target delays nothing. Each result resets the other counter. While the results agree with the state, a probe
//! starts up to `jitter` earlier than that, so that many checks on many nodes don't ask in step.
//!
//! Many that are due at one moment (the start, the end of a stall) start some at a time, those that wait longest first:
//! the time a probe has counts from its start, and must not pass in a queue of ours.
//!
//! A group has no schedule: its state follows from those of its members ([`group`]).
//!
//! A turn looks at the checks that are due and at the groups of those whose state may have changed, never at all.
//!
//! This module refuses to judge what a verdict means for a VIP ([`crate::decide`] does).

mod detection;
mod group;

pub use detection::{Range, detection, recovery};

use crate::config::{Check, CheckId, Probe};
use crate::schedule::Schedule as Deadlines;
use crate::world::{CheckState, CheckView};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng as _};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Probes of one check that may be out at a time (a timeout longer than the interval); full: the next one waits for
/// the first deadline.
const OUTSTANDING_MAX: usize = 32;
/// Probes that start in one turn; full: the others wait for [`PAUSE`]. 12,800 in a second are more than any
/// configuration should ask for.
const STARTS_MAX: usize = 64;
const PAUSE: Duration = Duration::from_millis(5);
/// Probes that start before their time along with those that are due; more would be a burst.
const TOGETHER_MAX: usize = 8;
/// The seed makes other random numbers too: these are apart from them.
const STREAM: u64 = u64::from_be_bytes(*b"a-checks");
/// Longest note that is kept, in characters.
const NOTE_MAX: usize = 200;

/// What happened to a check; the caller writes the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub check: CheckId,
    pub sequence: u64,
    /// Why the probe failed.
    pub failure: Option<String>,
    /// The state changed to this.
    pub changed: Option<CheckState>,
    /// A group's: which members make it so, in words.
    pub why: Option<String>,
    /// What somebody should know is another than before.
    pub noted: bool,
    /// Something that decisions depend on changed.
    pub news: bool,
}

/// What is known of a check beside its verdict.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts<'c> {
    pub successes: u32,
    pub failures: u32,
    /// The last result with its time.
    pub last: Option<&'c (Instant, Result<(), String>)>,
    /// What somebody should know though it changes no verdict.
    pub note: Option<&'c str>,
}

/// One check's schedule.
#[derive(Debug)]
struct Schedule {
    /// `None`: nothing is asked.
    next_start: Option<Instant>,
    last_start: Option<Instant>,
    /// So much before its time the next one may start.
    early: Duration,
    sequence: u64,
    /// Sequence and deadline of the probes that are out.
    out: BTreeMap<u64, Instant>,
    successes: u32,
    failures: u32,
    last: Option<(Instant, Result<(), String>)>,
    note: Option<String>,
}

/// All checks. Verdicts are kept in the world's views, which the caller passes in.
#[derive(Debug)]
pub(crate) struct Checks {
    schedules: Vec<Schedule>,
    /// When each may start its next probe, and the first deadline of those that are out.
    starts: Deadlines<CheckId>,
    ends: Deadlines<CheckId>,
    /// By [`CheckId`]: the groups that it is a member of.
    groups_of: Vec<Vec<CheckId>>,
    /// Groups of which a member may be another than it was.
    stale: BTreeSet<CheckId>,
    /// No probe starts before.
    pause: Option<Instant>,
    /// So much before its time any may start at most.
    earliest: Duration,
    random: ChaCha8Rng,
    /// Results that came too late or twice.
    pub(crate) late: u64,
}

/// A probe to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    pub check: CheckId,
    pub sequence: u64,
    pub timeout: Duration,
}

impl Checks {
    /// `seed` makes the jitter.
    pub(crate) fn new(checks: &[Check], seed: [u8; 32], now: Instant) -> Self {
        let schedule = |check: &Check| Schedule {
            next_start: (!matches!(check.probe, Probe::Group(_))).then_some(now),
            last_start: None,
            early: Duration::ZERO,
            sequence: 0,
            out: BTreeMap::new(),
            successes: 0,
            failures: 0,
            last: None,
            note: None,
        };
        let mut random = ChaCha8Rng::from_seed(seed);
        random.set_stream(STREAM);
        let mut groups_of = vec![Vec::new(); checks.len()];
        for (group, check) in (0..).map(CheckId).zip(checks) {
            for member in check.probe.members().filter(|member| *member < group) {
                if let Some(groups) = groups_of.get_mut(usize::from(member.0)) {
                    groups.push(group);
                }
            }
        }
        let mut new = Self {
            schedules: checks.iter().map(schedule).collect(),
            starts: Deadlines::new(checks.len()),
            ends: Deadlines::new(checks.len()),
            groups_of,
            stale: BTreeSet::new(),
            pause: None,
            earliest: checks.iter().map(may_be_early).max().unwrap_or_default(),
            random,
            late: 0,
        };
        new.arm_all();
        new
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let start = self.starts.first().map(|at| self.pause.map_or(at, |until| at.max(until)));
        self.ends.first().into_iter().chain(start).min()
    }

    /// To be called after each change of a check's schedule.
    fn arm(&mut self, id: CheckId) {
        let Some(schedule) = self.schedules.get(usize::from(id.0)) else { return };
        self.starts.set(id, schedule.may_start());
        self.ends.set(id, schedule.out.values().min().copied());
    }

    fn arm_all(&mut self) {
        (0..).map(CheckId).take(self.schedules.len()).for_each(|id| self.arm(id));
    }

    /// The groups that a check is in have to be judged anew.
    fn stale_groups(&mut self, id: CheckId) {
        self.stale.extend(self.groups_of.get(usize::from(id.0)).into_iter().flatten());
    }

    /// Overdue probes fail, due probes start.
    pub(crate) fn timer(
        &mut self,
        now: Instant,
        checks: &[Check],
        views: &mut [CheckView],
    ) -> (Vec<Verdict>, Vec<Start>) {
        let mut verdicts = Vec::new();
        let overdue: Vec<CheckId> = self.ends.due(now).collect();
        for id in overdue {
            let index = usize::from(id.0);
            let (Some(schedule), Some(check), Some(view)) =
                (self.schedules.get_mut(index), checks.get(index), views.get_mut(index))
            else {
                continue;
            };
            while let Some((&sequence, _)) = schedule.out.iter().find(|(_, deadline)| **deadline <= now) {
                schedule.out.remove(&sequence);
                let failure = Some(format!("no answer in {} ms", check.timeout.as_millis()));
                verdicts.push(schedule.result(now, check, id, sequence, failure, view));
            }
            self.arm(id);
            self.stale_groups(id);
        }
        let mut due: Vec<CheckId> = Vec::new();
        if self.pause.is_none_or(|until| until <= now) {
            due.extend(self.starts.due(now).take(STARTS_MAX + 1));
            self.pause = (due.len() > STARTS_MAX).then(|| now + PAUSE);
            due.truncate(STARTS_MAX);
            if !due.is_empty() {
                due.extend(self.along(now, checks, views));
            }
        }
        let starts = due.into_iter().filter_map(|id| self.start(now, id, checks, views)).collect();
        verdicts.extend(self.groups(now, checks, views));
        (verdicts, starts)
    }

    /// Those that aren't due, and may start.
    fn along(&self, now: Instant, checks: &[Check], views: &[CheckView]) -> Vec<CheckId> {
        let may = |id: &CheckId| {
            let index = usize::from(id.0);
            let (check, view) = (checks.get(index)?, views.get(index)?);
            self.schedules.get(index)?.earliest(check, view).filter(|at| *at <= now)
        };
        let soon = self.starts.soon(now, now + self.earliest).take(STARTS_MAX);
        soon.filter(|id| may(id).is_some()).take(TOGETHER_MAX).collect()
    }

    fn start(&mut self, now: Instant, id: CheckId, checks: &[Check], views: &[CheckView]) -> Option<Start> {
        let index = usize::from(id.0);
        let (schedule, check, view) = (self.schedules.get_mut(index)?, checks.get(index)?, views.get(index)?);
        schedule.sequence += 1;
        schedule.last_start = Some(now);
        schedule.early = early(&mut self.random, may_be_early(check));
        schedule.out.insert(schedule.sequence, now + check.timeout);
        // After a stall one probe makes up for all that were missed.
        schedule.next_start = Some(now + schedule.pace(check, view));
        let start = Start { check: id, sequence: schedule.sequence, timeout: check.timeout };
        self.arm(id);
        Some(start)
    }

    /// A result, and what it makes of the groups that the check is in. Empty: late, unknown, or given twice.
    pub(crate) fn done(
        &mut self,
        now: Instant,
        id: CheckId,
        sequence: u64,
        (failure, note): (Option<String>, Option<String>),
        checks: &[Check],
        views: &mut [CheckView],
    ) -> Vec<Verdict> {
        let index = usize::from(id.0);
        let (Some(schedule), Some(check), Some(view)) =
            (self.schedules.get_mut(index), checks.get(index), views.get_mut(index))
        else {
            return Vec::new();
        };
        let Some(deadline) = schedule.out.remove(&sequence) else {
            self.late += 1;
            return Vec::new();
        };
        // The deadline is the node's: an answer that comes after it is no answer.
        let late = now > deadline && failure.is_none();
        self.late += u64::from(late);
        let failure = if late { Some(format!("no answer in {} ms", check.timeout.as_millis())) } else { failure };
        let mut verdict = schedule.result(now, check, id, sequence, failure, view);
        let note = note.map(|note| note.chars().take(NOTE_MAX).collect());
        // What was known of a certificate stays true though there is no answer at the moment.
        if verdict.failure.is_none() || note.is_some() {
            verdict.noted = note.is_some() && note != schedule.note;
            schedule.note = note;
        }
        self.arm(id);
        self.stale_groups(id);
        let mut verdicts = vec![verdict];
        verdicts.extend(self.groups(now, checks, views));
        verdicts
    }

    /// This node stood still for `late`: answers may be there that it had no time to read.
    pub(crate) fn stalled(&mut self, late: Duration) {
        for schedule in &mut self.schedules {
            for deadline in schedule.out.values_mut() {
                *deadline += late;
            }
        }
        self.arm_all();
    }

    /// What this check asks is new: what it said so far, and what is out, says nothing. It has to pass `rise` times
    /// again, at the fast pace. Of a group: what each of its members asks.
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
        let again = |at| schedule.last_start.map_or(at, |start: Instant| now.max(start + schedule.pace(check, view)));
        schedule.next_start = schedule.next_start.map(|_| again(now));
        self.arm(id);
        self.stale_groups(id);
        // Members stand before their group: this ends.
        for member in check.probe.members().filter(|member| *member < id) {
            self.forget(member, now, checks, views);
        }
    }

    /// What is known of a check beside its verdict.
    pub(crate) fn counts(&self, id: CheckId) -> Counts<'_> {
        let none = Counts { successes: 0, failures: 0, last: None, note: None };
        self.schedules.get(usize::from(id.0)).map_or(none, |s| Counts {
            successes: s.successes,
            failures: s.failures,
            last: s.last.as_ref(),
            note: s.note.as_deref(),
        })
    }

    /// What the groups are now, where that is another than before. Members stand before their groups, so one pass does.
    fn groups(&mut self, now: Instant, checks: &[Check], views: &mut [CheckView]) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        while let Some(id) = self.stale.pop_first() {
            let Some(Check { probe: Probe::Group(group), .. }) = checks.get(usize::from(id.0)) else { continue };
            let (state, clean) = group::judge(group, views);
            let Some(view) = views.get(usize::from(id.0)).filter(|view| (view.state, view.clean) != (state, clean))
            else {
                continue;
            };
            self.stale.extend(self.groups_of.get(usize::from(id.0)).into_iter().flatten());
            let changed = (view.state != state).then_some(state);
            let (why, event) = (group::why(group, checks, views), group::cause(group, views));
            if let Some(view) = views.get_mut(usize::from(id.0)) {
                (view.state, view.clean) = (state, clean);
                view.event = event.or(view.event);
                view.since = changed.map_or(view.since, |_| now);
            }
            verdicts.push(Verdict { check: id, sequence: 0, failure: None, changed, why, noted: false, news: true });
        }
        verdicts
    }
}

/// A probe may start so much before its time, and not before the deadline of the last one: two failures would be closer
/// together than is computed.
fn may_be_early(check: &Check) -> Duration {
    check.jitter.min(check.interval.saturating_sub(check.timeout))
}

/// A part of `jitter`.
fn early(random: &mut ChaCha8Rng, jitter: Duration) -> Duration {
    if jitter.is_zero() {
        return Duration::ZERO;
    }
    jitter.mul_f64(f64::from(random.next_u32()) / f64::from(u32::MAX))
}

impl Schedule {
    fn may_start(&self) -> Option<Instant> {
        self.next_start.filter(|_| self.out.len() < OUTSTANDING_MAX)
    }

    /// When it may start along with others. `None`: at its time only.
    fn earliest(&self, check: &Check, view: &CheckView) -> Option<Instant> {
        let start = self.last_start.filter(|_| !self.disagrees(view))?;
        Some(start + check.interval.saturating_sub(may_be_early(check)))
    }

    fn disagrees(&self, view: &CheckView) -> bool {
        match view.state {
            CheckState::Unknown => true,
            CheckState::Passed => !view.clean,
            CheckState::Failed => self.successes > 0,
        }
    }

    fn pace(&self, check: &Check, view: &CheckView) -> Duration {
        if self.disagrees(view) {
            check.fast_interval.min(check.interval)
        } else {
            check.interval.saturating_sub(self.early)
        }
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
            self.next_start = Some(now.max(start + self.pace(check, view)));
        }
        // A success can end what a single failure began: `rise` counts without a change of state.
        let news = (view.state, view.clean) != before;
        let changed = (view.state != before.0).then_some(view.state);
        Verdict { check: id, sequence, failure, changed, why: None, noted: false, news }
    }
}

#[cfg(test)]
mod tests;
