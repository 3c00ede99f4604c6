//! What a rule is made of. A rule's expressions are executed in order, until one doesn't match or gives a verdict.

use super::super::netlink::{push_attribute, push_nested};

/// The one register that our rules use; it holds 16 bytes, as long as the longest thing that we load.
const REGISTER: u32 = 1;
const REGISTER_VERDICT: u32 = 0;

const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
pub(super) const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;

const NFPROTO_IPV4: u8 = 2;
const NFPROTO_IPV6: u8 = 10;

/// Something that is known of a packet besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meta {
    /// Index of the interface it came in by (4 bytes, the host's order).
    InInterface,
    /// Index of the interface it leaves by (4 bytes, the host's order).
    OutInterface,
    /// IPv4 or IPv6 (1 byte), for tables of family inet.
    Family,
    /// Protocol above IP, behind extension headers (1 byte).
    Transport,
}

/// Where the offset of [`Expression::Payload`] counts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The IP header.
    Network,
    /// The header above IP.
    Transport,
}

/// How [`Expression::Compare`] compares, byte by byte from the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// The same.
    Equal,
    /// Not the same.
    Unequal,
    /// Loaded < value.
    Less,
    /// Loaded > value.
    Greater,
}

/// What becomes of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Thrown away.
    Drop,
    /// Through this base chain; those of other tables still see it.
    Accept,
}

/// One expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// Loads something known of the packet.
    Meta(Meta),
    /// Loads bytes of the packet; doesn't match if it has fewer.
    Payload {
        /// Where `offset` counts from.
        base: Base,
        /// First byte.
        offset: u8,
        /// Number of bytes, 1..=16.
        length: u8,
    },
    /// Goes on if what was loaded compares like this with `value` (as many bytes as were loaded).
    Compare(Comparison, Vec<u8>),
    /// Goes on if what was loaded is in the set.
    Lookup(&'static str),
    /// Counts packets and bytes.
    Counter,
    /// Ends the rule.
    Verdict(Verdict),
}

impl Expression {
    /// Goes on for IPv4 only.
    #[must_use]
    pub fn ipv4() -> [Self; 2] {
        [Self::Meta(Meta::Family), Self::Compare(Comparison::Equal, vec![NFPROTO_IPV4])]
    }

    /// Goes on for IPv6 only.
    #[must_use]
    pub fn ipv6() -> [Self; 2] {
        [Self::Meta(Meta::Family), Self::Compare(Comparison::Equal, vec![NFPROTO_IPV6])]
    }

    /// Goes on for this protocol above IP only.
    #[must_use]
    pub fn transport(protocol: u8) -> [Self; 2] {
        [Self::Meta(Meta::Transport), Self::Compare(Comparison::Equal, vec![protocol])]
    }

    /// Loads the destination address of an IPv4 packet.
    #[must_use]
    pub fn ipv4_destination() -> Self {
        Self::Payload { base: Base::Network, offset: 16, length: 4 }
    }

    /// Loads the destination address of an IPv6 packet.
    #[must_use]
    pub fn ipv6_destination() -> Self {
        Self::Payload { base: Base::Network, offset: 24, length: 16 }
    }

    /// Appends it as an element of a rule's list.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        push_nested(out, NFTA_LIST_ELEM, |out| {
            push_string(out, NFTA_EXPR_NAME, self.name());
            push_nested(out, NFTA_EXPR_DATA, |out| self.data(out));
        });
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Meta(_) => "meta",
            Self::Payload { .. } => "payload",
            Self::Compare(..) => "cmp",
            Self::Lookup(_) => "lookup",
            Self::Counter => "counter",
            Self::Verdict(_) => "immediate",
        }
    }

    /// The attributes; their numbers count per expression.
    fn data(&self, out: &mut Vec<u8>) {
        match self {
            Self::Meta(key) => {
                let key = match key {
                    Meta::InInterface => 4,
                    Meta::OutInterface => 5,
                    Meta::Family => 15,
                    Meta::Transport => 16,
                };
                push_number(out, 1, REGISTER);
                push_number(out, 2, key);
            }
            Self::Payload { base, offset, length } => {
                push_number(out, 1, REGISTER);
                push_number(out, 2, if *base == Base::Network { 1 } else { 2 });
                push_number(out, 3, (*offset).into());
                push_number(out, 4, (*length).into());
            }
            Self::Compare(how, value) => {
                let how = match how {
                    Comparison::Equal => 0,
                    Comparison::Unequal => 1,
                    Comparison::Less => 2,
                    Comparison::Greater => 4,
                };
                push_number(out, 1, REGISTER);
                push_number(out, 2, how);
                push_nested(out, 3, |out| push_attribute(out, NFTA_DATA_VALUE, value));
            }
            Self::Lookup(set) => {
                push_string(out, 1, set);
                push_number(out, 2, REGISTER);
            }
            Self::Counter => {}
            Self::Verdict(verdict) => {
                let code = if *verdict == Verdict::Drop { 0 } else { 1 };
                push_number(out, 1, REGISTER_VERDICT);
                push_nested(out, 2, |out| {
                    push_nested(out, NFTA_DATA_VERDICT, |out| push_number(out, NFTA_VERDICT_CODE, code));
                });
            }
        }
    }
}

/// Numbers are big-endian here, other than in the rest of netlink.
pub(super) fn push_number(out: &mut Vec<u8>, kind: u16, value: u32) {
    push_attribute(out, kind, &value.to_be_bytes());
}

pub(super) fn push_string(out: &mut Vec<u8>, kind: u16, value: &str) {
    let mut bytes = Vec::with_capacity(value.len() + 1);
    bytes.extend_from_slice(value.as_bytes());
    bytes.push(0);
    push_attribute(out, kind, &bytes);
}
