//! VRRP as pure code: wire format, router state machine, timing and the frames that announce an address.
//!
//! Nothing here touches a socket, a clock or the kernel. The caller owns the loop:
//!
//! ```
//! use holdfast_vrrp::{Addresses, AdvertInterval, Input, Priority, Router, RouterConfig, State, Vrid};
//! use std::{net::Ipv4Addr, time::{Duration, Instant}};
//!
//! let config = RouterConfig {
//!     vrid: Vrid::new(10)?,
//!     interval: AdvertInterval::from_duration(Duration::from_millis(100))?,
//!     preempt: true,
//!     addresses: Addresses::new([Ipv4Addr::new(192, 0, 2, 10)])?,
//! };
//! let now = Instant::now();
//! let mut router = Router::new(config, now);
//!
//! // One input …
//! let source = Ipv4Addr::new(192, 0, 2, 1);
//! router.handle(now, Input::Start { priority: Priority::configured(254)?, source });
//! // … then drain, before the next.
//! while let Some(output) = router.poll_output() {
//!     println!("{output:?}"); // adverts go to a socket, transitions to whoever decides
//! }
//! // Call again at this time, or with whatever comes before it. None: nothing armed.
//! let wake = router.poll_timeout();
//!
//! // Nobody else spoke: three intervals and the skew of priority 254 later the address is ours.
//! assert_eq!(wake, Some(now + Duration::from_micros(300_781)));
//! router.handle(wake.unwrap(), Input::Timer);
//! assert_eq!(router.state(), State::Active);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What this crate refuses to do: add or remove addresses (the caller's reconcile does), decide whether a node may own
//! an address (the caller says so with [`Input::Start`], [`Input::Priority`], [`Input::Resign`]), and read the time.

#![forbid(unsafe_code)]
// A packet may come from anybody: what reads one may neither index nor unwrap.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod checksum;
pub mod frames;
pub mod mutants;
pub mod router;
pub mod timing;
pub mod types;
pub mod wire;

pub use router::{Input, Output, Router, RouterConfig, State};
pub use types::{Addresses, AdvertInterval, Priority, Vrid};
