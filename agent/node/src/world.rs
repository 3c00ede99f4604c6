//! Every observation with its time: what [`crate::decide`] judges from.
//!
//! The world refuses to judge: it says what was seen and when, and for some values how fresh they still are.

use crate::bgp::{NeighborView, UnitView};
use crate::config::{Config, InterfaceName, Leg, Vip, VipId};
use crate::conntrack::{self, Timeouts};
use crate::io::{Address, BalancerState, Failure, Link, SocketKey};
use crate::mutants;
use crate::plane::{HoldDown, Judged, PlaneView};
use crate::sync::FlowsView;
use holdfast_statesync::channel::PeerId;
use holdfast_statesync::message::{BalancerReport, Fitness, Role, Standing, Verdict, VipReport};
use holdfast_vrrp::{AdvertInterval, Family, Priority, State};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// A peer's word counts for this long (DESIGN section 4, 3).
pub const FRESH: Duration = Duration::from_millis(300);
/// A stall that is longer makes words older than they look: what lay unread meanwhile is all heard at its end. A shorter
/// one adds no more than they wait for each other anyway.
pub(crate) const UNREAD: Duration = Duration::from_millis(100);
/// Until what was heard at the end of a stall isn't fresh any more: reading all of it takes a few turns.
pub(crate) const REREAD: Duration = FRESH.saturating_add(Duration::from_millis(50));

/// What [`crate::decide::decide`] sees.
#[derive(Debug, Clone)]
pub struct World {
    /// Links.
    pub links: Links,
    /// Addresses that aren't ours, in the order they were seen, by interface index: candidates for a source.
    pub foreign: BTreeMap<u32, Vec<Address>>,
    /// VRRP sockets that are open.
    pub sockets: BTreeSet<SocketKey>,
    /// VRRP sockets that are being opened.
    pub opening: BTreeSet<SocketKey>,
    /// By [`crate::config::BalancerId`].
    pub balancers: Vec<BalancerView>,
    /// By [`crate::config::CheckId`].
    pub checks: Vec<CheckView>,
    /// By [`VipId`].
    pub vips: Vec<VipView>,
    /// By [`PeerId`].
    pub peers: Vec<PeerView>,
    /// By [`crate::config::NeighborId`].
    pub neighbors: Vec<NeighborView>,
    /// The connection table.
    pub conntrack: conntrack::View,
    /// The replication of flows; `None`: there is none.
    pub sync: Option<crate::sync::View>,
    /// Which units are answered at which others.
    pub(crate) ways: crate::sync::Ways,
    /// By [`crate::config::CheckId`]: how a check fails at the moment.
    pub failing: Vec<Option<Failing>>,
    /// Why an operator's will keeps every VIP away from here.
    pub withheld: Option<Withheld>,
    /// When this agent started.
    pub started: Instant,
    /// After a stall: until then the peers' words may be older than they look.
    pub unread_until: Option<Instant>,
}

/// Links, each index and each name once.
#[derive(Debug, Clone, Default)]
pub struct Links {
    by_index: BTreeMap<u32, Link>,
    by_name: BTreeMap<InterfaceName, u32>,
}

impl Links {
    /// Takes a link as it is now; what was known under its index before.
    pub fn insert(&mut self, link: Link) -> Option<Link> {
        let old = self.remove(link.ifindex);
        self.by_name.insert(link.name.clone(), link.ifindex);
        self.by_index.insert(link.ifindex, link);
        old
    }

    /// Forgets a link.
    pub fn remove(&mut self, ifindex: u32) -> Option<Link> {
        let link = self.by_index.remove(&ifindex)?;
        if self.by_name.get(&link.name) == Some(&ifindex) {
            self.by_name.remove(&link.name);
        }
        Some(link)
    }

    /// The link of this name.
    pub fn named(&self, name: &InterfaceName) -> Option<&Link> {
        self.by_index.get(self.by_name.get(name)?)
    }

    /// The link of this index.
    pub fn get(&self, ifindex: u32) -> Option<&Link> {
        self.by_index.get(&ifindex)
    }

    /// All of them, by index.
    pub fn iter(&self) -> impl Iterator<Item = &Link> {
        self.by_index.values()
    }
}

