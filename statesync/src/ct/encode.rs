//! What is written into the kernel's table.
//!
//! An entry that is inserted as it was dumped is in the table and doesn't work. What has to be said otherwise:
//!
//! | part | how | else |
//! |---|---|---|
//! | reply tuple | the plain inverse of the original | nothing is translated |
//! | NAT | out of the dumped reply tuple; both sides, address and port pinned | the kernel picks another port |
//! | status | with CONFIRMED, without EXPECTED and DYING | EBUSY |
//! | timeout | a lease | a countdown that nobody refreshes |
//! | TCP flags | with a mask | they are ignored, and window scales with them |
//! | TCP windows | can't be written: BE_LIBERAL both ways | INVALID after a retransmission |

use super::entry::{SequenceAdjustment, Status, SynProxy, Tcp, TcpFlags, TcpSide};
use super::number::*;
use super::outcome::{Operation, Outcome};
use super::replica::{Mark, Replica};
use super::tuple::{Addresses, Direction, Layer4, Tuple, Zone};
use super::write::{begin, end, nest, put_pair, put_quad, put_sixteen, put8, put16, put32, unnest};
use std::net::IpAddr;
use thiserror::Error;

/// Bits of the status that can be written and mean something. CONFIRMED is always added.
const STATUS: Status = Status(Status::SEEN_REPLY.0 | Status::ASSURED.0);

/// Flags of TCP that are written: what a side offered and did. What conntrack derives from segments isn't.
const TCP_FLAGS: u8 = TcpFlags::WINDOW_SCALE.0
    | TcpFlags::SACK_PERM.0
    | TcpFlags::CLOSE_INIT.0
    | TcpFlags::BE_LIBERAL.0
    | TcpFlags::SIMULTANEOUS_OPEN.0;

/// The kernel takes no larger one.
const WINDOW_SCALE_MAX: u8 = 14;

/// Why a flow can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// The batch holds [`Batch::MAX`] messages: send it.
    #[error("the batch is full")]
    Full,
    /// A type of ICMP that has no answer.
    #[error("its ICMP type has no answer")]
    NoInverse,
    /// Original and reply tuple are of different families or protocols.
    #[error("its tuples are of different families or protocols")]
    Mixed,
}

/// Requests for one datagram, in a buffer that is reused. None of them asks for an acknowledgement: the kernel has done
/// them all when the send returns, and has answered those that failed.
#[derive(Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    operations: Vec<Operation>,
    first: u32,
}

impl Batch {
    /// Most messages of one: their errors fit any socket's buffer that [`crate::ct`]'s users open.
    pub const MAX: usize = 256;

    /// Most bytes of one message.
    pub const MESSAGE_MAX: usize = 512;

    /// An empty one. It grows once, and keeps its memory.
    #[must_use]
    pub fn new() -> Self {
        Self { bytes: Vec::new(), operations: Vec::new(), first: 1 }
    }

    /// Forgets its messages; numbers go on, so that late answers to the former ones are told apart.
    pub fn clear(&mut self) {
        self.first = self.next();
        self.bytes.clear();
        self.operations.clear();
    }

