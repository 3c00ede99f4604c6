//! Leaving in order: first the worker, then what it left behind, then the balancers and programs.

use super::types::{Event, KillReason, Notify, Output, UndoReason};
use super::{FINISH_LIMIT, KILL_LIMIT, Keeper, LEAVE_LIMIT, Running, ToWorker, Worker};
use std::time::Instant;

#[derive(Debug)]
pub(super) struct Stopping {
    pub(super) worker_until: Instant,
    /// Set when the worker is gone.
    pub(super) finish_until: Option<Instant>,
}

impl Keeper {
    pub(super) fn terminate(&mut self, now: Instant) {
        if self.stopping.is_some() {
            return;
        }
        self.forget_next();
        let deadline = self.options.stop_deadline;
        self.stopping = Some(Stopping { worker_until: now + deadline + LEAVE_LIMIT, finish_until: None });
        self.out.event(Event::Stopping);
        self.out.push(Output::Notify(Notify::Stopping));
        match &self.worker {
            Worker::Running(Running { closed: Some(_), .. }) => {}
            Worker::Running(Running { hello: true, .. }) => self.tell(ToWorker::Stop { deadline }),
            // It has not been told what to resume: nothing is its own yet.
            Worker::Running(_) => self.kill(now, KillReason::Stopping),
            Worker::Waiting { .. } => self.worker = Worker::Gone,
            Worker::Former { .. } | Worker::Spawning | Worker::Dying { .. } | Worker::Gone => {}
        }
    }

    pub(super) fn progress_stop(&mut self, now: Instant) {
        let Some(Stopping { worker_until, .. }) = self.stopping else { return };
        match self.worker {
            Worker::Running(_) if worker_until <= now => self.kill(now, KillReason::StopDeadline),
            Worker::Dying { killed_at, .. } if killed_at + KILL_LIMIT <= now => {
                self.worker = Worker::Gone;
                self.vips.confirm(&mut self.out);
            }
            // The former keeper's worker left while we stop, or a start failed.
            Worker::Waiting { .. } => self.worker = Worker::Gone,
            _ => {}
        }
        let Worker::Gone = self.worker else { return };
        let Some(Stopping { finish_until, .. }) = &mut self.stopping else { return };
        let finish_until = *finish_until.get_or_insert(now + FINISH_LIMIT);
        self.routers.sockets.hold(now);
        self.vips.undo_all(now, UndoReason::Stopping, &mut self.routers, &mut self.out);
        self.routers.sockets.clear(&mut self.out);
        self.routers.bfd.leave_all(now, &mut self.out);
        self.balancers.stop_all(now, &mut self.out);
        self.execs.stop_all(now, &mut self.out);
        let clean =
            self.vips.is_clean() && self.balancers.is_empty() && self.execs.is_empty() && self.routers.bfd.is_empty();
        if clean || finish_until <= now {
            self.sync_ledger();
            self.out.push(Output::Exit(u8::from(!clean)));
            self.exited = true;
        }
    }
}
