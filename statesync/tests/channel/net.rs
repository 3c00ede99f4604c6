//! A virtual network of channels: seeded, with one clock, so that a run is repeated exactly by its seed.

use holdfast_statesync::message::{BalancerReport, Fitness, Message, Role, VipReport};
use holdfast_statesync::{
    Channel, ChannelConfig, ChannelInput as Input, ChannelOutput as Output, Counters, PeerConfig, PeerId, PeerState,
    SecretKey, generate_keypair,
};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// What a datagram on the wire was; kept for tests that replay or damage it.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) at: Duration,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Sent {
    pub(crate) fn is_greeting(&self) -> bool {
        self.bytes[1] == 1
    }

    pub(crate) fn is_answer(&self) -> bool {
        self.bytes[1] == 2
    }

    pub(crate) fn is_transport(&self) -> bool {
        self.bytes[1] == 3
    }
}

/// What a channel reported.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    pub(crate) at: Duration,
    pub(crate) output: Output,
}

pub(crate) struct Node {
    pub(crate) channel: Channel,
    pub(crate) secret: SecretKey,
    pub(crate) address: SocketAddr,
    pub(crate) epoch: u64,
    pub(crate) running: bool,
    pub(crate) events: Vec<Event>,
}

pub(crate) struct Net {
    start: Instant,
    pub(crate) now: Instant,
    pub(crate) nodes: Vec<Node>,
    peers: Vec<Vec<PeerConfig>>,
    pub(crate) sent: Vec<Sent>,
    in_flight: BTreeMap<(Instant, u64), (usize, SocketAddr, Vec<u8>)>,
    order: u64,
    pub(crate) rng: ChaCha8Rng,
    /// One way, without jitter.
    pub(crate) latency: Duration,
    /// Most that is added to the latency: above zero datagrams overtake each other.
    pub(crate) jitter: Duration,
    pub(crate) loss_percent: u32,
    pub(crate) double_percent: u32,
    /// Directions in which nothing passes.
    pub(crate) cuts: BTreeSet<(usize, usize)>,
}

#[allow(clippy::disallowed_methods, reason = "an Instant has no other constructor; tests only count from it")]
pub(crate) fn start() -> Instant {
    Instant::now()
}

pub(crate) fn address(node: usize) -> SocketAddr {
    format!("10.1.0.{}:7712", 11 + node).parse().unwrap()
}

pub(crate) fn keypair(seed: u64, node: usize) -> (SecretKey, [u8; 32]) {
    generate_keypair(bytes_of(seed, 0x6b65 + node as u64))
}

fn bytes_of(seed: u64, purpose: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&purpose.to_le_bytes());
    bytes
}

impl Net {
    /// `count` nodes that all know each other, 1 ms apart, all started at once.
    pub(crate) fn new(seed: u64, count: usize) -> Self {
        let keys: Vec<_> = (0..count).map(|node| keypair(seed, node)).collect();
        let peers = (0..count)
            .map(|me| {
                let others = (0..count).filter(|other| *other != me);
                others
                    .map(|other| PeerConfig {
                        name: format!("lb{other}"),
                        address: address(other),
                        public_keys: vec![keys[other].1],
                    })
                    .collect()
            })
            .collect();
        Self::with_peers(seed, keys.into_iter().map(|(secret, _)| secret).collect(), peers)
    }

    pub(crate) fn with_peers(seed: u64, secrets: Vec<SecretKey>, peers: Vec<Vec<PeerConfig>>) -> Self {
        let now = start();
        let mut net = Self {
            start: now,
            now,
            nodes: Vec::new(),
            peers,
            sent: Vec::new(),
            in_flight: BTreeMap::new(),
            order: 0,
            rng: ChaCha8Rng::seed_from_u64(seed),
            latency: MS,
            jitter: Duration::ZERO,
            loss_percent: 0,
            double_percent: 0,
            cuts: BTreeSet::new(),
        };
        for (index, secret) in secrets.into_iter().enumerate() {
            let channel = net.build(index, &secret, 100);
            let address = address(index);
            net.nodes.push(Node { channel, secret, address, epoch: 100, running: true, events: Vec::new() });
        }
        (0..net.nodes.len()).for_each(|node| net.drain(node));
        net
    }

    fn build(&mut self, node: usize, secret: &SecretKey, epoch: u64) -> Channel {
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        let config = ChannelConfig { secret_key: secret.clone(), epoch, peers: self.peers[node].clone() };
        Channel::new(config, seed, self.now)
    }

    /// A new run of the node with this epoch; what it knew is gone.
    pub(crate) fn restart(&mut self, node: usize, epoch: u64) {
        let secret = self.nodes[node].secret.clone();
        self.nodes[node].channel = self.build(node, &secret, epoch);
        self.nodes[node].epoch = epoch;
        self.nodes[node].running = true;
        self.drain(node);
    }

    /// As `restart`, with other peers or another key.
    pub(crate) fn restart_with(&mut self, node: usize, epoch: u64, secret: SecretKey, peers: Vec<PeerConfig>) {
        self.peers[node] = peers;
        self.nodes[node].secret = secret;
        self.restart(node, epoch);
    }

    pub(crate) fn stop(&mut self, node: usize) {
        self.nodes[node].running = false;
    }

