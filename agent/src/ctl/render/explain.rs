//! Why a VIP is where it is, and whether a flow would survive: for people.

use super::{age, inert, one_line, optional_age, table};
use crate::run::sync::query::{Explained, PeerSummary, Standing, Survival};
use holdfast_node::status::{Status, SyncVipStatus, VipStatus};
use std::fmt::Write as _;

/// A VIP: where it is and why, then what every node says of it.
pub(in crate::ctl) fn vip(vip: &VipStatus, status: &Status) -> String {
    let place = match &vip.owner {
        Some(owner) if *owner == status.node => format!("{owner} (this node)"),
        Some(owner) => owner.clone(),
        None => "unknown".to_owned(),
    };
    let mut text = format!("{}: owner {place}; {} here for {}\n", vip.name, vip.state, age(vip.age_ms));
    for reason in &vip.reasons {
        let _ = writeln!(text, "  because: {}", one_line(reason));
    }
    if let Some(sync) = &status.sync {
        // VIPs of a group are replicated together.
        let is_of = |of: &&SyncVipStatus| of.name == vip.name || vip.group.as_ref() == Some(&of.name);
        for of in sync.vips.iter().filter(is_of) {
            let ready = of.why.as_deref().map_or_else(|| "all that peers have is in this kernel".to_owned(), one_line);
            let said = sync.age_ms.map_or_else(|| "never".to_owned(), |ms| format!("{} ago", age(ms)));
            let _ = writeln!(text, "  flows: {} here; {ready} (said {said})", of.flows);
        }
    }
    let own = vec![
        format!("{} (this node)", status.node),
        vip.state.clone(),
        super::fitness(vip),
        vip.priority.to_string(),
        age(vip.fitness_age_ms),
    ];
    let peers = vip.peers.iter().map(|peer| {
        let standing = peer.standing.as_deref().filter(|s| matches!(*s, "poor" | "full" | "degraded"));
        vec![
            peer.name.clone(),
            peer.role.clone(),
            standing.map_or_else(|| peer.fitness.clone(), |standing| format!("{} ({standing})", peer.fitness)),
            peer.priority.map_or_else(|| "?".to_owned(), |priority| priority.to_string()),
            optional_age(peer.age_ms),
        ]
    });
    text.push('\n');
    text.push_str(&table(&["NODE", "ROLE", "FITNESS", "PRIORITY", "AGE"], std::iter::once(own).chain(peers)));
    inert(&text)
}

/// What is said of a flow in one word and one line, and what to do about it.
struct Verdict {
    word: &'static str,
    text: String,
    remedy: Option<&'static str>,
}

/// A flow: whether it would survive, then each node. `sync` has the ages of what is known of the peers.
pub(in crate::ctl) fn flow(name: &str, explained: &Explained, sync: &[PeerSummary]) -> String {
    let Verdict { word, text: what, remedy } = verdict(explained);
    let mut text = format!("{word}: {name}: {what}\n");
    if let Some(remedy) = remedy {
        let _ = writeln!(text, "  remedy: {remedy}");
    }
    let mut facts = Vec::new();
    facts.extend(explained.vip.as_ref().map(|vip| format!("to {vip}")));
    facts.extend(explained.backend.map(|backend| format!("backend {backend}")));
    facts.extend(explained.seen_as.map(|seen| format!("which sees it come from {seen}")));
    if !facts.is_empty() {
        let _ = writeln!(text, "  {}", facts.join(", "));
    }
    if !matches!(explained.standing, Standing::Known | Standing::Clash) {
        return inert(&text);
    }
    let own = vec![
        "this node".to_owned(),
        if explained.here { "yes" } else { "no" }.to_owned(),
        own_words(explained).to_owned(),
        String::new(),
    ];
    let peers = explained.peers.iter().map(|peer| {
        let known = sync.iter().find(|of| of.name == peer.peer);
        vec![
            peer.peer.clone(),
            if peer.survives {
                "yes"
            } else if asks_owner(peer, explained) {
                "?"
            } else {
                "no"
            }
            .to_owned(),
            peer.why.clone().unwrap_or_default(),
            known.and_then(|peer| peer.outbound.equal_ms).map(|ms| format!("{} ago", age(ms))).unwrap_or_default(),
        ]
    });
    text.push('\n');
    let head = ["NODE", "GOES ON THERE", "WHY", "TABLES FOUND EQUAL"];
    text.push_str(&table(&head, std::iter::once(own).chain(peers)));
    inert(&text)
}

