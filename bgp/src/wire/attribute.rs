//! Path attributes: each of them as it may be read, borrowed and checked, and owned.

use std::fmt;
use std::net::Ipv4Addr;

use super::error::Fault;
use super::nlri::{self, Prefixes};
use super::reader::Reader;
use super::{Codec, mp};
use crate::types::{Asn, Family, NextHop, Origin, Prefix};

/// Type code of ORIGIN.
pub const ORIGIN: u8 = 1;
/// Type code of AS_PATH.
pub const AS_PATH: u8 = 2;
/// Type code of NEXT_HOP.
pub const NEXT_HOP: u8 = 3;
/// Type code of MULTI_EXIT_DISC.
pub const MULTI_EXIT_DISC: u8 = 4;
/// Type code of LOCAL_PREF.
pub const LOCAL_PREF: u8 = 5;
/// Type code of ATOMIC_AGGREGATE.
pub const ATOMIC_AGGREGATE: u8 = 6;
/// Type code of AGGREGATOR.
pub const AGGREGATOR: u8 = 7;
/// Type code of COMMUNITIES.
pub const COMMUNITIES: u8 = 8;
/// Type code of ORIGINATOR_ID.
pub const ORIGINATOR_ID: u8 = 9;
/// Type code of CLUSTER_LIST.
pub const CLUSTER_LIST: u8 = 10;
/// Type code of MP_REACH_NLRI.
pub const MP_REACH_NLRI: u8 = 14;
/// Type code of MP_UNREACH_NLRI.
pub const MP_UNREACH_NLRI: u8 = 15;
/// Type code of EXTENDED COMMUNITIES.
pub const EXTENDED_COMMUNITIES: u8 = 16;
/// Type code of AS4_PATH.
pub const AS4_PATH: u8 = 17;
/// Type code of AS4_AGGREGATOR.
pub const AS4_AGGREGATOR: u8 = 18;
/// Type code of LARGE_COMMUNITY.
pub const LARGE_COMMUNITY: u8 = 32;

/// Flag: not every speaker knows it.
pub const OPTIONAL: u8 = 0x80;
/// Flag: goes on to others, also through one that doesn't know it.
pub const TRANSITIVE: u8 = 0x40;
/// Flag: went through one that didn't know it.
pub const PARTIAL: u8 = 0x20;
/// Flag: its length has two octets.
pub const EXTENDED_LENGTH: u8 = 0x10;

/// A type code as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name(pub u8);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            ORIGIN => "ORIGIN",
            AS_PATH => "AS_PATH",
            NEXT_HOP => "NEXT_HOP",
            MULTI_EXIT_DISC => "MULTI_EXIT_DISC",
            LOCAL_PREF => "LOCAL_PREF",
            ATOMIC_AGGREGATE => "ATOMIC_AGGREGATE",
            AGGREGATOR => "AGGREGATOR",
            COMMUNITIES => "COMMUNITIES",
            ORIGINATOR_ID => "ORIGINATOR_ID",
            CLUSTER_LIST => "CLUSTER_LIST",
            MP_REACH_NLRI => "MP_REACH_NLRI",
            MP_UNREACH_NLRI => "MP_UNREACH_NLRI",
            EXTENDED_COMMUNITIES => "EXTENDED_COMMUNITIES",
            AS4_PATH => "AS4_PATH",
            AS4_AGGREGATOR => "AS4_AGGREGATOR",
            LARGE_COMMUNITY => "LARGE_COMMUNITY",
            35 => "ONLY_TO_CUSTOMER",
            other => return write!(f, "{other}"),
        })
    }
}

/// Optional and Transitive as an attribute has them; `None` for one that we don't know.
const fn expected_flags(code: u8) -> Option<u8> {
    match code {
        ORIGIN | AS_PATH | NEXT_HOP | LOCAL_PREF | ATOMIC_AGGREGATE => Some(TRANSITIVE),
        MULTI_EXIT_DISC | ORIGINATOR_ID | CLUSTER_LIST | MP_REACH_NLRI | MP_UNREACH_NLRI => Some(OPTIONAL),
        AGGREGATOR | COMMUNITIES | EXTENDED_COMMUNITIES | AS4_PATH | AS4_AGGREGATOR | LARGE_COMMUNITY => {
            Some(OPTIONAL | TRANSITIVE)
        }
        _ => None,
    }
}

