//! Whatever happens in whatever order: no panic, and after a clean end nothing that was recorded is left.

use super::ipc::{BfdSpec, BgpGrace, BgpSession, ExecResult, Resign, ToKeeper, Undo, VipAddress, VipRecord};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Debug, Clone)]
enum Act {
    In(Input),
    /// The worker replaces a record: VIP, bit set of its addresses, Active.
    Own(u8, u8, bool),
    Wait(u64),
    /// The worker left word so long ago.
    Pulse(u64),
    /// The keeper isn't scheduled for so long.
    Stall(u64),
    /// Spawns fail from here on, or work again.
    Spawns(bool),
    Removals(bool),
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![Just("a".to_owned()), Just("b".to_owned())]
}

fn said() -> impl Strategy<Value = ToKeeper> {
    let ms = |range| (range, Just(())).prop_map(|(n, ())| Duration::from_millis(n));
    prop_oneof![
        4 => Just(ToKeeper::Beat),
        4 => (ms(0..2_000_u64), ms(0..500_u64))
            .prop_map(|(hang_limit, resume_limit)| ToKeeper::Hello { hang_limit, resume_limit }),
        1 => Just(ToKeeper::Hello { hang_limit: Duration::MAX, resume_limit: Duration::MAX }),
        2 => (name(), 0..3_u8, prop::option::of(-3..70_i32)).prop_map(|(name, n, soft_stop)| {
            ToKeeper::StartBalancer { name, argv: vec!["x".to_owned(); usize::from(n)], soft_stop }
        }),
        1 => name().prop_map(|name| ToKeeper::StopBalancer { name }),
        1 => (any::<u64>(), 0..2_usize, any::<u64>()).prop_map(|(token, argc, timeout)| ToKeeper::Exec {
            token,
            argv: vec!["x".to_owned(); argc],
            environment: Vec::new(),
            timeout: Duration::from_millis(timeout),
        }),
        2 => prop::collection::btree_set(0..4_u8, 0..4).prop_map(|set| ToKeeper::Bfd(set.into_iter().map(bfd).collect())),
        2 => (name(), any::<bool>(), prop::option::of(0..30_u64), 0..20_u64).prop_map(|(neighbor, active, restart, hold)| {
            let restart = restart.map(Duration::from_secs);
            let hold = Duration::from_secs(hold);
            ToKeeper::BgpSession(BgpSession { neighbor, hold, restart, farewell: vec![0xff; 21], active })
        }),
        1 => Just(ToKeeper::Stopped),
        2 => Just(ToKeeper::Replace),
    ]
}

fn input() -> impl Strategy<Value = Input> {
    let what = || Just("ended".to_owned());
    prop_oneof![
        1 => Just(Input::Timer),
        10 => said().prop_map(Input::Worker),
        1 => Just(Input::WorkerClosed),
        1 => Just(Input::WorkerStuck),
        3 => what().prop_map(|what| Input::WorkerExited { what }),
        1 => Just(Input::FormerWorkerExited),
        3 => (0..500_u64).prop_map(|limit| {
            let limit = Duration::from_millis(limit);
            Input::NextReady { hang_limit: limit, resume_limit: limit, felt: false }
        }),
        1 => what().prop_map(|what| Input::NextExited { what }),
        2 => (name(), what()).prop_map(|(name, what)| Input::BalancerExited { name, what }),
        // Answers that nobody asked for.
        1 => (1..5_u32).prop_map(|pid| Input::NextSpawned(Process { pid, start_time: 1 })),
        1 => (1..5_u32).prop_map(|pid| Input::WorkerSpawned(Process { pid, start_time: 1 })),
        1 => (name(), 1..5_u32).prop_map(|(name, pid)| Input::BalancerSpawned { name, process: Process { pid, start_time: 1 } }),
        1 => (name(), what()).prop_map(|(name, why)| Input::BalancerNotSpawned { name, why }),
        1 => (0..9_u64).prop_map(|id| Input::ExecExited { id, result: ExecResult::Status(0), output: Vec::new() }),
        1 => Just(Input::Reload),
        1 => Just(Input::Terminate),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => input().prop_map(Act::In),
        6 => (0..3_u8, 0..8_u8, any::<bool>()).prop_map(|(vip, set, active)| Act::Own(vip, set, active)),
        4 => (0..400_u64).prop_map(Act::Wait),
        1 => (0..100_000_u64).prop_map(Act::Wait),
        3 => (0..400_u64).prop_map(Act::Pulse),
        1 => (0..2_000_u64).prop_map(Act::Stall),
        1 => any::<bool>().prop_map(Act::Spawns),
        1 => any::<bool>().prop_map(Act::Removals),
    ]
}

