//! Writing UPDATEs: as few messages as hold what is to be said, each up to the limit.

use std::iter::Peekable;

use crate::types::{Asn, Family, NextHop, PathAttributes, Prefix};
use crate::wire::attribute::{self, OPTIONAL, SegmentKind, TRANSITIVE, origin_code};
use crate::wire::error::EncodeError;
use crate::wire::header::{self, HEADER_LEN, MessageType};
use crate::wire::{Codec, mp, nlri};

/// Header and the two lengths of an UPDATE.
const FIXED_LEN: usize = HEADER_LEN + 4;

/// Leaves room for a length of two octets; [`finish_section`] sets it.
pub(super) fn begin_section(out: &mut Vec<u8>) -> usize {
    out.extend([0, 0]);
    out.len()
}

/// `false` if it's longer than two octets can say.
pub(super) fn finish_section(out: &mut [u8], start: usize) -> bool {
    let Ok(length) = u16::try_from(out.len() - start) else { return false };
    if let Some(field) = out.get_mut(start - 2..start) {
        field.copy_from_slice(&length.to_be_bytes());
    }
    true
}

/// Writes prefixes until there is none, or the next of them would make the message longer than `limit`. How many it wrote.
fn fill(out: &mut Vec<u8>, start: usize, limit: usize, prefixes: &mut Peekable<impl Iterator<Item = Prefix>>) -> usize {
    let mut count = 0;
    while let Some(prefix) = prefixes.next_if(|prefix| out.len() - start + nlri::len(*prefix) <= limit) {
        nlri::put(out, prefix);
        count += 1;
    }
    count
}

/// How the prefixes of a family are announced with a next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// After the attributes, with NEXT_HOP.
    Body,
    /// In MP_REACH_NLRI.
    Mp,
}

fn form(codec: &Codec, family: Family, next_hop: NextHop) -> Result<Form, EncodeError> {
    match (family, next_hop) {
        (Family::Ipv4, NextHop::V4(_)) => Ok(Form::Body),
        (_, NextHop::V6 { global: None, link_local: None }) => Err(EncodeError::NextHop(family)),
        (Family::Ipv6, NextHop::V6 { .. }) => Ok(Form::Mp),
        (Family::Ipv4, NextHop::V6 { .. }) if codec.extended_next_hop => Ok(Form::Mp),
        (Family::Ipv4, NextHop::V6 { .. }) | (Family::Ipv6, NextHop::V4(_)) => Err(EncodeError::NextHop(family)),
    }
}

/// Announces prefixes of one family with the same attributes, in as few messages as the limit allows; how many.
///
/// MP_REACH_NLRI stands first (RFC 7606 section 5.1). Attribute flags are what RFC 4271 and its kin want; LOCAL_PREF is
/// written to internal peers only. To a peer of two-octet numbers AS_PATH has AS_TRANS where it must, and AS4_PATH has the
/// truth.
///
/// # Errors
/// A next hop that this family can't have, or attributes that leave no room for a prefix: nothing is written.
///
/// # Panics
/// In debug builds, if a prefix is of another family: it would be read as one of this.
pub fn announce(
    out: &mut Vec<u8>,
    codec: &Codec,
    attributes: &PathAttributes,
    family: Family,
    prefixes: impl IntoIterator<Item = Prefix>,
) -> Result<usize, EncodeError> {
    let form = form(codec, family, attributes.next_hop)?;
    let common = common_attributes(codec, attributes, form);
    fits(codec, family, form, attributes.next_hop, common.len())?;
    let mut prefixes = of_family(family, prefixes);
    let mut messages = 0;
    while prefixes.peek().is_some() {
        let start = header::begin(out, MessageType::Update);
        out.extend([0, 0]);
        let section = begin_section(out);
        let count = match form {
            Form::Mp => {
                let mp = attribute::begin(out, OPTIONAL, attribute::MP_REACH_NLRI);
                attribute::put_family(out, family.afi(), family.safi());
                mp::put_next_hop(out, attributes.next_hop);
                out.push(0);
                let count = fill(out, start, codec.limit() - common.len(), &mut prefixes);
                attribute::finish(out, mp);
                out.extend_from_slice(&common);
                finish_section(out, section);
                count
            }
            Form::Body => {
                out.extend_from_slice(&common);
                finish_section(out, section);
                fill(out, start, codec.limit(), &mut prefixes)
            }
        };
        debug_assert!(count > 0, "`fits` has left room for the longest prefix");
        header::finish(out, start);
        messages += 1;
    }
    Ok(messages)
}

/// Whether attributes can be announced to such a peer at all: what [`announce`] would refuse, without prefixes.
///
/// # Errors
/// As [`announce`] has them.
pub fn check(codec: &Codec, attributes: &PathAttributes, family: Family) -> Result<(), EncodeError> {
    let form = form(codec, family, attributes.next_hop)?;
    let common = common_attributes(codec, attributes, form);
    fits(codec, family, form, attributes.next_hop, common.len())
}

/// Room for the longest prefix of a family, and attributes that a length of two octets can say.
fn fits(codec: &Codec, family: Family, form: Form, next_hop: NextHop, common: usize) -> Result<(), EncodeError> {
    let mp = match form {
        Form::Body => 0,
        Form::Mp => {
            let mut hop = Vec::with_capacity(33);
            mp::put_next_hop(&mut hop, next_hop);
            // Attribute header, family, next hop with its length, reserved.
            4 + 3 + hop.len() + 1
        }
    };
    let longest = 1 + usize::from(family.bits() / 8);
    let bytes = FIXED_LEN + mp + longest + common;
    let limit = codec.limit();
    if bytes > limit { Err(EncodeError::TooLong { bytes, limit }) } else { Ok(()) }
}

