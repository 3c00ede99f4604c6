//! The intervals, and what a Poll Sequence makes of them (sections 6.8.2 to 6.8.4).

use super::Session;
use crate::mutants;
use crate::timers::Timers;
use crate::wire::State;
use std::time::{Duration, Instant};

/// What is sent at most while a session isn't Up (section 6.8.3).
const SLOW: Duration = Duration::from_secs(1);

/// Where a change of the intervals stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Poll {
    /// All that was said is agreed.
    Idle,
    /// Packets carry P until an F comes.
    Running,
    /// A Sequence is over and there is more to change: one packet without P must come between (section 6.5).
    Between,
}

/// Our side of the intervals.
#[derive(Debug)]
pub(super) struct Timing {
    wanted: Timers,
    poll: Poll,
    /// What packets say (bfd.DesiredMinTxInterval).
    pub(super) desired_tx: Duration,
    /// What packets say (bfd.RequiredMinRxInterval).
    pub(super) required_rx: Duration,
    /// What counts until the neighbour has agreed.
    tx_in_use: Duration,
    rx_in_use: Duration,
}

impl Timing {
    pub(super) fn new(wanted: Timers) -> Self {
        let slow = slow(wanted);
        let rx = wanted.interval();
        Self { wanted, poll: Poll::Idle, desired_tx: slow, required_rx: rx, tx_in_use: slow, rx_in_use: rx }
    }

    /// Whether the multiplier is another, which counts without an agreement.
    pub(super) fn want(&mut self, timers: Timers) -> bool {
        let former = std::mem::replace(&mut self.wanted, timers);
        former.multiplier() != timers.multiplier()
    }

    pub(super) fn is_polling(&self) -> bool {
        self.poll == Poll::Running
    }

    pub(super) fn multiplier(&self) -> u8 {
        self.wanted.multiplier()
    }
}

fn slow(timers: Timers) -> Duration {
    if mutants::off("slow-start") { timers.interval() } else { timers.interval().max(SLOW) }
}

impl Session {
    /// Makes the intervals those of the state and of the operator.
    pub(super) fn adjust(&mut self) {
        let up = self.state == State::Up;
        let timing = &mut self.timing;
        if up && timing.poll != Poll::Idle {
            return;
        }
        let rx = timing.wanted.interval();
        let tx = if up { rx } else { slow(timing.wanted) };
        if !up {
            // Nobody counts on us: it is so at once.
            (timing.desired_tx, timing.tx_in_use, timing.required_rx, timing.rx_in_use) = (tx, tx, rx, rx);
            timing.poll = Poll::Idle;
            return;
        }
        if (tx, rx) == (timing.desired_tx, timing.required_rx) {
            return;
        }
        (timing.desired_tx, timing.required_rx) = (tx, rx);
        // The neighbour may go on expecting more of us, and sending less, until it has agreed.
        let at_once = mutants::off("poll-first");
        timing.tx_in_use = if at_once { tx } else { timing.tx_in_use.min(tx) };
        timing.rx_in_use = if at_once { rx } else { timing.rx_in_use.max(rx) };
        timing.poll = Poll::Running;
        self.urgent = true;
    }

    /// The neighbour has agreed.
    pub(super) fn finish_poll(&mut self) {
        let timing = &mut self.timing;
        (timing.tx_in_use, timing.rx_in_use) = (timing.desired_tx, timing.required_rx);
        let rx = timing.wanted.interval();
        timing.poll = Poll::Idle;
        if self.state == State::Up && (timing.desired_tx, timing.required_rx) != (rx, rx) {
            timing.poll = Poll::Between;
            self.urgent = true;
        }
    }

    /// A packet without P was sent.
    pub(super) fn end_of_gap(&mut self) {
        if self.timing.poll == Poll::Between {
            self.timing.poll = Poll::Idle;
            self.adjust();
        }
    }

    /// How often packets are sent, before the jitter.
    #[must_use]
    pub fn tx_interval(&self) -> Duration {
        self.timing.tx_in_use.max(self.remote.min_rx)
    }

    /// The neighbour is lost when nothing was heard of it for so long (section 6.8.4).
    #[must_use]
    pub fn detection_time(&self) -> Duration {
        self.timing.rx_in_use.max(self.remote.min_tx).saturating_mul(u32::from(self.remote.multiplier))
    }

    /// The neighbour's own: when it loses us.
    #[must_use]
    pub fn remote_detection_time(&self) -> Duration {
        self.timing.desired_tx.max(self.remote.min_rx).saturating_mul(u32::from(self.timing.multiplier()))
    }

    pub(super) fn detect_at(&self) -> Option<Instant> {
        if self.state == State::AdminDown {
            return None;
        }
        self.heard_at?.checked_add(self.detection_time())
    }
}
