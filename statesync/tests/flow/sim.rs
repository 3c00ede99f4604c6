//! A virtual cluster: nodes with a kernel each, a network that loses, doubles, reorders and cuts, clients with flows, and
//! one clock. A run is repeated exactly by its seed.

use crate::kernel::{Kernel, OURS};
use crate::wire::Wire;
use holdfast_statesync::PeerId;
use holdfast_statesync::ct::{Key, Tuple};
use holdfast_statesync::flow::{
    BATCH_MAX, Config, Counters, Elected, Event, Flows, Input, Mode, NodeId, Output, SourceId, Tag, Times, VipConfig,
    VipId, Whose, Why,
};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The channel takes a peer for gone after this time.
const IDLE: Duration = Duration::from_millis(400);

/// How often links are checked and timeouts in kernels run out.
const TICK: Duration = Duration::from_millis(50);

/// Active-passive, and served by several at once.
pub(crate) const VIP: VipId = VipId(0);
pub(crate) const SHARED: VipId = VipId(1);

/// How long the kernel keeps an open TCP flow, and a UDP one.
pub(crate) const TCP_LIFE: Duration = Duration::from_secs(3600);
pub(crate) const UDP_LIFE: Duration = Duration::from_secs(6);

#[allow(clippy::disallowed_methods, reason = "an Instant has no other constructor; tests only count from it")]
pub(crate) fn start() -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *START.get_or_init(|| Instant::now() + Duration::from_secs(1000))
}

pub(crate) struct Node {
    pub(crate) flows: Option<Flows>,
    pub(crate) kernel: Kernel,
    boot: u64,
    pub(crate) epoch: u64,
    /// Doesn't do anything until then.
    pub(crate) stalled_until: Option<Instant>,
    /// When its kernel has told its table.
    dump_at: Option<Instant>,
    /// When it was last seen to stand still.
    stood_at: Option<Instant>,
    inbox: VecDeque<(usize, Vec<u8>)>,
    /// What its channel says of the peers, and when that was last confirmed.
    up: Vec<bool>,
    heard: Vec<Instant>,
    /// Whose sessions were open at the last tick.
    open: Vec<bool>,
    elected: [Elected; 2],
    sources: Vec<Elected>,
    pub(crate) events: Vec<Event>,
    /// What earlier runs counted.
    earlier: Vec<Counters>,
}

/// A client's flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client {
    pub(crate) original: Tuple,
    pub(crate) reply: Tuple,
    pub(crate) life: Duration,
    pub(crate) vip: VipId,
}

impl Client {
    pub(crate) fn key(&self) -> Key {
        Key { original: self.original, zone: 0 }
    }
}

pub(crate) struct Sim {
    pub(crate) now: Instant,
    pub(crate) nodes: Vec<Node>,
    pub(crate) rng: ChaCha8Rng,
    in_flight: BTreeMap<(Instant, u64), (usize, usize, Vec<u8>)>,
    order: u64,
    pub(crate) loss_percent: u32,
    pub(crate) double_percent: u32,
    pub(crate) jitter: Duration,
    pub(crate) cuts: BTreeSet<(usize, usize)>,
    pub(crate) clients: Vec<Client>,
    next_client: u32,
    ticked: Instant,
    pub(crate) times: Times,
    pub(crate) mode: Mode,
    pub(crate) max_flows: usize,
    /// How long a kernel takes to tell its table.
    pub(crate) dump_takes: Duration,
    /// Replicas of living flows that went by their own timer while their node was awake and had sessions with all others.
    pub(crate) timed_out: Vec<(usize, Key)>,
    pub(crate) wire_bytes: u64,
    pub(crate) datagrams: u64,
    pub(crate) v6: bool,
    /// All batches that were sent, if they are to be kept.
    pub(crate) kept: Option<Vec<Vec<u8>>>,
    /// What the batches go over; `None`: an ideal channel.
    pub(crate) wire: Option<Wire>,
    /// The others don't share the second VIP with the last node, which thinks that they do.
    pub(crate) unshared: bool,
}

impl Sim {
    pub(crate) fn new(seed: u64, count: usize) -> Self {
        let mut sim = Self::idle(seed, count);
        (0..count).for_each(|node| sim.start_agent(node));
        sim
    }

