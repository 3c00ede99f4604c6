//! Replicated flows, for people.

use super::{inert, one_line, table};
use crate::run::sync::query::{Flow, Flows, Summary, VipSummary};
use std::fmt::Write as _;

/// The verdict line, the VIPs, and the flows.
pub(in crate::ctl) fn all(summary: &Summary, flows: &Flows, vip: Option<&str>) -> String {
    let mut text = format!("{}\n\n", verdict(summary));
    let meant = |of: &&VipSummary| vip.is_none_or(|name| name == of.name || of.members.iter().any(|m| m == name));
    text.push_str(&vips(summary.vips.iter().filter(meant)));
    if !flows.flows.is_empty() {
        text.push('\n');
        text.push_str(&rows(&flows.flows));
    }
    if flows.more {
        let _ = writeln!(text, "more than these {}: see --limit and --vip", flows.flows.len());
    }
    text.push_str(&figures(summary));
    inert(&text)
}

/// What is said where nothing is configured.
pub(in crate::ctl) const NONE: &str = "no flows are replicated: there is no [statesync] in the configuration; name the \
                                       VIPs whose established connections are to survive in its `vips`";

fn verdict(summary: &Summary) -> String {
    if let Some(why) = &summary.failing {
        return format!("CRITICAL: no flow is replicated: {}", one_line(why));
    }
    let (own, replicas) =
        summary.vips.iter().fold((0_u64, 0_u64), |(own, others), vip| (own + vip.own, others + vip.replicas));
    let held = format!("{own} flows of this node, {replicas} replicas of others'");
    let unready: Vec<&str> =
        summary.vips.iter().filter(|vip| vip.not_ready.is_some()).map(|vip| vip.name.as_str()).collect();
    let behind: Vec<&str> =
        summary.peers.iter().filter(|peer| !peer.outbound.in_sync).map(|peer| peer.name.as_str()).collect();
    let mut wrong = Vec::new();
    if !behind.is_empty() {
        wrong.push(format!("not all of this node's are at {} (`holdfast peers`)", behind.join(", ")));
    }
    if !unready.is_empty() {
        wrong.push(format!("not all of others' are here for {}", unready.join(", ")));
    }
    if summary.not_in_kernel > 0 {
        wrong.push(format!("{} replicas can't be in this kernel", summary.not_in_kernel));
    }
    if wrong.is_empty() { format!("OK: {held}") } else { format!("DEGRADED: {held}; {}", wrong.join("; ")) }
}

fn vips<'v>(vips: impl Iterator<Item = &'v VipSummary> + Clone) -> String {
    let rows = vips.clone().map(|vip| {
        let alone = matches!(vip.members.as_slice(), [one] if *one == vip.name) || vip.members.is_empty();
        vec![
            if alone { vip.name.clone() } else { format!("{} ({})", vip.name, vip.members.join(", ")) },
            vip.mode.clone(),
            vip.owner.clone(),
            vip.own.to_string(),
            vip.replicas.to_string(),
            if vip.not_ready.is_none() { "yes".to_owned() } else { "no".to_owned() },
        ]
    });
    let mut text = table(&["VIP", "REPLICATED AT", "OWNER", "OURS", "REPLICAS", "READY"], rows);
    for vip in vips {
        if let Some(why) = &vip.not_ready {
            let _ = writeln!(text, "  {}: {}", vip.name, one_line(why));
        }
    }
    text
}

fn rows(flows: &[Flow]) -> String {
    let rows = flows.iter().map(|flow| {
        let end = |address: &std::net::SocketAddr| {
            // ICMP has no ports.
            if flow.protocol.starts_with("icmp") { address.ip().to_string() } else { address.to_string() }
        };
        vec![
            flow.vip.clone(),
            flow.protocol.to_string(),
            end(&flow.source),
            end(&flow.destination),
            flow.backend.as_ref().map(end).unwrap_or_default(),
            flow.owner.clone(),
            life(&flow.class).to_owned(),
            if flow.here { "yes" } else { "no" }.to_owned(),
        ]
    });
    table(&["VIP", "PROTO", "CLIENT", "SERVICE", "BACKEND", "OWNER", "LIFE", "IN KERNEL"], rows)
}

fn life(class: &str) -> &str {
    match class {
        "tcp-open" => "open",
        "tcp-brief" => "opening or closing",
        "udp-stream" => "both ways",
        "udp-single" => "one way",
        "icmp" => "query",
        other => other,
    }
}

