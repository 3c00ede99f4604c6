//! The lab's one clock: monotonic nanoseconds since the process first asked.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

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

/// Sleeps until `at`; returns at once when it has passed.
pub fn sleep_until(at: Ns) {
    let t = now();
    if at > t {
        std::thread::sleep(Duration::from_nanos(at - t));
    }
}
