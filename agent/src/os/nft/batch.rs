//! Transactions: either all of a batch takes effect, at one moment, or nothing.

use super::super::addr::step_error;
use super::super::netlink::{NetlinkSocket, next_message, parse_ack, push_attribute, push_nested, push_request};
use super::expr::{Expression, NFTA_DATA_VALUE, push_number, push_string};
use holdfast_node::io::StepError;
use nix::sys::socket::SockProtocol;
use rtnetlink::packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE};
use std::io;

/// Our table, of family inet (IPv4 and IPv6).
pub const TABLE: &str = "holdfast";

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEWTABLE: u16 = 0;
const GETTABLE: u16 = 1;
const DELTABLE: u16 = 2;
const NEWCHAIN: u16 = 3;
const NEWRULE: u16 = 6;
const NEWSET: u16 = 9;
const NEWSETELEM: u16 = 12;
const NFPROTO_INET: u8 = 1;

/// Elements per message: an attribute ends at 64 KiB, and each takes at most 36 bytes.
const ELEMENTS_PER_MESSAGE: usize = 1_000;
/// Datagrams read for one batch beyond its answers: leftovers of one that was given up.
const LEFTOVERS_MAX: usize = 256;

/// Where a base chain sees packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Before routing.
    Prerouting,
    /// To this host.
    Input,
    /// Through this host.
    Forward,
    /// From this host.
    Output,
    /// After routing.
    Postrouting,
}

/// What happens at the end of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Goes on.
    Accept,
    /// Is thrown away.
    Drop,
}

/// A base chain of type filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// Name.
    pub name: &'static str,
    /// Where.
    pub hook: Hook,
    /// Order among the chains of a hook, lower first; what people write as `filter` is 0.
    pub priority: i32,
    /// At its end.
    pub policy: Policy,
}

/// What a set holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyType {
    /// IPv4 addresses.
    Ipv4,
    /// IPv6 addresses.
    Ipv6,
}

/// Changes to our table that take effect together.
#[derive(Debug, Default)]
pub struct Batch {
    messages: Vec<(u16, u16, Vec<u8>)>,
    /// What each message is about, for errors.
    objects: Vec<String>,
    sets: u32,
}

impl Batch {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The table becomes empty: it is made if it isn't there, and all that is in it goes.
    pub fn replace_table(&mut self) {
        self.remove_table();
        self.push(NEWTABLE, NLM_F_CREATE, format!("add table inet {TABLE}"), |out| push_string(out, 1, TABLE));
    }

    /// The table goes, if it's there.
    pub fn remove_table(&mut self) {
        // Made first, so that the removal can't fail for want of a table.
        self.push(NEWTABLE, NLM_F_CREATE, format!("add table inet {TABLE}"), |out| push_string(out, 1, TABLE));
        self.push(DELTABLE, 0, format!("delete table inet {TABLE}"), |out| push_string(out, 1, TABLE));
    }

