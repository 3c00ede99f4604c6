//! One neighbour (RFC 4271 section 8), sans-IO: up to two TCP connections, of which one becomes the session.
//!
//! Where to look: this file holds the type and the dispatch of inputs; `session/dialling.rs` when a connection is
//! attempted, `session/connection.rs` one connection and its timers, `session/open.rs` what is offered and agreed on,
//! `session/collision.rs` which of two connections is kept, `session/receive.rs` what comes, `session/established.rs`
//! how routes go out, `session/ending.rs` how a connection ends, `session/config.rs` and `session/io.rs` what goes in
//! and comes out.
//!
//! Where we go beyond RFC 4271 or differ from it:
//! - an attempt follows a failed one after [`PeerConfig::connect_retry`], 2 s and not 120: a neighbour that comes back
//!   is spoken to at once. Only after what another attempt won't mend (a NOTIFICATION that says so) the wait doubles, up
//!   to a minute; after a session that was well it is a quarter of a second;
//! - of two connections the loser isn't closed before the winner is known to live: it waits, unconfirmed, and takes over
//!   if the winner dies (section 6.8 closes it at once, and may so close the only one that works);
//! - a hold timer that is noticed late gives what waits in the socket a moment to be heard: it was us who stood still;
//! - a session that nothing was taken from for the send hold time is given up (RFC 9687);
//! - what a neighbour announces is counted and dropped. Nothing is imported, so there is nothing to flush or to bound.
//!
//! What this refuses to do: decide what is announced (the caller says so, whole, with [`Input::Routes`]); judge who may
//! connect (the caller accepts only the neighbour's address, with the protection that is configured); read the time.

mod collision;
mod config;
mod connection;
mod dialling;
mod ending;
mod established;
mod io;
mod open;
mod random;
mod receive;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use config::{
    ConfigError, MAX_CONNECT_RETRY, MAX_HOLD, MAX_RESTART, MIN_CONNECT_RETRY, MIN_HOLD, PeerConfig, RemoteAs,
};
pub use connection::OPEN_HOLD;
pub use dialling::HEALTHY;
pub use io::{BfdState, ConnId, Counters, Event, Info, Input, Negotiated, Output, Reason, State, Stop, Transition};

use crate::mutants;
use crate::rib::{Context, Desired};
use crate::wire::Codec;
use connection::{Connection, Phase};
use dialling::{Delay, Dial};
use ending::{Closing, End};
use random::Random;

/// Bytes that the socket hasn't taken: above it no routes are sent.
pub const HIGH_WATER: usize = 64 * 1024;

/// Outputs held for a caller that doesn't drain. When full the connections are aborted, since a stream with a hole is
/// of no use; an input makes fewer than twenty.
pub const OUTPUTS_MAX: usize = 1024;

/// One neighbour.
#[derive(Debug)]
pub struct Peer {
    config: PeerConfig,
    random: Random,
    started: bool,
    link_up: bool,
    dial: Dial,
    /// Two at most: one that we dialled and one that we accepted; or a session, and one that was accepted since.
    connections: Vec<Connection>,
    /// Closed by us, and not yet known to be gone.
    closing: Vec<Closing>,
    next_conn: u64,
    /// Failures in a row that another attempt wouldn't mend.
    failures: u32,
    /// Until when the R bit may be set.
    restarting_until: Option<Instant>,
    serving: bool,
    bfd: BfdState,
    desired: Option<Arc<Desired>>,
    state: State,
    since: Instant,
    last_error: Option<(Instant, Reason)>,
    counters: Counters,
    outputs: VecDeque<Output>,
    stop_told: bool,
}

impl Peer {
    /// A peer in Idle, not started. `restarting`: a former worker had a session and the data plane kept serving: the R
    /// bit, until a session is up or the restart time is over. `seed` makes the jitter.
    pub fn new(config: PeerConfig, restarting: bool, seed: u64, now: Instant) -> Self {
        let restarting_until = config.graceful_restart.filter(|_| restarting).map(|time| now + time);
        Self {
            config,
            random: Random::new(seed),
            started: false,
            link_up: true,
            dial: Dial::Off,
            connections: Vec::new(),
            closing: Vec::new(),
            next_conn: 0,
            failures: 0,
            restarting_until,
            serving: false,
            bfd: BfdState::Down,
            desired: None,
            state: State::Idle,
            since: now,
            last_error: None,
            counters: Counters::default(),
            outputs: VecDeque::new(),
            stop_told: true,
        }
    }

