//! What the peers say over the channel: reports, "take it now", claims, and the answers to claims.
//!
//! The channel authenticates; here a message is held against what it may touch: only VIPs that the peer runs too, by
//! its own word in this run, and only if it isn't older than what the peer already said.

use crate::config::VipId;
use crate::decide::{LegPath, Participation};
use crate::io::{Output, ProbeOutcome};
use crate::journal::Kind;
use crate::mutants;
use crate::node::Node;
use crate::vip::ClaimProbe;
use crate::world::PeerView;
use holdfast_statesync::channel::{self, PeerId};
use holdfast_statesync::message::{ClaimCause, Fitness, Message, Role, VipReport};
use holdfast_vrrp::{Input, Priority, State};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// ARP requests to a claimer, and the wait after each.
const PROBE_TRIES: u8 = 2;
const PROBE_WAIT: Duration = Duration::from_millis(20);
/// A probe that was never answered is forgotten after this.
const PROBE_LOST: Duration = Duration::from_millis(500);
/// "Keep" is an answer to a claim of ours not older than this and two intervals.
const CLAIM_OPEN: Duration = Duration::from_millis(500);

impl Node {
    pub(crate) fn peer_name(&self, peer: PeerId) -> String {
        let peers = self.config.cluster.as_ref().map(|c| c.peers.as_slice()).unwrap_or_default();
        peers.get(usize::from(peer.0)).map_or_else(|| format!("peer {}", peer.0), |p| p.name.as_str().to_owned())
    }

    pub(crate) fn run_channel(&mut self, now: Instant) {
        let due = self.channel.as_ref().and_then(|c| c.poll_timeout()).is_some_and(|at| at <= now);
        if due {
            self.on_datagram(now, channel::Input::Timer);
        }
    }

    pub(crate) fn on_datagram(&mut self, now: Instant, input: channel::Input<'_>) {
        if let Some(channel) = &mut self.channel {
            channel.handle(now, input);
            self.drain_channel(now);
        }
    }

    /// Gives a datagram to the channel. True: it refused it, nothing came of it but a counter, and no turn is needed.
    pub(crate) fn refuses_datagram(&mut self, now: Instant, from: SocketAddr, bytes: &[u8]) -> bool {
        let Some(channel) = &mut self.channel else { return true };
        let refused = channel.counters().refused();
        channel.handle(now, channel::Input::Datagram { from, bytes });
        channel.counters().refused() != refused && !channel.has_output()
    }

    pub(crate) fn drain_channel(&mut self, now: Instant) {
        while let Some(output) = self.channel.as_mut().and_then(|c| c.poll_output()) {
            match output {
                channel::Output::Transmit { to, bytes } => self.out.datagrams.push(Output::Datagram { to, bytes }),
                // Flow lanes have a channel of their own; this one doesn't carry them.
                channel::Output::Batch { .. } => {}
                channel::Output::Received { peer, epoch, message } => self.on_message(now, peer, epoch, message),
                channel::Output::Up { peer, epoch } => {
                    let Some(view) = self.world.peers.get_mut(usize::from(peer.0)) else { continue };
                    view.up = true;
                    view.left = false;
                    view.heard_at = Some(now);
                    new_run(view, epoch);
                    // It learns at once what we are, and we are not silent for 100 ms to it.
                    self.report_due = true;
                    self.dirty.all = true;
                    let kind = Kind::PeerUp { peer: self.peer_name(peer), epoch };
                    self.event(now, None, kind);
                }
                channel::Output::Down { peer } => {
                    let Some(view) = self.world.peers.get_mut(usize::from(peer.0)) else { continue };
                    view.up = false;
                    let goodbye = view.left;
                    self.dirty.all = true;
                    let kind = Kind::PeerDown { peer: self.peer_name(peer), goodbye };
                    self.event(now, None, kind);
                }
            }
        }
    }

    /// Sends to one peer before everything else of this turn.
    pub(crate) fn send_urgent(&mut self, now: Instant, peer: PeerId, message: &Message) {
        let Some(channel) = &mut self.channel else { return };
        channel.handle(now, channel::Input::Send { peer, message });
        let before = self.out.datagrams.len();
        self.drain_channel(now);
        let urgent = self.out.datagrams.split_off(before.min(self.out.datagrams.len()));
        self.out.urgent.extend(urgent);
    }

