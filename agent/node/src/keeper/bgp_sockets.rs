//! The duplicates of BGP sockets: while the keeper has one, a worker's death closes no session.
//!
//! The neighbour of a dead worker hears nothing and keeps the routes, until its hold time is over, which must not come
//! to that: at half of it the sockets are closed without a NOTIFICATION, and where graceful restart was agreed the
//! restart time counts from there.

use super::Out;
use super::ipc::{BgpSession, FAREWELL_MAX};
use super::mutants;
use super::types::{Event, Output};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Further ones are refused with an event, and closed by the worker's death.
const SESSIONS_MAX: usize = 1_024;
/// Where no hold time was agreed: half of the RFC's 90 s.
const WITHOUT_HOLD: Duration = Duration::from_secs(45);

#[derive(Debug)]
struct Held {
    session: BgpSession,
    /// `Some`: its worker is dead, and it is closed then.
    close_at: Option<Instant>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct BgpSockets {
    held: BTreeMap<String, Held>,
    /// Until then some neighbour may still keep a dead worker's routes.
    restart_until: Option<Instant>,
    /// What the routes led to is gone, and no worker has begun since.
    forsaken: bool,
}

impl BgpSockets {
    /// A living worker says that a session was established, or has ended.
    pub(super) fn set(&mut self, session: BgpSession, out: &mut Out) {
        if session.active && self.refuses(&session) {
            self.held.remove(&session.neighbor);
            out.event(Event::Refused { what: "too many BGP sessions, or a NOTIFICATION that is too long" });
            out.push(Output::RefuseBgp { neighbor: session.neighbor });
        } else {
            self.put(session, out);
        }
    }

    /// A killed worker's last words: held, and closed in time, like the others; or ended as those were.
    pub(super) fn set_late(&mut self, now: Instant, session: BgpSession, out: &mut Out) {
        if session.active && self.refuses(&session) {
            self.put(BgpSession { active: false, ..session }, out);
        } else if session.active && self.forsaken {
            self.held.remove(&session.neighbor);
            take_leave(session, out);
        } else {
            self.put(session, out);
            self.hold(now);
        }
    }

    fn refuses(&self, session: &BgpSession) -> bool {
        let full = self.held.len() >= SESSIONS_MAX && !self.held.contains_key(&session.neighbor);
        full || session.farewell.len() > FAREWELL_MAX
    }

    fn put(&mut self, session: BgpSession, out: &mut Out) {
        let neighbor = session.neighbor.clone();
        if session.active {
            self.held.insert(neighbor, Held { session, close_at: None });
        } else {
            self.held.remove(&neighbor);
            out.push(Output::DropBgp { neighbor });
        }
    }

    /// The worker is dead. May be said again: what is held already stays as it is.
    pub(super) fn hold(&mut self, now: Instant) {
        for held in self.held.values_mut().filter(|held| held.close_at.is_none()) {
            let BgpSession { hold, restart, .. } = held.session;
            let limit = if hold.is_zero() { WITHOUT_HOLD } else { hold / 2 };
            held.close_at = Some(now + limit);
            let until = restart.map(|restart| now + limit + restart);
            self.restart_until = self.restart_until.max(until);
        }
    }

    /// A new worker is there. Whether neighbours still keep the former one's routes.
    pub(super) fn resume(&mut self, now: Instant, out: &mut Out) -> bool {
        self.forsaken = false;
        // Without graceful restart a neighbour takes no new connection while the old one stands.
        let gone: Vec<String> =
            self.held.iter().filter(|(_, held)| held.session.restart.is_none()).map(|(name, _)| name.clone()).collect();
        for neighbor in gone {
            self.held.remove(&neighbor);
            out.push(Output::DropBgp { neighbor });
        }
        self.restart_until.is_some_and(|until| until > now)
    }

    /// Closes what nobody has resumed in time.
    pub(super) fn timer(&mut self, now: Instant, out: &mut Out) {
        if mutants::off("bgp-half-hold") {
            return;
        }
        while let Some(neighbor) = self.held.iter().find(|(_, h)| h.close_at.is_some_and(|at| at <= now)) {
            let neighbor = neighbor.0.clone();
            self.held.remove(&neighbor);
            out.event(Event::BgpClosed { neighbor: neighbor.clone() });
            out.push(Output::DropBgp { neighbor });
        }
    }

    /// What the routes lead to is gone while no worker can withdraw them.
    pub(super) fn forsake(&mut self, out: &mut Out) {
        self.restart_until = None;
        self.forsaken = true;
        // A living worker's sessions are its own.
        let (dead, alive) = std::mem::take(&mut self.held).into_iter().partition(|(_, h)| h.close_at.is_some());
        self.held = alive;
        let dead: BTreeMap<String, Held> = dead;
        dead.into_values().for_each(|held| take_leave(held.session, out));
    }

    /// All was closed by a worker that left in order.
    pub(super) fn clear(&mut self, out: &mut Out) {
        self.restart_until = None;
        for (neighbor, _) in std::mem::take(&mut self.held) {
            out.push(Output::DropBgp { neighbor });
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.held.values().filter_map(|held| held.close_at).filter(|_| !mutants::off("bgp-half-hold")).min()
    }
}

/// Ends the session so that the neighbour keeps nothing of it.
fn take_leave(session: BgpSession, out: &mut Out) {
    let BgpSession { neighbor, farewell: notification, .. } = session;
    if mutants::off("bgp-farewell") {
        out.push(Output::DropBgp { neighbor });
    } else {
        out.push(Output::FarewellBgp { neighbor, notification });
    }
}
