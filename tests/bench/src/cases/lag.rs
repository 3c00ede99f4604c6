//! How long a change takes from lb1's kernel to lb2's: from before it is written here until the event of the replica's
//! creation is heard there. 10,000 a second, one at a time.

use super::{Options, divergence, settle, watch};
use crate::load::{Kind as Event, Load};
use crate::outcome::{Outcome, Row, percentile};
use crate::pair::Kind;
use crate::seen::Listener;
use anyhow::Result;
use holdfast_lab::clock::ms_between;
use holdfast_lab::fabric::Lb;
use std::time::Duration;

const RATE: u32 = 10_000;
/// What ours may be above the other's, ms.
const ABOVE: f64 = 0.1;

pub(super) fn ask(o: &Options) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut all: Vec<(Kind, Vec<f64>)> = Vec::new();
    for _ in 0..o.repeat {
        for kind in o.kinds(false) {
            let lag = measure(o, kind, &mut outcome)?;
            match all.iter_mut().find(|(k, _)| *k == kind) {
                Some((_, so_far)) => so_far.extend(lag),
                None => all.push((kind, lag)),
            }
        }
    }
    let of = |ours: bool| all.iter().find(|(kind, _)| (*kind == Kind::Holdfast) == ours).map(|(_, lag)| lag);
    if let (Some(ours), Some(theirs)) = (of(true), of(false)) {
        for (name, p) in [("lag p50", 0.5), ("lag p99", 0.99)] {
            outcome.at_most(name, percentile(ours, p), percentile(theirs, p) + ABOVE, "ms");
        }
    }
    Ok(outcome)
}

fn measure(o: &Options, kind: Kind, outcome: &mut Outcome) -> Result<Vec<f64>> {
    let mut pair = o.pair(kind, o.events)?;
    pair.up()?;
    let adverts = watch(&pair)?;
    let fabric = &pair.place.fabric;
    let listener = Listener::start(&fabric.lb(Lb::Lb2), 0, o.events)?;
    let load = Load { rate: RATE, burst: 1, stamps: true, ..Load::of(Event::Insert, 0, o.events) };
    let done = load.run(&fabric.lb(Lb::Lb1))?;
    settle(&pair, Duration::from_secs(10))?;
    std::thread::sleep(Duration::from_millis(100));
    let seen = listener.finish()?;
    let pairs = done.stamps.iter().zip(&seen).filter(|(_, seen)| **seen > 0);
    let lag: Vec<f64> = pairs.map(|(written, seen)| ms_between(*written, *seen)).collect();
    let name = kind.name();
    let row = Row::new(format!("{name}, {:.0} events/s", done.rate())).with("seen", lag.len() as f64, 0);
    let row = row.with("p50 ms", percentile(&lag, 0.5), 3).with("p90 ms", percentile(&lag, 0.9), 3);
    outcome.rows.push(row.with("p99 ms", percentile(&lag, 0.99), 3).with("max ms", percentile(&lag, 1.0), 3));
    outcome.must(lag.len() == seen.len(), format!("{name}: {} of {} changes arrived", lag.len(), seen.len()));
    let differs = divergence(&pair)?;
    outcome.must(differs.is_none(), format!("{name}: {}", differs.text()));
    pair.alive()?;
    if let Some(adverts) = adverts {
        adverts.judge("lag", outcome)?;
    }
    Ok(lag)
}
