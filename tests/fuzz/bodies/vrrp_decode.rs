//! What the fuzz target and the replay of its corpus do with an input. Panics if something that must hold doesn't.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use holdfast_vrrp::wire::{Advert, AdvertError, Received, decode_message, decode_v4, decode_v6};
use holdfast_vrrp::{
    Addresses, AdvertInterval, ChecksumForm, ChecksumMode, Family, Input, LegConfig, LegId, Output, Priority, Router,
    RouterConfig, State, Transport, Version, Vrid, frames,
};

/// Runs one input. See tests/fuzz/README.md for its form.
pub(crate) fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind {
        b'4' => drop(checked(decode_v4(rest))),
        b'6' => drop(v6(rest).map(checked)),
        b'e' => {
            let _ = frames::parse_arp(rest);
            let _ = frames::parse_nd(rest);
        }
        settings => router(*settings, &mut Bytes(rest)),
    }
}

fn v6(data: &[u8]) -> Option<Result<Received, AdvertError>> {
    let (source, rest) = data.split_first_chunk::<16>()?;
    let (destination, rest) = rest.split_first_chunk::<16>()?;
    let (hop_limit, message) = rest.split_first()?;
    Some(decode_v6(Ipv6Addr::from(*source), Ipv6Addr::from(*destination), *hop_limit, message))
}

/// What decodes can be encoded, and decodes to itself again.
fn checked(received: Result<Received, AdvertError>) -> Option<Received> {
    let received = received.ok()?;
    let Received { source, destination, ref advert, checksum, .. } = received;
    let message = advert.encode(checksum, source, destination);
    let (again, form) = decode_message(&message, source, destination).expect("what we encode decodes");
    assert_eq!(again, *advert);
    // With a pseudo-header that sums to nothing both forms are right.
    assert!(form == checksum || form == ChecksumForm::Message);
    assert!(advert.addresses.same_set(&again.addresses));
    Some(received)
}

/// An input, read byte by byte.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn next(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    /// As many as the next byte says, or as there are.
    fn some(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.next()?);
        let (some, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        Some(some)
    }
}

/// Four legs of one VRID each: IPv4, IPv6, version 2, unicast. `settings` chooses which, the checksum and preemption.
fn config(settings: u8) -> RouterConfig {
    let leg = |vrid, version, transport, address: IpAddr| LegConfig {
        vrid: Vrid::new(vrid).expect("a VRID"),
        version,
        addresses: Addresses::new([address]).expect("one address"),
        transport,
        checksum: if settings & 0x40 == 0 { ChecksumMode::Auto } else { ChecksumMode::PseudoHeader },
    };
    let v4 = |last| IpAddr::from([192, 0, 2, last]);
    let unicast = Transport::Unicast { peers: vec![host(2)], min_ttl: 200 };
    let legs = [
        leg(1, Version::V3, Transport::Multicast, v4(1)),
        leg(2, Version::V3, Transport::Multicast, IpAddr::from([0xfe80, 0, 0, 0, 0x200, 0x5eff, 0xfe00, 0x202])),
        leg(3, Version::V2, Transport::Multicast, v4(3)),
        leg(4, Version::V3, unicast, v4(4)),
    ];
    let chosen = legs.into_iter().enumerate().filter(|(at, _)| settings >> at & 1 == 1).map(|(_, leg)| leg);
    RouterConfig {
        legs: chosen.collect(),
        interval: AdvertInterval::DEFAULT,
        preempt: settings & 0x10 == 0,
        preempt_delay: Duration::from_secs(if settings & 0x20 == 0 { 0 } else { 30 }),
        jitter: true,
    }
}

fn host(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

fn host6(n: u8) -> IpAddr {
    IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, u16::from(n)])
}

/// The address of a host on a leg.
fn host_on(leg: &LegConfig, n: u8) -> IpAddr {
    if leg.family() == Family::V4 { host(n) } else { host6(n) }
}

#[expect(clippy::disallowed_methods, reason = "an Instant can't be made from nothing")]
fn time_zero() -> Instant {
    Instant::now()
}

