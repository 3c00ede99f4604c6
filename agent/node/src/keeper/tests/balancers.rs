//! Balancers that die, are started again, adopted and stopped.

use super::*;

#[test]
fn a_balancer_that_dies_while_no_worker_lives_takes_its_vips_with_it_at_once() {
    let mut bench = Bench::working();
    bench.say(start_balancer(&["haproxy"], None));
    bench.say(ToKeeper::Owner(VipRecord { balancers: vec!["haproxy".to_owned()], ..record("web", 10, true) }));
    bench.say(owner("other", 20, true));
    bench.crash();
    bench.run(ms(30));
    bench.input(Input::BalancerExited { name: "haproxy".to_owned(), what: "signal 11".to_owned() });
    assert_eq!((bench.times(resigns(10)), bench.times(removes(10))), (vec![30], vec![30]));
    assert_eq!(bench.times(removes(20)), [0; 0], "the other VIP has its grace");
    bench.hello();
    assert_eq!(bench.boots().last(), Some(&(vec![("other".to_owned(), 7)], 1)));
}

#[test]
fn a_crash_right_after_the_balancers_death_has_no_grace() {
    let mut bench = Bench::working();
    bench.say(start_balancer(&["haproxy"], None));
    bench.say(ToKeeper::Owner(VipRecord { balancers: vec!["haproxy".to_owned()], ..record("web", 10, true) }));
    bench.answers = false;
    bench.input(Input::BalancerExited { name: "haproxy".to_owned(), what: "signal 11".to_owned() });
    bench.crash();
    assert_eq!(bench.times(removes(10)).first(), Some(&0));
}

#[test]
fn a_balancer_that_dies_with_a_worker_alive_is_the_workers_business_and_is_started_again() {
    let mut bench = Bench::working();
    bench.say(start_balancer(&["haproxy"], None));
    bench.say(ToKeeper::Owner(VipRecord { balancers: vec!["haproxy".to_owned()], ..record("web", 10, true) }));
    bench.input(Input::BalancerExited { name: "haproxy".to_owned(), what: "signal 11".to_owned() });
    assert_eq!(bench.times(removes(10)), [0; 0]);
    let told =
        |o: &Output| matches!(o, Output::SendToWorker(ToWorker::BalancerExited { what, .. }) if what == "signal 11");
    assert_eq!(bench.times(told), [0]);
    assert_eq!(bench.times(|o| matches!(o, Output::SpawnBalancer { .. })), [0, 0]);
}

#[test]
fn a_balancer_is_started_again_at_once_then_with_back_off_up_to_10_s() {
    let mut bench = Bench::working();
    let started = |o: &Output| matches!(o, Output::SpawnBalancer { .. });
    bench.say(start_balancer(&["haproxy"], None));
    let mut starts = bench.times(started);
    for _ in 0..10 {
        bench.input(Input::BalancerExited { name: "haproxy".to_owned(), what: "exit status 1".to_owned() });
        while bench.times(started).len() == starts.len() {
            bench.beat(ms(50));
        }
        starts = bench.times(started);
    }
    let waits: Vec<u64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(waits, [0, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000]);
    bench.beat(ms(30_000));
    bench.log.clear();
    bench.input(Input::BalancerExited { name: "haproxy".to_owned(), what: "exit status 1".to_owned() });
    assert_eq!(bench.times(started).len(), 1, "at once after half a minute of good life");
}

#[test]
fn a_balancer_is_in_the_ledger_before_it_runs_and_out_of_it_when_it_is_gone() {
    let mut bench = Bench::working();
    bench.say(start_balancer(&["haproxy", "-W"], Some(10)));
    let entry = |o: &Output| matches!(o, Output::Ledger(ledger) if ledger.balancers.len() == 1);
    let release = bench.position(|o| *o == Output::Release(Child::Balancer("haproxy".to_owned())));
    assert!(bench.position(entry) < release);
    bench.say(ToKeeper::StopBalancer { name: "haproxy".to_owned() });
    bench.input(Input::BalancerExited { name: "haproxy".to_owned(), what: "exit status 0".to_owned() });
    let last = bench.log.iter().rev().find_map(|(_, o)| if let Output::Ledger(l) = o { Some(l.clone()) } else { None });
    assert_eq!(last.expect("written").balancers, []);
}

