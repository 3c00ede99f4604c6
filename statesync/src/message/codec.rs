//! The control lane's encoding. All integers are little-endian.
//!
//! The content of a datagram is a row of records, each `kind: u8, length: u16, body`. An unknown kind is skipped by its
//! length. Bytes behind the known fields of a body or an entry are skipped, so that a later minor version can append.
//!
//! ```text
//! name     length: u8 (1..=63), bytes of [A-Za-z0-9._-]
//! 1 Report sequence: u64, vips: u16, balancers: u16, then that many entries, each length: u16 and
//!          vip       name, fitness: u8, role: u8, role_epoch: u64, priority: u8, role_age_ms: u32, standing: u8 (may
//!                    be absent)
//!          balancer  name, fitness: u8, verdict: u8 (may be absent)
//! 2 TakeNow  name, role_epoch: u64, linger: u8 (0, 1)
//! 3 Claim    name, role_epoch: u64, cause: u8, family: u8 (4, 6), address: 4 or 16 bytes
//! 4 Keep     name, role_epoch: u64
//! 5 Goodbye  empty
//! 6 Table    limit: u64, established_s: u32, udp_stream_s: u32 (both may be absent)
//! 7 Pool     fingerprint: u64
//! 254 Batch  opaque: the flow lanes' own, only on channels that carry them
//! 255 Probe  empty: the channel's own, "answer me"
//! ```

use super::{BalancerReport, ClaimCause, Fitness, Message, Role, Standing, Timeouts, Verdict, VipReport};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use thiserror::Error;

/// Most entries that one report may hold on the wire, VIPs and balancers each.
pub const MAX_ENTRIES: usize = 256;

/// Longest name in bytes.
pub const MAX_NAME_LEN: usize = 63;

/// `kind` and `length` in front of each record.
pub(crate) const RECORD_HEADER_LEN: usize = 3;

const KIND_REPORT: u8 = 1;
const KIND_TAKE_NOW: u8 = 2;
const KIND_CLAIM: u8 = 3;
const KIND_KEEP: u8 = 4;
const KIND_GOODBYE: u8 = 5;
const KIND_TABLE: u8 = 6;
const KIND_POOL: u8 = 7;
const KIND_BATCH: u8 = 254;
const KIND_PROBE: u8 = 255;

/// The record that asks the other channel for an immediate answer.
pub(crate) const PROBE_RECORD: [u8; RECORD_HEADER_LEN] = [KIND_PROBE, 0, 0];

/// Puts the record of a batch into `out`, instead of what was there. `false`: it is larger than `room`.
pub(crate) fn batch_record(out: &mut Vec<u8>, batch: &[u8], room: usize) -> bool {
    out.clear();
    let Ok(length) = u16::try_from(batch.len()) else { return false };
    if RECORD_HEADER_LEN + batch.len() > room {
        return false;
    }
    out.push(KIND_BATCH);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(batch);
    true
}

/// Why a message can't be sent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// A name outside `[A-Za-z0-9._-]{1,63}`.
    #[error("the name {0:?} isn't 1 to {MAX_NAME_LEN} characters of A-Z a-z 0-9 . _ -")]
    Name(String),
    /// One entry alone is larger than the room for a datagram's content.
    #[error("a record needs {need} bytes, a datagram has room for {room}")]
    Room {
        /// Bytes that the smallest possible record would take.
        need: usize,
        /// Bytes that there are.
        room: usize,
    },
}

/// Why a record is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// A field reaches behind the end of its record, entry or datagram.
    #[error("{need} bytes needed, {have} left")]
    Truncated {
        /// Bytes that the field takes.
        need: usize,
        /// Bytes that are left.
        have: usize,
    },
    /// A name is empty, too long or has characters that no name has.
    #[error("a name isn't 1 to {MAX_NAME_LEN} characters of A-Z a-z 0-9 . _ -")]
    Name,
    /// A field's code has no meaning.
    #[error("{field} has no code {value}")]
    Code {
        /// Name of the field.
        field: &'static str,
        /// The code found.
        value: u8,
    },
    /// More entries than [`MAX_ENTRIES`].
    #[error("{count} entries, at most {MAX_ENTRIES} are accepted")]
    TooMany {
        /// Entries that the report announces.
        count: u16,
    },
}

/// One decoded record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A message that this version knows.
    Message(Message),
    /// The other channel heard nothing for a while and asks for an immediate answer.
    Probe,
    /// The flow lanes' content, opaque here. Only channels that carry batches take it.
    Batch(Vec<u8>),
    /// A kind that this version doesn't know; skipped.
    Unknown {
        /// Its kind.
        kind: u8,
    },
}

