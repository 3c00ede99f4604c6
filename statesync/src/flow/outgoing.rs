//! What goes to a peer: which lane comes next, how a batch is filled, what acknowledgements and losses mean.

use super::peer::{ClaimNote, Control, Flight};
use super::record::{DEAD, FRESH, Id, NO_ADDRESS, SCALED, SENT_FLAGS, URGENT};
use super::types::Output;
use super::wire::{BATCH_MAX, DEFINITIONS_MAX, Hello, RECORD_MAX, Record, Sums, Upsert, Writer};
use super::{Flows, ME, peer_id};
use std::time::{Duration, Instant};

/// What waits goes out after this time at the latest,
const FLUSH_AFTER: Duration = Duration::from_micros(250);

/// or when so many flows wait.
const FLUSH_COUNT: usize = 64;

/// Flows in one batch.
const BATCH_FLOWS: usize = 64;

/// Each so manieth batch belongs to the bulk lane.
const BULK_TURN: u32 = 10;

/// Room that a control record may need, digests aside.
const CONTROL_ROOM: usize = 80;

/// Lists and buffers that are kept for later batches, each.
const SPARES_MAX: usize = 64;

/// The record that ends a shard.
const END_LEN: usize = 9;

/// What a batch in the making will be remembered by.
#[derive(Default)]
struct Load {
    keys: Vec<(Id, u8)>,
    numbers: Vec<(u8, u32, u8)>,
    claims: Vec<ClaimNote>,
    hello: Option<u8>,
    sequenced: bool,
}

impl Flows {
    /// When what waits for company goes out all the same. Not a deadline that stays: most of it goes with the next event.
    pub(super) fn flush_at(&self) -> Option<Instant> {
        self.peers.iter().filter_map(super::peer::Peer::flows_since).min().map(|since| since + FLUSH_AFTER)
    }

    /// What waits goes out: no event of the kernel waits any more.
    pub(super) fn flush_all(&mut self, now: Instant) {
        (0..self.peers.len()).for_each(|index| self.send(now, index));
    }

    /// The same for peers for which a batch is full.
    pub(super) fn flush_full(&mut self, now: Instant) {
        for index in 0..self.peers.len() {
            let Some(tx) = self.peers.get(index).map(|peer| &peer.tx) else { return };
            if tx.urgent.len() + tx.refresh.len() >= FLUSH_COUNT && tx.has_room() {
                self.send(now, index);
            }
        }
    }

    /// Sends what is due, and says when to come again.
    pub(super) fn flush_due(&mut self, now: Instant, index: usize) {
        let Some(peer) = self.peers.get(index).filter(|peer| peer.up) else { return };
        let hello = peer.tx.hello_next(now);
        let flows = peer.flows_since().map(|since| since + FLUSH_AFTER);
        let bulk = (peer.tx.bulk.len() > 0 && peer.tx.has_room_for_bulk() && peer.is_open()).then_some(now);
        let control = (!peer.tx.control.is_empty() && peer.tx.has_room()).then_some(now);
        if [hello, flows, bulk, control, peer.rx.ack_at].into_iter().flatten().any(|at| at <= now) {
            self.send(now, index);
        }
        let Some(peer) = self.peers.get(index) else { return };
        let hello = peer.tx.hello_next(now);
        let next = [hello, peer.rx.ack_at, peer.tx.retry_at()].into_iter().flatten().min();
        if let Some(at) = next {
            self.arm(at);
        }
    }

    /// Sends as much as the window allows.
    fn send(&mut self, now: Instant, index: usize) {
        let mut writer = std::mem::take(&mut self.writer);
        while self.peers.get(index).is_some_and(|peer| peer.up) && self.send_one(now, index, &mut writer) {}
        self.writer = writer;
    }

    /// Sends one batch, or a shard. `false`: there was nothing, or no room in the window.
    fn send_one(&mut self, now: Instant, index: usize, writer: &mut Writer) -> bool {
        let Some(peer) = self.peers.get_mut(index) else { return false };
        let has_room = peer.tx.has_room();
        let flows_wait = !peer.tx.urgent.is_empty() || !peer.tx.refresh.is_empty();
        let is_bulk_turn = peer.tx.turn % BULK_TURN == BULK_TURN - 1 || !flows_wait;
        if let Some(shard) = peer.tx.bulk.next().filter(|_| is_bulk_turn && peer.tx.has_room_for_bulk())
            && peer.is_open()
        {
            peer.tx.turn = peer.tx.turn.wrapping_add(1);
            self.send_shard(now, index, shard, writer);
            return true;
        }
        let mut load = Load { keys: self.spare_keys.pop().unwrap_or_default(), ..Load::default() };
        self.begin(index, writer);
        let before = writer.len();
        if has_room {
            self.put_hello(now, index, writer, &mut load);
            self.put_control(now, index, writer, &mut load);
            if self.peers.get(index).is_some_and(super::peer::Peer::is_open) {
                self.put_waiting(index, writer, &mut load);
            }
        }
        let ack_due = self.peers.get(index).and_then(|peer| peer.rx.ack_at).is_some_and(|at| at <= now);
        // An acknowledgement alone waits for company.
        if writer.is_empty() || (writer.len() == before && !ack_due) {
            self.spare(load.keys);
            return false;
        }
        let sequenced = load.sequenced;
        self.finish(now, index, writer, load);
        sequenced || self.peers.get(index).is_some_and(|peer| !peer.tx.control.is_empty())
    }

