//! Established: keepalives, and the way of routes to the neighbour.

use std::time::{Duration, Instant};

use super::connection::{Connection, Hold, Keepalive, Phase};
use super::io::{ConnId, Event, Negotiated, Output};
use super::{HIGH_WATER, Peer};
use crate::mutants;
use crate::rib::{AdjRibOut, Context, Sent};
use crate::wire::encode_keepalive;

/// Bytes of announcements in one go: between two the caller can look after others, and tell what the socket took.
const BATCH: usize = HIGH_WATER;

/// The session, as far as it exists only in Established.
#[derive(Debug)]
pub(super) struct Established {
    pub(super) at: Instant,
    pub(super) hold: Hold,
    pub(super) keepalive_at: Keepalive,
    /// KEEPALIVEs and UPDATEs that came.
    pub(super) heard: u64,
    pub(super) rib: AdjRibOut,
    pub(super) table_sent: bool,
    /// When the last batch was handed over.
    pumped_at: Instant,
}

impl Established {
    pub(super) fn new(
        now: Instant,
        hold: Duration,
        keepalive_at: Keepalive,
        agreed: Negotiated,
        context: Context,
    ) -> Self {
        Self {
            at: now,
            hold: Hold::new(now, hold),
            keepalive_at,
            heard: 0,
            rib: AdjRibOut::new(context, agreed.enhanced_refresh),
            table_sent: false,
            pumped_at: now,
        }
    }

    /// When the next batch may go: at once, if the socket takes it.
    pub(super) fn more_at(&self, queued: usize) -> Option<Instant> {
        (self.rib.pending() && queued <= HIGH_WATER).then_some(self.pumped_at)
    }
}

impl Peer {
    /// Hands over a batch of what the neighbour is to be told, if the socket can take it.
    pub(super) fn pump(&mut self, now: Instant) {
        let Some(conn) = self.connections.iter_mut().find(|conn| conn.established().is_some()) else { return };
        if conn.queued > HIGH_WATER && !mutants::off("flow-control") {
            return;
        }
        let id = conn.id;
        let Some(session) = conn.established_mut().filter(|session| session.rib.pending()) else { return };
        let mut bytes = Vec::new();
        let sent = session.rib.poll(BATCH, &mut bytes);
        session.pumped_at = now;
        let table = !session.table_sent && session.rib.table_sent();
        session.table_sent |= table;
        let routes = table.then(|| session.rib.announced());
        self.hand_over(now, id, bytes, sent);
        if let Some((ipv4, ipv6)) = routes {
            self.push(Output::Event(Event::TableSent { routes: ipv4 + ipv6 }));
        }
    }

    /// Withdraws all that was announced, whatever the socket takes: what follows is the end.
    pub(super) fn withdraw_all(&mut self, now: Instant) {
        let Some(conn) = self.connections.iter_mut().find(|conn| conn.established().is_some()) else { return };
        let id = conn.id;
        let Some(session) = conn.established_mut() else { return };
        let mut bytes = Vec::new();
        let sent = session.rib.withdraw_all(&mut bytes);
        self.hand_over(now, id, bytes, sent);
    }

    fn hand_over(&mut self, now: Instant, id: ConnId, bytes: Vec<u8>, sent: Sent) {
        self.counters.updates_sent += sent.updates;
        self.counters.refreshes_sent += sent.refreshes;
        if !bytes.is_empty() {
            self.send(id, bytes);
        }
        // RFC 4271 section 8.2.2: each UPDATE restarts KeepaliveTimer.
        if sent.updates > 0 {
            let next = self.next_keepalive(now, id);
            if let Some(session) = self.find_mut(id).and_then(Connection::established_mut) {
                session.keepalive_at = next;
            }
        }
        if !sent.withdrawn.is_empty() {
            self.push(Output::Event(Event::Withdrawn(sent.withdrawn)));
        }
        if !sent.announced.is_empty() {
            self.push(Output::Event(Event::Announced(sent.announced)));
        }
        if !sent.unsent.is_empty() {
            self.push(Output::Event(Event::Unsent(sent.unsent)));
        }
    }

    pub(super) fn send(&mut self, id: ConnId, bytes: Vec<u8>) {
        self.counters.bytes_sent += bytes.len() as u64;
        if let Some(conn) = self.find_mut(id) {
            conn.handed_over(bytes.len());
        }
        self.push(Output::Send { conn: id, bytes });
    }

    pub(super) fn send_keepalive(&mut self, id: ConnId) {
        let mut bytes = Vec::new();
        encode_keepalive(&mut bytes);
        self.counters.keepalives_sent += 1;
        self.send(id, bytes);
    }

    /// A third of the hold time, jittered; never with a hold time of 0.
    pub(super) fn next_keepalive(&mut self, now: Instant, id: ConnId) -> Keepalive {
        let interval = self.find(id)?.negotiated?.keepalive;
        (interval != Duration::ZERO).then(|| now + self.random.jitter(interval))
    }

    pub(super) fn keepalive_timer(&mut self, now: Instant, id: ConnId) {
        let due = match self.find(id).map(|conn| &conn.phase) {
            Some(Phase::OpenConfirm(confirm)) => confirm.confirmed.flatten(),
            Some(Phase::Established(session)) => session.keepalive_at,
            Some(Phase::OpenSent { .. }) | None => None,
        };
        if due.is_none_or(|at| now < at) {
            return;
        }
        let next = self.next_keepalive(now, id);
        match self.find_mut(id).map(|conn| &mut conn.phase) {
            Some(Phase::OpenConfirm(confirm)) => confirm.confirmed = Some(next),
            Some(Phase::Established(session)) => session.keepalive_at = next,
            Some(Phase::OpenSent { .. }) | None => {}
        }
        self.send_keepalive(id);
    }

    pub(super) fn on_queued(&mut self, now: Instant, id: ConnId, bytes: usize) {
        if let Some(conn) = self.find_mut(id) {
            conn.set_queued(now, bytes);
            self.pump(now);
        }
    }
}
