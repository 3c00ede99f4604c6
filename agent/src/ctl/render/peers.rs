//! The other nodes, for people: whether they are heard, and whether each side has the other's flows.

use super::{age, inert, one_line, span, table};
use crate::run::sync::query::{DirectionSummary, Lag, PeerSummary, Summary};
use holdfast_node::status::PeerStatus;
use std::time::Duration;

/// The verdict line, the peers, and how it stands with each direction. `sync`: `None` where nothing is replicated.
pub(in crate::ctl) fn all(peers: &[PeerStatus], sync: Option<&Summary>) -> String {
    let mut text = format!("{}\n", verdict(peers, sync));
    if !peers.is_empty() {
        text.push('\n');
        text.push_str(&rows(peers));
    }
    if let Some(sync) = sync {
        text.push('\n');
        text.push_str(&directions(&sync.peers));
        text.push_str(clocks(&sync.peers));
        for peer in &sync.peers {
            for (ours, direction) in [(true, &peer.outbound), (false, &peer.inbound)] {
                if let Some(why) = reason(ours, direction) {
                    text.push_str(&format!("  {}: {}: {}\n", peer.name, way(ours), one_line(&why)));
                }
            }
        }
        text.push_str(&super::flows::figures(sync));
    }
    inert(&text)
}

/// One row each; the status has the same.
pub(in crate::ctl) fn rows(peers: &[PeerStatus]) -> String {
    table(&["PEER", "REACHABLE", "HEARD", "ADDRESS", "BALANCERS"], peers.iter().map(super::peer))
}

fn verdict(peers: &[PeerStatus], sync: Option<&Summary>) -> String {
    if peers.is_empty() {
        return "no peers are configured: this node knows nothing of others but their adverts ([cluster])".to_owned();
    }
    let heard = peers.iter().filter(|peer| peer.reachable).count();
    let count = format!("{heard}/{} {} heard", peers.len(), if peers.len() == 1 { "peer is" } else { "peers are" });
    let Some(sync) = sync else {
        let word = if heard == peers.len() { "OK" } else { "DEGRADED" };
        return format!("{word}: {count}; no flows are replicated (there is no [statesync])");
    };
    if let Some(why) = &sync.failing {
        return format!("CRITICAL: {count}; no flow is replicated: {}", one_line(why));
    }
    let mut lacks = Vec::new();
    for peer in &sync.peers {
        if !peer.outbound.in_sync {
            lacks.push(format!("{} lacks flows of this node for {}", peer.name, age(peer.outbound.since_ms)));
        }
        if !peer.inbound.in_sync {
            lacks.push(format!("this node lacks flows of {} for {}", peer.name, age(peer.inbound.since_ms)));
        }
    }
    match (lacks.is_empty(), heard == peers.len()) {
        (true, true) => format!("OK: {count}, in sync both ways"),
        (true, false) => format!("DEGRADED: {count}, in sync both ways"),
        (false, _) => format!("DEGRADED: {count}; {}", lacks.join("; ")),
    }
}

pub(super) fn way(ours: bool) -> &'static str {
    if ours { "our flows there" } else { "its flows here" }
}

/// Two rows for each peer.
fn directions(peers: &[PeerSummary]) -> String {
    let rows = peers.iter().flat_map(|peer| {
        [(true, &peer.outbound), (false, &peer.inbound)].map(|(ours, direction)| {
            let state = match (direction.in_sync, &direction.why) {
                (true, _) => "in sync".to_owned(),
                (false, Some(why)) => why.replace('-', " "),
                (false, None) => "not in sync".to_owned(),
            };
            vec![
                peer.name.clone(),
                way(ours).to_owned(),
                state,
                age(direction.since_ms),
                direction.equal_ms.map_or_else(|| "never".to_owned(), |ms| format!("{} ago", age(ms))),
                if ours { behind(peer) } else { String::new() },
                if ours { String::new() } else { peer.replicas.to_string() },
                if ours { peer.lag.as_ref().map(lag).unwrap_or_default() } else { String::new() },
            ]
        })
    });
    table(&["PEER", "FLOWS", "STATE", "SINCE", "FOUND EQUAL", "BEHIND", "HELD", "LAG P50/P99/MAX (1M)"], rows)
}

fn behind(peer: &PeerSummary) -> String {
    match peer.watermark.and_then(|mark| mark.waits_ms) {
        Some(ms) if peer.behind > 0 => format!("{} for {}", peer.behind, age(ms)),
        _ => peer.behind.to_string(),
    }
}

/// Where lag is less than what it is called.
fn clocks(peers: &[PeerSummary]) -> &'static str {
    if peers.iter().filter_map(|peer| peer.lag).any(|lag| !lag.by_kernel) {
        "  lag is counted from when this node read of a change: its kernel doesn't say when it happened \
         (net.netfilter.nf_conntrack_timestamp)\n"
    } else {
        ""
    }
}

fn lag(lag: &Lag) -> String {
    let of = |us| span(Duration::from_micros(us));
    format!("{}/{}/{}", of(lag.p50_us), of(lag.p99_us), of(lag.max_us))
}

