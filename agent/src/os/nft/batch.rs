//! Transactions: either all of a batch takes effect, at one moment, or nothing.

use super::super::addr::step_error;
use super::super::netlink::{
    Ack, NetlinkSocket, attributes, next_message, parse_ack, push_attribute, push_nested, push_request,
};
use super::expr::{
    Expression, GOTO, NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_VERDICT_CHAIN, NFTA_VERDICT_CODE, push_number,
    push_string,
};
use super::watch::Generation;
use holdfast_node::io::StepError;
use nix::sys::socket::SockProtocol;
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE};
use std::io;

/// Our table for guards, of family inet (IPv4 and IPv6).
pub const TABLE: &str = "holdfast";
/// Our table for the embedded balancer.
pub const BALANCE_TABLE: &str = "holdfast_pool";

pub(super) const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEWTABLE: u16 = 0;
const GETTABLE: u16 = 1;
const DELTABLE: u16 = 2;
const NEWCHAIN: u16 = 3;
const NEWRULE: u16 = 6;
const NEWSET: u16 = 9;
const NEWSETELEM: u16 = 12;
const GETSETELEM: u16 = 13;
const DELSETELEM: u16 = 14;
const GETGEN: u16 = 16;
const NFPROTO_INET: u8 = 1;

/// Elements per message: an attribute ends at 64 KiB, and each takes at most 64 bytes.
const ELEMENTS_PER_MESSAGE: usize = 1_000;
const NFT_SET_MAP: u32 = 8;
const NFT_DATA_VERDICT: u32 = 0xffff_ff00;
/// Messages that are acknowledged one by one.
const ACKS_MAX: usize = 128;
/// Datagrams read for one batch beyond its answers: leftovers of one that was given up.
const LEFTOVERS_MAX: usize = 256;

/// Where a base chain sees packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Before routing.
    Prerouting,
    /// To this host.
    Input,
    /// Through this host.
    Forward,
    /// From this host.
    Output,
    /// After routing.
    Postrouting,
}

/// What happens at the end of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Goes on.
    Accept,
    /// Is thrown away.
    Drop,
}

/// A base chain of type filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// Name.
    pub name: &'static str,
    /// Where.
    pub hook: Hook,
    /// Order among the chains of a hook, lower first; what people write as `filter` is 0.
    pub priority: i32,
    /// At its end.
    pub policy: Policy,
}

/// What a set holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyType {
    /// IPv4 addresses.
    Ipv4,
    /// IPv6 addresses.
    Ipv6,
}

/// A map, or a set that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// Name.
    pub name: String,
    /// As `nft` numbers its types (see [`TypeNumber`]).
    pub key: u32,
    /// Bytes of a key.
    pub key_length: u32,
    /// What it holds.
    pub value: MapValue,
    /// Elements at most; 0: any number.
    pub size: u32,
}

/// What a [`Map`] holds for each key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapValue {
    /// Bytes: their type and length.
    Data(u32, u32),
    /// Where to go.
    Verdict,
    /// Nothing but a counter.
    Counter,
    /// Nothing: a plain set.
    Nothing,
}

/// An element of a [`Map`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// Parts of a concatenated key are padded to 4 bytes each.
    pub key: Vec<u8>,
    /// What it maps to.
    pub value: Value,
}

/// See [`Element`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    None,
    /// Bytes.
    Data(Vec<u8>),
    /// This chain, for good.
    Goto(String),
}

/// `nft`'s numbers of types, so that it can show what we made; 6 bits each in a concatenation.
pub struct TypeNumber;

#[allow(missing_docs, reason = "the names say it")]
impl TypeNumber {
    pub const IPV4: u32 = 7;
    pub const IPV6: u32 = 8;
    pub const PROTOCOL: u32 = 12;
    pub const SERVICE: u32 = 13;
    /// A number in the host's order.
    pub const MARK: u32 = 19;

    /// Of a concatenation.
    #[must_use]
    pub fn concatenated(parts: &[u32]) -> u32 {
        parts.iter().fold(0, |all, part| all << 6 | part)
    }
}

/// Changes to one table of ours that take effect together.
#[derive(Debug)]
pub struct Batch {
    table: &'static str,
    messages: Vec<(u16, u16, Vec<u8>)>,
    /// What each message is about, for errors.
    objects: Vec<String>,
    sets: u32,
}

