//! What is particular to one kind of balancer.

use super::acts::Act;
use super::envoy::Envoy;
use super::haproxy::Haproxy;
use super::nginx::Nginx;
use super::proc::Stat;
use super::process::Plain;
use super::{Process, Tree};
use holdfast_node::config::{Balancer, BalancerKind};
use holdfast_node::io::{Admin, Level, Pool};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A process of the balancer's tree or control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Which.
    pub process: Process,
    /// Its parent's pid.
    pub parent: u32,
    /// The kernel's name of it.
    pub name: String,
    /// What it calls itself, with its arguments; only read where [`Plane::titles`] says so.
    pub title: String,
}

impl Member {
    pub(super) fn new(stat: Stat, title: String) -> Self {
        Self { process: stat.process, parent: stat.parent, name: stat.name, title }
    }
}

/// What an admin side said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Whether it answered.
    pub admin: Admin,
    /// The fullest of its own counts of connections, where it knows a limit.
    pub connections: Option<Level>,
    /// Its backends.
    pub backends: Option<Pool>,
    /// How often it was reloaded with effect. `None`: it doesn't say; changes of its processes are counted instead.
    pub generation: Option<u64>,
    /// Attempts to reload it that failed since the last one with effect. `None`: it doesn't say.
    pub failed: Option<u64>,
    /// It says that it is about to stop, or fails its health check on purpose.
    pub leaving: bool,
}

impl Asked {
    /// Nothing but how it answered.
    pub const fn only(admin: Admin) -> Self {
        Self { admin, connections: None, backends: None, generation: None, failed: None, leaving: false }
    }
}

/// A question on its way.
pub type Asking<'a> = Pin<Box<dyn Future<Output = Asked> + Send + 'a>>;

/// A kind of balancer. What is not its own (descriptors, states, accept queues) is the same for all and not here.
pub trait Plane: fmt::Debug + Send {
    /// Whether [`Plane::shape`] needs the titles of processes.
    fn titles(&self) -> bool {
        false
    }

    /// Whether its processes change while it serves: it is reloaded, or puts others in the place of its workers.
    fn reloads(&self) -> bool {
        true
    }

    /// Which of its processes do what. `main` is the one that was named, or the oldest of its control group.
    fn shape(&self, main: &Member, members: &[Member]) -> Tree;

    /// Asks its admin side how it is, and whatever else tells that nothing but this kind has. Answers are bounded, and so
    /// is the time: whatever has not answered within `patience` is silent.
    fn ask<'a>(&'a mut self, tree: &'a Tree, patience: Duration) -> Asking<'a>;

    /// What makes it tell others that it is about to leave, while it serves on.
    fn leave(&self) -> Vec<Act> {
        Vec::new()
    }

    /// What undoes [`Plane::leave`].
    fn stay(&self) -> Vec<Act> {
        Vec::new()
    }

    /// What makes it rid itself of its connections in an orderly way.
    fn shed(&self, tree: &Tree) -> Vec<Act>;

    /// What ends it, whatever is in flight.
    fn stop(&self, tree: &Tree) -> Vec<Act>;
}

/// The adapter for this balancer; `None`: it is no process.
pub fn plane(balancer: &Balancer) -> Option<Box<dyn Plane>> {
    Some(match balancer.kind {
        BalancerKind::Haproxy => Box::new(Haproxy::new(balancer)),
        BalancerKind::Nginx => Box::new(Nginx::new(balancer)),
        BalancerKind::Envoy => Box::new(Envoy::new(balancer)),
        BalancerKind::Process => Box::new(Plain),
        BalancerKind::Nft => return None,
    })
}

/// The tree of a kind in which one process serves: `candidates` are those that could, `youngest` says whether the
/// youngest of them does and the others are of former generations.
pub(super) fn generations(main: &Member, candidates: Vec<Process>, members: &[Member]) -> Tree {
    let mut all = candidates;
    all.sort_unstable();
    all.dedup();
    let serving = all.pop().unwrap_or(main.process);
    let named = |p: &Process| *p == main.process || *p == serving || all.contains(p);
    let others = members.iter().map(|m| m.process).filter(|p| !named(p)).collect();
    Tree { main: main.process, serving: vec![serving], old: all, others, supervised: true, aborted: 0 }
}

/// What comes within this time.
pub(super) async fn within<T>(patience: Duration, what: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    match tokio::time::timeout(patience, what).await {
        Ok(done) => done,
        Err(_) => Err(format!("no answer in {} ms", patience.as_millis())),
    }
}

/// Compares how full two are, without fractions.
pub(super) fn fuller(a: &Level, b: &Level) -> std::cmp::Ordering {
    let cross = |x: &Level, y: &Level| u128::from(x.now) * u128::from(y.limit);
    cross(a, b).cmp(&cross(b, a)).then(a.now.cmp(&b.now))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::balancer) fn member(pid: u32, parent: u32, title: &str) -> Member {
        let name = title.split([' ', ':']).next().unwrap_or_default().to_owned();
        Member { process: Process { start: u64::from(pid) * 10, pid }, parent, name, title: title.to_owned() }
    }

    pub(in crate::balancer) fn pids(list: &[Process]) -> Vec<u32> {
        list.iter().map(|p| p.pid).collect()
    }

    #[test]
    fn the_fullest_is_the_one_with_the_largest_share() {
        let level = |now, limit| Level { now, limit };
        let fullest = |some: &[Level]| some.iter().copied().max_by(fuller);
        assert_eq!(fullest(&[level(10, 4096), level(4, 5), level(100, 200)]), Some(level(4, 5)));
        assert_eq!(fullest(&[level(u64::MAX, u64::MAX), level(1, 2)]), Some(level(u64::MAX, u64::MAX)));
    }
}
