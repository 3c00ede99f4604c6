//! See tests/fuzz/README.md.
#![no_main]

// One body for all of BGP's targets: each uses a part of it.
#[allow(dead_code)]
#[path = "../bodies/bgp_wire.rs"]
mod bgp_wire;

libfuzzer_sys::fuzz_target!(|data: &[u8]| bgp_wire::update(data));
