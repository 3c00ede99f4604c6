//! One session (RFC 5880 section 6.8): states, Poll Sequences, when to send, when the neighbour is lost.
//!
//! Names in brackets are the RFC's: `bfd.SessionState` is [`Session::state`]. Where to look: this file holds the type and
//! what happens to it, `session/sending.rs` when and what it sends, `session/timing.rs` the intervals and what a Poll
//! Sequence makes of them.

#[cfg(test)]
pub(crate) mod company;
mod sending;
#[cfg(test)]
pub(crate) mod tests;
mod timing;

use crate::mutants;
use crate::rng::Rng;
use crate::timers::Timers;
use crate::wire::{Control, Diagnostic, LEN, State};
use sending::Repeats;
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};
use timing::Timing;

/// An AdminDown that the neighbour can't have missed any more is over after this at the latest.
const LEAVE_MAX: Duration = Duration::from_secs(5);

/// What a session wants done, or to be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Send this to the neighbour.
    Send {
        /// The payload.
        bytes: [u8; LEN],
    },
    /// The state has changed.
    State {
        /// The former one.
        from: State,
        /// This one.
        to: State,
        /// Why.
        diagnostic: Diagnostic,
    },
    /// The session is AdminDown, the neighbour knows: nothing more will be sent.
    Left,
}

/// What the neighbour says of itself. As in section 6.8.1 before its first packet, and again a detection time after the
/// last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Its name of the session (bfd.RemoteDiscr); 0: not known.
    pub discriminator: u32,
    /// Its state (bfd.RemoteSessionState).
    pub state: State,
    /// Why it left its former one.
    pub diagnostic: Diagnostic,
    /// It wants no periodic packets while both are Up (bfd.RemoteDemandMode).
    pub demand: bool,
    /// What it can receive (bfd.RemoteMinRxInterval); zero: it wants no periodic packets.
    pub min_rx: Duration,
    /// How often it wants to send.
    pub min_tx: Duration,
    /// Its Detect Mult.
    pub multiplier: u8,
}

impl Remote {
    const UNKNOWN: Self = Self {
        discriminator: 0,
        state: State::Down,
        diagnostic: Diagnostic::NONE,
        demand: false,
        min_rx: Duration::from_micros(1),
        min_tx: Duration::ZERO,
        multiplier: 1,
    };
}

/// Counted since the session was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that were to be sent.
    pub sent: u64,
    /// Packets that were taken.
    pub received: u64,
    /// How often it came Up.
    pub ups: u64,
    /// How often it was lost: from Up to Down.
    pub downs: u64,
}

/// See the module. Hand in one thing, drain [`Self::poll_event`], then the next; call [`Self::timer`] at
/// [`Self::poll_timeout`].
#[derive(Debug)]
pub struct Session {
    discriminator: NonZeroU32,
    /// Waits for the neighbour to begin.
    passive: bool,
    /// What is behind us serves.
    serving: bool,
    rng: Rng,
    events: VecDeque<Event>,
    state: State,
    diagnostic: Diagnostic,
    since: Instant,
    timing: Timing,
    remote: Remote,
    heard_at: Option<Instant>,
    /// When the last packet was sent on its own account, which answers to a Poll aren't.
    sent_at: Option<Instant>,
    /// The share of the interval until the next one, in 1/1024.
    share: u32,
    /// Something has changed that the neighbour shall hear at once.
    urgent: bool,
    repeats: Option<Repeats>,
    leave_at: Option<Instant>,
    left: bool,
    counters: Counters,
}

impl Session {
    /// A new session: Down, and about to send, unless it is passive: then when it has heard something. The discriminator
    /// must be unlike all others of this system.
    #[must_use]
    pub fn new(now: Instant, discriminator: NonZeroU32, timers: Timers, passive: bool, seed: u64) -> Self {
        Self {
            discriminator,
            passive,
            serving: true,
            rng: Rng::new(seed),
            events: VecDeque::new(),
            state: State::Down,
            diagnostic: Diagnostic::NONE,
            since: now,
            timing: Timing::new(timers),
            remote: Remote::UNKNOWN,
            heard_at: None,
            sent_at: None,
            share: sending::FULL,
            urgent: false,
            repeats: None,
            leave_at: None,
            left: false,
            counters: Counters::default(),
        }
    }

