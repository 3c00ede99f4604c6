//! How the sending of one unit's adverts goes, leg by leg: what one leg can't send, another one's success doesn't mend,
//! since each leg has a segment of its own that may believe somebody else.

use crate::mutants;
use holdfast_vrrp::LegId;
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, Default)]
struct Leg {
    failing_since: Option<Instant>,
    last_sent: Option<Instant>,
}

/// By [`LegId`].
#[derive(Debug)]
pub(crate) struct Sending(Vec<Leg>);

impl Sending {
    pub(crate) fn new(legs: usize) -> Self {
        Self(vec![Leg::default(); legs])
    }

    /// A new role: what went out or failed in the former one says nothing.
    pub(crate) fn reset(&mut self) {
        self.0.fill(Leg::default());
    }

    pub(crate) fn failed(&mut self, leg: LegId, now: Instant) {
        if let Some(leg) = self.leg(leg) {
            leg.failing_since.get_or_insert(now);
        }
    }

    /// An advert went out; the time since the one before, or since the leg began to fail.
    pub(crate) fn sent(&mut self, leg: LegId, now: Instant) -> Duration {
        let Some(leg) = self.leg(leg) else { return Duration::ZERO };
        let failing = leg.failing_since.take();
        let last = leg.last_sent.replace(now).or(failing);
        last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last))
    }

    /// Since when at least one leg hasn't got anything out.
    pub(crate) fn failing_since(&self) -> Option<Instant> {
        self.0.iter().filter_map(|leg| leg.failing_since).min()
    }

    fn leg(&mut self, leg: LegId) -> Option<&mut Leg> {
        let at = if mutants::off("sending-per-leg") { 0 } else { usize::from(leg.0) };
        self.0.get_mut(at)
    }
}
