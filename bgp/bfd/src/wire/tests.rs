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
    fn any_bytes_are_a_packet_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Control::decode(&bytes);
    }

    #[test]
    fn whatever_has_a_valid_header_decodes_and_encodes_to_the_same_bytes(
        mut bytes in any::<[u8; LEN]>(),
        multiplier in 1..=u8::MAX,
        discriminators in [1..=u32::MAX, 1..=u32::MAX],
    ) {
        // Version 1; neither authenticated nor to many; both discriminators known.
        bytes[0] = VERSION << 5 | bytes[0] & 0x1f;
        bytes[1] &= !(AUTHENTICATION | MULTIPOINT);
        bytes[2] = multiplier;
        bytes[3] = LEN as u8;
        bytes[4..8].copy_from_slice(&discriminators[0].to_be_bytes());
        bytes[8..12].copy_from_slice(&discriminators[1].to_be_bytes());
        let packet = Control::decode(&bytes);
        prop_assert_eq!(packet.map(|packet| packet.encode()), Ok(bytes));
    }
}
