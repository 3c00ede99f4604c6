use super::*;
use crate::wire::{Diagnostic, State};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

const R1: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const R2: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const US: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10));

fn now() -> Instant {
    #[allow(clippy::disallowed_methods, reason = "a test has to begin somewhere")]
    Instant::now()
}

fn timers() -> Timers {
    Timers::new(Duration::from_millis(50), 3).expect("in range")
}

fn packet(state: State, your_discriminator: u32) -> [u8; 24] {
    let ms = Duration::from_millis(50);
    Control {
        diagnostic: Diagnostic::NONE,
        state,
        poll: false,
        final_: false,
        control_plane_independent: false,
        demand: false,
        multiplier: 3,
        my_discriminator: 5,
        your_discriminator,
        desired_min_tx: ms,
        required_min_rx: ms,
        required_min_echo_rx: Duration::ZERO,
    }
    .encode()
}

fn datagram(bytes: &[u8], from: IpAddr) -> Datagram<'_> {
    Datagram { bytes, from, to: Some(US), ifindex: 7, ttl: 255, multihop: false }
}

#[test]
fn the_first_packet_is_known_by_address_and_interface_and_the_next_ones_by_discriminator() {
    let (mut table, now) = (Table::new(1), now());
    let one = table.add(now, Peer::single_hop(R1, Some(7)), timers());
    let two = table.add(now, Peer::single_hop(R2, Some(7)), timers());
    let other = table.add(now, Peer::single_hop(R1, Some(8)), timers());
    let down = packet(State::Down, 0);
    assert_eq!(table.receive(now, &datagram(&down, R1)), Ok(one));
    assert_eq!(table.receive(now, &datagram(&down, R2)), Ok(two));
    assert_eq!(table.receive(now, &Datagram { ifindex: 8, ..datagram(&down, R1) }), Ok(other));
    assert_eq!(table.receive(now, &Datagram { ifindex: 9, ..datagram(&down, R1) }), Err(Refusal::NoSession));
    assert_eq!(table.receive(now, &datagram(&packet(State::Up, two.get()), R2)), Ok(two));
    assert_eq!(table.session(two).map(Session::state), Some(State::Up));
    assert_eq!(table.session(one).map(Session::state), Some(State::Init));
}

/// RFC 5880 section 6.8.6: a discriminator that nobody has is no reason to look at the address.
#[test]
fn a_discriminator_of_nobody_is_refused_whatever_the_address() {
    let (mut table, now) = (Table::new(1), now());
    let id = table.add(now, Peer::single_hop(R1, None), timers());
    let stale = packet(State::Down, id.get() ^ 1);
    assert_eq!(table.receive(now, &datagram(&stale, R1)), Err(Refusal::NoSession));
    assert_eq!(table.refused(), Refused { session: 1, ..Refused::default() });
}

#[test]
pub(crate) fn a_discriminator_that_was_guessed_is_no_use_from_elsewhere() {
    let (mut table, now) = (Table::new(1), now());
    let id = table.add(now, Peer::single_hop(R1, Some(7)), timers());
    let init = packet(State::Init, id.get());
    assert_eq!(table.receive(now, &datagram(&init, R2)), Err(Refusal::Elsewhere));
    assert_eq!(table.receive(now, &Datagram { ifindex: 8, ..datagram(&init, R1) }), Err(Refusal::Elsewhere));
    assert_eq!(table.receive(now, &Datagram { multihop: true, ..datagram(&init, R1) }), Err(Refusal::Elsewhere));
    assert_eq!(table.session(id).map(Session::state), Some(State::Down));
}

/// RFC 5881 section 5.
#[test]
pub(crate) fn over_one_hop_only_ttl_255_is_taken() {
    let (mut table, now) = (Table::new(1), now());
    let id = table.add(now, Peer::single_hop(R1, None), timers());
    let down = packet(State::Down, 0);
    for ttl in [0, 1, 64, 254] {
        let refused = table.receive(now, &Datagram { ttl, ..datagram(&down, R1) });
        assert_eq!(refused, Err(Refusal::Ttl { ttl, least: 255 }));
    }
    assert_eq!(table.refused(), Refused { ttl: 4, ..Refused::default() });
    assert_eq!(table.receive(now, &datagram(&down, R1)), Ok(id));
}

/// RFC 5883 sections 4 and 5.
#[test]
pub(crate) fn over_several_hops_both_addresses_and_the_least_ttl_count() {
    let (mut table, now) = (Table::new(1), now());
    let far = table.add(now, Peer::multihop(R1, Some(US), 250), timers());
    let near = table.add(now, Peer::single_hop(R1, None), timers());
    let down = packet(State::Down, 0);
    let packet = Datagram { multihop: true, ttl: 250, ..datagram(&down, R1) };
    assert_eq!(table.receive(now, &packet), Ok(far));
    assert_eq!(table.receive(now, &Datagram { ttl: 249, ..packet }), Err(Refusal::Ttl { ttl: 249, least: 250 }));
    assert_eq!(table.receive(now, &Datagram { to: Some(R2), ..packet }), Err(Refusal::NoSession));
    assert_eq!(table.receive(now, &datagram(&down, R1)), Ok(near));
}

#[test]
fn discriminators_are_unique_never_zero_and_others_at_each_start() {
    let (mut table, now) = (Table::new(1), now());
    let ids: BTreeSet<_> = (0..500).map(|_| table.add(now, Peer::single_hop(R1, None), timers())).collect();
    assert_eq!(ids.len(), 500);
    let again = Table::new(2).add(now, Peer::single_hop(R1, None), timers());
    assert!(!ids.contains(&again));
    // Not in a row, which would be guessed.
    let pairs = ids.iter().zip(ids.iter().skip(1));
    assert!(pairs.filter(|(a, b)| b.get() - a.get() < 100).count() < 5);
}

#[test]
fn a_session_that_takes_its_leave_is_not_in_the_way_of_the_one_that_replaces_it() {
    let (mut table, now) = (Table::new(1), now());
    for seed_of_order in 0..8 {
        let old = table.add(now, Peer::single_hop(R1, None), timers());
        let _ = table.receive(now, &datagram(&packet(State::Down, 0), R1));
        table.with(old, |session| session.admin_down(now));
        let new = table.add(now, Peer::single_hop(R1, None), timers());
        assert_eq!(table.receive(now, &datagram(&packet(State::Down, 0), R1)), Ok(new), "{seed_of_order}");
        table.remove(old);
        table.remove(new);
    }
}

#[test]
fn what_is_no_packet_is_counted_as_such() {
    let (mut table, now) = (Table::new(1), now());
    assert!(matches!(table.receive(now, &datagram(&[1, 2, 3], R1)), Err(Refusal::Packet(_))));
    assert_eq!(table.refused(), Refused { packet: 1, ..Refused::default() });
}

#[test]
fn a_removed_session_says_nothing_more() {
    let (mut table, now) = (Table::new(1), now());
    let id = table.add(now, Peer::single_hop(R1, None), timers());
    table.timer(now);
    table.remove(id);
    assert_eq!((table.poll_event(), table.poll_timeout()), (None, None));
}
