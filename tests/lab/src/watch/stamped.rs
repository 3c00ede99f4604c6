//! Frames from a packet socket, each with the kernel's time of when it was received.

use crate::clock::{Ns, at_wall, now};
use anyhow::Result;
use nix::sys::socket::{ControlMessageOwned, LinkAddr, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeVal;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd};

/// `PACKET_OUTGOING` of `packet(7)`: a frame that this host sends.
const OUTGOING: u8 = 4;
/// The longest frame, after offloading.
const FRAME_MAX: usize = 65_536;

/// A packet socket that stamps what it receives.
#[derive(Debug)]
pub struct Stamped<S> {
    socket: S,
    buffer: Vec<u8>,
    control: Vec<u8>,
}

/// A frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// When it was received.
    pub at: Ns,
    /// The index of its interface.
    pub ifindex: u32,
    /// This host sent it.
    pub outgoing: bool,
    /// All of it, from the destination's MAC on.
    pub bytes: &'a [u8],
}

impl<S: AsFd + AsRawFd> Stamped<S> {
    /// Prepares a packet socket: stamps, 4 MiB of room, and no call that waits longer than 50 ms.
    ///
    /// # Errors
    /// The kernel refuses an option.
    pub fn new(socket: S) -> Result<Self> {
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(0, 50_000))?;
        setsockopt(&socket, sockopt::RcvBufForce, &(4 << 20))?;
        let control = nix::cmsg_space!(nix::sys::time::TimeSpec);
        Ok(Self { socket, buffer: vec![0; FRAME_MAX], control })
    }

    /// The next frame; `None`: none came within 50 ms, or a port went down.
    pub fn receive(&mut self) -> Option<Frame<'_>> {
        let mut parts = [IoSliceMut::new(&mut self.buffer)];
        let fd = self.socket.as_raw_fd();
        let message = recvmsg::<LinkAddr>(fd, &mut parts, Some(&mut self.control), MsgFlags::empty()).ok()?;
        let stamp = message.cmsgs().ok().and_then(|mut all| {
            all.find_map(|c| if let ControlMessageOwned::ScmTimestampns(t) = c { Some(t) } else { None })
        });
        let at = stamp.and_then(|t| at_wall(t.tv_sec(), t.tv_nsec())).unwrap_or_else(now);
        let (from, length) = (message.address?, message.bytes);
        Some(Frame {
            at,
            ifindex: u32::try_from(from.ifindex()).unwrap_or(0),
            outgoing: from.pkttype() == OUTGOING,
            bytes: self.buffer.get(..length)?,
        })
    }
}
