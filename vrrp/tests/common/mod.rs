//! Builders and a virtual segment with a virtual clock, shared by the tests.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod clause;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use holdfast_vrrp::router::{Reason, Transition};
use holdfast_vrrp::wire::{Advert, MULTICAST_GROUP, decode_message};
use holdfast_vrrp::{Addresses, AdvertInterval, Input, Output, Priority, Router, RouterConfig, State, Vrid};

pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);

/// Where virtual time starts. Any instant will do; only differences are ever looked at.
#[expect(clippy::disallowed_methods, reason = "an Instant can't be made from nothing")]
pub(crate) fn time_zero() -> Instant {
    Instant::now()
}

pub(crate) fn vrid() -> Vrid {
    Vrid::new(10).unwrap()
}

pub(crate) fn prio(n: u8) -> Priority {
    Priority::from_wire(n)
}

pub(crate) fn cs(n: u16) -> AdvertInterval {
    AdvertInterval::from_cs(n).unwrap()
}

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// Host `n` of the segment: 10.0.0.n.
pub(crate) fn host(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n)
}

pub(crate) fn config(interval: AdvertInterval, preempt: bool) -> RouterConfig {
    RouterConfig { vrid: vrid(), interval, preempt, addresses: Addresses::new([VIP]).unwrap() }
}

pub(crate) fn advert(priority: u8, interval_cs: u16) -> Advert {
    Advert {
        vrid: vrid(),
        priority: prio(priority),
        interval: cs(interval_cs),
        addresses: Addresses::new([VIP]).unwrap(),
    }
}

/// The advert in a payload that a router wants sent.
pub(crate) fn decoded(source: Ipv4Addr, payload: &[u8]) -> Advert {
    decode_message(payload, source, MULTICAST_GROUP).expect("a router sends what it would accept").0
}

pub(crate) fn drain(router: &mut Router) -> Vec<Output> {
    std::iter::from_fn(|| router.poll_output()).collect()
}

/// A small seeded generator (xorshift64*): the same seed always loses the same packets.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(1))
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

/// What a node did, for assertions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) at: Duration,
    pub(crate) node: usize,
    pub(crate) output: Output,
}

struct Node {
    router: Router,
    source: Ipv4Addr,
    /// Neither timers nor packets reach it; packets wait.
    frozen: bool,
    waiting: Vec<(Ipv4Addr, Vec<u8>)>,
}

/// Routers on one segment. Every packet goes through the codec, takes `latency`, and may be lost or cut off.
pub(crate) struct Lan {
    zero: Instant,
    now: Instant,
    nodes: Vec<Node>,
    cuts: BTreeSet<(usize, usize)>,
    wire: BTreeMap<(Instant, u64), (usize, Ipv4Addr, Vec<u8>)>,
    sequence: u64,
    latency: Duration,
    rng: Rng,
    loss_percent: u64,
    pub(crate) log: Vec<Entry>,
}

impl Lan {
    pub(crate) fn new() -> Self {
        let zero = time_zero();
        Self {
            zero,
            now: zero,
            nodes: Vec::new(),
            cuts: BTreeSet::new(),
            wire: BTreeMap::new(),
            sequence: 0,
            latency: us(100),
            rng: Rng::new(0),
            loss_percent: 0,
            log: Vec::new(),
        }
    }

    pub(crate) fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Adds a router in Initialize, as host n + 1 for node n.
    pub(crate) fn router(mut self, config: RouterConfig) -> Self {
        let source = host(u8::try_from(self.nodes.len() + 1).unwrap());
        let router = Router::new(config, self.now);
        self.nodes.push(Node { router, source, frozen: false, waiting: Vec::new() });
        self
    }

    /// Adds a router and starts it now.
    pub(crate) fn node(self, priority: u8, interval: AdvertInterval) -> Self {
        self.started(priority, config(interval, true))
    }

    pub(crate) fn started(self, priority: u8, config: RouterConfig) -> Self {
        let mut lan = self.router(config);
        lan.start(lan.nodes.len() - 1, priority);
        lan
    }

    pub(crate) fn start(&mut self, node: usize, priority: u8) {
        let source = self.nodes[node].source;
        self.input(node, Input::Start { priority: prio(priority), source });
    }

    /// From now on this share of the packets is lost, chosen by the seed.
    pub(crate) fn lossy(&mut self, percent: u64, seed: u64) {
        self.loss_percent = percent;
        self.rng = Rng::new(seed);
    }

