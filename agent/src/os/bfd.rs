//! UDP for BFD (RFC 5881 sections 4 and 5, RFC 5883 section 5): one socket per family and port that hears all
//! neighbours, and one per session that sends, from a port of its own.
//!
//! What this module refuses to do: look into a packet; block.

use super::netlink::set_option;
use super::vrrp::control_data;
use holdfast_bfd::Datagram;
use holdfast_bfd::wire::{PORT, PORT_MULTIHOP, TTL};
use rustix::net::SendFlags;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

/// Datagrams that one system call takes at most.
pub const BATCH: usize = 16;
/// Longer ones are cut: nothing of ours is.
const LENGTH: usize = 128;
/// Internetwork control (CS6).
const TOS: u32 = 0xC0;
/// TC_PRIO_CONTROL: in front of the traffic in the interface's own queue.
const QUEUE_PRIORITY: u32 = 7;
/// In bytes, of which the kernel counts about 800 for a datagram: what comes while we are stalled.
const RECEIVE_BUFFER: usize = 1 << 20;

/// The family and kind of sessions that a [`Receiver`] hears.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// IPv6, else IPv4.
    pub v6: bool,
    /// Port 4784, else 3784.
    pub multihop: bool,
}

impl Kind {
    /// The port.
    #[must_use]
    pub const fn port(self) -> u16 {
        if self.multihop { PORT_MULTIHOP } else { PORT }
    }

    fn domain(self) -> Domain {
        if self.v6 { Domain::IPV6 } else { Domain::IPV4 }
    }

    fn any(self, port: u16) -> SocketAddr {
        let ip = if self.v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        SocketAddr::new(ip, port)
    }
}

/// Hears all neighbours of one kind.
#[derive(Debug)]
pub struct Receiver {
    kind: Kind,
    socket: Socket,
}

impl Receiver {
    /// Binds the port on all addresses. Over one hop the kernel throws away what has not come with TTL 255.
    ///
    /// # Errors
    /// `EADDRINUSE`: another BFD speaker is on this host; `EAFNOSUPPORT`: the host has no IPv6.
    pub fn open(kind: Kind) -> io::Result<Self> {
        let socket = Socket::new(kind.domain(), Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
        if kind.v6 {
            socket.set_only_v6(true)?;
            set_option(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
            socket.set_recv_hoplimit_v6(true)?;
        } else {
            set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
            set_option(socket.as_fd(), libc::IPPROTO_IP, libc::IP_RECVTTL, 1)?;
        }
        if !kind.multihop {
            socket.attach_filter(&from_this_link(kind.v6))?;
        }
        if nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        }
        socket.bind(&kind.any(kind.port()).into())?;
        Ok(Self { kind, socket })
    }

    /// Takes what is there, up to [`BATCH`], in one system call. Returns whether there may be more.
    ///
    /// # Errors
    /// `WouldBlock`: nothing was there. The batch is empty after an error.
    pub fn receive(&self, batch: &mut Batch) -> io::Result<bool> {
        batch.fill(self.socket.as_fd(), self.kind)?;
        Ok(batch.count == BATCH)
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The hop limit stands in the IP header, which a filter on a UDP socket can still see.
fn from_this_link(v6: bool) -> [SockFilter; 4] {
    const LD_BYTE: u16 = 0x30;
    const JEQ: u16 = 0x15;
    const RET: u16 = 0x06;
    let at = libc::SKF_NET_OFF + if v6 { 7 } else { 8 };
    [
        SockFilter::new(LD_BYTE, 0, 0, at as u32),
        SockFilter::new(JEQ, 0, 1, u32::from(TTL)),
        SockFilter::new(RET, 0, 0, u32::MAX),
        SockFilter::new(RET, 0, 0, 0),
    ]
}

/// Sends for one session.
#[derive(Debug)]
pub struct Sender {
    socket: Socket,
    to: SocketAddr,
}

/// From where to where a [`Sender`] sends.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    /// Our address; `None`: the kernel chooses.
    pub local: Option<IpAddr>,
    /// The neighbour's.
    pub remote: IpAddr,
    /// The interface to be bound to.
    pub ifindex: Option<u32>,
    /// Port 4784, else 3784.
    pub multihop: bool,
}

impl Path {
    /// What a neighbour on it is heard by.
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind { v6: self.remote.is_ipv6(), multihop: self.multihop }
    }

    fn on_link(&self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V4(ip) => SocketAddrV4::new(ip, port).into(),
            IpAddr::V6(ip) => {
                let scope = if ip.is_unicast_link_local() { self.ifindex.unwrap_or_default() } else { 0 };
                SocketAddrV6::new(ip, port, 0, scope).into()
            }
        }
    }
}

impl Sender {
    /// Binds the port: TTL 255, CS6, and nothing is received.
    ///
    /// # Errors
    /// `EADDRINUSE` for the port, `EADDRNOTAVAIL` while the address isn't on this host, `ENODEV`, `EAFNOSUPPORT`.
    pub fn open(path: &Path, port: u16) -> io::Result<Self> {
        let kind = path.kind();
        let socket = Socket::new(kind.domain(), Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
        socket.attach_filter(&[SockFilter::new(0x06, 0, 0, 0)])?;
        let no_device = || io::Error::from_raw_os_error(libc::ENODEV);
        let index = path.ifindex.map(|index| NonZeroU32::new(index).ok_or_else(no_device)).transpose()?;
        if kind.v6 {
            socket.set_only_v6(true)?;
            socket.bind_device_by_index_v6(index)?;
            socket.set_unicast_hops_v6(u32::from(TTL))?;
            socket.set_tclass_v6(TOS)?;
        } else {
            socket.bind_device_by_index_v4(index)?;
            socket.set_ttl_v4(u32::from(TTL))?;
            socket.set_tos_v4(TOS)?;
        }
        // Without the capability for it the packets are still CS6.
        let _ = socket.set_priority(QUEUE_PRIORITY);
        let from = path.local.map_or_else(|| kind.any(port), |ip| path.on_link(ip, port));
        socket.bind(&from.into())?;
        Ok(Self { socket, to: path.on_link(path.remote, kind.port()) })
    }

    /// Sends one packet.
    ///
    /// # Errors
    /// What the system says; `WouldBlock` or `ENOBUFS` when a queue is full.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        rustix::net::sendto(&self.socket, packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &self.to)?;
        Ok(())
    }
}

