//! Packets that must not count: for each rule of reception thousands of adverts that are right but for this rule, and
//! that would change the state if they were let through. `HOLDFAST_CASES=20` makes twenty times as many.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use common::{Rng, cs, drain, leg, leg6, member, neighbour, prio, time_zero, with_legs};
use holdfast_vrrp::router::{Heard, Notice};
use holdfast_vrrp::wire::{Advert, AdvertError, ChecksumForm, Received, TTL, VRRP_PROTOCOL, decode_v4, decode_v6};
use holdfast_vrrp::{
    AdvertInterval, Family, Input, LegConfig, LegId, Output, Priority, Router, RouterConfig, State, Transport, Version,
    Vrid,
};

const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 18);
const GROUP6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x12);
const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const US6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const V3: u16 = 0;
const V6: u16 = 1;
const V2: u16 = 2;
const UNICAST: u16 = 3;

fn packets_per_rule() -> u64 {
    let times = std::env::var("HOLDFAST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    10_000 * times
}

/// One leg of each kind.
fn config() -> RouterConfig {
    let v2 = LegConfig { version: Version::V2, ..member(12) };
    let unicast = Transport::Unicast { peers: vec![PEER.into()], min_ttl: 254 };
    with_legs(vec![leg(), leg6(), v2, LegConfig { transport: unicast, ..member(13) }], cs(100))
}

/// A router that any advert at 255 or 0 would move: Active or Backup at 100.
fn router(now: Instant, active: bool) -> Router {
    let mut router = Router::new(config(), now);
    common::give_sources(&mut router, now, |at| if at == 1 { US6.into() } else { US.into() });
    let priority = prio(100);
    router.handle(now, if active { Input::Resume { priority } } else { Input::Start { priority } });
    drain(&mut router);
    router
}

/// A packet before it is bytes.
#[derive(Debug, Clone)]
struct Draft {
    source: IpAddr,
    destination: IpAddr,
    ttl: u8,
    protocol: u8,
    message: Vec<u8>,
    /// The IPv4 packet's end is cut off, or made longer.
    cut: usize,
    fragment: u16,
}

impl Draft {
    /// A valid advert for this leg that would change the state of whoever takes it.
    fn valid(leg: u16, rng: &mut Rng) -> Self {
        let config = &config().legs[usize::from(leg)];
        let (source, destination) = match leg {
            V6 => (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2 + rng.below(60_000) as u16).into(), GROUP6.into()),
            UNICAST => (PEER.into(), US.into()),
            _ => (neighbour(2 + rng.below(250) as u8), GROUP.into()),
        };
        let advert = Advert {
            version: config.version,
            vrid: config.vrid,
            priority: if rng.below(2) == 0 { Priority::OWNER } else { Priority::RESIGN },
            interval: AdvertInterval::DEFAULT,
            addresses: config.addresses.clone(),
        };
        let form = if rng.below(2) == 0 { ChecksumForm::Message } else { ChecksumForm::PseudoHeader };
        let message = advert.encode(form, source, destination);
        Self { source, destination, ttl: TTL, protocol: VRRP_PROTOCOL, message, cut: 0, fragment: 0 }
    }

    /// Puts the checksum right after a change, in a form that the family and version has.
    fn rechecked(mut self) -> Self {
        if self.message.len() < 8 {
            return self;
        }
        self.message[6..8].fill(0);
        let mut sum =
            self.message.chunks(2).map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |b| (*b).into())).sum::<u32>();
        if let (IpAddr::V6(source), IpAddr::V6(destination)) = (self.source, self.destination) {
            let words = source.segments().into_iter().chain(destination.segments());
            sum += words.map(u32::from).sum::<u32>() + 112 + self.message.len() as u32;
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        self.message[6..8].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// As the node does it: decode, find the leg by VRID and family, ask the leg.
    fn receive(&self, config: &RouterConfig) -> Result<(LegId, Received), Refusal> {
        let received = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => decode_v4(&self.ipv4(source, destination)),
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                decode_v6(source, destination, self.ttl, &self.message[..self.message.len() - self.cut])
            }
            _ => unreachable!("a packet has one family"),
        };
        let received = received.map_err(Refusal::Advert)?;
        let family = Family::of(received.source);
        let found = config.legs.iter().position(|leg| (leg.vrid, leg.family()) == (received.advert.vrid, family));
        let leg = found.ok_or(Refusal::UnknownVrid)?;
        config.legs[leg].accept(&received, config.interval).map_err(Refusal::Advert)?;
        Ok((LegId(leg as u16), received))
    }

    fn ipv4(&self, source: Ipv4Addr, destination: Ipv4Addr) -> Vec<u8> {
        let total = (20 + self.message.len()) as u16;
        let [t1, t0] = total.to_be_bytes();
        let [f1, f0] = self.fragment.to_be_bytes();
        let mut packet = vec![0x45, 0xc0, t1, t0, 0, 1, f1, f0, self.ttl, self.protocol, 0, 0];
        packet.extend(source.octets());
        packet.extend(destination.octets());
        packet.extend(&self.message);
        packet.truncate(packet.len() - self.cut);
        packet
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Refusal {
    Advert(AdvertError),
    UnknownVrid,
}

impl Refusal {
    fn name(self) -> &'static str {
        match self {
            Self::Advert(error) => error.counter(),
            Self::UnknownVrid => "unknown-vrid",
        }
    }
}

