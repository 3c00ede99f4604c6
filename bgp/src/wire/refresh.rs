//! ROUTE-REFRESH (RFC 2918) and its enhanced form (RFC 7313).

use std::fmt;

use super::error::RefreshError;
use super::header::{self, Frame, MessageType};
use super::reader::Reader;
use crate::types::Family;

/// What a ROUTE-REFRESH says (RFC 7313 section 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefreshKind {
    /// Send me all of this family again.
    Request,
    /// All of this family follows: what it doesn't hold is gone after the end.
    Begin,
    /// That was all.
    End,
    /// Of a kind that's ignored (RFC 7313 section 5).
    Other(u8),
}

impl RefreshKind {
    /// The number on the wire.
    pub const fn code(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Begin => 1,
            Self::End => 2,
            Self::Other(code) => code,
        }
    }

    /// What a number means.
    pub const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Request,
            1 => Self::Begin,
            2 => Self::End,
            code => Self::Other(code),
        }
    }
}

/// A ROUTE-REFRESH message, of any family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RouteRefresh {
    /// Address family identifier.
    pub afi: u16,
    /// What it says.
    pub kind: RefreshKind,
    /// Subsequent address family identifier.
    pub safi: u8,
}

impl RouteRefresh {
    /// Of one of our families.
    pub const fn new(kind: RefreshKind, family: Family) -> Self {
        Self { afi: family.afi(), kind, safi: family.safi() }
    }

    /// Of which family, if it's one of ours; others are ignored (RFC 2918 section 4).
    pub const fn family(&self) -> Option<Family> {
        Family::from_afi_safi(self.afi, self.safi)
    }

    /// Takes a whole message. What follows the four bytes isn't looked at: outbound filters (RFC 5291), which we never
    /// offer, or what a kind that is ignored brings along.
    ///
    /// # Errors
    /// A beginning or an end that isn't of four bytes (RFC 7313 section 5). It is one only from a neighbour that has said
    /// that it speaks RFC 7313.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, RefreshError> {
        let mut reader = Reader::new(frame.body);
        let refused = || RefreshError { message: frame.bytes.to_vec() };
        let (Some(afi), Some(kind), Some(safi)) = (reader.u16(), reader.u8(), reader.u8()) else {
            return Err(refused());
        };
        let kind = RefreshKind::from_code(kind);
        match kind {
            RefreshKind::Begin | RefreshKind::End if !reader.is_empty() => Err(refused()),
            _ => Ok(Self { afi, kind, safi }),
        }
    }

    /// Writes the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = header::begin(out, MessageType::RouteRefresh);
        out.extend(self.afi.to_be_bytes());
        out.extend([self.kind.code(), self.safi]);
        header::finish(out, start);
    }
}

impl fmt::Display for RouteRefresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            RefreshKind::Request => f.write_str("request for")?,
            RefreshKind::Begin => f.write_str("beginning of")?,
            RefreshKind::End => f.write_str("end of")?,
            RefreshKind::Other(code) => write!(f, "subtype {code} of")?,
        }
        write!(f, " {}", super::capability::family_name(self.afi, self.safi))
    }
}
