//! Flap damping: a unit that comes and goes costs every router on the way a change each time.
//!
//! As RFC 2439 has it: each withdrawal adds a penalty, which halves in `half_life`. Above `suppress` the unit stays
//! withdrawn until the penalty is below `reuse`, and never for longer than `max`. It counts what this node does by its
//! own verdicts only: an operator's drain, a stop and the end of a session are no flaps.

use crate::config::Damping;
use crate::damping::Fading;
use std::time::{Duration, Instant};

/// One unit's penalty.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Penalty {
    penalty: Fading,
    until: Option<Instant>,
}

impl Penalty {
    /// The unit was withdrawn. The time from which on it may come back, if it is held back now.
    pub(crate) fn flap(&mut self, now: Instant, damping: &Damping) -> Option<Instant> {
        let (one, suppress, reuse) =
            (f64::from(Damping::PENALTY), f64::from(damping.suppress), f64::from(damping.reuse));
        // More than this can't be worked off in `max`, so it needn't be remembered.
        let ceiling = reuse * (damping.max.as_secs_f64() / half_life(damping)).exp2();
        let penalty = self.penalty.add(now, damping.half_life, one, ceiling.max(one));
        if penalty > suppress {
            let halvings = (penalty / reuse.max(1.0)).log2().max(0.0);
            let wait = Duration::try_from_secs_f64(halvings * half_life(damping)).unwrap_or(damping.max);
            self.until = Some(now + wait.min(damping.max));
        }
        self.held_until(now)
    }

    /// Until when it is held back.
    pub(crate) fn held_until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| now < *until)
    }

    /// When it was, or is, let go.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }
}

fn half_life(damping: &Damping) -> f64 {
    damping.half_life.as_secs_f64().max(0.001)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Damping =
        Damping { half_life: Duration::from_secs(15), suppress: 2_500, reuse: 1_500, max: Duration::from_secs(60) };

    fn origin() -> Instant {
        #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
        Instant::now()
    }

    #[test]
    fn two_flaps_are_free_and_the_third_in_a_row_holds_it_back() {
        let (mut penalty, now) = (Penalty::default(), origin());
        assert_eq!(penalty.flap(now, &LIMITS), None);
        assert_eq!(penalty.flap(now, &LIMITS), None);
        let until = penalty.flap(now, &LIMITS).expect("held back above 2,500");
        assert_eq!((until - now).as_secs(), 15, "from 3,000 to 1,500 is one half-life");
        assert_eq!(penalty.held_until(until), None);
    }

    #[test]
    fn flaps_that_are_far_apart_never_add_up() {
        let (mut penalty, mut now) = (Penalty::default(), origin());
        for _ in 0..1_000 {
            assert_eq!(penalty.flap(now, &LIMITS), None);
            now += Duration::from_secs(30);
        }
    }

    proptest! {
        #[test]
        fn nobody_is_held_back_longer_than_max_however_it_flaps(gaps in prop::collection::vec(0_u64..5_000, 1..200)) {
            let (mut penalty, mut now) = (Penalty::default(), origin());
            for gap in gaps {
                if let Some(until) = penalty.flap(now, &LIMITS) {
                    prop_assert!(until - now <= LIMITS.max);
                    prop_assert!(penalty.penalty.left(until, LIMITS.half_life) <= f64::from(LIMITS.reuse) * 1.01);
                }
                now += Duration::from_millis(gap);
            }
        }
    }
}
