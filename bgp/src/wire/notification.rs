//! NOTIFICATION: why a session ends (RFC 4271 section 4.5; 4486, 8203/9003 for Cease; 8538, 9384, 9687).

use std::fmt;

use super::error::Error;
use super::header::{self, HEADER_LEN, MAX_LEN, MessageType};

/// Code of Cease.
pub const CEASE: u8 = 6;

/// Subcodes of Cease (RFC 4486, RFC 8538, RFC 9384).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cease {
    /// More prefixes than the sender takes.
    MaxPrefixes,
    /// An operator, or a program in its place, stopped the session.
    AdministrativeShutdown,
    /// The neighbour was taken out of the configuration.
    Deconfigured,
    /// Stopped, to be started again.
    AdministrativeReset,
    /// Not accepted, such as from an unknown neighbour.
    ConnectionRejected,
    /// The configuration changed otherwise.
    OtherConfigurationChange,
    /// The loser of two connections (RFC 4271 section 6.8).
    Collision,
    /// Short of memory or the like.
    OutOfResources,
    /// The routes go, whatever graceful restart says (RFC 8538).
    HardReset,
    /// BFD says that the way is broken (RFC 9384).
    BfdDown,
}

impl Cease {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::MaxPrefixes,
        Self::AdministrativeShutdown,
        Self::Deconfigured,
        Self::AdministrativeReset,
        Self::ConnectionRejected,
        Self::OtherConfigurationChange,
        Self::Collision,
        Self::OutOfResources,
        Self::HardReset,
        Self::BfdDown,
    ];

    /// The number on the wire.
    pub const fn subcode(self) -> u8 {
        match self {
            Self::MaxPrefixes => 1,
            Self::AdministrativeShutdown => 2,
            Self::Deconfigured => 3,
            Self::AdministrativeReset => 4,
            Self::ConnectionRejected => 5,
            Self::OtherConfigurationChange => 6,
            Self::Collision => 7,
            Self::OutOfResources => 8,
            Self::HardReset => 9,
            Self::BfdDown => 10,
        }
    }

    /// Whether a text for the operator goes with it (RFC 9003 section 2).
    pub const fn has_text(self) -> bool {
        matches!(self, Self::AdministrativeShutdown | Self::AdministrativeReset)
    }
}

/// A NOTIFICATION message, of any code.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Notification {
    /// What kind of error.
    pub code: u8,
    /// Which one.
    pub subcode: u8,
    /// More about it, as the code and subcode have it.
    pub data: Vec<u8>,
}

impl Notification {
    /// Of any kind.
    pub const fn new(code: u8, subcode: u8, data: Vec<u8>) -> Self {
        Self { code, subcode, data }
    }

    /// Cease without data.
    pub const fn cease(why: Cease) -> Self {
        Self::new(CEASE, why.subcode(), Vec::new())
    }

    /// Cease with a text for the peer's operator: shutdown or reset (RFC 9003); for others the text is left out. A text
    /// over 255 bytes ends at the last character that fits.
    pub fn cease_with_text(why: Cease, text: &str) -> Self {
        if !why.has_text() {
            return Self::cease(why);
        }
        let mut end = text.len().min(255);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = text.get(..end).unwrap_or_default();
        let length = u8::try_from(text.len()).expect("cut to 255");
        Self::new(CEASE, why.subcode(), [&[length], text.as_bytes()].concat())
    }

    /// This one wrapped, so that a peer which negotiated RFC 8538 lets the routes go all the same (section 3.1).
    #[must_use]
    pub fn into_hard_reset(self) -> Self {
        if self.is_hard_reset() {
            return self;
        }
        let data = [&[self.code, self.subcode], self.data.as_slice()].concat();
        Self::new(CEASE, Cease::HardReset.subcode(), data)
    }

    /// Hold timer expired.
    pub const fn hold_timer_expired() -> Self {
        Self::new(4, 0, Vec::new())
    }

    /// A message that the state doesn't expect (RFC 6608): 1 in OpenSent, 2 in OpenConfirm, 3 in Established.
    pub fn unexpected_message(subcode: u8, kind: MessageType) -> Self {
        Self::new(5, subcode, vec![kind.code()])
    }

    /// The peer hasn't read for too long (RFC 9687).
    pub const fn send_hold_timer_expired() -> Self {
        Self::new(8, 0, Vec::new())
    }

    /// Whether it's a Hard Reset (RFC 8538).
    pub const fn is_hard_reset(&self) -> bool {
        self.code == CEASE && self.subcode == Cease::HardReset.subcode()
    }

    /// What a Hard Reset carries; a shorter one carries nothing.
    pub fn inner(&self) -> Option<Self> {
        if !self.is_hard_reset() {
            return None;
        }
        let (&[code, subcode], data) = self.data.split_first_chunk::<2>()?;
        Some(Self::new(code, subcode, data.to_vec()))
    }

