//! Rules that need the channel's inside: its counters' limits.

use super::session::{MESSAGES_MAX, REKEY_AFTER_MESSAGES};
use super::*;
use crate::key::generate_keypair;
use crate::message::Message;

/// Where virtual time starts.
#[allow(clippy::disallowed_methods, reason = "an Instant has no other constructor; tests only count from it")]
pub(crate) fn start() -> Instant {
    Instant::now()
}

fn pair(now: Instant) -> [Channel; 2] {
    let keys = [generate_keypair([1; 32]), generate_keypair([2; 32])];
    [0, 1].map(|me| {
        let peer = PeerConfig { name: "peer".into(), address: address(1 - me), public_keys: vec![keys[1 - me].1] };
        let config = ChannelConfig { secret_key: keys[me].0.clone(), epoch: 1, peers: vec![peer] };
        Channel::new(config, [me as u8 + 10; 32], now)
    })
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1 + node as u8], 7712))
}

/// Delivers until nothing is on its way; what was reported, by receiver.
fn exchange(channels: &mut [Channel; 2], now: Instant) -> Vec<(usize, Output)> {
    let mut reported = Vec::new();
    loop {
        let mut moved = false;
        for me in 0..2 {
            while let Some(output) = channels[me].poll_output() {
                moved = true;
                match output {
                    Output::Transmit { bytes, .. } => {
                        channels[1 - me].handle(now, Input::Datagram { from: address(me), bytes: &bytes });
                    }
                    output => reported.push((me, output)),
                }
            }
        }
        if !moved {
            return reported;
        }
    }
}

/// Lets time pass in which nothing is lost; what was reported.
fn pass(channels: &mut [Channel; 2], now: &mut Instant, time: Duration) -> Vec<(usize, Output)> {
    let end = *now + time;
    let mut reported = Vec::new();
    while *now < end {
        *now += Duration::from_millis(50);
        channels.iter_mut().for_each(|channel| channel.handle(*now, Input::Timer));
        reported.extend(exchange(channels, *now));
    }
    reported
}

fn current(channel: &mut Channel) -> &mut session::Session {
    channel.peers[0].current.as_mut().expect("the pair is up")
}

#[test]
fn either_side_renews_a_session_after_2_to_the_32_datagrams() {
    let mut now = start();
    for side in 0..2 {
        let mut channels = pair(now);
        exchange(&mut channels, now);
        pass(&mut channels, &mut now, Duration::from_secs(1));
        let before = current(&mut channels[side]).local;
        current(&mut channels[side]).skip_to_counter(REKEY_AFTER_MESSAGES - 1);
        channels[side].handle(now, Input::Send { peer: PeerId(0), message: &Message::Goodbye });
        exchange(&mut channels, now);
        assert_ne!(current(&mut channels[side]).local, before);
        assert!(channels.iter().all(|channel| channel.peer_state(PeerId(0)).up));
    }
}

#[test]
fn a_renewal_that_both_sides_start_at_once_settles_on_one_session_and_loses_nothing() {
    let mut now = start();
    let mut channels = pair(now);
    exchange(&mut channels, now);
    pass(&mut channels, &mut now, Duration::from_secs(1));
    for channel in &mut channels {
        current(channel).skip_to_counter(REKEY_AFTER_MESSAGES - 1);
    }
    for round in 0..3 {
        for channel in &mut channels {
            channel.handle(now, Input::Send { peer: PeerId(0), message: &Message::Goodbye });
        }
        let reported = exchange(&mut channels, now);
        assert_eq!(reported.len(), 2, "round {round}: {reported:?}");
        assert!(reported.iter().all(|(_, output)| matches!(output, Output::Received { .. })));
    }
    // Two handshakes at the start, two now; both ends send on the same session.
    assert!(channels.iter().all(|channel| channel.counters().sessions == 4));
    let [a, b] = &mut channels;
    assert_eq!(current(a).ours, !current(b).ours);
    assert!(current(a).preferred && current(b).preferred);
}