    /// No agent runs yet.
    pub(crate) fn idle(seed: u64, count: usize) -> Self {
        let now = start();
        let times = Times {
            lease: Duration::from_secs(12),
            verify: SECOND,
            audit: Duration::from_secs(5),
            kernel_s: [30, 6, 120, 6, 3600],
        };
        let node = |node: usize| Node {
            flows: None,
            kernel: Kernel::new(),
            boot: 1000 + node as u64,
            epoch: 2000 + node as u64,
            stalled_until: None,
            dump_at: None,
            stood_at: None,
            inbox: VecDeque::new(),
            up: vec![false; count],
            heard: vec![now; count],
            open: vec![false; count],
            elected: [Elected::Unknown; 2],
            sources: vec![Elected::Unknown; count],
            events: Vec::new(),
            earlier: Vec::new(),
        };
        Self {
            now,
            nodes: (0..count).map(node).collect(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            in_flight: BTreeMap::new(),
            order: 0,
            loss_percent: 0,
            double_percent: 0,
            jitter: Duration::ZERO,
            cuts: BTreeSet::new(),
            clients: Vec::new(),
            next_client: 0,
            ticked: now,
            times,
            mode: Mode::Assured,
            max_flows: 100_000,
            dump_takes: Duration::ZERO,
            timed_out: Vec::new(),
            wire_bytes: 0,
            datagrams: 0,
            v6: false,
            kept: None,
            wire: None,
            unshared: false,
        }
    }

    /// How `node` calls `other`.
    pub(crate) fn peer(&self, node: usize, other: usize) -> PeerId {
        PeerId(if other < node { other } else { other - 1 } as u16)
    }

    pub(crate) fn node_of(node: usize, peer: PeerId) -> usize {
        let place = usize::from(peer.0);
        if place < node { place } else { place + 1 }
    }

    pub(crate) fn start_agent(&mut self, node: usize) {
        let count = self.nodes.len();
        let last = count - 1;
        // The last one thinks that all share the second VIP with it; the others don't.
        let shared_with = |vip: u8| match self.unshared && vip == 1 && node != last {
            true => !(1 << self.peer(node, last).0),
            false => u8::MAX,
        };
        let vip = |vip: u8| VipConfig {
            addresses: vec![
                IpAddr::from([192, 0, 2, 10 + vip]),
                IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 10 + u16::from(vip)]),
            ],
            mode: self.mode,
            shared: vip == 1,
            peers: shared_with(vip),
        };
        let config = Config {
            node: NodeId(100 + node as u32),
            boot: self.nodes[node].boot,
            epoch: self.nodes[node].epoch,
            port_id: OURS,
            peers: (0..count).filter(|other| *other != node).map(|other| NodeId(100 + other as u32)).collect(),
            vips: vec![vip(0), vip(1)],
            sources: self.sources(),
            max_flows: self.max_flows,
            tag: Tag::default(),
            times: self.times.clone(),
        };
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        let here = &mut self.nodes[node];
        here.flows = Some(Flows::new(config, seed, self.now));
        here.dump_at = None;
        here.inbox.clear();
        here.up.fill(false);
        here.open.fill(false);
        // Sockets of this run hear nothing of before.
        here.kernel.events.clear();
        for vip in [VIP, SHARED] {
            let elected = self.nodes[node].elected[usize::from(vip.0)];
            self.give(node, Input::Elected { vip, elected });
        }
        for (source, elected) in (0..).map(SourceId).zip(self.nodes[node].sources.clone()) {
            self.give(node, Input::SourceElected { source, elected });
        }
        self.drain(node);
        self.build_channel(node);
    }

    /// The agent dies; what it knew is gone, the kernel goes on.
    pub(crate) fn kill(&mut self, node: usize) {
        self.drop_channel(node);
        if let Some(flows) = self.nodes[node].flows.take() {
            self.nodes[node].earlier.push(flows.counters());
            self.nodes[node].epoch += 1_000;
        }
    }

    pub(crate) fn restart(&mut self, node: usize) {
        self.kill(node);
        self.start_agent(node);
    }

    /// The host reboots: the kernel's table is gone, too.
    pub(crate) fn reboot(&mut self, node: usize) {
        self.nodes[node].kernel.lose_all();
        self.nodes[node].boot += 10_000;
        self.restart(node);
    }

    pub(crate) fn flows(&self, node: usize) -> &Flows {
        self.nodes[node].flows.as_ref().expect("the agent runs")
    }

    pub(crate) fn flows_mut(&mut self, node: usize) -> &mut Flows {
        self.nodes[node].flows.as_mut().expect("the agent runs")
    }

    pub(crate) fn counters(&self, node: usize) -> Counters {
        self.flows(node).counters()
    }

    pub(crate) fn give(&mut self, node: usize, input: Input<'_>) {
        let now = self.now;
        if let Some(flows) = &mut self.nodes[node].flows {
            flows.handle(now, input);
        }
    }

    /// Does what the node says, answers included, until nothing is left.
    pub(crate) fn drain(&mut self, node: usize) {
        loop {
            let Some(output) = self.nodes[node].flows.as_mut().and_then(Flows::poll_output) else {
                if self.feed_events(node) {
                    continue;
                }
                return;
            };
            match output {
                Output::Send { peer, bytes } => self.transmit(node, peer, bytes),
                Output::Kernel { ticket, op } => {
                    let result = self.nodes[node].kernel.apply(self.now, &op);
                    self.give(node, Input::Done { ticket, result });
                }
                Output::Dump if self.dump_takes.is_zero() => self.dump(node),
                Output::Dump => self.nodes[node].dump_at = Some(self.now + self.dump_takes),
                Output::Event(event) => self.nodes[node].events.push(event),
            }
        }
    }

    fn feed_events(&mut self, node: usize) -> bool {
        let mut any = false;
        while let Some(event) = self.nodes[node].kernel.events.pop_front() {
            self.give(node, Input::Kernel(&event));
            any = true;
        }
        if any {
            self.give(node, Input::Drained);
        }
        any
    }

    fn dump(&mut self, node: usize) {
        let now = self.now;
        let entries: Vec<_> = self.nodes[node].kernel.flows.values().map(|held| Kernel::entry(held, now)).collect();
        for entry in &entries {
            self.give(node, Input::Dumped(entry));
        }
        self.give(node, Input::DumpEnd { complete: true });
    }

    fn transmit(&mut self, from: usize, peer: PeerId, bytes: Vec<u8>) {
        assert!(bytes.len() <= BATCH_MAX, "{} bytes", bytes.len());
        let to = Self::node_of(from, peer);
        self.wire_bytes += bytes.len() as u64;
        self.datagrams += 1;
        self.kept.iter_mut().for_each(|kept| kept.push(bytes.clone()));
        if self.wire.is_some() {
            self.send_batch(from, peer, &bytes);
        } else {
            self.launch(from, to, bytes);
        }
    }

    /// Puts a datagram on its way.
    pub(crate) fn launch(&mut self, from: usize, to: usize, bytes: Vec<u8>) {
        if self.cuts.contains(&(from, to)) {
            return;
        }
        let copies = if self.chance(self.double_percent) { 2 } else { 1 };
        for _ in 0..copies {
            if self.chance(self.loss_percent) {
                continue;
            }
            let jitter = self.jitter.as_micros() as u64;
            let extra = Duration::from_micros(if jitter == 0 { 0 } else { self.rng.next_u64() % jitter });
            self.order += 1;
            let at = self.now + Duration::from_micros(200) + extra;
            self.in_flight.insert((at, self.order), (from, to, bytes.clone()));
        }
    }

    pub(crate) fn chance(&mut self, percent: u32) -> bool {
        percent > 0 && self.rng.next_u32() % 100 < percent
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.rng.next_u32() as usize % limit.max(1)
    }

    pub(crate) fn is_awake(&self, node: usize) -> bool {
        let here = &self.nodes[node];
        here.flows.is_some() && here.stalled_until.is_none_or(|until| until <= self.now)
    }

    /// What the channels say of the peers.
    fn check_links(&mut self) {
        let count = self.nodes.len();
        for (a, b) in (0..count).flat_map(|a| (0..count).map(move |b| (a, b))).filter(|(a, b)| a != b) {
            let reachable = !self.cuts.contains(&(a, b)) && !self.cuts.contains(&(b, a));
            if reachable && self.is_awake(a) && self.is_awake(b) {
                self.nodes[a].heard[b] = self.now;
                if !self.nodes[a].up[b] {
                    // A new session is one for both, also where one side didn't notice that the old one ended.
                    self.set_up(a, b, true);
                    self.set_up(b, a, true);
                }
            } else if self.is_awake(a) && self.nodes[a].up[b] && self.now >= self.nodes[a].heard[b] + IDLE {
                self.set_up(a, b, false);
            }
        }
    }

    fn set_up(&mut self, node: usize, other: usize, up: bool) {
        self.nodes[node].up[other] = up;
        self.nodes[node].heard[other] = self.now;
        let peer = self.peer(node, other);
        self.give(node, if up { Input::PeerUp { peer } } else { Input::PeerDown { peer } });
        self.drain(node);
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        let mut turns = 0;
        loop {
            let next = self.next_time().max(self.now);
            if next > end {
                self.now = end;
                return;
            }
            // A timer that fires without a pause would keep a whole core busy.
            turns = if next == self.now { turns + 1 } else { 0 };
            assert!(turns < 100_000, "the clock stands still");
            self.now = next;
            self.turn();
        }
    }

    /// Runs until `done`, at most for `limit`; whether it came.
    pub(crate) fn run_until(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + limit;
        while self.now < end && !done(self) {
            self.run_for(20 * MS);
        }
        done(self)
    }

    fn next_time(&self) -> Instant {
        let timers = (0..self.nodes.len())
            .filter(|node| self.is_awake(*node))
            .filter_map(|node| self.nodes[node].flows.as_ref()?.poll_timeout());
        let stalls = self.nodes.iter().filter_map(|node| node.stalled_until.filter(|until| *until > self.now));
        let network = self.in_flight.keys().map(|(at, _)| *at).next().into_iter().chain(self.wire_timeout());
        timers.chain(stalls).chain(network).chain([self.ticked + TICK]).min().expect("the tick is always there")
    }

    fn turn(&mut self) {
        if self.now >= self.ticked + TICK {
            self.ticked = self.now;
            if self.wire.is_none() {
                self.check_links();
            }
            for node in 0..self.nodes.len() {
                if !self.is_awake(node) {
                    self.nodes[node].stood_at = Some(self.now);
                }
                self.expire(node);
                self.note_open(node);
                let now = self.now;
                if self.is_awake(node) && self.nodes[node].dump_at.take_if(|at| *at <= now).is_some() {
                    self.dump(node);
                }
            }
        }
        while let Some(entry) = self.in_flight.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (from, to, bytes) = entry.remove();
            if self.nodes[to].flows.is_some() && self.nodes[to].inbox.len() < 4096 {
                self.nodes[to].inbox.push_back((from, bytes));
            }
        }
        for node in (0..self.nodes.len()).filter(|node| self.is_awake(*node)).collect::<Vec<_>>() {
            while let Some((from, bytes)) = self.nodes[node].inbox.pop_front() {
                if self.wire.is_some() {
                    self.receive(node, from, &bytes);
                } else if self.nodes[node].up[from] {
                    // A channel without a session delivers nothing.
                    let peer = self.peer(node, from);
                    self.give(node, Input::Batch { peer, bytes: &bytes });
                    self.drain(node);
                }
            }
            self.run_channel(node);
            self.feed_events(node);
            if self.nodes[node].flows.as_ref().and_then(Flows::poll_timeout).is_some_and(|at| at <= self.now) {
                self.give(node, Input::Timer);
            }
            self.drain(node);
        }
    }

    fn expire(&mut self, node: usize) {
        let now = self.now;
        for held in self.nodes[node].kernel.expire(now) {
            let key = Key { original: held.original, zone: 0 };
            let alive = self.clients.iter().any(|client| client.key() == key);
            // A session that opens renews all leases at once, and each later one is renewed in a third of it. So what
            // ran out before the sessions were open (a channel that came back at this very tick is too late) may go, and
            // nothing else.
            let linked = (0..self.nodes.len()).all(|other| other == node || self.nodes[node].open[other]);
            // Who stands still can renew nothing. Who wakes up makes up for a whole round in its first turn.
            let stood = self.nodes[node].stood_at.is_some_and(|at| now <= at + TICK);
            if alive && linked && held.mark != 0 && !stood {
                self.timed_out.push((node, key));
            }
        }
    }

    fn note_open(&mut self, node: usize) {
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            let (now, peer) = (self.now, self.peer(node, other));
            let direction = self.nodes[node].flows.as_ref().and_then(|flows| flows.inbound(now, peer));
            let open = direction.is_some_and(|direction| direction.why != Some(Why::NoSession));
            self.nodes[node].open[other] = open;
        }
    }

    /// Makes this node the VIP's holder, by all nodes' elections.
    pub(crate) fn move_vip(&mut self, vip: VipId, to: usize) {
        for node in 0..self.nodes.len() {
            let elected = if node == to { Elected::Me } else { Elected::Peer(self.peer(node, to)) };
            self.elect(node, vip, elected);
        }
    }

    pub(crate) fn elect(&mut self, node: usize, vip: VipId, elected: Elected) {
        self.nodes[node].elected[usize::from(vip.0)] = elected;
        self.give(node, Input::Elected { vip, elected });
        self.drain(node);
    }

    /// Each node's own SNAT addresses.
    fn sources(&self) -> Vec<Vec<IpAddr>> {
        (0..self.nodes.len()).map(|node| vec![Self::source(node, false), Self::source(node, true)]).collect()
    }

    fn source(node: usize, v6: bool) -> IpAddr {
        let last = 100 + node as u16;
        if v6 { IpAddr::from([0x2001, 0xdb8, 1, 0, 0, 0, 2, last]) } else { IpAddr::from([10, 2, 0, last as u8]) }
    }

    /// A node's SNAT address comes to this node, by all nodes' elections.
    pub(crate) fn move_source(&mut self, of: usize, to: usize) {
        for node in 0..self.nodes.len() {
            let elected = if node == to { Elected::Me } else { Elected::Peer(self.peer(node, to)) };
            self.elect_source(node, of, elected);
        }
    }

    pub(crate) fn elect_source(&mut self, node: usize, of: usize, elected: Elected) {
        self.nodes[node].sources[of] = elected;
        self.give(node, Input::SourceElected { source: SourceId(of as u8), elected });
        self.drain(node);
    }

    /// Opens flows of the shared VIP through this node, from its own SNAT address.
    pub(crate) fn open_sourced(&mut self, node: usize, count: usize) {
        for _ in 0..count {
            let client = self.next_client(SHARED, false);
            let answers = client.original.addresses.source().is_ipv6();
            let port = client.original.layer4.source_port();
            let backend = SocketAddr::new(client.reply.addresses.source(), 8080);
            let reply = Tuple::tcp(backend, SocketAddr::new(Self::source(node, answers), port)).expect("one family");
            self.open_client(node, Client { reply, ..client });
        }
        self.wake(node);
    }

    /// What the next client would be.
    pub(crate) fn next_client(&mut self, vip: VipId, udp: bool) -> Client {
        let number = self.next_client;
        self.next_client += 1;
        let (high, low, port) = ((number / 50_000) as u16, number % 50_000, 10_000 + (number % 50_000) as u16);
        let [client, address, backend, snat] = if self.v6 {
            let six = |last: u16, more: u16| IpAddr::from([0x2001, 0xdb8, 1, 0, 0, 0, more, last]);
            let address = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 10 + u16::from(vip.0)]);
            [six(7, high), address, six(20 + (low % 4) as u16, 0), six(1, 0)]
        } else {
            let backend = [10, 2, 0, 20 + (low % 4) as u8];
            [[198, 51, 100, 7 + high as u8], [192, 0, 2, 10 + vip.0], backend, [10, 2, 0, 1 + high as u8]]
                .map(IpAddr::from)
        };
        let tuple = if udp { Tuple::udp } else { Tuple::tcp };
        let original = tuple(SocketAddr::new(client, port), SocketAddr::new(address, 80)).expect("one family");
        let reply = tuple(SocketAddr::new(backend, 8080), SocketAddr::new(snat, port)).expect("one family");
        Client { original, reply, life: if udp { UDP_LIFE } else { TCP_LIFE }, vip }
    }

    /// Opens flows through this node.
    pub(crate) fn open(&mut self, node: usize, vip: VipId, count: usize) {
        for _ in 0..count {
            let client = self.next_client(vip, false);
            self.open_client(node, client);
        }
        self.wake(node);
    }

    pub(crate) fn open_client(&mut self, node: usize, client: Client) -> bool {
        let tcp = client.life == TCP_LIFE;
        let opened = self.nodes[node].kernel.open(self.now, client.original, client.reply, client.life, tcp);
        if opened {
            self.clients.push(client);
        }
        opened
    }

    /// The node reads its events.
    pub(crate) fn wake(&mut self, node: usize) {
        if self.is_awake(node) {
            self.feed_events(node);
            self.drain(node);
        }
    }

    /// Closes a client's flow through this node.
    pub(crate) fn close(&mut self, node: usize, place: usize) {
        let client = self.clients.swap_remove(place);
        self.nodes[node].kernel.close(self.now, &client.key());
        self.wake(node);
    }

    /// All clients of a VIP send through this node; how many of their flows it doesn't know or sends elsewhere. Those are
    /// broken from now on.
    pub(crate) fn traffic(&mut self, node: usize, vip: VipId) -> usize {
        let (now, before) = (self.now, self.clients.len());
        let kernel = &mut self.nodes[node].kernel;
        self.clients.retain(|client| {
            if client.vip != vip {
                return true;
            }
            let held = kernel.flows.get_mut(&client.key()).filter(|held| held.reply == client.reply);
            held.map(|held| held.until = now + client.life).is_some()
        });
        before - self.clients.len()
    }

    /// A packet of a client's flow comes to this node, of no kind that its kernel tells of. `false`: it is unknown there.
    pub(crate) fn packet(&mut self, node: usize, client: &Client) -> bool {
        let now = self.now;
        let held = self.nodes[node].kernel.flows.get_mut(&client.key()).filter(|held| held.reply == client.reply);
        held.map(|held| held.until = now + client.life).is_some()
    }

    /// All pairs of nodes hold each other's flows, as they say.
    pub(crate) fn all_in_sync(&self) -> bool {
        let count = self.nodes.len();
        (0..count).flat_map(|a| (0..count).map(move |b| (a, b))).filter(|(a, b)| a != b).all(|(a, b)| {
            let peer = self.peer(a, b);
            let directions = [self.flows(a).outbound(self.now, peer), self.flows(a).inbound(self.now, peer)];
            directions.into_iter().flatten().all(|direction| direction.why.is_none())
        })
    }

    /// What a node's table says of each flow: owner, generation, backend.
    pub(crate) fn table(&self, node: usize) -> BTreeMap<Key, (usize, u32, Option<SocketAddr>)> {
        let listed = self.flows(node).list().map(|flow| {
            let owner = match flow.owner {
                Whose::Ours => node,
                Whose::Peers(peer) => Self::node_of(node, peer),
                Whose::Past(_) => usize::MAX,
            };
            (flow.key, (owner, flow.generation, flow.backend))
        });
        listed.collect()
    }

    /// All nodes' tables are equal, and each kernel has what its node's table has.
    pub(crate) fn differences(&self) -> Vec<String> {
        let mut found = Vec::new();
        let first = self.table(0);
        for node in 0..self.nodes.len() {
            let table = self.table(node);
            for (key, value) in &table {
                if first.get(key) != Some(value) {
                    found.push(format!("{key:?}: node {node} {value:?}, node 0 {:?}", first.get(key)));
                }
                if !self.nodes[node].kernel.flows.contains_key(key) {
                    found.push(format!("{key:?} {value:?} isn't in node {node}'s kernel"));
                }
            }
            found.extend(
                first.iter().filter(|(key, _)| !table.contains_key(key)).map(|it| format!("{it:?} isn't at {node}")),
            );
            let stray = self.nodes[node].kernel.flows.iter().filter(|(key, _)| !table.contains_key(key));
            found.extend(stray.map(|(key, held)| format!("{key:?} mark {:x} only in kernel {node}", held.mark)));
        }
        found.truncate(12);
        found
    }

    /// The counters of a node's runs.
    fn runs(&self, node: usize) -> impl Iterator<Item = Counters> + '_ {
        let node = &self.nodes[node];
        node.earlier.iter().copied().chain(node.flows.as_ref().map(Flows::counters))
    }

    /// Over all runs of all nodes.
    pub(crate) fn sum(&self, of: impl Fn(&Counters) -> u64) -> u64 {
        (0..self.nodes.len()).flat_map(|node| self.runs(node)).map(|counters| of(&counters)).sum()
    }

    /// Nothing disturbs any more.
    pub(crate) fn heal(&mut self) {
        self.loss_percent = 0;
        self.double_percent = 0;
        self.jitter = Duration::ZERO;
        self.cuts.clear();
        for node in 0..self.nodes.len() {
            self.nodes[node].stalled_until = None;
            if self.nodes[node].kernel.deaf {
                self.hear_again(node);
            }
            if self.nodes[node].flows.is_none() {
                self.start_agent(node);
            }
        }
    }

    /// The event socket was too small for a while; the node learns that.
    pub(crate) fn hear_again(&mut self, node: usize) {
        self.nodes[node].kernel.deaf = false;
        self.give(node, Input::Overrun);
        self.drain(node);
    }
}
