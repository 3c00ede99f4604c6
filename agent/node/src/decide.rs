//! The decision: from (Config, World, now) to a Plan, as a pure function. The daemon, `status`, `explain` and the
//! simulator all use this one.
//!
//! It refuses to remember: whatever a rule needs to know of the past stands in the [`World`].

use crate::config::{Config, LastNode, Vip, VipId};
use crate::io::BalancerState;
use crate::reasons::Reason;
use crate::world::{CheckState, Withheld, World};
use holdfast_statesync::channel::PeerId;
use holdfast_statesync::message::Fitness;
use holdfast_vrrp::{Priority, State};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// Between two hand-overs of a VIP that is kept as last resort.
const HAND_OVER_PAUSE: Duration = Duration::from_secs(1);

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
    /// Interface index and source address in use; `None` while there are none.
    pub path: Option<(u32, Ipv4Addr)>,
    /// What this node says of its own ability to serve.
    pub fitness: Fitness,
    /// Give it away now.
    pub leave: Option<Leave>,
    /// Addresses that should be in the kernel: interface index, address, prefix length.
    pub addresses: BTreeSet<(u32, IpAddr, u8)>,
    /// Kept although unfit.
    pub fail_open: bool,
    /// Why, most important first.
    pub reasons: Vec<Reason>,
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

/// Every address that any VIP of the configuration may add: never a source, never foreign.
pub fn managed(config: &Config) -> BTreeSet<IpAddr> {
    config.vips.iter().flat_map(|vip| vip.addresses.iter().map(|a| a.ip)).collect()
}

/// Decides. Same arguments, same plan.
pub fn decide(config: &Config, world: &World, now: Instant) -> Plan {
    let managed = managed(config);
    let vips = (0..).map(VipId).zip(&config.vips);
    Plan { vips: vips.map(|(id, vip)| Judge { config, world, now, id, vip }.plan(&managed)).collect() }
}

struct Judge<'a> {
    config: &'a Config,
    world: &'a World,
    now: Instant,
    id: VipId,
    vip: &'a Vip,
}

