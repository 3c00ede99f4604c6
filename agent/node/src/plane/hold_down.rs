//! Failover hold-down: a node that lost a VIP again and again had better not take it back soon.
//!
//! The first loss in a long time holds nobody back (`preempt_delay` is for that). Each further one doubles the time in
//! which the node stands behind the others, up to a limit; what is long past weighs less and less. It is a preference
//! and no ban: a node that nobody else is there for takes the VIP at once.

use crate::damping::Fading;
use crate::mutants;
use std::time::{Duration, Instant};

/// After the second loss in a row.
const FIRST: Duration = Duration::from_secs(5);
/// Never longer: as for any fault.
const LAST: Duration = Duration::from_secs(60);
/// In this time a loss comes to weigh half.
const HALF_LIFE: Duration = Duration::from_secs(300);
/// Losses that count, at most: more than enough for [`LAST`].
const LOSSES_MAX: f64 = 6.0;
/// Less than this is one loss in a long time.
const SECOND: f64 = 1.5;

/// One VIP's losses on this node.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct HoldDown {
    losses: Fading,
    until: Option<Instant>,
}

impl HoldDown {
    /// The VIP was lost by this node's own verdict. How long it is held back, if it is.
    pub(crate) fn lost(&mut self, now: Instant) -> Option<Duration> {
        let losses = self.losses.add(now, HALF_LIFE, 1.0, LOSSES_MAX);
        if losses < SECOND || mutants::off("hold-down") {
            return None;
        }
        let time = FIRST.mul_f64((losses - 2.0).exp2()).min(LAST);
        self.until = Some(now + time);
        Some(time)
    }

    /// Until when it is held back.
    pub(crate) fn held_until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| now < *until)
    }

    /// When it was, or is, let go.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Losses as they weigh now.
    pub(crate) fn losses(&self, now: Instant) -> f64 {
        self.losses.left(now, HALF_LIFE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn origin() -> Instant {
        #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
        Instant::now()
    }

    #[test]
    fn the_first_loss_is_free_and_each_further_one_doubles_the_time_up_to_the_limit() {
        let (mut down, now) = (HoldDown::default(), origin());
        let times: Vec<Option<u64>> = (0..10).map(|_| down.lost(now).map(|time| time.as_secs())).collect();
        let seconds = [5, 10, 20, 40, 60, 60, 60, 60, 60].map(Some);
        assert_eq!(times[0], None);
        assert_eq!(times[1..], seconds);
        assert_eq!(down.held_until(now + LAST), None, "and then it ends");
    }

    #[test]
    fn losses_that_are_far_apart_never_add_up() {
        let (mut down, mut now) = (HoldDown::default(), origin());
        for _ in 0..1_000 {
            assert_eq!(down.lost(now), None);
            now += HALF_LIFE * 2;
        }
    }

    #[test]
    fn a_long_quiet_time_makes_the_next_hold_down_short_again() {
        let (mut down, now) = (HoldDown::default(), origin());
        (0..8).for_each(|_| _ = down.lost(now));
        let later = now + HALF_LIFE * 4;
        assert!(down.losses(later) < 1.0);
        assert!(down.lost(later).is_none_or(|time| time < FIRST));
    }

    proptest! {
        #[test]
        fn nobody_is_held_back_longer_than_the_limit(gaps in prop::collection::vec(0_u64..900, 1..100)) {
            let (mut down, mut now) = (HoldDown::default(), origin());
            for gap in gaps {
                if let Some(time) = down.lost(now) {
                    prop_assert!(time <= LAST);
                    prop_assert_eq!(down.held_until(now + time), None);
                }
                now += Duration::from_secs(gap);
            }
        }
    }
}
