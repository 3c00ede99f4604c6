//! Backup: listens, and takes over when the Active is silent, resigns, or is to be preempted.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::{Heard, Phase, Reason, Router};
use crate::mutants;
use crate::timing::{active_down_interval, jitter, skew_time, skew_time_v2};
use crate::types::{AdvertInterval, Priority, Version};

#[derive(Debug, Clone, Copy)]
pub(super) struct Backup {
    /// RFC 9568 Active_Adver_Interval: the Active's as last heard, our own until then.
    pub(super) active_interval: AdvertInterval,
    /// When Active_Down_Timer was last set. The deadline is computed from it, so that a new priority moves it.
    armed_at: Instant,
    wait: Wait,
    /// When the last advert was heard that we gave way to.
    gave_way_at: Option<Instant>,
    /// Its priority.
    follows: Option<Priority>,
    /// The last advert that we mean to preempt.
    lower: Option<Heard>,
}

/// What Active_Down_Timer was set to.
#[derive(Debug, Clone, Copy)]
enum Wait {
    ActiveDown,
    Skew { peer: IpAddr },
}

impl Backup {
    pub(super) fn armed(now: Instant, active_interval: AdvertInterval, gave_way_at: Option<Instant>) -> Self {
        Self { active_interval, armed_at: now, wait: Wait::ActiveDown, gave_way_at, follows: None, lower: None }
    }

    /// Waits a whole Active_Down from now.
    pub(super) fn rearmed(self, now: Instant) -> Self {
        Self { armed_at: now, wait: Wait::ActiveDown, ..self }
    }
}

impl Router {
    /// RFC 9568 section 6.4.2, an advert in Backup.
    pub(super) fn advert_in_backup(&mut self, heard: Heard, backup: Backup) {
        let next = if heard.priority == Priority::RESIGN {
            let resigned = Backup { armed_at: heard.at, wait: Wait::Skew { peer: heard.from }, ..backup };
            if self.down_at(resigned) < self.down_at(backup) { resigned } else { backup }
        } else if self.gives_way_to(heard) {
            let armed = Backup::armed(heard.at, heard.interval, Some(heard.at));
            let next = Backup { follows: Some(heard.priority), ..armed };
            // Beyond the RFC: of two that are Active the lesser one is about to give way. Its shorter interval must not
            // make us believe that the better one is gone (the last word of a loser would, right after a change).
            let lesser = backup.follows.is_some_and(|followed| heard.priority < followed);
            let keeps = lesser && self.down_at(next) < self.down_at(backup) && !mutants::off("follow-the-better");
            if keeps { backup } else { next }
        } else {
            // Discarded: the timer runs on, and at its end we preempt.
            Backup { lower: Some(heard), ..backup }
        };
        self.phase = Phase::Backup(next);
    }

    /// Our priority has changed. Beyond the RFC, which compares only when it hears: an Active that we were about to preempt
    /// and no longer may (we fell below it, or `preempt_delay` began anew) has been heard when it was heard. Else the
    /// timer, which has run on since long before, would end too soon, for one that may be well.
    pub(super) fn compare_again(&mut self, backup: Backup) {
        let heard = backup.lower.filter(|lower| lower.at >= backup.armed_at && matches!(backup.wait, Wait::ActiveDown));
        if let Some(heard) = heard.filter(|heard| self.gives_way_to(*heard) && !mutants::off("outranked")) {
            self.advert_in_backup(heard, Backup { lower: None, ..backup });
        }
    }

    fn gives_way_to(&self, heard: Heard) -> bool {
        if heard.priority >= self.priority {
            return true;
        }
        // A node that failed and holds on only because nobody else did: it is never left alone by one that is well.
        if heard.priority == Priority::LAST_RESORT && !mutants::off("last-resort-yield") {
            return false;
        }
        // RFC 9568 section 6.1: the owner of the addresses preempts whatever Preempt_Mode.
        if self.priority == Priority::OWNER {
            return false;
        }
        // Without a delay a rise of ours counts nothing as too early, though it was heard before.
        let delayed = !self.config.preempt_delay.is_zero() && self.preempts_from().is_some_and(|from| heard.at < from);
        !self.config.preempt || delayed && !mutants::off("preempt-delay")
    }

    pub(super) fn on_down_timer(&mut self, now: Instant, backup: Backup) {
        if now < self.down_at(backup) {
            return;
        }
        let down = self.down_interval(backup.active_interval);
        let reason = match (backup.wait, backup.lower) {
            (Wait::Skew { peer }, _) => Reason::PeerResigned { peer },
            (Wait::ActiveDown, Some(lower)) if now.saturating_duration_since(lower.at) <= down => {
                Reason::Preempt { peer: lower.from, its: lower.priority }
            }
            (Wait::ActiveDown, _) => {
                Reason::DownTimer { silent: backup.gave_way_at.map(|at| now.saturating_duration_since(at)) }
            }
        };
        self.become_active(now, reason);
    }

    /// When Active_Down_Timer expires at our priority.
    pub(super) fn down_at(&self, backup: Backup) -> Instant {
        let wait = match backup.wait {
            Wait::ActiveDown => self.down_interval(backup.active_interval),
            Wait::Skew { .. } => self.skew(backup.active_interval),
        };
        backup.armed_at + wait
    }

    /// Active_Down_Interval by the timing of the unit, with our jitter.
    pub(super) fn down_interval(&self, active_interval: AdvertInterval) -> Duration {
        match self.timing {
            Version::V2 => 3 * active_interval.duration() + self.skew(active_interval),
            Version::V3 => active_down_interval(self.priority, active_interval) + self.jitter(active_interval),
        }
    }

    /// Skew_Time by the timing of the unit, with our jitter.
    fn skew(&self, active_interval: AdvertInterval) -> Duration {
        match self.timing {
            Version::V2 => skew_time_v2(self.priority) + self.jitter(AdvertInterval::DEFAULT),
            Version::V3 => skew_time(self.priority, active_interval) + self.jitter(active_interval),
        }
    }

    fn jitter(&self, skew_interval: AdvertInterval) -> Duration {
        let source = self.lead_source.filter(|_| self.config.jitter);
        source.map_or(Duration::ZERO, |source| jitter(source, skew_interval))
    }
}
