//! Which of two connections is kept (RFC 4271 section 6.8, RFC 6286 section 2.3).
//!
//! Both speakers find the same winner: what the one with the higher identifier dialled. But a connection can be dead
//! without our knowing, and each side learns of the other's OPENs and KEEPALIVEs in its own order. So the loser isn't
//! closed at once: it waits, without our KEEPALIVE if that isn't out yet, until the winner is Established, and goes on
//! if the winner dies. Two speakers that do this never close both connections.

use std::time::{Duration, Instant};

use super::ending::End;
use super::established::Established;
use super::io::{ConnId, Reason};
use super::{Connection, Peer, Phase, context};
use crate::mutants;
use crate::wire::{Cease, Notification};

/// How long the OPEN on a better connection is waited for.
const OPEN_PATIENCE: Duration = Duration::from_secs(1);

/// How long a better connection may take to become Established, or a session to prove that it lives.
const PATIENCE: Duration = Duration::from_secs(5);

/// A new connection this soon after a session began was on its way then: a collision, no restart.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

/// What a connection in OpenConfirm may do, beside the other one.
enum Verdict {
    /// Go on: KEEPALIVE, and Established at the neighbour's.
    Go,
    /// Wait for this long at most.
    Wait(Option<Duration>),
    /// Wait, and see whether the session that is there lives.
    Challenge,
    /// The session that is there is of the neighbour's former life.
    Supersede,
    /// Close it.
    Lost,
}

impl Peer {
    /// Lets each connection in OpenConfirm do what it may by now.
    pub(super) fn arbitrate(&mut self, now: Instant) {
        // Asked after each read, and almost never anything but a session that is up.
        if self.connections.iter().all(|conn| conn.confirm().is_none()) {
            return;
        }
        for id in self.ids() {
            let Some(conn) = self.find(id).filter(|conn| conn.confirm().is_some()) else { continue };
            match self.verdict(conn) {
                Verdict::Go => self.go_on(now, id),
                Verdict::Wait(patience) => {
                    if let Some(confirm) = self.find_mut(id).and_then(Connection::confirm_mut) {
                        let until = confirm.patience.or_else(|| Some(now + patience?));
                        confirm.patience = until.filter(|_| !confirm.impatient);
                    }
                }
                Verdict::Challenge => self.challenge(now, id),
                Verdict::Supersede => {
                    if let Some(old) = self.sibling(id).map(|old| old.id) {
                        // RFC 4724 section 4.2: without a NOTIFICATION.
                        self.end(now, old, End::Close, Reason::Superseded);
                    }
                    self.go_on(now, id);
                }
                Verdict::Lost => self.lose(now, id),
            }
        }
    }

    fn verdict(&self, conn: &Connection) -> Verdict {
        let (Some(confirm), Some(other)) = (conn.confirm(), self.sibling(conn.id)) else { return Verdict::Go };
        let impatient = confirm.impatient;
        if mutants::off("collision") {
            return Verdict::Go;
        }
        match &other.phase {
            // The neighbour agreed to this one when it was alone, and perhaps spoke on it since.
            Phase::OpenSent { .. } if confirm.confirmed.is_some() || impatient || self.wins(conn) => Verdict::Go,
            Phase::OpenSent { .. } => Verdict::Wait(Some(OPEN_PATIENCE)),
            Phase::OpenConfirm(_) if impatient || self.wins(conn) => Verdict::Go,
            Phase::OpenConfirm(_) => Verdict::Wait(Some(PATIENCE)),
            Phase::Established(session) => {
                let restarts = other.negotiated.is_some_and(|agreed| agreed.graceful_restart);
                if restarts && !conn.dialled && conn.opened_at >= session.at + ON_ITS_WAY {
                    return Verdict::Supersede;
                }
                match confirm.challenged {
                    None => Verdict::Challenge,
                    // It lives.
                    Some(heard) if session.heard > heard => Verdict::Lost,
                    // Without a hold time nothing else would end the wait.
                    Some(_) if impatient && session.hold.time == Duration::ZERO => Verdict::Lost,
                    Some(_) => Verdict::Wait(Some(PATIENCE)),
                }
            }
        }
    }

    /// Whether this one of two is what the speaker with the higher identifier dialled; between equal ones the higher AS
    /// counts (RFC 6286).
    fn wins(&self, conn: &Connection) -> bool {
        let ours = (self.config.router_id.to_bits(), self.config.local_as);
        let higher = conn.negotiated.is_some_and(|theirs| ours > (theirs.router_id.to_bits(), theirs.asn));
        conn.dialled == (higher || mutants::off("collision-by-identifier"))
    }

    /// KEEPALIVE, if it isn't out; and Established, if the neighbour's is there.
    pub(super) fn go_on(&mut self, now: Instant, id: ConnId) {
        let Some(confirm) = self.find(id).and_then(Connection::confirm).copied() else { return };
        if confirm.confirmed.is_none() {
            let next = self.next_keepalive(now, id);
            if let Some(confirm) = self.find_mut(id).and_then(Connection::confirm_mut) {
                confirm.confirmed = Some(next);
                confirm.patience = None;
                confirm.impatient = false;
            }
            self.send_keepalive(id);
        }
        if confirm.ready {
            self.establish(now, id);
        }
    }

    pub(super) fn establish(&mut self, now: Instant, id: ConnId) {
        let config = &self.config;
        let Some(conn) = self.connections.iter_mut().find(|conn| conn.id == id) else { return };
        let (Some(confirm), Some(agreed)) = (conn.confirm().copied(), conn.negotiated) else { return };
        let Some(context) = context(config, conn) else { return };
        let mut session = Established::new(now, confirm.hold.time, confirm.confirmed.flatten(), agreed, context);
        if let Some(desired) = &self.desired {
            session.rib.want(desired);
        }
        conn.phase = Phase::Established(Box::new(session));
        self.counters.established += 1;
        // RFC 4724 section 3: R is for the first OPEN after a restart.
        self.restarting_until = None;
        self.abandon();
        self.settle(now, Reason::KeepaliveReceived);
        if !mutants::off("one-session") {
            for other in self.ids().into_iter().filter(|other| *other != id) {
                self.lose(now, other);
            }
        }
        self.pump(now);
    }

    /// A new connection beside a session that is there: whoever is at the other end of that is asked to answer. A
    /// neighbour that lost it answers with RST.
    fn challenge(&mut self, now: Instant, id: ConnId) {
        let session = self.sibling(id).and_then(|other| Some((other.id, other.established()?.heard)));
        let Some((session, heard)) = session else { return };
        if let Some(confirm) = self.find_mut(id).and_then(Connection::confirm_mut) {
            confirm.challenged = Some(heard);
            confirm.patience = Some(now + PATIENCE);
        }
        self.send_keepalive(session);
    }

    fn lose(&mut self, now: Instant, id: ConnId) {
        let cease = Notification::cease(Cease::Collision);
        self.end(now, id, End::Notify(cease), Reason::Collision);
    }
}
