//! Builders and a virtual segment with a virtual clock, shared by the tests.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod clause;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_vrrp::router::{Reason, Transition};
use holdfast_vrrp::types::link_local;
use holdfast_vrrp::wire::{Advert, Received, TTL, decode_message};
use holdfast_vrrp::{
    Addresses, AdvertInterval, ChecksumForm, ChecksumMode, Family, Input, LegConfig, LegId, Output, Packet, Priority,
    Router, RouterConfig, State, Transport, Version, Vrid,
};

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

/// Host `n` of the segment: 10.0.n.0, whose low byte makes no jitter, so that times here are those of the RFC.
pub(crate) fn host(n: u8) -> IpAddr {
    IpAddr::from([10, 0, n, 0])
}

/// Host `n` on an IPv6 segment, likewise without jitter.
pub(crate) fn host6(n: u8) -> IpAddr {
    IpAddr::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, u16::from(n) << 8))
}

/// Hosts as they are numbered in the field: 10.0.0.n.
pub(crate) fn neighbour(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

pub(crate) const LEG: LegId = LegId(0);

pub(crate) fn leg() -> LegConfig {
    LegConfig {
        vrid: vrid(),
        version: Version::V3,
        addresses: Addresses::new([VIP]).unwrap(),
        transport: Transport::Multicast,
        checksum: ChecksumMode::Auto,
    }
}

pub(crate) fn leg6() -> LegConfig {
    let vip: Ipv6Addr = "2001:db8::10".parse().unwrap();
    LegConfig { addresses: Addresses::new([link_local(vrid()), vip]).unwrap(), ..leg() }
}

/// Another member of the unit: as `leg`, with a VRID and an address of its own.
pub(crate) fn member(vrid: u8) -> LegConfig {
    LegConfig {
        vrid: Vrid::new(vrid).unwrap(),
        addresses: Addresses::new([Ipv4Addr::new(192, 0, 2, vrid)]).unwrap(),
        ..leg()
    }
}

pub(crate) fn config(interval: AdvertInterval, preempt: bool) -> RouterConfig {
    RouterConfig { legs: vec![leg()], interval, preempt, preempt_delay: Duration::ZERO, jitter: true }
}

pub(crate) fn with_legs(legs: Vec<LegConfig>, interval: AdvertInterval) -> RouterConfig {
    RouterConfig { legs, ..config(interval, true) }
}

pub(crate) fn advert(priority: u8, interval_cs: u16) -> Advert {
    advert_on(&leg(), priority, cs(interval_cs))
}

/// What another router sends on such a leg.
pub(crate) fn advert_on(leg: &LegConfig, priority: u8, interval: AdvertInterval) -> Advert {
    let LegConfig { vrid, version, ref addresses, .. } = *leg;
    Advert { version, vrid, priority: prio(priority), interval, addresses: addresses.clone() }
}

/// An advert heard on the first leg.
pub(crate) fn heard(source: IpAddr, advert: &Advert) -> Input<'_> {
    Input::Advert { leg: LEG, source, advert, form: ChecksumForm::Message }
}

/// Gives a router the same source on each leg of its family, then starts it.
pub(crate) fn start(router: &mut Router, now: Instant, source: IpAddr, priority: u8) {
    give_sources(router, now, |_| source);
    router.handle(now, Input::Start { priority: prio(priority) });
}

/// As `start`, but as one that was Active before.
pub(crate) fn resume(router: &mut Router, now: Instant, source: IpAddr, priority: u8) {
    give_sources(router, now, |_| source);
    router.handle(now, Input::Resume { priority: prio(priority) });
}

pub(crate) fn give_sources(router: &mut Router, now: Instant, source: impl Fn(usize) -> IpAddr) {
    for at in 0..router.config().legs.len() {
        router.handle(now, Input::Source { leg: LegId(u16::try_from(at).unwrap()), source: source(at) });
    }
}

/// The advert in a payload that a router wants sent to the group.
pub(crate) fn decoded(source: IpAddr, payload: &[u8]) -> Advert {
    decode_message(payload, source, Family::of(source).group()).expect("a router sends what it would accept").0
}