fn bfd(n: u8) -> BfdSpec {
    BfdSpec {
        neighbor: n.to_string(),
        local: None,
        remote: [10, 0, 0, n].into(),
        interface: None,
        interval: Duration::from_millis(50),
        multiplier: 3,
        multihop: n == 3,
        min_ttl: 255,
    }
}

fn resign(vip: u8) -> Resign {
    let group = [224, 0, 0, 18].into();
    Resign { ifindex: 2, source: [10, 0, 0, 1].into(), destination: group, payload: vec![vip] }
}

fn record(vip: u8, set: u8, active: bool) -> VipRecord {
    let address = |n: u8| Undo::Address(VipAddress { ifindex: 2, ip: [192, 0, vip, n].into(), prefix: 32 });
    VipRecord {
        vip: vip.to_string(),
        active,
        role_epoch: 1,
        undo: (0..3).filter(|n| set & (1 << n) != 0).map(address).collect(),
        resign: if active && vip != 2 { vec![resign(vip)] } else { vec![] },
        interval: Duration::from_millis(100),
        balancers: if vip == 0 { vec!["a".to_owned()] } else { vec![] },
        pseudo_header: vec![],
        bgp: (vip > 0).then_some(BgpGrace { grace: Duration::from_secs(20) }),
    }
}

/// The world around a keeper.
struct World {
    keeper: Keeper,
    now: Instant,
    spawns: bool,
    removals: bool,
    /// Addresses in the kernel.
    kernel: BTreeSet<Undo>,
    /// What the living worker itself recorded: VIP to addresses.
    records: std::collections::BTreeMap<String, Vec<Undo>>,
    worker_lives: bool,
    /// Another one lives beside it, and whether it has said Hello.
    next: Option<bool>,
    /// It said Hello, and has not closed its socket.
    begun: bool,
    closed: bool,
    /// It was sent SIGKILL, which takes effect before the next act or right after it.
    killed: bool,
    executions: BTreeSet<u64>,
    /// BFD's sessions that have a socket.
    links: BTreeSet<holdfast_bfd::Discriminator>,
    /// BGP's sockets that the caller has a duplicate of.
    sockets: BTreeSet<String>,
    exit: Option<u8>,
}

