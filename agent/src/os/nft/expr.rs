//! What a rule is made of. A rule's expressions are executed in order, until one doesn't match or gives a verdict.

use super::super::netlink::{push_attribute, push_nested};

/// The register of expressions that don't name one; it holds 16 bytes, and is the same as the first four of [`Register`].
const REGISTER: u32 = 1;
const REGISTER_VERDICT: u32 = 0;

const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
pub(super) const NFTA_DATA_VALUE: u16 = 1;
pub(super) const NFTA_DATA_VERDICT: u16 = 2;
pub(super) const NFTA_VERDICT_CODE: u16 = 1;
pub(super) const NFTA_VERDICT_CHAIN: u16 = 2;
/// `NFT_GOTO`.
pub(super) const GOTO: u32 = -4_i32 as u32;

/// `NFT_CT_EVENTMASK`.
pub(super) const CT_EVENT_MASK: u32 = 18;

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

/// One of sixteen registers of 4 bytes. Longer things take those after it, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Register(pub u8);

impl Register {
    /// `NFT_REG32_00` and so on.
    fn number(self) -> u32 {
        8 + u32::from(self.0)
    }

    /// The one so many 4 bytes further on.
    #[must_use]
    pub fn plus(self, words: u8) -> Self {
        Self(self.0.saturating_add(words))
    }
}

/// What conntrack knows of a packet's flow; addresses and ports as the one who opened it sent them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// New, established … as `ct state` has it (4 bytes of one bit, the host's order).
    State,
    /// `IPS_…` bits (4 bytes, the host's order).
    Status,
    /// Destination address, IPv4.
    Destination4,
    /// Destination address, IPv6.
    Destination6,
    /// Destination port (2 bytes).
    DestinationPort,
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
    /// Loads something known of the packet.
    MetaTo(Meta, Register),
    /// Loads bytes of the packet; doesn't match if it has fewer.
    PayloadTo {
        /// Where `offset` counts from.
        base: Base,
        /// First byte.
        offset: u8,
        /// Number of bytes.
        length: u8,
        /// Where they go.
        to: Register,
    },
    /// Loads what conntrack knows.
    Conntrack(Flow, Register),
    /// Sets what events conntrack tells of the flow to these (`IPCT_…` bits, the host's order).
    SetEventMask(Register),
    /// Loads these bytes.
    Load(Register, Vec<u8>),
    /// Goes on if some of these bits are set: of a number in the host's order.
    AnyBit(Register, u32),
    /// The kernel's own Jenkins hash, scaled to 0..`modulus`.
    Hash {
        /// What is hashed begins here …
        from: Register,
        /// … and is so many bytes long.
        length: u8,
        /// Where the result goes (the host's order).
        to: Register,
        /// Number of results.
        modulus: u32,
        /// The same on every node.
        seed: u32,
    },
    /// Goes on if the key is in the set; counts there, if that set counts.
    Find {
        /// The set.
        set: String,
        /// The key begins here.
        key: Register,
    },
    /// Goes on if the key is in the map, with what it says.
    Map {
        /// The map.
        map: String,
        /// The key begins here.
        key: Register,
        /// Where the value goes.
        to: Register,
    },
    /// Goes where the map says, if the key is in it.
    Jump {
        /// A map with verdicts.
        map: String,
        /// The key begins here.
        key: Register,
    },
    /// The address (and port, if there is one) becomes the flow's destination, or its source.
    Nat {
        /// Source, not destination.
        source: bool,
        /// IPv6.
        six: bool,
        /// The address.
        address: Register,
        /// The port.
        port: Option<Register>,
    },
    /// The flow's source becomes the address of the interface it leaves by.
    Masquerade,
    /// Goes on if the destination is an address of this host.
    ToThisHost,
    /// Lowers the largest segment that a TCP SYN allows to this.
    LowerMss {
        /// 2 bytes, as on the wire; from here.
        from: Register,
    },
    /// Ends the rule.
    Verdict(Verdict),
}

