//! What the thread says of itself: the word for the node, at changes and once a second; how old changes are when a peer has
//! them; lines for the log.

use super::query::why_word;
use crate::run::lateness::{Histogram, Snapshot};
use holdfast_node::sync::{NotReady, SyncPeerWord, SyncVipWord, SyncWord};
use holdfast_statesync::PeerId;
use holdfast_statesync::flow::{Event, Flows, Told, VipId};
use std::time::{Duration, Instant};

/// At least so often.
const EVERY: Duration = Duration::from_secs(1);
/// Between two looks whether there is something to say.
const LOOK: Duration = Duration::from_millis(2);
/// Between two words, when something is missing or no longer missing.
const GAP: Duration = Duration::from_millis(5);
/// The same when it's only that something is on its way, or isn't any more: under load that is so all the time, and each
/// word wakes the thread that sends adverts.
const GAP_FLUSHED: Duration = Duration::from_millis(20);
/// Samples of lag are kept for one to two of these.
const WINDOW: Duration = Duration::from_secs(60);

/// Decides when there is something to say.
#[derive(Debug)]
pub(super) struct Telling {
    last: Option<SyncWord>,
    told_at: Instant,
    look_at: Instant,
    /// There is something to say, as soon as the pause is over.
    pending: bool,
    young: Vec<usize>,
}

impl Telling {
    pub(super) fn new(now: Instant) -> Self {
        Self { last: None, told_at: now, look_at: now, pending: false, young: Vec::new() }
    }

    /// When to look again at the latest; sooner only if something happened.
    pub(super) fn due(&self, busy: bool) -> Instant {
        if self.last.is_none() {
            self.look_at
        } else if busy || self.pending {
            self.look_at.min(self.told_at + EVERY)
        } else {
            self.told_at + EVERY
        }
    }

    /// A word, if it is time for one.
    pub(super) fn look(
        &mut self,
        now: Instant,
        make: impl FnOnce(&mut Vec<usize>, bool) -> SyncWord,
    ) -> Option<SyncWord> {
        let regular = self.last.is_none() || now >= self.told_at + EVERY;
        if now < self.look_at && !regular {
            return None;
        }
        self.look_at = now + LOOK;
        let word = make(&mut self.young, regular);
        let gap = self.last.as_ref().map_or(Some(Duration::ZERO), |last| gap(last, &word));
        let due = regular || gap.is_some_and(|gap| now >= self.told_at + gap);
        self.pending = false;
        if let Some(gap) = gap.filter(|_| !due) {
            self.pending = true;
            self.look_at = self.told_at + gap;
        }
        due.then_some(word)
    }

    /// It found no room: soon again.
    pub(super) fn refused(&mut self, now: Instant) {
        self.pending = true;
        self.told_at = now;
        self.look_at = now + GAP_FLUSHED;
    }

    /// It was handed over.
    pub(super) fn told(&mut self, now: Instant, word: SyncWord) {
        self.last = Some(word);
        self.told_at = now;
    }
}

/// How soon the later word has to be said after the earlier one; `None`: only numbers differ.
fn gap(last: &SyncWord, now: &SyncWord) -> Option<Duration> {
    let readiness = |vip: &SyncVipWord| match vip.ready {
        Err(NotReady::Kernel { .. }) => Err(NotReady::Kernel { behind: 0 }),
        other => other,
    };
    let whys = |peer: &SyncPeerWord| (peer.inbound.why, peer.outbound.why);
    if last.trouble != now.trouble
        || !last.vips.iter().map(readiness).eq(now.vips.iter().map(readiness))
        || !last.peers.iter().map(whys).eq(now.peers.iter().map(whys))
    {
        return Some(GAP);
    }
    let flushed = |word: &SyncWord| word.peers.iter().map(|peer| peer.flushed).collect::<Vec<_>>();
    (flushed(last) != flushed(now)).then_some(GAP_FLUSHED)
}

/// The word as it is now. `young` is counted anew only if `count`.
pub(super) fn word(
    flows: &Flows,
    (run, vips, peers): (u64, usize, usize),
    now: Instant,
    (young, count): (&mut Vec<usize>, bool),
) -> SyncWord {
    if count {
        *young = flows.young();
    }
    let vip = |place: usize| {
        let id = VipId(u8::try_from(place).ok()?);
        let (own, others) = flows.flows_of(id);
        let young = young.get(place).copied().unwrap_or(0);
        Some(SyncVipWord { ready: flows.may_promote(now, id), flows: (own + others) as u64, young: young as u64 })
    };
    let peer = |place: usize| {
        let id = PeerId(u16::try_from(place).ok()?);
        Some(SyncPeerWord {
            inbound: flows.inbound(now, id)?,
            outbound: flows.outbound(now, id)?,
            flushed: flows.is_flushed(id),
            flows: flows.replicas_of(id) as u64,
        })
    };
    SyncWord {
        run,
        vips: (0..vips).map_while(vip).collect(),
        peers: (0..peers).map_while(peer).collect(),
        lag: None,
        trouble: None,
    }
}

/// How old changes are when a peer has acknowledged them: from when the event was read.
#[derive(Debug)]
pub(super) struct Lag {
    /// Of each peer: what is being waited for.
    open: Vec<Option<(Told, Instant)>>,
    windows: Vec<[Histogram; 2]>,
    turned_at: Instant,
}

impl Lag {
    pub(super) fn new(peers: usize, now: Instant) -> Self {
        Self { open: vec![None; peers], windows: vec![Default::default(); peers], turned_at: now }
    }

