//! What replication costs in user space, both sides together: from the kernel's event to the peer's operation on its own
//! kernel, acknowledgement included; and what a table of a million flows takes to be sent and compared.
//! `cargo bench -p holdfast-statesync --bench flow`. The allocations counted beside the times matter as much.

use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher, black_box};
use holdfast_statesync::PeerId;
use holdfast_statesync::ct::{Entry, Event, EventKind, Extras, Status, Tcp, TcpState, Tuple, Zone};
use holdfast_statesync::flow::{
    Config, Elected, Flows, Input, Mode, NodeId, Output, Tag, Ticket, Times, VipConfig, VipId,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATIONS: AllocProfiler = AllocProfiler::system();

const PEER: PeerId = PeerId(0);
const MILLION: u32 = 1_000_000;

fn main() {
    divan::main();
}

/// Two nodes; the first holds the VIP. Their kernels do everything at once; nothing is lost between them.
struct Pair {
    nodes: [Flows; 2],
    now: Instant,
    datagrams: usize,
    bytes: usize,
    tickets: Vec<Ticket>,
}

impl Pair {
    fn new() -> Self {
        // Time is only compared here.
        #[allow(clippy::disallowed_methods)]
        let now = Instant::now();
        let config = |node: u32| Config {
            node: NodeId(node),
            boot: 1,
            epoch: u64::from(node),
            port_id: 777,
            peers: vec![NodeId(3 - node)],
            vips: vec![VipConfig {
                addresses: vec![Ipv4Addr::new(192, 0, 2, 10).into()],
                mode: Mode::Assured,
                shared: false,
                peers: 1,
            }],
            sources: Vec::new(),
            max_flows: 2 * MILLION as usize,
            tag: Tag::default(),
            times: Times::default(),
        };
        let nodes = [1, 2].map(|node| Flows::new(config(node), [node as u8; 32], now));
        let mut pair = Self { nodes, now, datagrams: 0, bytes: 0, tickets: Vec::new() };
        pair.pump();
        for (node, elected) in [(0, Elected::Me), (1, Elected::Peer(PEER))] {
            pair.nodes[node].handle(now, Input::Elected { vip: VipId(0), elected });
        }
        pair
    }

    fn connect(&mut self) {
        for node in &mut self.nodes {
            node.handle(self.now, Input::PeerUp { peer: PEER });
        }
        self.pump();
    }

    /// What they say is done at once.
    fn pump(&mut self) {
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for node in 0..2 {
                while let Some(output) = self.nodes[node].poll_output() {
                    moved = true;
                    match output {
                        Output::Send { bytes, .. } => {
                            self.datagrams += 1;
                            self.bytes += bytes.len();
                            self.nodes[1 - node].handle(self.now, Input::Batch { peer: PEER, bytes: &bytes });
                            self.nodes[node].reuse(bytes);
                        }
                        Output::Kernel { ticket, op } => {
                            black_box(&op);
                            self.tickets.push(ticket);
                        }
                        Output::Dump => self.nodes[node].handle(self.now, Input::DumpEnd { complete: true }),
                        Output::Event(_) => {}
                    }
                }
                while let Some(ticket) = self.tickets.pop() {
                    self.nodes[node].handle(self.now, Input::Done { ticket, result: Ok(()) });
                }
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for node in 0..2 {
            while self.nodes[node].poll_timeout().is_some_and(|at| at <= self.now) {
                self.nodes[node].handle(self.now, Input::Timer);
                self.pump();
            }
        }
    }

    fn in_sync(&self) -> bool {
        let why = |node: &Flows| node.outbound(self.now, PEER).map(|direction| direction.why);
        self.nodes.iter().all(|node| why(node) == Some(None))
    }

    /// Until each holds all of the other's.
    fn sync(&mut self) {
        while !self.in_sync() {
            self.pass(Duration::from_millis(1));
        }
    }

    /// The first node's kernel tells this of some flows, one burst.
    fn tell(&mut self, events: &[Event]) {
        for event in events {
            self.nodes[0].handle(self.now, Input::Kernel(event));
        }
        self.nodes[0].handle(self.now, Input::Drained);
        self.pump();
        self.pass(Duration::from_micros(10) * events.len() as u32);
    }
}

fn event(kind: EventKind, number: u32) -> Event {
    let client =
        SocketAddr::from((Ipv4Addr::from_bits(0x0a80_0000 + number / 50_000), 10_000 + (number % 50_000) as u16));
    let original = Tuple::tcp(client, SocketAddr::from(([192, 0, 2, 10], 80))).expect("one family");
    let backend = SocketAddr::from(([10, 2, 0, 20 + (number % 4) as u8], 8080));
    let snat = SocketAddr::from((Ipv4Addr::from_bits(0x0a03_0000 + number / 50_000), client.port()));
    let reply = Tuple::tcp(backend, snat).expect("one family");
    let entry = Entry {
        original,
        reply,
        zone: Zone::default(),
        status: Some(Status::CONFIRMED.with(Status::SEEN_REPLY).with(Status::ASSURED).with(Status::DST_NAT)),
        timeout_s: Some(432_000),
        mark: Some(0),
        id: Some(number + 1),
        tcp: Some(Tcp { state: TcpState::Established, sides: None }),
        sequence_adjustment: [None, None],
        syn_proxy: None,
        extras: Extras::default(),
        event_ns: None,
    };
    Event { kind, port_id: 0, entry }
}

/// Flows begin and end, so many events at once.
#[divan::bench(args = [1, 8, 64])]
fn event_to_the_peers_kernel(bencher: Bencher<'_, '_>, burst: usize) {
    const FLOWS: u32 = 512;
    let mut pair = Pair::new();
    pair.connect();
    pair.sync();
    let events: Vec<Event> = [EventKind::New, EventKind::Destroy]
        .into_iter()
        .flat_map(|kind| (0..FLOWS).map(move |at| event(kind, at)))
        .collect();
    // A few rounds, so that all memory is there.
    for _ in 0..4 {
        events.chunks(burst).for_each(|events| pair.tell(events));
    }
    (pair.bytes, pair.datagrams) = (0, 0);
    let mut rounds = 0;
    bencher.counter(ItemsCount::new(events.len())).bench_local(|| {
        events.chunks(burst).for_each(|events| pair.tell(events));
        rounds += 1;
    });
    let count = (rounds * events.len()).max(1) as f64;
    let (bytes, around) = (pair.bytes as f64 / count, pair.datagrams as f64 * 61.0 / count);
    eprintln!("bursts of {burst}: {bytes:.1} bytes per event, {:.1} with all that is around", bytes + around);
}

fn filled(count: u32) -> Pair {
    let mut pair = Pair::new();
    let now = pair.now;
    for number in 0..count {
        pair.nodes[0].handle(now, Input::Kernel(&event(EventKind::New, number)));
    }
    pair.pump();
    pair
}

/// A peer that has nothing gets a million flows; until it is known to have them all.
#[divan::bench(sample_count = 3, sample_size = 1)]
fn snapshot_of_a_million(bencher: Bencher<'_, '_>) {
    bencher.counter(ItemsCount::new(MILLION)).with_inputs(|| filled(MILLION)).bench_local_values(|mut pair| {
        pair.connect();
        pair.sync();
        let each = |node: usize| pair.nodes[node].memory() as f64 / f64::from(MILLION);
        eprintln!(
            "{:.1} and {:.1} bytes of memory per flow, {:.1} bytes sent per flow",
            each(0),
            each(1),
            (pair.bytes + 61 * pair.datagrams) as f64 / f64::from(MILLION)
        );
        pair
    });
}

/// Both have the same million flows and the session is new: until that is known.
#[divan::bench(sample_count = 20, sample_size = 1)]
fn comparison_of_a_million(bencher: Bencher<'_, '_>) {
    let mut pair = filled(MILLION);
    pair.connect();
    pair.sync();
    bencher.counter(ItemsCount::new(MILLION)).bench_local(|| {
        (pair.bytes, pair.datagrams) = (0, 0);
        pair.connect();
        pair.sync();
    });
    eprintln!("{} bytes in {} datagrams", pair.bytes, pair.datagrams);
}
