//! BFD and the BGP sockets: what routers see when the worker, the balancer or the keeper goes. Both directions: what
//! must reach them, and what must not.

mod bfd;

use super::ipc::{BfdReport, BfdSpec, BfdState, BgpGrace, BgpSession};
use super::*;
use holdfast_bfd::{Control, Datagram, Discriminator, Event as Did, Peer, Session, State, Table, Timers};
use std::net::IpAddr;

const US: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 11));
const R1: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

fn spec(interval: u64) -> BfdSpec {
    BfdSpec {
        neighbor: "r1".to_owned(),
        local: None,
        remote: R1,
        interface: Some("eth0".to_owned()),
        interval: ms(interval),
        multiplier: 3,
        multihop: false,
        min_ttl: 255,
    }
}

fn session(active: bool) -> ToKeeper {
    ToKeeper::BgpSession(BgpSession {
        neighbor: "r1".to_owned(),
        hold: ms(9_000),
        restart: Some(ms(15_000)),
        farewell: vec![0xff; 21],
        active,
    })
}

/// A VIP that is announced and nothing else.
fn announced(active: bool) -> ToKeeper {
    let bgp = Some(BgpGrace { grace: ms(19_500) });
    let balancers = vec!["haproxy".to_owned()];
    ToKeeper::Owner(VipRecord { bgp, balancers, resign: vec![], ..record("web", 10, active) })
}

/// A keeper and a router that speaks BFD with it, over a wire without delay.
struct Lab {
    bench: Bench,
    router: Table,
    theirs: Discriminator,
    read: usize,
    /// What the router's session did: (ms, state, the diagnostic that we sent).
    seen: Vec<(u64, State, u8)>,
    /// Our sessions with it.
    towards: Vec<Discriminator>,
}

impl Lab {
    fn new() -> Self {
        let bench = Bench::new();
        let mut router = Table::new(99);
        let timers = Timers::new(ms(50), 3).expect("in range");
        let theirs = router.add(bench.now, Peer::single_hop(US, None), timers);
        Self { bench, router, theirs, read: 0, seen: Vec::new(), towards: Vec::new() }
    }

    /// With a worker, a balancer, an announced VIP, an established session, and BFD that is Up.
    fn serving() -> Self {
        let mut lab = Self::new();
        lab.bench.hello();
        lab.bench.say(ToKeeper::Beat);
        lab.bench.say(start_balancer(&["haproxy"], None));
        lab.bench.say(ToKeeper::Bfd(vec![spec(50)]));
        lab.beat(ms(3_000));
        lab.bench.say(announced(true));
        lab.bench.say(session(true));
        assert_eq!(lab.their_state(), State::Up);
        lab.bench.log.clear();
        (lab.read, lab.seen) = (0, Vec::new());
        lab
    }

    fn their_state(&self) -> State {
        self.router.session(self.theirs).map(Session::state).expect("there is one")
    }

    /// Delivers what both have sent until both are silent.
    fn deliver(&mut self) {
        loop {
            let mut idle = true;
            while let Some((_, output)) = self.bench.log.get(self.read) {
                self.read += 1;
                match output {
                    Output::OpenBfd { session, spec } if spec.remote == R1 => self.towards.push(*session),
                    Output::SendBfd { session, bytes } if self.towards.contains(session) => {
                        let _ = self.router.receive(self.bench.now, &datagram(bytes, US));
                    }
                    _ => {}
                }
            }
            while let Some((_, did)) = self.router.poll_event() {
                idle = false;
                match did {
                    Did::Send { bytes } => {
                        let now = self.bench.now;
                        self.bench.keeper.bfd_receive(now, &datagram(&bytes, R1));
                        self.bench.drain();
                    }
                    Did::State { to, .. } => {
                        let at = u64::try_from((self.bench.now - self.bench.start).as_millis()).expect("short");
                        let ours = self.router.session(self.theirs).map_or(0, |s| s.remote().diagnostic.code());
                        self.seen.push((at, to, ours));
                    }
                    Did::Left => {}
                }
            }
            if idle && self.read >= self.bench.log.len() {
                return;
            }
        }
    }

    fn run(&mut self, span: Duration) {
        let until = self.bench.now + span;
        self.deliver();
        while self.bench.now < until {
            let keeper = [self.bench.keeper.poll_timeout(), self.bench.keeper.bfd_timeout()];
            let next =
                keeper.into_iter().chain([self.router.poll_timeout()]).flatten().min().unwrap_or(until).min(until);
            self.bench.run(next.saturating_duration_since(self.bench.now));
            self.router.timer(self.bench.now);
            self.deliver();
        }
    }

