//! When an owner announces its addresses.
//!
//! After taking over: a burst (at once, then after 50 ms, 250 ms, 1 s and each second more), since a single frame may
//! be lost or come before a switch port forwards; the burst again after [`AnnounceConfig::second`], when spanning trees
//! have settled; then one each [`AnnounceConfig::refresh`], where that is wanted. After a reassertion: at once, 100 ms,
//! 1 s. "At once" is coalesced, so that a storm of losing adverts makes no storm of announcements.

use crate::config::AnnounceConfig;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const BURST_MS: [u64; 4] = [0, 50, 250, 1_000];
/// Between the announcements of a longer burst.
const BURST_STEP_MS: u64 = 1_000;
const REASSERT_MS: [u64; 3] = [0, 100, 1_000];
/// Announcements closer than this become one.
const GAP: Duration = Duration::from_millis(10);
/// Due times remembered: two bursts of 20. Full: the new one is dropped, since enough of them are to come.
const DUE_MAX: usize = 48;

/// One VIP's schedule.
#[derive(Debug)]
pub(crate) struct Announcer {
    config: AnnounceConfig,
    due: BTreeSet<Instant>,
    refresh: Option<Instant>,
    last: Option<Instant>,
}

impl Announcer {
    pub(crate) fn new(config: AnnounceConfig) -> Self {
        Self { config, due: BTreeSet::new(), refresh: None, last: None }
    }

    pub(crate) fn took_over(&mut self, now: Instant) {
        self.due.clear();
        self.last = None;
        self.schedule(now, burst(self.config.repeat));
        if !self.config.second.is_zero() {
            self.schedule(now + self.config.second, burst(self.config.repeat));
        }
        self.resumed(now);
    }

    /// A former worker announced them.
    pub(crate) fn resumed(&mut self, now: Instant) {
        self.refresh = (!self.config.refresh.is_zero()).then(|| now + self.config.refresh);
    }

    pub(crate) fn reassert(&mut self, now: Instant) {
        self.schedule(now, REASSERT_MS.into_iter());
    }

    pub(crate) fn stop(&mut self) {
        self.due.clear();
        self.refresh = None;
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().copied().into_iter().chain(self.refresh).min()
    }

    /// Whether to announce now.
    pub(crate) fn take_due(&mut self, now: Instant) -> bool {
        if self.poll_timeout().is_none_or(|at| at > now) {
            return false;
        }
        self.due = self.due.split_off(&(now + Duration::from_nanos(1)));
        if self.refresh.is_some_and(|at| at <= now) {
            // From now: after a stall the rounds that were missed don't follow each other.
            self.refresh = Some(now + self.config.refresh);
        }
        self.last = Some(now);
        true
    }

    fn schedule(&mut self, from: Instant, offsets_ms: impl Iterator<Item = u64>) {
        for ms in offsets_ms {
            let mut at = from + Duration::from_millis(ms);
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

/// When the announcements of a burst are due, in milliseconds.
fn burst(repeat: u8) -> impl Iterator<Item = u64> {
    let last = BURST_MS.last().copied().unwrap_or_default();
    let more = (1..).map(move |n| last + n * BURST_STEP_MS);
    BURST_MS.into_iter().chain(more).take(usize::from(repeat))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When an owner announces in this time, in milliseconds.
    fn times(config: AnnounceConfig, until_ms: u64) -> Vec<u128> {
        #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
        let origin = Instant::now();
        let mut announcer = Announcer::new(config);
        announcer.took_over(origin);
        let mut times = Vec::new();
        while let Some(at) = announcer.poll_timeout().filter(|at| *at <= origin + Duration::from_millis(until_ms)) {
            assert!(announcer.take_due(at));
            times.push((at - origin).as_millis());
        }
        times
    }

    fn config(repeat: u8, second_ms: u64, refresh_ms: u64) -> AnnounceConfig {
        let (second, refresh) = (Duration::from_millis(second_ms), Duration::from_millis(refresh_ms));
        AnnounceConfig { repeat, second, refresh }
    }

    #[test]
    fn a_burst_is_repeated_once_and_then_refreshed_as_configured() {
        assert_eq!(times(AnnounceConfig::default(), 60_000), [0, 50, 250, 1_000, 5_000, 5_050, 5_250, 6_000]);
        assert_eq!(times(config(1, 0, 0), 60_000), [0]);
        assert_eq!(times(config(6, 0, 0), 60_000), [0, 50, 250, 1_000, 2_000, 3_000]);
        assert_eq!(times(config(1, 5_000, 10_000), 30_000), [0, 5_000, 10_000, 20_000, 30_000]);
        assert_eq!(times(config(20, 2_000, 0), 60_000).len(), 24, "what falls together is said once");
    }

    #[test]
    fn who_is_no_owner_any_more_announces_nothing() {
        #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
        let now = Instant::now();
        let mut announcer = Announcer::new(config(4, 5_000, 1_000));
        announcer.took_over(now);
        announcer.stop();
        assert_eq!(announcer.poll_timeout(), None);
        announcer.resumed(now);
        assert_eq!(announcer.poll_timeout(), Some(now + Duration::from_secs(1)), "a resumed one refreshes");
    }
}
