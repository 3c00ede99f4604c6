//! Thousands of VIPs: the whole table on the wire, and all of it withdrawn.

use super::agent::{Agent, NODE};
use super::neighbor::Neighbor;
use super::{Options, Outcome, lateness, network};
use crate::bgp::message::Said;
use crate::bgp::wire::{Seen, Wire};
use crate::clock::{MS, Ns, SECOND, ms_between, now, sleep_until};
use crate::fabric::wait_for;
use crate::process::{Pidfd, make_realtime};
use crate::repeat::PRIORITY;
use crate::watch::reference::Reference;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::json;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Issue 4: the table is sent within this, and withdrawn within that, of so many VIPs or less.
const SENT_MS: f64 = 1_000.0;
const WITHDRAWN_MS: f64 = 20.0;
/// Addresses that aren't in the kernel by then don't come.
const SETTLE: Duration = Duration::from_secs(120);

fn address(n: usize) -> Ipv4Addr {
    let [_, _, hi, lo] = u32::try_from(n).unwrap_or(0).to_be_bytes();
    Ipv4Addr::new(10, 128, hi, lo)
}

/// From the first word about a route to the last route of all, and how many UPDATEs that were; `None`: not all came.
fn told(wire: &[Seen], from: Ns, count: usize, announced: bool) -> Option<(Ns, Ns, usize)> {
    let mut left: BTreeSet<IpAddr> = (0..count).map(|n| address(n).into()).collect();
    let (mut first, mut updates) = (None, 0);
    for s in wire.iter().filter(|s| s.by_node && s.at >= from) {
        let Said::Update(u) = &s.said else { continue };
        let list = if announced { &u.announced } else { &u.withdrawn };
        if list.is_empty() {
            continue;
        }
        let first = *first.get_or_insert(s.at);
        updates += 1;
        list.iter().for_each(|(ip, _)| {
            left.remove(ip);
        });
        if left.is_empty() {
            return Some((first, s.at, updates));
        }
    }
    None
}

/// The agent has so many addresses of the VIPs in its kernel.
fn held(net: &crate::bgp::net::Net) -> Result<usize> {
    net.node(NODE).inside(|| {
        let all = nix::ifaddrs::getifaddrs().context("list addresses")?;
        let ours = |ip: Ipv4Addr| ip.octets()[..2] == [10, 128];
        Ok(all.filter(|a| a.address.and_then(|s| s.as_sockaddr_in().map(|s| ours(s.ip()))).unwrap_or(false)).count())
    })
}

pub(super) fn ask(o: &Options<'_>) -> Result<Outcome> {
    let net = network()?;
    let mut neighbor = Neighbor::new(net.ns("rt"));
    let mut vips = String::new();
    for n in 0..o.count {
        writeln!(vips, "\n[[vip]]\nname = \"v{n}\"\naddresses = [\"{}/32\"]\nbgp = {{}}", address(n))?;
    }
    let mut agent = Agent::new(o.holdfast);
    let started = now();
    agent.start(&net, &vips)?;
    // The session comes when all is ready to be told: what is measured is telling.
    let all = || Ok(held(&net)? == o.count);
    if !wait_for(SETTLE, Duration::from_millis(50), all)? {
        bail!("{} of {} addresses after {} s\n{}", held(&net)?, o.count, SETTLE.as_secs(), agent.told(&net));
    }
    let ready_ms = ms_between(started, now());
    sleep_until(now() + SECOND);
    let wire = Wire::start(&net)?;
    let reference = Reference::start()?;
    let realtime = make_realtime(reference.thread(), 90).and_then(|()| make_realtime(wire.thread(), PRIORITY));
    let from = now();
    neighbor.come()?;
    let whole = || Ok(neighbor.state().complete && neighbor.state().table.len() == o.count);
    if !wait_for(Duration::from_secs(30), Duration::from_millis(10), whole)? {
        bail!("{} of {} routes after 30 s\n{}", neighbor.state().table.len(), o.count, agent.told(&net));
    }
    let established = neighbor.state().established.context("what has a table has a session")?;
    sleep_until(now() + SECOND);
    let fault = Pidfd::open(agent.balancer()?)?.signal(Signal::KILL)?;
    sleep_until(fault + SECOND + 500 * MS);
    let late = reference.finish()?;
    let wire = wire.finish()?;
    ensure!(neighbor.state().sessions == 1, "the session ended\n{}", agent.told(&net));

    // The neighbour's own word that it is established is later than the agent's: both KEEPALIVEs are on the wire.
    let opened = wire.iter().find(|s| s.by_node && s.said == Said::Keepalive).map_or(established, |s| s.at);
    let sent = told(&wire, from, o.count, true);
    let gone = told(&wire, fault, o.count, false);
    let sent_ms = sent.map(|(_, last, _)| ms_between(opened, last));
    let gone_ms = gone.map(|(_, last, _)| ms_between(fault, last));
    let span_ms = gone.map(|(first, last, _)| ms_between(first, last));
    let (machine_late_ms, void) = lateness(&late);
    // On a shared machine, in an everyday build: three times the figure + 50 ms.
    let limit = |figure: f64| if o.strict { figure } else { 3.0 * figure + 50.0 };
    let within = |ms: Option<f64>, figure: f64| ms.is_some_and(|ms| ms <= limit(figure));
    let pass = within(sent_ms, SENT_MS) && within(gone_ms, WITHDRAWN_MS);
    let ms = |v: Option<f64>| v.map_or_else(|| "never".into(), |v| format!("{v:.1} ms"));
    let updates = |v: Option<(Ns, Ns, usize)>| v.map_or(0, |(_, _, n)| n);
    Ok(Outcome {
        pass,
        void,
        note: format!(
            "{} VIPs: told within {} in {} UPDATEs, withdrawn within {} of the balancer's end in {} (first to last {}); \
             addresses after {:.1} s",
            o.count,
            ms(sent_ms),
            updates(sent),
            ms(gone_ms),
            updates(gone),
            ms(span_ms),
            ready_ms / 1000.0
        ),
        details: if pass { String::new() } else { agent.told(&net) },
        json: json!({
            "case": "many-vips", "vips": o.count, "sent_ms": sent_ms, "withdrawn_ms": gone_ms, "span_ms": span_ms,
            "updates_sent": updates(sent), "updates_withdrawn": updates(gone), "addresses_ms": ready_ms,
            "machine_late_ms": machine_late_ms, "realtime": realtime.is_ok(), "pass": pass, "void": void,
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bgp::message::Update;
    use crate::bgp::net::Node;

    #[test]
    fn a_table_counts_as_told_with_its_last_route_and_not_before() {
        let said = |at, ns: std::ops::Range<usize>| Seen {
            at,
            node: Node(0),
            by_node: true,
            said: Said::Update(Update {
                announced: ns.map(|n| (address(n).into(), 32)).collect(),
                ..Update::default()
            }),
            ttl: 1,
            signed: false,
            v6: false,
        };
        let wire = [said(5, 0..300), said(6, 200..400), said(7, 0..0), said(8, 400..500), said(9, 0..500)];
        assert_eq!(told(&wire, 0, 500, true), Some((5, 8, 3)));
        assert_eq!(told(&wire[..3], 0, 500, true), None);
        assert_eq!(told(&wire, 0, 500, false), None);
        assert_eq!(told(&wire, 9, 500, true), Some((9, 9, 1)));
    }
}
