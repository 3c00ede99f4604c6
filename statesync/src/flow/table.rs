//! The shadow table: all flows that are replicated, ours and the peers', with a digest per owner and shard that each
//! change keeps up to date.
//!
//! Its memory: 36 bytes per record, 8 bytes per index slot (at most 4/5, at least 2/5 of the slots are used), and what
//! many flows share (services, backends, SNAT addresses) once. IPv6 clients take about 60 bytes more per address.

use super::ME;
use super::dict::Dict;
use super::facts::{FlowKey, Nat, Service, State};
use super::hash::HashKey;
use super::index::{Index, SHARDS, shard_of};
use super::record::{
    ASSURED, DEAD, Id, NO_ADDRESS, Record, SACK_BACKEND, SACK_CLIENT, SCALED, SEEN_REPLY, SENT_FLAGS, Store,
};
use super::types::{Class, PEERS_MAX, VipId};
use crate::ct::{TcpFlags, TcpSide};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Owners: two of each node, one for its present life and one for earlier ones.
pub(crate) const OWNERS: usize = 2 * (1 + PEERS_MAX);

/// Numbers of services, backends and SNAT addresses: 16 bits, and one of them says "none".
const NUMBERS: u32 = u16::MAX as u32;

/// Stands for no source.
pub(crate) const PLAIN: u8 = 0;

/// Why a flow wasn't taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The table is full.
    Full,
    /// There are too many services, backends or addresses.
    Numbers,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Table {
    store: Store,
    index: Index,
    pub(crate) services: Dict<Service>,
    pub(crate) backends: Dict<(IpAddr, u16)>,
    pub(crate) snats: Dict<IpAddr>,
    clients: Dict<Ipv6Addr>,
    /// The VIP of each service number.
    vips: Vec<u8>,
    key: HashKey,
    digests: Vec<Vec<u64>>,
    /// Peers that each VIP is shared with, and the group of such sets that it belongs to.
    groups: Vec<u8>,
    group_of: Vec<usize>,
    /// The source of each number of a SNAT address.
    sources: Vec<u8>,
    source_of: HashMap<IpAddr, u8>,
    /// VIPs whose flows belong to sources.
    by_source: Vec<bool>,
    /// Live flows per VIP and owner.
    counts: Vec<[u32; OWNERS]>,
    /// The same per source, of VIPs that are shared.
    source_counts: Vec<[u32; OWNERS]>,
    classes: [usize; Class::ALL.len()],
    max: usize,
    dead: usize,
}

impl Table {
    /// `sharing`: for each VIP the peers that share it, and whether its flows belong to sources. `sources`: their
    /// addresses.
    pub(crate) fn new(key: HashKey, max: usize, sharing: &[(u8, bool)], sources: &[Vec<IpAddr>]) -> Self {
        let mut groups: Vec<u8> = Vec::new();
        let mut group_of = Vec::new();
        let mut source_of = HashMap::new();
        for (place, addresses) in (PLAIN + 1..).zip(sources) {
            source_of.extend(addresses.iter().map(|address| (*address, place)));
        }
        for (peers, _) in sharing {
            let known = groups.iter().position(|group| group == peers);
            group_of.push(known.unwrap_or(groups.len()));
            if known.is_none() {
                groups.push(*peers);
            }
        }
        Self {
            store: Store::default(),
            index: Index::new(),
            services: Dict::new(NUMBERS),
            backends: Dict::new(NUMBERS),
            snats: Dict::new(NUMBERS),
            clients: Dict::new(u32::MAX),
            vips: Vec::new(),
            key,
            digests: vec![Vec::new(); OWNERS + groups.len()],
            groups,
            group_of,
            sources: Vec::new(),
            source_of,
            by_source: sharing.iter().map(|(_, by_source)| *by_source).collect(),
            counts: vec![[0; OWNERS]; sharing.len()],
            source_counts: vec![[0; OWNERS]; 1 + sources.len()],
            classes: [0; Class::ALL.len()],
            max: max.min(u32::MAX as usize / 2),
            dead: 0,
        }
    }

