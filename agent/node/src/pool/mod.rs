//! The embedded balancer (`kind = "nft"`): services, backend sets, and what of it should be in the kernel.
//!
//! | module | does |
//! |---|---|
//! | [`maglev`] | which backend a hash belongs to |
//! | `set` | who of a set is in service, with which share |
//! | [`ruleset`](Ruleset) | what should be in the kernel, as data |
//! | `kernel` | what is, and the next change |
//! | [`Cut`] | flows whose backend is down, to be forgotten |
//! | `run` | the node's part: checks' verdicts, operators, steps |
//! | `status` | what `status` says of it |
//!
//! No packet comes here, and none waits for anything here: the kernel looks new flows up, and remembers the others.
//! What this module refuses to do: move an established flow whose backend works.

mod cut;
mod kernel;
pub mod maglev;
mod ruleset;
mod run;
mod set;
pub mod status;

pub use cut::Cut;
pub use ruleset::{Balance, Ruleset, SetChange, SetTable, SlotChange};
pub use run::{LAST_BACKEND, NO_BACKEND};
pub(crate) use run::{balance_text, cut_text};

use crate::checks::{Checks, Start, Verdict};
use crate::config::{CheckId, Nft, Service, SetId};
use crate::world::{CheckState, CheckView};
use cut::Cuts;
pub(crate) use kernel::Kernel;
use set::SetRun;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Everything of the embedded balancer that moves.
#[derive(Debug)]
pub(crate) struct Pools {
    services: Arc<[Service]>,
    sets: Vec<SetRun>,
    probes: Vec<crate::config::Check>,
    checks: Checks,
    views: Vec<CheckView>,
    /// The backends that a check is of: (set, index), by check.
    users: Vec<Vec<(usize, usize)>>,
    /// Names this configuration's tables to the peers.
    fingerprint: u64,
    kernel: Kernel,
    cuts: Cuts,
    /// A set changed since steps were last looked for.
    due: bool,
}

impl Pools {
    /// `seed` makes the jitter of the checks.
    pub(crate) fn new(nft: &Nft, drained: &BTreeSet<SocketAddr>, seed: [u8; 32], now: Instant) -> Self {
        let sets: Vec<SetRun> = nft.sets.iter().map(|set| SetRun::new(set, drained, now)).collect();
        let mut users = vec![Vec::new(); nft.probes.len()];
        for (at, set) in sets.iter().enumerate() {
            for (backend, probe) in set.probes.iter().enumerate() {
                if let Some(users) = probe.and_then(|probe| users.get_mut(usize::from(probe))) {
                    users.push((at, backend));
                }
            }
        }
        let view = CheckView { state: CheckState::Unknown, clean: false, since: now, event: None };
        Self {
            services: nft.services.clone().into(),
            fingerprint: fingerprint(nft, &sets),
            sets,
            checks: Checks::new(&nft.probes, seed, now),
            views: vec![view; nft.probes.len()],
            probes: nft.probes.clone(),
            users,
            kernel: Kernel::default(),
            cuts: Cuts::new(&nft.services),
            due: true,
        }
    }