    /// How it is configured.
    pub fn config(&self) -> &PeerConfig {
        &self.config
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// What is known of it, for people.
    pub fn info(&self) -> Info {
        let session = self.connections.iter().find_map(|conn| Some((conn, conn.established()?)));
        let rib = session.map(|(_, established)| &established.rib);
        Info {
            state: self.state,
            since: self.since,
            negotiated: session.and_then(|(conn, _)| conn.negotiated),
            conn: session.map(|(conn, _)| conn.id),
            addresses: session.map(|(conn, _)| (conn.local, conn.remote)),
            established_at: session.map(|(_, established)| established.at),
            announced: rib.map_or((0, 0), |rib| rib.announced()),
            unsent: rib.map_or(0, |rib| rib.unsent()),
            unsent_example: rib.and_then(|rib| rib.unsent_example()),
            table_sent: session.is_some_and(|(_, established)| established.table_sent),
            last_error: self.last_error.clone(),
            next_attempt: self.dial.waits_until(),
            counters: self.counters,
        }
    }

    /// The next thing to do. Drain it after each input.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Timer`] is due; `None`: nothing armed. May have passed already.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let connections = self.connections.iter().filter_map(|conn| conn.due(self.send_hold(conn)));
        let closing = self.closing.iter().map(|closing| closing.until);
        connections.chain(closing).chain(self.dial.due()).min()
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) {
        if self.outputs.len() >= OUTPUTS_MAX {
            self.overflow(now);
        }
        match input {
            Input::Timer => self.on_timer(now),
            Input::Start => self.on_start(now),
            Input::Stop(stop) => self.on_stop(now, stop),
            Input::Connected { conn, local, remote } => self.on_connected(now, conn, local, remote),
            Input::ConnectFailed { conn, why } => self.on_connect_failed(now, conn, why),
            Input::Accepted { conn, local, remote } => self.on_accepted(now, conn, local, remote),
            Input::Bytes { conn, bytes } => self.on_bytes(now, conn, bytes),
            Input::Closed { conn, why } => self.on_closed(now, conn, why),
            Input::Queued { conn, bytes } => self.on_queued(now, conn, bytes),
            Input::Routes(desired) => self.on_routes(now, desired),
            Input::Serving(serving) => self.serving = serving,
            Input::Config(config) => self.on_config(now, *config),
            Input::LinkDown => self.on_link_down(now),
            Input::LinkUp => self.on_link_up(now),
            Input::Bfd(bfd) => self.on_bfd(now, bfd),
        }
        self.tell_stop();
    }

    fn on_timer(&mut self, now: Instant) {
        self.closing_timers(now);
        for id in self.ids() {
            self.connection_timers(now, id);
        }
        self.dial_timer(now);
        self.arbitrate(now);
    }

    fn on_start(&mut self, now: Instant) {
        if self.started {
            return;
        }
        self.started = true;
        self.stop_told = true;
        self.failures = 0;
        self.schedule(now, Delay::Now);
        self.settle(now, Reason::Started);
    }

    fn on_connected(&mut self, now: Instant, id: ConnId, local: SocketAddr, remote: SocketAddr) {
        if !self.dial.is(id) {
            self.push(Output::Abort { conn: id });
            return;
        }
        self.dial = Dial::Off;
        self.begin(now, Connection::new(now, id, true, local, remote), Reason::Connected);
    }

    fn on_accepted(&mut self, now: Instant, id: ConnId, local: SocketAddr, remote: SocketAddr) {
        if !self.started {
            self.push(Output::Abort { conn: id });
            return;
        }
        self.counters.accepted += 1;
        // The neighbour dialled again: it has given up the one before.
        let stale = self.connections.iter().find(|conn| !conn.dialled && conn.established().is_none());
        if let Some(stale) = stale.map(|conn| conn.id) {
            self.end(now, stale, End::Abort, Reason::Superseded);
        }
        // It speaks to us: an attempt of ours meanwhile would only collide.
        if let Dial::Waiting { until, idle } = self.dial {
            let later = now + self.random.jitter(self.config.connect_retry);
            self.dial = Dial::Waiting { until: until.max(later), idle };
        }
        self.begin(now, Connection::new(now, id, false, local, remote), Reason::Accepted);
    }

    /// A TCP connection is up: OPEN, and wait for the neighbour's.
    fn begin(&mut self, now: Instant, mut conn: Connection, reason: Reason) {
        let id = conn.id;
        let open = self.our_open(now);
        // RFC 8654 section 4: whoever said so in its OPEN takes long messages, whatever the neighbour said.
        conn.framer.set_extended(self.config.capabilities);
        self.connections.push(conn);
        self.counters.opens_sent += 1;
        self.send(id, open);
        self.settle(now, reason);
    }

