//! When a packet goes out, and what is in it (section 6.8.7).

use super::{Event, Session};
use crate::mutants;
use crate::wire::{Control, State};
use std::time::{Duration, Instant};

/// The whole interval, in 1/1024.
pub(super) const FULL: u32 = 1_024;
/// 75 % of it.
const LEAST: u32 = 768;
/// 90 %: what may not be passed where one lost packet ends the session.
const ALONE: u32 = 921;
/// Copies of a notice after the first.
const COPIES: u8 = 2;

/// Copies of a notice that one lost packet must not undo.
#[derive(Debug)]
pub(super) struct Repeats {
    left: u8,
    every: Duration,
    at: Instant,
}

impl Repeats {
    pub(super) fn at(&self) -> Instant {
        self.at
    }
}

impl Session {
    /// The next periodic packet. At once where none was sent.
    pub(super) fn send_at(&self) -> Option<Instant> {
        if self.is_silent() {
            return None;
        }
        let wait = self.tx_interval().saturating_mul(self.share) / FULL;
        self.sent_at.map_or(Some(self.since), |at| at.checked_add(wait))
    }

    /// Whether nothing is to be sent but answers.
    fn is_silent(&self) -> bool {
        let remote = &self.remote;
        self.left
            || (self.passive && remote.discriminator == 0)
            || (remote.min_rx.is_zero() && !mutants::off("min-rx-zero"))
            || (remote.demand && (remote.state, self.state) == (State::Up, State::Up) && !self.timing.is_polling())
    }

    /// Copies of what goes out next, at the rate that was agreed before.
    pub(super) fn repeat(&mut self, now: Instant, every: Duration) {
        if self.remote.discriminator != 0 && !mutants::off("repeats") {
            self.repeats = Some(Repeats { left: COPIES, every, at: now + every });
        }
    }

    /// Sends what is due by now: at most one packet.
    pub(super) fn send_due(&mut self, now: Instant) {
        let copy = self.repeats.as_ref().is_some_and(|repeats| repeats.at <= now);
        let periodic = self.send_at().is_some_and(|at| at <= now);
        let urgent = std::mem::take(&mut self.urgent) && self.may_speak();
        if copy || periodic || urgent {
            self.send(now);
        }
        if copy {
            self.repeats = self.repeats.take().filter(|repeats| repeats.left > 1).map(|repeats| Repeats {
                left: repeats.left - 1,
                at: now + repeats.every,
                ..repeats
            });
        }
        // What that packet has cleared the way for.
        if std::mem::take(&mut self.urgent) && self.may_speak() {
            self.send(now);
        }
    }

    /// A change may be told to a neighbour that wants no periodic packets, but not to one that we wait for.
    fn may_speak(&self) -> bool {
        !(self.left || self.passive && self.remote.discriminator == 0)
    }

    fn send(&mut self, now: Instant) {
        let most = if self.timing.multiplier() == 1 { ALONE } else { FULL };
        self.share = if mutants::off("jitter") { FULL } else { self.rng.between(LEAST, most) };
        self.sent_at = Some(now);
        let poll = self.timing.is_polling();
        self.emit(poll, false);
        if !poll {
            self.end_of_gap();
        }
    }

    /// F goes out whatever the timer says, and never with P.
    pub(super) fn answer_poll(&mut self) {
        self.emit(false, true);
    }

    fn emit(&mut self, poll: bool, final_: bool) {
        let packet = Control {
            diagnostic: self.diagnostic,
            state: self.state,
            poll,
            final_,
            control_plane_independent: true,
            demand: false,
            multiplier: self.timing.multiplier(),
            my_discriminator: self.discriminator.get(),
            your_discriminator: self.remote.discriminator,
            desired_min_tx: self.timing.desired_tx,
            required_min_rx: self.timing.required_rx,
            required_min_echo_rx: Duration::ZERO,
        };
        self.counters.sent = self.counters.sent.saturating_add(1);
        self.events.push_back(Event::Send { bytes: packet.encode() });
    }
}