/// Reads the records of a datagram's content. A malformed body is reported and skipped; a broken record header ends
/// the row, since nothing behind it can be found.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// Records of this content.
    pub const fn new(content: &'a [u8]) -> Self {
        Self { rest: content }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let mut reader = Reader(self.rest);
        match reader.record() {
            Ok((kind, body)) => {
                self.rest = reader.0;
                Some(decode_body(kind, body))
            }
            Err(error) => {
                self.rest = &[];
                Some(Err(error))
            }
        }
    }
}

/// A message as records that each fit a datagram; the buffers are kept for the next message.
#[derive(Debug, Default)]
pub struct Encoded {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Encoded {
    /// Encodes `message` into records of at most `room` bytes. Only reports are ever split.
    ///
    /// # Errors
    /// A name that isn't one, or `room` too small for a single entry. Nothing is left encoded then.
    pub fn encode(&mut self, message: &Message, room: usize) -> Result<(), EncodeError> {
        self.bytes.clear();
        self.ends.clear();
        let result = self.encode_inner(message, room);
        if result.is_err() {
            self.bytes.clear();
            self.ends.clear();
        }
        result
    }

    /// The records, each for a datagram of its own.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        self.ends.iter().scan(0, |start, end| {
            let record = self.bytes.get(*start..*end);
            *start = *end;
            record
        })
    }

    fn encode_inner(&mut self, message: &Message, room: usize) -> Result<(), EncodeError> {
        if let Message::Report { sequence, vips, balancers } = message {
            return self.encode_report(*sequence, vips, balancers, room);
        }
        let start = self.begin(message_kind(message));
        match message {
            Message::Report { .. } | Message::Goodbye => {}
            Message::TakeNow { vip, role_epoch, linger } => {
                put_name(&mut self.bytes, vip)?;
                self.bytes.extend_from_slice(&role_epoch.to_le_bytes());
                self.bytes.push(u8::from(*linger));
            }
            Message::Claim { vip, role_epoch, cause, probe } => {
                put_name(&mut self.bytes, vip)?;
                self.bytes.extend_from_slice(&role_epoch.to_le_bytes());
                self.bytes.push(cause.code());
                put_address(&mut self.bytes, *probe);
            }
            Message::Table { limit, timeouts } => {
                self.bytes.extend_from_slice(&limit.to_le_bytes());
                if let Some(Timeouts { established_s, udp_stream_s }) = timeouts {
                    self.bytes.extend_from_slice(&established_s.to_le_bytes());
                    self.bytes.extend_from_slice(&udp_stream_s.to_le_bytes());
                }
            }
            Message::Pool { fingerprint } => self.bytes.extend_from_slice(&fingerprint.to_le_bytes()),
            Message::Keep { vip, role_epoch } => {
                put_name(&mut self.bytes, vip)?;
                self.bytes.extend_from_slice(&role_epoch.to_le_bytes());
            }
        }
        self.end(start, room)
    }

    fn encode_report(
        &mut self,
        sequence: u64,
        vips: &[VipReport],
        balancers: &[BalancerReport],
        room: usize,
    ) -> Result<(), EncodeError> {
        let (mut vips, mut balancers) = (vips.iter().peekable(), balancers.iter().peekable());
        // An empty report is sent too: it says that the sender has nothing.
        loop {
            let start = self.begin(KIND_REPORT);
            self.bytes.extend_from_slice(&sequence.to_le_bytes());
            let counts = self.bytes.len();
            self.bytes.extend_from_slice(&[0; 4]);
            let limit = start + room;
            let vip_count = put_entries(&mut self.bytes, &mut vips, limit, put_vip)?;
            // Balancers follow only when no VIP is left, to keep the entries' order.
            let balancer_count = if vips.peek().is_none() {
                put_entries(&mut self.bytes, &mut balancers, limit, put_balancer)?
            } else {
                0
            };
            self.bytes[counts..counts + 2].copy_from_slice(&vip_count.to_le_bytes());
            self.bytes[counts + 2..counts + 4].copy_from_slice(&balancer_count.to_le_bytes());
            let done = vips.peek().is_none() && balancers.peek().is_none();
            let need = self.bytes.len() - start;
            if !done && vip_count == 0 && balancer_count == 0 {
                return Err(EncodeError::Room { need: need + 1, room });
            }
            self.end(start, room)?;
            if done {
                return Ok(());
            }
        }
    }

    fn begin(&mut self, kind: u8) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[kind, 0, 0]);
        start
    }

    fn end(&mut self, start: usize, room: usize) -> Result<(), EncodeError> {
        let need = self.bytes.len() - start;
        match u16::try_from(need - RECORD_HEADER_LEN) {
            Ok(length) if need <= room => {
                self.bytes[start + 1..start + RECORD_HEADER_LEN].copy_from_slice(&length.to_le_bytes());
                self.ends.push(self.bytes.len());
                Ok(())
            }
            _ => Err(EncodeError::Room { need, room }),
        }
    }
}

