//! The batches' form. Integers are little-endian; `varint` is LEB128 of at most 32 bits.
//!
//! ```text
//! batch     version: u8, flags: u8 (1: sequenced), session: u32, sequence: u32, then records to the end
//! record    kind: u8, then
//!   0x80 | 1 IPv6 | 2 fresh | 4 snat | 8 other port | 16 mark | 32 window scale | 64 backend:  Upsert
//!             state: u8 (TCP state below, class above), flags: u8, service: varint, client: 4 or 16 bytes, port: u16,
//!             [backend: varint], [snat: varint], [port: u16], [mark: u32], [scale: u8], generation: varint
//!   0x20 (IPv4), 0x21 (IPv6)  Delete: service: varint, client: 4 or 16 bytes, port: u16
//!   others    length: u16, body (an unknown kind is skipped, so are bytes behind the known fields of a body)
//!     1 Hello     run: u64, boot: u64, birth: u64, birth node: u32, key: 2 x u64, then fields tag: u8, length: u8, bytes
//!     2 Ack       session: u32, highest: u32, applied: u64 (bit n: highest - 1 - n)
//!     3 Nack      session: u32: not known, begin anew
//!     4 Service   number: u16, protocol: u8, port: u16, zone: u16, direction: u8, address
//!     5 Backend   number: u16, port: u16, address
//!     6 Snat      number: u16, address
//!     7 Claim     generation: u32, from: u32 (node; 0: anyone), address of the VIP, or family 0: any
//!     8 Begin     shard: u16, key check: u32: all flows of the shard follow
//!     9 End       shard: u16, count: u32: those were all
//!    10 Digests   key check: u32, round: u8, group: u8 (255: sums of groups), mask: u64, one u64 per bit of the mask
//!    11 Answer    round: u8, group: u8, compared: u64, equal: u64, flags: u8 (1: my table is full)
//!    12 InSync    age: u32 (ms): you held all my flows then
//!    13 Clash     clashes: u8 (0, 1), protocol: u8, port: u16, zone: u16, direction: u8, VIP's address, client's address,
//!                 port: u16: what your flow has behind the NAT is another flow's here (or not any more)
//! address   family: u8 (4, 6), 4 or 16 bytes
//! ```

use super::facts::{FlowKey, Service};
use super::types::NodeId;
use crate::ct::{Direction, Zone};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Largest batch in bytes.
pub const BATCH_MAX: usize = 1150;

/// The form's major version; batches of another one are refused.
pub(crate) const VERSION: u8 = 1;

pub(crate) const HEADER_LEN: usize = 10;
const SEQUENCED: u8 = 1;

const IPV6: u8 = 1;
const FRESH: u8 = 2;
const SNAT: u8 = 4;
const PORT: u8 = 8;
const MARK: u8 = 16;
const SCALE: u8 = 32;
const BACKEND: u8 = 64;
const UPSERT: u8 = 128;
const DELETE: u8 = 0x20;

/// Longest upsert and delete: what has to fit before one more is tried.
pub(crate) const RECORD_MAX: usize = 3 + 3 + 16 + 2 + 3 + 3 + 2 + 4 + 1 + 5;
/// Longest definitions that one upsert may need in front of it.
pub(crate) const DEFINITIONS_MAX: usize = 3 * 3 + (8 + 17) + (4 + 17) + (2 + 17);

/// Why a batch or record doesn't decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// Another major version.
    Version(u8),
    /// It ends too early.
    Truncated,
    /// A value without meaning.
    Value,
}

/// A batch's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) session: u32,
    /// `None`: it needs no acknowledgement and has no place in the order.
    pub(crate) sequence: Option<u32>,
}

/// A flow's state on the wire; numbers are the sender's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Upsert {
    pub(crate) service: u16,
    pub(crate) client: IpAddr,
    pub(crate) client_port: u16,
    pub(crate) backend: Option<u16>,
    pub(crate) snat: Option<u16>,
    pub(crate) snat_port: u16,
    pub(crate) mark: u32,
    pub(crate) scale: Option<u8>,
    pub(crate) generation: u32,
    pub(crate) state: u8,
    pub(crate) flags: u8,
    pub(crate) fresh: bool,
}

