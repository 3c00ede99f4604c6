//! Two speakers and TCP between them, on a virtual clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_bgp::rib::Desired;
use holdfast_bgp::types::Prefix;
use holdfast_bgp::wire::{Codec, Framer, Message, decode};
use holdfast_bgp::{ConnId, Event, Input, Output, Peer, PeerConfig, State};

use super::{Rng, ms, time_zero};

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EndPoint {
    node: usize,
    conn: ConnId,
}

/// A TCP connection. Index 0 dialled.
#[derive(Debug)]
struct Pipe {
    ends: [EndPoint; 2],
    /// Whether this end's socket is open: it hears what comes.
    open: [bool; 2],
    /// When what this end sent last arrives: later bytes don't overtake it.
    arrives: [Instant; 2],
    /// Both know of it.
    accepted: bool,
}

#[derive(Debug, Clone)]
enum Packet {
    /// Sent again after 1, 2, 4 … s until it is answered.
    Syn {
        after: Duration,
    },
    SynAck,
    Data(Vec<u8>),
    Fin,
    Rst,
}

#[derive(Debug)]
struct Flight {
    at: Instant,
    seq: u64,
    pipe: usize,
    /// Which end it goes to.
    to: usize,
    packet: Packet,
}

/// A speaker.
pub(crate) struct Node {
    pub(crate) peer: Peer,
    pub(crate) config: PeerConfig,
    pub(crate) desired: Arc<Desired>,
    next_accepted: u64,
    /// Whether its kernel listens and answers.
    pub(crate) up: bool,
    /// What the neighbour told it: of the present session.
    pub(crate) learnt: BTreeSet<Prefix>,
    framers: BTreeMap<ConnId, Framer>,
    pub(crate) log: Vec<(Duration, Output)>,
    /// When it became Established, each time.
    pub(crate) ups: u64,
    /// UPDATEs with routes that it heard, End-of-RIB not counted.
    pub(crate) updates_heard: u64,
    /// Where it has spoken of routes in this session.
    speaks_on: Option<ConnId>,
    /// End-of-RIBs in this session.
    pub(crate) ends_of_rib: u64,
}

pub(crate) struct Net {
    pub(crate) now: Instant,
    start: Instant,
    pub(crate) nodes: Vec<Node>,
    pipes: Vec<Pipe>,
    flights: Vec<Flight>,
    seq: u64,
    pub(crate) rng: Rng,
    pub(crate) latency: Duration,
    pub(crate) jitter_us: u64,
    /// Nothing gets through; what was sent waits, but for SYNs, which are sent again.
    pub(crate) cut: bool,
}

impl Net {
    pub(crate) fn new(configs: [PeerConfig; 2], seed: u64) -> Self {
        let now = time_zero();
        let nodes = configs.into_iter().enumerate().map(|(at, config)| Node {
            peer: Peer::new(config.clone(), false, seed * 2 + at as u64, now),
            config,
            desired: Arc::default(),
            next_accepted: 1,
            up: true,
            learnt: BTreeSet::new(),
            framers: BTreeMap::new(),
            log: Vec::new(),
            ups: 0,
            updates_heard: 0,
            speaks_on: None,
            ends_of_rib: 0,
        });
        let nodes = nodes.collect();
        let rng = Rng::new(seed);
        let (pipes, flights) = (Vec::new(), Vec::new());
        Self { now, start: now, nodes, pipes, flights, seq: 0, rng, latency: ms(1), jitter_us: 500, cut: false }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    pub(crate) fn give(&mut self, node: usize, input: Input<'_>) {
        // A process that died hears nothing.
        if !self.nodes[node].up {
            return;
        }
        self.nodes[node].peer.handle(self.now, input);
        self.take_outputs(node);
    }

    pub(crate) fn want(&mut self, node: usize, desired: &Arc<Desired>) {
        self.nodes[node].desired = Arc::clone(desired);
        self.give(node, Input::Routes(desired));
    }

    pub(crate) fn start_both(&mut self) {
        for node in 0..2 {
            let desired = Arc::clone(&self.nodes[node].desired);
            self.give(node, Input::Start);
            self.give(node, Input::Routes(&desired));
        }
    }

    fn take_outputs(&mut self, node: usize) {
        while let Some(output) = self.nodes[node].peer.poll_output() {
            let at = self.now - self.start;
            self.nodes[node].log.push((at, output.clone()));
            match output {
                Output::Connect { conn } => self.dial(node, conn),
                Output::Send { conn, bytes } => {
                    if bytes.get(18) == Some(&2) {
                        let on = self.nodes[node].speaks_on.get_or_insert(conn);
                        assert_eq!(*on, conn, "two sessions at once");
                    }
                    self.send(node, conn, bytes);
                }
                Output::Close { conn } => self.close(node, conn, Packet::Fin),
                Output::Abort { conn } => self.close(node, conn, Packet::Rst),
                Output::Event(Event::State(transition)) => {
                    if transition.to == State::Established {
                        self.nodes[node].ups += 1;
                    }
                    if transition.from == State::Established {
                        self.nodes[node].speaks_on = None;
                        self.nodes[node].learnt.clear();
                        self.nodes[node].ends_of_rib = 0;
                    }
                }
                Output::Event(_) => {}
            }
        }
    }

    fn dial(&mut self, node: usize, conn: ConnId) {
        let other = 1 - node;
        let ends = [EndPoint { node, conn }, EndPoint { node: other, conn: ConnId(u64::MAX) }];
        self.pipes.push(Pipe { ends, open: [true, false], arrives: [self.now; 2], accepted: false });
        let pipe = self.pipes.len() - 1;
        self.fly(pipe, 1, Packet::Syn { after: Duration::from_secs(1) });
    }

    fn fly(&mut self, pipe: usize, to: usize, packet: Packet) {
        let jitter = Duration::from_micros(self.rng.below(self.jitter_us.max(1)));
        let at = (self.now + self.latency + jitter).max(self.pipes[pipe].arrives[1 - to]);
        self.pipes[pipe].arrives[1 - to] = at;
        self.seq += 1;
        self.flights.push(Flight { at, seq: self.seq, pipe, to, packet });
    }

    fn locate(&self, node: usize, conn: ConnId) -> Option<(usize, usize)> {
        let ours = EndPoint { node, conn };
        self.pipes.iter().enumerate().rev().find_map(|(at, pipe)| {
            let end = pipe.ends.iter().position(|end| *end == ours)?;
            pipe.open[end].then_some((at, end))
        })
    }

    fn send(&mut self, node: usize, conn: ConnId, bytes: Vec<u8>) {
        let Some((pipe, end)) = self.locate(node, conn) else { return };
        // Cut anywhere.
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let most = rest.len() as u64;
            let length = if self.rng.chance(50) { most } else { 1 + self.rng.below(most) };
            let (piece, more) = rest.split_at(length as usize);
            self.fly(pipe, 1 - end, Packet::Data(piece.to_vec()));
            rest = more;
        }
    }

