//! UPDATE: what is announced and withdrawn (RFC 4271 section 4.3), read by the rules of RFC 7606.
//!
//! One pass ([`scan`]) knows the rules. [`inspect`] keeps of it what a session needs that takes no routes in: how many,
//! whether it was an End-of-RIB, and what was wrong. [`Update::decode`] keeps everything.

mod encode;

use super::attribute::{self, Attribute, AttributeValue, Raw, RawAttributes, Segment, SegmentKind, View};
use super::error::{Fault, Reaction, UpdateError};
use super::nlri::Prefixes;
use super::reader::Reader;
use super::{Codec, EncodeError, header};
use crate::types::{Asn, Family, Prefix};
pub use encode::{announce, check, end_of_rib, withdraw};

/// A number for each family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PerFamily {
    /// IPv4 unicast.
    pub ipv4: u32,
    /// IPv6 unicast.
    pub ipv6: u32,
}

impl PerFamily {
    /// That of a family.
    pub const fn get(&self, family: Family) -> u32 {
        match family {
            Family::Ipv4 => self.ipv4,
            Family::Ipv6 => self.ipv6,
        }
    }

    /// Of both. A message of 64 KiB holds far less than 2³² of them.
    pub const fn total(&self) -> u32 {
        self.ipv4.saturating_add(self.ipv6)
    }

    const fn add(&mut self, family: Family, count: u32) {
        let field = match family {
            Family::Ipv4 => &mut self.ipv4,
            Family::Ipv6 => &mut self.ipv6,
        };
        *field = field.saturating_add(count);
    }
}

/// What an UPDATE holds, in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Inspected {
    /// Prefixes announced; if the reaction is [`Reaction::TreatAsWithdraw`], they count as withdrawn.
    pub announced: PerFamily,
    /// Prefixes withdrawn.
    pub withdrawn: PerFamily,
    /// It is the End-of-RIB of this family (RFC 4724 section 2).
    pub end_of_rib: Option<Family>,
    /// It has routes of a family that wasn't negotiated: skipped.
    pub foreign: bool,
    /// The worst that is wrong with it; never one that resets: that is an [`UpdateError`].
    pub fault: Option<Fault>,
}

impl Inspected {
    /// What RFC 7606 wants done; `None` if nothing is wrong.
    pub fn reaction(&self) -> Option<Reaction> {
        self.fault.as_ref().map(Fault::reaction)
    }
}

/// Reads an UPDATE's body without keeping it, and without allocating unless it's an error.
///
/// # Errors
/// What ends the session by RFC 7606.
pub fn inspect(body: &[u8], codec: &Codec) -> Result<Inspected, UpdateError> {
    scan(body, codec, |_| ()).map(|(inspected, _)| inspected)
}

/// An UPDATE, owned.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Update {
    /// IPv4 prefixes withdrawn, but for those in MP_UNREACH_NLRI.
    pub withdrawn: Vec<Prefix>,
    /// Attributes as they came; those that RFC 7606 discards are left out.
    pub attributes: Vec<Attribute>,
    /// IPv4 prefixes announced, but for those in MP_REACH_NLRI.
    pub announced: Vec<Prefix>,
    /// What was wrong, in the order found.
    pub faults: Vec<Fault>,
}

impl Update {
    /// Takes an UPDATE's body.
    ///
    /// # Errors
    /// What ends the session by RFC 7606.
    pub fn decode(body: &[u8], codec: &Codec) -> Result<Self, UpdateError> {
        let mut attributes = Vec::new();
        let mut faults = Vec::new();
        let (_, sections) = scan(body, codec, |seen| match seen {
            Ok((raw, view)) => attributes.push(view.to_owned(&raw)),
            Err(fault) => faults.push(fault),
        })?;
        Ok(Self {
            withdrawn: attribute::owned(Family::Ipv4, sections.withdrawn),
            attributes,
            announced: attribute::owned(Family::Ipv4, sections.announced),
            faults,
        })
    }

    /// What RFC 7606 wants done; `None` if nothing is wrong.
    pub fn reaction(&self) -> Option<Reaction> {
        self.faults.iter().map(Fault::reaction).max()
    }

