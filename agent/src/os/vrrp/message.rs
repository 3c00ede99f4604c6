//! Packets with what the kernel says and is told beside them: addresses, interface, hop limit; one or many per system
//! call.
//!
//! Synchronous and on a bare descriptor, so that the keeper can send through its duplicates.

use super::{Family, PACKET_MAX};
pub use holdfast_node::io::Packet;
use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Packets that one system call takes at most.
pub const RECEIVE_BATCH: usize = 32;

/// Packets that one system call sends at most.
const SEND_BATCH: usize = 64;

/// A packet to send.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// An address of this host.
    pub source: IpAddr,
    /// Where it leaves, if the destination is the group or a link-local address; else the routes decide.
    pub ifindex: u32,
    /// The group or a peer.
    pub destination: IpAddr,
    /// The VRRP message, checksum included.
    pub payload: &'a [u8],
}

/// A packet and where it came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard<'a> {
    /// Interface; 0 if the kernel didn't say.
    pub ifindex: u32,
    /// The packet.
    pub packet: Packet<'a>,
}

/// Room for [`RECEIVE_BATCH`] packets.
#[derive(Debug)]
pub struct Batch {
    buffers: Vec<[u8; PACKET_MAX]>,
    metas: Vec<Meta>,
    family: Family,
    interface: Option<u32>,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// Empty.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buffers: vec![[0; PACKET_MAX]; RECEIVE_BATCH],
            metas: Vec::with_capacity(RECEIVE_BATCH),
            family: Family::V4,
            interface: None,
        }
    }

    /// How many packets it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.metas.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.metas.is_empty()
    }

    /// The packets in the order in which they came.
    pub fn packets(&self) -> impl Iterator<Item = Heard<'_>> {
        let packets = self.metas.iter().zip(&self.buffers);
        packets.map(|(meta, buffer)| meta.heard(self.family, self.interface, buffer))
    }

    /// Takes what is there. The batch is empty after an error.
    pub(super) fn fill(&mut self, socket: BorrowedFd<'_>, family: Family, interface: Option<u32>) -> io::Result<()> {
        self.metas.clear();
        (self.family, self.interface) = (family, interface);
        let mut names = [NO_NAME; RECEIVE_BATCH];
        let mut controls = [Control::EMPTY; RECEIVE_BATCH];
        // SAFETY: integers and pointers only, for which zero is a value.
        let mut parts: [libc::iovec; RECEIVE_BATCH] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut headers: [libc::mmsghdr; RECEIVE_BATCH] = unsafe { zeroed() };
        let room = self.buffers.iter_mut().zip(&mut names).zip(&mut controls).zip(&mut parts).zip(&mut headers);
        for ((((buffer, name), control), part), header) in room {
            *part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            incoming(&mut header.msg_hdr, name, control, part);
        }
        let count = libc::c_uint::try_from(RECEIVE_BATCH).expect("a few dozen");
        // SAFETY: `count` headers, each pointing to a name, a control buffer, one part and its buffer with the lengths
        // that they have; all of them live until the end of this function and are used by nobody else meanwhile.
        let received = unsafe {
            libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, libc::MSG_DONTWAIT as _, ptr::null_mut())
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        for (header, name) in headers.iter().zip(&names).take(received) {
            let length = usize::try_from(header.msg_len).unwrap_or(usize::MAX);
            // SAFETY: the kernel has filled this header in.
            self.metas.push(unsafe { Meta::read(&header.msg_hdr, name, length) });
        }
        Ok(())
    }
}

/// What stands beside a received packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meta {
    length: usize,
    ifindex: u32,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    hop_limit: u8,
}

impl Meta {
    pub(super) fn heard<'b>(&self, family: Family, interface: Option<u32>, buffer: &'b [u8]) -> Heard<'b> {
        let bytes = buffer.get(..self.length).unwrap_or(buffer);
        let packet = match family {
            Family::V4 => Packet::V4(bytes),
            Family::V6 => Packet::V6 {
                source: self.source,
                destination: self.destination,
                hop_limit: self.hop_limit,
                message: bytes,
            },
        };
        Heard { ifindex: interface.unwrap_or(self.ifindex), packet }
    }

    /// # Safety
    /// The header's control pointer and length must be as the kernel left them, and the buffer alive.
    unsafe fn read(header: &libc::msghdr, name: &libc::sockaddr_in6, length: usize) -> Self {
        let mut meta = Self {
            length,
            ifindex: 0,
            source: Ipv6Addr::from(name.sin6_addr.s6_addr),
            destination: Ipv6Addr::UNSPECIFIED,
            hop_limit: 0,
        };
        // SAFETY: the control buffer is alive and as long as the header says.
        let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
        // SAFETY: null or a control header inside the buffer, as is what CMSG_NXTHDR gives.
        while let Some(control) = unsafe { next.as_ref() } {
            match (control.cmsg_level, control.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    // SAFETY: `next` is a control header inside the buffer.
                    if let Some(info) = unsafe { data::<libc::in_pktinfo>(next) } {
                        meta.ifindex = u32::try_from(info.ipi_ifindex).unwrap_or_default();
                    }
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    // SAFETY: as above.
                    if let Some(info) = unsafe { data::<libc::in6_pktinfo>(next) } {
                        meta.ifindex = info.ipi6_ifindex;
                        meta.destination = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                    }
                }
                (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    // SAFETY: as above.
                    if let Some(hops) = unsafe { data::<libc::c_int>(next) } {
                        meta.hop_limit = u8::try_from(hops).unwrap_or_default();
                    }
                }
                _ => {}
            }
            // SAFETY: `next` is a control header inside the buffer of `header`.
            next = unsafe { libc::CMSG_NXTHDR(header, next) };
        }
        meta
    }
}

