//! What comes from and goes to the segment: adverts, the routers' timers and changes of state, stalls.

use crate::config::{HookEvent, VipId};
use crate::decide::Participation;
use crate::io::{Output, Packet, SendError};
use crate::journal::Kind;
use crate::node::{Node, together};
use crate::turn::is_last_resort;
use crate::world::HeardAdvert;
use holdfast_statesync::message::ClaimCause;
use holdfast_vrrp::router::{Notice, Reason, ReassertReason, Transition};
use holdfast_vrrp::{Input, LegId, Priority, State, wire};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Adverts ahead of their time in one turn.
const TOGETHER_MAX: usize = 100;
/// Active for this long: our adverts do reach whoever else is there.
const HEARD_WELL: Duration = Duration::from_secs(10);

impl Node {
    /// Takes a packet as far as a counter, if it is none for us. Only what is left is worth a turn.
    pub(crate) fn accept_vrrp(&mut self, ifindex: u32, packet: Packet<'_>) -> Option<(VipId, LegId, wire::Received)> {
        let decoded = match packet {
            Packet::V4(packet) => wire::decode_v4(packet),
            Packet::V6 { source, destination, hop_limit, message } => {
                wire::decode_v6(source, destination, hop_limit, message)
            }
        };
        let received = match decoded {
            Ok(received) => received,
            Err(error) => {
                self.refused.advert(error);
                return None;
            }
        };
        let legs = self.legs();
        let Some((id, leg)) = legs.find(ifindex, &received) else {
            if legs.stranger(&received) {
                self.refused.advert(wire::AdvertError::UnknownPeer(received.source));
            } else {
                self.refused.unknown_vrid += 1;
            }
            return None;
        };
        if self.run(id).router.source(leg) == Some(received.source) {
            self.refused.own_source += 1;
            return None;
        }
        let config = self.run(id).router.config().legs.get(usize::from(leg.0))?;
        if let Err(error) = config.accept(&received, self.run(id).router.config().interval) {
            self.refused.advert(error);
            return None;
        }
        Some((id, leg, received))
    }

    pub(crate) fn on_vrrp(&mut self, now: Instant, id: VipId, leg: LegId, received: &wire::Received) {
        self.adverts.received += 1;
        // The form that RFC 5798 was read to demand and some peers send and demand: which one it is, is worth knowing.
        if received.checksum == wire::ChecksumForm::PseudoHeader && received.source.is_ipv4() {
            self.adverts.pseudo_header += 1;
        }
        let advert = &received.advert;
        let heard =
            HeardAdvert { at: now, from: received.source, priority: advert.priority, interval: advert.interval };
        let before = self.view_mut(id).heard.replace(heard);
        let same = |old: HeardAdvert| {
            (old.from, old.priority, old.interval) == (heard.from, heard.priority, heard.interval) && old.counts(now)
        };
        // One more advert of the same owner re-arms its freshness and needs no decision.
        if !before.is_some_and(same) {
            self.dirty.units.insert(id);
        }
        if advert.priority != Priority::RESIGN {
            // The segment speaks again: adverts decide. But for a while after the owner said that ours don't reach it.
            let held = self.run(id).yield_until.is_some_and(|until| now < until);
            if !held && self.view_mut(id).yielded_to.take().is_some() {
                self.dirty.units.insert(id);
            }
            if self.view(id).leaving.is_some() {
                self.successor_seen(now, id, received.source.to_string());
            }
        }
        let form = self.run(id).router.checksum(leg).0;
        self.route(now, id, Input::Advert { leg, source: received.source, advert, form: received.checksum });
        if self.run(id).router.checksum(leg).0 != form {
            // What the keeper would say in our stead has another form too.
            self.record(id);
        }
    }

    /// Somebody else owns a VIP that we gave away.
    pub(crate) fn successor_seen(&mut self, now: Instant, id: VipId, peer: String) {
        let Some(leaving) = self.view_mut(id).leaving.take() else { return };
        let after_ms = crate::io::age_ms(now, leaving.since);
        let vip = self.vip_name(id);
        self.event(now, leaving.event, Kind::PeerTook { vip, peer, after_ms });
        self.dirty.units.insert(id);
    }

