//! One flow in 36 bytes, and the store of these.

use super::types::Class;

/// A record's place in the store.
pub(crate) type Id = u32;

/// Answers were seen.
pub(crate) const SEEN_REPLY: u8 = 1;
/// The kernel calls it assured.
pub(crate) const ASSURED: u8 = 1 << 1;
/// Window scaling is known (both sides offered it).
pub(crate) const SCALED: u8 = 1 << 2;
/// The client offered selective acknowledgements.
pub(crate) const SACK_CLIENT: u8 = 1 << 3;
/// The backend did.
pub(crate) const SACK_BACKEND: u8 = 1 << 4;
/// Another connection than before uses the tuple: a replica in a kernel is to be created anew.
pub(crate) const FRESH: u8 = 1 << 5;
/// It ended; kept until the peers know.
pub(crate) const DEAD: u8 = 1 << 6;
/// Not old enough to be replicated.
pub(crate) const YOUNG: u8 = 1 << 7;
/// Those that are replicated.
pub(crate) const SENT_FLAGS: u8 = SEEN_REPLY | ASSURED | SCALED | SACK_CLIENT | SACK_BACKEND;

/// It is in our kernel's table, as far as we know.
pub(crate) const IN_KERNEL: u16 = 1;
/// An operation on it is on its way to the kernel.
pub(crate) const PENDING: u16 = 1 << 1;
/// It waits for an operation.
pub(crate) const QUEUED: u16 = 1 << 2;
/// Its entry is to be written again (timeout, mark, state).
pub(crate) const RESTAMP: u16 = 1 << 3;
/// Its entry is of an older connection: remove it, then create.
pub(crate) const REPLACE: u16 = 1 << 4;
/// The last create said that it exists.
pub(crate) const EXISTED: u16 = 1 << 5;
/// Another flow has its address and port behind the NAT.
pub(crate) const CLASH: u16 = 1 << 6;
/// The kernel refused it; the next audit tries again.
pub(crate) const REFUSED: u16 = 1 << 7;
/// The audit's colour.
pub(crate) const COLOUR: u16 = 1 << 8;
/// The last audit didn't see it.
pub(crate) const MISSED: u16 = 1 << 9;
/// The running operation is a delete.
pub(crate) const DELETING: u16 = 1 << 10;
/// Changes go out on the urgent lane.
pub(crate) const URGENT: u16 = 1 << 11;
/// It is on a list of a shard that is being received.
pub(crate) const LISTED: u16 = 1 << 12;
/// The running operation is an update.
pub(crate) const UPDATING: u16 = 1 << 13;
/// What a flow's entry in the kernel was refused for: of no meaning when it changes.
pub(crate) const SHARED_LOCAL: u16 = CLASH | REFUSED | MISSED;
/// Its slot is in use.
pub(crate) const USED: u16 = 1 << 14;

/// Backend or SNAT address that isn't there: the client's or the service's own.
pub(crate) const NO_ADDRESS: u16 = u16::MAX;

/// See the module documentation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Record {
    /// IPv4 address, or number of an IPv6 address.
    pub(crate) client: u32,
    pub(crate) mark: u32,
    /// Our kernel's name for it, as far as it told us; 0: it didn't. Tells connections of the same tuple apart.
    pub(crate) kernel_id: u32,
    /// Grows with each claim and each new connection of the tuple.
    pub(crate) generation: u32,
    pub(crate) client_port: u16,
    pub(crate) service: u16,
    pub(crate) backend: u16,
    pub(crate) snat: u16,
    pub(crate) snat_port: u16,
    /// Where it stands with our kernel and the audit.
    pub(crate) local: u16,
    pub(crate) owner: u8,
    /// TCP state below, class above.
    pub(crate) state: u8,
    /// Window scale of the client below, of the backend above.
    pub(crate) scale: u8,
    pub(crate) flags: u8,
    /// Peers that it has to be sent to.
    pub(crate) unsent: u8,
    /// Peers that didn't acknowledge the latest version (the unsent ones among them).
    pub(crate) unacked: u8,
    /// Changes with each change.
    pub(crate) version: u8,
}

impl Record {
    pub(crate) const fn tcp_state(&self) -> u8 {
        self.state & 0x0f
    }

    pub(crate) fn class(&self) -> Class {
        Class::ALL.get(usize::from(self.state >> 4)).copied().unwrap_or(Class::Icmp)
    }

    pub(crate) const fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    pub(crate) const fn local(&self, bits: u16) -> bool {
        self.local & bits == bits
    }

    /// It counts: neither ended nor too young.
    pub(crate) const fn is_live(&self) -> bool {
        self.flags & (DEAD | YOUNG) == 0
    }

    /// Nothing refers to its slot any more.
    pub(crate) const fn is_idle(&self) -> bool {
        self.unacked == 0 && self.local & (PENDING | QUEUED) == 0
    }
}

const CHUNK: usize = 4096;

/// The records, in pieces: growing neither copies nor leaves half of it empty.
#[derive(Debug, Default)]
pub(crate) struct Store {
    chunks: Vec<Box<[Record]>>,
    /// Slots that were ever used.
    used: u32,
    /// First free slot; each free slot's `client` is the next one.
    free: Option<Id>,
}

impl Store {
    /// A slot for a new record; what it holds is empty but for the version, which goes on from the slot's last use.
    pub(crate) fn add(&mut self, mut record: Record) -> Id {
        record.local |= USED;
        if let Some(id) = self.free {
            let slot = self.slot(id).expect("a free slot exists");
            let (next, version) = (slot.client, slot.version.wrapping_add(1));
            *slot = Record { version, ..record };
            self.free = (next != Id::MAX).then_some(next);
            return id;
        }
        let id = self.used;
        if (id as usize).is_multiple_of(CHUNK) {
            self.chunks.push(vec![Record::default(); CHUNK].into_boxed_slice());
        }
        self.used += 1;
        *self.slot(id).expect("its chunk was just made") = record;
        id
    }

    pub(crate) fn remove(&mut self, id: Id) {
        let next = self.free.unwrap_or(Id::MAX);
        if let Some(slot) = self.slot(id) {
            *slot = Record { client: next, version: slot.version, ..Record::default() };
            self.free = Some(id);
        }
    }

    fn slot(&mut self, id: Id) -> Option<&mut Record> {
        self.chunks.get_mut(id as usize / CHUNK)?.get_mut(id as usize % CHUNK)
    }

    /// The record in a slot; `None`: the slot is free.
    pub(crate) fn get(&self, id: Id) -> Option<&Record> {
        self.chunks.get(id as usize / CHUNK)?.get(id as usize % CHUNK).filter(|record| record.local(USED))
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut Record> {
        self.slot(id).filter(|record| record.local(USED))
    }

    /// All slots lie below this.
    pub(crate) const fn end(&self) -> Id {
        self.used
    }

    /// Bytes that it takes.
    pub(crate) fn memory(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<Record>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_takes_36_bytes() {
        assert_eq!(size_of::<Record>(), 36);
    }

    #[test]
    fn a_slot_that_is_used_again_has_another_version() {
        let mut store = Store::default();
        let first = store.add(Record::default());
        let second = store.add(Record::default());
        let version = store.get(first).unwrap().version;
        store.remove(first);
        assert!(store.get(first).is_none() && store.get_mut(first).is_none());
        assert_eq!(store.add(Record::default()), first);
        assert_ne!(store.get(first).unwrap().version, version);
        assert_ne!(store.add(Record::default()), second);
    }
}
