//! Things that are there or not, by value: routes, rules, devices.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, Copy, Default)]
struct Item {
    /// Steps on their way counted as done.
    present: bool,
    in_flight: u32,
}

/// Ours of one kind, as far as they are known.
#[derive(Debug, Clone)]
pub(crate) struct Items<K>(BTreeMap<K, Item>);

impl<K> Default for Items<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Copy + Ord> Items<K> {
    /// A step that adds or removes it is on its way.
    pub(super) fn issued(&mut self, key: K, add: bool) {
        let item = self.0.entry(key).or_default();
        item.present = add;
        item.in_flight += 1;
    }

    /// How that step ended. A later one on its way says how it ends; else a failure means that it is as it was before.
    pub(super) fn settle(&mut self, key: K, add: bool, ok: bool) {
        let Some(item) = self.0.get_mut(&key) else { return };
        item.in_flight = item.in_flight.saturating_sub(1);
        if item.in_flight == 0 && !ok {
            item.present = !add;
        }
    }

    /// The kernel has it. News of the time before a step that is on its way changes nothing.
    pub(super) fn seen(&mut self, key: K) {
        let item = self.0.entry(key).or_default();
        if item.in_flight == 0 {
            item.present = true;
        }
    }

    /// The kernel lost it. True: it was there, and not by a step of ours.
    pub(super) fn gone(&mut self, key: K) -> bool {
        let Some(item) = self.0.get_mut(&key).filter(|item| item.in_flight == 0) else { return false };
        std::mem::replace(&mut item.present, false)
    }

    /// The complete list. Returns what vanished.
    pub(super) fn resync(&mut self, all: &BTreeSet<K>) -> Vec<K> {
        let missing: Vec<K> = self.0.keys().filter(|key| !all.contains(key)).copied().collect();
        all.iter().for_each(|key| self.seen(*key));
        missing.into_iter().filter(|key| self.gone(*key)).collect()
    }

    /// Those that are there.
    pub(super) fn present(&self) -> impl Iterator<Item = K> {
        self.0.iter().filter(|(_, item)| item.present).map(|(key, _)| *key)
    }

    /// Whether anything is known.
    pub(crate) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether it is there.
    pub(crate) fn has(&self, key: &K) -> bool {
        self.0.get(key).is_some_and(|item| item.present)
    }

    /// Whether it is there for certain: no step is on its way.
    pub(crate) fn settled(&self, key: &K) -> bool {
        self.0.get(key).is_some_and(|item| item.present && item.in_flight == 0)
    }

    /// Whether it may be in the kernel: there, or a step is on its way.
    pub(crate) fn maybe(&self, key: &K) -> bool {
        self.0.get(key).is_some_and(|item| item.present || item.in_flight > 0)
    }

    pub(super) fn is_clean(&self) -> bool {
        self.0.values().all(|item| !item.present && item.in_flight == 0)
    }

    pub(super) fn tidy(&mut self) {
        self.0.retain(|_, item| item.present || item.in_flight > 0);
    }

    pub(super) fn forget(&mut self, test: impl Fn(&K) -> bool) {
        self.0.retain(|key, _| !test(key));
    }
}
