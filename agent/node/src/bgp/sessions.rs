//! Sessions: what routers and their connections do, what BFD says, and what is given to the machines.

use super::speakers::Speaker;
use super::{any_up, neighbors_of, routes};
use crate::config::{NeighborId, VipId};
use crate::io::{BgpInput, BgpOutput, Output};
use crate::journal::Kind;
use crate::keeper::ipc::{BfdSpec, BfdState, BgpSession, describe_diagnostic};
use crate::node::Node;
use holdfast_bgp::session::{Negotiated, Reason, Transition};
use holdfast_bgp::wire::{Cease, Notification};
use holdfast_bgp::{Event, Input, State, Stop};
use std::time::{Duration, Instant};

/// Sessions wait no longer than this for the routes that a former worker announced.
const RESUME_WAIT: Duration = Duration::from_secs(1);

impl Node {
    pub(crate) fn on_bgp(&mut self, now: Instant, id: NeighborId, input: BgpInput<'_>) {
        let Some(speaker) = self.speakers.get_mut(id) else { return };
        let input = match input {
            BgpInput::Connected { conn, local, remote } => Input::Connected { conn, local, remote },
            BgpInput::ConnectFailed { conn, why } => Input::ConnectFailed { conn, why },
            BgpInput::Accepted { conn, local, remote } => Input::Accepted { conn, local, remote },
            BgpInput::Bytes { conn, bytes } => Input::Bytes { conn, bytes },
            BgpInput::Closed { conn, why } => Input::Closed { conn, why },
            BgpInput::Queued { conn, bytes } => Input::Queued { conn, bytes },
            BgpInput::Found { remote } => {
                self.speakers.bfd_due |= speaker.remote.replace(remote) != Some(remote);
                return;
            }
            BgpInput::Problem { why } => {
                let old = speaker.problem.take();
                let news = old.as_ref().map(|(_, why)| why) != why.as_ref();
                let since = old.filter(|_| !news).map_or(now, |(since, _)| since);
                speaker.problem = why.clone().map(|why| (since, why));
                if let Some(why) = why.filter(|_| news) {
                    let kind = Kind::NeighborRefused { neighbor: self.neighbor_name(id), why };
                    self.event(now, None, kind);
                }
                return;
            }
        };
        self.session(now, id, input);
    }

    /// Gives a session one input and carries out what it says.
    fn session(&mut self, now: Instant, id: NeighborId, input: Input<'_>) {
        let Some(speaker) = self.speakers.get_mut(id) else { return };
        speaker.peer.handle(now, input);
        self.drain_session(now, id);
    }

    fn drain_session(&mut self, now: Instant, id: NeighborId) {
        while let Some(output) = self.speakers.get_mut(id).and_then(|speaker| speaker.peer.poll_output()) {
            let output = match output {
                holdfast_bgp::Output::Connect { conn } => BgpOutput::Connect { conn },
                holdfast_bgp::Output::Send { conn, bytes } => BgpOutput::Send { conn, bytes },
                holdfast_bgp::Output::Close { conn } => BgpOutput::Close { conn },
                holdfast_bgp::Output::Abort { conn } => BgpOutput::Abort { conn },
                holdfast_bgp::Output::Event(event) => {
                    self.on_session_event(now, id, event);
                    continue;
                }
            };
            self.out.bgp.push(Output::Bgp { neighbor: id, output });
        }
    }

