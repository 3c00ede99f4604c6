//! Whether both hosts have the same flows: by what the two kernels list, and by what both agents say.

use super::net::{DNAT_PORT, SNAT_PORT, VIP6};
use super::pair::Pair;
use crate::fabric::{Fabric, Lb, VIP};
use crate::subject::Place;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeSet;

/// The assured flows to the services in the table of `lb`: protocol and both tuples of each, nothing that passes.
///
/// # Errors
/// conntrack isn't there, or failed.
pub fn flows(fabric: &Fabric, lb: Lb) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for (family, vip) in [("ipv4", VIP.to_string()), ("ipv6", VIP6.to_string())] {
        let mut c = fabric.lb(lb).command("conntrack");
        let out = c.args(["-L", "-f", family, "-d", &vip]).output().context("start conntrack")?;
        if !out.status.success() {
            bail!("conntrack -L: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        all.extend(String::from_utf8_lossy(&out.stdout).lines().filter_map(identity));
    }
    Ok(all)
}

fn identity(line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    let protocol = words.next()?;
    let tuples: Vec<&str> =
        words.filter(|w| ["src=", "dst=", "sport=", "dport="].iter().any(|k| w.starts_with(k))).collect();
    let port = tuples.iter().find_map(|w| w.strip_prefix("dport="))?;
    let of_a_service = [DNAT_PORT, SNAT_PORT].iter().any(|p| p.to_string() == port);
    (of_a_service && line.contains("[ASSURED]")).then(|| format!("{protocol} {}", tuples.join(" ")))
}

/// What an agent says of the replication.
#[derive(Debug, Clone, Default)]
pub struct Said(Value);

impl Said {
    /// What the agent on `lb` says; of one that doesn't answer, nothing.
    pub fn of(pair: &dyn Pair, place: &Place, lb: Lb) -> Self {
        Self(pair.peers(place, lb).unwrap_or_default()["sync"].take())
    }

    fn directions(&self) -> impl Iterator<Item = &Value> {
        let peers = self.0["peers"].as_array().into_iter().flatten();
        peers.flat_map(|p| [&p["outbound"], &p["inbound"]])
    }

    /// Both directions are in sync, and were found equal less than `age` ms ago; else what isn't so.
    pub fn lacks(&self, age: u64) -> Option<String> {
        let mut n = 0;
        for d in self.directions() {
            n += 1;
            let fresh = d["equal_ms"].as_u64().is_some_and(|ms| ms < age);
            if !fresh || d["in_sync"].as_bool() != Some(true) {
                return Some(format!("a direction is not in sync, or not for sure: {d}"));
            }
        }
        (n == 0).then(|| "no word of any peer".to_owned())
    }

    /// Whether a direction is out of sync.
    pub fn is_out_of_sync(&self) -> bool {
        self.directions().any(|d| d["in_sync"].as_bool() == Some(false))
    }

    /// One of its counters. They begin anew with each worker.
    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.0["counters"].as_array().into_iter().flatten();
        counters.filter(|c| c[0].as_str() == Some(name)).find_map(|c| c[1].as_u64()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_flow_is_told_by_what_does_not_pass_and_only_if_it_is_assured_and_goes_to_a_service() {
        let line = |left: u32, state: &str, port: u16, end: &str| {
            format!(
                "tcp      6 {left} {state} src=192.168.77.1 dst=192.168.77.10 sport=40000 dport={port} src=10.2.0.21 \
                 dst=192.168.77.1 sport=9000 dport=40000 {end}mark=16777216 use=1"
            )
        };
        let one = identity(&line(400, "ESTABLISHED", DNAT_PORT, "[ASSURED] ")).expect("a flow");
        assert_eq!(identity(&line(90, "TIME_WAIT", DNAT_PORT, "[ASSURED] ")).as_deref(), Some(one.as_str()));
        assert!(one.starts_with("tcp src=192.168.77.1 ") && one.ends_with("sport=9000 dport=40000"), "{one}");
        assert_ne!(identity(&line(400, "ESTABLISHED", SNAT_PORT, "[ASSURED] ")), Some(one));
        assert_eq!(identity(&line(400, "SYN_SENT", DNAT_PORT, "[UNREPLIED] ")), None);
        assert_eq!(identity(&line(400, "ESTABLISHED", 7007, "[ASSURED] ")), None);
    }

    #[test]
    fn in_sync_is_both_directions_and_not_of_long_ago() {
        let said = |inbound: bool, ms: u64| {
            let direction = |in_sync: bool| json!({"in_sync": in_sync, "equal_ms": ms});
            Said(json!({"peers": [{"outbound": direction(true), "inbound": direction(inbound)}],
                        "counters": [["refilled", 3]]}))
        };
        assert_eq!(said(true, 10).lacks(1000), None);
        assert!(said(false, 10).lacks(1000).is_some() && said(true, 1000).lacks(1000).is_some());
        assert!(Said::default().lacks(1000).is_some(), "no peer is no proof");
        assert!(said(false, 10).is_out_of_sync() && !said(true, 10).is_out_of_sync());
        assert_eq!((said(true, 1).counter("refilled"), said(true, 1).counter("overruns")), (3, 0));
    }
}
