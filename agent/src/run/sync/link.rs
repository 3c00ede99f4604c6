//! What lies between the protocol thread and the sync thread. Neither ever waits for the other.

use super::query::Asked;
use crate::run::queues::Note;
use holdfast_node::config::{Config, FLOW_SOURCES_MAX, SYNC_VIPS_MAX, VipId};
use holdfast_node::sync::{SyncEvent, SyncWord};
use holdfast_statesync::flow::Elected;
use std::collections::BTreeMap;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// What the sync thread is told and hasn't read. Full → the last of each unit waits on the protocol thread's side.
const ORDERS_MAX: usize = 2 * (SYNC_VIPS_MAX + FLOW_SOURCES_MAX);
/// Words on their way. Full → the last one waits on the sync thread's side, and takes in what comes after it.
const WORDS_MAX: usize = 4;
/// Events for the journal; the flow side bounds how many there are per minute. Full → dropped, the log has them.
const EVENTS_MAX: usize = 64;

/// What the sync thread is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Whose it is from now on.
    Elected { of: Of, elected: Elected },
    /// The agent stops, and leaves nothing behind: no replica either. The thread ends with this.
    Clear,
}

/// What has an owner by an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Of {
    /// A replicated VIP.
    Vip(u8),
    /// A source that flows move with.
    Source(u8),
}

/// The protocol thread's end.
#[derive(Debug)]
pub(in crate::run) struct SyncLink {
    orders: mpsc::Sender<Order>,
    words: mpsc::Receiver<SyncWord>,
    events: mpsc::Receiver<SyncEvent>,
    /// What found no room: at most one for each of them.
    waiting: BTreeMap<Of, Elected>,
    /// The units whose owner is told, each as what.
    units: BTreeMap<VipId, Of>,
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
pub(super) fn pair(config: &Config, queries: mpsc::Receiver<Asked>, notes: mpsc::Sender<Note>) -> (SyncLink, Ends) {
    let (orders_in, orders) = mpsc::channel(ORDERS_MAX);
    let (words, words_out) = mpsc::channel(WORDS_MAX);
    let (events, events_out) = mpsc::channel(EVENTS_MAX);
    let vips = config.statesync.iter().flat_map(|sync| &sync.vips).map(|sync| sync.vip);
    let sources = config.flow_sources().into_iter().zip((0..).map(Of::Source));
    let units = sources.chain(vips.zip((0..).map(Of::Vip))).collect();
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
        if let Some(of) = self.units.get(&unit) {
            self.waiting.insert(*of, elected);
            self.flush();
        }
    }

    fn flush(&mut self) {
        while let Some((of, elected)) = self.waiting.pop_first() {
            if self.orders.try_send(Order::Elected { of, elected }).is_err() {
                if self.orders.is_closed() {
                    self.waiting.clear();
                } else {
                    self.waiting.insert(of, elected);
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

    /// Of VIPs by BGP, in this order, with that many that VRRP holds beside them.
    fn config(synced: &[&str], sources: usize) -> Config {
        let mut text =
            "[node]\nname = \"a\"\n[bgp]\nasn = 65010\n[[bgp.neighbor]]\naddress = \"10.0.0.1\"\nasn = 65000\n\
                        [cluster]\nlisten = \"10.1.0.11:7712\"\nkey_file = \"/etc/holdfast/node.key\"\n\
                        [[cluster.peer]]\nname = \"b\"\naddress = \"10.1.0.12:7712\"\n\
                        public_keys = [\"KjMFXgCkl3bVbBQ8sg1Z3xGT3cVp5a9Qm0eG3S9uY1E=\"]\n"
                .to_owned();
        for (n, name) in ["web", "dns", "mail"].iter().enumerate() {
            text += &format!("[[vip]]\nname = \"{name}\"\naddresses = [\"192.0.2.{n}/32\"]\nbgp = {{}}\n");
        }
        for n in 0..sources {
            text += &format!(
                "[[vip]]\nname = \"s{n}\"\naddresses = [\"10.2.0.{n}/32\"]\n\
                 vrrp = {{ interface = \"eth1\", vrid = {}, priority = 100 }}\n",
                n + 1
            );
        }
        let synced: Vec<String> = synced.iter().map(|name| format!("\"{name}\"")).collect();
        text += &format!("[statesync]\nvips = [{}]\n", synced.join(", "));
        crate::config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}\n{text}"))
    }

    fn link(synced: &[&str], sources: usize) -> (SyncLink, Ends) {
        let (_, queries) = SyncHandle::new();
        pair(&config(synced, sources), queries, mpsc::channel(1).0)
    }

    #[test]
    fn what_is_told_of_a_unit_reaches_the_thread_by_its_place_and_others_are_nothing_to_it() {
        let (mut link, mut ends) = link(&["mail", "web"], 2);
        let peer = Elected::Peer(holdfast_statesync::PeerId(0));
        for (unit, elected) in [(0, Elected::Me), (1, Elected::Me), (2, Elected::Unknown), (4, peer), (9, Elected::Me)]
        {
            link.elected(VipId(unit), elected);
        }
        let told: Vec<Order> = std::iter::from_fn(|| ends.orders.try_recv().ok()).collect();
        let expected = [(Of::Vip(1), Elected::Me), (Of::Vip(0), Elected::Unknown), (Of::Source(1), peer)];
        assert_eq!(told, expected.map(|(of, elected)| Order::Elected { of, elected }));
    }

    #[test]
    fn a_thread_that_does_not_read_costs_one_word_for_each_vip_and_learns_the_last_of_each() {
        let (mut link, mut ends) = link(&["web", "dns"], 0);
        for n in 0..3 * ORDERS_MAX {
            link.elected(VipId(0), if n % 2 == 0 { Elected::Me } else { Elected::Unknown });
        }
        link.elected(VipId(1), Elected::Me);
        assert_eq!(link.waiting.len(), 2);
        let mut last = BTreeMap::new();
        while let Ok(Order::Elected { of, elected }) = ends.orders.try_recv() {
            last.insert(of, elected);
        }
        link.flush();
        while let Ok(Order::Elected { of, elected }) = ends.orders.try_recv() {
            last.insert(of, elected);
        }
        assert_eq!(last, BTreeMap::from([(Of::Vip(0), Elected::Unknown), (Of::Vip(1), Elected::Me)]));
        assert!(link.waiting.is_empty());
    }

    #[test]
    fn a_thread_that_has_ended_keeps_nothing_waiting() {
        let (mut link, ends) = link(&["web"], 0);
        drop(ends);
        link.elected(VipId(0), Elected::Me);
        assert!(link.waiting.is_empty());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(link.poll_word(&mut cx).is_pending() && link.poll_word(&mut cx).is_pending());
    }

    #[tokio::test]
    async fn who_waits_for_the_replicas_to_go_beats_until_they_are_gone() {
        let (mut link, ends) = link(&["web"], 0);
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
        let (mut link, _ends) = link(&["web"], 0);
        let limit = Duration::from_millis(20);
        let begun = Instant::now();
        link.clear(limit, Duration::from_secs(60), || ()).await;
        assert!(begun.elapsed() >= limit);
    }
}
