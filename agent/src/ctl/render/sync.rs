//! The part of the status about replicated flows. `peers` and `flows` have more.

use super::{age, one_line, optional_age, span, table};
use holdfast_node::status::{SyncDirection, SyncStatus, SyncVipStatus};
use std::time::Duration;

/// A row for each VIP, then one for each peer and direction.
pub(super) fn rows(sync: &SyncStatus) -> String {
    let mut text = String::new();
    if let Some(trouble) = &sync.trouble {
        text.push_str(&format!("no flows are replicated: {}\n", one_line(trouble)));
    }
    let head = ["REPLICATED VIP", "AT", "OWNER", "FLOWS", "YOUNG", "READY"];
    text.push_str(&table(&head, sync.vips.iter().map(vip)));
    for vip in &sync.vips {
        if let Some(ms) = vip.waits_ms {
            text.push_str(&format!("  {}: its addresses wait for flows, {} at most\n", vip.name, age(ms)));
        }
        if let Some(why) = &vip.why {
            text.push_str(&format!("  {}: {}\n", vip.name, one_line(why)));
        }
    }
    if !sync.peers.is_empty() {
        let rows = sync.peers.iter().flat_map(|peer| {
            [(true, &peer.outbound), (false, &peer.inbound)]
                .map(|(ours, of)| direction(&peer.name, ours, of, peer.flows))
        });
        text.push_str(&table(&["PEER", "FLOWS", "STATE", "SINCE", "FOUND EQUAL", "BEHIND", "HELD"], rows));
    }
    let lag = sync.lag_us.map(|us| format!(", lag {} (median of the last minute)", span(Duration::from_micros(us))));
    let said = sync.age_ms.map_or_else(|| "never".to_owned(), |ms| format!("{} ago", age(ms)));
    text.push_str(&format!("  as was said {said}{}\n", lag.unwrap_or_default()));
    text
}

fn vip(vip: &SyncVipStatus) -> Vec<String> {
    vec![
        vip.name.clone(),
        vip.mode.clone(),
        vip.owner.clone().unwrap_or_else(|| "?".to_owned()),
        vip.flows.to_string(),
        vip.young.to_string(),
        if vip.ready { "yes" } else { "no" }.to_owned(),
    ]
}

fn direction(peer: &str, ours: bool, direction: &SyncDirection, held: u64) -> Vec<String> {
    let equal = optional_age(direction.compared_ms);
    vec![
        peer.to_owned(),
        super::peers::way(ours).to_owned(),
        match (direction.in_sync, &direction.why) {
            (true, _) => "in sync".to_owned(),
            (false, Some(why)) => one_line(why),
            (false, None) => "not in sync".to_owned(),
        },
        age(direction.since_ms),
        if direction.compared_ms.is_some() { format!("{equal} ago") } else { "never".to_owned() },
        if ours { direction.behind.to_string() } else { String::new() },
        if ours { String::new() } else { held.to_string() },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::status::SyncPeerStatus;

    #[test]
    fn a_status_tells_of_replicated_vips_and_of_each_direction_with_their_ages() {
        let web = SyncVipStatus {
            name: "web".to_owned(),
            mode: "assured".to_owned(),
            ready: false,
            why: Some("not all flows of lb2 are here".to_owned()),
            owner: None,
            waits_ms: Some(120),
            flows: 200,
            young: 3,
        };
        let outbound =
            SyncDirection { in_sync: true, why: None, since_ms: 61_000, compared_ms: Some(1_500), behind: 4 };
        let inbound = SyncDirection {
            in_sync: false,
            why: Some("no session".to_owned()),
            since_ms: 4_200,
            compared_ms: None,
            behind: 0,
        };
        let lb2 = SyncPeerStatus { name: "lb2".to_owned(), outbound, inbound, flushed: true, flows: 80 };
        let sync =
            SyncStatus { age_ms: Some(300), trouble: None, lag_us: Some(240), vips: vec![web], peers: vec![lb2] };
        let expected = "\
REPLICATED VIP  AT       OWNER  FLOWS  YOUNG  READY
web             assured  ?      200    3      no
  web: its addresses wait for flows, 120ms at most
  web: not all flows of lb2 are here
PEER  FLOWS            STATE       SINCE  FOUND EQUAL  BEHIND  HELD
lb2   our flows there  in sync     1m01s  1.5s ago     4
lb2   its flows here   no session  4.2s   never                80
  as was said 300ms ago, lag 0.2ms (median of the last minute)
";
        assert_eq!(rows(&sync), expected);
        let silent = SyncStatus { age_ms: None, trouble: Some("no\nprivilege".to_owned()), ..SyncStatus::default() };
        let text = rows(&silent);
        assert!(text.starts_with("no flows are replicated: no privilege\n"), "{text}");
        assert!(text.ends_with("  as was said never\n"), "{text}");
    }
}
