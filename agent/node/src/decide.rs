//! The decision: from (Config, World, now) to a Plan, as a pure function. The daemon, `status`, `explain` and the
//! simulator all use this one.
//!
//! It refuses to remember: whatever a rule needs to know of the past stands in the [`World`].

use crate::bgp;
use crate::config::{Config, Form, LastNode, Leg, Partition, Track, Tracked, Vip, VipAddress, VipId};
use crate::extras::{self, Extras};
use crate::io::SocketKey;
use crate::kernel::Vmac;
use crate::mutants;
use crate::plane;
use crate::reasons::Reason;
use crate::world::{CheckState, FRESH, Withheld, World};
use holdfast_statesync::channel::PeerId;
use holdfast_statesync::message::{Fitness, Role, Standing, VipReport};
use holdfast_vrrp::{Priority, State};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Between two hand-overs of a VIP that is kept as last resort.
const HAND_OVER_PAUSE: Duration = Duration::from_secs(1);

/// The least that weights leave: 1 says that a node can't serve.
pub(crate) const LEAST: u16 = 2;

/// What should be, per VIP by [`VipId`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// By [`VipId`].
    pub vips: Vec<VipPlan>,
}

/// What should be of one VIP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VipPlan {
    /// Whether and how this node takes part.
    pub participation: Participation,
    /// Where the adverts of each leg go out, by `LegId`; `None` while one of the legs has no way out.
    pub path: Option<Vec<LegPath>>,
    /// What this node says of its own ability to serve.
    pub fitness: Fitness,
    /// The same more exactly.
    pub standing: Standing,
    /// Give it away now.
    pub leave: Option<Leave>,
    /// Addresses that should be in the kernel: interface index, address, prefix length.
    pub addresses: BTreeSet<(u32, IpAddr, u8)>,
    /// What should be there beside them.
    pub extras: Extras,
    /// Kept although unfit.
    pub fail_open: bool,
    /// How it should be announced by BGP; `None`: not at all.
    pub announce: Option<Form>,
    /// Why, most important first.
    pub reasons: Vec<Reason>,
}

/// The way of one leg to its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegPath {
    /// Interface index.
    pub ifindex: u32,
    /// Adverts leave here: the virtual router's own device once that is up, else the interface itself.
    pub out: u32,
    /// Source address.
    pub source: IpAddr,
}

/// Whether and how a node takes part in the election of a VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Participation {
    /// It can't: no interface, no carrier, no source address, no socket (the first of the reasons).
    Off,
    /// It must not: never Active.
    Observe,
    /// It does, at this priority.
    Run {
        /// The effective priority.
        priority: Priority,
    },
}

/// How a VIP is given away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leave {
    /// The peer that is told to take it.
    pub to: Option<PeerId>,
    /// The addresses stay until the successor is seen.
    pub linger: bool,
    /// An operator's will.
    pub planned: bool,
}

/// The sockets that a leg on this interface uses.
pub fn socket_of(leg: &Leg, ifindex: u32) -> SocketKey {
    SocketKey { family: leg.family, ifindex: leg.peers.is_empty().then_some(ifindex) }
}

/// Every address that any VIP of the configuration may add: never a source, never foreign.
pub fn managed(config: &Config) -> BTreeSet<IpAddr> {
    config.vips.iter().flat_map(|vip| vip.addresses.iter().map(|a| a.ip)).collect()
}

/// Decides. Same arguments, same plan.
pub fn decide(config: &Config, world: &World, now: Instant) -> Plan {
    let managed = managed(config);
    let vips = (0..).map(VipId).zip(&config.vips);
    Plan { vips: vips.map(|(id, vip)| decide_one(config, world, &managed, now, (id, vip))).collect() }
}

/// Decides on one VIP, `managed` being what [`managed`] gives for this configuration.
pub fn decide_one(
    config: &Config,
    world: &World,
    managed: &BTreeSet<IpAddr>,
    now: Instant,
    (id, vip): (VipId, &Vip),
) -> VipPlan {
    Judge { config, world, now, id, vip }.plan(managed)
}

