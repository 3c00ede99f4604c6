//! The virtual router's state machine (RFC 9568 section 6.4), sans-IO.

use crate::types::{AdvertInterval, Priority, Vrid};
use crate::wire::{Advert, AdvertError};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// What does not change while a router exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterConfig {
    /// Virtual router identifier on its segment.
    pub vrid: Vrid,
    /// Our own advert interval.
    pub interval: AdvertInterval,
    /// RFC 9568 Preempt_Mode.
    pub preempt: bool,
    /// Advertised addresses, in order.
    pub addresses: Vec<Ipv4Addr>,
}

/// Something happened. One at a time, with the time it is handled at.
#[derive(Debug, Clone)]
pub enum Input<'a> {
    /// RFC 9568 Startup: the interface is up, `source` is its primary (never a managed) address.
    /// Ignored unless in Initialize.
    Start { priority: Priority, source: Ipv4Addr },
    /// RFC 9568 Shutdown: priority 0 if Active; to Initialize from any state.
    Stop,
    /// A worker that was restarted and still holds the address: Initialize straight to Active (advert at once, no
    /// waiting), with reason `Resumed`.
    Resume { priority: Priority, source: Ipv4Addr },
    /// A decoded advert for this VRID from `source`. TTL, version and checksum were already checked by `wire`.
    Advert { source: Ipv4Addr, advert: &'a Advert },
    /// `poll_timeout` has passed (early calls do nothing).
    Timer,
    /// The effective priority changed. Active: next advert carries it, at once. Backup: skew is recomputed from now
    /// without moving the deadline backwards past what was heard.
    Priority(Priority),
    /// The interface's primary address changed.
    Source(Ipv4Addr),
    /// Give the address away: Active sends priority 0 and becomes Backup (armed: it comes back if nobody takes it
    /// within its own Active_Down). Ignored elsewhere.
    Resign,
    /// A peer said "take it now": Backup goes Active at once. Ignored elsewhere.
    Promote,
    /// A peer proved to own the address better (probe unanswered, or it said Keep): Active becomes Backup without a
    /// priority 0.
    Yield,
    /// Backup only: an owner is known to live by other means than adverts; re-arm Active_Down from now.
    OwnerLives,
    /// This node stood still longer than its peers' down time: Active sends nothing for up to one interval and
    /// listens; then goes on, and re-announces. Better advert meanwhile: Backup as usual.
    Stalled,
}

/// What the caller must do now, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send this VRRP payload (no IP header) from `source` to 224.0.0.18 with TTL 255.
    Send { source: Ipv4Addr, payload: Vec<u8> },
    /// The state changed.
    Transition(Transition),
    /// Still Active, but somebody else claimed it meanwhile: announce the addresses again (GARP).
    Reassert(ReassertReason),
    /// Worth a log line or a counter (callers rate-limit).
    Notice(Notice),
}

/// A change of state with its cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    pub from: State,
    pub to: State,
    pub reason: Reason,
}

/// RFC 9568 states, without their timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Initialize,
    Backup,
    Active,
}

/// Why the state changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Startup with a priority below 255.
    Started,
    /// Startup as address owner.
    StartedAsOwner,
    /// Took up where a former worker left.
    Resumed,
    /// No advert for Active_Down.
    DownTimer { silent: Option<Duration> },
    /// The Active resigned (priority 0) and the skew passed.
    PeerResigned { peer: Ipv4Addr },
    /// A node with a lower priority is Active and we preempt it.
    Preempt { peer: Ipv4Addr, its: Priority },
    /// A peer handed the address over.
    Promoted,
    /// A better advert was heard.
    Outranked { by: Ipv4Addr, its: Priority },
    /// We resigned.
    Resigned,
    /// Yielded to a peer's claim.
    Yielded,
    /// Shutdown.
    Stopped,
}

/// Why the owner announces again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReassertReason {
    /// A losing advert was heard.
    LosingAdvert { from: Ipv4Addr, its: Priority },
    /// We were stalled and are still the owner.
    Stalled,
}

/// Things an operator may need to hear of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Same priority as ours: only the address decides.
    EqualPriority { peer: Ipv4Addr },
    /// Interval differs (v3 adopts the Active's).
    IntervalMismatch { peer: Ipv4Addr, theirs: AdvertInterval },
    /// Address list differs.
    AddressMismatch { peer: Ipv4Addr },
    /// Two address owners (priority 255).
    SecondOwner { peer: Ipv4Addr },
    /// An advert that `wire` refused.
    Refused(AdvertError),
}

/// The last advert heard, whatever our state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    pub at: Instant,
    pub from: Ipv4Addr,
    pub priority: Priority,
    pub interval: AdvertInterval,
}

/// One virtual router.
#[derive(Debug)]
pub struct Router {
    config: RouterConfig,
}
