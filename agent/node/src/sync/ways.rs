//! The ways back: at which of its addresses a node gets what backends answer.
//!
//! A unit that routers spread over several nodes (BGP) is answered at one node: by the address that its flows are translated
//! to, a unit of its own that VRRP holds. So
//!
//! - no router is told of the first where the second isn't: new connections would be answered elsewhere;
//! - where it leaves by an operator's will, it stays until nothing comes for the first any more;
//! - whoever has it has the flows with it ([`Config::flow_sources`]).

use crate::config::{Config, NatMode, VipId};
use crate::decide::Judge;
use crate::mutants;
use crate::node::Node;
use crate::reasons::Reason;
use holdfast_vrrp::State;
use std::collections::{BTreeMap, BTreeSet};

/// Which units without a router are answered at which of those that have one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ways {
    back: BTreeMap<VipId, BTreeSet<VipId>>,
    users: BTreeMap<VipId, BTreeSet<VipId>>,
}

impl Ways {
    pub(crate) fn new(config: &Config) -> Self {
        let units = || (0..).map(VipId).zip(&config.vips);
        let mut holders = BTreeMap::new();
        for (id, unit) in units().filter(|(_, unit)| !unit.anycast()) {
            holders.extend(unit.addresses.iter().map(|address| (address.ip, id)));
        }
        let mut spread = BTreeMap::new();
        for (id, unit) in units().filter(|(_, unit)| unit.anycast()) {
            spread.extend(unit.members.iter().map(|member| (&member.name, id)));
        }
        let mut ways = Self::default();
        let services = config.nft.iter().flat_map(|nft| &nft.services);
        for service in services.filter(|service| service.mode == NatMode::Snat) {
            let Some(user) = spread.get(&service.vip) else { continue };
            for holder in service.snat.iter().filter_map(|ip| holders.get(ip)) {
                ways.back.entry(*user).or_default().insert(*holder);
                ways.users.entry(*holder).or_default().insert(*user);
            }
        }
        ways
    }

    /// Where what is answered to a unit comes back, here.
    pub(crate) fn back(&self, id: VipId) -> impl Iterator<Item = VipId> + use<'_> {
        self.back.get(&id).into_iter().flatten().copied()
    }

    /// For which units answers come to this one.
    pub(crate) fn users(&self, id: VipId) -> impl Iterator<Item = VipId> + use<'_> {
        self.users.get(&id).into_iter().flatten().copied()
    }
}

impl Judge<'_> {
    fn name_of(&self, id: VipId) -> String {
        self.config.vips.get(usize::from(id.0)).map_or_else(String::new, |unit| unit.name.as_str().to_owned())
    }

    /// Answers wouldn't come back here.
    pub(crate) fn way_back_first(&self) -> Option<Reason> {
        let is_away =
            |id: &VipId| self.world.vips.get(usize::from(id.0)).is_none_or(|view| view.state != State::Active);
        self.world.ways.back(self.id).find(is_away).map(|id| Reason::WayBackFirst(self.name_of(id)))
    }

    /// Something still comes here whose answers need this unit.
    pub(crate) fn is_way_back(&self) -> Option<Reason> {
        let comes = |id: &VipId| {
            let view = self.world.vips.get(usize::from(id.0)).map(|view| &view.bgp);
            let stays = |until| self.now < until;
            view.is_some_and(|view| view.offered.is_some() || view.stays_until.is_some_and(stays))
        };
        let user = self.world.ways.users(self.id).find(comes).filter(|_| !mutants::off("way-back-last"));
        user.map(|id| Reason::WayBack(self.name_of(id)))
    }
}

impl Node {
    /// What is answered to a unit comes back here.
    pub(crate) fn has_way_back(&self, id: VipId) -> bool {
        let is_here = |id: VipId| {
            let held = self.plan.vips.get(usize::from(id.0)).is_some_and(|plan| !plan.addresses.is_empty());
            held && self.view(id).state == State::Active && self.landed(id)
        };
        self.world.ways.back(id).all(is_here) || mutants::off("way-back-first")
    }

    /// A unit has come or gone, or its addresses have: what depends on it is decided anew.
    pub(crate) fn touch_ways(&mut self, id: VipId) {
        let others: Vec<VipId> = self.world.ways.back(id).chain(self.world.ways.users(id)).collect();
        others.into_iter().for_each(|id| self.dirty.units.insert(id));
    }
}
