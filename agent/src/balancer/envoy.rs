//! Envoy: one process for each epoch of a hot restart, perhaps below a hot restarter. Asked over its admin side: one
//! question for a few of its statistics.
//!
//! The youngest epoch serves, the one before finishes what it has. `healthcheck/fail` makes it say that it leaves while
//! it serves on; `drain_listeners?graceful` closes connections over the drain time. Without an admin side there is only
//! SIGTERM, which resets all connections at once.

use super::acts::Act;
use super::plane::{Asked, Asking, Member, Plane, generations, within};
use super::{Process, Tree, ask};
use holdfast_node::config::{Admin as Where, Balancer, HttpAt};
use holdfast_node::io::{Admin, Level, Pool};
use std::time::{Duration, Instant};

/// Longest answer: about 10,000 clusters.
const ANSWER_MAX: usize = 1 << 20;
/// The name of its processes, or how it begins.
const NAME: &str = "envoy";
/// A regular expression, as a query must be written.
const STATISTICS: &str = "stats?filter=(%5Eserver%5C.(state%7Clive%7Chot_restart_epoch)$\
    %7C%5Ecluster%5C..*%5C.membership_(healthy%7Ctotal)$\
    %7C%5Elistener%5C..*%5C.downstream_cx_(active%7Coverflow%7Coverload_reject)$\
    %7Cdownstream_global_cx_overflow$%7Cglobal_downstream_max_connections%5C.pressure$\
    %7C%5E(listener_manager%7Ccluster_manager)%5C..*update_(rejected%7Csuccess)$)";
/// Value of `server.state` while it drains.
const DRAINING: u64 = 1;

/// One Envoy.
#[derive(Debug)]
pub(super) struct Envoy {
    admin: Option<(HttpAt, String)>,
    /// In the last look, of the one with this main process.
    before: Option<(Process, Counters)>,
    /// Updates that were rejected since one was taken.
    failed: u64,
    /// Epochs that ended before they served, up to when this one came.
    aborted: u64,
}

impl Envoy {
    pub(super) fn new(balancer: &Balancer) -> Self {
        let admin = match &balancer.admin {
            Some(Where::Http { at, path }) => Some((at.clone(), path.trim_end_matches('/').to_owned())),
            Some(Where::Socket(_)) | None => None,
        };
        Self { admin, before: None, failed: 0, aborted: 0 }
    }

    async fn asked(&mut self, tree: &Tree, patience: Duration) -> Asked {
        let Some((at, base)) = &self.admin else { return Asked::only(Admin::NotConfigured) };
        let began = Instant::now();
        let path = format!("{base}/{STATISTICS}");
        let answer = within(patience, ask::http(at, "GET", &path, ANSWER_MAX)).await;
        let took = began.elapsed();
        let statistics = answer.and_then(|(status, body)| match status {
            200 => statistics(&String::from_utf8_lossy(&body)).ok_or_else(|| format!("{at}: not Envoy's statistics")),
            other => Err(format!("{at}: status {other}")),
        });
        match statistics {
            Ok(statistics) => self.told(tree, &statistics, Admin::Answers { took }),
            Err(why) => Asked::only(Admin::Silent { why }),
        }
    }

    fn told(&mut self, tree: &Tree, now: &Statistics, admin: Admin) -> Asked {
        // A new epoch counts from zero, and so does one that was started anew.
        let same = |before: &(Process, Counters)| before.0 == tree.main && before.1.epoch == now.counters.epoch;
        let before = self.before.replace((tree.main, now.counters)).filter(same).map(|(_, counters)| counters);
        if before.is_none() {
            self.aborted = tree.aborted;
        }
        let grown = |count: fn(&Counters) -> u64| before.is_some_and(|before| count(&now.counters) > count(&before));
        if grown(|c| c.rejected) {
            self.failed = self.failed.saturating_add(1);
        } else if before.is_none() || grown(|c| c.accepted) {
            self.failed = 0;
        }
        // A connection was refused: whatever the limit is, it is reached.
        let full = grown(|c| c.overflows).then(|| now.active.max(1));
        let connections = Level { now: full.unwrap_or(now.active), limit: full.unwrap_or_else(|| now.limit()) };
        Asked {
            connections: Some(connections),
            backends: (now.pool.total > 0).then_some(now.pool),
            generation: Some(now.counters.epoch),
            failed: Some(self.failed.saturating_add(tree.aborted.saturating_sub(self.aborted))),
            leaving: now.live == Some(0) || now.state == Some(DRAINING),
            admin,
        }
    }

