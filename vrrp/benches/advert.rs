//! The paths that each advert takes: decode, the machine in Backup, the timer in Active. `cargo bench -p holdfast-vrrp`.
//! The allocations that are counted beside the times matter as much: in steady state the machine makes none.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use divan::{AllocProfiler, Bencher, black_box};
use holdfast_vrrp::wire::{Advert, TTL, VRRP_PROTOCOL, decode_v4};
use holdfast_vrrp::{
    Addresses, AdvertInterval, ChecksumForm, ChecksumMode, Input, LegConfig, LegId, Priority, Router, RouterConfig,
    Transport, Version, Vrid,
};

#[global_allocator]
static ALLOCATIONS: AllocProfiler = AllocProfiler::system();

const ADDRESSES: [u8; 2] = [1, 255];
const INTERVAL: Duration = Duration::from_millis(100);
const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 18);
const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

fn main() {
    divan::main();
}

fn leg(addresses: u8) -> LegConfig {
    LegConfig {
        vrid: Vrid::new(10).expect("a VRID"),
        version: Version::V3,
        addresses: Addresses::new((1..=addresses).map(|n| IpAddr::from([192, 0, 2, n]))).expect("1 to 255"),
        transport: Transport::Multicast,
        checksum: ChecksumMode::Auto,
    }
}

fn router(addresses: u8, now: Instant) -> Router {
    let interval = AdvertInterval::from_duration(INTERVAL).expect("a multiple of 10 ms");
    let config = RouterConfig {
        legs: vec![leg(addresses)],
        interval,
        preempt: true,
        preempt_delay: Duration::ZERO,
        jitter: true,
    };
    let mut router = Router::new(config, now);
    router.handle(now, Input::Source { leg: LegId(0), source: US.into() });
    router
}

fn advert(addresses: u8) -> Advert {
    let LegConfig { vrid, version, addresses, .. } = leg(addresses);
    let interval = AdvertInterval::from_duration(INTERVAL).expect("a multiple of 10 ms");
    Advert { version, vrid, priority: Priority::from_wire(254), interval, addresses }
}

fn packet(addresses: u8) -> Vec<u8> {
    let message = advert(addresses).encode(ChecksumForm::Message, PEER.into(), GROUP.into());
    let [high, low] = u16::try_from(20 + message.len()).expect("1,048 bytes at most").to_be_bytes();
    let mut packet = vec![0x45, 0xc0, high, low, 0, 1, 0, 0, TTL, VRRP_PROTOCOL, 0, 0];
    packet.extend(PEER.octets());
    packet.extend(GROUP.octets());
    packet.extend(message);
    packet
}

#[expect(clippy::disallowed_methods, reason = "an Instant can't be made from nothing")]
fn time_zero() -> Instant {
    Instant::now()
}

#[divan::bench(args = ADDRESSES)]
fn encode(bencher: Bencher<'_, '_>, addresses: u8) {
    let advert = advert(addresses);
    bencher.bench_local(|| black_box(&advert).encode(ChecksumForm::Message, US.into(), GROUP.into()));
}

#[divan::bench(args = ADDRESSES)]
fn decode(bencher: Bencher<'_, '_>, addresses: u8) {
    let packet = packet(addresses);
    bencher.bench_local(|| decode_v4(black_box(&packet)));
}

/// A Backup hears its Active.
#[divan::bench(args = ADDRESSES)]
fn advert_in_backup(bencher: Bencher<'_, '_>, addresses: u8) {
    let mut now = time_zero();
    let mut router = router(addresses, now);
    router.handle(now, Input::Start { priority: Priority::from_wire(100) });
    while router.poll_output().is_some() {}
    let advert = advert(addresses);
    bencher.bench_local(|| {
        now += INTERVAL;
        let (leg, source, form) = (LegId(0), PEER.into(), ChecksumForm::Message);
        router.handle(now, Input::Advert { leg, source, advert: black_box(&advert), form });
        (router.poll_output(), router.poll_timeout())
    });
}

/// An Active's interval is over.
#[divan::bench(args = ADDRESSES)]
fn timer_in_active(bencher: Bencher<'_, '_>, addresses: u8) {
    let mut now = time_zero();
    let mut router = router(addresses, now);
    router.handle(now, Input::Resume { priority: Priority::from_wire(254) });
    while router.poll_output().is_some() {}
    bencher.bench_local(|| {
        now += INTERVAL;
        router.handle(now, Input::Timer);
        (router.poll_output(), router.poll_timeout())
    });
}
