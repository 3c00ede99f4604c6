//! Finds a flow's record by its hash: an open-addressed table of (hash, id), ordered by hash, so that the flows of one
//! shard stand beside each other and no list of them is needed.
//!
//! A slot's home is given by the hash's upper bits; entries of a row of occupied slots are kept in the order of their
//! hashes. Growing keeps the order: it is one pass without a look at the records.

/// Shards: the upper bits of a flow's hash.
pub(crate) const SHARD_BITS: u32 = 12;

/// How many there are.
pub(crate) const SHARDS: usize = 1 << SHARD_BITS;

/// The shard of a hash.
pub(crate) const fn shard_of(hash: u32) -> u16 {
    (hash >> (32 - SHARD_BITS)) as u16
}

const EMPTY: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Slot {
    hash: u32,
    id: u32,
}

const FREE: Slot = Slot { hash: 0, id: EMPTY };

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Index {
    slots: Vec<Slot>,
    /// Home of a hash: `hash >> shift`. Behind the homes stands a margin that takes what is pushed over the end.
    shift: u32,
    len: usize,
}

const BITS_MIN: u32 = 10;

/// Slots behind the last home. More than any row of occupied slots at the load that we allow; a row that reached the end
/// all the same makes the table grow.
const MARGIN: usize = 1024;

/// Longest row of occupied slots behind a home, unless the table would have more than so many homes per record.
const ROW_MAX: usize = 1024;
const SLACK: usize = 8;

