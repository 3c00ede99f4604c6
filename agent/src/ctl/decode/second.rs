//! Another decoder's reading of an UPDATE, for comparison.
//!
//! zettabgp panics on some malformed messages and fills the memory on others, so it only sees UPDATEs in which our decoder
//! found nothing wrong, with attributes that both read alike by design; on a thread of its own, and not for long.
//! Where it is known to read wrongly (agent/docs/decisions/bgp.md) it isn't asked.

use holdfast_bgp::types::{Family, NextHop, Origin, Prefix};
use holdfast_bgp::wire::{AttributeValue, Codec, SegmentKind, Update};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc;
use std::time::Duration;
use zettabgp::prelude::{
    BgpASitem, BgpAddr, BgpAddrs, BgpAttrItem, BgpAttrOrigin, BgpMessage as _, BgpSessionParams, BgpTransportMode,
    BgpUpdateMessage,
};

/// How it turned out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opinion {
    Same,
    Differs(Vec<String>),
    NotAsked(&'static str),
    Failed(String),
}

/// Far longer than any message takes.
const PATIENCE: Duration = Duration::from_secs(2);

/// Compares what both read of a body.
pub(super) fn opinion(body: &[u8], ours: &Update, codec: &Codec) -> Opinion {
    if let Some(why) = unsound(ours, codec) {
        return Opinion::NotAsked(why);
    }
    match read(body.to_vec()) {
        Err(why) => Opinion::Failed(why),
        Ok(theirs) => {
            let differences = differences(&Facts::ours(ours), &theirs);
            if differences.is_empty() { Opinion::Same } else { Opinion::Differs(differences) }
        }
    }
}

/// Why it can't be asked.
fn unsound(update: &Update, codec: &Codec) -> Option<&'static str> {
    if !update.faults.is_empty() {
        return Some("ours finds faults in it");
    }
    if !codec.four_octet_as {
        return Some("it takes all AS numbers for four octets");
    }
    for attribute in &update.attributes {
        match &attribute.value {
            AttributeValue::Origin(_)
            | AttributeValue::NextHop(_)
            | AttributeValue::Med(_)
            | AttributeValue::LocalPref(_)
            | AttributeValue::Communities(_)
            | AttributeValue::LargeCommunities(_)
            | AttributeValue::ExtendedCommunities(_)
            | AttributeValue::MpUnreach { .. } => {}
            AttributeValue::AsPath(segments) => {
                let plain = |kind| matches!(kind, SegmentKind::Sequence | SegmentKind::Set);
                if !segments.iter().all(|segment| plain(segment.kind)) {
                    return Some("it knows no confederations");
                }
            }
            AttributeValue::MpReach { family: Family::Ipv4, next_hop: NextHop::V6 { .. }, .. } => {
                return Some("it cuts an IPv6 next hop of IPv4 routes short");
            }
            AttributeValue::MpReach { next_hop: NextHop::V6 { global: Some(_), link_local: Some(_) }, .. } => {
                return Some("it drops the link-local next hop");
            }
            AttributeValue::MpReach { .. } => {}
            _ => return Some("there are attributes in it that it isn't trusted with"),
        }
    }
    None
}

/// What is compared.
#[derive(Debug, Default, PartialEq, Eq)]
struct Facts {
    announced: BTreeSet<Prefix>,
    withdrawn: BTreeSet<Prefix>,
    origin: Option<Origin>,
    /// Each segment with whether it's a set, its numbers sorted then.
    path: Option<Vec<(bool, Vec<u32>)>>,
    next_hops: BTreeSet<IpAddr>,
    med: Option<u32>,
    local_pref: Option<u32>,
    communities: BTreeSet<u32>,
    large: BTreeSet<[u32; 3]>,
    extended: BTreeSet<[u8; 8]>,
}

