//! A netlink socket without a runtime, and the little of the message format that is shared by its users.
//!
//! What this module refuses to do: know a message type; wait longer than [`REPLY_TIMEOUT`] for an answer; allocate
//! without a limit.

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, connect, getsockname, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use rtnetlink::packet_core::{
    NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NlasIterator,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// How long an answer may take. The kernel does the work inside `send`, so an answer that isn't there at once is lost.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_millis(200);

/// Receive buffer. The kernel makes dump datagrams of at most 32 KiB; one more is never needed.
pub(super) const BUFFER: usize = 64 * 1024;

/// The kernel's buffer for answers, in bytes (it counts each at its size in memory, and doubles this).
const RECEIVE_BUFFER: usize = 1 << 19;

/// Datagrams of this size fit any socket's send buffer.
const SMALL: usize = 64 * 1024;

/// Bytes in front of every message.
pub(super) const HEADER: usize = 16;

/// How often an inconsistent dump is asked for again; the last answer is taken as it is, later events put it right.
const DUMP_TRIES: usize = 3;

/// Reads in one dump before it is given up (1 GiB of answer): only a kernel that never ends it gets there.
const DUMP_READS: usize = 16_384;

/// Datagrams that belong to no current request, passed over before a transaction is given up.
const LEFTOVERS_MAX: usize = 256;

/// `NLMSGERR_ATTR_MSG`: the kernel's own words for an error.
const NLMSGERR_ATTR_MSG: u16 = 1;

/// A message in a datagram. `payload` is what follows the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
}

/// Takes the first message off `datagram`; `None` at its end or where it is malformed.
pub(super) fn next_message<'a>(datagram: &mut &'a [u8]) -> Option<Message<'a>> {
    let header = datagram.get(..HEADER)?;
    let word = |at: usize| header.get(at..at + 4).and_then(|b| <[u8; 4]>::try_from(b).ok()).map(u32::from_ne_bytes);
    let half = |at: usize| header.get(at..at + 2).and_then(|b| <[u8; 2]>::try_from(b).ok()).map(u16::from_ne_bytes);
    let length = usize::try_from(word(0)?).ok()?;
    let message =
        Message { kind: half(4)?, flags: half(6)?, sequence: word(8)?, payload: datagram.get(HEADER..length)? };
    *datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some(message)
}

/// The attributes of `bytes` (kind, value), up to the first malformed one.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(Result::ok).map(|nla| {
        let length = nla.value_length();
        // `NlaBuffer::value` ties its result to the buffer object, not to the bytes.
        (nla.kind(), nla.into_inner().get(4..4 + length).unwrap_or_default())
    })
}

