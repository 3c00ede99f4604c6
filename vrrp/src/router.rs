//! The virtual router's state machine (RFC 9568 section 6.4), sans-IO.
//!
//! Where we go beyond the RFC or differ from it:
//! - an Active that loses sends one last advert before it becomes Backup: its winner learns that there were two, and
//!   re-announces. Without it the neighbours' ARP entries may point at the loser for as long as they live;
//! - an Active that hears a losing advert re-announces the addresses ([`Output::Reassert`]), beside the immediate
//!   advert that RFC 9568 section 6.4.3 asks for;
//! - immediate answers have a limit per interval, so that two confused routers can't storm the segment;
//! - a priority 0 in Backup never moves the deadline later (section 6.4.2 sets the timer to Skew_Time; repeated
//!   resignations could postpone a takeover for ever).

mod io;

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

pub use io::{Counters, Heard, Input, Notice, Output, Reason, ReassertReason, RouterConfig, State, Transition};

use crate::mutants;
use crate::timing::{active_down_interval, skew_time};
use crate::types::{AdvertInterval, Priority};
use crate::wire::Advert;

/// How many losing adverts are answered at once per interval. More than a segment has routers; beyond it the next
/// regular advert is the answer, and the announcement that was owed comes with it.
pub const ANSWERS_PER_INTERVAL: u8 = 16;

/// Outputs held for a caller that doesn't drain. When full the oldest is lost and counted; an input makes at most five.
pub const OUTPUTS_MAX: usize = 64;

/// One virtual router.
#[derive(Debug)]
pub struct Router {
    config: RouterConfig,
    phase: Phase,
    since: Instant,
    priority: Priority,
    /// Known from Start or Resume on.
    source: Option<Ipv4Addr>,
    heard: Option<Heard>,
    counters: Counters,
    resign_payload: Vec<u8>,
    outputs: VecDeque<Output>,
}

/// A state with what only exists in it.
#[derive(Debug, Clone, Copy)]
enum Phase {
    Initialize,
    Backup(Backup),
    Active(Active),
}

#[derive(Debug, Clone, Copy)]
struct Backup {
    /// RFC 9568 Active_Adver_Interval: the Active's as last heard, our own until then.
    active_interval: AdvertInterval,
    /// When Active_Down_Timer was last set. The deadline is computed from it, so that a new priority moves it.
    armed_at: Instant,
    wait: Wait,
    /// When the last advert was heard that we gave way to.
    gave_way_at: Option<Instant>,
    /// The last advert that we mean to preempt.
    lower: Option<Heard>,
}

/// What Active_Down_Timer was set to.
#[derive(Debug, Clone, Copy)]
enum Wait {
    ActiveDown,
    Skew { peer: Ipv4Addr },
}

#[derive(Debug, Clone, Copy)]
struct Active {
    /// RFC 9568 Adver_Timer.
    advert_at: Instant,
    /// Stalled: silent until `advert_at`, which a losing advert brings forward to now.
    listening: bool,
    /// Immediate answers left until the next regular advert.
    answers_left: u8,
    /// To be put out with the next regular advert.
    reassert_owed: Option<ReassertReason>,
}

impl Router {
    /// A router in Initialize.
    pub fn new(config: RouterConfig, now: Instant) -> Self {
        let resign_payload = Advert {
            vrid: config.vrid,
            priority: Priority::RESIGN,
            interval: config.interval,
            addresses: config.addresses.clone(),
        }
        .encode();
        Self {
            config,
            phase: Phase::Initialize,
            since: now,
            priority: Priority::LAST_RESORT,
            source: None,
            heard: None,
            counters: Counters::default(),
            resign_payload,
            outputs: VecDeque::new(),
        }
    }

    /// What it was made with.
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

    /// The source of our adverts, once known.
    pub fn source(&self) -> Option<Ipv4Addr> {
        self.source
    }