impl Facts {
    fn ours(update: &Update) -> Self {
        let mut facts = Self {
            announced: update.all_announced().collect(),
            withdrawn: update.all_withdrawn().collect(),
            ..Self::default()
        };
        for attribute in &update.attributes {
            match &attribute.value {
                AttributeValue::Origin(origin) => facts.origin = Some(*origin),
                AttributeValue::AsPath(segments) => {
                    let each = segments.iter().map(|segment| {
                        let numbers = segment.asns.iter().map(|asn| asn.0).collect();
                        ordered(segment.kind == SegmentKind::Set, numbers)
                    });
                    facts.path = Some(each.collect());
                }
                AttributeValue::NextHop(ip) => drop(facts.next_hops.insert(IpAddr::V4(*ip))),
                AttributeValue::MpReach { next_hop, .. } => facts.next_hops.extend(match next_hop {
                    NextHop::V4(ip) => Some(IpAddr::V4(*ip)),
                    NextHop::V6 { global, link_local } => global.or(*link_local).map(IpAddr::V6),
                }),
                AttributeValue::Med(med) => facts.med = Some(*med),
                AttributeValue::LocalPref(local_pref) => facts.local_pref = Some(*local_pref),
                AttributeValue::Communities(list) => facts.communities.extend(list),
                AttributeValue::LargeCommunities(list) => facts.large.extend(list),
                AttributeValue::ExtendedCommunities(list) => facts.extended.extend(list),
                _ => {}
            }
        }
        facts
    }

    fn theirs(update: BgpUpdateMessage) -> Self {
        let mut facts = Self::default();
        facts.announced.extend(prefixes(&update.updates));
        facts.withdrawn.extend(prefixes(&update.withdraws));
        for attribute in update.attrs {
            match attribute {
                BgpAttrItem::Origin(origin) => {
                    facts.origin = Some(match origin.value {
                        BgpAttrOrigin::Igp => Origin::Igp,
                        BgpAttrOrigin::Egp => Origin::Egp,
                        BgpAttrOrigin::Incomplete => Origin::Incomplete,
                    });
                }
                BgpAttrItem::ASPath(path) => {
                    let each = path.value.iter().map(|item| match item {
                        BgpASitem::Seq(numbers) => ordered(false, numbers.value.iter().map(|asn| asn.value).collect()),
                        BgpASitem::Set(numbers) => ordered(true, numbers.value.iter().map(|asn| asn.value).collect()),
                    });
                    facts.path = Some(each.collect());
                }
                BgpAttrItem::NextHop(next_hop) => drop(facts.next_hops.insert(next_hop.value)),
                BgpAttrItem::MED(med) => facts.med = Some(med.value),
                BgpAttrItem::LocalPref(local_pref) => facts.local_pref = Some(local_pref.value),
                BgpAttrItem::CommunityList(list) => facts.communities.extend(list.value.iter().map(|c| c.value)),
                BgpAttrItem::LargeCommunityList(list) => {
                    facts.large.extend(list.value.iter().map(|c| [c.ga, c.ldp1, c.ldp2]));
                }
                BgpAttrItem::ExtCommunityList(list) => facts.extended.extend(list.value.iter().map(|c| {
                    let ([a, b], [d, e, f, g]) = (c.a.to_be_bytes(), c.b.to_be_bytes());
                    [c.ctype, c.subtype, a, b, d, e, f, g]
                })),
                BgpAttrItem::MPUpdates(reach) => {
                    facts.announced.extend(prefixes(&reach.addrs));
                    facts.next_hops.extend(match reach.nexthop {
                        BgpAddr::V4(ip) => Some(IpAddr::V4(ip)),
                        BgpAddr::V6(ip) => Some(IpAddr::V6(ip)),
                        _ => None,
                    });
                }
                BgpAttrItem::MPWithdraws(unreach) => facts.withdrawn.extend(prefixes(&unreach.addrs)),
                _ => {}
            }
        }
        facts
    }
}

fn ordered(set: bool, mut numbers: Vec<u32>) -> (bool, Vec<u32>) {
    if set {
        numbers.sort_unstable();
    }
    (set, numbers)
}

fn prefixes(addresses: &BgpAddrs) -> Vec<Prefix> {
    match addresses {
        BgpAddrs::IPV4U(all) => all.iter().filter_map(|a| Prefix::new(IpAddr::V4(a.addr), a.prefixlen)).collect(),
        BgpAddrs::IPV6U(all) => all.iter().filter_map(|a| Prefix::new(IpAddr::V6(a.addr), a.prefixlen)).collect(),
        _ => Vec::new(),
    }
}

