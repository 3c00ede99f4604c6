//! Peers that differ: checksums of either form, and unicast.

mod common;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use common::{
    Lan, active, advert_on, config, cs, drain, host, host6, leg, leg6, member, ms, neighbour, on, packets, resume,
    start, time_zero, us, with_legs,
};
use holdfast_vrrp::router::{ANSWERS_PER_INTERVAL, Notice};
use holdfast_vrrp::wire::decode_message;
use holdfast_vrrp::{
    ChecksumForm, ChecksumMode, Input, LegConfig, LegId, Output, Router, RouterConfig, Transport, Version,
};

/// A leg that sends so, Active at 100.
fn with_checksum(mode: ChecksumMode, now: Instant) -> Router {
    active(with_legs(vec![LegConfig { checksum: mode, ..leg() }], cs(10)), now)
}

/// Has the router hear a losing advert with this checksum; in which form it answers, and what it notices.
fn exchange(router: &mut Router, now: Instant, from: u8, form: ChecksumForm) -> (ChecksumForm, Vec<Notice>) {
    let advert = advert_on(&leg(), 99, cs(10));
    router.handle(now, Input::Advert { leg: LegId(0), source: neighbour(from), advert: &advert, form });
    let outputs = drain(router);
    let packet = packets(&outputs)[0][0].clone();
    let (_, answered) = decode_message(&packet.payload, host(5), packet.destination).unwrap();
    let notices = outputs.into_iter().filter_map(|output| match output {
        Output::Notice(notice) => Some(notice),
        _ => None,
    });
    (answered, notices.collect())
}

#[test]
fn the_checksum_follows_the_peers_when_they_agree() {
    use ChecksumForm::{Message, PseudoHeader};
    let zero = time_zero();
    let mut router = with_checksum(ChecksumMode::Auto, zero);
    assert_eq!(router.checksum(LegId(0)), (Message, None));
    assert_eq!(exchange(&mut router, zero, 1, PseudoHeader), (PseudoHeader, vec![]), "learnt, and answered so at once");
    assert_eq!(router.checksum(LegId(0)), (PseudoHeader, None));
    let (_, resign) = router.resign_packets(LegId(0)).unwrap();
    assert_eq!(decode_message(&resign[0].payload, host(5), resign[0].destination).unwrap().1, PseudoHeader);
    // One who speaks otherwise: what the RFC says comes first again, and it is told once.
    let told = Notice::ChecksumMismatch { leg: LegId(0), peer: neighbour(1), its: PseudoHeader };
    assert_eq!(exchange(&mut router, zero, 2, Message), (Message, vec![told]));
    assert_eq!(exchange(&mut router, zero, 1, PseudoHeader), (Message, vec![]));
    assert_eq!(router.checksum(LegId(0)), (Message, Some((neighbour(1), PseudoHeader))));
    // The other is gone for five minutes: forgotten.
    let later = zero + Duration::from_secs(300);
    assert_eq!(exchange(&mut router, later, 1, PseudoHeader), (PseudoHeader, vec![]));
    assert_eq!(router.checksum(LegId(0)), (PseudoHeader, None));
}

/// The forms in which a router sends to the group, when it has heard an advert with this checksum.
fn forms_after(router: &mut Router, now: Instant, from: u8, form: ChecksumForm) -> Vec<ChecksumForm> {
    let advert = advert_on(&leg(), 99, cs(10));
    router.handle(now, Input::Advert { leg: LegId(0), source: neighbour(from), advert: &advert, form });
    let outputs = drain(router);
    let decoded = |packet: &holdfast_vrrp::Packet| decode_message(&packet.payload, host(5), packet.destination);
    packets(&outputs)[0].iter().map(|packet| decoded(packet).unwrap().1).collect()
}