    /// Adds a set with these keys (each of the type's length).
    pub fn add_set<'k>(&mut self, name: &'static str, key: KeyType, keys: impl IntoIterator<Item = &'k [u8]>) {
        // As `nft` numbers its types, so that it can show them.
        let (number, length) = match key {
            KeyType::Ipv4 => (7, 4),
            KeyType::Ipv6 => (8, 16),
        };
        self.sets += 1;
        let id = self.sets;
        self.push(NEWSET, NLM_F_CREATE, format!("add set inet {TABLE} {name}"), |out| {
            push_string(out, 1, TABLE);
            push_string(out, 2, name);
            push_number(out, 3, 0);
            push_number(out, 4, number);
            push_number(out, 5, length);
            push_number(out, 10, id);
        });
        let keys: Vec<&[u8]> = keys.into_iter().collect();
        for chunk in keys.chunks(ELEMENTS_PER_MESSAGE) {
            self.push(NEWSETELEM, NLM_F_CREATE, format!("add elements to set inet {TABLE} {name}"), |out| {
                push_string(out, 1, TABLE);
                push_string(out, 2, name);
                push_number(out, 4, id);
                push_nested(out, 3, |out| {
                    for key in chunk {
                        push_nested(out, 1, |out| {
                            push_nested(out, 1, |out| push_attribute(out, NFTA_DATA_VALUE, key));
                        });
                    }
                });
            });
        }
    }

    /// Adds a base chain.
    pub fn add_chain(&mut self, chain: Chain) {
        let Chain { name, hook, priority, policy } = chain;
        let hook = match hook {
            Hook::Prerouting => 0,
            Hook::Input => 1,
            Hook::Forward => 2,
            Hook::Output => 3,
            Hook::Postrouting => 4,
        };
        self.push(NEWCHAIN, NLM_F_CREATE, format!("add chain inet {TABLE} {name}"), |out| {
            push_string(out, 1, TABLE);
            push_string(out, 3, name);
            push_nested(out, 4, |out| {
                push_number(out, 1, hook);
                push_attribute(out, 2, &priority.to_be_bytes());
            });
            push_number(out, 5, if policy == Policy::Accept { 1 } else { 0 });
            push_string(out, 7, "filter");
        });
    }

    /// Adds a rule at the end of a chain.
    pub fn add_rule(&mut self, chain: &'static str, rule: impl IntoIterator<Item = Expression>) {
        self.push(NEWRULE, NLM_F_CREATE | NLM_F_APPEND, format!("add rule inet {TABLE} {chain}"), |out| {
            push_string(out, 1, TABLE);
            push_string(out, 2, chain);
            push_nested(out, 4, |out| rule.into_iter().for_each(|expression| expression.encode(out)));
        });
    }

    fn push(&mut self, kind: u16, flags: u16, object: String, body: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = generic_header(NFPROTO_INET, 0);
        body(&mut bytes);
        self.messages.push((SUBSYSTEM << 8 | kind, flags | NLM_F_ACK, bytes));
        self.objects.push(object);
    }

    /// The whole batch: its beginning has number `first`, its messages those after it.
    fn encode(&self, first: u32) -> Vec<u8> {
        let mut out = Vec::new();
        let frame = generic_header(0, SUBSYSTEM);
        push_request(&mut out, BATCH_BEGIN, 0, first, |out| out.extend_from_slice(&frame));
        let mut sequence = first;
        for (kind, flags, body) in &self.messages {
            sequence = sequence.wrapping_add(1);
            push_request(&mut out, *kind, *flags, sequence, |out| out.extend_from_slice(body));
        }
        push_request(&mut out, BATCH_END, 0, sequence.wrapping_add(1), |out| out.extend_from_slice(&frame));
        out
    }
}

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
        let count = batch.messages.len();
        let first = self.netlink.sequence(u32::try_from(count + 2).expect("a few messages"));
        let failed = |errno, text: Option<&str>, object: &str| {
            Err(step_error(errno, text, "CAP_NET_ADMIN", format!("nftables: {object}")))
        };
        let whole = format!("commit table inet {TABLE}");
        let unread = |e: io::Error| e.raw_os_error().unwrap_or(libc::EIO);
        if let Err(e) = self.netlink.send(&batch.encode(first)) {
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

    /// Whether our table is there: somebody may have flushed the whole rule set.
    ///
    /// # Errors
    /// Whatever the kernel says, but that there is no such table (or no nf_tables).
    pub fn has_table(&mut self) -> io::Result<bool> {
        let sequence = self.netlink.sequence(1);
        let mut datagram = Vec::new();
        push_request(&mut datagram, SUBSYSTEM << 8 | GETTABLE, NLM_F_ACK, sequence, |out| {
            out.extend_from_slice(&generic_header(NFPROTO_INET, 0));
            push_string(out, 1, TABLE);
        });
        let acks = self.netlink.transact(&datagram, sequence, 1, |_, _| ())?;
        match acks.first().and_then(Option::as_ref).map_or(libc::ETIMEDOUT, |ack| ack.errno) {
            0 => Ok(true),
            libc::ENOENT | libc::EOPNOTSUPP => Ok(false),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// `struct nfgenmsg`: family, version, a number in network order.
fn generic_header(family: u8, number: u16) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    vec![family, 0, high, low]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_framed_and_numbered_and_every_attribute_can_be_walked() {
        let mut batch = Batch::new();
        batch.replace_table();
        batch.add_set("some", KeyType::Ipv4, [&[192, 0, 2, 1][..], &[192, 0, 2, 2]]);
        batch.add_rule("input", [Expression::Counter]);
        let bytes = batch.encode(7);
        let mut rest = bytes.as_slice();
        let mut kinds = Vec::new();
        while let Some(message) = next_message(&mut rest) {
            kinds.push((message.sequence, message.kind));
        }
        assert!(rest.is_empty());
        let kind = |kind| SUBSYSTEM << 8 | kind;
        let expected = [
            BATCH_BEGIN,
            kind(NEWTABLE),
            kind(DELTABLE),
            kind(NEWTABLE),
            kind(NEWSET),
            kind(NEWSETELEM),
            kind(NEWRULE),
            BATCH_END,
        ];
        assert_eq!(kinds, (7..).zip(expected).collect::<Vec<_>>());
    }

    #[test]
    fn many_elements_are_split_so_that_no_attribute_overflows() {
        let keys: Vec<[u8; 16]> = (0..5_000_u128).map(u128::to_be_bytes).collect();
        let mut batch = Batch::new();
        batch.add_set("some", KeyType::Ipv6, keys.iter().map(<[u8; 16]>::as_slice));
        let bytes = batch.encode(1);
        let mut rest = bytes.as_slice();
        let mut elements = 0;
        while let Some(message) = next_message(&mut rest) {
            if message.kind == SUBSYSTEM << 8 | NEWSETELEM {
                use super::super::super::netlink::attributes;
                let body = message.payload.get(4..).expect("a header");
                let (_, list) = attributes(body).find(|(kind, _)| kind & 0x3fff == 3).expect("a list");
                elements += attributes(list).count();
            }
        }
        assert_eq!(elements, 5_000);
    }
}