/// The owner's word for itself.
const HERE: &str = "here";

fn is_ours(explained: &Explained) -> bool {
    explained.owner.as_deref() == Some(HERE)
}

/// A replica's owner knows what the other nodes have; this node doesn't.
fn asks_owner(peer: &Survival, explained: &Explained) -> bool {
    !peer.survives && !is_ours(explained)
}

fn own_words(explained: &Explained) -> &'static str {
    match (is_ours(explained), explained.here, explained.standing) {
        (_, _, Standing::Clash) => "another flow has its address and port behind the NAT here",
        (true, true, _) => "it is this node's, in this kernel",
        (true, false, _) => "it is this node's, and not in this kernel any more",
        (false, true, _) => "a replica, in this kernel",
        (false, false, _) => "a replica that isn't in this kernel (yet)",
    }
}

fn verdict(explained: &Explained) -> Verdict {
    let plain = |word, text: &str, remedy| Verdict { word, text: text.to_owned(), remedy };
    match explained.standing {
        Standing::Known | Standing::Clash if is_ours(explained) => ours(explained),
        Standing::Known | Standing::Clash => others(explained),
        Standing::Soon => plain("NOT YET", "it is in this kernel, and will be replicated in a moment", None),
        Standing::NotAssured => plain(
            "NOT YET",
            "it isn't established (assured) yet, and its VIP's flows are replicated when they are",
            Some("mode = \"syn\" replicates from the first packet on; it costs more"),
        ),
        Standing::Proxied => plain(
            "NO",
            "it ends on this host: the connection's state is in the balancer's process, where no replica can have it",
            Some(
                "bring its client back to the same backend by a stick table or cookie of the balancer, and take the host out \
                 when few are open (`holdfast drain` counts what breaks); a balancer of kind \"nft\" forwards, and its \
                 flows survive",
            ),
        ),
        Standing::NotCarried => plain(
            "NO",
            "it needs a connection tracking helper, a SYN proxy or shifted sequence numbers, which can't be replicated",
            Some("do without these for this VIP (`ct helper`, `synproxy` in the rules), if its flows are to survive"),
        ),
        Standing::Off => plain(
            "NO",
            "its VIP's flows aren't replicated: the mode is off",
            Some("set another `mode` for this VIP in [statesync] on all nodes"),
        ),
        Standing::NotForVips => plain(
            "NO",
            "its destination is no VIP whose flows are replicated",
            Some(
                "give it as its client sees it (client, then VIP), or name its VIP in `vips` of [statesync] on all nodes; \
                 `holdfast flows` shows which are",
            ),
        ),
        Standing::Absent => plain(
            "UNKNOWN",
            "neither this node's table nor its kernel has it: it is over, or never came here",
            Some(
                "ask the node that owns the VIP (`holdfast status`); `conntrack -L -d ADDRESS` shows what a kernel has",
            ),
        ),
    }
}

fn names<'s>(peers: impl Iterator<Item = &'s Survival>) -> Vec<&'s str> {
    peers.map(|peer| peer.peer.as_str()).collect()
}

/// A flow of this node.
fn ours(explained: &Explained) -> Verdict {
    let lasts = names(explained.peers.iter().filter(|peer| peer.survives));
    let ends = names(explained.peers.iter().filter(|peer| !peer.survives));
    let (word, text) = match (lasts.is_empty(), ends.is_empty()) {
        (true, true) => ("NO", "there is no peer".to_owned()),
        (false, true) => ("YES", format!("it would go on at {} without this node", lasts.join(", "))),
        (false, false) => ("PARTLY", format!("it would go on at {}, but not at {}", lasts.join(", "), ends.join(", "))),
        (true, false) => ("NO", format!("it would go on at no peer ({})", ends.join(", "))),
    };
    Verdict { word, text, remedy: (!ends.is_empty()).then_some("see why below; `holdfast peers` has more") }
}