/// What was counted and isn't as it always is; room and memory.
pub(super) fn figures(summary: &Summary) -> String {
    let mut text = String::new();
    let percent = summary.records.saturating_mul(100).checked_div(summary.max_flows).unwrap_or(0);
    let _ = writeln!(
        text,
        "\ntable: {} of {} flows ({percent}%), {} KiB",
        summary.records,
        summary.max_flows,
        summary.memory.div_ceil(1024)
    );
    for other in &summary.other_filters {
        let _ = writeln!(
            text,
            "warning: {} sets masks of connection events too: flows may be missed\n  remedy: remove that rule, or set \
             `filter = \"user\"` in [statesync]",
            one_line(other)
        );
    }
    let mut line = |head: &str, counted: Vec<String>| {
        if !counted.is_empty() {
            let _ = writeln!(text, "{head}: {}", counted.join(", "));
        }
    };
    let errors = summary.kernel_errors.iter().filter(|(_, count)| *count > 0);
    line("the kernel refused", errors.map(|(what, count)| format!("{} {count}", one_line(what))).collect());
    let counters = summary.counters.iter().filter(|(_, count)| *count > 0);
    line("since the start", counters.map(|(name, count)| format!("{} {count}", name.replace('_', " "))).collect());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::sync::query::{DirectionSummary, PeerSummary};

    fn vip(name: &str, not_ready: Option<&str>) -> VipSummary {
        VipSummary {
            name: name.to_owned(),
            members: vec![name.to_owned()],
            mode: "assured".to_owned(),
            owner: "here".to_owned(),
            own: 120,
            replicas: 80,
            not_ready: not_ready.map(str::to_owned),
        }
    }

    fn flow(protocol: &'static str, source: &str, class: &'static str) -> Flow {
        Flow {
            vip: "web".to_owned(),
            protocol: protocol.into(),
            source: source.parse().expect("an address"),
            destination: "192.0.2.10:80".parse().expect("an address"),
            backend: "10.2.0.21:8080".parse().ok(),
            owner: "here".to_owned(),
            class: class.into(),
            here: true,
        }
    }

    #[test]
    fn flows_begin_with_the_verdict_and_end_with_what_was_counted() {
        let edge = VipSummary { members: vec!["web".to_owned(), "inside".to_owned()], ..vip("edge", None) };
        let summary = Summary {
            vips: vec![edge, vip("dns", None)],
            records: 200,
            max_flows: 1_000,
            memory: 10_000,
            counters: vec![("vip_claims".into(), 2), ("overruns".into(), 0)],
            ..Summary::default()
        };
        let flows = vec![flow("tcp", "198.51.100.7:40000", "tcp-open"), flow("icmp", "198.51.100.8:0", "icmp")];
        let expected = "\
OK: 240 flows of this node, 160 replicas of others'

VIP                 REPLICATED AT  OWNER  OURS  REPLICAS  READY
edge (web, inside)  assured        here   120   80        yes

VIP  PROTO  CLIENT              SERVICE        BACKEND         OWNER  LIFE   IN KERNEL
web  tcp    198.51.100.7:40000  192.0.2.10:80  10.2.0.21:8080  here   open   yes
web  icmp   198.51.100.8        192.0.2.10     10.2.0.21       here   query  yes
more than these 2: see --limit and --vip

table: 200 of 1000 flows (20%), 10 KiB
since the start: vip claims 2
";
        assert_eq!(all(&summary, &Flows { flows, more: true }, Some("web")), expected);
    }

    #[test]
    fn what_is_missing_anywhere_is_in_the_verdict_and_who_disturbs_is_named_with_a_remedy() {
        let out = DirectionSummary { in_sync: false, why: Some("behind".into()), since_ms: 1, equal_ms: None };
        let peer = PeerSummary {
            name: "lb2".to_owned(),
            up: true,
            inbound: out.clone(),
            outbound: out,
            behind: 3,
            ..PeerSummary::default()
        };
        let summary = Summary {
            vips: vec![vip("web", Some("not all flows of lb2 are here (behind)"))],
            peers: vec![peer],
            not_in_kernel: 4,
            other_filters: vec!["inet fw4 raw".to_owned()],
            kernel_errors: vec![("ENOMEM".to_owned(), 7)],
            ..Summary::default()
        };
        let text = all(&summary, &Flows::default(), None);
        let first = text.lines().next().unwrap_or_default();
        assert_eq!(
            first,
            "DEGRADED: 120 flows of this node, 80 replicas of others'; not all of this node's are at lb2 (`holdfast peers`); \
             not all of others' are here for web; 4 replicas can't be in this kernel"
        );
        for part in [
            "  web: not all flows of lb2 are here (behind)\n",
            "warning: inet fw4 raw sets masks of connection events too",
            "  remedy: remove that rule",
            "the kernel refused: ENOMEM 7\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let failing = Summary { failing: Some("CAP_NET_ADMIN is missing".to_owned()), ..Summary::default() };
        let text = all(&failing, &Flows::default(), None);
        assert!(text.starts_with("CRITICAL: no flow is replicated: CAP_NET_ADMIN is missing\n"), "{text}");
    }
}
