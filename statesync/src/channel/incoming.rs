//! What arrives: the cheap checks first, then the costly ones, and nothing is changed before all have passed.

use super::noise;
use super::outgoing::send_content;
use super::peer::{Peer, UNCONFIRMED_LIFE, Unconfirmed};
use super::replay::Refusal;
use super::session::{OpenError, Session, SessionFacts};
use super::wire::{self, AnswerPayload, CHECK_LEN, Datagram, FormError, GreetingPayload};
use super::{Channel, MAX_DATAGRAM, Outbox, Output, peer_id};
use crate::message::codec::{Record, Records};
use crate::mutants;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// Why a datagram changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    UnknownSource,
    BadVersion,
    BadHandshake,
    BadAuth,
    UnknownSession,
    Replayed,
    TooOld,
    RateLimited,
}

impl From<FormError> for Refused {
    fn from(error: FormError) -> Self {
        match error {
            FormError::Version => Self::BadVersion,
            FormError::Form => Self::BadHandshake,
        }
    }
}

impl From<OpenError> for Refused {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Window(Refusal::Replayed) => Self::Replayed,
            OpenError::Window(Refusal::TooOld) => Self::TooOld,
            OpenError::Auth => Self::BadAuth,
        }
    }
}

impl Channel {
    pub(super) fn receive(&mut self, now: Instant, from: SocketAddr, bytes: &[u8]) {
        self.outbox.counters.datagrams += 1;
        if let Err(refused) = self.try_receive(now, from, bytes) {
            let counters = &mut self.outbox.counters;
            let counter = match refused {
                Refused::UnknownSource => &mut counters.unknown_source,
                Refused::BadVersion => &mut counters.bad_version,
                Refused::BadHandshake => &mut counters.bad_handshake,
                Refused::BadAuth => &mut counters.bad_auth,
                Refused::UnknownSession => &mut counters.unknown_session,
                Refused::Replayed => &mut counters.replayed,
                Refused::TooOld => &mut counters.too_old,
                Refused::RateLimited => &mut counters.rate_limited,
            };
            *counter += 1;
        }
    }

    fn try_receive(&mut self, now: Instant, from: SocketAddr, bytes: &[u8]) -> Result<(), Refused> {
        let ip = from.ip().to_canonical();
        // Peers may share an address (behind different ports); then the port only says whose limits count.
        let exact = self.peers.iter().position(|peer| peer.address == from);
        let sender = exact
            .or_else(|| self.peers.iter().position(|peer| may_send_from(peer, ip)))
            .ok_or(Refused::UnknownSource)?;
        match Datagram::parse(bytes)? {
            Datagram::Greeting { checked, noise, check } => self.on_greeting(now, sender, ip, checked, noise, &check),
            Datagram::Answer { receiver, noise } => self.on_answer(now, ip, receiver, noise),
            Datagram::Transport { receiver, counter, sealed } => self.on_transport(now, ip, receiver, counter, sealed),
        }
    }