    /// Records, ended ones included.
    pub(crate) const fn len(&self) -> usize {
        self.index.len()
    }

    /// Ended flows that are kept until the peers know.
    pub(crate) const fn dead(&self) -> usize {
        self.dead
    }

    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// Bytes that it takes.
    pub(crate) fn memory(&self) -> usize {
        let dicts = self.services.memory() + self.backends.memory() + self.snats.memory() + self.clients.memory();
        let digests: usize = self.digests.iter().map(|sums| sums.capacity() * 8).sum();
        self.store.memory() + self.index.memory() + dicts + digests
    }

    /// Flows of this class, not ended.
    pub(crate) fn class_count(&self, class: Class) -> usize {
        self.classes[class as usize]
    }

    /// Live flows of a VIP that this owner has.
    pub(crate) fn count(&self, vip: VipId, owner: u8) -> u32 {
        self.counts.get(usize::from(vip.0)).and_then(|counts| counts.get(usize::from(owner))).copied().unwrap_or(0)
    }

    /// Live flows of VIPs that are shared, of this source (or [`PLAIN`]), that this owner has.
    pub(crate) fn source_count(&self, source: u8, owner: u8) -> u32 {
        let counts = self.source_counts.get(usize::from(source));
        counts.and_then(|counts| counts.get(usize::from(owner))).copied().unwrap_or(0)
    }

    /// The source to which a flow belongs: [`PLAIN`] if to none, else one more than its place. `None`: its VIP isn't
    /// shared.
    pub(crate) fn source(&self, record: &Record) -> Option<u8> {
        let vip = usize::from(self.vips.get(usize::from(record.service)).copied()?);
        let by_source = self.by_source.get(vip).copied().unwrap_or(false);
        by_source.then(|| self.sources.get(usize::from(record.snat)).copied().unwrap_or(PLAIN))
    }

    /// Live flows of an owner.
    pub(crate) fn owned(&self, owner: u8) -> usize {
        self.counts.iter().filter_map(|counts| counts.get(usize::from(owner))).map(|count| *count as usize).sum()
    }

    pub(crate) fn get(&self, id: Id) -> Option<&Record> {
        self.store.get(id)
    }

    /// For what no digest and no count depends on.
    pub(crate) fn local_mut(&mut self, id: Id) -> Option<&mut Record> {
        self.store.get_mut(id)
    }

    /// All slots lie below this.
    pub(crate) const fn end(&self) -> Id {
        self.store.end()
    }

    pub(crate) fn vip(&self, record: &Record) -> VipId {
        VipId(self.vips.get(usize::from(record.service)).copied().unwrap_or(u8::MAX))
    }

    pub(crate) fn find(&self, key: &FlowKey) -> Option<Id> {
        let service = self.services.find(&key.service)? as u16;
        let client = match key.client {
            IpAddr::V4(address) => address.to_bits(),
            IpAddr::V6(address) => self.clients.find(&address)?,
        };
        let hash = self.key_hash(self.services.hash(u32::from(service)), key.client, key.client_port);
        self.index.find(hash, |id| {
            self.store.get(id).is_some_and(|record| {
                record.client == client && record.client_port == key.client_port && record.service == service
            })
        })
    }

    /// Adds a flow that isn't in it. The record's numbers are filled in here.
    pub(crate) fn insert(&mut self, key: &FlowKey, vip: VipId, nat: &Nat, record: Record) -> Result<Id, Refused> {
        if self.len() >= self.max {
            return Err(Refused::Full);
        }
        let hash_key = self.key;
        let service = self.services.take(key.service, |service| hash_service(hash_key, service));
        let service = service.ok_or(Refused::Numbers)?;
        if self.vips.len() <= service as usize {
            self.vips.resize(service as usize + 1, u8::MAX);
        }
        self.vips[service as usize] = vip.0;
        let client = match key.client {
            IpAddr::V4(address) => Some(address.to_bits()),
            IpAddr::V6(address) => self.clients.take(address, |_| 0),
        };
        let (Some((backend, snat)), Some(client)) = (self.take_nat(nat), client) else {
            self.services.release(service);
            return Err(Refused::Numbers);
        };
        let record = Record {
            client,
            client_port: key.client_port,
            service: service as u16,
            backend,
            snat,
            snat_port: nat.snat_port,
            ..record
        };
        let hash = self.key_hash(self.services.hash(service), key.client, key.client_port);
        let id = self.store.add(record);
        self.index.insert(hash, id);
        self.account(id, true);
        Ok(id)
    }

