//! The clients: thousands of TCP connections from one thread. Each sends a piece when the clock says so, and gets it back;
//! idle ones have one exchange and speak again when they are told to. A connection that breaks is noted with the time and
//! not replaced. At the end each is ended in order: the backend's digest of what it was sent and the one of what came
//! back must be that of the flow's own stream.

use crate::clock::{MS, Ns, now};
use crate::flows::client::HUNG;
use crate::flows::record::Kind;
use crate::flows::server::{Hello, PIECE, Wants};
use crate::flows::stall::Waiting;
use crate::flows::stream::{Digest, Stream};
use crate::load::{Stopper, connect, forget, wait};
use crate::metrics::{Class, Flow};
use crate::netns::Netns;
use anyhow::Result;
use rustix::event::epoll;
use socket2::Socket;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io::{ErrorKind, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Between two connections that are opened.
const PACE: Ns = MS;
/// Of so many flows one is idle.
const IDLE: usize = 5;
/// Before a connection that couldn't be established is tried anew.
const RECONNECT: Ns = 100 * MS;
/// Between two looks at who waits.
const LOOK: Ns = 10 * MS;
/// Requests per second of all flows together, and how often one asks at most.
const RATE: u64 = 4000;
const ASK_MIN: Ns = 100 * MS;

/// What became of one flow.
#[derive(Debug, Clone)]
pub struct Record {
    /// [`Kind::Talk`] or [`Kind::Idle`].
    pub kind: Kind,
    /// The client's port.
    pub port: u16,
    /// When it was established, and when and how it broke.
    pub flow: Flow,
    /// What arrived isn't what was sent.
    pub wrong: bool,
    /// It was ended in order, and everything had arrived.
    pub whole: bool,
    /// Its waits.
    pub waiting: Waiting,
}

/// Orders to the thread, and what it says of itself.
#[derive(Debug, Default)]
struct Shared {
    /// Flows that there should be.
    wanted: AtomicUsize,
    /// How often idle flows were told to speak.
    round: AtomicU64,
    finishing: AtomicBool,
    alive: AtomicUsize,
    broken: AtomicUsize,
    /// Those that are neither ended nor broken.
    open: AtomicUsize,
    /// For how long some flow has been waiting.
    oldest: AtomicU64,
    late: AtomicU64,
    /// The client's ports of established flows, and since when they are.
    ports: Mutex<BTreeMap<u16, Ns>>,
    records: Mutex<Vec<Record>>,
}

/// The running clients.
#[derive(Debug)]
pub struct Load {
    stopper: Stopper,
    shared: Arc<Shared>,
}

impl Load {
    /// Opens `flows` connections to `to` from `ns`.
    ///
    /// # Errors
    /// The namespace, or the thread.
    pub fn start(ns: &Netns, to: SocketAddr, flows: usize) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        shared.wanted.store(flows, Ordering::Release);
        let (ns, told) = (ns.clone(), shared.clone());
        let every = ASK_MIN.max(crate::clock::SECOND * flows as u64 / RATE);
        let stopper = Stopper::spawn("ecmp-clients", move |stop| {
            ns.enter()?;
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let (slots, due, buffer) = (Vec::new(), BinaryHeap::new(), vec![0; 4 * 1024]);
            Loop { epoll, to, every, slots, due, opened_at: 0, looked_at: 0, shared: told, buffer }.run(stop)
        })?;
        Ok(Self { stopper, shared })
    }

    /// One more flow that talks.
    pub fn one_more(&self) {
        self.shared.wanted.fetch_add(1, Ordering::AcqRel);
    }

    /// The idle ones speak: every other one of them, the last time all.
    pub fn wake(&self) {
        self.shared.round.fetch_add(1, Ordering::AcqRel);
    }

    /// How many flows are established and unbroken now.
    #[must_use]
    pub fn alive(&self) -> usize {
        self.shared.alive.load(Ordering::Acquire)
    }

    /// How many have broken.
    #[must_use]
    pub fn broken(&self) -> usize {
        self.shared.broken.load(Ordering::Acquire)
    }

    /// For how long the flow that waits longest has been waiting.
    #[must_use]
    pub fn oldest_wait(&self) -> Ns {
        self.shared.oldest.load(Ordering::Acquire)
    }

    /// How late the clients themselves were at most.
    #[must_use]
    pub fn late(&self) -> Ns {
        self.shared.late.load(Ordering::Acquire)
    }

    /// The client's port of each flow that was ever established, and since when it was.
    #[must_use]
    pub fn ports(&self) -> BTreeMap<u16, Ns> {
        self.shared.ports.lock().map(|p| p.clone()).unwrap_or_default()
    }

    /// Ends every flow in order, within `patience`, and returns what became of all there were.
    ///
    /// # Errors
    /// The thread failed.
    pub fn finish(self, patience: Ns) -> Result<Vec<Record>> {
        self.shared.finishing.store(true, Ordering::Release);
        let limit = now() + patience;
        while self.shared.open.load(Ordering::Acquire) > 0 && now() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.stopper.finish()?;
        Ok(self.shared.records.lock().map(|r| r.clone()).unwrap_or_default())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Connecting,
    Open,
    /// Its side has ended; the backend's digest and end are waited for.
    Ending,
    Broken,
    Done,
}

struct Slot {
    kind: Kind,
    state: State,
    socket: Option<Socket>,
    port: u16,
    established: Option<Ns>,
    broken: Option<(Ns, Class)>,
    wrong: bool,
    whole: bool,
    stream: Stream,
    target: u64,
    sent: Digest,
    received: Digest,
    trailer: Vec<u8>,
    waiting: Waiting,
    round: u64,
    answers: u32,
}

impl Slot {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            state: State::Closed,
            socket: None,
            port: 0,
            established: None,
            broken: None,
            wrong: false,
            whole: false,
            stream: Stream::new(0),
            target: 0,
            sent: Digest::default(),
            received: Digest::default(),
            trailer: Vec::new(),
            waiting: Waiting::default(),
            round: 0,
            answers: 0,
        }
    }

    fn is_owed(&self) -> bool {
        self.state == State::Ending || self.received.length() < self.sent.length()
    }

    fn is_over(&self) -> bool {
        matches!(self.state, State::Broken | State::Done)
    }

    fn record(&self) -> Option<Record> {
        let flow = Flow { established: self.established?, broken: self.broken, requests: self.answers, node: u8::MAX };
        let (kind, port, wrong, whole) = (self.kind, self.port, self.wrong, self.whole);
        Some(Record { kind, port, flow, wrong, whole, waiting: self.waiting.clone() })
    }
}

