//! The round that every cell goes through, and what must hold after each step.

use super::cell::{Cell, Family, Kind};
use super::judge::{self, Seen};
use holdfast_lab::clock::{MS, Ns, ms_between};
use holdfast_lab::fabric::Lb;
use std::time::Duration;

/// The preferred router's priority.
pub const HIGH: u8 = 200;
/// The other's.
pub const LOW: u8 = 100;
/// A priority below both.
pub const LOWEST: u8 = 50;
/// A priority above both.
pub const HIGHEST: u8 = 250;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// The host dies: its processes are killed and its port carries nothing any more.
    Die,
    /// The host has booted again.
    Boot,
    /// Taken out for maintenance.
    Drain,
    /// Taken in again.
    Undrain,
    /// Stopped in order.
    Stop,
    /// Started again.
    Start,
    /// Its priority goes where the other one is to own the address.
    Give,
    /// Its priority goes back to what it was.
    Take,
    /// The process that speaks VRRP dies and is started again by the one that watches it.
    Crash,
}

/// Which router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The one with the higher priority.
    Preferred,
    /// The other one.
    Other,
    /// The one that isn't ours (the preferred one where neither is).
    Peer,
    /// Ours; the step is left out where there is none.
    Ours,
    /// Ours if it is the preferred one, else the step is left out.
    OursPreferred,
}

impl Role {
    /// Where it is, if anywhere.
    #[must_use]
    pub fn at(self, cell: &Cell) -> Option<Lb> {
        let ours = Lb::BOTH.into_iter().find(|lb| cell.kind(lb.index()) == Kind::Holdfast);
        match self {
            Self::Preferred => Some(Lb::Lb1),
            Self::Other => Some(Lb::Lb2),
            Self::Peer => Some(ours.map_or(Lb::Lb1, Lb::other)),
            Self::Ours => ours,
            Self::OursPreferred => ours.filter(|lb| *lb == Lb::Lb1),
        }
    }
}

/// One step of a round.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// The column that it counts in.
    pub scenario: &'static str,
    /// What is done.
    pub act: Act,
    /// To whom.
    pub to: Role,
    /// Who owns the address before.
    pub before: Lb,
    /// Who owns the address after.
    pub after: Lb,
}

const fn step(scenario: &'static str, act: Act, to: Role, before: Lb, after: Lb) -> Step {
    Step { scenario, act, to, before, after }
}

/// The columns of the table, in order.
pub const SCENARIOS: [&str; 7] = [
    "fail over",
    "fail back",
    "drain",
    "priority change",
    "restart of the Active",
    "restart of the Backup",
    "our worker crashes",
];

/// The round. It ends as it begins: both run, the preferred one owns the address.
pub const ROUND: [Step; 15] = [
    step("fail over", Act::Die, Role::Preferred, Lb::Lb1, Lb::Lb2),
    step("fail back", Act::Boot, Role::Preferred, Lb::Lb2, Lb::Lb1),
    step("drain", Act::Drain, Role::Preferred, Lb::Lb1, Lb::Lb2),
    step("drain", Act::Undrain, Role::Preferred, Lb::Lb2, Lb::Lb1),
    step("priority change", Act::Give, Role::Peer, Lb::Lb1, Lb::Lb2),
    step("priority change", Act::Take, Role::Peer, Lb::Lb2, Lb::Lb1),
    step("priority change", Act::Give, Role::OursPreferred, Lb::Lb1, Lb::Lb2),
    step("priority change", Act::Take, Role::OursPreferred, Lb::Lb2, Lb::Lb1),
    step("our worker crashes", Act::Crash, Role::Ours, Lb::Lb1, Lb::Lb1),
    step("restart of the Active", Act::Stop, Role::Preferred, Lb::Lb1, Lb::Lb2),
    step("restart of the Active", Act::Start, Role::Preferred, Lb::Lb2, Lb::Lb1),
    step("restart of the Backup", Act::Stop, Role::Other, Lb::Lb1, Lb::Lb1),
    step("restart of the Backup", Act::Start, Role::Other, Lb::Lb1, Lb::Lb1),
    step("restart of the Backup", Act::Die, Role::Other, Lb::Lb1, Lb::Lb1),
    step("restart of the Backup", Act::Boot, Role::Other, Lb::Lb1, Lb::Lb1),
];