    fn send(&mut self, now: Instant, peer: PeerId, message: &Message) {
        if let Some(channel) = &mut self.channel {
            channel.handle(now, channel::Input::Send { peer, message });
            self.drain_channel(now);
        }
    }

    pub(crate) fn broadcast(&mut self, now: Instant, message: &Message) {
        if let Some(channel) = &mut self.channel {
            channel.handle(now, channel::Input::Broadcast { message });
            self.drain_channel(now);
        }
    }

    /// Tells all peers that we took a VIP.
    pub(crate) fn claim(&mut self, now: Instant, id: VipId, cause: ClaimCause) {
        let Some(probe) = self.lead(id).map(|way| way.source) else { return };
        let role_epoch = self.view(id).role_epoch;
        self.broadcast(now, &Message::Claim { vip: self.vip_name(id), role_epoch, cause, probe });
    }

    /// The way of the first leg: the address that the peers may probe.
    fn lead(&self, id: VipId) -> Option<LegPath> {
        self.run(id).path.as_ref()?.first().copied()
    }

    pub(crate) fn on_message(&mut self, now: Instant, peer: PeerId, epoch: u64, message: Message) {
        let Some(view) = self.world.peers.get_mut(usize::from(peer.0)) else { return };
        if epoch < view.epoch {
            self.count("messages_of_former_runs");
            return;
        }
        new_run(view, epoch);
        let back = !view.reachable(now);
        view.heard_at = Some(now);
        match message {
            Message::Report { sequence, vips, balancers } => {
                if view.sequence.is_some_and(|last| sequence < last) {
                    self.count("messages_stale");
                    return;
                }
                view.sequence = Some(sequence);
                let mentioned = vips.iter().filter_map(|report| self.by_name.get(&report.vip)).copied();
                let mentioned: Vec<VipId> = mentioned.collect();
                let news = view.report(now, vips, balancers, &self.by_name);
                self.dirty.all |= back;
                news.into_iter().for_each(|id| self.dirty.units.insert(id));
                mentioned.into_iter().for_each(|id| self.owner_by_report(now, peer, id));
            }
            Message::TakeNow { vip, role_epoch, .. } => {
                if let Some(id) = self.may_touch(peer, &vip, role_epoch) {
                    self.note_given_away(peer, id);
                    self.on_take_now(now, peer, id);
                }
            }
            Message::Claim { vip, role_epoch, cause, probe } => {
                if let Some(id) = self.may_touch(peer, &vip, role_epoch) {
                    self.note_owner(now, peer, id, role_epoch);
                    self.on_claim(now, peer, id, cause, probe);
                }
            }
            Message::Keep { vip, role_epoch } => {
                if let Some(id) = self.may_touch(peer, &vip, role_epoch) {
                    self.note_owner(now, peer, id, role_epoch);
                    self.on_keep(now, peer, id);
                }
            }
            Message::Table { limit, timeouts } => {
                view.table_limit = Some(limit);
                view.table_timeouts = timeouts;
                self.dirty.all |= back;
            }
            Message::Pool { fingerprint } => view.pool = Some(fingerprint),
            Message::Goodbye => {
                view.left = true;
                view.heard_at = None;
                view.vips.clear();
                view.balancers.clear();
                view.table_limit = None;
                view.table_timeouts = None;
                view.pool = None;
                self.dirty.all = true;
                let kind = Kind::PeerDown { peer: self.peer_name(peer), goodbye: true };
                self.event(now, None, kind);
            }
        }
    }

    /// The VIP that a message may touch.
    fn may_touch(&mut self, peer: PeerId, vip: &str, role_epoch: u64) -> Option<VipId> {
        let Some(id) = self.by_name.get(vip).copied() else {
            self.count("messages_of_unknown_vips");
            return None;
        };
        let view = self.world.peers.get(usize::from(peer.0))?;
        if !view.shares(id) {
            self.count("messages_of_unshared_vips");
            return None;
        }
        if view.vips.get(&id).is_some_and(|(_, report)| role_epoch < report.role_epoch) {
            self.count("messages_stale");
            return None;
        }
        Some(id)
    }

