//! The situations, and what must come of each.

use super::run::{CHECK_FALL, CHECK_FAST, CHECK_INTERVAL, CHECK_TIMEOUT};
use crate::clock::{MS, Ns, SECOND, ms_between};
use crate::drills::{Expect, Of};

/// What a plane can get into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Situation {
    /// SIGKILL to every process of it.
    Killed,
    /// SIGSTOP to every process of it.
    Stopped,
    /// It is told to end, does so in order, and its exit code is 0.
    ExitsZero,
    /// SIGKILL to the process that serves.
    WorkerKilled,
    /// SIGKILL to the process that watches over those that serve.
    MasterKilled,
    /// One reload.
    Reload,
    /// Many reloads, one after the other.
    Reloads,
    /// A reload with a configuration that it refuses.
    FailedReload,
    /// Clients that hold all the connections it may have.
    ConnectionsFull,
    /// It takes connections more slowly than they come: its accept queue is full.
    QueueFull,
    /// No backend of it listens.
    BackendsDown,
    /// Every backend answers 500.
    BackendsFail,
    /// It has all the descriptors it may have.
    FilesFull,
}

/// What a verdict leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// The VIP goes to lb2, and comes back when lb1 is well again.
    Moves,
    /// It stays.
    Stays,
}

/// What must come of a situation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// The first of these that comes is the verdict that is waited for, and the last of them must come in the end; none:
    /// it is an event at most, and nothing is waited for.
    pub verdicts: &'static [&'static str],
    /// What else may be thought of it on the way.
    pub also: &'static [&'static str],
    /// What follows.
    pub reaction: Reaction,
}

impl Expected {
    /// A verdict and what follows.
    #[must_use]
    pub const fn new(verdicts: &'static [&'static str], reaction: Reaction) -> Self {
        Self { verdicts, also: &[], reaction }
    }

    /// Nothing comes of it, but that it may be seen to reload.
    #[must_use]
    pub const fn no_event() -> Self {
        Self { verdicts: &[], also: &["reloading", "serving"], reaction: Reaction::Stays }
    }

    /// The same, with other verdicts on the way.
    #[must_use]
    pub const fn also(self, also: &'static [&'static str]) -> Self {
        Self { also, ..self }
    }
}

impl Situation {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 13] = [
        Self::Killed,
        Self::Stopped,
        Self::ExitsZero,
        Self::WorkerKilled,
        Self::MasterKilled,
        Self::Reload,
        Self::Reloads,
        Self::FailedReload,
        Self::ConnectionsFull,
        Self::QueueFull,
        Self::BackendsDown,
        Self::BackendsFail,
        Self::FilesFull,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Stopped => "stopped",
            Self::ExitsZero => "exits-0",
            Self::WorkerKilled => "worker-killed",
            Self::MasterKilled => "master-killed",
            Self::Reload => "reload",
            Self::Reloads => "reloads",
            Self::FailedReload => "failed-reload",
            Self::ConnectionsFull => "maxconn",
            Self::QueueFull => "queue-full",
            Self::BackendsDown => "backends-down",
            Self::BackendsFail => "backends-5xx",
            Self::FilesFull => "fd-limit",
        }
    }

    /// One line about it.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Killed => "SIGKILL to all of it",
            Self::Stopped => "SIGSTOP to all of it",
            Self::ExitsZero => "told to end, exits 0",
            Self::WorkerKilled => "SIGKILL to the worker",
            Self::MasterKilled => "SIGKILL to the master",
            Self::Reload => "a reload under 500 requests/s",
            Self::Reloads => "reloads in a row under 500 requests/s",
            Self::FailedReload => "a reload with a configuration that it refuses",
            Self::ConnectionsFull => "clients hold all connections it may have",
            Self::QueueFull => "its accept queue is full",
            Self::BackendsDown => "all backends down",
            Self::BackendsFail => "all backends answer 500",
            Self::FilesFull => "its descriptors are used up",
        }
    }

    /// How long it is left before the repair.
    #[must_use]
    pub const fn hold(self) -> Ns {
        match self {
            Self::Killed | Self::ExitsZero | Self::WorkerKilled | Self::MasterKilled => 1500 * MS,
            Self::Reload | Self::Reloads | Self::FailedReload | Self::Stopped => 2 * SECOND,
            // Long enough that whoever doesn't leave at once would do so later.
            Self::ConnectionsFull | Self::QueueFull | Self::FilesFull => 3 * SECOND,
            // Beyond the time after which a peer that has backends would be believed.
            Self::BackendsDown | Self::BackendsFail => 4500 * MS,
        }
    }

    /// What is expected of a drill, `of` this plane.
    #[must_use]
    pub fn expect(self, of: Expected) -> Vec<Expect> {
        let never = |key| Expect::count(key, 0.0).of(Of::Max);
        let mut all = vec![never("other_verdicts"), Expect { of: Of::Max, ..Expect::ms("dual_holder_ms", 130.0) }];
        if !of.verdicts.is_empty() {
            all.push(Expect::ms("verdict_ms", verdict_within_ms(of)).of(Of::Max).must());
            all.push(Expect::ms("last_verdict_ms", LAST_MS.max(verdict_within_ms(of))).of(Of::Max).must());
        }
        match of.reaction {
            Reaction::Moves => all.extend([
                Expect::count("role_changes", 1.0).of(Of::Max),
                Expect::ms("takeover_ms", verdict_within_ms(of) + 30.0).must(),
                // It goes back once it is well again, and nothing is lost by that.
                Expect::count("failback_failed", 0.0).allow(10.0),
            ]),
            Reaction::Stays => {
                all.push(never("role_changes"));
                // Its repair is a start anew.
                if self != Self::MasterKilled {
                    all.push(never("failback_role_changes"));
                }
            }
        }
        // What fails on all nodes alike moves nothing, and is said.
        if matches!(self, Self::BackendsDown | Self::BackendsFail) {
            all.push(never("unsaid"));
        }
        if matches!(self, Self::Reload | Self::Reloads | Self::FailedReload) {
            all.push(never("failed"));
        }
        all
    }
}