impl Element {
    fn encode(&self, out: &mut Vec<u8>) {
        push_nested(out, 1, |out| {
            push_nested(out, 1, |out| push_attribute(out, NFTA_DATA_VALUE, &self.key));
            match &self.value {
                Value::None => {}
                Value::Data(bytes) => push_nested(out, 2, |out| push_attribute(out, NFTA_DATA_VALUE, bytes)),
                Value::Goto(chain) => push_nested(out, 2, |out| {
                    push_nested(out, NFTA_DATA_VERDICT, |out| {
                        push_number(out, NFTA_VERDICT_CODE, GOTO);
                        push_string(out, NFTA_VERDICT_CHAIN, chain);
                    });
                }),
            }
        });
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// Nothing yet, to the table of guards.
    #[must_use]
    pub fn new() -> Self {
        Self::to(TABLE)
    }

    /// Nothing yet, to this table of ours.
    #[must_use]
    pub fn to(table: &'static str) -> Self {
        Self { table, messages: Vec::new(), objects: Vec::new(), sets: 0 }
    }

    /// The table becomes empty: it is made if it isn't there, and all that is in it goes.
    pub fn replace_table(&mut self) {
        let table = self.table;
        self.remove_table();
        self.push(NEWTABLE, NLM_F_CREATE, format!("add table inet {table}"), |out| push_string(out, 1, table));
    }

    /// The table goes, if it's there.
    pub fn remove_table(&mut self) {
        let table = self.table;
        // Made first, so that the removal can't fail for want of a table.
        self.push(NEWTABLE, NLM_F_CREATE, format!("add table inet {table}"), |out| push_string(out, 1, table));
        self.push(DELTABLE, 0, format!("delete table inet {table}"), |out| push_string(out, 1, table));
    }

    /// Adds a set with these keys (each of the type's length).
    pub fn add_set<'k>(&mut self, name: &'static str, key: KeyType, keys: impl IntoIterator<Item = &'k [u8]>) {
        let table = self.table;
        // As `nft` numbers its types, so that it can show them.
        let (number, length) = match key {
            KeyType::Ipv4 => (7, 4),
            KeyType::Ipv6 => (8, 16),
        };
        self.sets += 1;
        let id = self.sets;
        self.push(NEWSET, NLM_F_CREATE, format!("add set inet {table} {name}"), |out| {
            push_string(out, 1, table);
            push_string(out, 2, name);
            push_number(out, 3, 0);
            push_number(out, 4, number);
            push_number(out, 5, length);
            push_number(out, 10, id);
        });
        let keys: Vec<&[u8]> = keys.into_iter().collect();
        for chunk in keys.chunks(ELEMENTS_PER_MESSAGE) {
            self.push(NEWSETELEM, NLM_F_CREATE, format!("add elements to set inet {table} {name}"), |out| {
                push_string(out, 1, table);
                push_string(out, 2, name);
                push_number(out, 4, id);
                push_nested(out, 3, |out| {
                    for key in chunk {
                        push_nested(out, 1, |out| {
                            push_nested(out, 1, |out| push_attribute(out, NFTA_DATA_VALUE, key));
                        });
                    }
                });
            });
        }
    }

    /// Adds a base chain.
    pub fn add_chain(&mut self, chain: Chain) {
        self.add_base_chain(chain, "filter");
    }

    /// The same of type nat: it sees the first packet of each flow only.
    pub fn add_nat_chain(&mut self, chain: Chain) {
        self.add_base_chain(chain, "nat");
    }

    /// Adds a chain that packets come to from others.
    pub fn add_plain_chain(&mut self, name: &str) {
        let table = self.table;
        self.push(NEWCHAIN, NLM_F_CREATE, format!("add chain inet {table} {name}"), |out| {
            push_string(out, 1, table);
            push_string(out, 3, name);
        });
    }