    /// Starts a batch with the acknowledgement that is due.
    fn begin(&mut self, index: usize, writer: &mut Writer) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        writer.begin(peer.tx.session);
        if peer.rx.unacked > 0
            && let Some((_, session)) = peer.rx.session
        {
            let ack = Record::Ack { session, highest: peer.rx.highest, applied: peer.rx.applied };
            writer.other(&ack, &[]);
        }
    }

    fn finish(&mut self, now: Instant, index: usize, writer: &mut Writer, load: Load) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.rx.unacked = 0;
        peer.rx.ack_at = None;
        let retry_at = now + peer.tx.retry;
        if load.sequenced {
            let sequence = peer.tx.sequence;
            peer.tx.sequence += 1;
            writer.sequence(sequence);
            let Load { keys, numbers, claims, hello, .. } = load;
            peer.tx.flights.push_back(Flight { sequence, sent_at: now, keys, numbers, claims, hello });
            self.arm(retry_at);
        } else {
            self.spare(load.keys);
        }
        let bytes = writer.copy_to(self.spare_buffers.pop().unwrap_or_default());
        self.counters.batches_sent += 1;
        self.counters.bytes_sent += bytes.len() as u64;
        self.counters.records_sent += writer.records() as u64;
        // Not bounded by the outputs' limit: the window bounds it.
        self.outbox.queue.push_back(Output::Send { peer: peer_id(index), bytes });
    }

    /// Keeps a list's memory for the next batch.
    fn spare(&mut self, mut keys: Vec<(Id, u8)>) {
        if self.spare_keys.len() < SPARES_MAX && keys.capacity() > 0 {
            keys.clear();
            self.spare_keys.push(keys);
        }
    }

    /// Takes the buffer of an [`Output::Send`] back once it was sent: its memory serves for the next batch. Without this
    /// each batch allocates one.
    pub fn reuse(&mut self, buffer: Vec<u8>) {
        if self.spare_buffers.len() < SPARES_MAX && (1..=2 * BATCH_MAX).contains(&buffer.capacity()) {
            self.spare_buffers.push(buffer);
        }
    }

    fn put_hello(&mut self, now: Instant, index: usize, writer: &mut Writer, load: &mut Load) {
        let hello = Hello {
            run: self.run,
            boot: self.config.boot,
            birth: self.birth,
            key: self.table.key().0,
            capabilities: 0,
        };
        let Some(peer) = self.peers.get_mut(index) else { return };
        let is_due = peer.tx.hello_next(now).is_some_and(|at| now >= at);
        if let Some(serial) = peer.tx.hello_due.filter(|_| is_due) {
            peer.tx.hello_at = Some(now);
            load.hello = Some(serial);
            load.sequenced = true;
            writer.other(&Record::Hello(hello), &[]);
        }
    }

    fn put_control(&mut self, now: Instant, index: usize, writer: &mut Writer, load: &mut Load) {
        let check = self.key_check();
        let Some(peer) = self.peers.get_mut(index) else { return };
        let is_open = peer.is_open();
        while let Some(control) = peer.tx.control.front() {
            let need = match control {
                Control::Digests { sums, .. } => CONTROL_ROOM + sums.len() * 8,
                _ => CONTROL_ROOM,
            };
            // A refusal of a session is all that can be said before the other side knows ours.
            if writer.room() < need || !(is_open || matches!(control, Control::Nack { .. })) {
                break;
            }
            match peer.tx.control.pop_front() {
                Some(Control::Claim(note)) => {
                    let ClaimNote { generation, from, vip } = note;
                    writer.other(&Record::Claim { generation, from, vip }, &[]);
                    load.claims.push(note);
                    load.sequenced = true;
                }
                Some(Control::Digests { round, group, mask, sums }) => {
                    let none = Record::Digests { check, round, group, mask, sums: Sums::default() };
                    writer.other(&none, &sums);
                    load.sequenced = true;
                }
                Some(Control::Answer { round, group, compared, equal, full }) => {
                    writer.other(&Record::Answer { round, group, compared, equal, full }, &[]);
                }
                Some(Control::InSync { at }) => {
                    let age = now.saturating_duration_since(at).as_millis();
                    writer.other(&Record::InSync { age_ms: u32::try_from(age).unwrap_or(u32::MAX) }, &[]);
                    load.sequenced = true;
                }
                Some(Control::Clash { key, clashes }) => {
                    writer.other(&Record::Clash { key, clashes }, &[]);
                    load.sequenced = true;
                }
                Some(Control::Nack { session }) => writer.other(&Record::Nack { session }, &[]),
                None => break,
            }
        }
    }

    /// Fills a batch with flows of the urgent lane, then of the refresh lane.
    fn put_waiting(&mut self, index: usize, writer: &mut Writer, load: &mut Load) {
        let Some(bit) = self.peers.get(index).map(|peer| peer.bit) else { return };
        while load.keys.len() < BATCH_FLOWS && writer.room() >= RECORD_MAX + DEFINITIONS_MAX {
            let Some(peer) = self.peers.get_mut(index) else { return };
            let Some(id) = peer.tx.urgent.pop_front().or_else(|| peer.tx.refresh.pop_front()) else { break };
            if self.table.get(id).is_some_and(|record| record.unsent & bit != 0) {
                self.put_flow(index, id, writer, load);
            }
        }
        let Some(peer) = self.peers.get_mut(index) else { return };
        if !load.keys.is_empty() {
            peer.tx.turn = peer.tx.turn.wrapping_add(1);
        }
        if peer.tx.urgent.is_empty() && peer.tx.refresh.is_empty() {
            peer.tx.waiting_since = None;
        }
    }

    /// Puts a flow's latest state into a batch, with what its numbers mean where the peer doesn't know it for sure.
    fn put_flow(&mut self, index: usize, id: Id, writer: &mut Writer, load: &mut Load) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        let Some(record) = self.table.get(id).copied() else { return };
        let Some(key) = self.table.flow_key(&record) else { return };
        let bit = peer.bit;
        load.sequenced = true;
        load.keys.push((id, record.version));
        let shard = self.table.shard_of(&record);
        if record.unacked & bit == 0 {
            peer.tx.settle(shard, 1);
        }
        if let Some(record) = self.table.local_mut(id) {
            record.unsent &= !bit;
            record.unacked |= bit;
        }
        let service = u32::from(record.service);
        let has = |load: &Load, dict: u8, number: u32| load.numbers.iter().any(|n| (n.0, n.1) == (dict, number));
        if !self.table.services.is_known(service, bit) && !has(load, 0, service) {
            load.numbers.push((0, service, self.table.services.serial(service)));
            writer.other(&Record::Service { number: record.service, service: key.service }, &[]);
        }
        if record.has(DEAD) {
            writer.delete(record.service, key.client, key.client_port);
            return;
        }
        let backend = u32::from(record.backend);
        if record.backend != NO_ADDRESS
            && !self.table.backends.is_known(backend, bit)
            && !has(load, 1, backend)
            && let Some(address) = self.table.backends.get(backend)
        {
            load.numbers.push((1, backend, self.table.backends.serial(backend)));
            writer.other(&Record::Backend { number: record.backend, address }, &[]);
        }
        let snat = u32::from(record.snat);
        if record.snat != NO_ADDRESS
            && !self.table.snats.is_known(snat, bit)
            && !has(load, 2, snat)
            && let Some(address) = self.table.snats.get(snat)
        {
            load.numbers.push((2, snat, self.table.snats.serial(snat)));
            writer.other(&Record::Snat { number: record.snat, address }, &[]);
        }
        writer.upsert(&Upsert {
            service: record.service,
            client: key.client,
            client_port: key.client_port,
            backend: (record.backend != NO_ADDRESS).then_some(record.backend),
            snat: (record.snat != NO_ADDRESS).then_some(record.snat),
            snat_port: record.snat_port,
            mark: record.mark,
            scale: record.has(SCALED).then_some(record.scale),
            generation: record.generation,
            state: record.state,
            flags: record.flags & SENT_FLAGS,
            fresh: record.has(FRESH),
        });
    }

    /// Sends all our flows of a shard, at once: what comes between would make the receiver's count wrong.
    fn send_shard(&mut self, now: Instant, index: usize, shard: u16, writer: &mut Writer) {
        let check = self.key_check();
        let ids: Vec<Id> = self.table.shard(shard).collect();
        let is_listed = |flows: &Self, id: Id| {
            flows.table.get(id).is_some_and(|record| {
                record.owner == ME && record.is_live() && flows.shares(flows.table.vip(record), index)
            })
        };
        let listed: Vec<Id> = ids.into_iter().filter(|id| is_listed(self, *id)).collect();
        self.counters.shards_sent += 1;
        if let Some(peer) = self.peers.get_mut(index) {
            peer.tx.bulk.clear(shard);
        }
        let mut load = Load { sequenced: true, ..Load::default() };
        self.begin(index, writer);
        writer.other(&Record::Begin { shard, check }, &[]);
        for id in &listed {
            if writer.room() < RECORD_MAX + DEFINITIONS_MAX + END_LEN {
                self.finish(now, index, writer, std::mem::take(&mut load));
                self.begin(index, writer);
                load.sequenced = true;
            }
            self.put_flow(index, *id, writer, &mut load);
        }
        writer.other(&Record::End { shard, count: listed.len() as u32 }, &[]);
        self.finish(now, index, writer, load);
    }

    /// The peer says what it applied.
    pub(super) fn on_ack(&mut self, now: Instant, index: usize, (session, highest, applied): (u32, u32, u64)) {
        let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.tx.session == session) else { return };
        let was_open = peer.is_open();
        while let Some(peer) = self.peers.get_mut(index)
            && let Some(flight) = peer.tx.flights.pop_front_if(|flight| flight.sequence <= highest)
        {
            let behind = highest - flight.sequence;
            let arrived = behind == 0 || (behind <= 64 && applied >> (behind - 1) & 1 == 1);
            if arrived {
                peer.tx.on_acked();
                self.on_arrived(index, flight);
            } else {
                // It won't be applied any more: a later one was.
                peer.tx.on_lost();
                self.on_lost(now, index, flight);
            }
        }
        if self.peers.get(index).is_some_and(super::peer::Peer::is_open) && !was_open {
            self.on_open(now, index);
        }
        self.arm(now);
    }

    fn on_arrived(&mut self, index: usize, flight: Flight) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        let bit = peer.bit;
        if let Some(serial) = flight.hello {
            peer.tx.hello_acked = true;
            peer.tx.hello_due.take_if(|due| *due == serial);
        }
        for (dict, number, serial) in flight.numbers {
            match dict {
                0 => self.table.services.learned(number, serial, bit),
                1 => self.table.backends.learned(number, serial, bit),
                _ => self.table.snats.learned(number, serial, bit),
            }
        }
        for (id, version) in flight.keys.iter().copied() {
            let Some(record) = self.table.get(id).copied() else { continue };
            let is_latest = record.version == version && record.unacked & !record.unsent & bit != 0;
            if !is_latest {
                continue;
            }
            let shard = self.table.shard_of(&record);
            if let Some(peer) = self.peers.get_mut(index) {
                peer.tx.settle(shard, -1);
            }
            if let Some(record) = self.table.local_mut(id) {
                record.unacked &= !bit;
                if record.unacked == 0 {
                    record.flags &= !FRESH;
                }
            }
            if record.has(DEAD) {
                self.free_if_idle(id);
            }
        }
        self.spare(flight.keys);
    }

    fn on_lost(&mut self, now: Instant, index: usize, flight: Flight) {
        self.counters.batches_lost += 1;
        let Some(peer) = self.peers.get_mut(index) else { return };
        let bit = peer.bit;
        if flight.hello.is_some() {
            peer.tx.hello_at = None;
        }
        // In front: what is lost of claims was said before what waits.
        flight.claims.iter().rev().for_each(|note| peer.tx.control.push_front(Control::Claim(*note)));
        flight.claims.iter().for_each(|note| self.claim_again(now, *note));
        let Some(peer) = self.peers.get_mut(index) else { return };
        for (id, version) in flight.keys {
            let Some(record) = self.table.local_mut(id) else { continue };
            if record.version != version || record.unacked & !record.unsent & bit == 0 {
                continue;
            }
            record.unsent |= bit;
            let urgent = record.local(URGENT);
            let lane = if urgent { &mut peer.tx.urgent } else { &mut peer.tx.refresh };
            lane.push_back(id);
            peer.tx.waiting_since.get_or_insert(now);
        }
    }

    /// Batches without an acknowledgement for too long count as lost.
    pub(super) fn check_retry(&mut self, now: Instant, index: usize) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        if peer.tx.retry_at().is_none_or(|at| now < at) {
            return;
        }
        let flights = std::mem::take(&mut peer.tx.flights);
        peer.tx.on_silence();
        flights.into_iter().for_each(|flight| self.on_lost(now, index, flight));
    }
}
