//! Of which flows the kernel tells: one thing of which there is exactly one.

use super::GUARD_REFRESH;
use crate::io::{FlowFilter, Step};
use std::time::Instant;

/// What the kernel has of it, as far as it is known.
#[derive(Debug, Clone, Default)]
pub(super) struct Flows {
    /// Steps on their way counted as done; `None`: not known, a former run may have left something.
    set: Option<FlowFilter>,
    at: Option<Instant>,
    /// There may be something by our doing.
    ours: bool,
}

impl Flows {
    /// What is to be done. Whoever flushes the whole rule set, or changes the setting, doesn't tell: said again now and
    /// then, but for what isn't there.
    pub(super) fn step(&self, wanted: &FlowFilter, now: Instant, later: &mut dyn FnMut(Instant)) -> Option<Step> {
        let again = self.at.filter(|_| *wanted != FlowFilter::Off).map(|at| at + GUARD_REFRESH);
        let stands = self.set.as_ref() == Some(wanted) && again.is_none_or(|at| now < at);
        if stands {
            again.into_iter().for_each(later);
            return None;
        }
        Some(Step::EventFilter { filter: wanted.clone() })
    }

    pub(super) fn issued(&mut self, filter: &FlowFilter, now: Instant) {
        self.ours |= *filter != FlowFilter::Off;
        self.set = Some(filter.clone());
        self.at = Some(now);
    }

    pub(super) fn done(&mut self, filter: &FlowFilter, ok: bool) {
        if !ok {
            self.set = None;
        } else if *filter == FlowFilter::Off {
            self.ours = self.set.as_ref().is_none_or(|set| *set != FlowFilter::Off);
        }
    }

    pub(super) fn is_clean(&self) -> bool {
        !self.ours
    }
}
