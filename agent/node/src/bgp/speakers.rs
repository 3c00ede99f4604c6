//! One session machine per neighbour, and the table that each is given.

use super::routes::{self, Owners};
use crate::config::{Config, NeighborId, VipId};
use crate::schedule::Units;
use crate::world::World;
use holdfast_bgp::{Desired, Input, Peer, Route, State};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Announcements this close together are one: with thousands of addresses, each of which is announced when it is there,
/// the tables would be compared thousands of times.
const TOGETHER: Duration = Duration::from_millis(2);

/// After a former worker we wait no longer than this for neighbours to be found, before the keeper hears which BFD sessions
/// are to run: those that it runs meanwhile go on.
const FOUND_WAIT: Duration = Duration::from_secs(5);

/// All neighbours.
#[derive(Debug)]
pub(crate) struct Speakers {
    /// By [`NeighborId`].
    pub list: Vec<Speaker>,
    /// Units of which the neighbours may have to be told something else.
    dirty: Units,
    /// Something is withdrawn: at once.
    hurry: bool,
    /// Until then announcements wait for others, to leave together.
    at: Option<Instant>,
    owners: Owners,
    /// Of all units.
    prefixes: Vec<Vec<holdfast_bgp::types::Prefix>>,
    /// Sessions were begun.
    pub started: bool,
    /// They were ended.
    pub stopped: bool,
    /// The keeper is to be told which BFD sessions are to run.
    pub bfd_due: bool,
    /// A former worker's sessions are to be there in the first list, if they can be.
    bfd_waits: bool,
    /// Not before then, while some of them aren't known.
    bfd_at: Option<Instant>,
}

/// One neighbour.
#[derive(Debug)]
pub(crate) struct Speaker {
    pub peer: Peer,
    /// What it is to hear.
    table: Arc<Desired>,
    /// The routes in the table, each once.
    shapes: BTreeSet<Arc<Route>>,
    changed: bool,
    /// Something in the table was withdrawn while it couldn't hear of it, or we were not there to serve.
    gap: bool,
    serving: bool,
    /// Its address: as configured, as it was found, or as the last session had it.
    pub remote: Option<IpAddr>,
    /// Why it can be neither dialled nor accepted, and since when.
    pub problem: Option<(Instant, String)>,
    /// The keeper holds its socket.
    pub kept: bool,
    /// The link to it is up, as far as is known.
    pub linked: bool,
    /// Nothing more comes of it.
    pub ended: bool,
}

impl Speakers {
    /// `restarting`: see [`crate::io::Boot::bgp_restarting`].
    pub(crate) fn new(config: &Config, world: &World, restarting: bool, seed: [u8; 32], now: Instant) -> Self {
        let speaker = |(id, neighbor): (NeighborId, _)| {
            let bgp = config.bgp.as_ref().expect("neighbours come from it");
            let [a, b, c, d, e, f, g, h, ..] = seed;
            let seed = u64::from_be_bytes([a, b, c, d, e, f, g, h]).wrapping_add(u64::from(id.0) << 32);
            Speaker {
                peer: Peer::new(routes::peer_config(bgp, neighbor, world), restarting, seed, now),
                table: Arc::default(),
                shapes: BTreeSet::new(),
                changed: true,
                gap: !restarting,
                serving: false,
                remote: neighbor.address,
                problem: None,
                kept: false,
                linked: true,
                ended: true,
            }
        };
        let owners = routes::owners(config);
        let mut prefixes = vec![Vec::new(); config.vips.len()];
        for (prefix, those) in &owners {
            for (id, _) in those {
                if let Some(own) =
                    prefixes.get_mut(usize::from(id.0)).filter(|own: &&mut Vec<_>| own.last() != Some(prefix))
                {
                    own.push(*prefix);
                }
            }
        }
        Self {
            list: config.bgp.iter().flat_map(crate::config::Bgp::each).map(speaker).collect(),
            dirty: Units::new(config.vips.len()),
            hurry: false,
            at: None,
            owners,
            prefixes,
            started: false,
            stopped: false,
            bfd_due: true,
            bfd_waits: restarting,
            bfd_at: None,
        }
    }