    /// A peer said that it is Active: as good as a report.
    fn note_owner(&mut self, now: Instant, peer: PeerId, id: VipId, role_epoch: u64) {
        let vip = self.vip_name(id);
        let Some(view) = self.world.peers.get_mut(usize::from(peer.0)) else { return };
        let report = view.vips.entry(id).or_insert_with(|| {
            let (fitness, role) = (Fitness::Unknown, Role::Active);
            (now, VipReport { vip, fitness, role, role_epoch, priority: 0, role_age_ms: 0, standing: None })
        });
        report.0 = now;
        report.1.role = Role::Active;
        report.1.role_epoch = role_epoch;
        self.dirty.units.insert(id);
        self.owner_by_report(now, peer, id);
    }

    /// Who gives it away isn't one to give it back to, whatever it said before: its next report follows at once.
    fn note_given_away(&mut self, peer: PeerId, id: VipId) {
        let view = self.world.peers.get_mut(usize::from(peer.0));
        if let Some((_, report)) = view.and_then(|view| view.vips.get_mut(&id)) {
            report.fitness = Fitness::Unfit;
            report.standing = None;
        }
    }

    /// The successor of a VIP that we gave away, as this peer says.
    fn owner_by_report(&mut self, now: Instant, peer: PeerId, id: VipId) {
        // A word from before we left says nothing of what came after.
        if self.view(id).leaving.is_some_and(|l| l.since < now) && self.world.active(peer, id, now) {
            let name = self.peer_name(peer);
            self.successor_seen(now, id, name);
        }
    }

    fn on_take_now(&mut self, now: Instant, peer: PeerId, id: VipId) {
        // The words that come with it may have changed what we can: decide on the present.
        let plan = self.decide(now, id);
        let runs = matches!(plan.participation, Participation::Run { .. }) && self.world.withheld.is_none();
        let state = self.run(id).router.state();
        let why = match (state, runs) {
            (State::Backup, true) => "",
            (State::Active, _) => "already Active here",
            (State::Initialize, _) => "takes no part here",
            (State::Backup, false) => "held back here",
        };
        let taken = why.is_empty();
        let kind = Kind::TakeNow { vip: self.vip_name(id), peer: self.peer_name(peer), taken, why: why.to_owned() };
        let event = self.event(now, None, kind);
        if taken {
            self.run_mut(id).cause = event;
            self.route(now, id, Input::Promote);
        } else {
            self.count("take_now_refused");
        }
    }

    fn on_claim(&mut self, now: Instant, peer: PeerId, id: VipId, cause: ClaimCause, probe: IpAddr) {
        if cause == ClaimCause::Preempt && self.run(id).router.state() == State::Active {
            // Its advert should be here already. One interval is enough for the next, then it can't reach us.
            let at = now + self.vip_config(id).vrrp.interval.duration();
            self.run_mut(id).contest.get_or_insert((peer, at));
        }
        let contested = cause == ClaimCause::DownTimer && self.run(id).router.state() == State::Active;
        // By the leg of the family that the claimer named, which is its first one.
        let legs = self.run(id).path.iter().flatten();
        let way = legs.copied().find(|way| way.source.is_ipv4() == probe.is_ipv4());
        let Some(LegPath { ifindex, source, .. }) = way else { return };
        let target = probe;
        let busy = self.run(id).probe.is_some_and(|p| now.saturating_duration_since(p.since) < PROBE_LOST);
        if !contested || busy {
            return;
        }
        let kind = Kind::Claimed { vip: self.vip_name(id), peer: self.peer_name(peer) };
        let event = self.event(now, None, kind);
        if mutants::off("probe-before-yield") {
            self.yield_to(now, id, peer, event);
            return;
        }
        self.run_mut(id).probe = Some(ClaimProbe { peer, target, since: now, cause: event });
        let (tries, wait) = (PROBE_TRIES, PROBE_WAIT);
        self.out.urgent.push(Output::Probe { vip: id, ifindex, source, target, tries, wait });
    }

