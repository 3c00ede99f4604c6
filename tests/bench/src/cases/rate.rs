//! Flows that begin, open and end, without a pause, at the rate that is asked for; then both kernels' tables are
//! compared, flow by flow. The rate is what the writer reached: it shares the processors with those whom it feeds.

use super::cpu::spend;
use super::{Options, divergence, watch};
use crate::load::{Kind as Event, Load};
use crate::outcome::{Outcome, Row};
use crate::pair::Kind;
use anyhow::Result;

/// Flows that live at a time.
const LIVE: u32 = 20_000;
/// Flows that are written at once, each with up to three events.
const BURST: u32 = 4;
/// Of the rate that is wanted.
const REACHED: f64 = 0.98;

pub(super) fn measure(o: &Options, kind: Kind, outcome: &mut Outcome) -> Result<()> {
    let mut pair = o.pair(kind, o.events)?;
    pair.up()?;
    let adverts = watch(&pair)?;
    let live = LIVE.min(o.events / 6);
    let load = Load { rate: o.rate, burst: BURST, ..Load::of(Event::Churn { live }, 0, o.events / 3) };
    let spent = spend(&pair, &load)?;
    let differs = divergence(&pair)?;
    let name = kind.name();
    let row = Row::new(format!("{name}, {} events at {}/s", spent.events, o.rate));
    let row = row.with("reached /s", spent.rate, 0).with("drained ms", spent.drained_ms, 1);
    let row = row.with("sender s/100k", spent.cpu[0], 3).with("receiver s/100k", spent.cpu[1], 3);
    let row = row.with("B/event", spent.bytes, 1).with("missing", differs.missing as f64, 0);
    outcome.rows.push(row.with("zombies", differs.zombies as f64, 0).with("different", differs.different as f64, 0));
    let said = format!("{name} at {}/s: {}", o.rate, differs.text());
    if kind == Kind::Holdfast {
        outcome.must(differs.is_none() && differs.flows > 0, said);
        let wanted = REACHED * f64::from(o.rate);
        outcome.goal(spent.rate >= wanted, format!("{:.0} events/s (goal: {wanted:.0})", spent.rate));
    } else {
        outcome.goal(true, said);
    }
    pair.alive()?;
    if let Some(adverts) = adverts {
        adverts.judge(&format!("{} events/s", o.rate), outcome)?;
    }
    Ok(())
}
