//! Batches of the flow lanes: only a channel that carries them takes them.

use crate::net::{MS, start};
use holdfast_statesync::channel::MAX_BATCH;
use holdfast_statesync::{Channel, ChannelConfig, ChannelInput, ChannelOutput, PeerConfig, PeerId, generate_keypair};
use std::net::SocketAddr;

/// Two channels that are up; whether the second carries batches.
fn pair(carrying: bool) -> [Channel; 2] {
    let keys = [generate_keypair([1; 32]), generate_keypair([2; 32])];
    let address = |node: usize| SocketAddr::from(([192, 0, 2, 1 + node as u8], 7713));
    let mut channels = [0, 1].map(|me| {
        let peer = PeerConfig { name: "peer".into(), address: address(1 - me), public_keys: vec![keys[1 - me].1] };
        let config = ChannelConfig { secret_key: keys[me].0.clone(), epoch: 1, peers: vec![peer] };
        let channel = Channel::new(config, [me as u8 + 10; 32], start());
        if carrying || me == 0 { channel.carrying_batches() } else { channel }
    });
    deliver(&mut channels);
    assert!(channels.iter().all(|channel| channel.peer_state(PeerId(0)).up));
    channels
}

/// Delivers until nothing is on its way; the batches that came out of the second one.
fn deliver(channels: &mut [Channel; 2]) -> Vec<Vec<u8>> {
    let (mut batches, mut moved) = (Vec::new(), true);
    while std::mem::take(&mut moved) {
        for me in 0..2 {
            while let Some(output) = channels[me].poll_output() {
                moved = true;
                match output {
                    ChannelOutput::Transmit { bytes, .. } => {
                        let from = SocketAddr::from(([192, 0, 2, 1 + me as u8], 7713));
                        let now = start() + MS;
                        channels[1 - me].handle(now, ChannelInput::Datagram { from, bytes: &bytes });
                    }
                    ChannelOutput::Batch { bytes, .. } if me == 1 => batches.push(bytes),
                    _ => {}
                }
            }
        }
    }
    batches
}

#[test]
fn a_batch_of_the_greatest_length_arrives_as_it_was() {
    let mut channels = pair(true);
    let batch: Vec<u8> = (0..MAX_BATCH).map(|at| at as u8).collect();
    channels[0].handle(start(), ChannelInput::SendBatch { peer: PeerId(0), bytes: &batch });
    assert_eq!(deliver(&mut channels), std::slice::from_ref(&batch));
    assert_eq!(channels[0].counters().dropped_sends, 0);

    channels[0].handle(start(), ChannelInput::SendBatch { peer: PeerId(0), bytes: &[&batch[..], &[0]].concat() });
    assert_eq!(deliver(&mut channels), Vec::<Vec<u8>>::new());
    assert_eq!(channels[0].counters().dropped_sends, 1);
}

#[test]
fn a_channel_that_carries_no_batches_counts_them_as_unknown() {
    let mut channels = pair(false);
    channels[0].handle(start(), ChannelInput::SendBatch { peer: PeerId(0), bytes: &[1, 2, 3] });
    assert_eq!(deliver(&mut channels), Vec::<Vec<u8>>::new());
    assert_eq!(channels[1].counters().unknown_kind, 1);
}
