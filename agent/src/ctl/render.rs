//! What people see: the status, and events as lines.

pub(super) mod explain;
pub(super) mod flows;
pub(super) mod neighbors;
pub(super) mod peers;
mod planes;
mod pool;
mod sync;

use super::wire::EventLine;
use holdfast_node::journal::{Kind, Severity};
use holdfast_node::status::{CheckStatus, LegStatus, PeerStatus, Status, Verdict, VipStatus};
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, SystemTime};

/// Colour, if stderr is a terminal and nobody said NO_COLOR.
pub(super) fn colour_on_stderr() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes to stdout; `false`: nobody reads any more (`holdfast check | head`), which is no reason to panic.
pub(super) fn out(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

/// A computed time: exact to a tenth of a millisecond where that matters.
pub(super) fn span(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1000.0;
    if ms < 10.0 {
        format!("{ms:.1}ms")
    } else if ms < 10_000.0 {
        format!("{ms:.0}ms")
    } else {
        format!("{:.1}s", ms / 1000.0)
    }
}

/// An age: two units at most, never more exact than it matters.
pub(super) fn age(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0 => format!("{ms}ms"),
        1..60 => format!("{}.{}s", s, ms % 1000 / 100),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
    }
}

fn optional_age(ms: Option<u64>) -> String {
    ms.map_or_else(|| "-".to_owned(), age)
}

/// The verdict line: `OK: 2/2 nodes, web on lb1, can lose 1`.
pub(super) fn verdict(status: &Status) -> String {
    let word = match status.verdict {
        Verdict::Ok => "OK",
        Verdict::Degraded => "DEGRADED",
        Verdict::Critical => "CRITICAL",
    };
    inert(&format!("{word}: {}", status.summary))
}

/// The verdict line, then what to do something about, then the tables.
pub(super) fn status(status: &Status) -> String {
    let mut text = format!("{}\n", verdict(status));
    for warning in &status.warnings {
        text.push_str(&format!("warning: {}\n  remedy: {}\n", one_line(&warning.text), one_line(&warning.remedy)));
    }
    text.push_str(&format!("\nnode {}, running for {}\n", status.node, age(status.age_ms)));
    if let Some(drain) = &status.drain {
        let reason = if drain.reason.is_empty() { "no reason given" } else { &drain.reason };
        // By the clock of the request: the agent may have been started since.
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let since = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX).saturating_sub(drain.since_unix_ms);
        text.push_str(&format!("{}, asked {} ago by {}: {}\n", drain.phase, age(since), drain.who, one_line(reason)));
        for waits in &drain.waits_for {
            text.push_str(&format!("  waits for {waits}\n"));
        }
    }
    text.push('\n');
    text.push_str(&vips(&status.vips));
    if !status.neighbors.is_empty() {
        text.push('\n');
        text.push_str(&neighbors::rows(&status.neighbors));
    }
    if !status.balancers.is_empty() {
        text.push('\n');
        text.push_str(&planes::rows(&status.balancers));
    }
    if let Some(view) = &status.conntrack {
        text.push('\n');
        text.push_str(&planes::conntrack(view));
    }
    if let Some(pool) = &status.pool {
        text.push('\n');
        text.push_str(&pool::rows(pool));
    }
    if let Some(sync) = &status.sync {
        text.push('\n');
        text.push_str(&sync::rows(sync));
    }
    if !status.checks.is_empty() {
        text.push('\n');
        text.push_str(&table(
            &["CHECK", "STATE", "SINCE", "IN A ROW", "ASKED", "LAST ANSWER"],
            status.checks.iter().map(check),
        ));
    }
    if !status.peers.is_empty() {
        text.push('\n');
        text.push_str(&peers::rows(&status.peers));
    }
    inert(&text)
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