impl World {
    fn handle(&mut self, input: Input) {
        match &input {
            _ if self.exit.is_some() => return,
            Input::Worker(ToKeeper::Owner(record)) if self.worker_lives => {
                let former = self.records.insert(record.vip.clone(), record.undo.clone()).unwrap_or_default();
                // The worker records what it is about to add, and drops from the record what it has removed.
                for gone in former.iter().filter(|address| !record.undo.contains(address)) {
                    self.kernel.remove(gone);
                }
                self.kernel.extend(record.undo.iter().copied());
            }
            Input::Worker(_) | Input::WorkerClosed | Input::WorkerStuck if !self.worker_lives => return,
            Input::Worker(ToKeeper::BgpSession(session)) if session.active => {
                self.sockets.insert(session.neighbor.clone());
            }
            Input::Worker(ToKeeper::Hello { .. }) => self.begun = !self.closed,
            Input::WorkerClosed => (self.begun, self.closed) = (false, true),
            Input::WorkerSpawned(_) if self.worker_lives => return,
            Input::NextSpawned(_) | Input::NextReady { .. } | Input::NextExited { .. } if self.next.is_none() => return,
            Input::NextReady { .. } => self.next = Some(true),
            Input::NextExited { .. } => self.next = None,
            Input::WorkerExited { .. } => {
                (self.worker_lives, self.begun, self.closed, self.killed) = (false, false, false, false);
                self.records.clear();
            }
            _ => {}
        }
        self.keeper.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.keeper.poll_output() {
            assert_eq!(self.exit, None, "nothing follows the exit");
            let process = Process { pid: 9, start_time: 9 };
            let answer = match output {
                Output::SpawnWorker if self.spawns => {
                    assert!(!self.worker_lives, "one worker at a time");
                    self.worker_lives = true;
                    Input::WorkerSpawned(process)
                }
                Output::KillWorker => {
                    self.killed = true;
                    continue;
                }
                Output::SpawnWorker => Input::WorkerNotSpawned { why: "no".to_owned() },
                Output::SpawnNext if self.spawns && self.next.is_none() => {
                    self.next = Some(false);
                    Input::NextSpawned(process)
                }
                Output::SpawnNext => Input::NextNotSpawned { why: "no".to_owned() },
                Output::KillNext if self.next.take().is_some() => Input::NextExited { what: "signal 9".to_owned() },
                Output::Promote => {
                    assert!(!self.worker_lives, "one worker at a time");
                    self.begun = self.next.take().expect("there is one");
                    self.worker_lives = true;
                    continue;
                }
                Output::SpawnBalancer { name, .. } if self.spawns => Input::BalancerSpawned { name, process },
                Output::SpawnBalancer { name, .. } => Input::BalancerNotSpawned { name, why: "no".to_owned() },
                Output::SpawnExec { id, .. } => {
                    self.executions.insert(id);
                    continue;
                }
                Output::SignalExec { id, signal: 9 } if self.executions.remove(&id) => {
                    Input::ExecExited { id, result: ExecResult::Signal(9), output: Vec::new() }
                }
                Output::SignalBalancer { name, signal: 9, .. } => {
                    Input::BalancerExited { name, what: "signal 9".to_owned() }
                }
                Output::Remove(address) => {
                    let result = if self.removals { Ok(()) } else { Err("no".to_owned()) };
                    if self.removals {
                        self.kernel.remove(&address);
                    }
                    Input::Removed { undo: address, result }
                }
                Output::OpenBfd { session, .. } if self.spawns => {
                    self.links.insert(session);
                    Input::BfdOpened { session, ifindex: None }
                }
                Output::OpenBfd { session, .. } => Input::BfdNotOpened { session, why: "no".to_owned() },
                Output::SendBfd { session, .. } => {
                    assert!(self.links.contains(&session), "nothing is sent without a socket");
                    Input::BfdSent { session }
                }
                Output::CloseBfd { session } => {
                    self.links.remove(&session);
                    continue;
                }
                Output::DropBgp { neighbor } | Output::RefuseBgp { neighbor } => {
                    self.sockets.remove(&neighbor);
                    continue;
                }
                Output::FarewellBgp { neighbor, .. } => {
                    assert!(!self.begun || self.killed, "a worker that has begun speaks for itself");
                    assert!(self.sockets.remove(&neighbor), "there is a socket for it");
                    continue;
                }
                Output::Exit(code) => {
                    self.exit = Some(code);
                    continue;
                }
                _ => continue,
            };
            self.keeper.handle(self.now, answer);
        }
    }