/// What the wire said about a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// The step's column.
    pub scenario: &'static str,
    /// From the moment the old owner died, gave up or (neither) the step was ordered, to the new one's first advert.
    pub takeover_ms: Option<f64>,
    /// The longest time for which both owned the address.
    pub dual_ms: f64,
    /// From the old owner's last sign to the new one's first advert; negative where they overlapped.
    pub unowned_ms: Option<f64>,
    /// What didn't hold.
    pub failed: Vec<String>,
}

/// How far figures may be from theory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limits {
    /// `make full`: the figures themselves.
    Strict,
    /// CI, on machines that are shared: three times the figure and 50 ms.
    Wide,
}

impl Limits {
    /// For how long both may own an address: invariant 1, one interval + 20 ms.
    #[must_use]
    pub fn dual(self, cell: &Cell) -> Duration {
        let figure = cell.interval() + Duration::from_millis(20) + cell.late_first_advert();
        match self {
            Self::Strict => figure,
            // A whole advert more says that they don't hear each other, so it isn't three times.
            Self::Wide => figure + Duration::from_millis(80),
        }
    }

    /// The longest that a takeover may take.
    #[must_use]
    pub fn takeover(self, theory: Duration) -> Duration {
        match self {
            Self::Strict => theory + Duration::from_millis(50),
            Self::Wide => theory * 3 + Duration::from_millis(50),
        }
    }
}

/// Judges a step from what was seen from a little before `at`, when it was ordered, until everything was at rest.
/// `seen` must not hold what a host that was cut off still said.
#[must_use]
pub fn judge(cell: &Cell, step: &Step, at: Ns, seen: &[Seen], limits: Limits) -> Outcome {
    let mut outcome = Outcome { scenario: step.scenario, ..Outcome::default() };
    for &family in cell.families {
        judge_family(cell, step, at, seen, limits, family, &mut outcome);
    }
    outcome
}

fn judge_family(
    cell: &Cell,
    step: &Step,
    at: Ns,
    seen: &[Seen],
    limits: Limits,
    family: Family,
    outcome: &mut Outcome,
) {
    let interval = ns(cell.interval());
    // An owner that lives is never silent for longer than an interval.
    let owning = judge::runs(seen, family, interval + 50 * MS, true);
    let dual = judge::dual_ms(&owning);
    outcome.dual_ms = outcome.dual_ms.max(dual);
    let most = limits.dual(cell).as_secs_f64() * 1e3;
    if dual > most {
        outcome.failed.push(format!("both owned the {family:?} address for {dual:.1} ms, more than {most:.0} ms"));
    }
    let owners = judge::owners(&judge::runs(seen, family, interval * 5 / 2, false));
    let mut expected = vec![step.before, step.after];
    expected.dedup();
    if owners != expected {
        outcome.failed.push(format!("{family:?} adverts came from {owners:?}, not {expected:?}"));
    }
    if step.before == step.after {
        return;
    }
    // The stamps of frames and our own look at the clock differ by a little.
    let since = at.saturating_sub(5 * MS);
    let zero = judge::gave_up(seen, step.before, family, since);
    let Some(first) = judge::first_advert(seen, step.after, family, since) else { return };
    let last = judge::last_sign(seen, step.before, family, first);
    let takeover = ms_between(zero.filter(|z| *z <= first).unwrap_or(at), first);
    outcome.takeover_ms = Some(outcome.takeover_ms.map_or(takeover, |t| t.max(takeover)));
    outcome.unowned_ms = last.map(|last| ms_between(last, first));
    let theory = match step.act {
        Act::Die => cell.down_time(LOW),
        Act::Drain | Act::Stop => cell.skew(LOW),
        // How long a start takes, or a changed file, is each router's own affair.
        Act::Boot | Act::Start | Act::Undrain | Act::Give | Act::Take | Act::Crash => return,
    };
    if matches!(step.act, Act::Drain | Act::Stop) && zero.is_none() {
        outcome.failed.push(format!("{:?} left without an advert of priority 0 ({family:?})", step.before));
    }
    // A peer's own slowness is not ours: keepalived 2.2.7 takes 0.4 to 0.7 s where its timer is 0.36 s.
    let limits = if cell.kind(step.after.index()) == Kind::Holdfast { limits } else { Limits::Wide };
    let most = limits.takeover(theory).as_secs_f64() * 1e3;
    if takeover > most {
        outcome.failed.push(format!("{family:?} takeover took {takeover:.1} ms, more than {most:.0} ms"));
    }
}