#[test]
fn peers_that_differ_each_hear_their_own_checksum() {
    use ChecksumForm::{Message, PseudoHeader};
    let zero = time_zero();
    let mut router = with_checksum(ChecksumMode::Auto, zero);
    assert_eq!(forms_after(&mut router, zero, 1, Message), [Message]);
    assert_eq!(forms_after(&mut router, zero, 2, PseudoHeader), [Message, PseudoHeader]);
    let (_, resign) = router.resign_packets(LegId(0)).unwrap();
    assert_eq!(resign.len(), 2, "the last word is for all of them too");
    // The first one uses the other form a moment later: it follows its peers, as we do, and understands both.
    assert_eq!(forms_after(&mut router, zero + ms(100), 1, PseudoHeader), [PseudoHeader]);
    // Had it been set up anew in between, it might not.
    let later = zero + Duration::from_secs(60);
    assert_eq!(forms_after(&mut router, later, 1, Message), [Message, PseudoHeader]);
}

#[test]
fn one_that_resumes_sends_what_its_former_run_had_learnt_until_a_peer_is_heard() {
    use ChecksumForm::{Message, PseudoHeader};
    let now = time_zero();
    let resumed = |mode: ChecksumMode| {
        let mut router = Router::new(with_legs(vec![LegConfig { checksum: mode, ..leg() }], cs(10)), now);
        router.assume_pseudo_header(LegId(0), false);
        resume(&mut router, now, host(5), 100);
        let sent = packets(&drain(&mut router))[0][0].clone();
        (decode_message(&sent.payload, host(5), sent.destination).unwrap().1, router)
    };
    let (first, mut router) = resumed(ChecksumMode::Auto);
    assert_eq!(first, PseudoHeader, "a silent Backup may understand nothing else");
    assert_eq!(exchange(&mut router, now, 1, Message).0, Message);
    assert_eq!(resumed(ChecksumMode::Rfc9568).0, Message, "what the file says stands");
}

#[test]
fn a_fixed_checksum_is_kept_and_the_difference_told() {
    use ChecksumForm::{Message, PseudoHeader};
    let now = time_zero();
    for (mode, ours, theirs) in
        [(ChecksumMode::Rfc9568, Message, PseudoHeader), (ChecksumMode::PseudoHeader, PseudoHeader, Message)]
    {
        let mut router = with_checksum(mode, now);
        let told = Notice::ChecksumMismatch { leg: LegId(0), peer: neighbour(1), its: theirs };
        assert_eq!(exchange(&mut router, now, 1, theirs), (ours, vec![told]));
        assert_eq!(exchange(&mut router, now, 1, theirs), (ours, vec![]));
        assert_eq!(router.checksum(LegId(0)), (ours, Some((neighbour(1), theirs))));
    }
}

#[test]
fn a_crowd_of_made_up_peers_doesnt_make_the_memory_of_checksums_grow() {
    use ChecksumForm::{Message, PseudoHeader};
    let now = time_zero();
    let mut router = with_checksum(ChecksumMode::Auto, now);
    let _ = exchange(&mut router, now, 1, Message);
    for n in 2..=200 {
        let advert = advert_on(&leg(), 99, cs(10));
        router.handle(now, Input::Advert { leg: LegId(0), source: neighbour(n), advert: &advert, form: PseudoHeader });
        drain(&mut router);
    }
    assert_eq!(router.checksum(LegId(0)), (PseudoHeader, None), "only the last sixteen are remembered");
}

#[test]
fn an_equal_that_is_decided_on_another_leg_still_hears_us_in_its_own_checksum_at_once() {
    let now = time_zero();
    let mut router = active(with_legs(vec![leg(), member(11)], cs(10)), now);
    let advert = advert_on(&member(11), 100, cs(10));
    let form = ChecksumForm::PseudoHeader;
    let mut hear = || {
        router.handle(now, Input::Advert { leg: LegId(1), source: host(6), advert: &advert, form });
        drain(&mut router)
    };
    let answer = packets(&hear()).remove(0);
    assert_eq!(decode_message(&answer[0].payload, host(5), answer[0].destination).unwrap().1, form);
    assert!(packets(&hear()).is_empty(), "once");
}

#[test]
fn a_peer_that_changes_its_checksum_with_each_advert_causes_no_storm() {
    let now = time_zero();
    let mut router = active(with_legs(vec![leg(), member(11)], cs(10)), now);
    let advert = advert_on(&member(11), 100, cs(10));
    let mut sent = 0;
    for form in [ChecksumForm::PseudoHeader, ChecksumForm::Message].into_iter().cycle().take(1_000) {
        router.handle(now, Input::Advert { leg: LegId(1), source: host(6), advert: &advert, form });
        sent += packets(&drain(&mut router)).len();
    }
    // One that uses both forms is taken to understand both; the limit of answers holds beside that.
    assert!((1..=usize::from(ANSWERS_PER_INTERVAL)).contains(&sent), "{sent}");
}

