//! What came of the load in a host's kernel.

use crate::load::{flow, index_of};
use crate::netlink::{Message, NEWS, Netlink};
use anyhow::{Result, bail};
use holdfast_lab::clock::{MS, Ns, SECOND, now, sleep_until};
use holdfast_lab::fabric::VIP;
use holdfast_lab::load::Stopper;
use holdfast_lab::netns::Netns;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A host's flows to the VIP: client → backend and TCP's state.
pub type Table = HashMap<(u32, u16), (u32, u16, u8)>;

/// Reads the table of `ns`.
///
/// # Errors
/// The dump failed.
pub fn table(ns: &Netns) -> Result<Table> {
    ns.inside(|| {
        let mut table = Table::new();
        Netlink::open(0)?.dump(|e| {
            if e.destination == VIP.to_bits() {
                table.insert(e.client, (e.answers.0, e.answers.1, e.state));
            }
        })?;
        Ok(table)
    })
}

/// How many entries of any kind `ns` has; a few are not the load's.
///
/// # Errors
/// It can't be read.
pub fn count(ns: &Netns) -> Result<u64> {
    ns.inside(|| Ok(std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count")?.trim().parse()?))
}

/// How two tables differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Divergence {
    /// Flows of the first.
    pub flows: usize,
    /// That the second hasn't.
    pub missing: usize,
    /// That only the second has.
    pub zombies: usize,
    /// With another backend or state.
    pub different: usize,
}

impl Divergence {
    /// Between `owner`'s table and `replica`'s.
    #[must_use]
    pub fn between(owner: &Table, replica: &Table) -> Self {
        let missing = owner.keys().filter(|k| !replica.contains_key(k)).count();
        let zombies = replica.keys().filter(|k| !owner.contains_key(k)).count();
        let different = owner.iter().filter(|(k, v)| replica.get(k).is_some_and(|r| r != *v)).count();
        Self { flows: owner.len(), missing, zombies, different }
    }

    /// None at all.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.missing + self.zombies + self.different == 0
    }

    /// In words.
    #[must_use]
    pub fn text(&self) -> String {
        if self.is_none() {
            return format!("{} flows, equal", self.flows);
        }
        let Self { flows, missing, zombies, different } = self;
        format!("{flows} flows, {missing} missing, {zombies} too many, {different} different")
    }
}

/// Hears of new flows in a host's kernel, and when.
#[derive(Debug)]
pub struct Listener {
    thread: Stopper,
    seen: Arc<Mutex<Vec<Ns>>>,
}

impl Listener {
    /// Hears of flows `first`..`first + count`.
    ///
    /// # Errors
    /// The namespace or the socket.
    pub fn start(ns: &Netns, first: u32, count: u32) -> Result<Self> {
        let mut netlink = ns.inside(|| Netlink::open(NEWS))?;
        let seen = Arc::new(Mutex::new(vec![0; count as usize]));
        let shared = seen.clone();
        let thread = Stopper::spawn("listener", move |stop| {
            let mut lost = false;
            while !stop() {
                netlink.wait(20)?;
                let Ok(mut seen) = shared.lock() else { continue };
                lost |= netlink.read(|message| {
                    let Message::Entry(e) = message else { return };
                    let place = index_of(e.client).and_then(|i| i.checked_sub(first as usize));
                    if let Some(at @ 0) = place.and_then(|i| seen.get_mut(i)) {
                        *at = now();
                    }
                })?;
            }
            if lost {
                bail!("the listener lost events: no figure can be made of that");
            }
            Ok(())
        })?;
        Ok(Self { thread, seen })
    }

    /// When each was seen first; 0: never.
    ///
    /// # Errors
    /// Events were lost.
    pub fn finish(self) -> Result<Vec<Ns>> {
        self.thread.finish()?;
        Ok(self.seen.lock().map(|s| s.clone()).unwrap_or_default())
    }
}

/// How long single flows take from one kernel to the other while something else goes on: writes one, asks for it until
/// it is there, then the next. The one who listens to all events would have to read a million of them.
#[derive(Debug)]
pub struct Prober {
    thread: Stopper,
    lag: Arc<Mutex<Vec<Ns>>>,
}

/// Between two flows.
const PAUSE: Ns = 10 * MS;
/// Between two looks: how exact the figure is.
const LOOK: Ns = MS / 4;
/// A flow that isn't there by then is no news any more.
const GIVE_UP: Ns = 5 * SECOND;

impl Prober {
    /// From `from` to `to`, flows `first` and following.
    ///
    /// # Errors
    /// A namespace or a socket.
    pub fn start(from: &Netns, to: &Netns, first: u32) -> Result<Self> {
        use crate::netlink::{ASSURED, ESTABLISHED, SEEN_REPLY};
        let (mut writer, mut reader) = (from.inside(|| Netlink::open(0))?, to.inside(|| Netlink::open(0))?);
        let lag = Arc::new(Mutex::new(Vec::new()));
        let shared = lag.clone();
        let thread = Stopper::spawn("prober", move |stop| {
            let mut index = first;
            while !stop() {
                let this = flow(index);
                index += 1;
                let at = now();
                writer.create(&this, ESTABLISHED, SEEN_REPLY | ASSURED, 7200);
                writer.flush()?;
                while !reader.has(&this)? && now() < at + GIVE_UP {
                    if stop() {
                        return Ok(());
                    }
                    sleep_until(now() + LOOK);
                }
                if let Ok(mut l) = shared.lock() {
                    l.push(now() - at);
                }
                sleep_until(at + PAUSE);
            }
            Ok(())
        })?;
        Ok(Self { thread, lag })
    }

    /// Of each, in order.
    ///
    /// # Errors
    /// The kernel refused something.
    pub fn finish(self) -> Result<Vec<Ns>> {
        self.thread.finish()?;
        Ok(self.lag.lock().map(|l| l.clone()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_differ_by_what_lacks_what_is_left_and_what_is_otherwise() {
        let table = |flows: &[(u16, u8)]| -> Table { flows.iter().map(|(p, s)| ((1, *p), (2, 80, *s))).collect() };
        let owner = table(&[(1, 3), (2, 3), (3, 3)]);
        let d = Divergence::between(&owner, &table(&[(2, 5), (3, 3), (4, 3)]));
        assert_eq!(d, Divergence { flows: 3, missing: 1, zombies: 1, different: 1 });
        assert!(Divergence::between(&owner, &owner).is_none());
    }
}