    /// Adds a map, or a set that counts, and its elements.
    pub fn add_map(&mut self, map: &Map, elements: impl IntoIterator<Item = Element>) {
        let (table, name) = (self.table, map.name.as_str());
        self.sets += 1;
        let id = self.sets;
        self.push(NEWSET, NLM_F_CREATE, format!("add map inet {table} {name}"), |out| {
            push_string(out, 1, table);
            push_string(out, 2, name);
            let is_map = !matches!(map.value, MapValue::Counter | MapValue::Nothing);
            push_number(out, 3, if is_map { NFT_SET_MAP } else { 0 });
            push_number(out, 4, map.key);
            push_number(out, 5, map.key_length);
            match map.value {
                MapValue::Data(number, length) => {
                    push_number(out, 6, number);
                    push_number(out, 7, length);
                }
                MapValue::Verdict => push_number(out, 6, NFT_DATA_VERDICT),
                MapValue::Counter => push_nested(out, 17, |out| push_string(out, 1, "counter")),
                MapValue::Nothing => {}
            }
            if map.size > 0 {
                push_nested(out, 9, |out| push_number(out, 1, map.size));
            }
            push_number(out, 10, id);
        });
        self.add_elements(name, elements);
    }

    /// Adds elements to a map or set. Those that are there with another value make the batch fail.
    pub fn add_elements(&mut self, name: &str, elements: impl IntoIterator<Item = Element>) {
        let elements: Vec<Element> = elements.into_iter().collect();
        self.elements(NEWSETELEM, NLM_F_CREATE, "add elements to", name, &elements);
    }

    /// Removes elements by their keys. Those that aren't there make the batch fail.
    pub fn remove_elements(&mut self, name: &str, keys: impl IntoIterator<Item = Vec<u8>>) {
        let elements: Vec<Element> = keys.into_iter().map(|key| Element { key, value: Value::None }).collect();
        self.elements(DELSETELEM, 0, "remove elements from", name, &elements);
    }

    fn elements(&mut self, kind: u16, flags: u16, what: &str, name: &str, elements: &[Element]) {
        let table = self.table;
        for chunk in elements.chunks(ELEMENTS_PER_MESSAGE) {
            self.push(kind, flags, format!("{what} inet {table} {name}"), |out| {
                push_string(out, 1, table);
                push_string(out, 2, name);
                push_nested(out, 3, |out| chunk.iter().for_each(|element| element.encode(out)));
            });
        }
    }

    fn add_base_chain(&mut self, chain: Chain, kind: &str) {
        let table = self.table;
        let Chain { name, hook, priority, policy } = chain;
        let hook = match hook {
            Hook::Prerouting => 0,
            Hook::Input => 1,
            Hook::Forward => 2,
            Hook::Output => 3,
            Hook::Postrouting => 4,
        };
        self.push(NEWCHAIN, NLM_F_CREATE, format!("add chain inet {table} {name}"), |out| {
            push_string(out, 1, table);
            push_string(out, 3, name);
            push_nested(out, 4, |out| {
                push_number(out, 1, hook);
                push_attribute(out, 2, &priority.to_be_bytes());
            });
            push_number(out, 5, if policy == Policy::Accept { 1 } else { 0 });
            push_string(out, 7, kind);
        });
    }

    /// Adds a rule at the end of a chain.
    pub fn add_rule(&mut self, chain: &str, rule: impl IntoIterator<Item = Expression>) {
        let table = self.table;
        self.push(NEWRULE, NLM_F_CREATE | NLM_F_APPEND, format!("add rule inet {table} {chain}"), |out| {
            push_string(out, 1, table);
            push_string(out, 2, chain);
            push_nested(out, 4, |out| rule.into_iter().for_each(|expression| expression.encode(out)));
        });
    }

    fn push(&mut self, kind: u16, flags: u16, object: String, body: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = generic_header(NFPROTO_INET, 0);
        body(&mut bytes);
        self.messages.push((SUBSYSTEM << 8 | kind, flags | NLM_F_ACK, bytes));
        self.objects.push(object);
    }

    /// So many acknowledgements need not fit the socket's buffer: only the last message is to have one. Errors come for
    /// each message anyway.
    fn is_long(&self) -> bool {
        self.messages.len() > ACKS_MAX
    }

    /// The whole batch: its beginning has number `first`, its messages those after it.
    fn encode(&self, first: u32) -> Vec<u8> {
        let mut out = Vec::new();
        let frame = generic_header(0, SUBSYSTEM);
        push_request(&mut out, BATCH_BEGIN, 0, first, |out| out.extend_from_slice(&frame));
        let mut sequence = first;
        let last = self.messages.len().saturating_sub(1);
        for (at, (kind, flags, body)) in self.messages.iter().enumerate() {
            sequence = sequence.wrapping_add(1);
            let flags = if self.is_long() && at < last { *flags & !NLM_F_ACK } else { *flags };
            push_request(&mut out, *kind, flags, sequence, |out| out.extend_from_slice(body));
        }
        push_request(&mut out, BATCH_END, 0, sequence.wrapping_add(1), |out| out.extend_from_slice(&frame));
        out
    }
}