/// Appends entries until `limit` bytes are reached; what didn't fit stays in `entries`.
fn put_entries<'a, T: 'a, I: Iterator<Item = &'a T>>(
    out: &mut Vec<u8>,
    entries: &mut std::iter::Peekable<I>,
    limit: usize,
    put: fn(&mut Vec<u8>, &T) -> Result<(), EncodeError>,
) -> Result<u16, EncodeError> {
    let mut count = 0;
    while usize::from(count) < MAX_ENTRIES
        && let Some(entry) = entries.peek()
    {
        let start = out.len();
        out.extend_from_slice(&[0; 2]);
        put(out, entry)?;
        if out.len() > limit {
            out.truncate(start);
            break;
        }
        let length = u16::try_from(out.len() - start - 2).expect("an entry is shorter than 100 bytes");
        out[start..start + 2].copy_from_slice(&length.to_le_bytes());
        entries.next();
        count += 1;
    }
    Ok(count)
}

fn put_vip(out: &mut Vec<u8>, entry: &VipReport) -> Result<(), EncodeError> {
    put_name(out, &entry.vip)?;
    out.push(entry.fitness.code());
    out.push(entry.role.code());
    out.extend_from_slice(&entry.role_epoch.to_le_bytes());
    out.push(entry.priority);
    out.extend_from_slice(&entry.role_age_ms.to_le_bytes());
    out.push(Standing::code(entry.standing));
    Ok(())
}

fn put_balancer(out: &mut Vec<u8>, entry: &BalancerReport) -> Result<(), EncodeError> {
    put_name(out, &entry.balancer)?;
    out.push(entry.fitness.code());
    out.push(Verdict::code(entry.verdict));
    Ok(())
}

fn put_name(out: &mut Vec<u8>, name: &str) -> Result<(), EncodeError> {
    if !is_name(name.as_bytes()) {
        return Err(EncodeError::Name(name.to_owned()));
    }
    out.push(u8::try_from(name.len()).expect("a name has at most 63 bytes"));
    out.extend_from_slice(name.as_bytes());
    Ok(())
}

fn put_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            out.push(4);
            out.extend_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            out.push(6);
            out.extend_from_slice(&address.octets());
        }
    }
}

fn is_name(bytes: &[u8]) -> bool {
    (1..=MAX_NAME_LEN).contains(&bytes.len())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

const fn message_kind(message: &Message) -> u8 {
    match message {
        Message::Report { .. } => KIND_REPORT,
        Message::TakeNow { .. } => KIND_TAKE_NOW,
        Message::Claim { .. } => KIND_CLAIM,
        Message::Keep { .. } => KIND_KEEP,
        Message::Goodbye => KIND_GOODBYE,
        Message::Table { .. } => KIND_TABLE,
        Message::Pool { .. } => KIND_POOL,
    }
}

fn decode_body(kind: u8, body: &[u8]) -> Result<Record, DecodeError> {
    let mut body = Reader(body);
    let message = match kind {
        KIND_REPORT => decode_report(&mut body)?,
        KIND_TAKE_NOW => Message::TakeNow { vip: body.name()?, role_epoch: body.u64()?, linger: body.flag("linger")? },
        KIND_CLAIM => Message::Claim {
            vip: body.name()?,
            role_epoch: body.u64()?,
            cause: ClaimCause::from_code(body.u8()?)?,
            probe: body.address()?,
        },
        KIND_KEEP => Message::Keep { vip: body.name()?, role_epoch: body.u64()? },
        KIND_GOODBYE => Message::Goodbye,
        KIND_TABLE => Message::Table { limit: body.u64()?, timeouts: body.later_timeouts() },
        KIND_POOL => Message::Pool { fingerprint: body.u64()? },
        KIND_BATCH => return Ok(Record::Batch(body.0.to_vec())),
        KIND_PROBE => return Ok(Record::Probe),
        kind => return Ok(Record::Unknown { kind }),
    };
    Ok(Record::Message(message))
}

fn decode_report(body: &mut Reader<'_>) -> Result<Message, DecodeError> {
    let sequence = body.u64()?;
    let (vip_count, balancer_count) = (body.u16()?, body.u16()?);
    if let Some(count) = [vip_count, balancer_count].into_iter().find(|count| usize::from(*count) > MAX_ENTRIES) {
        return Err(DecodeError::TooMany { count });
    }
    // Collected one by one: a count that lies about what follows must not make us allocate for it.
    let mut vips = Vec::new();
    for _ in 0..vip_count {
        let mut entry = body.entry()?;
        vips.push(VipReport {
            vip: entry.name()?,
            fitness: Fitness::from_code(entry.u8()?),
            role: Role::from_code(entry.u8()?)?,
            role_epoch: entry.u64()?,
            priority: entry.u8()?,
            role_age_ms: entry.u32()?,
            standing: entry.later_u8().and_then(Standing::from_code),
        });
    }
    let mut balancers = Vec::new();
    for _ in 0..balancer_count {
        let mut entry = body.entry()?;
        balancers.push(BalancerReport {
            balancer: entry.name()?,
            fitness: Fitness::from_code(entry.u8()?),
            verdict: entry.later_u8().and_then(Verdict::from_code),
        });
    }
    Ok(Message::Report { sequence, vips, balancers })
}

impl Fitness {
    const fn code(self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::Fit => 1,
            Self::Unfit => 2,
            Self::Withheld => 3,
        }
    }

    /// A code of a later version says something that we can't judge: that is what `Unknown` means.
    const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Fit,
            2 => Self::Unfit,
            3 => Self::Withheld,
            _ => Self::Unknown,
        }
    }
}