    /// The attribute of a kind, if it's there.
    pub fn find<'a, T>(&'a self, kind: impl Fn(&'a AttributeValue) -> Option<T>) -> Option<T> {
        self.attributes.iter().find_map(|attribute| kind(&attribute.value))
    }

    /// All announced prefixes, of both families.
    pub fn all_announced(&self) -> impl Iterator<Item = Prefix> + '_ {
        let reach = self.attributes.iter().filter_map(|attribute| match &attribute.value {
            AttributeValue::MpReach { prefixes, .. } => Some(prefixes),
            _ => None,
        });
        self.announced.iter().chain(reach.flatten()).copied()
    }

    /// All withdrawn prefixes, of both families.
    pub fn all_withdrawn(&self) -> impl Iterator<Item = Prefix> + '_ {
        let unreach = self.attributes.iter().filter_map(|attribute| match &attribute.value {
            AttributeValue::MpUnreach { prefixes, .. } => Some(prefixes),
            _ => None,
        });
        self.withdrawn.iter().chain(unreach.flatten()).copied()
    }

    /// The way, with four-octet numbers: AS_PATH, of which AS4_PATH replaces the end (RFC 6793 section 4.2.3). `None`
    /// without AS_PATH.
    pub fn as_path(&self) -> Option<Vec<Segment>> {
        let path = self.find(|value| if let AttributeValue::AsPath(path) = value { Some(path) } else { None })?;
        let four = self.find(|value| if let AttributeValue::As4Path(path) = value { Some(path) } else { None });
        Some(four.and_then(|four| merge(path, four)).unwrap_or_else(|| path.clone()))
    }

    /// Whether it's an End-of-RIB, and of which family.
    pub fn end_of_rib(&self) -> Option<Family> {
        if !self.withdrawn.is_empty() || !self.announced.is_empty() || !self.faults.is_empty() {
            return None;
        }
        match self.attributes.as_slice() {
            [] => Some(Family::Ipv4),
            [Attribute { value: AttributeValue::MpUnreach { family, prefixes }, .. }] if prefixes.is_empty() => {
                Some(*family)
            }
            _ => None,
        }
    }

    /// Writes the message as it stands; [`announce`] and [`withdraw`] are what sessions use.
    ///
    /// # Errors
    /// Longer than the limit; `out` is as it was.
    pub fn encode(&self, codec: &Codec, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let limit = codec.limit();
        let start = header::begin(out, super::MessageType::Update);
        let withdrawn = encode::begin_section(out);
        self.withdrawn.iter().for_each(|prefix| super::nlri::put(out, *prefix));
        let mut fits = encode::finish_section(out, withdrawn);
        let attributes = encode::begin_section(out);
        fits &= self.attributes.iter().all(|attribute| attribute.encode(codec, out));
        fits &= encode::finish_section(out, attributes);
        self.announced.iter().for_each(|prefix| super::nlri::put(out, *prefix));
        let bytes = out.len() - start;
        if !fits || bytes > limit {
            out.truncate(start);
            return Err(EncodeError::TooLong { bytes, limit });
        }
        header::finish(out, start);
        Ok(())
    }
}

/// How many numbers a path counts: a set is one, confederations are none (RFC 4271 section 9.1.2.2, RFC 5065).
fn path_len(path: &[Segment]) -> usize {
    path.iter()
        .map(|segment| match segment.kind {
            SegmentKind::Sequence => segment.asns.len(),
            SegmentKind::Set => 1,
            SegmentKind::ConfedSequence | SegmentKind::ConfedSet => 0,
        })
        .sum()
}

