//! What changes now comes before what there was: a peer that is being filled holds up nobody's new flow.

use holdfast_statesync::PeerId;
use holdfast_statesync::ct::{Entry, Event, EventKind, Extras, Status, Tcp, TcpState, Tuple, Zone};
use holdfast_statesync::flow::{
    Config, Elected, Flows, Input, Mode, NodeId, Op, Output, Tag, Ticket, Times, VipConfig, VipId,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

const PEER: PeerId = PeerId(0);

/// Two nodes, of which the first serves. The second's kernel is as slow as the test wants.
struct Pair {
    nodes: [Flows; 2],
    now: Instant,
    /// What the second asks of its kernel, unanswered.
    asked: Vec<(Ticket, Op)>,
}

impl Pair {
    fn new() -> Self {
        #[allow(clippy::disallowed_methods, reason = "time is only compared here")]
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
            max_flows: 100_000,
            tag: Tag::default(),
            times: Times::default(),
        };
        let nodes = [1, 2].map(|node| Flows::new(config(node), [node as u8; 32], now));
        let mut pair = Self { nodes, now, asked: Vec::new() };
        pair.pump();
        for (node, elected) in [(0, Elected::Me), (1, Elected::Peer(PEER))] {
            pair.nodes[node].handle(now, Input::Elected { vip: VipId(0), elected });
        }
        pair
    }

    fn pump(&mut self) {
        let mut moved = true;
        while std::mem::take(&mut moved) {
            for node in 0..2 {
                while let Some(output) = self.nodes[node].poll_output() {
                    moved = true;
                    match output {
                        Output::Send { bytes, .. } => {
                            self.nodes[1 - node].handle(self.now, Input::Batch { peer: PEER, bytes: &bytes });
                        }
                        Output::Kernel { ticket, op } if node == 1 => self.asked.push((ticket, op)),
                        Output::Kernel { ticket, .. } => {
                            self.nodes[0].handle(self.now, Input::Done { ticket, result: Ok(()) });
                        }
                        Output::Dump => self.nodes[node].handle(self.now, Input::DumpEnd { complete: true }),
                        Output::Event(_) => {}
                    }
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

    fn opens(&mut self, number: u16) {
        let event = Event { kind: EventKind::New, port_id: 0, entry: entry(number) };
        self.nodes[0].handle(self.now, Input::Kernel(&event));
        self.nodes[0].handle(self.now, Input::Drained);
        self.pump();
    }
}

fn entry(number: u16) -> Entry {
    let client = SocketAddr::from(([10, 0, 0, 1], number));
    let vip = SocketAddr::from(([192, 0, 2, 10], 80));
    let backend = SocketAddr::from(([10, 2, 0, 20], 8080));
    Entry {
        original: Tuple::tcp(client, vip).expect("one family"),
        reply: Tuple::tcp(backend, client).expect("one family"),
        zone: Zone::default(),
        status: Some(Status::CONFIRMED.with(Status::SEEN_REPLY).with(Status::ASSURED).with(Status::DST_NAT)),
        timeout_s: Some(432_000),
        mark: Some(0),
        id: Some(u32::from(number)),
        tcp: Some(Tcp { state: TcpState::Established, sides: None }),
        sequence_adjustment: [None, None],
        syn_proxy: None,
        event_ns: None,
        extras: Extras::default(),
    }
}

#[test]
fn a_new_flow_is_written_before_those_of_a_snapshot_that_wait() {
    const MANY: u16 = 20_000;
    let mut pair = Pair::new();
    (1..=MANY).for_each(|number| pair.opens(number));
    for node in &mut pair.nodes {
        node.handle(pair.now, Input::PeerUp { peer: PEER });
    }
    pair.pump();
    // All of them arrive; the kernel answers nothing.
    for _ in 0..2_000 {
        pair.pass(Duration::from_millis(1));
    }
    let there = pair.nodes[1].replicas_of(PEER);
    assert_eq!(there, usize::from(MANY), "the snapshot is there");
    let waiting = pair.asked.len();
    assert!((1..1_000).contains(&waiting), "{waiting} of them are being written, the others wait");

    pair.opens(MANY + 1);
    pair.pass(Duration::from_millis(1));
    let is_new = |(_, op): &(Ticket, Op)| matches!(op, Op::Create(made) if made.original == entry(MANY + 1).original);
    assert!(pair.asked[waiting..].iter().any(is_new), "a new flow is asked for at once");

    // The rest of them are written all the same.
    let mut written = 0;
    while let Some((ticket, _)) = pair.asked.pop() {
        written += 1;
        pair.nodes[1].handle(pair.now, Input::Done { ticket, result: Ok(()) });
        pair.pump();
    }
    assert_eq!(written, usize::from(MANY) + 1);
}