    fn on_session_event(&mut self, now: Instant, id: NeighborId, event: Event) {
        match event {
            Event::State(Transition { to: State::Established, .. }) => self.neighbor_up(now, id),
            Event::State(Transition { from: State::Established, reason, .. }) => self.neighbor_down(now, id, &reason),
            Event::State(Transition { reason, .. }) => {
                let refused = matches!(reason, Reason::NotificationReceived { .. } | Reason::NotificationSent { .. });
                if refused {
                    let kind = Kind::NeighborRefused { neighbor: self.neighbor_name(id), why: reason.to_string() };
                    self.event(now, None, kind);
                }
            }
            Event::TableSent { .. } => self.report_due = true,
            Event::Announced(_) | Event::Withdrawn(_) => {}
            Event::Unsent(those) => {
                self.count("routes_unsent");
                if let Some((prefix, why)) = those.first() {
                    let (prefix, why) = (prefix.to_string(), why.to_string());
                    let kind = Kind::RouteUnsent { neighbor: self.neighbor_name(id), prefix, why };
                    self.event(now, None, kind);
                }
            }
            Event::Stopped => {
                if let Some(speaker) = self.speakers.get_mut(id) {
                    speaker.ended = true;
                }
            }
        }
    }

    fn neighbor_up(&mut self, now: Instant, id: NeighborId) {
        let name = self.neighbor_name(id);
        let Some(speaker) = self.speakers.get_mut(id) else { return };
        let info = speaker.peer.info();
        speaker.up();
        let remote = info.addresses.map(|(_, remote)| remote.ip()).or(speaker.remote);
        let moved = std::mem::replace(&mut speaker.remote, remote) != remote;
        let Some(negotiated) = info.negotiated else { return };
        let restart = speaker.peer.config().graceful_restart.filter(|_| negotiated.graceful_restart);
        speaker.kept = true;
        self.speakers.bfd_due |= moved;
        let session = BgpSession {
            neighbor: name.clone(),
            hold: negotiated.hold_time,
            restart,
            farewell: farewell(&negotiated),
            active: true,
        };
        self.out.bgp.push(Output::BgpSession { conn: info.conn, session });
        self.count("neighbors_up");
        let (asn, hold_time_ms) = (negotiated.asn.0, crate::io::age_ms(now + negotiated.hold_time, now));
        self.event(now, None, Kind::NeighborUp { neighbor: name, asn, hold_time_ms });
        if let Some(view) = self.world.neighbors.get_mut(usize::from(id.0)) {
            view.up_since = Some(now);
        }
        self.neighbor_changed(now, id);
    }

    fn neighbor_down(&mut self, now: Instant, id: NeighborId, reason: &Reason) {
        self.count("neighbors_down");
        let Some(view) = self.world.neighbors.get_mut(usize::from(id.0)) else { return };
        let up_ms = view.up_since.take().map_or(0, |since| crate::io::age_ms(now, since));
        let event = view.event;
        let cause = event.filter(|_| matches!(reason, Reason::BfdDown));
        let stop = self.stop.as_ref().and_then(|stop| stop.event);
        let kind = Kind::NeighborDown { neighbor: self.neighbor_name(id), why: reason.to_string(), up_ms };
        self.event(now, cause.or(stop), kind);
        self.unkeep(id, matches!(reason, Reason::Stopped(Stop::Restart)));
        self.neighbor_changed(now, id);
    }

    /// The keeper needs its duplicate of the socket no longer. `left`: to the next worker, which does.
    fn unkeep(&mut self, id: NeighborId, left: bool) {
        let neighbor = self.neighbor_name(id);
        let Some(speaker) = self.speakers.get_mut(id).filter(|speaker| speaker.kept && !left) else { return };
        speaker.kept = false;
        let session = BgpSession { neighbor, hold: Duration::ZERO, restart: None, farewell: Vec::new(), active: false };
        self.out.bgp.push(Output::BgpSession { conn: None, session });
    }

    /// The units that a neighbour hears of.
    fn neighbor_changed(&mut self, now: Instant, id: NeighborId) {
        self.report_due = true;
        for unit in self.ids() {
            if !neighbors_of(self.vip_config(unit)).contains(&id) {
                continue;
            }
            let up = any_up(self.vip_config(unit), &self.world);
            let view = &mut self.view_mut(unit).bgp;
            if up && view.up_since.is_none() {
                view.up_since = Some(now);
                view.settled = view.settled_until.is_some_and(|until| now < until);
            } else if !up {
                (view.up_since, view.settled) = (None, false);
            }
            self.dirty.units.insert(unit);
        }
    }

