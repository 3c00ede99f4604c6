//! Addresses: which are wanted, which are there, and when each has to be looked at.
//!
//! A look compares those of which something changed and those that are due, and no others: a turn costs what happened,
//! not what is held. [`Addresses::look_at_all`] makes the next look a complete one.

use super::{Key, LIFETIME, LIFETIME_V6, REFRESH, REFRESH_V6, Retry, RetryKey};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// An address is refreshed at most so much ahead of its time, in the last turn before it that happens anyway: then it
/// wakes nobody.
pub const EARLY: Duration = Duration::from_millis(100);
/// So long after its addition an IPv6 address may be one that the kernel doesn't answer for yet; then the event that says
/// so counts as lost. Less than the pause before the second announcement of a burst, which therefore always goes out.
const ANSWERS_WITHIN: Duration = Duration::from_millis(40);
/// After a removal its event may come this much later.
const GONE_GRACE: Duration = Duration::from_millis(100);

/// What should be of an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Want {
    /// It should not be there.
    #[default]
    No,
    /// It should, but it must not be added now.
    Held,
    /// It should.
    Yes,
}

#[derive(Debug, Clone, Copy, Default)]
struct Held {
    want: Want,
    /// How long it is to live, if not as usual.
    lifetime: Option<Duration>,
    present: bool,
    /// We added it, in this run or a former one.
    ours: bool,
    refreshed: Option<Instant>,
    /// When it was last added where it wasn't.
    added: Option<Instant>,
    in_flight: u32,
    /// The kernel's own word of it came since it was added.
    confirmed: bool,
    /// That, or its addition was seen to work.
    landed: bool,
    /// A removal of ours: its event is no surprise until then (`None` while the removal is on its way).
    removing: bool,
    /// The event of that removal was already seen.
    gone_seen: bool,
    gone_until: Option<Instant>,
    /// What we added last may be there until then, whatever older news says: it stays ours to remove.
    lasts_until: Option<Instant>,
    /// When it is in `due`.
    look_at: Option<Instant>,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Addresses {
    all: BTreeMap<Key, Held>,
    /// To be compared at the next look; what needs a step stays here until that is issued.
    changed: BTreeSet<Key>,
    /// To be compared then.
    due: BTreeSet<(Instant, Key)>,
}

/// What a look found.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// To be removed.
    pub(super) surplus: Vec<Key>,
    /// To be added or refreshed; what isn't there comes first, then what was refreshed longest ago.
    pub(super) missing: Vec<Missing>,
    /// The next look, if nothing changes and these are dealt with.
    pub(super) next: Option<Instant>,
}

/// An address to be added or refreshed.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Missing {
    /// When it was last; `None`: it isn't there.
    pub(super) refreshed: Option<Instant>,
    pub(super) key: Key,
    /// How long it is to live.
    pub(super) lifetime: Duration,
    /// When it is to be refreshed.
    pub(super) refresh: Duration,
}

/// What a comparison of one address comes to.
enum Finding {
    Surplus,
    Missing(Option<Instant>),
    Later(Instant),
    Right,
    /// Neither wanted nor there, and no news of it is to come.
    Over,
}

impl Held {
    /// How long it lives in the kernel, and how often it is refreshed.
    fn pace(&self, key: &Key) -> (Duration, Duration) {
        match self.lifetime {
            Some(lifetime) => (lifetime, lifetime / 4),
            None if key.1.is_ipv6() => (LIFETIME_V6, REFRESH_V6),
            None => (LIFETIME, REFRESH),
        }
    }

    fn compare(&self, key: Key, now: Instant, until: Instant, retry: impl Fn(RetryKey) -> Option<Instant>) -> Finding {
        let refreshed = self.refreshed.filter(|_| self.present && self.ours);
        let retry = |key| retry(key).filter(|at| now < *at);
        match self.want {
            Want::No if self.present && self.ours => {
                retry(RetryKey::Remove(key)).map_or(Finding::Surplus, Finding::Later)
            }
            Want::No => {
                let news = [self.gone_until, self.lasts_until].into_iter().flatten().any(|until| now < until);
                if self.present || self.in_flight > 0 || news { Finding::Right } else { Finding::Over }
            }
            Want::Held if !self.present => Finding::Right,
            Want::Held | Want::Yes => match refreshed {
                Some(at) if until < at + self.pace(&key).1 => Finding::Later(at + self.pace(&key).1),
                _ => retry(RetryKey::Add(key)).map_or(Finding::Missing(refreshed), Finding::Later),
            },
        }
    }
}

