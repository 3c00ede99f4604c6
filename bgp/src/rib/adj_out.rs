//! What one neighbour was told, and what it is still to be told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::{Context, Desired, Route, Unsent};
use crate::mutants;
use crate::types::{Family, PathAttributes, Prefix};
use crate::wire::{EncodeError, RefreshKind, RouteRefresh, update};

/// Prefixes with the same attributes that are written in one go.
const CHUNK: usize = 4096;

/// Adj-RIB-Out of one session (RFC 4271 section 3.2): made when it is Established, gone with it.
#[derive(Debug)]
pub struct AdjRibOut {
    context: Context,
    /// RFC 7313 was agreed on.
    enhanced: bool,
    /// `None`: not told yet; nothing goes out, End-of-RIB least of all.
    desired: Option<Arc<Desired>>,
    told: BTreeMap<Prefix, Told>,
    /// Where `told` isn't as it should be, in order, until it is looked at.
    changed: Vec<Prefix>,
    /// What is to be said again although it was told; of it, what is no longer wanted is withdrawn like all else.
    again: BTreeSet<Prefix>,
    /// Of what was looked at, what is still to be announced: the next ones first.
    groups: VecDeque<Group>,
    ipv4: Table,
    ipv6: Table,
}

/// What a prefix's route was when it was last looked at, and whether it was told.
#[derive(Debug, Clone)]
struct Told {
    route: Arc<Route>,
    outcome: Result<(), Unsent>,
}

/// How far a family's table is.
#[derive(Debug, Clone, Copy, Default)]
struct Table {
    /// The initial table is out, End-of-RIB and all.
    complete: bool,
    /// It was asked for again.
    asked: bool,
    /// The answer began with BoRR and must end with EoRR.
    framed: bool,
}

/// What [`AdjRibOut::poll`] wrote.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sent {
    /// UPDATEs, End-of-RIB included.
    pub updates: u64,
    /// ROUTE-REFRESHes (BoRR and EoRR).
    pub refreshes: u64,
    /// Routes announced.
    pub announced: Vec<Prefix>,
    /// Routes withdrawn.
    pub withdrawn: Vec<Prefix>,
    /// Routes that can't be told.
    pub unsent: Vec<(Prefix, Unsent)>,
}

/// Prefixes of a family with one set of attributes.
#[derive(Debug)]
struct Group {
    family: Family,
    route: Arc<Route>,
    attributes: PathAttributes,
    prefixes: Vec<Prefix>,
}

impl AdjRibOut {
    /// Of a session that was just Established. `enhanced`: RFC 7313 was agreed on.
    pub fn new(context: Context, enhanced: bool) -> Self {
        Self {
            context,
            enhanced,
            desired: None,
            told: BTreeMap::new(),
            changed: Vec::new(),
            again: BTreeSet::new(),
            groups: VecDeque::new(),
            ipv4: Table::default(),
            ipv6: Table::default(),
        }
    }

    /// The whole wanted table. What was wanted before and not told yet is forgotten.
    pub fn want(&mut self, desired: &Arc<Desired>) {
        self.desired = Some(Arc::clone(desired));
        self.groups.clear();
        self.changed = self.difference(desired);
    }

    /// Where what was told isn't what is wanted, in order.
    fn difference(&self, desired: &Desired) -> Vec<Prefix> {
        let mut changed = Vec::new();
        let mut told = self.told.iter().peekable();
        for (prefix, route) in desired.iter() {
            while let Some((gone, _)) = told.next_if(|(told, _)| *told < prefix) {
                changed.push(*gone);
            }
            let same = told.next_if(|(told, _)| *told == prefix).is_some_and(|(_, told)| same(&told.route, route));
            if !same {
                changed.push(*prefix);
            }
        }
        changed.extend(told.map(|(gone, _)| *gone));
        changed
    }

    /// What was looked at and not told yet is looked at anew.
    fn regroup(&mut self) {
        if let Some(desired) = self.desired.clone().filter(|_| !self.groups.is_empty()) {
            self.want(&desired);
        }
    }

    /// Other next hops. Routes whose next hop changes by it are said again.
    pub fn set_context(&mut self, context: Context) {
        let before = std::mem::replace(&mut self.context, context);
        if before == context {
            return;
        }
        for (prefix, told) in &self.told {
            let family = prefix.family();
            if before.next_hop(&told.route, family) != context.next_hop(&told.route, family) {
                self.again.insert(*prefix);
            }
        }
        self.regroup();
    }

    /// The neighbour wants a family's table again (RFC 2918). Asked while it is being told: once more afterwards.
    pub fn refresh(&mut self, family: Family) {
        if self.context.codec.families.contains(family) {
            self.table_mut(family).asked = true;
        }
    }