    /// Takes a flow out.
    pub(crate) fn remove(&mut self, id: Id) {
        self.account(id, false);
        let Some(record) = self.store.get(id).copied() else { return };
        let hash = self.hash_of(&record);
        self.index.remove(hash, id);
        if self.is_v6(&record) {
            self.clients.release(record.client);
        }
        self.release_nat(&record);
        self.services.release(u32::from(record.service));
        self.store.remove(id);
    }

    /// Changes what is replicated; digests and counts follow. The record gets a new version.
    pub(crate) fn change(&mut self, id: Id, change: impl FnOnce(&mut Record)) {
        self.account(id, false);
        if let Some(record) = self.store.get_mut(id) {
            change(record);
            record.version = record.version.wrapping_add(1);
        }
        self.account(id, true);
    }

    /// Raises the generation, as all nodes do with their copy: no new version that a peer would have to be told.
    pub(crate) fn raise(&mut self, id: Id, generation: u32) {
        self.account(id, false);
        if let Some(record) = self.store.get_mut(id) {
            record.generation = generation;
        }
        self.account(id, true);
    }

    /// Changes where a flow goes.
    pub(crate) fn set_nat(&mut self, id: Id, nat: &Nat) -> Result<(), Refused> {
        let (backend, snat) = self.take_nat(nat).ok_or(Refused::Numbers)?;
        if let Some(record) = self.store.get(id).copied() {
            self.release_nat(&record);
        }
        self.change(id, |record| {
            (record.backend, record.snat, record.snat_port) = (backend, snat, nat.snat_port);
        });
        Ok(())
    }

    fn take_nat(&mut self, nat: &Nat) -> Option<(u16, u16)> {
        let key = self.key;
        let backend = match nat.backend {
            Some(backend) => self.backends.take(backend, |backend| hash_backend(key, backend))? as u16,
            None => NO_ADDRESS,
        };
        let snat = match nat.snat {
            Some(snat) => match self.snats.take(snat, |snat| hash_address(key, *snat)) {
                Some(id) => {
                    if self.sources.len() <= id as usize {
                        self.sources.resize(id as usize + 1, PLAIN);
                    }
                    self.sources[id as usize] = self.source_of.get(&snat).copied().unwrap_or(PLAIN);
                    id as u16
                }
                None => {
                    self.backends.release(u32::from(backend));
                    return None;
                }
            },
            None => NO_ADDRESS,
        };
        Some((backend, snat))
    }

    fn release_nat(&mut self, record: &Record) {
        if record.backend != NO_ADDRESS {
            self.backends.release(u32::from(record.backend));
        }
        if record.snat != NO_ADDRESS {
            self.snats.release(u32::from(record.snat));
        }
    }

