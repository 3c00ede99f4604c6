//! What became of each flow.

use super::net::Path;
use super::stall::Waiting;
use crate::clock::now;
use crate::metrics::Flow;
use std::sync::{Mutex, PoisonError};

/// What a flow does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A request every 50 ms, answered.
    Talk,
    /// As much as was asked for, both ways at once, with segments always on the way.
    Bulk,
    /// One exchange, then silence through the move, then another exchange.
    Idle,
    /// The client has ended its side; the backend goes on sending.
    HalfClosed,
    /// A datagram every two seconds, answered while the session is known. ([`super::udp`])
    Udp,
}

impl Kind {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::Talk, Self::Bulk, Self::Idle, Self::HalfClosed, Self::Udp];

    /// The figure of its broken flows.
    #[must_use]
    pub fn broken_key(self) -> &'static str {
        match self {
            Self::Talk => "broken_talk",
            Self::Bulk => "broken_bulk",
            Self::Idle => "broken_idle",
            Self::HalfClosed => "broken_half_closed",
            Self::Udp => "broken_udp",
        }
    }
}

/// How many flows of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// [`Kind::Talk`].
    pub talk: usize,
    /// [`Kind::Bulk`].
    pub bulk: usize,
    /// [`Kind::Idle`], [`Kind::HalfClosed`] and [`Kind::Udp`], each.
    pub others: usize,
}

/// What became of one flow.
#[derive(Debug, Clone)]
pub struct Record {
    /// What it did.
    pub kind: Kind,
    /// Which way it went.
    pub path: Path,
    /// When it was established, and when and how it broke.
    pub flow: Flow,
    /// What arrived isn't what was sent.
    pub wrong: bool,
    /// It was ended in order, and everything had arrived.
    pub whole: bool,
    /// Bytes that came back.
    pub moved: u64,
    /// Its waits.
    pub waiting: Waiting,
}

impl Record {
    pub(super) fn new(kind: Kind, path: Path) -> Self {
        let flow = Flow { established: now(), broken: None, requests: 0, node: u8::MAX };
        Self { kind, path, flow, wrong: false, whole: false, moved: 0, waiting: Waiting::default() }
    }
}

/// Flows by what they are now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// Established and unbroken.
    pub alive: usize,
    /// Broken; each has a successor, or is about to.
    pub broken: usize,
}

impl Counted {
    pub(super) fn of(records: &Mutex<Vec<Record>>) -> Self {
        let records = records.lock().unwrap_or_else(PoisonError::into_inner);
        let broken = records.iter().filter(|r| r.flow.broken.is_some()).count();
        Self { alive: records.len() - broken, broken }
    }
}

impl std::ops::Add for Counted {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { alive: self.alive + other.alive, broken: self.broken + other.broken }
    }
}
