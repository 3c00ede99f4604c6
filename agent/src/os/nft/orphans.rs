//! Flows whose backend is down, forgotten by the kernel's connection table.
//!
//! Nobody else's flow is touched: only one of a service's address, protocol and port that was sent on to another
//! destination, and that to none of the backends which may keep theirs.
//!
//! What this module refuses to do: be quick. A table of a million flows takes seconds to walk through.

use super::super::netlink::{BUFFER, NetlinkSocket};
use holdfast_node::config::Transport;
use holdfast_node::pool::Cut;
use holdfast_statesync::ct::{Batch, DumpFilter, Entry, Layer4, Message, Messages, Outcome, Status};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockProtocol, recv};
use std::io;
use std::os::fd::AsRawFd;

/// A table that changes while it is walked through is walked through again, so often.
const WALKS: usize = 3;
/// Datagrams of one walk (1 GiB): only a kernel that never ends it gets there.
const DATAGRAMS_MAX: usize = 32_768;

/// Forgets them, in the network namespace of the calling thread. Returns how many there were.
///
/// # Errors
/// Some may be left. Needs CAP_NET_ADMIN.
pub fn forget(cut: &Cut) -> io::Result<u64> {
    let mut forgotten = 0;
    for _ in 0..WALKS {
        let (count, complete) = walk(cut)?;
        forgotten += count;
        if complete {
            break;
        }
    }
    Ok(forgotten)
}

/// Once through the table; false: it changed meanwhile.
fn walk(cut: &Cut) -> io::Result<(u64, bool)> {
    let mut dump = NetlinkSocket::open(SockProtocol::NetlinkNetFilter)?;
    let writer = NetlinkSocket::open(SockProtocol::NetlinkNetFilter)?;
    let wanted = dump.sequence(1);
    let mut request = Vec::new();
    let mut families = cut.services.keys().map(|(ip, ..)| ip.is_ipv6());
    let six = families.next().filter(|first| families.all(|six| six == *first));
    let filter = DumpFilter { status: Some((Status::DST_NAT, Status::DST_NAT)), six, ..DumpFilter::default() };
    filter.request(&mut request, wanted);
    dump.send(&request)?;
    let (mut buffer, mut answers, mut batch) = (vec![0; BUFFER], vec![0; BUFFER], Batch::new());
    let mut count = 0;
    for _ in 0..DATAGRAMS_MAX {
        for message in Messages::new(dump.receive(&mut buffer)?) {
            match message {
                Message::Entry { sequence, entry } if sequence == wanted && is_orphan(cut, &entry) => {
                    if batch.is_full() {
                        write(&writer, &mut batch, &mut answers)?;
                    }
                    // There is room, and a tuple that was read can be written.
                    count += u64::from(batch.delete(&entry.original, entry.zone, entry.id).is_ok());
                }
                Message::Answer { sequence, errno } if sequence == wanted && errno != 0 => {
                    return Err(io::Error::from_raw_os_error(errno));
                }
                Message::Done { sequence, errno, interrupted } if sequence == wanted => {
                    write(&writer, &mut batch, &mut answers)?;
                    return if errno == 0 {
                        Ok((count, !interrupted))
                    } else {
                        Err(io::Error::from_raw_os_error(errno))
                    };
                }
                _ => {}
            }
        }
    }
    Err(io::Error::from_raw_os_error(libc::EPROTO))
}

/// Nothing is acknowledged, but what failed is answered by the time that the kernel returns.
fn write(writer: &NetlinkSocket, batch: &mut Batch, buffer: &mut [u8]) -> io::Result<()> {
    if batch.is_empty() {
        return Ok(());
    }
    writer.make_room(batch.bytes().len())?;
    writer.send(batch.bytes())?;
    let mut failed = None;
    loop {
        match recv(writer.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(length) => {
                for message in Messages::new(buffer.get(..length).unwrap_or_default()) {
                    if let Message::Answer { sequence, errno } = message
                        && let Some((_, outcome)) = batch.outcome(sequence, errno)
                        // Gone already is what was wanted.
                        && !matches!(outcome, Outcome::Done | Outcome::Missing)
                    {
                        failed = Some(outcome);
                    }
                }
            }
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => break,
            Err(e) => return Err(e.into()),
        }
    }
    batch.clear();
    failed.map_or(Ok(()), |outcome| Err(io::Error::other(outcome.to_string())))
}

fn is_orphan(cut: &Cut, entry: &Entry) -> bool {
    let protocol = match entry.original.layer4 {
        Layer4::Tcp { .. } => Transport::Tcp,
        Layer4::Udp { .. } => Transport::Udp,
        _ => return false,
    };
    let service = entry.original.destination();
    let backends = cut.services.get(&(service.ip(), protocol, service.port()));
    // Whoever answers is who it was sent to.
    let sent_to = entry.reply.source();
    sent_to != service && backends.is_some_and(|backends| !backends.contains(&sent_to))
}