    fn on_greeting(
        &mut self,
        now: Instant,
        sender: usize,
        ip: IpAddr,
        checked: &[u8],
        noise: &[u8],
        check: &[u8; CHECK_LEN],
    ) -> Result<(), Refused> {
        if noise::greeting_check(&self.public, checked) != *check {
            return Err(Refused::BadHandshake);
        }
        let limit = self.peers.get_mut(sender).map(|peer| &mut peer.greeting_limit);
        if !limit.is_some_and(|limit| limit.allow(now)) || !self.handshake_limit.allow(now) {
            return Err(Refused::RateLimited);
        }
        let seed = self.draw_seed();
        let mut handshake = noise::responder(seed, self.secret.bytes()).map_err(|_| Refused::BadHandshake)?;
        let mut buffer = [0; MAX_DATAGRAM];
        let length = handshake.read_message(noise, &mut buffer).map_err(|_| Refused::BadAuth)?;
        let payload = buffer.get(..length).and_then(GreetingPayload::decode).ok_or(Refused::BadHandshake)?;
        let remote: [u8; 32] =
            handshake.get_remote_static().and_then(|key| key.try_into().ok()).ok_or(Refused::BadHandshake)?;
        let (index, key) = self.find_key(ip, &remote).ok_or(Refused::BadAuth)?;

        let local = self.draw_index();
        let peer = self.peers.get_mut(index).ok_or(Refused::BadAuth)?;
        peer.expire(now);
        if peer.is_old_stamp(key, payload.stamp) && !mutants::off("stamp") {
            return Err(Refused::Replayed);
        }
        if let Some(seen) = peer.stamps.get_mut(key) {
            *seen = (*seen).max(Some(payload.stamp));
        }

        let mut bytes = wire::answer_header(payload.index);
        let answer = AnswerPayload { index: local, epoch: self.epoch }.encode();
        let length = handshake.write_message(&answer, &mut buffer).map_err(|_| Refused::BadHandshake)?;
        bytes.extend(buffer.iter().take(length));
        let transport = handshake.into_stateless_transport_mode().map_err(|_| Refused::BadHandshake)?;
        let facts = SessionFacts {
            local,
            remote: payload.index,
            ours: false,
            preferred: remote < self.public,
            epoch: payload.stamp.0,
            key,
        };
        let session = Session::new(transport, facts, now);
        let unconfirmed = Unconfirmed { session, stamp: payload.stamp, until: now + UNCONFIRMED_LIFE };
        self.outbox.transmit(peer.address, bytes);
        // A greeting may be a replay; only the one who can use the session proves that it wasn't. So the session waits
        // for the first authentic datagram on it.
        if mutants::off("key-confirmation") {
            confirm(peer, index, unconfirmed, &mut self.outbox, now);
        } else {
            peer.unconfirmed = Some(unconfirmed);
        }
        Ok(())
    }

    fn on_answer(&mut self, now: Instant, ip: IpAddr, receiver: u32, noise: &[u8]) -> Result<(), Refused> {
        let is_asked =
            |peer: &Peer| may_send_from(peer, ip) && peer.greeting().is_some_and(|greeting| greeting.index == receiver);
        let index = self.peers.iter().position(is_asked).ok_or(Refused::UnknownSession)?;
        let peer = self.peers.get_mut(index).ok_or(Refused::UnknownSession)?;
        if !peer.answer_limit.allow(now) || !self.handshake_limit.allow(now) {
            return Err(Refused::RateLimited);
        }
        peer.expire(now);
        let greeting = peer.attempt.as_mut().and_then(|attempt| attempt.greeting.as_mut());
        let handshake = greeting.map(|greeting| &mut greeting.handshake).ok_or(Refused::UnknownSession)?;
        let mut buffer = [0; MAX_DATAGRAM];
        // A forged answer leaves the handshake as it was: the true one may still come.
        let length = handshake.read_message(noise, &mut buffer).map_err(|_| Refused::BadAuth)?;
        let payload = buffer.get(..length).and_then(AnswerPayload::decode);

        // The handshake is spent now, whatever comes: a peer that answers nonsense is greeted again.
        let greeting = peer.attempt.as_mut().and_then(|attempt| attempt.greeting.take());
        let greeting = greeting.ok_or(Refused::UnknownSession)?;
        let payload = payload.ok_or(Refused::BadHandshake)?;
        let remote = peer.keys.get(greeting.key).ok_or(Refused::UnknownSession)?;
        let transport = greeting.handshake.into_stateless_transport_mode().map_err(|_| Refused::BadHandshake)?;
        let facts = SessionFacts {
            local: greeting.index,
            remote: payload.index,
            ours: true,
            preferred: self.public < *remote,
            epoch: payload.epoch,
            key: greeting.key,
        };
        peer.install(Session::new(transport, facts, now), now);
        self.outbox.counters.sessions += 1;
        heard(peer, index, payload.epoch, &mut self.outbox, now);
        // The peer waits for a proof that we have the session.
        send_content(peer, &mut self.outbox, now, &[]);
        Ok(())
    }

