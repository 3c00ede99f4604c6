//! Workers that start, crash, hang, lapse and can not start.

use super::*;
use crate::kernel::{Prefix, Route, Rule, Vmac};

#[test]
fn the_first_worker_starts_at_once_and_boots_with_nothing_to_resume() {
    let mut bench = Bench::new();
    assert_eq!(bench.times(spawns), [0]);
    let ledger = bench.position(|o| matches!(o, Output::Ledger(ledger) if ledger.worker.is_some()));
    let release = bench.position(|o| *o == Output::Release(Child::Worker));
    assert!(ledger < release, "the ledger knows it before it runs");
    bench.hello();
    assert_eq!(bench.boots(), [(vec![], 0)]);
    assert_eq!(bench.times(|o| *o == Output::Notify(Notify::Ready)), [0]);
    bench.hello();
    assert_eq!(bench.boots().len(), 1, "a second Hello changes limits, nothing else");
}

#[test]
fn a_crashed_worker_starts_again_at_once_and_resumes_within_its_grace() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.beat(ms(100));
    bench.take();
    bench.crash();
    assert_eq!(bench.times(spawns), [100]);
    bench.run(ms(150));
    bench.hello();
    assert_eq!(bench.boots(), [(vec![("web".to_owned(), 7)], 1)]);
    bench.run(ms(40));
    bench.say(owner("web", 10, true));
    bench.beat(ms(1_000));
    assert_eq!(bench.times(removes(10)), [0; 0]);
    assert_eq!(bench.times(resigns(10)), [0; 0]);
}

#[test]
fn a_new_worker_is_told_which_checksum_the_former_one_had_learnt() {
    let mut bench = Bench::working();
    bench.say(ToKeeper::Owner(VipRecord { pseudo_header: vec![(0, false), (2, true)], ..record("web", 10, true) }));
    bench.crash();
    bench.hello();
    let told = bench.log.iter().rev().find_map(|(_, output)| match output {
        Output::SendToWorker(ToWorker::Boot { pseudo_header, .. }) => Some(pseudo_header.clone()),
        _ => None,
    });
    assert_eq!(told, Some(vec![("web".to_owned(), vec![(0, false), (2, true)])]));
}

#[test]
pub(super) fn what_no_worker_resumes_is_resigned_and_removed_at_the_end_of_the_grace() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.crash();
    bench.run(ms(500));
    assert_eq!((bench.times(resigns(10)), bench.times(removes(10))), (vec![200], vec![200]));
    assert!(bench.position(resigns(10)) < bench.position(removes(10)));
    bench.hello();
    assert_eq!(bench.boots().last(), Some(&(vec![], 1)), "too late: nothing is left to resume");
}

#[test]
fn the_grace_is_twice_the_interval_at_most_200_ms_and_at_most_what_the_worker_said() {
    for (interval, limit, grace) in [(10, 200, 20), (50, 200, 100), (100, 200, 200), (1_000, 5_000, 200), (100, 60, 60)]
    {
        let mut bench = Bench::new();
        bench.say(ToKeeper::Hello { hang_limit: ms(300), resume_limit: ms(limit) });
        bench.say(ToKeeper::Owner(VipRecord { interval: ms(interval), ..record("web", 10, true) }));
        bench.crash();
        bench.run(ms(1_000));
        assert_eq!(bench.times(removes(10)), [grace], "interval {interval}, limit {limit}");
    }
}

#[test]
fn a_worker_that_boots_in_time_and_resumes_too_late_is_told_that_it_lapsed() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.crash();
    bench.hello();
    bench.run(ms(250));
    let lapsed = ToWorker::Lapsed { vip: "web".to_owned(), role_epoch: 7 };
    assert_eq!(bench.times(|o| *o == Output::SendToWorker(lapsed.clone())), [200]);
}

