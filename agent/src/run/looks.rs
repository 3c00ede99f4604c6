//! Threads for what looks often and briefly: probes, and the looks at balancers.
//!
//! Each has a runtime of its own, on one thread. A runtime of several threads would wake one for a timer, the next to
//! look for more work, and one more for each file that is read; on an idle host that is most of what a look costs.

use crate::balancer::report::Reporter;
use crate::balancer::watch::Looker;
use holdfast_node::config::BalancerId;
use std::collections::BTreeMap;
use std::future::Future;
use tokio_util::task::TaskTracker;

/// Threads for balancers; more of these share them. One that reads slowly holds up only those it shares with.
const THREADS_MAX: usize = 8;
/// Threads for what may be slow, of each of these runtimes.
const BLOCKING_MAX: usize = 4;

/// Runs what `work` gives on a thread of this name, until it ends.
///
/// # Errors
/// There can't be a thread or a runtime, in words.
pub(super) fn spawn<F: Future<Output = ()>>(
    name: &str,
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<(), String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.max_blocking_threads(BLOCKING_MAX).thread_name(name).enable_all().build();
    let runtime = runtime.map_err(|e| format!("{name}: runtime: {e}"))?;
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        runtime.block_on(async { work().await });
        runtime.shutdown_background();
    });
    thread.map(drop).map_err(|e| format!("{name}: thread: {e}"))
}

/// Looks at balancers for as long as anybody wants to know. A balancer's two looks share a thread.
///
/// # Errors
/// As [`spawn`].
pub(super) fn balancers(lookers: Vec<Looker>, reporters: Vec<Reporter>) -> Result<(), String> {
    let mut threads = BTreeMap::<usize, (Vec<Looker>, Vec<Reporter>)>::new();
    let thread = |balancer: BalancerId| usize::from(balancer.0) % THREADS_MAX;
    for looker in lookers {
        threads.entry(thread(looker.balancer())).or_default().0.push(looker);
    }
    for reporter in reporters {
        threads.entry(thread(reporter.balancer())).or_default().1.push(reporter);
    }
    for (lookers, reporters) in threads.into_values() {
        spawn("balancer", move || async move {
            let tracker = TaskTracker::new();
            lookers.into_iter().for_each(|looker| drop(tracker.spawn(looker.run())));
            reporters.into_iter().for_each(|reporter| drop(tracker.spawn(reporter.run())));
            tracker.close();
            tracker.wait().await;
        })?;
    }
    Ok(())
}
