//! The lab's one clock: monotonic nanoseconds since the process first asked.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the lab's epoch (CLOCK_MONOTONIC).
pub type Ns = u64;

/// One millisecond.
pub const MS: Ns = 1_000_000;
/// One second.
pub const SECOND: Ns = 1_000_000_000;

/// Nanoseconds since the epoch; the first call sets the epoch.
#[must_use]
pub fn now() -> Ns {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    u64::try_from(EPOCH.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// `to - from` in milliseconds; negative when `to` is earlier.
#[must_use]
pub fn ms_between(from: Ns, to: Ns) -> f64 {
    if to >= from { (to - from) as f64 / 1e6 } else { -((from - to) as f64 / 1e6) }
}

/// A wall-clock time on this clock; none if it lies ahead or more than 10 s back.
#[must_use]
pub fn at_wall(seconds: i64, nanoseconds: i64) -> Option<Ns> {
    let then = u64::try_from(seconds).ok()? * SECOND + u64::try_from(nanoseconds).ok()?;
    let (mut before, mut wall, mut after) = (0, 0, Ns::MAX);
    // Both clocks at one moment: again if this thread was put aside in between.
    for _ in 0..5 {
        before = now();
        wall = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()?;
        after = now();
        if after - before < MS / 10 {
            break;
        }
    }
    let age = wall.checked_sub(then).filter(|age| *age < 10 * SECOND)?;
    Some((before + (after - before) / 2).saturating_sub(age))
}

/// Sleeps until `at`; returns at once when it has passed.
pub fn sleep_until(at: Ns) {
    let t = now();
    if at > t {
        std::thread::sleep(Duration::from_nanos(at - t));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_time_is_taken_from_the_last_ten_seconds_only() {
        let _epoch = now();
        std::thread::sleep(Duration::from_millis(2));
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let (s, ns) = (i64::try_from(wall.as_secs()).expect("fits"), i64::from(wall.subsec_nanos()));
        assert!(at_wall(s, ns).is_some_and(|t| t <= now()));
        assert_eq!((at_wall(s + 60, ns), at_wall(s - 11, ns), at_wall(-1, 0)), (None, None, None));
    }
}
