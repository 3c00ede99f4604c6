//! The balancers that the keeper runs: kept running with back-off, stopped in steps, adopted from a former keeper.

use super::Out;
use super::backoff::Backoff;
use super::ipc::ToWorker;
use super::mutants;
use super::types::{Child, Event, LedgerBalancer, Output, Process};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Further ones are refused with an event.
const BALANCERS_MAX: usize = 64;
/// From the soft signal to SIGTERM, and from SIGTERM to SIGKILL.
const STOP_STEP: Duration = Duration::from_secs(5);
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Command {
    argv: Vec<String>,
    soft_stop: Option<i32>,
}

#[derive(Debug)]
enum State {
    /// The caller is starting it.
    Starting,
    Running {
        process: Process,
        since: Instant,
    },
    /// To be started at that time.
    Waiting {
        at: Instant,
    },
    Stopping {
        process: Process,
        /// The last signal that was sent.
        sent: i32,
        /// When the next, harder one follows.
        next_at: Option<Instant>,
    },
}

#[derive(Debug)]
struct Balancer {
    command: Command,
    state: State,
    backoff: Backoff,
    /// A living worker has asked for it; without, it is one that was adopted.
    claimed: bool,
    /// To be stopped as soon as it is started, or to be started as this when it has stopped.
    then: Then,
}

#[derive(Debug, PartialEq, Eq)]
enum Then {
    Keep,
    Remove,
    Start(Command),
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Balancers {
    all: BTreeMap<String, Balancer>,
}

impl Balancers {
    /// Goes on with what a former keeper started, where the process is still the same one.
    pub(super) fn adopt(now: Instant, found: Vec<(LedgerBalancer, Option<u64>)>, out: &mut Out) -> Self {
        let mut adopted = Self::default();
        for (entry, start_time) in found {
            if start_time != Some(entry.process.start_time) || mutants::off("adopt") {
                continue;
            }
            let LedgerBalancer { name, argv, soft_stop, process } = entry;
            let mut balancer = Balancer::new(Command { argv, soft_stop });
            balancer.state = State::Running { process, since: now };
            adopted.all.insert(name.clone(), balancer);
            out.event(Event::BalancerAdopted { name: name.clone(), pid: process.pid });
            out.push(Output::WatchBalancer { name, process });
        }
        adopted
    }

    /// The worker wants it running.
    pub(super) fn start(
        &mut self,
        now: Instant,
        name: String,
        argv: Vec<String>,
        soft_stop: Option<i32>,
        out: &mut Out,
    ) {
        let command = Command { argv, soft_stop };
        let full = self.all.len() >= BALANCERS_MAX;
        let Some(balancer) = self.all.get_mut(&name) else {
            if full || command.argv.is_empty() {
                out.event(Event::Refused { what: "too many balancers, or one without a command" });
                return;
            }
            let mut balancer = Balancer::new(command.clone());
            balancer.claimed = true;
            self.all.insert(name.clone(), balancer);
            out.push(Output::SpawnBalancer { name, argv: command.argv });
            return;
        };
        balancer.claimed = true;
        let same = balancer.command == command;
        match &mut balancer.state {
            State::Running { process, .. } if same => {
                let Process { pid, start_time } = *process;
                out.push(Output::SendToWorker(ToWorker::Balancer { name, pid, start_time }));
            }
            State::Starting if same => balancer.then = Then::Keep,
            State::Waiting { .. } if same => {}
            State::Waiting { .. } => {
                // Another command has not failed yet.
                *balancer = Balancer { claimed: true, command, ..Balancer::waiting(now) };
            }
            State::Running { .. } => {
                balancer.then = Then::Start(command);
                balancer.stop(now, &name, out);
            }
            State::Starting | State::Stopping { .. } => balancer.then = Then::Start(command),
        }
    }

    /// The worker doesn't want it any more.
    pub(super) fn stop(&mut self, now: Instant, name: &str, out: &mut Out) {
        let Some(balancer) = self.all.get_mut(name) else { return };
        balancer.then = Then::Remove;
        match balancer.state {
            State::Waiting { .. } => {
                self.all.remove(name);
            }
            State::Running { .. } => balancer.stop(now, name, out),
            State::Starting | State::Stopping { .. } => {}
        }
    }

    /// We leave: none stays.
    pub(super) fn stop_all(&mut self, now: Instant, out: &mut Out) {
        let names: Vec<String> = self.all.keys().cloned().collect();
        for name in names {
            self.stop(now, &name, out);
        }
    }

    /// It was started and waits to be released. The caller writes the ledger before that.
    pub(super) fn spawned(&mut self, now: Instant, name: &str, process: Process, out: &mut Out) {
        let Some(balancer) = self.all.get_mut(name) else { return };
        balancer.state = State::Running { process, since: now };
        let Process { pid, start_time } = process;
        out.event(Event::BalancerStarted { name: name.to_owned(), pid });
        if balancer.then == Then::Keep {
            out.push(Output::SendToWorker(ToWorker::Balancer { name: name.to_owned(), pid, start_time }));
        } else {
            balancer.stop(now, name, out);
        }
    }