impl Role {
    const fn code(self) -> u8 {
        match self {
            Self::Out => 0,
            Self::Backup => 1,
            Self::Active => 2,
        }
    }

    const fn from_code(value: u8) -> Result<Self, DecodeError> {
        match value {
            0 => Ok(Self::Out),
            1 => Ok(Self::Backup),
            2 => Ok(Self::Active),
            value => Err(DecodeError::Code { field: "role", value }),
        }
    }
}

impl ClaimCause {
    const fn code(self) -> u8 {
        match self {
            Self::DownTimer => 0,
            Self::Handed => 1,
            Self::Preempt => 2,
        }
    }

    const fn from_code(value: u8) -> Result<Self, DecodeError> {
        match value {
            0 => Ok(Self::DownTimer),
            1 => Ok(Self::Handed),
            2 => Ok(Self::Preempt),
            value => Err(DecodeError::Code { field: "cause", value }),
        }
    }
}

/// Checked reads from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (array, rest) =
            self.0.split_first_chunk::<N>().ok_or(DecodeError::Truncated { need: N, have: self.0.len() })?;
        self.0 = rest;
        Ok(*array)
    }

    fn slice(&mut self, need: usize) -> Result<&'a [u8], DecodeError> {
        let (slice, rest) = self.0.split_at_checked(need).ok_or(DecodeError::Truncated { need, have: self.0.len() })?;
        self.0 = rest;
        Ok(slice)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_le_bytes)
    }

    /// A field that an earlier version doesn't send.
    fn later_u8(&mut self) -> Option<u8> {
        self.u8().ok()
    }

    /// The same.
    fn later_timeouts(&mut self) -> Option<Timeouts> {
        let (established_s, udp_stream_s) = (self.u32().ok()?, self.u32().ok()?);
        Some(Timeouts { established_s, udp_stream_s })
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::Code { field, value }),
        }
    }

    fn name(&mut self) -> Result<String, DecodeError> {
        let length = self.u8()?;
        let bytes = self.slice(usize::from(length))?;
        if !is_name(bytes) {
            return Err(DecodeError::Name);
        }
        String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Name)
    }

    fn address(&mut self) -> Result<IpAddr, DecodeError> {
        match self.u8()? {
            4 => Ok(IpAddr::V4(Ipv4Addr::from(self.array::<4>()?))),
            6 => Ok(IpAddr::V6(Ipv6Addr::from(self.array::<16>()?))),
            value => Err(DecodeError::Code { field: "address family", value }),
        }
    }

    fn entry(&mut self) -> Result<Self, DecodeError> {
        let length = self.u16()?;
        self.slice(usize::from(length)).map(Reader)
    }

    fn record(&mut self) -> Result<(u8, &'a [u8]), DecodeError> {
        let kind = self.u8()?;
        let length = self.u16()?;
        Ok((kind, self.slice(usize::from(length))?))
    }
}

#[cfg(test)]
mod tests;