    fn post(&self, path: &str) -> Vec<Act> {
        let act = |(at, base): &(HttpAt, String)| Act::Post { at: at.clone(), path: format!("{base}/{path}") };
        self.admin.iter().map(act).collect()
    }
}

impl Plane for Envoy {
    fn titles(&self) -> bool {
        true
    }

    fn shape(&self, main: &Member, members: &[Member]) -> Tree {
        let epochs = members.iter().filter(|m| m.name.starts_with(NAME) && serves(&m.title));
        generations(main, epochs.map(|m| m.process).collect(), members)
    }

    fn ask<'a>(&'a mut self, tree: &'a Tree, patience: Duration) -> Asking<'a> {
        Box::pin(self.asked(tree, patience))
    }

    fn leave(&self) -> Vec<Act> {
        self.post("healthcheck/fail")
    }

    fn stay(&self) -> Vec<Act> {
        self.post("healthcheck/ok")
    }

    fn shed(&self, _tree: &Tree) -> Vec<Act> {
        self.post("drain_listeners?graceful&skip_exit")
    }

    fn stop(&self, tree: &Tree) -> Vec<Act> {
        match &self.admin {
            Some(_) => self.post("quitquitquit"),
            None => tree.youngest().map(|process| Act::signal(process, libc::SIGTERM)).into_iter().collect(),
        }
    }
}

/// Whether one with these arguments is there to serve, and not to look over a file (`--mode validate`).
fn serves(title: &str) -> bool {
    let mut words = title.split_ascii_whitespace();
    let mode = words.find_map(|word| word.strip_prefix("--mode"));
    let mode = mode.map(|rest| rest.strip_prefix('=').or_else(|| words.next()).unwrap_or_default());
    mode.is_none_or(|mode| mode == "serve")
}

/// What is compared with the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counters {
    epoch: u64,
    /// Connections refused because of a limit.
    overflows: u64,
    /// Updates of its configuration that it refused, and took.
    rejected: u64,
    accepted: u64,
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Statistics {
    counters: Counters,
    state: Option<u64>,
    live: Option<u64>,
    active: u64,
    /// Percent of the most connections it may have, where a limit is set.
    pressure: Option<u64>,
    pool: Pool,
}

impl Statistics {
    /// 0: none, or none that can be computed from the rounded percentage.
    fn limit(&self) -> u64 {
        self.pressure.and_then(|percent| self.active.saturating_mul(100).checked_div(percent)).unwrap_or(0)
    }
}

/// Lines of `name: number`; what isn't that is passed over. `None`: none of them is Envoy's.
fn statistics(text: &str) -> Option<Statistics> {
    let pool = Pool { up: 0, total: 0 };
    let mut all =
        Statistics { counters: Counters::default(), state: None, live: None, active: 0, pressure: None, pool };
    for line in text.lines() {
        let Some((name, value)) = line.rsplit_once(": ") else { continue };
        let Ok(value) = value.trim().parse::<u64>() else { continue };
        all.take(name, value);
    }
    all.state.or(all.live).map(|_| all)
}

