//! The death table, row by row, with a virtual clock.

use super::ipc::{ExecResult, Resign, ToKeeper, ToWorker, VipAddress, VipRecord};
use super::*;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A keeper, its clock, and what it asked for, each with its time in ms.
struct Bench {
    keeper: Keeper,
    start: Instant,
    now: Instant,
    pid: u32,
    log: Vec<(u64, Output)>,
    /// Spawns are answered at once, as the agent does.
    answers: bool,
    /// Removals fail.
    broken_netlink: bool,
}

impl Bench {
    fn new() -> Self {
        Self::with(Found::default())
    }

    fn with(found: Found) -> Self {
        #[allow(clippy::disallowed_methods, reason = "a test has to begin somewhere")]
        let now = Instant::now();
        let keeper = Keeper::new(now, Options { stop_deadline: ms(2_000) }, found);
        let mut bench =
            Self { keeper, start: now, now, pid: 100, log: Vec::new(), answers: true, broken_netlink: false };
        bench.drain();
        bench
    }

    /// With a worker that has begun.
    fn working() -> Self {
        let mut bench = Self::new();
        bench.hello();
        bench.say(ToKeeper::Beat);
        bench
    }

    fn input(&mut self, input: Input) {
        self.keeper.handle(self.now, input);
        self.drain();
    }

    fn say(&mut self, message: ToKeeper) {
        self.input(Input::Worker(message));
    }

    fn hello(&mut self) {
        self.say(ToKeeper::Hello { hang_limit: ms(300), resume_limit: ms(200) });
    }

    fn drain(&mut self) {
        while let Some(output) = self.keeper.poll_output() {
            let at = u64::try_from((self.now - self.start).as_millis()).expect("a short test");
            self.log.push((at, output.clone()));
            let process = Process { pid: self.pid + 1, start_time: u64::from(self.pid) };
            let answer = match output {
                Output::SpawnWorker if self.answers => Some(Input::WorkerSpawned(process)),
                Output::SpawnBalancer { name, .. } if self.answers => Some(Input::BalancerSpawned { name, process }),
                Output::RemoveAddress(address) => {
                    let result = if self.broken_netlink { Err("netlink is broken".to_owned()) } else { Ok(()) };
                    Some(Input::Removed { address, result })
                }
                _ => None,
            };
            if let Some(answer) = answer {
                self.pid += 1;
                self.keeper.handle(self.now, answer);
            }
        }
    }

    /// Time passes in silence; timers fire when they are due.
    fn run(&mut self, span: Duration) {
        let until = self.now + span;
        for _ in 0..100_000 {
            match self.keeper.poll_timeout() {
                Some(due) if due <= until => {
                    self.now = self.now.max(due);
                    self.input(Input::Timer);
                }
                _ => {
                    self.now = until;
                    return;
                }
            }
        }
        panic!("the timeout never moves on");
    }

    /// Time passes with a beat every 50 ms.
    fn beat(&mut self, span: Duration) {
        let until = self.now + span;
        while self.now < until {
            self.run(ms(50).min(until - self.now));
            self.say(ToKeeper::Beat);
        }
    }

    fn crash(&mut self) {
        self.input(Input::WorkerClosed);
        self.input(Input::WorkerExited { what: "signal 9".to_owned() });
    }

    /// Takes what was put out since the last call, without events, notes and ledgers: (ms, output).
    fn take(&mut self) -> Vec<(u64, Output)> {
        let log = std::mem::take(&mut self.log);
        log.into_iter()
            .filter(|(_, o)| !matches!(o, Output::Event(_) | Output::Notify(_) | Output::Ledger(_)))
            .collect()
    }

    fn times(&self, wanted: impl Fn(&Output) -> bool) -> Vec<u64> {
        self.log.iter().filter(|(_, output)| wanted(output)).map(|(at, _)| *at).collect()
    }

    fn boots(&self) -> Vec<(Vec<(String, u64)>, u32)> {
        let boot = |(_, output): &(u64, Output)| match output {
            Output::SendToWorker(ToWorker::Boot { resume, crashed_before, .. }) => {
                Some((resume.clone(), *crashed_before))
            }
            _ => None,
        };
        self.log.iter().filter_map(boot).collect()
    }

    fn position(&self, wanted: impl Fn(&Output) -> bool) -> usize {
        self.log.iter().position(|(_, output)| wanted(output)).expect("it was put out")
    }
}

fn address(n: u8) -> VipAddress {
    VipAddress { ifindex: 2, ip: [192, 0, 2, n].into(), prefix: 32 }
}

fn resign(n: u8) -> Resign {
    Resign { ifindex: 2, source: [10, 0, 0, 1].into(), payload: vec![n; 12] }
}

fn record(vip: &str, n: u8, active: bool) -> VipRecord {
    VipRecord {
        vip: vip.to_owned(),
        active,
        role_epoch: 7,
        addresses: vec![address(n)],
        resign: active.then(|| resign(n)),
        interval: ms(100),
        balancer: None,
    }
}

fn owner(vip: &str, n: u8, active: bool) -> ToKeeper {
    ToKeeper::Owner(record(vip, n, active))
}

fn removes(n: u8) -> impl Fn(&Output) -> bool {
    move |output| *output == Output::RemoveAddress(address(n))
}

fn resigns(n: u8) -> impl Fn(&Output) -> bool {
    move |output| *output == Output::SendResign(resign(n))
}

fn spawns(output: &Output) -> bool {
    *output == Output::SpawnWorker
}

