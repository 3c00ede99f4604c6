//! The clients of flows: established TCP connections of several kinds, each through each way to the backends.
//!
//! What is sent is set by the clock alone, or (bulk) by it and by how much may be on the way. A connection that breaks is
//! noted with the time and replaced, so that the next move finds flows to break. At the end each is ended in order: the
//! backend's digest of what it was sent and the one of what came back must be that of the flow's own stream.

use super::net::Path;
use super::record::{Counted, Counts, Kind, Record};
use super::server::{Hello, PIECE, Wants};
use super::stall::Waiting;
use super::stream::{Digest, Stream};
use crate::clock::{MS, Ns, SECOND, now};
use crate::load::{Stopper, connect, forget, wait};
use crate::metrics::Class;
use crate::netns::Netns;
use anyhow::Result;
use rustix::event::epoll;
use socket2::Socket;
use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A flow that was owed something for so long and got nothing is broken: a client that waits longer gives up.
pub const HUNG: Ns = 5 * SECOND;
/// Time between two requests of a flow that talks.
const TALK: Ns = 50 * MS;
/// Time between two writes of a bulk flow.
const BULK: Ns = 10 * MS;
/// Bytes of a bulk flow that may be on the way.
const ON_THE_WAY: u64 = 512 * 1024;
/// Before a broken flow is replaced.
const RECONNECT: Ns = 100 * MS;
/// Written and read at once.
const CHUNK: usize = 16 * 1024;

/// Which of the flows that were idle speak now: the driver counts this up after every move.
#[derive(Debug, Default)]
struct Orders {
    /// Moves after which idle flows were told to speak.
    round: AtomicU32,
    /// The end has come.
    finishing: AtomicU32,
    /// Slots that aren't done yet.
    open: AtomicUsize,
    /// For how long some flow has been waiting.
    oldest: AtomicU64,
    /// How late the clients were at most.
    late: AtomicU64,
    /// Bytes that came, of all flows that aren't half-closed.
    moved: AtomicU64,
}

/// The running clients.
#[derive(Debug)]
pub struct Clients {
    stopper: Stopper,
    orders: Arc<Orders>,
    records: Arc<Mutex<Vec<Record>>>,
}

impl Clients {
    /// Opens them from `ns`. Every bulk flow moves at least `bytes` each way, spread over about `over`.
    ///
    /// # Errors
    /// The namespace, or the thread.
    pub fn start(ns: &Netns, counts: Counts, bytes: u64, over: Ns) -> Result<Self> {
        let (records, orders) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Orders::default()));
        let (ns, shared, told) = (ns.clone(), records.clone(), orders.clone());
        let stopper = Stopper::spawn("flow-clients", move |stop| {
            ns.enter()?;
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let bulk = Bulk { bytes, each: (bytes * BULK / over.max(BULK)).max(PIECE as u64) };
            let slots = slots(counts, now());
            told.open.store(slots.len(), Ordering::Release);
            let buffer = vec![0; CHUNK];
            Loop { epoll, slots, bulk, orders: told, records: shared, seeds: 1, buffer }.run(stop)
        })?;
        Ok(Self { stopper, orders, records })
    }

    /// The thread, to give it priority.
    #[must_use]
    pub fn thread(&self) -> i32 {
        self.stopper.thread()
    }

    /// How many flows are established and unbroken now, and how many have broken.
    #[must_use]
    pub fn counted(&self) -> Counted {
        Counted::of(&self.records)
    }

    /// For how long the flow that waits longest has been waiting.
    #[must_use]
    pub fn oldest_wait(&self) -> Ns {
        self.orders.oldest.load(Ordering::Acquire)
    }

    /// How late the clients themselves were at most, so far.
    #[must_use]
    pub fn late(&self) -> Ns {
        self.orders.late.load(Ordering::Acquire)
    }

    /// The idle flows speak: half of them after every move, the others after the last.
    pub fn wake(&self, last: bool) {
        self.orders.round.fetch_add(if last { LAST + 1 } else { 1 }, Ordering::AcqRel);
    }

    /// Ends every flow in order, and returns what became of all there were. That takes as long as bulk flows have
    /// something to move; `patience`: how long nothing at all may come meanwhile.
    ///
    /// # Errors
    /// The thread failed.
    pub fn finish(self, patience: Ns) -> Result<Vec<Record>> {
        self.orders.finishing.store(1, Ordering::Release);
        let (mut moved, mut limit) = (0, now() + patience);
        while self.orders.open.load(Ordering::Acquire) > 0 && now() < limit {
            std::thread::sleep(std::time::Duration::from_millis(10));
            let so_far = self.orders.moved.load(Ordering::Acquire);
            if so_far > moved {
                (moved, limit) = (so_far, now() + patience);
            }
        }
        self.stopper.finish()?;
        Ok(self.records.lock().map(|r| r.clone()).unwrap_or_default())
    }
}