/// The adverts among these outputs: leg, source and priority.
pub(crate) fn sent(outputs: &[Output]) -> Vec<(u16, IpAddr, u8)> {
    let sent = |output: &Output| match output {
        Output::Send { leg, source, packets } => {
            let packet = packets.first().expect("an advert goes somewhere");
            let (advert, _) = decode_message(&packet.payload, *source, packet.destination).expect("its own advert");
            Some((leg.0, *source, advert.priority.get()))
        }
        _ => None,
    };
    outputs.iter().filter_map(sent).collect()
}

pub(crate) fn drain(router: &mut Router) -> Vec<Output> {
    std::iter::from_fn(|| router.poll_output()).collect()
}

/// What is in the adverts among these outputs.
pub(crate) fn packets(outputs: &[Output]) -> Vec<Arc<[Packet]>> {
    let packets = |output: &Output| match output {
        Output::Send { packets, .. } => Some(Arc::clone(packets)),
        _ => None,
    };
    outputs.iter().filter_map(packets).collect()
}

/// An advert heard on this leg.
pub(crate) fn on(leg: u16, source: IpAddr, advert: &Advert) -> Input<'_> {
    Input::Advert { leg: LegId(leg), source, advert, form: ChecksumForm::Message }
}

/// A router that is host 5 on all legs, Active at priority 100, its first outputs taken.
pub(crate) fn active(config: RouterConfig, now: Instant) -> Router {
    let mut router = Router::new(config, now);
    let families: Vec<_> = router.config().legs.iter().map(LegConfig::family).collect();
    give_sources(&mut router, now, |at| if families[at] == Family::V4 { host(5) } else { host6(5) });
    router.handle(now, Input::Resume { priority: prio(100) });
    drain(&mut router);
    router
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
    /// By leg.
    sources: Vec<IpAddr>,
    /// Neither timers nor packets reach it; packets wait.
    frozen: bool,
    waiting: Vec<Sent>,
}

/// A packet under way.
#[derive(Clone)]
struct Sent {
    leg: LegId,
    source: IpAddr,
    destination: IpAddr,
    payload: Vec<u8>,
}

