//! What the control API holds: a handle to ask the node and to read events.
//!
//! The handle never touches the node itself. A request crosses to the protocol thread over a bounded queue; answers
//! come back over a bounded queue of their own. Events come from a ring in memory that the journal fills; a slow
//! reader misses events and is told how many, nothing waits for it.

use super::lateness::Snapshot;
pub use super::record::Recorded;
use super::sync::query::{SyncFigures, SyncHandle};
use holdfast_node::io::{Answer, Request};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, watch};

/// Requests that wait for the protocol thread. Full → [`Unavailable::Busy`].
pub const REQUESTS_MAX: usize = 64;
/// Answers that wait for one client. Full → progress lines are dropped; room for the final answer is always kept.
pub const ANSWERS_MAX: usize = 32;
/// Events kept in memory. Full → the oldest goes (it is in the journal's file).
pub const RING_MAX: usize = 10_000;

/// Why a request could not be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// Too many requests wait.
    #[error("busy: {REQUESTS_MAX} requests are waiting")]
    Busy,
    /// The node is stopping.
    #[error("the agent is stopping")]
    Stopping,
}

/// A request on its way to the protocol thread.
#[derive(Debug)]
pub struct Asked {
    /// What is asked.
    pub request: Request,
    /// Where the answers go.
    pub reply: mpsc::Sender<Answer>,
}

/// Figures of the worker itself, for `status` and `/metrics`. All measured, counted since the worker's start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerFigures {
    /// How late timers were handled (any timer of the node).
    pub timer: Snapshot,
    /// How late the turns that sent adverts were.
    pub advert: Snapshot,
    /// Inputs or outputs dropped because a queue was full, by queue: (name, count).
    pub dropped: Vec<(&'static str, u64)>,
    /// Journal or intents writes that failed.
    pub disk_errors: u64,
    /// `None`: scheduled SCHED_RR; else why not.
    pub not_realtime: Option<String>,
    /// Of the replication of flows; `None`: there is none.
    pub sync: Option<Arc<SyncFigures>>,
}

/// Cloneable handle to the running node.
#[derive(Debug, Clone)]
pub struct ApiHandle {
    requests: mpsc::Sender<Asked>,
    ring: Arc<EventRing>,
    figures: watch::Receiver<Arc<WorkerFigures>>,
    sync: Option<SyncHandle>,
}

impl ApiHandle {
    /// A handle over these ends. The worker makes one; tests may make their own.
    pub fn new(
        requests: mpsc::Sender<Asked>,
        ring: Arc<EventRing>,
        figures: watch::Receiver<Arc<WorkerFigures>>,
    ) -> Self {
        Self { requests, ring, figures, sync: None }
    }

    /// The same, with what answers questions about replicated flows.
    #[must_use]
    pub fn with_sync(self, sync: Option<SyncHandle>) -> Self {
        Self { sync, ..self }
    }

    /// Who answers questions about replicated flows; `None`: no `[statesync]`.
    pub const fn sync(&self) -> Option<&SyncHandle> {
        self.sync.as_ref()
    }

    /// Asks the node. The receiver yields any number of [`Answer::Progress`] and one final answer, then ends. It ends
    /// without a final answer only if the worker stops meanwhile. Dropping it doesn't cancel what was asked.
    pub async fn request(&self, request: Request) -> Result<mpsc::Receiver<Answer>, Unavailable> {
        let (reply, answers) = mpsc::channel(ANSWERS_MAX);
        match self.requests.try_send(Asked { request, reply }) {
            Ok(()) => Ok(answers),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Unavailable::Busy),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Unavailable::Stopping),
        }
    }

    /// Events with an id greater than `since`, oldest first. With `follow` the stream goes on with what comes.
    pub fn events(&self, since: u64, follow: bool) -> EventStream {
        EventStream {
            ring: Arc::clone(&self.ring),
            changed: self.ring.newest.subscribe(),
            last: since,
            follow,
            missed: 0,
        }
    }

    /// The worker's own figures, at most 1 s old.
    pub fn figures(&self) -> Arc<WorkerFigures> {
        let figures = Arc::clone(&self.figures.borrow());
        match &self.sync {
            Some(sync) => Arc::new(WorkerFigures { sync: Some(sync.figures()), ..(*figures).clone() }),
            None => figures,
        }
    }
}

/// The last [`RING_MAX`] events.
#[derive(Debug)]
pub struct EventRing {
    entries: Mutex<VecDeque<Arc<Recorded>>>,
    newest: watch::Sender<u64>,
}

