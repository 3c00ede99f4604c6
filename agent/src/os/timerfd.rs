//! A timer with the kernel's resolution. Tokio's own rounds up to whole milliseconds, and wakes its thread once or twice
//! on the way to a time that is more than 64 ms ahead.

use super::asyncfd::AsyncDescriptor;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// One monotonic timer.
#[derive(Debug)]
pub struct TimerFd {
    fd: AsyncDescriptor,
    armed: Option<Instant>,
}

impl TimerFd {
    /// Not armed. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn new() -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Self { fd: AsyncDescriptor::new(fd)?, armed: None })
    }

    /// Expires at `due` (at once if that's past); `None` disarms. Forgets a former expiry. The same time again costs
    /// nothing.
    ///
    /// # Errors
    /// None that the kernel documents for these arguments.
    pub fn arm(&mut self, due: Option<Instant>) -> io::Result<()> {
        if self.armed == due {
            return Ok(());
        }
        // Zero would disarm, so the past is one nanosecond ahead.
        let left =
            due.map_or(Duration::ZERO, |d| d.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1)));
        let value = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &setting)?;
        self.armed = due;
        Ok(())
    }

    /// Expires at `due` or before: a deadline that only moves on costs nothing until the former one is reached. For who
    /// looks at the time anyway when woken.
    ///
    /// # Errors
    /// As [`Self::arm`].
    pub fn arm_no_later(&mut self, due: Instant) -> io::Result<()> {
        if self.armed.is_some_and(|armed| armed <= due) {
            return Ok(());
        }
        self.arm(Some(due))
    }

    /// Ready once after each expiry, which also disarms it.
    ///
    /// # Errors
    /// What epoll says when the runtime ends.
    pub fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let expired = self.fd.poll_drain(cx, |fd| {
            rustix::io::read(fd, &mut [0; 8])?;
            // One read takes all that there is.
            Ok(((), true))
        });
        if expired.is_ready() {
            self.armed = None;
        }
        expired
    }
}

/// Waits of one task, one after the other.
#[derive(Debug)]
pub struct Pause(Option<TimerFd>);

impl Pause {
    /// Where no descriptor is left, tokio's timer does. Must be called inside a tokio runtime.
    #[must_use]
    pub fn new() -> Self {
        Self(TimerFd::new().ok())
    }

    /// Ends at `due`, or a little later. Cancel safe: the next wait sets the timer anew.
    pub async fn until(&mut self, due: Instant) {
        if let Some(timer) = &mut self.0 {
            let armed = timer.arm(Some(due));
            if armed.is_ok() && poll_fn(|cx| timer.poll_expired(cx)).await.is_ok() {
                return;
            }
        }
        tokio::time::sleep_until(due.into()).await;
    }
}

impl Default for Pause {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn it_expires_when_due_and_not_before() {
        let mut timer = TimerFd::new().expect("descriptors are left");
        let due = Instant::now() + Duration::from_millis(3);
        timer.arm(Some(due)).expect("armed");
        timer.arm(Some(due)).expect("the same time again");
        tokio::time::timeout(LONG, poll_fn(|cx| timer.poll_expired(cx))).await.expect("expires").expect("no error");
        assert!(Instant::now() >= due);
    }

    #[tokio::test]
    async fn a_deadline_that_moves_on_leaves_the_timer_and_a_nearer_one_does_not() {
        let mut timer = TimerFd::new().expect("descriptors are left");
        let soon = Instant::now() + Duration::from_millis(3);
        timer.arm_no_later(soon).expect("armed");
        timer.arm_no_later(soon + LONG).expect("left as it is");
        tokio::time::timeout(LONG, poll_fn(|cx| timer.poll_expired(cx))).await.expect("expires").expect("no error");
        timer.arm_no_later(Instant::now() + 10 * LONG).expect("armed again");
        timer.arm_no_later(Instant::now() + Duration::from_millis(3)).expect("nearer");
        tokio::time::timeout(LONG, poll_fn(|cx| timer.poll_expired(cx))).await.expect("expires").expect("no error");
    }

    #[tokio::test]
    async fn the_past_is_due_at_once_and_a_disarmed_one_never() {
        let mut timer = TimerFd::new().expect("descriptors are left");
        timer.arm(Some(Instant::now())).expect("armed");
        tokio::time::timeout(LONG, poll_fn(|cx| timer.poll_expired(cx))).await.expect("expires").expect("no error");
        timer.arm(Some(Instant::now() + LONG)).expect("armed");
        timer.arm(None).expect("disarmed");
        let waited = tokio::time::timeout(Duration::from_millis(20), poll_fn(|cx| timer.poll_expired(cx))).await;
        assert!(waited.is_err());
    }

    #[tokio::test]
    async fn a_pause_that_was_cut_short_leaves_nothing_to_the_next_one() {
        let mut pause = Pause::new();
        let cut = tokio::time::timeout(Duration::from_millis(1), pause.until(Instant::now() + LONG)).await;
        assert!(cut.is_err());
        for mut pause in [pause, Pause(None)] {
            let due = Instant::now() + Duration::from_millis(3);
            tokio::time::timeout(LONG, pause.until(due)).await.expect("it ends");
            assert!(Instant::now() >= due);
        }
    }
}