#[test]
fn a_new_worker_that_comes_up_as_backup_lets_the_keeper_resign_and_remove_what_it_does_not_know() {
    let mut bench = Bench::working();
    bench.say(ToKeeper::Owner(VipRecord { undo: vec![address(10), address(11)], ..record("web", 10, true) }));
    bench.crash();
    bench.hello();
    bench.run(ms(50));
    bench.say(owner("web", 10, false));
    assert_eq!(bench.times(resigns(10)), [50]);
    assert_eq!((bench.times(removes(10)), bench.times(removes(11))), (vec![], vec![50]));
}

#[test]
fn a_backup_with_addresses_left_is_undone_at_once_without_an_advert() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, false));
    bench.crash();
    assert_eq!((bench.times(resigns(10)), bench.times(removes(10))), (vec![], vec![0, 0]));
}

#[test]
pub(super) fn a_hung_worker_loses_its_vips_and_its_life_at_once_and_the_next_one_starts_as_backup() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.beat(ms(1_000));
    bench.take();
    bench.run(ms(299));
    assert_eq!(bench.take(), []);
    bench.run(ms(1));
    let killed = bench.position(|o| *o == Output::KillWorker);
    assert!(killed < bench.position(resigns(10)) && bench.position(resigns(10)) < bench.position(removes(10)));
    assert_eq!((bench.times(resigns(10)), bench.times(removes(10))), (vec![1_300], vec![1_300]));
    assert_eq!(bench.times(spawns), [0; 0], "no second worker while the first may live");
    bench.take();
    bench.run(ms(5));
    bench.input(Input::WorkerExited { what: "signal 9".to_owned() });
    assert_eq!(bench.times(removes(10)), [1_305], "its last system call may have added it again");
    assert_eq!(bench.times(spawns), [1_305]);
    bench.hello();
    assert_eq!(bench.boots(), [(vec![], 1)]);
}

#[test]
fn the_hang_limit_is_the_workers_but_never_under_300_ms() {
    for (asked, limit) in [(10, 300), (900, 900)] {
        let mut bench = Bench::new();
        bench.say(ToKeeper::Hello { hang_limit: ms(asked), resume_limit: ms(200) });
        bench.say(ToKeeper::Beat);
        bench.run(ms(2_000));
        assert_eq!(bench.times(|o| *o == Output::KillWorker), [limit]);
    }
}

#[test]
fn silence_while_the_keeper_itself_stood_still_is_no_hang() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.beat(ms(200));
    // Both were stopped for a second; nothing lies on the socket.
    bench.now += ms(1_000);
    bench.input(Input::Timer);
    bench.run(ms(200));
    bench.say(ToKeeper::Beat);
    bench.run(ms(299));
    assert_eq!(bench.times(|o| *o == Output::KillWorker), [0; 0]);
    bench.run(ms(1));
    assert_eq!(bench.times(|o| *o == Output::KillWorker), [1_700], "and afterwards it is seen again");
}

#[test]
fn a_worker_is_told_whether_the_keeper_can_feel_its_pulse() {
    for felt in [false, true] {
        let mut bench = Bench::new();
        if felt {
            bench.input(Input::Pulse { at: bench.now });
        }
        bench.hello();
        let told =
            |output: &Output| matches!(output, Output::SendToWorker(ToWorker::Boot { pulse, .. }) if *pulse == felt);
        assert_eq!(bench.times(told), [0]);
        bench.run(ms(9_999));
        assert_eq!(bench.times(|o| *o == Output::KillWorker), [0; 0], "before its first beat it has time");
    }
}

#[test]
fn while_a_worker_leaves_word_the_keeper_sleeps() {
    let mut bench = Bench::working();
    bench.beat(ms(11_000));
    bench.input(Input::Pulse { at: bench.now });
    assert_eq!(bench.keeper.poll_timeout(), None);
    bench.say(owner("web", 10, true));
    assert_eq!(bench.keeper.poll_timeout(), None, "a message changes nothing in that");
}

#[test]
pub(super) fn a_worker_that_leaves_no_word_any_more_is_killed_at_the_limit() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.beat(ms(1_000));
    let last = bench.now;
    bench.input(Input::Pulse { at: last });
    bench.run(patience(ms(300)));
    bench.input(Input::Pulse { at: last });
    bench.run(ms(99));
    assert_eq!(bench.times(|o| *o == Output::KillWorker), [0; 0]);
    bench.run(ms(1));
    assert_eq!((bench.times(|o| *o == Output::KillWorker), bench.times(removes(10))), (vec![1_300], vec![1_300]));
}

