//! See tests/fuzz/README.md.
#![no_main]

#[path = "../bodies/vrrp_decode.rs"]
mod vrrp_decode;

libfuzzer_sys::fuzz_target!(|data: &[u8]| vrrp_decode::run(data));
