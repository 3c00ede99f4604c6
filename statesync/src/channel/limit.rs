//! How often something may happen: a token bucket that holds one instant instead of a count.

use std::time::{Duration, Instant};

/// Allows `burst` at once and one more per `interval` after that.
#[derive(Debug, Clone)]
pub(crate) struct RateLimit {
    interval: Duration,
    tolerance: Duration,
    /// When the bucket is full again.
    full_at: Instant,
}

impl RateLimit {
    /// A full bucket.
    pub(crate) fn new(per_second: u32, burst: u32, now: Instant) -> Self {
        let interval = Duration::from_secs(1) / per_second;
        Self { interval, tolerance: interval * (burst - 1), full_at: now }
    }

    /// Whether one more may happen now; if so, it is counted.
    pub(crate) fn allow(&mut self, now: Instant) -> bool {
        if self.full_at.saturating_duration_since(now) > self.tolerance {
            return false;
        }
        self.full_at = self.full_at.max(now) + self.interval;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::tests::start;

    #[test]
    fn a_burst_passes_and_then_one_per_interval() {
        let now = start();
        let mut limit = RateLimit::new(10, 3, now);
        assert_eq!([(); 5].map(|()| limit.allow(now)), [true, true, true, false, false]);
        assert!(!limit.allow(now + Duration::from_millis(99)));
        assert!(limit.allow(now + Duration::from_millis(100)));
        assert!(!limit.allow(now + Duration::from_millis(101)));
    }

    #[test]
    fn a_rest_fills_the_bucket_only_up_to_the_burst() {
        let now = start();
        let mut limit = RateLimit::new(10, 3, now);
        assert_eq!((0..100).filter(|_| limit.allow(now + Duration::from_secs(60))).count(), 3);
    }
}
