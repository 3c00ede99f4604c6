//! Random faults from seeds: whatever breaks, the invariants hold, and after healing the best host owns the VIP.
//! More of them: `HOLDFAST_CASES=20`; one again with its trace: `HOLDFAST_SEED=n`.

use holdfast_sim::chaos;

/// Seeds of a quarter; quarters run beside each other.
const SEEDS: u64 = 40;

fn quarter(n: u64) {
    let times = std::env::var("HOLDFAST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let seeds = SEEDS * times;
    (n * seeds..(n + 1) * seeds).for_each(chaos::run);
}

#[test]
fn invariants_hold_in_the_first_quarter_of_the_seeds() {
    quarter(0);
}

#[test]
fn invariants_hold_in_the_second_quarter_of_the_seeds() {
    quarter(1);
}

#[test]
fn invariants_hold_in_the_third_quarter_of_the_seeds() {
    quarter(2);
}

#[test]
fn invariants_hold_in_the_last_quarter_of_the_seeds() {
    quarter(3);
}

#[test]
fn one_seed() {
    if let Some(seed) = std::env::var("HOLDFAST_SEED").ok().and_then(|text| text.parse().ok()) {
        chaos::run(seed);
    }
}
