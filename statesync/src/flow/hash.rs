//! SipHash-1-3 over words, with a key that all nodes of a cluster share and no client knows: it places flows in shards
//! and makes digests, so nobody outside can aim flows at one shard or make a difference go unseen.

/// The key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HashKey(pub(crate) [u64; 2]);

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(..)")
    }
}

impl HashKey {
    /// Hash of these words.
    pub(crate) fn hash(self, words: &[u64]) -> u64 {
        sip::<1, 3>(self.0, words)
    }
}

/// SipHash-c-d of a message of whole 64-bit words.
fn sip<const C: usize, const D: usize>(key: [u64; 2], words: &[u64]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    for word in words.iter().copied().chain([(words.len() as u64 * 8) << 56]) {
        v[3] ^= word;
        (0..C).for_each(|_| round(&mut v));
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..D).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline(always)]
fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the reference implementation's table for SipHash-2-4, key 00 01 … 0f: the messages of 0, 8 and 16 bytes
    /// 00 01 02 ….
    #[test]
    fn the_reference_vectors_of_whole_words_come_out() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(sip::<2, 4>(key, &[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(sip::<2, 4>(key, &key[..1]), 0x93f5_f579_9a93_2462);
        assert_eq!(sip::<2, 4>(key, &key), 0x3f2a_cc7f_57c2_9bdb);
    }

    #[test]
    fn std_computes_the_same() {
        use std::hash::Hasher as _;
        // The default hasher of std is SipHash-1-3 with key 0.
        #[allow(clippy::default_trait_access, reason = "names no type")]
        let mut std = std::collections::hash_map::DefaultHasher::new();
        std.write(&7u64.to_le_bytes());
        std.write(&9u64.to_le_bytes());
        assert_eq!(HashKey([0, 0]).hash(&[7, 9]), std.finish());
    }
}
