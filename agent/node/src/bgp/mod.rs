//! BGP in the node: who hears of which VIP, in which form, and in which order with the address.
//!
//! - `anycast` decides on units without legs, which every healthy node announces; units with legs are announced by
//!   whoever is Active ([`crate::decide`]).
//! - `apply` brings the routes of a unit to what the plan says. Up: the addresses are in the kernel, then the routes go
//!   out. Down: the withdrawal goes out in the turn of the verdict, before all steps; the address stays for
//!   `withdraw_wait`, so that what routers still send finds it.
//! - `routes` makes of each unit what each neighbour is to hear; `speakers` holds one session machine
//!   ([`holdfast_bgp`]) per neighbour and gives it the complete table whenever that changes. Level-triggered: a session
//!   that comes up late, or again, hears what is so now, and never what was so before.
//! - `damping` holds back what comes and goes too often.
//!
//! What it refuses to do: to listen to what routers announce. They are told, and what they say is counted.

pub(crate) mod anycast;
mod apply;
mod beside;
mod damping;
pub(crate) mod routes;
mod sessions;
pub(crate) mod speakers;

use crate::config::{Form, NeighborId, Vip};
use crate::keeper::ipc::BfdState;
use crate::world::{VipView, World};
pub(crate) use apply::{Unfinished, form_word};
use damping::Penalty;
use std::time::{Duration, Instant};

/// After its start a node that has no neighbour yet is not known to be unable to announce.
pub const NEIGHBOR_GRACE: Duration = Duration::from_secs(5);
/// How long a resumed unit counts as fit while nothing is known.
pub(crate) const ASSUMED_FIT: Duration = Duration::from_secs(5);

/// What the decision on a unit knows of its routes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UnitView {
    /// It is to be announced, as was decided last.
    pub held: bool,
    /// How it stands in what the neighbours are told; `None`: not at all.
    pub offered: Option<Form>,
    /// The graceful shutdown of a drain ends then.
    pub shutdown_until: Option<Instant>,
    /// It is withdrawn; the addresses stay until then.
    pub stays_until: Option<Instant>,
    /// Its disable file is there.
    pub disabled: bool,
    /// Changes that came too often.
    pub(crate) penalty: Penalty,
    /// At least one of its neighbours has been up since then.
    pub up_since: Option<Instant>,
    /// That was so long enough before a restart of the worker, and is so again.
    pub settled: bool,
    /// After a restart of the worker that counts until then, whatever is up.
    pub settled_until: Option<Instant>,
}

/// A neighbour as the decision knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NeighborView {
    /// Its session has been Established since then.
    pub up_since: Option<Instant>,
    /// BFD with it, the diagnostic code, and when that began.
    pub bfd: Option<(BfdState, u8, Instant)>,
    /// The journal entry that says so.
    pub event: Option<u64>,
}

/// The neighbours of a unit; none if it isn't announced.
pub(crate) fn neighbors_of(vip: &Vip) -> &[NeighborId] {
    vip.bgp.as_ref().map_or(&[], |bgp| bgp.neighbors.as_slice())
}

/// At least one of a unit's neighbours is up.
pub(crate) fn any_up(vip: &Vip, world: &World) -> bool {
    neighbors_of(vip).iter().any(|id| world.neighbors.get(usize::from(id.0)).is_some_and(|n| n.up_since.is_some()))
}

/// Some router hears of a unit from us now.
pub(crate) fn announced(vip: &Vip, view: &VipView, world: &World) -> bool {
    view.bgp.offered.is_some() && any_up(vip, world)
}

/// The times at which the decision on a unit changes by itself, as far as BGP goes.
pub(crate) fn turning_points(vip: &Vip, view: &UnitView, world: &World) -> impl Iterator<Item = Instant> {
    let bgp = vip.bgp.as_ref();
    let settled = bgp.and_then(|bgp| view.up_since.map(|since| since + bgp.settle));
    let delayed = bgp.map(|bgp| world.started + bgp.announce_delay);
    let grace = bgp.map(|_| world.started + NEIGHBOR_GRACE);
    let heard = view.up_since.map(|since| since + NEIGHBOR_GRACE);
    [view.shutdown_until, view.stays_until, heard, view.settled_until, view.penalty.until(), settled, delayed, grace]
        .into_iter()
        .flatten()
}
