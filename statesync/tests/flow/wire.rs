//! The real channel between the nodes of the simulator, with its handshakes, sessions and timers.

use crate::sim::Sim;
use holdfast_statesync::flow::Input;
use holdfast_statesync::{
    Channel, ChannelConfig, ChannelInput, ChannelOutput, PeerConfig, PeerId, SecretKey, generate_keypair,
};
use rand_core::Rng;
use std::net::SocketAddr;
use std::time::Instant;

pub(crate) struct Wire {
    keys: Vec<(SecretKey, [u8; 32])>,
    /// `None`: the agent doesn't run.
    channels: Vec<Option<Channel>>,
    /// How often a channel reported a peer as up and as down.
    pub(crate) ups: usize,
    pub(crate) downs: usize,
    /// All datagrams: from, to, bytes. Only if they are to be kept.
    pub(crate) kept: Option<Vec<(usize, usize, Vec<u8>)>>,
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 1, 0, 11 + node as u8], 7713))
}

impl Sim {
    /// As `new`, with a real channel between the nodes.
    pub(crate) fn over_channels(seed: u64, count: usize) -> Self {
        let key = |node: usize| generate_keypair([node as u8 + 1; 32]);
        let channels = (0..count).map(|_| None).collect();
        let mut sim = Self::idle(seed, count);
        let keys = (0..count).map(key).collect();
        sim.wire = Some(Wire { keys, channels, ups: 0, downs: 0, kept: None });
        (0..count).for_each(|node| sim.start_agent(node));
        sim
    }

    pub(crate) fn wire(&mut self) -> &mut Wire {
        self.wire.as_mut().expect("this run has one")
    }

    pub(crate) fn channel(&self, node: usize) -> &Channel {
        self.wire.as_ref().and_then(|wire| wire.channels[node].as_ref()).expect("the agent runs over a channel")
    }

    /// Another secret key for a node, of which the others don't learn. It counts from the next start of its agent on.
    pub(crate) fn change_secret(&mut self, node: usize) {
        self.wire().keys[node].0 = generate_keypair([99; 32]).0;
    }

    /// A new run's channel.
    pub(crate) fn build_channel(&mut self, node: usize) {
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        let (now, epoch) = (self.now, self.nodes[node].epoch);
        let Some(wire) = &mut self.wire else { return };
        let others = (0..wire.keys.len()).filter(|other| *other != node);
        let peers = others.map(|other| PeerConfig {
            name: format!("lb{other}"),
            address: address(other),
            public_keys: vec![wire.keys[other].1],
        });
        let config = ChannelConfig { secret_key: wire.keys[node].0.clone(), epoch, peers: peers.collect() };
        wire.channels[node] = Some(Channel::new(config, seed, now).carrying_batches());
        self.pump(node);
    }

    pub(crate) fn drop_channel(&mut self, node: usize) {
        if let Some(wire) = &mut self.wire {
            wire.channels[node] = None;
        }
    }

    pub(crate) fn send_batch(&mut self, node: usize, peer: PeerId, bytes: &[u8]) {
        self.tell_channel(node, ChannelInput::SendBatch { peer, bytes });
    }

    pub(crate) fn receive(&mut self, node: usize, from: usize, bytes: &[u8]) {
        self.tell_channel(node, ChannelInput::Datagram { from: address(from), bytes });
    }

    fn tell_channel(&mut self, node: usize, input: ChannelInput<'_>) {
        let now = self.now;
        if let Some(channel) = self.wire.as_mut().and_then(|wire| wire.channels[node].as_mut()) {
            channel.handle(now, input);
            self.pump(node);
        }
    }

    /// Does what a channel says.
    fn pump(&mut self, node: usize) {
        while let Some(output) = self.wire().channels[node].as_mut().and_then(Channel::poll_output) {
            match output {
                ChannelOutput::Transmit { to, bytes } => {
                    let to = (0..self.nodes.len()).find(|other| address(*other) == to).expect("a peer's address");
                    if let Some(kept) = &mut self.wire().kept {
                        kept.push((node, to, bytes.clone()));
                    }
                    self.launch(node, to, bytes);
                }
                ChannelOutput::Batch { peer, bytes, .. } => self.give(node, Input::Batch { peer, bytes: &bytes }),
                ChannelOutput::Up { peer, .. } => {
                    self.wire().ups += 1;
                    self.give(node, Input::PeerUp { peer });
                }
                ChannelOutput::Down { peer } => {
                    self.wire().downs += 1;
                    self.give(node, Input::PeerDown { peer });
                }
                ChannelOutput::Received { .. } => panic!("nobody sends messages here"),
            }
            self.drain(node);
        }
    }

    /// The channels' next timer.
    pub(crate) fn wire_timeout(&self) -> Option<Instant> {
        let wire = self.wire.as_ref()?;
        let awake = (0..self.nodes.len()).filter(|node| self.is_awake(*node));
        awake.filter_map(|node| wire.channels[node].as_ref()?.poll_timeout()).min()
    }

    pub(crate) fn run_channel(&mut self, node: usize) {
        let due = |channel: &Channel| channel.poll_timeout().is_some_and(|at| at <= self.now);
        if self.wire.as_ref().and_then(|wire| wire.channels[node].as_ref()).is_some_and(due) {
            self.tell_channel(node, ChannelInput::Timer);
        }
    }
}
