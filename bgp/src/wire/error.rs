//! Why a message is refused, and what is done about it: a NOTIFICATION, or what RFC 7606 says.

use std::fmt;

use thiserror::Error;

use super::header::{HEADER_LEN, MAX_LEN, MessageType};
use super::notification::Notification;

/// Why a message was refused. The session ends, with [`Self::notification`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Error)]
pub enum Error {
    /// Its header.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// An OPEN.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An UPDATE that RFC 7606 doesn't save.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// A ROUTE-REFRESH.
    #[error(transparent)]
    RouteRefresh(#[from] RefreshError),
    /// A NOTIFICATION: none answers it (RFC 4271 section 6.4).
    #[error("NOTIFICATION without code and subcode")]
    Notification,
}

impl Error {
    /// What the peer is told; `None` of a broken NOTIFICATION, which is never answered by another.
    pub fn notification(&self) -> Option<Notification> {
        match self {
            Self::Header(error) => Some(error.notification()),
            Self::Open(error) => Some(error.notification()),
            Self::Update(error) => Some(error.notification()),
            Self::RouteRefresh(error) => Some(error.notification()),
            Self::Notification => None,
        }
    }
}

/// What is wrong with a header (RFC 4271 section 6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum HeaderError {
    /// The marker isn't all ones: we have lost the stream, or the other end isn't a BGP speaker.
    #[error("marker is not all ones: not a BGP message")]
    NotSynchronized,
    /// Shorter or longer than this type may be.
    #[error("message of {length} bytes{}", of(*.kind))]
    Length {
        /// As it stands in the header.
        length: u16,
        /// What the message would be; `None` if it's shorter than a header.
        kind: Option<MessageType>,
    },
    /// No such type.
    #[error("unknown message type {0}")]
    Type(u8),
}

fn of(kind: Option<MessageType>) -> String {
    kind.map_or_else(|| String::from(", shorter than a header"), |kind| format!(", which no {kind} may have"))
}

impl HeaderError {
    /// What the peer is told.
    pub fn notification(&self) -> Notification {
        match self {
            Self::NotSynchronized => Notification::new(1, 1, Vec::new()),
            Self::Length { length, .. } => Notification::new(1, 2, length.to_be_bytes().to_vec()),
            Self::Type(code) => Notification::new(1, 3, vec![*code]),
        }
    }
}

/// What is wrong with an OPEN (RFC 4271 section 6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum OpenError {
    /// Not BGP-4.
    #[error("BGP version {0}, we speak 4")]
    Version(u8),
    /// AS 0 (RFC 7607), or two octets that are neither AS_TRANS nor the number in the capability (RFC 6793).
    #[error("AS {two_octets} in the OPEN{}", and_capability(*.capability))]
    Asn {
        /// The two octets in the OPEN's fixed part.
        two_octets: u16,
        /// The number in the capability, if there is one.
        capability: Option<u32>,
    },
    /// Identifier 0.0.0.0.
    #[error("BGP identifier 0.0.0.0")]
    Identifier,
    /// An optional parameter that isn't capabilities.
    #[error("unknown optional parameter {0}")]
    Parameter(u8),
    /// 1 or 2 seconds.
    #[error("hold time of {0} s: must be 0 or at least 3")]
    HoldTime(u16),
    /// Parameters or capabilities that run over their end, or one that decides how we read and has a wrong length.
    #[error("malformed {0}")]
    Malformed(&'static str),
}

fn and_capability(asn: Option<u32>) -> String {
    asn.map(|asn| format!(" and {asn} in its capability")).unwrap_or_default()
}

impl OpenError {
    /// What the peer is told.
    pub fn notification(&self) -> Notification {
        match self {
            // The version we speak, as two octets.
            Self::Version(_) => Notification::new(2, 1, vec![0, 4]),
            Self::Asn { .. } => Notification::new(2, 2, Vec::new()),
            Self::Identifier => Notification::new(2, 3, Vec::new()),
            Self::Parameter(_) => Notification::new(2, 4, Vec::new()),
            Self::HoldTime(_) => Notification::new(2, 6, Vec::new()),
            // "Recognized but malformed": unspecific.
            Self::Malformed(_) => Notification::new(2, 0, Vec::new()),
        }
    }
}

