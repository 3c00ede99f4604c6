//! What a death means: the balancer is gone, or it is reloading.
//!
//! HAProxy in master-worker mode reloads by starting a new worker, which then tells the old one to finish. So a dead
//! worker is a fault only if no younger one is there, and that is found by looking, never by waiting. The waiting time
//! is only the limit on how long a look may take.

use super::{Process, Tree};
use holdfast_node::config::{BalancerKind, ProcessSource};
use holdfast_node::io::BalancerState;
use std::time::{Duration, Instant};

/// How long a look for the successor of a worker may take while another process of the tree lives.
const WORKER_LOOK: Duration = Duration::from_millis(300);
/// How long a look for the successor of a single HAProxy may take (`-sf`: the new one has written the pidfile before
/// the old one ends).
const PIDFILE_LOOK: Duration = Duration::from_millis(10);

/// One balancer's machine. Each method returns the new state if it changed for the outside.
#[derive(Debug)]
pub struct Rules {
    kind: BalancerKind,
    by_pidfile: bool,
    state: State,
    /// A look was asked for and not yet begun.
    look: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Never seen.
    Unseen { why: Option<String> },
    /// As last seen, without those that died since.
    Running { tree: Tree },
    /// The serving process died; a look that began after `since` decides.
    Doubt { tree: Tree, dead: Process, why: String, since: Instant, until: Instant },
    /// No successor. Only a serving process younger than `dead` counts as a new one.
    Gone { dead: Process },
}

impl Rules {
    /// Nothing is known yet.
    pub fn new(kind: BalancerKind, source: &ProcessSource) -> Self {
        let by_pidfile = matches!(source, ProcessSource::Pidfile(_));
        Self { kind, by_pidfile, state: State::Unseen { why: None }, look: false }
    }

    /// Whether a look is wanted now. Asks once per doubt.
    pub fn take_look(&mut self) -> bool {
        std::mem::take(&mut self.look)
    }