    pub(crate) fn on_bfd(&mut self, now: Instant, id: NeighborId, state: BfdState, diag: u8) {
        let Some(view) = self.world.neighbors.get_mut(usize::from(id.0)) else { return };
        let old = view.bfd.map(|(state, _, _)| state);
        if old == Some(state) {
            return;
        }
        view.bfd = Some((state, diag, now));
        let from = old.map_or_else(|| "unknown".to_owned(), |state| state.to_string());
        let why = describe_diagnostic(diag).to_owned();
        let kind = Kind::BfdState { neighbor: self.neighbor_name(id), from, to: state.to_string(), why };
        let event = self.event(now, None, kind);
        if let Some(view) = self.world.neighbors.get_mut(usize::from(id.0)) {
            view.event = event;
        }
        let state = match state {
            BfdState::AdminDown => holdfast_bgp::session::BfdState::AdminDown,
            BfdState::Down => holdfast_bgp::session::BfdState::Down,
            BfdState::Init => holdfast_bgp::session::BfdState::Init,
            BfdState::Up => holdfast_bgp::session::BfdState::Up,
        };
        self.session(now, id, Input::Bfd(state));
    }

    pub(crate) fn on_disabled(&mut self, now: Instant, id: VipId, disabled: bool) {
        if usize::from(id.0) >= self.vips.len() || self.view(id).bgp.disabled == disabled {
            return;
        }
        self.view_mut(id).bgp.disabled = disabled;
        let event = self.event(now, None, Kind::Disabled { vip: self.vip_name(id), disabled });
        self.run_mut(id).cause = event;
        self.dirty.units.insert(id);
    }

    /// Sessions that have something due.
    pub(crate) fn run_sessions(&mut self, now: Instant) {
        let due = |(_, speaker): &(NeighborId, &Speaker)| speaker.peer.poll_timeout().is_some_and(|at| at <= now);
        let due: Vec<NeighborId> =
            (0..).map(NeighborId).zip(&self.speakers.list).filter(due).map(|(id, _)| id).collect();
        due.into_iter().for_each(|id| self.session(now, id, Input::Timer));
    }

    /// Tells every neighbour what is new: the last thing in a turn that decides, so that a verdict and its withdrawal
    /// leave together.
    pub(crate) fn speak(&mut self, now: Instant) {
        if !self.synced {
            return;
        }
        if self.speakers.takes_bfd(now, &self.config) {
            self.tell_bfd();
        }
        if self.speakers.list.is_empty() {
            return;
        }
        self.speakers.update(now, &self.config, &self.world);
        if self.speakers.stopped {
            return;
        }
        let ids = (0..self.speakers.list.len()).filter_map(|n| u16::try_from(n).ok()).map(NeighborId);
        if !self.speakers.started {
            if !self.ready_to_speak(now) {
                return;
            }
            self.speakers.started = true;
            for id in ids.clone() {
                self.take_world(now, id);
                let Some(speaker) = self.speakers.get_mut(id) else { continue };
                // The routes first: what a router kept for us must be there before the end of the table says what isn't.
                speaker.tell(now);
                speaker.ended = false;
                self.session(now, id, Input::Start);
            }
        }
        if std::mem::take(&mut self.neighbors_moved) {
            ids.clone().for_each(|id| self.take_world(now, id));
        }
        for id in ids {
            if self.speakers.get_mut(id).is_some_and(|speaker| speaker.tell(now)) {
                self.drain_session(now, id);
            }
        }
        if self.stop.is_some() && !self.ids().any(|id| self.view(id).bgp.offered.is_some()) {
            self.end_sessions(now);
        }
    }

