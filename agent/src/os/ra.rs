//! Router advertisements (RFC 4861 section 4.2) on a segment with an unnumbered neighbour: how two routers that were
//! told nothing but the interface learn each other's link-local address.
//!
//! Ours have a router lifetime of zero: they say that we are there, never that anybody should route through us.
//!
//! What this module refuses to do: believe one from further away than the segment; block.

use super::asyncfd::AsyncDescriptor;
use super::link;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn6, recvmsg};
use rustix::net::SendFlags;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, IoSliceMut};
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};
use std::task::{Context, Poll};

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const SOLICITATION: u8 = 133;
const ADVERTISEMENT: u8 = 134;
/// Type, code, checksum, hop limit, flags, lifetime, reachable time, retransmission time.
const LENGTH: usize = 16;
const HOPS: u8 = 255;
/// Messages that are none of our business, at a time.
const PASSED_OVER: u32 = 16;
/// Linux: bits of the ICMPv6 types that are *not* wanted.
const ICMP6_FILTER: i32 = 1;

/// Sends and hears advertisements on one interface.
#[derive(Debug)]
pub struct Advertiser {
    socket: AsyncDescriptor,
    ifindex: u32,
}

/// What was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// A router is there.
    Router(Ipv6Addr),
    /// Somebody asks who is: answer with [`Advertiser::advertise`].
    Question,
}

impl Advertiser {
    /// Must be called inside a tokio runtime; needs CAP_NET_RAW.
    ///
    /// # Errors
    /// `ENODEV`: no such interface; `EINVAL`: it has no IPv6.
    pub fn open(ifindex: u32) -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV6, Type::RAW.nonblocking().cloexec(), Some(Protocol::ICMPV6))?;
        only(socket.as_fd(), &[SOLICITATION, ADVERTISEMENT])?;
        socket.bind_device(Some(link::name(ifindex).as_bytes()))?;
        socket.set_multicast_hops_v6(HOPS.into())?;
        socket.set_unicast_hops_v6(HOPS.into())?;
        socket.set_multicast_if_v6(ifindex)?;
        socket.set_multicast_loop_v6(false)?;
        socket.set_recv_hoplimit_v6(true)?;
        socket.join_multicast_v6(&ALL_ROUTERS, ifindex)?;
        Ok(Self { socket: AsyncDescriptor::new(socket.into())?, ifindex })
    }

    /// Tells the segment that we are there.
    ///
    /// # Errors
    /// What the system says: `EADDRNOTAVAIL` while the interface has no link-local address yet.
    pub fn advertise(&self) -> io::Result<()> {
        let mut message = [0; LENGTH];
        message[0] = ADVERTISEMENT;
        // The kernel puts the checksum in, and our link-local address as source.
        self.send(&message, ALL_NODES)
    }

    /// Asks who is there.
    ///
    /// # Errors
    /// As [`Self::advertise`].
    pub fn ask(&self) -> io::Result<()> {
        self.send(&[SOLICITATION, 0, 0, 0, 0, 0, 0, 0], ALL_ROUTERS)
    }

    fn send(&self, message: &[u8], to: Ipv6Addr) -> io::Result<()> {
        let to = SocketAddrV6::new(to, 0, 0, self.ifindex);
        rustix::net::sendto(&self.socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &to)?;
        Ok(())
    }

    /// What is heard next; what is none of it is passed over, so much of it at a time. One task at a time may wait.
    ///
    /// # Errors
    /// What the socket says: `ENETDOWN`, …
    pub fn poll_heard(&self, cx: &mut Context<'_>) -> Poll<io::Result<Heard>> {
        for _ in 0..PASSED_OVER {
            let heard = self.socket.poll_read(cx, |fd| {
                let mut buffer = [0; 256];
                let mut slices = [IoSliceMut::new(&mut buffer)];
                let mut space = nix::cmsg_space!(i32);
                let flags = MsgFlags::MSG_DONTWAIT;
                let message = recvmsg::<SockaddrIn6>(fd.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
                let hops = message.cmsgs()?.find_map(|c| match c {
                    ControlMessageOwned::Ipv6HopLimit(hops) => Some(hops),
                    _ => None,
                });
                let (length, from) = (message.bytes, message.address.map(|a| a.ip()));
                Ok(judge(buffer.get(..length).unwrap_or_default(), from, hops))
            });
            match heard {
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Ok(Some(heard))) => return Poll::Ready(Ok(heard)),
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => return Poll::Pending,
            }
        }
        // The rest must not wait for something else to happen.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// RFC 4861 sections 6.1.1 and 6.1.2; the kernel has checked the checksum.
fn judge(message: &[u8], from: Option<Ipv6Addr>, hops: Option<i32>) -> Option<Heard> {
    let (kind, code) = (message.first()?, message.get(1)?);
    if hops != Some(HOPS.into()) || *code != 0 {
        return None;
    }
    match *kind {
        SOLICITATION if message.len() >= 8 => Some(Heard::Question),
        ADVERTISEMENT if message.len() >= LENGTH => from.filter(Ipv6Addr::is_unicast_link_local).map(Heard::Router),
        _ => None,
    }
}

/// Nothing but these types is to be heard.
fn only(fd: std::os::fd::BorrowedFd<'_>, types: &[u8]) -> io::Result<()> {
    let mut filter = [u32::MAX; 8];
    for kind in types {
        if let Some(word) = filter.get_mut(usize::from(kind >> 5)) {
            *word &= !(1 << (kind & 31));
        }
    }
    let length = libc::socklen_t::try_from(size_of_val(&filter)).expect("32 bytes");
    // SAFETY: the pointer is to `length` live bytes laid out as `struct icmp6_filter`; the kernel only reads them.
    let rc =
        unsafe { libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_ICMPV6, ICMP6_FILTER, filter.as_ptr().cast(), length) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_is_believed_only_from_the_segment_by_its_link_local_address() {
        let link_local: Ipv6Addr = "fe80::1".parse().expect("an address");
        let global: Ipv6Addr = "2001:db8::1".parse().expect("an address");
        let mut message = [0; LENGTH];
        message[0] = ADVERTISEMENT;
        assert_eq!(judge(&message, Some(link_local), Some(255)), Some(Heard::Router(link_local)));
        assert_eq!(judge(&message, Some(global), Some(255)), None, "not link-local");
        assert_eq!(judge(&message, Some(link_local), Some(254)), None, "through a router");
        assert_eq!(judge(&message, Some(link_local), None), None, "nobody knows from where");
        assert_eq!(judge(&message[..15], Some(link_local), Some(255)), None, "cut");
        message[1] = 1;
        assert_eq!(judge(&message, Some(link_local), Some(255)), None, "another code");
        assert_eq!(judge(&[SOLICITATION, 0, 0, 0, 0, 0, 0, 0], None, Some(255)), Some(Heard::Question));
        assert_eq!(judge(&[], None, Some(255)), None);
    }
}
