//! What the kernel should have, as data. The agent knows how to say it to nf_tables; nothing here does.

use super::maglev::NOBODY;
use crate::config::{Service, SetId};
use std::net::SocketAddr;
use std::sync::Arc;

/// One change of our balancing table. Each takes effect as a whole or not at all, and established flows never notice.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Balance {
    /// The table becomes exactly this, whatever it was.
    Load(Arc<Ruleset>),
    /// Some slots of some sets get other backends; the table is otherwise as loaded.
    Change(Arc<[SetChange]>),
    /// The table goes.
    Unload,
}

/// Services, and the lookup tables of their backend sets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ruleset {
    /// In file order.
    pub services: Arc<[Service]>,
    /// By [`SetId`].
    pub sets: Vec<SetTable>,
}

/// A lookup table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SetTable {
    /// All backends of the set, sorted; of one family.
    pub backends: Arc<[SocketAddr]>,
    /// Index in `backends` by slot; [`NOBODY`]: new flows there aren't translated.
    pub slots: Arc<[u16]>,
}

impl SetTable {
    /// The backend of a slot.
    pub fn backend(&self, slot: usize) -> Option<SocketAddr> {
        self.slots.get(slot).and_then(|index| self.backends.get(usize::from(*index))).copied()
    }

    /// IPv6.
    pub fn is_six(&self) -> bool {
        self.backends.first().is_some_and(SocketAddr::is_ipv6)
    }
}

/// Changes to one set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SetChange {
    /// Which.
    pub set: SetId,
    /// IPv6.
    pub six: bool,
    /// Slots that change, ascending.
    pub slots: Vec<SlotChange>,
}

/// One slot that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotChange {
    /// Which.
    pub slot: u32,
    /// It has a backend now, which is to be taken out first.
    pub taken: bool,
    /// Whose it becomes.
    pub to: Option<SocketAddr>,
}

/// What turns one table of a set into another; empty: nothing.
pub(super) fn changes(backends: &[SocketAddr], from: &[u16], to: &[u16]) -> Vec<SlotChange> {
    let differ = (0..).zip(from.iter().zip(to)).filter(|(_, (from, to))| from != to);
    let change = |(slot, (from, to)): (u32, (&u16, &u16))| SlotChange {
        slot,
        taken: *from != NOBODY,
        to: backends.get(usize::from(*to)).copied(),
    };
    differ.map(change).collect()
}