    /// Whether the keeper is to be told now which BFD sessions are to run.
    pub(crate) fn takes_bfd(&mut self, now: Instant, config: &Config) -> bool {
        if std::mem::take(&mut self.bfd_waits) {
            self.bfd_at = Some(now + FOUND_WAIT);
        }
        let mut each = config.bgp.iter().flat_map(crate::config::Bgp::each).zip(&self.list);
        let waits = self.bfd_at.is_some_and(|at| now < at)
            && each.any(|((_, neighbor), speaker)| neighbor.bfd.is_some() && speaker.remote.is_none());
        if !waits {
            self.bfd_at = None;
        }
        !waits && std::mem::take(&mut self.bfd_due)
    }

    /// A unit's routes are withdrawn: that waits for nothing.
    pub(crate) fn withdrawn(&mut self, id: VipId) {
        self.dirty.insert(id);
        self.hurry = true;
    }

    /// A unit's routes are announced, or announced otherwise.
    pub(crate) fn announced(&mut self, now: Instant, id: VipId) {
        self.dirty.insert(id);
        self.at.get_or_insert(now + TOGETHER);
    }

    /// A neighbour's machine.
    pub(crate) fn get_mut(&mut self, id: NeighborId) -> Option<&mut Speaker> {
        self.list.get_mut(usize::from(id.0))
    }

    /// Brings the tables up to date with the units that changed.
    pub(crate) fn update(&mut self, now: Instant, config: &Config, world: &World) {
        let Some(bgp) = &config.bgp else { return };
        if self.started && !self.hurry && self.at.is_some_and(|at| now < at) {
            return;
        }
        (self.hurry, self.at) = (false, None);
        for unit in self.dirty.take() {
            for prefix in self.prefixes.get(usize::from(unit.0)).into_iter().flatten() {
                let those = self.owners.get(prefix).map(Vec::as_slice).unwrap_or_default();
                for ((id, neighbor), speaker) in bgp.each().zip(&mut self.list) {
                    // Of several that make one network, the first that is there speaks for all.
                    let said = those.iter().find_map(|(unit, ip)| {
                        let vip = config.vips.get(usize::from(unit.0))?;
                        let form = world.vips.get(usize::from(unit.0))?.bgp.offered?;
                        let hears =
                            super::neighbors_of(vip).contains(&id) && neighbor.families.contains(prefix.family());
                        routes::route(bgp, neighbor, vip, *ip, form).filter(|_| hears)
                    });
                    speaker.say(*prefix, said);
                }
            }
        }
    }

    /// When a session has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.list.iter().filter_map(|speaker| speaker.peer.poll_timeout()).chain(self.at).chain(self.bfd_at).min()
    }

    /// Nothing more comes of any session.
    pub(crate) fn ended(&self) -> bool {
        self.list.iter().all(|speaker| speaker.ended)
    }
}

impl Speaker {
    fn say(&mut self, prefix: holdfast_bgp::types::Prefix, route: Option<Route>) {
        if self.table.get(&prefix).map(|old| &**old) == route.as_ref() {
            return;
        }
        self.changed = true;
        match route {
            Some(route) => {
                let shape = self.shapes.get(&route).cloned().unwrap_or_else(|| Arc::new(route));
                self.shapes.insert(shape.clone());
                Arc::make_mut(&mut self.table).insert(prefix, shape);
            }
            None => {
                Arc::make_mut(&mut self.table).remove(&prefix);
                self.gap |= self.peer.state() != State::Established;
            }
        }
    }

    /// Gives the machine what changed. True: something did.
    pub(crate) fn tell(&mut self, now: Instant) -> bool {
        let serving = !self.gap && !self.table.is_empty();
        let serves = std::mem::replace(&mut self.serving, serving) != serving;
        if serves {
            self.peer.handle(now, Input::Serving(serving));
        }
        let changed = std::mem::take(&mut self.changed);
        if changed {
            // Shapes that nobody has any more: one reference is the set's own.
            self.shapes.retain(|shape| Arc::strong_count(shape) > 1);
            self.peer.handle(now, Input::Routes(&self.table));
        }
        serves || changed
    }

    /// How many routes it is to hear.
    pub(crate) fn wanted(&self) -> usize {
        self.table.len()
    }

    /// A session is up: what it hears from now on is without a gap.
    pub(crate) fn up(&mut self) {
        self.gap = false;
    }
}
