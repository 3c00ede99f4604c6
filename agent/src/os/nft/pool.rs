//! The embedded balancer's table.
//!
//! Only the first packet of a flow meets any of it: its destination address, protocol and port lead to the chain of a
//! backend set, where a hash of what the service goes by picks a slot of the lookup table, and the slot says the
//! backend. Conntrack rewrites the rest of the flow, whatever the table says by then. On the way out the flow gets a
//! source of ours, where the service wants one.
//!
//! | chain | where | does |
//! |---|---|---|
//! | `pre`, `out` | prerouting, output | from service to set |
//! | `s3f`, `s3a` | | of set 3: by flow, by client address: hash, look up, rewrite |
//! | `post` | postrouting | from service to source |
//! | `k42` | | backends of one set, one kind of source: count, rewrite |
//! | `clamp`, `mss1360` | forward | of services with `mss`: lower it in SYNs |
//!
//! Maps: `services4`/`6`, `m3` (slot to backend of set 3), `c3` (new flows by backend), `sources4`/`6`, `h3` (backends
//! that come to a service themselves), `k42m`, `mss4`/`6`.

use super::batch::{BALANCE_TABLE, Batch, Chain, Element, Hook, Map, MapValue, Policy, TypeNumber, Value};
use super::expr::{Base, Comparison, Expression, Flow, Meta, Register};
use super::socket::NftSocket;
use super::watch::{Generation, Membership};
use holdfast_node::config::{Affinity, NatMode, Service, SetId};
use holdfast_node::io::StepError;
use holdfast_node::pool::maglev::KERNEL_SEED;
use holdfast_node::pool::{Balance, Ruleset, SetChange, SetTable};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// What people write as `dstnat` and `srcnat` is -100 and 100; their own rules for the same traffic come first.
const PRIORITY_DESTINATION: i32 = -90;
const PRIORITY_SOURCE: i32 = 110;
const PRIORITY_MANGLE: i32 = -150;
/// `IPS_DST_NAT`.
const STATUS_DESTINATION_CHANGED: u32 = 1 << 5;
const TCP: u8 = 6;
const SYN: u8 = 0x02;

/// Keeps the table, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Balancer {
    socket: NftSocket,
    /// Of the [`super::TableWatch`], which is to hear of the changes of others only.
    membership: Option<Membership>,
}

impl Balancer {
    /// Opens the socket; changes need CAP_NET_ADMIN.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`: the kernel has no netfilter; else whatever the system says about the socket.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: NftSocket::open()?, membership: None })
    }

    /// The same, and a watch doesn't hear of what is done here.
    #[must_use]
    pub fn unheard(self, membership: Membership) -> Self {
        Self { membership: Some(membership), ..self }
    }

    /// Makes a change; the kernel does it as a whole, before this returns. True: somebody else changed something of
    /// nf_tables meanwhile, of which the watch may not have heard.
    ///
    /// # Errors
    /// With the object named that was refused; nothing has changed then.
    pub fn apply(&mut self, balance: &Balance) -> Result<bool, StepError> {
        let before = self.socket.generation().ok();
        // With somebody listening the kernel makes a message of every element: tens of thousands of 4 KiB each.
        self.membership.iter().for_each(Membership::leave);
        let result = self.commit(balance);
        self.membership.iter().for_each(Membership::join);
        result?;
        let after = self.socket.generation().ok();
        let own = before.map(Generation::next);
        Ok(self.membership.is_some() && *balance != Balance::Unload && after != own)
    }

    fn commit(&mut self, balance: &Balance) -> Result<(), StepError> {
        match balance {
            Balance::Load(ruleset) => self.socket.commit(&load(ruleset)),
            Balance::Change(changes) => self.socket.commit(&change(changes)),
            Balance::Unload => self.socket.remove(BALANCE_TABLE),
        }
    }

    /// Whether the table is there.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn is_there(&mut self) -> io::Result<bool> {
        self.socket.has(BALANCE_TABLE)
    }

    /// New flows that were sent to each backend of a set since the table was loaded.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn flows(&mut self, set: SetId) -> io::Result<BTreeMap<SocketAddr, u64>> {
        let counters = self.socket.counters(BALANCE_TABLE, &format!("c{}", set.0))?;
        Ok(counters.iter().filter_map(|(key, flows)| Some((address_of(key)?, *flows))).collect())
    }
}

