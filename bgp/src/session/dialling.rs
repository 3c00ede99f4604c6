//! When a connection is attempted.

use std::time::{Duration, Instant};

use super::config::MAX_CONNECT_RETRY;
use super::io::{ConnId, Output, Reason, State};
use super::{Connection, Peer};
use crate::mutants;

/// A session that lasted this long was well: the next attempt comes quickly, and former failures are forgotten.
pub const HEALTHY: Duration = Duration::from_secs(30);

/// How long after a session that was well the first attempt comes.
const QUICK: Duration = Duration::from_millis(250);

/// How long the answer to an attempt is waited for at least. A new attempt sends its SYN at once, the kernel repeats an
/// old one's after 1, 3 and 7 s: given up here, a neighbour that appears is never waited for more than about 2 s.
const ATTEMPT: Duration = Duration::from_secs(4);

/// RFC 4271 ConnectRetryTimer, and what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dial {
    /// Stopped, link down, or a connection is being spoken on.
    Off,
    /// Accepts only.
    Passive,
    /// The next attempt comes. `idle`: later than usual, after what an attempt won't mend.
    Waiting { until: Instant, idle: bool },
    /// An attempt runs.
    Dialling { conn: ConnId, until: Instant },
}

impl Dial {
    pub(super) fn is(self, id: ConnId) -> bool {
        matches!(self, Self::Dialling { conn, .. } if conn == id)
    }

    pub(super) fn due(self) -> Option<Instant> {
        match self {
            Self::Off | Self::Passive => None,
            Self::Waiting { until, .. } | Self::Dialling { until, .. } => Some(until),
        }
    }

    pub(super) fn waits_until(self) -> Option<Instant> {
        match self {
            Self::Waiting { until, .. } => Some(until),
            Self::Off | Self::Passive | Self::Dialling { .. } => None,
        }
    }

    /// The state of a peer without a connection.
    pub(super) fn state(self) -> State {
        match self {
            Self::Off | Self::Waiting { idle: true, .. } => State::Idle,
            Self::Passive | Self::Waiting { idle: false, .. } => State::Active,
            Self::Dialling { .. } => State::Connect,
        }
    }
}

/// How long until the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delay {
    /// None.
    Now,
    /// A quarter of a second.
    Quick,
    /// ConnectRetryTime.
    Retry,
    /// ConnectRetryTime, doubled with each failure.
    BackOff,
}

impl Peer {
    /// Sets the time of the next attempt, whatever was set before. An attempt that runs must have ended.
    pub(super) fn schedule(&mut self, now: Instant, delay: Delay) {
        if !self.started || !self.link_up {
            self.dial = Dial::Off;
            return;
        }
        if self.config.passive {
            self.dial = Dial::Passive;
            return;
        }
        let retry = self.config.connect_retry;
        let wait = match delay {
            Delay::Now => {
                self.attempt(now);
                return;
            }
            Delay::Quick => QUICK.min(retry),
            Delay::Retry => retry,
            Delay::BackOff => {
                let doubled = retry.saturating_mul(1 << self.failures.min(10));
                self.failures = self.failures.saturating_add(1);
                if mutants::off("back-off") { retry } else { doubled.min(MAX_CONNECT_RETRY) }
            }
        };
        let until = now + self.random.jitter(wait);
        self.dial = Dial::Waiting { until, idle: delay == Delay::BackOff };
    }

    /// Gives up the attempt that runs or is to come.
    pub(super) fn abandon(&mut self) {
        if let Dial::Dialling { conn, .. } = self.dial {
            self.push(Output::Abort { conn });
        }
        self.dial = Dial::Off;
    }

    fn attempt(&mut self, now: Instant) {
        let conn = ConnId(self.next_conn);
        self.next_conn += 2;
        self.counters.dialled += 1;
        let patience = self.config.connect_retry.max(ATTEMPT);
        self.dial = Dial::Dialling { conn, until: now + self.random.jitter(patience) };
        self.push(Output::Connect { conn });
    }

    pub(super) fn dial_timer(&mut self, now: Instant) {
        match self.dial {
            Dial::Waiting { until, .. } if now >= until => {
                let speaks = self.connections.iter().any(|conn| conn.dialled || conn.state() > State::OpenSent);
                if speaks || self.config.passive {
                    self.schedule(now, Delay::Retry);
                } else {
                    self.attempt(now);
                    self.settle(now, Reason::Retry);
                }
            }
            Dial::Dialling { conn, until } if now >= until => {
                self.push(Output::Abort { conn });
                self.last_error = Some((now, Reason::ConnectTimeout));
                // RFC 4271 section 8.2.2, Connect: the next attempt follows at once.
                self.schedule(now, Delay::Now);
                self.settle(now, Reason::ConnectTimeout);
            }
            Dial::Off | Dial::Passive | Dial::Waiting { .. } | Dial::Dialling { .. } => {}
        }
    }

    pub(super) fn on_connect_failed(&mut self, now: Instant, id: ConnId, why: String) {
        if !self.dial.is(id) {
            return;
        }
        let reason = Reason::ConnectFailed { why };
        self.last_error = Some((now, reason.clone()));
        self.schedule(now, Delay::Retry);
        self.settle(now, reason);
    }

    /// A connection ended: there must be a next attempt, unless another connection leads on.
    pub(super) fn redial(&mut self, now: Instant, delay: Delay) {
        if matches!(self.dial, Dial::Dialling { .. }) || self.connections.iter().any(leads_on) {
            return;
        }
        // Another one that hasn't proved anything: not before it has had its time.
        let delay = if self.connections.is_empty() { delay } else { delay.max_with_retry() };
        self.schedule(now, delay);
    }
}

fn leads_on(conn: &Connection) -> bool {
    conn.dialled || conn.established().is_some()
}

impl Delay {
    fn max_with_retry(self) -> Self {
        match self {
            Self::Now | Self::Quick | Self::Retry => Self::Retry,
            Self::BackOff => Self::BackOff,
        }
    }
}
