//! What lies between the protocol thread and the sync thread. Neither ever waits for the other.

use super::query::Asked;
use crate::run::queues::Note;
use holdfast_node::config::{SYNC_VIPS_MAX, StateSync, VipId};
use holdfast_node::sync::{SyncEvent, SyncWord};
use holdfast_statesync::flow::{self, Elected};
use std::collections::BTreeMap;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// What the sync thread is told and hasn't read. Full → the last of each VIP waits on the protocol thread's side.
const ORDERS_MAX: usize = 2 * SYNC_VIPS_MAX;
/// Words on their way. Full → the last one waits on the sync thread's side, and takes in what comes after it.
const WORDS_MAX: usize = 4;
/// Events for the journal; the flow side bounds how many there are per minute. Full → dropped, the log has them.
const EVENTS_MAX: usize = 64;

/// What the sync thread is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Whose a VIP is from now on.
    Elected { vip: flow::VipId, elected: Elected },
    /// The agent stops, and leaves nothing behind: no replica either. The thread ends with this.
    Clear,
}

/// The protocol thread's end.
#[derive(Debug)]
pub(in crate::run) struct SyncLink {
    orders: mpsc::Sender<Order>,
    words: mpsc::Receiver<SyncWord>,
    events: mpsc::Receiver<SyncEvent>,
    /// What found no room: at most one for each VIP.
    waiting: BTreeMap<u8, Elected>,
    /// Units, by their place among the replicated ones.
    units: Vec<VipId>,
    /// The thread has ended.
    ended: bool,
}

/// The sync thread's ends.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) orders: mpsc::Receiver<Order>,
    pub(super) words: mpsc::Sender<SyncWord>,
    pub(super) events: mpsc::Sender<SyncEvent>,
    pub(super) queries: mpsc::Receiver<Asked>,
    pub(super) notes: mpsc::Sender<Note>,
}

/// Both.
pub(super) fn pair(config: &StateSync, queries: mpsc::Receiver<Asked>, notes: mpsc::Sender<Note>) -> (SyncLink, Ends) {
    let (orders_in, orders) = mpsc::channel(ORDERS_MAX);
    let (words, words_out) = mpsc::channel(WORDS_MAX);
    let (events, events_out) = mpsc::channel(EVENTS_MAX);
    let units = config.vips.iter().map(|sync| sync.vip).collect();
    let link = SyncLink {
        orders: orders_in,
        words: words_out,
        events: events_out,
        waiting: BTreeMap::new(),
        units,
        ended: false,
    };
    (link, Ends { orders, words, events, queries, notes })
}

impl SyncLink {
    /// Hands on whose a unit is. What follows in the protocol thread may rely on that the sync thread sees this before any
    /// event that it causes.
    pub(in crate::run) fn elected(&mut self, unit: VipId, elected: Elected) {
        let place = self.units.iter().position(|known| *known == unit).and_then(|place| u8::try_from(place).ok());
        if let Some(place) = place {
            self.waiting.insert(place, elected);
            self.flush();
        }
    }

    fn flush(&mut self) {
        while let Some((place, elected)) = self.waiting.pop_first() {
            if self.orders.try_send(Order::Elected { vip: flow::VipId(place), elected }).is_err() {
                if self.orders.is_closed() {
                    self.waiting.clear();
                } else {
                    self.waiting.insert(place, elected);
                }
                return;
            }
        }
    }

    /// Has the thread remove the replicas, and end; waits for it, for no longer than `limit`, and beats that often.
    pub(in crate::run) async fn clear(&mut self, limit: Duration, every: Duration, mut beat: impl FnMut()) {
        // Full: it is stuck, and won't do it.
        if self.orders.try_send(Order::Clear).is_err() {
            return;
        }
        let until = Instant::now() + limit;
        loop {
            beat();
            let ended = async { while self.words.recv().await.is_some() {} };
            let pause = until.saturating_duration_since(Instant::now()).min(every);
            // Not within the limit: the replicas go with their lease.
            if tokio::time::timeout(pause, ended).await.is_ok() || Instant::now() >= until {
                return;
            }
        }
    }

