//! See tests/fuzz/README.md.
#![no_main]

#[path = "../bodies/bfd_decode.rs"]
mod bfd_decode;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bfd_decode::run(data);
});
