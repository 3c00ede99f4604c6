//! A thread of its own for what may keep the kernel busy for longer than an advert may wait.

use holdfast_node::io::StepError;
use std::io;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Jobs that wait for a thread. The node asks for one of a kind at a time. Full → refused, and asked for again.
const JOBS_MAX: usize = 8;

/// Works off jobs in order. Ends with this.
#[derive(Debug)]
pub(super) struct Thread<J, R> {
    name: &'static str,
    told: SyncSender<J>,
    done: mpsc::Receiver<R>,
}

impl<J: Send + 'static, R: Send + 'static> Thread<J, R> {
    /// `work` does one job; `None`: nobody waits for the answer. It runs in the network namespace of the caller.
    pub(super) fn start(name: &'static str, mut work: impl FnMut(J) -> Option<R> + Send + 'static) -> io::Result<Self> {
        let (told, jobs) = sync_channel::<J>(JOBS_MAX);
        let (tell, done) = mpsc::channel(JOBS_MAX + 1);
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Ok(job) = jobs.recv() {
                if work(job).is_some_and(|answer| tell.blocking_send(answer).is_err()) {
                    return;
                }
            }
        })?;
        Ok(Self { name, told, done })
    }

    pub(super) fn ask(&self, job: J) -> Result<(), StepError> {
        self.told.try_send(job).map_err(|error| {
            let (errno, why) = match error {
                TrySendError::Full(_) => (libc::EAGAIN, "is busy"),
                TrySendError::Disconnected(_) => (libc::ESRCH, "is gone"),
            };
            StepError { errno, what: format!("the thread for {} {why}", self.name) }
        })
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<R> {
        match self.done.poll_recv(cx) {
            Poll::Ready(Some(answer)) => Poll::Ready(answer),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}
