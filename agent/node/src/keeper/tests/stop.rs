//! Leaving in order, with and without a worker.

use super::balancers::orphan;
use super::*;

#[test]
fn a_former_keepers_worker_may_leave_in_order_before_the_next_one_starts() {
    let process = Process { pid: 50, start_time: 5 };
    let found = Found { worker: Some((process, Some(5))), balancers: Vec::new() };
    let mut bench = Bench::with(found.clone());
    bench.run(ms(1_000));
    assert_eq!(bench.times(spawns), [0; 0]);
    bench.input(Input::FormerWorkerExited);
    assert_eq!(bench.times(spawns), [1_000]);
    let mut bench = Bench::with(found);
    bench.run(ms(9_000));
    assert_eq!(bench.times(|o| *o == Output::KillFormerWorker), [5_000]);
    let gone = Found { worker: Some((process, Some(6))), balancers: Vec::new() };
    assert_eq!(Bench::with(gone).times(spawns), [0], "another process has its number now");
}

#[test]
fn a_stop_is_forwarded_and_ends_when_the_worker_has_left() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.input(Input::Terminate);
    let stop = ToWorker::Stop { deadline: ms(2_000) };
    assert_eq!(bench.times(|o| *o == Output::SendToWorker(stop.clone())), [0]);
    bench.beat(ms(500));
    bench.say(ToKeeper::Owner(VipRecord { undo: Vec::new(), ..record("web", 10, false) }));
    bench.say(ToKeeper::Stopped);
    bench.input(Input::WorkerClosed);
    bench.input(Input::WorkerExited { what: "exit status 0".to_owned() });
    assert_eq!((bench.times(resigns(10)), bench.times(removes(10))), (vec![], vec![]));
    assert_eq!(bench.log.last(), Some(&(500, Output::Exit(0))));
    let ledger =
        bench.log.iter().rev().find_map(|(_, o)| if let Output::Ledger(l) = o { Some(l.clone()) } else { None });
    assert_eq!(ledger, Some(Ledger::default()));
    assert_eq!(bench.keeper.poll_timeout(), None);
}

#[test]
fn a_worker_that_does_not_leave_within_the_deadline_and_a_second_is_killed_and_undone() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.input(Input::Terminate);
    bench.beat(ms(2_999));
    assert_eq!(bench.times(|o| *o == Output::KillWorker), [0; 0]);
    bench.run(ms(1));
    assert_eq!(bench.times(|o| *o == Output::KillWorker), [3_000]);
    bench.input(Input::WorkerExited { what: "signal 9".to_owned() });
    assert_eq!((bench.times(resigns(10)), bench.times(removes(10)).first()), (vec![3_000], Some(&3_000)));
    assert_eq!(bench.log.last(), Some(&(3_000, Output::Exit(0))));
}

#[test]
fn a_worker_that_crashes_while_stopping_is_not_started_again_and_undone_at_once() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.input(Input::Terminate);
    bench.crash();
    assert_eq!(bench.times(spawns).len(), 1);
    assert_eq!((bench.times(resigns(10)), bench.log.last().cloned()), (vec![0], Some((0, Output::Exit(0)))));
}

#[test]
fn a_stop_while_no_worker_lives_undoes_what_waits_and_ends() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.answers = false;
    bench.crash();
    bench.input(Input::WorkerNotSpawned { why: "no memory".to_owned() });
    bench.input(Input::Terminate);
    assert_eq!((bench.times(resigns(10)), bench.times(removes(10))), (vec![0], vec![0]));
    assert_eq!(bench.log.last(), Some(&(0, Output::Exit(0))));
}

#[test]
fn a_stop_takes_the_balancers_along_the_adopted_too_after_the_worker() {
    let mut bench = Bench::with(orphan(Some(99)));
    bench.hello();
    bench.input(Input::Terminate);
    bench.beat(ms(100));
    assert_eq!(bench.times(|o| matches!(o, Output::SignalBalancer { .. })), [0; 0]);
    bench.say(ToKeeper::Stopped);
    bench.input(Input::WorkerExited { what: "exit status 0".to_owned() });
    let signal = |n| move |o: &Output| matches!(o, Output::SignalBalancer { signal, .. } if *signal == n);
    assert_eq!(bench.times(signal(15)), [100]);
    bench.run(ms(6_000));
    assert_eq!(bench.times(signal(9)), [5_100]);
    assert_eq!(bench.times(|o| matches!(o, Output::Exit(_))), [0; 0]);
    bench.input(Input::BalancerExited { name: "haproxy".to_owned(), what: "gone".to_owned() });
    assert_eq!(bench.log.last().map(|(_, o)| o.clone()), Some(Output::Exit(0)));
}

#[test]
fn an_address_that_can_not_be_removed_is_tried_again_and_ends_a_stop_with_status_1() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.broken_netlink = true;
    bench.input(Input::Terminate);
    bench.crash();
    bench.run(ms(1_000));
    assert!(bench.times(removes(10)).len() >= 4);
    bench.run(ms(30_000));
    assert_eq!(bench.log.last().map(|(_, o)| o.clone()), Some(Output::Exit(1)));

    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.broken_netlink = true;
    bench.input(Input::Terminate);
    bench.crash();
    bench.broken_netlink = false;
    bench.run(ms(1_000));
    assert_eq!(bench.log.last().map(|(_, o)| o.clone()), Some(Output::Exit(0)));
}
