//! One peer, and a neighbour that the test plays by hand.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_bgp::rib::Desired;
use holdfast_bgp::session::{Info, Transition};
use holdfast_bgp::types::{Asn, Families, Prefix};
use holdfast_bgp::wire::{
    Capability, Codec, Frame, Framer, GracefulFamily, GracefulRestart, Message, Notification, Open, Update, decode,
};
use holdfast_bgp::{ConnId, Event, Input, Output, Peer, PeerConfig, State};

use super::{drain, router_id, time_zero};

pub(crate) const LOCAL: &str = "192.0.2.1:50000";
pub(crate) const REMOTE: &str = "192.0.2.254:179";

/// A peer and what it did.
pub(crate) struct Hand {
    pub(crate) peer: Peer,
    pub(crate) now: Instant,
    pub(crate) start: Instant,
    /// All outputs, in order, with their time.
    pub(crate) log: Vec<(Duration, Output)>,
    /// Those that `take` hasn't taken.
    fresh: VecDeque<Output>,
    next_accepted: u64,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

impl Hand {
    pub(crate) fn new(config: PeerConfig) -> Self {
        Self::restarted(config, false)
    }

    pub(crate) fn restarted(config: PeerConfig, restarting: bool) -> Self {
        let now = time_zero();
        let (local, remote) = (LOCAL.parse().unwrap(), REMOTE.parse().unwrap());
        let peer = Peer::new(config, restarting, 1, now);
        let (log, fresh) = (Vec::new(), VecDeque::new());
        Self { peer, now, start: now, log, fresh, next_accepted: 1, local, remote }
    }

    /// Started, dialled and connected; our OPEN is out.
    pub(crate) fn open_sent(config: PeerConfig) -> (Self, ConnId) {
        let mut hand = Self::new(config);
        hand.give(Input::Start);
        let conn = hand.connect();
        (hand, conn)
    }

    /// A session, with a neighbour that can do all.
    pub(crate) fn established(config: PeerConfig) -> (Self, ConnId) {
        let (mut hand, conn) = Self::open_sent(config);
        let open = hand.their_open();
        hand.agree(conn, &open);
        hand.take();
        (hand, conn)
    }

    /// A session with routes: the initial table is out.
    pub(crate) fn with_routes(config: PeerConfig, routes: &Arc<Desired>) -> (Self, ConnId) {
        let (mut hand, conn) = Self::established(config);
        hand.give(Input::Routes(routes));
        hand.settle();
        hand.take();
        (hand, conn)
    }

    /// OPEN and KEEPALIVE of the neighbour.
    pub(crate) fn agree(&mut self, conn: ConnId, open: &Open) {
        self.say(conn, &Message::Open(open.clone()));
        self.say(conn, &Message::Keepalive);
    }

    pub(crate) fn give(&mut self, input: Input<'_>) {
        self.peer.handle(self.now, input);
        let outputs = drain(&mut self.peer);
        let at = self.now - self.start;
        self.log.extend(outputs.iter().map(|output| (at, output.clone())));
        self.fresh.extend(outputs);
    }

    /// Runs the timers that are due now.
    pub(crate) fn settle(&mut self) {
        for _ in 0..1000 {
            if self.peer.poll_timeout().is_none_or(|at| at > self.now) {
                return;
            }
            self.give(Input::Timer);
        }
        panic!("a timer is due for ever");
    }

    pub(crate) fn run(&mut self, time: Duration) {
        self.settle();
        let end = self.now + time;
        while let Some(at) = self.peer.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.settle();
        }
        self.now = end;
    }

