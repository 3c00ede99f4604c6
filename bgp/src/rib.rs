//! Adj-RIB-Out as desired state: the caller says what is to be announced, whole and as often as it likes; the difference
//! to what the neighbour was told goes out.
//!
//! Nothing here brings a route back: what a new session is told is the last [`Desired`] and nothing else. One change is
//! one UPDATE, and no change is none.

mod adj_out;
mod context;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

pub use adj_out::{AdjRibOut, Sent};
pub use context::{Context, DEFAULT_LOCAL_PREF};

use crate::types::{Family, Origin, Prefix};

/// All that is to be announced to a neighbour. Prefixes with the same attributes should share one `Arc`: they go into
/// one UPDATE either way, but comparing is quicker.
pub type Desired = BTreeMap<Prefix, Arc<Route>>;

/// What is to be said of a prefix. AS path, next hop and the form of the rest follow from this and the session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Route {
    /// ORIGIN.
    pub origin: Origin,
    /// How many times our AS stands in AS_PATH beyond the once that eBGP demands. Nothing on iBGP, where the neighbour
    /// would take it for a loop.
    pub prepend: u8,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// LOCAL_PREF: sent on iBGP only; [`DEFAULT_LOCAL_PREF`] there if absent.
    pub local_pref: Option<u32>,
    /// COMMUNITIES (RFC 1997).
    pub communities: Vec<u32>,
    /// LARGE_COMMUNITY (RFC 8092).
    pub large: Vec<[u32; 3]>,
    /// EXTENDED COMMUNITIES (RFC 4360).
    pub extended: Vec<[u8; 8]>,
    /// Next hop of IPv4 prefixes; absent: self.
    pub next_hop_ipv4: Option<Ipv4Addr>,
    /// Next hop of IPv6 prefixes, and of IPv4 ones by RFC 8950; absent: self.
    pub next_hop_ipv6: Option<Ipv6Addr>,
}

/// Why a route isn't told to a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsent {
    /// The session doesn't carry this family.
    Family(Family),
    /// The connection has no address of the family, none is configured, and an IPv6 next hop for IPv4 (RFC 8950) wasn't
    /// agreed on.
    NoNextHop(Family),
    /// Its attributes don't fit into one message.
    TooLarge {
        /// What one route would take, bytes.
        bytes: usize,
    },
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Family(family) => write!(f, "the session doesn't carry {family}"),
            Self::NoNextHop(family) => write!(f, "no {family} next hop on this session"),
            Self::TooLarge { bytes } => write!(f, "its attributes don't fit into a message ({bytes} bytes)"),
        }
    }
}
