//! A socket to nf_tables: batches are committed, and few things are asked.

use super::super::addr::step_error;
use super::super::netlink::{Ack, NetlinkSocket, attributes, next_message, parse_ack, push_request};
use super::batch::{Batch, NFPROTO_INET, SUBSYSTEM, generic_header};
use super::expr::{NFTA_DATA_VALUE, push_string};
use super::watch::Generation;
use holdfast_node::io::StepError;
use nix::sys::socket::SockProtocol;
use rtnetlink::packet_core::NLM_F_ACK;
use std::io;

const GETTABLE: u16 = 1;
const GETSETELEM: u16 = 13;
const GETGEN: u16 = 16;
/// Datagrams read for one batch beyond its answers: leftovers of one that was given up.
const LEFTOVERS_MAX: usize = 256;

/// A socket to nf_tables, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct NftSocket {
    netlink: NetlinkSocket,
}

impl NftSocket {
    /// Opens the socket. Changes need CAP_NET_ADMIN, both now and when they are made.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`: the kernel has no netfilter; else whatever the system says about the socket.
    pub fn open() -> io::Result<Self> {
        Ok(Self { netlink: NetlinkSocket::open(SockProtocol::NetlinkNetFilter)? })
    }

    /// Commits; the kernel does it before this returns.
    ///
    /// # Errors
    /// With the object named that was refused; nothing has changed then. `ETIMEDOUT`: it isn't known whether it has.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), StepError> {
        let count = batch.objects.len();
        let first = self.netlink.sequence(u32::try_from(count + 2).expect("a few messages"));
        let failed = |errno, text: Option<&str>, object: &str| {
            Err(step_error(errno, text, "CAP_NET_ADMIN", format!("nftables: {object}")))
        };
        let whole = format!("commit table inet {}", batch.table);
        let unread = |e: io::Error| e.raw_os_error().unwrap_or(libc::EIO);
        let datagram = batch.encode(first);
        let sent = self.netlink.make_room(datagram.len()).and_then(|()| self.netlink.send(&datagram));
        drop(datagram);
        if let Err(e) = sent {
            return failed(unread(e), None, &whole);
        }
        let mut buffer = vec![0; 8 * 1024];
        let mut acks = vec![None; count];
        let mut missing = count;
        for _ in 0..count + LEFTOVERS_MAX {
            if missing == 0 {
                break;
            }
            let mut received = match self.netlink.receive(&mut buffer) {
                Ok(received) => received,
                Err(e) => return failed(unread(e), None, &whole),
            };
            while let Some(message) = next_message(&mut received) {
                let Some(ack) = parse_ack(&message) else { continue };
                let position = message.sequence.wrapping_sub(first);
                if position == 0 && ack.errno != 0 {
                    // Said of the batch as a whole: nothing else will be.
                    return match ack.errno {
                        libc::EOPNOTSUPP => {
                            let what = format!("nftables: {whole}: this kernel has no nf_tables");
                            Err(StepError { errno: libc::EOPNOTSUPP, what })
                        }
                        errno => failed(errno, ack.text.as_deref(), &whole),
                    };
                }
                let slot = usize::try_from(position).ok().and_then(|p| acks.get_mut(p.checked_sub(1)?));
                if let Some(slot @ None) = slot {
                    *slot = Some(ack);
                    missing -= 1;
                    // The kernel tells errors in the order of the messages.
                    if batch.is_long() && usize::try_from(position) == Ok(count) {
                        acks.iter_mut().filter(|ack| ack.is_none()).for_each(|ack| *ack = Some(Ack::SUCCESS));
                        missing = 0;
                    }
                }
            }
        }
        // The first that failed is why the others did.
        for (ack, object) in acks.iter().zip(&batch.objects) {
            match ack {
                Some(ack) if ack.errno != 0 => return failed(ack.errno, ack.text.as_deref(), object),
                Some(_) => {}
                None => return failed(libc::ETIMEDOUT, None, object),
            }
        }
        Ok(())
    }

    /// Removes this table of ours; gone already is success.
    ///
    /// # Errors
    /// With the object named.
    pub fn remove(&mut self, table: &'static str) -> Result<(), StepError> {
        // Without nf_tables there is no table to remove, and nothing to load for it.
        if self.has(table).is_ok_and(|there| !there) {
            return Ok(());
        }
        let mut batch = Batch::to(table);
        batch.remove_table();
        self.commit(&batch)
    }

    /// How often anything of nf_tables has been changed in this network namespace, by whomever.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn generation(&mut self) -> io::Result<Generation> {
        let sequence = self.netlink.sequence(1);
        let mut datagram = Vec::new();
        push_request(&mut datagram, SUBSYSTEM << 8 | GETGEN, NLM_F_ACK, sequence, |out| {
            out.extend_from_slice(&generic_header(0, 0));
        });
        let mut found = None;
        self.netlink.transact(&datagram, sequence, 1, |_, message| {
            let id = message.payload.get(4..).and_then(|body| attribute(body, 1)?.first_chunk::<4>().copied());
            found = id.map(u32::from_be_bytes);
        })?;
        found.map(Generation).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODATA))
    }

    /// Packets that each element of a set that counts has counted, by key; empty: there is no such set.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn counters(&mut self, table: &str, set: &str) -> io::Result<Vec<(Vec<u8>, u64)>> {
        let mut body = generic_header(NFPROTO_INET, 0);
        push_string(&mut body, 1, table);
        push_string(&mut body, 2, set);
        let mut found = Vec::new();
        let dumped = self.netlink.dump(SUBSYSTEM << 8 | GETSETELEM, &body, &mut found, Vec::clear, |found, message| {
            let list = message.payload.get(4..).and_then(|body| attribute(body, 3)).unwrap_or_default();
            found.extend(attributes(list).filter_map(|(_, element)| counted(element)));
        });
        match dumped {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
            other => other.map(|()| found),
        }
    }

    /// Whether this table of ours is there: somebody may have flushed the whole rule set.
    ///
    /// # Errors
    /// Whatever the kernel says, but that there is no such table (or no nf_tables).
    pub fn has(&mut self, table: &str) -> io::Result<bool> {
        let sequence = self.netlink.sequence(1);
        let mut datagram = Vec::new();
        push_request(&mut datagram, SUBSYSTEM << 8 | GETTABLE, NLM_F_ACK, sequence, |out| {
            out.extend_from_slice(&generic_header(NFPROTO_INET, 0));
            push_string(out, 1, table);
        });
        let acks = self.netlink.transact(&datagram, sequence, 1, |_, _| ())?;
        match acks.first().and_then(Option::as_ref).map_or(libc::ETIMEDOUT, |ack| ack.errno) {
            0 => Ok(true),
            libc::ENOENT | libc::EOPNOTSUPP => Ok(false),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// Key and packets of an element with a counter.
fn counted(element: &[u8]) -> Option<(Vec<u8>, u64)> {
    let key = attribute(attribute(element, 1)?, NFTA_DATA_VALUE)?;
    let counter = attribute(attribute(element, 7)?, 2)?;
    let packets = attribute(counter, 2)?.first_chunk::<8>()?;
    Some((key.to_vec(), u64::from_be_bytes(*packets)))
}

/// The value of the first attribute of this kind.
pub(super) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(of, _)| of & 0x3fff == kind).map(|(_, value)| value)
}