/// Routers on one segment per leg. Every packet goes through the codec and the leg's rules, takes `latency`, and may be
/// lost or cut off.
pub(crate) struct Lan {
    zero: Instant,
    now: Instant,
    nodes: Vec<Node>,
    /// From, to, and on which leg.
    cuts: BTreeSet<(usize, usize, LegId)>,
    wire: BTreeMap<(Instant, u64), (usize, Sent)>,
    sequence: u64,
    latency: Duration,
    rng: Rng,
    loss_percent: u64,
    /// The source of a host on a leg: host from 1, leg from 0, its family.
    addresses: fn(u8, usize, Family) -> IpAddr,
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
            addresses: |n, _, family| if family == Family::V4 { host(n) } else { host6(n) },
            log: Vec::new(),
        }
    }

    pub(crate) fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    pub(crate) fn addresses(mut self, addresses: fn(u8, usize, Family) -> IpAddr) -> Self {
        self.addresses = addresses;
        self
    }

    /// Hosts that differ in the low byte, and so have jitter.
    pub(crate) fn neighbours(self) -> Self {
        self.addresses(|n, _, family| {
            let v6 = IpAddr::from(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, u16::from(n)));
            if family == Family::V4 { neighbour(n) } else { v6 }
        })
    }

    /// Adds a router in Initialize, as host n + 1 for node n.
    pub(crate) fn router(mut self, config: RouterConfig) -> Self {
        let host = u8::try_from(self.nodes.len() + 1).unwrap();
        let sources = config.legs.iter().enumerate();
        let sources = sources.map(|(at, leg)| (self.addresses)(host, at, leg.family())).collect();
        let router = Router::new(config, self.now);
        self.nodes.push(Node { router, sources, frozen: false, waiting: Vec::new() });
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
        self.tell_sources(node);
        self.input(node, Input::Start { priority: prio(priority) });
    }

    pub(crate) fn resume(&mut self, node: usize, priority: u8) {
        self.tell_sources(node);
        self.input(node, Input::Resume { priority: prio(priority) });
    }

    fn tell_sources(&mut self, node: usize) {
        let now = self.now;
        let Node { router, sources, .. } = &mut self.nodes[node];
        give_sources(router, now, |at| sources[at]);
        self.collect(node);
    }

    /// From now on this share of the packets is lost, chosen by the seed.
    pub(crate) fn lossy(&mut self, percent: u64, seed: u64) {
        self.loss_percent = percent;
        self.rng = Rng::new(seed);
    }

    /// Nothing gets from one to the other on any leg; the way back stays.
    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        for leg in 0..8 {
            self.cut_leg(from, to, leg);
        }
    }

    pub(crate) fn cut_leg(&mut self, from: usize, to: usize, leg: u16) {
        self.cuts.insert((from, to, LegId(leg)));
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
        let sources = self.nodes[node].sources.clone();
        let router = Router::new(config, self.now);
        self.nodes[node] = Node { router, sources, frozen: false, waiting: Vec::new() };
    }

    /// A reload: other legs, and then the sources of all.
    pub(crate) fn set_legs(&mut self, node: usize, legs: Vec<LegConfig>) {
        let host = u8::try_from(node + 1).unwrap();
        let sources = legs.iter().enumerate();
        self.nodes[node].sources = sources.map(|(at, leg)| (self.addresses)(host, at, leg.family())).collect();
        let now = self.now;
        self.nodes[node].router.set_legs(now, legs);
        self.collect(node);
        self.tell_sources(node);
    }

    /// Wakes a node. One that knows it stood still says so before anything else; then come the packets that waited.
    pub(crate) fn thaw(&mut self, node: usize, knows: bool) {
        self.nodes[node].frozen = false;
        if knows {
            self.input(node, Input::Stalled);
        }
        for sent in std::mem::take(&mut self.nodes[node].waiting) {
            self.deliver(node, sent);
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

    /// The transitions to Active, as (when, node).
    pub(crate) fn promotions(&self) -> Vec<(Duration, usize)> {
        self.transitions().into_iter().filter(|t| t.2 == State::Active).map(|t| (t.0, t.1)).collect()
    }

    /// When a node sent adverts, and with which priority.
    pub(crate) fn sent(&self, node: usize) -> Vec<(Duration, u8)> {
        self.sent_on(node, None)
    }

    /// Likewise on one leg.
    pub(crate) fn sent_on(&self, node: usize, leg: Option<u16>) -> Vec<(Duration, u8)> {
        let of_node = self.log.iter().filter(|entry| entry.node == node);
        let sent = of_node.flat_map(|entry| {
            sent(std::slice::from_ref(&entry.output)).into_iter().map(|(leg, _, priority)| (entry.at, leg, priority))
        });
        sent.filter(|(_, on, _)| leg.is_none_or(|leg| leg == *on)).map(|(at, _, priority)| (at, priority)).collect()
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
                let (to, sent) = self.wire.remove(&key).expect("the key was just seen");
                self.deliver(to, sent);
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

    fn deliver(&mut self, to: usize, sent: Sent) {
        if self.nodes[to].frozen {
            self.nodes[to].waiting.push(sent);
            return;
        }
        let Sent { leg, source, destination, payload } = sent;
        let (advert, checksum) = decode_message(&payload, source, destination).expect("a router sends what decodes");
        let received = Received { source, destination, ttl: TTL, advert, checksum };
        let config = self.nodes[to].router.config();
        let accepted = config.legs.get(leg.index()).map(|leg| leg.accept(&received, config.interval));
        if accepted == Some(Ok(())) {
            self.input(to, Input::Advert { leg, source, advert: &received.advert, form: checksum });
        }
    }

    fn collect(&mut self, node: usize) {
        for output in drain(&mut self.nodes[node].router) {
            if let Output::Send { leg, source, packets } = &output {
                for packet in packets.iter() {
                    let (destination, payload) = (packet.destination, packet.payload.clone());
                    self.transmit(node, Sent { leg: *leg, source: *source, destination, payload });
                }
            }
            self.log.push(Entry { at: self.now - self.zero, node, output });
        }
    }

    fn transmit(&mut self, from: usize, sent: Sent) {
        for to in (0..self.nodes.len()).filter(|to| *to != from) {
            let meant = sent.destination.is_multicast() || self.nodes[to].sources.contains(&sent.destination);
            let lost = self.cuts.contains(&(from, to, sent.leg)) || self.rng.below(100) < self.loss_percent;
            if meant && !lost {
                self.sequence += 1;
                self.wire.insert((self.now + self.latency, self.sequence), (to, sent.clone()));
            }
        }
    }
}