/// What is wrong with a ROUTE-REFRESH (RFC 7313 section 5).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Error)]
#[error("ROUTE-REFRESH of {} bytes, must be 23", .message.len())]
pub struct RefreshError {
    /// All of it: the peer gets it back.
    pub message: Vec<u8>,
}

impl RefreshError {
    /// What the peer is told.
    pub fn notification(&self) -> Notification {
        Notification::new(7, 1, limited(&self.message))
    }
}

/// An UPDATE of which we can't even tell the prefixes, or that RFC 7606 wants a reset for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Error)]
#[error("{fault}")]
pub struct UpdateError {
    /// What is wrong.
    pub fault: Fault,
    /// What the peer gets back: the attribute as it came, where it's about one.
    pub data: Vec<u8>,
}

impl UpdateError {
    /// What the peer is told.
    pub fn notification(&self) -> Notification {
        Notification::new(3, self.fault.subcode(), limited(&self.data))
    }
}

/// As much as a NOTIFICATION of ordinary length takes.
fn limited(data: &[u8]) -> Vec<u8> {
    data.get(..MAX_LEN - HEADER_LEN - 2).unwrap_or(data).to_vec()
}

/// What becomes of a wrong UPDATE (RFC 7606 section 2), the weakest first: of several, the strongest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reaction {
    /// The attribute is as if it weren't there.
    AttributeDiscard,
    /// Its prefixes are withdrawn.
    TreatAsWithdraw,
    /// The session ends with a NOTIFICATION.
    Reset,
}

impl fmt::Display for Reaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AttributeDiscard => "attribute discarded",
            Self::TreatAsWithdraw => "treated as withdrawn",
            Self::Reset => "session reset",
        })
    }
}

/// What is wrong with an UPDATE. `attribute` is the type code it's about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub enum Fault {
    /// Lengths of withdrawn routes and attributes that the message doesn't have (RFC 4271 section 6.3).
    #[error("the lengths of withdrawn routes and attributes exceed the message")]
    Lengths,
    /// A prefix among the withdrawn routes that can't be.
    #[error("malformed prefix among the withdrawn routes")]
    Withdrawn,
    /// A prefix in the NLRI that can't be.
    #[error("malformed prefix among the announced routes")]
    Nlri,
    /// MP_REACH_NLRI or MP_UNREACH_NLRI there twice (RFC 7606 section 3 g).
    #[error("attribute {} twice", name(*.0))]
    DuplicateMp(u8),
    /// MP_REACH_NLRI or MP_UNREACH_NLRI whose prefixes can't be located (RFC 7606 section 5.3).
    #[error("malformed {}", name(*.0))]
    MalformedMp(u8),
    /// A well-known attribute that nobody knows (RFC 4271 section 6.3).
    #[error("unknown well-known attribute {0}")]
    UnknownWellKnown(u8),
    /// The attributes end inside one: a header cut short, or a length beyond the end (RFC 7606 section 4).
    #[error("attribute {} exceeds the attributes' length", name(*.0))]
    Overrun(u8),
    /// The attributes end before an attribute's header does (RFC 7606 section 4).
    #[error("attributes end inside an attribute's header")]
    Underrun,
    /// Optional or Transitive isn't as the attribute has it (RFC 7606 section 3 c).
    #[error("attribute {} with flags {flags:#04x}", name(*.attribute))]
    Flags {
        /// Which.
        attribute: u8,
        /// As they came.
        flags: u8,
    },
    /// A length that this attribute can't have.
    #[error("attribute {} of {length} bytes", name(*.attribute))]
    Length {
        /// Which.
        attribute: u8,
        /// Bytes of its value.
        length: u16,
    },
    /// An ORIGIN that isn't one.
    #[error("unknown ORIGIN {0}")]
    Origin(u8),
    /// AS_PATH whose segments don't add up, or of an unknown kind (RFC 7606 section 7.2), or with AS 0 (RFC 7607).
    #[error("malformed AS_PATH")]
    AsPath,
    /// A next hop that no host can have.
    #[error("next hop that no router can have")]
    NextHop,
    /// AS 0, or segments that don't add up, in an attribute that is only discarded (RFC 6793 section 6, RFC 7607).
    #[error("malformed {}", name(*.0))]
    Malformed(u8),
    /// An attribute that must be there (RFC 7606 section 3 d).
    #[error("attribute {} is missing", name(*.0))]
    Missing(u8),
    /// An attribute that only internal neighbours send (RFC 7606 sections 7.5, 7.9, 7.10), or only those without
    /// four-octet numbers (RFC 6793 section 6).
    #[error("attribute {} from a neighbour that doesn't send it", name(*.0))]
    Unexpected(u8),
    /// An attribute there twice: the first counts (RFC 7606 section 3 g).
    #[error("attribute {} again", name(*.0))]
    Duplicate(u8),
}

