//! The main job once, told as it happens: the balancer is killed, and a client keeps its service.

use crate::drills::find;
use crate::report::Report;
use crate::run::{Options, drill};
use anyhow::{Context, Result};

/// Runs `balancer-killed` once and prints the timeline and the client's view.
///
/// # Errors
/// The machine can't run it.
pub fn demo(o: &Options) -> Result<Report> {
    let d = find("balancer-killed").context("the table has it")?;
    println!("Two load balancers, lb1 and lb2, share the address 192.168.77.10. A client opens a new connection every");
    println!(
        "{} ms and keeps {} more open. Now the balancer on lb1 is killed (SIGKILL) ...\n",
        o.interval / crate::clock::MS,
        o.flows
    );
    let report = drill(d, o)?;
    let Some(run) = report.runs.iter().rfind(|r| r.void.is_none()) else {
        println!("No valid run: {}", report.errors.join("; "));
        return Ok(report);
    };
    print!("{}", run.timeline_text());
    let n = |key: &str| run.numbers.get(key).copied().flatten().unwrap_or(f64::NAN);
    println!("\nWhat the client saw (measured):");
    println!(
        "  {:.0} of {:.0} new requests failed; longest time without an answer {:.0} ms",
        n("failed"),
        n("requests"),
        n("outage_ms")
    );
    println!(
        "  {:.0} of {:.0} open connections broke (they were the dead balancer's own)",
        n("broken_flows"),
        n("flows")
    );
    println!(
        "  lb2 had the address {:.1} ms after the fault; two hosts answered for it for {:.0} ms",
        n("takeover_ms"),
        n("dual_holder_ms")
    );
    println!("  going back to lb1: {:.0} new requests failed", n("failback_failed"));
    println!(
        "\n{} on {}; {}",
        report.subject,
        report.machine,
        if report.pass { "as expected" } else { "NOT as expected" }
    );
    for (text, held) in report.verdicts.iter().filter(|(_, held)| !held) {
        println!("  {text}: {}", if *held { "held" } else { "did not hold" });
    }
    Ok(report)
}