/// IPv4 or IPv6: how long things are, and where they stand in a packet and in registers.
#[derive(Clone, Copy)]
struct Family {
    six: bool,
    /// Of the name of maps.
    digit: char,
    address: u32,
    words: u8,
    /// Where source and destination stand in the IP header.
    source: u8,
    destination: u8,
    conntrack: Flow,
}

const FOUR: Family =
    Family { six: false, digit: '4', address: 4, words: 1, source: 12, destination: 16, conntrack: Flow::Destination4 };
const SIX: Family =
    Family { six: true, digit: '6', address: 16, words: 4, source: 8, destination: 24, conntrack: Flow::Destination6 };

/// Where keys, backends and addresses are put together.
const KEY: Register = Register(0);
/// For what doesn't fit there.
const SPARE: Register = Register(12);

impl Family {
    fn of(six: bool) -> Self {
        if six { SIX } else { FOUR }
    }

    fn type_number(self) -> u32 {
        if self.six { TypeNumber::IPV6 } else { TypeNumber::IPV4 }
    }

    fn only(self) -> [Expression; 2] {
        if self.six { Expression::ipv6() } else { Expression::ipv4() }
    }

    fn length(self) -> u8 {
        self.words * 4
    }

    /// Address, protocol and port, of a packet on its way in.
    fn key_of_packet(self) -> [Expression; 3] {
        [
            payload(Base::Network, self.destination, self.length(), KEY),
            Expression::MetaTo(Meta::Transport, KEY.plus(self.words)),
            payload(Base::Transport, 2, 2, KEY.plus(self.words + 1)),
        ]
    }

    /// The same, as the client sent it, of a flow that was rewritten.
    fn key_of_flow(self) -> [Expression; 3] {
        [
            Expression::Conntrack(self.conntrack, KEY),
            Expression::MetaTo(Meta::Transport, KEY.plus(self.words)),
            Expression::Conntrack(Flow::DestinationPort, KEY.plus(self.words + 1)),
        ]
    }

    /// A map from services to chains.
    fn services(self, name: &str) -> Map {
        Map {
            name: format!("{name}{}", self.digit),
            key: TypeNumber::concatenated(&[self.type_number(), TypeNumber::PROTOCOL, TypeNumber::SERVICE]),
            key_length: self.address + 8,
            value: MapValue::Verdict,
            size: 0,
        }
    }

    /// What a backend is as a key or value: its address and port.
    fn backend(self) -> (u32, u32) {
        (TypeNumber::concatenated(&[self.type_number(), TypeNumber::SERVICE]), self.address + 4)
    }
}

fn load(ruleset: &Ruleset) -> Batch {
    let mut batch = Batch::to(BALANCE_TABLE);
    batch.replace_table();
    let families: Vec<Family> = [FOUR, SIX].into_iter().filter(|f| uses(ruleset, f.six)).collect();
    let chains = set_chains(ruleset);
    for (set, affinity) in &chains {
        batch.add_plain_chain(&chain_name(*set, *affinity));
    }
    for (id, set) in (0..).map(SetId).zip(&ruleset.sets) {
        add_set(&mut batch, id, set);
    }
    for (set, affinity) in chains {
        if let Some(table) = ruleset.sets.get(usize::from(set.0)) {
            batch.add_rule(&chain_name(set, affinity), pick(set, table, affinity));
        }
    }
    for family in &families {
        let goto = |service: &Service, set: SetId| Some(chain_name(set, service.affinity));
        batch.add_map(&family.services("services"), elements(ruleset, *family, goto));
    }
    let before = |name, hook| Chain { name, hook, priority: PRIORITY_DESTINATION, policy: Policy::Accept };
    batch.add_nat_chain(before("pre", Hook::Prerouting));
    batch.add_nat_chain(before("out", Hook::Output));
    for family in &families {
        let jump = Expression::Jump { map: family.services("services").name, key: KEY };
        let dispatch = family.key_of_packet().into_iter().chain([jump]);
        batch.add_rule("pre", family.only().into_iter().chain(dispatch.clone()));
        // This host's own connections: only while it holds the address. A backup that looks whether the VIP works must
        // not be answered by itself.
        let local = [Expression::ToThisHost, Expression::Compare(Comparison::Equal, RTN_LOCAL.to_ne_bytes().to_vec())];
        batch.add_rule("out", family.only().into_iter().chain(local).chain(dispatch));
    }
    sources(&mut batch, ruleset, &families);
    segments(&mut batch, ruleset, &families);
    batch
}

