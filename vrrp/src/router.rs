//! The state machine of a unit (RFC 9568 section 6.4), sans-IO.
//!
//! A **unit** is what moves as one: the addresses of one service, or of several that must be on one node. Each of its
//! **legs** is one virtual router on the wire, with its interface, VRID, family and version. One machine is Active or
//! Backup with all of them: it advertises on each, and an advert heard on any is an input. So IPv4 and IPv6 move
//! together, a group can't oscillate, and one silent leg never splits the unit.
//!
//! Where to look: this file holds the type and the dispatch of inputs, `router/backup.rs` and `router/active.rs` what
//! happens in these states, `router/legs.rs` the legs and what is sent on them, `router/checksums.rs` which checksum,
//! `router/io.rs` what goes in and comes out.
//!
//! Where we go beyond the RFC or differ from it:
//! - an Active that loses sends one last advert before it becomes Backup: its winner learns that there were two, and
//!   re-announces. Without it the neighbours' ARP entries may point at the loser for as long as they live;
//! - an Active that hears a losing advert re-announces the addresses ([`Output::Reassert`]), beside the immediate
//!   advert that RFC 9568 section 6.4.3 asks for (which goes out on the leg where it was heard);
//! - immediate answers have a limit per interval, so that two confused routers can't storm the segment;
//! - a priority 0 in Backup never moves the deadline later (section 6.4.2 sets the timer to Skew_Time; repeated
//!   resignations could postpone a takeover for ever);
//! - a waiting router adds less than one priority step of the skew by its address where equals must be reckoned with ([`jitter`](crate::timing::jitter)),
//!   so that equals don't fire together;
//! - a Backup that follows one Active doesn't let a lesser one's shorter interval bring its deadline forward;
//! - `preempt_delay`, which holds only while a lower one is Active;
//! - an Active at [`Priority::LAST_RESORT`] is preempted whatever `preempt` and `preempt_delay` say: a node that failed
//!   always yields to one that is well.
//!
//! A peer that isn't one machine over all legs, such as two independent instances of another make, can be Active on one
//! leg only. We are then Backup with all: what it doesn't hold nobody holds, until its other instance takes it. Put such
//! a peer's instances into one group (keepalived: `vrrp_sync_group`), or give each its own unit here.
//! [`Router::heard_on`] tells which legs are silent.

mod active;
mod backup;
mod checksums;
mod io;
mod legs;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

pub use io::{Counters, Heard, Input, Notice, Output, Packet, Reason, ReassertReason, RouterConfig, State, Transition};

use crate::mutants;
use crate::types::{AdvertInterval, LegId, Priority, Version};
use crate::wire::{Advert, ChecksumForm};
use active::Active;
use backup::Backup;
use legs::{Leg, Tie};

/// How many losing adverts are answered at once per interval. More than a segment has routers; beyond it the next
/// regular advert is the answer, and the announcement that was owed comes with it.
pub const ANSWERS_PER_INTERVAL: u8 = 16;

/// Outputs held for a caller that doesn't drain, beside room for four adverts on each leg. When full the oldest is lost
/// and counted; an input makes at most five and an advert on each leg.
pub const OUTPUTS_MAX: usize = 64;

/// One unit.
#[derive(Debug)]
pub struct Router {
    config: RouterConfig,
    /// As many as the configuration has, in its order.
    legs: Vec<Leg>,
    /// The source on the lowest leg that has one: who we are between equals.
    lead_source: Option<IpAddr>,
    /// Whose timers are kept.
    timing: Version,
    phase: Phase,
    since: Instant,
    priority: Priority,
    /// When `preempt_delay` began: at Start, and at each rise of the priority.
    rose_at: Option<Instant>,
    tie: Option<Tie>,
    heard: Option<Heard>,
    counters: Counters,
    outputs: VecDeque<Output>,
}

/// A state with what only exists in it.
#[derive(Debug, Clone, Copy)]
enum Phase {
    Initialize,
    Backup(Backup),
    Active(Active),
}

impl Router {
    /// A router in Initialize.
    pub fn new(config: RouterConfig, now: Instant) -> Self {
        Self {
            legs: config.legs.iter().map(Leg::new).collect(),
            lead_source: None,
            timing: legs::keeps_time_of(&config.legs),
            config,
            phase: Phase::Initialize,
            since: now,
            priority: Priority::LAST_RESORT,
            rose_at: None,
            tie: None,
            heard: None,
            counters: Counters::default(),
            outputs: VecDeque::new(),
        }
    }