/// Why this node takes no VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withheld {
    /// Drained. `forced`: it leaves even if nobody takes over.
    Drained {
        /// An interlock was forced.
        forced: bool,
    },
    /// The agent stops.
    Stopping,
}

/// A balancer as last seen.
#[derive(Debug, Clone)]
pub struct BalancerView {
    /// What was seen.
    pub state: BalancerState,
    /// When that began.
    pub since: Instant,
    /// The journal entry that says so.
    pub event: Option<u64>,
    /// What looks at it gave, while it runs.
    pub plane: Option<PlaneView>,
    /// What is thought of it.
    pub judged: Judged,
}

/// How a check fails: from the first failure to the success that makes an end of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failing {
    /// The last failure, but for some between two answers that were none.
    pub how: Failure,
    /// So many in a row since the last answer.
    pub mute: u32,
    /// The first one.
    pub since: Instant,
}

impl Failing {
    /// Another failure. One that answers, and now and then takes too long for it, answers: it takes `fall` failures
    /// of another kind in a row to say that it doesn't any more, as it takes them to say that a check fails.
    pub(crate) fn again(&mut self, how: Failure, fall: u32) {
        self.mute = if how == Failure::Answered { 0 } else { self.mute.saturating_add(1) };
        if how == Failure::Answered || self.how != Failure::Answered || self.mute >= fall {
            self.how = how;
        }
    }
}

/// A check's verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckState {
    /// Neither `rise` nor `fall` reached yet.
    Unknown,
    /// Passed.
    Passed,
    /// Failed.
    Failed,
}

/// A check as last seen.
#[derive(Debug, Clone)]
pub struct CheckView {
    /// With `rise` and `fall`: what the holder of a VIP goes by.
    pub state: CheckState,
    /// No failure since the last `rise` successes: what a backup goes by.
    pub clean: bool,
    /// When `state` began.
    pub since: Instant,
    /// The journal entry that says so.
    pub event: Option<u64>,
}

/// A VIP's own protocol state here, and what was heard of it on the segment.
#[derive(Debug, Clone)]
pub struct VipView {
    /// The router's state.
    pub state: State,
    /// When `state` began.
    pub since: Instant,
    /// Grows at each change of role.
    pub role_epoch: u64,
    /// The last advert of another node, whatever our state.
    pub heard: Option<HeardAdvert>,
    /// We gave it away and wait for the successor.
    pub leaving: Option<Leaving>,
    /// We are Active at the lowest priority because nobody better took it.
    pub last_resort: bool,
    /// When "take it now" was last said.
    pub handed_at: Option<Instant>,
    /// It can't be held here for a while.
    pub fault: Option<Fault>,
    /// Adverts of at least one leg have failed to go out since.
    pub send_failing_since: Option<Instant>,
    /// A resumed VIP counts as fit until then, as long as nothing is known.
    pub assumed_fit_until: Option<Instant>,
    /// A former worker held it: to be resumed with this role epoch.
    pub resume: Option<u64>,
    /// Legs on which the former worker had learnt that its peers want the pseudo-header's checksum.
    pub resume_pseudo_header: Vec<(u16, bool)>,
    /// A peer proved to own it better, though we can't hear its adverts.
    pub yielded_to: Option<PeerId>,
    /// After a stall: no address is added before then.
    pub relisten_until: Option<Instant>,
    /// By the index of [`crate::config::Vip::tracks`]: interfaces, debounced.
    pub tracks: Vec<Debounce>,
    /// Of its routes.
    pub bgp: UnitView,
    /// Of its flows.
    pub flows: FlowsView,
    /// How often it was lost here lately.
    pub(crate) hold_down: HoldDown,
}

/// An interface that counts as up or down only after it was so for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Debounce {
    /// What it counts as; `None`: never looked at.
    pub up: Option<bool>,
    /// It is the other way now, and will count as that then.
    pub turns_at: Option<Instant>,
}