#[test]
fn a_worker_that_leaves_word_again_in_time_lets_the_keeper_sleep_again() {
    let mut bench = Bench::working();
    bench.beat(ms(11_000));
    let last = bench.now;
    bench.input(Input::Pulse { at: last });
    // Both stood still from the last word on, and the keeper is just on time again.
    bench.run(patience(ms(300)) + ms(10));
    bench.input(Input::Pulse { at: last });
    assert!(bench.keeper.poll_timeout().is_some());
    bench.run(ms(60));
    bench.input(Input::Pulse { at: last + ms(220) });
    assert_eq!(bench.keeper.poll_timeout(), None);
    assert_eq!(bench.times(|o| *o == Output::KillWorker), [0; 0]);
}

#[test]
pub(super) fn a_keeper_that_slept_too_long_doesnt_take_that_for_the_workers_silence() {
    let mut bench = Bench::working();
    bench.beat(ms(1_000));
    let last = bench.now;
    bench.input(Input::Pulse { at: last });
    bench.now += ms(1_000);
    bench.input(Input::Pulse { at: last });
    bench.run(ms(249));
    assert_eq!(bench.times(|o| *o == Output::KillWorker), [0; 0]);
    bench.run(ms(1));
    assert_eq!(bench.times(|o| *o == Output::KillWorker), [2_250], "and afterwards it is seen");
}

#[test]
fn a_keeper_that_is_late_again_and_again_still_sees_a_hang() {
    let mut bench = Bench::working();
    while bench.times(|o| *o == Output::KillWorker).is_empty() {
        assert!(bench.now - bench.start < ms(5_000), "never seen");
        let due = bench.keeper.poll_timeout().expect("armed");
        bench.now = bench.now.max(due) + ms(19);
        bench.input(Input::Timer);
    }
}

#[test]
fn a_worker_that_ends_again_and_again_is_started_with_back_off_up_to_5_s() {
    let mut bench = Bench::new();
    let mut starts = Vec::new();
    for _ in 0..10 {
        while bench.times(spawns).len() == starts.len() {
            let due = bench.keeper.poll_timeout().expect("armed");
            bench.now = bench.now.max(due);
            bench.input(Input::Timer);
        }
        starts = bench.times(spawns);
        bench.input(Input::WorkerExited { what: "exit status 1".to_owned() });
    }
    let waits: Vec<u64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(waits, [0, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
    bench.run(ms(5_000));
    bench.hello();
    bench.beat(ms(60_000));
    bench.log.clear();
    bench.crash();
    assert_eq!(bench.times(spawns).len(), 1, "at once after a minute of good life");
}

#[test]
fn a_worker_that_can_not_start_is_tried_again_and_its_vips_go_at_the_end_of_the_grace() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.answers = false;
    bench.crash();
    for _ in 0..20 {
        bench.input(Input::WorkerNotSpawned { why: "out of memory".to_owned() });
        bench.run(ms(60));
    }
    assert_eq!((bench.times(resigns(10)), bench.times(removes(10))), (vec![200], vec![200]));
    assert!(bench.times(spawns).len() >= 4);
}

#[test]
fn a_second_crash_does_not_prolong_the_grace() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.crash();
    bench.run(ms(150));
    bench.hello();
    bench.crash();
    bench.run(ms(300));
    assert_eq!(bench.times(removes(10)), [200]);
}

#[test]
fn a_worker_that_never_begins_is_killed_with_or_without_a_hello() {
    for hello in [false, true] {
        let mut bench = Bench::new();
        bench.run(ms(100));
        if hello {
            bench.hello();
        }
        bench.run(ms(20_000));
        assert_eq!(bench.times(|o| *o == Output::KillWorker), [10_000]);
    }
}

