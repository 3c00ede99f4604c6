//! What the kernel has against what the plan wants: the difference as ordered steps.
//!
//! Level-triggered: nothing here knows why something drifted. Only what we added (by mark or ledger) is removed.
//! A step that failed comes again with back-off until it works or is no longer wanted.
//!
//! Order: guard, devices, addresses, then routes, then rules; away in the mirrored order, but for the addresses of a
//! device, which go with it (taken off one by one, the kernel would report that from the virtual MAC).

mod addresses;
mod flows;
mod items;

use crate::io::{FlowFilter, SocketKey, Step};
use crate::kernel::{Route, Rule, Vmac};
use addresses::Addresses;
pub use addresses::{EARLY, Want};
use flows::Flows;
use items::Items;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Kernel lifetime of our addresses: they vanish by themselves when nobody refreshes them any more.
pub const LIFETIME: Duration = Duration::from_secs(2);
/// The same for IPv6, where each refresh makes the kernel report all its multicast groups again and walk through them:
/// rarer, and still gone within 3 s (DESIGN section 4, invariant 7).
pub const LIFETIME_V6: Duration = Duration::from_secs(3);
/// How often they are refreshed.
pub const REFRESH: Duration = Duration::from_millis(500);
/// The same for IPv6.
pub const REFRESH_V6: Duration = Duration::from_secs(1);
/// What the addition of an IPv6 address costs, in those of IPv4.
const COST_V6: usize = 10;
/// Additions and refreshes in one turn; the rest follows [`BATCH_PAUSE`] later, so that adverts go out between.
pub const BATCH: usize = 100;
/// See [`BATCH`].
pub const BATCH_PAUSE: Duration = Duration::from_millis(1);
/// Sockets opened or closed in one turn: each takes the kernel up to a millisecond, and the turn must end in time for the
/// beat to the keeper and for adverts.
pub const SOCKETS: usize = 16;
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_LAST: Duration = Duration::from_secs(1);
/// A device that was told to go is told again after this.
const LEAVE_AGAIN: Duration = Duration::from_millis(500);
/// How often the guard table is written anew: whoever flushes the whole rule set doesn't tell.
const GUARD_REFRESH: Duration = Duration::from_secs(5);
/// An address that is to take no traffic is added when the guard is known to hold it, or after this: the packet filter
/// may be busy with somebody else's change, and a VIP that nobody holds is worse than one that also answers for itself.
pub const GUARD_WAIT: Duration = Duration::from_millis(150);

/// Interface index, address, prefix length.
pub type Key = (u32, IpAddr, u8);

/// What the plan wants of the kernel beside addresses, of which it tells at once ([`Actual::want`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// VRRP sockets.
    pub sockets: BTreeSet<SocketKey>,
    /// Routes, each with whether it may be added now: its addresses are there, its interface is up.
    pub routes: BTreeMap<Route, bool>,
    /// Rules, each with whether it may be added now: its routes are there.
    pub rules: BTreeMap<Rule, bool>,
    /// Devices of virtual routers.
    pub vmacs: BTreeSet<Vmac>,
    /// The indices of such devices, wanted or not, as far as they are there.
    pub devices: BTreeMap<Vmac, u32>,
    /// Addresses that take no traffic.
    pub guard: BTreeSet<IpAddr>,
    /// Of which flows the kernel is to tell.
    pub flows: FlowFilter,
}

/// What the kernel has, as far as it is known, counting steps on their way as done.
#[derive(Debug, Clone, Default)]
pub struct Actual {
    addresses: Addresses,
    sockets: BTreeMap<SocketKey, Socket>,
    pub(crate) routes: Items<Route>,
    pub(crate) rules: Items<Rule>,
    pub(crate) vmacs: Items<Vmac>,
    /// Devices that were told to go, and when to say so again: the kernel takes its time.
    leaving: BTreeMap<Vmac, Instant>,
    guard: Guard,
    flows: Flows,
    retries: BTreeMap<RetryKey, Retry>,
}