    /// Timers of the units that may have one due.
    pub(crate) fn run_routers(&mut self, now: Instant, units: &[VipId]) {
        for id in units.iter().copied() {
            self.settle_contest(now, id);
            if self.run(id).router.poll_timeout().is_none_or(|at| at > now) {
                continue;
            }
            if self.run(id).router.state() == State::Backup && self.yielded_owner_lives(now, id) {
                self.route(now, id, Input::OwnerLives);
            } else {
                self.route(now, id, Input::Timer);
            }
        }
    }

    /// Adverts that are due soon go out with those that are due: then these units wake us together from now on.
    pub(crate) fn advertise_together(&mut self, now: Instant) {
        if self.out.adverts.is_empty() {
            return;
        }
        let soon: Vec<VipId> = self.timers.soon(now, now + self.together).take(TOGETHER_MAX).collect();
        for id in soon {
            let router = &self.run(id).router;
            let within = now + together(router.config().interval);
            if router.state() == State::Active && router.poll_timeout().is_some_and(|at| at <= within) {
                self.route(now, id, Input::Advertise);
            }
        }
    }

    /// While a peer that proved better says freshly that it is Active, its silence on the segment is no news: else both
    /// would probe each other in turn.
    fn yielded_owner_lives(&mut self, now: Instant, id: VipId) -> bool {
        let Some(peer) = self.view(id).yielded_to else { return false };
        if self.world.active_peer(id, now) == Some(peer) {
            return true;
        }
        self.view_mut(id).yielded_to = None;
        self.dirty.units.insert(id);
        false
    }

    /// Gives a router one input and carries out what it says.
    pub(crate) fn route(&mut self, now: Instant, id: VipId, input: Input<'_>) {
        self.run_mut(id).router.handle(now, input);
        while let Some(output) = self.run_mut(id).router.poll_output() {
            match output {
                holdfast_vrrp::Output::Send { leg, source, packets } => {
                    let way = self.run(id).path.as_ref().and_then(|path| path.get(usize::from(leg.0)));
                    let Some(ifindex) = way.map(|way| way.out) else { continue };
                    let resignation = self.run(id).router.resign_packets(leg);
                    let resigns = resignation.is_some_and(|(_, those)| Arc::ptr_eq(&those, &packets));
                    let advert = Output::Advert { vip: id, leg, ifindex, source, packets };
                    if resigns {
                        // What was to be said before in this turn must not come after.
                        let same =
                            |o: &Output| matches!(o, Output::Advert { vip, leg: l, .. } if (*vip, *l) == (id, leg));
                        self.out.adverts.retain(|o| !same(o));
                    }
                    if resigns { &mut self.out.urgent } else { &mut self.out.adverts }.push(advert);
                }
                holdfast_vrrp::Output::Transition(transition) => self.on_transition(now, id, transition),
                holdfast_vrrp::Output::Reassert(reason) => {
                    let why = match reason {
                        ReassertReason::LosingAdvert { from, its } => {
                            format!("{from} claimed it too, with priority {its}")
                        }
                        ReassertReason::Stalled => "this node stood still and is still the owner".to_owned(),
                    };
                    if matches!(reason, ReassertReason::LosingAdvert { .. }) && self.follows_take_over(now, id) {
                        self.announcer(id).reassert(now);
                        self.count("reassertions");
                    } else {
                        self.reassert(now, id, None, why);
                    }
                }
                holdfast_vrrp::Output::Notice(notice) => {
                    self.count("vrrp_notices");
                    if let Notice::AddressMismatch { peer } = notice {
                        self.run_mut(id).mismatch = Some((now, peer));
                    }
                    let kind = Kind::VrrpNotice { vip: self.vip_name(id), what: notice_text(&notice) };
                    self.event(now, None, kind);
                }
            }
        }
    }

    /// An owner that gives way says a last word (see `holdfast_vrrp::router`): right after we took over from one that
    /// lives, its advert is no conflict, and no news.
    fn follows_take_over(&self, now: Instant, id: VipId) -> bool {
        let interval = self.vip_config(id).vrrp.interval.duration();
        let claimed = self.run(id).claimed.filter(|(_, cause)| *cause != ClaimCause::DownTimer);
        claimed.is_some_and(|(at, _)| now.saturating_duration_since(at) <= interval)
    }

    /// The owner announces again.
    pub(crate) fn reassert(&mut self, now: Instant, id: VipId, cause: Option<u64>, why: String) {
        self.announcer(id).reassert(now);
        self.count("reassertions");
        self.event(now, cause, Kind::Reasserted { vip: self.vip_name(id), why });
    }