#[test]
fn a_slow_start_is_no_hang() {
    let mut bench = Bench::new();
    bench.hello();
    bench.run(ms(3_000));
    bench.say(owner("web", 10, true));
    bench.run(ms(299));
    assert_eq!(bench.times(|o| *o == Output::KillWorker), [0; 0]);
    bench.run(ms(1));
    assert_eq!(bench.times(|o| *o == Output::KillWorker), [3_300]);
}

#[test]
fn a_worker_that_closes_its_socket_and_lives_on_is_killed_and_its_vips_wait_for_the_next() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.input(Input::WorkerClosed);
    bench.run(ms(150));
    assert_eq!(bench.times(|o| *o == Output::KillWorker), [100]);
    bench.input(Input::WorkerExited { what: "signal 9".to_owned() });
    bench.hello();
    assert_eq!(bench.boots().last(), Some(&(vec![("web".to_owned(), 7)], 1)));
}

#[test]
fn a_worker_that_does_not_read_counts_as_hung() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.input(Input::WorkerStuck);
    assert_eq!((bench.times(|o| *o == Output::KillWorker), bench.times(removes(10))), (vec![0], vec![0]));
}

#[test]
fn what_a_killed_worker_still_recorded_is_removed_and_removed_again_when_it_is_gone() {
    let mut bench = Bench::working();
    bench.input(Input::WorkerStuck);
    bench.say(owner("web", 10, true));
    bench.run(ms(10));
    bench.input(Input::WorkerExited { what: "signal 9".to_owned() });
    assert_eq!(bench.times(removes(10)), [0, 10]);
}

#[test]
fn a_worker_that_left_by_itself_leaves_nothing_to_wait_for() {
    let mut bench = Bench::working();
    bench.say(owner("web", 10, true));
    bench.say(ToKeeper::Stopped);
    bench.input(Input::WorkerClosed);
    bench.input(Input::WorkerExited { what: "exit status 0".to_owned() });
    assert_eq!(bench.times(removes(10)), [0]);
    assert_eq!(bench.times(spawns).len(), 2);
}

#[test]
fn what_moved_with_a_vip_is_undone_before_its_addresses_rules_first() {
    let prefix = Prefix::new([192, 0, 2, 10].into(), 32);
    let rule = Rule { six: false, from: Some(prefix), to: None, table: 100, priority: 1_000 };
    let route = Route { to: prefix, via: None, ifindex: 2, table: 100, source: None, metric: 0 };
    let vmac = Vmac { parent: 2, vrid: 10, six: false };
    let undo = vec![Undo::Rule(rule), Undo::Route(route), Undo::Vmac(vmac), address(10)];
    let mut sorted = undo.clone();
    sorted.reverse();
    sorted.sort_unstable();
    assert_eq!(sorted, undo, "the order of the type is that of undoing");
    let mut bench = Bench::working();
    bench.say(ToKeeper::Owner(VipRecord { undo: undo.clone(), ..record("web", 10, true) }));
    bench.run(ms(400));
    let removed = |(_, output): (u64, Output)| if let Output::Remove(undo) = output { Some(undo) } else { None };
    let removed: Vec<Undo> = bench.take().into_iter().filter_map(removed).collect();
    assert_eq!(removed, undo);
}

#[test]
fn every_vip_that_a_configuration_may_have_is_remembered_and_so_are_the_next_configurations() {
    let mut bench = Bench::working();
    let owners = |prefix: &'static str| {
        let bgp = Some(super::ipc::BgpGrace { grace: ms(60_000) });
        let own = move |n| VipRecord { bgp, undo: vec![], resign: vec![], ..record(&format!("{prefix}{n}"), 1, true) };
        (0..crate::config::VIPS_MAX).map(move |n| ToKeeper::Owner(own(n)))
    };
    owners("a").for_each(|owner| bench.say(owner));
    bench.crash();
    bench.hello();
    owners("b").for_each(|owner| bench.say(owner));
    assert_eq!(bench.times(|o| matches!(o, Output::Event(Event::Refused { .. }))), [0; 0]);
    bench.say(owner("one more", 1, true));
    assert_eq!(bench.times(|o| matches!(o, Output::Event(Event::Refused { .. }))), [0]);
}
