//! What a unit has in the kernel beside its addresses: devices of its virtual routers, routes, rules.
//!
//! They are wanted while the addresses are. A route or rule that can't be had is reported and tried again, and is no
//! reason to give the unit away: whoever needs that tracks something that notices.

use crate::config::{Vip, VipAddress};
use crate::kernel::{Route, Rule, Vmac};
use crate::world::World;
use std::collections::BTreeSet;

/// See the module's documentation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extras {
    /// Some of the unit's addresses have no interface to stand on yet.
    pub incomplete: bool,
    /// Devices of its virtual routers.
    pub vmacs: BTreeSet<Vmac>,
    /// Routes, after all addresses.
    pub routes: BTreeSet<Route>,
    /// Rules, after all routes.
    pub rules: BTreeSet<Rule>,
}

/// Of a unit that holds so many addresses.
pub(crate) fn of(vip: &Vip, world: &World, addresses: usize) -> Extras {
    let vmac_legs = vip.legs.iter().filter(|leg| leg.vmac);
    let routes = vip.routes.iter().filter_map(|r| Some(Route::of(r, world.link(&r.interface)?.ifindex)));
    Extras {
        incomplete: addresses < vip.addresses.len(),
        vmacs: vmac_legs.filter_map(|leg| Some(Vmac::of(leg, world.link(&leg.interface)?.ifindex))).collect(),
        routes: routes.collect(),
        rules: vip.rules.iter().map(Rule::of).collect(),
    }
}

/// The index of the interface that an address stands on, while that is there: its own, or the device of its virtual
/// router.
pub(crate) fn place(vip: &Vip, address: &VipAddress, world: &World) -> Option<u32> {
    let link = world.link(&address.interface)?;
    match vip.vmac_leg(address) {
        Some(leg) => world.link(&Vmac::of(leg, link.ifindex).name()).filter(|device| device.up).map(|l| l.ifindex),
        None => Some(link.ifindex),
    }
}