#[test]
fn asking_again_for_a_running_balancer_only_reports_it() {
    let mut bench = Bench::working();
    bench.say(start_balancer(&["haproxy"], None));
    bench.crash();
    bench.hello();
    bench.say(start_balancer(&["haproxy"], None));
    assert_eq!(bench.times(|o| matches!(o, Output::SpawnBalancer { .. })).len(), 1);
    assert_eq!(bench.times(|o| matches!(o, Output::SendToWorker(ToWorker::Balancer { .. }))).len(), 2);
}

#[test]
fn another_command_replaces_the_running_balancer_after_it_has_ended() {
    let mut bench = Bench::working();
    bench.say(start_balancer(&["haproxy"], None));
    bench.say(start_balancer(&["haproxy", "-V"], None));
    let started = |o: &Output| matches!(o, Output::SpawnBalancer { .. });
    assert_eq!(bench.times(started).len(), 1, "never two at a time");
    bench.input(Input::BalancerExited { name: "haproxy".to_owned(), what: "signal 15".to_owned() });
    assert_eq!(bench.times(started).len(), 2);
}

#[test]
fn a_balancer_is_stopped_softly_then_by_sigterm_then_by_sigkill_to_its_group() {
    let mut bench = Bench::working();
    bench.say(start_balancer(&["haproxy"], Some(10)));
    bench.say(ToKeeper::StopBalancer { name: "haproxy".to_owned() });
    bench.beat(ms(20_000));
    let signals: Vec<_> = bench
        .log
        .iter()
        .filter_map(|(at, o)| match o {
            Output::SignalBalancer { signal, group, .. } => Some((*at, *signal, *group)),
            _ => None,
        })
        .collect();
    assert_eq!(signals, [(0, 10, false), (5_000, 15, false), (10_000, 9, true)]);
}

pub(super) fn orphan(start_time: Option<u64>) -> Found {
    let process = Process { pid: 4_711, start_time: 99 };
    let entry =
        LedgerBalancer { name: "haproxy".to_owned(), argv: vec!["haproxy".to_owned()], soft_stop: None, process };
    Found { worker: None, balancers: vec![(entry, start_time)] }
}

pub(super) fn adoption() {
    let mut bench = Bench::with(orphan(Some(99)));
    bench.hello();
    bench.say(start_balancer(&["haproxy"], None));
    assert_eq!(bench.times(|o| matches!(o, Output::WatchBalancer { .. })), [0]);
    assert_eq!(bench.times(|o| matches!(o, Output::SpawnBalancer { .. })), [0; 0], "never a second one");
    let told = ToWorker::Balancer { name: "haproxy".to_owned(), pid: 4_711, start_time: 99 };
    assert_eq!(bench.times(|o| *o == Output::SendToWorker(told.clone())), [0]);
    bench.input(Input::BalancerExited { name: "haproxy".to_owned(), what: "gone".to_owned() });
    assert_eq!(bench.times(|o| matches!(o, Output::SpawnBalancer { .. })), [0], "from here on it is ours");
}

#[test]
fn an_orphaned_balancer_is_adopted_and_never_started_a_second_time() {
    adoption();
}

#[test]
fn a_process_that_only_has_the_number_of_a_former_balancer_is_not_adopted() {
    for found in [Some(98), None] {
        let mut bench = Bench::with(orphan(found));
        bench.hello();
        bench.say(start_balancer(&["haproxy"], None));
        assert_eq!(bench.times(|o| matches!(o, Output::SpawnBalancer { .. })), [0]);
    }
}

#[test]
fn an_adopted_balancer_that_nobody_asks_for_is_left_alone_and_named_once() {
    let mut bench = Bench::with(orphan(Some(99)));
    bench.hello();
    bench.beat(ms(30_000));
    let named = |o: &Output| matches!(o, Output::Event(Event::BalancerUnclaimed { pid: 4_711, .. }));
    assert_eq!(bench.times(named), [10_000]);
    assert_eq!(bench.times(|o| matches!(o, Output::SignalBalancer { .. })), [0; 0]);
}