impl Default for EventRing {
    fn default() -> Self {
        Self::new()
    }
}

impl EventRing {
    /// An empty ring.
    pub fn new() -> Self {
        Self { entries: Mutex::new(VecDeque::new()), newest: watch::Sender::new(0) }
    }

    /// Appends; ids must grow.
    pub fn push(&self, entry: Arc<Recorded>) {
        let id = entry.event.id;
        {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            if entries.len() == RING_MAX {
                entries.pop_front();
            }
            entries.push_back(entry);
        }
        self.newest.send_replace(id);
    }

    /// The oldest entry with an id greater than `last`.
    fn after(&self, last: u64) -> Option<Arc<Recorded>> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let at = entries.partition_point(|e| e.event.id <= last);
        entries.get(at).cloned()
    }
}

/// Reads the ring at its own pace.
#[derive(Debug)]
pub struct EventStream {
    ring: Arc<EventRing>,
    changed: watch::Receiver<u64>,
    last: u64,
    follow: bool,
    missed: u64,
}

impl EventStream {
    /// The next event; `None`: no more (without `follow`: all read; with it: the worker ends). Safe to cancel.
    pub async fn next(&mut self) -> Option<Arc<Recorded>> {
        loop {
            // Marked as seen before looking, so that a push between the look and the wait wakes us.
            self.changed.borrow_and_update();
            if let Some(entry) = self.ring.after(self.last) {
                if self.last != 0 {
                    self.missed += entry.event.id.saturating_sub(self.last + 1);
                }
                self.last = entry.event.id;
                return Some(entry);
            }
            if !self.follow {
                return None;
            }
            self.changed.changed().await.ok()?;
        }
    }

    /// How many events between two that were returned had left the ring.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::testing::recorded;

    fn entry(id: u64) -> Arc<Recorded> {
        Arc::new(recorded(id))
    }

    fn handle(ring: &Arc<EventRing>) -> (ApiHandle, mpsc::Receiver<Asked>) {
        let (tx, rx) = mpsc::channel(REQUESTS_MAX);
        let (_figures, seen) = watch::channel(Arc::new(WorkerFigures::default()));
        (ApiHandle::new(tx, Arc::clone(ring), seen), rx)
    }

    #[tokio::test]
    async fn a_stream_without_follow_ends_after_the_last_event() {
        let ring = Arc::new(EventRing::new());
        let (api, _rx) = handle(&ring);
        (1..=3).for_each(|id| ring.push(entry(id)));
        let mut stream = api.events(1, false);
        assert_eq!(stream.next().await.map(|e| e.event.id), Some(2));
        assert_eq!(stream.next().await.map(|e| e.event.id), Some(3));
        assert_eq!(stream.next().await, None);
        assert_eq!(stream.missed(), 0);
    }

    #[tokio::test]
    async fn a_following_stream_sees_what_comes_later() {
        let ring = Arc::new(EventRing::new());
        let (api, _rx) = handle(&ring);
        let mut stream = api.events(0, true);
        let later = Arc::clone(&ring);
        let pusher = tokio::spawn(async move { later.push(entry(7)) });
        assert_eq!(stream.next().await.map(|e| e.event.id), Some(7));
        pusher.await.expect("pusher doesn't panic");
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_how_many_events_it_missed() {
        let ring = Arc::new(EventRing::new());
        let (api, _rx) = handle(&ring);
        ring.push(entry(1));
        let mut stream = api.events(0, true);
        assert_eq!(stream.next().await.map(|e| e.event.id), Some(1));
        let max = u64::try_from(RING_MAX).expect("the ring's size fits");
        (2..=max + 5).for_each(|id| ring.push(entry(id)));
        assert_eq!(stream.next().await.map(|e| e.event.id), Some(6));
        assert_eq!(stream.missed(), 4);
    }

    #[tokio::test]
    async fn a_full_queue_refuses_the_request_as_busy_and_a_closed_one_as_stopping() {
        let ring = Arc::new(EventRing::new());
        let (api, rx) = handle(&ring);
        for _ in 0..REQUESTS_MAX {
            assert!(api.request(Request::Status).await.is_ok());
        }
        assert_eq!(api.request(Request::Status).await.err(), Some(Unavailable::Busy));
        drop(rx);
        assert_eq!(api.request(Request::Status).await.err(), Some(Unavailable::Stopping));
    }
}