const RTN_LOCAL: u32 = 2;

fn change(changes: &[SetChange]) -> Batch {
    let mut batch = Batch::to(BALANCE_TABLE);
    for change in changes {
        let name = format!("m{}", change.set.0);
        let taken = change.slots.iter().filter(|slot| slot.taken);
        batch.remove_elements(&name, taken.map(|slot| slot.slot.to_ne_bytes().to_vec()));
        let filled = change.slots.iter().filter_map(|slot| {
            Some(Element { key: slot.slot.to_ne_bytes().to_vec(), value: Value::Data(backend_bytes(slot.to?)) })
        });
        batch.add_elements(&name, filled);
    }
    batch
}

/// The lookup table and the counters of a set.
fn add_set(batch: &mut Batch, id: SetId, set: &SetTable) {
    let (kind, length) = Family::of(set.is_six()).backend();
    let size = u32::try_from(set.slots.len()).unwrap_or(0);
    let map = Map {
        name: format!("m{}", id.0),
        key: TypeNumber::MARK,
        key_length: 4,
        value: MapValue::Data(kind, length),
        // In a change what is taken out counts until it has taken effect.
        size: size.saturating_mul(2),
    };
    let slots = (0..size).filter_map(|slot| {
        let backend = set.backend(usize::try_from(slot).ok()?)?;
        Some(Element { key: slot.to_ne_bytes().to_vec(), value: Value::Data(backend_bytes(backend)) })
    });
    batch.add_map(&map, slots);
    let counters = Map { name: format!("c{}", id.0), key: kind, key_length: length, value: MapValue::Counter, size: 0 };
    let backends = set.backends.iter().map(|backend| Element { key: backend_bytes(*backend), value: Value::None });
    batch.add_map(&counters, backends);
}

/// Hash, look up, rewrite.
fn pick(id: SetId, set: &SetTable, affinity: Affinity) -> Vec<Expression> {
    let family = Family::of(set.is_six());
    let mut rule = vec![payload(Base::Network, family.source, family.length(), KEY)];
    let mut length = family.length();
    if affinity == Affinity::Flow {
        // Both addresses stand together, and so do both ports.
        length *= 2;
        rule = vec![payload(Base::Network, family.source, length, KEY)];
        rule.push(payload(Base::Transport, 0, 4, KEY.plus(length / 4)));
        length += 4;
    }
    let modulus = u32::try_from(set.slots.len()).unwrap_or(1);
    rule.extend([
        Expression::Hash { from: KEY, length, to: SPARE, modulus, seed: KERNEL_SEED },
        Expression::Map { map: format!("m{}", id.0), key: SPARE, to: KEY },
        Expression::Nat { source: false, six: family.six, address: KEY, port: Some(KEY.plus(family.words)) },
    ]);
    rule
}

/// What a service's flows get as their source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    /// One of these.
    Ours(Vec<IpAddr>),
    /// The host's own towards the backend.
    Own,
    /// That too, but only for clients that are backends of this set: their own network would lead the answer past us.
    OfBackends(SetId),
}

impl Source {
    fn of(service: &Service, six: bool, set: SetId) -> Self {
        let ours: Vec<IpAddr> = service.snat.iter().copied().filter(|ip| ip.is_ipv6() == six).collect();
        match service.mode {
            NatMode::Dnat => Self::OfBackends(set),
            NatMode::Snat if ours.is_empty() => Self::Own,
            NatMode::Snat => Self::Ours(ours),
        }
    }
}

