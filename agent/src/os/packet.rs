//! Packet sockets (whole Ethernet frames), bound to one interface.

use holdfast_vrrp::frames::Mac;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, send, socket};
use socket2::{SockFilter, SockRef};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Frames a socket takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// None at all: for sending.
    Nothing,
    /// ARP that is addressed to us or to all.
    Arp,
    /// Neighbour advertisements.
    NeighbourAdvertisements,
}

/// Opens a non-blocking socket. Needs CAP_NET_RAW.
pub(super) fn open(ifindex: u32, takes: Takes) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    // Protocol 0 until it's bound, or it would take the frames of every interface meanwhile.
    let fd = socket(AddressFamily::Packet, SockType::Raw, flags, None::<SockProtocol>)?;
    let protocol = match takes {
        Takes::Nothing => 0,
        Takes::Arp => libc::ETH_P_ARP,
        Takes::NeighbourAdvertisements => {
            SockRef::from(&fd).attach_filter(&NEIGHBOUR_ADVERTISEMENTS)?;
            libc::ETH_P_IPV6
        }
    };
    bind(&fd, ifindex, protocol)?;
    Ok(fd)
}

/// Classic BPF over the frame: ICMPv6 (with no header before it) of type 136.
const NEIGHBOUR_ADVERTISEMENTS: [SockFilter; 6] = [
    SockFilter::new(0x30, 0, 0, 20), // next header
    SockFilter::new(0x15, 0, 3, 58), // ICMPv6
    SockFilter::new(0x30, 0, 0, 54), // its type
    SockFilter::new(0x15, 0, 1, 136),
    SockFilter::new(0x06, 0, 0, u32::MAX),
    SockFilter::new(0x06, 0, 0, 0),
];

fn bind(fd: &OwnedFd, ifindex: u32, protocol: i32) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: u16::try_from(protocol).unwrap_or_default().to_be(),
        sll_ifindex: i32::try_from(ifindex).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).expect("twenty bytes");
    // SAFETY: the pointer is to a live sockaddr_ll and the length is its size; the kernel only reads it.
    let rc = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends one frame. Never blocks; a full queue is `ENOBUFS`.
pub(super) fn send_frame(socket: &impl AsRawFd, frame: &[u8]) -> io::Result<()> {
    match send(socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT) {
        Ok(_) => Ok(()),
        Err(nix::errno::Errno::EAGAIN) => Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
        Err(e) => Err(e.into()),
    }
}

/// The link address, now, of the interface to which a packet socket is bound.
pub(super) fn link_address(socket: &impl AsRawFd) -> io::Result<Mac> {
    // SAFETY: all-zero bytes are a valid sockaddr_ll, which holds integers only.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).expect("twenty bytes");
    // SAFETY: the kernel writes at most `length` bytes to the live `address` and the number of bytes to `length`.
    let rc = unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut length) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    match address.sll_addr {
        [a, b, c, d, e, f, _, _] if address.sll_halen == 6 => Ok([a, b, c, d, e, f]),
        // The interface is gone (or isn't Ethernet).
        _ => Err(io::Error::from_raw_os_error(libc::ENODEV)),
    }
}