#[test]
fn sides_that_send_on_different_sessions_still_hear_each_other() {
    let mut now = start();
    let mut channels = pair(now);
    exchange(&mut channels, now);
    let peer = &mut channels[0].peers[0];
    let (other, _) = peer.replaced.first_mut().expect("both started at once");
    std::mem::swap(peer.current.as_mut().expect("the pair is up"), other);
    assert_eq!(pass(&mut channels, &mut now, Duration::from_secs(60)), []);
    assert!(channels.iter().all(|channel| channel.peer_state(PeerId(0)).up));
}

#[test]
fn a_channel_may_move_to_another_thread() {
    const fn sendable<T: Send>() {}
    sendable::<Channel>();
}

#[test]
fn a_session_whose_counters_are_used_up_sends_nothing_more() {
    let now = start();
    let mut channels = pair(now);
    exchange(&mut channels, now);
    current(&mut channels[0]).skip_to_counter(MESSAGES_MAX);
    channels[0].handle(now, Input::Send { peer: PeerId(0), message: &Message::Goodbye });
    assert_eq!(channels[0].counters().dropped_sends, 1);
    // A new one takes its place at once.
    let reported = exchange(&mut channels, now);
    assert!(reported.is_empty(), "nobody noticed: {reported:?}");
    channels[0].handle(now, Input::Send { peer: PeerId(0), message: &Message::Goodbye });
    let received = Output::Received { peer: PeerId(0), epoch: 1, message: Message::Goodbye };
    assert_eq!(exchange(&mut channels, now), [(1, received)]);
}

#[test]
fn a_session_that_could_not_be_renewed_is_dropped_after_ten_minutes() {
    let mut now = start();
    let mut channels = pair(now);
    exchange(&mut channels, now);
    for _ in 0..6001 {
        now += Duration::from_millis(100);
        for me in 0..2 {
            channels[me].handle(now, Input::Timer);
            // Only transport datagrams pass.
            while let Some(output) = channels[me].poll_output() {
                if let Output::Transmit { bytes, .. } = output
                    && bytes[1] == 3
                {
                    channels[1 - me].handle(now, Input::Datagram { from: address(me), bytes: &bytes });
                }
            }
        }
    }
    assert!(channels.iter().all(|channel| channel.peers[0].current.is_none()));
}

#[test]
fn unknown_and_malformed_records_are_counted_and_the_rest_is_read() {
    let now = start();
    let mut channels = pair(now);
    exchange(&mut channels, now);
    let content = [&[77, 1, 0, 9][..], &[4, 0, 0], &[5, 0, 0], &[9]].concat();
    let bytes = current(&mut channels[0]).seal(&content).unwrap();
    channels[1].handle(now, Input::Datagram { from: address(0), bytes: &bytes });
    let received = Output::Received { peer: PeerId(0), epoch: 1, message: Message::Goodbye };
    assert_eq!(channels[1].poll_output(), Some(received));
    assert_eq!(channels[1].counters().unknown_kind, 1);
    assert_eq!(channels[1].counters().malformed_message, 2);
}

#[test]
fn a_peer_is_asked_once_per_probe_and_answers_at_once() {
    let now = start();
    let mut channels = pair(now);
    exchange(&mut channels, now);
    let bytes = current(&mut channels[0]).seal(&[255, 0, 0, 255, 0, 0]).unwrap();
    channels[1].handle(now, Input::Datagram { from: address(0), bytes: &bytes });
    assert!(matches!(channels[1].poll_output(), Some(Output::Transmit { bytes, .. }) if bytes.len() == 30));
    assert_eq!(channels[1].poll_output(), None);
}

#[test]
fn debug_shows_no_key() {
    let [channel, _] = pair(start());
    let text = format!("{channel:?}");
    assert!(text.starts_with("Channel { epoch: 1, peers: [(192.0.2.2:7712, false)]"), "{text}");
}