    fn close(&mut self, node: usize, conn: ConnId, packet: Packet) {
        let Some((pipe, end)) = self.locate(node, conn) else { return };
        self.pipes[pipe].open[end] = false;
        if self.pipes[pipe].accepted {
            self.fly(pipe, 1 - end, packet);
        }
    }

    /// The neighbour's process dies: its kernel closes all. `silent`: so does its host, and nobody tells.
    pub(crate) fn crash(&mut self, node: usize, silent: bool) {
        for pipe in 0..self.pipes.len() {
            for end in 0..2 {
                if self.pipes[pipe].ends[end].node == node && self.pipes[pipe].open[end] {
                    self.pipes[pipe].open[end] = false;
                    if !silent && self.pipes[pipe].accepted {
                        self.fly(pipe, 1 - end, Packet::Fin);
                    }
                }
            }
        }
        self.nodes[node].up = false;
        self.nodes[node].learnt.clear();
        self.nodes[node].ends_of_rib = 0;
    }

    pub(crate) fn reboot(&mut self, node: usize, restarting: bool) {
        let seed = self.rng.next();
        let now = self.now;
        let it = &mut self.nodes[node];
        it.peer = Peer::new(it.config.clone(), restarting, seed, now);
        it.up = true;
        it.framers.clear();
        it.speaks_on = None;
        // A process's names begin anew; the kernel's connections of before are gone.
        for pipe in &mut self.pipes {
            for end in &mut pipe.ends {
                if end.node == node {
                    end.conn = ConnId(u64::MAX);
                }
            }
        }
        let desired = Arc::clone(&self.nodes[node].desired);
        self.give(node, Input::Start);
        self.give(node, Input::Routes(&desired));
    }