    /// When [`Rules::timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Doubt { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// The processes worth watching.
    pub fn watched(&self) -> impl Iterator<Item = Process> + '_ {
        let tree = match &self.state {
            State::Running { tree } | State::Doubt { tree, .. } => Some(tree),
            State::Unseen { .. } | State::Gone { .. } => None,
        };
        tree.into_iter().flat_map(Tree::processes)
    }

    /// A look that began at `began` ended.
    pub fn found(&mut self, began: Instant, result: Result<Tree, String>) -> Option<BalancerState> {
        match (&mut self.state, result) {
            (State::Unseen { .. }, Ok(tree)) => Some(self.run(tree)),
            (State::Unseen { why }, Err(new)) => {
                if why.as_ref() == Some(&new) {
                    return None;
                }
                *why = Some(new.clone());
                Some(BalancerState::Unknown { why: new })
            }
            (State::Running { tree: old }, Ok(tree)) => {
                let same_main = old.main == tree.main;
                let state = self.run(tree);
                (!same_main).then_some(state)
            }
            // A pidfile or a control group may vanish; the process itself is watched and says when it ends.
            (State::Running { .. }, Err(_)) => None,
            (State::Doubt { dead, since, tree: old, .. }, Ok(tree)) if began >= *since && tree.serving() > *dead => {
                let same_main = old.main == tree.main;
                let state = self.run(tree);
                (!same_main).then_some(state)
            }
            (State::Doubt { since, .. }, _) => {
                if began >= *since {
                    self.give_up()
                } else {
                    None
                }
            }
            (State::Gone { dead }, Ok(tree)) if tree.serving() > *dead => Some(self.run(tree)),
            (State::Gone { .. }, _) => None,
        }
    }

    /// A process ended. `what`: how, where that's known.
    pub fn died(&mut self, now: Instant, pid: u32, what: Option<&str>) -> Option<BalancerState> {
        match &mut self.state {
            State::Running { tree } => {
                let serving = tree.serving();
                let is_main = pid == tree.main.pid;
                if !is_main && pid != serving.pid {
                    // One that was finishing its connections.
                    tree.workers.retain(|w| w.pid != pid);
                    return None;
                }
                let role = match (is_main, tree.workers.is_empty()) {
                    (true, true) => "process",
                    (true, false) => "master process",
                    (false, _) => "worker process",
                };
                let why = match what {
                    Some(what) => format!("{role} {pid} ended: {what}"),
                    None => format!("{role} {pid} ended"),
                };
                let single = is_main && tree.workers.is_empty();
                let limit = if !is_main {
                    Some(WORKER_LOOK)
                } else if single && self.by_pidfile && self.kind == BalancerKind::Haproxy {
                    Some(PIDFILE_LOOK)
                } else {
                    None
                };
                let dead = if is_main { tree.serving().max(tree.main) } else { serving };
                tree.workers.retain(|w| w.pid != pid);
                let tree = tree.clone();
                self.state = State::Doubt { tree, dead, why, since: now, until: now + limit.unwrap_or_default() };
                if limit.is_some() {
                    self.look = true;
                    return None;
                }
                self.give_up()
            }
            // Nothing of the tree is left that could bring up a successor.
            State::Doubt { tree, .. } if pid == tree.main.pid => self.give_up(),
            State::Doubt { tree, .. } => {
                tree.workers.retain(|w| w.pid != pid);
                None
            }
            State::Unseen { .. } | State::Gone { .. } => None,
        }
    }

    /// It could not be started at all.
    pub fn not_started(&mut self, now: Instant, what: &str) -> Option<BalancerState> {
        self.found(now, Err(what.to_owned()))
    }

    /// The limit of [`Rules::poll_timeout`] passed.
    pub fn timeout(&mut self, now: Instant) -> Option<BalancerState> {
        match &self.state {
            State::Doubt { until, .. } if now >= *until => self.give_up(),
            _ => None,
        }
    }

    fn run(&mut self, tree: Tree) -> BalancerState {
        let pid = tree.main.pid;
        self.look = false;
        self.state = State::Running { tree };
        BalancerState::Alive { pid }
    }

    fn give_up(&mut self) -> Option<BalancerState> {
        let State::Doubt { tree, dead, why, .. } = &self.state else { return None };
        let gone = BalancerState::Gone { pid: tree.main.pid, why: why.clone() };
        self.state = State::Gone { dead: *dead };
        self.look = false;
        Some(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn p(pid: u32) -> Process {
        Process { start: u64::from(pid) * 10, pid }
    }

    fn tree(main: u32, workers: &[u32]) -> Tree {
        Tree { main: p(main), workers: workers.iter().map(|w| p(*w)).collect() }
    }

    fn rules(kind: BalancerKind, pidfile: bool) -> (Rules, Instant) {
        let source =
            if pidfile { ProcessSource::Pidfile("/x".into()) } else { ProcessSource::Unit("x.service".to_owned()) };
        (Rules::new(kind, &source), Instant::now())
    }

    fn running(main: u32, workers: &[u32]) -> (Rules, Instant) {
        let (mut r, t) = rules(BalancerKind::Haproxy, false);
        assert_eq!(r.found(t, Ok(tree(main, workers))), Some(BalancerState::Alive { pid: main }));
        (r, t)
    }

    fn is_gone(state: Option<BalancerState>) -> bool {
        matches!(state, Some(BalancerState::Gone { .. }))
    }

    #[test]
    fn an_absent_balancer_is_unknown_and_says_why_once() {
        let (mut r, t) = rules(BalancerKind::Process, true);
        let why = || "no file".to_owned();
        assert_eq!(r.found(t, Err(why())), Some(BalancerState::Unknown { why: why() }));
        assert_eq!(r.found(t, Err(why())), None);
        assert_eq!(r.found(t, Ok(tree(1, &[]))), Some(BalancerState::Alive { pid: 1 }));
    }

    #[test]
    fn a_single_process_is_gone_at_once_and_alive_again_only_as_a_younger_one() {
        let (mut r, t) = running(10, &[]);
        let gone = BalancerState::Gone { pid: 10, why: "process 10 ended: signal 9".to_owned() };
        assert_eq!(r.died(t, 10, Some("signal 9")), Some(gone));
        assert_eq!(r.found(t + MS, Ok(tree(10, &[]))), None, "an older look may still come in");
        assert_eq!(r.found(t + MS, Err("no process".to_owned())), None, "gone says more than unknown");
        assert_eq!(r.found(t + MS, Ok(tree(11, &[]))), Some(BalancerState::Alive { pid: 11 }));
    }

    #[test]
    fn the_masters_death_is_gone_at_once_though_its_worker_lives() {
        let (mut r, t) = running(10, &[20]);
        let gone = r.died(t, 10, None);
        assert_eq!(gone, Some(BalancerState::Gone { pid: 10, why: "master process 10 ended".to_owned() }));
    }

    #[test]
    fn an_old_worker_that_finishes_is_no_event() {
        let (mut r, t) = running(10, &[20, 30]);
        assert_eq!(r.died(t, 20, None), None);
        assert!(!r.take_look());
        assert_eq!(r.poll_timeout(), None);
    }

    #[test]
    fn a_reload_that_was_not_seen_yet_is_found_by_a_look() {
        let (mut r, t) = running(10, &[20]);
        assert_eq!(r.died(t, 20, None), None);
        assert!(r.take_look());
        assert!(!r.take_look(), "one look per doubt");
        assert_eq!(r.found(t - MS, Ok(tree(10, &[20]))), None, "a look from before the death says nothing");
        assert_eq!(r.found(t + MS, Ok(tree(10, &[30]))), None, "the master is the same: no event");
        assert_eq!(r.poll_timeout(), None);
        assert!(r.watched().any(|w| w == p(30)), "the successor is watched now");
    }

    #[test]
    fn the_only_workers_death_is_gone_as_soon_as_a_look_finds_no_successor() {
        let (mut r, t) = running(10, &[20]);
        assert_eq!(r.died(t, 20, None), None);
        assert!(is_gone(r.found(t + MS, Ok(tree(10, &[])))));
        assert_eq!(r.found(t + MS * 2, Ok(tree(10, &[]))), None, "the master alone serves nobody");
        assert_eq!(r.found(t + MS * 9, Ok(tree(10, &[40]))), Some(BalancerState::Alive { pid: 10 }));
    }

    #[test]
    fn the_current_workers_death_is_gone_though_an_older_one_is_still_finishing() {
        let (mut r, t) = running(10, &[20, 30]);
        assert_eq!(r.died(t, 30, None), None);
        assert!(is_gone(r.found(t + MS, Ok(tree(10, &[20])))));
    }

    #[test]
    fn a_master_that_follows_its_worker_ends_the_doubt() {
        let (mut r, t) = running(10, &[20]);
        assert_eq!(r.died(t, 20, None), None);
        assert!(is_gone(r.died(t + MS, 10, None)));
        assert_eq!(r.timeout(t + WORKER_LOOK), None, "said once");
    }

    #[test]
    fn a_look_that_never_ends_is_limited() {
        let (mut r, t) = running(10, &[20]);
        assert_eq!(r.died(t, 20, None), None);
        assert_eq!(r.poll_timeout(), Some(t + WORKER_LOOK));
        assert_eq!(r.timeout(t + WORKER_LOOK - MS), None);
        assert!(is_gone(r.timeout(t + WORKER_LOOK)));
        assert_eq!(r.poll_timeout(), None);
    }

    #[test]
    fn a_single_haproxy_replaced_through_its_pidfile_is_alive_as_the_new_one() {
        let (mut r, t) = rules(BalancerKind::Haproxy, true);
        r.found(t, Ok(tree(10, &[])));
        assert_eq!(r.died(t, 10, None), None);
        assert!(r.take_look());
        assert_eq!(r.poll_timeout(), Some(t + PIDFILE_LOOK));
        assert_eq!(r.found(t + MS, Ok(tree(11, &[]))), Some(BalancerState::Alive { pid: 11 }));
    }

    #[test]
    fn kind_process_gets_no_benefit_of_the_doubt() {
        let (mut r, t) = rules(BalancerKind::Process, true);
        r.found(t, Ok(tree(10, &[])));
        assert!(is_gone(r.died(t, 10, None)));
    }

    #[test]
    fn a_vanished_pidfile_of_a_living_process_changes_nothing() {
        let (mut r, t) = running(10, &[]);
        assert_eq!(r.found(t + MS, Err("no such file".to_owned())), None);
        assert!(is_gone(r.died(t + MS, 10, None)), "it is still watched");
    }
}