/// Nanoseconds.
#[must_use]
pub fn ns(duration: Duration) -> Ns {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::judge::What;
    use super::*;

    fn cell() -> Cell {
        *super::super::cell::matrix(false)
            .iter()
            .find(|c| c.to_string() == "keepalived > holdfast, v3 IPv4 multicast, pseudo-header")
            .expect("in the matrix")
    }

    fn adverts(by: Lb, priority: u8, from: u64, to: u64) -> Vec<Seen> {
        let at = |t| Seen { at: t * MS, by, family: Family::V4, what: What::Advert { priority } };
        (from..=to).step_by(100).map(at).collect()
    }

    fn sorted(parts: &[Vec<Seen>]) -> Vec<Seen> {
        let mut all = parts.concat();
        all.sort_by_key(|s| s.at);
        all
    }

    #[test]
    fn a_round_is_a_chain_that_ends_where_it_began() {
        let mut owner = Lb::Lb1;
        for step in ROUND {
            assert_eq!(step.before, owner, "{step:?}");
            owner = step.after;
            assert!(SCENARIOS.contains(&step.scenario), "{step:?}");
        }
        assert_eq!(owner, Lb::Lb1);
    }

    #[test]
    fn a_fail_over_in_time_passes_and_a_late_one_does_not() {
        let old = adverts(Lb::Lb1, HIGH, 0, 400);
        let good = sorted(&[old.clone(), adverts(Lb::Lb2, LOW, 761, 1500)]);
        let outcome = judge(&cell(), &ROUND[0], 450 * MS, &good, Limits::Strict);
        assert_eq!(outcome.failed, Vec::<String>::new());
        assert_eq!(outcome.takeover_ms, Some(311.0));
        assert_eq!(outcome.unowned_ms, Some(361.0));
        let late = sorted(&[old, adverts(Lb::Lb2, LOW, 900, 1500)]);
        let outcome = judge(&cell(), &ROUND[0], 450 * MS, &late, Limits::Strict);
        assert!(outcome.failed[0].contains("takeover took 450.0 ms"), "{outcome:?}");
        assert_eq!(judge(&cell(), &ROUND[0], 450 * MS, &late, Limits::Wide).failed, Vec::<String>::new());
    }

    #[test]
    fn two_owners_a_flap_and_a_silent_leave_are_failures() {
        let both = sorted(&[adverts(Lb::Lb1, HIGH, 0, 900), adverts(Lb::Lb2, LOW, 600, 1500)]);
        let outcome = judge(&cell(), &ROUND[0], 450 * MS, &both, Limits::Wide);
        assert!(outcome.failed.iter().any(|f| f.contains("both owned the V4 address for 300.0 ms")), "{outcome:?}");
        let flap = sorted(&[
            adverts(Lb::Lb1, HIGH, 0, 400),
            adverts(Lb::Lb2, LOW, 500, 600),
            adverts(Lb::Lb1, HIGH, 700, 800),
            adverts(Lb::Lb2, LOW, 1000, 1500),
        ]);
        let outcome = judge(&cell(), &ROUND[2], 450 * MS, &flap, Limits::Wide);
        assert!(outcome.failed.iter().any(|f| f.contains("not [Lb1, Lb2]")), "{outcome:?}");
        assert!(outcome.failed.iter().any(|f| f.contains("without an advert of priority 0")), "{outcome:?}");
        let quiet = adverts(Lb::Lb1, HIGH, 0, 2000);
        assert_eq!(judge(&cell(), &ROUND[11], 450 * MS, &quiet, Limits::Strict).failed, Vec::<String>::new());
        assert!(!judge(&cell(), &ROUND[0], 450 * MS, &quiet, Limits::Strict).failed.is_empty());
    }
}
