//! Just enough of ctnetlink for a load and for looking at what came of it. On purpose not the agent's codec: what is
//! measured must not be judged by itself.

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, connect, recv, send, setsockopt,
    socket, sockopt,
};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Bytes that a message of ours takes at most.
const MESSAGE_MAX: usize = 320;
/// What one read may bring.
const READ: usize = 1 << 18;

/// `NFNL_SUBSYS_CTNETLINK << 8`.
const SUBSYSTEM: u16 = 1 << 8;
const NEW: u16 = 0;
const GET: u16 = 1;
const DELETE: u16 = 2;

const REQUEST: u16 = 0x1;
const DUMP: u16 = 0x300;
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;

const NESTED: u16 = 1 << 15;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const PROTOINFO: u16 = 4;
const TIMEOUT: u16 = 7;
const NAT_DST: u16 = 13;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// Bits of the status.
pub const SEEN_REPLY: u32 = 2;
/// See [`SEEN_REPLY`].
pub const ASSURED: u32 = 4;
const CONFIRMED: u32 = 8;

/// TCP's states as ctnetlink numbers them.
pub const SYN_SENT: u8 = 1;
/// See [`SYN_SENT`].
pub const ESTABLISHED: u8 = 3;
/// See [`SYN_SENT`].
pub const CLOSE_WAIT: u8 = 5;

/// `NFNLGRP_CONNTRACK_NEW` as a bit.
pub const NEWS: u32 = 1;

/// A TCP flow, as its client sends it, and where it really goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// Its client.
    pub client: (Ipv4Addr, u16),
    /// The VIP.
    pub vip: (Ipv4Addr, u16),
    /// The backend.
    pub backend: (Ipv4Addr, u16),
}

/// What the kernel says of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The client.
    pub client: (u32, u16),
    /// Where it is sent.
    pub destination: u32,
    /// Who answers: the backend.
    pub answers: (u32, u16),
    /// TCP's state; 0: not said.
    pub state: u8,
}

/// What the kernel sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// A new flow, or one of a dump.
    Entry(Entry),
    /// A request failed; 0: it didn't.
    Error(i32),
    /// The end of a dump.
    Done,
}

/// A socket, and what is to be written with it.
#[derive(Debug)]
pub struct Netlink {
    fd: OwnedFd,
    out: Vec<u8>,
    buffer: Vec<u8>,
    sequence: u32,
    /// What the kernel refused, by errno.
    pub refused: BTreeMap<i32, u64>,
}