impl Addresses {
    /// Says what should be of an address.
    pub(super) fn want(&mut self, key: Key, want: Want, lifetime: Option<Duration>) {
        if want == Want::No && !self.all.contains_key(&key) {
            return;
        }
        let held = self.all.entry(key).or_default();
        if (held.want, held.lifetime) != (want, lifetime) {
            (held.want, held.lifetime) = (want, lifetime);
            self.changed.insert(key);
        }
    }

    /// The next look is a complete one.
    pub(super) fn look_at_all(&mut self) {
        self.changed.extend(self.all.keys().copied());
    }

    /// Compares, and refreshes what is due by `until`. `leaves`: the interface goes away, and its addresses with it.
    pub(super) fn look(
        &mut self,
        now: Instant,
        until: Instant,
        retries: &BTreeMap<RetryKey, Retry>,
        leaves: impl Fn(u32) -> bool,
    ) -> Look {
        let mut look = Look::default();
        let due = self.due.iter().take_while(|(at, _)| *at <= until).map(|(_, key)| *key);
        self.changed.extend(due);
        let mut changed = std::mem::take(&mut self.changed);
        changed.retain(|&key| {
            let Some(held) = self.all.get(&key).copied() else { return false };
            let finding = held.compare(key, now, until, |key| retries.get(&key).map(|retry| retry.at));
            let at = if let Finding::Later(at) = finding { Some(at) } else { None };
            self.look_again(key, at);
            match finding {
                Finding::Surplus if leaves(key.0) => {}
                Finding::Surplus => look.surplus.push(key),
                Finding::Missing(refreshed) => {
                    let (lifetime, refresh) = held.pace(&key);
                    look.missing.push(Missing { refreshed, key, lifetime, refresh });
                }
                Finding::Later(_) | Finding::Right => return false,
                Finding::Over => {
                    self.all.remove(&key);
                    return false;
                }
            }
            true
        });
        self.changed = changed;
        look.missing.sort_unstable();
        look.next = self.due.first().map(|(at, _)| *at);
        look
    }

    /// An addition or a refresh is on its way.
    pub(super) fn adding(&mut self, key: Key, lifetime: Duration, now: Instant) {
        let held = self.all.entry(key).or_default();
        let refresh = held.pace(&key).1;
        if !held.present {
            held.added = Some(now);
        }
        held.confirmed &= held.present;
        held.landed &= held.present;
        held.present = true;
        held.ours = true;
        held.refreshed = Some(now);
        held.in_flight += 1;
        held.lasts_until = Some(now + lifetime);
        self.changed.remove(&key);
        self.look_again(key, Some(now + refresh));
    }

    /// A removal is on its way.
    pub(super) fn removing(&mut self, key: Key) {
        let held = self.all.entry(key).or_default();
        held.present = false;
        held.landed = false;
        held.refreshed = None;
        held.in_flight += 1;
        held.removing = true;
        held.gone_seen = false;
        self.changed.remove(&key);
        self.look_again(key, None);
    }

    /// How a step ended.
    pub(super) fn settle(&mut self, key: Key, removal: bool, ok: bool, now: Instant) {
        let Some(held) = self.all.get_mut(&key) else { return };
        held.in_flight = held.in_flight.saturating_sub(1);
        if removal {
            held.removing = false;
            held.gone_until = (ok && !held.gone_seen).then_some(now + GONE_GRACE);
            held.lasts_until = held.lasts_until.filter(|_| !ok);
        }
        held.landed |= ok && !removal && held.present;
        // A later step on its way says how it ends; else a failure means that it is as it was before.
        if held.in_flight == 0 && !ok {
            held.present = removal;
            held.landed = removal;
        }
        if removal || !ok {
            self.changed.insert(key);
        }
    }

