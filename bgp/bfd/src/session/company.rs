//! A packet of the neighbour's takes ours along: what that spares, and what it leaves alone.

use super::tests::{THEIRS, ms, timers};
use super::*;
use crate::wire::State::Up;
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

/// What the neighbour does.
#[derive(Debug, Clone, Copy)]
struct Neighbor {
    interval: Duration,
    /// It sends after so many thousandths of the interval at the earliest, at random; 1000: it has no jitter.
    earliest: u32,
    multiplier: u8,
    /// Of a thousand of its packets so many are lost.
    loss: u32,
    /// From the one to the other.
    delay: Duration,
}

const BIRD: Neighbor =
    Neighbor { interval: ms(50), earliest: 750, multiplier: 3, loss: 0, delay: Duration::from_micros(30) };

/// What one session did beside it.
struct Seen {
    /// When it sent.
    sent: Vec<Duration>,
    /// How often its caller had to wake up, for a timer or a packet.
    wakes: usize,
    /// When it was lost.
    lost: Vec<Duration>,
    /// When it last heard something before that.
    heard: Duration,
}

impl Seen {
    fn gaps(&self) -> Vec<Duration> {
        self.sent.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

/// A session of ours that is Up, with that neighbour, for so long. The neighbour falls silent at `silent`.
fn run(ours: Timers, neighbor: Neighbor, seed: u64, span: Duration, silent: Duration) -> Seen {
    #[allow(clippy::disallowed_methods, reason = "a test has to begin somewhere")]
    let start = Instant::now();
    let mut rng = crate::rng::Rng::new(seed ^ 0x5555);
    let mut session = Session::new(start, NonZeroU32::MIN, ours, false, seed);
    let says = |state, final_| Control {
        diagnostic: Diagnostic::NONE,
        state,
        poll: false,
        final_,
        control_plane_independent: false,
        demand: false,
        multiplier: neighbor.multiplier,
        my_discriminator: THEIRS,
        your_discriminator: 1,
        desired_min_tx: neighbor.interval,
        required_min_rx: neighbor.interval,
        required_min_echo_rx: Duration::ZERO,
    };
    session.receive(start, &says(State::Init, false));
    session.receive(start, &says(Up, true));
    while session.poll_event().is_some() {}
    let mut seen = Seen { sent: vec![Duration::ZERO], wakes: 0, lost: Vec::new(), heard: Duration::ZERO };
    let theirs = neighbor.interval.max(ours.interval());
    let mut arrives = start + theirs / 3;
    let mut now = start;
    while now - start < span {
        let due = session.poll_timeout().expect("it is Up or tries to be");
        now = due.min(arrives).max(now);
        seen.wakes += 1;
        if arrives <= now {
            arrives = now + theirs * rng.between(neighbor.earliest, 1_000) / 1_000;
            if rng.between(1, 1_000) <= neighbor.loss || now - start >= silent {
                seen.wakes -= 1;
                continue;
            }
            let at = now + neighbor.delay;
            session.receive(at, &says(Up, false));
            (now, seen.heard) = (at, at - start);
        } else {
            session.timer(now);
        }
        while let Some(event) = session.poll_event() {
            match event {
                Event::Send { .. } if seen.lost.is_empty() => seen.sent.push(now - start),
                Event::State { to: State::Down, .. } => seen.lost.push(now - start),
                _ => {}
            }
        }
        if !seen.lost.is_empty() {
            break;
        }
    }
    seen
}

const FOREVER: Duration = Duration::MAX;

/// 50 ms with each other: 23 packets a second each way, in as many wake-ups and not in twice as many.
#[test]
pub(crate) fn two_neighbours_share_their_wake_ups() {
    for seed in 0..20 {
        let seen = run(timers(50, 3), BIRD, seed, ms(60_000), FOREVER);
        let sent = seen.sent.len();
        assert!((60 * 22..60 * 25).contains(&sent), "{sent} packets in a minute");
        assert!(seen.wakes < sent * 11 / 10, "{} wake-ups for {sent} packets", seen.wakes);
    }
}

/// Where the neighbour is slower or has no jitter there is less to share, and nothing is worse than without.
#[test]
fn a_neighbour_without_jitter_or_with_another_interval_costs_no_more_than_both_together() {
    for neighbor in [Neighbor { earliest: 1_000, ..BIRD }, Neighbor { interval: ms(20), ..BIRD }] {
        let seen = run(timers(50, 3), neighbor, 3, ms(60_000), FOREVER);
        let theirs = 60_000 / 50 * 1_000 / usize::try_from(neighbor.earliest).expect("small");
        assert!(seen.wakes <= seen.sent.len() + theirs + 60, "{} wake-ups", seen.wakes);
        assert!(seen.sent.len() <= 60_000 * 4 / 3 / 50 + 1, "{} packets", seen.sent.len());
    }
}

/// Section 6.8.7: whose rhythm it is, the intervals are jittered: they are of all lengths that are allowed.
#[test]
fn the_intervals_are_of_all_lengths_beside_a_neighbour_that_jitters() {
    let gaps = run(timers(50, 3), BIRD, 7, ms(60_000), FOREVER).gaps();
    let tenth = Duration::from_micros(1_250);
    for n in 0..10 {
        let range = ms(50) - tenth * (n + 1)..ms(50) - tenth * n;
        assert!(gaps.iter().any(|gap| range.contains(gap)), "none of {range:?}");
    }
}

/// A packet that isn't taken along because the neighbour's was lost goes out before the interval is over.
#[test]
fn what_the_neighbour_loses_delays_nothing() {
    let seen = run(timers(50, 3), Neighbor { loss: 300, multiplier: 255, ..BIRD }, 1, ms(60_000), FOREVER);
    assert!(seen.gaps().iter().all(|gap| *gap <= ms(50)), "{:?}", seen.gaps().iter().max());
    let fallen_silent = run(timers(50, 3), Neighbor { multiplier: 255, ..BIRD }, 1, ms(9_000), ms(1_000));
    let gaps = fallen_silent.gaps();
    assert!(gaps.iter().all(|gap| *gap <= ms(50)) && fallen_silent.sent.last() > Some(&ms(8_900)));
}

proptest! {
    /// Sections 6.8.7 and 6.8.4: no interval is longer than agreed or shorter than jitter makes it, with multiplier 1
    /// none passes 90 %; and a neighbour that falls silent is lost exactly a detection time after its last packet.
    #[test]
    fn no_interval_leaves_its_bounds_and_the_detection_is_as_ever(
        seed in any::<u64>(),
        ours in 10..400_u64,
        theirs in 10..400_u64,
        multiplier in 1..5_u8,
        their_multiplier in 2..5_u8,
        earliest in 750..=1_000_u32,
        loss in 0..200_u32,
        delay in 0..5_000_u64,
    ) {
        let delay = Duration::from_micros(delay);
        let neighbor = Neighbor { interval: ms(theirs), earliest, multiplier: their_multiplier, loss, delay };
        let silent = ms(10_000);
        let seen = run(timers(ours, multiplier), neighbor, seed, ms(20_000), silent);
        let interval = ms(ours.max(theirs));
        // The timer's share is cut to a nanosecond.
        let least = interval * 3 / 4 - Duration::from_nanos(1);
        let most = if multiplier == 1 { interval * 9 / 10 } else { interval };
        for gap in seen.gaps() {
            prop_assert!(gap >= least && gap <= most + delay, "{gap:?} of {interval:?}");
        }
        prop_assert_eq!(&seen.lost, &[seen.heard + interval * u32::from(their_multiplier)]);
    }
}