impl Debounce {
    /// Takes what is seen at `now`. True: what it counts as changed. The first look counts at once.
    pub fn observe(&mut self, now: Instant, up: bool, up_delay: Duration, down_delay: Duration) -> bool {
        let Some(counts) = self.up else {
            self.up = Some(up);
            return true;
        };
        if counts == up {
            self.turns_at = None;
            return false;
        }
        let turns_at = *self.turns_at.get_or_insert(now + if up { up_delay } else { down_delay });
        if now < turns_at {
            return false;
        }
        *self = Self { up: Some(up), turns_at: None };
        true
    }
}

/// An advert as heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeardAdvert {
    /// When.
    pub at: Instant,
    /// From whom.
    pub from: IpAddr,
    /// Its priority.
    pub priority: Priority,
    /// Its interval.
    pub interval: AdvertInterval,
}

impl HeardAdvert {
    /// Until when it says who the owner is.
    pub fn counts_until(&self) -> Instant {
        self.at + self.interval.duration() * 4
    }

    /// Whether it still says who the owner is.
    pub fn counts(&self, now: Instant) -> bool {
        self.priority != Priority::RESIGN && now < self.counts_until()
    }
}

/// A VIP that we gave away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaving {
    /// When.
    pub since: Instant,
    /// The addresses stay until the successor is seen …
    pub linger: bool,
    /// … or until then, when the router doesn't wait to take it back.
    pub until: Option<Instant>,
    /// An operator's will made us leave.
    pub planned: bool,
    /// The journal entry that says so.
    pub event: Option<u64>,
}

/// Why a VIP can't be held here for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub kind: FaultKind,
    /// Tried again then.
    pub until: Instant,
}

/// Kinds of [`Fault`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Something removes the address again and again.
    AddressVanishes,
    /// The address can't be added.
    AddressRefused,
    /// Adverts can't be sent.
    SendFails,
}

/// A peer's words.
#[derive(Debug, Clone, Default)]
pub struct PeerView {
    /// Its run; grows. Larger than any message that is still believed.
    pub epoch: u64,
    /// A session is up.
    pub up: bool,
    /// It said goodbye.
    pub left: bool,
    /// When anything authentic was heard.
    pub heard_at: Option<Instant>,
    /// The last report's number.
    pub sequence: Option<u64>,
    /// Its last word on each VIP that we know too.
    pub vips: BTreeMap<VipId, (Instant, VipReport)>,
    /// When it last said that it serves a VIP well again, after it had said that it doesn't.
    pub recovered: BTreeMap<VipId, Instant>,
    /// The limit of its connection table (0: none), once it said so.
    pub table_limit: Option<u64>,
    /// How long that keeps what is idle.
    pub table_timeouts: Option<Timeouts>,
    /// The fingerprint of its embedded balancer, once it said one in this run.
    pub pool: Option<u64>,
    /// Its balancers, at most [`BALANCERS_MAX`].
    pub balancers: BTreeMap<String, (Instant, Fitness, Option<Verdict>)>,
}

/// How a peer stands by its word; one that doesn't say so, by whether it can serve.
fn standing_of(report: &VipReport) -> Standing {
    match (report.fitness, report.standing) {
        (Fitness::Fit, said) => said.unwrap_or(Standing::Good).max(Standing::Full),
        (Fitness::Unfit, Some(Standing::Poor)) => Standing::Poor,
        (Fitness::Unfit | Fitness::Unknown | Fitness::Withheld, _) => Standing::Bad,
    }
}

/// Balancers remembered of one peer; more are ignored.
pub const BALANCERS_MAX: usize = 64;

impl PeerView {
    /// Whether `at` is recent enough to be believed at `now`.
    pub fn fresh(at: Instant, now: Instant) -> bool {
        mutants::off("fresh-claim-only") || now.saturating_duration_since(at) <= FRESH
    }

    /// Its word on a VIP if that is fresh.
    pub fn vip(&self, vip: VipId, now: Instant) -> Option<&VipReport> {
        self.vips.get(&vip).filter(|(at, _)| Self::fresh(*at, now)).map(|(_, report)| report)
    }

    /// Whether anything it said is fresh.
    pub fn reachable(&self, now: Instant) -> bool {
        !self.left && self.heard_at.is_some_and(|at| now.saturating_duration_since(at) <= FRESH)
    }

    /// Whether it runs this VIP too: it said so itself in this run.
    pub fn shares(&self, vip: VipId) -> bool {
        mutants::off("shared-vips-only") || self.vips.contains_key(&vip)
    }