    fn on_transport(
        &mut self,
        now: Instant,
        ip: IpAddr,
        receiver: u32,
        counter: u64,
        sealed: &[u8],
    ) -> Result<(), Refused> {
        let index = self
            .peers
            .iter()
            .position(|peer| may_send_from(peer, ip) && peer.uses_index(receiver))
            .ok_or(Refused::UnknownSession)?;
        let peer = self.peers.get_mut(index).ok_or(Refused::UnknownSession)?;
        peer.expire(now);
        let (length, epoch) = match peer.unconfirmed.take_if(|other| other.session.local == receiver) {
            Some(mut unconfirmed) => {
                let epoch = unconfirmed.session.epoch;
                match unconfirmed.session.open(counter, sealed, &mut self.content) {
                    Ok(length) => {
                        confirm(peer, index, unconfirmed, &mut self.outbox, now);
                        (length, epoch)
                    }
                    Err(error) => {
                        peer.unconfirmed = Some(unconfirmed);
                        return Err(error.into());
                    }
                }
            }
            None => {
                let up = peer.up;
                let session = peer.receiving(receiver).ok_or(Refused::UnknownSession)?;
                if !up {
                    return Err(Refused::TooOld);
                }
                let opened = (session.open(counter, sealed, &mut self.content)?, session.epoch);
                peer.extend_replaced(receiver, now);
                opened
            }
        };
        heard(peer, index, epoch, &mut self.outbox, now);
        self.read_records(now, index, length);
        Ok(())
    }

    fn read_records(&mut self, now: Instant, index: usize, length: usize) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        let mut probed = false;
        for record in Records::new(self.content.get(..length).unwrap_or_default()) {
            match record {
                Ok(Record::Message(message)) => {
                    self.outbox.push(Output::Received { peer: peer_id(index), epoch: peer.epoch, message });
                }
                Ok(Record::Batch(bytes)) if self.carries_batches => {
                    self.outbox.push(Output::Batch { peer: peer_id(index), epoch: peer.epoch, bytes });
                }
                Ok(Record::Batch(_)) => self.outbox.counters.unknown_kind += 1,
                Ok(Record::Probe) => probed = true,
                Ok(Record::Unknown { .. }) => self.outbox.counters.unknown_kind += 1,
                Err(_) => self.outbox.counters.malformed_message += 1,
            }
        }
        if probed {
            send_content(peer, &mut self.outbox, now, &[]);
        }
    }

    /// The peer at this address that has this key, and which of its keys it is.
    fn find_key(&self, ip: IpAddr, remote: &[u8; 32]) -> Option<(usize, usize)> {
        let mut candidates = self.peers.iter().enumerate().filter(|(_, peer)| may_send_from(peer, ip));
        if mutants::off("auth") {
            return candidates.next().map(|(index, _)| (index, 0));
        }
        candidates.find_map(|(index, peer)| Some((index, peer.keys.iter().position(|key| key == remote)?)))
    }
}

/// Whether datagrams from this address can be the peer's. Its port is free: it may send from another socket.
fn may_send_from(peer: &Peer, ip: IpAddr) -> bool {
    peer.ip == ip || mutants::off("source-check")
}

/// Takes a session into use that the peer started and has proven to hold.
fn confirm(peer: &mut Peer, index: usize, unconfirmed: Unconfirmed, outbox: &mut Outbox, now: Instant) {
    let Unconfirmed { session, stamp, .. } = unconfirmed;
    let (key, epoch) = (session.key, session.epoch);
    peer.install(session, now);
    if let Some(seen) = peer.stamps.get_mut(key) {
        *seen = Some(stamp);
    }
    outbox.counters.sessions += 1;
    heard(peer, index, epoch, outbox, now);
    // Tells the peer that we have the session too.
    send_content(peer, outbox, now, &[]);
}

/// Something authentic and fresh arrived.
fn heard(peer: &mut Peer, index: usize, epoch: u64, outbox: &mut Outbox, now: Instant) {
    if !peer.up || peer.epoch != epoch {
        peer.up = true;
        peer.epoch = epoch;
        outbox.push(Output::Up { peer: peer_id(index), epoch });
    }
    peer.last_heard = Some(now);
}