    /// See [`super::Actual::seen`].
    pub(super) fn seen(&mut self, key: Key) -> bool {
        let held = self.all.entry(key).or_default();
        // A removal on its way, or one whose event is still to come, isn't undone by the news of the addition before it.
        if held.removing {
            return false;
        }
        if !std::mem::replace(&mut held.present, true) {
            self.changed.insert(key);
        }
        held.landed = true;
        !std::mem::replace(&mut held.confirmed, true) && held.ours
    }

    /// See [`super::Actual::answers`].
    pub(super) fn answers(&self, key: &Key, now: Instant) -> bool {
        let Some(held) = self.all.get(key).filter(|held| held.present) else { return false };
        !key.1.is_ipv6() || held.confirmed || held.added.is_none_or(|at| at + ANSWERS_WITHIN <= now)
    }

    /// See [`super::Actual::adopt`].
    pub(super) fn adopt(&mut self, key: Key) {
        self.all.entry(key).or_default().ours = true;
        self.changed.insert(key);
    }

    /// See [`super::Actual::gone`].
    pub(super) fn gone(&mut self, key: Key, now: Instant) -> bool {
        let Some(held) = self.all.get_mut(&key) else { return false };
        if held.removing {
            held.gone_seen = true;
            return false;
        }
        if held.gone_until.take().is_some_and(|until| now < until) {
            return false;
        }
        let surprise = held.present && held.ours;
        held.present = false;
        held.landed = false;
        held.refreshed = None;
        self.changed.insert(key);
        surprise
    }

    /// See [`super::Actual::resync`].
    pub(super) fn resync(&mut self, dump: &BTreeSet<Key>, now: Instant) -> Vec<Key> {
        let missing = self.all.iter().filter(|(key, held)| !dump.contains(key) && held.in_flight == 0);
        let missing: Vec<Key> = missing.map(|(key, _)| *key).collect();
        let vanished = missing.into_iter().filter(|key| self.gone(*key, now)).collect();
        for key in dump {
            self.seen(*key);
        }
        vanished
    }

    /// The interface is gone, and all that was on it. What is wanted there stays so until somebody says otherwise.
    pub(super) fn link_gone(&mut self, ifindex: u32) {
        let on_it: Vec<(Key, Held)> =
            self.all.iter().filter(|(key, _)| key.0 == ifindex).map(|(key, held)| (*key, *held)).collect();
        for (key, held) in on_it {
            self.look_again(key, None);
            self.all.insert(key, Held { want: held.want, lifetime: held.lifetime, ..Held::default() });
            self.changed.insert(key);
        }
    }

    /// See [`super::Actual::present`].
    pub(super) fn present(&self, key: &Key) -> bool {
        self.all.get(key).is_some_and(|held| held.present)
    }

    /// See [`super::Actual::landed`].
    pub(super) fn landed(&self, key: &Key) -> bool {
        self.all.get(key).is_some_and(|held| held.landed)
    }

    /// See [`super::Actual::maybe_ours`].
    pub(super) fn maybe_ours(&self, key: &Key) -> bool {
        self.all.get(key).is_some_and(|held| held.ours && (held.present || held.removing))
    }

    /// See [`super::Actual::refreshed`].
    pub(super) fn refreshed(&self, key: &Key) -> Option<Instant> {
        self.all.get(key).and_then(|held| held.refreshed)
    }

    /// Whether anything is known of it.
    pub(super) fn knows(&self, key: &Key) -> bool {
        self.all.contains_key(key)
    }

    /// A step of it need not wait any more.
    pub(super) fn retried(&mut self, key: Key) {
        self.changed.insert(key);
    }

    /// Nothing of ours is left, and no removal is on its way.
    pub(super) fn is_clean(&self) -> bool {
        self.all.values().all(|held| !held.ours || !held.present && held.in_flight == 0)
    }

    /// When it is compared again though nothing changed.
    fn look_again(&mut self, key: Key, at: Option<Instant>) {
        let Some(held) = self.all.get_mut(&key).filter(|held| held.look_at != at) else { return };
        if let Some(old) = std::mem::replace(&mut held.look_at, at) {
            self.due.remove(&(old, key));
        }
        if let Some(at) = at {
            self.due.insert((at, key));
        }
    }
}
