//! The network: `lb1`, `lb2` and `obs` on any number of segments, each a bridge of its own in `sw`, and a link of their
//! own between lb1 and lb2 for the channel (`peer`).

use crate::clock::Ns;
use crate::fabric::{Batch, Lb, ip_batch, sysctl};
use crate::netns::Netns;
use crate::residue::Residue;
use crate::scale::{host, own};
use anyhow::Result;
use std::fmt::Write;
use std::path::Path;

const NODES: [&str; 4] = ["sw", "obs", "lb1", "lb2"];
/// The observer sits on so many segments; on a larger network the kernels' own account is enough.
const OBSERVED: u16 = 8;

/// See the module's documentation. Dropping it removes everything.
#[derive(Debug)]
pub(super) struct Network {
    residue: Residue,
    /// Interfaces of each load balancer.
    pub(super) segments: u16,
    /// Segments with the observer.
    pub(super) observed: u16,
    switch: Batch,
}

impl Network {
    pub(super) fn up(segments: u16, keep: bool) -> Result<Self> {
        let residue = Residue::create(keep)?;
        Self::build(&residue, segments).inspect_err(|_| residue.remove())
    }

    fn build(residue: &Residue, segments: u16) -> Result<Self> {
        let p = &residue.prefix;
        let ns = |node: &str| Netns::named(format!("{p}-{node}"));
        let observed = segments.min(OBSERVED);
        ip_batch(None, &NODES.iter().map(|n| format!("netns add {p}-{n}\n")).collect::<String>())?;
        for node in NODES {
            ns(node).inside(|| {
                for key in ["net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/default/disable_ipv6"] {
                    sysctl(key, "1")?;
                }
                sysctl("net/ipv4/conf/all/rp_filter", "0")?;
                sysctl("net/ipv4/conf/default/rp_filter", "0")?;
                sysctl("net/ipv4/ip_forward", "0")
            })?;
        }
        let mut wires = format!("link add name peer netns {p}-lb1 type veth peer name peer netns {p}-lb2\n");
        let mut switch = String::from("link set dev lo up\n");
        let mut hosts = [String::from("link set dev lo up\n"), String::from("link set dev lo up\n"), String::new()];
        for s in 0..segments {
            writeln!(switch, "link add name br{s} type bridge forward_delay 0 stp_state 0 mcast_snooping 0")?;
            writeln!(switch, "link set dev br{s} up")?;
            let nodes = [("lb1", own(s, Lb::Lb1)), ("lb2", own(s, Lb::Lb2)), ("obs", host(s, 9))];
            for (i, (node, ip)) in nodes.into_iter().enumerate().filter(|(i, _)| *i < 2 || s < observed) {
                writeln!(wires, "link add name eth{s} netns {p}-{node} type veth peer name {node}-{s} netns {p}-sw")?;
                writeln!(switch, "link set dev {node}-{s} master br{s}\nlink set dev {node}-{s} up")?;
                writeln!(hosts[i], "addr add {ip}/16 dev eth{s}\nlink set dev eth{s} up")?;
            }
        }
        ip_batch(None, &wires)?;
        ip_batch(Some(&ns("sw")), &switch)?;
        for lb in Lb::BOTH {
            writeln!(hosts[lb.index()], "addr add {}/24 dev peer\nlink set dev peer up", lb.channel())?;
        }
        for (node, script) in ["lb1", "lb2", "obs"].into_iter().zip(&hosts) {
            ip_batch(Some(&ns(node)), script)?;
        }
        let switch = Batch::start("ip", &ns("sw"), &residue.directory)?;
        Ok(Self { residue: residue.clone(), segments, observed, switch })
    }

    pub(super) fn lb(&self, lb: Lb) -> Netns {
        self.node(lb.name())
    }

    pub(super) fn node(&self, name: &str) -> Netns {
        Netns::named(format!("{}-{name}", self.residue.prefix))
    }

    pub(super) fn directory(&self) -> &Path {
        &self.residue.directory
    }

    /// Every cable of `lb` at the switch, one after the other, as a trunk's port does. Returns the time of the first.
    pub(super) fn trunk(&mut self, lb: Lb, plugged: bool) -> Result<Ns> {
        let state = if plugged { "up" } else { "down" };
        let lines = (0..self.segments).map(|s| format!("link set dev {}-{s} {state}", lb.name()));
        self.switch.line(&lines.collect::<Vec<_>>().join("\n"))
    }

    /// Frames that came from `lb` into the switch so far.
    pub(super) fn sent(&self, lb: Lb) -> Result<u64> {
        let start = format!("{}-", lb.name());
        self.node("sw").inside(move || {
            // A thread's own namespace, not that of the process.
            let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
            let ports = text.lines().filter_map(|l| l.trim().strip_prefix(&start)?.split_once(':'));
            Ok(ports.filter_map(|(_, counts)| counts.split_whitespace().nth(1)?.parse::<u64>().ok()).sum())
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.residue.remove();
    }
}