    fn beat(&mut self, span: Duration) {
        let until = self.bench.now + span;
        while self.bench.now < until {
            self.run(ms(50).min(until - self.bench.now));
            self.bench.say(ToKeeper::Beat);
        }
    }

    fn reports(&self) -> Vec<BfdReport> {
        let report = |(_, output): &(u64, Output)| match output {
            Output::SendToWorker(ToWorker::Bfd(report)) => Some(report.clone()),
            _ => None,
        };
        self.bench.log.iter().filter_map(report).collect()
    }

    fn since_start(&self) -> u64 {
        u64::try_from((self.bench.now - self.bench.start).as_millis()).expect("a short test")
    }
}

fn datagram(bytes: &[u8; 24], from: IpAddr) -> Datagram<'_> {
    Datagram { bytes, from, to: None, ifindex: 2, ttl: 255, multihop: false }
}

fn farewell(output: &Output) -> bool {
    matches!(output, Output::FarewellBgp { neighbor, notification } if neighbor == "r1" && notification.len() == 21)
}

fn dropped(output: &Output) -> bool {
    *output == Output::DropBgp { neighbor: "r1".to_owned() }
}

fn sends_bfd(state: State) -> impl Fn(&Output) -> bool {
    move |output| matches!(output, Output::SendBfd { bytes, .. } if Control::decode(bytes).expect("valid").state == state)
}

fn balancer_dies() -> Input {
    Input::BalancerExited { name: "haproxy".to_owned(), what: "signal 11".to_owned() }
}

#[test]
fn a_session_comes_up_and_the_worker_is_told_of_each_step() {
    let mut lab = Lab::new();
    lab.bench.hello();
    lab.bench.say(ToKeeper::Bfd(vec![spec(50)]));
    lab.beat(ms(3_000));
    let states: Vec<_> = lab.reports().iter().map(|report| (report.state, report.diag)).collect();
    assert_eq!(states.first(), Some(&(BfdState::Down, 0)));
    assert_eq!(states.last(), Some(&(BfdState::Up, 0)));
    assert!(states.len() <= 3, "{states:?}");
    assert_eq!(lab.their_state(), State::Up);
}

/// DESIGN: a crash, and BFD doesn't notice; nor does a hang, nor the next worker's list.
#[test]
fn bfd_outlives_crash_hang_and_restart_of_the_worker_and_the_routers_see_nothing() {
    let mut lab = Lab::serving();
    for round in 0..6 {
        if round % 2 == 0 {
            lab.bench.crash();
        } else {
            // Silence until it is killed.
            lab.run(ms(500));
            lab.bench.input(Input::WorkerExited { what: "signal 9".to_owned() });
        }
        lab.run(ms(2_000));
        lab.bench.hello();
        lab.bench.say(ToKeeper::Bfd(vec![spec(50)]));
        lab.bench.say(announced(true));
        lab.bench.say(session(true));
        lab.beat(ms(1_000));
        assert_eq!((lab.their_state(), lab.seen.len()), (State::Up, 0), "round {round}");
        assert_eq!(lab.reports().last().map(|report| report.state), Some(BfdState::Up));
    }
    assert_eq!(lab.bench.times(farewell), [0; 0]);
    assert_eq!(lab.bench.times(removes(10)), [0; 0]);
}

/// DESIGN's table: BFD Down, a NOTIFICATION that defeats graceful restart, then the address.
#[test]
pub(super) fn a_balancer_that_dies_while_no_worker_lives_is_told_to_routers_before_the_address_goes() {
    let mut lab = Lab::serving();
    lab.bench.answers = false;
    lab.bench.crash();
    lab.run(ms(1_000));
    let at = lab.since_start();
    assert_eq!(lab.bench.times(removes(10)), [0; 0], "the address stands, since its balancer does");
    lab.bench.input(balancer_dies());
    lab.deliver();
    let steps =
        [lab.bench.position(sends_bfd(State::Down)), lab.bench.position(farewell), lab.bench.position(removes(10))];
    assert!(steps.is_sorted(), "{steps:?}");
    assert_eq!(lab.bench.times(sends_bfd(State::AdminDown)), [0; 0], "nobody would take that for a failure");
    // Diagnostic 4: it is the data plane.
    assert_eq!(lab.seen, [(at, State::Down, 4)]);
    lab.run(ms(5_000));
    assert!(lab.seen.iter().all(|(_, state, _)| *state != State::Up), "{:?}", lab.seen);
}

