//! Finds the balancer's processes and sees them die.
//!
//! | module | does |
//! |---|---|
//! | `proc` | what `/proc` says of a process |
//! | `find` | from a pidfile, a unit or a pid to the tree of processes |
//! | [`rules`] | what a death means: gone, or a reload |
//! | [`watch`] | process descriptors on the protocol thread, looking on the runtime |
//!
//! Looking (files, `/proc`) happens on the runtime. Only descriptors come to the protocol thread, so that a death is
//! seen there by the descriptor itself, whatever the runtime is busy with. What this module refuses to do: start,
//! signal or stop a process (the keeper does), and judge whether a living balancer serves (checks do).

mod find;
mod proc;
pub mod rules;
pub mod watch;

/// A process that can't be mistaken for a later one with the same pid.
///
/// Ordered by age: the older one is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// Start time in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start: u64,
    /// Its pid.
    pub pid: u32,
}

/// A balancer's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The one that was named: the master, or the only one.
    pub main: Process,
    /// Its children of the same name, oldest first. Of a reloading HAProxy the newest serves, the others finish.
    pub workers: Vec<Process>,
}

impl Tree {
    /// The process that accepts connections.
    pub fn serving(&self) -> Process {
        self.workers.iter().copied().max().unwrap_or(self.main)
    }

    /// All of them.
    pub fn processes(&self) -> impl Iterator<Item = Process> + '_ {
        std::iter::once(self.main).chain(self.workers.iter().copied())
    }
}
