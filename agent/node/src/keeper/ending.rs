//! How a worker's life ends: it is killed, closes its socket, stops to read it, or exits; and what follows at once.

use super::types::{Event, KillReason, Notify, Output, UndoReason};
use super::{Keeper, Running, START_LIMIT, Worker};
use std::time::Instant;

impl Keeper {
    /// SIGKILL first: what is undone afterwards must not be done again by a worker that wakes up.
    pub(super) fn kill(&mut self, now: Instant, why: KillReason) {
        let Worker::Running(Running { process, since, .. }) = self.worker else { return };
        self.worker = Worker::Dying { process, since, killed_at: now, why };
        self.vips.dying = true;
        self.routers.attended = false;
        // Of a dead worker from here on: what is undone next must find them so.
        self.routers.sockets.hold(now);
        self.out.push(Output::KillWorker);
        self.out.event(Event::WorkerKilled { why });
    }

    pub(super) fn worker_closed(&mut self, now: Instant) {
        let Worker::Running(running) = &mut self.worker else { return };
        if running.done.is_some() || running.closed.is_some() {
            return;
        }
        running.closed = Some(now);
        self.vips.dying = true;
        self.hold(now);
    }

    pub(super) fn worker_stuck(&mut self, now: Instant) {
        let Worker::Running(_) = self.worker else { return };
        self.kill(now, KillReason::Stuck);
        self.vips.undo_hung(now, &mut self.routers, &mut self.out);
    }

    fn hold(&mut self, now: Instant) {
        self.routers.attended = false;
        // First: what can't be held must find the sockets of a dead worker.
        self.routers.sockets.hold(now);
        let runs = |name: &str| self.balancers.runs(name);
        self.vips.hold(now, self.resume_limit, runs, &mut self.routers, &mut self.out);
    }

    pub(super) fn worker_exited(&mut self, now: Instant, what: String) {
        self.routers.attended = false;
        let planned = self.leaves();
        let (since, what) = match &self.worker {
            Worker::Running(Running { since, done: Some(_), .. }) => {
                let since = *since;
                self.vips.undo_all(now, UndoReason::Left, &mut self.routers, &mut self.out);
                self.routers.sockets.clear(&mut self.out);
                (since, format!("left by itself, {what}"))
            }
            Worker::Running(Running { since, .. }) => {
                let since = *since;
                self.hold(now);
                (since, what)
            }
            Worker::Dying { since, why, .. } => {
                let (since, what) = (*since, describe(*why, &what));
                // Only one that was killed for its silence before Hello can have left something.
                self.hold(now);
                (since, what)
            }
            _ => return,
        };
        self.vips.confirm(&mut self.out);
        self.execs.orphan();
        if self.stopping.is_some() {
            self.worker = Worker::Gone;
            return;
        }
        let lived = now.saturating_duration_since(since);
        if self.promote(now, planned, &what, lived) {
            return;
        }
        let restart_in = self.backoff.ended(lived);
        self.worker = Worker::Waiting { at: now + restart_in };
        self.crashed = self.crashed.saturating_add(1);
        self.out.push(Output::Notify(Notify::Status(format!("no worker: {what}"))));
        self.former_end.clone_from(&what);
        self.out.event(Event::WorkerEnded { what, lived, restart_in });
    }
}

fn describe(why: KillReason, what: &str) -> String {
    match why {
        KillReason::Hung(silent) => format!("hung, no beat for {} ms, {what}", silent.as_millis()),
        KillReason::Closed => format!("closed its socket, {what}"),
        KillReason::Stuck => format!("did not read its socket, {what}"),
        KillReason::Stays => format!("did not leave to the next one, {what}"),
        KillReason::Silent => format!("did not begin its work within {} s, {what}", START_LIMIT.as_secs()),
        KillReason::StopDeadline => format!("did not leave in time, {what}"),
        KillReason::Stopping => format!("killed while stopping, {what}"),
    }
}
