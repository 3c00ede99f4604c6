//! How long to wait before something that ended is started again: at once the first time, then doubling up to a cap,
//! and from the start again after it has lived well.

use std::time::Duration;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Backoff {
    /// The second wait; the first one is zero.
    first: Duration,
    cap: Duration,
    /// A life at least this long was good.
    good: Duration,
    ends: u32,
}

impl Backoff {
    pub(super) const fn new(first: Duration, cap: Duration, good: Duration) -> Self {
        Self { first, cap, good, ends: 0 }
    }

    /// It ended after having lived this long: the wait.
    pub(super) fn ended(&mut self, lived: Duration) -> Duration {
        if lived >= self.good {
            self.ends = 0;
        }
        let wait = match self.ends {
            0 => Duration::ZERO,
            n => self.first.saturating_mul(1 << (n - 1).min(20)).min(self.cap),
        };
        self.ends = self.ends.saturating_add(1);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wait_is_zero_then_they_double_to_the_cap_and_a_good_life_starts_over() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(200), ms(1000), ms(30_000));
        let waits: Vec<_> = (0..6).map(|_| backoff.ended(ms(5))).collect();
        assert_eq!(waits, [ms(0), ms(200), ms(400), ms(800), ms(1000), ms(1000)]);
        assert_eq!(backoff.ended(ms(30_000)), ms(0));
        for _ in 0..100 {
            assert!(backoff.ended(ms(0)) <= ms(1000));
        }
    }
}
