//! The verdict of a status, its line, and what somebody should look at, each with its remedy.

use super::{ChecksumMismatch, NeighborStatus, PeerStatus, Verdict, VipStatus, Warning};
use super::{checks, planes, sessions, sync};
use crate::config::VipId;
use crate::node::Node;
use std::time::{Duration, Instant};

/// The verdict, its line, and what somebody should look at.
pub(super) fn judge(
    node: &Node,
    rows: &[(VipId, VipStatus)],
    peers: &[PeerStatus],
    neighbors: &[NeighborStatus],
    now: Instant,
) -> (Verdict, String, Vec<Warning>) {
    let mut verdict = Verdict::Ok;
    let mut warnings = Vec::new();
    let mut worse = |to: Verdict, text: String, remedy: &str| {
        verdict = verdict.max(to);
        warnings.push(Warning { text, remedy: remedy.to_owned() });
    };
    let mut spare = usize::MAX;
    let mut said = None;
    for (id, vip) in rows {
        for (text, remedy) in checksums(vip) {
            worse(Verdict::Degraded, text, remedy);
        }
        // The VIPs of a group share their fate: said once.
        let id = *id;
        if said.replace(id) == Some(id) {
            continue;
        }
        let rivals = vip.peers.iter().filter(|p| p.role == "active").count() + usize::from(vip.state == "active");
        let able = node.world.able_peers(id, now).len() + usize::from(vip.fitness == "fit" && vip.state != "off");
        let anycast = node.vip_config(id).anycast();
        let here = matches!(vip.state.as_str(), "active" | "announced" | "waiting");
        spare = spare.min(able.saturating_sub(1));
        match &vip.owner {
            None => worse(
                Verdict::Critical,
                if anycast {
                    format!("{} is announced by no node", vip.name)
                } else {
                    format!("{} has no owner", vip.name)
                },
                "`holdfast status` on each node says why it does not take it",
            ),
            Some(_) if rivals > 1 && !anycast => worse(
                Verdict::Critical,
                format!("{} has {rivals} owners", vip.name),
                "the nodes do not hear each other's adverts: check the segment and its filters for IP protocol 112",
            ),
            Some(_) if vip.fail_open && here => worse(
                Verdict::Degraded,
                format!(
                    "{} keeps {} though it can't serve it well: {}",
                    node.config.node,
                    vip.name,
                    first(&vip.reasons)
                ),
                "repair the balancer or its checks on any node",
            ),
            Some(_) => {}
        }
        for (text, remedy) in at_odds(node, id, vip, peers, now) {
            worse(Verdict::Degraded, text, remedy);
        }
        // Kept although unfit: that was said above.
        if vip.fitness != "fit" && vip.fitness != "withheld" && !(vip.fail_open && here) {
            let text = format!("this node can't serve {}: {}", vip.name, first(&vip.reasons));
            worse(Verdict::Degraded, text, "repair what the reason names");
        }
    }
    for (to, Warning { text, remedy }) in planes::warnings(node) {
        worse(to, text, &remedy);
    }
    for (to, text, remedy) in sessions::warnings(node, neighbors, now) {
        worse(to, text, remedy);
    }
    for (text, remedy) in
        checks::warnings(node).into_iter().chain(crate::conntrack::warnings(node)).chain(sync::warnings(node, now))
    {
        worse(Verdict::Degraded, text, remedy);
    }
    for peer in peers.iter().filter(|p| !p.reachable) {
        let text = match (peer.left, peer.age_ms) {
            (true, _) => format!("{} has stopped", peer.name),
            (false, None) => format!("nothing was heard from {}", peer.name),
            (false, Some(ms)) => {
                format!("nothing was heard from {} for {}.{} s", peer.name, ms / 1000, ms % 1000 / 100)
            }
        };
        worse(
            Verdict::Degraded,
            text,
            "see that its agent runs, that UDP passes both ways between the channel's addresses, and that each node's \
             public_keys has what `holdfast keygen --public` prints on the other",
        );
    }
    if let Some(intent) = &node.intents.drain {
        let reason = if intent.reason.is_empty() { "no reason given" } else { &intent.reason };
        let text = format!("this node is drained by {}: {reason}", intent.who);
        worse(Verdict::Degraded, text, "`holdfast undrain` when the work is done");
    }
    if node.stop.is_some() {
        worse(Verdict::Degraded, "this agent stops".to_owned(), "wait");
    }
    let known = peers.iter().filter(|p| p.reachable).count() + 1;
    let owners: Vec<String> =
        rows.iter().map(|(_, vip)| format!("{} on {}", vip.name, vip.owner.as_deref().unwrap_or("no node"))).collect();
    let lose = match (node.config.cluster.is_some(), rows.is_empty()) {
        (true, false) => format!("can lose {spare}"),
        _ => "redundancy unknown without [cluster]".to_owned(),
    };
    if node.config.cluster.is_some() && spare == 0 && !rows.is_empty() {
        let text = "no spare: if the owner fails, no other node is known able to take over".to_owned();
        worse(Verdict::Degraded, text, "bring another node back before touching the owner");
    }
    let summary = format!("{known}/{} nodes, {}, {lose}", peers.len() + 1, owners.join(", "));
    (verdict, summary, warnings)
}

