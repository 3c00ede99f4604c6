//! Two systems, a wire that loses and delays, and a virtual clock: many seeds, and what must hold in each.

use holdfast_bfd::{Control, Datagram, Diagnostic, Discriminator, Event, Peer, Session, State, Table, Timers};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

const SEEDS: u64 = 100;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn address(side: usize) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, if side == 0 { 1 } else { 2 }).into()
}

/// SplitMix64: the seeds must mean the same in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    /// With so many losses in a row at least that end a session.
    fn timers(&mut self, least: u64) -> Timers {
        let interval = [10, 20, 50, 100, 300, 1_000][usize::try_from(self.roll(6)).expect("small")];
        Timers::new(ms(interval), u8::try_from(least + self.roll(6 - least)).expect("small")).expect("in range")
    }
}

struct Side {
    table: Table,
    id: Discriminator,
    timers: Timers,
    changes: Vec<(Instant, State, Diagnostic)>,
    /// When it sent what wasn't an answer.
    sent: Vec<Instant>,
}

impl Side {
    fn new(now: Instant, side: usize, timers: Timers, seed: u64) -> Self {
        let mut table = Table::new(seed);
        let id = table.add(now, Peer::single_hop(address(1 - side), None), timers);
        Self { table, id, timers, changes: Vec::new(), sent: Vec::new() }
    }

    fn session(&self) -> &Session {
        self.table.session(self.id).expect("never removed")
    }
}

struct World {
    now: Instant,
    dice: Dice,
    sides: [Side; 2],
    /// By time and number: to which side, what.
    wire: BTreeMap<(Instant, u64), (usize, [u8; 24])>,
    count: u64,
    /// When the last packet so far arrives, at each side.
    arrives: [Instant; 2],
    /// Packets in a hundred that are lost, towards each side.
    loss: [u64; 2],
    /// Never two in a row are, towards either side.
    spares: bool,
    /// Whether the last one was, towards each side.
    lost: [bool; 2],
    delay: Duration,
}

impl World {
    fn new(seed: u64) -> Self {
        Self::with_multipliers(seed, 2)
    }

    /// Multipliers of so much and up to 5.
    fn with_multipliers(seed: u64, least: u64) -> Self {
        #[allow(clippy::disallowed_methods, reason = "a test has to begin somewhere")]
        let now = Instant::now();
        let mut dice = Dice(seed);
        let timers = [dice.timers(least), dice.timers(least)];
        let sides = [0, 1].map(|side| Side::new(now, side, timers[side], dice.roll(u64::MAX)));
        Self {
            now,
            dice,
            sides,
            wire: BTreeMap::new(),
            count: 0,
            arrives: [now; 2],
            loss: [0, 0],
            spares: false,
            lost: [false; 2],
            delay: ms(2),
        }
    }

    fn drain(&mut self) {
        for from in 0..2 {
            while let Some((_, event)) = self.sides[from].table.poll_event() {
                match event {
                    Event::State { to, diagnostic, .. } => {
                        self.sides[from].changes.push((self.now, to, diagnostic));
                    }
                    Event::Left => {}
                    Event::Send { bytes } => {
                        let packet = Control::decode(&bytes).expect("valid");
                        assert!(!(packet.poll && packet.final_));
                        if !packet.final_ {
                            self.sides[from].sent.push(self.now);
                        }
                        let to = 1 - from;
                        let lost = self.dice.roll(100) < self.loss[to] && !(self.spares && self.lost[to]);
                        self.lost[to] = lost;
                        if !lost {
                            let delay = self.delay * u32::try_from(self.dice.roll(1_024)).expect("small") / 1_024;
                            self.count += 1;
                            // One link keeps the order.
                            self.arrives[to] = self.arrives[to].max(self.now + delay);
                            self.wire.insert((self.arrives[to], self.count), (to, bytes));
                        }
                    }
                }
            }
        }
    }