fn name(attribute: u8) -> super::attribute::Name {
    super::attribute::Name(attribute)
}

impl Fault {
    /// What RFC 7606 wants, on its own. In an UPDATE without a reachable prefix, what isn't a discard is a reset
    /// (section 5.2).
    pub const fn reaction(&self) -> Reaction {
        match self {
            Self::Lengths
            | Self::Withdrawn
            | Self::Nlri
            | Self::DuplicateMp(_)
            | Self::MalformedMp(_)
            | Self::UnknownWellKnown(_) => Reaction::Reset,
            Self::Overrun(_)
            | Self::Underrun
            | Self::Flags { .. }
            | Self::Origin(_)
            | Self::AsPath
            | Self::NextHop
            | Self::Missing(_) => Reaction::TreatAsWithdraw,
            Self::Length { attribute, .. } => match *attribute {
                super::attribute::ATOMIC_AGGREGATE
                | super::attribute::AGGREGATOR
                | super::attribute::AS4_PATH
                | super::attribute::AS4_AGGREGATOR => Reaction::AttributeDiscard,
                _ => Reaction::TreatAsWithdraw,
            },
            Self::Malformed(_) | Self::Unexpected(_) | Self::Duplicate(_) => Reaction::AttributeDiscard,
        }
    }

    /// Subcode of the NOTIFICATION "UPDATE message error" that RFC 4271 section 6.3 has for it.
    pub const fn subcode(&self) -> u8 {
        match self {
            Self::Lengths | Self::DuplicateMp(_) | Self::Underrun | Self::Duplicate(_) => 1,
            Self::UnknownWellKnown(_) => 2,
            Self::Missing(_) => 3,
            Self::Flags { .. } => 4,
            Self::Overrun(_) | Self::Length { .. } => 5,
            Self::Origin(_) => 6,
            Self::NextHop => 8,
            Self::MalformedMp(_) | Self::Malformed(_) | Self::Unexpected(_) => 9,
            Self::Withdrawn | Self::Nlri => 10,
            Self::AsPath => 11,
        }
    }
}

/// Why something can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum EncodeError {
    /// The attributes leave no room for one prefix.
    #[error("attributes of {bytes} bytes leave no room for a prefix in a message of {limit}")]
    TooLong {
        /// What the message would have, with one prefix.
        bytes: usize,
        /// What it may have.
        limit: usize,
    },
    /// This next hop can't stand with this family: IPv6 for IPv4 prefixes without RFC 8950, IPv4 for IPv6 prefixes, or
    /// no address at all.
    #[error("{0} prefixes can't have this next hop here")]
    NextHop(crate::types::Family),
}