struct Loop {
    epoll: OwnedFd,
    to: SocketAddr,
    /// Between two requests of a flow.
    every: Ns,
    slots: Vec<Slot>,
    due: BinaryHeap<Reverse<(Ns, usize)>>,
    opened_at: Ns,
    looked_at: Ns,
    shared: Arc<Shared>,
    buffer: Vec<u8>,
}

impl Loop {
    fn run(mut self, stop: &dyn Fn() -> bool) -> Result<()> {
        let mut events = Vec::with_capacity(256);
        while !stop() {
            let t = now();
            self.open(t);
            while let Some(&Reverse((at, i))) = self.due.peek().filter(|Reverse((at, _))| *at <= t) {
                self.due.pop();
                self.shared.late.fetch_max(t - at, Ordering::AcqRel);
                let next = at + self.every * ((t - at) / self.every + 1);
                self.turn(i, t);
                if let Some(pause) = self.again(i) {
                    self.due.push(Reverse((pause.map_or(next, |p| t + p), i)));
                }
            }
            if t >= self.looked_at + LOOK {
                self.look(t);
            }
            let opens = self.slots.len() < self.shared.wanted.load(Ordering::Acquire);
            let next = self.due.peek().map_or(t + LOOK, |Reverse((at, _))| *at);
            let next = if opens { next.min(self.opened_at + PACE) } else { next };
            wait(&self.epoll, &mut events, next.saturating_sub(now()).min(LOOK))?;
            for e in &events {
                self.ready(e.data.u64() as usize);
            }
        }
        // Who is owed something still got nothing within all the patience there was.
        for i in 0..self.slots.len() {
            if self.slots[i].is_owed() && !self.slots[i].is_over() {
                self.broke(i, Class::Timeout);
            }
        }
        if let Ok(mut r) = self.shared.records.lock() {
            *r = self.slots.iter().filter_map(Slot::record).collect();
        }
        Ok(())
    }

