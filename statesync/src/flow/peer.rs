//! What is held for one peer: the lanes to it, what is on its way, and what came from it.

use super::claim::Seat;
use super::facts::FlowKey;
use super::index::{SHARD_BITS, SHARDS};
use super::record::Id;
use super::types::{NodeId, Why};
use super::verify::Verify;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Batches on their way to a peer: at least and at most.
pub(crate) const WINDOW_MIN: u32 = 4;
const WINDOW_MAX: u32 = 256;
const WINDOW_START: u32 = 32;
/// Of these: when a shard may be begun. What changes now waits at the peer behind no more than these and the shard.
const WINDOW_BULK: u32 = 48;

/// After this time without an acknowledgement a batch counts as lost; doubled each time in a row.
pub(crate) const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// A hello that isn't acknowledged is said again after this time.
const HELLO_AGAIN: Duration = Duration::from_millis(200);

/// Control records that wait; more aren't needed, since all but claims are said again.
const CONTROL_MAX: usize = 1024;

/// A claim as it goes to the peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClaimNote {
    pub(crate) generation: u32,
    pub(crate) from: Option<NodeId>,
    pub(crate) vip: Option<IpAddr>,
}

/// What is said beside flows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Control {
    Claim(ClaimNote),
    Digests { round: u8, group: u8, mask: u64, sums: Vec<u64> },
    Answer { round: u8, group: u8, compared: u64, equal: u64, full: bool },
    InSync { at: Instant },
    Clash { key: FlowKey, clashes: bool },
    Nack { session: u32 },
}

/// A batch that isn't acknowledged yet.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) sequence: u32,
    pub(crate) sent_at: Instant,
    /// Flows in it, each in the version that was sent.
    pub(crate) keys: Vec<(Id, u8)>,
    /// Numbers whose meaning was sent: dictionary (0 services, 1 backends, 2 SNAT), number, serial.
    pub(crate) numbers: Vec<(u8, u32, u8)>,
    pub(crate) claims: Vec<ClaimNote>,
    pub(crate) hello: Option<u8>,
}

/// Set of shards.
#[derive(Debug, Clone)]
pub(crate) struct ShardSet {
    words: Box<[u64; SHARDS / 64]>,
    len: usize,
    /// Where the search for the next one begins, in the order in which they go out.
    turn: u16,
}

impl Default for ShardSet {
    fn default() -> Self {
        Self { words: Box::new([0; SHARDS / 64]), len: 0, turn: 0 }
    }
}

impl ShardSet {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn has(&self, shard: u16) -> bool {
        self.words[usize::from(shard) / 64] >> (shard % 64) & 1 == 1
    }

    pub(crate) fn set(&mut self, shard: u16) {
        self.len += usize::from(!self.has(shard));
        self.words[usize::from(shard) / 64] |= 1 << (shard % 64);
    }

    pub(crate) fn clear(&mut self, shard: u16) {
        self.len -= usize::from(self.has(shard));
        self.words[usize::from(shard) / 64] &= !(1 << (shard % 64));
        self.turn = scattered(shard) + 1;
    }

    /// The shards of a group that are in it.
    pub(crate) fn group(&self, group: u8) -> u64 {
        self.words.get(usize::from(group)).copied().unwrap_or(0)
    }

    /// The one that goes out next. Not in the order of their numbers: the peer's index stands in that order, and would
    /// have all flows in one row if it had only the first shards. With the bits of the number reversed those that went
    /// out lie apart evenly at any time.
    pub(crate) fn next(&self) -> Option<u16> {
        let mut all = (0..SHARDS as u16).map(|step| scattered(self.turn.wrapping_add(step)));
        if self.len == 0 { None } else { all.find(|shard| self.has(*shard)) }
    }

    pub(crate) fn clear_all(&mut self) {
        *self = Self::default();
    }
}

/// The shard at a place of the order in which they go out, and the other way round.
const fn scattered(place: u16) -> u16 {
    (place % SHARDS as u16).reverse_bits() >> (16 - SHARD_BITS)
}