    fn run(&mut self, span: Duration) {
        let until = self.now + span;
        self.drain();
        loop {
            let timers = self.sides.iter().filter_map(|side| side.table.poll_timeout());
            let packet = self.wire.keys().next().map(|(at, _)| *at);
            let Some(next) = timers.chain(packet).min().filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            if packet == Some(next) {
                let (_, (to, bytes)) = self.wire.pop_first().expect("just seen");
                let from = address(1 - to);
                let datagram = Datagram { bytes: &bytes, from, to: None, ifindex: 1, ttl: 255, multihop: false };
                let _ = self.sides[to].table.receive(self.now, &datagram);
            } else {
                self.sides.iter_mut().for_each(|side| side.table.timer(self.now));
            }
            self.drain();
        }
        self.now = until;
    }

    fn states(&self) -> [State; 2] {
        [0, 1].map(|side| self.sides[side].session().state())
    }

    fn forget(&mut self) {
        self.sides.iter_mut().for_each(|side| (side.changes, side.sent) = (Vec::new(), Vec::new()));
    }

    /// Both are Up in bounded time, agree on the times, and stay.
    fn settle(&mut self, seed: u64) {
        self.loss = [0, 0];
        // What was sent into the void may have been a second before, then the three packets that it takes.
        self.run(ms(5_000));
        assert_eq!(self.states(), [State::Up, State::Up], "seed {seed}");
        self.forget();
        self.run(ms(3_000));
        assert_eq!(self.states(), [State::Up, State::Up], "seed {seed}");
        for side in 0..2 {
            let (us, them) = (&self.sides[side], &self.sides[1 - side]);
            assert!(us.changes.is_empty(), "seed {seed}: it flaps without a reason: {:?}", us.changes);
            let slower = us.timers.interval().max(them.timers.interval());
            assert_eq!(us.session().tx_interval(), slower, "seed {seed}");
            assert_eq!(us.session().detection_time(), slower * u32::from(them.timers.multiplier()), "seed {seed}");
            for pair in us.sent.windows(2) {
                let gap = pair[1] - pair[0];
                assert!(gap >= slower * 3 / 4 - ms(1) && gap <= slower, "seed {seed}: {gap:?} of {slower:?}");
            }
        }
    }
}

#[test]
fn two_systems_come_up_in_bounded_time_agree_on_times_and_stay_up() {
    for seed in 0..SEEDS {
        World::new(seed).settle(seed);
    }
}

#[test]
fn whatever_was_lost_one_way_or_both_they_come_up_again_when_nothing_is_lost() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for _ in 0..3 {
            world.loss = [world.dice.roll(101), world.dice.roll(101)];
            let span = ms(world.dice.roll(8_000));
            world.run(span);
            world.settle(seed);
        }
    }
}

/// The promise of BFD: both know within the detection time, and in between nobody believes what isn't so for longer.
#[test]
fn a_cut_is_seen_by_both_within_the_detection_time() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        world.settle(seed);
        world.forget();
        world.loss = [100, 100];
        let (cut, limit) = (world.now, [0, 1].map(|side| world.sides[side].session().detection_time()));
        world.run(ms(10_000));
        for (side, limit) in limit.into_iter().enumerate() {
            let (at, state, _) = world.sides[side].changes[0];
            assert_eq!(state, State::Down, "seed {seed}");
            // One packet may still have been under way.
            assert!(at - cut <= limit + world.delay, "seed {seed}: {:?}", at - cut);
            let least = limit - world.sides[1 - side].timers.interval().max(world.sides[side].timers.interval());
            assert!(at - cut >= least - ms(1), "seed {seed}: {:?} of {limit:?}", at - cut);
        }
    }
}

/// One direction only: the one who hears nothing tells the other, with diagnostic 1 and 3.
#[test]
fn a_cut_of_one_direction_takes_both_down() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        world.settle(seed);
        world.forget();
        world.loss = [0, 100];
        let limit = world.sides[1].session().detection_time();
        world.run(limit + world.delay * 2);
        assert_eq!(world.states().map(|state| state == State::Up), [false, false], "seed {seed}");
        let first = [0, 1].map(|side| world.sides[side].changes[0]);
        assert_eq!(
            first.map(|(_, state, why)| (state, why.code())),
            [(State::Down, 3), (State::Down, 1)],
            "seed {seed}"
        );
        world.settle(seed);
    }
}

