//! What goes into a [`Router`](super::Router) and what comes out of it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::leg::{ConfigError, LegConfig};
use crate::types::{AdvertInterval, LegId, Priority};
use crate::wire::{Advert, AdvertError, ChecksumForm};

/// What a unit is made of, and how it behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterConfig {
    /// Its legs, one at least; [`LegId`] counts from 0 in this order. The first ones decide between equals.
    pub legs: Vec<LegConfig>,
    /// Our own advert interval, on all legs.
    pub interval: AdvertInterval,
    /// RFC 9568 Preempt_Mode. Whatever it says, a node that failed ([`Priority::LAST_RESORT`]) is preempted, and the
    /// owner of the addresses ([`Priority::OWNER`]) preempts.
    pub preempt: bool,
    /// How long after Startup, and after each rise of our priority, an Active with a lower priority is left alone.
    /// Nothing else is delayed: where nobody is Active we take over as if it were zero, and a node that failed is never
    /// left alone. Once it is over, preemption takes the usual Active_Down_Interval from the last advert before.
    pub preempt_delay: Duration,
    /// Equal priorities must be reckoned with: wait a little longer by our address ([`jitter`](crate::timing::jitter)).
    pub jitter: bool,
}

impl RouterConfig {
    /// Whether it can be run.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.legs.is_empty() {
            return Err(ConfigError::NoLegs);
        }
        if u16::try_from(self.legs.len()).is_err() {
            return Err(ConfigError::TooManyLegs(self.legs.len()));
        }
        self.legs.iter().try_for_each(|leg| leg.check(self.interval))
    }
}

/// Something happened. One at a time, with the time it is handled at.
///
/// A priority of 0 given to `Start`, `Resume` or `Priority` is taken as [`Priority::LAST_RESORT`]: 0 is a message
/// ("I resign"), no router's own priority.
#[derive(Debug, Clone)]
pub enum Input<'a> {
    /// RFC 9568 Startup: the interfaces are up, and the sources of the legs were given. Ignored unless in Initialize.
    Start {
        /// Effective priority; [`Priority::OWNER`] becomes Active at once.
        priority: Priority,
    },
    /// RFC 9568 Shutdown: priority 0 if Active; to Initialize from any state.
    Stop,
    /// A worker that was restarted and still holds the address: Initialize straight to Active (advert at once, no
    /// waiting), with reason `Resumed`. Ignored unless in Initialize.
    Resume {
        /// Effective priority.
        priority: Priority,
    },
    /// A decoded advert for a leg's VRID that the leg accepted ([`LegConfig::accept`]). Our own adverts looped back and
    /// other VRIDs are counted and ignored.
    Advert {
        /// Where it was heard.
        leg: LegId,
        /// The sender's primary address.
        source: IpAddr,
        /// What it says.
        advert: &'a Advert,
        /// In which form its checksum was right.
        form: ChecksumForm,
    },
    /// `poll_timeout` has passed (early calls do nothing; late calls act once, never in a burst).
    Timer,
    /// Active: the advert that is due soon goes out now, with those of others, and the next one an interval later. The
    /// caller says it only shortly before `poll_timeout`, and so no advert is ever late. Elsewhere it means nothing.
    Advertise,
    /// The effective priority changed. Active: an advert carries it at once. Backup: the skew is recomputed, counted
    /// from what was last heard, so the deadline is never earlier than an Active_Down after that.
    Priority(Priority),
    /// A leg's source: the primary (never a managed) address of its interface, IPv6 its link-local. Given for each leg
    /// before `Start` or `Resume`, after [`Router::set_legs`](super::Router::set_legs), and at each change. The next
    /// advert comes from it; a leg of an Active that had none speaks at once. Of another family, or for a leg that there
    /// isn't: ignored.
    Source {
        /// Whose.
        leg: LegId,
        /// The address.
        source: IpAddr,
    },
    /// Give the address away: Active sends priority 0 and becomes Backup (armed: it comes back if nobody takes it
    /// within its own Active_Down, at the priority it has by then: lower it first). Ignored elsewhere.
    Resign,
    /// A peer said "take it now": Backup goes Active at once. Ignored elsewhere.
    Promote,
    /// A peer proved to own the address better (probe unanswered, or it said Keep): Active becomes Backup without a
    /// priority 0. Ignored elsewhere.
    Yield,
    /// Backup only: an owner is known to live by other means than adverts; re-arm Active_Down from now.
    OwnerLives,
    /// This node stood still longer than its peers' down time: Active sends nothing for up to one interval and
    /// listens; then goes on, and re-announces. Better advert meanwhile: Backup as usual; a losing one makes the timer
    /// due now: the caller hands over all that waits in the socket, then `Timer`, and one advert answers it all.
    /// Backup: listens for a whole Active_Down before it claims anything.
    Stalled,
}

