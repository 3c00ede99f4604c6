//! A descriptor that the parent process left open for us.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Takes the descriptor over and makes it close-on-exec. To be called once per number, before anything else in this
/// process opens descriptors by number.
///
/// # Errors
/// `EBADF`: it isn't open. 0, 1 and 2 are refused.
pub fn take(fd: RawFd) -> io::Result<OwnedFd> {
    if fd <= 2 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: fcntl with F_SETFD takes an integer and touches no memory; an fd that isn't open is answered by EBADF.
    let result = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it's open, and by the contract above nobody else in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_not_open_and_the_standard_ones_are_refused() {
        for fd in [-1, 0, 1, 2, 1_000_000] {
            assert_eq!(take(fd).expect_err("refused").raw_os_error(), Some(libc::EBADF));
        }
    }
}