/// Room for [`BATCH`] datagrams.
pub struct Batch {
    rooms: Box<[Room; BATCH]>,
    count: usize,
    kind: Kind,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("count", &self.count).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Room {
    control: [u8; 96],
    bytes: [u8; LENGTH],
    length: usize,
    from: libc::sockaddr_in6,
    beside: Beside,
}

/// What stands beside a datagram.
#[derive(Debug, Clone, Copy, Default)]
struct Beside {
    to: Option<IpAddr>,
    ifindex: u32,
    ttl: u8,
}

impl Default for Batch {
    fn default() -> Self {
        let room = Room {
            control: [0; 96],
            bytes: [0; LENGTH],
            length: 0,
            // SAFETY: integers only, for which zero is a value.
            from: unsafe { zeroed() },
            beside: Beside::default(),
        };
        Self { rooms: Box::new([room; BATCH]), count: 0, kind: Kind { v6: false, multihop: false } }
    }
}

impl Batch {
    /// The datagrams in the order in which they came.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        self.rooms.iter().take(self.count).map(|room| Datagram {
            bytes: room.bytes.get(..room.length).unwrap_or(&room.bytes),
            from: source(&room.from),
            to: room.beside.to,
            ifindex: room.beside.ifindex,
            ttl: room.beside.ttl,
            multihop: self.kind.multihop,
        })
    }

    fn fill(&mut self, socket: BorrowedFd<'_>, kind: Kind) -> io::Result<()> {
        (self.count, self.kind) = (0, kind);
        // SAFETY: integers and pointers only, for which zero is a value.
        let mut parts: [libc::iovec; BATCH] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
        for ((room, part), header) in self.rooms.iter_mut().zip(&mut parts).zip(&mut headers) {
            *part = libc::iovec { iov_base: room.bytes.as_mut_ptr().cast(), iov_len: LENGTH };
            let header = &mut header.msg_hdr;
            header.msg_name = ptr::from_mut(&mut room.from).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in6>() as _;
            header.msg_iov = part;
            header.msg_iovlen = 1;
            header.msg_control = room.control.as_mut_ptr().cast();
            header.msg_controllen = room.control.len() as _;
        }
        // SAFETY: `BATCH` headers, each pointing to a name, a control buffer, one part and its buffer with the lengths
        // that they have; all of them live until the end of this function and are used by nobody else meanwhile.
        let received = unsafe {
            let flags = libc::MSG_DONTWAIT as _;
            libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), BATCH as _, flags, ptr::null_mut())
        };
        self.count = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        for (room, header) in self.rooms.iter_mut().zip(&headers).take(self.count) {
            room.length = usize::try_from(header.msg_len).unwrap_or(LENGTH);
            // SAFETY: the kernel has filled this header in, and its control buffer is the room's.
            room.beside = unsafe { Beside::read(&header.msg_hdr) };
        }
        Ok(())
    }
}

impl Beside {
    /// # Safety
    /// The header's control pointer and length must be as the kernel left them, and the buffer alive.
    unsafe fn read(header: &libc::msghdr) -> Self {
        let mut beside = Self::default();
        // SAFETY: the control buffer is alive and as long as the header says.
        let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
        // SAFETY: null or a control header inside the buffer, as is what CMSG_NXTHDR gives.
        while let Some(control) = unsafe { next.as_ref() } {
            match (control.cmsg_level, control.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    // SAFETY: `next` is a control header inside the buffer.
                    if let Some(info) = unsafe { control_data::<libc::in_pktinfo>(next) } {
                        beside.ifindex = u32::try_from(info.ipi_ifindex).unwrap_or_default();
                        beside.to = Some(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into());
                    }
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    // SAFETY: as above.
                    if let Some(info) = unsafe { control_data::<libc::in6_pktinfo>(next) } {
                        beside.ifindex = info.ipi6_ifindex;
                        beside.to = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                    }
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    // SAFETY: as above.
                    if let Some(ttl) = unsafe { control_data::<libc::c_int>(next) } {
                        beside.ttl = u8::try_from(ttl).unwrap_or_default();
                    }
                }
                _ => {}
            }
            // SAFETY: `next` is a control header inside the buffer of `header`.
            next = unsafe { libc::CMSG_NXTHDR(header, next) };
        }
        beside
    }
}

fn source(name: &libc::sockaddr_in6) -> IpAddr {
    if i32::from(name.sin6_family) == libc::AF_INET6 {
        return Ipv6Addr::from(name.sin6_addr.s6_addr).into();
    }
    // SAFETY: a sockaddr_in is shorter than a sockaddr_in6, and both are integers only.
    let v4: libc::sockaddr_in = unsafe { ptr::read_unaligned(ptr::from_ref(name).cast()) };
    Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into()
}

#[cfg(test)]
mod tests;