/// A socket to nf_tables, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct NftSocket {
    netlink: NetlinkSocket,
}

impl NftSocket {
    /// Opens the socket. Changes need CAP_NET_ADMIN, both now and when they are made.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`: the kernel has no netfilter; else whatever the system says about the socket.
    pub fn open() -> io::Result<Self> {
        Ok(Self { netlink: NetlinkSocket::open(SockProtocol::NetlinkNetFilter)? })
    }

    /// Commits; the kernel does it before this returns.
    ///
    /// # Errors
    /// With the object named that was refused; nothing has changed then. `ETIMEDOUT`: it isn't known whether it has.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), StepError> {
        let count = batch.messages.len();
        let first = self.netlink.sequence(u32::try_from(count + 2).expect("a few messages"));
        let failed = |errno, text: Option<&str>, object: &str| {
            Err(step_error(errno, text, "CAP_NET_ADMIN", format!("nftables: {object}")))
        };
        let whole = format!("commit table inet {}", batch.table);
        let unread = |e: io::Error| e.raw_os_error().unwrap_or(libc::EIO);
        let datagram = batch.encode(first);
        let sent = self.netlink.make_room(datagram.len()).and_then(|()| self.netlink.send(&datagram));
        drop(datagram);
        if let Err(e) = sent {
            return failed(unread(e), None, &whole);
        }
        let mut buffer = vec![0; 8 * 1024];
        let mut acks = vec![None; count];
        let mut missing = count;
        for _ in 0..count + LEFTOVERS_MAX {
            if missing == 0 {
                break;
            }
            let mut received = match self.netlink.receive(&mut buffer) {
                Ok(received) => received,
                Err(e) => return failed(unread(e), None, &whole),
            };
            while let Some(message) = next_message(&mut received) {
                let Some(ack) = parse_ack(&message) else { continue };
                let position = message.sequence.wrapping_sub(first);
                if position == 0 && ack.errno != 0 {
                    // Said of the batch as a whole: nothing else will be.
                    return match ack.errno {
                        libc::EOPNOTSUPP => {
                            let what = format!("nftables: {whole}: this kernel has no nf_tables");
                            Err(StepError { errno: libc::EOPNOTSUPP, what })
                        }
                        errno => failed(errno, ack.text.as_deref(), &whole),
                    };
                }
                let slot = usize::try_from(position).ok().and_then(|p| acks.get_mut(p.checked_sub(1)?));
                if let Some(slot @ None) = slot {
                    *slot = Some(ack);
                    missing -= 1;
                    // The kernel tells errors in the order of the messages.
                    if batch.is_long() && usize::try_from(position) == Ok(count) {
                        acks.iter_mut().filter(|ack| ack.is_none()).for_each(|ack| *ack = Some(Ack::SUCCESS));
                        missing = 0;
                    }
                }
            }
        }
        // The first that failed is why the others did.
        for (ack, object) in acks.iter().zip(&batch.objects) {
            match ack {
                Some(ack) if ack.errno != 0 => return failed(ack.errno, ack.text.as_deref(), object),
                Some(_) => {}
                None => return failed(libc::ETIMEDOUT, None, object),
            }
        }
        Ok(())
    }

    /// How often anything of nf_tables has been changed in this network namespace, by whomever.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn generation(&mut self) -> io::Result<Generation> {
        let sequence = self.netlink.sequence(1);
        let mut datagram = Vec::new();
        push_request(&mut datagram, SUBSYSTEM << 8 | GETGEN, NLM_F_ACK, sequence, |out| {
            out.extend_from_slice(&generic_header(0, 0));
        });
        let mut found = None;
        self.netlink.transact(&datagram, sequence, 1, |_, message| {
            let id = message.payload.get(4..).and_then(|body| attribute(body, 1)?.first_chunk::<4>().copied());
            found = id.map(u32::from_be_bytes);
        })?;
        found.map(Generation).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODATA))
    }

    /// Packets that each element of a set that counts has counted, by key; empty: there is no such set.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn counters(&mut self, table: &str, set: &str) -> io::Result<Vec<(Vec<u8>, u64)>> {
        let mut body = generic_header(NFPROTO_INET, 0);
        push_string(&mut body, 1, table);
        push_string(&mut body, 2, set);
        let mut found = Vec::new();
        let dumped = self.netlink.dump(SUBSYSTEM << 8 | GETSETELEM, &body, &mut found, Vec::clear, |found, message| {
            let list = message.payload.get(4..).and_then(|body| attribute(body, 3)).unwrap_or_default();
            found.extend(attributes(list).filter_map(|(_, element)| counted(element)));
        });
        match dumped {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
            other => other.map(|()| found),
        }
    }

    /// Whether our table is there: somebody may have flushed the whole rule set.
    ///
    /// # Errors
    /// Whatever the kernel says, but that there is no such table (or no nf_tables).
    pub fn has_table(&mut self) -> io::Result<bool> {
        self.has(TABLE)
    }

    /// The same of another table of ours.
    ///
    /// # Errors
    /// As [`Self::has_table`].
    pub fn has(&mut self, table: &str) -> io::Result<bool> {
        let sequence = self.netlink.sequence(1);
        let mut datagram = Vec::new();
        push_request(&mut datagram, SUBSYSTEM << 8 | GETTABLE, NLM_F_ACK, sequence, |out| {
            out.extend_from_slice(&generic_header(NFPROTO_INET, 0));
            push_string(out, 1, table);
        });
        let acks = self.netlink.transact(&datagram, sequence, 1, |_, _| ())?;
        match acks.first().and_then(Option::as_ref).map_or(libc::ETIMEDOUT, |ack| ack.errno) {
            0 => Ok(true),
            libc::ENOENT | libc::EOPNOTSUPP => Ok(false),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// Key and packets of an element with a counter.
fn counted(element: &[u8]) -> Option<(Vec<u8>, u64)> {
    let key = attribute(attribute(element, 1)?, NFTA_DATA_VALUE)?;
    let counter = attribute(attribute(element, 7)?, 2)?;
    let packets = attribute(counter, 2)?.first_chunk::<8>()?;
    Some((key.to_vec(), u64::from_be_bytes(*packets)))
}

/// The value of the first attribute of this kind.
pub(super) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(of, _)| of & 0x3fff == kind).map(|(_, value)| value)
}

