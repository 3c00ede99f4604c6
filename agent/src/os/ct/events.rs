//! What the kernel tells of by itself.

use super::super::netlink::set_option;
use super::receive::{Receiver, lost, open, port_id, receive_buffer};
use holdfast_statesync::ct::{Event, Message, Messages, Skipped};
use socket2::{SockFilter, SockRef};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// `NFNLGRP_CONNTRACK_NEW`, `…_UPDATE`, `…_DESTROY`.
const NEW: i32 = 1;
const UPDATE: i32 = 2;
const DESTROY: i32 = 3;

/// What one read gave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Read {
    /// Datagrams.
    pub datagrams: usize,
    /// There may be more.
    pub more: bool,
    /// The kernel threw events away for want of room, and throws all away until the socket has been read empty. Read
    /// on, and look at the table itself then.
    pub overrun: bool,
}

/// NEW and UPDATE events.
#[derive(Debug)]
pub struct Changes(Listener);

/// DESTROY events. The kernel tells again what found no room.
#[derive(Debug)]
pub struct Removals(Listener);

#[derive(Debug)]
struct Listener {
    fd: OwnedFd,
    receiver: Receiver,
    skipped: Skipped,
}

impl Listener {
    fn open(receive_buffer: usize) -> io::Result<Self> {
        Ok(Self { fd: open(receive_buffer)?, receiver: Receiver::new(), skipped: Skipped::default() })
    }

    fn join(&self, group: i32) -> io::Result<()> {
        set_option(self.fd.as_fd(), libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, group)
    }

    fn pass_over(&self, port: u32) -> io::Result<()> {
        const LD_WORD: u16 = 0x20;
        const JEQ: u16 = 0x15;
        const RET: u16 = 0x06;
        /// Of `nlmsg_pid` in the header of a message; the kernel tells of each flow in a datagram of its own.
        const PORT: u32 = 12;
        // Loaded as the network has it, while the kernel wrote it as this machine does.
        let port = u32::from_be_bytes(port.to_ne_bytes());
        SockRef::from(&self.fd).attach_filter(&[
            SockFilter::new(LD_WORD, 0, 0, PORT),
            SockFilter::new(JEQ, 0, 1, port),
            SockFilter::new(RET, 0, 0, 0),
            SockFilter::new(RET, 0, 0, u32::MAX),
        ])
    }

    fn read(&mut self, mut each: impl FnMut(Event)) -> io::Result<Read> {
        let mut told = false;
        let skipped = &mut self.skipped;
        let received = self.receiver.receive(&self.fd, |datagram| {
            let Some(datagram) = datagram else {
                skipped.malformed += 1;
                return;
            };
            let mut messages = Messages::new(datagram);
            for message in messages.by_ref() {
                match message {
                    Message::Event(event) => each(event),
                    Message::Overrun => told = true,
                    Message::Entry { .. } | Message::Answer { .. } | Message::Done { .. } => skipped.messages += 1,
                }
            }
            skipped.add(messages.skipped());
        });
        match received {
            Ok(datagrams) => Ok(Read { datagrams, more: Receiver::may_have_left(datagrams), overrun: told }),
            Err(e) => match e.raw_os_error() {
                Some(libc::ENOBUFS) => Ok(Read { datagrams: 0, more: true, overrun: true }),
                Some(libc::EAGAIN) => Ok(Read { datagrams: 0, more: false, overrun: told }),
                Some(libc::EINTR) => Ok(Read { datagrams: 0, more: true, overrun: told }),
                _ => Err(e),
            },
        }
    }
}

/// How much room for unread events is asked for: 100,000 to 200,000 of them.
const RECEIVE_BUFFER: usize = 32 << 20;

macro_rules! listener {
    ($name:ident) => {
        impl $name {
            /// Takes what is there, up to some dozens of datagrams, so that nothing else waits for long.
            ///
            /// # Errors
            /// What the system says, but that events were lost: see [`Read`].
            pub fn read(&mut self, each: impl FnMut(Event)) -> io::Result<Read> {
                self.0.read(each)
            }

            /// From now on what the socket of this name causes is no event: who wrote it knows how it ended, and each would
            /// wake us once more.
            ///
            /// # Errors
            /// What the system says about the filter.
            pub fn pass_over(&self, port: u32) -> io::Result<()> {
                self.0.pass_over(port)
            }

            /// What was passed over since it was opened.
            #[must_use]
            pub fn skipped(&self) -> Skipped {
                self.0.skipped
            }

            /// Datagrams that found no room since it was opened.
            #[must_use]
            pub fn without_room(&self) -> u32 {
                lost(&self.0.fd)
            }

            /// Bytes that the kernel keeps for what is unread: twice what was asked for, where it was granted.
            ///
            /// # Errors
            /// What the system says.
            pub fn receive_buffer(&self) -> io::Result<usize> {
                receive_buffer(&self.0.fd)
            }

            /// The socket's name in the kernel.
            ///
            /// # Errors
            /// What the system says.
            pub fn port_id(&self) -> io::Result<u32> {
                port_id(&self.0.fd)
            }
        }

        impl AsFd for $name {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.0.fd.as_fd()
            }
        }
    };
}

listener!(Changes);
listener!(Removals);

impl Changes {
    /// The most room that is ever of use: see [`Self::open`].
    pub const RECEIVE_BUFFER: usize = RECEIVE_BUFFER;

    /// Hears of them from now on. `receive_buffer`: bytes of room for what is unread; [`Self::RECEIVE_BUFFER`].
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_ADMIN, `EPROTONOSUPPORT` without netfilter.
    pub fn open(receive_buffer: usize) -> io::Result<Self> {
        let listener = Listener::open(receive_buffer)?;
        listener.join(NEW)?;
        listener.join(UPDATE)?;
        Ok(Self(listener))
    }
}

impl Removals {
    /// The most room that is ever of use: see [`Self::open`].
    pub const RECEIVE_BUFFER: usize = RECEIVE_BUFFER;

    /// Hears of them from now on. `receive_buffer`: as with [`Changes::open`].
    ///
    /// # Errors
    /// As [`Changes::open`].
    pub fn open(receive_buffer: usize) -> io::Result<Self> {
        let listener = Listener::open(receive_buffer)?;
        let fd = listener.fd.as_fd();
        // The kernel learns that we couldn't be told, and tells us later: no reason for an error here.
        set_option(fd, libc::SOL_NETLINK, libc::NETLINK_BROADCAST_ERROR, 1)?;
        set_option(fd, libc::SOL_NETLINK, libc::NETLINK_NO_ENOBUFS, 1)?;
        listener.join(DESTROY)?;
        Ok(Self(listener))
    }
}
