//! Active: advertises, answers those who claim the addresses too, and gives way to a better one.

use std::time::Instant;

use super::{ANSWERS_PER_INTERVAL, Heard, Output, Phase, Reason, ReassertReason, Router};
use crate::mutants;
use crate::types::Priority;

#[derive(Debug, Clone, Copy)]
pub(super) struct Active {
    /// RFC 9568 Adver_Timer.
    pub(super) advert_at: Instant,
    /// Stalled: silent until `advert_at`, which a losing advert brings forward to now.
    pub(super) listening: bool,
    /// Immediate answers left until the next regular advert.
    answers_left: u8,
    /// To be put out with the next regular advert.
    reassert_owed: Option<ReassertReason>,
}

impl Active {
    pub(super) fn fresh(advert_at: Instant) -> Self {
        Self { advert_at, listening: false, answers_left: ANSWERS_PER_INTERVAL, reassert_owed: None }
    }
}

/// What an advert heard by an Active means.
enum Verdict {
    Loses,
    Wins,
    /// An equal, and it is on another leg that it is decided.
    Elsewhere,
}

impl Router {
    /// RFC 9568 section 6.4.3, an advert in Active. `new_form`: by it we learnt to send another checksum there.
    pub(super) fn advert_in_active(&mut self, heard: Heard, active: Active, new_form: bool) {
        match self.verdict(heard) {
            Verdict::Loses => {
                // Beyond the RFC: the last word, so that the winner knows of the conflict and re-announces.
                if !mutants::off("last-advert-of-the-loser") {
                    self.send_advert();
                }
                let reason = Reason::Outranked { by: heard.from, its: heard.priority };
                self.become_backup(heard.at, heard.interval, Some(heard.at), reason);
            }
            Verdict::Wins if mutants::off("losing-advert-answered") => {}
            Verdict::Wins => self.answer(heard, active),
            // It never understood what we said until now.
            Verdict::Elsewhere if new_form && !active.listening => {
                if let Some(answers_left) = active.answers_left.checked_sub(1) {
                    self.phase = Phase::Active(Active { answers_left, ..active });
                    self.send_advert_on(heard.leg.index());
                }
            }
            Verdict::Elsewhere => {}
        }
    }

    /// To a higher priority an Active gives way, and between equals to the higher address, compared as unsigned numbers
    /// in network byte order (section 6.4.3).
    fn verdict(&mut self, heard: Heard) -> Verdict {
        if heard.priority > self.priority {
            return Verdict::Loses;
        }
        if heard.priority < self.priority || mutants::off("tie-break") {
            return Verdict::Wins;
        }
        if !self.decides_tie(heard.at, heard.leg.index(), heard.interval) {
            return Verdict::Elsewhere;
        }
        let loses = self.source(heard.leg).is_some_and(|ours| heard.from > ours);
        if loses { Verdict::Loses } else { Verdict::Wins }
    }

    /// Answers a losing advert, or a resignation, on the leg where it was heard.
    fn answer(&mut self, heard: Heard, active: Active) {
        let reassert = ReassertReason::LosingAdvert { from: heard.from, its: heard.priority };
        if active.listening {
            // What a sleeper finds in its socket may be old: it hears the rest first, then the timer answers once.
            self.phase = Phase::Active(Active { advert_at: heard.at, reassert_owed: Some(reassert), ..active });
            return;
        }
        let Some(answers_left) = active.answers_left.checked_sub(1) else {
            self.counters.answers_held_back += 1;
            self.phase = Phase::Active(Active { reassert_owed: Some(reassert), ..active });
            return;
        };
        // A resignation resets Adver_Timer, a losing advert leaves it. With more legs than the one that is answered the
        // others' rhythm stands.
        let resets = heard.priority == Priority::RESIGN && self.legs.len() == 1;
        let advert_at = if resets { heard.at + self.config.interval.duration() } else { active.advert_at };
        self.phase = Phase::Active(Active { advert_at, answers_left, ..active });
        if self.source(heard.leg).is_some() {
            self.send_advert_on(heard.leg.index());
        } else {
            self.send_advert();
        }
        self.push(Output::Reassert(reassert));
    }

    pub(super) fn on_advert_timer(&mut self, now: Instant, active: Active) {
        if now < active.advert_at {
            return;
        }
        let interval = self.config.interval.duration();
        // Keeps the rhythm when a little late; when later than an interval the missed ones stay missed.
        let next = active.advert_at + interval;
        let next = if next > now || mutants::off("advert-burst") { next } else { now + interval };
        self.phase = Phase::Active(Active::fresh(next));
        self.send_advert();
        let stalled = active.listening.then_some(ReassertReason::Stalled);
        if let Some(reason) = active.reassert_owed.or(stalled) {
            self.push(Output::Reassert(reason));
        }
    }

    /// The advert that is due soon goes out now, and the next one an interval from now. One that is due already, or a
    /// silence after a stall, is the timer's.
    pub(super) fn advertise_early(&mut self, now: Instant, active: Active) {
        if active.listening || active.advert_at <= now {
            return;
        }
        self.phase = Phase::Active(Active::fresh(now + self.config.interval.duration()));
        self.send_advert();
        if let Some(reason) = active.reassert_owed {
            self.push(Output::Reassert(reason));
        }
    }

    pub(super) fn on_stalled(&mut self, now: Instant, active: Active) {
        // Told twice, the silence isn't prolonged.
        if active.listening && now < active.advert_at {
            return;
        }
        let advert_at = now + self.config.interval.duration();
        self.phase = Phase::Active(Active { advert_at, listening: true, ..active });
    }

    /// A shorter interval begins now, not after the longer one that runs.
    pub(super) fn bring_forward(&mut self, now: Instant) {
        let latest = now + self.config.interval.duration();
        if let Phase::Active(active) = &mut self.phase {
            active.advert_at = active.advert_at.min(latest);
        }
    }

    /// Whether an advert may go out now: Active, and not listening after a stall.
    pub(super) fn may_speak(&self) -> bool {
        matches!(self.phase, Phase::Active(active) if !active.listening)
    }
}