#[test]
fn a_balancer_that_dies_before_the_crash_is_noticed_is_told_as_well() {
    let mut lab = Lab::serving();
    lab.bench.answers = false;
    lab.bench.input(balancer_dies());
    assert_eq!(lab.bench.times(farewell), [0; 0], "a worker that lives withdraws by itself");
    lab.bench.crash();
    lab.deliver();
    assert_eq!(lab.their_state(), State::Down);
    assert!(lab.bench.position(farewell) < lab.bench.position(removes(10)));
}

/// The other direction: a balancer that dies under a living worker is the worker's business, which withdraws.
#[test]
fn a_balancer_that_dies_with_a_worker_alive_leaves_bfd_up() {
    let mut lab = Lab::serving();
    lab.bench.input(balancer_dies());
    lab.bench.say(announced(false));
    lab.beat(ms(2_000));
    assert_eq!((lab.their_state(), lab.seen.len()), (State::Up, 0));
    assert_eq!(lab.bench.times(|o| farewell(o) || dropped(o)), [0; 0]);
}

#[test]
fn one_whose_vip_was_not_announced_dies_unnoticed_by_routers() {
    let mut lab = Lab::serving();
    lab.bench.say(announced(false));
    lab.bench.answers = false;
    lab.bench.crash();
    lab.bench.input(balancer_dies());
    lab.run(ms(1_000));
    assert_eq!((lab.their_state(), lab.bench.times(farewell)), (State::Up, vec![]));
}

#[test]
fn after_being_held_down_the_next_worker_brings_bfd_up_again() {
    let mut lab = Lab::serving();
    lab.bench.answers = false;
    lab.bench.crash();
    lab.bench.input(balancer_dies());
    lab.run(ms(3_000));
    assert_ne!(lab.their_state(), State::Up);
    lab.bench.answers = true;
    lab.bench.input(Input::WorkerSpawned(Process { pid: 9, start_time: 9 }));
    lab.bench.hello();
    lab.bench.say(ToKeeper::Bfd(vec![spec(50)]));
    lab.beat(ms(3_000));
    assert_eq!(lab.their_state(), State::Up);
}

#[test]
pub(super) fn a_dead_workers_sessions_are_closed_at_half_the_hold_time_and_no_word_is_said() {
    let mut lab = Lab::serving();
    lab.bench.answers = false;
    lab.bench.crash();
    let at = lab.since_start();
    lab.run(ms(10_000));
    assert_eq!(lab.bench.times(dropped), [at + 4_500]);
    assert_eq!((lab.bench.times(farewell), lab.bench.times(removes(10))), (vec![], vec![]));
    assert_eq!(lab.their_state(), State::Up);
}

/// Without a new worker the address goes when the routers' patience is over; before, nothing.
#[test]
fn an_announced_address_stays_for_its_grace_and_then_routers_are_told() {
    let mut lab = Lab::serving();
    lab.bench.answers = false;
    lab.bench.crash();
    let at = lab.since_start();
    lab.run(ms(25_000));
    assert_eq!(lab.bench.times(removes(10)), [at + 19_500]);
    assert_eq!(lab.seen.first(), Some(&(at + 19_500, State::Down, 4)));
}

#[test]
fn a_hung_worker_costs_an_announced_vip_nothing() {
    let mut lab = Lab::serving();
    lab.run(ms(1_000));
    assert_eq!(lab.bench.times(|o| *o == Output::KillWorker).len(), 1);
    lab.bench.input(Input::WorkerExited { what: "signal 9".to_owned() });
    lab.bench.hello();
    assert_eq!(lab.bench.boots().last().map(|(resume, _)| resume.clone()), Some(vec![("web".to_owned(), 7)]));
    assert_eq!((lab.bench.times(removes(10)), lab.bench.times(farewell)), (vec![], vec![]));
}

/// With a VIP that has VRRP too, and after the hang that cost it its address: announced, and nobody could withdraw it.
fn hung_with_both() -> Lab {
    let mut lab = Lab::serving();
    let bgp = Some(BgpGrace { grace: ms(19_500) });
    lab.bench.say(ToKeeper::Owner(VipRecord { bgp, ..record("both", 20, true) }));
    lab.run(ms(300));
    assert_eq!(lab.bench.times(|o| *o == Output::KillWorker).len(), 1);
    lab
}

