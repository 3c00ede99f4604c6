//! What the channel holds for one peer: its sessions, the handshake in flight, and when something is due.

use super::limit::RateLimit;
use super::session::Session;
use super::types::PeerConfig;
use super::{IDLE_TIMEOUT, KEEPALIVE_INTERVAL, PROBE_AFTER, PROBE_INTERVAL};
use snow::HandshakeState;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// How long a replaced session still receives after the last use: what was on its way.
pub(crate) const REPLACED_LIFE: Duration = Duration::from_secs(5);

/// Replaced sessions that still receive: one from before a handshake, one from a handshake that both sides started.
pub(crate) const REPLACED_MAX: usize = 2;

/// How long a session that the peer started waits for its first authentic datagram.
pub(crate) const UNCONFIRMED_LIFE: Duration = Duration::from_secs(5);

/// Sessions of both sides' handshakes within this time are taken as started at once. Shorter than the idle time: a peer
/// that greets because it lost us has dropped the session that we have.
pub(crate) const GLARE_TIME: Duration = Duration::from_millis(300);

/// Handshakes by one peer that we compute: per second, and at once.
const HANDSHAKES_PER_SECOND: u32 = 10;
const HANDSHAKES_BURST: u32 = 5;

/// A session that the peer started and hasn't used yet.
pub(crate) struct Unconfirmed {
    pub(crate) session: Session,
    pub(crate) stamp: (u64, u64),
    pub(crate) until: Instant,
}

/// A handshake that we are trying.
#[derive(Default)]
pub(crate) struct Attempt {
    /// Greetings sent so far.
    pub(crate) tries: u32,
    /// When the next greeting goes out; `None`: at once.
    pub(crate) retry_at: Option<Instant>,
    /// The last greeting, as long as its answer may come.
    pub(crate) greeting: Option<Greeting>,
}

/// A greeting on its way.
pub(crate) struct Greeting {
    pub(crate) handshake: HandshakeState,
    pub(crate) index: u32,
    pub(crate) key: usize,
}

/// See the module documentation.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) ip: IpAddr,
    pub(crate) keys: Vec<[u8; 32]>,
    pub(crate) up: bool,
    pub(crate) epoch: u64,
    pub(crate) last_heard: Option<Instant>,
    /// The session to send on. It receives only while the peer is up: what an old session delivers after a silence
    /// may have been held back by someone.
    pub(crate) current: Option<Session>,
    /// Sessions that only receive, and until when.
    pub(crate) replaced: Vec<(Session, Instant)>,
    pub(crate) unconfirmed: Option<Unconfirmed>,
    pub(crate) attempt: Option<Attempt>,
    /// Newest stamp seen, per key.
    pub(crate) stamps: Vec<Option<(u64, u64)>>,
    pub(crate) last_sent: Instant,
    pub(crate) last_probe: Instant,
    pub(crate) greeting_limit: RateLimit,
    pub(crate) answer_limit: RateLimit,
}

impl Peer {
    pub(crate) fn new(config: PeerConfig, now: Instant) -> Self {
        let limit = RateLimit::new(HANDSHAKES_PER_SECOND, HANDSHAKES_BURST, now);
        Self {
            address: config.address,
            ip: config.address.ip().to_canonical(),
            stamps: vec![None; config.public_keys.len()],
            keys: config.public_keys,
            up: false,
            epoch: 0,
            last_heard: None,
            current: None,
            replaced: Vec::new(),
            unconfirmed: None,
            attempt: None,
            last_sent: now,
            last_probe: now,
            greeting_limit: limit.clone(),
            answer_limit: limit,
        }
    }

    /// Puts a session in place that is proven to be the peer's. The one before keeps receiving for a while, unless it
    /// is of another run of the peer or went silent.
    pub(crate) fn install(&mut self, session: Session, now: Instant) {
        self.attempt = None;
        if !self.up || self.epoch != session.epoch {
            self.current = None;
            self.replaced.clear();
        }
        if self.unconfirmed.as_ref().is_some_and(|other| other.session.epoch != session.epoch) {
            self.unconfirmed = None;
        }
        let replaced = match self.current.take() {
            // Both sides started at once. They agree on the session of the lower key, and both receive on either.
            Some(current)
                if current.preferred
                    && !session.preferred
                    && session.established.saturating_duration_since(current.established) < GLARE_TIME =>
            {
                self.current = Some(current);
                Some(session)
            }
            before => {
                self.current = Some(session);
                before
            }
        };
        if let Some(replaced) = replaced {
            if self.replaced.len() >= REPLACED_MAX {
                self.replaced.remove(0);
            }
            self.replaced.push((replaced, now + REPLACED_LIFE));
        }
    }

