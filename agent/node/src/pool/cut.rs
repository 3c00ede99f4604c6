//! Flows of backends that are down. The kernel remembers where each flow goes and sends the rest of it there, whatever the
//! table says by then. A TCP client finds out and connects anew; a UDP client that keeps its port would never: so these
//! flows are forgotten, and their next packet is as good as a first one.
//!
//! Only after the table is as it should be (or the flow would come to the same backend again), and only for addresses
//! that are here: flows of others are theirs to end. A backend that an operator took out keeps its flows while it works;
//! one that isn't in the configuration any more doesn't.
//!
//! What this module refuses to do: name a flow. The agent asks the kernel which there are.

use super::set::SetRun;
use crate::config::{OnDown, Service, Transport};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A packet that was on its way while the table changed may have made such a flow anew: looked at again after this. So is
/// a service whose address has just come: flows of a former configuration aren't worth a walk through all flows within
/// a takeover.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// What fails comes again after that time, doubled so often: 64 s.
const RETRIES_DOUBLED: u32 = 6;

/// One port of one address.
pub(super) type Key = (IpAddr, Transport, u16);

/// Flows to be forgotten: of each of these services those that were sent to any other backend than these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Cut {
    /// By the service's address, protocol and port.
    pub services: BTreeMap<(IpAddr, Transport, u16), BTreeSet<SocketAddr>>,
}

/// Which flows are known to have a backend, and which aren't.
#[derive(Debug, Default)]
pub(super) struct Cuts {
    /// Addresses that services with such flows are served at.
    addresses: BTreeSet<IpAddr>,
    /// Those of them that are here.
    held: BTreeSet<IpAddr>,
    /// Who may have flows of a service, and nobody else is known to.
    kept: BTreeMap<Key, BTreeSet<SocketAddr>>,
    /// Services to be looked at when that time has come.
    again: BTreeSet<Key>,
    again_at: Option<Instant>,
    /// Something changed since services were last looked at.
    due: bool,
    pending: Option<Arc<Cut>>,
    /// In a row.
    failures: u32,
}

impl Cuts {
    pub(super) fn new(services: &[Service]) -> Self {
        let cut = services.iter().filter(|service| service.on_down == OnDown::Cut);
        let addresses = cut.flat_map(|service| service.addresses.iter().map(|(ip, _)| *ip)).collect();
        Self { addresses, ..Self::default() }
    }

    /// The table in the kernel is another one now, or a backend's state is.
    pub(super) fn look(&mut self) {
        self.due = true;
    }

    /// An address of ours is here.
    pub(super) fn took(&mut self, ip: &IpAddr) {
        if self.addresses.contains(ip) && self.held.insert(*ip) {
            self.due = true;
        }
    }

    /// It is gone.
    pub(super) fn lost(&mut self, ip: &IpAddr) {
        if self.held.remove(ip) {
            self.kept.retain(|key, _| key.0 != *ip);
            self.again.retain(|key| key.0 != *ip);
        }
    }

    /// What is to be forgotten now, with the kernel's table as `sets` say.
    pub(super) fn next(&mut self, now: Instant, services: &[Service], sets: &[SetRun]) -> Option<Arc<Cut>> {
        let again = self.again_at.is_some_and(|at| at <= now);
        if self.pending.is_some() || !(std::mem::take(&mut self.due) || again) {
            return None;
        }
        let second = if again { std::mem::take(&mut self.again) } else { BTreeSet::new() };
        self.again_at = self.again_at.filter(|_| !again);
        let mut cut = Cut::default();
        for service in services.iter().filter(|service| service.on_down == OnDown::Cut) {
            for (ip, set) in service.addresses.iter().filter(|(ip, _)| self.held.contains(ip)) {
                let Some(set) = sets.get(usize::from(set.0)) else { continue };
                let key = (*ip, service.protocol, service.port);
                let keep: BTreeSet<SocketAddr> = set.not_down().collect();
                let before = self.kept.get(&key);
                let lost = match before {
                    Some(before) => !before.is_subset(&keep),
                    None => keep.len() < set.addresses.len(),
                };
                if lost || before.is_none() {
                    self.again.insert(key);
                    self.again_at = Some(now + SECOND_LOOK);
                }
                if lost || second.contains(&key) {
                    cut.services.insert(key, keep.clone());
                }
                self.kept.insert(key, keep);
            }
        }
        if cut.services.is_empty() {
            return None;
        }
        let cut = Arc::new(cut);
        self.pending = Some(Arc::clone(&cut));
        Some(cut)
    }

    /// How that ended. False: it was another one.
    pub(super) fn done(&mut self, now: Instant, cut: &Cut, ok: bool) -> bool {
        if self.pending.as_deref() != Some(cut) {
            return false;
        }
        self.pending = None;
        self.failures = if ok { 0 } else { self.failures.saturating_add(1) };
        if !ok {
            self.again.extend(cut.services.keys().filter(|key| self.held.contains(&key.0)));
            self.again_at = Some(now + SECOND_LOOK.saturating_mul(1 << (self.failures - 1).min(RETRIES_DOUBLED)));
        }
        true
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.again_at.filter(|_| self.pending.is_none())
    }
}