    /// Nothing gets from one to the other; the way back stays.
    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        self.cuts.insert((from, to));
    }

    pub(crate) fn split(&mut self, a: usize, b: usize) {
        self.cut(a, b);
        self.cut(b, a);
    }

    pub(crate) fn heal(&mut self) {
        self.cuts.clear();
        self.loss_percent = 0;
    }

    pub(crate) fn freeze(&mut self, node: usize) {
        self.nodes[node].frozen = true;
    }

    /// A new process in the place of a node's old one.
    pub(crate) fn replace(&mut self, node: usize, config: RouterConfig) {
        let source = self.nodes[node].source;
        let router = Router::new(config, self.now);
        self.nodes[node] = Node { router, source, frozen: false, waiting: Vec::new() };
    }

    /// Wakes a node. One that knows it stood still says so before anything else; then come the packets that waited.
    pub(crate) fn thaw(&mut self, node: usize, knows: bool) {
        self.nodes[node].frozen = false;
        if knows {
            self.input(node, Input::Stalled);
        }
        for (source, payload) in std::mem::take(&mut self.nodes[node].waiting) {
            self.deliver(node, source, &payload);
        }
    }

    pub(crate) fn input(&mut self, node: usize, input: Input<'_>) {
        self.nodes[node].router.handle(self.now, input);
        self.collect(node);
    }

    pub(crate) fn at(&self) -> Duration {
        self.now - self.zero
    }

    pub(crate) fn state(&self, node: usize) -> State {
        self.nodes[node].router.state()
    }

    pub(crate) fn routers(&self) -> impl Iterator<Item = &Router> {
        self.nodes.iter().map(|node| &node.router)
    }

    pub(crate) fn actives(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|n| self.state(*n) == State::Active).collect()
    }

    /// All transitions, as (when, node, to, why).
    pub(crate) fn transitions(&self) -> Vec<(Duration, usize, State, Reason)> {
        let transition = |entry: &Entry| match entry.output {
            Output::Transition(Transition { to, reason, .. }) => Some((entry.at, entry.node, to, reason)),
            _ => None,
        };
        self.log.iter().filter_map(transition).collect()
    }

    /// When a node sent adverts, and with which priority.
    pub(crate) fn sent(&self, node: usize) -> Vec<(Duration, u8)> {
        let sent = |entry: &Entry| match &entry.output {
            Output::Send { source, payload } if entry.node == node => {
                Some((entry.at, decoded(*source, payload).priority.get()))
            }
            _ => None,
        };
        self.log.iter().filter_map(sent).collect()
    }

    pub(crate) fn forget(&mut self) {
        self.log.clear();
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {}
        self.now = end;
    }

    /// Does what comes next, if it comes by `end`: packets before timers, so that an advert in time counts.
    fn step(&mut self, end: Instant) -> bool {
        let packet = self.wire.keys().next().copied();
        let timer = (0..self.nodes.len())
            .filter(|n| !self.nodes[*n].frozen)
            .filter_map(|n| Some((self.nodes[n].router.poll_timeout()?.max(self.now), n)))
            .min();
        match (packet, timer) {
            (Some(key), timer) if key.0 <= end && timer.is_none_or(|(at, _)| key.0 <= at) => {
                self.now = key.0;
                let (to, source, payload) = self.wire.remove(&key).expect("the key was just seen");
                self.deliver(to, source, &payload);
                true
            }
            (_, Some((at, node))) if at <= end => {
                self.now = at;
                self.input(node, Input::Timer);
                true
            }
            _ => false,
        }
    }

    fn deliver(&mut self, to: usize, source: Ipv4Addr, payload: &[u8]) {
        if self.nodes[to].frozen {
            self.nodes[to].waiting.push((source, payload.to_vec()));
        } else {
            let advert = decoded(source, payload);
            self.input(to, Input::Advert { source, advert: &advert });
        }
    }

    fn collect(&mut self, node: usize) {
        for output in drain(&mut self.nodes[node].router) {
            if let Output::Send { source, payload } = &output {
                self.transmit(node, *source, payload);
            }
            self.log.push(Entry { at: self.now - self.zero, node, output });
        }
    }

    fn transmit(&mut self, from: usize, source: Ipv4Addr, payload: &[u8]) {
        for to in (0..self.nodes.len()).filter(|to| *to != from) {
            let lost = self.cuts.contains(&(from, to)) || self.rng.below(100) < self.loss_percent;
            if !lost {
                self.sequence += 1;
                self.wire.insert((self.now + self.latency, self.sequence), (to, source, payload.to_vec()));
            }
        }
    }
}
