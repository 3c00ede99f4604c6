//! What the thread says of itself: the word for the node, at changes and once a second; how old changes are when a peer has
//! them.

use crate::run::lateness::{Histogram, Snapshot};
use holdfast_node::sync::{NotReady, SyncPeerWord, SyncVipWord, SyncWord};
use holdfast_statesync::PeerId;
use holdfast_statesync::flow::{Flows, Told, VipId};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// At least so often.
const EVERY: Duration = Duration::from_secs(1);
/// Between two looks whether there is something to say.
const LOOK: Duration = Duration::from_millis(2);
/// Between two words, whatever changes: each wakes the thread that sends adverts.
const GAP: Duration = Duration::from_millis(10);
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
    /// Since the last word: peers to which nothing was on its way at some moment, and VIPs for which nothing waited.
    flushed: Vec<bool>,
    ready: Vec<bool>,
}

impl Telling {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            last: None,
            told_at: now,
            look_at: now,
            pending: false,
            young: Vec::new(),
            flushed: Vec::new(),
            ready: Vec::new(),
        }
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

    /// Under load something is always on its way. What counts is that there was a moment when nothing was.
    pub(super) fn note(&mut self, is_flushed: impl Fn(PeerId) -> bool, peers: usize) {
        self.flushed.resize(peers, false);
        for (seen, peer) in self.flushed.iter_mut().zip(peer_ids(peers)) {
            *seen = *seen || is_flushed(peer);
        }
    }

    /// With what was so since the last word.
    fn since_the_last(&mut self, mut word: SyncWord) -> SyncWord {
        self.ready.resize(word.vips.len(), false);
        for (vip, seen) in word.vips.iter_mut().zip(&mut self.ready) {
            *seen |= vip.ready.is_ok();
            if *seen && matches!(vip.ready, Err(NotReady::Kernel { .. })) {
                vip.ready = Ok(());
            }
        }
        for (peer, seen) in word.peers.iter_mut().zip(&self.flushed) {
            peer.flushed |= *seen;
        }
        word
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
        let word = self.since_the_last(word);
        let news = self.last.as_ref().is_none_or(|last| is_news(last, &word));
        let due = regular || news && now >= self.told_at + GAP;
        self.pending = news && !due;
        if self.pending {
            self.look_at = self.told_at + GAP;
        }
        due.then_some(word)
    }

    /// It found no room: soon again.
    pub(super) fn refused(&mut self, now: Instant) {
        self.pending = true;
        self.told_at = now;
        self.look_at = now + GAP;
    }

    /// It was handed over.
    pub(super) fn told(&mut self, now: Instant, word: SyncWord) {
        self.last = Some(word);
        self.told_at = now;
        self.flushed.fill(false);
        self.ready.fill(false);
    }
}

