//! TCP connections of routing sessions: dialled or accepted, signed (RFC 2385), guarded by TTL (RFC 5082), bounded in
//! what they hold, and ended in order or at once.
//!
//! An option that protects a session must be in force before its first segment, or there is no session: what can't be
//! set is an error, never a warning.
//!
//! What this module refuses to do: look into what is said; block; hold more than it is given.

mod first;
mod listener;
mod signature;

pub use listener::{Accepted, Listener};
pub use signature::{KEY_MAX, Key};

use super::asyncfd::AsyncDescriptor;
use super::netlink::set_option;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll};
use std::time::Duration;

/// Internetwork control (CS6), as the adverts.
const TOS: u32 = 0xC0;
/// Linux, not in libc for every target.
const IP_MINTTL: i32 = 21;
const IPV6_MINHOPCOUNT: i32 = 73;

/// How far away a neighbour may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hops {
    /// We send with this TTL or hop limit; any is taken.
    Send(u8),
    /// We send with 255 and take nothing that has less than this (RFC 5082).
    AtLeast(u8),
}

/// How a neighbour is reached.
#[derive(Debug, Clone)]
pub struct Way {
    /// Our own address; `None`: as the host routes.
    pub local: Option<IpAddr>,
    /// The neighbour; a link-local address carries its interface as scope.
    pub remote: SocketAddr,
    /// Out of this interface only.
    pub interface: Option<String>,
    /// See [`Hops`].
    pub hops: Hops,
    /// Every segment is signed with this.
    pub key: Option<Key>,
    /// What was sent must be acknowledged within this (TCP_USER_TIMEOUT); zero: as the system has it.
    pub user_timeout: Duration,
}

/// What happened on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happened {
    /// A dialled one stands.
    Connected {
        /// Our end.
        local: SocketAddr,
        /// The neighbour's end.
        remote: SocketAddr,
    },
    /// So many bytes were put into the buffer.
    Received(usize),
    /// The socket took more of what waits; so much still does.
    Queued(usize),
    /// It is over; `None`: the neighbour closed it in order.
    Closed(Option<io::ErrorKind>, String),
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    socket: AsyncDescriptor,
    connecting: bool,
    /// Waits for room in the socket, oldest first; of the first, so much is gone already.
    waiting: VecDeque<Vec<u8>>,
    gone: usize,
    queued: usize,
    /// Nothing more is to be sent after what waits.
    ending: bool,
    over: bool,
}