/// The table that keeps traffic from addresses with `accept = false`.
#[derive(Debug, Clone, Default)]
struct Guard {
    /// What it holds; `None`: not known, a former run may have left one.
    set: Option<BTreeSet<IpAddr>>,
    at: Option<Instant>,
    /// It may hold something by our doing.
    ours: bool,
    /// What it held when a step for it last ended well.
    sure: BTreeSet<IpAddr>,
    /// Since when a step for it is on its way.
    asked: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Socket {
    Opening,
    Open,
    Closing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RetryKey {
    Add(Key),
    Remove(Key),
    Open(SocketKey),
    Close(SocketKey),
    Route(Route, bool),
    Rule(Rule, bool),
    Vmac(Vmac, bool),
    Guard,
    Flows,
}

impl RetryKey {
    /// Of a step that is retried.
    fn of(step: &Step) -> Option<Self> {
        Some(match step {
            Step::AddAddress { ifindex, ip, prefix, .. } => Self::Add((*ifindex, *ip, *prefix)),
            Step::RemoveAddress { ifindex, ip, prefix } => Self::Remove((*ifindex, *ip, *prefix)),
            Step::OpenVrrp { socket } => Self::Open(*socket),
            Step::CloseVrrp { socket } => Self::Close(*socket),
            Step::AddRoute { route } => Self::Route(*route, true),
            Step::RemoveRoute { route } => Self::Route(*route, false),
            Step::AddRule { rule } => Self::Rule(*rule, true),
            Step::RemoveRule { rule } => Self::Rule(*rule, false),
            Step::AddVmac { vmac } => Self::Vmac(*vmac, true),
            Step::RemoveVmac { vmac } => Self::Vmac(*vmac, false),
            Step::Guard { .. } => Self::Guard,
            Step::EventFilter { .. } => Self::Flows,
            Step::Announce { .. } | Step::Balance(_) | Step::Cut(_) => return None,
        })
    }
}

/// A step that failed.
#[derive(Debug, Clone)]
pub struct Retry {
    /// How often in a row.
    pub failures: u32,
    /// Not again before.
    pub at: Instant,
    /// In the system's words.
    pub why: String,
}

/// The steps of one turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Diff {
    /// In order.
    pub steps: Vec<Step>,
    /// Addresses among them that weren't there: to be announced right after.
    pub added: Vec<Key>,
    /// When to look again.
    pub next: Option<Instant>,
    /// From when on to do so in a turn that happens anyway. `None`: not before `next`.
    pub join: Option<Instant>,
}

/// Compares. Same arguments, same steps; those that aren't issued come again. `until`: when the next turn comes anyway,
/// not before `now`: what is to be refreshed by then is refreshed now, if that is at most [`EARLY`].
pub fn diff(wanted: &Wanted, actual: &mut Actual, now: Instant, until: Instant) -> Diff {
    let mut diff = Diff::default();
    let leaves = |ifindex: u32| wanted.devices.iter().any(|(vmac, at)| *at == ifindex && !wanted.vmacs.contains(vmac));
    let look = actual.addresses.look(now, until.min(now + EARLY), &actual.retries, leaves);
    let actual = &*actual;
    let mut next: Option<Instant> = look.next;
    let mut later = |at: Instant| next = Some(next.map_or(at, |n| n.min(at)));
    let may = |key: RetryKey, later: &mut dyn FnMut(Instant)| match actual.retries.get(&key) {
        Some(retry) if now < retry.at => {
            later(retry.at);
            false
        }
        _ => true,
    };

    let mut sockets = 0;
    for &socket in &wanted.sockets {
        let missing = matches!(actual.sockets.get(&socket), None | Some(Socket::Closing));
        if missing && may(RetryKey::Open(socket), &mut later) {
            sockets += 1;
            if sockets > SOCKETS {
                later(now + BATCH_PAUSE);
                break;
            }
            diff.steps.push(Step::OpenVrrp { socket });
        }
    }
    let guard = Step::Guard { addresses: wanted.guard.clone() };
    let guarded = match &actual.guard {
        Guard { set: Some(set), at, .. } if *set == wanted.guard => {
            let refresh = at.filter(|_| !set.is_empty()).map(|at| at + GUARD_REFRESH);
            refresh.into_iter().for_each(&mut later);
            refresh.is_none_or(|at| now < at)
        }
        _ => false,
    };
    let guard = (!guarded && may(RetryKey::Guard, &mut later)).then_some(guard);
    if !wanted.guard.is_empty() {
        diff.steps.extend(guard.clone());
    }
    let flows = actual.flows.step(&wanted.flows, now, &mut later).filter(|_| may(RetryKey::Flows, &mut later));
    if wanted.flows != FlowFilter::Off {
        diff.steps.extend(flows.clone());
    }
    for rule in actual.rules.present().filter(|rule| !wanted.rules.contains_key(rule)) {
        if may(RetryKey::Rule(rule, false), &mut later) {
            diff.steps.push(Step::RemoveRule { rule });
        }
    }
    for route in actual.routes.present().filter(|route| !wanted.routes.contains_key(route)) {
        if may(RetryKey::Route(route, false), &mut later) {
            diff.steps.push(Step::RemoveRoute { route });
        }
    }
    let there: BTreeSet<Vmac> = actual.vmacs.present().chain(wanted.devices.keys().copied()).collect();
    for &vmac in there.difference(&wanted.vmacs) {
        match actual.leaving.get(&vmac) {
            Some(again) if now < *again => later(*again),
            _ if may(RetryKey::Vmac(vmac, false), &mut later) => diff.steps.push(Step::RemoveVmac { vmac }),
            _ => {}
        }
    }
    for (ifindex, ip, prefix) in look.surplus {
        diff.steps.push(Step::RemoveAddress { ifindex, ip, prefix });
    }

    for &vmac in wanted.vmacs.iter().filter(|vmac| !actual.vmacs.has(vmac)) {
        if let Some(again) = actual.leaving.get(&vmac).filter(|again| now < **again) {
            later(*again);
        } else if may(RetryKey::Vmac(vmac, true), &mut later) {
            diff.steps.push(Step::AddVmac { vmac });
        }
    }

    // What the guard is asked for in this turn isn't there yet.
    let asked = actual.guard.asked.or_else(|| guard.is_some().then_some(now));
    let guarded_at = asked.map(|at| at + GUARD_WAIT).filter(|at| now < *at);
    let mut refresh_at = look.next;
    let mut left = BATCH;
    for addresses::Missing { refreshed, key, lifetime, refresh } in look.missing {
        let (ifindex, ip, prefix) = key;
        let open = wanted.guard.contains(&ip) && !actual.guard.sure.contains(&ip) && !actual.addresses.present(&key);
        if let Some(at) = guarded_at.filter(|_| open) {
            later(at);
            continue;
        }
        let cost = if ip.is_ipv6() { COST_V6 } else { 1 };
        let Some(rest) = left.checked_sub(cost) else {
            // What is left isn't to come in this turn.
            refresh_at = None;
            later(now + BATCH_PAUSE);
            break;
        };
        left = rest;
        diff.steps.push(Step::AddAddress { ifindex, ip, prefix, lifetime });
        if refreshed.is_none() {
            diff.added.push(key);
        }
        later(now + refresh);
        refresh_at = Some(refresh_at.map_or(now + refresh, |at| at.min(now + refresh)));
    }
    diff.join = refresh_at.and_then(|at| at.checked_sub(EARLY));

    for (&route, _) in wanted.routes.iter().filter(|(route, free)| **free && !actual.routes.has(route)) {
        if may(RetryKey::Route(route, true), &mut later) {
            diff.steps.push(Step::AddRoute { route });
        }
    }
    for (&rule, _) in wanted.rules.iter().filter(|(rule, free)| **free && !actual.rules.has(rule)) {
        if may(RetryKey::Rule(rule, true), &mut later) {
            diff.steps.push(Step::AddRule { rule });
        }
    }
    if wanted.guard.is_empty() {
        diff.steps.extend(guard);
    }
    if wanted.flows == FlowFilter::Off {
        diff.steps.extend(flows);
    }

    for (&socket, state) in &actual.sockets {
        let surplus = *state != Socket::Closing && !wanted.sockets.contains(&socket);
        if surplus && may(RetryKey::Close(socket), &mut later) {
            sockets += 1;
            if sockets > SOCKETS {
                later(now + BATCH_PAUSE);
                break;
            }
            diff.steps.push(Step::CloseVrrp { socket });
        }
    }
    diff.next = next;
    diff
}

impl Actual {
    /// Counts a step as done; [`Self::done`] corrects if it fails.
    pub fn issued(&mut self, step: &Step, now: Instant) {
        match step {
            Step::AddAddress { ifindex, ip, prefix, lifetime } => {
                self.addresses.adding((*ifindex, *ip, *prefix), *lifetime, now);
            }
            Step::RemoveAddress { ifindex, ip, prefix } => self.addresses.removing((*ifindex, *ip, *prefix)),
            Step::OpenVrrp { socket } => {
                self.sockets.insert(*socket, Socket::Opening);
            }
            Step::CloseVrrp { socket } => {
                self.sockets.insert(*socket, Socket::Closing);
            }
            Step::AddRoute { route } => self.routes.issued(*route, true),
            Step::RemoveRoute { route } => self.routes.issued(*route, false),
            Step::AddRule { rule } => self.rules.issued(*rule, true),
            Step::RemoveRule { rule } => self.rules.issued(*rule, false),
            Step::AddVmac { vmac } => {
                self.leaving.remove(vmac);
                self.vmacs.issued(*vmac, true);
            }
            Step::RemoveVmac { vmac } => {
                self.leaving.insert(*vmac, now + LEAVE_AGAIN);
                self.vmacs.issued(*vmac, false);
            }
            Step::Guard { addresses } => {
                self.guard.ours |= !addresses.is_empty();
                self.guard.set = Some(addresses.clone());
                self.guard.at = Some(now);
                self.guard.asked.get_or_insert(now);
            }
            Step::EventFilter { filter } => self.flows.issued(filter, now),
            Step::Announce { .. } | Step::Balance(_) | Step::Cut(_) => {}
        }
    }

