//! How often a socket is read while garbage arrives on it.
//!
//! Each packet that is alone costs a wake-up, which is far dearer than looking at it. So a source that brings much
//! garbage is read once a millisecond instead of at each packet: its buffer holds what arrives meanwhile, all of it is
//! counted, and what is true among it is a millisecond late at most. The thread is real-time: what it doesn't take is
//! left to the balancer and the checks.

use std::time::{Duration, Instant};

/// Garbage is counted over this time.
const WINDOW: Duration = Duration::from_millis(100);
/// More than this in a window is a flood. A healthy segment brings none, a misconfigured neighbour a few.
const TOLERATED: u64 = 32;
/// The pause between two readings in a flood. 64 packets are read at a time: 64,000 a second at most.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// One source's state.
#[derive(Debug)]
pub(super) struct Flood {
    window: Instant,
    refused: u64,
    resting: Option<Instant>,
}

impl Flood {
    pub(super) fn new(now: Instant) -> Self {
        Self { window: now, refused: 0, resting: None }
    }

    /// Whether the source is to be left alone now.
    pub(super) fn rests(&mut self, now: Instant) -> bool {
        self.resting = self.resting.filter(|until| now < *until);
        self.resting.is_some()
    }

    /// When it is to be read again, while it rests.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.resting
    }

    /// After a reading: so many of the packets were refused.
    pub(super) fn read(&mut self, now: Instant, refused: u64) {
        let age = now.saturating_duration_since(self.window);
        if age >= WINDOW {
            // What the last window had counts half in the next, or each would begin with wake-ups anew.
            self.refused = if age < WINDOW * 2 { self.refused.min(TOLERATED * 2) / 2 } else { 0 };
            self.window = now;
        }
        self.refused += refused;
        if refused > 0 && self.refused > TOLERATED {
            self.resting = Some(now + PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    /// How often a source is read that brings a packet every `every`, of which all are garbage, for a second.
    fn readings(every: Duration) -> u64 {
        let start = Instant::now();
        let mut flood = Flood::new(start);
        let (mut waiting, mut readings) = (0, 0);
        let mut at = start;
        while at < start + Duration::from_secs(1) {
            waiting += 1;
            if !flood.rests(at) {
                readings += 1;
                flood.read(at, std::mem::take(&mut waiting));
            }
            at += every;
        }
        readings
    }

    #[test]
    fn a_flood_is_read_once_a_millisecond() {
        assert!((950..=1_100).contains(&readings(us(100))), "{}", readings(us(100)));
        assert!((950..=1_100).contains(&readings(us(10))), "{}", readings(us(10)));
    }

    #[test]
    fn a_little_garbage_delays_nothing() {
        assert_eq!(readings(us(10_000)), 100);
    }

    #[test]
    fn without_garbage_a_source_is_never_left_alone_and_a_flood_is_forgotten() {
        let start = Instant::now();
        let mut flood = Flood::new(start);
        flood.read(start, 1_000);
        assert!(flood.rests(start) && flood.poll_timeout() == Some(start + PAUSE));
        let later = start + PAUSE;
        assert!(!flood.rests(later) && flood.poll_timeout().is_none());
        flood.read(later, 0);
        assert!(!flood.rests(later), "nothing was refused this time");
        let much_later = start + Duration::from_secs(1);
        flood.read(much_later, 1);
        assert!(!flood.rests(much_later));
    }
}
