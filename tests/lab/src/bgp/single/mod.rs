//! What one agent does to one neighbour, which is the lab itself: limits that a routing daemon would hide, and what a
//! neighbour may never be told.
//!
//! - `many-vips`: thousands of VIPs are announced, and all of them withdrawn, how fast?
//! - `large-table`: the neighbour tells a table of a million routes: memory, and the adverts of a VRRP beside it;
//! - `no-return`: a route that failed never comes back by itself, whatever the session and the agent go through.

mod adverts;
mod agent;
mod large;
mod many;
mod neighbor;
mod revival;

use crate::bgp::net::Net;
use crate::clock::{Ns, ms_between};
use crate::watch::reference::VOID;
use anyhow::{Result, bail};
use serde_json::Value;
use std::path::Path;

/// A question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// How fast many VIPs are told.
    ManyVips,
    /// What a large table costs.
    LargeTable,
    /// Whether a route comes back by itself.
    NoReturn,
}

/// How it is asked.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// VIPs, routes of the table, or runs of each kind.
    pub count: usize,
    /// Against the figures themselves.
    pub strict: bool,
    /// The agent's binary.
    pub holdfast: &'a Path,
}

/// The answer.
#[derive(Debug)]
pub struct Outcome {
    /// As it should be.
    pub pass: bool,
    /// The machine was too late for this to say anything.
    pub void: bool,
    /// In a line.
    pub note: String,
    /// What a failure leaves in the log.
    pub details: String,
    /// For programs.
    pub json: Value,
}

/// Asks; again if the machine was late, three times at most.
///
/// # Errors
/// The machine can't run it, or nothing came up.
pub fn ask(case: Case, o: &Options<'_>) -> Result<Outcome> {
    const TRIES: usize = 3;
    for nth in 1.. {
        let outcome = match case {
            Case::ManyVips => many::ask(o)?,
            Case::LargeTable => large::ask(o)?,
            Case::NoReturn => revival::ask(o)?,
        };
        if !outcome.void {
            return Ok(outcome);
        }
        if nth >= TRIES {
            bail!("the machine was late in each of {TRIES} runs: {}", outcome.note);
        }
    }
    bail!("no run at all")
}

/// One node, and a router with no daemon.
fn network() -> Result<Net> {
    crate::env::require_basics()?;
    Net::up(1, false)
}

/// The machine's own worst lateness, ms, and whether it voids a run.
fn lateness(late: &[(Ns, Ns)]) -> (f64, bool) {
    let worst = late.iter().map(|(_, l)| *l).max().unwrap_or(0);
    (ms_between(0, worst), worst > VOID)
}
