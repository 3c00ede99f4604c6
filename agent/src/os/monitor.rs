//! Link and address events of the kernel, complete after any loss.
//!
//! The reader sits directly on a netlink socket (no queue in between): what isn't read stays in the kernel's buffer,
//! and when that overflows everything queued is thrown away and the tables are listed anew.
//!
//! Our routes and rules are listed in the same stream ([`Monitor::list_ours`]).
//!
//! What this module refuses to do: remember the state of the tables, or act on an event.

mod ours;

use super::addr::{AddressSocket, LinkChange, RTM_NEWADDR, parse_address, parse_link};
use super::asyncfd::AsyncDescriptor;
use super::netlink::{BUFFER, next_message};
use holdfast_node::io::{Address, Link};
use holdfast_node::kernel::{Route, Rule};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt, socket, sockopt,
};
use ours::Ours;
use socket2::{SockFilter, SockRef};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::task::{Context, Poll, ready};

/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// Receive buffer in bytes: about 3,000 address events.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Datagrams thrown away before a new listing: more than the receive buffer holds. A flood that goes on meanwhile
/// means another overrun, not an endless loop.
const DISCARD_MAX: usize = 16_384;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MonitorEvent {
    /// The complete state: the first event, and again after each overrun. Events after it may be older than it (they
    /// were on their way): each is still followed by all that came after it.
    Resync {
        /// Every interface.
        links: Vec<Link>,
        /// Every address.
        addresses: Vec<Address>,
    },
    /// An interface is there or changed.
    Link(Link),
    /// An interface is gone.
    LinkGone {
        /// Its index, never used again soon.
        ifindex: u32,
    },
    /// An address is there or was changed (also a refresh of ours).
    Address(Address),
    /// An address is gone.
    AddressGone {
        /// Interface.
        ifindex: u32,
        /// Address.
        ip: IpAddr,
        /// Prefix length.
        prefix: u8,
    },
    /// Every route and rule that carries our mark; only after [`Monitor::list_ours`].
    Ours {
        /// Routes.
        routes: Vec<Route>,
        /// Rules.
        rules: Vec<Rule>,
    },
}

/// Reads the events of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Monitor {
    events: AsyncDescriptor,
    lister: AddressSocket,
    buffer: Vec<u8>,
    /// The unread part of the last datagram is `buffer[next..end]`.
    next: usize,
    end: usize,
    stale: bool,
    overruns: u64,
    ours: Option<Ours>,
}

impl Monitor {
    /// Starts to listen. Must be called inside a tokio runtime; needs no capability.
    ///
    /// # Errors
    /// Whatever the system says about the sockets.
    pub fn open() -> io::Result<Self> {
        Self::open_with_buffer(RECEIVE_BUFFER)
    }