    fn on_transition(&mut self, now: Instant, id: VipId, transition: Transition) {
        let Transition { from, to, reason } = transition;
        let resumed = reason == Reason::Resumed;
        let why = reason_text(&reason);
        let view = self.view_mut(id);
        view.state = to;
        view.since = now;
        if !resumed {
            view.role_epoch = view.role_epoch.saturating_add(1);
        }
        let role_epoch = view.role_epoch;
        let left = if to == State::Active { view.leaving.take() } else { None };
        self.report_of.insert(id);
        self.dirty.units.insert(id);
        self.touch_ways(id);
        self.record(id);
        self.count("role_changes");
        let cause = self.run_mut(id).cause.take().or_else(|| left.and_then(|l| l.event));
        let word = |state| state_word(state).to_owned();
        let kind =
            Kind::VipState { vip: self.vip_name(id), from: word(from), to: word(to), reason: why.clone(), role_epoch };
        let event = self.event(now, cause, kind);
        if to == State::Active {
            // Taking back what a drain gave away, or what a former worker held, says nothing of what we can.
            let quiet = resumed || left.is_some_and(|l| l.planned);
            self.became_active(now, id, &reason, event, quiet);
            if !resumed {
                self.close_gate(now, id, event);
            }
            self.hooks(id, HookEvent::Active, &why);
            // Also what a failing node gave away before it was drained: nobody took that either.
            if left.is_some() {
                self.drain_taken_back(now, id, event);
            }
        } else if from == State::Active {
            let view = self.view_mut(id);
            view.last_resort = false;
            view.send_failing_since = None;
            view.flows.gate = None;
            let run = self.run_mut(id);
            run.sending.reset();
            run.announcer.stop();
            run.probe = None;
            run.contest = None;
            run.claimed = None;
            let off = self.plan.vips.get(usize::from(id.0)).map(|p| p.participation) == Some(Participation::Off);
            if !off {
                self.hooks(id, HookEvent::Backup, &why);
            }
        }
    }

    fn became_active(&mut self, now: Instant, id: VipId, reason: &Reason, event: Option<u64>, quiet: bool) {
        let configured = self.vip_config(id).vrrp.priority;
        let demoted = self.demoted(id);
        let last_resort = !quiet && !demoted && is_last_resort(self.run(id).router.priority(), configured);
        let view = self.view_mut(id);
        view.yielded_to = None;
        view.relisten_until = None;
        view.send_failing_since = None;
        view.last_resort = last_resort;
        let run = self.run_mut(id);
        run.sending.reset();
        run.probe = None;
        run.contest = None;
        run.claimed = None;
        if *reason == Reason::Resumed {
            run.announcer.resumed(now);
        } else {
            run.announcer.took_over(now);
        }
        if last_resort {
            let why = "nobody else took it, and this node is not known to serve well".to_owned();
            self.event(now, event, Kind::FailOpen { vip: self.vip_name(id), why });
        }
        let cause = match reason {
            Reason::DownTimer { .. } => ClaimCause::DownTimer,
            Reason::Promoted | Reason::PeerResigned { .. } => ClaimCause::Handed,
            Reason::Preempt { .. } => ClaimCause::Preempt,
            _ => return,
        };
        self.run_mut(id).claimed = Some((now, cause));
        self.claim(now, id, cause);
    }

    /// How sending went: errors are an observation.
    pub(crate) fn on_advert_sent(&mut self, now: Instant, id: VipId, leg: LegId, result: Result<(), SendError>) {
        if usize::from(id.0) >= self.vips.len() {
            return;
        }
        if let Err(error) = result {
            self.count("advert_send_errors");
            if self.view(id).state != State::Active {
                return;
            }
            self.run_mut(id).sending.failed(leg, now);
            self.view_mut(id).send_failing_since = self.run(id).sending.failing_since();
            self.dirty.units.insert(id);
            let kind = Kind::SendFailed { vip: self.vip_name(id), errno: error.errno };
            let event = self.event(now, None, kind);
            if event.is_some() {
                self.run_mut(id).cause = event;
            }
            return;
        }
        self.adverts.sent += 1;
        let (since, was_failing) = (self.view(id).since, self.view(id).send_failing_since);
        if self.view(id).state != State::Active {
            return;
        }
        // Not touched by it: that an advert went out makes nothing due.
        let run = self.vips.get_mut(usize::from(id.0)).expect("ids of VIPs come from the configuration");
        if now.saturating_duration_since(since) > HEARD_WELL {
            run.unheard = 0;
        }
        let gap = run.sending.sent(leg, now);
        let failing = run.sending.failing_since();
        if was_failing != failing {
            self.view_mut(id).send_failing_since = failing;
            self.dirty.units.insert(id);
        }
        if gap >= self.vip_config(id).vrrp.interval.duration() * 2 {
            // The segment may have believed somebody else meanwhile.
            let kind = Kind::SendRecovered { vip: self.vip_name(id), gap_ms: crate::io::age_ms(now, now - gap) };
            let event = self.event(now, None, kind);
            self.reassert(now, id, event, format!("no advert went out for {} ms", gap.as_millis()));
        }
    }

