//! Any batches from an authenticated peer: no panic, no timer without a pause, no batch or table that is too large, no
//! delete that isn't the owner's, and nothing of a VIP that the peer doesn't share is touched.

use holdfast_statesync::PeerId;
use holdfast_statesync::ct::{Entry, Event, EventKind, Extras, Key, Status, Tcp, TcpState, Tuple, Zone};
use holdfast_statesync::flow::{
    BATCH_MAX, Config, Elected, Flows, Input, Listed, Mode, NodeId, Op, Output, Tag, Times, VipConfig, VipId,
};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// The peer that sends, and one that only owns flows.
const SENDER: PeerId = PeerId(0);
const OTHER: PeerId = PeerId(1);

/// VIPs that the sender shares, and doesn't.
const SHARED: [u8; 4] = [192, 0, 2, 10];
const FOREIGN: [u8; 4] = [192, 0, 2, 11];

const MAX_FLOWS: usize = 64;

/// The session under which the input's records go out.
const SESSION: u32 = 7;

/// The first byte: bit 0 a hello goes first, bit 1 what comes back is acknowledged, bit 2 the shared VIP is ours, bits 3
/// and 4 what the kernel says to each operation (done, exists, doesn't exist, no memory).
///
/// Then steps: a kind (its low two bits count), a length (2 bytes, little-endian), so many bytes. 0: a batch as it is; 1:
/// records, for which a head is written; 2: time passes, 10 ms times the length; 3: the session ends and begins anew.
///
/// Returns how many batches were applied.
pub(crate) fn run(data: &[u8]) -> u64 {
    let Some((&options, mut rest)) = data.split_first() else { return 0 };
    let mut node = Node::new(options);
    if options & 1 != 0 {
        node.records(&hello());
    }
    while let Some(([kind, low, high], more)) = rest.split_first_chunk::<3>() {
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let body = &more[..length.min(more.len())];
        match kind & 3 {
            0 => node.batch(body),
            1 => node.records(body),
            2 => node.pass(Duration::from_millis(10) * (length as u32 & 0xfff)),
            _ => node.anew(),
        }
        rest = if kind & 3 == 2 { more } else { &more[body.len()..] };
    }
    node.flows.counters().batches_applied
}

fn hello() -> Vec<u8> {
    let mut bytes = vec![1, 50, 0];
    for word in [5, 6, u64::MAX] {
        bytes.extend_from_slice(&u64::to_le_bytes(word));
    }
    bytes.extend_from_slice(&2_u32.to_le_bytes());
    bytes.extend_from_slice(&[9; 16]);
    bytes.extend_from_slice(&[1, 4, 0, 0, 0, 0]);
    bytes
}

struct Node {
    flows: Flows,
    now: Instant,
    options: u8,
    sequence: u32,
    /// Session and highest sequence that came from it.
    heard: (u32, u32),
    foreign: Vec<Listed>,
}

impl Node {
    fn new(options: u8) -> Self {
        // Time is only compared here.
        #[allow(clippy::disallowed_methods)]
        let now = Instant::now();
        let six = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
        let vip = |four: [u8; 4], last: u16, peers: u8| VipConfig {
            addresses: vec![four.into(), six(last)],
            mode: Mode::Syn,
            shared: false,
            peers,
        };
        let config = Config {
            node: NodeId(1),
            boot: 1,
            epoch: 1,
            port_id: 777,
            peers: vec![NodeId(2), NodeId(3)],
            vips: vec![vip(SHARED, 10, 0b11), vip(FOREIGN, 11, 0b10)],
            sources: Vec::new(),
            max_flows: MAX_FLOWS,
            tag: Tag::default(),
            times: Times::default(),
        };
        let flows = Flows::new(config, [3; 32], now);
        let mut node = Self { flows, now, options, sequence: 1, heard: (0, 0), foreign: Vec::new() };
        // A replica of the other peer's is in the kernel already; flows of ours begin.
        node.flows.handle(now, Input::Dumped(&entry(FOREIGN, 1, Tag::default().of(NodeId(3)))));
        node.flows.handle(now, Input::DumpEnd { complete: true });
        for vip in [0, 1] {
            let elected = if vip == 0 && options & 4 != 0 { Elected::Me } else { Elected::Unknown };
            node.flows.handle(now, Input::Elected { vip: VipId(vip), elected });
        }
        node.flows.handle(now, Input::PeerUp { peer: OTHER });
        node.flows.handle(now, Input::PeerUp { peer: SENDER });
        for (vip, client) in [(SHARED, 2), (FOREIGN, 3)] {
            let event = Event { kind: EventKind::New, port_id: 0, entry: entry(vip, client, 0) };
            node.flows.handle(now, Input::Kernel(&event));
        }
        node.flows.handle(now, Input::Drained);
        node.settle();
        node.foreign = node.of_foreign_vip();
        assert_eq!(node.foreign.len(), 2);
        node
    }