    /// Like [`Self::open`] with a receive buffer of this many bytes.
    ///
    /// # Errors
    /// Whatever the system says about the sockets.
    pub fn open_with_buffer(bytes: usize) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        if setsockopt(&fd, sockopt::RcvBufForce, &bytes).is_err() {
            setsockopt(&fd, sockopt::RcvBuf, &bytes)?;
        }
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
        Ok(Self {
            events: AsyncDescriptor::new(fd)?,
            lister: AddressSocket::open()?,
            buffer: vec![0; BUFFER],
            next: 0,
            end: 0,
            stale: true,
            overruns: 0,
            ours: None,
        })
    }

    /// From now on what this socket ([`AddressSocket::port`]) adds and refreshes of IPv4 is no event: who asked for it knows
    /// how it ended, and hundreds of refreshes a second would each wake us once more. All else is still told: what
    /// anybody else does to these addresses, that they are gone by whosever hand, and IPv6 addresses, which the kernel
    /// finishes later.
    ///
    /// # Errors
    /// Whatever the system says about the filter.
    pub fn pass_over(&mut self, port: u32) -> io::Result<()> {
        SockRef::from(&self.events).attach_filter(&filter(port))
    }

    /// Lists our routes and rules too, once after the first [`MonitorEvent::Resync`]. `follow`: and again whenever
    /// one of them may have changed.
    ///
    /// # Errors
    /// Whatever the system says about the sockets.
    pub fn list_ours(&mut self, follow: bool) -> io::Result<()> {
        self.ours = Some(Ours::open(follow)?);
        Ok(())
    }

    /// How often events were lost.
    #[must_use]
    pub fn overruns(&self) -> u64 {
        self.overruns
    }

    /// The next event. Cancel safe. One call reads at most one datagram with something in it.
    ///
    /// # Errors
    /// The listing after an overrun failed; the next call tries again.
    pub async fn next(&mut self) -> io::Result<MonitorEvent> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Like [`Self::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<MonitorEvent>> {
        loop {
            if self.stale {
                return Poll::Ready(self.resync());
            }
            if let Some(event) = self.buffered() {
                if !matches!(event, MonitorEvent::Address(_)) {
                    self.ours.iter_mut().for_each(Ours::suspect);
                }
                return Poll::Ready(Ok(event));
            }
            let buffer = &mut self.buffer;
            let Poll::Ready(received) = self.events.poll_read(cx, |fd| read(fd, buffer)) else {
                let Some(ours) = &mut self.ours else { return Poll::Pending };
                let (routes, rules) = ready!(ours.poll(cx))?;
                return Poll::Ready(Ok(MonitorEvent::Ours { routes, rules }));
            };
            match received {
                Ok(n) => (self.next, self.end) = (0, n),
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.overruns += 1;
                    self.stale = true;
                }
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }

    /// The next event in the buffer that concerns us.
    fn buffered(&mut self) -> Option<MonitorEvent> {
        loop {
            let mut rest = self.buffer.get(self.next..self.end)?;
            let before = rest.len();
            let Some(message) = next_message(&mut rest) else {
                self.next = self.end;
                return None;
            };
            self.next += before - rest.len();
            if let Some((kind, a)) = parse_address(&message) {
                return Some(if kind == RTM_NEWADDR {
                    MonitorEvent::Address(a)
                } else {
                    MonitorEvent::AddressGone { ifindex: a.ifindex, ip: a.ip, prefix: a.prefix }
                });
            }
            match parse_link(&message) {
                Some(LinkChange::There(link)) => return Some(MonitorEvent::Link(link)),
                Some(LinkChange::Gone(ifindex)) => return Some(MonitorEvent::LinkGone { ifindex }),
                None => {}
            }
        }
    }

    /// Throws away what is queued (the kernel queues nothing new until an overrun buffer is empty), then lists.
    fn resync(&mut self) -> io::Result<MonitorEvent> {
        (self.next, self.end) = (0, 0);
        for _ in 0..DISCARD_MAX {
            match read(self.events.as_fd(), &mut self.buffer) {
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => self.overruns += 1,
                Err(_) => break,
            }
        }
        let links = self.lister.dump_links()?;
        let addresses = self.lister.dump_addresses()?;
        self.stale = false;
        self.ours.iter_mut().for_each(Ours::suspect);
        Ok(MonitorEvent::Resync { links, addresses })
    }
}

/// Lets pass all but additions and refreshes that this socket asked for.
fn filter(port: u32) -> [SockFilter; 6] {
    let load = |size: u32, at: u32| SockFilter::new((libc::BPF_LD | size | libc::BPF_ABS) as u16, 0, 0, at);
    let equal = |value: u32, otherwise: u8| {
        SockFilter::new((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, otherwise, value)
    };
    let end = |bytes: u32| SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, bytes);
    // Values are loaded as if they were in network order. Jumps count the instructions that are left out.
    let kind = u32::from(u16::from_be_bytes(RTM_NEWADDR.to_ne_bytes()));
    let port = u32::from_be_bytes(port.to_ne_bytes());
    [load(libc::BPF_H, 4), equal(kind, 3), load(libc::BPF_W, 12), equal(port, 1), end(0), end(u32::MAX)]
}

fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match recv(fd.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EINTR) => {}
            other => return other.map_err(io::Error::from),
        }
    }
}
