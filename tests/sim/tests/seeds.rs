//! Random faults from seeds. More of them: `HOLDFAST_CASES=20`; one again with its trace: `HOLDFAST_SEED=n`.

use holdfast_sim::chaos;

fn cases() -> u64 {
    std::env::var("HOLDFAST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[test]
fn whatever_breaks_the_invariants_hold_and_after_healing_the_best_host_owns_the_vip() {
    (0..150 * cases()).for_each(chaos::run);
}

#[test]
fn one_seed() {
    if let Some(seed) = std::env::var("HOLDFAST_SEED").ok().and_then(|text| text.parse().ok()) {
        chaos::run(seed);
    }
}