fn of_family(family: Family, prefixes: impl IntoIterator<Item = Prefix>) -> Peekable<impl Iterator<Item = Prefix>> {
    let check = move |prefix: &Prefix| debug_assert_eq!(prefix.family(), family, "one family at a time");
    prefixes.into_iter().inspect(check).filter(move |prefix| prefix.family() == family).peekable()
}

/// All attributes but MP_REACH_NLRI, in the order of their codes.
fn common_attributes(codec: &Codec, attributes: &PathAttributes, form: Form) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    put(&mut out, TRANSITIVE, attribute::ORIGIN, [origin_code(attributes.origin)]);
    put_path(&mut out, TRANSITIVE, attribute::AS_PATH, &attributes.as_path, codec.four_octet_as);
    if let (Form::Body, NextHop::V4(address)) = (form, attributes.next_hop) {
        put(&mut out, TRANSITIVE, attribute::NEXT_HOP, address.octets());
    }
    if let Some(med) = attributes.med {
        put(&mut out, OPTIONAL, attribute::MULTI_EXIT_DISC, med.to_be_bytes());
    }
    if let Some(preference) = attributes.local_pref.filter(|_| codec.internal) {
        put(&mut out, TRANSITIVE, attribute::LOCAL_PREF, preference.to_be_bytes());
    }
    if !attributes.communities.is_empty() {
        let bytes = attributes.communities.iter().flat_map(|community| community.to_be_bytes());
        put(&mut out, OPTIONAL | TRANSITIVE, attribute::COMMUNITIES, bytes);
    }
    if !attributes.extended.is_empty() {
        let bytes = attributes.extended.iter().flatten().copied();
        put(&mut out, OPTIONAL | TRANSITIVE, attribute::EXTENDED_COMMUNITIES, bytes);
    }
    // RFC 6793 section 4.2.2: only where a number is lost.
    if !codec.four_octet_as && attributes.as_path.iter().any(|asn| !asn.is_mappable()) {
        put_path(&mut out, OPTIONAL | TRANSITIVE, attribute::AS4_PATH, &attributes.as_path, true);
    }
    if !attributes.large.is_empty() {
        let bytes = attributes.large.iter().flatten().flat_map(|part| part.to_be_bytes());
        put(&mut out, OPTIONAL | TRANSITIVE, attribute::LARGE_COMMUNITY, bytes);
    }
    out
}

/// An attribute too long for any message makes the whole too long, which `fits` then tells: its bytes stay.
fn put(out: &mut Vec<u8>, flags: u8, code: u8, value: impl IntoIterator<Item = u8>) {
    let start = attribute::begin(out, flags, code);
    out.extend(value);
    finish_or_keep(out, start);
}

fn put_path(out: &mut Vec<u8>, flags: u8, code: u8, path: &[Asn], four_octets: bool) {
    let start = attribute::begin(out, flags, code);
    attribute::put_segment(out, SegmentKind::Sequence, path, four_octets);
    finish_or_keep(out, start);
}

fn finish_or_keep(out: &mut Vec<u8>, start: usize) {
    if out.len() - start - 4 <= usize::from(u16::MAX) {
        attribute::finish(out, start);
    }
}

/// Withdraws prefixes of one family, in as few messages as the limit allows; how many.
///
/// # Panics
/// In debug builds, if a prefix is of another family.
pub fn withdraw(out: &mut Vec<u8>, codec: &Codec, family: Family, prefixes: impl IntoIterator<Item = Prefix>) -> usize {
    let mut prefixes = of_family(family, prefixes);
    let mut messages = 0;
    while prefixes.peek().is_some() {
        let start = header::begin(out, MessageType::Update);
        match family {
            Family::Ipv4 => {
                let section = begin_section(out);
                // Two octets of attribute length follow.
                fill(out, start, codec.limit() - 2, &mut prefixes);
                finish_section(out, section);
                out.extend([0, 0]);
            }
            Family::Ipv6 => {
                out.extend([0, 0]);
                let section = begin_section(out);
                let mp = attribute::begin(out, OPTIONAL, attribute::MP_UNREACH_NLRI);
                attribute::put_family(out, family.afi(), family.safi());
                fill(out, start, codec.limit(), &mut prefixes);
                attribute::finish(out, mp);
                finish_section(out, section);
            }
        }
        header::finish(out, start);
        messages += 1;
    }
    messages
}

/// Ends the table of a family (RFC 4724 section 2): an empty UPDATE, or an MP_UNREACH_NLRI without prefixes.
pub fn end_of_rib(out: &mut Vec<u8>, family: Family) {
    let start = header::begin(out, MessageType::Update);
    out.extend([0, 0]);
    let section = begin_section(out);
    if family != Family::Ipv4 {
        let mp = attribute::begin(out, OPTIONAL, attribute::MP_UNREACH_NLRI);
        attribute::put_family(out, family.afi(), family.safi());
        attribute::finish(out, mp);
    }
    finish_section(out, section);
    header::finish(out, start);
}
