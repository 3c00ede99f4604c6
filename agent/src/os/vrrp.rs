//! Raw sockets for VRRP over IPv4 (protocol 112, group 224.0.0.18), one pair per interface.
//!
//! Receiving and sending are apart: the keeper holds a duplicate of the sending one to resign on a dead worker's
//! behalf, and must never take a packet away from the next worker.
//!
//! What this module refuses to do: look into a packet (the decoder of `holdfast_vrrp` checks TTL and all else, and
//! counts what it refuses); block.

use super::asyncfd::AsyncDescriptor;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::io::{self, IoSlice};
use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::task::{Context, Poll};

/// RFC 9568 section 5.1.1.2.
pub const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 18);

/// RFC 9568 section 5.1.1.4.
const PROTOCOL: i32 = 112;

/// RFC 9568 section 5.1.1.3.
const TTL: u32 = 255;

/// Internetwork control (CS6), as routing protocols do.
const TOS: u32 = 0xC0;

/// TC_PRIO_CONTROL: in front of the traffic in the interface's own queue.
const QUEUE_PRIORITY: u32 = 7;

/// Receive buffer in bytes (the kernel counts about 800 for an advert, and doubles this): what arrives while the loop is
/// stalled, 10,000 packets of garbage a second for half a second included.
const RECEIVE_BUFFER: usize = 2 << 20;

/// Largest packet worth reading: 255 addresses and the largest IPv4 header fit.
pub const PACKET_MAX: usize = 1500;

/// Receives adverts on one interface.
#[derive(Debug)]
pub struct VrrpReceiver {
    ifindex: u32,
    socket: AsyncDescriptor,
}

impl VrrpReceiver {
    /// Opens the socket, joins the group. Must be called inside a tokio runtime; needs CAP_NET_RAW.
    ///
    /// # Errors
    /// Whatever the system says: `ENODEV` when there is no such interface.
    pub fn open(ifindex: u32) -> io::Result<Self> {
        let socket = raw_socket(ifindex)?;
        grow_receive_buffer(&socket)?;
        socket.join_multicast_v4_n(&GROUP, &socket2::InterfaceIndexOrAddress::Index(ifindex))?;
        socket.detach_filter()?;
        Ok(Self { ifindex, socket: AsyncDescriptor::new(socket.into())? })
    }

    /// The interface.
    #[must_use]
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Waits for a packet: the whole IPv4 packet, header included. A larger one than `buffer` is cut.
    ///
    /// # Errors
    /// What the socket says, for example `ENETDOWN` once when the interface goes down; the socket stays usable.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.read(|fd| receive(fd, buffer)).await
    }

    /// Like [`Self::recv`]. One task at a time may wait.
    pub fn poll_recv(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.socket.poll_read(cx, |fd| receive(fd, buffer))
    }

    /// A packet, if one is there.
    ///
    /// # Errors
    /// `WouldBlock`: none; else like [`Self::recv`].
    pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        receive(self.socket.as_fd(), buffer)
    }
}

/// Sends adverts on one interface.
#[derive(Debug)]
pub struct VrrpSender {
    ifindex: u32,
    socket: Socket,
}

/// Opens a sending socket: bound to the interface, group's interface set, TTL 255. Needs CAP_NET_RAW.
///
/// # Errors
/// Whatever the system says: `ENODEV` when there is no such interface.
pub fn open_send(ifindex: u32) -> io::Result<VrrpSender> {
    let socket = raw_socket(ifindex)?;
    // The filter that refuses all stays: nobody reads here, so nothing may queue.
    socket.set_multicast_ttl_v4(TTL)?;
    socket.set_ttl_v4(TTL)?;
    socket.set_tos_v4(TOS)?;
    socket.set_priority(QUEUE_PRIORITY)?;
    Ok(VrrpSender { ifindex, socket })
}

impl VrrpSender {
    /// The interface.
    #[must_use]
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Sends this VRRP payload to the group; see [`send`].
    ///
    /// # Errors
    /// See [`send`].
    pub fn send(&self, source: Ipv4Addr, payload: &[u8]) -> io::Result<()> {
        send(self.as_fd(), self.ifindex, source, payload)
    }
}

impl AsFd for VrrpSender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for VrrpSender {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Sends a VRRP payload to the group from `source` through a socket of [`open_send`] or a duplicate. Never blocks.
///
/// # Errors
/// `ENETUNREACH` (older kernels: `EINVAL`) when `source` is no address of this host, `ENETDOWN`, `ENXIO` or `ENODEV` for the interface, `EPERM` from
/// a packet filter, `WouldBlock` or `ENOBUFS` when the queue is full.
pub fn send(socket: BorrowedFd<'_>, ifindex: u32, source: Ipv4Addr, payload: &[u8]) -> io::Result<()> {
    let info = libc::in_pktinfo {
        ipi_ifindex: i32::try_from(ifindex).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?,
        ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(source.octets()) },
        ipi_addr: libc::in_addr { s_addr: 0 },
    };
    let group = SockaddrIn::from(std::net::SocketAddrV4::new(GROUP, 0));
    let sent = sendmsg(
        socket.as_raw_fd(),
        &[IoSlice::new(payload)],
        &[ControlMessage::Ipv4PacketInfo(&info)],
        MsgFlags::MSG_DONTWAIT,
        Some(&group),
    )?;
    if sent == payload.len() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EMSGSIZE)) }
}

/// What both directions share: non-blocking, bound to the interface, never hears itself; and it takes no packet yet,
/// since until it's bound it would take those of every interface.
fn raw_socket(ifindex: u32) -> io::Result<Socket> {
    let index = NonZeroU32::new(ifindex).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
    let socket = Socket::new(Domain::IPV4, Type::RAW.nonblocking().cloexec(), Some(Protocol::from(PROTOCOL)))?;
    socket.attach_filter(&[SockFilter::new(0x06, 0, 0, 0)])?; // BPF: return 0
    socket.set_multicast_all_v4(false)?;
    socket.bind_device_by_index_v4(Some(index))?;
    socket.set_multicast_loop_v4(false)?;
    Ok(socket)
}

/// Beyond the host's limit where we may, else as far as it allows.
fn grow_receive_buffer(socket: &Socket) -> io::Result<()> {
    if nix::sys::socket::setsockopt(socket, nix::sys::socket::sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    }
    Ok(())
}

fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    nix::sys::socket::recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT).map_err(io::Error::from)
}