    /// How a step ended. The retry that is now due, or for a success the one that it ends.
    pub fn done(&mut self, step: &Step, failure: Option<&str>, now: Instant) -> Option<Retry> {
        let key = RetryKey::of(step)?;
        if let Step::EventFilter { filter } = step {
            self.flows.done(filter, failure.is_none());
        }
        if let Step::Guard { addresses } = step {
            self.guarded(addresses, failure.is_none());
        }
        self.settle(key, failure.is_none(), now);
        let Some(why) = failure else {
            let retry = self.retries.remove(&key)?;
            if let RetryKey::Add(key) | RetryKey::Remove(key) = key {
                self.addresses.retried(key);
            }
            return Some(retry);
        };
        let failures = self.retries.get(&key).map_or(1, |r| r.failures.saturating_add(1));
        let delay = RETRY_FIRST.saturating_mul(1 << (failures - 1).min(10)).min(RETRY_LAST);
        let retry = Retry { failures, at: now + delay, why: why.to_owned() };
        self.retries.insert(key, retry.clone());
        Some(retry)
    }

    fn guarded(&mut self, addresses: &BTreeSet<IpAddr>, ok: bool) {
        let guard = &mut self.guard;
        if !ok {
            // Nobody waits for the next try.
            guard.asked = None;
            return;
        }
        guard.sure.clone_from(addresses);
        if guard.set.as_ref() == Some(addresses) {
            guard.asked = None;
        }
        if addresses.is_empty() {
            guard.ours = guard.set.as_ref().is_some_and(|set| !set.is_empty());
        }
    }