    /// Every session ends in order: withdrawn, told why, closed.
    fn end_sessions(&mut self, now: Instant) {
        self.speakers.stopped = true;
        let reason = self.intents.drain.as_ref().map(|drain| drain.reason.clone()).filter(|reason| !reason.is_empty());
        let text = reason.unwrap_or_else(|| format!("the agent on {} stops", self.config.node));
        for id in (0..self.speakers.list.len()).filter_map(|n| u16::try_from(n).ok()).map(NeighborId) {
            self.session(now, id, Input::Stop(Stop::Admin { text: text.clone() }));
        }
        self.out.rest.push(Output::Bfd(Vec::new()));
    }

    /// What a former worker announced is in the tables, or won't be soon.
    fn ready_to_speak(&self, now: Instant) -> bool {
        let pending = |id: VipId| {
            let view = self.view(id);
            view.resume.is_some() || view.bgp.held && view.bgp.offered.is_none() && view.assumed_fit_until.is_some()
        };
        now >= self.started + RESUME_WAIT || !self.ids().any(pending)
    }

    /// Links and addresses as they are now.
    fn take_world(&mut self, now: Instant, id: NeighborId) {
        let Some(bgp) = &self.config.bgp else { return };
        let Some(neighbor) = bgp.neighbor(id) else { return };
        let config = routes::peer_config(bgp, neighbor, &self.world);
        let ifindex = routes::interface_of(neighbor, &self.world);
        let up = |index: u32| self.world.links.get(index).is_some_and(|link| link.up);
        let direct = neighbor.interface.is_some() || neighbor.ttl() == 1 || neighbor.ttl_security == Some(1);
        // Nothing is known of the way to one that is further away.
        let linked =
            if neighbor.interface.is_some() { ifindex.is_some_and(up) } else { !direct || ifindex.is_none_or(up) };
        let Some(speaker) = self.speakers.get_mut(id) else { return };
        let was = std::mem::replace(&mut speaker.linked, linked);
        let changed = *speaker.peer.config() != config;
        if changed {
            self.session(now, id, Input::Config(Box::new(config)));
        }
        if was != linked {
            self.session(now, id, if linked { Input::LinkUp } else { Input::LinkDown });
        }
    }

    /// The BFD sessions that are to run.
    fn tell_bfd(&mut self) {
        let spec = |((_, neighbor), speaker): ((NeighborId, &crate::config::Neighbor), &Speaker)| {
            let bfd = neighbor.bfd.as_ref()?;
            Some(BfdSpec {
                neighbor: neighbor.name.clone(),
                local: neighbor.source,
                remote: speaker.remote?,
                interface: neighbor.interface.as_ref().map(|name| name.as_str().to_owned()),
                interval: bfd.interval,
                multiplier: bfd.multiplier,
                multihop: bfd.multihop,
                min_ttl: bfd.min_ttl,
            })
        };
        let each = self.config.bgp.iter().flat_map(crate::config::Bgp::each);
        let specs: Vec<BfdSpec> = each.zip(&self.speakers.list).filter_map(spec).collect();
        // A keeper that runs some for a former worker must hear that none is wanted, too.
        if !self.speakers.stopped {
            self.out.rest.push(Output::Bfd(specs));
        }
    }

    pub(crate) fn neighbor_name(&self, id: NeighborId) -> String {
        let neighbor = self.config.bgp.as_ref().and_then(|bgp| bgp.neighbor(id));
        neighbor.map_or_else(|| format!("neighbor {}", id.0), |neighbor| neighbor.name.clone())
    }
}

/// The NOTIFICATION that the keeper sends when the balancer dies while no worker lives: one at which the router keeps
/// nothing (RFC 8538 section 3.1).
fn farewell(negotiated: &Negotiated) -> Vec<u8> {
    let cease = Notification::cease_with_text(Cease::AdministrativeShutdown, "the balancer is dead");
    let notification = if negotiated.notification_gr { cease.into_hard_reset() } else { cease };
    let mut message = Vec::new();
    notification.encode(&mut message);
    message
}
