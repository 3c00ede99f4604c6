//! The composition: one node, its inputs and outputs.

use crate::config::Config;
use crate::io::{Boot, Input, Output};
use crate::journal::Journal;
use crate::status::{Status, Verdict};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// A whole node. See the crate's documentation.
#[derive(Debug)]
pub struct Node {
    config: Config,
    boot: Boot,
    started: Instant,
    #[allow(dead_code)]
    journal: Journal,
    outputs: VecDeque<Output>,
}

impl Node {
    /// A node that has seen nothing yet. It does nothing before its first [`Input::Resync`].
    pub fn new(config: Config, boot: Boot, now: Instant) -> Self {
        let journal = Journal::new(boot.last_event_id);
        Self { config, boot, started: now, journal, outputs: VecDeque::new() }
    }

    /// Takes one input. Drain [`Self::poll_output`] after each.
    pub fn handle(&mut self, _now: Instant, _input: Input<'_>) {}

    /// What the caller must do, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Timer`] is wanted next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Status at `now`.
    pub fn status(&self, now: Instant) -> Status {
        Status {
            schema: 1,
            verdict: Verdict::Critical,
            summary: String::new(),
            node: String::new(),
            epoch: self.boot.epoch,
            age_ms: crate::io::age_ms(now, self.started),
            vips: vec![],
            peers: vec![],
            balancers: vec![],
            checks: vec![],
            drain: None,
            counters: BTreeMap::new(),
            warnings: vec![],
        }
    }
}
