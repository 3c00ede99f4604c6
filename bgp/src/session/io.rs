//! What goes into a [`Peer`](super::Peer) and what comes out of it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::PeerConfig;
use crate::rib::{Desired, Unsent};
use crate::types::{Asn, Families, Prefix, RouterId};

/// One TCP connection. Those that we dial are even (the machine names them), those that were accepted odd (the caller
/// names them, each once).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// Something happened. One at a time, with the time it is handled at. What is said of a connection that the machine no
/// longer knows is ignored.
#[derive(Debug, Clone)]
pub enum Input<'a> {
    /// `poll_timeout` has passed (early calls do nothing). Give [`Input::Bytes`] that wait in a socket first.
    Timer,
    /// RFC 4271 ManualStart: dial (unless passive) and accept. Ignored when started.
    Start,
    /// Ends the session, in the way that its reason demands. After all but `Reset` nothing happens until `Start`, and the
    /// routes are forgotten: give them anew.
    Stop(Stop),
    /// A dialled connection is up.
    Connected {
        /// As named by [`Output::Connect`].
        conn: ConnId,
        /// Our address: next hop "self".
        local: SocketAddr,
        /// The neighbour's.
        remote: SocketAddr,
    },
    /// A dialled connection failed.
    ConnectFailed {
        /// As named by [`Output::Connect`].
        conn: ConnId,
        /// In words.
        why: String,
    },
    /// The neighbour dialled us: from its address, with the protection that is configured.
    Accepted {
        /// Odd, never used before.
        conn: ConnId,
        /// Our address: next hop "self".
        local: SocketAddr,
        /// The neighbour's.
        remote: SocketAddr,
    },
    /// Received, cut anywhere; at most 64 KiB at a time or so.
    Bytes {
        /// Where.
        conn: ConnId,
        /// What.
        bytes: &'a [u8],
    },
    /// The neighbour closed the connection, or it broke; the caller has closed its end. Also told at the end of what was
    /// closed by us.
    Closed {
        /// Which.
        conn: ConnId,
        /// In words, if it wasn't an orderly end.
        why: Option<String>,
    },
    /// How much of what was sent the socket hasn't taken yet: told after each [`Output::Send`] of which something is left,
    /// and each time that the socket took some of it, down to 0. Above [`HIGH_WATER`](super::HIGH_WATER) no routes are
    /// sent; without progress for the send hold time the session ends (RFC 9687).
    Queued {
        /// Where.
        conn: ConnId,
        /// Bytes.
        bytes: usize,
    },
    /// All that is to be announced to this neighbour. The first one (even an empty one) lets the initial table and its
    /// End-of-RIB out. Unchanged: nothing happens.
    Routes(&'a Arc<Desired>),
    /// Whether the data plane has been serving without a gap since the last session: the F bit (RFC 4724) of the next
    /// OPEN. False until told.
    Serving(bool),
    /// The configuration changed. What the session can't take up ends it (Cease/6) and it is begun anew at once; other
    /// next hops, timers of attempts and the like count from now on.
    Config(Box<PeerConfig>),
    /// The link to the neighbour lost its carrier or its address: Idle at once, no attempts.
    LinkDown,
    /// It is back: an attempt at once. Ignored unless down.
    LinkUp,
    /// What BFD says of the neighbour, told at each change. From Up to Down (or Init) ends a session; AdminDown doesn't, nor does
    /// a session of BFD that never was Up.
    Bfd(BfdState),
}

/// Why a session is ended by us on purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// Shut down: routes withdrawn, NOTIFICATION Cease/2 with this text (RFC 9003), within a Hard Reset where RFC 8538
    /// is in force, FIN.
    Admin {
        /// To the neighbour's operator; cut to 255 bytes. May be empty.
        text: String,
    },
    /// The neighbour is no longer configured: as `Admin`, with Cease/3.
    Deconfigured,
    /// This worker is being replaced and the data plane serves on: nothing is sent, and connections are left as they are
    /// (the process's end closes them, or the keeper holds them).
    Restart,
    /// Begin the session anew: Cease/4 with this text; the routes aren't withdrawn and the next attempt follows.
    Reset {
        /// To the neighbour's operator; cut to 255 bytes. May be empty.
        text: String,
    },
}

/// A state of BFD (RFC 5880 section 6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BfdState {
    /// Administratively down: says nothing about the path.
    AdminDown,
    /// The path doesn't work, or isn't known to.
    Down,
    /// It works in our direction.
    Init,
    /// It works.
    Up,
}

