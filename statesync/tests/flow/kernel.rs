//! A connection table as the kernel keeps it, as far as replication can tell: both tuples unique, timeouts, marks, names,
//! and the errors that ctnetlink gives.

use holdfast_statesync::ct::{Entry, Event, EventKind, Extras, Key, Replica, Status, Tcp, TcpState, Tuple, Zone};
use holdfast_statesync::flow::Op;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

const EEXIST: i32 = 17;
const ENOENT: i32 = 2;
const ENOMEM: i32 = 12;

/// The port id of the agent's socket.
pub(crate) const OURS: u32 = 777;

#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) original: Tuple,
    pub(crate) reply: Tuple,
    pub(crate) zone: Zone,
    pub(crate) status: Status,
    pub(crate) tcp: Option<Tcp>,
    pub(crate) mark: u32,
    pub(crate) id: u32,
    pub(crate) until: Instant,
    /// When the agent last wrote it.
    pub(crate) written: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct Kernel {
    pub(crate) flows: BTreeMap<Key, Held>,
    replies: BTreeMap<Tuple, Key>,
    next_id: u32,
    pub(crate) events: VecDeque<Event>,
    /// Events are lost.
    pub(crate) deaf: bool,
    pub(crate) lost_events: u64,
    pub(crate) max: usize,
}

impl Kernel {
    pub(crate) fn new() -> Self {
        Self { max: usize::MAX, next_id: 1, ..Self::default() }
    }

    pub(crate) fn entry(held: &Held, now: Instant) -> Entry {
        Entry {
            original: held.original,
            reply: held.reply,
            zone: held.zone,
            status: Some(held.status),
            timeout_s: Some(held.until.saturating_duration_since(now).as_secs() as u32),
            mark: Some(held.mark),
            id: Some(held.id),
            tcp: held.tcp,
            sequence_adjustment: [None, None],
            syn_proxy: None,
            extras: Extras::default(),
            event_ns: None,
        }
    }

    fn tell(&mut self, kind: EventKind, port_id: u32, held: &Held, now: Instant) {
        if self.deaf {
            self.lost_events += 1;
            return;
        }
        let mut entry = Self::entry(held, now);
        if kind == EventKind::Destroy {
            entry.timeout_s = None;
            entry.tcp = entry.tcp.map(|tcp| Tcp { sides: None, ..tcp });
        }
        self.events.push_back(Event { kind, port_id, entry });
    }

    fn put(&mut self, now: Instant, port_id: u32, mut held: Held) {
        let key = Key { original: held.original, zone: held.zone.original() };
        held.id = self.next_id;
        self.next_id += 1;
        self.tell(EventKind::New, port_id, &held, now);
        self.replies.insert(held.reply, key);
        self.flows.insert(key, held);
    }

    fn is_taken(&self, original: Tuple, reply: &Tuple) -> bool {
        self.flows.contains_key(&Key { original, zone: 0 }) || self.replies.contains_key(reply)
    }

    /// A connection is opened through this node. `false`: a tuple is taken.
    pub(crate) fn open(&mut self, now: Instant, original: Tuple, reply: Tuple, life: Duration, tcp: bool) -> bool {
        if self.is_taken(original, &reply) {
            return false;
        }
        let status = Status::CONFIRMED.with(Status::SEEN_REPLY).with(Status::ASSURED).with(Status::DST_NAT);
        let tcp = tcp.then_some(Tcp { state: TcpState::Established, sides: None });
        let (zone, until) = (Zone::default(), now + life);
        self.put(now, 0, Held { original, reply, zone, status, tcp, mark: 0, id: 0, until, written: None });
        true
    }

    /// Takes an entry out, by this port id.
    pub(crate) fn take(&mut self, now: Instant, key: &Key, port_id: u32) -> Option<Held> {
        let held = self.flows.remove(key)?;
        self.replies.remove(&held.reply);
        self.tell(EventKind::Destroy, port_id, &held, now);
        Some(held)
    }

    /// The connection is closed by packets.
    pub(crate) fn close(&mut self, now: Instant, key: &Key) {
        if let Some(tcp) = self.flows.get_mut(key).and_then(|held| held.tcp.as_mut()) {
            tcp.state = TcpState::TimeWait;
        }
        self.take(now, key, 0);
    }

    /// What has no time left goes.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<Held> {
        let over: Vec<Key> = self.flows.iter().filter(|(_, held)| held.until <= now).map(|(key, _)| *key).collect();
        over.iter().filter_map(|key| self.take(now, key, 0)).collect()
    }

    /// `conntrack -F`.
    pub(crate) fn flush(&mut self, now: Instant) {
        let keys: Vec<Key> = self.flows.keys().copied().collect();
        keys.iter().for_each(|key| {
            self.take(now, key, 4242);
        });
    }

    /// The host reboots.
    pub(crate) fn lose_all(&mut self) {
        self.flows.clear();
        self.replies.clear();
        self.events.clear();
    }

    pub(crate) fn apply(&mut self, now: Instant, op: &Op) -> Result<(), i32> {
        match op {
            Op::Create(replica) if self.is_taken(replica.original, &replica.reply) => Err(EEXIST),
            Op::Create(_) if self.flows.len() >= self.max => Err(ENOMEM),
            Op::Create(replica) => {
                self.put(now, OURS, Self::of(now, replica));
                Ok(())
            }
            Op::Update(replica) => self.update(now, replica),
            Op::Delete { key, id } => {
                let held = self.flows.get(key).ok_or(ENOENT)?;
                if id.is_some_and(|id| id != held.id) {
                    return Err(ENOENT);
                }
                self.take(now, key, OURS);
                Ok(())
            }
        }
    }

    fn of(now: Instant, replica: &Replica) -> Held {
        Held {
            original: replica.original,
            reply: replica.reply,
            zone: replica.zone,
            status: replica.status.with(Status::CONFIRMED),
            tcp: replica.tcp,
            mark: replica.mark.map_or(0, |mark| mark.value & mark.mask),
            id: 0,
            until: now + Duration::from_secs(u64::from(replica.timeout_s)),
            written: Some(now),
        }
    }

    fn update(&mut self, now: Instant, replica: &Replica) -> Result<(), i32> {
        let key = Key { original: replica.original, zone: replica.zone.original() };
        let held = self.flows.get_mut(&key).ok_or(ENOENT)?;
        held.until = now + Duration::from_secs(u64::from(replica.timeout_s));
        held.written = Some(now);
        if let Some(mark) = replica.mark {
            held.mark = held.mark & !mark.mask | mark.value & mark.mask;
        }
        held.status = held.status.with(replica.status);
        held.tcp = replica.tcp.or(held.tcp);
        let held = held.clone();
        self.tell(EventKind::Update, OURS, &held, now);
        Ok(())
    }
}