/// Until when a decision of `now` on this VIP stands if nothing new is seen: the first time at which a word or an advert
/// grows too old, or a pause ends. `None`: for ever. May be too early, never too late. What ends at a time that the
/// [`World`] holds as such (faults, debounced interfaces and so on) isn't among these.
pub fn stands_until(config: &Config, world: &World, now: Instant, id: VipId) -> Option<Instant> {
    let (vip, view) = (config.vips.get(usize::from(id.0))?, world.vips.get(usize::from(id.0))?);
    let words = world.peers.iter().flat_map(|peer| [peer.heard_at, peer.vips.get(&id).map(|(at, _)| *at)]);
    let words = words.flatten().map(|at| at + FRESH);
    let others = [
        view.heard.map(|heard| heard.counts_until()),
        view.send_failing_since.map(|since| since + vip.vrrp.interval.duration() * 2),
        view.handed_at.map(|at| at + HAND_OVER_PAUSE),
        Some(world.started + vip.vrrp.startup_delay),
    ];
    let routes = bgp::turning_points(vip, &view.bgp, world);
    let planes = plane::standing::turning_points(config, world, id);
    let flows = world.sync.iter().flat_map(|sync| sync.turning_points(id));
    words.chain(routes).chain(planes).chain(flows).chain(others.into_iter().flatten()).filter(|at| *at >= now).min()
}

pub(crate) struct Judge<'a> {
    pub(crate) config: &'a Config,
    pub(crate) world: &'a World,
    pub(crate) now: Instant,
    pub(crate) id: VipId,
    pub(crate) vip: &'a Vip,
}