    pub(crate) fn flow_key(&self, record: &Record) -> Option<FlowKey> {
        let service = self.services.get(u32::from(record.service))?;
        let client = match service.address {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(record.client)),
            IpAddr::V6(_) => IpAddr::V6(self.clients.get(record.client)?),
        };
        Some(FlowKey { service, client, client_port: record.client_port })
    }

    pub(crate) fn nat(&self, record: &Record) -> Nat {
        let backend = if record.backend == NO_ADDRESS { None } else { self.backends.get(u32::from(record.backend)) };
        let snat = if record.snat == NO_ADDRESS { None } else { self.snats.get(u32::from(record.snat)) };
        Nat { backend, snat, snat_port: record.snat_port }
    }

    fn is_v6(&self, record: &Record) -> bool {
        self.services.get(u32::from(record.service)).is_some_and(|service| service.address.is_ipv6())
    }

    /// Adds what a flow counts for, or takes it away again.
    fn account(&mut self, id: Id, add: bool) {
        let Some(record) = self.store.get(id).copied() else { return };
        let step = |count: &mut usize| *count = if add { *count + 1 } else { count.saturating_sub(1) };
        if record.has(DEAD) {
            step(&mut self.dead);
            return;
        }
        step(&mut self.classes[record.class() as usize]);
        if !record.is_live() {
            return;
        }
        let owner = usize::from(record.owner).min(OWNERS - 1);
        if let Some(counts) = self.counts.get_mut(usize::from(self.vips[usize::from(record.service)])) {
            counts[owner] = if add { counts[owner] + 1 } else { counts[owner].saturating_sub(1) };
        }
        let source = self.source(&record).map(usize::from);
        if let Some(counts) = source.and_then(|source| self.source_counts.get_mut(source)) {
            counts[owner] = if add { counts[owner] + 1 } else { counts[owner].saturating_sub(1) };
        }
        let (sum, shard) = (self.digest_of(&record), shard_of(self.hash_of(&record)));
        // Our own by who is to have them: each peer has the flows of the VIPs that it shares with us.
        let place = if owner == usize::from(ME) {
            let vip = usize::from(self.vips[usize::from(record.service)]);
            OWNERS + self.group_of.get(vip).copied().unwrap_or(0)
        } else {
            owner
        };
        let Some(sums) = self.digests.get_mut(place) else { return };
        if sums.is_empty() {
            sums.resize(SHARDS, 0);
        }
        let slot = &mut sums[usize::from(shard)];
        *slot = if add { slot.wrapping_add(sum) } else { slot.wrapping_sub(sum) };
    }

    /// Sum over our own flows in a shard that the peer of this bit is to have.
    pub(crate) fn own_digest(&self, peer: u8, shard: u16) -> u64 {
        let groups = self.groups.iter().enumerate().filter(|(_, peers)| *peers & peer != 0);
        let sums = groups.filter_map(|(group, _)| self.digests.get(OWNERS + group)?.get(usize::from(shard)));
        sums.fold(0, |sum: u64, part| sum.wrapping_add(*part))
    }

    /// Sum over the flows that a peer has in a shard.
    pub(crate) fn digest(&self, owner: u8, shard: u16) -> u64 {
        let sums = self.digests.get(usize::from(owner));
        sums.and_then(|sums| sums.get(usize::from(shard))).copied().unwrap_or(0)
    }

    /// The flows of a shard, of whatever owner.
    pub(crate) fn shard(&self, shard: u16) -> impl Iterator<Item = Id> + '_ {
        self.index.shard(shard)
    }

    pub(crate) fn shard_of(&self, record: &Record) -> u16 {
        shard_of(self.hash_of(record))
    }

    fn hash_of(&self, record: &Record) -> u32 {
        let client = match self.services.get(u32::from(record.service)).map(|service| service.address) {
            Some(IpAddr::V6(_)) => IpAddr::V6(self.clients.get(record.client).unwrap_or(Ipv6Addr::UNSPECIFIED)),
            _ => IpAddr::V4(Ipv4Addr::from_bits(record.client)),
        };
        self.key_hash(self.services.hash(u32::from(record.service)), client, record.client_port)
    }

    fn key_hash(&self, service: u64, client: IpAddr, port: u16) -> u32 {
        let [high, low] = address_words(client);
        (self.key.hash(&[service, high, low, u64::from(port)]) >> 32) as u32
    }

    /// What a flow adds to its owner's digest: the same on all nodes, whatever their numbers.
    fn digest_of(&self, record: &Record) -> u64 {
        let client = self.flow_key(record).map_or([0, 0], |key| address_words(key.client));
        let hash = |none: bool, hash: u64| if none { 0 } else { hash };
        let small = u64::from_le_bytes([
            record.client_port.to_le_bytes()[0],
            record.client_port.to_le_bytes()[1],
            record.snat_port.to_le_bytes()[0],
            record.snat_port.to_le_bytes()[1],
            record.state,
            record.scale,
            record.flags & SENT_FLAGS,
            0,
        ]);
        self.key.hash(&[
            self.services.hash(u32::from(record.service)),
            client[0],
            client[1],
            hash(record.backend == NO_ADDRESS, self.backends.hash(u32::from(record.backend))),
            hash(record.snat == NO_ADDRESS, self.snats.hash(u32::from(record.snat))),
            small,
            u64::from(record.mark) << 32 | u64::from(record.generation),
        ])
    }

    pub(crate) const fn key(&self) -> HashKey {
        self.key
    }

    /// Another key: places and digests are computed anew.
    pub(crate) fn rekey(&mut self, key: HashKey) {
        self.key = key;
        self.services.rehash(|service| hash_service(key, service));
        self.backends.rehash(|backend| hash_backend(key, backend));
        self.snats.rehash(|snat| hash_address(key, *snat));
        self.index = Index::new();
        self.digests.iter_mut().for_each(Vec::clear);
        self.counts.iter_mut().chain(&mut self.source_counts).for_each(|counts| *counts = [0; OWNERS]);
        self.classes = [0; Class::ALL.len()];
        self.dead = 0;
        for id in 0..self.store.end() {
            let Some(record) = self.store.get(id).copied() else { continue };
            let hash = self.hash_of(&record);
            self.index.insert(hash, id);
            self.account(id, true);
        }
    }
}