    fn wait(&mut self, span: Duration) {
        let until = self.now + span;
        for _ in 0..50_000 {
            match [self.keeper.poll_timeout(), self.keeper.bfd_timeout()].into_iter().flatten().min() {
                Some(due) if due <= until => {
                    self.now = self.now.max(due);
                    self.keeper.bfd_timer(self.now);
                    self.drain();
                    self.handle(Input::Timer);
                }
                _ => break,
            }
        }
        assert!(self.keeper.poll_timeout().is_none_or(|due| due > until), "the timeout never moves on");
        self.now = until;
    }

    fn act(&mut self, act: Act) {
        let killed = self.killed;
        self.act_now(act);
        if killed && self.killed {
            self.handle(Input::WorkerExited { what: "signal 9".to_owned() });
        }
    }

    fn act_now(&mut self, act: Act) {
        match act {
            Act::In(input) => self.handle(input),
            Act::Own(vip, set, active) => self.handle(Input::Worker(ToKeeper::Owner(record(vip, set, active)))),
            Act::Wait(ms) => self.wait(Duration::from_millis(ms)),
            Act::Pulse(ms) => {
                let at = self.now.checked_sub(Duration::from_millis(ms)).unwrap_or(self.now);
                self.handle(Input::Pulse { at });
            }
            Act::Stall(ms) => {
                self.now += Duration::from_millis(ms);
                self.handle(Input::Timer);
            }
            Act::Spawns(work) => self.spawns = work,
            Act::Removals(work) => self.removals = work,
        }
    }
}

/// Whatever happens, then the end: everything works again, the worker is killed when it is told to be.
fn end_of(acts: Vec<Act>) -> World {
    #[allow(clippy::disallowed_methods, reason = "a test has to begin somewhere")]
    let now = Instant::now();
    let keeper = Keeper::new(now, Options { stop_deadline: Duration::from_secs(2), seed: 1 }, Found::default());
    let mut world = World {
        keeper,
        now,
        spawns: true,
        removals: true,
        kernel: BTreeSet::new(),
        records: Default::default(),
        worker_lives: false,
        next: None,
        begun: false,
        closed: false,
        killed: false,
        executions: BTreeSet::new(),
        links: BTreeSet::new(),
        sockets: BTreeSet::new(),
        exit: None,
    };
    world.drain();
    for act in acts {
        world.act(act);
    }
    (world.spawns, world.removals) = (true, true);
    world.handle(Input::Terminate);
    world.wait(Duration::from_secs(4));
    world.handle(Input::WorkerExited { what: "signal 9".to_owned() });
    world.handle(Input::FormerWorkerExited);
    world.wait(Duration::from_secs(60));
    world
}

proptest! {
    #[test]
    fn after_the_exit_nothing_that_was_recorded_is_left(acts in prop::collection::vec(act(), 0..120)) {
        let world = end_of(acts);
        prop_assert!(world.exit.is_some());
        prop_assert_eq!((world.links.len(), world.sockets.len()), (0, 0));
        prop_assert_eq!(world.next, None, "no worker is left beside the one that ended");
        if world.exit == Some(0) {
            prop_assert_eq!(&world.kernel, &BTreeSet::new());
        }
    }
}

/// Found by the property: the worker is killed at the stop deadline, its end is not seen for so long that the keeper
/// goes on without it, and only then its last record is read.
#[test]
fn last_words_read_after_the_keeper_gave_up_on_the_workers_end_are_undone_too() {
    let hello = ToKeeper::Hello { hang_limit: Duration::ZERO, resume_limit: Duration::ZERO };
    let start = ToKeeper::StartBalancer { name: "a".to_owned(), argv: vec!["x".to_owned()], soft_stop: None };
    let said = [hello, start].map(|message| Act::In(Input::Worker(message)));
    let rest = [Act::In(Input::Terminate), Act::Wait(8_000), Act::Own(0, 1, false)];
    let world = end_of(said.into_iter().chain(rest).collect());
    assert_eq!((world.exit, world.kernel), (Some(0), BTreeSet::new()));
}
