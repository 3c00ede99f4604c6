//! How a connection ends, and what follows.

use std::time::{Duration, Instant};

use super::dialling::{Delay, Dial, HEALTHY};
use super::io::{ConnId, Event, Output, Reason, State, Stop};
use super::{Connection, Peer};
use crate::mutants;
use crate::wire::{Cease, Notification};

/// How long an orderly close may take: what is still to be sent, and the neighbour's FIN.
const LINGER: Duration = Duration::from_secs(3);

/// Closing connections that are remembered; of more, the oldest is aborted.
const CLOSING_MAX: usize = 4;

/// A connection that we closed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Closing {
    conn: ConnId,
    pub(super) until: Instant,
}

/// What becomes of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// NOTIFICATION, then FIN.
    Notify(Notification),
    /// FIN.
    Close,
    /// RST.
    Abort,
    /// Nothing: it is gone, or left as it is.
    Gone,
}

impl Peer {
    /// The only place where a connection ends.
    pub(super) fn end(&mut self, now: Instant, id: ConnId, end: End, reason: Reason) {
        let Some(at) = self.connections.iter().position(|conn| conn.id == id) else { return };
        let conn = self.connections.remove(at);
        match end {
            End::Notify(notification) => {
                let mut bytes = Vec::new();
                notification.encode(&mut bytes);
                self.counters.notifications_sent += 1;
                self.counters.bytes_sent += bytes.len() as u64;
                self.push(Output::Send { conn: id, bytes });
                self.close(now, id);
            }
            End::Close => self.close(now, id),
            End::Abort => self.push(Output::Abort { conn: id }),
            End::Gone => {}
        }
        match reason {
            Reason::Collision => self.counters.collisions += 1,
            Reason::Superseded | Reason::Stopped(_) | Reason::ConfigChanged => {}
            _ => self.last_error = Some((now, reason.clone())),
        }
        let delay = self.delay_after(now, &conn, &reason);
        self.redial(now, delay);
        self.settle(now, reason);
    }

    fn delay_after(&mut self, now: Instant, conn: &Connection, reason: &Reason) -> Delay {
        let healthy = conn.established().is_some_and(|session| now.saturating_duration_since(session.at) >= HEALTHY);
        if healthy {
            self.failures = 0;
        }
        let established = conn.established().is_some();
        match reason {
            Reason::NotificationReceived { code, subcode, .. } | Reason::NotificationSent { code, subcode, .. }
                if persistent(*code, *subcode, established) =>
            {
                Delay::BackOff
            }
            Reason::ConfigChanged | Reason::Stopped(Stop::Reset { .. }) => Delay::Now,
            _ if healthy => Delay::Quick,
            _ => Delay::Retry,
        }
    }

    fn close(&mut self, now: Instant, conn: ConnId) {
        self.push(Output::Close { conn });
        if self.closing.len() >= CLOSING_MAX {
            let oldest = self.closing.remove(0);
            self.push(Output::Abort { conn: oldest.conn });
        }
        self.closing.push(Closing { conn, until: now + LINGER });
    }

    pub(super) fn closing_timers(&mut self, now: Instant) {
        let (over, on): (Vec<_>, Vec<_>) = self.closing.iter().partition(|closing| now >= closing.until);
        self.closing = on;
        for closing in over {
            self.push(Output::Abort { conn: closing.conn });
        }
    }

    pub(super) fn on_closed(&mut self, now: Instant, id: ConnId, why: Option<String>) {
        self.closing.retain(|closing| closing.conn != id);
        if self.dial.is(id) {
            self.on_connect_failed(now, id, why.unwrap_or_else(|| String::from("closed")));
            return;
        }
        self.end(now, id, End::Gone, Reason::Closed { why });
        self.arbitrate(now);
    }

    /// An error in what came: the NOTIFICATION that it demands.
    pub(super) fn fail(&mut self, now: Instant, id: ConnId, notification: Notification, what: String) {
        let (code, subcode) = (notification.code, notification.subcode);
        let what = format!("{notification}: {what}");
        self.end(now, id, End::Notify(notification), Reason::NotificationSent { what, code, subcode });
    }

