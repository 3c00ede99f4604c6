//! The protocol thread doesn't wait for the packet filter.

use crate::fabric::Fabric;
use crate::netns::{skipped, until};
use crate::{load, spread, vip};
use holdfast::os::nft::Balancer;
use holdfast::reconcile::{Executor, Heard};
use holdfast_node::io::Step;
use holdfast_node::pool::Balance;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

/// Somebody loads a table of a thousand services again and again, until `look` has seen enough of it. It is given the
/// number of loads begun and ended: odd while one is under way.
pub(crate) fn beside_loads<R>(look: impl FnOnce(&AtomicU64) -> R) -> R {
    let (stop, loads) = (AtomicBool::new(false), AtomicU64::new(0));
    let (services, tables) = spread(20, 1_000);
    let table = load(services, tables);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut kernel = Balancer::open().expect("open");
            while !stop.load(Ordering::SeqCst) {
                loads.fetch_add(1, Ordering::SeqCst);
                kernel.apply(&table).expect("loaded");
                loads.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let seen = look(&loads);
        stop.store(true, Ordering::SeqCst);
        seen
    })
}

/// Has the guard set as the protocol thread does, and waits for the answer. How long the thread was kept.
pub(crate) async fn guard(executor: &mut Executor) -> Duration {
    let step = Step::Guard { addresses: [vip()].into() };
    let begun = Instant::now();
    assert_eq!(executor.execute(&step), Ok(()));
    let kept = begun.elapsed();
    assert!(Executor::is_answered_later(&step));
    match poll_fn(|cx| executor.poll_later(cx)).await {
        Heard::Done(done, result) => assert_eq!((done, result), (step, Ok(()))),
        Heard::Touched => panic!("no table of the balancer is watched here"),
    }
    kept
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[test]
fn a_guard_that_is_set_while_a_thousand_services_are_loaded_keeps_no_turn_from_going_on() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    fabric.host.enter(|| {
        let runtime = runtime();
        let mut executor = runtime.block_on(async { Executor::new() }).expect("open");
        beside_loads(|loads| {
            // What the kernel does one after the other would end after the load that it began in.
            let mut within = 0;
            until("the thread goes on within the same load", || {
                let before = loads.load(Ordering::SeqCst);
                // Well into it: its rules are on their way to the kernel, or there.
                std::thread::sleep(Duration::from_millis(20));
                let still = before % 2 == 1 && loads.load(Ordering::SeqCst) == before;
                runtime.block_on(async {
                    let step = Step::Guard { addresses: [vip()].into() };
                    assert_eq!(executor.execute(&step), Ok(()));
                    within += u32::from(still && loads.load(Ordering::SeqCst) == before);
                    let heard = poll_fn(|cx| executor.poll_later(cx)).await;
                    assert!(matches!(heard, Heard::Done(done, Ok(())) if done == step));
                });
                (within >= 3).then_some(())
            });
        });
    });
}

#[test]
fn what_is_not_there_is_removed_without_a_thread_and_answered_at_once() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    fabric.host.enter(|| {
        runtime().block_on(async {
            let mut executor = Executor::new().expect("open");
            for step in [Step::Guard { addresses: [].into() }, Step::Balance(Balance::Unload)] {
                assert_eq!(executor.execute(&step), Ok(()));
                let answered = poll_fn(|cx| Poll::Ready(executor.poll_later(cx))).await;
                assert!(matches!(answered, Poll::Ready(Heard::Done(done, Ok(()))) if done == step));
            }
        });
    });
}
