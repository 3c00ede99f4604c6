//! Many cells side by side, and what came of them all.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, mpsc};

/// A cell that was run.
pub trait Done {
    /// What it is a cell of.
    type Cell: Copy + Send;
    /// Which.
    fn cell(&self) -> Self::Cell;
    /// One of the two in it is ours.
    fn ours(&self) -> bool;
    /// It ran and nothing failed.
    fn pass(&self) -> bool;
    /// Why it wasn't run.
    fn skipped(&self) -> Option<&str>;
    /// It failed beside others and passed alone.
    fn passed_alone(&mut self);
    /// For `tests/results`.
    fn unit(&self) -> Value;
}

/// Runs cells, `jobs` side by side; gives them in order, and `tell` hears of each when it is done. With `again` one that
/// failed is run once more, alone, and if it passes so, that counts.
#[must_use]
pub fn beside<D: Done + Send>(
    all: &[D::Cell],
    jobs: usize,
    again: bool,
    run: impl Fn(D::Cell) -> D + Sync,
    mut tell: impl FnMut(&D),
) -> Vec<D> {
    let queue: Mutex<VecDeque<(usize, D::Cell)>> = Mutex::new(all.iter().copied().enumerate().collect());
    let (sender, receiver) = mpsc::channel();
    let mut results: Vec<(usize, D)> = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (sender, queue, run) = (sender.clone(), &queue, &run);
            scope.spawn(move || {
                let next = || queue.lock().ok().and_then(|mut q| q.pop_front());
                while let Some((n, cell)) = next() {
                    if sender.send((n, run(cell))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (n, done) in receiver {
            tell(&done);
            results.push((n, done));
        }
    });
    if again {
        for (_, failed) in results.iter_mut().filter(|(_, d)| d.skipped().is_none() && !d.pass()) {
            let mut alone = run(failed.cell());
            if alone.pass() {
                alone.passed_alone();
            }
            tell(&alone);
            if alone.pass() {
                *failed = alone;
            }
        }
    }
    results.sort_by_key(|(n, _)| *n);
    results.into_iter().map(|(_, done)| done).collect()
}

/// Prints the counts, and writes all to `json`, if given; gives whether that is a success. With `strict` a cell with ours
/// in it that wasn't run is none. What a cell without ours doesn't hold says something of the peers, and is no failure.
///
/// # Errors
/// The file can't be written.
pub fn conclude<D: Done>(all: &[D], strict: bool, json: Option<&Path>) -> Result<bool> {
    let (note, success) = counts(all, strict);
    if let Some(file) = json {
        let cells: Vec<Value> = all.iter().map(Done::unit).collect();
        let document = json!({"note": note, "cells": cells});
        std::fs::write(file, format!("{document}\n")).with_context(|| file.display().to_string())?;
    }
    println!("{note}");
    Ok(success)
}

fn counts<D: Done>(all: &[D], strict: bool) -> (String, bool) {
    let of = |ours| {
        let cells = || all.iter().filter(move |d| d.ours() == ours);
        let passed = cells().filter(|d| d.pass()).count();
        let skipped = cells().filter(|d| d.skipped().is_some()).count();
        (passed, cells().count() - passed - skipped, skipped)
    };
    let (passed, failed, skipped) = of(true);
    let why = if strict && skipped > 0 { ": none of ours may be" } else { "" };
    let beside = match of(false) {
        (0, 0, 0) => String::new(),
        (passed, failed, skipped) => format!("; without ours {passed} passed, {failed} failed, {skipped} skipped"),
    };
    let success = failed == 0 && !(strict && skipped > 0);
    (format!("{passed} cells passed, {failed} failed, {skipped} skipped{why}{beside}"), success)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Debug, Clone, PartialEq)]
    struct Of {
        cell: usize,
        ours: bool,
        pass: bool,
        skipped: Option<String>,
        alone: bool,
    }

    fn of(cell: usize, pass: bool) -> Of {
        Of { cell, ours: true, pass, skipped: None, alone: false }
    }

    fn skipped(ours: bool) -> Of {
        Of { ours, skipped: Some("no such program".into()), ..of(0, false) }
    }

    impl Done for Of {
        type Cell = usize;

        fn cell(&self) -> usize {
            self.cell
        }

        fn ours(&self) -> bool {
            self.ours
        }

        fn pass(&self) -> bool {
            self.pass
        }

        fn skipped(&self) -> Option<&str> {
            self.skipped.as_deref()
        }

        fn passed_alone(&mut self) {
            self.alone = true;
        }

        fn unit(&self) -> Value {
            json!(self.cell)
        }
    }

    #[test]
    fn cells_are_given_in_order_and_one_that_failed_beside_others_may_pass_alone() {
        let tries = AtomicUsize::new(0);
        let run = |cell| of(cell, cell != 2 || tries.fetch_add(1, Ordering::Relaxed) > 0);
        let mut told = 0;
        let all = beside(&[0, 1, 2, 3], 3, true, run, |_| told += 1);
        let alone = Of { alone: true, ..of(2, true) };
        assert_eq!(all, [of(0, true), of(1, true), alone, of(3, true)]);
        assert_eq!(told, 5);
        let once = beside(&[2], 1, false, |cell| of(cell, false), |_| {});
        assert_eq!(once, [of(2, false)]);
    }

    #[test]
    fn a_cell_of_ours_that_was_not_run_is_a_failure_where_figures_are_strict() {
        let success = |all: &[Of], strict| counts(all, strict).1;
        assert!(success(&[of(0, true), skipped(true)], false));
        assert!(!success(&[of(0, true), skipped(true)], true));
        assert!(success(&[of(0, true), skipped(false)], true));
        assert!(!success(&[of(0, false), of(1, true)], false));
    }

    #[test]
    fn what_a_cell_without_ours_does_not_hold_is_told_and_is_no_failure() {
        let all = [of(0, true), Of { ours: false, ..of(1, false) }, Of { ours: false, ..of(2, true) }];
        let (note, success) = counts(&all, true);
        assert!(success);
        assert_eq!(note, "1 cells passed, 0 failed, 0 skipped; without ours 1 passed, 1 failed, 0 skipped");
    }
}