fn sources(batch: &mut Batch, ruleset: &Ruleset, families: &[Family]) {
    let chain = Chain { name: "post", hook: Hook::Postrouting, priority: PRIORITY_SOURCE, policy: Policy::Accept };
    batch.add_nat_chain(chain);
    for family in families {
        let of = |service: &Service, set| (Source::of(service, family.six, set), set);
        let all: BTreeSet<(Source, SetId)> =
            served(ruleset, family.six).map(|(service, _, set)| of(service, set)).collect();
        let name = |wanted: &(Source, SetId)| {
            let at = all.iter().position(|other| other == wanted)?;
            Some(format!("k{}{at}", family.digit))
        };
        for wanted in &all {
            let Some(name) = name(wanted) else { continue };
            batch.add_plain_chain(&name);
            // Here, and not where the backend is picked: `nft` can't show a rule that looks up what it has looked up.
            let count = [
                payload(Base::Network, family.destination, family.length(), KEY),
                payload(Base::Transport, 2, 2, KEY.plus(family.words)),
                Expression::Find { set: format!("c{}", wanted.1.0), key: KEY },
            ];
            batch.add_rule(&name, count);
            rewrite_source(batch, ruleset, *family, &wanted.0, &name);
        }
        batch.add_map(&family.services("sources"), elements(ruleset, *family, |service, set| name(&of(service, set))));
        let ours = [
            Expression::Conntrack(Flow::Status, KEY),
            Expression::AnyBit(KEY, STATUS_DESTINATION_CHANGED),
            Expression::Compare(Comparison::Unequal, vec![0; 4]),
        ];
        let jump = Expression::Jump { map: family.services("sources").name, key: KEY };
        let rule = family.only().into_iter().chain(ours).chain(family.key_of_flow()).chain([jump]);
        batch.add_rule("post", rule);
    }
}

fn rewrite_source(batch: &mut Batch, ruleset: &Ruleset, family: Family, source: &Source, name: &str) {
    let nat = Expression::Nat { source: true, six: family.six, address: KEY, port: None };
    match source {
        Source::Own => batch.add_rule(name, [Expression::Masquerade]),
        Source::Ours(addresses) => match addresses.as_slice() {
            [one] => batch.add_rule(name, [Expression::Load(KEY, ip_bytes(*one)), nat]),
            several => {
                let map = format!("{name}m");
                let value = MapValue::Data(family.type_number(), family.address);
                let element = |(at, ip): (u32, &IpAddr)| Element {
                    key: at.to_ne_bytes().to_vec(),
                    value: Value::Data(ip_bytes(*ip)),
                };
                let wanted = Map { name: map.clone(), key: TypeNumber::MARK, key_length: 4, value, size: 0 };
                batch.add_map(&wanted, (0..).zip(several).map(element));
                let modulus = u32::try_from(several.len()).unwrap_or(1);
                let length = family.length() + 4;
                let hash = Expression::Hash { from: KEY, length, to: SPARE, modulus, seed: KERNEL_SEED };
                let pick = [
                    payload(Base::Network, family.source, family.length(), KEY),
                    payload(Base::Transport, 0, 4, KEY.plus(family.words)),
                    hash,
                    Expression::Map { map, key: SPARE, to: KEY },
                    nat,
                ];
                batch.add_rule(name, pick);
            }
        },
        Source::OfBackends(id) => {
            let set = format!("h{}", id.0);
            let table = ruleset.sets.get(usize::from(id.0));
            let hosts: BTreeSet<IpAddr> =
                table.into_iter().flat_map(|table| table.backends.iter()).map(SocketAddr::ip).collect();
            let wanted = Map {
                name: set.clone(),
                key: family.type_number(),
                key_length: family.address,
                value: MapValue::Counter,
                size: 0,
            };
            batch.add_map(&wanted, hosts.iter().map(|ip| Element { key: ip_bytes(*ip), value: Value::None }));
            let client = payload(Base::Network, family.source, family.length(), KEY);
            batch.add_rule(name, [client, Expression::Find { set, key: KEY }, Expression::Masquerade]);
        }
    }
}