/// Added to the round by the last move.
const LAST: u32 = 1 << 16;

/// What bulk flows move.
#[derive(Debug, Clone, Copy)]
struct Bulk {
    /// In all, at least.
    bytes: u64,
    /// Each [`BULK`].
    each: u64,
}

/// Each kind is spread over all ways.
fn slots(counts: Counts, t: Ns) -> Vec<Slot> {
    let of = |kind: Kind, n: usize, every: Ns| {
        (0..n).map(move |i| Slot::new(kind, Path::ALL[i % Path::ALL.len()], i, t + every * i as u64 / n.max(1) as u64))
    };
    of(Kind::Talk, counts.talk, TALK)
        .chain(of(Kind::Bulk, counts.bulk, BULK))
        .chain(of(Kind::Idle, counts.others, TALK))
        .chain(of(Kind::HalfClosed, counts.others, TALK))
        .collect()
}

/// Where a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No socket.
    Closed,
    Connecting,
    /// Its side is open (of a half-closed one: was, for a moment).
    Open,
    /// Its side has ended; the backend's digest and end are waited for.
    Ending,
    /// Nothing is left to do.
    Done,
}

struct Slot {
    kind: Kind,
    path: Path,
    nth: usize,
    state: State,
    socket: Option<Socket>,
    /// Index into the records, once the first answer came.
    record: Option<usize>,
    stream: Stream,
    /// What is to be sent in all, as far as is known.
    target: u64,
    sent: Digest,
    received: Digest,
    trailer: Vec<u8>,
    waiting: Waiting,
    round: u32,
    due: Ns,
}

impl Slot {
    fn new(kind: Kind, path: Path, nth: usize, due: Ns) -> Self {
        Self {
            kind,
            path,
            nth,
            state: State::Closed,
            socket: None,
            record: None,
            stream: Stream::new(0),
            target: 0,
            sent: Digest::default(),
            received: Digest::default(),
            trailer: Vec::new(),
            waiting: Waiting::default(),
            round: 0,
            due,
        }
    }

    /// Time between two looks at it.
    fn interval(&self) -> Ns {
        if self.kind == Kind::Bulk { BULK } else { TALK }
    }

    /// More is owed to it.
    fn is_owed(&self) -> bool {
        match self.state {
            State::Closed | State::Done => false,
            State::Connecting | State::Ending => true,
            State::Open => self.kind == Kind::HalfClosed || self.received.length() < self.sent.length(),
        }
    }

    /// What of the rounds concerns it: every other idle flow stays silent until the last move.
    fn told(&self, round: u32) -> u32 {
        if self.nth.is_multiple_of(2) { round } else { round & !(LAST - 1) }
    }

    /// What it sends by the clock.
    fn ask(&mut self, bulk: Bulk, round: u32, finishing: bool) {
        match self.kind {
            Kind::Talk => self.target += PIECE as u64,
            Kind::Bulk => {
                let room = ON_THE_WAY.saturating_sub(self.target - self.received.length());
                // What is missing at the end goes as fast as it can.
                let each = if finishing { bulk.bytes.saturating_sub(self.target) } else { bulk.each };
                self.target += each.min(room);
            }
            Kind::Idle => {
                let told = self.told(round);
                if told != self.round || self.target == 0 {
                    self.round = told;
                    self.target += PIECE as u64;
                }
            }
            Kind::HalfClosed | Kind::Udp => {}
        }
    }

    /// All that it was to send is sent: its side may end.
    fn may_end(&self, bulk: Bulk) -> bool {
        self.sent.length() == self.target && (self.kind != Kind::Bulk || self.target >= bulk.bytes)
    }
}

struct Loop {
    epoll: OwnedFd,
    slots: Vec<Slot>,
    bulk: Bulk,
    orders: Arc<Orders>,
    records: Arc<Mutex<Vec<Record>>>,
    seeds: u64,
    buffer: Vec<u8>,
}