    /// What each peer was told before events are handled.
    pub(super) fn before(flows: &Flows, peers: usize) -> Vec<Option<Told>> {
        peer_ids(peers).map(|peer| flows.told(peer)).collect()
    }

    /// The events that were read at `read` are handled: what went out is waited for, one at a time.
    pub(super) fn sent(&mut self, flows: &Flows, before: &[Option<Told>], read: Instant) {
        for ((open, before), peer) in self.open.iter_mut().zip(before).zip(peer_ids(before.len())) {
            let told = flows.told(peer);
            if open.is_none() && told != *before {
                *open = told.map(|told| (told, read));
            }
        }
    }

    /// Looks what has been acknowledged.
    pub(super) fn look(&mut self, flows: &Flows, now: Instant) {
        if now.saturating_duration_since(self.turned_at) >= WINDOW {
            self.turned_at = now;
            self.windows.iter_mut().for_each(|[young, old]| *old = std::mem::take(young));
        }
        let count = self.open.len();
        for ((open, window), peer) in self.open.iter_mut().zip(&mut self.windows).zip(peer_ids(count)) {
            let Some((told, read)) = *open else { continue };
            match flows.has_settled(peer, told) {
                Some(false) => {}
                Some(true) => {
                    window[0].record(now.saturating_duration_since(read));
                    *open = None;
                }
                None => *open = None,
            }
        }
    }

    /// Of a peer: the minute that is over, or what there is of this one.
    pub(super) fn of(&self, place: usize) -> Option<Snapshot> {
        let [young, old] = self.windows.get(place)?;
        [old.snapshot(), young.snapshot()].into_iter().find(|snapshot| snapshot.count > 0)
    }

    /// The slowest peer's median.
    pub(super) fn median(&self) -> Option<Duration> {
        let medians = (0..self.windows.len()).filter_map(|place| Some(self.of(place)?.p50_us));
        medians.max().map(Duration::from_micros)
    }
}

fn peer_ids(count: usize) -> impl Iterator<Item = PeerId> {
    (0..count).filter_map(|place| u16::try_from(place).ok()).map(PeerId)
}

/// A line for the log, and whether it is a warning.
pub(super) fn line(event: &Event, peer: impl Fn(PeerId) -> String, vip: impl Fn(VipId) -> String) -> (bool, String) {
    match *event {
        Event::InSync { peer: id, outbound: true } => (false, format!("flows: {} has all of ours", peer(id))),
        Event::InSync { peer: id, outbound: false } => (false, format!("flows: all of {} are here", peer(id))),
        Event::OutOfSync { peer: id, outbound: true, why } => {
            (true, format!("flows: {} doesn't have all of ours ({})", peer(id), why_word(why)))
        }
        Event::OutOfSync { peer: id, outbound: false, why } => {
            (true, format!("flows: not all of {} are here ({})", peer(id), why_word(why)))
        }
        Event::Claimed { vip: id, generation } => {
            (false, format!("flows: those of {} are ours now (generation {generation})", vip(id)))
        }
        Event::Full { class } => {
            (true, format!("flows: the table is full, nothing shorter-lived than {class:?} is held (max_flows)"))
        }
        Event::Clash { key } => (
            true,
            format!(
                "flows: no replica of {:?}: another flow has its address and port behind the NAT here",
                key.original
            ),
        ),
        Event::Overrun => (true, "flows: events of the kernel were lost, its table is read anew".to_owned()),
        Event::KernelRefused { errno } => {
            (true, format!("flows: the kernel refused a replica: {}", std::io::Error::from_raw_os_error(errno)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_statesync::flow::{Direction, Why};

    fn a_word(now: Instant, ready: Result<(), NotReady>, why: Option<Why>, flushed: bool) -> SyncWord {
        let direction = Direction { equal_at: None, why, since: now, behind: 0 };
        SyncWord {
            run: 1,
            vips: vec![SyncVipWord { ready, flows: 0, young: 0 }],
            peers: vec![SyncPeerWord { inbound: direction, outbound: direction, flushed, flows: 0 }],
            lag: None,
            trouble: None,
        }
    }

    #[test]
    fn the_first_word_is_said_at_once_then_changes_soon_and_nothing_new_once_a_second() {
        let now = Instant::now();
        let mut telling = Telling::new(now);
        let plain = || a_word(now, Ok(()), None, true);
        let first = telling.look(now, |_, _| plain()).expect("at once");
        telling.told(now, first);
        let at = |ms| now + Duration::from_millis(ms);
        assert_eq!(telling.look(at(3), |_, _| plain()), None, "nothing is new");
        let broken = || a_word(now, Err(NotReady::Reading), None, true);
        assert_eq!(telling.look(at(4), |_, _| broken()), None, "too soon to look");
        let word = telling.look(at(6), |_, _| broken()).expect("it isn't ready any more");
        telling.told(at(6), word);
        let busy = || a_word(now, Err(NotReady::Reading), None, false);
        assert_eq!(telling.look(at(12), |_, _| busy()), None, "that something is on its way can wait");
        assert!(telling.look(at(27), |_, _| busy()).is_some());
        assert!(telling.look(at(1007), |_, _| broken()).is_some(), "once a second");
    }

    #[test]
    fn how_many_replicas_wait_is_no_news_but_that_some_do_is() {
        let now = Instant::now();
        let with = |behind| a_word(now, Err(NotReady::Kernel { behind }), None, true);
        assert_eq!(gap(&with(5), &with(7)), None);
        assert_eq!(gap(&with(5), &a_word(now, Ok(()), None, true)), Some(GAP));
        assert_eq!(gap(&a_word(now, Ok(()), Some(Why::Differs), true), &a_word(now, Ok(()), None, true)), Some(GAP));
    }
}
