//! What replicating flows costs beside conntrackd: another program, `holdfast-bench`, beside this one; it prints its tables
//! itself.

use crate::{env, residue};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// What to run.
#[derive(Debug, Clone)]
pub struct Load<'a> {
    /// Its questions; none: all.
    pub cases: &'a [String],
    /// Events of a load.
    pub events: u32,
    /// Flows of a big table.
    pub entries: u32,
    /// Events per second of the sustained load.
    pub rate: u32,
    /// How often.
    pub repeat: usize,
    /// Against the figures themselves.
    pub strict: bool,
}

/// What came out.
#[derive(Debug)]
pub struct Figures {
    /// What is judged held.
    pub pass: bool,
    /// The verdicts that say something.
    pub note: String,
    /// Everything.
    pub json: Value,
}

/// Runs it.
///
/// # Errors
/// [`env::Lacks`] when there is no such program, or it lacks one itself; it can't be run, or left no results.
pub fn run(holdfast: &Path, load: &Load<'_>) -> Result<Figures> {
    const NAME: &str = "holdfast-bench";
    let program = env::beside(NAME)?;
    if env::find_program("conntrackd").is_none() {
        anyhow::bail!(env::Lacks("conntrackd".into()));
    }
    let file = std::env::temp_dir().join(format!("holdfast-bench-{}.json", std::process::id()));
    let mut command = Command::new(program);
    command.args(load.cases).arg("--holdfast").arg(holdfast).arg("--json").arg(&file);
    for (name, value) in [("--events", load.events), ("--entries", load.entries), ("--rate", load.rate)] {
        command.arg(name).arg(value.to_string());
    }
    command.args(["--repeat", &load.repeat.to_string()]).args(load.strict.then_some("--strict"));
    let status = residue::run(&mut command).with_context(|| format!("run {NAME}"))?;
    let text = std::fs::read(&file).with_context(|| format!("{NAME}: {status}; it left no results"))?;
    let _gone = std::fs::remove_file(&file);
    let json: Value = serde_json::from_slice(&text)?;
    let note = json["note"].as_str().unwrap_or_default().to_owned();
    Ok(Figures { pass: status.success(), note, json })
}
