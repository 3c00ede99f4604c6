//! Writing into the table.

use super::dump::wait;
use super::receive::{Receiver, open, port_id};
use holdfast_statesync::ct::{Batch, Entry, Key, Message, Messages, Outcome, Tuple, Zone, look_up};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send, setsockopt, sockopt};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Errors of a whole batch, each at its size in the kernel's memory (about 1 KiB), and then some.
const RECEIVE_BUFFER: usize = 2 << 20;
/// A whole batch.
const SEND_BUFFER: usize = 2 * Batch::MAX * Batch::MESSAGE_MAX;
/// Numbers of look-ups: those of batches stay below for a long time, and a late answer to one changes nothing.
const LOOK_UPS: u32 = 1 << 31;

/// A socket for batches. The kernel says its [`Writer::port_id`] in the events that they cause.
#[derive(Debug)]
pub struct Writer {
    fd: OwnedFd,
    receiver: Receiver,
    request: Vec<u8>,
    looked_up: u32,
}

impl Writer {
    /// Opens the socket.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` without netfilter. Without CAP_NET_ADMIN each batch fails.
    pub fn open() -> io::Result<Self> {
        let fd = open(RECEIVE_BUFFER)?;
        // Else the host's default, which may be too small for a whole batch.
        let _ = setsockopt(&fd, sockopt::SndBufForce, &SEND_BUFFER);
        Ok(Self { fd, receiver: Receiver::new(), request: Vec::new(), looked_up: 0 })
    }

    /// By what the kernel names us in events.
    ///
    /// # Errors
    /// What the system says.
    pub fn port_id(&self) -> io::Result<u32> {
        port_id(&self.fd)
    }

    /// Writes a batch, and gives `failed` the position and the outcome of each of its messages that did nothing. All is
    /// done, in order, when this returns.
    ///
    /// # Errors
    /// Nothing of it was done (`EMSGSIZE`: the send buffer is too small), or the answers can't be read.
    pub fn write(&mut self, batch: &Batch, mut failed: impl FnMut(usize, Outcome)) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        self.send(batch.bytes())?;
        self.receive(|message| {
            if let Message::Answer { sequence, errno } = message
                && errno != 0
                && let Some((position, outcome)) = batch.outcome(sequence, errno)
            {
                failed(position, outcome);
            }
        })
    }

    /// The flow with this original tuple; `None`: there is none.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn look_up(&mut self, original: &Tuple, zone: Zone) -> io::Result<Option<Entry>> {
        self.looked_up = self.looked_up.wrapping_add(1);
        let wanted = LOOK_UPS | self.looked_up;
        let mut request = std::mem::take(&mut self.request);
        request.clear();
        look_up(&mut request, wanted, original, zone);
        let sent = self.send(&request);
        self.request = request;
        sent?;
        loop {
            wait(self.fd.as_fd())?;
            let mut found = None;
            self.receive(|message| match message {
                Message::Entry { sequence, entry } if sequence == wanted => found = Some(Ok(Some(entry))),
                Message::Answer { sequence, errno } if sequence == wanted && found.is_none() => {
                    found = Some(match errno {
                        0 | libc::ENOENT => Ok(None),
                        errno => Err(io::Error::from_raw_os_error(errno)),
                    });
                }
                _ => {}
            })?;
            if let Some(found) = found {
                return found;
            }
        }
    }

    /// Looks up all of these with one system call, and gives `each` those that there are. Costs 2 to 3 µs each, whatever
    /// else is in the table. At most [`Self::LOOK_UPS_MAX`].
    ///
    /// # Errors
    /// What the kernel says of any of them; `ENOBUFS`: an answer is missing. Others may have been given then.
    pub fn look_up_all(&mut self, keys: &[Key], mut each: impl FnMut(&Entry)) -> io::Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let mut request = std::mem::take(&mut self.request);
        request.clear();
        let first = self.looked_up.wrapping_add(1);
        for key in keys {
            self.looked_up = self.looked_up.wrapping_add(1);
            look_up(&mut request, LOOK_UPS | self.looked_up, &key.original, Zone::both(key.zone));
        }
        let sent = self.send(&request);
        self.request = request;
        sent?;
        let asked = |sequence: u32| {
            let place = sequence.wrapping_sub(first) & !LOOK_UPS;
            sequence & LOOK_UPS != 0 && usize::try_from(place).is_ok_and(|place| place < keys.len())
        };
        let (mut answers, mut failed) = (0, None);
        // The kernel has answered them all when the send returns.
        self.receive(|message| match message {
            Message::Entry { sequence, entry } if asked(sequence) => {
                answers += 1;
                each(&entry);
            }
            Message::Answer { sequence, errno } if asked(sequence) => {
                answers += 1;
                if errno != 0 && errno != libc::ENOENT {
                    failed = Some(errno);
                }
            }
            _ => {}
        })?;
        match failed {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None if answers < keys.len() => Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
            None => Ok(()),
        }
    }

    /// Their answers fit the receive buffer ten times over.
    pub const LOOK_UPS_MAX: usize = 128;

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        loop {
            match send(self.fd.as_raw_fd(), bytes, MsgFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// All that is there.
    fn receive(&mut self, mut each: impl FnMut(Message)) -> io::Result<()> {
        loop {
            let received = self.receiver.receive(&self.fd, |datagram| {
                Messages::new(datagram.unwrap_or_default()).for_each(&mut each);
            });
            match received {
                Ok(count) if Receiver::may_have_left(count) => {}
                Ok(_) => return Ok(()),
                Err(e) => match e.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(()),
                    Some(libc::EINTR) => {}
                    _ => return Err(e),
                },
            }
        }
    }
}

impl AsFd for Writer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