    fn settle(&mut self, step: RetryKey, ok: bool, now: Instant) {
        match step {
            RetryKey::Add(key) => self.addresses.settle(key, false, ok, now),
            RetryKey::Remove(key) => self.addresses.settle(key, true, ok, now),
            RetryKey::Open(ifindex) => {
                if self.sockets.get(&ifindex) == Some(&Socket::Opening) {
                    if ok {
                        self.sockets.insert(ifindex, Socket::Open);
                    } else {
                        self.sockets.remove(&ifindex);
                    }
                }
            }
            RetryKey::Route(route, add) => self.routes.settle(route, add, ok),
            RetryKey::Rule(rule, add) => self.rules.settle(rule, add, ok),
            RetryKey::Vmac(vmac, add) => self.vmacs.settle(vmac, add, ok),
            RetryKey::Guard if !ok => self.guard.set = None,
            RetryKey::Guard | RetryKey::Flows => {}
            RetryKey::Close(ifindex) => {
                if self.sockets.get(&ifindex) == Some(&Socket::Closing) {
                    if ok {
                        self.sockets.remove(&ifindex);
                    } else {
                        self.sockets.insert(ifindex, Socket::Open);
                    }
                }
            }
        }
    }

    /// What should be of an address, from now on. `lifetime`: it lives longer than [`LIFETIME`], and is refreshed at
    /// every quarter of that.
    pub fn want(&mut self, key: Key, want: Want, lifetime: Option<Duration>) {
        self.addresses.want(key, want, lifetime);
    }