/// The value of a control message, if it's long enough.
///
/// # Safety
/// `control` must point to a control header whose length lies inside its buffer; any bytes must be a valid `T`.
pub(in crate::os) unsafe fn data<T>(control: *const libc::cmsghdr) -> Option<T> {
    let size = u32::try_from(size_of::<T>()).ok()?;
    // SAFETY: `control` is valid; the value is read only if the message is long enough, and without alignment.
    unsafe {
        let (have, need): (usize, usize) = ((*control).cmsg_len as _, libc::CMSG_LEN(size) as _);
        (have >= need).then(|| ptr::read_unaligned(libc::CMSG_DATA(control).cast()))
    }
}

/// Takes one packet.
pub(super) fn receive_one(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Meta> {
    let (mut name, mut control) = (NO_NAME, Control::EMPTY);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: integers and pointers only, for which zero is a value.
    let mut header: libc::msghdr = unsafe { zeroed() };
    incoming(&mut header, &mut name, &mut control, &mut part);
    // SAFETY: the header points to a name, a control buffer, one part and its buffer, with the lengths that they have.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    let length = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has filled this header in.
    Ok(unsafe { Meta::read(&header, &name, length) })
}

/// Points a header to where the kernel shall write.
fn incoming(header: &mut libc::msghdr, name: &mut libc::sockaddr_in6, control: &mut Control, part: &mut libc::iovec) {
    header.msg_name = ptr::from_mut(name).cast();
    header.msg_namelen = socklen::<libc::sockaddr_in6>();
    header.msg_iov = part;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = size_of::<Control>() as _;
}

/// Sends one packet through a socket of [`super::Sender`] or a duplicate. Never blocks.
///
/// # Errors
/// `ENETUNREACH` or `EINVAL` when `source` is no address of this host (IPv6: or a tentative one), `ENETDOWN`, `ENXIO` or
/// `ENODEV` for the interface, `EHOSTUNREACH` or `ENETUNREACH` without a route, `EPERM` from a packet filter,
/// `EMSGSIZE`, `WouldBlock` or `ENOBUFS` when the queue is full, `EAFNOSUPPORT` when families are mixed.
pub fn send_to(socket: BorrowedFd<'_>, packet: &Outgoing<'_>) -> io::Result<()> {
    let mut outcome = Err(io::Error::from_raw_os_error(libc::EIO));
    send_many_of::<1>(socket, std::slice::from_ref(packet), &mut |_, result| outcome = result);
    outcome
}

/// Sends packets in order, 64 in one system call, and tells how each went by its position; see [`send_to`]. One that
/// fails doesn't keep the others from being tried, but a full send buffer does.
pub fn send_many(socket: BorrowedFd<'_>, packets: &[Outgoing<'_>], mut result: impl FnMut(usize, io::Result<()>)) {
    if packets.len() == 1 {
        send_many_of::<1>(socket, packets, &mut result);
    } else {
        send_many_of::<SEND_BATCH>(socket, packets, &mut result);
    }
}

