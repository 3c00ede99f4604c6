//! Waiting for a descriptor in tokio.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Stack of a thread that does nothing but close.
const CLOSER_STACK: usize = 64 * 1024;

/// A descriptor that is waited for until it's readable. It can't be taken out, replaced or closed while registered.
#[derive(Debug)]
pub struct AsyncDescriptor(AsyncFd<OwnedFd>);

impl AsyncDescriptor {
    /// Registers a non-blocking descriptor with the runtime of the caller (else it panics).
    ///
    /// # Errors
    /// What epoll says: `EPERM` for a regular file, `ENOSPC` at the host's limit.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: an OwnedFd is open and always returns the same number; it's moved into the AsyncFd, which this type
        // never hands out by value or mutable reference, so it stays open for as long as the registration.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self(registered.map_err(|e| e.into_parts().1)?))
    }

    /// Like [`Self::new`], for both directions.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn new_duplex(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: as in `new`.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE | Interest::WRITABLE) };
        Ok(Self(registered.map_err(|e| e.into_parts().1)?))
    }

    /// Like [`Self::poll_read`], for a descriptor made by [`Self::new_duplex`] that can be written to. One task at a time
    /// may wait.
    pub fn poll_write<R>(
        &self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(BorrowedFd<'_>) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(cx))?;
            if let Ok(result) = guard.try_io(|fd| write(fd.as_fd())) {
                return Poll::Ready(result);
            }
        }
    }

    /// Runs `read` when the descriptor is readable, again after each `WouldBlock`. One task at a time may wait.
    pub fn poll_read<R>(
        &self,
        cx: &mut Context<'_>,
        mut read: impl FnMut(BorrowedFd<'_>) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            if let Ok(result) = guard.try_io(|fd| read(fd.as_fd())) {
                return Poll::Ready(result);
            }
        }
    }

    /// Like [`Self::poll_read`] for a `read` that tells whether it left nothing behind: then the next call waits at once
    /// instead of asking the system once more.
    pub fn poll_drain<R>(
        &self,
        cx: &mut Context<'_>,
        mut read: impl FnMut(BorrowedFd<'_>) -> io::Result<(R, bool)>,
    ) -> Poll<io::Result<R>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            let Ok(result) = guard.try_io(|fd| read(fd.as_fd())) else { continue };
            // What came meanwhile is an event of its own, which this doesn't clear.
            if let Ok((_, true)) = result {
                guard.clear_ready();
            }
            return Poll::Ready(result.map(|(value, _)| value));
        }
    }

    /// Closes it in a thread of its own: the kernel takes up to 20 ms for a packet socket, since it waits until no
    /// processor can be about to deliver to it.
    pub fn close_elsewhere(self) {
        let fd = self.0.into_inner();
        // No thread to be had: then here.
        let _ = std::thread::Builder::new().name("close".to_owned()).stack_size(CLOSER_STACK).spawn(move || drop(fd));
    }

    /// Like [`Self::poll_read`], for any number of tasks. Cancel safe if `read` is.
    ///
    /// # Errors
    /// What `read` says, but `WouldBlock`.
    pub async fn read<R>(&self, mut read: impl FnMut(BorrowedFd<'_>) -> io::Result<R>) -> io::Result<R> {
        self.0.async_io(Interest::READABLE, |fd| read(fd.as_fd())).await
    }
}

impl AsFd for AsyncDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

impl AsRawFd for AsyncDescriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
