//! Which units (or checks) have something to do, so that a turn looks at these and not at all of them.

use crate::config::{CheckId, VipId};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Instant;

/// What a deadline is of.
pub(crate) trait Slot: Copy + Ord {
    /// None comes after it.
    const LAST: Self;

    /// Its place in a list of all.
    fn index(self) -> usize;
}

impl Slot for VipId {
    const LAST: Self = Self(u16::MAX);

    fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl Slot for CheckId {
    const LAST: Self = Self(u16::MAX);

    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A deadline per unit, and which comes first.
#[derive(Debug, Default)]
pub(crate) struct Schedule<Id = VipId> {
    /// By id.
    at: Vec<Option<Instant>>,
    order: BTreeSet<(Instant, Id)>,
}

impl<Id: Slot> Schedule<Id> {
    /// Nothing armed, for so many units.
    pub(crate) fn new(units: usize) -> Self {
        Self { at: vec![None; units], order: BTreeSet::new() }
    }

    /// Arms, re-arms or disarms a unit.
    pub(crate) fn set(&mut self, id: Id, at: Option<Instant>) {
        let Some(armed) = self.at.get_mut(id.index()).filter(|armed| **armed != at) else { return };
        if let Some(old) = std::mem::replace(armed, at) {
            self.order.remove(&(old, id));
        }
        if let Some(new) = at {
            self.order.insert((new, id));
        }
    }

    /// The earliest deadline.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Units whose deadline is after `now` and not after `until`, the earliest first.
    pub(crate) fn soon(&self, now: Instant, until: Instant) -> impl Iterator<Item = Id> {
        let later = (Bound::Excluded((now, Id::LAST)), Bound::Included((until.max(now), Id::LAST)));
        self.order.range(later).map(|(_, id)| *id)
    }

    /// Units whose deadline is not after `now`; they stay armed.
    pub(crate) fn due(&self, now: Instant) -> impl Iterator<Item = Id> {
        self.order.iter().take_while(move |(at, _)| *at <= now).map(|(_, id)| *id)
    }
}

/// A set of units. Putting one in costs nothing to speak of.
#[derive(Debug, Default)]
pub(crate) struct Units {
    /// By [`VipId`].
    member: Vec<bool>,
    list: Vec<VipId>,
}

impl Units {
    /// The empty set, for so many units.
    pub(crate) fn new(units: usize) -> Self {
        Self { member: vec![false; units], list: Vec::new() }
    }

    pub(crate) fn insert(&mut self, id: VipId) {
        if let Some(member) = self.member.get_mut(usize::from(id.0)).filter(|member| !**member) {
            *member = true;
            self.list.push(id);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Its members, in order of their ids.
    pub(crate) fn sorted(&self) -> Vec<VipId> {
        let mut list = self.list.clone();
        list.sort_unstable();
        list
    }

    /// Empties it: what [`Self::sorted`] gives.
    pub(crate) fn take(&mut self) -> Vec<VipId> {
        let mut list = std::mem::take(&mut self.list);
        for id in &list {
            if let Some(member) = self.member.get_mut(usize::from(id.0)) {
                *member = false;
            }
        }
        list.sort_unstable();
        list
    }
}

/// What must be decided anew.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// Something changed that any decision may depend on.
    pub(crate) all: bool,
    pub(crate) units: Units,
}

impl Dirty {
    /// Everything is to be decided, for so many units.
    pub(crate) fn everything(units: usize) -> Self {
        Self { all: true, units: Units::new(units) }
    }

    pub(crate) fn is_clean(&self) -> bool {
        !self.all && self.units.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::time::Duration;

    proptest! {
        #[test]
        fn a_schedule_is_a_map_of_deadlines(sets in prop::collection::vec((0_u16..8, prop::option::of(0_u64..20)), 0..60), look in 0_u64..20) {
            #[allow(clippy::disallowed_methods, reason = "the origin of virtual time")]
            let origin = Instant::now();
            let time = |ms| origin + Duration::from_millis(ms);
            let (mut schedule, mut model) = (Schedule::<VipId>::new(8), BTreeMap::new());
            for (id, at) in sets {
                schedule.set(VipId(id), at.map(time));
                match at {
                    Some(at) => model.insert(VipId(id), time(at)),
                    None => model.remove(&VipId(id)),
                };
            }
            prop_assert_eq!(schedule.first(), model.values().min().copied());
            let mut due: Vec<VipId> = schedule.due(time(look)).collect();
            due.sort();
            let expected: Vec<VipId> = model.iter().filter(|(_, at)| **at <= time(look)).map(|(id, _)| *id).collect();
            prop_assert_eq!(due, expected);
            let mut soon: Vec<VipId> = schedule.soon(time(look), time(look + 5)).collect();
            soon.sort();
            let within = |at: &Instant| time(look) < *at && *at <= time(look + 5);
            let expected: Vec<VipId> = model.iter().filter(|(_, at)| within(at)).map(|(id, _)| *id).collect();
            prop_assert_eq!(soon, expected);
        }
    }

    #[test]
    fn a_set_gives_each_member_once_and_in_order() {
        let mut units = Units::new(4);
        for id in [3, 1, 3, 0, 1, 9] {
            units.insert(VipId(id));
        }
        assert_eq!(units.sorted(), [VipId(0), VipId(1), VipId(3)], "there is no unit 9");
        assert_eq!(units.take(), [VipId(0), VipId(1), VipId(3)]);
        units.insert(VipId(3));
        assert_eq!(units.take(), [VipId(3)]);
        assert!(units.is_empty());
    }
}