    fn open(&mut self, t: Ns) {
        let wanted = self.shared.wanted.load(Ordering::Acquire);
        if self.slots.len() < wanted && t >= self.opened_at + PACE {
            self.opened_at = t;
            let i = self.slots.len();
            self.slots.push(Slot::new(if i % IDLE == IDLE - 1 { Kind::Idle } else { Kind::Talk }));
            self.due.push(Reverse((t, i)));
        }
    }

    /// How the flows are.
    fn look(&mut self, t: Ns) {
        self.looked_at = t;
        let count = |of: &dyn Fn(&Slot) -> bool| self.slots.iter().filter(|s| of(s)).count();
        let shared = &self.shared;
        shared.alive.store(count(&|s| s.established.is_some() && s.broken.is_none()), Ordering::Release);
        shared.broken.store(count(&|s| s.broken.is_some()), Ordering::Release);
        shared.open.store(count(&|s| !s.is_over()), Ordering::Release);
        let waiting = self.slots.iter().filter(|s| !s.is_over());
        let oldest = waiting.map(|s| s.waiting.age(t)).max().unwrap_or(0);
        shared.oldest.store(oldest, Ordering::Release);
    }

    /// Whether slot `i` has another turn, and after what pause, if it isn't the usual one.
    fn again(&self, i: usize) -> Option<Option<Ns>> {
        match self.slots[i].state {
            State::Broken | State::Done => None,
            State::Closed => Some(Some(RECONNECT)),
            State::Connecting | State::Open | State::Ending => Some(None),
        }
    }

    /// What the clock asks of slot `i`.
    fn turn(&mut self, i: usize, t: Ns) {
        let finishing = self.shared.finishing.load(Ordering::Acquire);
        let s = &mut self.slots[i];
        if s.waiting.age(t) >= HUNG {
            return self.broke(i, Class::Timeout);
        }
        match s.state {
            State::Closed if finishing => s.state = State::Done,
            State::Closed => self.connect(i, t),
            State::Open if finishing => self.end(i, t),
            State::Open => {
                let round = self.shared.round.load(Ordering::Acquire);
                // Every other idle one stays silent until it is told for the second time.
                let told = if (i / IDLE).is_multiple_of(2) { round } else { round / 2 };
                let asks = s.kind == Kind::Talk || told != s.round || s.target == 0;
                (s.round, s.target) = (told, s.target + if asks { PIECE as u64 } else { 0 });
                self.write(i);
            }
            State::Connecting | State::Ending | State::Broken | State::Done => {}
        }
    }