impl Loop {
    fn run(mut self, stop: &dyn Fn() -> bool) -> Result<()> {
        let mut events = Vec::with_capacity(256);
        while !stop() {
            let t = now();
            let finishing = self.orders.finishing.load(Ordering::Acquire) > 0;
            for i in 0..self.slots.len() {
                self.turn(i, t, finishing);
            }
            let waits = self.slots.iter().map(|s| s.waiting.age(t));
            self.orders.oldest.store(waits.max().unwrap_or(0), Ordering::Release);
            let open = self.slots.iter().filter(|s| s.state != State::Done).count();
            self.orders.open.store(open, Ordering::Release);
            let next = self.slots.iter().filter(|s| s.state != State::Done).map(|s| s.due).min();
            wait(&self.epoll, &mut events, next.unwrap_or(t + 10 * MS).saturating_sub(now()).min(10 * MS))?;
            for e in &events {
                self.ready(e.data.u64() as usize);
            }
        }
        // Who is owed something still got nothing within all the patience there was.
        for i in 0..self.slots.len() {
            if self.slots[i].is_owed() {
                self.broke(i, Class::Timeout);
            } else {
                self.note(i, |_| {});
            }
        }
        Ok(())
    }

    /// What the clock asks of slot `i`.
    fn turn(&mut self, i: usize, t: Ns, finishing: bool) {
        let s = &mut self.slots[i];
        if s.waiting.age(t) >= HUNG {
            return self.broke(i, Class::Timeout);
        }
        if s.state == State::Done || t < s.due {
            return;
        }
        self.orders.late.fetch_max(t - s.due, Ordering::AcqRel);
        s.due += s.interval() * ((t - s.due) / s.interval() + 1);
        match s.state {
            State::Closed if finishing => s.state = State::Done,
            State::Closed => self.connect(i, t),
            State::Open if finishing && s.kind == Kind::HalfClosed => self.done(i, true),
            State::Open => {
                s.ask(self.bulk, self.orders.round.load(Ordering::Acquire), finishing);
                self.write(i);
                let s = &mut self.slots[i];
                if finishing && s.state == State::Open && s.record.is_some() && s.may_end(self.bulk) {
                    self.end(i);
                }
            }
            State::Connecting | State::Ending | State::Done => {}
        }
    }

    fn connect(&mut self, i: usize, t: Ns) {
        let s = &mut self.slots[i];
        match connect(&s.path.address().into(), &self.epoll, i as u64) {
            Ok(c) => {
                *s = Slot { state: State::Connecting, socket: Some(c), ..Slot::new(s.kind, s.path, s.nth, s.due) };
                s.round = s.told(self.orders.round.load(Ordering::Acquire));
                s.waiting.asked(t);
            }
            Err(_) => s.due = t + RECONNECT,
        }
    }

    /// Something can be read or written, or went wrong.
    fn ready(&mut self, i: usize) {
        let Some(s) = self.slots.get_mut(i) else { return };
        let Some(socket) = &s.socket else { return };
        if let Ok(Some(e)) = socket.take_error() {
            return self.broke(i, Class::of(&e));
        }
        if s.state == State::Connecting && !self.greet(i) {
            return;
        }
        self.read(i);
    }

