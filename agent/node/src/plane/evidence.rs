//! What a verdict rests on.

use crate::io::{Level, Pool};
use std::fmt;
use std::time::{Duration, Instant};

/// One sign, and since when it has been there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// What is seen; its figures are the latest ones.
    pub sign: Sign,
    /// Since when something of this kind has been seen without a break.
    pub since: Instant,
}

/// What can be seen of a balancer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sign {
    /// Its processes are gone; why.
    Gone(String),
    /// Its processes aren't found; why.
    NotFound(String),
    /// A check that asks it is not answered in time.
    CheckSilent(String),
    /// It answers a check, and not with what is expected.
    CheckAnswered(String),
    /// A check that asks it fails otherwise.
    CheckFails(String),
    /// A check that asks it has no verdict yet.
    CheckUnknown(String),
    /// So many more checks don't pass.
    MoreChecks(usize),
    /// Its admin side refuses or says nothing; why.
    AdminSilent(String),
    /// Its admin side answers, in this time.
    AdminAnswers(Duration),
    /// A serving process is stopped or stuck in the kernel.
    Stopped,
    /// It spends no processor time.
    NoProgress,
    /// It has as many connections as it may have.
    Connections(Level),
    /// An accept queue is full.
    Queue(Level),
    /// A process has nearly all the descriptors that it may have.
    Files(Level),
    /// Its backends; all are down.
    NoBackend(Pool),
    /// Its backends, of which some are up.
    Backends(Pool),
    /// It says that it stops or shouldn't be used.
    Leaving,
    /// Its master is gone.
    NoMaster,
    /// It refused so many newer configurations.
    ReloadFailed(u64),
    /// A reload is under way; so many old processes.
    Reloads(usize),
}

impl Sign {
    /// The same thing is seen, whatever the figures are now.
    pub(crate) fn same_kind(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self.check() == other.check()
    }

    /// The check that it is of.
    fn check(&self) -> Option<&str> {
        match self {
            Self::CheckSilent(name) | Self::CheckAnswered(name) | Self::CheckFails(name) | Self::CheckUnknown(name) => {
                Some(name)
            }
            _ => None,
        }
    }
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |f: &mut fmt::Formatter<'_>, what: &str, level: &Level| match level.limit {
            0 => write!(f, "{} {what}", level.now),
            limit => write!(f, "{} of {limit} {what}", level.now),
        };
        match self {
            Self::Gone(why) => write!(f, "its processes are gone: {why}"),
            Self::NotFound(why) => f.write_str(why),
            Self::CheckSilent(name) => write!(f, "check {name} is not answered in time"),
            Self::CheckAnswered(name) => write!(f, "check {name} gets another answer than it wants"),
            Self::CheckFails(name) => write!(f, "check {name} fails"),
            Self::CheckUnknown(name) => write!(f, "check {name} has no verdict yet"),
            Self::MoreChecks(more) => write!(f, "{more} more checks don't pass"),
            Self::AdminSilent(why) => write!(f, "its admin side is silent: {why}"),
            Self::AdminAnswers(took) => write!(f, "its admin side answers in {} ms", took.as_millis()),
            Self::Stopped => f.write_str("a process of it is stopped"),
            Self::NoProgress => f.write_str("it spends no processor time"),
            Self::Connections(level) => of(f, "connections", level),
            Self::Queue(level) => of(f, "connections wait to be accepted", level),
            Self::Files(level) => of(f, "descriptors are open", level),
            Self::NoBackend(pool) => write!(f, "all {} backends are down", pool.total),
            Self::Backends(pool) => write!(f, "{} of {} backends are up", pool.up, pool.total),
            Self::Leaving => f.write_str("it says that it stops or shouldn't be used"),
            Self::NoMaster => f.write_str("its master is gone"),
            Self::ReloadFailed(1) => f.write_str("it refused a newer configuration"),
            Self::ReloadFailed(times) => write!(f, "it refused newer configurations {times} times"),
            Self::Reloads(old) => write!(f, "it reloads, {old} old processes finish"),
        }
    }
}
