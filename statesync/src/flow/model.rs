//! What the kernel's events mean for the table, and which of two claims of a flow holds.

use super::facts::{FlowKey, Nat, State};
use super::peer::Peer;
use super::record::{ASSURED, DEAD, FRESH, IN_KERNEL, Id, RESTAMP, Record, URGENT, YOUNG};
use super::table::{state_of, with_state};
use super::types::{Class, Elected, Mode, VipId};
use super::{Flows, ME};
use crate::ct::{self, Entry, EventKind, TcpState};
use crate::mutants;
use std::cmp::Reverse;
use std::time::Instant;

/// Most ended flows that are kept until all peers know, as a part of the table; beyond, their shards are sent whole.
const DEAD_PART: usize = 8;

impl Flows {
    pub(super) fn on_kernel(&mut self, now: Instant, event: &ct::Event) {
        self.counters.kernel_events += 1;
        if self.config.port_id != 0 && event.port_id == self.config.port_id {
            self.counters.own_echoes += 1;
            return;
        }
        let Some((vip, key, nat)) = self.eligible(&event.entry) else { return };
        let found = self.table.find(&key);
        if let Some(id) = found {
            self.settle(id);
        }
        match (found, event.kind) {
            (None, EventKind::Destroy) => {}
            (None, _) => self.adopt(now, vip, &key, &nat, &event.entry),
            (Some(id), EventKind::Destroy) => self.on_destroyed(now, id, event),
            (Some(id), _) if self.is_mine(id) => self.on_own_news(now, id, vip, &nat, &event.entry),
            // Packets of a replica come through here: it is ours from now on, if we are to serve it.
            (Some(id), _) if event.port_id == 0 && self.may_follow(id) => self.claim_flow(now, id, &event.entry),
            (Some(_), _) => {}
        }
        self.flush_full(now);
    }

    /// The VIP and the name of an entry that can be replicated; counts why it can't.
    pub(super) fn eligible(&mut self, entry: &Entry) -> Option<(VipId, FlowKey, Nat)> {
        let Some(vip) = self.addresses.get(&entry.original.addresses.destination()).copied() else {
            self.counters.not_for_vips += 1;
            return None;
        };
        if self.vip_config(vip)?.mode == Mode::Off {
            return None;
        }
        if !entry.is_dnat() {
            self.counters.proxied += 1;
            return None;
        }
        if Self::is_odd(entry) {
            self.counters.not_carried += 1;
            return None;
        }
        Some((vip, FlowKey::of(&entry.original, entry.zone), Nat::of(entry)))
    }

    /// It needs more than a replica has. Entries that were inserted always have room for a SYN proxy's numbers, and tell
    /// of it: zeros.
    pub(super) fn is_odd(entry: &Entry) -> bool {
        entry.extras.helper
            || entry.extras.master
            || entry.syn_proxy.is_some_and(|proxy| proxy != ct::SynProxy::default())
            || entry.sequence_adjustment.into_iter().flatten().any(|shift| shift != ct::SequenceAdjustment::default())
    }

    fn may_follow(&self, id: Id) -> bool {
        self.table.get(id).is_some_and(|record| self.follows_packets(record))
    }

    /// Its backend is this host: it is gone with it.
    pub(super) fn ends_here(&self, entry: &Entry) -> bool {
        self.local.contains(&entry.reply.addresses.source())
    }

    pub(super) fn is_mine(&self, id: Id) -> bool {
        self.table.get(id).is_some_and(|record| record.owner == ME)
    }