/// A kind of segment in an AS_PATH (RFC 4271 section 4.3, RFC 5065).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentKind {
    /// Unordered; never written by us (RFC 9774).
    Set,
    /// Ordered.
    Sequence,
    /// Ordered, inside a confederation.
    ConfedSequence,
    /// Unordered, inside a confederation.
    ConfedSet,
}

impl SegmentKind {
    /// The number on the wire.
    pub const fn code(self) -> u8 {
        match self {
            Self::Set => 1,
            Self::Sequence => 2,
            Self::ConfedSequence => 3,
            Self::ConfedSet => 4,
        }
    }

    /// What a number means.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Set),
            2 => Some(Self::Sequence),
            3 => Some(Self::ConfedSequence),
            4 => Some(Self::ConfedSet),
            _ => None,
        }
    }
}

/// A segment of an AS_PATH.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Ordered or not.
    pub kind: SegmentKind,
    /// Its numbers; on the wire at most 255, more are written as several segments.
    pub asns: Vec<Asn>,
}

impl fmt::Display for Segment {
    /// `1 2`, `{1 2}`, `(1 2)`, `[1 2]`: as routers print them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = match self.kind {
            SegmentKind::Sequence => ("", ""),
            SegmentKind::Set => ("{", "}"),
            SegmentKind::ConfedSequence => ("(", ")"),
            SegmentKind::ConfedSet => ("[", "]"),
        };
        f.write_str(open)?;
        for (at, asn) in self.asns.iter().enumerate() {
            write!(f, "{}{asn}", if at == 0 { "" } else { " " })?;
        }
        f.write_str(close)
    }
}

/// A path attribute, owned.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attribute {
    /// Its flags as they came; [`EXTENDED_LENGTH`] is written as the length needs it.
    pub flags: u8,
    /// What it says.
    pub value: AttributeValue,
}

/// What a path attribute says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AttributeValue {
    /// ORIGIN.
    Origin(Origin),
    /// AS_PATH.
    AsPath(Vec<Segment>),
    /// NEXT_HOP.
    NextHop(Ipv4Addr),
    /// MULTI_EXIT_DISC.
    Med(u32),
    /// LOCAL_PREF.
    LocalPref(u32),
    /// ATOMIC_AGGREGATE.
    AtomicAggregate,
    /// AGGREGATOR.
    Aggregator(Asn, Ipv4Addr),
    /// COMMUNITIES.
    Communities(Vec<u32>),
    /// ORIGINATOR_ID.
    OriginatorId(Ipv4Addr),
    /// CLUSTER_LIST.
    ClusterList(Vec<Ipv4Addr>),
    /// MP_REACH_NLRI of a family that was negotiated.
    MpReach {
        /// Of which family the prefixes are.
        family: Family,
        /// Where to send.
        next_hop: NextHop,
        /// What is announced.
        prefixes: Vec<Prefix>,
    },
    /// MP_REACH_NLRI of another family.
    MpReachOther {
        /// Address family identifier.
        afi: u16,
        /// Subsequent address family identifier.
        safi: u8,
        /// The next hop as it came.
        next_hop: Vec<u8>,
        /// The prefixes as they came.
        nlri: Vec<u8>,
    },
    /// MP_UNREACH_NLRI of a family that was negotiated.
    MpUnreach {
        /// Of which family the prefixes are.
        family: Family,
        /// What is withdrawn; none: End-of-RIB.
        prefixes: Vec<Prefix>,
    },
    /// MP_UNREACH_NLRI of another family.
    MpUnreachOther {
        /// Address family identifier.
        afi: u16,
        /// Subsequent address family identifier.
        safi: u8,
        /// The prefixes as they came.
        nlri: Vec<u8>,
    },
    /// EXTENDED COMMUNITIES.
    ExtendedCommunities(Vec<[u8; 8]>),
    /// AS4_PATH.
    As4Path(Vec<Segment>),
    /// AS4_AGGREGATOR.
    As4Aggregator(Asn, Ipv4Addr),
    /// LARGE_COMMUNITY.
    LargeCommunities(Vec<[u32; 3]>),
    /// One that we don't know.
    Other {
        /// Its type code.
        code: u8,
        /// Its value.
        value: Vec<u8>,
    },
}