    /// The next [`diff`] compares every address, also those of which nothing is known to have changed.
    pub fn look_at_all(&mut self) {
        self.addresses.look_at_all();
    }

    /// The kernel has this address (an event or a dump). True: this is the first word of one that we added.
    pub fn seen(&mut self, key: Key) -> bool {
        self.addresses.seen(key)
    }

    /// Whether the kernel may be expected to answer for this address. It acknowledges an IPv6 address before it has its
    /// route, and what comes for it in between is lost: only the event says that it is ready.
    pub fn answers(&self, key: &Key, now: Instant) -> bool {
        self.addresses.answers(key, now)
    }

    /// We added it in a former run: it may be removed.
    pub fn adopt(&mut self, key: Key) {
        self.addresses.adopt(key);
    }

    /// The kernel lost this address. True: it was there by our doing and we didn't remove it.
    pub fn gone(&mut self, key: Key, now: Instant) -> bool {
        self.addresses.gone(key, now)
    }

    /// A complete dump: what isn't in it is gone, but for steps on their way. Returns what vanished of ours.
    pub fn resync(&mut self, dump: &BTreeSet<Key>, now: Instant) -> Vec<Key> {
        self.addresses.resync(dump, now)
    }

    /// The complete list of our routes and rules. Returns what vanished.
    pub fn resync_ours(&mut self, routes: &BTreeSet<Route>, rules: &BTreeSet<Rule>) -> (Vec<Route>, Vec<Rule>) {
        (self.routes.resync(routes), self.rules.resync(rules))
    }

    /// Whether the device may be there.
    pub fn maybe_vmac(&self, vmac: &Vmac) -> bool {
        self.vmacs.maybe(vmac) || self.leaving.contains_key(vmac)
    }

    /// Whether any device is known.
    pub fn any_vmac(&self) -> bool {
        self.vmacs.any() || !self.leaving.is_empty()
    }

    /// The device is there.
    pub fn vmac_seen(&mut self, vmac: Vmac) {
        if !self.leaving.contains_key(&vmac) {
            self.vmacs.seen(vmac);
        }
    }

    /// The device is gone. True: it was there, and not by a step of ours.
    pub fn vmac_gone(&mut self, vmac: Vmac) -> bool {
        self.leaving.remove(&vmac).is_none() && self.vmacs.gone(vmac)
    }