    /// Takes a flow of the kernel's table that isn't in ours. One with our mark is a replica that an earlier run made.
    pub(super) fn adopt(&mut self, now: Instant, vip: VipId, key: &FlowKey, nat: &Nat, entry: &Entry) {
        let state = State::of(entry, None);
        let mode = self.vip_config(vip).map_or(Mode::Off, |vip| vip.mode);
        let tag = entry.mark.unwrap_or(0) & self.config.tag.mask();
        let replica_of =
            if tag == 0 { None } else { self.peers.iter().position(|p| self.config.tag.of(p.node) == tag) };
        let is_replica = replica_of.is_some();
        // A peer's flow may go to a backend that is here: that one goes on here.
        if !is_replica && self.ends_here(entry) {
            self.counters.proxied += 1;
            return;
        }
        if !is_replica && mode != Mode::Syn && !state.assured {
            return;
        }
        let young = match mode {
            Mode::After(age) if !is_replica => Some(now + age),
            _ => None,
        };
        let record = Record {
            owner: replica_of.map_or(ME, |index| self.owner_of(index)),
            generation: if is_replica { 1 } else { self.first_generation(vip, nat) },
            flags: if young.is_some() { YOUNG } else { 0 },
            local: IN_KERNEL | self.audit.colour(),
            kernel_id: entry.id.unwrap_or(0),
            ..Record::default()
        };
        let record = with_state(record, &state, self.config.tag.mask());
        let Some(id) = self.insert(now, key, vip, nat, record) else { return };
        if let Some(due) = young {
            self.young.push(Reverse((due, id)));
            self.arm(due);
        } else if !is_replica {
            self.touch(now, id, true);
        }
    }

    /// The generation of a flow that begins here now.
    fn first_generation(&self, vip: VipId, nat: &Nat) -> u32 {
        let Some(state) = self.vips.get(usize::from(vip.0)) else { return 1 };
        // What the first dump tells was there before: others may have claimed it since.
        if self.reading() {
            return 1;
        }
        // Whoever had this before us may say again what it claimed then, when it comes back: this isn't among it.
        let first = if self.elected_here(vip, nat.snat) { state.top.max(1) } else { 1 };
        state.alone.unwrap_or(first)
    }

    /// Flows that are old enough are replicated from now on.
    pub(super) fn grow_up(&mut self, now: Instant) {
        while let Some(Reverse((due, id))) = self.young.peek().copied() {
            if due > now {
                self.arm(due);
                return;
            }
            self.young.pop();
            // Should the slot have another young flow by now, that one is replicated a bit early.
            if self.table.get(id).is_some_and(|record| record.has(YOUNG) && !record.has(DEAD)) {
                self.table.change(id, |record| record.flags &= !YOUNG);
                self.touch(now, id, true);
            }
        }
    }

    /// The kernel says something new of a flow of ours.
    pub(super) fn on_own_news(&mut self, now: Instant, id: Id, vip: VipId, nat: &Nat, entry: &Entry) {
        let Some(record) = self.table.get(id).copied() else { return };
        let known_id = entry.id.filter(|_| record.kernel_id != 0);
        if record.has(DEAD) && known_id == Some(record.kernel_id) {
            // Told late, by the other socket: this very connection is over.
            return;
        }
        let is_other = known_id.is_some_and(|id| id != record.kernel_id) || self.table.nat(&record) != *nat;
        if record.has(DEAD) || is_other {
            self.on_reuse(now, id, vip, nat, entry);
            return;
        }
        let changed = with_state(record, &State::of(entry, Some(state_of(&record))), self.config.tag.mask());
        let kernel_id = entry.id.unwrap_or(record.kernel_id);
        let same = (changed.state, changed.flags, changed.scale, changed.mark)
            == (record.state, record.flags, record.scale, record.mark);
        if let Some(record) = self.table.local_mut(id) {
            record.kernel_id = kernel_id;
            record.local |= IN_KERNEL;
        }
        if same {
            return;
        }
        self.table.change(id, |record| {
            record.state = changed.state;
            record.flags = record.flags & YOUNG | changed.flags & !YOUNG;
            (record.scale, record.mark) = (changed.scale, changed.mark);
        });
        self.touch(now, id, changed.has(ASSURED) && !record.has(ASSURED));
    }

