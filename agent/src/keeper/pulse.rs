//! Beats that wake nobody: worker and keeper hold the same timer. Each beat sets it back, and only when the beats stop does
//! it run out and wake the keeper.
//!
//! A beat by message wakes the keeper each time, which on an idle host is most of what the agent costs. The keeper gets
//! the timer with the worker's first message; without it, messages do.

use rustix::io::read;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_gettime,
    timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Once run out, the timer runs on for this long and what the worker set: so it says when it ran out, and whose patience
/// that was.
const RUNS_ON: Duration = Duration::from_secs(86_400);

/// The worker's end.
#[derive(Debug)]
pub struct Pulse {
    timer: OwnedFd,
    setting: Itimerspec,
}

/// Both ends: the worker's, and the one to be sent to the keeper, which is woken when there was no beat for `patience`. The
/// first beat is now.
///
/// # Errors
/// No descriptors are left.
pub fn pulse(patience: Duration) -> io::Result<(Pulse, OwnedFd)> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let theirs = timer.try_clone()?;
    let setting = Itimerspec { it_value: timespec(patience), it_interval: timespec(RUNS_ON + patience) };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &setting)?;
    Ok((Pulse { timer, setting }, theirs))
}

impl Pulse {
    /// Leaves word. False: it can't, and a message must do.
    #[must_use]
    pub fn beat(&self) -> bool {
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &self.setting).is_ok()
    }
}

/// The time of the last beat; `None`: this is no pulse.
pub fn last(timer: BorrowedFd<'_>, now: Instant) -> Option<Instant> {
    let setting = timerfd_gettime(timer).ok()?;
    let (left, whole) = (duration(setting.it_value)?, duration(setting.it_interval)?);
    let patience = whole.checked_sub(RUNS_ON)?;
    // Run out, it counts down the whole; before that what is left of the patience.
    let since = if left > patience { whole.checked_sub(left)? + patience } else { patience.checked_sub(left)? };
    now.checked_sub(since)
}

/// Takes note that it ran out: it wakes us once.
pub fn ran_out(timer: BorrowedFd<'_>) {
    // Nothing to read: a beat came in between.
    let _ = read(timer.as_fd(), &mut [0; 8]);
}

fn timespec(span: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(span.subsec_nanos()) }
}

fn duration(span: Timespec) -> Option<Duration> {
    Some(Duration::new(u64::try_from(span.tv_sec).ok()?, u32::try_from(span.tv_nsec).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    const SLACK: Duration = Duration::from_millis(1);
    const LONG: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

    fn is_ready(timer: &OwnedFd, wait: Timespec) -> bool {
        poll(&mut [PollFd::new(timer, PollFlags::IN)], Some(&wait)).expect("can be polled") == 1
    }

    #[test]
    fn the_last_beat_is_known_and_wakes_nobody() {
        let born = Instant::now();
        let (pulse, timer) = pulse(Duration::from_secs(60)).expect("descriptors are left");
        assert!(last(timer.as_fd(), Instant::now()).is_some_and(|at| born <= at + SLACK));
        let before = Instant::now();
        for _ in 0..1_000 {
            assert!(pulse.beat());
        }
        let after = Instant::now();
        for _ in 0..2 {
            let seen = last(timer.as_fd(), Instant::now()).expect("there were beats");
            assert!(before <= seen + SLACK && seen <= after + SLACK);
        }
        assert!(!is_ready(&timer, Timespec { tv_sec: 0, tv_nsec: 0 }));
    }

    #[test]
    fn when_beats_stop_the_keeper_is_woken_once_and_knows_when_the_last_one_was() {
        let (pulse, timer) = pulse(Duration::from_millis(5)).expect("descriptors are left");
        let before = Instant::now();
        assert!(pulse.beat());
        let after = Instant::now();
        assert!(is_ready(&timer, LONG));
        ran_out(timer.as_fd());
        assert!(!is_ready(&timer, Timespec { tv_sec: 0, tv_nsec: 0 }));
        let seen = last(timer.as_fd(), Instant::now()).expect("there was a beat");
        assert!(before <= seen + SLACK && seen <= after + SLACK, "{:?} {:?}", seen - before, after - before);
        assert!(pulse.beat());
        assert!(is_ready(&timer, LONG), "and again after the next one");
    }

    #[test]
    fn a_timer_that_is_no_pulse_says_nothing() {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).expect("descriptors are left");
        let once = Itimerspec { it_value: timespec(SLACK), it_interval: timespec(SLACK) };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once).expect("armed");
        assert_eq!(last(timer.as_fd(), Instant::now()), None);
    }
}
