//! Adverts must go out in time whatever the sync thread does: they are watched while it works.

use crate::outcome::{Outcome, Row, percentile};
use anyhow::Result;
use holdfast_lab::clock::{Ns, ms_between, now};
use holdfast_lab::fabric::{Fabric, Lb};
use holdfast_lab::metrics::{Span, advert_lateness_ms};
use holdfast_lab::process::make_realtime;
use holdfast_lab::subject::INTERVAL;
use holdfast_lab::watch::reference::Reference;
use holdfast_lab::watch::wire::{Log, Wire};

/// The watchers.
#[derive(Debug)]
pub struct Adverts {
    wire: Wire,
    reference: Reference,
    from: Ns,
}

impl Adverts {
    /// Watches the clients' segment.
    ///
    /// # Errors
    /// A socket, or real-time priority, without which it would itself be late.
    pub fn watch(fabric: &Fabric) -> Result<Self> {
        let wire = Wire::start(&fabric.ns("obs"))?;
        let reference = Reference::start()?;
        make_realtime(reference.thread(), 90)?;
        wire.threads().into_iter().try_for_each(|t| make_realtime(t, 80))?;
        Ok(Self { wire, reference, from: now() })
    }

    /// What went over the wire so far.
    #[must_use]
    pub fn log(&self) -> Log {
        self.wire.log()
    }

    /// Judges lb1's: p99 of their lateness below a tenth of the interval. A machine that was late itself is no excuse,
    /// but is told beside it.
    ///
    /// # Errors
    /// A watcher failed.
    pub fn judge(self, what: &str, outcome: &mut Outcome) -> Result<()> {
        let span = Span { from: self.from, to: now() };
        let log = self.wire.finish()?;
        let machine = self.reference.finish()?.into_iter().map(|(_, late)| late).max().unwrap_or(0);
        let interval = INTERVAL.as_nanos() as u64;
        let late = advert_lateness_ms(&log.adverts, Lb::Lb1.front(), interval, span);
        let (p99, max) = (percentile(&late, 0.99), percentile(&late, 1.0));
        outcome.must(!late.is_empty(), format!("lb1 sent adverts ({})", late.len()));
        let row = Row::new(format!("holdfast, adverts, {what}")).with("adverts", late.len() as f64, 0);
        let row = row.with("late p99 ms", p99, 2).with("late max ms", max, 2);
        outcome.rows.push(row.with("machine max ms", ms_between(0, machine), 2));
        outcome.at_most(&format!("{what}: adverts late p99"), p99, ms_between(0, interval) / 10.0, "ms");
        Ok(())
    }
}
