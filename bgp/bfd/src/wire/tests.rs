use super::*;
use proptest::prelude::*;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn sample() -> Control {
    Control {
        diagnostic: Diagnostic::EXPIRED,
        state: State::Up,
        poll: true,
        final_: false,
        control_plane_independent: true,
        demand: false,
        multiplier: 3,
        my_discriminator: 0x0102_0304,
        your_discriminator: 0x0506_0708,
        desired_min_tx: ms(1_000),
        required_min_rx: ms(50),
        required_min_echo_rx: Duration::ZERO,
    }
}

fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Result<Control, DecodeError> {
    let mut bytes = sample().encode().to_vec();
    change(&mut bytes);
    Control::decode(&bytes)
}

#[test]
fn a_packet_has_the_layout_of_section_4_1() {
    // Version 1, diagnostic 1; Up, P and C; multiplier 3; 24 bytes; 1,000,000 µs, 50,000 µs, no echo.
    let expected =
        [0x21, 0xe8, 3, 24, 1, 2, 3, 4, 5, 6, 7, 8, 0x00, 0x0f, 0x42, 0x40, 0x00, 0x00, 0xc3, 0x50, 0, 0, 0, 0];
    assert_eq!(sample().encode(), expected);
    assert_eq!(Control::decode(&expected), Ok(sample()));
}

#[test]
fn every_flag_has_its_own_bit() {
    let base = Control { poll: false, control_plane_independent: false, diagnostic: Diagnostic::NONE, ..sample() };
    let second = |packet: Control| packet.encode()[1] & 0x3f;
    assert_eq!(second(base), 0);
    assert_eq!(second(Control { poll: true, ..base }), 0x20);
    assert_eq!(second(Control { final_: true, ..base }), 0x10);
    assert_eq!(second(Control { control_plane_independent: true, ..base }), 0x08);
    assert_eq!(second(Control { demand: true, ..base }), 0x02);
    let states = [State::AdminDown, State::Down, State::Init, State::Up];
    assert_eq!(states.map(|state| Control { state, ..base }.encode()[1] >> 6), [0, 1, 2, 3]);
}

/// Section 6.8.6, rule by rule in its order.
#[test]
fn what_section_6_8_6_says_must_be_discarded_is_refused_by_name() {
    assert_eq!(Control::decode(&[]), Err(DecodeError::Short { len: 0 }));
    assert_eq!(changed(|b| b.truncate(23)), Err(DecodeError::Short { len: 23 }));
    assert_eq!(changed(|b| b[0] = 0x41), Err(DecodeError::Version { version: 2 }));
    assert_eq!(changed(|b| b[0] = 0x01), Err(DecodeError::Version { version: 0 }));
    assert_eq!(changed(|b| b[3] = 23), Err(DecodeError::Length { length: 23, payload: 24 }));
    assert_eq!(changed(|b| b[3] = 25), Err(DecodeError::Length { length: 25, payload: 24 }));
    assert_eq!(changed(|b| b[1] |= 0x04), Err(DecodeError::Length { length: 24, payload: 24 }));
    assert_eq!(changed(|b| b[2] = 0), Err(DecodeError::Multiplier));
    assert_eq!(changed(|b| b[1] |= 0x01), Err(DecodeError::Multipoint));
    assert_eq!(changed(|b| b[4..8].fill(0)), Err(DecodeError::MyDiscriminator));
    assert_eq!(changed(|b| b[8..12].fill(0)), Err(DecodeError::YourDiscriminator { state: State::Up }));
    let authenticated = changed(|b| {
        b[1] |= 0x04;
        b[3] = 28;
        b.extend([1, 4, 0, 0]);
    });
    assert_eq!(authenticated, Err(DecodeError::Authenticated));
}

#[test]
pub(crate) fn no_discriminator_of_ours_is_allowed_in_down_and_admin_down_only() {
    for (state, fine) in [(State::AdminDown, true), (State::Down, true), (State::Init, false), (State::Up, false)] {
        let packet = Control { state, your_discriminator: 0, ..sample() };
        assert_eq!(Control::decode(&packet.encode()).is_ok(), fine, "{state}");
    }
}

#[test]
fn what_follows_the_packet_is_not_looked_at() {
    assert_eq!(changed(|b| b.extend([0xff; 40])), Ok(sample()));
}

#[test]
fn an_interval_that_the_wire_cant_carry_becomes_its_longest() {
    let packet = Control { desired_min_tx: Duration::from_secs(100_000), ..sample() };
    let decoded = Control::decode(&packet.encode()).expect("valid");
    assert_eq!(decoded.desired_min_tx, Duration::from_micros(u32::MAX.into()));
}

proptest! {
    #[test]
    fn whatever_decodes_encodes_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(packet) = Control::decode(&bytes) {
            prop_assert_eq!(Control::decode(&packet.encode()), Ok(packet));
        }
    }

    #[test]
    fn a_valid_header_with_any_rest_is_total(mut bytes in any::<[u8; 24]>(), len in 0..30_u8) {
        bytes[0] = 0x20 | bytes[0] & 0x1f;
        bytes[3] = len;
        if let Ok(packet) = Control::decode(&bytes) {
            let again = packet.encode();
            prop_assert_eq!(&again[4..], &bytes[4..]);
            prop_assert_eq!((again[0], again[1], again[2]), (bytes[0], bytes[1], bytes[2]));
        }
    }
}