/// What the caller must do now, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Dial the neighbour.
    Connect {
        /// The name of what becomes of it.
        conn: ConnId,
    },
    /// Send it all, after what was to be sent before.
    Send {
        /// Where.
        conn: ConnId,
        /// Whole messages.
        bytes: Vec<u8>,
    },
    /// Once all is sent, close in order (FIN; read and drop what comes until the neighbour's own).
    Close {
        /// Which.
        conn: ConnId,
    },
    /// Close at once, whatever is unsent; also ends an attempt to dial. May name a connection that is gone.
    Abort {
        /// Which.
        conn: ConnId,
    },
    /// For the journal and for decisions.
    Event(Event),
}

/// Something worth telling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The state changed. `to` Established: the session is up; `from` Established: it is down.
    State(Transition),
    /// A session's initial table, and its End-of-RIB, has been handed over.
    TableSent {
        /// Routes in it.
        routes: usize,
    },
    /// Routes were announced (or announced anew, with other attributes).
    Announced(Vec<Prefix>),
    /// Routes were withdrawn.
    Withdrawn(Vec<Prefix>),
    /// Routes that can't be told to this neighbour, and why; the session isn't touched by it.
    Unsent(Vec<(Prefix, Unsent)>),
    /// Stopped, and every connection is closed or left.
    Stopped,
}

/// A change of state with its cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// The state left.
    pub from: State,
    /// The state entered.
    pub to: State,
    /// Why.
    pub reason: Reason,
}

/// RFC 4271 section 8.2.2 states. Of two connections the one that is further counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Stopped, the link is down, or waiting after a failure that an attempt at once wouldn't mend.
    Idle,
    /// Dialling.
    Connect,
    /// Between two attempts, or passive.
    Active,
    /// Connected; our OPEN is out.
    OpenSent,
    /// The neighbour's OPEN was good.
    OpenConfirm,
    /// Up.
    Established,
}

/// Why the state changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Start.
    Started,
    /// Stop.
    Stopped(Stop),
    /// The time for an attempt came.
    Retry,
    /// Dialled.
    Connected,
    /// The neighbour dialled.
    Accepted,
    /// Dialling failed.
    ConnectFailed {
        /// In words.
        why: String,
    },
    /// Dialling took too long.
    ConnectTimeout,
    /// A good OPEN came.
    OpenReceived,
    /// The neighbour agreed to our OPEN.
    KeepaliveReceived,
    /// Nothing came for the hold time.
    HoldExpired {
        /// What it was.
        hold: Duration,
    },
    /// The socket took nothing for the send hold time (RFC 9687).
    SendHoldExpired {
        /// What it was.
        hold: Duration,
    },
    /// The neighbour closed, or the connection broke.
    Closed {
        /// In words, if it wasn't an orderly end.
        why: Option<String>,
    },
    /// The neighbour sent a NOTIFICATION.
    NotificationReceived {
        /// In words: the names of code and subcode, and the text of RFC 9003.
        what: String,
        /// Error code.
        code: u8,
        /// Error subcode.
        subcode: u8,
    },
    /// We sent a NOTIFICATION, because of an error in what came.
    NotificationSent {
        /// In words.
        what: String,
        /// Error code.
        code: u8,
        /// Error subcode.
        subcode: u8,
    },
    /// Of two connections the other one was kept (section 6.8).
    Collision,
    /// The neighbour, whose graceful restart we know, opened a new connection (RFC 4724 section 4.2).
    Superseded,
    /// BFD went down.
    BfdDown,
    /// The link went down.
    LinkDown,
    /// The link is back.
    LinkUp,
    /// The configuration changed in a way that the session can't take up.
    ConfigChanged,
    /// The caller doesn't take what is put out.
    Overflow,
}

/// What both sides agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// The neighbour's BGP identifier.
    pub router_id: RouterId,
    /// Its AS.
    pub asn: Asn,
    /// Zero: none.
    pub hold_time: Duration,
    /// A third of it.
    pub keepalive: Duration,
    /// The families.
    pub families: Families,
    /// 4-octet AS numbers.
    pub four_octet_as: bool,
    /// RFC 8654: it may send messages of up to 65,535 bytes.
    pub extended_message: bool,
    /// RFC 8950, IPv4 routes with an IPv6 next hop.
    pub extended_next_hop: bool,
    /// It understands graceful restart, so it may keep our routes when the session ends without a NOTIFICATION.
    pub graceful_restart: bool,
    /// RFC 8538 is in force: it keeps them at most NOTIFICATIONs too.
    pub notification_gr: bool,
    /// RFC 2918.
    pub route_refresh: bool,
    /// RFC 7313.
    pub enhanced_refresh: bool,
}

