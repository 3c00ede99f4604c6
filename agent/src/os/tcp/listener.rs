//! The listening socket of a family.

use super::super::asyncfd::AsyncDescriptor;
use super::signature::{self, Key};
use super::{Connection, Hops, TOS, common, first, guard};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll};
use std::time::Duration;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// Takes connections of neighbours.
#[derive(Debug)]
pub struct Listener {
    socket: AsyncDescriptor,
}

/// A connection that nobody has looked at yet.
#[derive(Debug)]
pub struct Accepted {
    socket: OwnedFd,
    /// Who it is.
    pub remote: SocketAddr,
    /// Whom they called.
    pub local: SocketAddr,
}

impl Listener {
    /// Listens; `0.0.0.0` or `::` for all addresses of the family. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// `EADDRINUSE`: another speaker has the port; `EACCES` below port 1024 without the capability; `EADDRNOTAVAIL`.
    pub fn bind(listen: SocketAddr) -> io::Result<Self> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(listen), kind, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        // The answer to a neighbour's SYN is judged by its TTL before anybody here has seen the connection.
        if listen.is_ipv4() {
            socket.set_ttl_v4(255)?;
            socket.set_tos_v4(TOS)?;
        } else {
            socket.set_only_v6(true)?;
            socket.set_unicast_hops_v6(255)?;
            socket.set_tclass_v6(TOS)?;
        }
        first::keep(socket.as_fd())?;
        socket.bind(&listen.into())?;
        socket.listen(BACKLOG)?;
        Ok(Self { socket: AsyncDescriptor::new(socket.into())? })
    }

    /// From now on only signed segments of `remote` are taken; `None`: none needs to be.
    ///
    /// # Errors
    /// `ENOPROTOOPT`: the kernel can't.
    pub fn set_key(&self, remote: IpAddr, key: Option<&Key>) -> io::Result<()> {
        match key {
            Some(key) => key.sign(self.socket.as_fd(), remote),
            None => signature::forget(self.socket.as_fd(), remote),
        }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// None that can be met.
    pub fn address(&self) -> io::Result<SocketAddr> {
        let address = SockRef::from(&self.socket).local_addr()?;
        address.as_socket().ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))
    }

    /// The next connection. One task at a time may wait.
    ///
    /// # Errors
    /// What the system says; the socket stays usable.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        self.socket.poll_read(cx, |fd| {
            let (socket, remote) = SockRef::from(&fd).accept4(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)?;
            let unknown = || io::Error::from_raw_os_error(libc::ECONNABORTED);
            let remote = remote.as_socket().ok_or_else(unknown)?;
            let local = socket.local_addr()?.as_socket().ok_or_else(unknown)?;
            Ok(Accepted { socket: socket.into(), remote, local })
        })
    }
}

impl Accepted {
    /// Takes it, guarded as this neighbour's connections are.
    ///
    /// # Errors
    /// An option that was asked for can't be had, or it began too far away (`EHOSTUNREACH`): there is no connection then.
    pub fn take(self, hops: Hops, user_timeout: Duration) -> io::Result<Connection> {
        let socket = Socket::from(self.socket);
        common(&socket, self.remote.ip(), user_timeout)?;
        guard(&socket, self.remote.ip(), hops)?;
        // The guard is for what comes from now on.
        if let Hops::AtLeast(least) = hops
            && first::ttl(socket.as_fd())? < least
        {
            socket.set_linger(Some(Duration::ZERO))?;
            return Err(io::Error::from_raw_os_error(libc::EHOSTUNREACH));
        }
        Connection::of(socket.into(), false)
    }

    /// Resets it.
    pub fn refuse(self) {
        let _ = SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
    }
}