/// Its reading, or why there is none.
fn read(body: Vec<u8>) -> Result<Facts, String> {
    let (sender, receiver) = mpsc::channel();
    let work = move || {
        let decoded = std::panic::catch_unwind(|| {
            let router_id = Ipv4Addr::new(192, 0, 2, 1);
            let mut session = BgpSessionParams::new(64512, 90, BgpTransportMode::IPv4, router_id, Vec::new());
            // It would guess path identifiers that nobody agreed on.
            session.fuzzy_pathid = false;
            let mut update = BgpUpdateMessage::new();
            update.decode_from(&session, &body).map(|()| Facts::theirs(update)).map_err(|error| format!("{error:?}"))
        });
        let _ = sender.send(decoded.unwrap_or_else(|_| Err("it panicked".to_owned())));
    };
    let thread = std::thread::Builder::new().name("second-opinion".to_owned());
    if let Err(error) = thread.spawn(work) {
        return Err(format!("no thread for it: {error}"));
    }
    // One that doesn't come back ends with the process.
    receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| Err("it doesn't come to an end".to_owned()))
}

fn differences(ours: &Facts, theirs: &Facts) -> Vec<String> {
    let mut all = Vec::new();
    let mut compare = |what: &str, ours: String, theirs: String| {
        if ours != theirs {
            all.push(format!("{what}: {theirs} instead of {ours}"));
        }
    };
    macro_rules! each {
        ($($what:literal: $field:ident),* $(,)?) => {
            $(compare($what, format!("{:?}", ours.$field), format!("{:?}", theirs.$field));)*
        };
    }
    each!(
        "announced": announced, "withdrawn": withdrawn, "origin": origin, "AS path": path, "next hops": next_hops,
        "MED": med, "LOCAL_PREF": local_pref, "communities": communities, "large communities": large,
        "extended communities": extended,
    );
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_bgp::types::{Asn, Prefix};
    use holdfast_bgp::wire::{Attribute, Segment};

    fn update(values: Vec<AttributeValue>) -> Update {
        let attributes = values.into_iter().map(|value| Attribute { flags: 0x40, value }).collect();
        Update { withdrawn: Vec::new(), attributes, announced: Vec::new(), faults: Vec::new() }
    }

    #[test]
    fn what_it_reads_wrongly_it_is_not_asked() {
        let lenient = Codec::LENIENT;
        let v6 = |global, link_local| NextHop::V6 { global, link_local };
        let reach = |family, next_hop| AttributeValue::MpReach { family, next_hop, prefixes: Vec::new() };
        let one = "2001:db8::1".parse().ok();
        let near = "fe80::1".parse().ok();
        let confed = AttributeValue::AsPath(vec![Segment { kind: SegmentKind::ConfedSet, asns: vec![Asn(1)] }]);
        for (value, why) in [
            (reach(Family::Ipv4, v6(one, None)), "cuts an IPv6 next hop"),
            (reach(Family::Ipv6, v6(one, near)), "drops the link-local"),
            (confed, "no confederations"),
            (AttributeValue::AtomicAggregate, "isn't trusted with"),
        ] {
            let told = unsound(&update(vec![value]), &lenient).expect("not asked");
            assert!(told.contains(why), "{told}");
        }
        assert_eq!(unsound(&update(vec![reach(Family::Ipv6, v6(one, None))]), &lenient), None);
        assert!(unsound(&update(Vec::new()), &Codec { four_octet_as: false, ..lenient }).is_some());
    }

    #[test]
    fn a_difference_names_both_readings() {
        let ours = Facts { med: Some(1), ..Facts::default() };
        let theirs = Facts { announced: [Prefix::host(IpAddr::from([192, 0, 2, 1]))].into(), ..Facts::default() };
        let told = differences(&ours, &theirs);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("announced: {Prefix") && told[1] == "MED: None instead of Some(1)", "{told:?}");
        assert!(differences(&ours, &Facts { med: Some(1), ..Facts::default() }).is_empty());
    }

    #[test]
    fn garbage_is_a_failure_and_never_an_end() {
        for body in [vec![], vec![0xff; 3], vec![0, 0, 0, 5, 0x40]] {
            assert!(read(body.clone()).is_err(), "{body:?}");
        }
    }
}