    /// Lets it run, after the ledger has it.
    pub(super) fn release(name: &str, out: &mut Out) {
        out.push(Output::Release(Child::Balancer(name.to_owned())));
    }

    /// It is gone, or could not be started. Returns whether it ran or was about to.
    pub(super) fn ended(&mut self, now: Instant, name: &str, what: String, out: &mut Out) -> bool {
        let Some(balancer) = self.all.get_mut(name) else { return false };
        let (pid, lived) = match balancer.state {
            State::Starting => (0, Duration::ZERO),
            State::Running { process, since } => (process.pid, now.saturating_duration_since(since)),
            State::Stopping { process, .. } => (process.pid, Duration::ZERO),
            State::Waiting { .. } => return false,
        };
        out.push(Output::SendToWorker(ToWorker::BalancerExited { name: name.to_owned(), pid, what: what.clone() }));
        let restart_in = match std::mem::replace(&mut balancer.then, Then::Keep) {
            Then::Remove => {
                self.all.remove(name);
                None
            }
            Then::Start(command) => {
                *balancer = Balancer { claimed: balancer.claimed, command, ..Balancer::waiting(now) };
                Some(Duration::ZERO)
            }
            Then::Keep => {
                let wait = balancer.backoff.ended(lived);
                balancer.state = State::Waiting { at: now + wait };
                Some(wait)
            }
        };
        out.event(Event::BalancerEnded { name: name.to_owned(), what, restart_in });
        true
    }

    /// Starts and signals what is due.
    pub(super) fn timer(&mut self, now: Instant, out: &mut Out) {
        for (name, balancer) in &mut self.all {
            match &mut balancer.state {
                State::Waiting { at } if *at <= now => {
                    let argv = balancer.command.argv.clone();
                    balancer.state = State::Starting;
                    out.push(Output::SpawnBalancer { name: name.clone(), argv });
                }
                State::Stopping { sent, next_at, .. } if next_at.is_some_and(|at| at <= now) => {
                    (*sent, *next_at) = match *sent {
                        SIGTERM => (SIGKILL, None),
                        _ => (SIGTERM, Some(now + STOP_STEP)),
                    };
                    let (signal, group) = (*sent, *sent == SIGKILL);
                    out.push(Output::SignalBalancer { name: name.clone(), signal, group });
                }
                _ => {}
            }
        }
    }

    /// Whether a balancer of this name runs. One that the keeper doesn't know may well run: by its own unit.
    pub(super) fn runs(&self, name: &str) -> bool {
        self.all.get(name).is_none_or(|balancer| matches!(balancer.state, State::Running { .. }))
    }

    /// Says once which adopted ones no worker has asked for.
    pub(super) fn report_unclaimed(&mut self, out: &mut Out) {
        for (name, balancer) in self.all.iter_mut().filter(|(_, balancer)| !balancer.claimed) {
            if let State::Running { process, .. } = balancer.state {
                balancer.claimed = true;
                out.event(Event::BalancerUnclaimed { name: name.clone(), pid: process.pid });
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn ledger(&self) -> Vec<LedgerBalancer> {
        let entry = |(name, balancer): (&String, &Balancer)| match balancer.state {
            State::Running { process, .. } | State::Stopping { process, .. } => {
                let Command { argv, soft_stop } = balancer.command.clone();
                Some(LedgerBalancer { name: name.clone(), argv, soft_stop, process })
            }
            State::Starting | State::Waiting { .. } => None,
        };
        self.all.iter().filter_map(entry).collect()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let at = |balancer: &Balancer| match balancer.state {
            State::Waiting { at } => Some(at),
            State::Stopping { next_at, .. } => next_at,
            State::Starting | State::Running { .. } => None,
        };
        self.all.values().filter_map(at).min()
    }
}

impl Balancer {
    fn new(command: Command) -> Self {
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10), Duration::from_secs(30));
        Self { command, state: State::Starting, backoff, claimed: false, then: Then::Keep }
    }

    fn waiting(at: Instant) -> Self {
        Self { state: State::Waiting { at }, ..Self::new(Command { argv: Vec::new(), soft_stop: None }) }
    }

    /// Begins to stop a running one. The first signals go to the main process alone: it knows its children.
    fn stop(&mut self, now: Instant, name: &str, out: &mut Out) {
        let State::Running { process, .. } = self.state else { return };
        let sent = self.command.soft_stop.filter(|signal| (1..=64).contains(signal)).unwrap_or(SIGTERM);
        self.state = State::Stopping { process, sent, next_at: Some(now + STOP_STEP) };
        out.push(Output::SignalBalancer { name: name.to_owned(), signal: sent, group: false });
    }
}