impl AttributeValue {
    /// Its type code.
    pub const fn code(&self) -> u8 {
        match self {
            Self::Origin(_) => ORIGIN,
            Self::AsPath(_) => AS_PATH,
            Self::NextHop(_) => NEXT_HOP,
            Self::Med(_) => MULTI_EXIT_DISC,
            Self::LocalPref(_) => LOCAL_PREF,
            Self::AtomicAggregate => ATOMIC_AGGREGATE,
            Self::Aggregator(..) => AGGREGATOR,
            Self::Communities(_) => COMMUNITIES,
            Self::OriginatorId(_) => ORIGINATOR_ID,
            Self::ClusterList(_) => CLUSTER_LIST,
            Self::MpReach { .. } | Self::MpReachOther { .. } => MP_REACH_NLRI,
            Self::MpUnreach { .. } | Self::MpUnreachOther { .. } => MP_UNREACH_NLRI,
            Self::ExtendedCommunities(_) => EXTENDED_COMMUNITIES,
            Self::As4Path(_) => AS4_PATH,
            Self::As4Aggregator(..) => AS4_AGGREGATOR,
            Self::LargeCommunities(_) => LARGE_COMMUNITY,
            Self::Other { code, .. } => *code,
        }
    }

    /// With the flags it must have; one that we don't know becomes optional and transitive.
    pub const fn with_flags(self) -> Attribute {
        let flags = match expected_flags(self.code()) {
            Some(flags) => flags,
            None => OPTIONAL | TRANSITIVE,
        };
        Attribute { flags, value: self }
    }

    fn encode_value(&self, codec: &Codec, out: &mut Vec<u8>) {
        match self {
            Self::Origin(origin) => out.push(origin_code(*origin)),
            Self::AsPath(segments) => put_segments(out, segments, codec.four_octet_as),
            Self::As4Path(segments) => put_segments(out, segments, true),
            Self::NextHop(address) | Self::OriginatorId(address) => out.extend(address.octets()),
            Self::Med(value) | Self::LocalPref(value) => out.extend(value.to_be_bytes()),
            Self::AtomicAggregate => {}
            Self::Aggregator(asn, address) => {
                put_asn(out, *asn, codec.four_octet_as);
                out.extend(address.octets());
            }
            Self::As4Aggregator(asn, address) => {
                put_asn(out, *asn, true);
                out.extend(address.octets());
            }
            Self::Communities(communities) => out.extend(communities.iter().flat_map(|value| value.to_be_bytes())),
            Self::ClusterList(list) => out.extend(list.iter().flat_map(|id| id.octets())),
            Self::MpReach { family, next_hop, prefixes } => {
                put_family(out, family.afi(), family.safi());
                mp::put_next_hop(out, *next_hop);
                out.push(0);
                prefixes.iter().for_each(|prefix| nlri::put(out, *prefix));
            }
            Self::MpReachOther { afi, safi, next_hop, nlri } => {
                put_family(out, *afi, *safi);
                // Longer ones can't be: they were read from the same octet.
                out.push(u8::try_from(next_hop.len()).unwrap_or(u8::MAX));
                out.extend(next_hop);
                out.push(0);
                out.extend(nlri);
            }
            Self::MpUnreach { family, prefixes } => {
                put_family(out, family.afi(), family.safi());
                prefixes.iter().for_each(|prefix| nlri::put(out, *prefix));
            }
            Self::MpUnreachOther { afi, safi, nlri } => {
                put_family(out, *afi, *safi);
                out.extend(nlri);
            }
            Self::ExtendedCommunities(communities) => out.extend(communities.iter().flatten()),
            Self::LargeCommunities(communities) => {
                out.extend(communities.iter().flatten().flat_map(|value| value.to_be_bytes()));
            }
            Self::Other { value, .. } => out.extend(value),
        }
    }
}

impl Attribute {
    /// Writes flags, code, length and value. One of more than 65,535 bytes fits into no message: `false`, and `out` is as
    /// it was.
    pub(super) fn encode(&self, codec: &Codec, out: &mut Vec<u8>) -> bool {
        let start = begin(out, self.flags, self.value.code());
        self.value.encode_value(codec, out);
        finish(out, start)
    }
}

/// Begins an attribute with room for a long length; [`finish`] makes it short where it is.
pub(super) fn begin(out: &mut Vec<u8>, flags: u8, code: u8) -> usize {
    let start = out.len();
    out.extend([flags | EXTENDED_LENGTH, code, 0, 0]);
    start
}