    /// The messages.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// None.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// No more fit.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.operations.len() >= Self::MAX
    }

    /// What each asks for, in order.
    #[must_use]
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Which message an answer belongs to, and what it means; `None`: to none of this batch.
    #[must_use]
    pub fn outcome(&self, sequence: u32, errno: i32) -> Option<(usize, Outcome)> {
        let position = usize::try_from(sequence.wrapping_sub(self.first)).ok()?;
        let operation = *self.operations.get(position)?;
        Some((position, Outcome::of(operation, errno)))
    }

    /// A new flow; [`Outcome::Exists`] if it is there. Returns its position in the batch.
    ///
    /// # Errors
    /// Nothing was appended then.
    pub fn create(&mut self, replica: &Replica) -> Result<usize, EncodeError> {
        let inverse = plain_reply(&replica.original, &replica.reply)?;
        self.push(Operation::Create, CT_NEW, NLM_F_CREATE | NLM_F_EXCL, &replica.original, |out| {
            tuple(out, CTA_TUPLE_ORIG, &replica.original, &replica.zone);
            tuple(out, CTA_TUPLE_REPLY, &inverse, &replica.zone);
            zone(out, replica.zone);
            nat(out, replica, &inverse);
            state(out, replica);
            for (kind, adjustment) in [CTA_SEQ_ADJ_ORIG, CTA_SEQ_ADJ_REPLY].into_iter().zip(replica.sequence_adjustment)
            {
                if let Some(adjustment) = adjustment {
                    sequence_adjustment(out, kind, adjustment);
                }
            }
            if let Some(proxy) = replica.syn_proxy {
                syn_proxy(out, proxy);
            }
        })
    }

    /// What changes of a flow that is there: status, timeout, mark, TCP. Its translation can't. `exists`: a create said
    /// so; then its absence means something else ([`Outcome::ReplyClash`]).
    ///
    /// # Errors
    /// Nothing was appended then.
    pub fn update(&mut self, replica: &Replica, exists: bool) -> Result<usize, EncodeError> {
        plain_reply(&replica.original, &replica.reply)?;
        let operation = if exists { Operation::UpdateExisting } else { Operation::Update };
        self.push(operation, CT_NEW, 0, &replica.original, |out| {
            tuple(out, CTA_TUPLE_ORIG, &replica.original, &replica.zone);
            zone(out, replica.zone);
            state(out, replica);
        })
    }

    /// Another timeout in seconds and, if given, other bits of the mark; nothing else is touched.
    ///
    /// # Errors
    /// Nothing was appended then.
    pub fn refresh(
        &mut self,
        original: &Tuple,
        in_zone: Zone,
        timeout_s: u32,
        mark: Option<Mark>,
    ) -> Result<usize, EncodeError> {
        self.push(Operation::Refresh, CT_NEW, 0, original, |out| {
            tuple(out, CTA_TUPLE_ORIG, original, &in_zone);
            zone(out, in_zone);
            put32(out, CTA_TIMEOUT, timeout_s);
            put_mark(out, mark);
        })
    }

    /// The end of a flow. With the kernel's id of it, where that is known: so a later flow with the same tuple lives.
    ///
    /// # Errors
    /// Nothing was appended then.
    pub fn delete(&mut self, original: &Tuple, in_zone: Zone, id: Option<u32>) -> Result<usize, EncodeError> {
        self.push(Operation::Delete, CT_DELETE, 0, original, |out| {
            tuple(out, CTA_TUPLE_ORIG, original, &in_zone);
            zone(out, in_zone);
            if let Some(id) = id {
                put32(out, CTA_ID, id);
            }
        })
    }

    fn next(&self) -> u32 {
        let count = u32::try_from(self.operations.len()).expect("a batch has at most MAX messages");
        // Events have number 0.
        self.first.checked_add(count).unwrap_or(1)
    }

    #[inline]
    fn push(
        &mut self,
        operation: Operation,
        kind: u16,
        flags: u16,
        original: &Tuple,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Result<usize, EncodeError> {
        if self.is_full() {
            return Err(EncodeError::Full);
        }
        // A wrap inside of a batch can't happen: its numbers would no longer be one after the other.
        if self.operations.is_empty() && self.first > u32::MAX - 2 * Self::MAX as u32 {
            self.first = 1;
        }
        self.bytes.reserve(Self::MESSAGE_MAX);
        let sequence = self.next();
        let open = begin(&mut self.bytes, kind, flags, sequence, family(original));
        body(&mut self.bytes);
        end(&mut self.bytes, open);
        self.operations.push(operation);
        Ok(self.operations.len() - 1)
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

pub(super) const fn family(tuple: &Tuple) -> u8 {
    match tuple.addresses {
        Addresses::V4 { .. } => AF_INET,
        Addresses::V6 { .. } => AF_INET6,
    }
}

fn plain_reply(original: &Tuple, reply: &Tuple) -> Result<Tuple, EncodeError> {
    if !original.is_like(reply) {
        return Err(EncodeError::Mixed);
    }
    original.inverse().ok_or(EncodeError::NoInverse)
}

#[inline]
pub(super) fn tuple(out: &mut Vec<u8>, kind: u16, tuple: &Tuple, zone: &Zone) {
    let open = nest(out, kind);
    let ip = nest(out, CTA_TUPLE_IP);
    match tuple.addresses {
        Addresses::V4 { source, destination } => {
            put_quad(out, CTA_IP_V4_SRC, source.octets());
            put_quad(out, CTA_IP_V4_DST, destination.octets());
        }
        Addresses::V6 { source, destination } => {
            put_sixteen(out, CTA_IP_V6_SRC, source.octets());
            put_sixteen(out, CTA_IP_V6_DST, destination.octets());
        }
    }
    unnest(out, ip);
    let proto = nest(out, CTA_TUPLE_PROTO);
    put8(out, CTA_PROTO_NUM, tuple.layer4.protocol());
    match tuple.layer4 {
        Layer4::Tcp { source, destination } | Layer4::Udp { source, destination } => {
            put16(out, CTA_PROTO_SRC_PORT, source);
            put16(out, CTA_PROTO_DST_PORT, destination);
        }
        Layer4::Icmp { id, kind, code } => {
            put16(out, CTA_PROTO_ICMP_ID, id);
            put8(out, CTA_PROTO_ICMP_TYPE, kind);
            put8(out, CTA_PROTO_ICMP_CODE, code);
        }
        Layer4::Icmp6 { id, kind, code } => {
            put16(out, CTA_PROTO_ICMPV6_ID, id);
            put8(out, CTA_PROTO_ICMPV6_TYPE, kind);
            put8(out, CTA_PROTO_ICMPV6_CODE, code);
        }
    }
    unnest(out, proto);
    let inside = match zone.direction {
        Direction::Both => false,
        Direction::Original => kind == CTA_TUPLE_ORIG,
        Direction::Reply => kind == CTA_TUPLE_REPLY,
    };
    if inside {
        put16(out, CTA_TUPLE_ZONE, zone.id);
    }
    unnest(out, open);
}

#[inline]
pub(super) fn zone(out: &mut Vec<u8>, zone: Zone) {
    if zone.id != 0 && zone.direction == Direction::Both {
        put16(out, CTA_ZONE, zone.id);
    }
}

/// Both sides or none. With one only the kernel settles the other by itself, and may pick another port there. Where
/// nothing is translated none is needed: no rule translates an entry that is in the table, answered or not.
#[inline]
fn nat(out: &mut Vec<u8>, replica: &Replica, inverse: &Tuple) {
    if replica.reply == *inverse {
        return;
    }
    let reply = &replica.reply;
    nat_side(
        out,
        CTA_NAT_DST,
        reply.addresses.source(),
        reply.layer4.destination_port().map(|_| reply.layer4.source_port()),
    );
    let port = reply.layer4.destination_port().unwrap_or_else(|| reply.layer4.source_port());
    nat_side(out, CTA_NAT_SRC, reply.addresses.destination(), Some(port));
}

#[inline]
fn nat_side(out: &mut Vec<u8>, kind: u16, address: IpAddr, port: Option<u16>) {
    let open = nest(out, kind);
    match address {
        IpAddr::V4(address) => {
            put_quad(out, CTA_NAT_V4_MINIP, address.octets());
            put_quad(out, CTA_NAT_V4_MAXIP, address.octets());
        }
        IpAddr::V6(address) => {
            put_sixteen(out, CTA_NAT_V6_MINIP, address.octets());
            put_sixteen(out, CTA_NAT_V6_MAXIP, address.octets());
        }
    }
    if let Some(port) = port {
        let proto = nest(out, CTA_NAT_PROTO);
        put16(out, CTA_PROTONAT_PORT_MIN, port);
        put16(out, CTA_PROTONAT_PORT_MAX, port);
        unnest(out, proto);
    }
    unnest(out, open);
}

/// Status, timeout, mark, TCP: what both creates and updates say.
#[inline]
fn state(out: &mut Vec<u8>, replica: &Replica) {
    put32(out, CTA_STATUS, replica.status.0 & STATUS.0 | Status::CONFIRMED.0);
    put32(out, CTA_TIMEOUT, replica.timeout_s);
    put_mark(out, replica.mark);
    if let (Layer4::Tcp { .. }, Some(told)) = (replica.original.layer4, replica.tcp) {
        tcp(out, told);
    }
}

#[inline]
fn put_mark(out: &mut Vec<u8>, mark: Option<Mark>) {
    if let Some(Mark { value, mask }) = mark {
        put32(out, CTA_MARK, value & mask);
        put32(out, CTA_MARK_MASK, mask);
    }
}

#[inline]
fn tcp(out: &mut Vec<u8>, Tcp { state, sides }: Tcp) {
    let open = nest(out, CTA_PROTOINFO);
    let inside = nest(out, CTA_PROTOINFO_TCP);
    put8(out, CTA_PROTOINFO_TCP_STATE, state as u8);
    match sides {
        Some([original, reply]) => {
            put8(out, CTA_PROTOINFO_TCP_WSCALE_ORIGINAL, original.window_scale.min(WINDOW_SCALE_MAX));
            put8(out, CTA_PROTOINFO_TCP_WSCALE_REPLY, reply.window_scale.min(WINDOW_SCALE_MAX));
            put_pair(out, CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, flags(original, TCP_FLAGS));
            put_pair(out, CTA_PROTOINFO_TCP_FLAGS_REPLY, flags(reply, TCP_FLAGS));
        }
        // Nothing known: what the entry has stays, but windows are no reason to call anything invalid.
        None => {
            let liberal = [TcpFlags::BE_LIBERAL.0; 2];
            put_pair(out, CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, liberal);
            put_pair(out, CTA_PROTOINFO_TCP_FLAGS_REPLY, liberal);
        }
    }
    unnest(out, inside);
    unnest(out, open);
}

#[inline]
const fn flags(side: TcpSide, mask: u8) -> [u8; 2] {
    [(side.flags.0 | TcpFlags::BE_LIBERAL.0) & mask, mask]
}

#[cold]
fn sequence_adjustment(out: &mut Vec<u8>, kind: u16, adjustment: SequenceAdjustment) {
    let open = nest(out, kind);
    put32(out, CTA_SEQADJ_CORRECTION_POS, adjustment.correction_position);
    put32(out, CTA_SEQADJ_OFFSET_BEFORE, adjustment.offset_before.cast_unsigned());
    put32(out, CTA_SEQADJ_OFFSET_AFTER, adjustment.offset_after.cast_unsigned());
    unnest(out, open);
}

#[cold]
fn syn_proxy(out: &mut Vec<u8>, proxy: SynProxy) {
    let open = nest(out, CTA_SYNPROXY);
    put32(out, CTA_SYNPROXY_ISN, proxy.initial_sequence);
    put32(out, CTA_SYNPROXY_ITS, proxy.initial_timestamp);
    put32(out, CTA_SYNPROXY_TSOFF, proxy.timestamp_offset);
    unnest(out, open);
}