    fn of_foreign_vip(&self) -> Vec<Listed> {
        self.flows.list().filter(|flow| flow.vip == VipId(1)).collect()
    }

    fn batch(&mut self, bytes: &[u8]) {
        self.flows.handle(self.now, Input::Batch { peer: SENDER, bytes });
        self.settle();
        assert_eq!(self.of_foreign_vip(), self.foreign, "the sender doesn't share this VIP");
    }

    fn records(&mut self, records: &[u8]) {
        let mut bytes = vec![1, 1];
        bytes.extend_from_slice(&SESSION.to_le_bytes());
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        self.sequence += 1;
        if self.options & 2 != 0 {
            let (session, highest) = self.heard;
            bytes.extend_from_slice(&[2, 16, 0]);
            bytes.extend_from_slice(&session.to_le_bytes());
            bytes.extend_from_slice(&highest.to_le_bytes());
            bytes.extend_from_slice(&u64::MAX.to_le_bytes());
        }
        bytes.extend_from_slice(records);
        self.batch(&bytes);
    }

    fn anew(&mut self) {
        self.flows.handle(self.now, Input::PeerDown { peer: SENDER });
        self.flows.handle(self.now, Input::PeerUp { peer: SENDER });
        self.settle();
    }

    /// Its timers fire in time.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.flows.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.settle();
        }
        self.now = end;
        self.settle();
    }

    /// Does what it says until nothing is left and nothing is due.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            while let Some(output) = self.flows.poll_output() {
                self.answer(output);
            }
            if self.flows.poll_timeout().is_none_or(|at| at > self.now) {
                let counters = self.flows.counters();
                assert_eq!(counters.foreign_deletes_applied, 0);
                assert!(self.flows.records() <= MAX_FLOWS);
                return;
            }
            self.flows.handle(self.now, Input::Timer);
        }
        panic!("a timer that is due for ever");
    }

    fn answer(&mut self, output: Output) {
        match output {
            Output::Send { peer, bytes } => {
                assert!(bytes.len() <= BATCH_MAX, "{} bytes", bytes.len());
                let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
                if peer == SENDER && bytes[1] & 1 != 0 {
                    self.heard = (word(2), word(6));
                }
            }
            Output::Kernel { ticket, op } => {
                // Only its own lease is renewed, as it was.
                let renews = |original: &Tuple, mark: Option<u32>| {
                    original.addresses.destination() != IpAddr::from(FOREIGN)
                        || mark == Some(Tag::default().of(NodeId(3)))
                };
                let fine = match &op {
                    Op::Update(replica) => renews(&replica.original, replica.mark.map(|mark| mark.value)),
                    Op::Create(replica) => renews(&replica.original, None),
                    Op::Delete { key, .. } => renews(&key.original, None),
                };
                assert!(fine, "{op:?}");
                let result = match self.options >> 3 & 3 {
                    0 => Ok(()),
                    1 => Err(17),
                    2 => Err(2),
                    _ => Err(12),
                };
                // The replica of the foreign VIP is there.
                let key = match &op {
                    Op::Update(replica) | Op::Create(replica) => Key { original: replica.original, zone: 0 },
                    Op::Delete { key, .. } => *key,
                };
                let foreign = key.original.addresses.destination() == IpAddr::from(FOREIGN);
                self.flows.handle(self.now, Input::Done { ticket, result: if foreign { Ok(()) } else { result } });
            }
            // What it had is still there: a table that says nothing is one that was cut off.
            Output::Dump => self.flows.handle(self.now, Input::DumpEnd { complete: false }),
            Output::Event(_) => {}
        }
    }
}

/// An open TCP flow of a VIP.
fn entry(vip: [u8; 4], client: u8, mark: u32) -> Entry {
    let client = SocketAddr::from(([198, 51, 100, client], 40_000));
    let original = Tuple::tcp(client, SocketAddr::from((vip, 80))).expect("one family");
    let reply = Tuple::tcp(SocketAddr::from(([10, 2, 0, 20], 8080)), client).expect("one family");
    Entry {
        original,
        reply,
        zone: Zone::default(),
        status: Some(Status::CONFIRMED.with(Status::SEEN_REPLY).with(Status::ASSURED).with(Status::DST_NAT)),
        timeout_s: Some(600),
        mark: Some(mark),
        id: Some(u32::from(client.port())),
        tcp: Some(Tcp { state: TcpState::Established, sides: None }),
        sequence_adjustment: [None, None],
        syn_proxy: None,
        extras: Extras::default(),
        event_ns: None,
    }
}
