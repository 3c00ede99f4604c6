//! Finds the balancer's processes, sees them die, and looks how it is.
//!
//! | module | does |
//! |---|---|
//! | `proc` | what `/proc` says of a process |
//! | `find` | from a pidfile, a unit or a pid to the tree of processes |
//! | [`plane`] | what is particular to a kind of balancer, as a trait; [`acts`]: what can be done to it |
//! | `haproxy`, `nginx`, `envoy`, `process` | each kind |
//! | `attempts` | reloads that nginx was told to do and didn't |
//! | `ask` | one bounded question to an admin side |
//! | [`flows`] | the connections that clients have with VIPs, whoever serves them |
//! | [`rules`] | what a death means: gone, or a reload |
//! | [`watch`] | process descriptors on the protocol thread, looking on the runtime |
//! | [`report`] | how it is, in a look every so often, on the runtime |
//!
//! Looking (files, `/proc`, sockets) happens on the runtime. Only descriptors come to the protocol thread, so that a
//! death is seen there by the descriptor itself, whatever the runtime is busy with. What this module refuses to do:
//! start a process or restart it (the keeper does), and judge what it sees (the node does).

pub mod acts;
mod ask;
mod attempts;
mod envoy;
mod find;
pub mod flows;
mod haproxy;
mod nginx;
pub mod plane;
mod proc;
mod process;
pub mod report;
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

/// A balancer's processes. Each is in one of the lists, but for a main process that serves itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The one that was named: the master, or the only one. Of orphans the oldest.
    pub main: Process,
    /// Those that accept connections, oldest first.
    pub serving: Vec<Process>,
    /// Those of former generations that finish what they have, oldest first.
    pub old: Vec<Process>,
    /// Whatever else is of its tree or control group.
    pub others: Vec<Process>,
    /// The main process lives.
    pub supervised: bool,
    /// How often a newer one was seen to end while one of a former generation served on.
    pub aborted: u64,
}

impl Tree {
    /// One process that does everything itself.
    pub fn single(main: Process) -> Self {
        Self { main, serving: vec![main], old: Vec::new(), others: Vec::new(), supervised: true, aborted: 0 }
    }

    /// The youngest process that accepts connections; `None`: none does.
    pub fn youngest(&self) -> Option<Process> {
        self.serving.iter().copied().max()
    }

    /// Those whose deaths matter, each once.
    pub fn watched(&self) -> impl Iterator<Item = Process> + '_ {
        let main = self.supervised.then_some(self.main);
        main.into_iter().chain(self.serving.iter().chain(&self.old).copied().filter(move |p| Some(*p) != main))
    }

    /// All of them, each once.
    pub fn processes(&self) -> impl Iterator<Item = Process> + '_ {
        self.watched().chain(self.others.iter().copied())
    }

    /// Takes out one that ended.
    fn remove(&mut self, pid: u32) {
        for list in [&mut self.serving, &mut self.old, &mut self.others] {
            list.retain(|p| p.pid != pid);
        }
        self.supervised &= self.main.pid != pid;
    }

    /// Nothing of it is left.
    fn is_empty(&self) -> bool {
        !self.supervised && self.serving.is_empty() && self.old.is_empty() && self.others.is_empty()
    }
}