impl Netlink {
    /// Opens it in the calling thread's namespace; `groups`: events to hear of.
    ///
    /// # Errors
    /// No netfilter, or no CAP_NET_ADMIN.
    pub fn open(groups: u32) -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)
            .context("open a netlink socket")?;
        setsockopt(&fd, sockopt::RcvBufForce, &(64 << 20)).context("room for what is unread")?;
        setsockopt(&fd, sockopt::SndBufForce, &(4 << 20)).context("room for what is written")?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups)).context("bind the netlink socket")?;
        connect(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).context("connect the netlink socket")?;
        Ok(Self { fd, out: Vec::with_capacity(1 << 16), buffer: vec![0; READ], sequence: 0, refused: BTreeMap::new() })
    }

    /// To create `flow`.
    pub fn create(&mut self, flow: &Flow, state: u8, status: u32, timeout_s: u32) {
        self.message(NEW, CREATE | EXCLUSIVE, |m| {
            m.tuple(TUPLE_ORIGINAL, flow.client, flow.vip);
            // Before NAT: of the translated one the kernel would find that there is nothing to translate.
            m.tuple(TUPLE_REPLY, flow.vip, flow.client);
            m.number(STATUS, status | CONFIRMED);
            m.number(TIMEOUT, timeout_s);
            m.state(state);
            m.nest(NAT_DST, |m| {
                m.put(1, &flow.backend.0.octets());
                m.put(2, &flow.backend.0.octets());
                m.nest(3, |m| {
                    m.put(1, &flow.backend.1.to_be_bytes());
                    m.put(2, &flow.backend.1.to_be_bytes());
                });
            });
        });
    }

    /// To change `flow`.
    pub fn update(&mut self, flow: &Flow, state: u8, status: u32) {
        self.message(NEW, 0, |m| {
            m.tuple(TUPLE_ORIGINAL, flow.client, flow.vip);
            m.number(STATUS, status | CONFIRMED);
            m.number(TIMEOUT, 7200);
            m.state(state);
        });
    }

    /// To remove `flow`.
    pub fn delete(&mut self, flow: &Flow) {
        self.message(DELETE, 0, |m| m.tuple(TUPLE_ORIGINAL, flow.client, flow.vip));
    }

    fn message(&mut self, kind: u16, flags: u16, attributes: impl FnOnce(&mut Put<'_>)) {
        self.sequence = self.sequence.wrapping_add(1);
        let start = self.out.len();
        self.out.reserve(MESSAGE_MAX);
        self.out.extend_from_slice(&[0; 4]);
        self.out.extend_from_slice(&(SUBSYSTEM | kind).to_ne_bytes());
        self.out.extend_from_slice(&(REQUEST | flags).to_ne_bytes());
        self.out.extend_from_slice(&self.sequence.to_ne_bytes());
        self.out.extend_from_slice(&[0; 4]);
        // struct nfgenmsg: AF_INET, version 0.
        self.out.extend_from_slice(&[2, 0, 0, 0]);
        attributes(&mut Put { out: &mut self.out });
        let length = (self.out.len() - start) as u32;
        self.out.get_mut(start..start + 4).expect("reserved above").copy_from_slice(&length.to_ne_bytes());
    }

    /// Writes all that was put. The kernel has done it when this returns.
    ///
    /// # Errors
    /// It couldn't be written.
    pub fn flush(&mut self) -> Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let sent = send(self.fd.as_raw_fd(), &self.out, MsgFlags::empty());
        self.out.clear();
        sent.context("write into the connection table")?;
        let mut refused = std::mem::take(&mut self.refused);
        self.read(|message| {
            if let Message::Error(errno) = message
                && errno != 0
            {
                *refused.entry(errno).or_default() += 1;
            }
        })?;
        self.refused = refused;
        Ok(())
    }

    /// All that is there; returns whether something was lost before.
    ///
    /// # Errors
    /// Reading failed.
    pub fn read(&mut self, mut each: impl FnMut(Message)) -> Result<bool> {
        let mut lost = false;
        loop {
            match recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Ok(n) => parse(self.buffer.get(..n).unwrap_or_default(), &mut each),
                Err(Errno::EAGAIN) => return Ok(lost),
                Err(Errno::ENOBUFS) => lost = true,
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e).context("read of the connection table"),
            }
        }
    }

    /// Every flow.
    ///
    /// # Errors
    /// The dump failed.
    pub fn dump(&mut self, mut each: impl FnMut(Entry)) -> Result<()> {
        self.message(GET, DUMP, |_| {});
        let sent = send(self.fd.as_raw_fd(), &self.out, MsgFlags::empty());
        self.out.clear();
        sent.context("ask for the connection table")?;
        let mut end = None;
        while end.is_none() {
            self.wait(1000)?;
            let lost = self.read(|message| match message {
                Message::Entry(entry) => each(entry),
                Message::Error(errno) if errno != 0 => end = Some(errno),
                Message::Error(_) | Message::Done => end = end.or(Some(0)),
            })?;
            if lost {
                bail!("the dump of the connection table is incomplete");
            }
        }
        match end {
            Some(0) | None => Ok(()),
            Some(errno) => Err(Errno::from_raw(errno)).context("dump of the connection table"),
        }
    }

    /// Whether there is this flow.
    ///
    /// # Errors
    /// It can't be asked.
    pub fn has(&mut self, flow: &Flow) -> Result<bool> {
        self.message(GET, 0, |m| m.tuple(TUPLE_ORIGINAL, flow.client, flow.vip));
        let sent = send(self.fd.as_raw_fd(), &self.out, MsgFlags::empty());
        self.out.clear();
        sent.context("ask for a flow")?;
        let mut has = false;
        self.wait(1000)?;
        self.read(|message| has |= matches!(message, Message::Entry(_)))?;
        Ok(has)
    }

    /// Until something can be read, or `ms` have passed.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&self, ms: u16) -> Result<()> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let t = Timespec { tv_sec: i64::from(ms / 1000), tv_nsec: i64::from(ms % 1000) * 1_000_000 };
        match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&t)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e).context("wait for the kernel"),
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Attributes at the end of what is to be written.
struct Put<'a> {
    out: &'a mut Vec<u8>,
}