/// What the caller must do now, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send these VRRP messages on a leg's interface with TTL 255, one or two to each destination.
    /// On becoming Active it follows the `Transition`; the last advert of an Active precedes it.
    Send {
        /// On which leg.
        leg: LegId,
        /// IP source address.
        source: IpAddr,
        /// The messages: to the group, or to each unicast peer.
        packets: Arc<[Packet]>,
    },
    /// The state changed.
    Transition(Transition),
    /// Still Active, but somebody else claimed it meanwhile: announce the addresses again (GARP).
    Reassert(ReassertReason),
    /// Worth a log line or a counter (callers rate-limit).
    Notice(Notice),
}

/// A VRRP message and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// IP destination address.
    pub destination: IpAddr,
    /// The VRRP message, without an IP header.
    pub payload: Vec<u8>,
}

/// A change of state with its cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// The state left.
    pub from: State,
    /// The state entered.
    pub to: State,
    /// Why.
    pub reason: Reason,
}

/// RFC 9568 states, without their timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Not taking part.
    Initialize,
    /// Listens, ready to take over.
    Backup,
    /// Owns the addresses and says so every interval.
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
    DownTimer {
        /// Time since the last advert that we gave way to; none since we became Backup: `None`.
        silent: Option<Duration>,
    },
    /// The Active resigned (priority 0) and the skew passed.
    PeerResigned {
        /// Who resigned.
        peer: IpAddr,
    },
    /// A node with a lower priority is Active (heard within the last Active_Down) and we preempt it.
    Preempt {
        /// Who was Active.
        peer: IpAddr,
        /// With what priority.
        its: Priority,
    },
    /// A peer handed the address over.
    Promoted,
    /// A better advert was heard.
    Outranked {
        /// Who sent it.
        by: IpAddr,
        /// With what priority.
        its: Priority,
    },
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
    /// A losing advert was heard (or a priority 0: its sender had claimed the address until then).
    LosingAdvert {
        /// Who sent it.
        from: IpAddr,
        /// With what priority.
        its: Priority,
    },
    /// We were stalled and are still the owner.
    Stalled,
}

/// Things an operator may need to hear of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Same priority as ours: only the address decides.
    EqualPriority {
        /// Who has it.
        peer: IpAddr,
    },
    /// Interval differs (v3 adopts the Active's).
    IntervalMismatch {
        /// Who advertises it.
        peer: IpAddr,
        /// What it advertises.
        theirs: AdvertInterval,
    },
    /// Address list differs.
    AddressMismatch {
        /// Who advertises it.
        peer: IpAddr,
    },
    /// A peer's checksum is in another form than ours (VRRPv3 over IPv4): it may refuse what we send. With
    /// [`ChecksumMode::Auto`](crate::ChecksumMode::Auto) it means that the peers differ among themselves, and each advert goes
    /// out in both forms.
    ChecksumMismatch {
        /// On which leg.
        leg: LegId,
        /// Who sends it.
        peer: IpAddr,
        /// Its form.
        its: ChecksumForm,
    },
    /// Two address owners (priority 255). Erratum 8298: told, and elected between like any other pair.
    SecondOwner {
        /// The other one.
        peer: IpAddr,
    },
    /// An advert came from our own source address: it was looped back, or another host has our address.
    OwnSource,
    /// An advert that `wire` refused. Never made by the router (it sees no such advert): for the caller that decodes,
    /// so that refusals go the same way as the rest.
    Refused(AdvertError),
}

