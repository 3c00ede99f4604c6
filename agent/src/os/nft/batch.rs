//! Transactions: either all of a batch takes effect, at one moment, or nothing.

use super::super::netlink::{push_attribute, push_nested, push_request};
use super::expr::{
    Expression, GOTO, NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_VERDICT_CHAIN, NFTA_VERDICT_CODE, push_number,
    push_string,
};
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE};

/// Our table for guards, of family inet (IPv4 and IPv6).
pub const TABLE: &str = "holdfast";
/// Our table for the embedded balancer.
pub const BALANCE_TABLE: &str = "holdfast_pool";

pub(super) const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEWTABLE: u16 = 0;
const DELTABLE: u16 = 2;
pub(super) const NEWCHAIN: u16 = 3;
pub(super) const NEWRULE: u16 = 6;
const NEWSET: u16 = 9;
const NEWSETELEM: u16 = 12;
const DELSETELEM: u16 = 14;
pub(super) const NFPROTO_INET: u8 = 1;

/// Elements per message: an attribute ends at 64 KiB, and each takes at most 64 bytes.
const ELEMENTS_PER_MESSAGE: usize = 1_000;
const NFT_SET_MAP: u32 = 8;
const NFT_DATA_VERDICT: u32 = 0xffff_ff00;
/// Messages that are acknowledged one by one.
const ACKS_MAX: usize = 128;

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
    pub(super) table: &'static str,
    messages: Vec<(u16, u16, Vec<u8>)>,
    /// What each message is about, for errors.
    pub(super) objects: Vec<String>,
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
    pub fn add_set<K: Into<Vec<u8>>>(&mut self, name: &str, key: KeyType, keys: impl IntoIterator<Item = K>) {
        let (key, key_length) = match key {
            KeyType::Ipv4 => (TypeNumber::IPV4, 4),
            KeyType::Ipv6 => (TypeNumber::IPV6, 16),
        };
        let set = Map { name: name.to_owned(), key, key_length, value: MapValue::Nothing, size: 0 };
        self.add_map(&set, keys.into_iter().map(|key| Element { key: key.into(), value: Value::None }));
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
        let is_map = !matches!(map.value, MapValue::Counter | MapValue::Nothing);
        self.push(
            NEWSET,
            NLM_F_CREATE,
            format!("add {} inet {table} {name}", if is_map { "map" } else { "set" }),
            |out| {
                push_string(out, 1, table);
                push_string(out, 2, name);
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
            },
        );
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
    pub(super) fn is_long(&self) -> bool {
        self.messages.len() > ACKS_MAX
    }

    /// The whole batch: its beginning has number `first`, its messages those after it.
    pub(super) fn encode(&self, first: u32) -> Vec<u8> {
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

/// `struct nfgenmsg`: family, version, a number in network order.
pub(super) fn generic_header(family: u8, number: u16) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    vec![family, 0, high, low]
}

#[cfg(test)]
mod tests {
    use super::super::super::netlink::{attributes, next_message};
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
        batch.add_set("some", KeyType::Ipv6, keys);
        let bytes = batch.encode(1);
        let mut rest = bytes.as_slice();
        let mut elements = 0;
        while let Some(message) = next_message(&mut rest) {
            if message.kind == SUBSYSTEM << 8 | NEWSETELEM {
                let body = message.payload.get(4..).expect("a header");
                let (_, list) = attributes(body).find(|(kind, _)| kind & 0x3fff == 3).expect("a list");
                elements += attributes(list).count();
            }
        }
        assert_eq!(elements, 5_000);
    }
}
