//! Recorded bytes of one handshake and a report: the wire form doesn't drift unnoticed.

use crate::net::{address, report, start};
use holdfast_statesync::message::Message;
use holdfast_statesync::{
    Channel, ChannelConfig, ChannelInput as Input, ChannelOutput as Output, PeerConfig, PeerId, generate_keypair,
};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

fn channel(me: usize, now: Instant) -> Channel {
    let keys = [generate_keypair([0xa; 32]), generate_keypair([0xb; 32])];
    let other = 1 - me;
    let peer = PeerConfig { name: format!("lb{other}"), address: address(other), public_keys: vec![keys[other].1] };
    let config = ChannelConfig { secret_key: keys[me].0.clone(), epoch: 1000 + me as u64, peers: vec![peer] };
    Channel::new(config, [me as u8 + 1; 32], now)
}

fn transmits(channel: &mut Channel) -> Vec<Vec<u8>> {
    let outputs = std::iter::from_fn(|| channel.poll_output());
    outputs.filter_map(|output| if let Output::Transmit { bytes, .. } = output { Some(bytes) } else { None }).collect()
}

fn deliver(to: &mut Channel, from: usize, bytes: &[u8], now: Instant) -> Vec<Vec<u8>> {
    to.handle(now, Input::Datagram { from: address(from), bytes });
    transmits(to)
}

/// The datagrams of a handshake that node 0 starts, of the confirmation in both directions, and of messages.
fn record() -> Vec<(&'static str, Vec<u8>)> {
    let now = start();
    let (mut a, mut b) = (channel(0, now), channel(1, now));
    let greeting = transmits(&mut a).remove(0);
    // What b says by itself is lost.
    transmits(&mut b);
    let answer = deliver(&mut b, 0, &greeting, now).remove(0);
    let confirmation = deliver(&mut a, 1, &answer, now).remove(0);
    let confirmed = deliver(&mut b, 0, &confirmation, now).remove(0);
    deliver(&mut a, 1, &confirmed, now);
    let mut lines =
        vec![("greeting", greeting), ("answer", answer), ("confirmation", confirmation), ("confirmed", confirmed)];
    let take = Message::TakeNow { vip: "web".into(), role_epoch: 4, linger: true };
    for (name, message) in [("report", report(1)), ("take-now", take)] {
        a.handle(now, Input::Send { peer: PeerId(0), message: &message });
        lines.push((name, transmits(&mut a).remove(0)));
    }
    // A quiet peer is probed.
    a.handle(now + Duration::from_millis(126), Input::Timer);
    lines.push(("probe", transmits(&mut a).into_iter().find(|bytes| bytes.len() == 33).unwrap()));
    lines
}

fn text(lines: &[(&str, Vec<u8>)]) -> String {
    let mut text = String::from(
        "# Channel major 1. Key seeds 0a.. and 0b.., channel seeds 01.. and 02.., epochs 1000 and 1001.\n",
    );
    for (name, bytes) in lines {
        let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").unwrap();
            hex
        });
        writeln!(text, "{name} {hex}").unwrap();
    }
    text
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/channel/v1.hex")
}

fn recorded(name: &str) -> Vec<u8> {
    let text = std::fs::read_to_string(file()).unwrap();
    let hex = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// To record anew, after a change that is meant: set HOLDFAST_GOLDEN_WRITE.
#[test]
fn the_datagrams_of_a_handshake_and_of_messages_are_those_recorded() {
    let now = text(&record());
    if std::env::var_os("HOLDFAST_GOLDEN_WRITE").is_some() {
        std::fs::create_dir_all(file().parent().unwrap()).unwrap();
        std::fs::write(file(), &now).unwrap();
    }
    assert_eq!(now, std::fs::read_to_string(file()).unwrap());
}

#[test]
fn a_node_understands_the_recorded_datagrams() {
    let now = start();
    let mut b = channel(1, now);
    transmits(&mut b);
    for name in ["greeting", "confirmation", "report", "take-now", "probe"] {
        b.handle(now, Input::Datagram { from: address(0), bytes: &recorded(name) });
    }
    let events: Vec<_> =
        std::iter::from_fn(|| b.poll_output()).filter(|output| !matches!(output, Output::Transmit { .. })).collect();
    let take = Message::TakeNow { vip: "web".into(), role_epoch: 4, linger: true };
    let expected = [
        Output::Up { peer: PeerId(0), epoch: 1000 },
        Output::Received { peer: PeerId(0), epoch: 1000, message: report(1) },
        Output::Received { peer: PeerId(0), epoch: 1000, message: take },
    ];
    assert_eq!(events, expected);
}