    /// How it is configured.
    pub fn config(&self) -> &RouterConfig {
        &self.config
    }

    /// The state.
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Initialize => State::Initialize,
            Phase::Backup(_) => State::Backup,
            Phase::Active(_) => State::Active,
        }
    }

    /// When the state was entered.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Our effective priority. Meaningless before the first Start or Resume (then [`Priority::LAST_RESORT`]).
    pub fn priority(&self) -> Priority {
        self.priority
    }

    /// The last valid advert of another router on any leg, heard in whatever state.
    pub fn heard(&self) -> Option<Heard> {
        self.heard
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How long this router waits for an Active that has gone silent: Active_Down_Interval at its priority (with its
    /// jitter), with the Active's interval while it is Backup, its own elsewhere.
    pub fn active_down(&self) -> Duration {
        match self.phase {
            Phase::Backup(backup) => self.down_interval(backup.active_interval),
            Phase::Initialize | Phase::Active(_) => self.down_interval(self.config.interval),
        }
    }

    /// When `preempt_delay` ends, if it was begun: until then a lower Active is left alone.
    pub fn preempts_from(&self) -> Option<Instant> {
        self.rose_at.map(|at| at + self.config.preempt_delay)
    }

    /// When [`Input::Timer`] is due; `None`: nothing armed. May have passed already, if the last call came late.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Initialize => None,
            Phase::Backup(backup) => Some(self.down_at(backup)),
            Phase::Active(active) => Some(active.advert_at),
        }
    }

    /// The next thing to do. Drain it after each input.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) {
        match (input, self.phase) {
            (Input::Advert { leg, source, advert, form }, _) => self.on_advert(now, leg, source, advert, form),
            (Input::Source { leg, source }, _) => self.on_source(leg, source),
            (Input::Priority(priority), _) => self.on_priority(now, priority),

            (Input::Start { priority }, Phase::Initialize) => self.on_start(now, priority),
            (Input::Resume { priority }, Phase::Initialize) => {
                self.set_priority(own(priority));
                self.become_active(now, Reason::Resumed);
            }

            (Input::Timer, Phase::Backup(backup)) => self.on_down_timer(now, backup),
            (Input::Promote, Phase::Backup(_)) => self.become_active(now, Reason::Promoted),
            (Input::OwnerLives | Input::Stalled, Phase::Backup(backup)) => {
                self.phase = Phase::Backup(backup.rearmed(now));
            }

            (Input::Timer, Phase::Active(active)) => self.on_advert_timer(now, active),
            (Input::Advertise, Phase::Active(active)) => self.advertise_early(now, active),
            (Input::Stalled, Phase::Active(active)) => self.on_stalled(now, active),
            (Input::Resign, Phase::Active(_)) => {
                self.send_resignation();
                self.become_backup(now, self.config.interval, None, Reason::Resigned);
            }
            (Input::Yield, Phase::Active(_)) => {
                self.become_backup(now, self.config.interval, None, Reason::Yielded);
            }

            // RFC 9568 section 6.4.3: an Active that shuts down says so. A Backup leaves silently (6.4.2).
            (Input::Stop, Phase::Active(_)) => {
                if !mutants::off("resign-on-stop") {
                    self.send_resignation();
                }
                self.enter(now, Phase::Initialize, Reason::Stopped);
            }
            (Input::Stop, Phase::Backup(_)) => self.enter(now, Phase::Initialize, Reason::Stopped),

            // Each of these has no meaning in the state it came in.
            (Input::Start { .. } | Input::Resume { .. }, Phase::Backup(_) | Phase::Active(_))
            | (Input::Promote | Input::OwnerLives, Phase::Initialize | Phase::Active(_))
            | (Input::Advertise, Phase::Initialize | Phase::Backup(_))
            | (Input::Resign | Input::Yield, Phase::Initialize | Phase::Backup(_))
            | (Input::Stop | Input::Timer | Input::Stalled, Phase::Initialize) => {}
        }
    }

    /// RFC 9568 section 6.4.1.
    fn on_start(&mut self, now: Instant, priority: Priority) {
        self.set_priority(own(priority));
        self.rose_at = Some(now);
        if self.priority == Priority::OWNER {
            self.become_active(now, Reason::StartedAsOwner);
        } else {
            self.become_backup(now, self.config.interval, None, Reason::Started);
        }
    }

    fn on_priority(&mut self, now: Instant, priority: Priority) {
        let priority = own(priority);
        if priority == self.priority {
            return;
        }
        if priority > self.priority {
            self.rose_at = Some(now);
        }
        self.set_priority(priority);
        match &mut self.phase {
            // The peers compare with what they last heard of us, so they hear it now. While listening after a stall the
            // next advert carries it.
            Phase::Active(active) if !active.listening => {
                active.advert_at = now + self.config.interval.duration();
                self.send_advert();
            }
            // The deadline follows from the priority by itself.
            Phase::Backup(backup) => {
                let backup = *backup;
                self.compare_again(backup);
            }
            Phase::Active(_) | Phase::Initialize => {}
        }
    }

    fn set_priority(&mut self, priority: Priority) {
        self.priority = priority;
        self.legs.iter_mut().for_each(Leg::new_priority);
    }

    fn on_advert(&mut self, now: Instant, leg: LegId, source: IpAddr, advert: &Advert, form: ChecksumForm) {
        let ours = self.config.legs.get(leg.index()).is_some_and(|config| config.carries(advert));
        if !ours {
            self.counters.foreign_vrid += 1;
            return;
        }
        if self.is_own(leg.index(), source, advert) {
            self.counters.own_source += 1;
            self.push(Output::Notice(Notice::OwnSource));
            return;
        }
        let heard = Heard { at: now, leg, from: source, priority: advert.priority, interval: advert.interval };
        self.counters.heard += 1;
        self.heard = Some(heard);
        if let Some(leg) = self.legs.get_mut(leg.index()) {
            leg.heard = Some(heard);
        }
        if advert.priority == Priority::RESIGN {
            self.counters.heard_resigned += 1;
        }
        let new_form = self.learn_checksum(now, leg, source, form);
        match self.phase {
            Phase::Initialize => {}
            Phase::Backup(backup) => {
                self.notice_differences(leg, source, advert);
                self.advert_in_backup(heard, backup);
            }
            Phase::Active(active) => {
                self.notice_differences(leg, source, advert);
                self.advert_in_active(heard, active, new_form);
            }
        }
    }

    /// RFC 9568 section 7.1: differences are told, and in v3 never a reason to drop.
    fn notice_differences(&mut self, leg: LegId, peer: IpAddr, advert: &Advert) {
        if advert.priority == self.priority {
            let second_owner = self.priority == Priority::OWNER;
            let notice = if second_owner { Notice::SecondOwner { peer } } else { Notice::EqualPriority { peer } };
            self.push(Output::Notice(notice));
        }
        if advert.interval != self.config.interval {
            self.push(Output::Notice(Notice::IntervalMismatch { peer, theirs: advert.interval }));
        }
        let ours = self.config.legs.get(leg.index());
        if ours.is_some_and(|ours| !advert.addresses.same_set(&ours.addresses)) {
            self.push(Output::Notice(Notice::AddressMismatch { peer }));
        }
    }

    fn become_active(&mut self, now: Instant, reason: Reason) {
        self.tie = None;
        self.enter(now, Phase::Active(Active::fresh(now + self.config.interval.duration())), reason);
        self.counters.became_active += 1;
        self.send_advert();
    }

    fn become_backup(
        &mut self,
        now: Instant,
        active_interval: AdvertInterval,
        gave_way_at: Option<Instant>,
        reason: Reason,
    ) {
        self.enter(now, Phase::Backup(Backup::armed(now, active_interval, gave_way_at)), reason);
    }

    /// The only place where the state changes.
    fn enter(&mut self, now: Instant, phase: Phase, reason: Reason) {
        let from = self.state();
        self.phase = phase;
        self.since = now;
        self.push(Output::Transition(Transition { from, to: self.state(), reason }));
    }

    fn push(&mut self, output: Output) {
        if self.outputs.len() >= OUTPUTS_MAX + 4 * self.legs.len() {
            self.outputs.pop_front();
            self.counters.outputs_lost += 1;
        }
        self.outputs.push_back(output);
    }
}

/// A router's own priority is never 0.
fn own(priority: Priority) -> Priority {
    priority.max(Priority::LAST_RESORT)
}