/// What a node says of itself when a session begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    /// This run of the agent: drawn at its start.
    pub(crate) run: u64,
    /// This life of its kernel's table.
    pub(crate) boot: u64,
    /// The oldest key that it knows, by boot and node of who drew it.
    pub(crate) birth: (u64, u32),
    pub(crate) key: [u64; 2],
    /// What it can do beyond the first version.
    pub(crate) capabilities: u32,
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    Upsert(Upsert),
    Delete { service: u16, client: IpAddr, client_port: u16 },
    Hello(Hello),
    Ack { session: u32, highest: u32, applied: u64 },
    Nack { session: u32 },
    Service { number: u16, service: Service },
    Backend { number: u16, address: (IpAddr, u16) },
    Snat { number: u16, address: IpAddr },
    Claim { generation: u32, from: Option<NodeId>, vip: Option<IpAddr> },
    Begin { shard: u16, check: u32 },
    End { shard: u16, count: u32 },
    Digests { check: u32, round: u8, group: u8, mask: u64, sums: Sums<'a> },
    Answer { round: u8, group: u8, compared: u64, equal: u64, full: bool },
    InSync { age_ms: u32 },
    Clash { key: FlowKey, clashes: bool },
    Unknown,
}

/// Sums of a `Digests` record: one for each bit of its mask.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums<'a>(&'a [u8]);

impl Iterator for Sums<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let (sum, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*sum))
    }
}

/// Reads a batch.
pub(crate) fn decode(bytes: &[u8]) -> Result<(Head, Records<'_>), DecodeError> {
    let mut reader = Reader(bytes);
    let version = reader.u8()?;
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let flags = reader.u8()?;
    let (session, sequence) = (reader.u32()?, reader.u32()?);
    let sequence = (flags & SEQUENCED != 0).then_some(sequence);
    Ok((Head { session, sequence }, Records(reader)))
}

/// The records of a batch; after an error nothing more comes.
#[derive(Debug, Clone)]
pub(crate) struct Records<'a>(Reader<'a>);

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.0.is_empty() {
            return None;
        }
        let record = self.0.record();
        if record.is_err() {
            self.0 = Reader(&[]);
        }
        Some(record)
    }
}

/// Checked reads from the front.
#[derive(Debug, Clone)]
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(*array)
    }

    fn slice(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (slice, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(slice)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_le_bytes)
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

    fn varint(&mut self) -> Result<u32, DecodeError> {
        let mut value = 0u64;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return u32::try_from(value).map_err(|_| DecodeError::Value);
            }
        }
        Err(DecodeError::Value)
    }

    fn number(&mut self) -> Result<u16, DecodeError> {
        self.varint().and_then(|number| u16::try_from(number).map_err(|_| DecodeError::Value))
    }

    fn address_of(&mut self, v6: bool) -> Result<IpAddr, DecodeError> {
        Ok(if v6 { Ipv6Addr::from(self.array::<16>()?).into() } else { Ipv4Addr::from(self.array::<4>()?).into() })
    }

    fn address(&mut self) -> Result<IpAddr, DecodeError> {
        match self.u8()? {
            4 => self.address_of(false),
            6 => self.address_of(true),
            _ => Err(DecodeError::Value),
        }
    }

    fn record(&mut self) -> Result<Record<'a>, DecodeError> {
        let kind = self.u8()?;
        if kind & UPSERT != 0 {
            return self.upsert(kind).map(Record::Upsert);
        }
        if kind == DELETE || kind == DELETE | IPV6 {
            let service = self.number()?;
            let client = self.address_of(kind & IPV6 != 0)?;
            return Ok(Record::Delete { service, client, client_port: self.u16()? });
        }
        let length = self.u16()?;
        Reader(self.slice(usize::from(length))?).body(kind)
    }

    fn upsert(&mut self, kind: u8) -> Result<Upsert, DecodeError> {
        let (state, flags) = (self.u8()?, self.u8()?);
        let service = self.number()?;
        let client = self.address_of(kind & IPV6 != 0)?;
        let client_port = self.u16()?;
        Ok(Upsert {
            service,
            client,
            client_port,
            backend: if kind & BACKEND != 0 { Some(self.number()?) } else { None },
            snat: if kind & SNAT != 0 { Some(self.number()?) } else { None },
            snat_port: if kind & PORT != 0 { self.u16()? } else { client_port },
            mark: if kind & MARK != 0 { self.u32()? } else { 0 },
            scale: if kind & SCALE != 0 { Some(self.u8()?) } else { None },
            generation: self.varint()?,
            state,
            flags,
            fresh: kind & FRESH != 0,
        })
    }

    fn body(mut self, kind: u8) -> Result<Record<'a>, DecodeError> {
        Ok(match kind {
            1 => Record::Hello(self.hello()?),
            2 => Record::Ack { session: self.u32()?, highest: self.u32()?, applied: self.u64()? },
            3 => Record::Nack { session: self.u32()? },
            4 => Record::Service { number: self.u16()?, service: self.service()? },
            5 => {
                let (number, port) = (self.u16()?, self.u16()?);
                Record::Backend { number, address: (self.address()?, port) }
            }
            6 => Record::Snat { number: self.u16()?, address: self.address()? },
            7 => {
                let (generation, from) = (self.u32()?, self.u32()?);
                let vip = match self.0.first() {
                    Some(0) => None,
                    _ => Some(self.address()?),
                };
                Record::Claim { generation, from: (from != 0).then_some(NodeId(from)), vip }
            }
            8 => Record::Begin { shard: self.u16()?, check: self.u32()? },
            9 => Record::End { shard: self.u16()?, count: self.u32()? },
            10 => {
                let (check, round, group, mask) = (self.u32()?, self.u8()?, self.u8()?, self.u64()?);
                let sums = Sums(self.slice(mask.count_ones() as usize * 8)?);
                Record::Digests { check, round, group, mask, sums }
            }
            11 => Record::Answer {
                round: self.u8()?,
                group: self.u8()?,
                compared: self.u64()?,
                equal: self.u64()?,
                full: self.u8()? & 1 != 0,
            },
            12 => Record::InSync { age_ms: self.u32()? },
            13 => {
                let (clashes, service) = (self.u8()? & 1 != 0, self.service()?);
                let (client, client_port) = (self.address()?, self.u16()?);
                Record::Clash { key: FlowKey { service, client, client_port }, clashes }
            }
            _ => Record::Unknown,
        })
    }

    fn service(&mut self) -> Result<Service, DecodeError> {
        let (protocol, port, id) = (self.u8()?, self.u16()?, self.u16()?);
        let direction = match self.u8()? {
            0 => Direction::Both,
            1 => Direction::Original,
            2 => Direction::Reply,
            _ => return Err(DecodeError::Value),
        };
        Ok(Service { protocol, port, zone: Zone { id, direction }, address: self.address()? })
    }

    fn hello(&mut self) -> Result<Hello, DecodeError> {
        let (run, boot, birth) = (self.u64()?, self.u64()?, (self.u64()?, self.u32()?));
        let key = [self.u64()?, self.u64()?];
        let mut capabilities = 0;
        while !self.0.is_empty() {
            let (tag, length) = (self.u8()?, self.u8()?);
            let mut field = Reader(self.slice(usize::from(length))?);
            if tag == 1 {
                capabilities = field.u32()?;
            }
        }
        Ok(Hello { run, boot, birth, key, capabilities })
    }
}