impl Index {
    pub(crate) fn new() -> Self {
        Self { slots: vec![FREE; (1 << BITS_MIN) + MARGIN], shift: 32 - BITS_MIN, len: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it takes.
    pub(crate) fn memory(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
    }

    /// The record with this hash for which `same` holds.
    pub(crate) fn find(&self, hash: u32, mut same: impl FnMut(u32) -> bool) -> Option<u32> {
        let row = self.slots.get(self.home(hash)..)?;
        row.iter()
            .take_while(|slot| slot.id != EMPTY && slot.hash <= hash)
            .find(|slot| slot.hash == hash && same(slot.id))
            .map(|slot| slot.id)
    }

    /// Adds a record that isn't in it.
    pub(crate) fn insert(&mut self, hash: u32, id: u32) {
        if self.len + 1 > (self.slots.len() - MARGIN) / 5 * 4 {
            self.grow();
        }
        while !self.place(hash, id) {
            self.grow();
        }
        self.len += 1;
    }

    fn place(&mut self, hash: u32, id: u32) -> bool {
        let mut at = self.home(hash);
        while self.slots[at].id != EMPTY && self.slots[at].hash <= hash {
            at += 1;
            if at == self.slots.len() {
                return false;
            }
        }
        // Those behind it in the row move up by one.
        let Some(free) = self.slots[at..].iter().position(|slot| slot.id == EMPTY) else { return false };
        // A snapshot comes shard by shard: its flows stand close until all are there, for which there will be room anyway.
        let row = at + free - self.home(hash);
        if row > ROW_MAX && self.slots.len() - MARGIN < SLACK * self.len {
            return false;
        }
        self.slots.copy_within(at..at + free, at + 1);
        self.slots[at] = Slot { hash, id };
        true
    }

    /// Takes a record out. `false`: it isn't in it.
    pub(crate) fn remove(&mut self, hash: u32, id: u32) -> bool {
        let home = self.home(hash);
        let row = self.slots[home..].iter().take_while(|slot| slot.id != EMPTY && slot.hash <= hash);
        let Some(place) = row.enumerate().find(|(_, slot)| slot.id == id).map(|(place, _)| home + place) else {
            return false;
        };
        // Those behind it move down, as far as they aren't at home.
        let mut end = place + 1;
        while end < self.slots.len() && self.slots[end].id != EMPTY && self.home(self.slots[end].hash) < end {
            end += 1;
        }
        self.slots.copy_within(place + 1..end, place);
        self.slots[end - 1] = FREE;
        self.len -= 1;
        true
    }

    /// The records of a shard.
    pub(crate) fn shard(&self, shard: u16) -> impl Iterator<Item = u32> + '_ {
        let first = u32::from(shard) << (32 - SHARD_BITS);
        // Slots of earlier shards that were pushed behind our first home are passed over; a free slot inside the shard's
        // homes ends nothing.
        let homes_end = self.home(first | (u32::MAX >> SHARD_BITS));
        let slots = self.slots.iter().enumerate().skip(self.home(first));
        slots
            .take_while(move |(at, slot)| *at <= homes_end || (slot.id != EMPTY && shard_of(slot.hash) <= shard))
            .filter(move |(_, slot)| slot.id != EMPTY && shard_of(slot.hash) == shard)
            .map(|(_, slot)| slot.id)
    }

    const fn home(&self, hash: u32) -> usize {
        (hash >> self.shift) as usize
    }

    fn grow(&mut self) {
        self.shift -= 1;
        let homes = 1usize << (32 - self.shift);
        let old = std::mem::replace(&mut self.slots, vec![FREE; homes + MARGIN]);
        let mut next = 0;
        for slot in old.into_iter().filter(|slot| slot.id != EMPTY) {
            let at = self.home(slot.hash).max(next);
            // Twice the homes: a row that fitted before fits now.
            self.slots[at] = slot;
            next = at + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Debug, Clone)]
    enum Action {
        Insert(u32),
        Remove(usize),
    }

    fn actions() -> impl Strategy<Value = Vec<Action>> {
        // Few different hashes at both ends and in the middle, so that rows and equal hashes come up.
        let hash = prop_oneof![0u32..40, any::<u32>(), (u32::MAX - 40)..=u32::MAX, (1u32 << 20)..(1 << 20) + 9];
        let action = prop_oneof![3 => hash.prop_map(Action::Insert), 2 => any::<usize>().prop_map(Action::Remove)];
        prop::collection::vec(action, 0..4000)
    }

    #[test]
    fn rows_stay_short_when_shards_come_one_after_another() {
        let (mut index, count) = (Index::new(), 100_000_u32);
        for id in 0..count {
            index.insert(id * (u32::MAX / count), id);
            // What all have in a small part of the homes may be longer: memory is bounded, too.
            if id > count / 4 && id % 1_000 == 999 {
                let rows = index.slots.split(|slot| slot.id == EMPTY);
                let longest = rows.map(<[Slot]>::len).max().unwrap_or(0);
                assert!(longest <= 2 * ROW_MAX, "{longest} of {}", index.len);
            }
        }
        assert!(index.slots.len() < 4 * count as usize);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
        #[test]
        fn it_holds_what_a_map_holds_and_shards_are_whole(actions in actions()) {
            let mut index = Index::new();
            let mut map: BTreeMap<u32, u32> = BTreeMap::new();
            let mut next = 0;
            for action in actions {
                match action {
                    Action::Insert(hash) => {
                        index.insert(hash, next);
                        map.insert(next, hash);
                        next += 1;
                    }
                    Action::Remove(which) if !map.is_empty() => {
                        let id = *map.keys().nth(which % map.len()).unwrap();
                        let hash = map.remove(&id).unwrap();
                        prop_assert!(index.remove(hash, id));
                        prop_assert!(!index.remove(hash, id));
                    }
                    Action::Remove(_) => {}
                }
            }
            prop_assert_eq!(index.len(), map.len());
            let mut shards: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
            for (id, hash) in &map {
                prop_assert_eq!(index.find(*hash, |found| found == *id), Some(*id));
                shards.entry(shard_of(*hash)).or_default().push(*id);
            }
            for shard in 0..SHARDS as u16 {
                let mut found: Vec<u32> = index.shard(shard).collect();
                found.sort_unstable();
                prop_assert_eq!(&found, shards.get(&shard).map_or(&[][..], |ids| &ids[..]));
            }
        }
    }
}