    /// The last valid advert of another router, heard in whatever state.
    pub fn heard(&self) -> Option<Heard> {
        self.heard
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How long this router waits for an Active that has gone silent: Active_Down_Interval at its priority, with the
    /// Active's interval while it is Backup, its own elsewhere.
    pub fn active_down(&self) -> Duration {
        match self.phase {
            Phase::Backup(backup) => active_down_interval(self.priority, backup.active_interval),
            Phase::Initialize | Phase::Active(_) => active_down_interval(self.priority, self.config.interval),
        }
    }

    /// The advert with priority 0, encoded: for one who must send it when this router no longer can.
    pub fn resign_payload(&self) -> &[u8] {
        &self.resign_payload
    }

    /// When [`Input::Timer`] is due; `None`: nothing armed. May have passed already, if the last call came late.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Initialize => None,
            Phase::Backup(backup) => Some(backup.down_at(self.priority)),
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
            (Input::Advert { source, advert }, _) => self.on_advert(now, source, advert),
            (Input::Source(source), _) => self.source = Some(source),
            (Input::Priority(priority), _) => self.on_priority(now, priority),

            (Input::Start { priority, source }, Phase::Initialize) => self.on_start(now, priority, source),
            (Input::Resume { priority, source }, Phase::Initialize) => {
                self.priority = own(priority);
                self.source = Some(source);
                self.become_active(now, Reason::Resumed);
            }

            (Input::Timer, Phase::Backup(backup)) => self.on_down_timer(now, backup),
            (Input::Promote, Phase::Backup(_)) => self.become_active(now, Reason::Promoted),
            (Input::OwnerLives | Input::Stalled, Phase::Backup(backup)) => {
                self.phase = Phase::Backup(Backup { armed_at: now, wait: Wait::ActiveDown, ..backup });
            }

            (Input::Timer, Phase::Active(active)) => self.on_advert_timer(now, active),
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
            | (Input::Resign | Input::Yield, Phase::Initialize | Phase::Backup(_))
            | (Input::Stop | Input::Timer | Input::Stalled, Phase::Initialize) => {}
        }
    }

    /// RFC 9568 section 6.4.1.
    fn on_start(&mut self, now: Instant, priority: Priority, source: Ipv4Addr) {
        self.priority = own(priority);
        self.source = Some(source);
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
        self.priority = priority;
        // The peers compare with what they last heard of us, so they hear it now. While listening after a stall the
        // next advert carries it. In Backup the deadline follows from the priority by itself.
        if let Phase::Active(active) = &mut self.phase
            && !active.listening
        {
            active.advert_at = now + self.config.interval.duration();
            self.send_advert();
        }
    }

    fn on_advert(&mut self, now: Instant, source: Ipv4Addr, advert: &Advert) {
        if advert.vrid != self.config.vrid {
            self.counters.foreign_vrid += 1;
            return;
        }
        if self.source == Some(source) {
            self.counters.own_source += 1;
            self.push(Output::Notice(Notice::OwnSource));
            return;
        }
        let heard = Heard { at: now, from: source, priority: advert.priority, interval: advert.interval };
        self.counters.heard += 1;
        self.heard = Some(heard);
        if advert.priority == Priority::RESIGN {
            self.counters.heard_resigned += 1;
        }
        match self.phase {
            Phase::Initialize => {}
            Phase::Backup(backup) => {
                self.notice_differences(source, advert);
                self.advert_in_backup(heard, backup);
            }
            Phase::Active(active) => {
                self.notice_differences(source, advert);
                self.advert_in_active(heard, active);
            }
        }
    }

    /// RFC 9568 section 7.1: differences are told, and in v3 never a reason to drop.
    fn notice_differences(&mut self, peer: Ipv4Addr, advert: &Advert) {
        if advert.priority == self.priority {
            let second_owner = self.priority == Priority::OWNER;
            let notice = if second_owner { Notice::SecondOwner { peer } } else { Notice::EqualPriority { peer } };
            self.push(Output::Notice(notice));
        }
        if advert.interval != self.config.interval {
            self.push(Output::Notice(Notice::IntervalMismatch { peer, theirs: advert.interval }));
        }
        if !advert.addresses.same_set(&self.config.addresses) {
            self.push(Output::Notice(Notice::AddressMismatch { peer }));
        }
    }

    /// RFC 9568 section 6.4.2, an advert in Backup.
    fn advert_in_backup(&mut self, heard: Heard, backup: Backup) {
        let next = if heard.priority == Priority::RESIGN {
            let resigned = Backup { armed_at: heard.at, wait: Wait::Skew { peer: heard.from }, ..backup };
            if resigned.down_at(self.priority) < backup.down_at(self.priority) { resigned } else { backup }
        } else if !self.config.preempt || heard.priority >= self.priority {
            Backup {
                active_interval: heard.interval,
                armed_at: heard.at,
                wait: Wait::ActiveDown,
                gave_way_at: Some(heard.at),
                lower: None,
            }
        } else {
            // Discarded: the timer runs on, and at its end we preempt.
            Backup { lower: Some(heard), ..backup }
        };
        self.phase = Phase::Backup(next);
    }

    /// RFC 9568 section 6.4.3, an advert in Active.
    fn advert_in_active(&mut self, heard: Heard, active: Active) {
        if self.loses_to(heard) {
            // Beyond the RFC: the last word, so that the winner knows of the conflict and re-announces.
            if !mutants::off("last-advert-of-the-loser") {
                self.send_advert();
            }
            let reason = Reason::Outranked { by: heard.from, its: heard.priority };
            self.become_backup(heard.at, heard.interval, Some(heard.at), reason);
            return;
        }
        if mutants::off("losing-advert-answered") {
            return;
        }
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
        // A resignation resets Adver_Timer, a losing advert leaves it.
        let resigned = heard.priority == Priority::RESIGN;
        let advert_at = if resigned { heard.at + self.config.interval.duration() } else { active.advert_at };
        self.phase = Phase::Active(Active { advert_at, answers_left, ..active });
        self.send_advert();
        self.push(Output::Reassert(reassert));
    }

    /// Whether an Active gives way: to a higher priority, and between equals to the higher address, compared as
    /// unsigned numbers in network byte order (section 6.4.3).
    fn loses_to(&self, heard: Heard) -> bool {
        let tie = heard.priority == self.priority && !mutants::off("tie-break");
        heard.priority > self.priority || tie && self.source.is_some_and(|ours| heard.from > ours)
    }

    fn on_down_timer(&mut self, now: Instant, backup: Backup) {
        if now < backup.down_at(self.priority) {
            return;
        }
        let down = active_down_interval(self.priority, backup.active_interval);
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

    fn on_advert_timer(&mut self, now: Instant, active: Active) {
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

    fn on_stalled(&mut self, now: Instant, active: Active) {
        // Told twice, the silence isn't prolonged.
        if active.listening && now < active.advert_at {
            return;
        }
        let advert_at = now + self.config.interval.duration();
        self.phase = Phase::Active(Active { advert_at, listening: true, ..active });
    }

    fn become_active(&mut self, now: Instant, reason: Reason) {
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
        let backup = Backup { active_interval, armed_at: now, wait: Wait::ActiveDown, gave_way_at, lower: None };
        self.enter(now, Phase::Backup(backup), reason);
    }

    /// The only place where the state changes.
    fn enter(&mut self, now: Instant, phase: Phase, reason: Reason) {
        let from = self.state();
        self.phase = phase;
        self.since = now;
        self.push(Output::Transition(Transition { from, to: self.state(), reason }));
    }

    fn send_advert(&mut self) {
        let payload = Advert {
            vrid: self.config.vrid,
            priority: self.priority,
            interval: self.config.interval,
            addresses: self.config.addresses.clone(),
        }
        .encode();
        self.send(payload);
    }

    fn send_resignation(&mut self) {
        self.counters.resigned += 1;
        self.send(self.resign_payload.clone());
    }

    fn send(&mut self, payload: Vec<u8>) {
        let Some(source) = self.source else { return };
        self.counters.sent += 1;
        self.push(Output::Send { source, payload });
    }

    fn push(&mut self, output: Output) {
        if self.outputs.len() >= OUTPUTS_MAX {
            self.outputs.pop_front();
            self.counters.outputs_lost += 1;
        }
        self.outputs.push_back(output);
    }
}

impl Backup {
    /// When Active_Down_Timer expires at this priority.
    fn down_at(&self, priority: Priority) -> Instant {
        let wait = match self.wait {
            Wait::ActiveDown => active_down_interval(priority, self.active_interval),
            Wait::Skew { .. } => skew_time(priority, self.active_interval),
        };
        self.armed_at + wait
    }
}

impl Active {
    fn fresh(advert_at: Instant) -> Self {
        Self { advert_at, listening: false, answers_left: ANSWERS_PER_INTERVAL, reassert_owed: None }
    }
}

/// A router's own priority is never 0.
fn own(priority: Priority) -> Priority {
    priority.max(Priority::LAST_RESORT)
}
