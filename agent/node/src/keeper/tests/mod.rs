//! The death table, row by row, with a virtual clock. Here: the bench that the rows stand on.

use super::ipc::{ExecResult, Resign, ToKeeper, ToWorker, Undo, VipAddress, VipRecord};
use super::*;

mod balancers;
mod execs;
mod routers;
mod stop;
mod upgrade;
mod workers;

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
        let keeper = Keeper::new(now, Options { stop_deadline: ms(2_000), seed: 1 }, found);
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
                Output::SpawnNext if self.answers => Some(Input::NextSpawned(process)),
                Output::SpawnBalancer { name, .. } if self.answers => Some(Input::BalancerSpawned { name, process }),
                Output::Remove(undo) => {
                    let result = if self.broken_netlink { Err("netlink is broken".to_owned()) } else { Ok(()) };
                    Some(Input::Removed { undo, result })
                }
                Output::OpenBfd { session, .. } if self.answers => Some(Input::BfdOpened { session, ifindex: Some(2) }),
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
            let due = [self.keeper.poll_timeout(), self.keeper.bfd_timeout()].into_iter().flatten().min();
            match due {
                Some(due) if due <= until => {
                    self.now = self.now.max(due);
                    if self.keeper.bfd_timeout() == Some(due) {
                        self.keeper.bfd_timer(self.now);
                        self.drain();
                    }
                    if self.keeper.poll_timeout() == Some(due) {
                        self.input(Input::Timer);
                    }
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

fn address(n: u8) -> Undo {
    Undo::Address(VipAddress { ifindex: 2, ip: [192, 0, 2, n].into(), prefix: 32 })
}

fn resign(n: u8) -> Resign {
    let group = [224, 0, 0, 18].into();
    Resign { ifindex: 2, source: [10, 0, 0, 1].into(), destination: group, payload: vec![n; 12] }
}

fn record(vip: &str, n: u8, active: bool) -> VipRecord {
    VipRecord {
        vip: vip.to_owned(),
        active,
        role_epoch: 7,
        undo: vec![address(n)],
        resign: if active { vec![resign(n)] } else { vec![] },
        interval: ms(100),
        balancers: vec![],
        pseudo_header: vec![],
        bgp: None,
    }
}

fn owner(vip: &str, n: u8, active: bool) -> ToKeeper {
    ToKeeper::Owner(record(vip, n, active))
}

fn removes(n: u8) -> impl Fn(&Output) -> bool {
    move |output| *output == Output::Remove(address(n))
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

/// Each guard, switched off, makes its test fail.
#[cfg(feature = "mutants")]
#[test]
fn every_guard_is_missed_by_its_test() {
    let cases: [(&'static str, fn()); 8] = [
        ("keeper-grace", workers::what_no_worker_resumes_is_resigned_and_removed_at_the_end_of_the_grace),
        ("keeper-hang", workers::a_hung_worker_loses_its_vips_and_its_life_at_once_and_the_next_one_starts_as_backup),
        ("next-limit", upgrade::a_next_worker_that_ends_or_is_not_ready_in_time_changes_nothing),
        ("leave-limit", upgrade::a_worker_that_does_not_leave_is_killed_and_the_next_one_resumes),
        ("adopt", balancers::adoption),
        ("bfd-forsake", routers::a_balancer_that_dies_while_no_worker_lives_is_told_to_routers_before_the_address_goes),
        (
            "bgp-farewell",
            routers::a_balancer_that_dies_while_no_worker_lives_is_told_to_routers_before_the_address_goes,
        ),
        ("bgp-half-hold", routers::a_dead_workers_sessions_are_closed_at_half_the_hold_time_and_no_word_is_said),
    ];
    assert_eq!(cases.map(|(name, _)| name), mutants::NAMES);
    for (name, test) in cases {
        let result = std::panic::catch_unwind(|| mutants::with_off(name, test));
        assert!(result.is_err(), "without {name} its test still passes");
    }
}