    /// Since the start.
    pub(crate) fn time(&self) -> Duration {
        self.now - self.start
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = self.next_time().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.turn();
        }
        self.now = end;
    }

    /// Runs until `done`, at most for `limit`; whether it came.
    pub(crate) fn run_until(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            if done(self) {
                return true;
            }
            match self.next_time().filter(|next| *next <= end) {
                Some(next) => self.now = self.now.max(next),
                None => {
                    self.now = end;
                    return false;
                }
            }
            self.turn();
        }
    }

    fn next_time(&self) -> Option<Instant> {
        let timers = self.nodes.iter().filter(|node| node.running).filter_map(|node| node.channel.poll_timeout());
        timers.chain(self.in_flight.keys().map(|(at, _)| *at).next()).min()
    }

    fn turn(&mut self) {
        while let Some(entry) = self.in_flight.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (to, from, bytes) = entry.remove();
            if self.nodes[to].running {
                self.inject(to, from, &bytes);
            }
        }
        for node in 0..self.nodes.len() {
            if self.nodes[node].running && self.nodes[node].channel.poll_timeout().is_some_and(|at| at <= self.now) {
                self.nodes[node].channel.handle(self.now, Input::Timer);
                let next = self.nodes[node].channel.poll_timeout();
                assert!(next.is_none_or(|at| at > self.now), "a timer that was handled is armed in the future");
                self.drain(node);
            }
        }
    }

    /// Gives a datagram to a node at once.
    pub(crate) fn inject(&mut self, to: usize, from: SocketAddr, bytes: &[u8]) {
        self.nodes[to].channel.handle(self.now, Input::Datagram { from, bytes });
        self.drain(to);
    }

    fn drain(&mut self, node: usize) {
        while let Some(output) = self.nodes[node].channel.poll_output() {
            if let Output::Transmit { to, bytes } = output {
                assert!(bytes.len() <= holdfast_statesync::channel::MAX_DATAGRAM);
                self.transmit(node, to, bytes);
            } else {
                let at = self.time();
                self.nodes[node].events.push(Event { at, output });
            }
        }
    }

    fn transmit(&mut self, from: usize, to: SocketAddr, bytes: Vec<u8>) {
        let Some(target) = self.nodes.iter().position(|node| node.address == to).or_else(|| self.place_of(to)) else {
            return;
        };
        self.sent.push(Sent { at: self.time(), from, to: target, bytes: bytes.clone() });
        if self.cuts.contains(&(from, target)) {
            return;
        }
        let copies = if self.chance(self.double_percent) { 2 } else { 1 };
        for _ in 0..copies {
            if self.chance(self.loss_percent) {
                continue;
            }
            let jitter_us = u64::try_from(self.jitter.as_micros()).unwrap();
            let extra = Duration::from_micros(if jitter_us == 0 { 0 } else { self.rng.next_u64() % jitter_us });
            self.order += 1;
            let key = (self.now + self.latency + extra, self.order);
            self.in_flight.insert(key, (target, address(from), bytes.clone()));
        }
    }

    /// While the nodes are being built they aren't in the list yet.
    fn place_of(&self, to: SocketAddr) -> Option<usize> {
        (0..self.peers.len()).find(|node| address(*node) == to)
    }

    fn chance(&mut self, percent: u32) -> bool {
        percent > 0 && self.rng.next_u32() % 100 < percent
    }

    /// Loses what a node has on its way.
    pub(crate) fn drop_in_flight_from(&mut self, node: usize) {
        self.in_flight.retain(|_, (_, from, _)| *from != address(node));
    }

    pub(crate) fn broadcast(&mut self, node: usize, message: &Message) {
        self.nodes[node].channel.handle(self.now, Input::Broadcast { message });
        self.drain(node);
    }

    pub(crate) fn send(&mut self, node: usize, peer: PeerId, message: &Message) {
        self.nodes[node].channel.handle(self.now, Input::Send { peer, message });
        self.drain(node);
    }

    /// What `node` knows of `other`.
    pub(crate) fn state(&self, node: usize, other: usize) -> PeerState {
        self.nodes[node].channel.peer_state(self.id(node, other))
    }

    pub(crate) fn id(&self, node: usize, other: usize) -> PeerId {
        let place = self.peers[node].iter().position(|peer| peer.address == address(other)).unwrap();
        PeerId(place as u16)
    }

    pub(crate) fn counters(&self, node: usize) -> Counters {
        self.nodes[node].channel.counters()
    }

    pub(crate) fn all_up(&self) -> bool {
        let pairs = (0..self.nodes.len()).flat_map(|a| (0..self.nodes.len()).map(move |b| (a, b)));
        pairs.filter(|(a, b)| a != b).all(|(a, b)| self.state(a, b).up)
    }

    pub(crate) fn ups(&self, node: usize) -> Vec<u64> {
        let epochs = self.nodes[node].events.iter().filter_map(|event| match event.output {
            Output::Up { epoch, .. } => Some(epoch),
            _ => None,
        });
        epochs.collect()
    }

    pub(crate) fn downs(&self, node: usize) -> usize {
        self.nodes[node].events.iter().filter(|event| matches!(event.output, Output::Down { .. })).count()
    }

    /// Sequence numbers of the reports that arrived, in order.
    pub(crate) fn heard_sequences(&self, node: usize) -> Vec<u64> {
        let sequences = self.nodes[node].events.iter().filter_map(|event| match &event.output {
            Output::Received { message: Message::Report { sequence, .. }, .. } => Some(*sequence),
            _ => None,
        });
        sequences.collect()
    }
}

pub(crate) fn report(sequence: u64) -> Message {
    Message::Report {
        sequence,
        vips: vec![VipReport {
            vip: "web".into(),
            fitness: Fitness::Fit,
            role: Role::Active,
            role_epoch: 3,
            priority: 254,
            role_age_ms: 1500,
            standing: None,
        }],
        balancers: vec![BalancerReport { balancer: "haproxy".into(), fitness: Fitness::Fit, verdict: None }],
    }
}