    /// Takes a report. `known` finds the VIPs that we have too; others are ignored. Returns those of which it says
    /// something else than what was known just before: a report that says the same only re-arms its freshness.
    pub fn report(
        &mut self,
        now: Instant,
        vips: Vec<VipReport>,
        balancers: Vec<BalancerReport>,
        known: &BTreeMap<String, VipId>,
    ) -> Vec<VipId> {
        self.left = false;
        let mut news = Vec::new();
        for report in vips {
            let Some(id) = known.get(&report.vip) else { continue };
            match self.vips.get_mut(id) {
                Some((_, old)) if report.role_epoch < old.role_epoch => continue,
                Some((at, old)) => {
                    if standing_of(old) < Standing::Degraded && standing_of(&report) >= Standing::Degraded {
                        self.recovered.insert(*id, now);
                    }
                    let judged = |r: &VipReport| (r.fitness, r.role, r.priority, r.standing);
                    if judged(old) != judged(&report) || !Self::fresh(*at, now) {
                        news.push(*id);
                    }
                    (*at, *old) = (now, report);
                }
                None => {
                    news.push(*id);
                    self.vips.insert(*id, (now, report));
                }
            }
        }
        for b in balancers {
            if self.balancers.len() < BALANCERS_MAX || self.balancers.contains_key(&b.balancer) {
                self.balancers.insert(b.balancer, (now, b.fitness, b.verdict));
            }
        }
        news
    }
}

impl World {
    /// Nothing seen yet.
    pub fn new(config: &Config, now: Instant) -> Self {
        let vip = VipView {
            state: State::Initialize,
            since: now,
            role_epoch: 0,
            heard: None,
            leaving: None,
            last_resort: false,
            handed_at: None,
            fault: None,
            send_failing_since: None,
            assumed_fit_until: None,
            resume: None,
            resume_pseudo_header: Vec::new(),
            yielded_to: None,
            relisten_until: None,
            tracks: Vec::new(),
            bgp: UnitView::default(),
            flows: FlowsView::default(),
            hold_down: HoldDown::default(),
        };
        let vip = |config: &Vip| VipView { tracks: vec![Debounce::default(); config.tracks.len()], ..vip.clone() };
        let balancer = BalancerView {
            state: BalancerState::Unknown { why: "not looked at yet".to_owned() },
            since: now,
            event: None,
            plane: None,
            judged: Judged::nothing(now),
        };
        let check = CheckView { state: CheckState::Unknown, clean: false, since: now, event: None };
        Self {
            links: Links::default(),
            foreign: BTreeMap::new(),
            sockets: BTreeSet::new(),
            opening: BTreeSet::new(),
            balancers: vec![balancer; config.balancers.len()],
            checks: vec![check; config.checks.len()],
            vips: config.vips.iter().map(vip).collect(),
            peers: vec![PeerView::default(); config.cluster.as_ref().map_or(0, |c| c.peers.len())],
            neighbors: vec![NeighborView::default(); config.bgp.as_ref().map_or(0, |bgp| bgp.neighbors.len())],
            conntrack: conntrack::View::new(now),
            sync: crate::sync::View::new(config),
            ways: crate::sync::Ways::new(config),
            failing: vec![None; config.checks.len()],
            withheld: None,
            started: now,
            unread_until: None,
        }
    }

    /// The link of this name.
    pub fn link(&self, name: &InterfaceName) -> Option<&Link> {
        self.links.named(name)
    }

    /// The address that a leg's adverts come from: the one that is configured, if it is there; else the primary one of
    /// its family on its interface, for IPv6 a link-local one (RFC 9568 section 5.1.2.1) unless its peers are further
    /// away. Never one that we manage (`managed`).
    pub fn source(&self, ifindex: u32, leg: &Leg, managed: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        let link_local = |ip: &Ipv6Addr| ip.is_unicast_link_local();
        let afar = leg.peers.iter().any(|peer| matches!(peer, IpAddr::V6(ip) if !link_local(ip)));
        let fits = |address: &&Address| match (leg.source, address.ip) {
            (Some(source), ip) => ip == source,
            (None, IpAddr::V4(_)) => leg.family == Family::V4 && !address.secondary,
            (None, IpAddr::V6(ip)) => leg.family == Family::V6 && link_local(&ip) != afar,
        };
        let mut addresses = self.foreign.get(&ifindex)?.iter().filter(|a| !a.tentative && !managed.contains(&a.ip));
        addresses.find(fits).map(|address| address.ip)
    }

