//! The 19 bytes before every message (RFC 4271 section 4.1), and cutting a TCP stream into messages.

use std::fmt;

use super::error::HeaderError;
use super::reader::Reader;

/// Bytes of a header: marker, length, type.
pub const HEADER_LEN: usize = 19;
/// The longest message (RFC 4271 section 4.1).
pub const MAX_LEN: usize = 4096;
/// The longest UPDATE, NOTIFICATION or ROUTE-REFRESH between speakers of RFC 8654.
pub const MAX_EXTENDED_LEN: usize = 65_535;

const MARKER: [u8; 16] = [0xff; 16];

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MessageType {
    /// The first message of either side.
    Open,
    /// Routes.
    Update,
    /// The last message: why the sender closes.
    Notification,
    /// The sender lives.
    Keepalive,
    /// Asks for all routes again (RFC 2918), or frames the answer (RFC 7313).
    RouteRefresh,
}

impl MessageType {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Open, Self::Update, Self::Notification, Self::Keepalive, Self::RouteRefresh];

    /// The number on the wire.
    pub const fn code(self) -> u8 {
        match self {
            Self::Open => 1,
            Self::Update => 2,
            Self::Notification => 3,
            Self::Keepalive => 4,
            Self::RouteRefresh => 5,
        }
    }

    /// What a number means.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Open),
            2 => Some(Self::Update),
            3 => Some(Self::Notification),
            4 => Some(Self::Keepalive),
            5 => Some(Self::RouteRefresh),
            _ => None,
        }
    }

    /// The shortest one, header included (RFC 4271 section 6.1, RFC 2918 section 3).
    const fn min_len(self) -> usize {
        match self {
            Self::Open => 29,
            Self::Update | Self::RouteRefresh => 23,
            Self::Notification => 21,
            Self::Keepalive => HEADER_LEN,
        }
    }

    /// The longest one. OPEN and KEEPALIVE are never extended (RFC 8654 section 4).
    const fn max_len(self, extended: bool) -> usize {
        match self {
            Self::Keepalive => HEADER_LEN,
            Self::Open => MAX_LEN,
            Self::Update | Self::Notification | Self::RouteRefresh if extended => MAX_EXTENDED_LEN,
            Self::Update | Self::Notification | Self::RouteRefresh => MAX_LEN,
        }
    }
}

impl fmt::Display for MessageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "OPEN",
            Self::Update => "UPDATE",
            Self::Notification => "NOTIFICATION",
            Self::Keepalive => "KEEPALIVE",
            Self::RouteRefresh => "ROUTE-REFRESH",
        })
    }
}

/// One whole message with a valid header; its body is not looked at yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What it is.
    pub kind: MessageType,
    /// What follows the header.
    pub body: &'a [u8],
    /// Header and body, as they came.
    pub bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The first message of `bytes` and what follows it; `None` if it isn't complete. `extended`: RFC 8654 lengths are
    /// accepted.
    pub fn split(bytes: &'a [u8], extended: bool) -> Result<Option<(Self, &'a [u8])>, HeaderError> {
        let Some((kind, length)) = header(bytes, extended)? else { return Ok(None) };
        Ok(bytes.split_at_checked(length).map(|(bytes, rest)| (Self::whole(kind, bytes), rest)))
    }

    /// `bytes` are known to have a header.
    fn whole(kind: MessageType, bytes: &'a [u8]) -> Self {
        Self { kind, body: bytes.get(HEADER_LEN..).unwrap_or_default(), bytes }
    }
}