    fn on_routes(&mut self, now: Instant, desired: &Arc<Desired>) {
        if self.desired.as_ref().is_some_and(|before| Arc::ptr_eq(before, desired)) {
            return;
        }
        let session = self.state == State::Established;
        if self.desired.is_none() || session || !mutants::off("level-triggered") {
            self.desired = Some(Arc::clone(desired));
        }
        if let Some(established) = self.connections.iter_mut().find_map(Connection::established_mut) {
            established.rib.want(desired);
        }
        self.pump(now);
    }

    fn on_config(&mut self, now: Instant, config: PeerConfig) {
        let before = std::mem::replace(&mut self.config, config);
        let bounce = before.differs_in_session(&self.config);
        if bounce {
            self.failures = 0;
            self.abandon();
            self.end_all(now, &Reason::ConfigChanged);
            // Where a connection ended, the next attempt runs already.
            if !matches!(self.dial, Dial::Dialling { .. }) {
                self.schedule(now, Delay::Now);
            }
            self.settle(now, Reason::ConfigChanged);
            return;
        }
        for conn in &mut self.connections {
            let context = context(&self.config, conn);
            if let (Some(established), Some(context)) = (conn.established_mut(), context) {
                established.rib.set_context(context);
            }
        }
        if before.passive != self.config.passive && self.connections.is_empty() {
            self.abandon();
            self.schedule(now, Delay::Now);
            self.settle(now, Reason::ConfigChanged);
        }
        self.pump(now);
    }

    fn on_link_down(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.link_up, false) {
            return;
        }
        self.abandon();
        for id in self.ids() {
            self.end(now, id, End::Abort, Reason::LinkDown);
        }
        self.settle(now, Reason::LinkDown);
    }

    fn on_link_up(&mut self, now: Instant) {
        if std::mem::replace(&mut self.link_up, true) {
            return;
        }
        self.failures = 0;
        if self.connections.is_empty() {
            self.schedule(now, Delay::Now);
        }
        self.settle(now, Reason::LinkUp);
    }

    /// RFC 5882 section 4.2. Only a change from Up is news: what BFD says before it is up, and what an old session of
    /// BFD left behind, ends nothing. AdminDown isn't a failure.
    fn on_bfd(&mut self, now: Instant, bfd: BfdState) {
        let before = std::mem::replace(&mut self.bfd, bfd);
        let was_up = before == BfdState::Up || mutants::off("bfd-edge");
        if was_up && matches!(bfd, BfdState::Down | BfdState::Init) {
            self.end_all(now, &Reason::BfdDown);
        }
    }

    fn overflow(&mut self, now: Instant) {
        self.outputs.clear();
        self.abandon();
        for id in self.ids() {
            self.end(now, id, End::Abort, Reason::Overflow);
        }
        self.schedule(now, Delay::Retry);
        self.settle(now, Reason::Overflow);
    }

    /// The only place where the state changes: of what there is, the furthest counts.
    fn settle(&mut self, now: Instant, reason: Reason) {
        let to = self.connections.iter().map(Connection::state).max().unwrap_or_else(|| self.dial.state());
        let to = if self.started { to } else { State::Idle };
        let from = std::mem::replace(&mut self.state, to);
        if from != to {
            self.since = now;
            self.push(Output::Event(Event::State(Transition { from, to, reason })));
        }
    }

    fn ids(&self) -> Vec<ConnId> {
        self.connections.iter().map(|conn| conn.id).collect()
    }

    fn find(&self, id: ConnId) -> Option<&Connection> {
        self.connections.iter().find(|conn| conn.id == id)
    }

    fn find_mut(&mut self, id: ConnId) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|conn| conn.id == id)
    }

    fn sibling(&self, id: ConnId) -> Option<&Connection> {
        self.connections.iter().find(|conn| conn.id != id)
    }

    fn push(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    fn send_hold(&self, conn: &Connection) -> Duration {
        let hold = conn.negotiated.map_or(self.config.hold_time, |negotiated| negotiated.hold_time);
        self.config.send_hold.unwrap_or_else(|| (2 * hold).max(SEND_HOLD))
    }
}

/// RFC 9687 section 3.3: eight minutes, or twice the hold time where that is longer.
const SEND_HOLD: Duration = Duration::from_secs(480);

/// What routes are told with on a connection; `None` before it has agreed on anything.
fn context(config: &PeerConfig, conn: &Connection) -> Option<Context> {
    conn.negotiated?;
    Some(Context {
        local_as: config.local_as,
        // What we say never needs more than an ordinary message, and old neighbours have broken on longer ones.
        codec: Codec { extended_message: false, ..conn.codec },
        local: conn.local.ip().to_canonical(),
        next_hop_ipv4: config.next_hop_ipv4,
        next_hop_ipv6: config.next_hop_ipv6,
        link_local: config.link_local,
    })
}