    /// Peers whose fresh word is that they can serve a VIP, best first.
    pub fn able_peers(&self, vip: VipId, now: Instant) -> Vec<PeerId> {
        self.peers_at_least(vip, Standing::Full, now)
    }

    /// Peers whose fresh word is that they stand at least like this, best first.
    pub fn peers_at_least(&self, vip: VipId, least: Standing, now: Instant) -> Vec<PeerId> {
        let mut able: Vec<(Standing, u8, PeerId)> = self
            .peer_ids()
            .filter_map(|(id, peer)| {
                let report = peer.vip(vip, now)?;
                let standing = standing_of(report);
                let able = standing >= least && report.role != Role::Out && !peer.left;
                let standing = if mutants::off("best-standing") { Standing::Good } else { standing };
                able.then_some((standing, report.priority, id))
            })
            .collect();
        able.sort_by_key(|(standing, priority, id)| (std::cmp::Reverse((*standing, *priority)), *id));
        able.into_iter().map(|(_, _, id)| id).collect()
    }

    /// There are peers, and the fresh word of each is that it can't serve a VIP.
    pub fn all_peers_fail(&self, vip: VipId, now: Instant) -> bool {
        let fails = |peer: &PeerView| peer.vip(vip, now).is_some_and(|report| report.fitness == Fitness::Unfit);
        !self.peers.is_empty() && self.peers.iter().all(fails)
    }

    /// Whether nobody else would be there for an owner, as far as this node can tell: no word of a peer on the channel is
    /// fresh. The adverts of an owner don't count, since they end when we take over from it: a node that went by them
    /// would preempt it, find itself alone, give the VIP back, hear it again, and so on for ever.
    pub fn alone(&self, now: Instant) -> bool {
        !self.peers.iter().any(|peer| peer.reachable(now))
    }

    /// Whether the interface of this name is there and has carrier.
    pub fn is_up(&self, name: &InterfaceName) -> bool {
        self.link(name).is_some_and(|link| link.up)
    }

    /// The peer whose fresh word is that it is Active.
    pub fn active_peer(&self, vip: VipId, now: Instant) -> Option<PeerId> {
        self.peer_ids()
            .find(|(_, peer)| peer.vip(vip, now).is_some_and(|report| report.role == Role::Active))
            .map(|(id, _)| id)
    }

    /// Whether this peer's fresh word is that it is Active.
    pub fn active(&self, peer: PeerId, vip: VipId, now: Instant) -> bool {
        let view = self.peers.get(usize::from(peer.0));
        view.and_then(|view| view.vip(vip, now)).is_some_and(|report| report.role == Role::Active)
    }

    /// Whether the word of every peer on this VIP is known now (a peer that left in order is known; one that is
    /// reachable without running the VIP has no word).
    pub fn all_peers_known(&self, vip: VipId, now: Instant) -> bool {
        !self.peers.is_empty() && self.peers.iter().all(|p| p.left || p.reachable(now) || p.vip(vip, now).is_some())
    }

    /// How many peers' fresh word is that they announce it (or are Active).
    pub fn announcing_peers(&self, vip: VipId, now: Instant) -> usize {
        self.peers.iter().filter(|p| p.vip(vip, now).is_some_and(|report| report.role == Role::Active)).count()
    }

    /// Whether there are peers that can be heard (or left in order), and each of them has said what it can. Others may
    /// be there that can't be heard.
    pub fn heard_peers_known(&self, now: Instant) -> bool {
        let mut heard = self.peers.iter().filter(|p| p.left || p.reachable(now)).peekable();
        heard.peek().is_some() && heard.all(|p| p.left || p.sequence.is_some())
    }

    fn peer_ids(&self) -> impl Iterator<Item = (PeerId, &PeerView)> {
        (0..).map(PeerId).zip(&self.peers)
    }
}
