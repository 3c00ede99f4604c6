//! The results, for people and as JSON.

use super::runner::Done;
use super::scenario::{Outcome, SCENARIOS};
use crate::beside::Done as _;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// A cell's line: rounds passed, and the worst takeover of each scenario.
#[must_use]
pub fn line(done: &Done) -> String {
    let word = match (&done.skipped, done.pass()) {
        (Some(_), _) => "skip",
        (None, true) => "pass",
        (None, false) => "FAIL",
    };
    let note = match &done.skipped {
        Some(why) => why.clone(),
        None => format!("{} rounds, both owned ≤ {:.1} ms{}", done.rounds, worst_dual(done), extra(done)),
    };
    format!("{word}  {:<62}{:>5} s  {note}", done.cell.to_string(), done.seconds)
}

fn extra(done: &Done) -> String {
    let void = if done.void > 0 { format!(", {} void", done.void) } else { String::new() };
    let again = if done.again { ", passed only alone" } else { "" };
    format!("{void}{again}")
}

fn worst_dual(done: &Done) -> f64 {
    done.outcomes.iter().map(|o| o.dual_ms).fold(0.0, f64::max)
}

fn of<'a>(done: &'a Done, scenario: &'a str) -> impl Iterator<Item = &'a Outcome> {
    done.outcomes.iter().filter(move |o| o.scenario == scenario)
}

fn takeovers(done: &Done, scenario: &str) -> Vec<f64> {
    let mut all: Vec<f64> = of(done, scenario).filter_map(|o| o.takeover_ms).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// All cells: for each scenario how many steps passed of how many, and the median and the worst takeover.
#[must_use]
pub fn table(all: &[Done]) -> String {
    let mut t = format!("\n{:<62}", "pair: preferred > other");
    SCENARIOS.iter().for_each(|s| {
        let _ = write!(t, "{s:>23}");
    });
    let _ = writeln!(t, "{:>12}", "both owned");
    for done in all {
        let _ = write!(t, "{:<62}", done.cell.to_string());
        if let Some(why) = &done.skipped {
            let _ = writeln!(t, "  not run: {why}");
            continue;
        }
        for scenario in SCENARIOS {
            let steps = of(done, scenario).count();
            let passed = of(done, scenario).filter(|o| o.failed.is_empty()).count();
            let times = takeovers(done, scenario);
            let times = match (times.get(times.len() / 2), times.last()) {
                (Some(median), Some(worst)) => format!(" {median:.0}/{worst:.0}"),
                _ => String::new(),
            };
            let _ = write!(t, "{:>23}", format!("{passed}/{steps}{times}"));
        }
        let _ = writeln!(t, "{:>12.1}", worst_dual(done));
    }
    t += "steps passed/done, median/worst ms from the old owner's end to the new one's first advert; both owned: worst ms\n";
    t
}

/// A cell, for `tests/results`.
#[must_use]
pub fn unit(done: &Done) -> Value {
    let scenarios: Vec<Value> = SCENARIOS
        .iter()
        .map(|&scenario| {
            let steps = of(done, scenario).count();
            let passed = of(done, scenario).filter(|o| o.failed.is_empty()).count();
            let times = takeovers(done, scenario);
            let dual = of(done, scenario).map(|o| o.dual_ms).fold(0.0, f64::max);
            json!({
                "scenario": scenario, "steps": steps, "passed": passed, "takeover_ms_min": times.first(),
                "takeover_ms_median": times.get(times.len() / 2), "takeover_ms_max": times.last(),
                "dual_ms_max": dual,
            })
        })
        .collect();
    json!({
        "cell": done.cell.to_string(),
        "pass": done.pass(),
        "rounds": done.rounds, "void": done.void, "skipped": done.skipped, "again": done.again,
        "interval_ms": u64::try_from(done.cell.interval().as_millis()).unwrap_or(u64::MAX),
        "scenarios": scenarios,
        "failures": done.failures.iter().map(|f| f.lines().take(4).collect::<Vec<_>>()).collect::<Vec<_>>(),
    })
}