/// A batch in the making.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    records: usize,
}

impl Writer {
    /// Starts a batch.
    pub(crate) fn begin(&mut self, session: u32) {
        self.bytes.clear();
        self.records = 0;
        self.bytes.extend_from_slice(&[VERSION, 0]);
        self.bytes.extend_from_slice(&session.to_le_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
    }

    /// Gives it a place in the order.
    pub(crate) fn sequence(&mut self, sequence: u32) {
        self.bytes[1] |= SEQUENCED;
        self.bytes[6..HEADER_LEN].copy_from_slice(&sequence.to_le_bytes());
    }

    /// Bytes that still fit.
    pub(crate) const fn room(&self) -> usize {
        BATCH_MAX - self.bytes.len()
    }

    pub(crate) const fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.bytes.len() <= HEADER_LEN
    }

    /// Upserts and deletes in it.
    pub(crate) const fn records(&self) -> usize {
        self.records
    }

    /// The batch, in this buffer.
    pub(crate) fn copy_to(&self, mut buffer: Vec<u8>) -> Vec<u8> {
        buffer.clear();
        buffer.extend_from_slice(&self.bytes);
        buffer
    }

    pub(crate) fn upsert(&mut self, upsert: &Upsert) {
        let mut kind = UPSERT;
        let other_port = upsert.snat_port != upsert.client_port;
        for (set, bit) in [
            (upsert.client.is_ipv6(), IPV6),
            (upsert.fresh, FRESH),
            (upsert.backend.is_some(), BACKEND),
            (upsert.snat.is_some(), SNAT),
            (other_port, PORT),
            (upsert.mark != 0, MARK),
            (upsert.scale.is_some(), SCALE),
        ] {
            kind |= if set { bit } else { 0 };
        }
        self.bytes.extend_from_slice(&[kind, upsert.state, upsert.flags]);
        self.varint(u32::from(upsert.service));
        self.raw_address(upsert.client);
        self.bytes.extend_from_slice(&upsert.client_port.to_le_bytes());
        for number in [upsert.backend, upsert.snat].into_iter().flatten() {
            self.varint(u32::from(number));
        }
        if other_port {
            self.bytes.extend_from_slice(&upsert.snat_port.to_le_bytes());
        }
        if upsert.mark != 0 {
            self.bytes.extend_from_slice(&upsert.mark.to_le_bytes());
        }
        self.bytes.extend(upsert.scale);
        self.varint(upsert.generation);
        self.records += 1;
    }

