//! What holds for any bytes, any inputs and any losses.

mod common;

use std::net::Ipv4Addr;
use std::time::Duration;

use common::{Lan, advert, config, cs, drain, host, ms, prio, time_zero};
use holdfast_vrrp::timing::{active_down_interval, skew_time};
use holdfast_vrrp::wire::{
    Advert, AdvertError, ChecksumForm, MULTICAST_GROUP, TTL, VRRP_PROTOCOL, decode_message, decode_packet,
};
use holdfast_vrrp::{Addresses, AdvertInterval, Input, Priority, Router, State, Vrid, frames};
use proptest::collection::vec;
use proptest::prelude::*;

fn any_advert() -> impl Strategy<Value = Advert> {
    advert_with(1..=255)
}

fn advert_with(addresses: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Advert> {
    let addresses = vec(any::<u32>().prop_map(Ipv4Addr::from), addresses);
    (1..=255_u8, any::<u8>(), 1..=4095_u16, addresses).prop_map(|(vrid, priority, interval, addresses)| Advert {
        vrid: Vrid::new(vrid).unwrap(),
        priority: prio(priority),
        interval: cs(interval),
        addresses: Addresses::new(addresses).unwrap(),
    })
}

fn any_host() -> impl Strategy<Value = Ipv4Addr> {
    (1..=223_u8, any::<[u8; 3]>()).prop_map(|(a, [b, c, d])| Ipv4Addr::new(a, b, c, d))
}

/// An IPv4 packet around a message, with options of 0 to 40 bytes.
fn packet(message: &[u8], source: Ipv4Addr, options_words: u8) -> Vec<u8> {
    let header_len = 20 + 4 * usize::from(options_words);
    let total = u16::try_from(header_len + message.len()).unwrap().to_be_bytes();
    let mut packet = vec![0x45 + options_words, 0xc0, total[0], total[1], 0, 1, 0x40, 0, TTL, VRRP_PROTOCOL, 0, 0];
    packet.extend(source.octets());
    packet.extend(MULTICAST_GROUP.octets());
    packet.resize(header_len, 1);
    packet.extend(message);
    packet
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in vec(any::<u8>(), 0..1500)) {
        let _ = decode_packet(&bytes);
        let _ = decode_message(&bytes, host(1), MULTICAST_GROUP);
        let _ = frames::parse_arp(&bytes);
    }

    #[test]
    fn a_mutated_advert_decodes_or_is_refused(
        advert in any_advert(),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = packet(&advert.encode(), host(1), 0);
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = decode_packet(&bytes);
        let _ = decode_packet(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn a_packet_cut_short_anywhere_is_truncated(advert in any_advert(), cut in any::<prop::sample::Index>()) {
        let bytes = packet(&advert.encode(), host(1), 0);
        let refused = decode_packet(&bytes[..cut.index(bytes.len())]);
        prop_assert!(matches!(refused, Err(AdvertError::Truncated { .. })), "{refused:?}");
    }

    #[test]
    fn what_is_encoded_decodes_to_itself(
        advert in any_advert(),
        source in any_host(),
        options in 0..=10_u8,
        padding in 0..64_usize,
    ) {
        let mut bytes = packet(&advert.encode(), source, options);
        bytes.resize(bytes.len() + padding, 0xa5);
        let received = decode_packet(&bytes).unwrap();
        prop_assert_eq!(received.advert, advert);
        prop_assert_eq!(received.source, source);
        prop_assert_eq!(received.checksum, ChecksumForm::Message);
    }

    #[test]
    fn what_decodes_encodes_to_the_same_bytes_but_for_reserved_bits(
        head in any::<[u8; 6]>(),
        addresses in vec(any::<[u8; 4]>(), 1..20),
    ) {
        let count = u8::try_from(addresses.len()).unwrap();
        let mut message = vec![0x31, head[0], head[1], count, head[2] & 0x0f, head[3], head[4], head[5]];
        message.extend(addresses.concat());
        let checked: Vec<u8> = {
            message[6..8].fill(0);
            let sum: u64 = message.chunks(2).map(|w| u64::from(w[0]) * 256 + u64::from(w[1])).sum();
            let checksum = u16::try_from(0xffff - (sum - 1) % 0xffff - 1).unwrap();
            message[6..8].copy_from_slice(&checksum.to_be_bytes());
            message
        };
        match decode_message(&checked, host(1), MULTICAST_GROUP) {
            Ok((advert, _)) => prop_assert_eq!(advert.encode(), checked),
            Err(error) => prop_assert!(matches!(error, AdvertError::Vrid | AdvertError::Interval), "{}", error),
        }
    }

    #[test]
    fn skew_orders_any_two_priorities_at_any_interval(a in 1..=255_u8, b in 1..=255_u8, interval in 1..=4095_u16) {
        let (pa, pb, interval) = (prio(a), prio(b), cs(interval));
        prop_assert_eq!(a.cmp(&b).reverse(), skew_time(pa, interval).cmp(&skew_time(pb, interval)));
        prop_assert_eq!(active_down_interval(pa, interval), interval.duration() * 3 + skew_time(pa, interval));
    }
}

/// An input without borrows.
#[derive(Debug, Clone)]
enum Any {
    Start(Priority),
    Resume(Priority),
    Stop,
    Advert(u8, Advert),
    Timer,
    Priority(Priority),
    Source(u8),
    Resign,
    Promote,
    Yield,
    OwnerLives,
    Stalled,
}

fn any_priority() -> impl Strategy<Value = Priority> {
    prop_oneof![Just(0), Just(1), Just(100), Just(255), any::<u8>()].prop_map(prio)
}

fn any_input() -> impl Strategy<Value = Any> {
    let near = (any_priority(), prop_oneof![Just(1_u16), Just(10), 1..=4095_u16]);
    prop_oneof![
        2 => any_priority().prop_map(Any::Start),
        1 => any_priority().prop_map(Any::Resume),
        1 => Just(Any::Stop),
        8 => (1..6_u8, near).prop_map(|(from, (p, interval))| Any::Advert(from, advert(p.get(), interval))),
        1 => (1..6_u8, advert_with(1..=2)).prop_map(|(from, advert)| Any::Advert(from, advert)),
        8 => Just(Any::Timer),
        2 => any_priority().prop_map(Any::Priority),
        1 => (1..6_u8).prop_map(Any::Source),
        1 => Just(Any::Resign),
        1 => Just(Any::Promote),
        1 => Just(Any::Yield),
        1 => Just(Any::OwnerLives),
        1 => Just(Any::Stalled),
    ]
}

fn feed(router: &mut Router, now: std::time::Instant, input: &Any) {
    let input = match input {
        Any::Start(priority) => Input::Start { priority: *priority, source: host(3) },
        Any::Resume(priority) => Input::Resume { priority: *priority, source: host(3) },
        Any::Stop => Input::Stop,
        Any::Advert(from, advert) => Input::Advert { source: host(*from), advert },
        Any::Timer => Input::Timer,
        Any::Priority(priority) => Input::Priority(*priority),
        Any::Source(source) => Input::Source(host(*source)),
        Any::Resign => Input::Resign,
        Any::Promote => Input::Promote,
        Any::Yield => Input::Yield,
        Any::OwnerLives => Input::OwnerLives,
        Any::Stalled => Input::Stalled,
    };
    router.handle(now, input);
}

proptest! {
    #[test]
    fn no_sequence_of_inputs_panics_spins_or_floods(
        interval in prop_oneof![Just(1_u16), Just(10), 1..=4095_u16],
        preempt in any::<bool>(),
        steps in vec((0..200_000_u64, any_input()), 1..100),
    ) {
        let mut now = time_zero();
        let mut router = Router::new(config(cs(interval), preempt), now);
        for (wait_us, step) in &steps {
            now += Duration::from_micros(*wait_us);
            let from = router.state();
            feed(&mut router, now, step);
            let outputs = drain(&mut router);
            prop_assert!(outputs.len() <= 5, "{step:?} made {outputs:?}");
            let sent = outputs.iter().filter(|o| matches!(o, holdfast_vrrp::Output::Send { .. })).count();
            prop_assert!(sent <= 1, "{step:?} made {outputs:?}");
            let transitions = outputs.iter().filter(|o| matches!(o, holdfast_vrrp::Output::Transition(_))).count();
            prop_assert_eq!(usize::from(from != router.state()), transitions, "a change of state is told once");
            // Initialize is silent for ever; elsewhere a timer is armed, and after handling it lies ahead.
            prop_assert_eq!(router.poll_timeout().is_none(), router.state() == State::Initialize);
            if matches!(step, Any::Timer) {
                prop_assert!(router.poll_timeout().is_none_or(|at| at > now), "the timer spins");
            }
        }
        prop_assert_eq!(router.counters().outputs_lost, 0);
    }

    #[test]
    fn after_any_loss_and_partition_healing_leaves_exactly_one_active_within_two_down_times(
        seed in any::<u64>(),
        loss in 0..=100_u64,
        priorities in vec(prop_oneof![Just(100_u8), 1..=254_u8], 2..=4),
        interval in prop_oneof![Just(1_u16), Just(10), Just(100)],
        preempt in any::<bool>(),
        cuts in vec((0..4_usize, 0..4_usize), 0..6),
        frozen in any::<Option<bool>>(),
        storm_ms in 1..20_000_u64,
    ) {
        let interval = cs(interval);
        let mut lan = Lan::new().latency(Duration::from_micros(20));
        for priority in &priorities {
            lan = lan.started(*priority, config(interval, preempt));
        }
        lan.lossy(loss, seed);
        for (from, to) in cuts {
            lan.cut(from, to);
        }
        lan.run_for(ms(storm_ms));
        if let Some(knows) = frozen {
            lan.freeze(0);
            lan.run_for(ms(storm_ms / 2));
            lan.thaw(0, knows);
        }
        lan.heal();
        lan.run_for(2 * down_of_all(&priorities, interval));
        let actives = lan.actives();
        prop_assert_eq!(actives.len(), 1, "{:?}", &actives);
        let best = *priorities.iter().max().unwrap();
        prop_assert!(!preempt || priorities[actives[0]] == best, "and it is one of the best");
        // It stays so.
        lan.forget();
        lan.run_for(10 * interval.duration());
        prop_assert_eq!(lan.transitions(), vec![]);
    }
}

/// The longest down time on the segment.
fn down_of_all(priorities: &[u8], interval: AdvertInterval) -> Duration {
    priorities.iter().map(|p| active_down_interval(prio(*p), interval)).max().unwrap()
}