    /// The interface is gone, and all that was on it.
    pub fn link_gone(&mut self, ifindex: u32) {
        self.addresses.link_gone(ifindex);
        self.routes.forget(|route| route.ifindex == ifindex);
        self.vmacs.forget(|vmac| vmac.parent == ifindex);
        self.leaving.retain(|vmac, _| vmac.parent != ifindex);
        self.retries.retain(|key, _| match key {
            RetryKey::Add(key) | RetryKey::Remove(key) => key.0 != ifindex,
            RetryKey::Open(socket) | RetryKey::Close(socket) => socket.ifindex != Some(ifindex),
            RetryKey::Route(route, _) => route.ifindex != ifindex,
            RetryKey::Vmac(vmac, _) => vmac.parent != ifindex,
            RetryKey::Rule(..) | RetryKey::Guard | RetryKey::Flows => true,
        });
    }

    /// The link is up: what failed because it was down need not wait.
    pub fn link_up(&mut self, ifindex: u32) {
        self.retries.retain(|key, _| !matches!(key, RetryKey::Route(route, true) if route.ifindex == ifindex));
    }

    /// Whether an address is there (steps on their way counted as done).
    pub fn present(&self, key: &Key) -> bool {
        self.addresses.present(key)
    }

    /// Whether an address is there, and not just on its way.
    pub fn landed(&self, key: &Key) -> bool {
        self.addresses.landed(key)
    }

    /// Whether an address may be in the kernel because of us.
    pub fn maybe_ours(&self, key: &Key) -> bool {
        self.addresses.maybe_ours(key)
    }

    /// When an address was last refreshed.
    pub fn refreshed(&self, key: &Key) -> Option<Instant> {
        self.addresses.refreshed(key)
    }

    /// The failing addition of an address.
    pub fn add_retry(&self, key: &Key) -> Option<&Retry> {
        self.retries.get(&RetryKey::Add(*key))
    }

    /// Whether opening this socket has failed and not worked since.
    pub fn open_fails(&self, socket: SocketKey) -> bool {
        self.retries.contains_key(&RetryKey::Open(socket))
    }

    /// Open sockets, and those that are being opened.
    pub fn sockets(&self) -> (BTreeSet<SocketKey>, BTreeSet<SocketKey>) {
        let of = |state| self.sockets.iter().filter(|(_, s)| **s == state).map(|(i, _)| *i).collect();
        (of(Socket::Open), of(Socket::Opening))
    }

    /// Nothing of ours is left, and no removal is on its way.
    pub fn is_clean(&self) -> bool {
        let others = self.routes.is_clean()
            && self.rules.is_clean()
            && self.vmacs.is_clean()
            && !self.guard.ours
            && self.flows.is_clean();
        let others = others && self.leaving.is_empty();
        self.sockets.is_empty() && self.addresses.is_clean() && others
    }

    /// Forgets what is neither there nor on its way. (Addresses are, when they are looked at.)
    pub fn tidy(&mut self, now: Instant) {
        self.routes.tidy();
        self.rules.tidy();
        self.vmacs.tidy();
        let (addresses, sockets, routes, rules, vmacs) =
            (&self.addresses, &self.sockets, &self.routes, &self.rules, &self.vmacs);
        self.retries.retain(|key, retry| match key {
            RetryKey::Add(_)
            | RetryKey::Open(_)
            | RetryKey::Route(_, true)
            | RetryKey::Rule(_, true)
            | RetryKey::Vmac(_, true)
            | RetryKey::Flows
            | RetryKey::Guard => now < retry.at + RETRY_LAST * 10,
            RetryKey::Route(route, false) => routes.maybe(route),
            RetryKey::Rule(rule, false) => rules.maybe(rule),
            RetryKey::Vmac(vmac, false) => vmacs.maybe(vmac),
            RetryKey::Remove(key) => addresses.knows(key),
            RetryKey::Close(index) => sockets.contains_key(index),
        });
    }
}

#[cfg(test)]
mod tests;