    /// Keeps a replaced session as long as the peer uses it: should the two sides ever disagree which one to send on,
    /// both still hear each other.
    pub(crate) fn extend_replaced(&mut self, index: u32, now: Instant) {
        if let Some((session, until)) = self.replaced.iter_mut().find(|(session, _)| session.local == index) {
            *until = (now + REPLACED_LIFE).min(session.ends_at());
        }
    }

    /// The confirmed session with this index, if it may receive.
    pub(crate) fn receiving(&mut self, index: u32) -> Option<&mut Session> {
        self.current
            .iter_mut()
            .chain(self.replaced.iter_mut().map(|(session, _)| session))
            .find(|session| session.local == index)
    }

    /// Whether an index already means something here.
    pub(crate) fn uses_index(&self, index: u32) -> bool {
        let mut sessions = self.current.iter().chain(self.replaced.iter().map(|(session, _)| session));
        sessions.any(|session| session.local == index)
            || self.unconfirmed.as_ref().is_some_and(|other| other.session.local == index)
            || self.greeting().is_some_and(|greeting| greeting.index == index)
    }

    /// The greeting on its way.
    pub(crate) fn greeting(&self) -> Option<&Greeting> {
        self.attempt.as_ref()?.greeting.as_ref()
    }

    /// Whether a greeting with this stamp is older than what is known: a replay, or a delayed copy.
    pub(crate) fn is_old_stamp(&self, key: usize, stamp: (u64, u64)) -> bool {
        let seen = self.stamps.get(key).copied().flatten();
        // With whichever key: while keys rotate, a recording under the old one must not push out the new run's session.
        let waiting = self.unconfirmed.as_ref().map(|other| other.stamp);
        // Without a living session an older stamp is let through: the peer's clock may have stepped back before it
        // restarted. A replay gains nothing by it, since nobody can use the session that comes of it.
        (self.up && seen.is_some_and(|seen| stamp <= seen)) || waiting.is_some_and(|waiting| stamp <= waiting)
    }

    /// Drops what is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.current.take_if(|session| now >= session.ends_at());
        self.replaced.retain(|(_, until)| now < *until);
        self.unconfirmed.take_if(|other| now >= other.until);
    }

    /// When a handshake is to be started, if none is being tried; `None`: at once.
    fn renew_at(&self) -> Option<Instant> {
        self.current.as_ref().filter(|_| self.up).map(Session::renew_at)
    }

    /// Whether a handshake is wanted.
    pub(crate) fn wants_session(&self, now: Instant) -> bool {
        !self.keys.is_empty() && self.renew_at().is_none_or(|at| now >= at)
    }

    /// When the peer is to be taken as gone.
    pub(crate) fn idle_at(&self) -> Option<Instant> {
        self.last_heard.filter(|_| self.up).map(|at| at + IDLE_TIMEOUT)
    }

    /// When an empty datagram has to go out, so that the peer knows us alive.
    pub(crate) fn keepalive_at(&self) -> Option<Instant> {
        self.current.as_ref().map(|_| self.last_sent + KEEPALIVE_INTERVAL)
    }

    /// When the peer has to be asked for a sign of life.
    pub(crate) fn probe_at(&self) -> Option<Instant> {
        let heard = self.last_heard.filter(|_| self.up && self.current.is_some())?;
        Some((heard + PROBE_AFTER).max(self.last_probe + PROBE_INTERVAL))
    }

    /// The next time at which something is due; `now`-independent, so "at once" is the time of the last datagram sent.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let handshake = match &self.attempt {
            _ if self.keys.is_empty() => None,
            Some(attempt) => Some(attempt.retry_at.unwrap_or(self.last_sent)),
            None => Some(self.renew_at().unwrap_or(self.last_sent)),
        };
        [
            handshake,
            self.idle_at(),
            self.keepalive_at(),
            self.probe_at(),
            self.current.as_ref().map(Session::ends_at),
            self.replaced.iter().map(|(_, until)| *until).min(),
            self.unconfirmed.as_ref().map(|other| other.until),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}