fn vips(vips: &[VipStatus]) -> String {
    let rows = vips.iter().map(|vip| {
        vec![
            vip.name.clone(),
            vip.group.clone().unwrap_or_default(),
            vip.state.clone(),
            age(vip.age_ms),
            vip.owner.clone().unwrap_or_else(|| "?".to_owned()),
            fitness(vip),
            if vip.priority == vip.configured_priority {
                vip.priority.to_string()
            } else {
                format!("{} (of {})", vip.priority, vip.configured_priority)
            },
            vip.addresses.iter().map(|a| a.address.clone()).collect::<Vec<_>>().join(" "),
        ]
    });
    let mut text = table(&["VIP", "GROUP", "STATE", "SINCE", "OWNER", "FITNESS", "PRIORITY", "ADDRESSES"], rows);
    let mut told = None;
    for vip in vips {
        let mut line = |what: &str| text.push_str(&format!("  {}: {}\n", vip.name, one_line(what)));
        for leg in vip.legs.iter().filter(|leg| !plain_leg(leg, vip)) {
            line(&on_the_wire(leg));
        }
        // The VIPs of a group share their fate, and the reasons for it: said with the first of them.
        let again = vip.group.is_some() && told == vip.group.as_ref();
        told = vip.group.as_ref();
        for address in vip
            .addresses
            .iter()
            .filter(|a| a.present != matches!(vip.state.as_str(), "active" | "announced" | "waiting"))
        {
            let is = if address.present { "is" } else { "is not" };
            line(&format!("{} {is} on {}", address.address, address.interface));
        }
        if again {
            continue;
        }
        if !vip.reasons.is_empty() {
            line(&vip.reasons.join("; "));
        }
        // An owner hears nobody; what it heard before it became the owner only confuses.
        if let Some(heard) = vip.heard.as_ref().filter(|h| vip.state != "active" || h.age_ms < vip.age_ms) {
            let priority = match heard.priority {
                0 => "which gave it away".to_owned(),
                priority => format!("priority {priority}"),
            };
            line(&format!("last advert from {}, {priority}, {} ago", heard.from, age(heard.age_ms)));
        }
        for view in &vip.peers {
            line(&match (view.role.as_str(), view.age_ms) {
                ("unknown", Some(ms)) => format!("{} has said nothing for {}", view.name, age(ms)),
                ("unknown", None) => format!("{} has said nothing yet", view.name),
                (role, at) => format!("{} says {role}, {}, {} ago", view.name, view.fitness, optional_age(at)),
            });
        }
    }
    text
}

/// Whether it can be served here, and how well where that is more than yes or no.
fn fitness(vip: &VipStatus) -> String {
    let more = matches!(vip.standing.as_str(), "poor" | "full" | "degraded").then_some(vip.standing.as_str());
    let more: Vec<&str> = more.into_iter().chain(vip.fail_open.then_some("fail open")).collect();
    if more.is_empty() { vip.fitness.clone() } else { format!("{} ({})", vip.fitness, more.join(", ")) }
}

/// Multicast VRRPv3 over IPv4 with the RFC's checksum, and nothing else: what needs no words.
fn plain_leg(leg: &LegStatus, vip: &VipStatus) -> bool {
    vip.legs.len() == 1
        && (leg.family.as_str(), leg.version, leg.checksum.as_str()) == ("ipv4", 3, "message")
        && leg.peers.is_empty()
        && leg.checksum_mismatch.is_none()
}

/// `IPv6 by VRRPv3, VRID 10 on eth0, from fe80::1 to fe80::2`.
fn on_the_wire(leg: &LegStatus) -> String {
    let family = match leg.family.as_str() {
        "ipv4" => "IPv4",
        "ipv6" => "IPv6",
        other => other,
    };
    let source = leg.source.as_deref().map_or_else(|| "no source yet".to_owned(), |source| format!("from {source}"));
    let to = if leg.peers.is_empty() { "by multicast".to_owned() } else { format!("to {}", leg.peers.join(", ")) };
    let mut text = format!("{family} by VRRPv{}, VRID {} on {}, {source} {to}", leg.version, leg.vrid, leg.interface);
    // The others have one form only.
    if (family, leg.version) == ("IPv4", 3) {
        text.push_str(match leg.checksum.as_str() {
            "pseudo-header" => ", checksum with pseudo-header",
            _ => ", checksum as RFC 9568",
        });
        if let Some(mismatch) = &leg.checksum_mismatch {
            text.push_str(&format!(", but {} sends it as {}", mismatch.peer, mismatch.form));
        }
    }
    text
}