impl Statistics {
    fn take(&mut self, name: &str, value: u64) {
        let add = |to: &mut u64| *to = to.saturating_add(value);
        let add_small = |to: &mut u32| *to = to.saturating_add(u32::try_from(value).unwrap_or(u32::MAX));
        let (rest, last) = name.rsplit_once('.').unwrap_or(("", name));
        match (name, last) {
            ("server.state", _) => self.state = Some(value),
            ("server.live", _) => self.live = Some(value),
            ("server.hot_restart_epoch", _) => self.counters.epoch = value,
            (_, "membership_healthy") => add_small(&mut self.pool.up),
            (_, "membership_total") => add_small(&mut self.pool.total),
            (_, "pressure") => self.pressure = Some(value),
            (_, "downstream_global_cx_overflow") => add(&mut self.counters.overflows),
            (_, "update_rejected") => add(&mut self.counters.rejected),
            (_, "update_success") => add(&mut self.counters.accepted),
            // Its own admin side is no listener, and each worker's share is in the sum.
            _ if rest.starts_with("listener.admin") || rest.contains(".worker_") => {}
            (_, "downstream_cx_active") => add(&mut self.active),
            (_, "downstream_cx_overflow" | "downstream_cx_overload_reject") => add(&mut self.counters.overflows),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plane::tests::{member, pids};
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "cluster.a.membership_healthy: 1\ncluster.a.membership_total: 2\ncluster.b.membership_healthy: 0\n\
        cluster.b.membership_total: 3\nlistener.0.0.0.0_80.downstream_cx_active: 40\n\
        listener.0.0.0.0_80.worker_0.downstream_cx_active: 40\nlistener.admin.downstream_cx_active: 1\n\
        listener.0.0.0.0_80.downstream_cx_overflow: 0\nserver.hot_restart_epoch: 4\nserver.live: 1\nserver.state: 0\n\
        overload.envoy.resource_monitors.global_downstream_max_connections.pressure: 80\n\
        listener_manager.lds.update_rejected: 0\nserver.initialization_time_ms: No recorded values\n";

    fn envoy() -> Envoy {
        Envoy { admin: Some((HttpAt::Unix("/s".into()), String::new())), before: None, failed: 0, aborted: 0 }
    }

    fn told(envoy: &mut Envoy, text: &str) -> Asked {
        told_by(envoy, &tree(1, 0), text)
    }

    fn told_by(envoy: &mut Envoy, tree: &Tree, text: &str) -> Asked {
        envoy.told(tree, &statistics(text).expect("Envoy's"), Admin::NotConfigured)
    }

    fn tree(pid: u32, aborted: u64) -> Tree {
        Tree { aborted, ..Tree::single(Process { start: u64::from(pid), pid }) }
    }

    #[test]
    fn the_youngest_epoch_serves_and_the_restarter_is_no_envoy() {
        let main = member(10, 1, "python3");
        let members = [main.clone(), member(20, 10, "envoy"), member(30, 10, "envoy")];
        let tree = envoy().shape(&main, &members);
        assert_eq!((tree.main.pid, pids(&tree.serving), pids(&tree.old)), (10, vec![30], vec![20]));
        let tests = [main.clone(), member(20, 10, "envoy -c a"), member(30, 10, "envoy --mode validate -c b")];
        let tree = envoy().shape(&main, &tests);
        assert_eq!((pids(&tree.serving), pids(&tree.old), pids(&tree.others)), (vec![20], vec![], vec![30]));
        assert!(serves("envoy --mode serve") && !serves("envoy -c b --mode=init_only") && !serves("envoy --mode"));
        let alone = member(10, 1, "envoy");
        assert_eq!(envoy().shape(&alone, std::slice::from_ref(&alone)), Tree::single(alone.process));
        let started_beside = [alone.clone(), member(20, 1, "envoy")];
        let tree = envoy().shape(&alone, &started_beside);
        assert_eq!((pids(&tree.serving), pids(&tree.old)), (vec![20], vec![10]));
    }

    #[test]
    fn figures_are_summed_over_clusters_and_listeners_and_the_limit_follows_from_the_pressure() {
        let asked = told(&mut envoy(), TEXT);
        assert_eq!(asked.backends, Some(Pool { up: 1, total: 5 }));
        assert_eq!(asked.connections, Some(Level { now: 40, limit: 50 }));
        assert_eq!((asked.generation, asked.failed, asked.leaving), (Some(4), Some(0), false));
    }

    #[test]
    fn it_leaves_when_it_drains_or_fails_its_health_check() {
        assert!(told(&mut envoy(), &TEXT.replace("server.live: 1", "server.live: 0")).leaving);
        assert!(told(&mut envoy(), &TEXT.replace("server.state: 0", "server.state: 1")).leaving);
    }

    #[test]
    fn a_refused_connection_shows_the_limit_where_none_is_told() {
        let mut envoy = envoy();
        let text = TEXT.replace("pressure: 80", "pressure: 0");
        assert_eq!(told(&mut envoy, &text).connections, Some(Level { now: 40, limit: 0 }));
        let over = text.replace("overflow: 0", "overflow: 3");
        assert_eq!(told(&mut envoy, &over).connections, Some(Level { now: 40, limit: 40 }));
        assert_eq!(told(&mut envoy, &over).connections, Some(Level { now: 40, limit: 0 }));
    }

    #[test]
    fn an_update_that_was_rejected_is_a_failed_reload_until_one_is_taken() {
        let mut envoy = envoy();
        let rejected = TEXT.replace("rejected: 0", "rejected: 1");
        let accepted = format!("{rejected}cluster_manager.cds.update_success: 1\n");
        let failed = [TEXT, &rejected, &rejected, &accepted].map(|text| told(&mut envoy, text).failed);
        assert_eq!(failed, [0, 1, 1, 0].map(Some));
    }

    #[test]
    fn an_epoch_that_ended_before_it_served_is_a_failed_reload_until_one_serves() {
        let mut envoy = envoy();
        let next = TEXT.replace("epoch: 4", "epoch: 6");
        let mut at = |text: &str, aborted| told_by(&mut envoy, &tree(1, aborted), text).failed;
        let failed = [at(TEXT, 3), at(TEXT, 4), at(TEXT, 4), at(&next, 4), at(&next, 5)];
        assert_eq!(failed, [0, 1, 1, 0, 1].map(Some), "what was before it was looked at isn't counted");
    }

    #[test]
    fn what_failed_ends_with_the_envoy_it_failed_for() {
        let mut envoy = envoy();
        let rejected = TEXT.replace("rejected: 0", "rejected: 1");
        let mut at = |pid, aborted, text: &str| told_by(&mut envoy, &tree(pid, aborted), text).failed;
        let failed = [at(1, 0, TEXT), at(1, 1, &rejected), at(2, 1, TEXT), at(2, 1, TEXT)];
        assert_eq!(failed, [0, 2, 0, 0].map(Some), "another one has the same epoch");
    }

    #[test]
    fn a_page_of_somebody_else_is_not_envoys() {
        for other in ["", "<html>", "a: 1\n", "server.state: x\n"] {
            assert_eq!(statistics(other), None, "{other:?}");
        }
    }

    #[test]
    fn what_is_asked_for_can_stand_in_a_request() {
        let request = hyper::Request::builder().uri(format!("/{STATISTICS}")).body(());
        assert!(request.is_ok());
    }

    proptest! {
        #[test]
        fn no_answer_can_stop_the_reading(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
            let text = String::from_utf8_lossy(&bytes);
            let _ = statistics(&text);
            let _ = told(&mut envoy(), &format!("server.state: 0\n{text}"));
        }

        #[test]
        fn figures_of_any_size_are_no_overflow(values in proptest::collection::vec(any::<u64>(), 14)) {
            let names = TEXT.lines().filter_map(|line| line.rsplit_once(": ").map(|(name, _)| name));
            let text: String = names.zip(&values).map(|(name, value)| format!("{name}: {value}\n")).collect();
            let mut envoy = envoy();
            let _ = told(&mut envoy, &text);
            let _ = told(&mut envoy, &format!("{text}{text}"));
        }
    }
}