    /// Time passes, in which the neighbour sends a KEEPALIVE each second.
    pub(crate) fn run_alive(&mut self, conn: ConnId, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.run(Duration::from_secs(1).min(end - self.now));
            self.say(conn, &Message::Keepalive);
        }
    }

    /// The attempt that runs becomes a connection.
    pub(crate) fn connect(&mut self) -> ConnId {
        let conn = self.dialled().expect("an attempt");
        let (local, remote) = (self.local, self.remote);
        self.give(Input::Connected { conn, local, remote });
        conn
    }

    pub(crate) fn accept(&mut self) -> ConnId {
        let conn = ConnId(self.next_accepted);
        self.next_accepted += 2;
        let (local, remote) = (self.local, self.remote);
        self.give(Input::Accepted { conn, local, remote });
        conn
    }

    /// The last attempt that was begun.
    pub(crate) fn dialled(&self) -> Option<ConnId> {
        self.log.iter().rev().find_map(|(_, output)| match output {
            Output::Connect { conn } => Some(*conn),
            _ => None,
        })
    }

    /// When each attempt was begun.
    pub(crate) fn attempts(&self) -> Vec<Duration> {
        let attempts = self.log.iter().filter(|(_, output)| matches!(output, Output::Connect { .. }));
        attempts.map(|(at, _)| *at).collect()
    }

    pub(crate) fn refuse(&mut self) {
        let conn = self.dialled().expect("an attempt");
        self.give(Input::ConnectFailed { conn, why: String::from("connection refused") });
    }

    pub(crate) fn bytes(&mut self, conn: ConnId, bytes: &[u8]) {
        self.give(Input::Bytes { conn, bytes });
    }

    pub(crate) fn say(&mut self, conn: ConnId, message: &Message) {
        self.bytes(conn, &wire(message));
    }

    /// The OPEN of a neighbour that can do all: 10.0.0.2 of AS 65002, unless the configuration wants another AS.
    pub(crate) fn their_open(&self) -> Open {
        open(2, Asn(65_002))
    }

    /// What was put out since the last call.
    pub(crate) fn take(&mut self) -> Vec<Output> {
        self.fresh.drain(..).collect()
    }

    /// Messages sent on a connection, of what was put out since the last call of `take` or this.
    pub(crate) fn sent(&mut self, conn: ConnId) -> Vec<Message> {
        messages(&self.take(), conn)
    }

    pub(crate) fn state(&self) -> State {
        self.peer.state()
    }

    pub(crate) fn info(&self) -> Info {
        self.peer.info()
    }
}

pub(crate) fn open(last: u8, asn: Asn) -> Open {
    let graceful = GracefulRestart {
        restarting: false,
        notification: true,
        restart_time_s: 120,
        families: Families::BOTH.iter().map(|family| GracefulFamily::new(family, false)).collect(),
    };
    Open {
        asn,
        hold_time_s: 90,
        router_id: router_id(last),
        capabilities: Families::BOTH
            .iter()
            .map(Capability::family)
            .chain([
                Capability::RouteRefresh,
                Capability::EnhancedRouteRefresh,
                Capability::ExtendedMessage,
                Capability::ipv4_over_ipv6(),
                Capability::FourOctetAs(asn),
                Capability::GracefulRestart(graceful),
            ])
            .collect(),
    }
}

pub(crate) fn without(mut open: Open, code: u8) -> Open {
    open.capabilities.retain(|capability| capability.code() != code);
    open
}

pub(crate) fn wire(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&Codec::LENIENT, &mut bytes).unwrap();
    bytes
}

/// What outputs send on a connection, decoded.
pub(crate) fn messages(outputs: &[Output], conn: ConnId) -> Vec<Message> {
    messages_as(outputs, conn, &Codec::LENIENT)
}

pub(crate) fn messages_as(outputs: &[Output], of: ConnId, codec: &Codec) -> Vec<Message> {
    let mut stream = Vec::new();
    for output in outputs {
        if let Output::Send { conn, bytes } = output
            && *conn == of
        {
            stream.extend(bytes);
        }
    }
    let mut rest = &stream[..];
    let mut messages = Vec::new();
    while let Some((frame, more)) = Frame::split(rest, false).unwrap() {
        messages.push(decode(&frame, codec).unwrap());
        rest = more;
    }
    assert!(rest.is_empty(), "whole messages only");
    messages
}

pub(crate) fn updates(messages: &[Message]) -> Vec<Update> {
    let update = |message: &Message| match message {
        Message::Update(update) => Some(update.clone()),
        _ => None,
    };
    messages.iter().filter_map(update).collect()
}

pub(crate) fn announced(messages: &[Message]) -> Vec<Prefix> {
    updates(messages).iter().flat_map(|update| update.all_announced().collect::<Vec<_>>()).collect()
}

pub(crate) fn withdrawn(messages: &[Message]) -> Vec<Prefix> {
    updates(messages).iter().flat_map(|update| update.all_withdrawn().collect::<Vec<_>>()).collect()
}

pub(crate) fn notification(messages: &[Message]) -> Option<Notification> {
    messages.iter().find_map(|message| match message {
        Message::Notification(notification) => Some(notification.clone()),
        _ => None,
    })
}

pub(crate) fn opens(messages: &[Message]) -> Vec<Open> {
    let open = |message: &Message| match message {
        Message::Open(open) => Some(open.clone()),
        _ => None,
    };
    messages.iter().filter_map(open).collect()
}

pub(crate) fn transitions(outputs: &[Output]) -> Vec<Transition> {
    let transition = |output: &Output| match output {
        Output::Event(Event::State(transition)) => Some(transition.clone()),
        _ => None,
    };
    outputs.iter().filter_map(transition).collect()
}

/// For streams that a test cuts itself.
pub(crate) fn framer() -> Framer {
    Framer::new()
}