/// The last advert heard, whatever our state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// When.
    pub at: Instant,
    /// On which leg.
    pub leg: LegId,
    /// From whom.
    pub from: IpAddr,
    /// Its priority; 0: it resigned.
    pub priority: Priority,
    /// Its interval.
    pub interval: AdvertInterval,
}

/// What a router has counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Adverts sent, those with priority 0 included; one to each leg and interval, however many peers it goes to.
    pub sent: u64,
    /// Adverts sent with priority 0.
    pub resigned: u64,
    /// Adverts of others heard, those with priority 0 included.
    pub heard: u64,
    /// Adverts of others heard with priority 0.
    pub heard_resigned: u64,
    /// Adverts ignored because they came from our own source address.
    pub own_source: u64,
    /// Adverts ignored because they were for another virtual router, or for a leg that there isn't.
    pub foreign_vrid: u64,
    /// Immediate answers held back because an interval's worth had been given (see `ANSWERS_PER_INTERVAL`).
    pub answers_held_back: u64,
    /// Times that we became Active.
    pub became_active: u64,
    /// Outputs lost because the caller didn't drain (see `OUTPUTS_MAX`): 0 with a correct caller.
    pub outputs_lost: u64,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Initialize => "Initialize",
            Self::Backup => "Backup",
            Self::Active => "Active",
        })
    }
}

/// In a few words, to stand after "Active: ".
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started => f.write_str("started"),
            Self::StartedAsOwner => f.write_str("started as address owner"),
            Self::Resumed => f.write_str("resumed after a worker restart"),
            Self::DownTimer { silent: Some(silent) } => write!(f, "no advert for {silent:?}"),
            Self::DownTimer { silent: None } => f.write_str("no advert heard"),
            Self::PeerResigned { peer } => write!(f, "{peer} resigned"),
            Self::Preempt { peer, its } => write!(f, "preempted {peer} with priority {its}"),
            Self::Promoted => f.write_str("a peer handed over"),
            Self::Outranked { by, its } => write!(f, "outranked by {by} with priority {its}"),
            Self::Resigned => f.write_str("resigned"),
            Self::Yielded => f.write_str("yielded to a peer's claim"),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

impl fmt::Display for ReassertReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LosingAdvert { from, its } => write!(f, "{from} claimed it with priority {its}"),
            Self::Stalled => f.write_str("this node had stood still"),
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EqualPriority { peer } => write!(f, "{peer} has our priority: only the address decides"),
            Self::IntervalMismatch { peer, theirs } => write!(f, "{peer} has another advert interval: {theirs}"),
            Self::AddressMismatch { peer } => write!(f, "{peer} advertises other addresses"),
            Self::ChecksumMismatch { peer, its, .. } => {
                write!(f, "{peer} sends another checksum than we do: {}", its.counter())
            }
            Self::SecondOwner { peer } => write!(f, "{peer} claims to own the address too (priority 255)"),
            Self::OwnSource => f.write_str("an advert came from our own address: looped back, or a duplicate address"),
            Self::Refused(error) => write!(f, "an advert was refused: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_read_as_words() {
        let peer = IpAddr::from([10, 0, 0, 2]);
        let its = Priority::DEFAULT;
        let silent = Some(Duration::from_micros(301_171));
        for (reason, words) in [
            (Reason::DownTimer { silent }, "no advert for 301.171ms"),
            (Reason::PeerResigned { peer }, "10.0.0.2 resigned"),
            (Reason::Preempt { peer, its }, "preempted 10.0.0.2 with priority 100"),
            (Reason::Outranked { by: peer, its }, "outranked by 10.0.0.2 with priority 100"),
        ] {
            assert_eq!(reason.to_string(), words);
        }
        assert_eq!(Notice::Refused(AdvertError::Ttl(64)).to_string(), "an advert was refused: TTL 64, must be 255");
    }
}
