//! VRRP as pure code: wire format, router state machine, timing and the frames that announce an address.
//!
//! Nothing here touches a socket, a clock or the kernel. The caller owns the loop:
//!
//! ```text
//! router.handle(now, input);                       // one input …
//! while let Some(out) = router.poll_output() { … } // … then drain, before the next
//! let wake = router.poll_timeout();                // None: nothing armed
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