impl Connection {
    /// Begins to connect. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// An option that was asked for can't be had (`EPERM`, `ENOPROTOOPT`), the interface or local address isn't there
    /// (`ENODEV`, `EADDRNOTAVAIL`), no route (`ENETUNREACH`).
    pub fn dial(way: &Way) -> io::Result<Self> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(way.remote), kind, Some(Protocol::TCP))?;
        if let Some(interface) = &way.interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        common(&socket, way.remote.ip(), way.user_timeout)?;
        guard(&socket, way.remote.ip(), way.hops)?;
        if let Some(key) = &way.key {
            key.sign(socket.as_fd(), way.remote.ip())?;
        }
        if let Some(local) = way.local {
            socket.bind(&local_end(local, way.remote).into())?;
        }
        match socket.connect(&way.remote.into()) {
            Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => return Err(e),
            Ok(()) | Err(_) => {}
        }
        Self::of(socket.into(), true)
    }

    fn of(fd: OwnedFd, connecting: bool) -> io::Result<Self> {
        let socket = AsyncDescriptor::new_duplex(fd)?;
        Ok(Self { socket, connecting, waiting: VecDeque::new(), gone: 0, queued: 0, ending: false, over: false })
    }

    /// Both ends.
    ///
    /// # Errors
    /// It isn't connected.
    pub fn ends(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        let socket = SockRef::from(&self.socket);
        let unknown = || io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
        let local = socket.local_addr()?.as_socket().ok_or_else(unknown)?;
        Ok((local, socket.peer_addr()?.as_socket().ok_or_else(unknown)?))
    }

    /// A second descriptor of the same connection, which keeps it open when this one is gone.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Takes bytes to be sent, all of them, in order; what the socket doesn't take at once waits here. Returns how many
    /// bytes wait.
    pub fn send(&mut self, bytes: Vec<u8>) -> usize {
        if !self.over && !self.ending && !bytes.is_empty() {
            self.queued += bytes.len();
            self.waiting.push_back(bytes);
            if !self.connecting {
                // What went wrong is told by the next poll.
                let _ = self.flush();
            }
        }
        self.queued
    }

    /// How many bytes wait for the socket.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// After what waits the neighbour is told that nothing more comes; the connection ends when it closes its side.
    pub fn end(&mut self) {
        self.ending = true;
        if !self.connecting {
            let _ = self.flush();
        }
    }

    /// Ends it at once, by a reset.
    pub fn abort(self) {
        let _ = SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
    }

    /// What happens next. One task at a time may wait.
    pub fn poll(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Happened> {
        if self.over {
            return Poll::Pending;
        }
        if self.connecting {
            let connected = self.socket.poll_write(cx, |fd| {
                let socket = SockRef::from(&fd);
                if let Some(e) = socket.take_error()? {
                    return Ok(Err(e));
                }
                match socket.peer_addr() {
                    Ok(_) => Ok(Ok(())),
                    Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => Err(io::ErrorKind::WouldBlock.into()),
                    Err(e) => Ok(Err(e)),
                }
            });
            match connected {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(Ok(()))) => {}
                Poll::Ready(Ok(Err(e)) | Err(e)) => return self.closed(Some(&e)),
            }
            self.connecting = false;
            // It was told to end meanwhile. What goes wrong with that is told by the next poll.
            let _ = self.ended();
            return match self.ends() {
                Ok((local, remote)) => Poll::Ready(Happened::Connected { local, remote }),
                Err(e) => self.closed(Some(&e)),
            };
        }
        if self.queued > 0 {
            let before = self.queued;
            match self.poll_flush(cx) {
                Poll::Ready(Err(e)) => return self.closed(Some(&e)),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            if self.queued < before {
                return Poll::Ready(Happened::Queued(self.queued));
            }
        }
        let received = self.socket.poll_read(cx, |fd| Ok(rustix::net::recv(fd, &mut *buffer, RecvFlags::DONTWAIT)?.0));
        match received {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(0)) => self.closed(None),
            Poll::Ready(Ok(length)) => Poll::Ready(Happened::Received(length)),
            Poll::Ready(Err(e)) => self.closed(Some(&e)),
        }
    }

    fn closed(&mut self, error: Option<&io::Error>) -> Poll<Happened> {
        self.over = true;
        self.waiting.clear();
        self.queued = 0;
        let why = error.map_or_else(|| "the neighbour closed the connection".to_owned(), in_words);
        Poll::Ready(Happened::Closed(error.map(io::Error::kind), why))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.queued > 0 {
            let Some(first) = self.waiting.front().and_then(|bytes| bytes.get(self.gone..)) else { break };
            let sent = self.socket.poll_write(cx, |fd| Ok(rustix::net::send(fd, first, flags())?));
            match sent {
                Poll::Ready(Ok(length)) => self.took(length),
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(self.ended())
    }

    /// As far as the socket takes it now.
    fn flush(&mut self) -> io::Result<()> {
        while self.queued > 0 {
            let Some(first) = self.waiting.front().and_then(|bytes| bytes.get(self.gone..)) else { break };
            let length = rustix::net::send(&self.socket, first, flags())?;
            self.took(length);
        }
        self.ended()
    }

    fn ended(&self) -> io::Result<()> {
        if self.ending && self.queued == 0 {
            rustix::net::shutdown(&self.socket, Shutdown::Write)?;
        }
        Ok(())
    }

    fn took(&mut self, length: usize) {
        self.queued -= length.min(self.queued);
        self.gone += length;
        if self.waiting.front().is_some_and(|bytes| bytes.len() <= self.gone) {
            self.waiting.pop_front();
            self.gone = 0;
        }
    }
}

fn flags() -> SendFlags {
    SendFlags::DONTWAIT | SendFlags::NOSIGNAL
}

/// What went wrong, for the neighbour's line in `status`.
#[must_use]
pub fn in_words(e: &io::Error) -> String {
    let known = match e.raw_os_error() {
        Some(libc::ECONNREFUSED) => "nobody listens there (connection refused)",
        Some(libc::ECONNRESET) => "the neighbour reset the connection",
        Some(libc::ETIMEDOUT) => "no answer: wrong address, a firewall, or the two keys differ",
        Some(libc::EHOSTUNREACH) => "the host doesn't answer on the segment, or a router says it is unreachable",
        Some(libc::ENETUNREACH) => "no route to the neighbour",
        Some(libc::EADDRNOTAVAIL) => "our own address (source) isn't on this host",
        Some(libc::ENODEV) => "the interface isn't there",
        Some(libc::EPERM | libc::EACCES) => "not permitted: a firewall or a missing capability",
        _ => return e.to_string(),
    };
    known.to_owned()
}

/// What every connection has.
fn common(socket: &Socket, remote: IpAddr, user_timeout: Duration) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    if remote.is_ipv4() {
        socket.set_tos_v4(TOS)?
    } else {
        socket.set_tclass_v6(TOS)?
    }
    if !user_timeout.is_zero() {
        socket.set_tcp_user_timeout(Some(user_timeout))?;
    }
    Ok(())
}

/// TTL or hop limit, both ways.
fn guard(socket: &Socket, remote: IpAddr, hops: Hops) -> io::Result<()> {
    let (send, least) = match hops {
        Hops::Send(hops) => (hops, 0),
        Hops::AtLeast(least) => (u8::MAX, least),
    };
    if remote.is_ipv4() {
        socket.set_ttl_v4(send.into())?;
        if least > 0 {
            set_option(socket.as_fd(), libc::IPPROTO_IP, IP_MINTTL, least.into())?;
        }
    } else {
        socket.set_unicast_hops_v6(send.into())?;
        if least > 0 {
            set_option(socket.as_fd(), libc::IPPROTO_IPV6, IPV6_MINHOPCOUNT, least.into())?;
        }
    }
    Ok(())
}

/// Our address, any port, on the interface of a link-local neighbour.
fn local_end(local: IpAddr, remote: SocketAddr) -> SocketAddr {
    let mut end = SocketAddr::new(local, 0);
    if let (SocketAddr::V6(own), SocketAddr::V6(other)) = (&mut end, remote)
        && own.ip().is_unicast_link_local()
    {
        own.set_scope_id(other.scope_id());
    }
    end
}

#[cfg(test)]
mod tests;