/// What a peer has counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Times that the session was Established.
    pub established: u64,
    /// Attempts to dial.
    pub dialled: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections closed because of a collision.
    pub collisions: u64,
    /// OPENs sent.
    pub opens_sent: u64,
    /// OPENs received.
    pub opens_received: u64,
    /// UPDATEs sent, End-of-RIB included.
    pub updates_sent: u64,
    /// UPDATEs received.
    pub updates_received: u64,
    /// KEEPALIVEs sent.
    pub keepalives_sent: u64,
    /// KEEPALIVEs received.
    pub keepalives_received: u64,
    /// NOTIFICATIONs sent.
    pub notifications_sent: u64,
    /// NOTIFICATIONs received.
    pub notifications_received: u64,
    /// ROUTE-REFRESH messages sent (RFC 7313).
    pub refreshes_sent: u64,
    /// ROUTE-REFRESH requests received.
    pub refreshes_received: u64,
    /// Routes announced by the neighbour: counted and dropped.
    pub routes_dropped: u64,
    /// Routes withdrawn by the neighbour.
    pub withdrawals_dropped: u64,
    /// UPDATEs with an error that RFC 7606 doesn't let end the session.
    pub updates_malformed: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Bytes handed over to be sent.
    pub bytes_sent: u64,
}

/// What is known of a peer, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// The state.
    pub state: State,
    /// When it was entered.
    pub since: Instant,
    /// What the present session agreed on.
    pub negotiated: Option<Negotiated>,
    /// The present session's connection.
    pub conn: Option<ConnId>,
    /// Its addresses, ours first.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// When the session became Established.
    pub established_at: Option<Instant>,
    /// Routes announced, IPv4 and IPv6.
    pub announced: (usize, usize),
    /// Routes that can't be told to this neighbour.
    pub unsent: usize,
    /// One of them, and why.
    pub unsent_example: Option<(Prefix, Unsent)>,
    /// Whether the initial table has been handed over, End-of-RIB and all.
    pub table_sent: bool,
    /// What ended the last session or attempt, and when.
    pub last_error: Option<(Instant, Reason)>,
    /// When the next attempt comes, while waiting for it.
    pub next_attempt: Option<Instant>,
    /// What was counted.
    pub counters: Counters,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "Idle",
            Self::Connect => "Connect",
            Self::Active => "Active",
            Self::OpenSent => "OpenSent",
            Self::OpenConfirm => "OpenConfirm",
            Self::Established => "Established",
        })
    }
}

/// In a few words, to stand after "Idle: ".
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started => f.write_str("started"),
            Self::Stopped(Stop::Admin { text }) if text.is_empty() => f.write_str("stopped"),
            Self::Stopped(Stop::Admin { text }) => write!(f, "stopped: {text}"),
            Self::Stopped(Stop::Deconfigured) => f.write_str("no longer configured"),
            Self::Stopped(Stop::Restart) => f.write_str("left to the next worker"),
            Self::Stopped(Stop::Reset { text }) if text.is_empty() => f.write_str("reset"),
            Self::Stopped(Stop::Reset { text }) => write!(f, "reset: {text}"),
            Self::Retry => f.write_str("time for an attempt"),
            Self::Connected => f.write_str("connected"),
            Self::Accepted => f.write_str("the neighbor connected"),
            Self::ConnectFailed { why } => write!(f, "connect: {why}"),
            Self::ConnectTimeout => f.write_str("connect: no answer"),
            Self::OpenReceived => f.write_str("the neighbor's OPEN is good"),
            Self::KeepaliveReceived => f.write_str("the neighbor agreed"),
            Self::HoldExpired { hold } => write!(f, "nothing heard for the hold time of {hold:?}"),
            Self::SendHoldExpired { hold } => write!(f, "the neighbor took nothing for {hold:?} (send hold time)"),
            Self::Closed { why: None } => f.write_str("the neighbor closed the connection"),
            Self::Closed { why: Some(why) } => write!(f, "the connection broke: {why}"),
            Self::NotificationReceived { what, .. } => write!(f, "the neighbor says: {what}"),
            Self::NotificationSent { what, .. } => write!(f, "told the neighbor: {what}"),
            Self::Collision => f.write_str("the other of two connections was kept"),
            Self::Superseded => f.write_str("the neighbor restarted and opened a new connection"),
            Self::BfdDown => f.write_str("BFD went down"),
            Self::LinkDown => f.write_str("the link went down"),
            Self::LinkUp => f.write_str("the link is back"),
            Self::ConfigChanged => f.write_str("the configuration changed"),
            Self::Overflow => f.write_str("outputs were not taken"),
        }
    }
}