/// Any byte but these.
fn byte_but(rng: &mut Rng, not: &[u8]) -> u8 {
    loop {
        let byte = rng.below(256) as u8;
        if !not.contains(&byte) {
            return byte;
        }
    }
}

fn leg_of(rng: &mut Rng, legs: &[u16]) -> u16 {
    legs[rng.below(legs.len() as u64) as usize]
}

type Spoil = fn(&mut Rng) -> Draft;

/// For each rule: what refuses it, and how such a packet comes about.
const RULES: &[(&str, Spoil)] = &[
    ("truncated", |rng| {
        let leg = leg_of(rng, &[V3, V6, V2, UNICAST]);
        Draft::valid(leg, rng).with(|d| d.cut = 1 + rng.below(d.message.len() as u64) as usize)
    }),
    ("fragment", |rng| {
        let leg = leg_of(rng, &[V3, V2, UNICAST]);
        Draft::valid(leg, rng).with(|d| d.fragment = 1 + rng.below(0x3fff) as u16)
    }),
    ("protocol", |rng| {
        let leg = leg_of(rng, &[V3, V2, UNICAST]);
        Draft::valid(leg, rng).with(|d| d.protocol = byte_but(rng, &[VRRP_PROTOCOL]))
    }),
    ("ttl", |rng| {
        let leg = leg_of(rng, &[V3, V6, V2]);
        Draft::valid(leg, rng).with(|d| d.ttl = byte_but(rng, &[TTL]))
    }),
    ("source", |rng| {
        let leg = leg_of(rng, &[V3, V6, V2, UNICAST]);
        let group = rng.below(2) == 0;
        Draft::valid(leg, rng)
            .with(|d| {
                d.source = match (d.source, group) {
                    (IpAddr::V4(_), false) => Ipv4Addr::UNSPECIFIED.into(),
                    (IpAddr::V6(_), false) => Ipv6Addr::UNSPECIFIED.into(),
                    (IpAddr::V4(_), true) => GROUP.into(),
                    (IpAddr::V6(_), true) => GROUP6.into(),
                }
            })
            .rechecked()
    }),
    ("version-2", |rng| Draft::valid(V6, rng).with(|d| d.message[0] = 0x21).rechecked()),
    ("version", |rng| {
        let leg = leg_of(rng, &[V3, V6, V2, UNICAST]);
        Draft::valid(leg, rng)
            .with(|d| d.message[0] = byte_but(rng, &[2, 3]) << 4 | 1)
            .with(|d| {
                if matches!(d.message[0] >> 4, 2 | 3) {
                    d.message[0] = 0x41;
                }
            })
            .rechecked()
    }),
    ("type", |rng| {
        let leg = leg_of(rng, &[V3, V6, V2, UNICAST]);
        Draft::valid(leg, rng).with(|d| d.message[0] = d.message[0] & 0xf0 | (2 + rng.below(14) as u8)).rechecked()
    }),
    ("no-addresses", |rng| {
        let leg = leg_of(rng, &[V3, V6, V2, UNICAST]);
        Draft::valid(leg, rng).with(|d| d.message[3] = 0).rechecked()
    }),
    ("trailing", |rng| {
        let leg = leg_of(rng, &[V3, V6, V2, UNICAST]);
        let more = 1 + rng.below(40) as usize;
        Draft::valid(leg, rng).with(|d| d.message.resize(d.message.len() + more, 0xa5)).rechecked()
    }),
    ("checksum", |rng| {
        let leg = leg_of(rng, &[V3, V6, V2, UNICAST]);
        // One bit, beyond the fields that are looked at before: always a wrong sum.
        Draft::valid(leg, rng).with(|d| {
            let at = 4 + rng.below(d.message.len() as u64 - 4) as usize;
            d.message[at] ^= 1 << rng.below(8);
        })
    }),
    ("vrid", |rng| {
        let leg = leg_of(rng, &[V3, V6, V2, UNICAST]);
        Draft::valid(leg, rng).with(|d| d.message[1] = 0).rechecked()
    }),
    ("interval", |rng| {
        let leg = leg_of(rng, &[V3, V6, V2, UNICAST]);
        let reserved = rng.below(16) as u8;
        Draft::valid(leg, rng)
            .with(|d| d.message[4..6].copy_from_slice(&[if leg == V2 { 0 } else { reserved << 4 }, 0]))
            .rechecked()
    }),
    ("auth-type", |rng| {
        let kind = 1 + rng.below(255) as u8;
        let password = rng.below(u64::MAX >> 33).to_be_bytes();
        Draft::valid(V2, rng)
            .with(|d| {
                d.message[4] = kind;
                d.message[12..20].copy_from_slice(&password);
            })
            .rechecked()
    }),
    ("ttl-below-minimum", |rng| Draft::valid(UNICAST, rng).with(|d| d.ttl = rng.below(254) as u8)),
    ("unknown-peer", |rng| {
        let stranger = Ipv4Addr::new(10, rng.below(256) as u8, 1 + rng.below(255) as u8, rng.below(256) as u8);
        Draft::valid(UNICAST, rng).with(|d| d.source = stranger.into()).rechecked()
    }),
    ("expected-multicast", |rng| {
        let leg = leg_of(rng, &[V3, V6, V2]);
        let other_group = rng.below(2) == 0;
        Draft::valid(leg, rng)
            .with(|d| {
                d.destination = match (d.destination, other_group) {
                    (IpAddr::V4(_), false) => US.into(),
                    (IpAddr::V6(_), false) => US6.into(),
                    (IpAddr::V4(_), true) => Ipv4Addr::new(224, 0, 0, 1).into(),
                    (IpAddr::V6(_), true) => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into(),
                }
            })
            .rechecked()
    }),
    ("expected-unicast", |rng| {
        let destination = if rng.below(2) == 0 { GROUP } else { Ipv4Addr::BROADCAST };
        Draft::valid(UNICAST, rng).with(|d| d.destination = destination.into()).rechecked()
    }),
    ("version-mismatch", |rng| {
        let leg = leg_of(rng, &[V3, V2, UNICAST]);
        Draft::valid(leg, rng)
            .with(|d| match leg {
                V2 => {
                    d.message[0] = 0x31;
                    d.message.truncate(12);
                }
                _ => {
                    d.message[0] = 0x21;
                    d.message[4] = 0;
                    d.message.resize(20, 0);
                }
            })
            .rechecked()
    }),
    ("interval-mismatch", |rng| {
        let seconds = 2 + rng.below(254) as u8;
        Draft::valid(V2, rng).with(|d| d.message[5] = seconds).rechecked()
    }),
    ("address-mismatch", |rng| {
        let address = byte_but(rng, &[12]);
        let priority = byte_but(rng, &[255]);
        Draft::valid(V2, rng)
            .with(|d| {
                d.message[2] = priority;
                d.message[11] = address;
            })
            .rechecked()
    }),
    ("unknown-vrid", |rng| {
        let leg = leg_of(rng, &[V3, V6, V2, UNICAST]);
        let vrid = byte_but(rng, &[0, 10, 12, 13]);
        Draft::valid(leg, rng).with(|d| d.message[1] = vrid).rechecked()
    }),
];

