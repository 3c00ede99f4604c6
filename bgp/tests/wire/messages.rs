//! NOTIFICATION (RFC 4271 section 4.5, 4486, 9003, 8538) and ROUTE-REFRESH (2918, 7313).

use holdfast_bgp::types::Family;
use holdfast_bgp::wire::{CEASE, Cease, Error, Message, MessageType, Notification, RefreshKind, RouteRefresh, decode};

use super::{EBGP, answer, frame, hex, message};

fn encoded(notification: &Notification) -> Vec<u8> {
    let mut out = Vec::new();
    notification.encode(&mut out);
    frame(&out).body.to_vec()
}

#[test]
fn rfc9003_a_shutdown_carries_its_text() {
    let shutdown = Notification::cease_with_text(Cease::AdministrativeShutdown, "drained: kernel");
    assert_eq!(encoded(&shutdown), [&hex("06 02 0f")[..], b"drained: kernel"].concat());
    assert_eq!(Notification::decode(&encoded(&shutdown)).unwrap().text().as_deref(), Some("drained: kernel"));
    assert_eq!(shutdown.to_string(), "Cease: administrative shutdown: \"drained: kernel\"");
}

#[test]
fn rfc9003_a_text_is_cut_at_a_character_within_255_bytes() {
    let text = |text: &str| Notification::cease_with_text(Cease::AdministrativeReset, text);
    assert_eq!(text(&"a".repeat(300)).data.len(), 256);
    // Two bytes each: the 128th would end at 256.
    let umlauts = text(&"ä".repeat(200));
    assert_eq!((umlauts.data[0], umlauts.data.len()), (254, 255));
    assert_eq!(umlauts.text(), Some("ä".repeat(127)));
    assert_eq!(text("").text(), None);
    assert_eq!(text("").data, [0]);
}

#[test]
fn only_shutdown_and_reset_have_a_text() {
    for cease in Cease::ALL {
        let said = Notification::cease_with_text(cease, "why");
        assert_eq!(said.text().is_some(), cease.has_text(), "{cease:?}");
        assert_eq!((said.code, said.subcode), (CEASE, cease.subcode()));
    }
    assert_eq!(Notification::new(3, 2, vec![3, b'w', b'h', b'y']).text(), None);
}

#[test]
fn rfc9003_a_text_that_is_no_utf8_or_cut_short_is_no_error() {
    let text = |data: &[u8]| Notification::new(CEASE, 2, data.to_vec()).text();
    assert_eq!(text(&[]), None);
    assert_eq!(text(&[5, b'a']), None, "longer than what is there");
    assert_eq!(text(&[2, 0xff, b'a']).as_deref(), Some("\u{fffd}a"));
    assert_eq!(text(&[1, b'a', b'b']).as_deref(), Some("a"), "what follows it is ignored");
}

#[test]
fn a_peers_text_cant_write_control_characters_into_our_log() {
    let evil = Notification::cease_with_text(Cease::AdministrativeShutdown, "a\n\u{1b}[31mERROR\u{202e}");
    let line = evil.to_string();
    assert!(line.chars().all(|c| !c.is_control()), "{line}");
}

#[test]
fn rfc8538_a_hard_reset_wraps_what_it_says() {
    let shutdown = Notification::cease_with_text(Cease::AdministrativeShutdown, "bye");
    let hard = shutdown.clone().into_hard_reset();
    assert_eq!(encoded(&hard), hex("06 09 06 02 03 627965"));
    assert!(hard.is_hard_reset() && !shutdown.is_hard_reset());
    assert_eq!(hard.inner(), Some(shutdown));
    assert_eq!(hard.text().as_deref(), Some("bye"));
    assert_eq!(hard.to_string(), "Cease: hard reset: Cease: administrative shutdown: \"bye\"");
    assert_eq!(hard.clone().into_hard_reset(), hard, "once is enough");
    assert_eq!(Notification::cease(Cease::HardReset).inner(), None);
}

