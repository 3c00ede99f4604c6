//! When the table is full: flows of the shortest-lived class go first.

use super::facts::{FlowKey, Nat};
use super::record::{DEAD, Id, Record};
use super::table::Refused;
use super::types::{Class, Event, VipId};
use super::{Flows, ME};
use std::time::Instant;

/// Our flows that peers said to clash with others.
pub(crate) const CLASHES_MAX: usize = 1024;

/// Slots that are looked at to find one flow that can go.
const SEARCH: u32 = 4096;

impl Flows {
    /// Adds a flow; makes room for it if need be. `None`: there is none.
    pub(super) fn insert(&mut self, now: Instant, key: &FlowKey, vip: VipId, nat: &Nat, record: Record) -> Option<Id> {
        for _ in 0..2 {
            match self.table.insert(key, vip, nat, record) {
                Ok(id) => {
                    self.raise_top(vip, id);
                    return Some(id);
                }
                Err(Refused::Full) => {
                    self.counters.shed += 1;
                    self.event(now, Event::Full { class: record.class() });
                    if !self.shed(now, record.class()) {
                        return None;
                    }
                }
                Err(Refused::Numbers) => {
                    self.counters.shed += 1;
                    self.event(now, Event::Full { class: record.class() });
                    return None;
                }
            }
        }
        None
    }

    /// Lets a flow go that is of a shorter-lived class than this one.
    fn shed(&mut self, now: Instant, than: Class) -> bool {
        let shorter = Class::ALL.into_iter().take_while(|class| *class < than);
        let Some(class) = shorter.into_iter().find(|class| self.table.class_count(*class) > 0) else { return false };
        let end = self.table.end().max(1);
        for _ in 0..SEARCH.min(end) {
            let id = self.audit.hand % end;
            self.audit.hand = (id + 1) % end;
            let Some(record) = self.table.get(id).copied() else { continue };
            if record.class() != class || record.has(DEAD) {
                continue;
            }
            let before = self.table.len();
            if record.owner == ME {
                self.end(now, id);
            } else {
                self.drop_replica(id);
            }
            // It may stay until peers or the kernel know: then room comes a bit later, for another flow.
            return self.table.len() < before;
        }
        false
    }

    /// Whether flows had to be refused because there was no room.
    pub(super) fn is_full(&self) -> bool {
        self.table.len() >= self.table.max()
    }
}
