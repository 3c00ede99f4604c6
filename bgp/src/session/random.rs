//! Jitter from a seed: the same seed, the same times.

use std::time::Duration;

/// SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// RFC 4271 section 10: times a factor between 0.75 and 1.0.
    pub(super) fn jitter(&mut self, time: Duration) -> Duration {
        const PARTS: u32 = 1 << 16;
        let quarter = time / 4;
        let part = u32::try_from(self.next() >> 48).expect("16 bits");
        time - quarter + quarter / PARTS * part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_takes_off_a_quarter_at_most_and_differs_each_time() {
        let mut random = Random::new(7);
        let time = Duration::from_secs(2);
        let drawn: Vec<_> = (0..1000).map(|_| random.jitter(time)).collect();
        assert!(drawn.iter().all(|t| (Duration::from_millis(1500)..=time).contains(t)));
        let spread = *drawn.iter().max().unwrap() - *drawn.iter().min().unwrap();
        assert!(spread > Duration::from_millis(490), "{spread:?}");
        assert_eq!(random.jitter(Duration::ZERO), Duration::ZERO);
    }
}
