//! Wire format of BGP-4: RFC 4271 with capabilities (5492, 9072), four-octet AS numbers (6793), IPv6 and other next hops
//! (4760, 2545, 8950), communities (1997, 4360, 8092), route refresh (2918, 7313), graceful restart (4724, 8538), long
//! messages (8654), texts for the operator (9003), and the reactions of RFC 7606.
//!
//! A [`Framer`] cuts a TCP stream into [`Frame`]s. What a session needs of an UPDATE, [`update::inspect`] tells without
//! allocating; [`decode`] makes an owned [`Message`] of any frame, complete, for tools and tests. Both are total: any
//! bytes give a message or a typed [`Error`] that knows its NOTIFICATION. Encoders append to the caller's buffer and keep
//! to the message limit.
//!
//! This module refuses: to keep a session's state, to judge whether a route is good, and several paths per prefix
//! (RFC 7911), which it never negotiates.

pub mod attribute;
mod capability;
pub mod community;
mod describe;
mod error;
mod header;
mod mp;
mod nlri;
mod notification;
mod open;
mod reader;
mod refresh;
pub mod update;

pub use attribute::{Attribute, AttributeValue, Segment, SegmentKind};
pub use capability::{Capability, GracefulFamily, GracefulRestart};
pub use describe::Description;
pub use error::{EncodeError, Error, Fault, HeaderError, OpenError, Reaction, RefreshError, UpdateError};
pub use header::{Frame, Framer, HEADER_LEN, MAX_EXTENDED_LEN, MAX_LEN, MessageType};
pub use notification::{CEASE, Cease, Notification};
pub use open::Open;
pub use refresh::{RefreshKind, RouteRefresh};
pub use update::{Inspected, PerFamily, Update};

use crate::types::Families;

/// What two speakers have negotiated, as far as it changes how UPDATEs are written and read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Codec {
    /// AS numbers in AS_PATH and AGGREGATOR have four octets (RFC 6793).
    pub four_octet_as: bool,
    /// The peer takes messages of up to 65,535 bytes (RFC 8654).
    pub extended_message: bool,
    /// IPv4 prefixes may have IPv6 next hops (RFC 8950).
    pub extended_next_hop: bool,
    /// The families both speak; prefixes of others are skipped.
    pub families: Families,
    /// The neighbour is in our AS: LOCAL_PREF is written, and expected; of others it is discarded (RFC 7606 section 7.5).
    pub internal: bool,
}

impl Codec {
    /// Takes all we can read: for a tool that doesn't know what was negotiated.
    pub const LENIENT: Self = Self {
        four_octet_as: true,
        extended_message: true,
        extended_next_hop: true,
        families: Families::BOTH,
        internal: true,
    };

    /// The longest message that may be sent.
    pub const fn limit(&self) -> usize {
        if self.extended_message { MAX_EXTENDED_LEN } else { MAX_LEN }
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// OPEN.
    Open(Open),
    /// UPDATE, with what RFC 7606 has to say about it.
    Update(Update),
    /// NOTIFICATION.
    Notification(Notification),
    /// KEEPALIVE.
    Keepalive,
    /// ROUTE-REFRESH.
    RouteRefresh(RouteRefresh),
}

impl Message {
    /// What it is.
    pub const fn kind(&self) -> MessageType {
        match self {
            Self::Open(_) => MessageType::Open,
            Self::Update(_) => MessageType::Update,
            Self::Notification(_) => MessageType::Notification,
            Self::Keepalive => MessageType::Keepalive,
            Self::RouteRefresh(_) => MessageType::RouteRefresh,
        }
    }

    /// Writes it. Sessions use the writers of each type, which need no `Message`.
    ///
    /// # Errors
    /// An UPDATE that doesn't fit into a message.
    pub fn encode(&self, codec: &Codec, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Self::Open(open) => open.encode(out),
            Self::Update(update) => update.encode(codec, out)?,
            Self::Notification(notification) => notification.encode(out),
            Self::Keepalive => encode_keepalive(out),
            Self::RouteRefresh(refresh) => refresh.encode(out),
        }
        Ok(())
    }
}

/// Decodes a message completely.
///
/// # Errors
/// What ends a session. Weaker faults of an UPDATE are in [`Update::faults`].
pub fn decode(frame: &Frame<'_>, codec: &Codec) -> Result<Message, Error> {
    Ok(match frame.kind {
        MessageType::Open => Message::Open(Open::decode(frame.body)?),
        MessageType::Update => Message::Update(Update::decode(frame.body, codec)?),
        MessageType::Notification => Message::Notification(Notification::decode(frame.body)?),
        MessageType::Keepalive => Message::Keepalive,
        MessageType::RouteRefresh => Message::RouteRefresh(RouteRefresh::decode(frame)?),
    })
}

/// Writes a KEEPALIVE.
pub fn encode_keepalive(out: &mut Vec<u8>) {
    let start = header::begin(out, MessageType::Keepalive);
    header::finish(out, start);
}