/// A flow of another node.
fn others(explained: &Explained) -> Verdict {
    let owner = explained.owner.as_deref().unwrap_or("another node");
    if explained.here {
        return Verdict { word: "YES", text: format!("{owner} owns it, and it would go on here"), remedy: None };
    }
    let remedy = match explained.standing {
        Standing::Clash => "give each node SNAT addresses of its own, or wait for the other flow to end",
        _ => "if it stays so, see `holdfast flows` (refused by the kernel?) and `holdfast peers`",
    };
    Verdict { word: "NO", text: format!("{owner} owns it, and it wouldn't go on here"), remedy: Some(remedy) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::sync::query::DirectionSummary;

    const NAME: &str = "tcp 198.51.100.7:40000 192.0.2.10:80";

    fn explained(
        standing: Standing,
        owner: Option<&str>,
        here: bool,
        peers: &[(&str, bool, Option<&str>)],
    ) -> Explained {
        let survival = |(peer, survives, why): &(&str, bool, Option<&str>)| Survival {
            peer: (*peer).to_owned(),
            survives: *survives,
            why: why.map(str::to_owned),
        };
        Explained {
            vip: Some("web".to_owned()),
            standing,
            owner: owner.map(str::to_owned),
            here,
            peers: peers.iter().map(survival).collect(),
            backend: "10.2.0.21:8080".parse().ok(),
            seen_as: "10.2.0.11:40000".parse().ok(),
        }
    }

    fn in_sync(name: &str) -> PeerSummary {
        let direction = DirectionSummary { in_sync: true, why: None, since_ms: 9_000, equal_ms: Some(1_500) };
        PeerSummary {
            name: name.to_owned(),
            up: true,
            outbound: direction.clone(),
            inbound: direction,
            ..PeerSummary::default()
        }
    }

    #[test]
    fn a_flow_of_this_node_is_told_with_each_peer_and_why_it_would_end_there() {
        let peers = [("lb2", true, None), ("lb3", false, Some("its latest state isn't acknowledged"))];
        let flow = explained(Standing::Known, Some("here"), true, &peers);
        let expected = "\
PARTLY: tcp 198.51.100.7:40000 192.0.2.10:80: it would go on at lb2, but not at lb3
  remedy: see why below; `holdfast peers` has more
  to web, backend 10.2.0.21:8080, which sees it come from 10.2.0.11:40000

NODE       GOES ON THERE  WHY                                  TABLES FOUND EQUAL
this node  yes            it is this node's, in this kernel
lb2        yes                                                 1.5s ago
lb3        no             its latest state isn't acknowledged
";
        assert_eq!(super::flow(NAME, &flow, &[in_sync("lb2")]), expected);
        let all = explained(Standing::Known, Some("here"), true, &[("lb2", true, None)]);
        let text = super::flow(NAME, &all, &[]);
        assert!(text.starts_with(&format!("YES: {NAME}: it would go on at lb2 without this node\n")), "{text}");
        assert!(!text.contains("remedy"), "{text}");
        let none = explained(Standing::Known, Some("here"), true, &[("lb2", false, Some("no session"))]);
        assert!(super::flow(NAME, &none, &[]).starts_with("NO: "));
    }

    #[test]
    fn a_replica_goes_on_here_if_the_kernel_has_it_and_its_owner_is_asked_for_the_others() {
        let peers = [("lb2", true, None), ("lb3", false, Some("lb2 owns it: ask there"))];
        let text = super::flow(NAME, &explained(Standing::Known, Some("lb2"), true, &peers), &[]);
        assert!(text.starts_with(&format!("YES: {NAME}: lb2 owns it, and it would go on here\n")), "{text}");
        assert!(text.contains("\nlb3        ?              lb2 owns it: ask there\n"), "{text}");
        let missing = super::flow(NAME, &explained(Standing::Known, Some("lb2"), false, &peers), &[]);
        assert!(missing.starts_with("NO: ") && missing.contains("isn't in this kernel (yet)"), "{missing}");
        let clash = super::flow(NAME, &explained(Standing::Clash, Some("lb2"), false, &peers), &[]);
        assert!(
            clash.contains("SNAT addresses of its own") && clash.contains("another flow has its address"),
            "{clash}"
        );
    }

    #[test]
    fn a_flow_that_is_not_replicated_is_told_with_why_and_what_to_do() {
        for (standing, word, part) in [
            (Standing::Proxied, "NO", "`holdfast drain`"),
            (Standing::Proxied, "NO", "stick table or cookie"),
            (Standing::NotCarried, "NO", "`synproxy`"),
            (Standing::Off, "NO", "set another `mode`"),
            (Standing::NotForVips, "NO", "`vips` of [statesync]"),
            (Standing::Absent, "UNKNOWN", "`conntrack -L -d ADDRESS`"),
            (Standing::NotAssured, "NOT YET", "mode = \"syn\""),
            (Standing::Soon, "NOT YET", "in a moment"),
        ] {
            let text = super::flow(NAME, &explained(standing, None, false, &[]), &[]);
            assert!(text.starts_with(&format!("{word}: {NAME}: ")) && text.contains(part), "{standing:?}: {text}");
            assert!(!text.contains("GOES ON"), "{text}");
        }
    }

    #[test]
    fn a_vip_is_told_with_its_place_its_reasons_and_what_each_node_says() {
        use holdfast_node::status::{PeerView, SyncStatus, Verdict};
        let view = PeerView {
            name: "lb2".to_owned(),
            role: "backup".to_owned(),
            fitness: "fit".to_owned(),
            standing: Some("full".to_owned()),
            priority: Some(253),
            age_ms: Some(40),
        };
        let web = VipStatus {
            name: "web".to_owned(),
            group: Some("edge".to_owned()),
            state: "active".to_owned(),
            owner: Some("lb1".to_owned()),
            age_ms: 61_000,
            addresses: Vec::new(),
            priority: 254,
            configured_priority: 254,
            interface: "eth0".to_owned(),
            vrid: 10,
            legs: Vec::new(),
            interval_ms: 100,
            fitness: "fit".to_owned(),
            fitness_age_ms: 5_000,
            standing: "good".to_owned(),
            hold_down: None,
            fail_open: false,
            reasons: vec!["this node owns it".to_owned()],
            peers: vec![view],
            heard: None,
            role_epoch: 1,
            route: None,
        };
        let status = Status {
            schema: 1,
            verdict: Verdict::Ok,
            summary: String::new(),
            node: "lb1".to_owned(),
            epoch: 1,
            age_ms: 61_000,
            vips: Vec::new(),
            neighbors: Vec::new(),
            peers: Vec::new(),
            balancers: Vec::new(),
            checks: Vec::new(),
            pool: None,
            conntrack: None,
            sync: Some(SyncStatus {
                age_ms: Some(300),
                vips: vec![
                    SyncVipStatus { name: "edge".to_owned(), flows: 200, ready: true, ..SyncVipStatus::default() },
                    SyncVipStatus { name: "dns".to_owned(), ..SyncVipStatus::default() },
                ],
                ..SyncStatus::default()
            }),
            stall: None,
            drain: None,
            counters: std::collections::BTreeMap::new(),
            warnings: Vec::new(),
        };
        let expected = "\
web: owner lb1 (this node); active here for 1m01s
  because: this node owns it
  flows: 200 here; all that peers have is in this kernel (said 300ms ago)

NODE             ROLE    FITNESS     PRIORITY  AGE
lb1 (this node)  active  fit         254       5.0s
lb2              backup  fit (full)  253       40ms
";
        assert_eq!(vip(&web, &status), expected);
        let lost = VipStatus { owner: None, state: "off".to_owned(), ..web };
        assert!(vip(&lost, &status).starts_with("web: owner unknown; off here"));
    }
}
