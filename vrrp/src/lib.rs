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
//!     jitter: true,
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
//! # Units and legs
//!
//! A [`Router`] is one state machine for a **unit**: all that must be on one node, such as the IPv4 and IPv6 addresses of
//! a service, or all services of a group. Each **leg** ([`LegConfig`]) is one virtual router on the wire, with its VRID,
//! version, family and transport. The unit is Active or Backup with all its legs; see [`router`].
//!
//! On the way in, a packet passes three gates, each with its own kinds of [`AdvertError`](wire::AdvertError):
//! 1. [`wire::decode_v4`] or [`wire::decode_v6`]: is it a valid advert of any virtual router?
//! 2. the caller finds the leg by interface, family and VRID; [`LegConfig::accept`]: did it come the leg's way, and does
//!    it speak the leg's version?
//! 3. [`Input::Advert`]: what does it mean?
//!
//! # Where we differ from the RFCs
//!
//! RFC 9568 is the law here; these are the exceptions, each for a reason that the field has taught:
//!
//! | clause | we | because |
//! |---|---|---|
//! | 5.2.8 checksum over IPv4 | accept it with and without pseudo-header, send what the peers do | RFC 5798 was read both ways; see [`ChecksumMode`] |
//! | 5.1.1.3 TTL | demand 255 of multicast; of unicast `min_ttl`, and a known peer | the RFC has no unicast; clouds have no multicast |
//! | 6.1 Skew_Time | count in µs, and add a jitter below one step of priority | in centiseconds the order of priorities is lost; equals fired together |
//! | 6.1 Preempt_Mode | preempt a node at priority 1 always | it failed, and holds on only because nobody else took over |
//! | (none) | `preempt_delay` | a node that comes back often isn't ready at once |
//! | 6.4.2 priority 0 | never move the deadline later | repeated resignations could postpone a takeover for ever |
//! | 6.4.3 losing | say one last advert | the winner learns of the conflict and announces itself again |
//! | 6.4.3 losing advert | answer it at most 16 times an interval, on the leg where it was heard | two confused routers could storm the segment |
//! | 6.4.3 priority 0 in Active | leave Adver_Timer, if there are more legs | the answer goes out on one leg only |
//! | 6.4.3 between equals | decide on the lowest leg where both are heard | addresses may be ordered differently on two legs |
//! | 7.1, erratum 8298 | elect between two owners, and tell | dropping each other's adverts leaves both Active |
//! | 8.4 both versions at once | one version per leg | it was meant for a migration, and doubles what can go wrong |
//! | RFC 3768 6.4.3 losing advert | answer it, as RFC 9568 does | silence prolongs a conflict by up to an interval |
//!
//! VRRPv2 is there for peers that know nothing else: without authentication (RFC 3768 has none; a password in clear
//! protects from nobody), and with its strict rules: another interval, or other addresses from one that isn't their
//! owner, and the advert is dropped. So change both nodes' addresses together, or speak VRRPv3.
//!
//! //! What this crate refuses to do: add or remove addresses (the caller's reconcile does), decide whether a node may own
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