/// The largest segment, of services that say one. Both directions: each end tells the other what it can take.
fn segments(batch: &mut Batch, ruleset: &Ruleset, families: &[Family]) {
    let sizes: BTreeSet<u16> = ruleset.services.iter().filter_map(|service| service.mss).collect();
    if sizes.is_empty() {
        return;
    }
    for mss in &sizes {
        batch.add_plain_chain(&segment_chain(*mss));
        let load = Expression::Load(KEY, mss.to_be_bytes().to_vec());
        batch.add_rule(&segment_chain(*mss), [load, Expression::LowerMss { from: KEY }]);
    }
    batch.add_chain(Chain { name: "clamp", hook: Hook::Forward, priority: PRIORITY_MANGLE, policy: Policy::Accept });
    for family in families {
        let map = family.services("mss");
        batch.add_map(&map, elements(ruleset, *family, |service, _| service.mss.map(segment_chain)));
        let syn = [
            payload(Base::Transport, 13, 1, KEY),
            Expression::AnyBit(KEY, u32::from_ne_bytes([SYN, 0, 0, 0])),
            Expression::Compare(Comparison::Unequal, vec![0; 4]),
        ];
        let jump = Expression::Jump { map: map.name, key: KEY };
        let rule = family.only().into_iter().chain(Expression::transport(TCP)).chain(syn);
        batch.add_rule("clamp", rule.chain(family.key_of_flow()).chain([jump]));
    }
}

fn segment_chain(mss: u16) -> String {
    format!("mss{mss}")
}

/// Where each service's packets go on.
fn elements(ruleset: &Ruleset, family: Family, chain: impl Fn(&Service, SetId) -> Option<String>) -> Vec<Element> {
    let element = |(service, ip, set): (&Service, IpAddr, SetId)| {
        let mut key = ip_bytes(ip);
        key.extend_from_slice(&[service.protocol.number(), 0, 0, 0]);
        key.extend_from_slice(&service.port.to_be_bytes());
        key.extend_from_slice(&[0, 0]);
        Some(Element { key, value: Value::Goto(chain(service, set)?) })
    };
    served(ruleset, family.six).filter_map(element).collect()
}

/// Each service at each of its addresses of a family.
fn served(ruleset: &Ruleset, six: bool) -> impl Iterator<Item = (&Service, IpAddr, SetId)> {
    let each = |service| {
        let addresses: &Vec<(IpAddr, SetId)> = {
            let service: &Service = service;
            &service.addresses
        };
        addresses.iter().map(move |(ip, set)| (service, *ip, *set))
    };
    ruleset.services.iter().flat_map(each).filter(move |(_, ip, _)| ip.is_ipv6() == six)
}

fn uses(ruleset: &Ruleset, six: bool) -> bool {
    served(ruleset, six).next().is_some()
}

/// The chains of sets that services use.
fn set_chains(ruleset: &Ruleset) -> BTreeSet<(SetId, Affinity)> {
    let each = ruleset.services.iter();
    each.flat_map(|service| service.addresses.iter().map(|(_, set)| (*set, service.affinity))).collect()
}

fn chain_name(set: SetId, affinity: Affinity) -> String {
    format!("s{}{}", set.0, if affinity == Affinity::Flow { 'f' } else { 'a' })
}

fn payload(base: Base, offset: u8, length: u8, to: Register) -> Expression {
    Expression::PayloadTo { base, offset, length, to }
}

fn ip_bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn backend_bytes(backend: SocketAddr) -> Vec<u8> {
    let mut bytes = ip_bytes(backend.ip());
    bytes.extend_from_slice(&backend.port().to_be_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes
}

fn address_of(bytes: &[u8]) -> Option<SocketAddr> {
    let (ip, port) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    let ip = <[u8; 4]>::try_from(ip).map(IpAddr::from).or_else(|_| <[u8; 16]>::try_from(ip).map(IpAddr::from)).ok()?;
    Some(SocketAddr::new(ip, u16::from_be_bytes(*port.first_chunk::<2>()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::config::Transport;

    #[test]
    fn a_backend_is_read_back_from_the_key_of_its_counter() {
        for text in ["10.2.0.21:8080", "[2001:db8::21]:53"] {
            let backend: SocketAddr = text.parse().expect("an address");
            assert_eq!(address_of(&backend_bytes(backend)), Some(backend));
        }
        for bytes in [&[][..], &[1, 2, 3], &[0; 9], &[0; 19]] {
            assert_eq!(address_of(bytes), None);
        }
        assert_eq!(Transport::Tcp.number(), TCP);
    }
}