#[test]
fn a_hard_reset_in_a_hard_reset_ends() {
    let mut nested = Notification::new(CEASE, 9, hex("0609").repeat(2000));
    assert!(nested.to_string().len() < 200);
    assert_eq!(nested.text(), None);
    for _ in 0..3 {
        nested = nested.inner().unwrap();
    }
}

#[test]
fn s6_4_a_notification_is_never_answered() {
    assert_eq!(Notification::decode(&[6]), Err(Error::Notification));
    assert_eq!(Error::Notification.notification(), None);
}

#[test]
fn every_kind_of_notification_has_its_numbers_and_words() {
    let cases = [
        (Notification::hold_timer_expired(), "0400", "hold timer expired"),
        (
            Notification::unexpected_message(1, MessageType::Update),
            "0501 02",
            "finite state machine error: unexpected message in OpenSent",
        ),
        (Notification::send_hold_timer_expired(), "0800", "send hold timer expired"),
        (Notification::cease(Cease::Collision), "0607", "Cease: connection collision resolution"),
        (Notification::cease(Cease::BfdDown), "060a", "Cease: BFD down"),
        (Notification::cease(Cease::ConnectionRejected), "0605", "Cease: connection rejected"),
        (Notification::new(2, 9, vec![]), "0209", "OPEN message error: subcode 9"),
        (Notification::new(99, 1, vec![]), "6301", "code 99, subcode 1"),
    ];
    for (notification, bytes, words) in cases {
        assert_eq!(encoded(&notification), hex(bytes));
        assert_eq!(Notification::decode(&hex(bytes)), Ok(notification.clone()));
        assert_eq!(notification.to_string(), words);
    }
}

#[test]
fn rfc2918_and_7313_a_refresh_has_a_family_and_a_kind() {
    let cases = [
        (RouteRefresh::new(RefreshKind::Request, Family::Ipv4), "0001 00 01"),
        (RouteRefresh::new(RefreshKind::Begin, Family::Ipv6), "0002 01 01"),
        (RouteRefresh::new(RefreshKind::End, Family::Ipv6), "0002 02 01"),
        (RouteRefresh { afi: 1, kind: RefreshKind::Other(255), safi: 128 }, "0001 ff 80"),
    ];
    for (refresh, body) in cases {
        let bytes = message(5, &hex(body));
        assert_eq!(decode(&frame(&bytes), &EBGP), Ok(Message::RouteRefresh(refresh)));
        let mut out = Vec::new();
        refresh.encode(&mut out);
        assert_eq!(out, bytes);
    }
    assert_eq!(RouteRefresh { afi: 1, kind: RefreshKind::Request, safi: 128 }.family(), None);
}

#[test]
fn rfc7313_s5_a_beginning_or_an_end_of_another_length_comes_back_whole() {
    for body in ["0001 01 01 00", "0002 02 01 00 00"] {
        let long = message(5, &hex(body));
        assert_eq!(answer(decode(&frame(&long), &EBGP).unwrap_err()), (7, 1, long.clone()));
    }
    // More than a NOTIFICATION takes: as much of it as there is room for.
    let longest = message(5, &[1; 4077]);
    let (code, subcode, data) = answer(decode(&frame(&longest), &EBGP).unwrap_err());
    assert_eq!((code, subcode, data.len()), (7, 1, 4096 - 21));
}

#[test]
fn rfc7313_s5_the_length_of_a_request_or_of_an_unknown_kind_is_no_error() {
    // RFC 5291: a request with an outbound filter behind it.
    let filtered = message(5, &hex("0001 00 01  01 40 0002 8000"));
    let request = RouteRefresh::new(RefreshKind::Request, Family::Ipv4);
    assert_eq!(decode(&frame(&filtered), &EBGP), Ok(Message::RouteRefresh(request)));
    let unknown = message(5, &hex("0001 03 01 00"));
    let kept = RouteRefresh { afi: 1, kind: RefreshKind::Other(3), safi: 1 };
    assert_eq!(decode(&frame(&unknown), &EBGP), Ok(Message::RouteRefresh(kept)));
}
