//! A pair of SOCK_SEQPACKET unix sockets that carries packets and, with a packet, one descriptor (SCM_RIGHTS).
//!
//! Nothing here ever blocks: a full or empty socket is `WouldBlock`.

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Two connected sockets, both close-on-exec and non-blocking.
///
/// # Errors
/// Out of descriptors or memory.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// A received packet.
#[derive(Debug)]
pub struct Received {
    /// Bytes written to the buffer; 0: the other end is closed.
    pub len: usize,
    /// The packet was longer than the buffer and its rest is lost.
    pub truncated: bool,
    /// The descriptor that came with it, close-on-exec. Of several, the first; the others are closed.
    pub fd: Option<OwnedFd>,
}

/// Sends one packet. `bytes` must not be empty: an empty packet would read as the end of the connection.
///
/// # Errors
/// `WouldBlock`: the other end doesn't read; `BrokenPipe` or `ConnectionReset`: it is closed.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds;
    if let Some(fd) = fd {
        fds = [fd];
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}

/// Receives one packet.
///
/// # Errors
/// `WouldBlock`: nothing is there; `ConnectionReset`: the other end is gone with packets unread.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(socket.as_fd(), &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            for one in fds {
                // What isn't kept is closed by its drop.
                fd.get_or_insert(one);
            }
        }
    }
    Ok(Received { len: got.bytes, truncated: got.flags.contains(ReturnFlags::TRUNC), fd })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_packet_arrives_whole_and_the_end_reads_as_zero() {
        let (a, b) = pair().expect("sockets");
        let mut buffer = [0; 16];
        assert_eq!(receive(b.as_fd(), &mut buffer).expect_err("empty").kind(), io::ErrorKind::WouldBlock);
        send(a.as_fd(), b"one", None).expect("sent");
        send(a.as_fd(), b"second", None).expect("sent");
        let first = receive(b.as_fd(), &mut buffer).expect("received");
        assert_eq!((first.len, first.truncated, first.fd.is_none()), (3, false, true));
        assert_eq!(receive(b.as_fd(), &mut buffer).expect("received").len, 6);
        drop(a);
        assert_eq!(receive(b.as_fd(), &mut buffer).expect("end").len, 0);
        assert_eq!(send(b.as_fd(), b"late", None).expect_err("closed").kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_descriptor_travels_with_its_packet_and_is_close_on_exec() {
        let (a, b) = pair().expect("sockets");
        let file = std::fs::File::open("/dev/null").expect("opened");
        send(a.as_fd(), b"x", Some(file.as_fd())).expect("sent");
        let got = receive(b.as_fd(), &mut [0; 4]).expect("received").fd.expect("a descriptor");
        assert_ne!(got.as_raw_fd(), file.as_raw_fd());
        assert!(rustix::io::fcntl_getfd(&got).expect("flags").contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn a_packet_longer_than_the_buffer_says_so() {
        let (a, b) = pair().expect("sockets");
        send(a.as_fd(), b"too long", None).expect("sent");
        assert!(receive(b.as_fd(), &mut [0; 3]).expect("received").truncated);
    }

    #[test]
    fn a_full_socket_never_blocks_the_sender() {
        let (a, _b) = pair().expect("sockets");
        let packet = [1; 1024];
        let error = (0..100_000).find_map(|_| send(a.as_fd(), &packet, None).err()).expect("it fills up");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
