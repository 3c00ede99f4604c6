//! A set of descriptors to wait for that is built once and used many times, without an allocation at each turn.

use rustix::event::PollFlags;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

/// The set. It holds numbers: after a descriptor is closed it must be built anew, or waits for whatever has the number
/// then.
#[derive(Debug, Default)]
pub struct PollSet {
    fds: Vec<libc::pollfd>,
}

impl PollSet {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.fds.clear();
    }

    /// Adds one, at the next position.
    pub fn push(&mut self, fd: BorrowedFd<'_>, flags: PollFlags) {
        self.fds.push(libc::pollfd { fd: fd.as_raw_fd(), events: flags.bits() as libc::c_short, revents: 0 });
    }

    /// Waits until one is ready or the time is over; `None`: for as long as it takes. Returns how many are ready.
    ///
    /// # Errors
    /// `EINTR`; nothing else with descriptors that are open.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let span = timeout.map(|span| libc::timespec {
            tv_sec: libc::time_t::try_from(span.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: span.subsec_nanos() as _,
        });
        let span = span.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the vector's own elements and their number; the time is null or alive; no signal mask.
        let ready = unsafe { libc::ppoll(self.fds.as_mut_ptr(), self.fds.len() as _, span, ptr::null()) };
        usize::try_from(ready).map_err(|_| {
            self.fds.iter_mut().for_each(|fd| fd.revents = 0);
            io::Error::last_os_error()
        })
    }

    /// Whether the one at this position was ready, or is broken, at the last wait.
    #[must_use]
    pub fn is_ready(&self, position: usize) -> bool {
        self.fds.get(position).is_some_and(|fd| fd.revents != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::fdpass;
    use std::os::fd::AsFd;

    #[test]
    fn it_tells_which_are_ready_each_time_anew() {
        let (a, b) = fdpass::pair().expect("sockets");
        let mut set = PollSet::default();
        set.push(a.as_fd(), PollFlags::IN);
        set.push(b.as_fd(), PollFlags::IN);
        assert_eq!(set.wait(Some(Duration::ZERO)).expect("waited"), 0);
        fdpass::send(a.as_fd(), b"x", None).expect("sent");
        assert_eq!(set.wait(None).expect("waited"), 1);
        assert_eq!((set.is_ready(0), set.is_ready(1), set.is_ready(2)), (false, true, false));
        let _ = fdpass::receive(b.as_fd(), &mut [0; 4]).expect("received");
        assert_eq!(set.wait(Some(Duration::from_millis(1))).expect("waited"), 0);
        assert!(!set.is_ready(1));
    }
}