    /// Another connection has the tuple of one that ended, or whose end we missed.
    fn on_reuse(&mut self, now: Instant, id: Id, vip: VipId, nat: &Nat, entry: &Entry) {
        let state = State::of(entry, None);
        let mode = self.vip_config(vip).map_or(Mode::Off, |vip| vip.mode);
        if mode != Mode::Syn && !state.assured {
            // The old one is over; the new one comes when it is assured.
            self.end(now, id);
            return;
        }
        if self.table.set_nat(id, nat).is_err() {
            self.end(now, id);
            return;
        }
        let mask = self.config.tag.mask();
        let kernel_id = entry.id.unwrap_or(0);
        let first = self.first_generation(vip, nat);
        self.table.change(id, |record| {
            let fresh = Record { flags: FRESH, scale: 0, mark: 0, ..*record };
            *record = with_state(fresh, &state, mask);
            record.generation = record.generation.saturating_add(1).max(first);
            record.kernel_id = kernel_id;
            record.local |= IN_KERNEL;
        });
        self.raise_top(vip, id);
        self.touch(now, id, true);
    }

    /// Remembers the highest generation of a VIP.
    pub(super) fn raise_top(&mut self, vip: VipId, id: Id) {
        let generation = self.table.get(id).map_or(0, |record| record.generation);
        if let Some(vip) = self.vips.get_mut(usize::from(vip.0)) {
            vip.top = vip.top.max(generation);
        }
    }

    /// An entry went from the kernel, by whatever cause but ourselves.
    fn on_destroyed(&mut self, now: Instant, id: Id, event: &ct::Event) {
        let Some(record) = self.table.get(id).copied() else { return };
        // The two event sockets have no common order: this may be the end of an earlier connection of the tuple.
        let is_other = event.entry.id.is_some_and(|id| record.kernel_id != 0 && id != record.kernel_id);
        if is_other || record.has(DEAD) {
            return;
        }
        // Without the VIP our entries go by timers that no packet renews, and with its address: that says nothing.
        if record.owner == ME && (self.sees_the_end(&record) || mutants::off("fence")) {
            self.end(now, id);
            return;
        }
        if let Some(record) = self.table.local_mut(id) {
            record.local &= !IN_KERNEL;
            record.kernel_id = 0;
        }
        if record.owner == ME {
            return;
        }
        let state = event.entry.tcp.map_or(TcpState::None, |tcp| tcp.state);
        let closed = matches!(state, TcpState::TimeWait | TcpState::Close | TcpState::LastAck);
        let comes_here = self.sees_the_end(&record) || self.serves(self.table.vip(&record));
        if closed && event.port_id == 0 && comes_here && record.class() == Class::TcpOpen {
            // Packets closed it, and they came through here.
            self.claim_flow(now, id, &event.entry);
            self.end(now, id);
        } else if self.lease_holds(now, record.owner) && !(event.port_id == 0 && self.is_left(record.owner)) {
            if mutants::off("refill") {
                return;
            }
            self.counters.refilled += 1;
            self.want(id);
        } else {
            // Also by its timer, whose owner isn't heard any more: that was its lease.
            self.forget(id);
        }
    }

    /// A flow of ours is over: the peers are told.
    pub(super) fn end(&mut self, now: Instant, id: Id) {
        let Some(record) = self.table.get(id).copied() else { return };
        if record.has(DEAD) {
            return;
        }
        self.clear_clashes(&record);
        let peers = self.open_peers(self.table.vip(&record));
        let crowded = self.table.dead() > self.table.max() / DEAD_PART;
        if record.has(YOUNG) || peers == 0 || crowded {
            if crowded && !record.has(YOUNG) {
                let shard = self.table.shard_of(&record);
                self.peers.iter_mut().filter(|peer| peer.bit & peers != 0).for_each(|peer| peer.tx.bulk.set(shard));
            }
            self.forget(id);
            return;
        }
        self.table.change(id, |record| {
            record.flags = (record.flags | DEAD) & !FRESH;
            record.local &= !(IN_KERNEL | RESTAMP);
        });
        self.touch(now, id, false);
    }