fn send_many_of<const N: usize>(
    socket: BorrowedFd<'_>,
    packets: &[Outgoing<'_>],
    result: &mut impl FnMut(usize, io::Result<()>),
) {
    let mut first = 0;
    for chunk in packets.chunks(N) {
        send_chunk::<N>(socket, chunk, &mut |at, outcome| result(first + at, outcome));
        first += chunk.len();
    }
}

fn send_chunk<const N: usize>(
    socket: BorrowedFd<'_>,
    chunk: &[Outgoing<'_>],
    result: &mut impl FnMut(usize, io::Result<()>),
) {
    let mut names = [NO_NAME; N];
    let mut controls = [Control::EMPTY; N];
    // SAFETY: integers and pointers only, for which zero is a value.
    let mut parts: [libc::iovec; N] = unsafe { zeroed() };
    // SAFETY: as above.
    let mut headers: [libc::mmsghdr; N] = unsafe { zeroed() };
    let mut positions = [0; N];
    let mut count = 0;
    for (at, packet) in chunk.iter().enumerate() {
        let room = (names.get_mut(count), controls.get_mut(count), parts.get_mut(count), headers.get_mut(count));
        let (Some(name), Some(control), Some(part), Some(header)) = room else { break };
        match outgoing(packet, name, control, part, &mut header.msg_hdr) {
            Ok(()) => {
                if let Some(position) = positions.get_mut(count) {
                    *position = at;
                }
                count += 1;
            }
            Err(e) => result(at, Err(e)),
        }
    }
    let mut next = 0;
    while let Some(rest) = headers.get_mut(next..count).filter(|rest| !rest.is_empty()) {
        let length = libc::c_uint::try_from(rest.len()).expect("a few dozen");
        // SAFETY: `length` headers, each pointing to a name, a control buffer, one part and its bytes with the lengths
        // that they have; all of them live until the end of this function, and the kernel only reads them.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), rest.as_mut_ptr(), length, libc::MSG_DONTWAIT as _) };
        let Ok(sent) = usize::try_from(sent) else {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => {
                    positions.iter().take(count).skip(next).for_each(|at| result(*at, Err(full())));
                    return;
                }
                // The kernel stopped at the first that it couldn't send, and tells its error when asked for it alone.
                _ => {
                    result(positions.get(next).copied().unwrap_or_default(), Err(error));
                    next += 1;
                }
            }
            continue;
        };
        for at in positions.iter().take(next + sent).skip(next) {
            result(*at, Ok(()));
        }
        next += sent.max(1);
    }
}

fn full() -> io::Error {
    io::Error::from_raw_os_error(libc::EAGAIN)
}

/// Points a header to a packet. Raw sockets send all of it or nothing.
fn outgoing(
    packet: &Outgoing<'_>,
    name: &mut libc::sockaddr_in6,
    control: &mut Control,
    part: &mut libc::iovec,
    header: &mut libc::msghdr,
) -> io::Result<()> {
    *part = libc::iovec { iov_base: packet.payload.as_ptr().cast_mut().cast(), iov_len: packet.payload.len() };
    header.msg_name = ptr::from_mut(name).cast();
    header.msg_iov = part;
    header.msg_iovlen = 1;
    let ifindex = if bound_to_link(packet.destination) { packet.ifindex } else { 0 };
    header.msg_control = control.0.as_mut_ptr().cast();
    match (packet.source, packet.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: i32::try_from(ifindex).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?,
                ipi_spec_dst: in_addr(source),
                ipi_addr: in_addr(Ipv4Addr::UNSPECIFIED),
            };
            // SAFETY: integers only, for which zero is a value.
            let mut address: libc::sockaddr_in = unsafe { zeroed() };
            address.sin_family = libc::AF_INET as _;
            address.sin_addr = in_addr(destination);
            // SAFETY: a sockaddr_in is shorter than a sockaddr_in6, and both are integers only.
            unsafe { ptr::write_unaligned(ptr::from_mut(name).cast(), address) };
            header.msg_namelen = socklen::<libc::sockaddr_in>();
            control.set(header, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr { s6_addr: source.octets() },
                ipi6_ifindex: ifindex as _,
            };
            // Port 0: the kernel takes any other for a protocol.
            name.sin6_family = libc::AF_INET6 as _;
            name.sin6_addr = libc::in6_addr { s6_addr: destination.octets() };
            name.sin6_scope_id = ifindex;
            header.msg_namelen = socklen::<libc::sockaddr_in6>();
            control.set(header, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
        _ => return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
    }
    Ok(())
}

/// Whether the destination means something on one link only.
fn bound_to_link(destination: IpAddr) -> bool {
    destination.is_multicast()
        || match destination {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
}

/// Room for the control messages of a packet.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; 96]);

impl Control {
    const EMPTY: Self = Self([0; 96]);

    /// Writes the only control message of `header`, which must point here.
    fn set<T>(&mut self, header: &mut libc::msghdr, level: i32, kind: i32, value: T) {
        let size = u32::try_from(size_of::<T>()).expect("a few bytes");
        // SAFETY: arithmetic only.
        let (space, length) = unsafe { (libc::CMSG_SPACE(size), libc::CMSG_LEN(size)) };
        assert!(usize::try_from(space).is_ok_and(|space| space <= size_of::<Self>()), "one packet info fits");
        header.msg_control = self.0.as_mut_ptr().cast();
        header.msg_controllen = space as _;
        // SAFETY: the buffer is aligned for a control header and, as just asserted, large enough for header and value.
        unsafe {
            let control = libc::CMSG_FIRSTHDR(header);
            (*control).cmsg_level = level;
            (*control).cmsg_type = kind;
            (*control).cmsg_len = length as _;
            ptr::write_unaligned(libc::CMSG_DATA(control).cast(), value);
        }
    }
}

/// An address to be filled in.
const NO_NAME: libc::sockaddr_in6 = libc::sockaddr_in6 {
    sin6_family: 0,
    sin6_port: 0,
    sin6_flowinfo: 0,
    sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
    sin6_scope_id: 0,
};

fn in_addr(ip: Ipv4Addr) -> libc::in_addr {
    libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) }
}

fn socklen<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).expect("a few bytes")
}