/// All of a router that an advert may change.
fn snapshot(router: &Router) -> (State, Instant, Priority, Option<Instant>, Option<Heard>, u64) {
    let timer = router.poll_timeout();
    (router.state(), router.since(), router.priority(), timer, router.heard(), router.counters().heard)
}

#[test]
fn a_valid_packet_of_each_leg_would_change_the_state() {
    let now = time_zero();
    let mut rng = Rng::new(1);
    for leg in [V3, V6, V2, UNICAST] {
        for _ in 0..100 {
            let mut router = router(now, true);
            let before = snapshot(&router);
            let (leg_id, received) = Draft::valid(leg, &mut rng).receive(&config()).expect("valid");
            assert_eq!(leg_id, LegId(leg));
            let Received { source, advert, checksum, .. } = &received;
            router.handle(now, Input::Advert { leg: leg_id, source: *source, advert, form: *checksum });
            assert_ne!(snapshot(&router), before);
            assert_ne!(drain(&mut router), []);
        }
    }
}

#[test]
fn no_packet_that_breaks_a_rule_is_let_through() {
    let now = time_zero();
    let config = config();
    for (rule, (name, spoil)) in RULES.iter().enumerate() {
        let mut rng = Rng::new(rule as u64);
        let mut routers = [router(now, true), router(now, false)];
        let before = routers.each_ref().map(snapshot);
        for n in 0..packets_per_rule() {
            let draft = spoil(&mut rng);
            match draft.receive(&config) {
                Err(refusal) => assert_eq!(refusal.name(), *name, "packet {n}: {draft:?}"),
                Ok((leg, received)) => {
                    // To be seen in the state what it would have done.
                    let Received { source, advert, checksum, .. } = &received;
                    for router in &mut routers {
                        router.handle(now, Input::Advert { leg, source: *source, advert, form: *checksum });
                    }
                    panic!("{name}: packet {n} was let through: {draft:?}; {routers:?}");
                }
            }
        }
        assert_eq!(routers.each_ref().map(snapshot), before, "{name}");
    }
}