impl Judge<'_> {
    fn view(&self) -> &crate::world::VipView {
        self.world.vips.get(usize::from(self.id.0)).expect("the world has a view of every configured VIP")
    }

    fn peer_name(&self, peer: PeerId) -> String {
        let peers = self.config.cluster.as_ref().map(|c| c.peers.as_slice()).unwrap_or_default();
        peers.get(usize::from(peer.0)).map_or_else(|| format!("peer {}", peer.0), |p| p.name.as_str().to_owned())
    }

    fn plan(&self, managed: &BTreeSet<IpAddr>) -> VipPlan {
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
        let own = self.fitness(&mut reasons);
        let fit = own == Fitness::Fit;
        let mut fail_open = false;
        let (participation, leave) = if path.is_none() {
            (Participation::Off, active.then(|| self.leave_to_best(false, false)))
        } else if let Some(withheld) = self.world.withheld {
            self.withheld(withheld, &mut reasons)
        } else if fit {
            (Participation::Run { priority: self.vip.vrrp.priority }, None)
        } else if self.vip.last_node == LastNode::Withdraw {
            reasons.push(Reason::Withdraw);
            (Participation::Observe, active.then(|| self.leave_to_best(false, false)))
        } else {
            let leave = if active { self.unfit_holder(&mut fail_open, &mut reasons) } else { None };
            (Participation::Run { priority: Priority::LAST_RESORT }, leave)
        };
        let fitness = match (participation, self.world.withheld) {
            (_, Some(_)) => Fitness::Withheld,
            (Participation::Off, None) if own != Fitness::Unknown => Fitness::Unfit,
            (_, None) => own,
        };
        self.role_reasons(&mut reasons);
        let addresses = self.addresses(path.is_some());
        VipPlan { participation, path, fitness, leave, addresses, fail_open, reasons }
    }

    /// Interface, carrier, socket and source: what a router can't run without.
    fn path(&self, managed: &BTreeSet<IpAddr>) -> Result<(u32, Ipv4Addr), Reason> {
        let name = || self.vip.vrrp.interface.as_str().to_owned();
        let link = self.world.link(&self.vip.vrrp.interface).ok_or_else(|| Reason::LinkMissing(name()))?;
        if !link.up {
            return Err(Reason::LinkDown(name()));
        }
        let source = self.world.source(link.ifindex, managed).ok_or_else(|| Reason::NoSource(name()))?;
        // A deaf node would believe that nobody else is there. A resumed one may count on the socket being opened in
        // this turn: its adverts come after.
        let resumed = self.view().resume.is_some() || self.view().state == State::Active;
        let open = self.world.sockets.contains(&link.ifindex);
        if !(open || resumed && self.world.opening.contains(&link.ifindex)) {
            return Err(Reason::NoSocket(name()));
        }
        Ok((link.ifindex, source))
    }

    /// What this node can do by itself, whatever operators want.
    fn fitness(&self, reasons: &mut Vec<Reason>) -> Fitness {
        let view = self.view();
        let holder = view.state == State::Active;
        let (mut unfit, mut unknown) = (false, false);
        if let Some(fault) = view.fault.filter(|f| self.now < f.until) {
            unfit = true;
            reasons.push(Reason::Fault(fault.kind));
        }
        if let Some(since) = view.send_failing_since.filter(|_| holder) {
            let age = self.now.saturating_duration_since(since);
            if age >= self.vip.vrrp.interval.duration() * 2 {
                unfit = true;
                reasons.push(Reason::SendFailing(age));
            }
        }
        if let Some(id) = self.vip.balancer {
            let name = self.config.balancers.get(usize::from(id.0)).map(|b| b.name.as_str().to_owned());
            let balancer = name.unwrap_or_default();
            match self.world.balancers.get(usize::from(id.0)).map(|b| &b.state) {
                Some(BalancerState::Alive { .. }) => {}
                Some(BalancerState::Gone { why, .. }) => {
                    unfit = true;
                    reasons.push(Reason::BalancerGone { balancer, why: why.clone() });
                }
                Some(BalancerState::Unknown { why }) => {
                    unknown = true;
                    reasons.push(Reason::BalancerUnknown { balancer, why: why.clone() });
                }
                None => unknown = true,
            }
        }
        for id in &self.vip.checks {
            let index = usize::from(id.0);
            let (Some(check), Some(seen)) = (self.config.checks.get(index), self.world.checks.get(index)) else {
                continue;
            };
            let name = || check.name.as_str().to_owned();
            match seen.state {
                // Holder bias: the one who holds it leaves at `fall`; a backup is out at the first failure.
                CheckState::Passed if holder || seen.clean || check.shared => {}
                CheckState::Passed => {
                    unfit = true;
                    reasons.push(Reason::CheckUnclean(name()));
                }
                CheckState::Failed if check.shared => reasons.push(Reason::SharedCheckFailed(name())),
                CheckState::Failed => {
                    unfit = true;
                    reasons.push(Reason::CheckFailed(name()));
                }
                CheckState::Unknown if check.shared => {}
                CheckState::Unknown => {
                    unknown = true;
                    reasons.push(Reason::CheckUnknown(name()));
                }
            }
        }
        if unfit {
            Fitness::Unfit
        } else if !unknown {
            reasons.push(Reason::Fit);
            Fitness::Fit
        } else if view.assumed_fit_until.is_some_and(|until| self.now < until) {
            reasons.insert(0, Reason::AssumedFit);
            Fitness::Fit
        } else {
            Fitness::Unknown
        }
    }

    /// Drained or stopping: to a peer that can, if there is one; else as the operator said.
    fn withheld(&self, withheld: Withheld, reasons: &mut Vec<Reason>) -> (Participation, Option<Leave>) {
        let view = self.view();
        let (reason, never_back) = match withheld {
            Withheld::Drained { forced } => (Reason::Drained, forced),
            Withheld::Stopping => (Reason::Stopping, true),
        };
        reasons.insert(0, reason);
        let leave = (view.state == State::Active).then(|| self.leave_to_best(true, true));
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
        let best = self.world.able_peers(self.id, self.now).first().copied();
        if let Some(peer) = best {
            reasons.push(Reason::PeerCanServe(self.peer_name(peer)));
            let paused = view.last_resort
                && view.handed_at.is_some_and(|at| self.now.saturating_duration_since(at) < HAND_OVER_PAUSE);
            return (!paused).then_some(Leave { to: Some(peer), linger: false, planned: false });
        }
        if view.last_resort {
            *fail_open = true;
            reasons.push(Reason::NobodyTook);
            return None;
        }
        if self.world.all_peers_known(self.id, self.now) {
            *fail_open = true;
            reasons.push(Reason::NobodyBetter);
            return None;
        }
        reasons.push(Reason::PeersUnknown);
        Some(Leave { to: None, linger: false, planned: false })
    }

    fn leave_to_best(&self, linger: bool, planned: bool) -> Leave {
        Leave { to: self.world.able_peers(self.id, self.now).first().copied(), linger, planned }
    }

    fn role_reasons(&self, reasons: &mut Vec<Reason>) {
        let view = self.view();
        if view.state == State::Active {
            reasons.push(Reason::Owner);
            return;
        }
        if view.leaving.is_some() {
            reasons.push(Reason::Leaving);
        }
        if let Some(peer) = view.yielded_to {
            reasons.push(Reason::YieldedTo(self.peer_name(peer)));
        }
        match view.heard.filter(|h| h.priority != Priority::RESIGN && self.now < h.at + h.interval.duration() * 4) {
            Some(heard) => {
                reasons.push(Reason::OwnerHeard { from: heard.from.to_string(), priority: heard.priority.get() });
            }
            None if view.state == State::Backup && view.yielded_to.is_none() => reasons.push(Reason::Listening),
            None => {}
        }
    }

    /// Active owns them; one that leaves with `linger` answers until its successor is seen.
    fn addresses(&self, path: bool) -> BTreeSet<(u32, IpAddr, u8)> {
        let view = self.view();
        let lingers = view.leaving.is_some_and(|l| l.linger && l.until.is_none_or(|until| self.now < until));
        if !path || !(view.state == State::Active || lingers) {
            return BTreeSet::new();
        }
        let on = |a: &crate::config::VipAddress| Some((self.world.link(&a.interface)?.ifindex, a.ip, a.prefix));
        self.vip.addresses.iter().filter_map(on).collect()
    }
}