    /// Ends all connections for one reason, each with the NOTIFICATION that says it.
    pub(super) fn end_all(&mut self, now: Instant, reason: &Reason) {
        for id in self.ids() {
            let cease = match reason {
                Reason::BfdDown => Notification::cease(Cease::BfdDown),
                Reason::Stopped(Stop::Admin { text }) => {
                    Notification::cease_with_text(Cease::AdministrativeShutdown, text)
                }
                Reason::Stopped(Stop::Deconfigured) => Notification::cease(Cease::Deconfigured),
                Reason::Stopped(Stop::Reset { text }) => {
                    Notification::cease_with_text(Cease::AdministrativeReset, text)
                }
                _ => Notification::cease(Cease::OtherConfigurationChange),
            };
            let leaves = matches!(reason, Reason::Stopped(Stop::Admin { .. } | Stop::Deconfigured));
            let keeps = self.find(id).and_then(|conn| conn.negotiated).is_some_and(|agreed| agreed.notification_gr);
            let hard = leaves && keeps && !mutants::off("hard-reset");
            let cease = if hard { cease.into_hard_reset() } else { cease };
            self.end(now, id, End::Notify(cease), reason.clone());
        }
    }

    pub(super) fn on_stop(&mut self, now: Instant, stop: Stop) {
        if !self.started {
            return;
        }
        let reason = Reason::Stopped(stop.clone());
        if matches!(stop, Stop::Reset { .. }) {
            self.failures = 0;
            self.end_all(now, &reason);
            if self.connections.is_empty() && matches!(self.dial, Dial::Waiting { .. }) {
                self.schedule(now, Delay::Now);
            }
            self.settle(now, reason);
            return;
        }
        self.started = false;
        self.abandon();
        match stop {
            // Neither NOTIFICATION nor FIN from here: the neighbour keeps the routes for the restart time.
            Stop::Restart if !mutants::off("silent-restart") => {
                for id in self.ids() {
                    self.end(now, id, End::Gone, reason.clone());
                }
            }
            _ => {
                // The order matters: a neighbour that keeps routes at a NOTIFICATION, or loses it, has them withdrawn.
                if !mutants::off("withdraw-before-farewell") {
                    self.withdraw_all(now);
                }
                self.end_all(now, &reason);
            }
        }
        self.desired = None;
        self.stop_told = false;
        self.settle(now, reason);
    }

    /// [`Event::Stopped`], once nothing is left.
    pub(super) fn tell_stop(&mut self) {
        if !self.stop_told && !self.started && self.closing.is_empty() {
            self.stop_told = true;
            self.push(Output::Event(Event::Stopped));
        }
    }

    /// The timers of one connection.
    pub(super) fn connection_timers(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.find(id) else { return };
        let send_hold = self.send_hold(conn);
        if conn.gives_up_at(send_hold).is_some_and(|at| now >= at) && !mutants::off("send-hold") {
            // RFC 9687 section 3.2: no NOTIFICATION can get through, nor a FIN.
            self.end(now, id, End::Abort, Reason::SendHoldExpired { hold: send_hold });
            return;
        }
        let hold = conn.hold_time();
        if let Some(conn) = self.find_mut(id) {
            conn.patience_timer(now);
        }
        let expired = match self.find_mut(id).map(|conn| &mut conn.phase) {
            None => return,
            Some(super::Phase::OpenSent { hold_at }) => now >= *hold_at,
            Some(super::Phase::OpenConfirm(confirm)) => confirm.hold.expired(now),
            Some(super::Phase::Established(established)) => established.hold.expired(now),
        };
        if expired {
            self.end(now, id, End::Notify(Notification::hold_timer_expired()), Reason::HoldExpired { hold });
            return;
        }
        self.keepalive_timer(now, id);
        if self.find(id).is_some_and(|conn| conn.state() == State::Established) {
            self.pump(now);
        }
    }
}

/// Whether a NOTIFICATION, ours or theirs, speaks of something that another attempt won't mend.
fn persistent(code: u8, subcode: u8, established: bool) -> bool {
    match (code, subcode) {
        // Cease: too many prefixes, de-configured, rejected, out of resources; shut down, if it says so at the door.
        (6, 1 | 3 | 5 | 8) => true,
        (6, 2 | 9) => !established,
        // Hold timers speak of the path.
        (4 | 6 | 8, _) => false,
        _ => true,
    }
}
