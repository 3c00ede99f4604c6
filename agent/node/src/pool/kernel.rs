//! What of our table is in the kernel, as far as it is known, and the next change to it.

use super::ruleset::{Balance, Ruleset, SetChange, SetTable, changes};
use super::set::SetRun;
use crate::config::{Service, SetId};
use std::sync::Arc;
use std::time::{Duration, Instant};

const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_LAST: Duration = Duration::from_secs(1);
/// Put back at once, but no more often than this: who deletes the table again and again would else keep us busy with it.
const RELOAD_PAUSE: Duration = Duration::from_millis(200);

/// See the module's documentation. One change is on its way at a time.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The tables as they are there; `None`: not known, or not there.
    loaded: Option<Vec<Arc<[u16]>>>,
    /// What is on its way, and what will be there then.
    pending: Option<(Balance, Vec<Arc<[u16]>>)>,
    /// Somebody changed it while that was on its way.
    spoilt: bool,
    /// Something of ours may be there: at first, of a former run.
    ours: bool,
    failures: u32,
    /// When it was last loaded as a whole.
    loaded_at: Option<Instant>,
    /// Nothing before then.
    not_before: Option<Instant>,
    /// Why the last change failed.
    pub(crate) why: Option<String>,
}

impl Default for Kernel {
    fn default() -> Self {
        Self {
            loaded: None,
            pending: None,
            spoilt: false,
            ours: true,
            failures: 0,
            loaded_at: None,
            not_before: None,
            why: None,
        }
    }
}

impl Kernel {
    /// The next change, now or at the time that [`Self::poll_timeout`] gives.
    pub(crate) fn next(
        &mut self,
        now: Instant,
        wanted: bool,
        services: &Arc<[Service]>,
        sets: &[SetRun],
    ) -> Option<Balance> {
        if !wanted {
            return self.unload(now);
        }
        if !self.may(now) {
            return None;
        }
        let tables: Vec<Arc<[u16]>> = sets.iter().map(|set| Arc::clone(&set.table)).collect();
        let balance = match &self.loaded {
            None => {
                let table =
                    |set: &SetRun| SetTable { backends: Arc::clone(&set.addresses), slots: Arc::clone(&set.table) };
                let sets = sets.iter().map(table).collect();
                Balance::Load(Arc::new(Ruleset { services: Arc::clone(services), sets }))
            }
            Some(loaded) => {
                let changed =
                    (0..).map(SetId).zip(sets.iter().zip(loaded)).filter(|(_, (set, old))| set.table != **old);
                let change = |(id, (set, old)): (SetId, (&SetRun, &Arc<[u16]>))| SetChange {
                    set: id,
                    six: set.addresses.first().is_some_and(std::net::SocketAddr::is_ipv6),
                    slots: changes(&set.addresses, old, &set.table),
                };
                let changes: Arc<[SetChange]> = changed.map(change).collect();
                if changes.is_empty() {
                    return None;
                }
                Balance::Change(changes)
            }
        };
        self.ours = true;
        self.pending = Some((balance.clone(), tables));
        Some(balance)
    }

    /// The same with no table wanted.
    pub(crate) fn unload(&mut self, now: Instant) -> Option<Balance> {
        let unload = (self.may(now) && self.ours).then_some(Balance::Unload)?;
        self.pending = Some((unload.clone(), Vec::new()));
        Some(unload)
    }

    fn may(&mut self, now: Instant) -> bool {
        if self.pending.is_some() || self.not_before.is_some_and(|at| now < at) {
            return false;
        }
        self.not_before = None;
        true
    }

    /// How the change on its way ended. False: it was another one.
    pub(crate) fn done(&mut self, now: Instant, balance: &Balance, failure: Option<String>) -> bool {
        if self.pending.as_ref().is_none_or(|(pending, _)| pending != balance) {
            return false;
        }
        let tables = self.pending.take().map(|(_, tables)| tables).unwrap_or_default();
        let spoilt = std::mem::take(&mut self.spoilt);
        if failure.is_none() {
            self.failures = 0;
            self.ours = *balance != Balance::Unload;
            self.loaded = (self.ours && !spoilt).then_some(tables);
            if matches!(balance, Balance::Load(_)) {
                self.loaded_at = Some(now);
            }
            self.not_before = spoilt.then(|| now + RELOAD_PAUSE);
        } else {
            // Whatever made it fail: the whole table is the way out.
            self.loaded = None;
            self.failures = self.failures.saturating_add(1);
            let delay = RETRY_FIRST.saturating_mul(1 << (self.failures - 1).min(10)).min(RETRY_LAST);
            self.not_before = Some(now + delay);
        }
        self.why = failure;
        true
    }

    /// Somebody else changed our table. True: it was as it should be, as far as was known.
    pub(crate) fn touched(&mut self, now: Instant) -> bool {
        self.spoilt |= self.pending.is_some();
        let was = self.loaded.take().is_some();
        self.not_before = self.loaded_at.map(|at| at + RELOAD_PAUSE).filter(|at| now < *at).or(self.not_before);
        was
    }

    /// The table is there, as it was last known.
    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded.is_some() || matches!(&self.pending, Some((Balance::Change(_), _)))
    }

    /// The table is there, and no change of it is on its way.
    pub(crate) fn is_settled(&self) -> bool {
        self.loaded.is_some() && self.pending.is_none()
    }

    /// Nothing of ours is there.
    pub(crate) fn is_clean(&self) -> bool {
        !self.ours && self.pending.is_none()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.not_before.filter(|_| self.pending.is_none())
    }
}