    fn next_event(&self) -> Option<Instant> {
        let flights = self.flights.iter().filter(|flight| !self.cut || matches!(flight.packet, Packet::Syn { .. }));
        let timers = self.nodes.iter().filter(|node| node.up).filter_map(|node| node.peer.poll_timeout());
        flights.map(|flight| flight.at).chain(timers).min()
    }

    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        self.run_until(end, |_| false);
        self.now = end;
    }

    /// Whether it came to that before the end.
    pub(crate) fn run_until(&mut self, end: Instant, mut done: impl FnMut(&Self) -> bool) -> bool {
        let mut steps = 0;
        loop {
            if done(self) {
                return true;
            }
            let Some(at) = self.next_event().filter(|at| *at <= end) else { return false };
            self.now = self.now.max(at);
            self.step();
            steps += 1;
            assert!(steps < 2_000_000, "it spins");
        }
    }

    fn step(&mut self) {
        let due = self.flights.iter().enumerate().filter(|(_, flight)| flight.at <= self.now);
        let due = due.filter(|(_, flight)| !self.cut || matches!(flight.packet, Packet::Syn { .. }));
        if let Some((at, _)) = due.min_by_key(|(_, flight)| (flight.at, flight.seq)) {
            let flight = self.flights.remove(at);
            self.arrive(flight);
            return;
        }
        for node in 0..2 {
            if self.nodes[node].up && self.nodes[node].peer.poll_timeout().is_some_and(|at| at <= self.now) {
                self.give(node, Input::Timer);
                return;
            }
        }
    }

    fn arrive(&mut self, flight: Flight) {
        let Flight { pipe, to, packet, .. } = flight;
        let EndPoint { node, conn } = self.pipes[pipe].ends[to];
        match packet {
            Packet::Syn { after } if self.cut || !self.nodes[node].up => {
                if self.pipes[pipe].open[0] {
                    self.seq += 1;
                    let packet = Packet::Syn { after: 2 * after };
                    self.flights.push(Flight { at: self.now + after, seq: self.seq, pipe, to, packet });
                }
            }
            Packet::Syn { .. } => {
                if self.pipes[pipe].open[0] {
                    self.on_syn(pipe, node);
                }
            }
            Packet::SynAck => {
                if self.pipes[pipe].open[0] {
                    let (local, remote) = addresses(node, false);
                    self.give(node, Input::Connected { conn, local, remote });
                } else {
                    self.fly(pipe, 1, Packet::Rst);
                }
            }
            Packet::Data(_) | Packet::Fin if !self.pipes[pipe].open[to] => {
                // Closed in order, or of a former life: the kernel refuses what comes.
                if self.pipes[pipe].open[1 - to] && self.nodes[node].up {
                    self.fly(pipe, 1 - to, Packet::Rst);
                }
            }
            Packet::Data(bytes) => {
                self.learn(node, conn, &bytes);
                self.give(node, Input::Bytes { conn, bytes: &bytes });
            }
            Packet::Fin => {
                self.pipes[pipe].open[to] = false;
                self.give(node, Input::Closed { conn, why: None });
            }
            Packet::Rst => {
                if std::mem::take(&mut self.pipes[pipe].open[to]) {
                    if self.pipes[pipe].accepted {
                        self.give(node, Input::Closed { conn, why: Some(String::from("connection reset")) });
                    } else {
                        self.give(node, Input::ConnectFailed { conn, why: String::from("connection refused") });
                    }
                }
            }
        }
    }

    fn on_syn(&mut self, pipe: usize, node: usize) {
        // Not started: nobody listens.
        let listens =
            self.nodes[node].peer.state() != State::Idle || self.nodes[node].peer.info().next_attempt.is_some();
        if !listens {
            self.fly(pipe, 0, Packet::Rst);
            return;
        }
        let conn = ConnId(self.nodes[node].next_accepted);
        self.nodes[node].next_accepted += 2;
        self.pipes[pipe].ends[1].conn = conn;
        self.pipes[pipe].open[1] = true;
        self.pipes[pipe].accepted = true;
        self.fly(pipe, 0, Packet::SynAck);
        let (local, remote) = addresses(node, true);
        self.give(node, Input::Accepted { conn, local, remote });
    }

    /// What a neighbour would know of the routes.
    fn learn(&mut self, node: usize, conn: ConnId, bytes: &[u8]) {
        let it = &mut self.nodes[node];
        let framer = it.framers.entry(conn).or_default();
        let mut rest = bytes;
        loop {
            let mut piece = rest;
            let Some(frame) = framer.next(&mut piece).expect("a header that can be") else { return };
            assert!(frame.bytes.len() <= 4096);
            let message = decode(&frame, &Codec::LENIENT).expect("a message that can be");
            rest = &rest[rest.len() - piece.len()..];
            let Message::Update(update) = message else { continue };
            if update.end_of_rib().is_some() {
                it.ends_of_rib += 1;
                continue;
            }
            it.updates_heard += 1;
            for prefix in update.all_withdrawn() {
                it.learnt.remove(&prefix);
            }
            it.learnt.extend(update.all_announced());
        }
    }

    /// Connections that both ends have open.
    pub(crate) fn open_connections(&self) -> usize {
        self.pipes.iter().filter(|pipe| pipe.open == [true, true]).count()
    }

    /// How often each was Established.
    pub(crate) fn ups(&self) -> [u64; 2] {
        [self.nodes[0].ups, self.nodes[1].ups]
    }

    pub(crate) fn states(&self) -> [State; 2] {
        [self.nodes[0].peer.state(), self.nodes[1].peer.state()]
    }

    /// Both are Established, on the same connection.
    pub(crate) fn one_session(&self) -> bool {
        if self.states() != [State::Established; 2] {
            return false;
        }
        let conns = [0, 1].map(|node| self.nodes[node].peer.info().conn.expect("of a session"));
        self.pipes
            .iter()
            .any(|pipe| pipe.open == [true, true] && pipe.ends.iter().all(|end| conns[end.node] == end.conn))
    }

    /// Each has learnt what the other wants to be known.
    pub(crate) fn tables_equal(&self) -> bool {
        [0, 1].into_iter().all(|node| self.nodes[1 - node].desired.keys().eq(self.nodes[node].learnt.iter()))
    }
}

fn addresses(node: usize, accepted: bool) -> (SocketAddr, SocketAddr) {
    let address = |node: usize, port: u16| SocketAddr::from(([192, 0, 2, 1 + node as u8], port));
    let (ours, theirs) = if accepted { (179, 40_000) } else { (40_000, 179) };
    (address(node, ours), address(1 - node, theirs))
}
