//! Proof of the measuring: an outage of known length must come out as that length.
//!
//! lb1 holds the VIP by hand; the switch drops lb1's frames for a known time. The instruments' figures may differ
//! from it by one interval of the stream plus the lateness measured in the same run.

use crate::balancer::Kind;
use crate::clock::{MS, Ns, SECOND, ms_between, now, sleep_until};
use crate::fabric::{ECHO_PORT, Fabric, Lb, VIP, ip_batch, wait_for};
use crate::load::{fresh::Fresh, udp::Udp};
use crate::metrics::{Span, outage};
use crate::process::{Proc, make_realtime};
use crate::responder::Responder;
use crate::run::{DEADLINE, UDP_INTERVAL};
use crate::watch::reference::Reference;
use anyhow::{Context, Result, bail};
use std::net::SocketAddrV4;
use std::time::Duration;

/// Time between two fresh requests.
const D: Ns = 5 * MS;

/// What was true and what was measured, ms.
#[derive(Debug, Clone, Copy)]
pub struct Calibration {
    /// How long frames were dropped.
    pub truth: f64,
    /// The fresh stream's figure.
    pub fresh: f64,
    /// The UDP stream's figure.
    pub udp: f64,
    /// Failures in the second before: must be none.
    pub failed_before: usize,
    /// The machine's and the prober's worst lateness.
    pub noise: f64,
}

impl Calibration {
    /// Both figures within one interval plus the noise of the truth.
    #[must_use]
    pub fn pass(&self) -> bool {
        let within = |v: f64, d: Ns| (v - self.truth).abs() <= ms_between(0, d) + self.noise;
        // The switch's tool needs up to 2 ms to act on a line; that is noise too, and the reason for the 2.
        self.failed_before == 0 && within(self.fresh, D + 2 * MS) && within(self.udp, UDP_INTERVAL + 2 * MS)
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        format!(
            "frames dropped for {:.1} ms; measured: fresh {:.1} ms, udp {:.1} ms; noise {:.1} ms, {} failed before\n{}\n",
            self.truth,
            self.fresh,
            self.udp,
            self.noise,
            self.failed_before,
            if self.pass() { "PASS" } else { "FAIL" }
        )
    }
}

/// Makes an outage of `length` and measures it.
///
/// # Errors
/// The machine can't run it, or the service didn't come up.
pub fn calibrate(length: Ns) -> Result<Calibration> {
    crate::env::require_basics()?;
    let mut fabric = Fabric::up(false)?;
    let _responder = Responder::start(&fabric)?;
    ip_batch(Some(&fabric.lb(Lb::Lb1)), &format!("addr add {VIP}/32 dev eth0\n"))?;
    let kind = if crate::env::find_program("haproxy").is_some() { Kind::Haproxy } else { Kind::Forward };
    let argv = kind.command(&fabric, Lb::Lb1)?.context("both kinds are processes")?;
    let (program, args) = argv.split_first().context("a command has a program")?;
    let mut command = fabric.lb(Lb::Lb1).command(program);
    command.args(args);
    let _balancer = Proc::start("balancer", command, &fabric.directory().join("balancer.log"))?;
    let client = fabric.ns("client");
    let fresh = Fresh::start(&client, SocketAddrV4::new(VIP, 80), D, DEADLINE)?;
    let udp = Udp::start(&client, SocketAddrV4::new(VIP, ECHO_PORT), UDP_INTERVAL, DEADLINE)?;
    let reference = Reference::start()?;
    for t in [fresh.thread(), udp.thread(), reference.thread()] {
        let _without = make_realtime(t, 10);
    }
    if !wait_for(Duration::from_secs(10), Duration::from_millis(20), || Ok(fresh.recent_ok(40) >= 40))? {
        bail!("the service didn't come up");
    }
    let steady = now();
    sleep_until(steady + SECOND);
    let from = fabric.forwarding(Lb::Lb1, false)?;
    sleep_until(from + length);
    let to = fabric.forwarding(Lb::Lb1, true)?;
    sleep_until(to + SECOND);
    if !fabric.complaints().is_empty() {
        bail!("the switch: {}", fabric.complaints().trim());
    }
    let (fresh, udp, late) = (fresh.finish()?, udp.finish()?, reference.finish()?);
    let during = Span { from, to: to + SECOND };
    let before = Span { from: steady, to: from };
    let worst = late.iter().chain(&fresh.late).filter(|(t, _)| *t >= from).map(|(_, l)| *l).max().unwrap_or(0);
    Ok(Calibration {
        truth: ms_between(from, to),
        fresh: outage(&fresh.samples, D, during).longest_ms,
        udp: outage(&udp, UDP_INTERVAL, during).longest_ms,
        failed_before: outage(&fresh.samples, D, before).failed,
        noise: ms_between(0, worst),
    })
}
