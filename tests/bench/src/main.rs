//! `holdfast-bench`: flow replication beside conntrackd; see the library.

#![forbid(unsafe_code)]

use anyhow::{Result, bail};
use clap::Parser;
use holdfast_bench::cases::{self, Case};
use holdfast_lab::env::Lacks;
use holdfast_lab::{env, residue};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Flow replication, measured beside conntrackd.
#[derive(Debug, Parser)]
#[command(name = "holdfast-bench")]
struct Arguments {
    /// Which [default: all]
    #[arg(value_enum)]
    cases: Vec<Case>,
    /// Events of each load whose events are counted
    #[arg(long, default_value_t = 50_000)]
    events: u32,
    /// Flows in the tables that are to be big
    #[arg(long, default_value_t = 1_000_000)]
    entries: u32,
    /// Events per second of the sustained load
    #[arg(long, default_value_t = 100_000)]
    rate: u32,
    /// How often each pair is measured, and how many takeovers
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    /// Holdfast alone
    #[arg(long)]
    alone: bool,
    /// Against the figures themselves; else only what must hold on any machine
    #[arg(long)]
    strict: bool,
    /// The agent's binary [default: beside this one, else in PATH]
    #[arg(long)]
    holdfast: Option<PathBuf>,
    /// Where the results go as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Keep configurations and logs
    #[arg(long)]
    keep: bool,
}

fn main() -> Result<ExitCode> {
    let a = Arguments::parse();
    env::require_basics()?;
    env::holdfast(a.holdfast.as_deref())?;
    residue::remove_on_signal()?;
    let cases = if a.cases.is_empty() { Case::ALL.to_vec() } else { a.cases.clone() };
    if a.events < 100 || a.entries < 100 {
        bail!("fewer than 100 events or entries say nothing");
    }
    let options = cases::Options {
        events: a.events,
        entries: a.entries,
        rate: a.rate,
        repeat: a.repeat,
        alone: a.alone,
        holdfast: a.holdfast,
        keep: a.keep,
    };
    let (mut all, mut pass, mut notes) = (Vec::new(), true, Vec::new());
    for case in cases {
        println!("{}: {}", case.name(), case.what());
        let unit = match cases::run(case, &options) {
            Ok(outcome) => {
                println!("{}", outcome.text());
                pass &= outcome.pass(a.strict);
                notes.extend(outcome.verdicts.iter().filter(|v| v.goal || !v.held).map(|v| v.text.clone()));
                json!({"case": case.name(), "pass": outcome.pass(a.strict), "figures": outcome.json()})
            }
            Err(e) if e.downcast_ref::<Lacks>().is_some() => return Err(e),
            Err(e) => {
                println!("  {e:#}\n");
                pass = false;
                notes.push(format!("{}: {e:#}", case.name()));
                json!({"case": case.name(), "pass": false, "error": format!("{e:#}")})
            }
        };
        all.push(unit);
    }
    if let Some(file) = &a.json {
        let document = json!({
            "events": a.events, "entries": a.entries, "rate": a.rate, "strict": a.strict, "note": notes.join("; "), "cases": all,
        });
        std::fs::write(file, document.to_string())?;
    }
    Ok(if pass { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