#[test]
fn a_backup_learns_the_checksum_before_it_needs_it_and_a_reload_keeps_it() {
    let now = time_zero();
    let mut router = Router::new(config(cs(10), true), now);
    start(&mut router, now, host(5), 100);
    let advert = advert_on(&leg(), 200, cs(10));
    let form = ChecksumForm::PseudoHeader;
    router.handle(now, Input::Advert { leg: LegId(0), source: host(6), advert: &advert, form });
    router.set_legs(now, vec![leg(), member(11)]);
    assert_eq!(router.checksum(LegId(0)), (form, None));
    assert_eq!(router.checksum(LegId(1)), (ChecksumForm::Message, None), "each leg has its own segment");
    router.set_legs(now, vec![LegConfig { checksum: ChecksumMode::Rfc9568, ..leg() }]);
    assert_eq!(router.checksum(LegId(0)), (ChecksumForm::Message, Some((host(6), form))));
}

#[test]
fn families_and_versions_with_one_form_learn_nothing() {
    let now = time_zero();
    let v2 = LegConfig { version: Version::V2, ..member(11) };
    let mut router = active(RouterConfig { interval: cs(100), ..with_legs(vec![leg6(), v2.clone()], cs(100)) }, now);
    router.handle(now, on(0, host6(6), &advert_on(&leg6(), 99, cs(100))));
    router.handle(now, on(1, host(6), &advert_on(&v2, 99, cs(100))));
    assert_eq!(router.checksum(LegId(0)), (ChecksumForm::PseudoHeader, None));
    assert_eq!(router.checksum(LegId(1)), (ChecksumForm::Message, None));
}

fn unicast(peers: impl IntoIterator<Item = IpAddr>) -> RouterConfig {
    let transport = Transport::Unicast { peers: peers.into_iter().collect(), min_ttl: 255 };
    with_legs(vec![LegConfig { transport, ..leg() }], cs(10))
}

#[test]
fn unicast_goes_to_each_peer_with_its_own_checksum() {
    let now = time_zero();
    let mut config = unicast([host(6), host(7)]);
    config.legs[0].checksum = ChecksumMode::PseudoHeader;
    let mut router = Router::new(config, now);
    resume(&mut router, now, host(5), 100);
    let sent = packets(&drain(&mut router)).remove(0);
    assert_eq!(sent.iter().map(|packet| packet.destination).collect::<Vec<_>>(), [host(6), host(7)]);
    for packet in sent.iter() {
        let (_, form) = decode_message(&packet.payload, host(5), packet.destination).unwrap();
        assert_eq!(form, ChecksumForm::PseudoHeader);
    }
    assert_ne!(sent[0].payload, sent[1].payload);
    assert_eq!(router.counters().sent, 1, "one advert, however many peers it goes to");
}

#[test]
fn unicast_peers_elect_as_others_do() {
    let peers = [host(1), host(2), host(3)];
    let others = |n: usize| peers.into_iter().enumerate().filter(move |(at, _)| *at != n).map(|(_, peer)| peer);
    let mut lan = Lan::new();
    for (n, priority) in [254, 253, 252].into_iter().enumerate() {
        lan = lan.started(priority, unicast(others(n)));
    }
    lan.run_for(ms(1_000));
    assert_eq!(lan.promotions(), [(us(300_781), 0)]);
    lan.freeze(0);
    lan.forget();
    lan.run_for(ms(1_000));
    assert_eq!(lan.promotions().len(), 1);
    assert_eq!(lan.actives(), [0, 1]);
}

#[test]
fn a_peer_left_out_of_the_list_isnt_heard() {
    let mut lan = Lan::new().started(254, unicast([host(2)])).started(253, unicast([host(9)]));
    lan.run_for(ms(1_000));
    assert_eq!(lan.actives(), [0, 1], "the second one doesn't know the first");
    let counters = lan.routers().nth(1).unwrap().counters();
    assert_eq!(counters.heard, 0);
}