    /// A peer that preempted us without our hearing its adverts would own the VIP beside us for good: it releases.
    pub(crate) fn settle_contest(&mut self, now: Instant, id: VipId) {
        let Some((peer, _)) = self.run(id).contest.filter(|(_, at)| *at <= now) else { return };
        self.run_mut(id).contest = None;
        if !self.world.active(peer, id, now) {
            return;
        }
        let kind = Kind::Claimed { vip: self.vip_name(id), peer: self.peer_name(peer) };
        let event = self.event(now, None, kind);
        let keep = Message::Keep { vip: self.vip_name(id), role_epoch: self.view(id).role_epoch };
        self.send(now, peer, &keep);
        let why = format!("{} preempted it, but its adverts don't arrive here", self.peer_name(peer));
        self.reassert(now, id, event, why);
    }

    /// Answered by the claimer: only adverts were lost, it releases. By nobody at all: this node is cut off, it releases.
    /// By others but not by the claimer: they don't hear each other, so each may serve whom it reaches; most likely
    /// the claimer is the one cut off, and giving in to it would leave the clients with nobody.
    pub(crate) fn on_probed(&mut self, now: Instant, id: VipId, target: IpAddr, outcome: ProbeOutcome) {
        if usize::from(id.0) >= self.vips.len() {
            return;
        }
        let Some(probe) = self.run(id).probe.filter(|p| p.target == target) else { return };
        self.run_mut(id).probe = None;
        if self.run(id).router.state() != State::Active {
            return;
        }
        let (vip, peer) = (self.vip_name(id), self.peer_name(probe.peer));
        let (answered, others_answered) = (outcome == ProbeOutcome::Target, outcome == ProbeOutcome::Others);
        let event = self.event(now, probe.cause, Kind::ClaimProbed { vip, peer, answered, others_answered });
        match outcome {
            ProbeOutcome::Target => {}
            // Its adverts arrive here, so both serve the same clients: one of us must go, and we were first.
            ProbeOutcome::Others if self.hears(id, probe) => {}
            ProbeOutcome::Others if !mutants::off("witnesses") => {
                let why = format!("{} claimed it and can't be reached, others here can", self.peer_name(probe.peer));
                self.reassert(now, id, event, why);
                return;
            }
            ProbeOutcome::Others | ProbeOutcome::Nobody => {
                self.yield_to(now, id, probe.peer, event);
                return;
            }
        }
        // The segment carries frames between us: only adverts were lost. The neighbours may believe the claimer by now.
        let keep = Message::Keep { vip: self.vip_name(id), role_epoch: self.view(id).role_epoch };
        self.send(now, probe.peer, &keep);
        let why = format!("{} had claimed it", self.peer_name(probe.peer));
        self.reassert(now, id, event, why);
    }

    /// An advert of the claimer arrived since it claimed.
    fn hears(&self, id: VipId, probe: ClaimProbe) -> bool {
        let margin = self.vip_config(id).vrrp.interval.duration();
        let heard = self.view(id).heard.filter(|h| h.from == probe.target && h.priority != Priority::RESIGN);
        heard.is_some_and(|h| h.at + margin >= probe.since)
    }

    fn on_keep(&mut self, now: Instant, peer: PeerId, id: VipId) {
        let open = CLAIM_OPEN + self.vip_config(id).vrrp.interval.duration() * 2;
        let claimed = self.run(id).claimed.filter(|(at, _)| now.saturating_duration_since(*at) <= open);
        let Some((_, cause)) = claimed.filter(|_| self.run(id).router.state() == State::Active) else {
            self.count("keeps_ignored");
            return;
        };
        if cause == ClaimCause::Preempt {
            let time = self.run_mut(id).unheard_time();
            self.run_mut(id).yield_until = Some(now + time);
        }
        let kind = Kind::Keep { vip: self.vip_name(id), peer: self.peer_name(peer) };
        let event = self.event(now, None, kind);
        self.yield_to(now, id, peer, event);
    }

    fn yield_to(&mut self, now: Instant, id: VipId, peer: PeerId, cause: Option<u64>) {
        self.run_mut(id).cause = cause;
        self.route(now, id, Input::Yield);
        self.view_mut(id).yielded_to = Some(peer);
        self.dirty.units.insert(id);
    }
}

/// A later run of a peer forgets what the former one said.
fn new_run(view: &mut PeerView, epoch: u64) {
    if epoch > view.epoch {
        view.epoch = epoch;
        view.sequence = None;
        view.vips.clear();
        view.balancers.clear();
        view.table_limit = None;
        view.table_timeouts = None;
        view.pool = None;
    }
}