    /// The text for the operator (RFC 9003), also of one in a Hard Reset. Bytes that aren't UTF-8 are replaced; control
    /// characters stay: write it with [`Display`](fmt::Display) of `self`, which escapes them.
    pub fn text(&self) -> Option<String> {
        // One level only: a Hard Reset in a Hard Reset is nonsense.
        let inner = self.inner();
        let this = inner.as_ref().unwrap_or(self);
        let shutdown = Cease::ALL.into_iter().any(|cease| cease.has_text() && cease.subcode() == this.subcode);
        if this.code != CEASE || !shutdown {
            return None;
        }
        let (&length, rest) = this.data.split_first()?;
        let text = rest.get(..usize::from(length)).filter(|text| !text.is_empty())?;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    /// Takes a NOTIFICATION's body.
    ///
    /// # Errors
    /// Shorter than two bytes.
    pub fn decode(body: &[u8]) -> Result<Self, Error> {
        let (&[code, subcode], data) = body.split_first_chunk::<2>().ok_or(Error::Notification)?;
        Ok(Self::new(code, subcode, data.to_vec()))
    }

    /// Writes the message. Data beyond what an ordinary message takes is cut off.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = header::begin(out, MessageType::Notification);
        out.extend([self.code, self.subcode]);
        out.extend(self.data.iter().take(MAX_LEN - HEADER_LEN - 2));
        header::finish(out, start);
    }

    /// The kind of error in words, `None` for codes that nobody has assigned.
    pub const fn code_name(&self) -> Option<&'static str> {
        Some(match self.code {
            1 => "message header error",
            2 => "OPEN message error",
            3 => "UPDATE message error",
            4 => "hold timer expired",
            5 => "finite state machine error",
            6 => "Cease",
            7 => "ROUTE-REFRESH message error",
            8 => "send hold timer expired",
            _ => return None,
        })
    }

    /// The error in words; `None` for subcode 0 and those that nobody has assigned.
    pub const fn subcode_name(&self) -> Option<&'static str> {
        Some(match (self.code, self.subcode) {
            (1, 1) => "connection not synchronized",
            (1, 2) => "bad message length",
            (1, 3) => "bad message type",
            (2, 1) => "unsupported version number",
            (2, 2) => "bad peer AS",
            (2, 3) => "bad BGP identifier",
            (2, 4) => "unsupported optional parameter",
            (2, 5) => "authentication failure",
            (2, 6) => "unacceptable hold time",
            (2, 7) => "unsupported capability",
            (2, 11) => "role mismatch",
            (3, 1) => "malformed attribute list",
            (3, 2) => "unrecognized well-known attribute",
            (3, 3) => "missing well-known attribute",
            (3, 4) => "attribute flags error",
            (3, 5) => "attribute length error",
            (3, 6) => "invalid ORIGIN",
            (3, 7) => "AS routing loop",
            (3, 8) => "invalid NEXT_HOP",
            (3, 9) => "optional attribute error",
            (3, 10) => "invalid network field",
            (3, 11) => "malformed AS_PATH",
            (5, 1) => "unexpected message in OpenSent",
            (5, 2) => "unexpected message in OpenConfirm",
            (5, 3) => "unexpected message in Established",
            (6, 1) => "maximum number of prefixes reached",
            (6, 2) => "administrative shutdown",
            (6, 3) => "peer de-configured",
            (6, 4) => "administrative reset",
            (6, 5) => "connection rejected",
            (6, 6) => "other configuration change",
            (6, 7) => "connection collision resolution",
            (6, 8) => "out of resources",
            (6, 9) => "hard reset",
            (6, 10) => "BFD down",
            (7, 1) => "invalid message length",
            _ => return None,
        })
    }
}

impl fmt::Display for Notification {
    /// `Cease: administrative shutdown: "drained for an upgrade"`; what the peer wrote is escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code_name(), self.subcode_name()) {
            (Some(code), Some(subcode)) => write!(f, "{code}: {subcode}")?,
            (Some(code), None) if self.subcode == 0 => f.write_str(code)?,
            (Some(code), None) => write!(f, "{code}: subcode {}", self.subcode)?,
            (None, _) => write!(f, "code {}, subcode {}", self.code, self.subcode)?,
        }
        if let Some(inner) = self.inner() {
            // Not by Display: a Hard Reset in a Hard Reset in … would recurse as deep as the peer likes.
            let code = inner.code_name().unwrap_or("unknown code");
            write!(f, ": {code}")?;
            if let Some(subcode) = inner.subcode_name() {
                write!(f, ": {subcode}")?;
            }
        }
        if let Some(text) = self.text() {
            write!(f, ": {text:?}")?;
        }
        Ok(())
    }
}
