//! When an owner announces its addresses.
//!
//! After taking over: at once, then after 50 ms, 250 ms, 1 s and 5 s, since a single frame may be lost or come before a
//! switch port forwards. After a reassertion: at once, 100 ms, 1 s. "At once" is coalesced, so that a storm of losing
//! adverts makes no storm of announcements.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const TAKE_OVER_MS: [u64; 5] = [0, 50, 250, 1_000, 5_000];
const REASSERT_MS: [u64; 3] = [0, 100, 1_000];
/// Announcements closer than this become one.
const GAP: Duration = Duration::from_millis(10);
/// Due times remembered; full: the new one is dropped, since enough of them are to come.
const DUE_MAX: usize = 16;

/// One VIP's schedule.
#[derive(Debug, Default)]
pub(crate) struct Announcer {
    due: BTreeSet<Instant>,
    last: Option<Instant>,
}

impl Announcer {
    pub(crate) fn took_over(&mut self, now: Instant) {
        self.due.clear();
        self.last = None;
        self.schedule(now, &TAKE_OVER_MS);
    }

    pub(crate) fn reassert(&mut self, now: Instant) {
        self.schedule(now, &REASSERT_MS);
    }

    pub(crate) fn stop(&mut self) {
        self.due.clear();
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().copied()
    }

    /// Whether to announce now.
    pub(crate) fn take_due(&mut self, now: Instant) -> bool {
        let later = self.due.split_off(&(now + Duration::from_nanos(1)));
        let due = !std::mem::replace(&mut self.due, later).is_empty();
        if due {
            self.last = Some(now);
        }
        due
    }

    fn schedule(&mut self, now: Instant, offsets_ms: &[u64]) {
        for ms in offsets_ms {
            let mut at = now + Duration::from_millis(*ms);
            if let Some(last) = self.last {
                at = at.max(last + GAP);
            }
            let near = self.due.range(at..at + GAP).next().is_some();
            if !near && self.due.len() < DUE_MAX {
                self.due.insert(at);
            }
        }
    }
}
