//! Seeds of the simulator, by the program `holdfast-sim` that is built beside this one.

use crate::env::Lacks;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::process::Command;

/// How a range of seeds went.
#[derive(Debug)]
pub struct Seeds {
    /// All held, and every kind of fault was seen.
    pub pass: bool,
    /// In a line.
    pub note: String,
    /// The failing ones, with the traces of the first.
    pub details: String,
    /// What the program printed.
    pub json: Value,
}

/// Runs so many seeds, from 0 on, on every core.
///
/// # Errors
/// The program isn't there or doesn't print what it should.
pub fn seeds(count: u32) -> Result<Seeds> {
    let beside = std::env::current_exe().ok().and_then(|p| Some(p.parent()?.join("holdfast-sim")));
    let Some(program) = beside.filter(|p| p.is_file()) else {
        bail!(Lacks("the simulator: no `holdfast-sim` beside this program (make binaries)".into()));
    };
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let arguments = ["--seeds", &count.to_string(), "--jobs", &jobs.to_string()].map(str::to_owned);
    let output = Command::new(&program).args(arguments).output().context("run holdfast-sim")?;
    let json: Value = serde_json::from_slice(&output.stdout).context("what holdfast-sim printed")?;
    let list = |key: &str| json.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let (failed, unseen) = (list("failed"), list("never_seen"));
    let note = format!(
        "{count} seeds of 60 s, {} failed, {} kinds never seen, {} seeds/s",
        failed.len(),
        unseen.len(),
        json.get("seeds_per_second").map(Value::to_string).unwrap_or_default()
    );
    let details = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(Seeds { pass: output.status.success(), note, details, json })
}
