//! What holds for any bytes, any inputs and any losses.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use common::{
    Lan, advert_on, config, cs, drain, give_sources, host, leg, leg6, member, ms, prio, sent, time_zero, with_legs,
};
use holdfast_vrrp::timing::{active_down_interval, skew_time};
use holdfast_vrrp::wire::{
    Advert, AdvertError, ChecksumForm, TTL, VRRP_PROTOCOL, decode_message, decode_v4, decode_v6,
};
use holdfast_vrrp::{
    Addresses, AdvertInterval, Family, Input, LegConfig, LegId, Output, Priority, Router, RouterConfig, State, Version,
    Vrid, frames,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn any_advert() -> impl Strategy<Value = Advert> {
    prop_oneof![
        advert_with(Family::V4, Version::V2, 1..=255),
        advert_with(Family::V4, Version::V3, 1..=255),
        advert_with(Family::V6, Version::V3, 1..=255)
    ]
}

fn any_advert_v4() -> impl Strategy<Value = Advert> {
    prop_oneof![advert_with(Family::V4, Version::V2, 1..=255), advert_with(Family::V4, Version::V3, 1..=255)]
}

fn advert_with(
    family: Family,
    version: Version,
    addresses: std::ops::RangeInclusive<usize>,
) -> impl Strategy<Value = Advert> {
    let interval = match version {
        Version::V2 => (1..=255_u8).prop_map(|s| AdvertInterval::from_seconds(s).unwrap()).boxed(),
        Version::V3 => (1..=4095_u16).prop_map(cs).boxed(),
    };
    let address = any::<u128>().prop_map(move |bits| match family {
        Family::V4 => IpAddr::from(Ipv4Addr::from((bits & 0xffff_ffff) as u32)),
        Family::V6 => IpAddr::from(Ipv6Addr::from(bits)),
    });
    (1..=255_u8, any::<u8>(), interval, vec(address, addresses)).prop_map(
        move |(vrid, priority, interval, addresses)| Advert {
            version,
            vrid: Vrid::new(vrid).unwrap(),
            priority: prio(priority),
            interval,
            addresses: Addresses::new(addresses).unwrap(),
        },
    )
}

fn any_host() -> impl Strategy<Value = Ipv4Addr> {
    (1..=223_u8, any::<[u8; 3]>()).prop_map(|(a, [b, c, d])| Ipv4Addr::new(a, b, c, d))
}

fn any_host6() -> impl Strategy<Value = Ipv6Addr> {
    any::<u64>().prop_map(|id| Ipv6Addr::from(0xfe80_u128 << 112 | u128::from(id)))
}

fn any_form() -> impl Strategy<Value = ChecksumForm> {
    prop_oneof![Just(ChecksumForm::Message), Just(ChecksumForm::PseudoHeader)]
}

const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 18);

/// An IPv4 packet around a message, with options of 0 to 40 bytes.
fn packet(message: &[u8], source: Ipv4Addr, destination: Ipv4Addr, options_words: u8) -> Vec<u8> {
    let header_len = 20 + 4 * usize::from(options_words);
    let total = u16::try_from(header_len + message.len()).unwrap().to_be_bytes();
    let mut packet = vec![0x45 + options_words, 0xc0, total[0], total[1], 0, 1, 0x40, 0, TTL, VRRP_PROTOCOL, 0, 0];
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.resize(header_len, 1);
    packet.extend(message);
    packet
}

/// A whole packet of host 1 to the group.
fn sent_v4(advert: &Advert) -> Vec<u8> {
    let source = Ipv4Addr::new(10, 0, 0, 1);
    packet(&advert.encode(ChecksumForm::Message, source.into(), GROUP.into()), source, GROUP, 0)
}

