//! Numbers for what many flows have in common: services, backends, SNAT addresses, IPv6 clients. Counted by use; a
//! number that nothing uses is given again, with another serial.

use std::collections::HashMap;
use std::hash::Hash;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Dict<T> {
    entries: Vec<Entry<T>>,
    ids: HashMap<T, u32>,
    free: Vec<u32>,
    /// Most numbers.
    max: u32,
}

#[derive(Debug)]
struct Entry<T> {
    value: Option<T>,
    uses: u32,
    /// The peers that know this number's meaning, one bit each.
    known: u8,
    /// Changes with the meaning.
    serial: u8,
    /// Keyed hash of the value.
    hash: u64,
}

impl<T: Copy + Eq + Hash> Dict<T> {
    pub(crate) fn new(max: u32) -> Self {
        Self { entries: Vec::new(), ids: HashMap::new(), free: Vec::new(), max }
    }

    /// The number of a value, used once more. `None`: there is no number left.
    pub(crate) fn take(&mut self, value: T, hash: impl FnOnce(&T) -> u64) -> Option<u32> {
        if let Some(id) = self.ids.get(&value).copied() {
            self.hold(id);
            return Some(id);
        }
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.entries.len() < self.max as usize => {
                self.entries.push(Entry { value: None, uses: 0, known: 0, serial: 0, hash: 0 });
                (self.entries.len() - 1) as u32
            }
            None => return None,
        };
        let hash = hash(&value);
        let entry = self.entries.get_mut(id as usize)?;
        *entry = Entry { value: Some(value), uses: 1, known: 0, serial: entry.serial.wrapping_add(1), hash };
        self.ids.insert(value, id);
        Some(id)
    }

    /// The number of a value, if it has one.
    pub(crate) fn find(&self, value: &T) -> Option<u32> {
        self.ids.get(value).copied()
    }

    /// Uses a number once more.
    pub(crate) fn hold(&mut self, id: u32) {
        if let Some(entry) = self.entries.get_mut(id as usize) {
            entry.uses += 1;
        }
    }

    /// Uses a number once less.
    pub(crate) fn release(&mut self, id: u32) {
        let Some(entry) = self.entries.get_mut(id as usize) else { return };
        entry.uses = entry.uses.saturating_sub(1);
        if entry.uses == 0
            && let Some(value) = entry.value.take()
        {
            self.ids.remove(&value);
            self.free.push(id);
        }
    }

    /// What a number in use means.
    pub(crate) fn get(&self, id: u32) -> Option<T> {
        self.entries.get(id as usize)?.value
    }

    /// The value's hash; 0 for a number without meaning.
    pub(crate) fn hash(&self, id: u32) -> u64 {
        self.entries.get(id as usize).map_or(0, |entry| entry.hash)
    }

    /// Computes all hashes anew.
    pub(crate) fn rehash(&mut self, hash: impl Fn(&T) -> u64) {
        for entry in &mut self.entries {
            entry.hash = entry.value.as_ref().map_or(0, &hash);
        }
    }

    pub(crate) fn serial(&self, id: u32) -> u8 {
        self.entries.get(id as usize).map_or(0, |entry| entry.serial)
    }

    /// Whether the peers of this bit know what the number means.
    pub(crate) fn is_known(&self, id: u32, peer: u8) -> bool {
        self.entries.get(id as usize).is_some_and(|entry| entry.known & peer != 0)
    }

    /// The peer acknowledged the meaning that had this serial.
    pub(crate) fn learned(&mut self, id: u32, serial: u8, peer: u8) {
        if let Some(entry) = self.entries.get_mut(id as usize).filter(|entry| entry.serial == serial) {
            entry.known |= peer;
        }
    }

    /// The peer knows nothing any more.
    pub(crate) fn forget(&mut self, peer: u8) {
        self.entries.iter_mut().for_each(|entry| entry.known &= !peer);
    }

    /// Bytes that it takes, about.
    pub(crate) fn memory(&self) -> usize {
        let map = self.ids.capacity() * (size_of::<(T, u32)>() + 1) * 8 / 7;
        self.entries.capacity() * size_of::<Entry<T>>() + map + self.free.capacity() * 4
    }
}
