//! What the keeper is told of BGP and BFD.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// Sessions beyond this are refused with an event. Far above what one node has of routers.
pub const BFD_MAX: usize = 1_024;
/// The longest [`BgpSession::farewell`]: a NOTIFICATION without extended messages.
pub const FAREWELL_MAX: usize = 4_096;

/// One BFD session that the worker wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BfdSpec {
    /// The neighbour's name in the configuration; unique in a list.
    pub neighbor: String,
    /// The address to send from; `None`: the kernel chooses.
    pub local: Option<IpAddr>,
    /// The neighbour's address.
    pub remote: IpAddr,
    /// The interface it is on, by name. Must be there for a link-local address.
    pub interface: Option<String>,
    /// How often we want to send, and to hear, while the session is Up: 10 ms to 60 s.
    pub interval: Duration,
    /// Lost packets in a row after which the peer takes the session down (Detect Mult): 1 to 255.
    pub multiplier: u8,
    /// RFC 5883, port 4784; else RFC 5881, port 3784.
    pub multihop: bool,
    /// The lowest TTL that a packet of a multihop session may arrive with. Single hop: always 255 (RFC 5881 section 5).
    pub min_ttl: u8,
}

/// The state of a session, as the worker is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum BfdState {
    /// Down because one of both sides was told so by its operator: not a failure (RFC 5882 section 4.2).
    AdminDown,
    /// Not there yet, or lost.
    Down,
    /// The neighbour is heard and has not heard us yet.
    Init,
    /// Both hear each other.
    Up,
}

impl fmt::Display for BfdState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AdminDown => "AdminDown",
            Self::Down => "Down",
            Self::Init => "Init",
            Self::Up => "Up",
        })
    }
}

/// Where a session stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BfdReport {
    /// The neighbour's name in the configuration.
    pub neighbor: String,
    /// Its state.
    pub state: BfdState,
    /// Why it was left last: the diagnostic code on the wire (RFC 5880 section 4.1); see [`describe_diagnostic`].
    pub diag: u8,
    /// How long ago it entered this state, at the time of the report.
    pub since: Duration,
    /// Why it can't run at the moment, in words: a port in use, an address that isn't there.
    pub problem: Option<String>,
}

/// A BGP session whose socket the keeper holds while no worker does, so that a worker's death closes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BgpSession {
    /// The neighbour's name in the configuration.
    pub neighbor: String,
    /// The negotiated hold time; zero: none.
    pub hold: Duration,
    /// The restart time that we told the neighbour, if it keeps our routes while we restart (RFC 4724); else `None`,
    /// and holding the socket would only keep a new worker from connecting.
    pub restart: Option<Duration>,
    /// A NOTIFICATION that makes the neighbour drop our routes even so, header included; at most [`FAREWELL_MAX`] bytes.
    pub farewell: Vec<u8>,
    /// Established, and the socket's duplicate comes along with the message (SCM_RIGHTS). False: closed, the duplicate
    /// is dropped (the rest is not looked at).
    pub active: bool,
}

/// A VIP that is announced by BGP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BgpGrace {
    /// How long after the worker's death the addresses of a VIP without VRRP stay: half the hold time and the restart
    /// time. A VIP with VRRP (one with a [`Resign`](super::Resign)) waits as long as VRRP lets it.
    pub grace: Duration,
}

/// The diagnostic code in words.
pub fn describe_diagnostic(diag: u8) -> &'static str {
    match diag {
        0 => "no diagnostic",
        1 => "nothing was heard within the detection time",
        2 => "the echo failed",
        3 => "the neighbour took the session down",
        4 => "the data plane doesn't serve",
        5 => "the path is down",
        6 => "a path behind it is down",
        7 => "taken down by the operator",
        8 => "a path behind it is down, in reverse",
        _ => "a reason that has no name",
    }
}
