//! What comes on a connection, message by message.

use std::time::Instant;

use super::ending::End;
use super::io::{ConnId, Reason, State};
use super::{Connection, Peer, Phase};
use crate::mutants;
use crate::wire::{Frame, MessageType, Notification, RefreshKind, RouteRefresh, update};

impl Peer {
    pub(super) fn on_bytes(&mut self, now: Instant, id: ConnId, bytes: &[u8]) {
        self.counters.bytes_received += bytes.len() as u64;
        // The framer is lent out: a message may end its connection.
        let Some(mut framer) = self.find_mut(id).map(|conn| std::mem::take(&mut conn.framer)) else { return };
        let mut rest = bytes;
        while self.find(id).is_some() {
            let mut piece = rest;
            match framer.next(&mut piece) {
                Ok(None) => {
                    if mutants::off("hold-by-whole-messages") {
                        self.heard(now, id);
                    }
                    break;
                }
                Ok(Some(frame)) => {
                    let used = rest.len() - piece.len();
                    self.on_message(now, id, &frame);
                    rest = rest.get(used..).unwrap_or_default();
                }
                Err(error) => {
                    self.fail(now, id, error.notification(), error.to_string());
                    break;
                }
            }
        }
        if let Some(conn) = self.find_mut(id) {
            conn.framer = framer;
            if conn.state() == State::Established {
                self.pump(now);
            }
        }
        self.arbitrate(now);
    }

    fn on_message(&mut self, now: Instant, id: ConnId, frame: &Frame<'_>) {
        let Some(state) = self.find(id).map(Connection::state) else { return };
        match (frame.kind, state) {
            (MessageType::Notification, _) => self.on_notification(now, id, frame.body),
            (MessageType::Open, State::OpenSent) => self.on_open(now, id, frame.body),
            (MessageType::Keepalive, State::OpenConfirm) => self.on_agreed(now, id),
            (MessageType::Update | MessageType::RouteRefresh, State::OpenConfirm) if self.is_agreed(id) => {
                // The neighbour has chosen this connection, whatever we still waited for.
                self.establish(now, id);
                self.on_message(now, id, frame);
            }
            (MessageType::Keepalive, State::Established) => {
                self.counters.keepalives_received += 1;
                self.heard(now, id);
            }
            (MessageType::Update, State::Established) => self.on_update(now, id, frame.body),
            (MessageType::RouteRefresh, State::Established) => self.on_refresh(now, id, frame),
            (kind, state) => {
                // RFC 6608.
                let subcode = match state {
                    State::OpenSent => 1,
                    State::OpenConfirm => 2,
                    _ => 3,
                };
                let what = format!("{kind} in {state}");
                self.fail(now, id, Notification::unexpected_message(subcode, kind), what);
            }
        }
    }

    /// Both KEEPALIVEs are exchanged, and another connection was waited for.
    fn is_agreed(&self, id: ConnId) -> bool {
        self.find(id).and_then(Connection::confirm).is_some_and(|confirm| confirm.ready && confirm.confirmed.is_some())
    }

    fn on_agreed(&mut self, now: Instant, id: ConnId) {
        self.counters.keepalives_received += 1;
        if let Some(confirm) = self.find_mut(id).and_then(Connection::confirm_mut) {
            confirm.ready = true;
            confirm.hold.restart(now);
        }
        self.arbitrate(now);
    }

    /// RFC 4271 HoldTimer: restarted by a complete KEEPALIVE or UPDATE.
    fn heard(&mut self, now: Instant, id: ConnId) {
        match self.find_mut(id).map(|conn| &mut conn.phase) {
            Some(Phase::Established(session)) => {
                session.hold.restart(now);
                session.heard += 1;
            }
            Some(Phase::OpenConfirm(confirm)) => confirm.hold.restart(now),
            Some(Phase::OpenSent { .. }) | None => {}
        }
    }

    /// Counted and dropped (RFC 8212 in its strictest form): nothing of it is kept.
    fn on_update(&mut self, now: Instant, id: ConnId, body: &[u8]) {
        self.counters.updates_received += 1;
        let Some(codec) = self.find(id).map(|conn| conn.codec) else { return };
        match update::inspect(body, &codec) {
            Ok(seen) => {
                self.heard(now, id);
                self.counters.routes_dropped += u64::from(seen.announced.total());
                self.counters.withdrawals_dropped += u64::from(seen.withdrawn.total());
                self.counters.updates_malformed += u64::from(seen.fault.is_some());
            }
            Err(error) => self.fail(now, id, error.notification(), error.to_string()),
        }
    }

    fn on_refresh(&mut self, now: Instant, id: ConnId, frame: &Frame<'_>) {
        let refresh = match RouteRefresh::decode(frame) {
            Ok(refresh) => refresh,
            Err(error) => {
                // RFC 7313 section 5 is for those who have the capability; from others it is a kind that isn't known.
                let enhanced = self.find(id).and_then(|conn| conn.negotiated).is_some_and(|it| it.enhanced_refresh);
                if enhanced {
                    self.fail(now, id, error.notification(), error.to_string());
                }
                return;
            }
        };
        // RFC 2918 section 4, RFC 7313 section 5: what wasn't agreed on, or isn't known, is ignored.
        let (RefreshKind::Request, Some(family)) = (refresh.kind, refresh.family()) else { return };
        self.counters.refreshes_received += 1;
        if let Some(session) = self.find_mut(id).and_then(Connection::established_mut) {
            session.rib.refresh(family);
        }
    }

    fn on_notification(&mut self, now: Instant, id: ConnId, body: &[u8]) {
        self.counters.notifications_received += 1;
        let reason = match Notification::decode(body) {
            Ok(notification) => {
                let inner = notification.inner();
                let told = inner.as_ref().unwrap_or(&notification);
                let (code, subcode) = (told.code, told.subcode);
                Reason::NotificationReceived { what: notification.to_string(), code, subcode }
            }
            Err(error) => Reason::NotificationReceived { what: error.to_string(), code: 0, subcode: 0 },
        };
        self.end(now, id, End::Close, reason);
    }
}