/// What needs a look beside the check, or the end of the last client, ms.
const LAST_MS: f64 = 1500.0;

/// A death is seen at once, a hang when the check has failed `fall` times, all else at the next look.
fn verdict_within_ms(of: Expected) -> f64 {
    let worst_of_checks = CHECK_INTERVAL + CHECK_FALL * CHECK_FAST.max(CHECK_TIMEOUT);
    match of.verdicts {
        ["dead"] => 20.0,
        ["failing", ..] | ["hung"] => ms_between(0, worst_of_checks) + 20.0,
        // A look every 500 ms; and the plane finds out by checks of its own.
        _ => LAST_MS,
    }
}

/// What every drill's twin, in which nothing happens, must report.
pub static TWIN: &[Expect] = &[
    Expect::count("verdict_changes", 0.0).of(Of::Max),
    Expect::count("failed", 0.0).of(Of::Max),
    Expect::count("broken_flows", 0.0).of(Of::Max),
    Expect::count("role_changes", 0.0).of(Of::Max),
    Expect::count("noise_failed", 0.0).of(Of::Max),
    Expect::count("noise_role_changes", 0.0).of(Of::Max),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_of_the_command_line_and_each_is_its_own() {
        let mut names: Vec<&str> = Situation::ALL.iter().map(|s| s.name()).collect();
        assert!(names.iter().all(|n| n.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Situation::ALL.len());
    }

    #[test]
    fn a_death_has_twenty_milliseconds_and_a_hang_what_the_check_allows() {
        let limit = |verdicts| verdict_within_ms(Expected::new(verdicts, Reaction::Moves));
        assert_eq!((limit(&["dead"]), limit(&["failing", "hung"])), (20.0, 620.0));
    }

    #[test]
    fn what_stays_may_never_move_and_what_moves_must() {
        let keys = |reaction| -> Vec<&str> {
            Situation::Killed.expect(Expected::new(&["dead"], reaction)).iter().map(|e| e.key).collect()
        };
        assert!(keys(Reaction::Moves).contains(&"takeover_ms"));
        assert!(keys(Reaction::Stays).contains(&"failback_role_changes"));
        let reload = Situation::Reload.expect(Expected::no_event());
        assert!(reload.iter().any(|e| e.key == "failed" && e.limit(false) == 0.0));
    }
}