/// Poll Sequences, crossing each other, while up to every second packet is lost: never two in a row, of which it takes
/// three at least to lose a neighbour.
#[test]
fn times_change_live_on_both_sides_without_a_flap() {
    for seed in 0..SEEDS {
        let mut world = World::with_multipliers(seed, 3);
        world.settle(seed);
        world.forget();
        (world.spares, world.loss) = (true, [world.dice.roll(101), world.dice.roll(101)]);
        for _ in 0..6 {
            for side in 0..2 {
                if world.dice.roll(2) == 0 {
                    let timers = world.dice.timers(3);
                    let (now, id) = (world.now, world.sides[side].id);
                    world.sides[side].timers = timers;
                    world.sides[side].table.with(id, |session| session.set_timers(now, timers));
                    world.drain();
                }
            }
            let span = ms(world.dice.roll(1_500));
            world.run(span);
        }
        for side in &world.sides {
            assert_eq!(side.changes, [], "seed {seed}");
        }
        world.settle(seed);
    }
}

#[test]
fn a_system_that_starts_again_with_another_discriminator_is_up_again_in_bounded_time() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        world.settle(seed);
        let timers = world.sides[1].timers;
        let again = world.dice.roll(u64::MAX);
        world.sides[1] = Side::new(world.now, 1, timers, again);
        // The old session must be lost, or be told by the new one, first.
        world.run(ms(5_000));
        world.settle(seed);
    }
}

/// Down for good while one side's data plane doesn't serve; and the other is told, not left to find out.
#[test]
fn a_data_plane_that_is_down_is_seen_at_once_and_keeps_both_down_until_it_serves() {
    for seed in 0..SEEDS {
        let mut world = World::with_multipliers(seed, 3);
        world.settle(seed);
        world.forget();
        // The notice may be lost, but then its next copy isn't.
        (world.spares, world.loss) = (true, [33, 33]);
        let (now, id, every) = (world.now, world.sides[0].id, world.sides[0].session().tx_interval());
        world.sides[0].table.with(id, |session| session.set_serving(now, false));
        world.run(every + world.delay);
        assert_ne!(world.states()[1], State::Up, "seed {seed}");
        world.run(ms(10_000));
        assert!(
            world.sides.iter().all(|side| side.changes.iter().all(|(_, state, _)| *state != State::Up)),
            "seed {seed}"
        );
        let now = world.now;
        world.sides[0].table.with(id, |session| session.set_serving(now, true));
        world.settle(seed);
    }
}

/// Of a hundred seeds, those in which the neighbour didn't see the notice and had to find out by itself. One packet in
/// three is lost, whatever became of the one before: a single copy would be missed in 33 of 100, three are in 4.
fn missed(notice: impl Fn(&mut Session, Instant)) -> usize {
    let missed = |seed: &u64| {
        let mut world = World::with_multipliers(*seed, 3);
        world.settle(*seed);
        world.forget();
        world.loss = [33, 33];
        let (now, id) = (world.now, world.sides[0].id);
        world.sides[0].table.with(id, |session| notice(session, now));
        world.run(ms(10_000));
        let (_, state, why) = world.sides[1].changes[0];
        assert_eq!(state, State::Down, "seed {seed}");
        why.code() != 3
    };
    (0..SEEDS).filter(missed).count()
}

/// RFC 5880 section 6.8.16.
#[test]
fn admin_down_is_almost_never_taken_for_a_failure_on_a_bad_wire() {
    let missed = missed(Session::admin_down);
    assert!(missed <= 8, "{missed}");
}

#[test]
fn a_data_plane_that_is_down_is_almost_never_left_to_be_found_out_on_a_bad_wire() {
    let missed = missed(|session, now| session.set_serving(now, false));
    assert!(missed <= 8, "{missed}");
}

#[test]
fn who_takes_its_leave_has_left_in_bounded_time_and_the_neighbour_is_down() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        world.settle(seed);
        world.loss = [world.dice.roll(101), world.dice.roll(101)];
        let (now, id) = (world.now, world.sides[0].id);
        world.sides[0].table.with(id, |session| session.admin_down(now));
        world.run(ms(10_000));
        assert!(world.sides[0].session().has_left(), "seed {seed}");
        assert_eq!(world.states()[1], State::Down, "seed {seed}");
    }
}