/// A record's part of what is known of a flow's state.
pub(crate) fn with_state(record: Record, state: &State, tag_mask: u32) -> Record {
    let mut flags = record.flags & !(SEEN_REPLY | ASSURED);
    for (set, flag) in [(state.seen_reply, SEEN_REPLY), (state.assured, ASSURED)] {
        flags |= if set { flag } else { 0 };
    }
    let mut scale = record.scale;
    if let Some([client, backend]) = state.sides {
        let both = client.flags.has(TcpFlags::WINDOW_SCALE) && backend.flags.has(TcpFlags::WINDOW_SCALE);
        flags &= !(SCALED | SACK_CLIENT | SACK_BACKEND);
        for (set, flag) in [
            (both, SCALED),
            (client.flags.has(TcpFlags::SACK_PERM), SACK_CLIENT),
            (backend.flags.has(TcpFlags::SACK_PERM), SACK_BACKEND),
        ] {
            flags |= if set { flag } else { 0 };
        }
        scale = if both { (client.window_scale & 0x0f) | (backend.window_scale << 4) } else { 0 };
    }
    let mark = state.mark.map_or(record.mark, |mark| mark & !tag_mask);
    Record { state: state.tcp & 0x0f | (state.class as u8) << 4, flags, scale, mark, ..record }
}

/// The other way.
pub(crate) fn state_of(record: &Record) -> State {
    let side = |scale: u8, sack: u8| {
        let mut flags = TcpFlags::default();
        if record.has(SCALED) {
            flags = flags.with(TcpFlags::WINDOW_SCALE);
        }
        if record.has(sack) {
            flags = flags.with(TcpFlags::SACK_PERM);
        }
        TcpSide { window_scale: scale, flags }
    };
    State {
        tcp: record.tcp_state(),
        class: record.class(),
        assured: record.has(ASSURED),
        seen_reply: record.has(SEEN_REPLY),
        sides: Some([side(record.scale & 0x0f, SACK_CLIENT), side(record.scale >> 4, SACK_BACKEND)]),
        mark: Some(record.mark),
    }
}

fn address_words(address: IpAddr) -> [u64; 2] {
    match address {
        IpAddr::V4(address) => [4, u64::from(address.to_bits())],
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            [(bits >> 64) as u64, bits as u64]
        }
    }
}

fn hash_address(key: HashKey, address: IpAddr) -> u64 {
    let [high, low] = address_words(address);
    key.hash(&[high, low])
}

fn hash_backend(key: HashKey, (address, port): &(IpAddr, u16)) -> u64 {
    let [high, low] = address_words(*address);
    key.hash(&[high, low, u64::from(*port)])
}

fn hash_service(key: HashKey, service: &Service) -> u64 {
    let [high, low] = address_words(service.address);
    let zone = u64::from(service.zone.id) | (service.zone.direction as u64) << 16;
    key.hash(&[high, low, u64::from(service.port) << 8 | u64::from(service.protocol), zone])
}
