//! The table as it is.

use super::receive::open;
use holdfast_statesync::ct::{DumpFilter, Entry, Message, Messages, Skipped};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The kernel makes datagrams of at most 32 KiB.
const BUFFER: usize = 64 * 1024;
/// What is unread of a dump: the kernel goes on only when it was read.
const RECEIVE_BUFFER: usize = 1 << 20;
/// A kernel that says nothing for so long is taken for broken, in milliseconds.
const PATIENCE_MS: u16 = 5_000;

/// Where a dump is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// There is more.
    More,
    /// It is at its end.
    Done {
        /// Entries may be missing, because the table changed.
        interrupted: bool,
    },
}

/// A dump at its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dumped {
    /// How many entries there were.
    pub entries: u64,
    /// What was passed over.
    pub skipped: Skipped,
    /// Entries may be missing, because the table changed.
    pub interrupted: bool,
}

/// A socket for one dump at a time.
#[derive(Debug)]
pub struct Dump {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
    request: Vec<u8>,
    filter: DumpFilter,
    dumped: Dumped,
}

impl Dump {
    /// Opens the socket.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` without netfilter.
    pub fn open() -> io::Result<Self> {
        let fd = open(RECEIVE_BUFFER)?;
        let (buffer, request) = (vec![0; BUFFER], Vec::new());
        Ok(Self { fd, sequence: 0, buffer, request, filter: DumpFilter::default(), dumped: Dumped::default() })
    }

    /// Begins a dump. The one before must be at its end, or the kernel says `EBUSY`.
    ///
    /// # Errors
    /// What the kernel says: of filters that it doesn't know, too.
    pub fn begin(&mut self, filter: &DumpFilter) -> io::Result<()> {
        self.sequence = self.sequence.checked_add(1).unwrap_or(1);
        self.dumped = Dumped::default();
        self.filter = *filter;
        self.request.clear();
        filter.request(&mut self.request, self.sequence);
        loop {
            match send(self.fd.as_raw_fd(), &self.request, MsgFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Takes the next datagram of it (a hundred entries), if it is there: [`Progress::More`] either way. The kernel
    /// makes each when the one before it is read, so it is there.
    ///
    /// # Errors
    /// What the kernel says. The dump is at its end then.
    pub fn read(&mut self, mut each: impl FnMut(&Entry)) -> io::Result<Progress> {
        let length = match recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => length,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Progress::More),
            Err(e) => return Err(e.into()),
        };
        let mut messages = Messages::new(self.buffer.get(..length).unwrap_or_default());
        let mut end = None;
        for message in messages.by_ref() {
            match message {
                Message::Entry { sequence, entry } if sequence == self.sequence && self.filter.matches(&entry) => {
                    self.dumped.entries += 1;
                    each(&entry);
                }
                Message::Done { sequence, errno, interrupted } if sequence == self.sequence => {
                    end = Some((errno, interrupted));
                }
                Message::Answer { sequence, errno } if sequence == self.sequence => end = Some((errno, false)),
                _ => {} // of a dump that was given up, or not asked for
            }
        }
        self.dumped.skipped.add(messages.skipped());
        match end {
            Some((0, interrupted)) => {
                self.dumped.interrupted = interrupted;
                Ok(Progress::Done { interrupted })
            }
            Some((errno, _)) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(Progress::More),
        }
    }

    /// What the last dump gave up to now.
    #[must_use]
    pub const fn dumped(&self) -> Dumped {
        self.dumped
    }

    /// A whole dump at once: a million entries take two seconds.
    ///
    /// # Errors
    /// What the kernel says; `ETIMEDOUT`: nothing.
    pub fn all(&mut self, filter: &DumpFilter, mut each: impl FnMut(&Entry)) -> io::Result<Dumped> {
        self.begin(filter)?;
        loop {
            wait(self.fd.as_fd())?;
            if let Progress::Done { .. } = self.read(&mut each)? {
                return Ok(self.dumped);
            }
        }
    }
}

impl AsFd for Dump {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Until it can be read.
pub(super) fn wait(fd: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::from(PATIENCE_MS)) {
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
