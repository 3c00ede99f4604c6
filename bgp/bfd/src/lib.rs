//! BFD as pure code: the wire format, a session and its timing, and which packet belongs to which session.
//!
//! RFC 5880 in asynchronous mode, over one hop (RFC 5881) or several (RFC 5883). Nothing here touches a socket, a clock or
//! the kernel; the caller owns the loop. It is a crate of its own because the keeper runs it, and the keeper must stay small.
//!
//! ```
//! use holdfast_bfd::{Datagram, Event, Peer, State, Table, Timers};
//! use std::{net::Ipv4Addr, time::{Duration, Instant}};
//!
//! let now = Instant::now();
//! let timers = Timers::new(Duration::from_millis(50), 3)?;
//! let mut table = Table::new(42);
//! let id = table.add(now, Peer::single_hop(Ipv4Addr::new(192, 0, 2, 1).into(), Some(7)), timers);
//!
//! // One input, then drain before the next: the first packet goes out at once, the next ones every second until the
//! // neighbour is heard.
//! table.timer(now);
//! while let Some((session, event)) = table.poll_event() {
//!     assert_eq!(session, id);
//!     assert!(matches!(event, Event::Send { .. }));
//! }
//! // Call `timer` again at this time, or `receive` before it.
//! let wake = table.poll_timeout().expect("there is a session");
//! assert!(wake >= now + Duration::from_millis(750) && wake <= now + Duration::from_secs(1));
//!
//! // Nothing of this is BFD.
//! let from = Ipv4Addr::new(192, 0, 2, 1).into();
//! let packet = Datagram { bytes: &[0; 9], from, to: None, ifindex: 7, ttl: 255, multihop: false };
//! assert!(table.receive(now, &packet).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where we differ from the RFCs
//!
//! | clause | we | because |
//! |---|---|---|
//! | 5880 6.8.6 | take no packet that is authenticated, and send none that is | a shared key protects little behind TTL 255 |
//! | 5880 6.8.6 | demand the neighbour's address with the discriminator too | a discriminator alone can be guessed |
//! | 5880 6.8.3 | no Poll Sequence when the interval grows because the session left Up | nothing needs the answer: it counts at once |
//! | 5880 6.8.7 | while Up, send as soon as the neighbour is heard in the last quarter of our interval | one wake-up for both; each interval is shortened by 0 to 25 % as ever, by the neighbour's jitter instead of ours |
//! | 5880 6.8.7 | AdminDown, and Down because of the data plane, go out three times at the former rate | one lost packet must not turn a notice into a detection |
//! | 5880 6.6, 6.4 | never ask for Demand mode, never echo | the neighbour's Demand is respected |
//!
//! What this crate refuses to do: open sockets, know what is announced behind a session, read the time.

#![forbid(unsafe_code)]
// A packet may come from anybody: what reads one may neither index nor unwrap.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

#[cfg(all(test, feature = "mutants"))]
mod guards;
pub mod mutants;
mod rng;
mod session;
mod table;
mod timers;
pub mod wire;

pub use session::{Counters, Event, Remote, Session};
pub use table::{Datagram, Discriminator, Peer, Refusal, Refused, Table};
pub use timers::{Timers, TimersError};
pub use wire::{Control, DecodeError, Diagnostic, State};