    /// Whether there is anything to say.
    pub fn pending(&self) -> bool {
        let Some(_) = &self.desired else { return false };
        let tables = self.context.codec.families.iter().any(|family| {
            let table = self.table(family);
            !table.complete || table.asked || table.framed
        });
        !self.changed.is_empty() || !self.again.is_empty() || !self.groups.is_empty() || tables
    }

    /// Whether the initial table is out, End-of-RIB and all.
    pub fn table_sent(&self) -> bool {
        self.context.codec.families.iter().all(|family| self.table(family).complete)
    }

    /// Routes announced, IPv4 and IPv6.
    pub fn announced(&self) -> (usize, usize) {
        let announced = self.told.iter().filter(|(_, told)| told.outcome.is_ok());
        announced.fold((0, 0), |(ipv4, ipv6), (prefix, _)| match prefix.family() {
            Family::Ipv4 => (ipv4 + 1, ipv6),
            Family::Ipv6 => (ipv4, ipv6 + 1),
        })
    }

    /// Routes that can't be told.
    pub fn unsent(&self) -> usize {
        self.told.values().filter(|told| told.outcome.is_err()).count()
    }

    /// One of them.
    pub fn unsent_example(&self) -> Option<(Prefix, Unsent)> {
        self.told.iter().find_map(|(prefix, told)| Some((*prefix, told.outcome.err()?)))
    }

    /// Writes what the neighbour is to be told next: withdrawals first and all at once, then announcements until `limit`
    /// bytes are reached (or a little more). Call it until nothing is [`pending`](Self::pending).
    pub fn poll(&mut self, limit: usize, out: &mut Vec<u8>) -> Sent {
        let mut sent = Sent::default();
        let Some(desired) = self.desired.clone() else { return sent };
        if mutants::off("end-of-rib-last") {
            self.complete(out, &mut sent, true);
        }
        self.begin_refreshes(&desired, out, &mut sent);
        if self.groups.is_empty() {
            self.look(&desired, out, &mut sent);
        }
        self.announce(limit, out, &mut sent);
        self.complete(out, &mut sent, false);
        sent
    }

    /// Looks at all that has changed, once: withdraws what must go, and groups what is to be announced.
    fn look(&mut self, desired: &Desired, out: &mut Vec<u8>, sent: &mut Sent) {
        let changes = merged(std::mem::take(&mut self.changed), &self.again);
        self.groups = self.grouped(&changes, desired, sent);
        let mut gone = Vec::new();
        for prefix in changes.iter().filter(|prefix| !desired.contains_key(prefix)) {
            gone.extend(self.told.remove(prefix).filter(|told| told.outcome.is_ok()).map(|_| *prefix));
            self.again.remove(prefix);
        }
        for (prefix, why) in &sent.unsent {
            self.again.remove(prefix);
            if let Some(route) = desired.get(prefix) {
                let told = self.told.insert(*prefix, Told { route: Arc::clone(route), outcome: Err(*why) });
                gone.extend(told.filter(|told| told.outcome.is_ok()).map(|_| *prefix));
            }
        }
        self.withdraw(&gone, out, sent);
    }

    /// Withdraws everything, for the end of the session.
    pub fn withdraw_all(&mut self, out: &mut Vec<u8>) -> Sent {
        let mut sent = Sent::default();
        let announced = self.told.iter().filter(|(_, told)| told.outcome.is_ok());
        let all: Vec<_> = announced.map(|(prefix, _)| *prefix).collect();
        self.withdraw(&all, out, &mut sent);
        self.told.clear();
        self.changed.clear();
        self.again.clear();
        self.groups.clear();
        self.desired = None;
        sent
    }

    fn table(&self, family: Family) -> &Table {
        match family {
            Family::Ipv4 => &self.ipv4,
            Family::Ipv6 => &self.ipv6,
        }
    }

    fn table_mut(&mut self, family: Family) -> &mut Table {
        match family {
            Family::Ipv4 => &mut self.ipv4,
            Family::Ipv6 => &mut self.ipv6,
        }
    }

    /// RFC 7313 section 4: BoRR, and all of the family again. Not before End-of-RIB (section 4, last paragraph but one).
    fn begin_refreshes(&mut self, desired: &Desired, out: &mut Vec<u8>, sent: &mut Sent) {
        for family in self.context.codec.families.iter() {
            let enhanced = self.enhanced;
            let table = self.table_mut(family);
            if !table.asked || !table.complete || table.framed {
                continue;
            }
            table.asked = false;
            table.framed = enhanced;
            if enhanced {
                RouteRefresh::new(RefreshKind::Begin, family).encode(out);
                sent.refreshes += 1;
            }
            let told = self.told.iter().filter(|(prefix, told)| prefix.family() == family && told.outcome.is_ok());
            let again = told.map(|(prefix, _)| *prefix).filter(|prefix| desired.contains_key(prefix));
            self.again.extend(again);
            self.regroup();
        }
    }