    /// The next event for the journal.
    pub(in crate::run) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<SyncEvent> {
        if self.ended {
            return Poll::Pending;
        }
        match self.events.poll_recv(cx) {
            Poll::Ready(Some(event)) => Poll::Ready(event),
            // The words say that the thread has ended.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// The next word. Hands on what had to wait, too.
    pub(in crate::run) fn poll_word(&mut self, cx: &mut Context<'_>) -> Poll<SyncWord> {
        if !self.waiting.is_empty() {
            self.flush();
        }
        if self.ended {
            return Poll::Pending;
        }
        match self.words.poll_recv(cx) {
            Poll::Ready(Some(word)) => Poll::Ready(word),
            Poll::Ready(None) => {
                self.ended = true;
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::query::SyncHandle;
    use super::*;
    use holdfast_node::config::{SyncMode, SyncVip};

    fn link(units: &[u16]) -> (SyncLink, Ends) {
        let vips = units.iter().map(|unit| SyncVip { vip: VipId(*unit), mode: SyncMode::Assured }).collect();
        let (_, queries) = SyncHandle::new();
        pair(&StateSync::new(vips), queries, mpsc::channel(1).0)
    }

    #[test]
    fn what_is_told_of_a_unit_reaches_the_thread_by_its_place_and_others_are_nothing_to_it() {
        let (mut link, mut ends) = link(&[4, 9]);
        link.elected(VipId(9), Elected::Me);
        link.elected(VipId(5), Elected::Me);
        link.elected(VipId(4), Elected::Unknown);
        let mut told = std::iter::from_fn(|| ends.orders.try_recv().ok());
        assert_eq!(told.next(), Some(Order::Elected { vip: flow::VipId(1), elected: Elected::Me }));
        assert_eq!(told.next(), Some(Order::Elected { vip: flow::VipId(0), elected: Elected::Unknown }));
        assert_eq!(told.next(), None);
    }

    #[test]
    fn a_thread_that_does_not_read_costs_one_word_for_each_vip_and_learns_the_last_of_each() {
        let (mut link, mut ends) = link(&[0, 1]);
        for n in 0..3 * ORDERS_MAX {
            link.elected(VipId(0), if n % 2 == 0 { Elected::Me } else { Elected::Unknown });
        }
        link.elected(VipId(1), Elected::Me);
        assert_eq!(link.waiting.len(), 2);
        let mut last = BTreeMap::new();
        while let Ok(Order::Elected { vip, elected }) = ends.orders.try_recv() {
            last.insert(vip.0, elected);
        }
        link.flush();
        while let Ok(Order::Elected { vip, elected }) = ends.orders.try_recv() {
            last.insert(vip.0, elected);
        }
        assert_eq!(last, BTreeMap::from([(0, Elected::Unknown), (1, Elected::Me)]));
        assert!(link.waiting.is_empty());
    }

    #[test]
    fn a_thread_that_has_ended_keeps_nothing_waiting() {
        let (mut link, ends) = link(&[0]);
        drop(ends);
        link.elected(VipId(0), Elected::Me);
        assert!(link.waiting.is_empty());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(link.poll_word(&mut cx).is_pending() && link.poll_word(&mut cx).is_pending());
    }

    #[tokio::test]
    async fn who_waits_for_the_replicas_to_go_beats_until_they_are_gone() {
        let (mut link, ends) = link(&[0]);
        let mut ends = Some(ends);
        let mut beats = 0;
        let beat = || {
            beats += 1;
            if let Some(ends) = ends.as_mut().filter(|_| beats == 1) {
                assert_eq!(ends.orders.try_recv(), Ok(Order::Clear));
            }
            // The thread ends.
            if beats == 5 {
                ends = None;
            }
        };
        link.clear(Duration::from_secs(60), Duration::from_millis(1), beat).await;
        assert_eq!(beats, 5);
    }

    #[tokio::test]
    async fn a_thread_that_does_not_end_is_waited_for_until_the_limit() {
        let (mut link, _ends) = link(&[0]);
        let limit = Duration::from_millis(20);
        let begun = Instant::now();
        link.clear(limit, Duration::from_secs(60), || ()).await;
        assert!(begun.elapsed() >= limit);
    }
}