/// Sets the length of the attribute begun at `start`. A length that fits into one octet gets one (RFC 4271 section 4.3).
/// `false` for more than 65,535 bytes: then it's taken away again.
pub(super) fn finish(out: &mut Vec<u8>, start: usize) -> bool {
    let Ok(length) = u16::try_from(out.len() - start - 4) else {
        out.truncate(start);
        return false;
    };
    let [high, low] = length.to_be_bytes();
    if high == 0 {
        out.remove(start + 3);
        if let Some([flags, _, field]) = out.get_mut(start..start + 3) {
            *flags &= !EXTENDED_LENGTH;
            *field = low;
        }
    } else if let Some(field) = out.get_mut(start + 2..start + 4) {
        field.copy_from_slice(&[high, low]);
    }
    true
}

pub(super) const fn origin_code(origin: Origin) -> u8 {
    match origin {
        Origin::Igp => 0,
        Origin::Egp => 1,
        Origin::Incomplete => 2,
    }
}

pub(super) fn put_family(out: &mut Vec<u8>, afi: u16, safi: u8) {
    out.extend(afi.to_be_bytes());
    out.push(safi);
}

fn put_asn(out: &mut Vec<u8>, asn: Asn, four_octets: bool) {
    if four_octets { out.extend(asn.0.to_be_bytes()) } else { out.extend(asn.two_octets().to_be_bytes()) }
}

fn put_segments(out: &mut Vec<u8>, segments: &[Segment], four_octets: bool) {
    for segment in segments {
        put_segment(out, segment.kind, &segment.asns, four_octets);
    }
}

/// Writes numbers as segments of at most 255.
pub(super) fn put_segment(out: &mut Vec<u8>, kind: SegmentKind, asns: &[Asn], four_octets: bool) {
    for chunk in asns.chunks(255) {
        out.extend([kind.code(), u8::try_from(chunk.len()).expect("a chunk of at most 255")]);
        chunk.iter().for_each(|asn| put_asn(out, *asn, four_octets));
    }
}

/// An attribute as it stands in a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw<'a> {
    pub(super) flags: u8,
    pub(super) code: u8,
    pub(super) value: &'a [u8],
    /// With flags, code and length: what a NOTIFICATION gives back.
    pub(super) bytes: &'a [u8],
}

/// The attributes of an UPDATE one by one; after one that exceeds their length there are no more.
#[derive(Debug, Clone)]
pub(super) struct RawAttributes<'a>(&'a [u8]);

impl<'a> RawAttributes<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl<'a> Iterator for RawAttributes<'a> {
    type Item = Result<Raw<'a>, (Fault, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let all = std::mem::take(&mut self.0);
        let mut reader = Reader::new(all);
        let Some((flags, code)) = reader.u8().zip(reader.u8()) else { return Some(Err((Fault::Underrun, all))) };
        let length = if flags & EXTENDED_LENGTH == 0 { reader.u8().map(u16::from) } else { reader.u16() };
        let Some(length) = length else { return Some(Err((Fault::Underrun, all))) };
        let Some(value) = reader.take(usize::from(length)) else { return Some(Err((Fault::Overrun(code), all))) };
        let (bytes, rest) = all.split_at_checked(all.len() - reader.len()).unwrap_or((all, &[]));
        self.0 = rest;
        Some(Ok(Raw { flags, code, value, bytes }))
    }
}

/// The segments of an AS_PATH that is known to be well formed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segments<'a> {
    bytes: &'a [u8],
    four_octets: bool,
}

impl<'a> Segments<'a> {
    /// RFC 7606 section 7.2: every segment of a known kind, none empty, none beyond the end, nothing left over; no AS 0
    /// (RFC 7607).
    fn check(bytes: &'a [u8], four_octets: bool) -> Option<Self> {
        let segments = Self { bytes, four_octets };
        let mut reader = Reader::new(bytes);
        while !reader.is_empty() {
            let (_, numbers) = segments.read(&mut reader)?;
            if segments.asns(numbers).any(|asn| asn.0 == 0) {
                return None;
            }
        }
        Some(segments)
    }

    fn read(&self, reader: &mut Reader<'a>) -> Option<(SegmentKind, &'a [u8])> {
        let kind = SegmentKind::from_code(reader.u8()?)?;
        let count = reader.u8().filter(|count| *count != 0)?;
        let width = if self.four_octets { 4 } else { 2 };
        Some((kind, reader.take(usize::from(count) * width)?))
    }