    /// The same on every node with the same services and backends, whatever is up.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let ramps = self.sets.iter().filter_map(|set| set.next);
        ramps.chain(self.checks.poll_timeout()).chain(self.kernel.poll_timeout()).chain(self.cuts.poll_timeout()).min()
    }

    /// Checks that are overdue or due; their ids are those of [`Nft::probes`].
    fn run_checks(&mut self, now: Instant) -> (Vec<Verdict>, Vec<Start>) {
        if self.checks.poll_timeout().is_none_or(|at| at > now) {
            return (Vec::new(), Vec::new());
        }
        self.checks.timer(now, &self.probes, &mut self.views)
    }

    /// See [`Checks::stalled`].
    pub(crate) fn stalled(&mut self, late: Duration) {
        self.checks.stalled(late);
    }

    fn check_done(&mut self, now: Instant, id: CheckId, sequence: u64, failure: Option<String>) -> Vec<Verdict> {
        self.checks.done(now, id, sequence, (failure, None), &self.probes, &mut self.views)
    }

    /// Judges the sets with backends of which this check is.
    fn checked(&mut self, now: Instant, id: CheckId) {
        let at = usize::from(id.0);
        let (Some(users), Some(view)) = (self.users.get(at), self.views.get(at)) else { return };
        for (set, backend) in users {
            if let Some(set) = self.sets.get_mut(*set)
                && set.check(*backend, view)
            {
                self.due |= set.judge(now);
                // One that was out of service already changes nothing of the table.
                self.cuts.look();
            }
        }
    }

    /// Shares that grow by themselves.
    fn ramp(&mut self, now: Instant) {
        for set in self.sets.iter_mut().filter(|set| set.next.is_some_and(|at| at <= now)) {
            self.due |= set.judge(now);
        }
    }

    /// The backends that an operator means: one port, or all of an address.
    fn named(&self, text: &str) -> BTreeSet<SocketAddr> {
        let all = self.sets.iter().flat_map(|set| set.addresses.iter().copied());
        if let Ok(address) = text.parse::<SocketAddr>() {
            all.filter(|backend| *backend == address).collect()
        } else if let Ok(ip) = text.parse::<IpAddr>() {
            all.filter(|backend| backend.ip() == ip).collect()
        } else {
            BTreeSet::new()
        }
    }

    /// A set that would have nobody left.
    fn emptied_by(&self, backends: &BTreeSet<SocketAddr>) -> Option<SetId> {
        let empties = |set: &SetRun| {
            let mut each = set.addresses.iter().zip(&set.backends);
            each.all(|(address, run)| run.drained || backends.contains(address))
        };
        let touches = |set: &SetRun| set.addresses.iter().any(|address| backends.contains(address));
        (0..).map(SetId).zip(&self.sets).find(|(_, set)| touches(set) && empties(set)).map(|(id, _)| id)
    }

    fn drain(&mut self, now: Instant, backends: &BTreeSet<SocketAddr>, drained: bool) {
        for set in &mut self.sets {
            let addresses = Arc::clone(&set.addresses);
            let mut news = false;
            for (at, _) in addresses.iter().enumerate().filter(|(_, address)| backends.contains(address)) {
                news |= set.drain(at, drained);
            }
            if news {
                self.due |= set.judge(now);
                self.cuts.look();
            }
        }
    }

    /// A service that uses this set, for messages.
    fn service_of(&self, set: SetId) -> String {
        let uses = |service: &&Service| service.addresses.iter().any(|(_, of)| *of == set);
        let name = |service: &Service| format!("{} {}/{}", service.vip, service.protocol.word(), service.port);
        self.services.iter().find(uses).map(name).unwrap_or_default()
    }
}

/// Over everything that decides where a new flow goes: what differs between two nodes here may send it elsewhere.
fn fingerprint(nft: &Nft, sets: &[SetRun]) -> u64 {
    let of_set = |id: &SetId| {
        let mut bytes = Vec::new();
        let at = usize::from(id.0);
        if let (Some(config), Some(run)) = (nft.sets.get(at), sets.get(at)) {
            for backend in &config.backends {
                bytes.extend_from_slice(format!("{} {};", backend.address, backend.weight).as_bytes());
            }
            bytes.extend(run.layout.base().iter().flat_map(|slot| slot.to_be_bytes()));
        }
        maglev::hash(&bytes, 1)
    };
    let sums: Vec<u64> = (0..nft.sets.len()).map(|n| of_set(&SetId(u16::try_from(n).unwrap_or(u16::MAX)))).collect();
    let mut lines = BTreeSet::new();
    for service in &nft.services {
        for (ip, set) in &service.addresses {
            let sum = sums.get(usize::from(set.0)).copied().unwrap_or(0);
            let affinity = service.affinity;
            lines.insert(format!("{ip} {} {} {affinity:?} {sum:016x}", service.protocol.word(), service.port));
        }
    }
    let text = lines.into_iter().collect::<Vec<_>>().join("\n");
    maglev::hash(text.as_bytes(), u64::from(maglev::KERNEL_SEED))
}

#[cfg(test)]
mod tests;
