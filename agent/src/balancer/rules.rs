//! What a death means: the balancer is gone, or it is reloading.
//!
//! A balancer reloads by starting new processes, which then tell the old ones to finish. So the death of one that served
//! is a fault only if none is there that serves in its stead, and that is found by looking, never by waiting: nothing of
//! it left, or nothing left that listens, and it's gone at once. Only while another process of its tree or control group
//! lives and something still listens, its successor gets the time to come.

use super::{Process, Tree};
use holdfast_node::config::{BalancerKind, ProcessSource};
use holdfast_node::io::BalancerState;
use std::time::{Duration, Instant};

/// How long a successor may take while another process of the tree lives, and something listens.
const GRACE: Duration = Duration::from_millis(300);
/// Between two looks meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long a look for the successor of a single process may take of which nothing else is known (`-sf`: the new one
/// has written the pidfile before the old one ends).
const SINGLE_LOOK: Duration = Duration::from_millis(10);

/// One balancer's machine. Each method returns the new state if it changed for the outside.
#[derive(Debug)]
pub struct Rules {
    kind: BalancerKind,
    /// Its pidfile may name another process by now.
    renamed: bool,
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
    /// Nobody serves; a look that began after `since` decides.
    Doubt { tree: Tree, dead: Process, why: String, since: Instant, until: Instant, look_at: Option<Instant> },
    /// No successor. Only a serving process younger than `dead` counts as a new one.
    Gone { dead: Process },
}

impl Rules {
    /// Nothing is known yet.
    pub fn new(kind: BalancerKind, source: &ProcessSource) -> Self {
        let renamed = matches!(source, ProcessSource::Pidfile(_)) && kind != BalancerKind::Process;
        Self { kind, renamed, state: State::Unseen { why: None }, look: false }
    }

    /// Whether a look is wanted now. Asks once.
    pub fn take_look(&mut self) -> bool {
        std::mem::take(&mut self.look)
    }