/// The direction to the peer.
#[derive(Debug)]
pub(crate) struct Tx {
    /// Counts the sessions of this run.
    pub(crate) session: u32,
    /// Sequence of the next batch.
    pub(crate) sequence: u32,
    pub(crate) hello_acked: bool,
    /// Which hello has to be acknowledged, if one has.
    pub(crate) hello_due: Option<u8>,
    pub(crate) hello_at: Option<Instant>,
    hello_serial: u8,
    pub(crate) flights: VecDeque<Flight>,
    pub(crate) window: u32,
    /// Batches acknowledged since the window grew.
    acked_in_window: u32,
    pub(crate) retry: Duration,
    pub(crate) urgent: VecDeque<Id>,
    pub(crate) refresh: VecDeque<Id>,
    /// Shards to be listed: the bulk lane.
    pub(crate) bulk: ShardSet,
    pub(crate) control: VecDeque<Control>,
    /// Since when something waits on the urgent or refresh lane.
    pub(crate) waiting_since: Option<Instant>,
    /// Batches of flows, to give each tenth to the bulk lane.
    pub(crate) turn: u32,
    /// Flows of each shard that aren't acknowledged, and of all.
    pub(crate) unsettled: Vec<u32>,
    pub(crate) unsettled_total: usize,
}

impl Tx {
    fn new() -> Self {
        Self {
            session: 0,
            sequence: 1,
            hello_acked: false,
            hello_due: Some(0),
            hello_serial: 0,
            hello_at: None,
            flights: VecDeque::new(),
            window: WINDOW_START,
            acked_in_window: 0,
            retry: RETRY_MIN,
            urgent: VecDeque::new(),
            refresh: VecDeque::new(),
            bulk: ShardSet::default(),
            control: VecDeque::new(),
            waiting_since: None,
            turn: 0,
            unsettled: vec![0; SHARDS],
            unsettled_total: 0,
        }
    }

    /// Begins anew: nothing that was sent counts any more.
    pub(crate) fn restart(&mut self) {
        *self = Self { session: self.session.wrapping_add(1), ..Self::new() };
    }

    /// Says hello again: something that it tells has changed.
    pub(crate) fn hello_again(&mut self) {
        self.hello_serial = self.hello_serial.wrapping_add(1);
        self.hello_due = Some(self.hello_serial);
        self.hello_at = None;
    }

    /// When the hello that is due goes out. With a full window nothing does, until an acknowledgement or a retry.
    pub(crate) fn hello_next(&self, now: Instant) -> Option<Instant> {
        self.hello_due.filter(|_| self.has_room())?;
        Some(self.hello_at.map_or(now, |at| at + HELLO_AGAIN))
    }

    pub(crate) fn push_control(&mut self, control: Control) {
        if self.control.len() < CONTROL_MAX || matches!(control, Control::Claim(_)) {
            self.control.push_back(control);
        }
    }

    pub(crate) fn settle(&mut self, shard: u16, by: i32) {
        let count = &mut self.unsettled[usize::from(shard)];
        *count = count.saturating_add_signed(by);
        self.unsettled_total = self.unsettled_total.saturating_add_signed(by as isize);
    }

    /// A batch arrived.
    pub(crate) fn on_acked(&mut self) {
        self.retry = RETRY_MIN;
        self.acked_in_window += 1;
        if self.acked_in_window >= self.window {
            self.acked_in_window = 0;
            self.window = (self.window + self.window / 4 + 1).min(WINDOW_MAX);
        }
    }

    /// One was lost.
    pub(crate) fn on_lost(&mut self) {
        self.acked_in_window = 0;
        self.window = (self.window * 3 / 4).max(WINDOW_MIN);
    }

    /// Nothing came back for the retry time.
    pub(crate) fn on_silence(&mut self) {
        self.window = (self.window / 2).max(WINDOW_MIN);
        self.retry = (self.retry * 2).min(RETRY_MAX);
    }

    pub(crate) fn has_room(&self) -> bool {
        self.flights.len() < self.window as usize
    }

    /// The same for a shard, of which there may be thousands.
    pub(crate) fn has_room_for_bulk(&self) -> bool {
        self.flights.len() < self.window.min(WINDOW_BULK) as usize
    }

