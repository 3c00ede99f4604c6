//! See tests/fuzz/README.md.
#![no_main]

#[path = "../bodies/flow_batches.rs"]
mod flow_batches;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    flow_batches::run(data);
});