    /// A packet for this session has come.
    pub fn receive(&mut self, now: Instant, packet: &Control) {
        self.counters.received = self.counters.received.saturating_add(1);
        let former_tx = self.tx_interval();
        self.remote = Remote {
            discriminator: packet.my_discriminator,
            state: packet.state,
            diagnostic: packet.diagnostic,
            demand: packet.demand,
            min_rx: packet.required_min_rx,
            min_tx: packet.desired_min_tx,
            multiplier: packet.multiplier,
        };
        self.heard_at = Some(now);
        if packet.final_ && self.timing.is_polling() {
            self.finish_poll();
        }
        if mutants::off("speed-up-at-once") && self.tx_interval() < former_tx {
            self.sent_at = Some(now);
        }
        if self.state == State::AdminDown {
            return;
        }
        match (self.state, packet.state) {
            (State::Init | State::Up, State::AdminDown) => self.enter(now, State::Down, Diagnostic::NEIGHBOR_DOWN),
            (State::Up, State::Down) => self.enter(now, State::Down, Diagnostic::NEIGHBOR_DOWN),
            (State::Down, State::Down) if self.may_rise() => self.enter(now, State::Init, self.diagnostic),
            (State::Down, State::Init) if self.may_rise() => self.enter(now, State::Up, Diagnostic::NONE),
            (State::Init, State::Init | State::Up) => self.enter(now, State::Up, Diagnostic::NONE),
            _ => {}
        }
        if packet.poll {
            self.answer_poll();
        }
        self.send_due(now);
    }

    /// The time of [`Self::poll_timeout`] has come.
    pub fn timer(&mut self, now: Instant) {
        if self.detect_at().is_some_and(|at| at <= now) {
            self.lose(now);
        }
        if self.leave_at.is_some_and(|at| at <= now) {
            self.leave_at = None;
            self.left = true;
            self.repeats = None;
            self.events.push_back(Event::Left);
        }
        self.send_due(now);
    }

    /// The operator's times have changed. What is Up stays Up: a Poll Sequence makes them count (section 6.8.3).
    pub fn set_timers(&mut self, now: Instant, timers: Timers) {
        if self.timing.want(timers) {
            self.urgent = true;
        }
        self.adjust();
        self.send_due(now);
    }

    /// Taken down by the operator. The neighbour is told for as long as it would otherwise take to lose us, and then
    /// comes [`Event::Left`].
    pub fn admin_down(&mut self, now: Instant) {
        if self.state == State::AdminDown {
            return;
        }
        // Section 6.8.16: for at least a Detection Time, that of the neighbour.
        let known = self.remote.discriminator != 0;
        let needed = self.remote_detection_time().min(LEAVE_MAX);
        let every = self.tx_interval();
        self.enter(now, State::AdminDown, Diagnostic::ADMIN_DOWN);
        self.leave_at = Some(if known { now + needed } else { now });
        self.repeat(now, every);
        if !known {
            self.urgent = false;
        }
        self.timer(now);
    }

    /// The operator wants it again.
    pub fn admin_up(&mut self, now: Instant) {
        if self.state == State::AdminDown {
            (self.leave_at, self.left) = (None, false);
            self.enter(now, State::Down, Diagnostic::NONE);
            self.send_due(now);
        }
    }

    /// Whether what is behind us serves. If not, the session goes Down, which the neighbour takes for a failure, and stays
    /// there (sections 6.2 and 6.8.15).
    pub fn set_serving(&mut self, now: Instant, serving: bool) {
        self.serving = serving;
        if !serving && matches!(self.state, State::Init | State::Up) {
            let every = self.tx_interval();
            self.enter(now, State::Down, Diagnostic::DATA_PLANE);
            self.repeat(now, every);
            self.send_due(now);
        }
    }

    /// The next thing that the session wants, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`Self::timer`] at the latest; `None`: nothing armed.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let repeat = self.repeats.as_ref().map(Repeats::at);
        [self.detect_at(), self.send_at(), repeat, self.leave_at].into_iter().flatten().min()
    }

    /// bfd.LocalDiscr.
    #[must_use]
    pub fn discriminator(&self) -> NonZeroU32 {
        self.discriminator
    }

    /// bfd.SessionState.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// bfd.LocalDiag: why the former state was left.
    #[must_use]
    pub fn diagnostic(&self) -> Diagnostic {
        self.diagnostic
    }

    /// When this state was entered.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since
    }

    /// The neighbour.
    #[must_use]
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// AdminDown, and nothing more will be sent.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.left
    }

    fn may_rise(&self) -> bool {
        self.serving || mutants::off("hold-down")
    }

    /// Nothing was heard for a detection time.
    fn lose(&mut self, now: Instant) {
        self.heard_at = None;
        self.remote = Remote::UNKNOWN;
        if matches!(self.state, State::Init | State::Up) {
            self.enter(now, State::Down, Diagnostic::EXPIRED);
        }
    }

    /// The only way from one state to another.
    fn enter(&mut self, now: Instant, to: State, diagnostic: Diagnostic) {
        let from = std::mem::replace(&mut self.state, to);
        (self.diagnostic, self.since) = (diagnostic, now);
        self.repeats = None;
        self.urgent = true;
        if to == State::Up {
            self.counters.ups += 1;
        } else if from == State::Up && to == State::Down {
            self.counters.downs += 1;
        }
        self.adjust();
        self.events.push_back(Event::State { from, to, diagnostic });
    }
}