#[test]
fn every_refusal_that_the_network_can_cause_has_a_rule_here() {
    // What can't come from a raw socket that the kernel filled: "ip-header"; "family": a leg is found by it.
    let elsewhere = ["ip-header", "family"];
    let names = AdvertError::COUNTERS.into_iter().filter(|name| !elsewhere.contains(name));
    for name in names {
        assert!(RULES.iter().any(|(rule, _)| *rule == name), "{name}");
    }
}

#[test]
fn our_own_and_others_adverts_that_reach_the_machine_change_no_state() {
    let now = time_zero();
    let config = config();
    let mut rng = Rng::new(7);
    let mut routers = [router(now, true), router(now, false)];
    let before = routers.each_ref().map(snapshot);
    for _ in 0..packets_per_rule() {
        let leg = leg_of(&mut rng, &[V3, V6, V2]);
        let foreign = rng.below(2) == 0;
        let (_, mut received) = Draft::valid(leg, &mut rng).receive(&config).expect("valid");
        if foreign {
            received.advert.vrid = Vrid::new(byte_but(&mut rng, &[0, 10, 12, 13])).unwrap();
        } else {
            received.source = if leg == V6 { US6.into() } else { US.into() };
        }
        let Received { source, advert, checksum, .. } = &received;
        for router in &mut routers {
            router.handle(now, Input::Advert { leg: LegId(leg), source: *source, advert, form: *checksum });
            assert!(drain(router).iter().all(|output| *output == Output::Notice(Notice::OwnSource)));
        }
    }
    assert_eq!(routers.each_ref().map(snapshot), before);
}

#[test]
fn random_and_mutated_packets_are_refused_or_fed_without_a_panic() {
    let zero = time_zero();
    let config = config();
    let mut rng = Rng::new(8);
    let mut router = router(zero, true);
    let mut taken = 0;
    for n in 0..packets_per_rule() {
        let now = zero + Duration::from_millis(n);
        let leg = leg_of(&mut rng, &[V3, V6, V2, UNICAST]);
        let mut draft = Draft::valid(leg, &mut rng);
        for _ in 0..rng.below(4) {
            let at = rng.below(draft.message.len() as u64) as usize;
            draft.message[at] = rng.below(256) as u8;
        }
        if rng.below(2) == 0 {
            draft = draft.rechecked();
        }
        let before = snapshot(&router);
        match draft.receive(&config) {
            Err(_) => assert_eq!(snapshot(&router), before),
            Ok((leg, received)) => {
                taken += 1;
                let Received { source, advert, checksum, .. } = &received;
                router.handle(now, Input::Advert { leg, source: *source, advert, form: *checksum });
            }
        }
        if router.poll_timeout().is_some_and(|at| at <= now) {
            router.handle(now, Input::Timer);
            assert!(router.poll_timeout().is_some_and(|at| at > now));
        }
        let outputs = drain(&mut router);
        assert!(outputs.len() <= 2 * config.legs.len() + 5, "{outputs:?}");
    }
    assert!(taken > packets_per_rule() / 10, "enough of them count: {taken}");
    // And it works as ever.
    router.handle(zero + Duration::from_secs(100_000), Input::Stop);
    assert_eq!(router.state(), State::Initialize);
}
