//! When a packet goes out, and what is in it (section 6.8.7).
//!
//! While both ends are Up, a packet of the neighbour's that comes in the last quarter of our interval takes ours along:
//! whoever runs us wakes up once for both. No interval becomes shorter than jitter may make it. From then on the
//! neighbour's next packet falls into that quarter as well, so our own timer only waits behind it, for the packet that
//! gets lost or comes as late as it may; and what jitters is the neighbour's rhythm.

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
/// How much of the interval the timer is shortened by at most while it waits behind the neighbour: 2.5 %.
const BEHIND: u32 = 26;
/// A packet of the neighbour's that comes within this part of our interval is followed by the next one before its end,
/// more likely than not: a quarter.
const SOON: u32 = 256;
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

    /// A packet of the neighbour's has just come: whether ours may go out with it. If not, and the next one will be in
    /// time for that, our timer waits for it.
    fn goes_along(&mut self, now: Instant) -> bool {
        let up = (self.state, self.remote.state) == (State::Up, State::Up);
        if !up || self.heard_at != Some(now) || self.is_silent() || mutants::off("company") {
            return false;
        }
        let interval = self.tx_interval();
        let after = |share: u32| self.sent_at?.checked_add(interval.saturating_mul(share) / FULL);
        if after(LEAST).is_some_and(|at| at <= now) {
            return true;
        }
        if after(SOON).is_some_and(|at| now <= at) {
            self.share = self.draw(true);
        }
        false
    }

    /// The share of the interval after which the timer comes.
    fn draw(&mut self, behind: bool) -> u32 {
        let most = if self.timing.multiplier() == 1 { ALONE } else { FULL };
        let least = if behind { most - BEHIND } else { LEAST };
        if mutants::off("jitter") { FULL } else { self.rng.between(least, most) }
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
        let along = self.goes_along(now);
        let periodic = along || self.send_at().is_some_and(|at| at <= now);
        let urgent = std::mem::take(&mut self.urgent) && self.may_speak();
        if copy || periodic || urgent {
            self.send(now, along);
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
            self.send(now, along);
        }
    }

    /// A change may be told to a neighbour that wants no periodic packets, but not to one that we wait for.
    fn may_speak(&self) -> bool {
        !(self.left || self.passive && self.remote.discriminator == 0)
    }

    fn send(&mut self, now: Instant, along: bool) {
        self.share = self.draw(along);
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
