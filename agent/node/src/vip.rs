//! One VIP's machines and what is remembered of it beside the world's view.

use crate::announce::Announcer;
use crate::config::{Form, Leg, Vip};
use crate::decide::LegPath;
use crate::io::{OwnerRecord, UnitState};
use crate::sending::Sending;
use crate::sync::Elected;
use holdfast_statesync::channel::PeerId;
use holdfast_statesync::message::{ClaimCause, Fitness, Standing};
use holdfast_vrrp::{Addresses, LegConfig, Router, RouterConfig, Transport};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// More vanishings than this in [`VANISH_WINDOW`] are a fault.
pub(crate) const VANISH_MAX: usize = 20;
pub(crate) const VANISH_WINDOW: Duration = Duration::from_secs(1);
const FAULT_FIRST: Duration = Duration::from_secs(1);
const FAULT_LAST: Duration = Duration::from_secs(60);
/// A fault this long after the former one starts from [`FAULT_FIRST`] again.
const FAULT_FORGET: Duration = Duration::from_secs(120);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct VipRun {
    pub router: Router,
    pub announcer: Announcer,
    /// What was told last of this unit to programs that know keepalived's states.
    pub told: Option<UnitState>,
    /// Whose it is, as the sync thread was told last.
    pub elected: Option<Elected>,
    /// A claimer that is being probed on the segment.
    pub probe: Option<ClaimProbe>,
    /// What the keeper was told last.
    pub record: Option<OwnerRecord>,
    /// Its addresses must not be added now, as far as they aren't there.
    pub holds_back: bool,
    /// The ways that the router's legs use.
    pub path: Option<Vec<LegPath>>,
    pub fitness: Fitness,
    /// The same more exactly.
    pub standing: Standing,
    pub fitness_since: Instant,
    /// This node has been fit since the unit came to it: it has something to lose.
    pub served: bool,
    /// The journal entry of the last change of fitness.
    pub fitness_event: Option<u64>,
    /// The effective priority that was told last; 0: takes no part.
    pub priority: u8,
    /// What made us do what we do next.
    pub cause: Option<u64>,
    /// Its routes were withdrawn before anything else was done about it; how they had been announced.
    pub withdrew: Option<Form>,
    pub sending: Sending,
    pub vanished: VecDeque<Instant>,
    /// A peer says that it preempted us. If its adverts don't reach us by then, it hears so.
    pub contest: Option<(PeerId, Instant)>,
    /// We took it and said so.
    pub claimed: Option<(Instant, ClaimCause)>,
    /// Adverts of the one whom we yielded to don't end that before.
    pub yield_until: Option<Instant>,
    /// Preemptions in a row that the owner didn't hear.
    pub unheard: u32,
    /// When an advert for other addresses was last heard, and from whom.
    pub mismatch: Option<(Instant, IpAddr)>,
    faults: u32,
    last_fault: Option<Instant>,
}

/// A claimer on the segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClaimProbe {
    pub peer: PeerId,
    pub target: IpAddr,
    pub since: Instant,
    pub cause: Option<u64>,
}

impl VipRun {
    /// `jitter`: nobody keeps the nodes' priorities apart.
    pub(crate) fn new(vip: &Vip, jitter: bool, now: Instant) -> Self {
        let config = RouterConfig {
            legs: vip.legs.iter().map(leg_config).collect(),
            interval: vip.vrrp.interval,
            preempt: vip.vrrp.preempt,
            preempt_delay: vip.vrrp.preempt_delay,
            jitter,
        };
        Self {
            router: Router::new(config, now),
            announcer: Announcer::new(vip.announce),
            told: None,
            elected: None,
            probe: None,
            record: None,
            holds_back: false,
            path: None,
            fitness: Fitness::Unknown,
            standing: Standing::Bad,
            fitness_since: now,
            served: false,
            fitness_event: None,
            priority: 0,
            cause: None,
            withdrew: None,
            sending: Sending::new(vip.legs.len()),
            vanished: VecDeque::new(),
            contest: None,
            claimed: None,
            yield_until: None,
            unheard: 0,
            mismatch: None,
            faults: 0,
            last_fault: None,
        }
    }

    /// How long the fault that is found now lasts: doubles from one to the next.
    pub(crate) fn fault_time(&mut self, now: Instant) -> Duration {
        if self.last_fault.is_none_or(|at| now.saturating_duration_since(at) > FAULT_FORGET) {
            self.faults = 0;
        }
        self.last_fault = Some(now);
        let time = FAULT_FIRST.saturating_mul(1 << self.faults.min(6)).min(FAULT_LAST);
        self.faults = self.faults.saturating_add(1);
        time
    }

    /// The owner didn't hear our preemption: how long to leave it alone.
    pub(crate) fn unheard_time(&mut self) -> Duration {
        let time = FAULT_FIRST.saturating_mul(1 << self.unheard.min(6)).min(FAULT_LAST);
        self.unheard = self.unheard.saturating_add(1);
        time
    }

    /// Notes that an address vanished; true: too often lately.
    pub(crate) fn vanished_too_often(&mut self, now: Instant) -> bool {
        while self.vanished.front().is_some_and(|at| now.saturating_duration_since(*at) > VANISH_WINDOW) {
            self.vanished.pop_front();
        }
        self.vanished.push_back(now);
        if self.vanished.len() > VANISH_MAX {
            self.vanished.clear();
            return true;
        }
        false
    }
}

/// A leg as the router knows it.
pub(crate) fn leg_config(leg: &Leg) -> LegConfig {
    let transport = if leg.peers.is_empty() {
        Transport::Multicast
    } else {
        Transport::Unicast { peers: leg.peers.clone(), min_ttl: leg.min_ttl }
    };
    let addresses = Addresses::new(leg.advertised.clone()).expect("a leg advertises 1 to 255 addresses of its family");
    LegConfig { vrid: leg.vrid, version: leg.version, addresses, transport, checksum: leg.checksum }
}