/// Whether more than numbers differ.
fn is_news(last: &SyncWord, now: &SyncWord) -> bool {
    let readiness = |vip: &SyncVipWord| match vip.ready {
        Err(NotReady::Kernel { .. }) => Err(NotReady::Kernel { behind: 0 }),
        other => other,
    };
    let stand = |peer: &SyncPeerWord| (peer.inbound.why, peer.outbound.why, peer.flushed);
    last.trouble != now.trouble
        || !last.vips.iter().map(readiness).eq(now.vips.iter().map(readiness))
        || !last.peers.iter().map(stand).eq(now.peers.iter().map(stand))
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

/// When an event happened that the kernel's clock dates so. `None`: that clock was set since, or the event is too old to
/// say something.
pub(super) fn when(now: Instant, event_ns: u64) -> Option<Instant> {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_nanos();
    let age = wall.checked_sub(u128::from(event_ns)).and_then(|ns| u64::try_from(ns).ok()).map(Duration::from_nanos)?;
    now.checked_sub(age).filter(|_| age <= WINDOW)
}

/// What one peer is waited for.
#[derive(Debug, Clone, Copy)]
struct Open {
    told: Told,
    since: Instant,
    /// By the kernel's own time of the event; else from when it was read.
    kernel: bool,
}

/// Of one peer: this window and the one before, for each of both clocks.
type Windows = [[Histogram; 2]; 2];

/// How old changes are when a peer has acknowledged them: from when the kernel says that they happened, or, where it says
/// nothing of that, from when they were read.
#[derive(Debug)]
pub(super) struct Lag {
    /// Of each peer: what is being waited for.
    open: Vec<Option<Open>>,
    windows: Vec<Windows>,
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

    /// Some peer isn't waited for: what comes next is measured.
    pub(super) fn is_free(&self) -> bool {
        self.open.iter().any(Option::is_none)
    }

    /// The events that were read at `read` are handled: what went out is waited for, one at a time. `happened`: the first
    /// of them, as the kernel says.
    pub(super) fn sent(&mut self, flows: &Flows, before: &[Option<Told>], read: Instant, happened: Option<Instant>) {
        let (since, kernel) = (happened.unwrap_or(read), happened.is_some());
        for ((open, before), peer) in self.open.iter_mut().zip(before).zip(peer_ids(before.len())) {
            let told = flows.told(peer);
            if open.is_none() && told != *before {
                *open = told.map(|told| Open { told, since, kernel });
            }
        }
    }

    /// Looks what has been acknowledged.
    pub(super) fn look(&mut self, flows: &Flows, now: Instant) {
        if now.saturating_duration_since(self.turned_at) >= WINDOW {
            self.turned_at = now;
            self.windows.iter_mut().flatten().for_each(|[young, old]| *old = std::mem::take(young));
        }
        let count = self.open.len();
        for ((open, windows), peer) in self.open.iter_mut().zip(&mut self.windows).zip(peer_ids(count)) {
            let Some(Open { told, since, kernel }) = *open else { continue };
            match flows.has_settled(peer, told) {
                Some(false) => {}
                Some(true) => {
                    let [[young, _], [young_of_kernel, _]] = windows;
                    let young = if kernel { young_of_kernel } else { young };
                    young.record(now.saturating_duration_since(since));
                    *open = None;
                }
                None => *open = None,
            }
        }
    }

    /// Of a peer: the minute that is over, or what there is of this one; and whether by the kernel's clock.
    pub(super) fn of(&self, place: usize) -> Option<(Snapshot, bool)> {
        let [read, kernel] = self.windows.get(place)?;
        let known = |[young, old]: &[Histogram; 2]| {
            [old.snapshot(), young.snapshot()].into_iter().find(|snapshot| snapshot.count > 0)
        };
        known(kernel).map(|lag| (lag, true)).or_else(|| known(read).map(|lag| (lag, false)))
    }

    /// The slowest peer's median.
    pub(super) fn median(&self) -> Option<Duration> {
        let medians = (0..self.windows.len()).filter_map(|place| Some(self.of(place)?.0.p50_us));
        medians.max().map(Duration::from_micros)
    }
}

fn peer_ids(count: usize) -> impl Iterator<Item = PeerId> {
    (0..count).filter_map(|place| u16::try_from(place).ok()).map(PeerId)
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
        assert_eq!(telling.look(at(6), |_, _| broken()), None, "too soon after the first");
        assert_eq!(telling.due(false), at(10), "not later than that");
        let word = telling.look(at(10), |_, _| broken()).expect("it isn't ready any more");
        telling.told(at(10), word);
        assert!(telling.look(at(1010), |_, _| broken()).is_some(), "once a second");
    }

    #[test]
    fn an_event_is_as_old_as_the_kernel_says_unless_its_clock_was_set() {
        let now = Instant::now();
        let wall = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos());
        let wall = wall.expect("before 2554");
        let second = 1_000_000_000;
        let age = now - when(now, wall - second).expect("a second old");
        assert!(age >= Duration::from_secs(1), "{age:?}");
        assert_eq!(when(now, wall + 100 * second), None, "it would come from the future");
        assert_eq!(when(now, wall - 100 * second), None, "nobody waited for so long");
    }

    #[test]
    fn how_many_replicas_wait_is_no_news_but_that_some_do_is() {
        let now = Instant::now();
        let with = |behind| a_word(now, Err(NotReady::Kernel { behind }), None, true);
        assert!(!is_news(&with(5), &with(7)));
        assert!(is_news(&with(5), &a_word(now, Ok(()), None, true)));
        assert!(is_news(&a_word(now, Ok(()), Some(Why::Differs), true), &a_word(now, Ok(()), None, true)));
    }

    #[test]
    fn a_moment_in_which_nothing_was_on_its_way_counts_until_the_next_word() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        let busy = || a_word(now, Err(NotReady::Kernel { behind: 3 }), None, false);
        let mut telling = Telling::new(now);
        let first = telling.look(now, |_, _| busy()).expect("at once");
        assert!(!first.peers[0].flushed && first.vips[0].ready.is_err());
        telling.told(now, first);
        telling.note(|_| true, 1);
        telling.note(|_| false, 1);
        assert_eq!(telling.look(at(3), |_, _| a_word(now, Ok(()), None, false)), None);
        let word = telling.look(at(11), |_, _| busy()).expect("news");
        assert!(word.peers[0].flushed && word.vips[0].ready.is_ok());
        telling.told(at(11), word);
        let word = telling.look(at(22), |_, _| busy()).expect("no such moment since");
        assert!(!word.peers[0].flushed && word.vips[0].ready.is_err());
    }
}
