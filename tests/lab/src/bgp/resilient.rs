//! Resilient next hops: when one goes, only its own flows move. Neither FRR 8.4 nor BIRD 2 makes such groups, so the lab
//! keeps one beside the router's own route and follows that: a rule before the main table looks here first.

use super::fib::Event;
use super::net::{NODES_MAX, Net, Node, VIP};
use crate::fabric::{Batch, ip_batch};
use anyhow::Result;

/// The table that is looked at before the main one.
const TABLE: u32 = 200;
/// The group's id; the nodes' next hops follow it.
const GROUP: usize = 100;
/// The group's shape: buckets that carried nothing for a second may move to a hop that came back; all must within 3 s.
const SHAPE: &str = "type resilient buckets 512 idle_timer 1 unbalanced_timer 3";

/// Follows the router's route to the VIP.
///
/// # Errors
/// The kernel has no resilient groups.
pub fn follow(net: &Net) -> Result<super::fib::Listener> {
    let rt = net.ns("rt");
    let mut script = format!("rule add pref 100 lookup {TABLE}\n");
    for n in net.nodes() {
        script += &format!("nexthop add id {} via {} dev eth1\n", GROUP + 1 + n.0, n.front());
    }
    ip_batch(Some(&rt), &script)?;
    let mut ip = Batch::start("ip", &rt, net.directory())?;
    let mut routed = false;
    Ok(Box::new(move |e: &Event| {
        if e.to != std::net::IpAddr::V4(VIP) {
            return;
        }
        for line in lines(e, &mut routed) {
            // A router that is gone shows in the run's own checks.
            let _gone = ip.line(&line);
        }
    }))
}

fn lines(e: &Event, routed: &mut bool) -> Vec<String> {
    let ids: Vec<String> = (0..NODES_MAX)
        .filter(|n| e.hops.contains_key(&Node(*n).front().into()))
        .map(|n| (GROUP + 1 + n).to_string())
        .collect();
    if ids.is_empty() {
        let had = std::mem::take(routed);
        return if had { vec![format!("route del {VIP}/32 table {TABLE}")] } else { Vec::new() };
    }
    let mut all = vec![format!("nexthop replace id {GROUP} group {} {SHAPE}", ids.join("/"))];
    if !std::mem::replace(routed, true) {
        all.push(format!("route replace {VIP}/32 nhid {GROUP} table {TABLE}"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_what_the_route_has_and_the_route_is_added_once() {
        let event = |nodes: &[usize]| Event {
            at: 0,
            to: VIP.into(),
            hops: nodes.iter().map(|n| (Node(*n).front().into(), 1)).collect(),
            changed: true,
            reordered: false,
        };
        let mut routed = false;
        assert!(lines(&event(&[]), &mut routed).is_empty());
        let first = lines(&event(&[0, 2]), &mut routed);
        assert!(first[0].contains("group 101/103 ") && first[1].starts_with("route replace"), "{first:?}");
        assert_eq!(lines(&event(&[2]), &mut routed).len(), 1);
        assert!(lines(&event(&[]), &mut routed)[0].starts_with("route del"));
        assert_eq!(lines(&event(&[1]), &mut routed).len(), 2);
    }
}
