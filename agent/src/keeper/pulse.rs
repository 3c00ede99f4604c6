//! Beats that wake nobody: the worker leaves the time in a pipe, and the keeper looks only when it would otherwise take
//! the silence for a hang.
//!
//! A beat by message wakes the keeper each time, which on an idle host is most of what the agent costs. The keeper gets
//! the reading end with the worker's first message; without it, messages do.

use rustix::io::{read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Reads at one look. The pipe holds 8,192 beats; a keeper that doesn't look for so long has other troubles.
const READS: usize = 16;

/// The worker's end.
#[derive(Debug)]
pub struct Pulse(OwnedFd);

/// Both ends: the worker's, and the one to be sent to the keeper.
///
/// # Errors
/// No descriptors are left.
pub fn pulse() -> io::Result<(Pulse, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    Ok((Pulse(writer), reader))
}

impl Pulse {
    /// Leaves word. False: it can't, and a message must do.
    #[must_use]
    pub fn beat(&self) -> bool {
        // A pipe takes so few bytes whole or not at all.
        write(&self.0, &monotonic().as_nanos().to_le_bytes()).is_ok()
    }
}

/// The time of the last beat in the pipe, on the clock of `now`; `None`: none since the last look.
pub fn last(reader: BorrowedFd<'_>, now: Instant) -> Option<Instant> {
    let mut last = None;
    for _ in 0..READS {
        let mut buffer = [0; 4096];
        let Ok(length) = read(reader, &mut buffer) else { break };
        let beats = buffer.get(..length).unwrap_or_default().as_chunks::<16>().0;
        let Some(beat) = beats.last() else { break };
        last = Some(Duration::from_nanos(u64::try_from(u128::from_le_bytes(*beat)).ok()?));
    }
    let age = monotonic().saturating_sub(last?);
    now.checked_sub(age)
}

/// The clock that [`Instant`] goes by, the same in every process.
fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, nanoseconds) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanoseconds.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_last_of_many_beats_is_found_and_each_look_finds_only_new_ones() {
        let (pulse, reader) = pulse().expect("a pipe");
        assert_eq!(last(reader.as_fd(), Instant::now()), None);
        let before = Instant::now();
        for _ in 0..1_000 {
            assert!(pulse.beat());
        }
        let after = Instant::now();
        let seen = last(reader.as_fd(), Instant::now()).expect("there were beats");
        let slack = Duration::from_millis(1);
        assert!(before <= seen + slack && seen <= after + slack);
        assert_eq!(last(reader.as_fd(), Instant::now()), None);
    }

    #[test]
    fn a_pipe_that_nobody_reads_says_so_and_blocks_nobody() {
        let (pulse, reader) = pulse().expect("a pipe");
        assert!((0..100_000).any(|_| !pulse.beat()));
        drop(reader);
        assert!(!pulse.beat());
    }
}