    /// The keeper sent priority 0 and removed the addresses in our stead.
    pub(crate) fn on_lapsed(&mut self, now: Instant, id: VipId, role_epoch: u64) {
        if usize::from(id.0) >= self.vips.len() {
            return;
        }
        self.dirty.units.insert(id);
        let view = self.view_mut(id);
        let resuming = view.resume == Some(role_epoch);
        if resuming {
            view.resume = None;
            view.assumed_fit_until = None;
        }
        let holding = view.state == State::Active && view.role_epoch == role_epoch;
        // Without a router nobody else has taken it: what the keeper removed comes back, if this node can serve.
        if !(holding || resuming) || self.vip_config(id).anycast() {
            return;
        }
        let event = self.event(now, None, Kind::Lapsed { vip: self.vip_name(id) });
        self.run_mut(id).cause = event;
        self.route(now, id, Input::Yield);
    }

    /// This node stood still: what it believes of the segment is old, so it listens before it claims anything.
    pub(crate) fn on_stall(&mut self, now: Instant, late: Duration) {
        self.count("stalls");
        let late_ms = u64::try_from(late.as_millis()).unwrap_or(u64::MAX);
        self.event(now, None, Kind::Stalled { late_ms });
        self.checks.stalled(late);
        if let Some(pools) = &mut self.pools {
            pools.stalled(late);
        }
        self.stalled = Some((late, now));
        for id in self.ids() {
            if self.vip_config(id).anycast() {
                continue;
            }
            let interval = self.vip_config(id).vrrp.interval.duration();
            if late <= interval * 3 {
                continue;
            }
            if self.run(id).router.state() == State::Active {
                self.view_mut(id).relisten_until = Some(now + interval);
            }
            self.route(now, id, Input::Stalled);
        }
        self.dirty.all = true;
    }
}

/// For journal and status.
pub(crate) fn state_word(state: State) -> &'static str {
    match state {
        State::Initialize => "off",
        State::Backup => "backup",
        State::Active => "active",
    }
}

fn reason_text(reason: &Reason) -> String {
    match reason {
        Reason::Started => "started".to_owned(),
        Reason::StartedAsOwner => "started as address owner".to_owned(),
        Reason::Resumed => "resumed after a restart of the worker".to_owned(),
        Reason::DownTimer { silent: Some(silent) } => format!("no advert for {} ms", silent.as_millis()),
        Reason::DownTimer { silent: None } => "no owner was heard".to_owned(),
        Reason::PeerResigned { peer } => format!("{peer} resigned"),
        Reason::Preempt { peer, its } => format!("preempts {peer} with priority {its}"),
        Reason::Promoted => "a peer handed it over".to_owned(),
        Reason::Outranked { by, its } => format!("{by} with priority {its} is better"),
        Reason::Resigned => "resigned".to_owned(),
        Reason::Yielded => "yielded to a peer's claim".to_owned(),
        Reason::Stopped => "takes no part".to_owned(),
    }
}

fn notice_text(notice: &Notice) -> String {
    match notice {
        Notice::EqualPriority { peer } => format!("{peer} has the same priority: only the address decides"),
        Notice::IntervalMismatch { peer, theirs } => format!("{peer} has another advert interval: {theirs}"),
        Notice::AddressMismatch { peer } => format!("{peer} advertises other addresses"),
        Notice::SecondOwner { peer } => format!("{peer} is a second address owner"),
        other => format!("{other:?}"),
    }
}