/// Type and length of the message that `bytes` begin with; `None` while its header isn't complete (RFC 4271 section 6.1).
fn header(bytes: &[u8], extended: bool) -> Result<Option<(MessageType, usize)>, HeaderError> {
    let mut reader = Reader::new(bytes);
    let Some(marker) = reader.array::<16>() else { return Ok(None) };
    let (Some(length), Some(code)) = (reader.u16(), reader.u8()) else { return Ok(None) };
    if marker != MARKER {
        return Err(HeaderError::NotSynchronized);
    }
    let whole = usize::from(length);
    if whole < HEADER_LEN {
        return Err(HeaderError::Length { length, kind: None });
    }
    let kind = MessageType::from_code(code).ok_or(HeaderError::Type(code))?;
    if whole < kind.min_len() || whole > kind.max_len(extended) {
        return Err(HeaderError::Length { length, kind: Some(kind) });
    }
    Ok(Some((kind, whole)))
}

/// Begins a message; [`finish`] sets its length.
pub(super) fn begin(out: &mut Vec<u8>, kind: MessageType) -> usize {
    let start = out.len();
    out.extend(MARKER);
    out.extend([0, 0, kind.code()]);
    start
}

/// Sets the length of the message that [`begin`] has begun at `start`. Every encoder keeps below 65,536.
pub(super) fn finish(out: &mut [u8], start: usize) {
    let length = u16::try_from(out.len() - start).expect("encoders keep to the message limit");
    if let Some(field) = out.get_mut(start + 16..start + 18) {
        field.copy_from_slice(&length.to_be_bytes());
    }
}

/// Cuts a TCP stream, in whatever pieces it comes, into messages.
///
/// It copies only what a piece leaves incomplete, and so holds less than one message: [`MAX_LEN`] bytes, or
/// [`MAX_EXTENDED_LEN`].
///
/// ```
/// use holdfast_bgp::wire::{Framer, MessageType, encode_keepalive};
///
/// let mut stream = Vec::new();
/// encode_keepalive(&mut stream);
/// encode_keepalive(&mut stream);
/// let mut framer = Framer::new();
/// let mut seen = 0;
/// for mut piece in stream.chunks(7) {
///     while let Some(frame) = framer.next(&mut piece)? {
///         assert_eq!(frame.kind, MessageType::Keepalive);
///         seen += 1;
///     }
/// }
/// assert_eq!(seen, 2);
/// # Ok::<(), holdfast_bgp::wire::HeaderError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Framer {
    /// The beginning of a message, or a whole one that was given out and goes with the next call.
    partial: Vec<u8>,
    given: bool,
    extended: bool,
}

impl Framer {
    /// For a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether messages may be as long as RFC 8654 allows: if we have advertised it in our OPEN (section 4 makes only
    /// those who haven't refuse them). OPEN and KEEPALIVE stay short.
    pub fn set_extended(&mut self, extended: bool) {
        self.extended = extended;
    }

    /// Bytes of a message that is not complete yet.
    pub fn pending(&self) -> usize {
        if self.given { 0 } else { self.partial.len() }
    }

    /// The next message of the stream, if `input` completes one; takes from `input` what it has used. `Ok(None)`: all of
    /// `input` was used, and more is needed.
    ///
    /// # Errors
    /// A header that can't be. The stream is of no use after it: no later call finds its way back.
    pub fn next<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8]) -> Result<Option<Frame<'a>>, HeaderError> {
        if std::mem::take(&mut self.given) {
            self.partial.clear();
        }
        if self.partial.is_empty() {
            if let Some((frame, rest)) = Frame::split(input, self.extended)? {
                *input = rest;
                return Ok(Some(frame));
            }
            self.partial.extend_from_slice(std::mem::take(input));
            return Ok(None);
        }
        self.fill(HEADER_LEN, input);
        let Some((kind, length)) = header(&self.partial, self.extended)? else { return Ok(None) };
        self.fill(length, input);
        if self.partial.len() < length {
            return Ok(None);
        }
        self.given = true;
        Ok(Some(Frame::whole(kind, &self.partial)))
    }

    /// Moves bytes until `partial` has `length`, or `input` has no more.
    fn fill(&mut self, length: usize, input: &mut &[u8]) {
        let missing = length.saturating_sub(self.partial.len()).min(input.len());
        let (taken, rest) = input.split_at(missing);
        self.partial.extend_from_slice(taken);
        *input = rest;
    }
}
