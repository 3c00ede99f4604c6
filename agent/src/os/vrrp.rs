//! Raw sockets for VRRP (protocol 112), in pairs: one pair per interface and family for the group (224.0.0.18,
//! ff02::12), and one pair per family for unicast peers. The unicast ones aren't bound to an interface: the way back
//! from a routed peer may end on any. A filter in the kernel gives each packet to one of them only.
//!
//! Receiving and sending are apart: the keeper holds a duplicate of the sending one to resign on a dead worker's
//! behalf, and must never take a packet away from the next worker.
//!
//! What this module refuses to do: look into a packet (the decoder of `holdfast_vrrp` checks TTL, checksum and all
//! else, and counts what it refuses); block.

mod filter;
mod membership;
mod message;

pub(super) use message::data as control_data;
pub use message::{Batch, Heard, Outgoing, Packet, RECEIVE_BATCH, send_many, send_to};

pub use holdfast_vrrp::Family;

use super::asyncfd::AsyncDescriptor;
use super::netlink::set_option;
use message::{Meta, receive_one};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::task::{Context, Poll, ready};

/// RFC 9568 section 5.1.1.2.
pub const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 18);

/// RFC 9568 section 5.1.2.2.
pub const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x12);

/// RFC 9568 sections 5.1.1.4 and 5.1.2.4.
const PROTOCOL: i32 = 112;

/// RFC 9568 sections 5.1.1.3 and 5.1.2.3; unicast peers count the routers on the way from it.
const TTL: u32 = 255;

/// Internetwork control (CS6), as routing protocols do.
const TOS: u32 = 0xC0;

/// TC_PRIO_CONTROL: in front of the traffic in the interface's own queue.
const QUEUE_PRIORITY: u32 = 7;

/// Receive buffer in bytes (the kernel counts about 800 for an advert, and doubles this): what arrives while the loop is
/// stalled, 10,000 packets of garbage a second for half a second included.
const RECEIVE_BUFFER: usize = 2 << 20;

/// Send buffer in bytes: an advert of each of 1,000 routers in one burst.
const SEND_BUFFER: usize = 2 << 20;

/// Linux 4.15, not in libc for every target.
const IPV6_FREEBIND: i32 = 78;

/// Largest packet worth reading: 255 addresses fit, of IPv6 without and of IPv4 with the largest header.
pub const PACKET_MAX: usize = 4096;

/// Receives adverts: those for the group on one interface, or those of unicast peers on all.
#[derive(Debug)]
pub struct Receiver {
    family: Family,
    interface: Option<u32>,
    socket: AsyncDescriptor,
}

impl Receiver {
    /// Opens the socket and joins the group on the interface; without one, it hears unicast only. Must be called inside
    /// a tokio runtime; needs CAP_NET_RAW.
    ///
    /// # Errors
    /// Whatever the system says: `ENODEV` when there is no such interface, `EINVAL` when it has no IPv6 at all (its MTU
    /// is below 1280), `EAFNOSUPPORT` when the host hasn't.
    pub fn open(family: Family, interface: Option<u32>) -> io::Result<Self> {
        let socket = open_socket(family, interface)?;
        grow_receive_buffer(&socket)?;
        match family {
            // Which interface it was is known where the socket is bound to one.
            Family::V4 => socket_option(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, interface.is_none())?,
            Family::V6 => {
                socket_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, true)?;
                socket.set_recv_hoplimit_v6(true)?;
            }
        }
        if let Some(interface) = interface {
            match family {
                Family::V4 => {
                    socket.join_multicast_v4_n(&GROUP, &socket2::InterfaceIndexOrAddress::Index(interface))?;
                }
                Family::V6 => socket.join_multicast_v6(&GROUP_V6, interface)?,
            }
        }
        // In place of the one that refuses all: from here on it takes packets.
        socket.attach_filter(&filter::program(family, interface.is_some()))?;
        Ok(Self { family, interface, socket: AsyncDescriptor::new(socket.into())? })
    }

    /// The family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The interface; none: unicast.
    #[must_use]
    pub fn interface(&self) -> Option<u32> {
        self.interface
    }

    /// Makes sure of the membership in the group. An interface whose MTU falls below 1280 loses IPv6, and with it, unsaid,
    /// every membership; when the MTU rises again the socket would stay deaf. To be called when the interface has changed.
    /// Does nothing for IPv4, which loses none, and for unicast.
    ///
    /// # Errors
    /// `EINVAL` while the interface has no IPv6, `ENODEV` when it is gone.
    pub fn rejoin(&self) -> io::Result<()> {
        let (Family::V6, Some(interface)) = (self.family, self.interface) else { return Ok(()) };
        if membership::is_member(interface, GROUP_V6)? {
            return Ok(());
        }
        // The socket's own record of the membership outlives the loss, and must go before a new one.
        let ours = SockRef::from(&self.socket);
        let _ = ours.leave_multicast_v6(&GROUP_V6, interface);
        ours.join_multicast_v6(&GROUP_V6, interface)
    }

    /// Waits for a packet. A larger one than `buffer` is cut. Cancel safe.
    ///
    /// # Errors
    /// What the socket says, for example `ENETDOWN` once when the interface goes down; the socket stays usable.
    pub async fn recv<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Heard<'b>> {
        let meta = self.socket.read(|fd| receive_one(fd, buffer)).await?;
        Ok(self.heard(meta, buffer))
    }

    /// Like [`Self::recv`]. One task at a time may wait.
    pub fn poll_recv<'b>(&self, cx: &mut Context<'_>, buffer: &'b mut [u8]) -> Poll<io::Result<Heard<'b>>> {
        let meta = ready!(self.socket.poll_read(cx, |fd| receive_one(fd, buffer)))?;
        Poll::Ready(Ok(self.heard(meta, buffer)))
    }

    /// A packet, if one is there.
    ///
    /// # Errors
    /// `WouldBlock`: none; else like [`Self::recv`].
    pub fn try_recv<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Heard<'b>> {
        let meta = receive_one(self.socket.as_fd(), buffer)?;
        Ok(self.heard(meta, buffer))
    }

    /// Waits for packets and takes as many as are there, up to [`RECEIVE_BATCH`], in one system call. What `batch` held
    /// before is gone. One task at a time may wait.
    pub fn poll_recv_many(&self, cx: &mut Context<'_>, batch: &mut Batch) -> Poll<io::Result<()>> {
        self.socket.poll_drain(cx, |fd| {
            batch.fill(fd, self.family, self.interface)?;
            Ok(((), batch.len() < RECEIVE_BATCH))
        })
    }

    fn heard<'b>(&self, meta: Meta, buffer: &'b [u8]) -> Heard<'b> {
        meta.heard(self.family, self.interface, buffer)
    }
}

