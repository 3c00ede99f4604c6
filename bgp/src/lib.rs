//! BGP as pure code: wire format, the one-peer state machine, what we announce (Adj-RIB-Out) and message framing.
//!
//! Empty but for this page: announcing a VIP by BGP comes after the VRRP pair. The configuration refuses `bgp` keys
//! until then, by name. BFD lives in its own small crate (`bgp/bfd`); this one will not know it.

#![forbid(unsafe_code)]