    pub(crate) fn delete(&mut self, service: u16, client: IpAddr, client_port: u16) {
        self.bytes.push(DELETE | if client.is_ipv6() { IPV6 } else { 0 });
        self.varint(u32::from(service));
        self.raw_address(client);
        self.bytes.extend_from_slice(&client_port.to_le_bytes());
        self.records += 1;
    }

    /// Any other record.
    pub(crate) fn other(&mut self, record: &Record<'_>, sums: &[u64]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 3]);
        let kind = self.put_body(record, sums);
        let length = (self.bytes.len() - start - 3) as u16;
        self.bytes[start] = kind;
        self.bytes[start + 1..start + 3].copy_from_slice(&length.to_le_bytes());
    }

    fn put_body(&mut self, record: &Record<'_>, sums: &[u64]) -> u8 {
        let bytes = &mut self.bytes;
        match *record {
            Record::Hello(Hello { run, boot, birth, key, capabilities }) => {
                for word in [run, boot, birth.0] {
                    bytes.extend_from_slice(&word.to_le_bytes());
                }
                bytes.extend_from_slice(&birth.1.to_le_bytes());
                key.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
                bytes.extend_from_slice(&[1, 4]);
                bytes.extend_from_slice(&capabilities.to_le_bytes());
                1
            }
            Record::Ack { session, highest, applied } => {
                bytes.extend_from_slice(&session.to_le_bytes());
                bytes.extend_from_slice(&highest.to_le_bytes());
                bytes.extend_from_slice(&applied.to_le_bytes());
                2
            }
            Record::Nack { session } => {
                bytes.extend_from_slice(&session.to_le_bytes());
                3
            }
            Record::Service { number, service } => {
                bytes.extend_from_slice(&number.to_le_bytes());
                self.service(&service);
                4
            }
            Record::Backend { number, address: (address, port) } => {
                bytes.extend_from_slice(&number.to_le_bytes());
                bytes.extend_from_slice(&port.to_le_bytes());
                self.address(address);
                5
            }
            Record::Snat { number, address } => {
                bytes.extend_from_slice(&number.to_le_bytes());
                self.address(address);
                6
            }
            Record::Claim { generation, from, vip } => {
                bytes.extend_from_slice(&generation.to_le_bytes());
                bytes.extend_from_slice(&from.map_or(0, |node| node.0).to_le_bytes());
                match vip {
                    Some(vip) => self.address(vip),
                    None => bytes.push(0),
                }
                7
            }
            Record::Begin { shard, check } => {
                bytes.extend_from_slice(&shard.to_le_bytes());
                bytes.extend_from_slice(&check.to_le_bytes());
                8
            }
            Record::End { shard, count } => {
                bytes.extend_from_slice(&shard.to_le_bytes());
                bytes.extend_from_slice(&count.to_le_bytes());
                9
            }
            Record::Digests { check, round, group, mask, .. } => {
                bytes.extend_from_slice(&check.to_le_bytes());
                bytes.extend_from_slice(&[round, group]);
                bytes.extend_from_slice(&mask.to_le_bytes());
                sums.iter().for_each(|sum| bytes.extend_from_slice(&sum.to_le_bytes()));
                10
            }
            Record::Answer { round, group, compared, equal, full } => {
                bytes.extend_from_slice(&[round, group]);
                bytes.extend_from_slice(&compared.to_le_bytes());
                bytes.extend_from_slice(&equal.to_le_bytes());
                bytes.push(u8::from(full));
                11
            }
            Record::InSync { age_ms } => {
                bytes.extend_from_slice(&age_ms.to_le_bytes());
                12
            }
            Record::Clash { key, clashes } => {
                bytes.push(u8::from(clashes));
                self.service(&key.service);
                self.address(key.client);
                self.bytes.extend_from_slice(&key.client_port.to_le_bytes());
                13
            }
            // These have no body of this form; a reader skips it.
            Record::Upsert(_) | Record::Delete { .. } | Record::Unknown => 0x7f,
        }
    }

    fn service(&mut self, service: &Service) {
        self.bytes.push(service.protocol);
        self.bytes.extend_from_slice(&service.port.to_le_bytes());
        self.bytes.extend_from_slice(&service.zone.id.to_le_bytes());
        self.bytes.push(service.zone.direction as u8);
        self.address(service.address);
    }

    fn varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn raw_address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.bytes.extend_from_slice(&address.octets()),
            IpAddr::V6(address) => self.bytes.extend_from_slice(&address.octets()),
        }
    }

    fn address(&mut self, address: IpAddr) {
        self.bytes.push(if address.is_ipv4() { 4 } else { 6 });
        self.raw_address(address);
    }
}

#[cfg(test)]
mod tests;
