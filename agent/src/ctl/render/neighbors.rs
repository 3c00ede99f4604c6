//! BGP neighbours, for people.

use super::{age, inert, one_line, table};
use holdfast_node::status::NeighborStatus;

/// One row each.
pub(in crate::ctl) fn rows(neighbors: &[NeighborStatus]) -> String {
    let rows = neighbors.iter().map(|neighbor| {
        let side = if neighbor.internal && neighbor.asn != "internal" { " (internal)" } else { "" };
        let place = match (&neighbor.address, &neighbor.interface) {
            (Some(address), Some(interface)) => format!("{address} on {interface}"),
            (Some(address), None) => address.clone(),
            (None, Some(interface)) => format!("on {interface}"),
            (None, None) => String::new(),
        };
        vec![
            neighbor.name.clone(),
            format!("{}{side}", neighbor.asn),
            neighbor.state.clone(),
            age(neighbor.age_ms),
            format!("{}/{}", neighbor.announced, neighbor.wanted),
            neighbor.bfd.as_ref().map(|bfd| format!("{} {}", bfd.state, age(bfd.age_ms))).unwrap_or_default(),
            if place == neighbor.name { String::new() } else { place },
        ]
    });
    table(&["NEIGHBOR", "AS", "STATE", "SINCE", "ROUTES", "BFD", "ADDRESS"], rows)
}

/// The rows, and all that is known of each below them.
pub(in crate::ctl) fn all(neighbors: &[NeighborStatus]) -> String {
    if neighbors.is_empty() {
        return "no BGP neighbours are configured\n".to_owned();
    }
    let mut text = rows(neighbors);
    for neighbor in neighbors {
        let mut line = |what: String| text.push_str(&format!("  {}: {}\n", neighbor.name, one_line(&what)));
        let ids = [("router id", &neighbor.router_id), ("our address", &neighbor.local)];
        let mut agreed: Vec<String> = neighbor.capabilities.clone();
        agreed.extend(neighbor.hold_time_ms.map(|ms| match ms {
            0 => "no hold time".to_owned(),
            ms => format!("hold time {}", age(ms)),
        }));
        if !agreed.is_empty() {
            line(format!("agreed on {}", agreed.join(", ")));
        }
        let ids: Vec<String> = ids.iter().filter_map(|(what, id)| Some(format!("{what} {}", id.as_ref()?))).collect();
        if !ids.is_empty() {
            line(ids.join(", "));
        }
        for why in &neighbor.unsendable {
            line(format!("can't be sent: {why}"));
        }
        if neighbor.received > 0 {
            line(format!("announces {} prefixes itself, all of them dropped", neighbor.received));
        }
        if let Some(bfd) = &neighbor.bfd {
            let why = bfd.diagnostic.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            line(format!("BFD {} ms × {}, {}{why}", bfd.interval_ms, bfd.multiplier, bfd.state));
        }
        if let Some(error) = &neighbor.last_error {
            line(format!("last error, {} ago: {}", age(error.age_ms), error.text));
        }
        let counters: Vec<String> = neighbor
            .counters
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(name, count)| format!("{} {count}", name.replace('_', " ")))
            .collect();
        if !counters.is_empty() {
            line(counters.join(", "));
        }
    }
    inert(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::status::{BfdStatus, NeighborError};

    #[test]
    fn a_neighbour_is_told_with_its_last_error_and_what_it_agreed_on() {
        let bfd = BfdStatus {
            state: "down".to_owned(),
            age_ms: 1_500,
            diagnostic: Some("the detection time expired".to_owned()),
            interval_ms: 50,
            multiplier: 3,
        };
        let neighbors = [
            NeighborStatus {
                name: "r1".to_owned(),
                address: Some("10.0.0.1".to_owned()),
                asn: "65000".to_owned(),
                router_id: Some("10.0.0.1".to_owned()),
                state: "established".to_owned(),
                age_ms: 61_000,
                announced: 2,
                wanted: 3,
                unsendable: vec!["192.0.2.10/32: no IPv6 next hop was agreed on for IPv4".to_owned()],
                received: 5,
                capabilities: vec!["ipv4".to_owned(), "4-octet AS".to_owned()],
                hold_time_ms: Some(9_000),
                counters: [("updates_sent".to_owned(), 4), ("updates_refused".to_owned(), 0)].into(),
                bfd: Some(bfd),
                ..NeighborStatus::default()
            },
            NeighborStatus {
                name: "10.0.0.2".to_owned(),
                address: Some("10.0.0.2".to_owned()),
                asn: "internal".to_owned(),
                internal: true,
                state: "connect".to_owned(),
                age_ms: 20,
                last_error: Some(NeighborError { text: "it refuses\nour AS".to_owned(), age_ms: 3_000 }),
                ..NeighborStatus::default()
            },
        ];
        let expected = "\
NEIGHBOR  AS        STATE        SINCE  ROUTES  BFD        ADDRESS
r1        65000     established  1m01s  2/3     down 1.5s  10.0.0.1
10.0.0.2  internal  connect      20ms   0/0
  r1: agreed on ipv4, 4-octet AS, hold time 9.0s
  r1: router id 10.0.0.1
  r1: can't be sent: 192.0.2.10/32: no IPv6 next hop was agreed on for IPv4
  r1: announces 5 prefixes itself, all of them dropped
  r1: BFD 50 ms × 3, down: the detection time expired
  r1: updates sent 4
  10.0.0.2: last error, 3.0s ago: it refuses our AS
";
        assert_eq!(all(&neighbors), expected);
        assert!(all(&[]).contains("no BGP neighbours"));
    }

    #[test]
    fn what_a_router_says_is_shown_and_never_obeyed() {
        let text = "\u{1b}[31mgo away".to_owned();
        let last_error = Some(NeighborError { text, age_ms: 0 });
        let told = all(&[NeighborStatus { last_error, ..NeighborStatus::default() }]);
        assert!(!told.contains('\u{1b}') && told.contains("go away"), "{told}");
    }
}
