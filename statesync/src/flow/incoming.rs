//! What comes from a peer: sessions, batches in their order, and what their records do to the table.

use super::facts::{FlowKey, Nat};
use super::peer::{Control, Rx, define};
use super::record::{
    DEAD, FRESH, IN_KERNEL, Id, LISTED, PENDING, QUEUED, REPLACE, RESTAMP, Record as Flow, SCALED, SENT_FLAGS,
    SHARED_LOCAL,
};
use super::types::{Class, VipId};
use super::wire::{self, DecodeError, Hello, Record, Upsert};
use super::{Flows, ME};
use crate::mutants;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// An acknowledgement waits for company for so long: each one wakes the sender, who needs it only when its window is full,
/// to forget what it keeps of the batch, and before an address is given away.
const ACK_AFTER: Duration = Duration::from_millis(4);

/// or until so many batches came.
const ACK_COUNT: u32 = 8;

/// Between two refusals of an unknown session.
const NACK_PAUSE: Duration = Duration::from_millis(100);

impl Flows {
    pub(super) fn on_peer_up(&mut self, now: Instant, index: usize) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.up = true;
        peer.seen_at = Some(now);
        self.restart_session(now, index);
    }

    pub(super) fn on_peer_down(&mut self, now: Instant, index: usize) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        let was_open = peer.is_open();
        peer.up = false;
        peer.seen_at = Some(now);
        self.restart_session(now, index);
        if was_open {
            self.on_leave();
        }
    }

    /// Nothing that was sent to the peer counts any more; what it has is compared.
    fn restart_session(&mut self, now: Instant, index: usize) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        let bit = peer.bit;
        let sent_any = peer.tx.sequence > 1;
        peer.tx.restart();
        peer.verify.restart(now);
        peer.rx.equal_at = None;
        peer.full = false;
        self.table.services.forget(bit);
        self.table.backends.forget(bit);
        self.table.snats.forget(bit);
        if sent_any {
            for id in 0..self.table.end() {
                let Some(record) = self.table.local_mut(id) else { continue };
                record.unsent &= !bit;
                record.unacked &= !bit;
                if record.has(DEAD) {
                    self.free_if_idle(id);
                }
            }
        }
        self.arm(now);
    }

    /// Both sides know each other's session now.
    pub(super) fn on_open(&mut self, now: Instant, index: usize) {
        if let Some(peer) = self.peers.get_mut(index) {
            peer.verify.restart(now);
        }
        self.on_return(now, index);
    }

    pub(super) fn on_batch(&mut self, now: Instant, index: usize, bytes: &[u8]) {
        let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.up) else { return };
        peer.seen_at = Some(now);
        let (head, records) = match wire::decode(bytes) {
            Ok(batch) => batch,
            Err(DecodeError::Version(_)) => {
                self.counters.batches_foreign += 1;
                return;
            }
            Err(_) => {
                self.counters.malformed += 1;
                return;
            }
        };
        // All of it or nothing: half a batch would be acknowledged as a whole.
        if records.clone().any(|record| record.is_err()) {
            self.counters.malformed += 1;
            return;
        }
        if let Some(sequence) = head.sequence {
            let first = records.clone().find_map(|record| match record {
                Ok(Record::Hello(hello)) => Some(hello),
                _ => None,
            });
            if !self.take_place(now, index, head.session, sequence, first) {
                return;
            }
            self.counters.batches_applied += 1;
        }
        for record in records.flatten() {
            self.apply_record(now, index, record);
        }
    }

    /// Gives a numbered batch its place in the order. `false`: it has none any more.
    fn take_place(&mut self, now: Instant, index: usize, session: u32, sequence: u32, hello: Option<Hello>) -> bool {
        let Some(peer) = self.peers.get_mut(index) else { return false };
        let was_open = peer.is_open();
        let known = peer.rx.session.is_some_and(|(_, known)| known == session);
        // A session begins with a hello. One of the same run is newer than the one before, or a late batch.
        let begins = hello.is_some_and(|hello| match peer.rx.session {
            Some((run, known)) => run != hello.run || (session.wrapping_sub(known) as i32) > 0,
            None => true,
        });
        if begins && let Some(hello) = hello {
            let equal_at = None;
            let nacked_at = peer.rx.nacked_at;
            peer.rx = Rx { session: Some((hello.run, session)), equal_at, nacked_at, ..Rx::default() };
        } else if !known {
            self.counters.batches_foreign += 1;
            if peer.rx.nacked_at.is_none_or(|at| now >= at + NACK_PAUSE) {
                peer.rx.nacked_at = Some(now);
                peer.tx.push_control(Control::Nack { session });
                self.arm(now);
            }
            return false;
        }
        let rx = &mut peer.rx;
        rx.unacked += 1;
        let at = now + if rx.unacked >= ACK_COUNT { Duration::ZERO } else { ACK_AFTER };
        let ack_at = rx.ack_at.map_or(at, |before| before.min(at));
        rx.ack_at = Some(ack_at);
        if sequence <= rx.highest && !mutants::off("batch-order") {
            self.counters.batches_late += 1;
            self.arm(ack_at);
            return false;
        }
        let shift = sequence.wrapping_sub(rx.highest);
        let before = rx.applied.checked_shl(shift).unwrap_or(0);
        let last = if rx.highest > 0 && (1..=64).contains(&shift) { 1 << (shift - 1) } else { 0 };
        if shift > 1 {
            // Something is missing: the sender learns it at once.
            rx.ack_at = Some(now);
        }
        rx.applied = before | last;
        rx.highest = sequence.max(rx.highest);
        let ack_at = rx.ack_at.unwrap_or(now);
        let is_open = peer.is_open();
        self.arm(ack_at);
        if is_open && !was_open {
            self.on_open(now, index);
        }
        true
    }

    fn apply_record(&mut self, now: Instant, index: usize, record: Record<'_>) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        match record {
            Record::Upsert(upsert) => {
                if self.on_upsert(now, index, &upsert).is_none() {
                    self.counters.malformed += 1;
                }
            }
            Record::Delete { service, client, client_port } => {
                let service = peer.rx.services.get(usize::from(service)).copied().flatten();
                match service {
                    Some(service) => self.on_delete(now, index, &FlowKey { service, client, client_port }),
                    None => self.counters.malformed += 1,
                }
            }
            Record::Hello(hello) => self.on_hello(now, index, &hello),
            Record::Ack { session, highest, applied } => self.on_ack(now, index, (session, highest, applied)),
            Record::Nack { session } if session == peer.tx.session => self.restart_session(now, index),
            Record::Nack { .. } => {}
            Record::Service { number, service } => define(&mut peer.rx.services, number, service),
            Record::Backend { number, address } => define(&mut peer.rx.backends, number, address),
            Record::Snat { number, address } => define(&mut peer.rx.snats, number, address),
            Record::Claim { generation, from, vip } => self.on_claim(now, index, (generation, from, vip)),
            Record::Begin { shard, check } => self.on_list_begin(index, shard, check),
            Record::End { shard, count } => self.on_list_end(index, shard, count),
            Record::Digests { check, round, group, mask, sums } => {
                self.on_digests(now, index, (check, round, group, mask), sums);
            }
            Record::Answer { round, group, compared, equal, full } => {
                self.on_answer(now, index, (round, group, compared, equal), full);
            }
            Record::InSync { age_ms } => {
                peer.rx.equal_at = now.checked_sub(Duration::from_millis(u64::from(age_ms))).or(Some(now));
            }
            Record::Clash { key, clashes } => self.on_clash_told(index, key, clashes),
            Record::Unknown => self.counters.unknown += 1,
        }
    }

    fn on_hello(&mut self, now: Instant, index: usize, hello: &Hello) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.rx.capabilities = hello.capabilities;
        let before = peer.boot.replace(hello.boot);
        if before.is_some_and(|before| before != hello.boot) {
            self.new_life(now, index);
        }
        if (hello.birth, hello.key) < (self.birth, self.table.key().0) {
            self.take_key(now, hello);
        }
    }

    /// The peer's kernel lost its table: what it had stays for the rest of its leases, as flows of a life that is over.
    fn new_life(&mut self, now: Instant, index: usize) {
        let past = self.owner_of(index);
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.parity ^= 1;
        peer.past_since = Some(now);
        let present = self.owner_of(index);
        if self.table.owned(present) > 0 {
            // There still are some of an even earlier life: all earlier lives are one.
            for id in 0..self.table.end() {
                if self.table.get(id).is_some_and(|record| record.owner == present) {
                    self.table.change(id, |record| record.owner = past);
                }
            }
        }
    }

    /// The nodes agree on the oldest key.
    fn take_key(&mut self, now: Instant, hello: &Hello) {
        self.birth = hello.birth;
        self.table.rekey(super::HashKey(hello.key));
        for peer in &mut self.peers {
            peer.tx.hello_again();
            peer.tx.bulk.clear_all();
            peer.tx.unsettled.fill(0);
            peer.tx.unsettled_total = 0;
            peer.rx.listing = None;
            peer.verify.restart(now);
        }
        for id in 0..self.table.end() {
            let Some(record) = self.table.get(id).copied().filter(|record| record.unacked != 0) else { continue };
            let shard = self.table.shard_of(&record);
            for peer in self.peers.iter_mut().filter(|peer| peer.bit & record.unacked != 0) {
                peer.tx.settle(shard, 1);
            }
        }
        self.arm(now);
    }

    /// A flow as its owner has it. `None`: it makes no sense.
    fn on_upsert(&mut self, now: Instant, index: usize, upsert: &Upsert) -> Option<()> {
        let rx = &self.peers.get(index)?.rx;
        let is_listed = rx.listing.is_some();
        let service = rx.services.get(usize::from(upsert.service)).copied().flatten()?;
        let backend = match upsert.backend {
            Some(number) => Some(rx.backends.get(usize::from(number)).copied().flatten()?),
            None => None,
        };
        let snat = match upsert.snat {
            Some(number) => Some(rx.snats.get(usize::from(number)).copied().flatten()?),
            None => None,
        };
        let is_v4 = service.address.is_ipv4();
        let families = [Some(upsert.client), backend.map(|(address, _)| address), snat];
        let class = Class::ALL.get(usize::from(upsert.state >> 4));
        if families.into_iter().flatten().any(|address| address.is_ipv4() != is_v4) || class.is_none() {
            return None;
        }
        let Some(vip) = self.shared_vip(index, service.address) else {
            self.counters.unlisted += 1;
            return Some(());
        };
        let key = FlowKey { service, client: upsert.client, client_port: upsert.client_port };
        let nat = Nat { backend, snat, snat_port: upsert.snat_port };
        let flow = Flow {
            owner: self.owner_of(index),
            generation: upsert.generation,
            mark: upsert.mark & !self.config.tag.mask(),
            state: upsert.state,
            scale: upsert.scale.unwrap_or(0),
            flags: upsert.flags & SENT_FLAGS & !SCALED
                | if upsert.scale.is_some() { SCALED } else { 0 }
                | if upsert.fresh { FRESH } else { 0 },
            ..Flow::default()
        };
        let id = match self.table.find(&key) {
            Some(id) => {
                self.settle(id);
                self.merge(now, index, id, vip, &nat, &flow);
                Some(id)
            }
            None => {
                let record = Flow { local: self.audit.colour(), flags: flow.flags & !FRESH, ..flow };
                let id = self.insert(now, &key, vip, &nat, record);
                id.inspect(|id| if is_listed { self.want_of_many(*id) } else { self.want(*id) })
            }
        };
        self.note_listed(index, id);
        Some(())
    }

    pub(super) fn shared_vip(&self, index: usize, address: IpAddr) -> Option<VipId> {
        let vip = self.addresses.get(&address).copied()?;
        (self.shares(vip, index) || mutants::off("unlisted-vip")).then_some(vip)
    }

    /// What a peer says of a flow that is known here.
    fn merge(&mut self, now: Instant, index: usize, id: Id, vip: VipId, nat: &Nat, flow: &Flow) {
        let fresh = flow.has(FRESH);
        let flow = Flow { flags: flow.flags & !FRESH, ..*flow };
        let Some(record) = self.table.get(id).copied() else { return };
        let from = Self::peer_of(record.owner);
        let is_orphan =
            from.is_some_and(|other| self.is_past(record.owner) || !self.peers.get(other).is_some_and(|peer| peer.up));
        let is_its_own = from == Some(index);
        if !is_its_own && !record.has(DEAD) && !is_orphan {
            if record.owner == ME && record.generation == flow.generation {
                self.counters.conflicts += 1;
            }
            if !self.gives_way(&record, (flow.generation, flow.owner)) {
                // It has to learn whose the flow is.
                if let Some(bit) = self.peers.get(index).filter(|_| record.owner == ME).map(|peer| peer.bit) {
                    self.touch_for(now, id, true, bit);
                }
                return;
            }
        }
        if record.owner == ME {
            self.acknowledge_all(&record);
            self.clear_clashes(&record);
        }
        let other_nat = self.table.nat(&record) != *nat;
        if other_nat && self.table.set_nat(id, nat).is_err() {
            self.counters.shed += 1;
            return;
        }
        let same = (record.owner, record.generation, record.state, record.scale, record.mark, record.flags)
            == (flow.owner, flow.generation, flow.state, flow.scale, flow.mark, flow.flags);
        if same && !other_nat {
            return;
        }
        let is_new_connection = other_nat || (fresh && record.generation != flow.generation);
        self.table.change(id, |record| {
            (record.owner, record.generation, record.mark) = (flow.owner, flow.generation, flow.mark);
            (record.state, record.scale, record.flags) = (flow.state, flow.scale, flow.flags);
            (record.unsent, record.unacked) = (0, 0);
            record.local &= !SHARED_LOCAL;
            if record.local & (IN_KERNEL | PENDING) != 0 {
                record.local |= if is_new_connection { REPLACE } else { RESTAMP };
            }
        });
        self.raise_top(vip, id);
        self.want(id);
    }

    /// A flow is over, says a peer.
    fn on_delete(&mut self, _now: Instant, index: usize, key: &FlowKey) {
        if self.shared_vip(index, key.service.address).is_none() {
            self.counters.unlisted += 1;
            return;
        }
        let Some(id) = self.table.find(key) else { return };
        self.settle(id);
        let Some(record) = self.table.get(id).copied() else { return };
        let is_owner = Self::peer_of(record.owner) == Some(index);
        if !is_owner {
            self.counters.foreign_deletes += 1;
            if !mutants::off("owner-deletes") {
                return;
            }
            self.counters.foreign_deletes_applied += 1;
        }
        self.counters.removed += 1;
        self.drop_replica(id);
    }

    /// Takes a replica out of the table and the kernel.
    pub(super) fn drop_replica(&mut self, id: Id) {
        let Some(record) = self.table.get(id).copied() else { return };
        if record.has(DEAD) {
            return;
        }
        self.acknowledge_all(&record);
        if record.local & (IN_KERNEL | PENDING | QUEUED) == 0 {
            self.table.remove(id);
            return;
        }
        self.table.change(id, |record| {
            record.flags |= DEAD;
            (record.unsent, record.unacked) = (0, 0);
        });
        self.want(id);
    }

    fn on_list_begin(&mut self, index: usize, shard: u16, check: u32) {
        let matches = check == self.key_check() && usize::from(shard) < super::index::SHARDS;
        let Some(peer) = self.peers.get_mut(index) else { return };
        peer.rx.listing = matches.then_some((shard, 0));
        if matches {
            self.unlist(index, shard);
        }
    }

    fn unlist(&mut self, index: usize, shard: u16) {
        for id in self.of_peer(index, shard) {
            if let Some(record) = self.table.local_mut(id) {
                record.local &= !LISTED;
            }
        }
    }

    /// Flows of a peer in a shard.
    fn of_peer(&self, index: usize, shard: u16) -> Vec<Id> {
        let owner = self.owner_of(index);
        self.table.shard(shard).filter(|id| self.table.get(*id).is_some_and(|record| record.owner == owner)).collect()
    }

    fn note_listed(&mut self, index: usize, id: Option<Id>) {
        let Some((_, count)) = self.peers.get_mut(index).and_then(|peer| peer.rx.listing.as_mut()) else { return };
        *count += 1;
        if let Some(record) = id.and_then(|id| self.table.local_mut(id)) {
            record.local |= LISTED;
        }
    }

    /// All flows of a shard came: others of this owner are over.
    fn on_list_end(&mut self, index: usize, shard: u16, count: u32) {
        let Some(listing) = self.peers.get_mut(index).and_then(|peer| peer.rx.listing.take()) else { return };
        if listing != (shard, count) {
            // A part was lost: the digests will say whether it mattered.
            return;
        }
        for id in self.of_peer(index, shard) {
            self.settle(id);
            let owner = self.owner_of(index);
            let is_over = |record: &&Flow| record.owner == owner && !record.has(DEAD) && !record.local(LISTED);
            if self.table.get(id).filter(is_over).is_some() {
                self.counters.removed += 1;
                self.drop_replica(id);
            } else if let Some(record) = self.table.local_mut(id) {
                record.local &= !LISTED;
            }
        }
    }
}
