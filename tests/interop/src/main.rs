//! `holdfast-interop`: the matrix of mixed pairs, and with `--bgp` that of routers; every cell through every scenario.

#![forbid(unsafe_code)]

use anyhow::Result;
use clap::Parser;
use holdfast_interop::beside::{Done, conclude};
use holdfast_interop::bgp;
use holdfast_interop::mixed::cell::{Cell, matrix};
use holdfast_interop::mixed::runner::{Options, cells};
use holdfast_interop::mixed::scenario::Limits;
use holdfast_interop::mixed::table::{line, table};
use std::path::PathBuf;
use std::process::ExitCode;

/// Real peers as the other end, in both roles.
#[derive(Debug, Parser)]
#[command(name = "holdfast-interop")]
struct Arguments {
    /// BGP with real routers instead of VRRP pairs
    #[arg(long)]
    bgp: bool,
    /// Rounds for each cell
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Cells side by side [default: 10; 6 for BGP]
    #[arg(long)]
    jobs: Option<usize>,
    /// Only cells whose name has all of these in it
    #[arg(long)]
    cell: Vec<String>,
    /// Pairs without Holdfast as well: what fails there is the peers' or the harness's doing
    #[arg(long)]
    baselines: bool,
    /// Against the figures themselves, not CI's wider limits; nothing is run a second time, and no cell of ours may be
    /// skipped
    #[arg(long)]
    strict: bool,
    /// A line for each step
    #[arg(long)]
    verbose: bool,
    /// The agent's binary [default: HOLDFAST_BIN, else the newest build]
    #[arg(long)]
    holdfast: Option<PathBuf>,
    /// Where the results go as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let a = Arguments::parse();
    holdfast_interop::use_binary(a.holdfast.as_deref())?;
    holdfast_lab::env::require_basics()?;
    holdfast_lab::residue::remove_on_signal()?;
    if a.bgp {
        return routers(&a);
    }
    let chosen = matrix(a.baselines).into_iter().filter(|c| a.cell.iter().all(|part| c.to_string().contains(part)));
    let run: Vec<Cell> = chosen.collect();
    let o = Options {
        rounds: a.rounds,
        jobs: a.jobs.unwrap_or(10),
        limits: if a.strict { Limits::Strict } else { Limits::Wide },
        again: !a.strict,
        verbose: a.verbose,
    };
    let all = cells(&run, &o, |done| {
        println!("{}", line(done));
        done.failures.iter().for_each(|f| println!("{f}"));
    });
    println!("{}", table(&all));
    end(&a, &all)
}

/// The counts and the results of all cells.
fn end<D: Done>(a: &Arguments, all: &[D]) -> Result<ExitCode> {
    Ok(if conclude(all, a.strict, a.json.as_deref())? { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The matrix of routers; with `--baselines` each cell as well with BIRD in our place.
fn routers(a: &Arguments) -> Result<ExitCode> {
    use bgp::ours::Kind;
    let named = |c: &bgp::cell::Cell| a.cell.iter().all(|part| c.to_string().contains(part));
    let run: Vec<_> = bgp::cell::matrix().into_iter().filter(named).collect();
    let mut all = Vec::new();
    for ours in [Some(Kind::Holdfast), a.baselines.then_some(Kind::Bird)].into_iter().flatten() {
        let o = bgp::runner::Options {
            ours,
            rounds: a.rounds,
            jobs: a.jobs.unwrap_or(6),
            strict: a.strict,
            verbose: a.verbose,
        };
        all.extend(bgp::runner::cells(&run, &o, |done| {
            println!("{}", done.line());
            done.failures.iter().for_each(|f| println!("{f}"));
        }));
    }
    end(a, &all)
}
