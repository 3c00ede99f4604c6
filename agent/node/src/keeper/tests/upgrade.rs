//! A worker that is replaced by another one, in order: the living one goes on until the next is ready, and nobody
//! outside learns of the change.

use super::ipc::{BgpGrace, BgpSession};
use super::*;

fn ready() -> Input {
    Input::NextReady { hang_limit: ms(300), resume_limit: ms(200), felt: false }
}

fn next_spawns(output: &Output) -> bool {
    *output == Output::SpawnNext
}

fn told(wanted: ToWorker) -> impl Fn(&Output) -> bool {
    move |output| *output == Output::SendToWorker(wanted.clone())
}

fn not_replaced(output: &Output) -> bool {
    matches!(output, Output::SendToWorker(ToWorker::NotReplaced { .. }))
}

/// Of what is on the wire and in the kernel: nothing.
fn is_noticed(output: &Output) -> bool {
    matches!(
        output,
        Output::SendResign(_)
            | Output::Remove(_)
            | Output::DropBgp { .. }
            | Output::FarewellBgp { .. }
            | Output::CloseBfd { .. }
            | Output::SignalBalancer { .. }
    )
}

/// With an Active VIP and an established session, and the next worker spawned.
fn replacing() -> Bench {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.say(ToKeeper::BgpSession(BgpSession {
        neighbor: "r1".to_owned(),
        hold: ms(9_000),
        restart: Some(ms(15_000)),
        farewell: vec![0xff; 21],
        active: true,
    }));
    let bgp = Some(BgpGrace { grace: ms(19_500) });
    bench.say(ToKeeper::Owner(VipRecord { bgp, resign: vec![], ..record("any", 11, true) }));
    bench.log.clear();
    bench.say(ToKeeper::Replace);
    assert_eq!(bench.times(next_spawns), [0]);
    bench
}

fn left(bench: &mut Bench) {
    bench.input(Input::WorkerClosed);
    bench.input(Input::WorkerExited { what: "exit status 0".to_owned() });
}

#[test]
fn a_worker_leaves_when_the_next_one_is_ready_and_that_one_resumes_everything_at_once() {
    let mut bench = replacing();
    bench.beat(ms(500));
    assert!(
        bench.times(|o| matches!(o, Output::SendToWorker(_))).is_empty(),
        "it is not ready: the living one goes on"
    );
    assert_eq!(bench.times(|o| *o == Output::Release(Child::Next)), [0]);
    bench.input(ready());
    assert_eq!(bench.times(told(ToWorker::Leave { pid: bench.pid })), [500]);
    bench.run(ms(20));
    left(&mut bench);
    assert_eq!(bench.times(|o| *o == Output::Promote), [520]);
    let resumed = vec![("any".to_owned(), 7), ("web".to_owned(), 7)];
    assert_eq!(bench.boots(), [(resumed, 0)], "at once, and it counts as no crash");
    let boot = bench.position(|o| matches!(o, Output::SendToWorker(ToWorker::Boot { .. })));
    assert!(bench.position(|o| *o == Output::Promote) < boot, "to the new one");
    let Output::SendToWorker(ToWorker::Boot { former_end, bgp_restarting, .. }) = &bench.log[boot].1 else { panic!() };
    assert_eq!((former_end.as_str(), *bgp_restarting), ("", true));
    for message in [owner("web", 10, true), ToKeeper::Beat] {
        bench.say(message);
    }
    let bgp = Some(BgpGrace { grace: ms(19_500) });
    bench.say(ToKeeper::Owner(VipRecord { bgp, resign: vec![], ..record("any", 11, true) }));
    bench.beat(ms(1_000));
    assert_eq!(bench.times(is_noticed), [0; 0]);
    assert_eq!(bench.times(spawns), [0; 0]);
    // And a crash of the new one is one.
    bench.crash();
    assert_eq!(bench.times(spawns), [1_520]);
}

#[test]
pub(super) fn a_next_worker_that_ends_or_is_not_ready_in_time_changes_nothing() {
    let mut bench = replacing();
    bench.beat(ms(100));
    bench.input(Input::NextExited { what: "exit status 1".to_owned() });
    let why = "exit status 1".to_owned();
    assert_eq!(bench.times(told(ToWorker::NotReplaced { why })), [100]);
    bench.say(ToKeeper::Replace);
    assert_eq!(bench.times(next_spawns), [0, 100], "it may be tried again");
    bench.beat(ms(9_950));
    assert_eq!(bench.times(|o| *o == Output::KillNext), [0; 0]);
    bench.beat(ms(100));
    assert_eq!(bench.times(|o| *o == Output::KillNext), [10_100]);
    assert_eq!(bench.times(not_replaced), [100, 10_100]);
    // Its end, and what it said before, concern nobody any more.
    bench.input(ready());
    bench.input(Input::NextExited { what: "signal 9".to_owned() });
    bench.beat(ms(1_000));
    assert_eq!((bench.times(not_replaced).len(), bench.times(is_noticed)), (2, vec![]));
    assert_eq!(bench.times(|o| matches!(o, Output::SendToWorker(ToWorker::Leave { .. }))), [0; 0]);
}

