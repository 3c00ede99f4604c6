//! One TCP connection: where it is in the handshake, with the timers that exist only there.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::established::Established;
use super::io::{ConnId, Negotiated, State};
use crate::mutants;
use crate::wire::{Codec, Framer};

/// How long a neighbour's OPEN is waited for (RFC 4271 section 8.2.2 suggests four minutes).
pub const OPEN_HOLD: Duration = Duration::from_secs(240);

/// A hold timer noticed later than this means that we stood still ourselves.
pub(super) const LATE: Duration = Duration::from_millis(200);

/// How long what waits in the socket then has to be heard.
const MOMENT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnId,
    pub(super) dialled: bool,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) opened_at: Instant,
    pub(super) framer: Framer,
    /// From the neighbour's OPEN on.
    pub(super) negotiated: Option<Negotiated>,
    pub(super) codec: Codec,
    pub(super) phase: Phase,
    /// What the socket hadn't taken when last told.
    pub(super) queued: usize,
    /// Since when it has taken nothing.
    blocked_since: Option<Instant>,
    /// Bytes handed over since `queued` was told.
    sent_since: usize,
}

/// RFC 4271 section 8.2.2, from OpenSent on.
#[derive(Debug)]
pub(super) enum Phase {
    OpenSent { hold_at: Instant },
    OpenConfirm(OpenConfirm),
    Established(Box<Established>),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct OpenConfirm {
    pub(super) hold: Hold,
    /// Our KEEPALIVE is out, and the next one due then (never with a hold time of 0). `None`: it isn't, since another
    /// connection may be the better one.
    pub(super) confirmed: Option<Keepalive>,
    /// The neighbour's KEEPALIVE came.
    pub(super) ready: bool,
    /// Until when a better connection is waited for.
    pub(super) patience: Option<Instant>,
    /// It was waited for long enough.
    pub(super) impatient: bool,
    /// What a session that was there before had heard when this one challenged it.
    pub(super) challenged: Option<u64>,
}

/// RFC 4271 HoldTimer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hold {
    pub(super) time: Duration,
    /// `None`: hold time 0.
    at: Option<Instant>,
    graced: bool,
}

impl Hold {
    pub(super) fn new(now: Instant, time: Duration) -> Self {
        Self { time, at: (time != Duration::ZERO).then(|| now + time), graced: false }
    }

    pub(super) fn restart(&mut self, now: Instant) {
        *self = Self::new(now, self.time);
    }

    /// Whether it has expired. Noticed late, it is put off once by a moment.
    pub(super) fn expired(&mut self, now: Instant) -> bool {
        let Some(at) = self.at.filter(|at| now >= *at) else { return false };
        if now - at < LATE || self.graced || mutants::off("late-hold-timer") {
            return true;
        }
        self.graced = true;
        self.at = Some(now + MOMENT);
        false
    }
}

/// RFC 4271 KeepaliveTimer. `None`: hold time 0.
pub(super) type Keepalive = Option<Instant>;

impl Connection {
    pub(super) fn new(now: Instant, id: ConnId, dialled: bool, local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            id,
            dialled,
            local,
            remote,
            opened_at: now,
            framer: Framer::new(),
            negotiated: None,
            codec: Codec::LENIENT,
            phase: Phase::OpenSent { hold_at: now + OPEN_HOLD },
            queued: 0,
            blocked_since: None,
            sent_since: 0,
        }
    }

    pub(super) fn state(&self) -> State {
        match self.phase {
            Phase::OpenSent { .. } => State::OpenSent,
            Phase::OpenConfirm(_) => State::OpenConfirm,
            Phase::Established(_) => State::Established,
        }
    }

    pub(super) fn established(&self) -> Option<&Established> {
        match &self.phase {
            Phase::Established(established) => Some(established),
            Phase::OpenSent { .. } | Phase::OpenConfirm(_) => None,
        }
    }

    pub(super) fn established_mut(&mut self) -> Option<&mut Established> {
        match &mut self.phase {
            Phase::Established(established) => Some(established),
            Phase::OpenSent { .. } | Phase::OpenConfirm(_) => None,
        }
    }

    pub(super) fn confirm_mut(&mut self) -> Option<&mut OpenConfirm> {
        match &mut self.phase {
            Phase::OpenConfirm(confirm) => Some(confirm),
            Phase::OpenSent { .. } | Phase::Established(_) => None,
        }
    }

    pub(super) fn confirm(&self) -> Option<&OpenConfirm> {
        match &self.phase {
            Phase::OpenConfirm(confirm) => Some(confirm),
            Phase::OpenSent { .. } | Phase::Established(_) => None,
        }
    }

    /// Whether it has waited long enough for a better connection.
    pub(super) fn patience_timer(&mut self, now: Instant) {
        if let Some(confirm) = self.confirm_mut()
            && confirm.patience.is_some_and(|until| now >= until)
        {
            confirm.patience = None;
            confirm.impatient = true;
        }
    }

    /// The hold time that was negotiated.
    pub(super) fn hold_time(&self) -> Duration {
        self.negotiated.map_or(OPEN_HOLD, |negotiated| negotiated.hold_time)
    }

    /// When the earliest of its timers is due.
    pub(super) fn due(&self, send_hold: Duration) -> Option<Instant> {
        let own = match &self.phase {
            Phase::OpenSent { hold_at } => Some(*hold_at),
            Phase::OpenConfirm(confirm) => {
                [confirm.hold.at, confirm.confirmed.flatten(), confirm.patience].into_iter().flatten().min()
            }
            Phase::Established(established) => {
                let more = established.more_at(self.queued);
                [established.hold.at, established.keepalive_at, more].into_iter().flatten().min()
            }
        };
        own.into_iter().chain(self.gives_up_at(send_hold)).min()
    }

    /// RFC 9687 SendHoldTimer.
    pub(super) fn gives_up_at(&self, send_hold: Duration) -> Option<Instant> {
        self.blocked_since.map(|since| since + send_hold)
    }

    /// `bytes` more were handed over.
    pub(super) fn handed_over(&mut self, bytes: usize) {
        self.sent_since += bytes;
    }

    /// What the socket hasn't taken yet. Any byte taken restarts the send hold time.
    pub(super) fn set_queued(&mut self, now: Instant, bytes: usize) {
        let took = bytes < self.queued + self.sent_since;
        self.sent_since = 0;
        self.queued = bytes;
        self.blocked_since = match self.blocked_since {
            _ if bytes == 0 => None,
            Some(since) if !took => Some(since),
            _ => Some(now),
        };
    }
}
