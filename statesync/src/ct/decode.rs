//! What the kernel sends, read from a receive buffer.

use super::entry::{
    Entry, Event, EventKind, Extras, SequenceAdjustment, Status, SynProxy, Tcp, TcpFlags, TcpSide, TcpState,
};
use super::number::*;
use super::read::{Attributes, Malformed, array, be16, be32, be64, byte};
use super::tuple::{Addresses, Direction, Layer4, Tuple, Zone};
use std::net::{Ipv4Addr, Ipv6Addr};

/// One message of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// Something happened to a flow.
    Event(Event),
    /// A flow, asked for by a dump or a look-up.
    Entry {
        /// The request's number.
        sequence: u32,
        /// The flow.
        entry: Entry,
    },
    /// An acknowledgement, or what failed. Requests that didn't ask for the former still get the latter.
    Answer {
        /// The request's number.
        sequence: u32,
        /// Linux's error number; 0: done.
        errno: i32,
    },
    /// The end of a dump.
    Done {
        /// The request's number.
        sequence: u32,
        /// Linux's error number, if that is why it ended; 0: it is complete.
        errno: i32,
        /// The table changed meanwhile, such that entries may be missing.
        interrupted: bool,
    },
    /// The kernel says that messages were lost.
    Overrun,
}

/// How many messages gave nothing, and why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Flows of protocols that aren't replicated: neither TCP, UDP nor ICMP over IPv4 or IPv6.
    pub protocols: u64,
    /// Messages of other kinds.
    pub messages: u64,
    /// Messages that can't be read. A wrong length hides what comes behind it in the buffer.
    pub malformed: u64,
}

impl Skipped {
    /// Adds those.
    pub fn add(&mut self, other: Self) {
        self.protocols = self.protocols.saturating_add(other.protocols);
        self.messages = self.messages.saturating_add(other.messages);
        self.malformed = self.malformed.saturating_add(other.malformed);
    }
}

/// The messages of what one read gave. Allocates nothing; any bytes are input, none a reason to panic.
///
/// A DESTROY that can't be read is lost like one that never came: count it, and audit.
#[derive(Debug, Clone)]
pub struct Messages<'a> {
    rest: &'a [u8],
    skipped: Skipped,
}

impl<'a> Messages<'a> {
    /// Of these bytes: one datagram.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, skipped: Skipped::default() }
    }

    /// What was passed over up to here.
    #[must_use]
    pub const fn skipped(&self) -> Skipped {
        self.skipped
    }
}

impl Iterator for Messages<'_> {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        loop {
            if self.rest.is_empty() {
                return None;
            }
            let Some((header, payload, rest)) = split(self.rest) else {
                self.skipped.malformed += 1;
                self.rest = &[];
                return None;
            };
            self.rest = rest;
            match message(header, payload) {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(Refusal::Protocol) => self.skipped.protocols += 1,
                Err(Refusal::Message) => self.skipped.messages += 1,
                Err(Refusal::Malformed) => self.skipped.malformed += 1,
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Header {
    kind: u16,
    flags: u16,
    sequence: u32,
    port_id: u32,
}

/// Takes a message off the front: header, payload, what comes behind.
#[inline]
fn split(bytes: &[u8]) -> Option<(Header, &[u8], &[u8])> {
    let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, p0, p1, p2, p3] = *bytes.first_chunk::<HEADER>()?;
    let length = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).ok()?;
    let payload = bytes.get(HEADER..length)?;
    let rest = bytes.get(length.checked_next_multiple_of(4)?..).unwrap_or_default();
    let header = Header {
        kind: u16::from_ne_bytes([k0, k1]),
        flags: u16::from_ne_bytes([f0, f1]),
        sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
        port_id: u32::from_ne_bytes([p0, p1, p2, p3]),
    };
    Some((header, payload, rest))
}