/// RFC 6793 section 4.2.3: the leading numbers of AS_PATH that AS4_PATH lacks, then AS4_PATH. `None` if AS_PATH is
/// shorter: then AS4_PATH is ignored.
fn merge(path: &[Segment], four: &[Segment]) -> Option<Vec<Segment>> {
    let four: Vec<Segment> = four
        .iter()
        .filter(|segment| matches!(segment.kind, SegmentKind::Sequence | SegmentKind::Set))
        .cloned()
        .collect();
    let mut missing = path_len(path).checked_sub(path_len(&four))?;
    let mut merged = Vec::new();
    for segment in path {
        let kept = match segment.kind {
            SegmentKind::Sequence => segment.asns.len().min(missing),
            _ if missing == 0 => break,
            SegmentKind::Set | SegmentKind::ConfedSequence | SegmentKind::ConfedSet => segment.asns.len(),
        };
        if kept == 0 {
            break;
        }
        let asns: Vec<Asn> = segment.asns.iter().take(kept).copied().collect();
        missing -= path_len(&[Segment { kind: segment.kind, asns: asns.clone() }]).min(missing);
        merged.push(Segment { kind: segment.kind, asns });
    }
    for segment in four {
        match merged.last_mut() {
            Some(last) if last.kind == SegmentKind::Sequence && segment.kind == SegmentKind::Sequence => {
                last.asns.extend(segment.asns);
            }
            _ => merged.push(segment),
        }
    }
    Some(merged)
}

/// The three parts of an UPDATE's body.
#[derive(Debug, Clone, Copy)]
struct Sections<'a> {
    withdrawn: &'a [u8],
    attributes: &'a [u8],
    announced: &'a [u8],
}

impl<'a> Sections<'a> {
    fn of(body: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(body);
        let length = reader.u16()?;
        let withdrawn = reader.take(usize::from(length))?;
        let length = reader.u16()?;
        let attributes = reader.take(usize::from(length))?;
        Some(Self { withdrawn, attributes, announced: reader.rest() })
    }
}

const fn reset(fault: Fault, data: Vec<u8>) -> UpdateError {
    UpdateError { fault, data }
}

/// Reads an UPDATE by the rules of RFC 7606, and tells `seen` of every attribute that counts and every fault that doesn't
/// reset, in order.
fn scan<'a>(
    body: &'a [u8],
    codec: &Codec,
    seen: impl FnMut(Result<(Raw<'a>, View<'a>), Fault>),
) -> Result<(Inspected, Sections<'a>), UpdateError> {
    let sections = Sections::of(body).ok_or_else(|| reset(Fault::Lengths, Vec::new()))?;
    // Sections 3 i and j: prefixes that can't be read are a reset, for nobody knows what to withdraw.
    let count = |bytes| Prefixes::new(Family::Ipv4, bytes).count_valid();
    let withdrawn = count(sections.withdrawn).map_err(|_| reset(Fault::Withdrawn, Vec::new()))?;
    let announced = count(sections.announced).map_err(|_| reset(Fault::Nlri, Vec::new()))?;
    let mut scan = Scan {
        codec,
        inspected: Inspected::default(),
        body_nlri: announced > 0,
        reachable: announced > 0,
        unreachable: None,
        others: false,
        present: Present::default(),
        worst: None,
        seen,
    };
    scan.inspected.withdrawn.ipv4 = withdrawn;
    scan.inspected.announced.ipv4 = announced;
    scan.attributes(sections.attributes)?;
    if body == [0; 4] {
        scan.inspected.end_of_rib = Some(Family::Ipv4);
    } else if sections.withdrawn.is_empty() && !scan.reachable && !scan.others && scan.worst.is_none() {
        scan.inspected.end_of_rib = scan.unreachable;
    }
    scan.inspected.fault = scan.worst.map(|(fault, _)| fault);
    if (sections.withdrawn.len() + sections.announced.len()) > 0 && !codec.families.ipv4 {
        scan.inspected.foreign = true;
    }
    Ok((scan.inspected, sections))
}

/// Which attributes were there: one bit each.
#[derive(Debug, Clone, Copy, Default)]
struct Present([u128; 2]);

impl Present {
    /// Whether it was there already.
    fn insert(&mut self, code: u8) -> bool {
        let bit = 1 << (code & 0x7f);
        let [low, high] = &mut self.0;
        let half = if code < 128 { low } else { high };
        let was = *half & bit != 0;
        *half |= bit;
        was
    }

    const fn contains(&self, code: u8) -> bool {
        let [low, high] = self.0;
        (if code < 128 { low } else { high }) & 1 << (code & 0x7f) != 0
    }
}