    /// When [`Rules::timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Doubt { until, look_at, .. } => Some(look_at.map_or(*until, |at| at.min(*until))),
            _ => None,
        }
    }

    /// The processes worth watching.
    pub fn watched(&self) -> impl Iterator<Item = Process> + '_ {
        let tree = match &self.state {
            State::Running { tree } | State::Doubt { tree, .. } => Some(tree),
            State::Unseen { .. } | State::Gone { .. } => None,
        };
        tree.into_iter().flat_map(Tree::watched)
    }

    /// A look that began at `began` ended. `listens`: something of it lives, and something listens where it did.
    pub fn found(&mut self, began: Instant, result: Result<Tree, String>, listens: bool) -> Option<BalancerState> {
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
            (State::Doubt { dead, since, tree: old, .. }, Ok(tree))
                if began >= *since && succeeds(self.kind, &tree, *dead, listens) =>
            {
                let same_main = old.main == tree.main;
                let state = self.run(tree);
                (!same_main).then_some(state)
            }
            (State::Doubt { since, look_at, .. }, _) if began >= *since => {
                if !listens {
                    return self.give_up();
                }
                *look_at = Some(began + LOOK_AGAIN);
                None
            }
            (State::Gone { dead }, Ok(tree)) if tree.youngest().is_some_and(|p| p > *dead) => Some(self.run(tree)),
            (State::Doubt { .. } | State::Gone { .. }, _) => None,
        }
    }

    /// A process ended. `what`: how, where that's known.
    pub fn died(&mut self, now: Instant, pid: u32, what: Option<&str>) -> Option<BalancerState> {
        match &mut self.state {
            State::Running { tree } => {
                let main = tree.main;
                let (is_main, served) = (pid == main.pid, tree.serving.iter().copied().find(|p| p.pid == pid));
                let single = tree.serving == [main];
                let youngest = tree.youngest();
                tree.remove(pid);
                if !is_main && served.is_none() {
                    // One that was finishing its connections, or is unknown.
                    return None;
                }
                // HAProxy's workers end with their master; nginx's go on, and so does an Envoy without its restarter.
                let ends_with_main = is_main && self.kind == BalancerKind::Haproxy;
                if !tree.serving.is_empty() && !ends_with_main {
                    self.look |= is_main;
                    return None;
                }
                let role = match (is_main, single) {
                    (true, true) => "process",
                    (true, false) => "master process",
                    (false, _) => "worker process",
                };
                let why = match what {
                    Some(what) => format!("{role} {pid} ended: {what}"),
                    None => format!("{role} {pid} ended"),
                };
                let limit = if ends_with_main && !single {
                    None
                } else if !tree.is_empty() {
                    Some(GRACE)
                } else {
                    (is_main && self.renamed).then_some(SINGLE_LOOK)
                };
                let dead = served.max(youngest).unwrap_or(main);
                let until = now + limit.unwrap_or_default();
                self.state = State::Doubt { tree: tree.clone(), dead, why, since: now, until, look_at: None };
                self.look = limit.is_some();
                if limit.is_some() { None } else { self.give_up() }
            }
            State::Doubt { tree, .. } => {
                let is_main = pid == tree.main.pid;
                tree.remove(pid);
                // Nothing is left that could bring up a successor.
                let lost = is_main && self.kind == BalancerKind::Haproxy || tree.is_empty();
                if lost { self.give_up() } else { None }
            }
            State::Unseen { .. } | State::Gone { .. } => None,
        }
    }

    /// It could not be started at all.
    pub fn not_started(&mut self, now: Instant, what: &str) -> Option<BalancerState> {
        self.found(now, Err(what.to_owned()), false)
    }

    /// A limit of [`Rules::poll_timeout`] passed.
    pub fn timeout(&mut self, now: Instant) -> Option<BalancerState> {
        match &mut self.state {
            State::Doubt { until, .. } if now >= *until => self.give_up(),
            State::Doubt { look_at, .. } if look_at.is_some_and(|at| now >= at) => {
                *look_at = None;
                self.look = true;
                None
            }
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

/// Whether what was found serves in the stead of `dead`. A new Envoy that fails at its start leaves the one before it
/// serving, which then still listens.
fn succeeds(kind: BalancerKind, tree: &Tree, dead: Process, listens: bool) -> bool {
    tree.youngest().is_some_and(|p| p > dead || (kind == BalancerKind::Envoy && listens))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn p(pid: u32) -> Process {
        Process { start: u64::from(pid) * 10, pid }
    }

    /// HAProxy's: the last of the workers serves.
    fn tree(main: u32, workers: &[u32]) -> Tree {
        let Some((last, old)) = workers.split_last() else { return Tree::single(p(main)) };
        let old = old.iter().map(|w| p(*w)).collect();
        Tree { serving: vec![p(*last)], old, ..Tree::single(p(main)) }
    }

    /// nginx's: all of them serve.
    fn nginx(main: u32, serving: &[u32], others: &[u32]) -> Tree {
        let list = |pids: &[u32]| pids.iter().map(|w| p(*w)).collect();
        Tree { serving: list(serving), others: list(others), ..Tree::single(p(main)) }
    }

    fn found(r: &mut Rules, at: Instant, result: Result<Tree, String>) -> Option<BalancerState> {
        r.found(at, result, false)
    }

    fn rules(kind: BalancerKind, pidfile: bool) -> (Rules, Instant) {
        let source =
            if pidfile { ProcessSource::Pidfile("/x".into()) } else { ProcessSource::Unit("x.service".to_owned()) };
        (Rules::new(kind, &source), Instant::now())
    }

    fn running(main: u32, workers: &[u32]) -> (Rules, Instant) {
        let (mut r, t) = rules(BalancerKind::Haproxy, false);
        assert_eq!(found(&mut r, t, Ok(tree(main, workers))), Some(BalancerState::Alive { pid: main }));
        (r, t)
    }

    fn is_gone(state: Option<BalancerState>) -> bool {
        matches!(state, Some(BalancerState::Gone { .. }))
    }

    #[test]
    fn an_absent_balancer_is_unknown_and_says_why_once() {
        let (mut r, t) = rules(BalancerKind::Process, true);
        let why = || "no file".to_owned();
        assert_eq!(found(&mut r, t, Err(why())), Some(BalancerState::Unknown { why: why() }));
        assert_eq!(found(&mut r, t, Err(why())), None);
        assert_eq!(found(&mut r, t, Ok(tree(1, &[]))), Some(BalancerState::Alive { pid: 1 }));
    }

    #[test]
    fn a_single_process_is_gone_at_once_and_alive_again_only_as_a_younger_one() {
        let (mut r, t) = running(10, &[]);
        let gone = BalancerState::Gone { pid: 10, why: "process 10 ended: signal 9".to_owned() };
        assert_eq!(r.died(t, 10, Some("signal 9")), Some(gone));
        assert_eq!(found(&mut r, t + MS, Ok(tree(10, &[]))), None, "an older look may still come in");
        assert_eq!(found(&mut r, t + MS, Err("no process".to_owned())), None, "gone says more than unknown");
        assert_eq!(found(&mut r, t + MS, Ok(tree(11, &[]))), Some(BalancerState::Alive { pid: 11 }));
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
        assert_eq!(found(&mut r, t - MS, Ok(tree(10, &[20]))), None, "a look from before the death says nothing");
        assert_eq!(found(&mut r, t + MS, Ok(tree(10, &[30]))), None, "the master is the same: no event");
        assert_eq!(r.poll_timeout(), None);
        assert!(r.watched().any(|w| w == p(30)), "the successor is watched now");
    }

    #[test]
    fn the_only_workers_death_is_gone_as_soon_as_a_look_finds_no_successor() {
        let (mut r, t) = running(10, &[20]);
        assert_eq!(r.died(t, 20, None), None);
        assert!(is_gone(found(&mut r, t + MS, Ok(tree(10, &[])))));
        assert_eq!(found(&mut r, t + MS * 2, Ok(tree(10, &[]))), None, "the master alone serves nobody");
        assert_eq!(found(&mut r, t + MS * 9, Ok(tree(10, &[40]))), Some(BalancerState::Alive { pid: 10 }));
    }

    #[test]
    fn the_current_workers_death_is_gone_though_an_older_one_is_still_finishing() {
        let (mut r, t) = running(10, &[20, 30]);
        assert_eq!(r.died(t, 30, None), None);
        assert!(is_gone(found(&mut r, t + MS, Ok(tree(10, &[20])))));
    }

    #[test]
    fn a_master_that_follows_its_worker_ends_the_doubt() {
        let (mut r, t) = running(10, &[20]);
        assert_eq!(r.died(t, 20, None), None);
        assert!(is_gone(r.died(t + MS, 10, None)));
        assert_eq!(r.timeout(t + GRACE), None, "said once");
    }

    #[test]
    fn a_look_that_never_ends_is_limited() {
        let (mut r, t) = running(10, &[20]);
        assert_eq!(r.died(t, 20, None), None);
        assert_eq!(r.poll_timeout(), Some(t + GRACE));
        assert_eq!(r.timeout(t + GRACE - MS), None);
        assert!(is_gone(r.timeout(t + GRACE)));
        assert_eq!(r.poll_timeout(), None);
    }

    #[test]
    fn a_single_haproxy_replaced_through_its_pidfile_is_alive_as_the_new_one() {
        let (mut r, t) = rules(BalancerKind::Haproxy, true);
        found(&mut r, t, Ok(tree(10, &[])));
        assert_eq!(r.died(t, 10, None), None);
        assert!(r.take_look());
        assert_eq!(r.poll_timeout(), Some(t + SINGLE_LOOK));
        assert_eq!(found(&mut r, t + MS, Ok(tree(11, &[]))), Some(BalancerState::Alive { pid: 11 }));
    }

    #[test]
    fn kind_process_gets_no_benefit_of_the_doubt() {
        let (mut r, t) = rules(BalancerKind::Process, true);
        found(&mut r, t, Ok(tree(10, &[])));
        assert!(is_gone(r.died(t, 10, None)));
    }

    #[test]
    fn a_vanished_pidfile_of_a_living_process_changes_nothing() {
        let (mut r, t) = running(10, &[]);
        assert_eq!(found(&mut r, t + MS, Err("no such file".to_owned())), None);
        assert!(is_gone(r.died(t + MS, 10, None)), "it is still watched");
    }

    fn nginx_running(serving: &[u32], others: &[u32]) -> (Rules, Instant) {
        let (mut r, t) = rules(BalancerKind::Nginx, true);
        assert_eq!(found(&mut r, t, Ok(nginx(10, serving, others))), Some(BalancerState::Alive { pid: 10 }));
        (r, t)
    }

    #[test]
    fn one_of_several_nginx_workers_may_die() {
        let (mut r, t) = nginx_running(&[20, 21], &[]);
        assert_eq!(r.died(t, 21, None), None);
        assert!(!r.take_look() && r.poll_timeout().is_none());
        assert_eq!(r.died(t, 20, None), None, "the master brings another");
        assert!(r.take_look());
        assert_eq!(r.found(t + MS, Ok(nginx(10, &[], &[])), true), None);
        assert_eq!(r.poll_timeout(), Some(t + MS + LOOK_AGAIN), "it's looked for again, not just waited for");
        assert_eq!(r.timeout(t + MS + LOOK_AGAIN), None);
        assert!(r.take_look());
        assert_eq!(r.found(t + MS * 30, Ok(nginx(10, &[30], &[])), true), None, "the same nginx: no event");
        assert_eq!(r.poll_timeout(), None);
    }

    #[test]
    fn an_nginx_master_that_brings_no_worker_is_gone_after_the_grace() {
        let (mut r, t) = nginx_running(&[20], &[]);
        assert_eq!(r.died(t, 20, None), None);
        let mut at = t;
        while at + LOOK_AGAIN < t + GRACE {
            at += MS;
            assert_eq!(r.found(at, Ok(nginx(10, &[], &[])), true), None);
            at += LOOK_AGAIN;
            assert_eq!(r.timeout(at), None, "{:?}", at - t);
        }
        assert!(is_gone(r.timeout(t + GRACE)));
    }

    #[test]
    fn orphans_of_an_nginx_are_alive_to_the_last() {
        let (mut r, t) = nginx_running(&[20, 21], &[40]);
        assert_eq!(r.died(t, 10, None), None);
        assert!(r.take_look(), "a new master may be there");
        assert_eq!(found(&mut r, t + MS, Err("stale".to_owned())), None);
        assert!(r.watched().all(|w| w != p(10)) && r.watched().count() == 2);
        assert_eq!(r.died(t + MS, 20, None), None);
        assert_eq!(r.died(t + MS, 21, None), None, "the cache manager is still there");
        assert!(is_gone(found(&mut r, t + MS * 2, Err("stale".to_owned()))), "and doesn't listen");
    }

    #[test]
    fn a_new_nginx_after_orphans_is_alive_as_itself() {
        let (mut r, t) = nginx_running(&[20], &[]);
        assert_eq!(r.died(t, 10, None), None);
        assert_eq!(found(&mut r, t + MS, Ok(nginx(50, &[60], &[]))), Some(BalancerState::Alive { pid: 50 }));
    }

    #[test]
    fn of_a_process_that_left_a_listening_child_a_successor_has_300_ms() {
        let family = || Tree { others: vec![p(20)], ..Tree::single(p(10)) };
        let (mut r, t) = rules(BalancerKind::Process, false);
        found(&mut r, t, Ok(family()));
        assert_eq!(r.died(t, 10, None), None);
        assert!(r.take_look());
        let early = Ok(Tree::single(p(11)));
        assert_eq!(r.found(t + MS, Err("gone".to_owned()), true), None);
        assert_eq!(r.found(t + MS * 200, early, true), Some(BalancerState::Alive { pid: 11 }));

        let (mut r, t) = rules(BalancerKind::Process, false);
        found(&mut r, t, Ok(family()));
        assert_eq!(r.died(t, 10, None), None);
        assert!(is_gone(r.found(t + MS, Err("gone".to_owned()), false)), "nothing listens: at once");

        let (mut r, t) = rules(BalancerKind::Process, false);
        found(&mut r, t, Ok(family()));
        assert_eq!(r.died(t, 10, None), None);
        assert_eq!(r.found(t + MS, Err("gone".to_owned()), true), None);
        assert!(is_gone(r.timeout(t + GRACE)));
    }

    fn envoy(serving: u32, old: &[u32]) -> Tree {
        let old = old.iter().map(|w| p(*w)).collect();
        Tree { serving: vec![p(serving)], old, ..Tree::single(p(5)) }
    }

    #[test]
    fn a_hot_restart_that_fails_leaves_the_former_envoy_in_service() {
        let (mut r, t) = rules(BalancerKind::Envoy, false);
        found(&mut r, t, Ok(envoy(30, &[20])));
        assert_eq!(r.died(t, 30, None), None);
        assert_eq!(r.found(t + MS, Ok(envoy(20, &[])), true), None, "it listens");
        assert_eq!(r.poll_timeout(), None);
        assert_eq!(r.died(t, 20, None), None, "the restarter still lives");
        assert!(is_gone(r.found(t + MS, Ok(envoy(5, &[])), false)));
    }

    #[test]
    fn the_envoy_of_the_former_epoch_may_end() {
        let (mut r, t) = rules(BalancerKind::Envoy, false);
        found(&mut r, t, Ok(envoy(30, &[20])));
        assert_eq!(r.died(t, 20, None), None);
        assert!(!r.take_look());
        assert_eq!(r.died(t, 5, None), None, "without its restarter it serves on");
        assert!(is_gone(r.died(t, 30, None)), "nothing of it is left");
    }
}