enum Refusal {
    Protocol,
    Message,
    Malformed,
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

#[inline]
fn message(header: Header, payload: &[u8]) -> Result<Option<Message>, Refusal> {
    let Header { kind, flags, sequence, port_id } = header;
    match kind {
        CT_NEW | CT_DELETE => {
            let (_, attributes) = payload.split_first_chunk::<NFGENMSG>().ok_or(Refusal::Malformed)?;
            let entry = entry(attributes)?;
            // Events answer nobody. A dump's entries have a number, and say that there are more.
            if kind == CT_NEW && (sequence != 0 || flags & NLM_F_MULTI != 0) {
                return Ok(Some(Message::Entry { sequence, entry }));
            }
            let kind = match (kind, flags & NLM_F_CREATE != 0) {
                (CT_DELETE, _) => EventKind::Destroy,
                (_, true) => EventKind::New,
                (_, false) => EventKind::Update,
            };
            Ok(Some(Message::Event(Event { kind, port_id, entry })))
        }
        NLMSG_ERROR => Ok(Some(Message::Answer { sequence, errno: errno(payload)?.max(0) })),
        NLMSG_DONE => {
            // Where there is no error the number is a length, or absent.
            let errno = if payload.is_empty() { 0 } else { errno(payload)?.max(0) };
            Ok(Some(Message::Done { sequence, errno, interrupted: flags & NLM_F_DUMP_INTR != 0 }))
        }
        NLMSG_OVERRUN => Ok(Some(Message::Overrun)),
        NLMSG_NOOP => Ok(None),
        _ => Err(Refusal::Message),
    }
}

fn errno(payload: &[u8]) -> Result<i32, Malformed> {
    array(payload).map(|number| i32::from_ne_bytes(number).saturating_neg())
}

fn entry(attributes: &[u8]) -> Result<Entry, Refusal> {
    let (mut original, mut reply) = (None, None);
    let mut zone = Zone::default();
    let (mut status, mut timeout_s, mut mark, mut id, mut tcp, mut event_ns) = (None, None, None, None, None, None);
    let mut sequence_adjustment = [None; 2];
    let mut syn_proxy = None;
    let mut extras = Extras::default();
    let mut attributes = Attributes::new(attributes);
    while let Some((kind, value)) = attributes.next()? {
        match kind {
            CTA_TUPLE_ORIG => {
                let (read, inside) = tuple(value)?;
                original = Some(read);
                zone = inside.map_or(zone, |id| Zone { id, direction: Direction::Original });
            }
            CTA_TUPLE_REPLY => {
                let (read, inside) = tuple(value)?;
                reply = Some(read);
                zone = inside.map_or(zone, |id| Zone { id, direction: Direction::Reply });
            }
            CTA_STATUS => status = Some(Status(be32(value)?)),
            CTA_PROTOINFO => tcp = protocol_info(value)?,
            CTA_HELP => extras.helper = true,
            CTA_TIMEOUT => timeout_s = Some(be32(value)?),
            CTA_MARK => mark = Some(be32(value)?),
            CTA_ID => id = Some(be32(value)?),
            CTA_TUPLE_MASTER => extras.master = true,
            CTA_SEQ_ADJ_ORIG => sequence_adjustment[0] = Some(adjustment(value)?),
            CTA_SEQ_ADJ_REPLY => sequence_adjustment[1] = Some(adjustment(value)?),
            CTA_ZONE => zone = Zone::both(be16(value)?),
            CTA_LABELS => extras.labels = true,
            CTA_SYNPROXY => syn_proxy = Some(proxy(value)?),
            CTA_TIMESTAMP_EVENT => event_ns = Some(be64(value)?),
            _ => {} // counters, uses, security contexts, times of the entry, and what newer kernels add
        }
    }
    let (Some(original), Some(reply)) = (original, reply) else { return Err(Refusal::Malformed) };
    if !original.is_like(&reply) {
        return Err(Refusal::Malformed);
    }
    let event_ns = event_ns.filter(|&ns| ns != 0);
    Ok(Entry {
        original,
        reply,
        zone,
        status,
        timeout_s,
        mark,
        id,
        tcp,
        sequence_adjustment,
        syn_proxy,
        extras,
        event_ns,
    })
}

/// A tuple, and the zone inside it.
#[inline]
fn tuple(value: &[u8]) -> Result<(Tuple, Option<u16>), Refusal> {
    let (mut ip, mut proto, mut zone) = (None, None, None);
    let mut attributes = Attributes::new(value);
    while let Some((kind, value)) = attributes.next()? {
        match kind {
            CTA_TUPLE_IP => ip = Some(value),
            CTA_TUPLE_PROTO => proto = Some(value),
            CTA_TUPLE_ZONE => zone = Some(be16(value)?),
            _ => {}
        }
    }
    let (Some(ip), Some(proto)) = (ip, proto) else { return Err(Refusal::Malformed) };
    let addresses = addresses(ip)?;
    let layer4 = layer4(proto, matches!(addresses, Addresses::V6 { .. }))?;
    Ok((Tuple { addresses, layer4 }, zone))
}

#[inline]
fn addresses(value: &[u8]) -> Result<Addresses, Malformed> {
    let (mut source4, mut destination4, mut source6, mut destination6) = (None, None, None, None);
    let mut attributes = Attributes::new(value);
    while let Some((kind, value)) = attributes.next()? {
        match kind {
            CTA_IP_V4_SRC => source4 = Some(Ipv4Addr::from(array::<4>(value)?)),
            CTA_IP_V4_DST => destination4 = Some(Ipv4Addr::from(array::<4>(value)?)),
            CTA_IP_V6_SRC => source6 = Some(Ipv6Addr::from(array::<16>(value)?)),
            CTA_IP_V6_DST => destination6 = Some(Ipv6Addr::from(array::<16>(value)?)),
            _ => {}
        }
    }
    match (source4, destination4, source6, destination6) {
        (Some(source), Some(destination), None, None) => Ok(Addresses::V4 { source, destination }),
        (None, None, Some(source), Some(destination)) => Ok(Addresses::V6 { source, destination }),
        _ => Err(Malformed),
    }
}

#[inline]
fn layer4(value: &[u8], six: bool) -> Result<Layer4, Refusal> {
    let (mut number, mut source, mut destination, mut id, mut kind, mut code) = (None, None, None, None, None, None);
    let mut attributes = Attributes::new(value);
    while let Some((attribute, value)) = attributes.next()? {
        match attribute {
            CTA_PROTO_NUM => number = Some(byte(value)?),
            CTA_PROTO_SRC_PORT => source = Some(be16(value)?),
            CTA_PROTO_DST_PORT => destination = Some(be16(value)?),
            CTA_PROTO_ICMP_ID | CTA_PROTO_ICMPV6_ID => id = Some(be16(value)?),
            CTA_PROTO_ICMP_TYPE | CTA_PROTO_ICMPV6_TYPE => kind = Some(byte(value)?),
            CTA_PROTO_ICMP_CODE | CTA_PROTO_ICMPV6_CODE => code = Some(byte(value)?),
            _ => {}
        }
    }
    let known = match (number.ok_or(Refusal::Malformed)?, six) {
        (Layer4::TCP, _) => source.zip(destination).map(|(source, destination)| Layer4::Tcp { source, destination }),
        (Layer4::UDP, _) => source.zip(destination).map(|(source, destination)| Layer4::Udp { source, destination }),
        (Layer4::ICMP, false) => id.zip(kind).zip(code).map(|((id, kind), code)| Layer4::Icmp { id, kind, code }),
        (Layer4::ICMP6, true) => id.zip(kind).zip(code).map(|((id, kind), code)| Layer4::Icmp6 { id, kind, code }),
        _ => return Err(Refusal::Protocol),
    };
    known.ok_or(Refusal::Malformed)
}

/// TCP's part; `None`: another protocol's, or a state that this version doesn't know.
#[inline]
fn protocol_info(value: &[u8]) -> Result<Option<Tcp>, Malformed> {
    let mut attributes = Attributes::new(value);
    while let Some((kind, value)) = attributes.next()? {
        if kind == CTA_PROTOINFO_TCP {
            return tcp(value);
        }
    }
    Ok(None)
}

#[inline]
fn tcp(value: &[u8]) -> Result<Option<Tcp>, Malformed> {
    let mut state = None;
    let [mut original, mut reply] = [TcpSide::default(); 2];
    let mut told = 0;
    let mut attributes = Attributes::new(value);
    while let Some((kind, value)) = attributes.next()? {
        match kind {
            CTA_PROTOINFO_TCP_STATE => state = Some(byte(value)?),
            CTA_PROTOINFO_TCP_WSCALE_ORIGINAL => original.window_scale = byte(value)?,
            CTA_PROTOINFO_TCP_WSCALE_REPLY => reply.window_scale = byte(value)?,
            // Flags, then the mask, which means something only when written.
            CTA_PROTOINFO_TCP_FLAGS_ORIGINAL => {
                original.flags = TcpFlags(byte(value)?);
                told |= 1;
            }
            CTA_PROTOINFO_TCP_FLAGS_REPLY => {
                reply.flags = TcpFlags(byte(value)?);
                told |= 2;
            }
            _ => {}
        }
    }
    let state = state.ok_or(Malformed)?;
    let sides = (told == 3).then_some([original, reply]);
    Ok(TcpState::from_wire(state).map(|state| Tcp { state, sides }))
}

#[cold]
fn adjustment(value: &[u8]) -> Result<SequenceAdjustment, Malformed> {
    let mut read = SequenceAdjustment::default();
    let mut attributes = Attributes::new(value);
    while let Some((kind, value)) = attributes.next()? {
        match kind {
            CTA_SEQADJ_CORRECTION_POS => read.correction_position = be32(value)?,
            CTA_SEQADJ_OFFSET_BEFORE => read.offset_before = be32(value)?.cast_signed(),
            CTA_SEQADJ_OFFSET_AFTER => read.offset_after = be32(value)?.cast_signed(),
            _ => {}
        }
    }
    Ok(read)
}

#[cold]
fn proxy(value: &[u8]) -> Result<SynProxy, Malformed> {
    let mut read = SynProxy::default();
    let mut attributes = Attributes::new(value);
    while let Some((kind, value)) = attributes.next()? {
        match kind {
            CTA_SYNPROXY_ISN => read.initial_sequence = be32(value)?,
            CTA_SYNPROXY_ITS => read.initial_timestamp = be32(value)?,
            CTA_SYNPROXY_TSOFF => read.timestamp_offset = be32(value)?,
            _ => {}
        }
    }
    Ok(read)
}