impl Put<'_> {
    fn put(&mut self, kind: u16, value: &[u8]) {
        self.out.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
        self.out.extend_from_slice(&kind.to_ne_bytes());
        self.out.extend_from_slice(value);
        self.out.resize(self.out.len().next_multiple_of(4), 0);
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_be_bytes());
    }

    fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Put<'_>)) {
        let start = self.out.len();
        self.put(kind | NESTED, &[]);
        inside(&mut Put { out: self.out });
        let length = (self.out.len() - start) as u16;
        self.out.get_mut(start..start + 2).expect("put above").copy_from_slice(&length.to_ne_bytes());
    }

    fn tuple(&mut self, kind: u16, from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) {
        const TCP: u8 = 6;
        self.nest(kind, |m| {
            m.nest(1, |m| {
                m.put(1, &from.0.octets());
                m.put(2, &to.0.octets());
            });
            m.nest(2, |m| {
                m.put(1, &[TCP]);
                m.put(2, &from.1.to_be_bytes());
                m.put(3, &to.1.to_be_bytes());
            });
        });
    }

    fn state(&mut self, state: u8) {
        self.nest(PROTOINFO, |m| m.nest(1, |m| m.put(1, &[state])));
    }
}

fn parse(mut bytes: &[u8], each: &mut impl FnMut(Message)) {
    while let Some((message, rest)) = cut(bytes) {
        bytes = rest;
        let kind = number16(message, 4);
        match kind {
            NLMSG_DONE => each(Message::Done),
            NLMSG_ERROR => {
                let code = message.get(16..20).and_then(|b| b.try_into().ok()).map_or(0, i32::from_ne_bytes);
                each(Message::Error(-code));
            }
            _ if kind >> 8 == SUBSYSTEM >> 8 && kind & 0xff == NEW => {
                if let Some(entry) = entry(message.get(20..).unwrap_or_default()) {
                    each(Message::Entry(entry));
                }
            }
            _ => {}
        }
    }
}

/// The first message or attribute list's worth, by its length in 4 bytes.
fn cut(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let message = bytes.get(..length).filter(|m| m.len() >= 16)?;
    Some((message, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn number16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_ne_bytes)
}

/// An attribute's value among others.
fn find(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(number16(bytes, 0));
        let attribute = bytes.get(..length).filter(|a| a.len() >= 4)?;
        if number16(attribute, 2) & 0x3fff == wanted {
            return attribute.get(4..);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

fn entry(attributes: &[u8]) -> Option<Entry> {
    let ends = |tuple: &[u8]| {
        let (ip, ports) = (find(tuple, 1)?, find(tuple, 2)?);
        let address = |kind| Some(u32::from_be_bytes(find(ip, kind)?.try_into().ok()?));
        let port = |kind| Some(u16::from_be_bytes(find(ports, kind)?.try_into().ok()?));
        Some(((address(1)?, port(2)?), (address(2)?, port(3)?)))
    };
    let (client, destination) = ends(find(attributes, TUPLE_ORIGINAL)?)?;
    let (answers, _) = ends(find(attributes, TUPLE_REPLY)?)?;
    let state = find(attributes, PROTOINFO).and_then(|p| find(p, 1)).and_then(|tcp| find(tcp, 1));
    let state = state.and_then(|s| s.first()).copied().unwrap_or(0);
    Some(Entry { client, destination: destination.0, answers, state })
}