    /// When the oldest batch counts as lost.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.flights.front().map(|flight| flight.sent_at + self.retry)
    }
}

/// The direction from the peer.
#[derive(Debug, Default)]
pub(crate) struct Rx {
    /// The peer's run and session, if it said hello.
    pub(crate) session: Option<(u64, u32)>,
    /// Highest sequence applied, and which of the 64 before it were.
    pub(crate) highest: u32,
    pub(crate) applied: u64,
    /// Batches since the last acknowledgement.
    pub(crate) unacked: u32,
    pub(crate) ack_at: Option<Instant>,
    /// What the peer's numbers mean here.
    pub(crate) services: Vec<Option<super::facts::Service>>,
    pub(crate) backends: Vec<Option<(IpAddr, u16)>>,
    pub(crate) snats: Vec<Option<IpAddr>>,
    /// The shard being listed, and how many of its flows came.
    pub(crate) listing: Option<(u16, u32)>,
    /// When the peer last said that we hold all its flows, less the age that it told.
    pub(crate) equal_at: Option<Instant>,
    pub(crate) nacked_at: Option<Instant>,
    /// The peer's capabilities, as it said hello.
    pub(crate) capabilities: u32,
}

/// Most numbers of a kind that a peer may define.
pub(crate) const NUMBERS_MAX: usize = 1 << 16;

/// Sets one of the peer's numbers.
pub(crate) fn define<T: Clone>(list: &mut Vec<Option<T>>, number: u16, value: T) {
    let place = usize::from(number);
    if list.len() <= place {
        list.resize((place + 1).min(NUMBERS_MAX), None);
    }
    list[place] = Some(value);
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    /// Its bit in the records' sets.
    pub(crate) bit: u8,
    pub(crate) up: bool,
    /// When it was last heard or lost.
    pub(crate) seen_at: Option<Instant>,
    /// Its kernel's life, once it said.
    pub(crate) boot: Option<u64>,
    /// Which of its two owner numbers is the present one.
    pub(crate) parity: u8,
    pub(crate) tx: Tx,
    pub(crate) rx: Rx,
    pub(crate) verify: Verify,
    /// Since when the life before is over.
    pub(crate) past_since: Option<Instant>,
    /// Why it isn't in sync: our flows there, its flows here; and since when.
    pub(crate) outbound: (Option<Why>, Instant),
    pub(crate) inbound: (Option<Why>, Instant),
    /// It said that its table is full.
    pub(crate) full: bool,
    /// Claims of what it left behind that belongs to no source.
    pub(crate) left: Seat,
}

impl Peer {
    pub(crate) fn new(node: NodeId, index: usize, now: Instant) -> Self {
        Self {
            node,
            bit: 1 << index,
            up: false,
            seen_at: None,
            boot: None,
            parity: 0,
            past_since: None,
            tx: Tx::new(),
            rx: Rx::default(),
            verify: Verify::new(now),
            outbound: (Some(Why::NoSession), now),
            inbound: (Some(Why::NoSession), now),
            full: false,
            left: Seat::new(now),
        }
    }

    /// Since when something waits that can go out now. A flow may wait for a session whose hello isn't acknowledged yet:
    /// the peer's own batches come before that.
    pub(crate) fn flows_since(&self) -> Option<Instant> {
        self.tx.waiting_since.filter(|_| self.is_open() && self.tx.has_room())
    }

    /// Both sides said hello.
    pub(crate) const fn is_open(&self) -> bool {
        self.up && self.tx.hello_acked && self.rx.session.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_go_out_once_each_and_lie_apart_evenly_at_any_time() {
        let mut set = ShardSet::default();
        (0..SHARDS as u16).for_each(|shard| set.set(shard));
        let mut out: Vec<u16> = Vec::new();
        while let Some(shard) = set.next() {
            set.clear(shard);
            out.push(shard);
            if out.len().is_power_of_two() {
                let apart = SHARDS / out.len();
                let mut sorted = out.clone();
                sorted.sort_unstable();
                assert!(sorted.iter().enumerate().all(|(place, shard)| usize::from(*shard) == place * apart));
            }
        }
        assert_eq!((out.len(), set.len()), (SHARDS, 0));
    }
}
