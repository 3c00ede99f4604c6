//! A timer with the kernel's resolution (tokio's own rounds up to whole milliseconds).

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// One monotonic timer.
#[derive(Debug)]
pub struct TimerFd {
    fd: OwnedFd,
}

impl TimerFd {
    /// Not armed.
    pub fn new() -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Self { fd })
    }

    /// Becomes readable at `due` (at once if that's past); `None` disarms. Clears an expiry that wasn't read.
    pub fn arm(&self, due: Option<Instant>) -> io::Result<()> {
        // Zero would disarm, so the past is one nanosecond ahead.
        let left =
            due.map_or(Duration::ZERO, |d| d.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1)));
        let value = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: zero, it_value: value })?;
        Ok(())
    }
}

impl AsRawFd for TimerFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