struct Scan<'a, 'c, S> {
    codec: &'c Codec,
    inspected: Inspected,
    /// There are prefixes after the attributes: NEXT_HOP is about them.
    body_nlri: bool,
    /// There is a prefix announced.
    reachable: bool,
    /// The family of an MP_UNREACH_NLRI without prefixes.
    unreachable: Option<Family>,
    /// There is something else than MP_UNREACH_NLRI among the attributes.
    others: bool,
    present: Present,
    /// The worst fault, the first of its kind, and the attribute it's about.
    worst: Option<(Fault, &'a [u8])>,
    seen: S,
}

impl<'a, S: FnMut(Result<(Raw<'a>, View<'a>), Fault>)> Scan<'a, '_, S> {
    fn attributes(&mut self, bytes: &'a [u8]) -> Result<(), UpdateError> {
        for raw in RawAttributes::new(bytes) {
            match raw {
                Ok(raw) => self.attribute(raw)?,
                // Section 4: the rest can't be read, but the prefixes after it can.
                Err((fault, bytes)) => {
                    self.others = true;
                    self.fault(fault, bytes)?;
                }
            }
        }
        self.missing()?;
        match self.worst {
            // Section 5.2: nothing announced, so perhaps what was announced is what we couldn't read.
            Some((fault, bytes))
                if !self.reachable && self.others && fault.reaction() != Reaction::AttributeDiscard =>
            {
                Err(reset(fault, bytes.to_vec()))
            }
            _ => Ok(()),
        }
    }

    fn attribute(&mut self, raw: Raw<'a>) -> Result<(), UpdateError> {
        let mp = matches!(raw.code, attribute::MP_REACH_NLRI | attribute::MP_UNREACH_NLRI);
        if self.present.insert(raw.code) {
            let fault = if mp { Fault::DuplicateMp(raw.code) } else { Fault::Duplicate(raw.code) };
            return self.fault(fault, raw.bytes);
        }
        self.others |= raw.code != attribute::MP_UNREACH_NLRI;
        let view = match View::check(&raw, self.codec) {
            Ok(view) => view,
            // RFC 4760 section 3: NEXT_HOP beside MP_REACH_NLRI alone is ignored, whatever it holds.
            Err(_) if raw.code == attribute::NEXT_HOP && !self.body_nlri => View::Other,
            Err(fault) => {
                // Read or not, it's there: an MP_REACH_NLRI with wrong flags announces all the same.
                self.reachable |= raw.code == attribute::MP_REACH_NLRI;
                return self.fault(fault, raw.bytes);
            }
        };
        match view {
            View::MpReach(reach) => {
                self.reachable |= !reach.prefixes.is_empty();
                match reach.known {
                    Some((family, _)) => self.inspected.announced.add(family, reach.count),
                    None => self.inspected.foreign = true,
                }
            }
            View::MpUnreach(unreach) => match unreach.known {
                Some(family) => {
                    self.inspected.withdrawn.add(family, unreach.count);
                    self.unreachable = unreach.prefixes.is_empty().then_some(family);
                }
                None => self.inspected.foreign = true,
            },
            _ => {}
        }
        (self.seen)(Ok((raw, view)));
        Ok(())
    }

    /// Section 3 d: what must be there if anything is announced.
    fn missing(&mut self) -> Result<(), UpdateError> {
        if !self.reachable {
            return Ok(());
        }
        for code in [attribute::ORIGIN, attribute::AS_PATH, attribute::NEXT_HOP] {
            if !self.present.contains(code) && (code != attribute::NEXT_HOP || self.body_nlri) {
                self.fault(Fault::Missing(code), &[])?;
            }
        }
        Ok(())
    }

    fn fault(&mut self, fault: Fault, bytes: &'a [u8]) -> Result<(), UpdateError> {
        if fault.reaction() == Reaction::Reset {
            return Err(reset(fault, bytes.to_vec()));
        }
        if self.worst.is_none_or(|(worst, _)| worst.reaction() < fault.reaction()) {
            self.worst = Some((fault, bytes));
        }
        (self.seen)(Err(fault));
        Ok(())
    }
}
