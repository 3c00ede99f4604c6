//! The socket of the peers' channel.
//!
//! What this module refuses to do: look into a datagram; block.

use super::asyncfd::AsyncDescriptor;
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

/// Receive buffer in bytes: seconds of reports while the loop is stalled.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Internetwork control (CS6), as the adverts.
const TOS: u32 = 0xC0;

/// What the flow lanes' datagrams are marked with (CS2): never in the way of adverts and verdicts.
const TOS_FLOWS: u32 = 0x40;
/// Their receive buffer: two windows of each of eight peers.
const RECEIVE_BUFFER_FLOWS: usize = 16 << 20;

/// One bound UDP socket.
#[derive(Debug)]
pub struct UdpChannel {
    socket: AsyncDescriptor,
}

impl UdpChannel {
    /// Binds. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` while the address isn't on this host, `EADDRINUSE`, `EACCES` below port 1024.
    pub fn bind(listen: SocketAddr) -> io::Result<Self> {
        Self::bind_as(listen, TOS, RECEIVE_BUFFER)
    }

    /// The same for the flow lanes.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn bind_for_flows(listen: SocketAddr) -> io::Result<Self> {
        Self::bind_as(listen, TOS_FLOWS, RECEIVE_BUFFER_FLOWS)
    }

    fn bind_as(listen: SocketAddr, tos: u32, receive_buffer: usize) -> io::Result<Self> {
        let kind = Type::DGRAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(listen), kind, Some(Protocol::UDP))?;
        if nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &receive_buffer).is_err() {
            socket.set_recv_buffer_size(receive_buffer)?;
        }
        if listen.is_ipv4() {
            socket.set_tos_v4(tos)?;
        } else {
            socket.set_only_v6(true)?;
            socket.set_tclass_v6(tos)?;
        }
        socket.bind(&listen.into())?;
        Ok(Self { socket: AsyncDescriptor::new(socket.into())? })
    }

    /// The next datagram: its length (a larger one than `buffer` is cut) and sender. One task at a time may wait.
    ///
    /// # Errors
    /// What the socket says, for example an ICMP error of an earlier send; it stays usable.
    pub fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<(usize, SocketAddr)>> {
        self.socket.poll_read(cx, |fd| {
            let (length, _, from) = rustix::net::recvfrom(fd, &mut *buffer, RecvFlags::DONTWAIT)?;
            let from = from.and_then(|a| SocketAddr::try_from(a).ok());
            let from = from.ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))?;
            Ok((length, from))
        })
    }

    /// Sends one datagram.
    ///
    /// # Errors
    /// What the system says; `WouldBlock` when the queue is full.
    pub fn send(&self, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
        rustix::net::sendto(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &to)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::os::fd::AsFd;

    #[tokio::test]
    async fn a_datagram_arrives_with_its_sender() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let any: SocketAddr = any.parse().expect("an address");
            let (a, b) = match (UdpChannel::bind(any), UdpChannel::bind(any)) {
                (Ok(a), Ok(b)) => (a, b),
                // A host without IPv6.
                (Err(e), _) if any.is_ipv6() && e.raw_os_error() == Some(libc::EADDRNOTAVAIL) => continue,
                other => panic!("{other:?}"),
            };
            let address = |s: &UdpChannel| {
                let local = rustix::net::getsockname(s.socket.as_fd()).expect("bound");
                SocketAddr::try_from(local).expect("an IP address")
            };
            a.send(address(&b), b"hello").expect("sent");
            let mut buffer = [0; 64];
            let (n, from) = poll_fn(|cx| b.poll_recv(cx, &mut buffer)).await.expect("received");
            assert_eq!((buffer.get(..n), from), (Some(b"hello".as_slice()), address(&a)));
        }
    }
}
