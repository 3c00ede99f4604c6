//! Runs seeds: `holdfast-sim [--from N] [--seeds N] [--jobs N]`. One line of JSON at the end: how many held, which
//! failed, what was seen, how fast. Exit status 1 if any failed; the first failures are shown with their traces.

use holdfast_sim::chaos;
use holdfast_sim::coverage::Coverage;
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Failures shown whole.
const SHOWN: usize = 3;

fn main() -> ExitCode {
    let Some([from, seeds, jobs]) = arguments() else {
        eprintln!("usage: holdfast-sim [--from N] [--seeds N] [--jobs N]");
        return ExitCode::from(4);
    };
    #[allow(clippy::disallowed_methods, reason = "how fast this machine runs them")]
    let start = std::time::Instant::now();
    // A failure is shown here, not as each thread panics.
    std::panic::set_hook(Box::new(|_| {}));
    let next = AtomicU64::new(from);
    let failed: Mutex<Vec<(u64, String)>> = Mutex::default();
    let coverage: Mutex<Coverage> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                let mut own = Coverage::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + seeds {
                        break;
                    }
                    match catch_unwind(|| chaos::run(seed)) {
                        Ok(seen) => own.add(&seen),
                        Err(panic) => {
                            let words = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                            eprintln!("FAIL {seed}: {}", words.lines().next().unwrap_or_default());
                            failed.lock().expect("no thread panics with it").push((seed, words));
                        }
                    }
                }
                coverage.lock().expect("no thread panics with it").add(&own);
            });
        }
    });
    let mut failed = failed.into_inner().expect("no thread panicked with it");
    failed.sort();
    for (_, words) in failed.iter().take(SHOWN) {
        eprintln!("{words}");
    }
    let coverage = coverage.into_inner().expect("no thread panicked with it");
    let missing = coverage.missing(chaos::WANTED);
    let took = start.elapsed().as_secs_f64();
    let list = |numbers: Vec<String>| numbers.join(",");
    let seen = list(coverage.iter().map(|(what, count)| format!("{what:?}:{count}")).collect());
    println!(
        "{{\"from\":{from},\"seeds\":{seeds},\"virtual_seconds_each\":60,\"failed\":[{}],\"never_seen\":{missing:?},\
         \"seconds\":{took:.1},\"seeds_per_second\":{:.1},\"seen\":{{{seen}}}}}",
        list(failed.iter().map(|(seed, _)| seed.to_string()).collect()),
        seeds as f64 / took,
    );
    ExitCode::from(u8::from(!failed.is_empty() || seeds >= 100 && !missing.is_empty()))
}

/// First seed, how many, on how many threads.
fn arguments() -> Option<[u64; 3]> {
    let mut values = [0, 2000, 2];
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let place = ["--from", "--seeds", "--jobs"].iter().position(|known| *known == name)?;
        values[place] = arguments.next()?.parse().ok()?;
    }
    Some(values)
}
