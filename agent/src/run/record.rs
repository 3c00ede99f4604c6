//! A journal entry with its time of day, and its one form as JSON: on disk, in `events --json`, in reports.

use holdfast_node::journal::{Event, Severity};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A journal entry with the wall-clock time at which the protocol thread emitted it.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// Wall clock at emission.
    pub wall: SystemTime,
    /// The event.
    pub event: Event,
}

#[derive(Serialize)]
struct Written<'a> {
    schema: u32,
    time: String,
    severity: Severity,
    #[serde(flatten)]
    event: &'a Event,
}

#[derive(Deserialize)]
struct Read {
    time: String,
    #[serde(flatten)]
    event: Event,
}

impl Recorded {
    /// When, in RFC 3339 with microseconds, UTC.
    pub fn time(&self) -> String {
        // Out of the range of years that have four digits: a clock that was never set has 1970, so this can't be met.
        Timestamp::try_from(self.wall).map_or_else(|_| "unknown".to_owned(), |t| format!("{t:.6}"))
    }

    /// One line, without its end.
    pub fn to_json(&self) -> String {
        let line = Written { schema: 1, time: self.time(), severity: self.event.kind.severity(), event: &self.event };
        serde_json::to_string(&line).expect("an event has only string keys, numbers and text")
    }

    /// `None`: not such a line (torn, or written by a newer agent).
    pub fn from_json(line: &[u8]) -> Option<Self> {
        let Read { time, event } = serde_json::from_slice(line).ok()?;
        let since = u64::try_from(time.parse::<Timestamp>().ok()?.as_microsecond()).ok()?;
        Some(Self { wall: UNIX_EPOCH + Duration::from_micros(since), event })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::testing::recorded;

    #[test]
    fn an_entry_is_one_flat_object_with_time_and_severity() {
        let line = recorded(7).to_json();
        assert_eq!(
            line,
            "{\"schema\":1,\"time\":\"2026-11-29T21:37:02.000008Z\",\"severity\":\"warning\",\"id\":7,\"cause\":6,\
             \"event\":\"check_state\",\"check\":\"web\",\"passed\":false,\"why\":\"status 503\"}"
        );
    }

    #[test]
    fn what_is_written_is_read_back_and_a_torn_line_is_not() {
        let line = recorded(1).to_json();
        assert_eq!(Recorded::from_json(line.as_bytes()), Some(recorded(1)));
        for end in 0..line.len() {
            assert_eq!(Recorded::from_json(line.get(..end).expect("ascii").as_bytes()), None);
        }
    }
}