/// `struct nfgenmsg`: family, version, a number in network order.
fn generic_header(family: u8, number: u16) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    vec![family, 0, high, low]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_framed_and_numbered_and_every_attribute_can_be_walked() {
        let mut batch = Batch::new();
        batch.replace_table();
        batch.add_set("some", KeyType::Ipv4, [&[192, 0, 2, 1][..], &[192, 0, 2, 2]]);
        batch.add_rule("input", [Expression::Counter]);
        let bytes = batch.encode(7);
        let mut rest = bytes.as_slice();
        let mut kinds = Vec::new();
        while let Some(message) = next_message(&mut rest) {
            kinds.push((message.sequence, message.kind));
        }
        assert!(rest.is_empty());
        let kind = |kind| SUBSYSTEM << 8 | kind;
        let expected = [
            BATCH_BEGIN,
            kind(NEWTABLE),
            kind(DELTABLE),
            kind(NEWTABLE),
            kind(NEWSET),
            kind(NEWSETELEM),
            kind(NEWRULE),
            BATCH_END,
        ];
        assert_eq!(kinds, (7..).zip(expected).collect::<Vec<_>>());
    }

    #[test]
    fn many_elements_are_split_so_that_no_attribute_overflows() {
        let keys: Vec<[u8; 16]> = (0..5_000_u128).map(u128::to_be_bytes).collect();
        let mut batch = Batch::new();
        batch.add_set("some", KeyType::Ipv6, keys.iter().map(<[u8; 16]>::as_slice));
        let bytes = batch.encode(1);
        let mut rest = bytes.as_slice();
        let mut elements = 0;
        while let Some(message) = next_message(&mut rest) {
            if message.kind == SUBSYSTEM << 8 | NEWSETELEM {
                use super::super::super::netlink::attributes;
                let body = message.payload.get(4..).expect("a header");
                let (_, list) = attributes(body).find(|(kind, _)| kind & 0x3fff == 3).expect("a list");
                elements += attributes(list).count();
            }
        }
        assert_eq!(elements, 5_000);
    }
}
