//! Tells when somebody else changes the embedded balancer's table: a flush of the whole rule set comes without a word.
//!
//! What this module refuses to do: say what was changed. Whoever keeps the table puts all of it back.

use super::super::asyncfd::AsyncDescriptor;
use super::super::netlink::{next_message, set_option};
use super::batch::{BALANCE_TABLE, SUBSYSTEM};
use super::socket::attribute;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::task::{Context, Poll};

/// `NFNLGRP_NFTABLES`.
const GROUP: i32 = 7;
/// The kernel makes datagrams of at most this.
const BUFFER: usize = 64 * 1024;
/// Datagrams read in one look; the rest is thrown away unread, as if it had been lost.
const DATAGRAMS_MAX: usize = 64;

/// How often nf_tables was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(pub u32);

impl Generation {
    /// After one more change.
    #[must_use]
    pub fn next(self) -> Self {
        // The kernel passes over 0.
        Self(self.0.checked_add(1).unwrap_or(1))
    }
}

/// Whether the watch hears anything.
#[derive(Debug)]
pub struct Membership(OwnedFd);

impl Membership {
    /// From now on it does.
    pub fn join(&self) {
        // Without it only the next change of ours finds out that the table was flushed.
        let _ = set_option(self.0.as_fd(), libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, GROUP);
    }

    /// From now on it doesn't.
    pub fn leave(&self) {
        let _ = set_option(self.0.as_fd(), libc::SOL_NETLINK, libc::NETLINK_DROP_MEMBERSHIP, GROUP);
    }
}

/// Hears of changes to nf_tables, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct TableWatch {
    events: AsyncDescriptor,
    buffer: Vec<u8>,
}

impl TableWatch {
    /// Opens the socket. Must be called inside a tokio runtime; needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// Whatever the system says about the socket.
    pub fn open() -> io::Result<(Self, Membership)> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        set_option(fd.as_fd(), libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, GROUP)?;
        let membership = Membership(fd.try_clone()?);
        Ok((Self { events: AsyncDescriptor::new(fd)?, buffer: vec![0; BUFFER] }, membership))
    }

    /// Ready when somebody changed our table, or events were lost.
    pub fn poll_touched(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let buffer = &mut self.buffer;
            let read = self.events.poll_read(cx, |fd| {
                let mut touched = false;
                for n in 0..DATAGRAMS_MAX {
                    match recv(fd.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
                        Ok(length) => touched |= is_ours(buffer.get(..length).unwrap_or_default()),
                        Err(Errno::EINTR) => {}
                        Err(Errno::EAGAIN) if n > 0 => return Ok(touched),
                        Err(Errno::ENOBUFS) => touched = true,
                        Err(e) => return Err(e.into()),
                    }
                }
                Ok(true)
            });
            match read {
                Poll::Ready(Ok(false)) => {}
                // An error of the socket may have hidden an event.
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// Whether a datagram of events is about our table.
fn is_ours(mut datagram: &[u8]) -> bool {
    while let Some(message) = next_message(&mut datagram) {
        // Tables, chains, rules, sets and elements all begin with the name of the table.
        let table = message.payload.get(4..).and_then(|body| attribute(body, 1));
        let name = table.map(|name| name.strip_suffix(&[0]).unwrap_or(name));
        if message.kind >> 8 == SUBSYSTEM && name == Some(BALANCE_TABLE.as_bytes()) {
            return true;
        }
    }
    false
}