#[test]
fn a_hung_worker_that_also_announced_what_vrrp_takes_away_leaves_no_route_to_it() {
    let mut lab = hung_with_both();
    let at = lab.since_start();
    let steps = [
        lab.bench.position(|o| *o == Output::KillWorker),
        lab.bench.position(resigns(20)),
        lab.bench.position(sends_bfd(State::Down)),
        lab.bench.position(farewell),
        lab.bench.position(removes(20)),
    ];
    assert!(steps.is_sorted(), "{steps:?}");
    assert_eq!((lab.bench.times(farewell), lab.bench.times(removes(20))), (vec![at], vec![at]));
    // Its end is no second death: nobody waits for a restart any more.
    lab.bench.input(Input::WorkerExited { what: "signal 9".to_owned() });
    lab.bench.hello();
    assert_eq!(restarting(&lab.bench), Some(false));
    lab.bench.say(session(true));
    lab.beat(ms(10_000));
    assert_eq!((lab.bench.times(farewell), lab.bench.times(dropped)), (vec![at], vec![]));
}

/// The session was established before the kill, and the keeper reads of it afterwards.
#[test]
fn a_session_that_is_heard_of_after_all_were_ended_is_ended_too() {
    let mut lab = hung_with_both();
    lab.bench.run(ms(1));
    let late = lab.since_start();
    lab.bench.say(session(true));
    assert_eq!(lab.bench.times(farewell), [late - 1, late]);
    lab.bench.input(Input::WorkerExited { what: "signal 9".to_owned() });
    lab.bench.hello();
    assert_eq!(restarting(&lab.bench), Some(false));
    // The next worker's are its own.
    lab.bench.say(session(true));
    lab.beat(ms(100));
    assert_eq!(lab.bench.times(farewell).len(), 2);
}

/// A worker in uninterruptible sleep may take forever to die.
#[test]
fn a_killed_workers_sessions_count_from_the_kill() {
    let mut lab = Lab::serving();
    lab.run(ms(300));
    let killed = lab.since_start();
    lab.run(ms(100));
    let ToKeeper::BgpSession(second) = session(true) else { unreachable!() };
    lab.bench.say(ToKeeper::BgpSession(BgpSession { neighbor: "r2".to_owned(), ..second }));
    lab.run(ms(10_000));
    assert_eq!(lab.bench.times(dropped), [killed + 4_500]);
    let second = |o: &Output| *o == Output::DropBgp { neighbor: "r2".to_owned() };
    assert_eq!(lab.bench.times(second), [killed + 4_600]);
}

/// The duplicate shares its queue with the worker's own descriptor, which goes on reading.
#[test]
fn a_session_that_is_refused_is_let_go_and_not_read_from_while_its_worker_lives() {
    let mut lab = Lab::serving();
    let ToKeeper::BgpSession(fine) = session(true) else { unreachable!() };
    let long = BgpSession { farewell: vec![0xff; super::ipc::FAREWELL_MAX + 1], ..fine };
    let refused = |o: &Output| *o == Output::RefuseBgp { neighbor: "r1".to_owned() };
    lab.bench.say(ToKeeper::BgpSession(long.clone()));
    assert_eq!((lab.bench.times(refused).len(), lab.bench.times(dropped).len()), (1, 0));
    // Nobody reads from a dead one's.
    lab.run(ms(300));
    lab.bench.say(ToKeeper::BgpSession(long));
    assert_eq!((lab.bench.times(refused).len(), lab.bench.times(dropped).len()), (1, 1));
}

fn restarting(bench: &Bench) -> Option<bool> {
    let boot = |(_, output): &(u64, Output)| match output {
        Output::SendToWorker(ToWorker::Boot { bgp_restarting, .. }) => Some(*bgp_restarting),
        _ => None,
    };
    bench.log.iter().rev().find_map(boot)
}

#[test]
fn a_new_worker_is_told_that_it_restarts_as_long_as_routers_wait_for_it() {
    // No session before it.
    let mut lab = Lab::new();
    lab.bench.hello();
    assert_eq!(restarting(&lab.bench), Some(false));
    // Within half the hold time and the restart time, and after.
    for (after, expected) in [(0, true), (4_000, true), (19_000, true), (20_000, false)] {
        let mut lab = Lab::serving();
        lab.bench.answers = false;
        lab.bench.crash();
        lab.run(ms(after));
        lab.bench.input(Input::WorkerSpawned(Process { pid: 9, start_time: 9 }));
        lab.bench.hello();
        assert_eq!(restarting(&lab.bench), Some(expected), "{after}");
    }
    // What it led to is gone.
    let mut lab = Lab::serving();
    lab.bench.answers = false;
    lab.bench.crash();
    lab.bench.input(balancer_dies());
    lab.bench.input(Input::WorkerSpawned(Process { pid: 9, start_time: 9 }));
    lab.bench.hello();
    assert_eq!(restarting(&lab.bench), Some(false));
}

