//! One neighbour (RFC 4271 section 8), sans-IO.

mod config;
mod io;

use std::collections::VecDeque;
use std::time::Instant;

pub use config::{ConfigError, MAX_CONNECT_RETRY, MIN_CONNECT_RETRY, MIN_HOLD, PeerConfig, RemoteAs};
pub use io::{BfdState, ConnId, Counters, Event, Info, Input, Negotiated, Output, Reason, State, Stop, Transition};

/// Bytes that the socket hasn't taken: above it no routes are sent.
pub const HIGH_WATER: usize = 64 * 1024;

/// One neighbour.
#[derive(Debug)]
pub struct Peer {
    config: PeerConfig,
    since: Instant,
    outputs: VecDeque<Output>,
}

impl Peer {
    /// A peer in Idle, not started. `restarting`: a former worker had a session and the data plane kept serving: the R
    /// bit, until a session is up or the restart time is over. `seed` makes the jitter.
    pub fn new(config: PeerConfig, restarting: bool, seed: u64, now: Instant) -> Self {
        let _ = (restarting, seed);
        Self { config, since: now, outputs: VecDeque::new() }
    }

    /// How it is configured.
    pub fn config(&self) -> &PeerConfig {
        &self.config
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) {
        let _ = (now, input);
    }

    /// The next thing to do. Drain it after each input.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Timer`] is due; `None`: nothing armed. May have passed already.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The state.
    pub fn state(&self) -> State {
        State::Idle
    }

    /// What is known of it, for people.
    pub fn info(&self) -> Info {
        Info {
            state: self.state(),
            since: self.since,
            negotiated: None,
            conn: None,
            addresses: None,
            established_at: None,
            announced: (0, 0),
            unsent: 0,
            unsent_example: None,
            table_sent: false,
            last_error: None,
            next_attempt: None,
            counters: Counters::default(),
        }
    }
}