/// Peers that make the checksum in another form than this node: each with its remedy.
fn checksums(vip: &VipStatus) -> impl Iterator<Item = (String, &'static str)> {
    vip.legs.iter().filter_map(|leg| {
        let ChecksumMismatch { peer, form } = leg.checksum_mismatch.as_ref()?;
        let text = format!(
            "{peer} makes the checksum of VRID {} on {} in another form ({form}) than this node ({}), and may refuse what \
             this node sends",
            leg.vrid, leg.interface, leg.checksum
        );
        let remedy = "use one form on all nodes: checksum = \"auto\" follows peers that agree, \"pseudo-header\" is the \
                      default of keepalived and FRR";
        Some((text, remedy))
    })
}

/// Configurations that don't belong together, as far as they show: each with its remedy.
fn at_odds(node: &Node, id: VipId, vip: &VipStatus, peers: &[PeerStatus], now: Instant) -> Vec<(String, &'static str)> {
    let mut found = Vec::new();
    for (peer, view) in peers.iter().zip(&vip.peers).filter(|(peer, _)| peer.reachable) {
        if view.role == "unknown" && node.started + SETTLED <= now {
            found.push((
                format!("{} says nothing of {}", peer.name, vip.name),
                "a VIP has the same name in all nodes' configurations",
            ));
        }
        let unheard = vip.heard.as_ref().is_none_or(|heard| heard.age_ms > UNHEARD_MS.max(4 * vip.interval_ms));
        if view.role == "active" && vip.state == "backup" && unheard && vip.age_ms > UNHEARD_MS {
            found.push((
                format!("{} owns {}, but its adverts don't arrive on {}", peer.name, vip.name, vip.interface),
                "check that vrid is the same on all nodes, and the segment and its filters for IP protocol 112",
            ));
        }
    }
    if let Some((at, from)) = node.run(id).mismatch
        && now.saturating_duration_since(at) < MISMATCH_SHOWN
    {
        found.push((
            format!("{from} has other addresses for VRID {} on {}", vip.vrid, vip.interface),
            "a VIP has the same addresses on all nodes, and a segment has each VRID once",
        ));
    }
    found
}

/// Reports and adverts of all peers should have come by then.
const SETTLED: Duration = Duration::from_secs(3);
/// An owner whose adverts are missing for so long isn't just taking over.
const UNHEARD_MS: u64 = 2_000;
/// Backups send no adverts: an owner hears of a difference only at a change of roles.
const MISMATCH_SHOWN: Duration = Duration::from_secs(60);

fn first(reasons: &[String]) -> &str {
    reasons.first().map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::super::LegStatus;
    use super::*;

    #[test]
    fn a_peer_with_another_checksum_is_told_with_what_to_do_about_it() {
        let leg = |mismatch: Option<ChecksumMismatch>| LegStatus {
            family: "ipv4".to_owned(),
            version: 3,
            interface: "eth0".to_owned(),
            vrid: 10,
            source: None,
            peers: Vec::new(),
            checksum: "message".to_owned(),
            checksum_mismatch: mismatch,
        };
        let odd = ChecksumMismatch { peer: "192.0.2.12".to_owned(), form: "pseudo-header".to_owned() };
        let vip = VipStatus {
            name: "web".to_owned(),
            group: None,
            state: "active".to_owned(),
            owner: None,
            age_ms: 0,
            addresses: Vec::new(),
            priority: 254,
            configured_priority: 254,
            interface: "eth0".to_owned(),
            vrid: 10,
            legs: vec![leg(None), leg(Some(odd))],
            interval_ms: 100,
            fitness: "fit".to_owned(),
            fitness_age_ms: 0,
            standing: "good".to_owned(),
            hold_down: None,
            fail_open: false,
            reasons: Vec::new(),
            peers: Vec::new(),
            heard: None,
            role_epoch: 1,
            route: None,
        };
        let told: Vec<_> = checksums(&vip).collect();
        assert_eq!(told.len(), 1);
        let (text, remedy) = &told[0];
        assert!(text.starts_with("192.0.2.12 makes the checksum of VRID 10 on eth0 in another form (pseudo-header)"));
        assert!(remedy.contains("checksum = \"auto\""), "{remedy}");
    }
}