#[test]
fn without_graceful_restart_the_old_connection_makes_room_for_the_new_workers() {
    let mut lab = Lab::serving();
    let ToKeeper::BgpSession(plain) = session(true) else { unreachable!() };
    lab.bench.say(ToKeeper::BgpSession(BgpSession { restart: None, ..plain }));
    lab.bench.crash();
    lab.bench.hello();
    assert_eq!(lab.bench.times(dropped).len(), 1);
    assert_eq!(restarting(&lab.bench), Some(false));
}

#[test]
fn a_session_that_the_worker_closed_or_left_with_is_dropped_at_once() {
    let mut lab = Lab::serving();
    lab.bench.say(session(false));
    assert_eq!(lab.bench.times(dropped).len(), 1);
    lab.bench.say(session(true));
    lab.bench.say(ToKeeper::Stopped);
    assert_eq!(lab.bench.times(dropped).len(), 2);
    assert_eq!(lab.bench.times(farewell), [0; 0]);
}

#[test]
fn when_we_stop_sessions_say_admin_down_long_enough_to_be_seen() {
    let mut lab = Lab::serving();
    lab.bench.input(Input::Terminate);
    lab.bench.say(announced(false));
    lab.bench.say(ToKeeper::Owner(VipRecord { undo: vec![], ..record("web", 10, false) }));
    lab.bench.say(ToKeeper::Stopped);
    lab.bench.input(balancer_dies());
    lab.bench.input(Input::WorkerExited { what: "exit status 0".to_owned() });
    let at = lab.since_start();
    lab.bench.input(balancer_dies());
    lab.run(ms(1_000));
    // Three in a detection time, and none of it a failure to the router.
    assert_eq!(lab.bench.times(sends_bfd(State::AdminDown)), [at, at + 50, at + 100]);
    assert_eq!(lab.seen.first(), Some(&(at, State::Down, 7)));
    assert_eq!(lab.bench.times(|o| *o == Output::Exit(0)), [at + 150]);
}

/// A worker that is killed because it doesn't leave has withdrawn nothing.
#[test]
fn when_we_stop_and_the_worker_has_withdrawn_nothing_routers_are_told_and_it_is_waited_for() {
    let mut lab = Lab::serving();
    lab.bench.input(Input::Terminate);
    lab.bench.crash();
    lab.bench.input(balancer_dies());
    let at = lab.since_start();
    lab.run(ms(1_000));
    assert_eq!(lab.bench.times(farewell), [at]);
    assert_eq!(lab.bench.times(sends_bfd(State::AdminDown)), [0; 0]);
    assert_eq!(lab.bench.times(|o| *o == Output::Exit(0)), [at + 150]);
}

/// MetalLB issue 1944, frr-k8s issue 169: a change of one thing must not disturb the rest.
/// A VIP with VRRP waits as VRRP says, and when its address goes, the route that leads to it must go as well.
#[test]
fn an_announced_vip_with_vrrp_lapses_as_vrrp_says_and_routers_are_told() {
    let mut lab = Lab::serving();
    let bgp = Some(BgpGrace { grace: ms(19_500) });
    lab.bench.say(ToKeeper::Owner(VipRecord { bgp, ..record("both", 20, true) }));
    lab.bench.answers = false;
    lab.bench.crash();
    let at = lab.since_start();
    lab.run(ms(300));
    assert_eq!((lab.bench.times(resigns(20)), lab.bench.times(removes(20))), (vec![at + 200], vec![at + 200]));
    assert_eq!(lab.seen.first(), Some(&(at + 200, State::Down, 4)));
}

/// The new worker may have begun when a VIP lapses: then its routes are its own business.
#[test]
fn what_lapses_under_a_worker_that_has_begun_is_not_told_to_routers() {
    let mut lab = Lab::serving();
    let bgp = Some(BgpGrace { grace: ms(19_500) });
    lab.bench.say(ToKeeper::Owner(VipRecord { bgp, ..record("both", 20, true) }));
    lab.bench.crash();
    lab.run(ms(100));
    lab.bench.hello();
    lab.bench.say(ToKeeper::Bfd(vec![spec(50)]));
    lab.beat(ms(1_000));
    assert_eq!(lab.bench.times(removes(20)).len(), 1);
    assert_eq!((lab.their_state(), lab.bench.times(farewell)), (State::Up, vec![]));
}
