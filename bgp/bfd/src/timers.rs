//! The operator's times.

use std::time::Duration;
use thiserror::Error;

/// The longest interval: what the wire carries is above an hour, but nobody waits so long.
const INTERVAL_MAX: Duration = Duration::from_secs(60);
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// How often to send and to hear, and how many losses in a row end a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timers {
    interval: Duration,
    multiplier: u8,
}

impl Timers {
    /// The interval (1 ms to 60 s) is both bfd.DesiredMinTxInterval while Up and bfd.RequiredMinRxInterval; the multiplier
    /// (1 to 255) is bfd.DetectMult.
    ///
    /// # Errors
    /// Out of range.
    pub fn new(interval: Duration, multiplier: u8) -> Result<Self, TimersError> {
        if !(INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
            return Err(TimersError::Interval { given: interval });
        }
        if multiplier == 0 {
            return Err(TimersError::Multiplier);
        }
        Ok(Self { interval, multiplier })
    }

    /// The interval.
    #[must_use]
    pub const fn interval(self) -> Duration {
        self.interval
    }

    /// The multiplier.
    #[must_use]
    pub const fn multiplier(self) -> u8 {
        self.multiplier
    }
}

/// No [`Timers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TimersError {
    /// Too short or too long.
    #[error("BFD interval {given:?} is out of range: 1ms to 60s")]
    Interval {
        /// What was given.
        given: Duration,
    },
    /// Zero.
    #[error("BFD multiplier 0 is out of range: 1 to 255")]
    Multiplier,
}