impl Meta {
    /// `NFT_META_…`.
    fn number(self) -> u32 {
        match self {
            Self::InInterface => 4,
            Self::OutInterface => 5,
            Self::Family => 15,
            Self::Transport => 16,
        }
    }
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
            Self::Verdict(_) | Self::Load(..) => "immediate",
            Self::MetaTo(..) => "meta",
            Self::PayloadTo { .. } => "payload",
            Self::Conntrack(..) | Self::SetEventMask(_) => "ct",
            Self::AnyBit(..) => "bitwise",
            Self::Hash { .. } => "hash",
            Self::Find { .. } | Self::Map { .. } | Self::Jump { .. } => "lookup",
            Self::Nat { .. } => "nat",
            Self::Masquerade => "masq",
            Self::ToThisHost => "fib",
            Self::LowerMss { .. } => "exthdr",
        }
    }

    /// The attributes; their numbers count per expression.
    fn data(&self, out: &mut Vec<u8>) {
        match self {
            Self::Meta(key) => {
                push_number(out, 1, REGISTER);
                push_number(out, 2, key.number());
            }
            Self::MetaTo(key, to) => {
                push_number(out, 1, to.number());
                push_number(out, 2, key.number());
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
            Self::Counter | Self::Masquerade => {}
            Self::PayloadTo { base, offset, length, to } => {
                push_number(out, 1, to.number());
                push_number(out, 2, if *base == Base::Network { 1 } else { 2 });
                push_number(out, 3, (*offset).into());
                push_number(out, 4, (*length).into());
            }
            Self::Conntrack(what, to) => {
                let (key, directed) = match what {
                    Flow::State => (0, false),
                    Flow::Status => (2, false),
                    Flow::Destination4 => (20, true),
                    Flow::Destination6 => (22, true),
                    Flow::DestinationPort => (12, true),
                };
                push_number(out, 1, to.number());
                push_number(out, 2, key);
                if directed {
                    // The direction of the one who opened it.
                    push_attribute(out, 3, &[0]);
                }
            }
            Self::SetEventMask(from) => {
                push_number(out, 2, CT_EVENT_MASK);
                push_number(out, 4, from.number());
            }
            Self::Load(to, value) => {
                push_number(out, 1, to.number());
                push_nested(out, 2, |out| push_attribute(out, NFTA_DATA_VALUE, value));
            }
            Self::AnyBit(register, mask) => {
                push_number(out, 1, register.number());
                push_number(out, 2, register.number());
                push_number(out, 3, 4);
                push_nested(out, 4, |out| push_attribute(out, NFTA_DATA_VALUE, &mask.to_ne_bytes()));
                push_nested(out, 5, |out| push_attribute(out, NFTA_DATA_VALUE, &[0; 4]));
            }
            Self::Hash { from, length, to, modulus, seed } => {
                push_number(out, 1, from.number());
                push_number(out, 2, to.number());
                push_number(out, 3, (*length).into());
                push_number(out, 4, *modulus);
                push_number(out, 5, *seed);
            }
            Self::Find { set, key } => {
                push_string(out, 1, set);
                push_number(out, 2, key.number());
            }
            Self::Map { map, key, to } => {
                push_string(out, 1, map);
                push_number(out, 2, key.number());
                push_number(out, 3, to.number());
            }
            Self::Jump { map, key } => {
                push_string(out, 1, map);
                push_number(out, 2, key.number());
                push_number(out, 3, REGISTER_VERDICT);
            }
            Self::Nat { source, six, address, port } => {
                push_number(out, 1, if *source { 0 } else { 1 });
                push_number(out, 2, u32::from(if *six { NFPROTO_IPV6 } else { NFPROTO_IPV4 }));
                push_number(out, 3, address.number());
                if let Some(port) = port {
                    push_number(out, 5, port.number());
                }
            }
            Self::ToThisHost => {
                push_number(out, 1, REGISTER);
                // The type of the destination's route.
                push_number(out, 2, 3);
                push_number(out, 3, 1 << 1);
            }
            Self::LowerMss { from } => {
                push_attribute(out, 2, &[2]);
                push_number(out, 3, 2);
                push_number(out, 4, 2);
                push_number(out, 6, 1);
                push_number(out, 7, from.number());
            }
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
