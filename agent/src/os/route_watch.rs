//! Sees when a route or rule of ours is taken away by somebody else.
//!
//! The kernel filters: a host with a whole routing table of the Internet changes routes all the time, and none of that
//! wakes us. It doesn't tell of everything: IPv4 routes that go with their interface or with their source address go
//! silently. Whoever keeps routes looks at what is left ([`super::route::RouteSocket::our_routes`]) when this says so,
//! and after each event of a link or an address.
//!
//! What this module refuses to do: say which one it was (what is there counts), or put it back.

use super::asyncfd::AsyncDescriptor;
use super::netlink::{BUFFER, HEADER};
use super::route::{PROTOCOL, RTM_DELROUTE};
use super::rule::RTM_DELRULE;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket};
use socket2::{SockFilter, SockRef};
use std::io;
use std::os::fd::AsRawFd;
use std::task::{Context, Poll, ready};

/// RTMGRP_IPV4_ROUTE, RTMGRP_IPV4_RULE, RTMGRP_IPV6_ROUTE, RTNLGRP_IPV6_RULE.
const GROUPS: u32 = 0x40 | 0x80 | 0x400 | 1 << 18;
/// Read at once; what is left wakes us again.
const READS: usize = 64;

/// Listens in the network namespace in which it was opened.
#[derive(Debug)]
pub struct RouteWatch {
    events: AsyncDescriptor,
    buffer: Vec<u8>,
}

impl RouteWatch {
    /// Starts to listen. Must be called inside a tokio runtime; needs no capability.
    ///
    /// # Errors
    /// Whatever the system says about the socket.
    pub fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        // Before the bind: nothing comes unfiltered.
        SockRef::from(&fd).attach_filter(&filter())?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
        Ok(Self { events: AsyncDescriptor::new(fd)?, buffer: vec![0; BUFFER] })
    }

    /// Waits until a route of ours, or any rule, is gone (or that might be: events were lost). Cancel safe.
    ///
    /// # Errors
    /// What the socket says; the next call tries again.
    pub async fn gone(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_gone(cx)).await
    }

    /// Like [`Self::gone`].
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let buffer = &mut self.buffer;
        ready!(self.events.poll_read(cx, |fd| {
            let mut some = false;
            for _ in 0..READS {
                match recv(fd.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
                    // Lost ones count as one that concerns us.
                    Ok(_) | Err(nix::errno::Errno::ENOBUFS) => some = true,
                    Err(nix::errno::Errno::EINTR) => {}
                    Err(nix::errno::Errno::EAGAIN) if some => return Ok(()),
                    Err(e) => return Err(e.into()),
                }
            }
            Ok(())
        }))?;
        Poll::Ready(Ok(()))
    }
}

/// Lets pass what says that a rule is gone, or a route of our protocol.
fn filter() -> [SockFilter; 7] {
    let code = |parts: u32| u16::try_from(parts).expect("a few bits");
    let load = |size: u32, at: usize| {
        let at = u32::try_from(at).expect("within the headers");
        SockFilter::new(code(libc::BPF_LD | size | libc::BPF_ABS), 0, 0, at)
    };
    let equal = |value: u32, then: u8, otherwise: u8| {
        SockFilter::new(code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K), then, otherwise, value)
    };
    let end = |bytes| SockFilter::new(code(libc::BPF_RET | libc::BPF_K), 0, 0, bytes);
    // Values are loaded as if they were in network order.
    let kind = |kind: u16| u32::from(u16::from_be_bytes(kind.to_ne_bytes()));
    // Jumps count the instructions that are left out.
    [
        load(libc::BPF_H, 4),
        equal(kind(RTM_DELRULE), 3, 0),
        equal(kind(RTM_DELROUTE), 0, 3),
        load(libc::BPF_B, HEADER + 5),
        equal(PROTOCOL.into(), 0, 1),
        end(u32::MAX),
        end(0),
    ]
}