    /// Takes a flow out of the table, once nothing refers to its slot. Until then it is an ended one that no peer is
    /// told of.
    pub(super) fn forget(&mut self, id: Id) {
        let Some(record) = self.table.get(id).copied() else { return };
        self.acknowledge_all(&record);
        let Some(record) = self.table.local_mut(id) else { return };
        record.unsent = 0;
        record.unacked = 0;
        if record.owner == ME {
            // What our kernel has of our own flows is its affair.
            record.local &= !IN_KERNEL;
        }
        if record.is_idle() {
            self.table.remove(id);
        } else if !record.has(DEAD) {
            self.table.change(id, |record| record.flags |= DEAD);
        }
    }

    /// Frees the slot of an ended flow to which nothing refers any more.
    pub(super) fn free_if_idle(&mut self, id: Id) {
        let may_go = |record: &&Record| record.has(DEAD) && record.is_idle() && record.local & IN_KERNEL == 0;
        if self.table.get(id).filter(may_go).is_some() {
            self.table.remove(id);
        }
    }

    /// A changed flow of ours has to go to the peers.
    pub(super) fn touch(&mut self, now: Instant, id: Id, urgent: bool) {
        let Some(record) = self.table.get(id).copied() else { return };
        if record.has(YOUNG) || record.owner != ME {
            return;
        }
        let peers = self.open_peers(self.table.vip(&record));
        self.touch_for(now, id, urgent, peers);
    }

    /// The same for some peers.
    pub(super) fn touch_for(&mut self, now: Instant, id: Id, urgent: bool, peers: u8) {
        let Some(record) = self.table.get(id).copied() else { return };
        let shard = self.table.shard_of(&record);
        for peer in self.peers.iter_mut().filter(|peer| peer.bit & peers != 0) {
            if record.unacked & peer.bit == 0 {
                peer.tx.settle(shard, 1);
            }
            if record.unsent & peer.bit == 0 {
                queue(peer, id, urgent);
            }
            peer.tx.waiting_since.get_or_insert(now);
        }
        if let Some(record) = self.table.local_mut(id) {
            record.unacked |= peers;
            record.unsent |= peers;
            record.local = if urgent { record.local | URGENT } else { record.local & !URGENT };
        }
        if record.has(DEAD) {
            self.free_if_idle(id);
        }
    }

    /// Nobody has to acknowledge this flow any more.
    pub(super) fn acknowledge_all(&mut self, record: &Record) {
        if record.unacked == 0 {
            return;
        }
        let shard = self.table.shard_of(record);
        for peer in self.peers.iter_mut().filter(|peer| peer.bit & record.unacked != 0) {
            peer.tx.settle(shard, -1);
        }
    }

    /// Whether a record gives way to `theirs` (generation and owner).
    pub(super) fn gives_way(&self, record: &Record, theirs: (u32, u8)) -> bool {
        let ours = (record.generation, record.owner);
        if ours.0 != theirs.0 {
            return theirs.0 > ours.0;
        }
        let vip = self.table.vip(record);
        let elected = match self.vip_config(vip).is_some_and(|vip| vip.shared) {
            true => Some(self.elected_for(record)),
            false => self.vips.get(usize::from(vip.0)).map(|vip| vip.seat.elected),
        };
        let elected = match elected {
            Some(Elected::Me) => Some(self.config.node),
            Some(Elected::Peer(peer)) => self.peers.get(usize::from(peer.0)).map(|peer| peer.node),
            _ => None,
        };
        let (ours, theirs) = (self.node_of(ours.1), self.node_of(theirs.1));
        match elected {
            Some(node) if node == ours => false,
            Some(node) if node == theirs => true,
            _ => theirs < ours,
        }
    }

    /// Whether a replica of this owner may go on: its owner was heard within the lease.
    pub(super) fn lease_holds(&self, now: Instant, owner: u8) -> bool {
        let Some(peer) = Self::peer_of(owner).and_then(|index| self.peers.get(index)) else { return true };
        let heard = |at: Instant| now.saturating_duration_since(at) < self.config.times.lease;
        !self.is_past(owner) && (peer.up || peer.seen_at.is_some_and(heard))
    }
}

fn queue(peer: &mut Peer, id: Id, urgent: bool) {
    if urgent {
        peer.tx.urgent.push_back(id);
    } else {
        peer.tx.refresh.push_back(id);
    }
}
