//! See tests/fuzz/README.md.
#![no_main]

#[path = "../bodies/ct_messages.rs"]
mod ct_messages;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ct_messages::run(data);
});