#[test]
fn a_next_worker_that_can_not_be_started_changes_nothing() {
    let mut bench = Bench::working();
    bench.answers = false;
    bench.say(ToKeeper::Replace);
    bench.input(Input::NextNotSpawned { why: "no memory".to_owned() });
    assert_eq!(bench.times(told(ToWorker::NotReplaced { why: "no memory".to_owned() })), [0]);
    bench.say(ToKeeper::Replace);
    bench.say(ToKeeper::Replace);
    assert_eq!((bench.times(next_spawns).len(), bench.times(not_replaced).len()), (2, 2), "one at a time");
}

#[test]
fn a_worker_that_crashes_meanwhile_is_followed_by_the_next_one_ready_or_not() {
    let mut bench = replacing();
    bench.beat(ms(100));
    bench.crash();
    assert_eq!((bench.times(|o| *o == Output::Promote), bench.times(spawns)), (vec![100], vec![]));
    assert!(bench.boots().is_empty());
    bench.run(ms(50));
    bench.hello();
    assert_eq!(bench.boots().len(), 1);
    assert_eq!(bench.boots()[0].1, 1, "this was a crash");
    bench.run(ms(200));
    assert_eq!(bench.times(removes(10)), [300], "with the grace of one");
}

#[test]
pub(super) fn a_worker_that_does_not_leave_is_killed_and_the_next_one_resumes() {
    let mut bench = replacing();
    bench.input(ready());
    bench.beat(ms(999));
    assert_eq!(bench.times(|o| *o == Output::KillWorker), [0; 0]);
    bench.beat(ms(1));
    assert_eq!(bench.times(|o| *o == Output::KillWorker), [1_000]);
    bench.input(Input::WorkerExited { what: "signal 9".to_owned() });
    assert_eq!(bench.boots(), [(vec![("any".to_owned(), 7), ("web".to_owned(), 7)], 0)]);
    assert_eq!(bench.times(is_noticed), [0; 0]);
}

#[test]
fn a_worker_that_hangs_while_it_leaves_loses_its_vips_like_any_that_hangs() {
    let mut bench = replacing();
    bench.input(ready());
    bench.run(ms(300));
    assert_eq!((bench.times(resigns(10)), bench.times(removes(10))), (vec![300], vec![300]));
    bench.input(Input::WorkerExited { what: "signal 9".to_owned() });
    assert_eq!(bench.boots(), [(vec![("any".to_owned(), 7)], 1)]);
}

#[test]
fn what_the_next_one_does_not_resume_in_time_is_given_away() {
    let mut bench = replacing();
    bench.input(ready());
    left(&mut bench);
    bench.run(ms(250));
    assert_eq!((bench.times(resigns(10)), bench.times(removes(10))), (vec![200], vec![200]));
}

#[test]
fn a_stop_ends_the_next_one_and_the_living_one_leaves_in_order() {
    let mut bench = replacing();
    bench.input(Input::Terminate);
    assert_eq!(bench.times(|o| *o == Output::KillNext), [0]);
    bench.input(Input::NextExited { what: "signal 9".to_owned() });
    bench.say(ToKeeper::Replace);
    assert_eq!((bench.times(next_spawns).len(), bench.times(not_replaced).len()), (1, 1));
    for (vip, n) in [("web", 10), ("any", 11)] {
        bench.say(ToKeeper::Owner(VipRecord { undo: vec![], ..record(vip, n, false) }));
    }
    bench.say(ToKeeper::Stopped);
    bench.input(Input::WorkerExited { what: "exit status 0".to_owned() });
    assert_eq!(bench.log.last().map(|(_, o)| o), Some(&Output::Exit(0)));
    assert_eq!(bench.times(|o| *o == Output::Promote), [0; 0]);
}

#[test]
fn a_next_one_that_is_spawned_when_nobody_waits_for_it_is_ended() {
    let mut bench = Bench::working();
    bench.answers = false;
    bench.say(ToKeeper::Replace);
    bench.input(Input::Terminate);
    bench.input(Input::NextSpawned(Process { pid: 7, start_time: 7 }));
    assert_eq!(bench.times(|o| *o == Output::KillNext), [0]);
}
