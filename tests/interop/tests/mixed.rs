//! One round of the matrix's simplest cells, so that a broken harness shows in the everyday tests. All cells run in the
//! tiers: `tests/tiers.toml`, piece `interop`.

use anyhow::{Result, ensure};
use holdfast_interop::beside::Done as _;
use holdfast_interop::mixed::cell::{Cell, matrix};
use holdfast_interop::mixed::runner::{Options, cell, cells};
use holdfast_interop::mixed::scenario::{Limits, ROUND};
use holdfast_interop::mixed::table::table;
use holdfast_interop::skipped;

const ONE: Options = Options { rounds: 1, jobs: 1, limits: Limits::Wide, again: false, verbose: false };

fn named(name: &str) -> Cell {
    *matrix(true).iter().find(|c| c.to_string() == name).expect("in the matrix")
}

/// Steps of a round without ours.
fn steps() -> usize {
    let cell = named("frr > frr, v2 IPv4 multicast");
    ROUND.iter().filter(|step| step.to.at(&cell).is_some()).count()
}

#[test]
fn two_keepaliveds_go_through_a_round_without_ours() -> Result<()> {
    if skipped(&["keepalived"]) {
        return Ok(());
    }
    let done = cell(named("keepalived > keepalived, v3 IPv4 multicast, pseudo-header"), &ONE);
    ensure!(done.pass(), "{}", done.failures.concat());
    ensure!(done.outcomes.len() == steps(), "{}", table(&[done]));
    Ok(())
}

#[test]
fn two_vrrpds_go_through_a_round_without_ours() -> Result<()> {
    if skipped(&["vtysh"]) {
        return Ok(());
    }
    let done = cells(&[named("frr > frr, v3 IPv4 multicast, pseudo-header")], &ONE, |_| {});
    ensure!(done.iter().all(|d| d.pass() && d.outcomes.len() == steps()), "{}", table(&done));
    Ok(())
}
