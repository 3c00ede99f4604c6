//! A count of what happened, in which the past weighs less and less: what flap damping and hold-downs count with.

use std::time::{Duration, Instant};

/// A count that halves in each half-life.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Fading {
    /// At `at`.
    count: f64,
    at: Option<Instant>,
}

impl Fading {
    /// What is left of it.
    pub(crate) fn left(&self, now: Instant, half_life: Duration) -> f64 {
        let Some(at) = self.at else { return 0.0 };
        let half_lives = now.saturating_duration_since(at).as_secs_f64() / half_life.as_secs_f64().max(0.001);
        self.count * (-half_lives).exp2()
    }

    /// Something happened that weighs so much; what it comes to now, at most `ceiling`.
    pub(crate) fn add(&mut self, now: Instant, half_life: Duration, weight: f64, ceiling: f64) -> f64 {
        self.count = (self.left(now, half_life) + weight).min(ceiling);
        self.at = Some(now);
        self.count
    }
}