proptest! {
    #[test]
    fn any_bytes_decode_or_are_refused(
        bytes in vec(any::<u8>(), 0..1500),
        source in any_host6(),
        destination in any::<u128>(),
        hop_limit in any::<u8>(),
    ) {
        let _ = decode_v4(&bytes);
        let _ = decode_v6(source, destination.into(), hop_limit, &bytes);
        let _ = decode_message(&bytes, host(1), GROUP.into());
        let _ = frames::parse_arp(&bytes);
        let _ = frames::parse_nd(&bytes);
    }

    #[test]
    fn a_mutated_neighbour_message_is_read_or_nothing(
        target in any::<u128>(),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut frame = frames::unsolicited_na([2, 0, 0, 0, 0, 1], target.into()).to_vec();
        for (at, value) in flips {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        let _ = frames::parse_nd(&frame);
    }

    #[test]
    fn a_mutated_advert_decodes_or_is_refused(
        advert in any_advert_v4(),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sent_v4(&advert);
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = decode_v4(&bytes);
        let _ = decode_v4(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn a_packet_cut_short_anywhere_is_truncated(advert in any_advert_v4(), cut in any::<prop::sample::Index>()) {
        let bytes = sent_v4(&advert);
        let refused = decode_v4(&bytes[..cut.index(bytes.len())]);
        prop_assert!(matches!(refused, Err(AdvertError::Truncated { .. })), "{refused:?}");
    }

    #[test]
    fn what_is_encoded_decodes_to_itself_over_ipv4(
        advert in any_advert_v4(),
        form in any_form(),
        source in any_host(),
        destination in prop_oneof![Just(GROUP), any_host()],
        options in 0..=10_u8,
        padding in 0..64_usize,
    ) {
        let message = advert.encode(form, source.into(), destination.into());
        let mut bytes = packet(&message, source, destination, options);
        bytes.resize(bytes.len() + padding, 0xa5);
        let received = decode_v4(&bytes).unwrap();
        let form = ChecksumForm::only(Family::V4, advert.version).unwrap_or(form);
        prop_assert_eq!(received.advert, advert);
        prop_assert_eq!((received.source, received.destination), (source.into(), destination.into()));
        // A pseudo-header can sum to nothing: then both forms are right.
        let both = decode_message(&message, source.into(), source.into()).is_ok();
        prop_assert!(received.checksum == form || both);
    }

    #[test]
    fn what_is_encoded_decodes_to_itself_over_ipv6(
        advert in advert_with(Family::V6, Version::V3, 1..=255),
        form in any_form(),
        source in any_host6(),
        destination in prop_oneof![Just("ff02::12".parse().unwrap()), any_host6()],
    ) {
        let message = advert.encode(form, source.into(), destination.into());
        let received = decode_v6(source, destination, TTL, &message).unwrap();
        prop_assert_eq!(received.advert, advert);
        prop_assert_eq!(received.checksum, ChecksumForm::PseudoHeader);
    }

    #[test]
    fn what_decodes_encodes_to_the_same_bytes_but_for_reserved_bits(
        head in any::<[u8; 6]>(),
        addresses in vec(any::<[u8; 4]>(), 1..20),
        v2 in any::<bool>(),
    ) {
        let count = u8::try_from(addresses.len()).unwrap();
        let (first, byte4) = if v2 { (0x21, 0) } else { (0x31, head[2] & 0x0f) };
        let mut message = vec![first, head[0], head[1], count, byte4, head[3], head[4], head[5]];
        message.extend(addresses.concat());
        message.resize(message.len() + if v2 { 8 } else { 0 }, 0);
        let checked: Vec<u8> = {
            message[6..8].fill(0);
            let sum: u64 = message.chunks(2).map(|w| u64::from(w[0]) * 256 + u64::from(w[1])).sum();
            let checksum = u16::try_from(0xffff - (sum - 1) % 0xffff - 1).unwrap();
            message[6..8].copy_from_slice(&checksum.to_be_bytes());
            message
        };
        match decode_message(&checked, host(1), GROUP.into()) {
            Ok((advert, form)) => prop_assert_eq!(advert.encode(form, host(1), GROUP.into()), checked),
            Err(error) => prop_assert!(matches!(error, AdvertError::Vrid | AdvertError::Interval), "{}", error),
        }
    }

    #[test]
    fn a_permuted_list_is_the_same_set_and_another_one_is_not(
        advert in any_advert(),
        turn in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
    ) {
        let mut list = advert.addresses.to_vec();
        list.rotate_left(turn.index(advert.addresses.len()));
        prop_assert!(advert.addresses.same_set(&Addresses::new(list.clone()).unwrap()));
        let at = at.index(list.len());
        list[at] = match list[at] {
            IpAddr::V4(a) => Ipv4Addr::from(u32::from(a) ^ 1).into(),
            IpAddr::V6(a) => Ipv6Addr::from(u128::from(a) ^ 1).into(),
        };
        prop_assert!(!advert.addresses.same_set(&Addresses::new(list).unwrap()));
    }

    #[test]
    fn skew_orders_any_two_priorities_at_any_interval(a in 1..=255_u8, b in 1..=255_u8, interval in 1..=4095_u16) {
        let (pa, pb, interval) = (prio(a), prio(b), cs(interval));
        prop_assert_eq!(a.cmp(&b).reverse(), skew_time(pa, interval).cmp(&skew_time(pb, interval)));
        prop_assert_eq!(active_down_interval(pa, interval), interval.duration() * 3 + skew_time(pa, interval));
    }
}

/// The legs that a unit may have here: both families, a second member, version 2, unicast.
fn any_legs() -> impl Strategy<Value = Vec<LegConfig>> {
    let v2 = LegConfig { version: Version::V2, ..member(12) };
    let peers = (1..6).map(host).collect();
    let unicast = LegConfig { transport: holdfast_vrrp::Transport::Unicast { peers, min_ttl: 1 }, ..member(13) };
    let all = vec![leg(), leg6(), member(11), v2, unicast];
    prop::sample::subsequence(all, 1..=5).prop_shuffle()
}

/// An input without borrows.
#[derive(Debug, Clone)]
enum Any {
    Start(Priority),
    Resume(Priority),
    Stop,
    /// From host, on the leg at this place (counted round), with a checksum.
    Advert(u8, usize, Priority, AdvertInterval, ChecksumForm),
    /// Any advert at all, on any leg.
    Foreign(u8, u16, Advert),
    Timer,
    Priority(Priority),
    Source(u8, u16),
    SetLegs(Vec<LegConfig>),
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
        12 => (1..6_u8, any::<usize>(), near, any_form())
            .prop_map(|(from, at, (p, interval), form)| Any::Advert(from, at, p, cs(interval), form)),
        1 => (1..6_u8, 0..6_u16, any_advert()).prop_map(|(from, leg, advert)| Any::Foreign(from, leg, advert)),
        1 => any_legs().prop_map(Any::SetLegs),
        8 => Just(Any::Timer),
        2 => any_priority().prop_map(Any::Priority),
        1 => (1..6_u8, 0..6_u16).prop_map(|(from, leg)| Any::Source(from, leg)),
        1 => Just(Any::Resign),
        1 => Just(Any::Promote),
        1 => Just(Any::Yield),
        1 => Just(Any::OwnerLives),
        1 => Just(Any::Stalled),
    ]
}

/// The host's address on a leg of that family.
fn host_on(n: u8, family: Family) -> IpAddr {
    if family == Family::V4 { host(n) } else { common::host6(n) }
}

fn feed(router: &mut Router, now: std::time::Instant, input: &Any) {
    let legs = router.config().legs.clone();
    let input = match input {
        Any::Start(priority) => {
            give_sources(router, now, |at| host_on(3, legs[at].family()));
            Input::Start { priority: *priority }
        }
        Any::Resume(priority) => {
            give_sources(router, now, |at| host_on(3, legs[at].family()));
            Input::Resume { priority: *priority }
        }
        Any::Stop => Input::Stop,
        Any::Advert(from, at, priority, interval, form) => {
            let at = at % legs.len();
            let (leg, source) = (LegId(u16::try_from(at).unwrap()), host_on(*from, legs[at].family()));
            let advert = advert_on(&legs[at], priority.get(), *interval);
            return router.handle(now, Input::Advert { leg, source, advert: &advert, form: *form });
        }
        Any::Foreign(from, leg, advert) => {
            let source = host_on(*from, advert.addresses.family());
            Input::Advert { leg: LegId(*leg), source, advert, form: ChecksumForm::PseudoHeader }
        }
        Any::SetLegs(legs) => return router.set_legs(now, legs.clone()),
        Any::Timer => Input::Timer,
        Any::Priority(priority) => Input::Priority(*priority),
        Any::Source(n, leg) => Input::Source { leg: LegId(*leg), source: host(*n) },
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
        preempt_delay in (0..2_000_u64).prop_map(ms),
        legs in any_legs(),
        steps in vec((0..200_000_u64, any_input()), 1..100),
    ) {
        let mut now = time_zero();
        let interval = cs(interval);
        let mut router = Router::new(RouterConfig { legs, interval, preempt, preempt_delay, jitter: true }, now);
        let mut told = 0;
        for (wait_us, step) in &steps {
            now += Duration::from_micros(*wait_us);
            let from = router.state();
            feed(&mut router, now, step);
            let outputs = drain(&mut router);
            let legs = router.config().legs.len();
            let adverts = sent(&outputs);
            prop_assert!(outputs.len() - adverts.len() <= 5, "{step:?} made {outputs:?}");
            prop_assert!((0..legs).all(|at| adverts.iter().filter(|(leg, ..)| usize::from(*leg) == at).count() <= 1));
            prop_assert!(adverts.iter().all(|(leg, ..)| usize::from(*leg) < legs), "{step:?} made {outputs:?}");
            told += adverts.len();
            let transitions = outputs.iter().filter(|o| matches!(o, Output::Transition(_))).count();
            prop_assert_eq!(usize::from(from != router.state()), transitions, "a change of state is told once");
            // A reload changes no state.
            prop_assert!(!matches!(step, Any::SetLegs(_)) || transitions == 0);
            // Initialize is silent for ever; elsewhere a timer is armed, and after handling it lies ahead.
            prop_assert_eq!(router.poll_timeout().is_none(), router.state() == State::Initialize);
            if matches!(step, Any::Timer) {
                prop_assert!(router.poll_timeout().is_none_or(|at| at > now), "the timer spins");
            }
        }
        prop_assert_eq!(router.counters().outputs_lost, 0);
        prop_assert_eq!(router.counters().sent, told as u64);
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
        jitter in any::<bool>(),
    ) {
        let interval = cs(interval);
        let mut lan = Lan::new().latency(Duration::from_micros(20));
        if jitter {
            lan = lan.neighbours();
        }
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

proptest! {
    #[test]
    fn legs_that_fail_one_by_one_never_split_a_unit_for_longer_than_it_takes_them_to_heal(
        seed in any::<u64>(),
        loss in 0..=50_u64,
        priorities in vec(prop_oneof![Just(100_u8), 2..=254_u8], 2..=3),
        legs in 2..=4_usize,
        cuts in vec((0..3_usize, 0..3_usize, 0..4_u16), 0..12),
        storm_ms in 1..20_000_u64,
    ) {
        let interval = cs(10);
        let all = [leg(), leg6(), member(11), member(12)];
        // On every other leg the hosts' addresses are in the opposite order.
        let mut lan = Lan::new().latency(Duration::from_micros(20)).addresses(|n, at, family| {
            host_on(if at.is_multiple_of(2) { n } else { 10 - n }, family)
        });
        for priority in &priorities {
            lan = lan.started(*priority, with_legs(all[..legs].to_vec(), interval));
        }
        lan.lossy(loss, seed);
        for (from, to, leg) in cuts {
            lan.cut_leg(from, to, leg);
        }
        lan.run_for(ms(storm_ms));
        lan.heal();
        lan.run_for(2 * down_of_all(&priorities, interval));
        let actives = lan.actives();
        prop_assert_eq!(actives.len(), 1, "{:?}", &actives);
        prop_assert_eq!(priorities[actives[0]], *priorities.iter().max().unwrap());
        lan.forget();
        lan.run_for(10 * interval.duration());
        prop_assert_eq!(lan.transitions(), vec![]);
    }

    #[test]
    fn while_one_leg_gets_through_a_unit_has_one_active(
        priorities in prop_oneof![Just((100, 100)), (2..=254_u8, 2..=254_u8)],
        open in 0..3_usize,
        seconds in 1..20_u64,
    ) {
        let legs = vec![leg(), leg6(), member(11)];
        let mut lan = Lan::new()
            .started(priorities.0, with_legs(legs.clone(), cs(10)))
            .started(priorities.1, with_legs(legs, cs(10)));
        lan.run_for(ms(1_000));
        let before = lan.actives();
        prop_assert_eq!(before.len(), 1);
        lan.forget();
        for leg in (0..3_u16).filter(|leg| usize::from(*leg) != open) {
            lan.cut_leg(0, 1, leg);
            lan.cut_leg(1, 0, leg);
        }
        lan.run_for(Duration::from_secs(seconds));
        prop_assert_eq!(lan.transitions(), vec![]);
        prop_assert_eq!(lan.actives(), before);
    }
}

/// The longest down time on the segment.
fn down_of_all(priorities: &[u8], interval: AdvertInterval) -> Duration {
    priorities.iter().map(|p| active_down_interval(prio(*p), interval)).max().unwrap()
}
