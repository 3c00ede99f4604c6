//! What the sync thread says of the replication of flows, as the node sees it.
//!
//! The thread that holds the peers' flows says in a [`SyncWord`] how far it is; the node says whose a VIP is
//! ([`Output::Elected`](crate::Output::Elected)). `view` holds the last word, `gate` says what comes of it, `ways` what else
//! belongs together: a unit that several nodes serve, and the addresses that it is answered at.

mod gate;
mod view;
mod ways;

pub use gate::{FlowsView, GATE, Gate};
pub use holdfast_statesync::flow::{Direction, Elected, Event as SyncEvent, NotReady, Why};
pub use view::{Unready, View, WORD_MAX};
pub(crate) use ways::Ways;

use std::time::Duration;

/// How the replication stands: sent when the thread begins, at each change of what isn't a number (but no more often than
/// every 10 ms), and at least once a second. Replaces the word before.
///
/// While there is traffic something is always on its way, to peers and into the kernel. So what says that nothing is
/// (`ready`, `flushed`) holds if that was so at some moment since the word before.
#[derive(Debug, Clone, PartialEq)]
pub struct SyncWord {
    /// The thread's run: another one than before has to be told anew who owns what.
    pub run: u64,
    /// By the place in [`crate::config::StateSync::vips`].
    pub vips: Vec<SyncVipWord>,
    /// By [`PeerId`](holdfast_statesync::PeerId), as far as flows are replicated to them.
    pub peers: Vec<SyncPeerWord>,
    /// How old a change was, at the median of the last minute, when the last peer had acknowledged it; `None`: none was.
    pub lag: Option<Duration>,
    /// Why nothing can be replicated at all, in words: the kernel's table can't be read, the socket can't be opened.
    pub trouble: Option<String>,
}

/// Of one VIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncVipWord {
    /// All that peers have of its flows is in our kernel; or what is missing.
    pub ready: Result<(), NotReady>,
    /// Its flows here, replicas among them.
    pub flows: u64,
    /// Those that are too young to be replicated.
    pub young: u64,
}

/// Of one peer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SyncPeerWord {
    /// The peer's flows here.
    pub inbound: Direction,
    /// Our flows there.
    pub outbound: Direction,
    /// Nothing of ours is on its way to it.
    pub flushed: bool,
    /// Its flows that we hold.
    pub flows: u64,
}

/// For people.
pub const fn why_text(why: Why) -> &'static str {
    match why {
        Why::NoSession => "no session with it",
        Why::NotCompared => "nothing was compared yet",
        Why::Differs => "it differs and is being sent",
        Why::Stale => "the last comparison is too old",
        Why::Reading => "the kernel's connection table is still being read",
        Why::PeerFull => "its table is full",
    }
}