/// Why a direction isn't in sync, and what to do about it.
fn reason(ours: bool, direction: &DirectionSummary) -> Option<String> {
    if direction.in_sync {
        return None;
    }
    let text = match (direction.why.as_deref().unwrap_or_default(), ours) {
        ("no-session", _) => {
            "no session on the flow lanes; see that its UDP port ([cluster] port + 1, or [statesync] listen) is reached both \
             ways, and that [statesync] is configured there too"
        }
        ("not-compared", _) => "the session is new, the tables are being compared; it takes a moment",
        ("differs", _) => "differences were found and are being sent; if it stays so, the peer refuses flows: ask it",
        ("stale", _) => {
            "the last comparison is too old; datagrams are lost, or the peer is too busy (see `holdfast status` there)"
        }
        ("reading", true) => "this kernel's connection table is being read; it takes a second for a million entries",
        ("reading", false) => "its kernel's connection table is being read; it takes a second for a million entries",
        ("peer-full", true) => "its table is full; raise max_flows in [statesync] there, or replicate fewer VIPs",
        ("peer-full", false) => "this table is full; raise max_flows in [statesync] here, or replicate fewer VIPs",
        ("", _) => "it isn't said why",
        (other, _) => return Some(other.replace('-', " ")),
    };
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::sync::query::Watermark;
    use std::borrow::Cow;

    fn peer(name: &str, reachable: bool) -> PeerStatus {
        PeerStatus {
            name: name.to_owned(),
            reachable,
            age_ms: Some(12),
            address: "10.1.0.12:7712".to_owned(),
            epoch: None,
            left: false,
            balancers: std::collections::BTreeMap::new(),
            verdicts: std::collections::BTreeMap::new(),
        }
    }

    fn direction(why: Option<&'static str>, since_ms: u64) -> DirectionSummary {
        DirectionSummary { in_sync: why.is_none(), why: why.map(Cow::Borrowed), since_ms, equal_ms: Some(1_200) }
    }

    fn of(outbound: DirectionSummary, inbound: DirectionSummary) -> Summary {
        let lag = Some(Lag { count: 9, p50_us: 240, p99_us: 3_100, max_us: 12_000, by_kernel: true });
        let watermark = Some(Watermark { sent: 9, settled: 7, waits_ms: Some(40) });
        let peer = PeerSummary {
            name: "lb2".to_owned(),
            up: true,
            outbound,
            inbound,
            replicas: 80,
            lag,
            watermark,
            behind: 312,
            ..PeerSummary::default()
        };
        Summary { peers: vec![peer], records: 200, max_flows: 1_000, memory: 10_240, ..Summary::default() }
    }

    #[test]
    fn peers_begin_with_the_verdict_and_show_each_direction_with_its_age() {
        let summary = of(direction(None, 190_000), direction(None, 61_000));
        let expected = "\
OK: 1/1 peer is heard, in sync both ways

PEER  REACHABLE  HEARD     ADDRESS
lb2   yes        12ms ago  10.1.0.12:7712

PEER  FLOWS            STATE    SINCE  FOUND EQUAL  BEHIND        HELD  LAG P50/P99/MAX (1M)
lb2   our flows there  in sync  3m10s  1.2s ago     312 for 40ms        0.2ms/3.1ms/12ms
lb2   its flows here   in sync  1m01s  1.2s ago                   80

table: 200 of 1000 flows (20%), 10 KiB
";
        assert_eq!(all(&[peer("lb2", true)], Some(&summary)), expected);

        let mut summary = summary;
        summary.peers[0].lag = summary.peers[0].lag.map(|lag| Lag { by_kernel: false, ..lag });
        let text = all(&[peer("lb2", true)], Some(&summary));
        assert!(text.contains("  lag is counted from when this node read of a change:"), "{text}");
    }

    #[test]
    fn a_direction_that_is_not_in_sync_is_in_the_verdict_and_says_what_to_do() {
        let summary = of(direction(Some("no-session"), 4_200), direction(Some("peer-full"), 9_000));
        let text = all(&[peer("lb2", false)], Some(&summary));
        let first = text.lines().next().unwrap_or_default();
        assert_eq!(
            first,
            "DEGRADED: 0/1 peer is heard; lb2 lacks flows of this node for 4.2s; this node lacks flows of lb2 for 9.0s"
        );
        assert!(text.contains("lb2: our flows there: no session on the flow lanes; see that its UDP port"), "{text}");
        assert!(
            text.contains("lb2: its flows here: this table is full; raise max_flows in [statesync] here"),
            "{text}"
        );
        assert!(text.contains("peer full"), "{text}");
    }

    #[test]
    fn every_reason_of_the_engine_has_words_of_its_own() {
        use crate::run::sync::query::why_word;
        use holdfast_statesync::flow::Why;
        let all = [Why::NoSession, Why::NotCompared, Why::Differs, Why::Stale, Why::Reading, Why::PeerFull];
        for why in all {
            for ours in [true, false] {
                let word = why_word(why);
                let told = reason(ours, &direction(Some(word), 0)).expect("not in sync");
                assert_ne!(told, word.replace('-', " "), "only what a newer agent says is passed on as it is");
            }
        }
        // A newer agent may have more of them.
        assert_eq!(reason(true, &direction(Some("on-holiday"), 0)).as_deref(), Some("on holiday"));
    }

    #[test]
    fn without_replication_or_peers_that_is_said() {
        assert!(all(&[], None).starts_with("no peers are configured"));
        let text = all(&[peer("lb2", true)], None);
        assert!(text.starts_with("OK: 1/1 peer is heard; no flows are replicated"), "{text}");
        let failing = Summary { failing: Some("no\nprivilege".to_owned()), ..Summary::default() };
        let text = all(&[peer("lb2", true)], Some(&failing));
        assert!(text.starts_with("CRITICAL: 1/1 peer is heard; no flow is replicated: no privilege"), "{text}");
    }
}