fn start_balancer(argv: &[&str], soft_stop: Option<i32>) -> ToKeeper {
    let argv = argv.iter().map(|&arg| arg.to_owned()).collect();
    ToKeeper::StartBalancer { name: "haproxy".to_owned(), argv, soft_stop }
}

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
fn what_no_worker_resumes_is_resigned_and_removed_at_the_end_of_the_grace() {
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
    bench.say(ToKeeper::Owner(VipRecord { addresses: vec![address(10), address(11)], ..record("web", 10, true) }));
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
fn a_hung_worker_loses_its_vips_and_its_life_at_once_and_the_next_one_starts_as_backup() {
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
fn a_balancer_that_dies_while_no_worker_lives_takes_its_vips_with_it_at_once() {
    let mut bench = Bench::working();
    bench.say(start_balancer(&["haproxy"], None));
    bench.say(ToKeeper::Owner(VipRecord { balancer: Some("haproxy".to_owned()), ..record("web", 10, true) }));
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
    bench.say(ToKeeper::Owner(VipRecord { balancer: Some("haproxy".to_owned()), ..record("web", 10, true) }));
    bench.answers = false;
    bench.input(Input::BalancerExited { name: "haproxy".to_owned(), what: "signal 11".to_owned() });
    bench.crash();
    assert_eq!(bench.times(removes(10)).first(), Some(&0));
}

#[test]
fn a_balancer_that_dies_with_a_worker_alive_is_the_workers_business_and_is_started_again() {
    let mut bench = Bench::working();
    bench.say(start_balancer(&["haproxy"], None));
    bench.say(ToKeeper::Owner(VipRecord { balancer: Some("haproxy".to_owned()), ..record("web", 10, true) }));
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

fn orphan(start_time: Option<u64>) -> Found {
    let process = Process { pid: 4_711, start_time: 99 };
    let entry =
        LedgerBalancer { name: "haproxy".to_owned(), argv: vec!["haproxy".to_owned()], soft_stop: None, process };
    Found { worker: None, balancers: vec![(entry, start_time)] }
}

fn adoption() {
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
    bench.say(ToKeeper::Owner(VipRecord { addresses: Vec::new(), ..record("web", 10, false) }));
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

fn exec(timeout: u64) -> ToKeeper {
    ToKeeper::Exec { token: 5, argv: vec!["/bin/true".to_owned()], environment: Vec::new(), timeout: ms(timeout) }
}

#[test]
fn a_program_that_takes_too_long_gets_sigterm_then_sigkill_and_counts_as_timed_out() {
    let mut bench = Bench::working();
    bench.say(exec(200));
    bench.beat(ms(1_000));
    let signals: Vec<_> = bench
        .log
        .iter()
        .filter_map(|(at, o)| if let Output::SignalExec { id: 1, signal } = o { Some((*at, *signal)) } else { None })
        .collect();
    assert_eq!(signals, [(200, 15), (700, 9)]);
    bench.input(Input::ExecExited { id: 1, result: ExecResult::Signal(9), output: b"slow".to_vec() });
    let done = ToWorker::ExecDone { token: 5, result: ExecResult::TimedOut, output: b"slow".to_vec() };
    assert_eq!(bench.times(|o| *o == Output::SendToWorker(done.clone())), [1_000]);
}

#[test]
fn the_result_of_a_program_goes_to_the_worker_that_asked_and_to_no_other() {
    let mut bench = Bench::working();
    bench.say(exec(5_000));
    bench.crash();
    bench.hello();
    bench.input(Input::ExecExited { id: 1, result: ExecResult::Status(0), output: Vec::new() });
    let done = |o: &Output| matches!(o, Output::SendToWorker(ToWorker::ExecDone { .. }));
    assert_eq!(bench.times(done), [0; 0]);
    bench.say(exec(5_000));
    bench.input(Input::ExecExited { id: 2, result: ExecResult::Status(3), output: Vec::new() });
    assert_eq!(bench.times(done).len(), 1);
}

#[test]
fn too_many_programs_at_a_time_are_refused_one_by_one() {
    let mut bench = Bench::working();
    for _ in 0..65 {
        bench.say(exec(5_000));
    }
    assert_eq!(bench.times(|o| matches!(o, Output::SpawnExec { .. })).len(), 64);
    let refused = |o: &Output| {
        matches!(o, Output::SendToWorker(ToWorker::ExecDone { result: ExecResult::NotStarted(_), token: 5, .. }))
    };
    assert_eq!(bench.times(refused).len(), 1);
}

#[test]
fn a_reload_is_passed_on() {
    let mut bench = Bench::working();
    bench.input(Input::Reload);
    assert_eq!(bench.times(|o| *o == Output::SendToWorker(ToWorker::Reload)), [0]);
}

/// Each guard, switched off, makes its test fail.
#[cfg(feature = "mutants")]
#[test]
fn every_guard_is_missed_by_its_test() {
    let cases: [(&'static str, fn()); 3] = [
        ("keeper-grace", what_no_worker_resumes_is_resigned_and_removed_at_the_end_of_the_grace),
        ("keeper-hang", a_hung_worker_loses_its_vips_and_its_life_at_once_and_the_next_one_starts_as_backup),
        ("adopt", adoption),
    ];
    assert_eq!(cases.map(|(name, _)| name), mutants::NAMES);
    for (name, test) in cases {
        let result = std::panic::catch_unwind(|| mutants::with_off(name, test));
        assert!(result.is_err(), "without {name} its test still passes");
    }
}
