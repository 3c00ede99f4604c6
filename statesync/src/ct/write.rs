//! Writing of messages and attributes into a buffer that is reused.

use super::number::{NLA_F_NESTED, NLM_F_REQUEST};

/// Where a message or a nest began; its length is written when it ends.
#[derive(Debug)]
#[must_use]
pub(super) struct Open(usize);

/// Begins a message: header, and `struct nfgenmsg`.
#[inline]
pub(super) fn begin(out: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, family: u8) -> Open {
    let open = Open(out.len());
    let [k0, k1] = kind.to_ne_bytes();
    let [f0, f1] = (flags | NLM_F_REQUEST).to_ne_bytes();
    let [s0, s1, s2, s3] = sequence.to_ne_bytes();
    out.extend_from_slice(&[0, 0, 0, 0, k0, k1, f0, f1, s0, s1, s2, s3, 0, 0, 0, 0, family, 0, 0, 0]);
    open
}

/// Ends a message. All attributes are padded, so it is, too.
#[inline]
pub(super) fn end(out: &mut [u8], Open(start): Open) {
    let length = u32::try_from(out.len() - start).expect("messages are a few hundred bytes");
    if let Some(field) = out.get_mut(start..).and_then(<[u8]>::first_chunk_mut) {
        *field = length.to_ne_bytes();
    }
}

/// Begins an attribute that holds attributes.
#[inline]
pub(super) fn nest(out: &mut Vec<u8>, kind: u16) -> Open {
    let open = Open(out.len());
    let [k0, k1] = (kind | NLA_F_NESTED).to_ne_bytes();
    out.extend_from_slice(&[0, 0, k0, k1]);
    open
}

/// Ends it.
#[inline]
pub(super) fn unnest(out: &mut [u8], Open(start): Open) {
    let length = u16::try_from(out.len() - start).expect("nests are a few hundred bytes");
    if let Some(field) = out.get_mut(start..).and_then(<[u8]>::first_chunk_mut) {
        *field = length.to_ne_bytes();
    }
}

/// One byte, padded.
#[inline]
pub(super) fn put8(out: &mut Vec<u8>, kind: u16, value: u8) {
    let ([l0, l1], [k0, k1]) = (5_u16.to_ne_bytes(), kind.to_ne_bytes());
    out.extend_from_slice(&[l0, l1, k0, k1, value, 0, 0, 0]);
}

/// Two bytes, padded.
#[inline]
pub(super) fn put_pair(out: &mut Vec<u8>, kind: u16, [v0, v1]: [u8; 2]) {
    let ([l0, l1], [k0, k1]) = (6_u16.to_ne_bytes(), kind.to_ne_bytes());
    out.extend_from_slice(&[l0, l1, k0, k1, v0, v1, 0, 0]);
}

/// A number in network order, padded.
#[inline]
pub(super) fn put16(out: &mut Vec<u8>, kind: u16, value: u16) {
    put_pair(out, kind, value.to_be_bytes());
}

/// A number in network order.
#[inline]
pub(super) fn put32(out: &mut Vec<u8>, kind: u16, value: u32) {
    put_quad(out, kind, value.to_be_bytes());
}

/// Four bytes.
#[inline]
pub(super) fn put_quad(out: &mut Vec<u8>, kind: u16, [v0, v1, v2, v3]: [u8; 4]) {
    let ([l0, l1], [k0, k1]) = (8_u16.to_ne_bytes(), kind.to_ne_bytes());
    out.extend_from_slice(&[l0, l1, k0, k1, v0, v1, v2, v3]);
}

/// Sixteen bytes.
#[inline]
pub(super) fn put_sixteen(out: &mut Vec<u8>, kind: u16, value: [u8; 16]) {
    let ([l0, l1], [k0, k1]) = (20_u16.to_ne_bytes(), kind.to_ne_bytes());
    out.extend_from_slice(&[l0, l1, k0, k1]);
    out.extend_from_slice(&value);
}
