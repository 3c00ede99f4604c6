//! VRRP as pure code: wire format, router state machine, timing and the frames that announce an address.
//!
//! Nothing here touches a socket, a clock or the kernel. The caller owns the loop:
//!
//! ```
//! use holdfast_vrrp::{
//!     Addresses, AdvertInterval, ChecksumMode, Input, LegConfig, LegId, Priority, Router, RouterConfig, State, Transport,
//!     Version, Vrid,
//! };
//! use std::{net::Ipv4Addr, time::{Duration, Instant}};
//!
//! let leg = LegConfig {
//!     vrid: Vrid::new(10)?,
//!     version: Version::V3,
//!     addresses: Addresses::new([Ipv4Addr::new(192, 0, 2, 10)])?,
//!     transport: Transport::Multicast,
//!     checksum: ChecksumMode::Auto,
//! };
//! let config = RouterConfig {
//!     legs: vec![leg],
//!     interval: AdvertInterval::from_duration(Duration::from_millis(100))?,
//!     preempt: true,
//!     preempt_delay: Duration::ZERO,
//! };
//! config.check()?;
//! let now = Instant::now();
//! let mut router = Router::new(config, now);
//!
//! // One input …
//! let source = Ipv4Addr::new(192, 0, 2, 128).into();
//! router.handle(now, Input::Source { leg: LegId(0), source });
//! router.handle(now, Input::Start { priority: Priority::configured(254)? });
//! // … then drain, before the next.
//! while let Some(output) = router.poll_output() {
//!     println!("{output:?}"); // adverts go to a socket, transitions to whoever decides
//! }
//! // Call again at this time, or with whatever comes before it. None: nothing armed.
//! let wake = router.poll_timeout();
//!
//! // Nobody else spoke: three intervals and the skew of priority 254 later (and a µs that our address adds, so that
//! // equals don't fire together) the address is ours.
//! assert_eq!(wake, Some(now + Duration::from_micros(300_782)));
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
pub mod leg;
pub mod mutants;
pub mod router;
pub mod timing;
pub mod types;
pub mod wire;

pub use leg::{ChecksumMode, ConfigError, LegConfig, Transport};
pub use router::{Input, Output, Packet, Router, RouterConfig, State};
pub use types::{Addresses, AdvertInterval, Family, LegId, Priority, Version, Vrid};
pub use wire::ChecksumForm;
