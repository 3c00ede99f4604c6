//! What measurements leave behind: one JSON file a piece, of the form of the drills' (`tests/results/README.md`), in the
//! folder that `HOLDFAST_RESULTS` names; without it they are only printed.

#![allow(dead_code, reason = "each test file uses its own part")]

use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

/// One-minute load average: figures of a busy machine say nothing.
pub(crate) fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// In milliseconds, sorted.
pub(crate) fn milliseconds(took: &[std::time::Duration]) -> Vec<f64> {
    let mut all: Vec<f64> = took.iter().map(|one| one.as_secs_f64() * 1_000.0).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// The middle of what is sorted.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    let at = |n: usize| sorted.get(n).copied().unwrap_or(f64::NAN);
    (at((sorted.len().max(1) - 1) / 2) + at(sorted.len() / 2)) / 2.0
}

/// Each unit is `{ pass, report }`. Fails unless all pass, once they are written.
pub(crate) fn record(piece: &str, units: &[Value]) {
    for unit in units {
        println!("{piece}: {unit}");
    }
    let passed = |unit: &Value| unit.get("pass").and_then(Value::as_bool) == Some(true);
    let pass = units.iter().all(passed);
    if let Some(folder) = std::env::var_os("HOLDFAST_RESULTS").map(PathBuf::from) {
        let file = folder.join(format!("{piece}.json"));
        let document = json!({
            "schema": 1, "piece": piece, "kind": "cost", "commit": git(&["rev-parse", "HEAD"]), "dirty": dirty(),
            "date": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), "profile": profile(),
            "machine": machine(), "pass": pass, "units": units,
        });
        let text = serde_json::to_string_pretty(&document).expect("it is JSON");
        std::fs::write(&file, text + "\n").unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
    assert!(pass, "a limit was missed");
}

fn git(arguments: &[&str]) -> Option<String> {
    let here = env!("CARGO_MANIFEST_DIR");
    let output = Command::new("git").args(["-C", here]).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Results don't make a tree dirty: they are what is written here.
fn dirty() -> Option<bool> {
    git(&["status", "--porcelain", "--", ":/", ":(top,exclude)tests/results"]).map(|changed| !changed.is_empty())
}

/// `target/demo/deps/pool-…` is of profile demo.
fn profile() -> Option<String> {
    let exe = std::env::current_exe().ok()?;
    Some(exe.parent()?.parent()?.file_name()?.to_string_lossy().into_owned())
}

fn machine() -> Value {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "kernel": kernel.trim(),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "cpu": model.map(|text| text.trim_start_matches([' ', '\t', ':'])),
    })
}