/// Appends a request to `out`, its length filled in and padded.
pub(super) fn push_request(out: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
    out.extend_from_slice(&sequence.to_ne_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = u32::try_from(out.len() - start).expect("requests are a few hundred bytes");
    if let Some(field) = out.get_mut(start..start + 4) {
        field.copy_from_slice(&length.to_ne_bytes());
    }
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends an attribute, padded. A value of 64 KiB and more can't be written: it is left out.
pub(super) fn push_attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let Ok(length) = u16::try_from(value.len() + 4) else { return };
    out.extend_from_slice(&length.to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends an attribute that holds attributes.
pub(super) fn push_nested(out: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    const NESTED: u16 = 0x8000;
    let mut inside = Vec::new();
    body(&mut inside);
    push_attribute(out, kind | NESTED, &inside);
}

/// What the kernel said about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ack {
    /// 0 is success.
    pub(super) errno: i32,
    /// The kernel's explanation, where it gave one.
    pub(super) text: Option<String>,
}

impl Ack {
    pub(super) const SUCCESS: Self = Self { errno: 0, text: None };
}

/// Reads an acknowledgement (`NLMSG_ERROR`).
pub(super) fn parse_ack(message: &Message<'_>) -> Option<Ack> {
    if message.kind != NLMSG_ERROR {
        return None;
    }
    let (code, rest) = message.payload.split_first_chunk::<4>()?;
    let errno = i32::from_ne_bytes(*code).saturating_neg();
    let mut text = None;
    if message.flags & NLM_F_ACK_TLVS != 0 {
        // The request's header follows, and the request itself unless capped.
        let echoed = if message.flags & NLM_F_CAPPED != 0 {
            HEADER
        } else {
            rest.first_chunk::<4>().map_or(HEADER, |l| u32::from_ne_bytes(*l) as usize)
        };
        text = rest.get(echoed.next_multiple_of(4)..).and_then(|tlvs| {
            attributes(tlvs)
                .find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG)
                .map(|(_, value)| String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned())
        });
    }
    Some(Ack { errno, text })
}

/// A blocking netlink socket with a receive timeout, talking to the kernel only.
#[derive(Debug)]
pub(super) struct NetlinkSocket {
    fd: OwnedFd,
    sequence: u32,
}

impl NetlinkSocket {
    /// Opens a socket for requests. The capability of the opener and that of each sender are checked by the kernel, so
    /// open it after dropping privileges, in the process that uses it.
    pub(super) fn open(protocol: SockProtocol) -> io::Result<Self> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        // Connected: nobody but the kernel can answer.
        connect(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        let timeout = TimeVal::new(0, REPLY_TIMEOUT.subsec_micros().into());
        setsockopt(&fd, sockopt::ReceiveTimeout, &timeout)?;
        setsockopt(&fd, sockopt::SendTimeout, &timeout)?;
        // A batch's answers must fit, whatever the host's default: 100 acknowledgements and 100 addresses at 1 KiB each.
        if setsockopt(&fd, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            setsockopt(&fd, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
        }
        // Both are comforts: short acknowledgements, and the kernel's own words.
        let _ = set_option(fd.as_fd(), libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1);
        let _ = set_option(fd.as_fd(), libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1);
        Ok(Self { fd, sequence: 0 })
    }

    /// The number by which the kernel names this socket in what it tells of its requests.
    pub(super) fn port(&self) -> io::Result<u32> {
        Ok(getsockname::<NetlinkAddr>(self.fd.as_raw_fd())?.pid())
    }

    /// The next `count` sequence numbers; the first is returned.
    pub(super) fn sequence(&mut self, count: u32) -> u32 {
        let first = self.sequence.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(count);
        first
    }

    /// Has the kernel take datagrams of so many bytes. Beyond what any socket may have that needs CAP_NET_ADMIN.
    pub(super) fn make_room(&self, bytes: usize) -> io::Result<()> {
        if bytes > SMALL && setsockopt(&self.fd, sockopt::SndBufForce, &(bytes + SMALL)).is_err() {
            setsockopt(&self.fd, sockopt::SndBuf, &(bytes + SMALL))?;
        }
        Ok(())
    }

    /// Sends one datagram of one or more requests.
    pub(super) fn send(&self, datagram: &[u8]) -> io::Result<()> {
        loop {
            match send(self.fd.as_raw_fd(), datagram, MsgFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(nix::errno::Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Receives one datagram into `buffer`; `TimedOut` after [`REPLY_TIMEOUT`].
    pub(super) fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
        loop {
            match recv(self.fd.as_raw_fd(), buffer, MsgFlags::empty()) {
                Ok(n) => return Ok(buffer.get(..n).unwrap_or_default()),
                Err(nix::errno::Errno::EINTR) => {}
                Err(nix::errno::Errno::EAGAIN) => return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Dumps: sends a request of `kind` with this body and gives every answer to `each`. Where the kernel says that
    /// the table changed meanwhile the dump starts again (`restart` is called first).
    pub(super) fn dump<S>(
        &mut self,
        kind: u16,
        body: &[u8],
        state: &mut S,
        restart: impl Fn(&mut S),
        each: impl Fn(&mut S, &Message<'_>),
    ) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        for attempt in 1..=DUMP_TRIES {
            restart(state);
            let sequence = self.sequence(1);
            let mut request = Vec::with_capacity(HEADER + body.len());
            push_request(&mut request, kind, NLM_F_DUMP, sequence, |out| out.extend_from_slice(body));
            self.send(&request)?;
            let consistent = self.read_dump(sequence, &mut buffer, |message| each(state, message))?;
            if consistent || attempt == DUMP_TRIES {
                break;
            }
        }
        Ok(())
    }

    /// Reads the answers to `sequence` up to the end of the dump; false: it was inconsistent.
    fn read_dump(&self, sequence: u32, buffer: &mut [u8], mut each: impl FnMut(&Message<'_>)) -> io::Result<bool> {
        let mut consistent = true;
        for _ in 0..DUMP_READS {
            let mut datagram = self.receive(buffer)?;
            while let Some(message) = next_message(&mut datagram) {
                if message.sequence != sequence {
                    continue; // left over from a request that was given up
                }
                consistent &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_DONE => return Ok(consistent),
                    NLMSG_ERROR => {
                        let errno = parse_ack(&message).map_or(libc::EPROTO, |ack| ack.errno);
                        return Err(io::Error::from_raw_os_error(errno));
                    }
                    _ => each(&message),
                }
            }
        }
        Err(io::Error::from_raw_os_error(libc::EPROTO))
    }

    /// Sends `datagram`, which holds `count` requests numbered from `first`, and gives every message that answers one
    /// of them to `each` (with the request's position) until each has been acknowledged. What was not acknowledged in
    /// time keeps `None`.
    pub(super) fn transact(
        &self,
        datagram: &[u8],
        first: u32,
        count: usize,
        mut each: impl FnMut(usize, &Message<'_>),
    ) -> io::Result<Vec<Option<Ack>>> {
        self.send(datagram)?;
        let mut acks = vec![None; count];
        let mut missing = count;
        let mut buffer = vec![0; 8 * 1024];
        // The answers are queued by now. Reads are counted, not timed: a loaded host may keep us from them for longer
        // than the timeout, and that makes them no less true. Leftovers of a request given up come on top.
        for _ in 0..count.saturating_mul(2) + LEFTOVERS_MAX {
            if missing == 0 {
                break;
            }
            let mut received = match self.receive(&mut buffer) {
                Ok(received) => received,
                Err(e) if e.raw_os_error() == Some(libc::ETIMEDOUT) => break,
                Err(e) => return Err(e),
            };
            while let Some(message) = next_message(&mut received) {
                let position = usize::try_from(message.sequence.wrapping_sub(first)).unwrap_or(usize::MAX);
                let Some(slot) = acks.get_mut(position) else { continue };
                match parse_ack(&message) {
                    Some(ack) if slot.is_none() => {
                        *slot = Some(ack);
                        missing -= 1;
                    }
                    Some(_) => {}
                    None => each(position, &message),
                }
            }
        }
        Ok(acks)
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for NetlinkSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Sets an integer socket option that no crate in use has a name for.
pub(super) fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<i32>()).expect("an int is four bytes");
    // SAFETY: the pointer is to a live i32 and the length is that of an i32; the kernel only reads it.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_round_trips_with_padding() {
        let mut out = Vec::new();
        push_request(&mut out, 20, 4, 7, |o| o.extend_from_slice(&[1, 2, 3]));
        push_request(&mut out, 21, 0, 8, |o| o.extend_from_slice(&[9]));
        let mut rest = out.as_slice();
        let first = next_message(&mut rest).expect("first");
        assert_eq!(
            (first.kind, first.flags, first.sequence, first.payload),
            (20, 4 | NLM_F_REQUEST, 7, &[1, 2, 3][..])
        );
        let second = next_message(&mut rest).expect("second");
        assert_eq!((second.kind, second.sequence, second.payload), (21, 8, &[9][..]));
        assert_eq!(next_message(&mut rest), None);
    }

    #[test]
    fn a_truncated_or_lying_message_ends_the_datagram() {
        let mut out = Vec::new();
        push_request(&mut out, 20, 4, 7, |o| o.extend_from_slice(&[1, 2, 3, 4]));
        for cut in 0..out.len() {
            assert_eq!(next_message(&mut &out[..cut]), None, "cut at {cut}");
        }
        out[0] = 15; // shorter than its own header
        assert_eq!(next_message(&mut out.as_slice()), None);
    }

    #[test]
    fn an_acknowledgement_carries_the_kernels_words() {
        let mut payload = Vec::new();
        payload.extend_from_slice(&(-libc::EINVAL).to_ne_bytes());
        payload.extend_from_slice(&[0; HEADER]);
        payload.extend_from_slice(&8u16.to_ne_bytes());
        payload.extend_from_slice(&NLMSGERR_ATTR_MSG.to_ne_bytes());
        payload.extend_from_slice(b"bad\0");
        let message =
            Message { kind: NLMSG_ERROR, flags: NLM_F_ACK_TLVS | NLM_F_CAPPED, sequence: 1, payload: &payload };
        assert_eq!(parse_ack(&message), Some(Ack { errno: libc::EINVAL, text: Some("bad".into()) }));
        for cut in 0..payload.len() {
            let _ = parse_ack(&Message { payload: &payload[..cut], ..message });
        }
    }
}