    fn connect(&mut self, i: usize, t: Ns) {
        let s = &mut self.slots[i];
        if let Ok(c) = connect(&self.to.into(), &self.epoll, i as u64) {
            s.port = c.local_addr().ok().and_then(|a| a.as_socket()).map_or(0, |a| a.port());
            (s.socket, s.state) = (Some(c), State::Connecting);
            s.waiting.asked(t);
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

    /// The first bytes of a connection, and the first request; false: not yet, or broken.
    fn greet(&mut self, i: usize) -> bool {
        let s = &mut self.slots[i];
        let Some(socket) = s.socket.as_mut() else { return false };
        // No two connections have the same bytes.
        let seed = i as u64 + 1;
        match (Hello { wants: Wants::Echo, seed }).send(socket) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(class) => {
                self.broke(i, class);
                return false;
            }
        }
        (s.stream, s.state, s.target) = (Stream::new(seed), State::Open, PIECE as u64);
        // Writable again is of no interest.
        let again = epoll::EventData::new_u64(i as u64);
        let _known = epoll::modify(&self.epoll, &*socket, again, epoll::EventFlags::IN);
        self.write(i);
        self.slots[i].state == State::Open
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
                Ok(0) => return self.done(i),
                Ok(n) => self.took(i, n),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => return self.broke(i, Class::of(&e)),
            }
        }
    }

    /// So many bytes came.
    fn took(&mut self, i: usize, n: usize) {
        let t = now();
        let s = &mut self.slots[i];
        let owed = usize::try_from(s.sent.length() - s.received.length()).unwrap_or(n).min(n);
        let (body, trailer) = self.buffer[..n].split_at(owed);
        s.received.add(body);
        s.trailer.extend_from_slice(trailer);
        s.answers += 1;
        if s.established.is_none() {
            s.established = Some(t);
            // How long it took to be established is no established flow's stall.
            s.waiting = Waiting::default();
            if let Ok(mut p) = self.shared.ports.lock() {
                p.insert(s.port, t);
            }
        }
        s.waiting.answered(t, s.is_owed());
        if s.trailer.len() > Digest::BYTES {
            s.wrong = true;
            self.broke(i, Class::Wrong);
        }
    }

    /// Ends its side in order, when all was sent; what is owed then is the rest, the digest and the end.
    fn end(&mut self, i: usize, t: Ns) {
        let s = &mut self.slots[i];
        let Some(socket) = s.socket.as_ref().filter(|_| s.sent.length() == s.target) else { return };
        match socket.shutdown(Shutdown::Write) {
            Ok(()) => {
                s.state = State::Ending;
                s.waiting.asked(t);
            }
            Err(e) => self.broke(i, Class::of(&e)),
        }
    }

    /// The backend ended its side.
    fn done(&mut self, i: usize) {
        let s = &mut self.slots[i];
        if s.state != State::Ending {
            return self.broke(i, Class::Truncated);
        }
        s.whole = s.trailer == s.sent.bytes() && s.received == s.sent;
        s.wrong = !s.whole;
        s.waiting.answered(now(), false);
        s.state = State::Done;
        self.close(i);
    }

    fn broke(&mut self, i: usize, class: Class) {
        self.close(i);
        let s = &mut self.slots[i];
        if s.established.is_none() {
            // It was none yet.
            *s = Slot::new(s.kind);
            return;
        }
        (s.broken, s.state) = (Some((now(), class)), State::Broken);
    }

    fn close(&mut self, i: usize) {
        if let Some(c) = self.slots[i].socket.take() {
            forget(&self.epoll, &c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Span;
    use std::io::Write;
    use std::net::TcpListener;

    fn slot(i: usize, to: SocketAddr, shared: &Arc<Shared>) -> Loop {
        let (epoll, every) = (epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll set"), ASK_MIN);
        let slots = (0..=i).map(|_| Slot::new(Kind::Talk)).collect();
        let (due, buffer) = (BinaryHeap::new(), vec![0; 4 * 1024]);
        Loop { epoll, to, every, slots, due, opened_at: 0, looked_at: 0, shared: shared.clone(), buffer }
    }

    /// Serves what is ready until `done`.
    fn until(clients: &mut Loop, done: impl Fn(&Slot) -> bool) {
        let limit = now() + crate::clock::SECOND;
        while !done(&clients.slots[0]) && now() < limit {
            let mut events = Vec::with_capacity(4);
            wait(&clients.epoll, &mut events, MS).expect("a wait");
            events.iter().for_each(|e| clients.ready(e.data.u64() as usize));
        }
        assert!(done(&clients.slots[0]), "within a second");
    }

    #[test]
    fn a_wait_for_an_answer_is_noted_and_the_end_is_in_order() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let shared = Arc::new(Shared::default());
        let mut clients = slot(0, server.local_addr().expect("bound"), &shared);
        clients.turn(0, now());
        let (mut peer, _) = server.accept().expect("a connection");
        until(&mut clients, |s| s.state == State::Open);
        let mut digest = Digest::default();
        let mut echo = |peer: &mut std::net::TcpStream, skip: usize| {
            let mut b = vec![0; skip + PIECE];
            peer.read_exact(&mut b).expect("a request");
            digest.add(&b[skip..]);
            peer.write_all(&b[skip..]).expect("written");
            digest.bytes()
        };
        echo(&mut peer, Hello::BYTES);
        until(&mut clients, |s| s.established.is_some());
        let asked = now();
        clients.turn(0, asked);
        std::thread::sleep(Duration::from_millis(30));
        let end = echo(&mut peer, 0);
        until(&mut clients, |s| !s.is_owed());
        let span = Span { from: asked, to: Ns::MAX };
        assert!(clients.slots[0].waiting.longest(span) >= 30 * MS);
        shared.finishing.store(true, Ordering::Release);
        clients.turn(0, now());
        assert_eq!(peer.read(&mut [0; 8]).expect("the client's end"), 0);
        peer.write_all(&end).expect("written");
        drop(peer);
        until(&mut clients, |s| s.is_over());
        let r = clients.slots[0].record().expect("it was established");
        assert_eq!((r.whole, r.wrong, r.flow.broken, r.flow.requests), (true, false, None, 3));
    }
}