impl Judge<'_> {
    pub(crate) fn view(&self) -> &crate::world::VipView {
        self.world.vips.get(usize::from(self.id.0)).expect("the world has a view of every configured VIP")
    }

    /// It is here: Active, or announced without a router; or a former worker left it here.
    pub(crate) fn holder(&self) -> bool {
        let view = self.view();
        view.state == State::Active || view.resume.is_some() || self.vip.anycast() && view.bgp.held
    }

    pub(crate) fn peer_name(&self, peer: PeerId) -> String {
        let peers = self.config.cluster.as_ref().map(|c| c.peers.as_slice()).unwrap_or_default();
        peers.get(usize::from(peer.0)).map_or_else(|| format!("peer {}", peer.0), |p| p.name.as_str().to_owned())
    }

    fn plan(&self, managed: &BTreeSet<IpAddr>) -> VipPlan {
        if let Some(bgp) = self.vip.bgp.as_ref().filter(|_| self.vip.anycast()) {
            return self.anycast(bgp);
        }
        let view = self.view();
        let active = view.state == State::Active;
        let mut reasons = Vec::new();
        let path = match self.path(managed) {
            Ok(path) => Some(path),
            Err(reason) => {
                reasons.push(reason);
                None
            }
        };
        let health = self.health(&mut reasons);
        let own = health.fitness;
        let fit = own == Fitness::Fit;
        let mut fail_open = false;
        let (participation, leave) = if path.is_none() {
            (Participation::Off, active.then(|| self.leave_to_best(false, false)))
        } else if let Some(withheld) = self.world.withheld {
            self.withheld(withheld, health.standing, &mut reasons)
        } else if let Some(reason) = self.holds_off() {
            // A deadline, not a mode: whatever happens meanwhile, it ends then.
            reasons.insert(0, reason);
            (Participation::Observe, None)
        } else if let Some(reason) = self.cut_off() {
            reasons.insert(0, reason);
            (Participation::Observe, active.then(|| self.leave_to_best(false, false)))
        } else if fit {
            (Participation::Run { priority: self.settled_priority(health.standing, &mut reasons) }, None)
        } else if self.vip.last_node == LastNode::Withdraw {
            reasons.push(Reason::Withdraw);
            (Participation::Observe, active.then(|| self.leave_to_best(false, false)))
        } else if active && health.standing == Standing::Poor {
            self.poor_holder(&health, &mut fail_open, &mut reasons)
        } else {
            let leave = if active { self.unfit_holder(&mut fail_open, &mut reasons) } else { None };
            (Participation::Run { priority: Priority::LAST_RESORT }, leave)
        };
        let fitness = match (participation, self.world.withheld) {
            (_, Some(_)) => Fitness::Withheld,
            (Participation::Off, None) if own != Fitness::Unknown => Fitness::Unfit,
            (_, None) => own,
        };
        let standing = health.said(fitness);
        self.role_reasons(&mut reasons);
        let holds = path.is_some() && self.holds();
        let addresses = if holds { self.addresses() } else { BTreeSet::new() };
        let extras = if holds { extras::of(self.vip, self.world, addresses.len()) } else { Extras::default() };
        let announce = self.route_form(fit);
        VipPlan { participation, path, fitness, standing, leave, addresses, extras, fail_open, announce, reasons }
    }

    /// What a router can't run without, for every leg: half a unit must not be on one node and half on another.
    fn path(&self, managed: &BTreeSet<IpAddr>) -> Result<Vec<LegPath>, Reason> {
        self.vip.legs.iter().map(|leg| self.leg_path(leg, managed)).collect()
    }

    /// Interface, carrier, socket and source.
    fn leg_path(&self, leg: &Leg, managed: &BTreeSet<IpAddr>) -> Result<LegPath, Reason> {
        let name = || leg.interface.as_str().to_owned();
        let link = self.world.link(&leg.interface).ok_or_else(|| Reason::LinkMissing(name()))?;
        if !link.up {
            return Err(Reason::LinkDown(name()));
        }
        let source = self.world.source(link.ifindex, leg, managed);
        let source = source.ok_or_else(|| Reason::NoSource { interface: name(), family: leg.family })?;
        // A deaf node would believe that nobody else is there. A resumed one may count on the socket being opened in
        // this turn: its adverts come after.
        let resumed = self.view().resume.is_some() || self.view().state == State::Active;
        let socket = socket_of(leg, link.ifindex);
        let open = self.world.sockets.contains(&socket);
        if !(open || resumed && self.world.opening.contains(&socket)) {
            return Err(Reason::NoSocket(name()));
        }
        let device = || self.world.link(&Vmac::of(leg, link.ifindex).name()).filter(|device| device.up);
        let out = if leg.vmac { device().map_or(link.ifindex, |device| device.ifindex) } else { link.ifindex };
        Ok(LegPath { ifindex: link.ifindex, out, source })
    }

    /// `startup_delay`: right after its start an agent takes nothing that it doesn't hold already.
    fn holds_off(&self) -> Option<Reason> {
        let (view, until) = (self.view(), self.world.started + self.vip.vrrp.startup_delay);
        let holds = view.state == State::Active || view.resume.is_some();
        let waits = !holds && self.now < until && !mutants::off("startup-delay");
        waits.then(|| Reason::HoldsOff(until - self.now))
    }

    /// `partition`: what a node may own that has nobody else.
    fn cut_off(&self) -> Option<Reason> {
        let policy = self.vip.vrrp.partition;
        // A new worker that takes up an owner's work knows of nobody yet, and unknown is not bad.
        let (view, holds) = (self.view(), self.view().state == State::Active || self.view().resume.is_some());
        if holds && view.assumed_fit_until.is_some_and(|until| self.now < until) {
            return None;
        }
        if policy == Partition::Both || mutants::off("partition") || !self.world.alone(self.now) {
            return None;
        }
        let gateway = self.vip.vrrp.gateway.filter(|_| policy == Partition::Gateway);
        let Some(id) = gateway else { return Some(Reason::CutOff) };
        let passed = |view: &crate::world::CheckView| view.state == CheckState::Passed;
        let answers = self.world.checks.get(usize::from(id.0)).is_some_and(passed);
        let name = || self.config.checks.get(usize::from(id.0)).map(|c| c.name.as_str().to_owned()).unwrap_or_default();
        (!answers).then(|| Reason::GatewaySilent(name()))
    }

    /// What this node runs at when it is well: as configured, less what [`Track`]s weigh, behind all that stand better
    /// unless it owns the unit, and different from every peer that might race it.
    pub(crate) fn priority(&self, standing: Standing, reasons: &mut Vec<Reason>) -> Priority {
        let configured = self.vip.vrrp.priority;
        if configured == Priority::OWNER {
            return configured;
        }
        let mut lost = 0_u16;
        for (at, track) in self.vip.tracks.iter().enumerate() {
            let Some(weight) = track.weight.filter(|_| self.track_fails(at, track)) else { continue };
            lost = lost.saturating_add(u16::from(weight));
            reasons.push(Reason::Weighs { what: self.track_name(track), weight });
        }
        let left = u16::from(configured.get()).saturating_sub(lost).max(LEAST.min(u16::from(configured.get())));
        let left = if self.holder() { left } else { plane::standing::behind(standing, left) };
        let mut priority = u8::try_from(left).unwrap_or(u8::MAX);
        // Equal ones would fire together when the owner falls silent. An owner stays what it is: its equals don't
        // preempt it.
        while self.view().state != State::Active && u16::from(priority) > LEAST && self.taken(priority) {
            priority -= 1;
        }
        Priority::from_wire(priority)
    }

    /// A node with a smaller name waits at this priority already, or owns the unit at it: one that has just taken over
    /// frees nothing, or its equals would rise and take over in the same moment.
    fn taken(&self, priority: u8) -> bool {
        let peers = self.config.cluster.iter().flat_map(|cluster| &cluster.peers).zip(&self.world.peers);
        let before = peers.filter(|(peer, _)| peer.name < self.config.node);
        let waits = |report: &VipReport| report.role != Role::Out && report.priority == priority;
        !mutants::off("unique-priorities")
            && before.into_iter().any(|(_, view)| view.vip(self.id, self.now).is_some_and(waits))
    }

    /// What is tracked is known to fail.
    pub(crate) fn track_fails(&self, at: usize, track: &Track) -> bool {
        match &track.what {
            Tracked::Interface { .. } => self.view().tracks.get(at).is_some_and(|seen| seen.up == Some(false)),
            Tracked::Check(id) => {
                self.world.checks.get(usize::from(id.0)).is_some_and(|view| view.state == CheckState::Failed)
            }
            Tracked::Balancer(id) => {
                let view = self.world.balancers.get(usize::from(id.0));
                view.is_some_and(|view| plane::standing::of(view.judged.verdict) == Standing::Bad)
            }
        }
    }

    pub(crate) fn track_name(&self, track: &Track) -> String {
        match &track.what {
            Tracked::Interface { name, .. } => format!("interface {name}"),
            Tracked::Check(id) => {
                format!("check {}", self.config.checks.get(usize::from(id.0)).map_or("", |c| c.name.as_str()))
            }
            Tracked::Balancer(id) => {
                format!("balancer {}", self.config.balancers.get(usize::from(id.0)).map_or("", |b| b.name.as_str()))
            }
        }
    }

    /// Drained or stopping: to a peer that can, if there is one; else as the operator said.
    fn withheld(
        &self,
        withheld: Withheld,
        standing: Standing,
        reasons: &mut Vec<Reason>,
    ) -> (Participation, Option<Leave>) {
        let view = self.view();
        let (reason, never_back) = match withheld {
            Withheld::Drained { forced } => (Reason::Drained, forced),
            Withheld::Stopping => (Reason::Stopping, true),
        };
        reasons.insert(0, reason);
        if let Some(reason) = self.is_way_back().filter(|_| view.state == State::Active) {
            reasons.push(reason);
            return (Participation::Run { priority: self.settled_priority(standing, reasons) }, None);
        }
        let leave = (view.state == State::Active).then(|| self.leave_to_best(true, true));
        let to: Option<PeerId> = leave.and_then(|leave| leave.to);
        if self.flushes(to.as_slice(), reasons) {
            return (Participation::Run { priority: self.settled_priority(standing, reasons) }, None);
        }
        let moving = leave.is_some() || view.leaving.is_some() || view.resume.is_some();
        if moving && !never_back {
            // The router stays armed, at the lowest priority, so that an address which nobody takes comes back.
            (Participation::Run { priority: Priority::LAST_RESORT }, leave)
        } else {
            (Participation::Observe, leave)
        }
    }

    /// Active and unfit (or unknown), and the address is to be kept if nobody else can: DESIGN section 4, 2 and 3.
    fn unfit_holder(&self, fail_open: &mut bool, reasons: &mut Vec<Reason>) -> Option<Leave> {
        let view = self.view();
        // One that answers badly is still better than one that doesn't answer.
        let least = if mutants::off("poor-beats-bad") { Standing::Full } else { Standing::Poor };
        let best = self.world.peers_at_least(self.id, least, self.now).first().copied();
        if let Some(peer) = best {
            return self.hand_over(peer, reasons);
        }
        if view.last_resort {
            *fail_open = true;
            reasons.push(Reason::NobodyTook);
            return None;
        }
        if self.world.all_peers_known(self.id, self.now) {
            *fail_open = true;
            self.nobody_better(reasons);
            return None;
        }
        reasons.push(Reason::PeersUnknown);
        Some(Leave { to: None, linger: false, planned: false })
    }

    /// To this peer, unless it was told just now.
    pub(crate) fn hand_over(&self, peer: PeerId, reasons: &mut Vec<Reason>) -> Option<Leave> {
        let view = self.view();
        reasons.push(Reason::PeerCanServe(self.peer_name(peer)));
        let paused = view.last_resort
            && view.handed_at.is_some_and(|at| self.now.saturating_duration_since(at) < HAND_OVER_PAUSE);
        (!paused).then_some(Leave { to: Some(peer), linger: false, planned: false })
    }

    fn leave_to_best(&self, linger: bool, planned: bool) -> Leave {
        Leave { to: self.world.able_peers(self.id, self.now).first().copied(), linger, planned }
    }

    fn role_reasons(&self, reasons: &mut Vec<Reason>) {
        let view = self.view();
        if view.state == State::Active {
            reasons.push(Reason::Owner);
            reasons.extend(self.flows_first());
            return;
        }
        if view.leaving.is_some() {
            reasons.push(Reason::Leaving);
        }
        if let Some(peer) = view.yielded_to {
            reasons.push(Reason::YieldedTo(self.peer_name(peer)));
        }
        match view.heard.filter(|h| h.counts(self.now)) {
            Some(heard) => {
                reasons.push(Reason::OwnerHeard { from: heard.from.to_string(), priority: heard.priority.get() });
            }
            None if view.state == State::Backup && view.yielded_to.is_none() => reasons.push(Reason::Listening),
            None => {}
        }
    }

    /// Active owns them; one that leaves with `linger` answers until its successor is seen.
    pub(crate) fn holds(&self) -> bool {
        let view = self.view();
        let lingers = view.leaving.is_some_and(|l| l.linger && l.until.is_none_or(|until| self.now < until));
        view.state == State::Active || lingers
    }

    /// With the interfaces that they belong on, as far as these are there.
    pub(crate) fn addresses(&self) -> BTreeSet<(u32, IpAddr, u8)> {
        let on = |a: &VipAddress| Some((extras::place(self.vip, a, self.world)?, a.ip, a.prefix));
        self.vip.addresses.iter().filter_map(on).collect()
    }
}