    /// The changes that are announcements, those with the same attributes together. Those that can't be told go to
    /// `sent.unsent`.
    fn grouped(&self, changes: &[Prefix], desired: &Desired, sent: &mut Sent) -> VecDeque<Group> {
        let mut groups: VecDeque<Group> = VecDeque::new();
        let mut by_address: BTreeMap<(Family, usize), Result<usize, Unsent>> = BTreeMap::new();
        let mut by_content: BTreeMap<(Family, &Route), Result<usize, Unsent>> = BTreeMap::new();
        for prefix in changes {
            let Some(route) = desired.get(prefix) else { continue };
            let family = prefix.family();
            let place = *by_address.entry((family, Arc::as_ptr(route) as usize)).or_insert_with(|| {
                *by_content.entry((family, route)).or_insert_with(|| {
                    let attributes = self.attributes(route, family)?;
                    groups.push_back(Group {
                        family,
                        route: Arc::clone(route),
                        attributes,
                        prefixes: Vec::with_capacity(1),
                    });
                    Ok(groups.len() - 1)
                })
            });
            match place {
                Ok(place) => {
                    if let Some(group) = groups.get_mut(place) {
                        group.prefixes.push(*prefix);
                    }
                }
                Err(why) => sent.unsent.push((*prefix, why)),
            }
        }
        groups
    }

    /// What is said of a route, if it can be.
    fn attributes(&self, route: &Route, family: Family) -> Result<PathAttributes, Unsent> {
        let attributes = self.context.attributes(route, family)?;
        update::check(&self.context.codec, &attributes, family).map_err(|error| unsent(error, family))?;
        Ok(attributes)
    }

    fn withdraw(&self, prefixes: &[Prefix], out: &mut Vec<u8>, sent: &mut Sent) {
        for family in Family::ALL {
            let of_family = prefixes.iter().copied().filter(|prefix| prefix.family() == family);
            sent.updates += update::withdraw(out, &self.context.codec, family, of_family) as u64;
        }
        sent.withdrawn.extend(prefixes);
    }

    /// Announces groups, or as much of them as the limit allows; the rest stays.
    fn announce(&mut self, limit: usize, out: &mut Vec<u8>, sent: &mut Sent) {
        while out.len() < limit {
            let Some(mut group) = self.groups.pop_front() else { return };
            let rest = group.prefixes.split_off(CHUNK.min(group.prefixes.len()));
            let prefixes = std::mem::replace(&mut group.prefixes, rest);
            let Group { family, route, attributes, .. } = &group;
            let messages = update::announce(out, &self.context.codec, attributes, *family, prefixes.iter().copied());
            for prefix in &prefixes {
                self.again.remove(prefix);
                self.told.insert(*prefix, Told { route: Arc::clone(route), outcome: Ok(()) });
            }
            sent.updates += messages.expect("was checked when the group was made") as u64;
            sent.announced.extend(prefixes);
            if !group.prefixes.is_empty() {
                self.groups.push_front(group);
            }
        }
    }

    /// Ends what is complete: EoRR where BoRR began it, and each family's initial table.
    fn complete(&mut self, out: &mut Vec<u8>, sent: &mut Sent, early: bool) {
        for family in self.context.codec.families.iter() {
            let open = self.groups.iter().any(|group| group.family == family);
            if open && !early {
                continue;
            }
            let table = self.table_mut(family);
            if std::mem::take(&mut table.framed) {
                RouteRefresh::new(RefreshKind::End, family).encode(out);
                sent.refreshes += 1;
            }
            if !std::mem::replace(&mut table.complete, true) {
                update::end_of_rib(out, family);
                sent.updates += 1;
            }
        }
    }
}

/// Both, in order, each once.
fn merged(mut changes: Vec<Prefix>, again: &BTreeSet<Prefix>) -> Vec<Prefix> {
    if !again.is_empty() {
        changes.extend(again);
        changes.sort_unstable();
        changes.dedup();
    }
    changes
}

fn same(one: &Arc<Route>, other: &Arc<Route>) -> bool {
    Arc::ptr_eq(one, other) || (one == other && !mutants::off("unchanged-is-silent"))
}

fn unsent(error: EncodeError, family: Family) -> Unsent {
    match error {
        EncodeError::TooLong { bytes, .. } => Unsent::TooLarge { bytes },
        EncodeError::NextHop(_) => Unsent::NoNextHop(family),
    }
}
