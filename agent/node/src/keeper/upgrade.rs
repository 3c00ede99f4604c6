//! The next worker: started beside the living one, it takes its place when it is ready.
//!
//! By its greeting it says that all that may fail has succeeded: its program runs, the configuration and the keys are
//! read. Until then nothing changes for the living one, and if it doesn't come to that the living one is told why and
//! goes on. Then the living one is told to leave: it releases nothing and says nothing to anybody, and what it has waits
//! for the next one as after a crash, with the difference that the next one is there.

use super::ipc::ToWorker;
use super::types::{Child, Event, KillReason, Output, Process};
use super::{Keeper, Running, START_LIMIT, Worker, hang_limit_of, mutants};
use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug)]
pub(super) struct Next {
    /// `None`: the caller is starting it.
    process: Option<Process>,
    since: Instant,
    greeting: Option<Greeting>,
}

#[derive(Debug, Clone, Copy)]
struct Greeting {
    hang_limit: Duration,
    resume_limit: Duration,
    felt: bool,
}

impl Next {
    /// When it should have been ready.
    pub(super) fn limit(&self) -> Option<Instant> {
        (self.greeting.is_none() && !mutants::off("next-limit")).then(|| self.since + START_LIMIT)
    }
}

impl Keeper {
    /// The worker wants to be replaced.
    pub(super) fn prepare_next(&mut self, now: Instant) {
        let why = match (&self.stopping, &self.next) {
            (Some(_), _) => "the agent stops",
            (None, Some(_)) => "another one starts already",
            (None, None) => {
                self.next = Some(Next { process: None, since: now, greeting: None });
                self.out.push(Output::SpawnNext);
                return;
            }
        };
        self.tell(ToWorker::NotReplaced { why: why.to_owned() });
    }

    pub(super) fn next_spawned(&mut self, process: Process) {
        match &mut self.next {
            Some(next) if next.process.is_none() => {
                next.process = Some(process);
                self.out.event(Event::WorkerStarted { pid: process.pid });
                // In no ledger: without a keeper it ends by itself, and has done nothing.
                self.out.push(Output::Release(Child::Next));
            }
            // Nobody waits for it any more.
            _ => self.out.push(Output::KillNext),
        }
    }

    /// It can take over.
    pub(super) fn next_ready(&mut self, now: Instant, hang_limit: Duration, resume_limit: Duration, felt: bool) {
        let Some(Next { process: Some(process), greeting, .. }) = &mut self.next else { return };
        *greeting = Some(Greeting { hang_limit, resume_limit, felt });
        let pid = process.pid;
        if let Worker::Running(running) = &mut self.worker
            && running.leaving.is_none()
        {
            running.leaving = Some(now);
            self.tell(ToWorker::Leave { pid });
        }
    }

    /// It isn't ready in time.
    pub(super) fn supervise_next(&mut self, now: Instant) {
        if self.next.as_ref().and_then(Next::limit).is_some_and(|at| at <= now) {
            self.out.push(Output::KillNext);
            self.give_up(format!("it was not ready within {} s", START_LIMIT.as_secs()));
        }
    }

    /// There is no next one after all: the living one goes on.
    pub(super) fn give_up(&mut self, why: String) {
        if self.next.take().is_none() {
            return;
        }
        self.out.event(Event::NextFailed { why: why.clone() });
        // One that was told to leave does.
        if !self.leaves() {
            self.tell(ToWorker::NotReplaced { why });
        }
    }

    /// We stop.
    pub(super) fn forget_next(&mut self) {
        if self.next.take().is_some_and(|next| next.process.is_some()) {
            self.out.push(Output::KillNext);
        }
    }

    /// Whether the worker was told to leave to the next one.
    pub(super) fn leaves(&self) -> bool {
        match &self.worker {
            Worker::Running(running) => running.leaving.is_some(),
            Worker::Dying { why, .. } => *why == KillReason::Stays,
            _ => false,
        }
    }

    /// The worker is gone: whether another one has taken its place. It is booted if it is ready, else as soon as it is.
    pub(super) fn promote(&mut self, now: Instant, planned: bool, what: &str, lived: Duration) -> bool {
        let Some(Next { process: Some(process), greeting, .. }) = self.next.take() else { return false };
        self.out.push(Output::Promote);
        let mut running = Running::new(now, process);
        if let Some(greeting) = greeting {
            (running.hello, running.felt) = (true, greeting.felt);
            self.hang_limit = hang_limit_of(greeting.hang_limit);
            self.resume_limit = greeting.resume_limit;
        }
        self.worker = Worker::Running(running);
        let former_end = if planned {
            self.out.event(Event::WorkerReplaced { pid: process.pid, lived });
            String::new()
        } else {
            self.crashed = self.crashed.saturating_add(1);
            what.clone_into(&mut self.former_end);
            self.out.event(Event::WorkerEnded { what: what.to_owned(), lived, restart_in: Duration::ZERO });
            what.to_owned()
        };
        if greeting.is_some() {
            self.boot(now, former_end);
        }
        true
    }
}