    /// The first bytes of a connection; false: not yet, or broken.
    fn greet(&mut self, i: usize) -> bool {
        let s = &mut self.slots[i];
        let Some(socket) = s.socket.as_mut() else { return false };
        let wants = if s.kind == Kind::HalfClosed { Wants::Pour } else { Wants::Echo };
        match (Hello { wants, seed: self.seeds }).send(socket) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(class) => {
                self.broke(i, class);
                return false;
            }
        }
        s.stream = Stream::new(self.seeds);
        self.seeds += 1; // no two connections have the same bytes
        s.state = State::Open;
        if s.kind == Kind::HalfClosed {
            let _seen_when_it_is_read = socket.shutdown(Shutdown::Write);
        }
        // Writable again is of no interest.
        let again = epoll::EventData::new_u64(i as u64);
        let _known = epoll::modify(&self.epoll, &*socket, again, epoll::EventFlags::IN);
        true
    }

    fn write(&mut self, i: usize) {
        let s = &mut self.slots[i];
        let Some(socket) = s.socket.as_mut() else { return };
        match s.stream.send(socket, &mut s.sent, s.target, &mut self.buffer) {
            Ok(true) => s.waiting.asked(now()),
            Ok(false) => {}
            Err(class) => self.broke(i, class),
        }
    }

    fn read(&mut self, i: usize) {
        loop {
            let s = &mut self.slots[i];
            let Some(socket) = s.socket.as_mut() else { return };
            match socket.read(&mut self.buffer) {
                Ok(0) => return self.done(i, false),
                Ok(n) => self.took(i, n),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => return self.broke(i, Class::of(&e)),
            }
        }
    }

    /// So many bytes came.
    fn took(&mut self, i: usize, n: usize) {
        let s = &mut self.slots[i];
        let stream = match s.kind {
            Kind::HalfClosed => n,
            _ => usize::try_from(s.sent.length() - s.received.length()).unwrap_or(n).min(n),
        };
        let (body, trailer) = self.buffer[..n].split_at(stream);
        let right = s.kind != Kind::HalfClosed || s.stream.is(s.received.length(), body);
        s.received.add(body);
        if s.kind != Kind::HalfClosed {
            self.orders.moved.fetch_add(body.len() as u64, Ordering::AcqRel);
        }
        s.trailer.extend_from_slice(trailer);
        let overlong = s.trailer.len() > Digest::BYTES;
        if s.record.is_none() {
            // How long a successor took to be established is no established flow's stall.
            s.waiting = Waiting::default();
        }
        s.waiting.answered(now(), s.is_owed());
        if !right || overlong {
            self.note(i, |r| r.wrong = true);
            return self.broke(i, Class::Wrong);
        }
        if self.slots[i].record.is_none() {
            self.note(i, |_| {});
        }
    }

    /// Ends its side in order; what is owed now is the rest, the digest and the end.
    fn end(&mut self, i: usize) {
        let s = &mut self.slots[i];
        let Some(socket) = &s.socket else { return };
        match socket.shutdown(Shutdown::Write) {
            Ok(()) => {
                s.state = State::Ending;
                s.waiting.asked(now());
            }
            Err(e) => self.broke(i, Class::of(&e)),
        }
    }

    /// The backend ended its side; `ours`: we end a half-closed one, of which no end is to be seen.
    fn done(&mut self, i: usize, ours: bool) {
        let s = &self.slots[i];
        if !ours && s.state != State::Ending {
            return self.broke(i, Class::Truncated);
        }
        let right = ours || s.trailer == s.sent.bytes() && s.received == s.sent;
        let t = now();
        self.slots[i].waiting.answered(t, false);
        self.note(i, |r| (r.whole, r.wrong) = (right, !right));
        self.close(i);
        self.slots[i].state = State::Done;
    }

    fn broke(&mut self, i: usize, class: Class) {
        let t = now();
        // Never established: it was none yet.
        if self.slots[i].record.is_some() {
            self.note(i, |r| r.flow.broken = Some((t, class)));
        }
        self.close(i);
        let s = &mut self.slots[i];
        *s = Slot::new(s.kind, s.path, s.nth, t + RECONNECT);
    }

    fn close(&mut self, i: usize) {
        if let Some(c) = self.slots[i].socket.take() {
            forget(&self.epoll, &c);
        }
    }

    /// Writes down how the flow is; its record begins with the first call.
    fn note(&mut self, i: usize, f: impl FnOnce(&mut Record)) {
        let s = &mut self.slots[i];
        let Ok(mut records) = self.records.lock() else { return };
        if s.record.is_none() && s.received.length() == 0 {
            return; // no answer ever came
        }
        let at = *s.record.get_or_insert_with(|| {
            records.push(Record::new(s.kind, s.path));
            records.len() - 1
        });
        if let Some(r) = records.get_mut(at) {
            (r.moved, r.waiting) = (s.received.length(), s.waiting.clone());
            f(r);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stall::FLOOR;
    use super::*;
    use crate::metrics::Span;

    #[test]
    fn how_long_a_successor_took_to_be_established_is_no_stall() {
        let slot = Slot { state: State::Open, target: 64, ..Slot::new(Kind::Talk, Path::Dnat4, 0, 0) };
        let mut clients = Loop {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll set"),
            slots: vec![slot],
            bulk: Bulk { bytes: 0, each: 0 },
            orders: Arc::default(),
            records: Arc::default(),
            seeds: 1,
            buffer: vec![0; CHUNK],
        };
        let mut answered_late = || {
            clients.slots[0].sent.add(&[0; 64]);
            clients.slots[0].waiting.asked(now());
            std::thread::sleep(std::time::Duration::from_nanos(FLOOR));
            clients.took(0, 64);
            clients.slots[0].waiting.longest(Span { from: 0, to: Ns::MAX })
        };
        assert_eq!(answered_late(), 0);
        assert!(answered_late() >= FLOOR);
    }
}