/// Sends adverts: to the group on one interface, or to unicast peers.
#[derive(Debug)]
pub struct Sender {
    family: Family,
    interface: Option<u32>,
    socket: Socket,
}

impl Sender {
    /// Opens the socket: bound to the interface if one is given, TTL or hop limit 255. Needs CAP_NET_RAW.
    ///
    /// # Errors
    /// Whatever the system says: `ENODEV` when there is no such interface, `EAFNOSUPPORT` when the host has no IPv6.
    pub fn open(family: Family, interface: Option<u32>) -> io::Result<Self> {
        let socket = open_socket(family, interface)?;
        // The filter that refuses all stays: nobody reads here, so nothing may queue.
        match family {
            Family::V4 => {
                socket.set_multicast_ttl_v4(TTL)?;
                socket.set_ttl_v4(TTL)?;
                socket.set_tos_v4(TOS)?;
            }
            Family::V6 => {
                socket.set_multicast_hops_v6(TTL)?;
                socket.set_unicast_hops_v6(TTL)?;
                socket.set_tclass_v6(TOS)?;
            }
        }
        socket.set_priority(QUEUE_PRIORITY)?;
        if nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::SndBufForce, &SEND_BUFFER).is_err() {
            socket.set_send_buffer_size(SEND_BUFFER)?;
        }
        Ok(Self { family, interface, socket })
    }

    /// Like [`Self::open`], for the device of a virtual router: its adverts come from an address of the interface that
    /// it sits on, which IPv6 doesn't take for one of the device's unless it is told not to look.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_device(family: Family, interface: u32) -> io::Result<Self> {
        let sender = Self::open(family, Some(interface))?;
        if family == Family::V6 {
            set_option(sender.as_fd(), libc::IPPROTO_IPV6, IPV6_FREEBIND, 1)?;
        }
        Ok(sender)
    }

    /// The family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The interface; none: unicast.
    #[must_use]
    pub fn interface(&self) -> Option<u32> {
        self.interface
    }

    /// Sends one VRRP payload; see [`send_to`].
    ///
    /// # Errors
    /// See [`send_to`].
    pub fn send(&self, source: IpAddr, ifindex: u32, destination: IpAddr, payload: &[u8]) -> io::Result<()> {
        send_to(self.as_fd(), &Outgoing { source, ifindex, destination, payload })
    }

    /// Sends several; see [`send_many`].
    pub fn send_many(&self, packets: &[Outgoing<'_>], result: impl FnMut(usize, io::Result<()>)) {
        send_many(self.as_fd(), packets, result);
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Sender {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// What both directions share: non-blocking, bound to the interface if there is one, never hears itself; and it takes no
/// packet yet, since until it's bound it would take those of every interface.
fn open_socket(family: Family, interface: Option<u32>) -> io::Result<Socket> {
    let domain = match family {
        Family::V4 => Domain::IPV4,
        Family::V6 => Domain::IPV6,
    };
    let no_device = || io::Error::from_raw_os_error(libc::ENODEV);
    let index = interface.map(|i| NonZeroU32::new(i).ok_or_else(no_device)).transpose()?;
    let socket = Socket::new(domain, Type::RAW.nonblocking().cloexec(), Some(Protocol::from(PROTOCOL)))?;
    socket.attach_filter(&filter::NOTHING)?;
    match family {
        Family::V4 => {
            socket.set_multicast_all_v4(false)?;
            socket.bind_device_by_index_v4(index)?;
            socket.set_multicast_loop_v4(false)?;
        }
        Family::V6 => {
            // Linux 4.20 and later; the receiver's filter would do.
            let _ = socket.set_multicast_all_v6(false);
            socket.bind_device_by_index_v6(index)?;
            socket.set_multicast_loop_v6(false)?;
        }
    }
    Ok(socket)
}

fn socket_option(socket: &Socket, level: i32, name: i32, on: bool) -> io::Result<()> {
    set_option(socket.as_fd(), level, name, i32::from(on))
}

/// Beyond the host's limit where we may, else as far as it allows.
fn grow_receive_buffer(socket: &Socket) -> io::Result<()> {
    if nix::sys::socket::setsockopt(socket, nix::sys::socket::sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    }
    Ok(())
}
