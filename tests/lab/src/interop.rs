//! The matrix of mixed pairs, and that of BGP routers: another program, `holdfast-interop`, beside this one; it prints its table itself.

use crate::{env, residue};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct Rounds {
    /// The matrix of routers instead of that of pairs.
    pub bgp: bool,
    /// Rounds of each cell.
    pub rounds: usize,
    /// Against the figures themselves.
    pub strict: bool,
    /// Pairs without Holdfast as well.
    pub baselines: bool,
}

/// What came out.
#[derive(Debug)]
pub struct Matrix {
    /// No cell failed.
    pub pass: bool,
    /// Its last line: counts.
    pub note: String,
    /// Every cell.
    pub json: Value,
}

/// Runs it.
///
/// # Errors
/// [`env::Lacks`] when there is no such program; it can't be run, or left no results.
pub fn run(holdfast: &Path, rounds: &Rounds) -> Result<Matrix> {
    const NAME: &str = "holdfast-interop";
    let program = env::beside(NAME)?;
    let file = std::env::temp_dir().join(format!("holdfast-interop-{}.json", std::process::id()));
    let mut command = Command::new(program);
    command.args(rounds.bgp.then_some("--bgp"));
    command.arg("--holdfast").arg(holdfast).arg("--json").arg(&file);
    command.args(["--rounds", &rounds.rounds.to_string()]);
    command.args(rounds.strict.then_some("--strict")).args(rounds.baselines.then_some("--baselines"));
    let status = residue::run(&mut command).with_context(|| format!("run {NAME}"))?;
    let text = std::fs::read(&file).with_context(|| format!("{NAME}: {status}; it left no results"))?;
    let _gone = std::fs::remove_file(&file);
    let json: Value = serde_json::from_slice(&text)?;
    let note = json["note"].as_str().unwrap_or_default().to_owned();
    Ok(Matrix { pass: status.success(), note, json })
}
