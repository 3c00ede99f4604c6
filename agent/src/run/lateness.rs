//! How late something was, as a histogram that costs one addition per sample and never allocates.

use std::time::Duration;

/// Upper limits of the buckets in µs; the last bucket is open. Steps of about 1.4 keep a percentile within 40 %.
const LIMITS_US: [u64; 32] = [
    10, 15, 20, 30, 40, 60, 80, 110, 160, 220, 310, 440, 620, 880, 1_250, 1_770, 2_500, 3_500, 5_000, 7_000, 10_000,
    14_000, 20_000, 28_000, 40_000, 57_000, 80_000, 113_000, 160_000, 226_000, 320_000, 450_000,
];

/// Counts by lateness.
#[derive(Debug, Clone, Default)]
pub struct Histogram {
    counts: [u64; LIMITS_US.len()],
    /// Samples later than the last limit.
    over: u64,
    max_us: u64,
}

/// What a [`Histogram`] says. Percentiles are the upper limit of the bucket they fall in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Samples.
    pub count: u64,
    /// Half of the samples were at most this late, µs.
    pub p50_us: u64,
    /// 99 % of the samples were at most this late, µs.
    pub p99_us: u64,
    /// The worst one, µs, exact.
    pub max_us: u64,
}

impl Histogram {
    /// Adds a sample.
    pub fn record(&mut self, late: Duration) {
        let us = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        self.max_us = self.max_us.max(us);
        let at = LIMITS_US.partition_point(|limit| *limit < us);
        match self.counts.get_mut(at) {
            Some(count) => *count += 1,
            None => self.over += 1,
        }
    }

    /// What it says now.
    pub fn snapshot(&self) -> Snapshot {
        let count = self.counts.iter().sum::<u64>() + self.over;
        Snapshot { count, p50_us: self.at(count, 50), p99_us: self.at(count, 99), max_us: self.max_us }
    }

    fn at(&self, count: u64, percent: u64) -> u64 {
        let wanted = (count * percent).div_ceil(100);
        let mut seen = 0;
        for (n, limit) in self.counts.iter().zip(LIMITS_US) {
            seen += n;
            if seen >= wanted && seen > 0 {
                return limit.min(self.max_us);
            }
        }
        self.max_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_limit_of_their_bucket_and_the_maximum_is_exact() {
        let mut h = Histogram::default();
        (0..98).for_each(|_| h.record(Duration::from_micros(50)));
        (0..2).for_each(|_| h.record(Duration::from_micros(1_300)));
        let s = h.snapshot();
        assert_eq!((s.count, s.p50_us, s.p99_us, s.max_us), (100, 60, 1_300, 1_300));
    }

    #[test]
    fn a_sample_beyond_the_last_limit_is_kept_as_the_maximum() {
        let mut h = Histogram::default();
        h.record(Duration::from_secs(3));
        let s = h.snapshot();
        assert_eq!((s.count, s.p50_us, s.p99_us, s.max_us), (1, 3_000_000, 3_000_000, 3_000_000));
    }

    #[test]
    fn an_empty_histogram_says_zero() {
        assert_eq!(Histogram::default().snapshot(), Snapshot::default());
    }
}