    fn asns(&self, numbers: &'a [u8]) -> impl Iterator<Item = Asn> + 'a {
        let (twos, fours) = if self.four_octets { (&[][..], numbers) } else { (numbers, &[][..]) };
        let twos = twos.as_chunks().0.iter().map(|two| Asn(u32::from(u16::from_be_bytes(*two))));
        twos.chain(fours.as_chunks().0.iter().map(|four| Asn(u32::from_be_bytes(*four))))
    }

    fn to_owned(self) -> Vec<Segment> {
        let mut reader = Reader::new(self.bytes);
        std::iter::from_fn(|| self.read(&mut reader))
            .map(|(kind, numbers)| Segment { kind, asns: self.asns(numbers).collect() })
            .collect()
    }
}

/// An attribute that was checked, borrowed.
#[derive(Debug, Clone, Copy)]
pub(super) enum View<'a> {
    Origin(Origin),
    AsPath(Segments<'a>),
    NextHop(Ipv4Addr),
    Med(u32),
    LocalPref(u32),
    AtomicAggregate,
    Aggregator(Asn, Ipv4Addr),
    Communities(&'a [[u8; 4]]),
    OriginatorId(Ipv4Addr),
    ClusterList(&'a [[u8; 4]]),
    MpReach(mp::Reach<'a>),
    MpUnreach(mp::Unreach<'a>),
    ExtendedCommunities(&'a [[u8; 8]]),
    As4Path(Segments<'a>),
    As4Aggregator(Asn, Ipv4Addr),
    LargeCommunities(&'a [[u8; 12]]),
    Other,
}

impl<'a> View<'a> {
    /// Checks one attribute by itself: RFC 7606 section 7, and section 3 c for its flags.
    pub(super) fn check(raw: &Raw<'a>, codec: &Codec) -> Result<Self, Fault> {
        let code = raw.code;
        let Some(expected) = expected_flags(code) else {
            return if raw.flags & OPTIONAL == 0 { Err(Fault::UnknownWellKnown(code)) } else { Ok(Self::Other) };
        };
        // Before the flags: an MP attribute that can't be read is a reset, whatever its flags.
        let view = match code {
            MP_REACH_NLRI => Some(Self::MpReach(mp::reach(raw.value, codec)?)),
            MP_UNREACH_NLRI => Some(Self::MpUnreach(mp::unreach(raw.value, codec)?)),
            _ => None,
        };
        if (raw.flags ^ expected) & (OPTIONAL | TRANSITIVE) != 0 {
            return Err(Fault::Flags { attribute: code, flags: raw.flags });
        }
        match view {
            Some(view) => Ok(view),
            None => Self::check_value(raw, codec),
        }
    }

    fn check_value(raw: &Raw<'a>, codec: &Codec) -> Result<Self, Fault> {
        let value = raw.value;
        let length = Fault::Length { attribute: raw.code, length: u16::try_from(value.len()).unwrap_or(u16::MAX) };
        let unexpected = Fault::Unexpected(raw.code);
        let four = || <[u8; 4]>::try_from(value).map_err(|_| length);
        Ok(match raw.code {
            ORIGIN => Self::Origin(match value {
                [0] => Origin::Igp,
                [1] => Origin::Egp,
                [2] => Origin::Incomplete,
                [other] => return Err(Fault::Origin(*other)),
                _ => return Err(length),
            }),
            AS_PATH => Self::AsPath(Segments::check(value, codec.four_octet_as).ok_or(Fault::AsPath)?),
            NEXT_HOP => {
                let address = Ipv4Addr::from(four()?);
                if !mp::is_host(address) {
                    return Err(Fault::NextHop);
                }
                Self::NextHop(address)
            }
            MULTI_EXIT_DISC => Self::Med(u32::from_be_bytes(four()?)),
            // Sections 7.5, 7.9, 7.10: from outside they are discarded, whatever they hold.
            LOCAL_PREF | ORIGINATOR_ID | CLUSTER_LIST if !codec.internal => return Err(unexpected),
            LOCAL_PREF => Self::LocalPref(u32::from_be_bytes(four()?)),
            ORIGINATOR_ID => Self::OriginatorId(four()?.into()),
            CLUSTER_LIST => Self::ClusterList(chunks(value).ok_or(length)?),
            ATOMIC_AGGREGATE if value.is_empty() => Self::AtomicAggregate,
            ATOMIC_AGGREGATE => return Err(length),
            AGGREGATOR => {
                let (asn, address) = aggregator(value, codec.four_octet_as).ok_or(length)?;
                if asn.0 == 0 {
                    return Err(Fault::Malformed(raw.code));
                }
                Self::Aggregator(asn, address)
            }
            COMMUNITIES => Self::Communities(chunks(value).ok_or(length)?),
            EXTENDED_COMMUNITIES => Self::ExtendedCommunities(chunks(value).ok_or(length)?),
            LARGE_COMMUNITY => Self::LargeCommunities(chunks(value).ok_or(length)?),
            // RFC 6793 section 6: a speaker of four octets has no business sending these.
            AS4_PATH | AS4_AGGREGATOR if codec.four_octet_as => return Err(unexpected),
            AS4_PATH => {
                let path = Segments::check(value, true).filter(|_| !value.is_empty());
                Self::As4Path(path.ok_or(Fault::Malformed(raw.code))?)
            }
            AS4_AGGREGATOR => {
                let (asn, address) = aggregator(value, true).ok_or(length)?;
                if asn.0 == 0 {
                    return Err(Fault::Malformed(raw.code));
                }
                Self::As4Aggregator(asn, address)
            }
            _ => Self::Other,
        })
    }

    /// The same, owned.
    pub(super) fn to_owned(self, raw: &Raw<'_>) -> Attribute {
        let value = match self {
            Self::Origin(origin) => AttributeValue::Origin(origin),
            Self::AsPath(segments) => AttributeValue::AsPath(segments.to_owned()),
            Self::NextHop(address) => AttributeValue::NextHop(address),
            Self::Med(value) => AttributeValue::Med(value),
            Self::LocalPref(value) => AttributeValue::LocalPref(value),
            Self::AtomicAggregate => AttributeValue::AtomicAggregate,
            Self::Aggregator(asn, address) => AttributeValue::Aggregator(asn, address),
            Self::Communities(list) => {
                AttributeValue::Communities(list.iter().map(|value| u32::from_be_bytes(*value)).collect())
            }
            Self::OriginatorId(address) => AttributeValue::OriginatorId(address),
            Self::ClusterList(list) => AttributeValue::ClusterList(list.iter().map(|id| Ipv4Addr::from(*id)).collect()),
            Self::MpReach(reach) => match reach.known {
                Some((family, next_hop)) => {
                    AttributeValue::MpReach { family, next_hop, prefixes: owned(family, reach.prefixes) }
                }
                None => AttributeValue::MpReachOther {
                    afi: reach.afi,
                    safi: reach.safi,
                    next_hop: reach.next_hop.to_vec(),
                    nlri: reach.prefixes.to_vec(),
                },
            },
            Self::MpUnreach(unreach) => match unreach.known {
                Some(family) => AttributeValue::MpUnreach { family, prefixes: owned(family, unreach.prefixes) },
                None => AttributeValue::MpUnreachOther {
                    afi: unreach.afi,
                    safi: unreach.safi,
                    nlri: unreach.prefixes.to_vec(),
                },
            },
            Self::ExtendedCommunities(list) => AttributeValue::ExtendedCommunities(list.to_vec()),
            Self::As4Path(segments) => AttributeValue::As4Path(segments.to_owned()),
            Self::As4Aggregator(asn, address) => AttributeValue::As4Aggregator(asn, address),
            Self::LargeCommunities(list) => AttributeValue::LargeCommunities(list.iter().map(large).collect()),
            Self::Other => AttributeValue::Other { code: raw.code, value: raw.value.to_vec() },
        };
        Attribute { flags: raw.flags & !EXTENDED_LENGTH, value }
    }
}

/// Prefixes that are known to be readable.
pub(super) fn owned(family: Family, bytes: &[u8]) -> Vec<Prefix> {
    Prefixes::new(family, bytes).flatten().collect()
}

fn large(value: &[u8; 12]) -> [u32; 3] {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *value;
    [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_be_bytes)
}

/// One or more items of `N` bytes, and nothing else.
fn chunks<const N: usize>(value: &[u8]) -> Option<&[[u8; N]]> {
    let (chunks, rest) = value.as_chunks();
    (rest.is_empty() && !chunks.is_empty()).then_some(chunks)
}

fn aggregator(value: &[u8], four_octets: bool) -> Option<(Asn, Ipv4Addr)> {
    let mut reader = Reader::new(value);
    let asn = if four_octets { reader.u32()? } else { reader.u16()?.into() };
    let address = reader.array::<4>()?;
    reader.is_empty().then_some((Asn(asn), address.into()))
}
