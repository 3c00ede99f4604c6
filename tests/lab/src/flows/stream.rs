//! What flows carry, and how it is known that it arrived: for each flow its own endless stream of bytes, and a digest
//! that doesn't depend on how the bytes were cut into pieces.

use crate::metrics::Class;
use std::io::{ErrorKind, Write};

const WORD: usize = 8;

/// A flow's bytes: the same for the same seed, and no two seeds alike, so that bytes of another flow are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    seed: u64,
}

impl Stream {
    /// The stream of that seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    fn word(self, index: u64) -> [u8; WORD] {
        mix(self.seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes()
    }

    /// Writes into `to` what stands at `offset`.
    pub fn fill(self, offset: u64, to: &mut [u8]) {
        let mut at = offset;
        let mut rest = to;
        while !rest.is_empty() {
            let (index, within) = (at / WORD as u64, (at % WORD as u64) as usize);
            let n = (WORD - within).min(rest.len());
            let (head, tail) = rest.split_at_mut(n);
            head.copy_from_slice(&self.word(index)[within..within + n]);
            rest = tail;
            at += n as u64;
        }
    }

    /// Writes what stands between what was `sent` and `target`, as far as the socket takes it; gives whether any went.
    ///
    /// # Errors
    /// How the connection broke.
    pub fn send(
        self,
        socket: &mut impl Write,
        sent: &mut Digest,
        target: u64,
        buffer: &mut [u8],
    ) -> Result<bool, Class> {
        let from = sent.length();
        while sent.length() < target {
            let n = usize::try_from(target - sent.length()).unwrap_or(usize::MAX).min(buffer.len());
            let piece = &mut buffer[..n];
            self.fill(sent.length(), piece);
            match socket.write(piece) {
                Ok(n) => sent.add(&piece[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(Class::of(&e)),
            }
        }
        Ok(sent.length() > from)
    }

    /// Whether `bytes` are what stands at `offset`.
    #[must_use]
    pub fn is(self, offset: u64, bytes: &[u8]) -> bool {
        let mut expected = [0; 256];
        let mut at = offset;
        bytes.chunks(expected.len()).all(|chunk| {
            let expected = &mut expected[..chunk.len()];
            self.fill(at, expected);
            at += chunk.len() as u64;
            expected == chunk
        })
    }
}

/// The finaliser of splitmix64: every bit of `x` moves about half of the result's.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Length and hash of all bytes so far, in their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digest {
    length: u64,
    state: u64,
    /// Bytes of the word that isn't complete yet.
    part: [u8; WORD],
}

impl Digest {
    /// Bytes of a digest that is sent.
    pub const BYTES: usize = 16;

    /// Adds what came next.
    pub fn add(&mut self, bytes: &[u8]) {
        let held = (self.length % WORD as u64) as usize;
        self.length += bytes.len() as u64;
        let mut bytes = bytes;
        if held > 0 {
            let n = (WORD - held).min(bytes.len());
            let (head, rest) = bytes.split_at(n);
            self.part[held..held + n].copy_from_slice(head);
            if held + n < WORD {
                return;
            }
            self.take(self.part);
            bytes = rest;
        }
        let (words, rest) = bytes.as_chunks::<WORD>();
        for w in words {
            self.take(*w);
        }
        self.part = [0; WORD];
        self.part[..rest.len()].copy_from_slice(rest);
    }

    fn take(&mut self, word: [u8; WORD]) {
        // Order counts: what was added before is rotated and multiplied once more.
        self.state = (self.state.rotate_left(23) ^ u64::from_le_bytes(word)).wrapping_mul(0x9fb2_1c65_1e98_df25);
    }

    /// How many bytes it is of.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Length and hash, as they are sent.
    #[must_use]
    pub fn bytes(&self) -> [u8; Self::BYTES] {
        let mut end = *self;
        if !self.length.is_multiple_of(WORD as u64) {
            let held = (self.length % WORD as u64) as usize;
            end.part[held..].fill(0);
            end.take(end.part);
        }
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.length.to_le_bytes());
        out[8..].copy_from_slice(&mix(end.state).to_le_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(seed: u64, n: usize) -> Vec<u8> {
        let mut v = vec![0; n];
        Stream::new(seed).fill(0, &mut v);
        v
    }

    fn digest(parts: &[&[u8]]) -> [u8; Digest::BYTES] {
        let mut d = Digest::default();
        parts.iter().for_each(|p| d.add(p));
        d.bytes()
    }

    #[test]
    fn a_stream_is_the_same_however_it_is_cut() {
        let whole = stream(7, 1000);
        for cut in [1, 3, 7, 8, 9, 64, 250] {
            let mut at = 0;
            while at < whole.len() {
                let n = cut.min(whole.len() - at);
                let mut piece = vec![0; n];
                Stream::new(7).fill(at as u64, &mut piece);
                assert_eq!(piece, &whole[at..at + n], "{n} bytes at {at}");
                assert!(Stream::new(7).is(at as u64, &piece));
                at += n;
            }
        }
    }

    #[test]
    fn bytes_of_another_flow_or_another_place_are_seen() {
        let mine = stream(7, 600);
        assert!(Stream::new(7).is(0, &mine));
        assert!(!Stream::new(8).is(0, &mine));
        assert!(!Stream::new(7).is(8, &mine));
        let mut flipped = mine;
        flipped[599] ^= 1;
        assert!(!Stream::new(7).is(0, &flipped));
    }

    #[test]
    fn a_digest_does_not_depend_on_how_the_bytes_were_cut() {
        let v = stream(1, 777);
        let whole = digest(&[&v]);
        for cut in [1, 2, 5, 8, 13, 100, 776] {
            let parts: Vec<&[u8]> = v.chunks(cut).collect();
            assert_eq!(digest(&parts), whole, "pieces of {cut}");
        }
        assert_eq!(digest(&[&v[..300], &[], &v[300..]]), whole);
    }

    #[test]
    fn a_digest_sees_a_changed_a_lost_a_doubled_and_a_moved_byte() {
        let v = stream(1, 777);
        let whole = digest(&[&v]);
        for at in [0, 7, 8, 400, 775, 776] {
            let mut other = v.clone();
            other[at] ^= 0x80;
            assert_ne!(digest(&[&other]), whole, "changed at {at}");
        }
        assert_ne!(digest(&[&v[1..]]), whole);
        assert_ne!(digest(&[&v[..776]]), whole);
        assert_ne!(digest(&[&v, &[0]]), whole);
        assert_ne!(digest(&[&v[8..16], &v[..8], &v[16..]]), whole);
        assert_eq!(digest(&[]), Digest::default().bytes());
    }
}