/// Steps, until the input ends: what, and what it needs.
fn router(settings: u8, bytes: &mut Bytes<'_>) {
    let config = config(settings);
    let mut now = time_zero();
    let mut router = Router::new(config, now);
    while let Some(step) = bytes.next() {
        let from = router.state();
        let is_timer = step & 0x0f == 3;
        if act(&mut router, &mut now, step, bytes).is_none() {
            return;
        }
        let outputs: Vec<Output> = std::iter::from_fn(|| router.poll_output()).collect();
        let adverts = outputs.iter().filter(|output| matches!(output, Output::Send { .. })).count();
        let legs = router.config().legs.len();
        assert!(adverts <= legs && outputs.len() - adverts <= 5, "{step:#x} made {outputs:?}");
        let told = outputs.iter().filter(|output| matches!(output, Output::Transition(_))).count();
        assert_eq!(usize::from(from != router.state()), told, "a change of state is told once");
        assert_eq!(router.poll_timeout().is_none(), router.state() == State::Initialize);
        assert!(!is_timer || router.poll_timeout().is_none_or(|at| at > now), "the timer spins");
        assert_eq!(router.counters().outputs_lost, 0);
        outputs.iter().for_each(ours);
    }
}

/// Whatever a router sends, another would accept.
fn ours(output: &Output) {
    let Output::Send { source, packets, .. } = output else { return };
    for packet in packets.iter() {
        decode_message(&packet.payload, *source, packet.destination).expect("a router sends what decodes");
    }
}

fn act(router: &mut Router, now: &mut Instant, step: u8, bytes: &mut Bytes<'_>) -> Option<()> {
    let high = step >> 4;
    let priority = |n| Priority::from_wire(n);
    match step & 0x0f {
        0 => router.handle(*now, Input::Start { priority: priority(bytes.next()?) }),
        1 => router.handle(*now, Input::Resume { priority: priority(bytes.next()?) }),
        2 => *now += Duration::from_millis(u64::from(bytes.next()?) * u64::from(high + 1)),
        3 => {
            // As a caller that sleeps until it is due, or that is called early.
            if high & 1 == 0 {
                *now = router.poll_timeout().map_or(*now, |at| at.max(*now));
            }
            router.handle(*now, Input::Timer);
        }
        4 => {
            let source = if high & 8 == 0 { host(bytes.next()?) } else { host6(bytes.next()?) };
            router.handle(*now, Input::Source { leg: LegId(u16::from(high & 7)), source });
        }
        5 => router.handle(*now, Input::Priority(priority(bytes.next()?))),
        6 => router.handle(*now, Input::Resign),
        7 => router.handle(*now, Input::Promote),
        8 => router.handle(*now, Input::Yield),
        9 => router.handle(*now, Input::OwnerLives),
        10 => router.handle(*now, Input::Stalled),
        11 => router.handle(*now, Input::Stop),
        12 => router.set_legs(*now, config(bytes.next()?).legs),
        // An advert of a host on a leg, with this priority and interval.
        13 => {
            let at = usize::from(high & 3);
            let (from, its, seconds) = (bytes.next()?, bytes.next()?, bytes.next()?);
            let config = router.config().legs.get(at)?.clone();
            let advert = Advert {
                version: config.version,
                vrid: config.vrid,
                priority: priority(its),
                interval: AdvertInterval::from_seconds(seconds).ok()?,
                addresses: config.addresses.clone(),
            };
            let form = if high & 4 == 0 { ChecksumForm::Message } else { ChecksumForm::PseudoHeader };
            let form = ChecksumForm::only(config.family(), config.version).unwrap_or(form);
            let (leg, source) = (LegId(u16::from(high & 3)), host_on(&config, from));
            router.handle(*now, Input::Advert { leg, source, advert: &advert, form });
        }
        // A packet: taken only if it decodes and a leg accepts it.
        14 => receive(router, *now, decode_v4(bytes.some()?)),
        _ => receive(router, *now, v6(bytes.some()?)?),
    }
    Some(())
}

fn receive(router: &mut Router, now: Instant, received: Result<Received, AdvertError>) {
    let Some(received) = checked(received) else { return };
    let config = router.config();
    let legs = config.legs.iter().enumerate();
    let taken = legs.filter(|(_, leg)| leg.vrid == received.advert.vrid);
    let mut taken = taken.filter(|(_, leg)| leg.accept(&received, config.interval).is_ok());
    let Some((at, _)) = taken.next() else { return };
    let leg = LegId(u16::try_from(at).expect("four legs at most"));
    let Received { source, ref advert, checksum: form, .. } = received;
    router.handle(now, Input::Advert { leg, source, advert, form });
}
