//! A netlink socket to ctnetlink, and reading many datagrams with one call.

use super::super::netlink::set_option;
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, connect, getsockname, getsockopt, setsockopt,
    socket, sockopt,
};
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;

/// Datagrams taken by one call.
const DATAGRAMS: usize = 64;
/// Room for each: an event or an error takes 100 to 700 bytes.
const ROOM: usize = 2_048;

/// A non-blocking socket that only the kernel can send to. The kernel allows a receive buffer beyond the host's limit to
/// CAP_NET_ADMIN; without, it is the limit.
pub(super) fn open(receive_buffer: usize) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)?;
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    connect(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    // The kernel doubles it, for its own bookkeeping.
    if setsockopt(&fd, sockopt::RcvBufForce, &receive_buffer).is_err() {
        setsockopt(&fd, sockopt::RcvBuf, &receive_buffer)?;
    }
    // Errors without the request that they are about.
    set_option(fd.as_fd(), libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
    Ok(fd)
}

/// Bytes that the kernel keeps for what is unread.
pub(super) fn receive_buffer(fd: &OwnedFd) -> io::Result<usize> {
    Ok(getsockopt(fd, sockopt::RcvBuf)?)
}

/// The socket's name in the kernel's events.
pub(super) fn port_id(fd: &OwnedFd) -> io::Result<u32> {
    Ok(getsockname::<NetlinkAddr>(fd.as_raw_fd())?.pid())
}

/// Datagrams that didn't fit the socket's buffer since it was opened.
pub(super) fn lost(fd: &OwnedFd) -> u32 {
    /// `SK_MEMINFO_DROPS`.
    const DROPS: usize = 8;
    let mut memory = [0_u32; DROPS + 1];
    let mut length = libc::socklen_t::try_from(mem::size_of_val(&memory)).expect("a few words");
    // SAFETY: the pointer is to a live array of `length` bytes, which the kernel fills up to that.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            memory.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if rc == 0 { memory.last().copied().unwrap_or_default() } else { 0 }
}

/// Reads up to [`DATAGRAMS`] at once, into memory that is reused.
#[derive(Debug)]
pub(super) struct Receiver {
    buffer: Vec<u8>,
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; DATAGRAMS * ROOM] }
    }

    /// Gives every datagram that is there to `each` (`None`: it didn't fit, which no message of the kernel's does), up
    /// to [`DATAGRAMS`] of them. Returns how many; fewer: none is left.
    pub(super) fn receive(&mut self, fd: &OwnedFd, mut each: impl FnMut(Option<&[u8]>)) -> io::Result<usize> {
        let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let mut vectors = [empty; DATAGRAMS];
        // SAFETY: all zeroes are a valid `mmsghdr`: null pointers, and lengths of nothing.
        let mut headers: [libc::mmsghdr; DATAGRAMS] = unsafe { mem::zeroed() };
        for ((vector, header), room) in vectors.iter_mut().zip(&mut headers).zip(self.buffer.chunks_exact_mut(ROOM)) {
            *vector = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: each header points to one vector, and each vector to `ROOM` bytes of the buffer of its own; all of
        // them live, and are touched by nobody else, until the call returns.
        let count = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::recvmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), DATAGRAMS as _, flags as _, ptr::null_mut())
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (header, room) in headers.iter().zip(self.buffer.chunks_exact(ROOM)).take(count) {
            let whole = header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            let length = usize::try_from(header.msg_len).unwrap_or(ROOM);
            each(room.get(..length).filter(|_| whole));
        }
        Ok(count)
    }

    /// Whether a read that gave so many datagrams may have left some.
    pub(super) const fn may_have_left(count: usize) -> bool {
        count >= DATAGRAMS
    }
}