fn check(check: &CheckStatus) -> Vec<String> {
    let row =
        if check.failures > 0 { format!("{} failed", check.failures) } else { format!("{} passed", check.successes) };
    vec![
        if check.shared { format!("{} (shared)", check.name) } else { check.name.clone() },
        check.state.clone(),
        age(check.age_ms),
        row,
        check.last_age_ms.map_or_else(|| "-".to_owned(), |ms| format!("{} ago", age(ms))),
        check.last.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

fn peer(peer: &PeerStatus) -> Vec<String> {
    let reachable = match (peer.reachable, peer.left) {
        (true, _) => "yes",
        (false, true) => "left",
        (false, false) => "no",
    };
    let said = |name: &String, state: &String| peer.verdicts.get(name).unwrap_or(state).clone();
    let balancers: Vec<String> =
        peer.balancers.iter().map(|(name, state)| format!("{name} {}", said(name, state))).collect();
    let heard = peer.age_ms.map_or_else(|| "never".to_owned(), |ms| format!("{} ago", age(ms)));
    vec![peer.name.clone(), reachable.to_owned(), heard, peer.address.clone(), balancers.join(", ")]
}

/// Text of peers, checks and operators is shown, never obeyed by the terminal.
pub(super) fn inert(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}

/// Columns as wide as their widest cell. Cells come over the wire: control characters are blanked.
fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let clean = |cell: String| cell.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    let mut cells: Vec<Vec<String>> = vec![head.iter().map(|&cell| cell.to_owned()).collect()];
    cells.extend(rows.map(|row| row.into_iter().map(clean).collect()));
    // A column in which no row has anything is left out.
    let empty = |column: usize| cells.iter().skip(1).all(|row| row.get(column).is_none_or(String::is_empty));
    let kept: Vec<usize> = (0..head.len()).filter(|&column| cells.len() == 1 || !empty(column)).collect();
    let cells: Vec<Vec<String>> = cells
        .iter()
        .map(|row| kept.iter().map(|&column| row.get(column).cloned().unwrap_or_default()).collect())
        .collect();
    let width = |column: usize| cells.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..kept.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &cells {
        let line: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// One event as a line: id, time, loudness when it is loud, what happened, and which entry caused it.
pub(super) fn event(line: &EventLine) -> String {
    let event = &line.event;
    let loud = match event.kind.severity() {
        Severity::Info => "",
        Severity::Warning => "warning: ",
        Severity::Fault => "FAULT: ",
    };
    let mut text = format!("#{} {} {loud}{}", event.id, line.time, words(&event.kind));
    if let Some(cause) = event.cause {
        text.push_str(&format!(" [because of #{cause}]"));
    }
    if event.suppressed > 0 {
        text.push_str(&format!(" [{} alike left out before]", event.suppressed));
    }
    inert(&text).replace('\n', " ")
}

/// The frequent ones as sentences; all others as `name key=value …`, which is what is in the JSON.
fn words(kind: &Kind) -> String {
    match kind {
        Kind::VipState { vip, from, to, reason, .. } => format!("vip {vip}: {from} -> {to}: {reason}"),
        Kind::VipFitness { vip, from, to, why } => format!("vip {vip}: {from} -> {to}: {why}"),
        Kind::VipPriority { vip, from, to, why } => format!("vip {vip}: priority {from} -> {to}: {why}"),
        Kind::CheckState { check, passed: true, why } if why.is_empty() => format!("check {check}: passed"),
        Kind::CheckState { check, passed, why } => {
            format!("check {check}: {}: {why}", if *passed { "passed" } else { "failed" })
        }
        Kind::ProbeFailed { check, why, .. } => format!("check {check}: a probe failed: {why}"),
        Kind::BalancerState { balancer, state, why } => format!("balancer {balancer}: {state}: {why}"),
        Kind::BalancerVerdict { balancer, from, to, why } => format!("balancer {balancer}: {from} -> {to}: {why}"),
        Kind::ConntrackLevel { from, to, why } => format!("connection table: {from} -> {to}: {why}"),
        Kind::PromotedUnsynced { vip, why, waited_ms } => {
            format!("vip {vip}: taken after {waited_ms} ms though flows may break: {why}")
        }
        Kind::MovedUnsynced { vip, peer, why } => format!("vip {vip}: given to {peer} though flows may break: {why}"),
        Kind::FlowSync { peer, outbound, in_sync, why } => {
            let of = if *outbound { "this node's flows at" } else { "flows of" };
            let why = if why.is_empty() { String::new() } else { format!(": {why}") };
            format!("{of} {peer}: {}{why}", if *in_sync { "in sync" } else { "out of sync" })
        }
        Kind::FlowsClaimed { vip, generation } => format!("vip {vip}: all its flows are ours (claim {generation})"),
        Kind::FlowNotice { what } => format!("flows: {what}"),
        Kind::SyncTrouble { why } if why.is_empty() => "flows can be replicated again".to_owned(),
        Kind::SyncTrouble { why } => format!("no flows are replicated: {why}"),
        Kind::HeldDown { vip, for_ms } => format!("vip {vip}: others go first for {}", age(*for_ms)),
        Kind::PeerUp { peer, .. } => format!("peer {peer}: channel up"),
        Kind::PeerDown { peer, goodbye } => {
            format!("peer {peer}: {}", if *goodbye { "said goodbye" } else { "channel silent" })
        }
        Kind::Link { interface, up, present } => match (up, present) {
            (true, _) => format!("interface {interface}: up"),
            (false, true) => format!("interface {interface}: down"),
            (false, false) => format!("interface {interface}: gone"),
        },
        Kind::BackendState { backend, up: true, .. } => format!("backend {backend}: up"),
        Kind::BackendState { backend, up: false, why } => format!("backend {backend}: down: {why}"),
        Kind::PoolMode { pool, mode, why } => format!("pool of {pool}: {mode}: {why}"),
        other => plain(other),
    }
}

fn plain(kind: &Kind) -> String {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(kind) else { return "?".to_owned() };
    let mut text = fields.get("event").and_then(|name| name.as_str()).unwrap_or("?").replace('_', " ");
    for (key, value) in fields.iter().filter(|(key, _)| *key != "event") {
        match value {
            serde_json::Value::Null => {}
            serde_json::Value::String(value) => text.push_str(&format!(" {key}={value:?}")),
            other => text.push_str(&format!(" {key}={other}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::journal::Event;

    #[test]
    fn ages_have_at_most_two_units() {
        for (ms, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_234, "1.2s"),
            (59_999, "59.9s"),
            (60_000, "1m00s"),
            (3_600_000, "1h00m"),
            (90_000_000, "1d01h"),
        ] {
            assert_eq!(age(ms), text);
        }
    }

    #[test]
    fn a_table_is_as_wide_as_its_cells_and_never_obeys_them() {
        let rows = [vec!["a".to_owned(), "long cell".to_owned()], vec!["bb\u{1b}[31m".to_owned(), "x".to_owned()]];
        assert_eq!(table(&["ONE", "TWO"], rows.into_iter()), "ONE      TWO\na        long cell\nbb [31m  x\n");
    }

    #[test]
    fn a_status_begins_with_what_is_wrong_and_ends_with_what_is_known() {
        use holdfast_node::status::{AddressStatus, HeardStatus, PeerView, Warning};
        let address = AddressStatus {
            address: "192.0.2.10/32".to_owned(),
            interface: "eth0".to_owned(),
            present: false,
            age_ms: None,
        };
        let vip = VipStatus {
            name: "web".to_owned(),
            group: None,
            state: "backup".to_owned(),
            owner: Some("lb1".to_owned()),
            age_ms: 61_000,
            addresses: vec![address],
            priority: 1,
            configured_priority: 253,
            interface: "eth0".to_owned(),
            vrid: 10,
            legs: Vec::new(),
            interval_ms: 100,
            fitness: "unfit".to_owned(),
            fitness_age_ms: 5,
            standing: "bad".to_owned(),
            hold_down: None,
            fail_open: false,
            reasons: vec!["check web failed".to_owned(), "lb1 is Active".to_owned()],
            peers: vec![PeerView {
                name: "lb1".to_owned(),
                role: "unknown".to_owned(),
                fitness: "unknown".to_owned(),
                standing: None,
                priority: None,
                age_ms: Some(3_000),
            }],
            heard: Some(HeardStatus { from: "192.0.2.11".to_owned(), priority: 254, age_ms: 40 }),
            role_epoch: 1,
            route: None,
        };
        let peer = PeerStatus {
            name: "lb1".to_owned(),
            reachable: false,
            age_ms: None,
            address: "10.1.0.11:7712".to_owned(),
            epoch: None,
            left: false,
            balancers: std::collections::BTreeMap::new(),
            verdicts: std::collections::BTreeMap::new(),
        };
        let status = Status {
            schema: 1,
            verdict: Verdict::Degraded,
            summary: "1/2 nodes".to_owned(),
            node: "lb2".to_owned(),
            epoch: 1,
            age_ms: 61_000,
            vips: vec![vip],
            neighbors: Vec::new(),
            peers: vec![peer],
            balancers: Vec::new(),
            checks: Vec::new(),
            pool: None,
            conntrack: None,
            sync: None,
            stall: None,
            drain: None,
            counters: std::collections::BTreeMap::new(),
            warnings: vec![Warning { text: "odd\nthing".to_owned(), remedy: "mend it".to_owned() }],
        };
        let expected = "\
DEGRADED: 1/2 nodes
warning: odd thing
  remedy: mend it

node lb2, running for 1m01s

VIP  STATE   SINCE  OWNER  FITNESS  PRIORITY    ADDRESSES
web  backup  1m01s  lb1    unfit    1 (of 253)  192.0.2.10/32
  web: check web failed; lb1 is Active
  web: last advert from 192.0.2.11, priority 254, 40ms ago
  web: lb1 has said nothing for 3.0s

PEER  REACHABLE  HEARD  ADDRESS
lb1   no         never  10.1.0.11:7712
";
        assert_eq!(super::status(&status), expected);
    }

    fn vip(name: &str, legs: Vec<LegStatus>) -> VipStatus {
        VipStatus {
            name: name.to_owned(),
            group: Some("edge".to_owned()),
            state: "active".to_owned(),
            owner: Some("lb1".to_owned()),
            age_ms: 1_000,
            addresses: Vec::new(),
            priority: 254,
            configured_priority: 254,
            interface: "eth0".to_owned(),
            vrid: 10,
            legs,
            interval_ms: 100,
            fitness: "fit".to_owned(),
            fitness_age_ms: 5,
            standing: "bad".to_owned(),
            hold_down: None,
            fail_open: false,
            reasons: vec!["this node owns it".to_owned()],
            peers: Vec::new(),
            heard: None,
            role_epoch: 1,
            route: None,
        }
    }

    #[test]
    fn a_group_and_its_legs_are_shown_and_its_reasons_once() {
        use holdfast_node::status::ChecksumMismatch;
        let leg = |family: &str, version, peers: &[&str], checksum: &str| LegStatus {
            family: family.to_owned(),
            version,
            interface: "eth0".to_owned(),
            vrid: 10,
            source: Some("192.0.2.11".to_owned()),
            peers: peers.iter().map(|&peer| peer.to_owned()).collect(),
            checksum: checksum.to_owned(),
            checksum_mismatch: None,
        };
        let mut odd = leg("ipv4", 3, &[], "message");
        odd.checksum_mismatch =
            Some(ChecksumMismatch { peer: "192.0.2.12".to_owned(), form: "pseudo-header".to_owned() });
        let six = LegStatus { source: None, ..leg("ipv6", 3, &["fe80::2", "fe80::3"], "pseudo-header") };
        let text = vips(&[
            vip("web", vec![odd, six]),
            vip("mail", vec![leg("ipv4", 2, &[], "message")]),
            vip("plain", vec![leg("ipv4", 3, &[], "message")]),
        ]);
        let expected = "\
VIP    GROUP  STATE   SINCE  OWNER  FITNESS  PRIORITY
web    edge   active  1.0s   lb1    fit      254
mail   edge   active  1.0s   lb1    fit      254
plain  edge   active  1.0s   lb1    fit      254
  web: IPv4 by VRRPv3, VRID 10 on eth0, from 192.0.2.11 by multicast, checksum as RFC 9568, but 192.0.2.12 sends it \
as pseudo-header
  web: IPv6 by VRRPv3, VRID 10 on eth0, no source yet to fe80::2, fe80::3
  web: this node owns it
  mail: IPv4 by VRRPv2, VRID 10 on eth0, from 192.0.2.11 by multicast
";
        assert_eq!(text, expected);
    }

    fn line(cause: Option<u64>, suppressed: u64, kind: Kind) -> EventLine {
        EventLine { schema: 1, time: "T".to_owned(), event: Event { id: 9, cause, suppressed, kind } }
    }

    #[test]
    fn an_event_names_its_cause_and_how_loud_it_is() {
        let kind = Kind::BalancerState { balancer: "h".to_owned(), state: "gone".to_owned(), why: "killed".to_owned() };
        assert_eq!(event(&line(Some(8), 0, kind)), "#9 T FAULT: balancer h: gone: killed [because of #8]");
        let kind = Kind::Undrained { who: "uid 0\n".to_owned() };
        assert_eq!(event(&line(None, 3, kind)), "#9 T undrained who=\"uid 0\\n\" [3 alike left out before]");
    }
}
