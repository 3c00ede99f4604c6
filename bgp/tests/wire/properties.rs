//! What holds of every message: what is written is read as it was, and both readers of an UPDATE agree.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use holdfast_bgp::types::{Asn, Families, Family, NextHop, Origin, PathAttributes, Prefix, RouterId};
use holdfast_bgp::wire::update::{announce, inspect, withdraw};
use holdfast_bgp::wire::{
    Attribute, AttributeValue, Capability, Codec, GracefulFamily, GracefulRestart, Message, Notification, Open,
    RefreshKind, RouteRefresh, Segment, SegmentKind, Update, decode,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{frame, updates};

fn asn() -> impl Strategy<Value = Asn> {
    prop_oneof![1_u32..=65_535, 65_536..=u32::MAX].prop_map(Asn)
}

fn ipv4() -> impl Strategy<Value = Ipv4Addr> {
    // A host's.
    (1_u32 << 24..127 << 24).prop_map(Ipv4Addr::from_bits)
}

fn prefix(family: Family) -> impl Strategy<Value = Prefix> {
    (any::<u128>(), 0..=family.bits()).prop_map(move |(bits, length)| {
        let ip = match family {
            Family::Ipv4 => IpAddr::from(Ipv4Addr::from_bits(bits as u32)),
            Family::Ipv6 => IpAddr::from(Ipv6Addr::from_bits(bits)),
        };
        Prefix::new(ip, length).unwrap()
    })
}

fn codec() -> impl Strategy<Value = Codec> {
    any::<(bool, bool, bool, bool)>().prop_map(|(four_octet_as, extended_message, extended_next_hop, internal)| Codec {
        four_octet_as,
        extended_message,
        extended_next_hop,
        families: Families::BOTH,
        internal,
    })
}

fn v6_hop() -> impl Strategy<Value = NextHop> {
    let global = (0x2001_u128 << 112..0x2002 << 112).prop_map(Ipv6Addr::from_bits);
    let local = any::<u64>().prop_map(|host| Ipv6Addr::from_bits((0xfe80 << 112) + u128::from(host)));
    (prop::option::of(global), prop::option::of(local))
        .prop_filter("one of them", |(global, local)| global.is_some() || local.is_some())
        .prop_map(|(global, link_local)| NextHop::V6 { global, link_local })
}

fn attributes(hop: impl Strategy<Value = NextHop>) -> impl Strategy<Value = PathAttributes> {
    let origin = prop_oneof![Just(Origin::Igp), Just(Origin::Egp), Just(Origin::Incomplete)];
    let lists = (vec(any::<u32>(), 0..70), vec(any::<[u32; 3]>(), 0..25), vec(any::<[u8; 8]>(), 0..40));
    (origin, vec(asn(), 0..280), any::<Option<u32>>(), any::<Option<u32>>(), lists, hop).prop_map(
        |(origin, as_path, med, local_pref, (communities, large, extended), next_hop)| PathAttributes {
            origin,
            as_path,
            med,
            local_pref,
            communities,
            large,
            extended,
            next_hop,
        },
    )
}

/// What a reader sees of an UPDATE: the same as was announced.
fn read_back(update: &Update, codec: &Codec) -> PathAttributes {
    use AttributeValue as V;
    let find = |kind: fn(&V) -> Option<&V>| update.find(kind);
    PathAttributes {
        origin: update.find(|v| if let V::Origin(origin) = v { Some(*origin) } else { None }).unwrap(),
        as_path: update.as_path().unwrap().into_iter().flat_map(|segment| segment.asns).collect(),
        med: update.find(|v| if let V::Med(med) = v { Some(*med) } else { None }),
        local_pref: update.find(|v| if let V::LocalPref(it) = v { Some(*it) } else { None }).filter(|_| codec.internal),
        communities: update
            .find(|v| if let V::Communities(it) = v { Some(it.clone()) } else { None })
            .unwrap_or_default(),
        large: update
            .find(|v| if let V::LargeCommunities(it) = v { Some(it.clone()) } else { None })
            .unwrap_or_default(),
        extended: update
            .find(|v| if let V::ExtendedCommunities(it) = v { Some(it.clone()) } else { None })
            .unwrap_or_default(),
        next_hop: match find(|v| matches!(v, V::NextHop(_) | V::MpReach { .. }).then_some(v)) {
            Some(V::NextHop(address)) => NextHop::V4(*address),
            Some(V::MpReach { next_hop, .. }) => *next_hop,
            _ => panic!("no next hop: {update:?}"),
        },
    }
}

fn comes_back(codec: Codec, attributes: &PathAttributes, family: Family, prefixes: &[Prefix]) {
    let mut out = Vec::new();
    announce(&mut out, &codec, attributes, family, prefixes.iter().copied()).unwrap();
    let updates = updates(&out, &codec);
    let expected =
        PathAttributes { local_pref: attributes.local_pref.filter(|_| codec.internal), ..attributes.clone() };
    for update in &updates {
        assert_eq!(update.faults, []);
        assert_eq!(read_back(update, &codec), expected);
    }
    let got: Vec<Prefix> = updates.iter().flat_map(|update| update.all_announced().collect::<Vec<_>>()).collect();
    assert_eq!(got, prefixes);
    let mut out = Vec::new();
    withdraw(&mut out, &codec, family, prefixes.iter().copied());
    let updates = self::updates(&out, &codec);
    let got: Vec<Prefix> = updates.iter().flat_map(|update| update.all_withdrawn().collect::<Vec<_>>()).collect();
    assert_eq!(got, prefixes);
}

fn segment() -> impl Strategy<Value = Segment> {
    use SegmentKind::*;
    (prop_oneof![Just(Set), Just(Sequence), Just(ConfedSequence), Just(ConfedSet)], vec(asn(), 1..=255))
        .prop_map(|(kind, asns)| Segment { kind, asns })
}

/// Attributes that may stand in any UPDATE between internal neighbours of four octets.
fn attribute_value() -> impl Strategy<Value = AttributeValue> {
    use AttributeValue as V;
    let reach = |family: Family| {
        (v6_hop(), vec(prefix(family), 0..5)).prop_map(move |(next_hop, prefixes)| V::MpReach {
            family,
            next_hop,
            prefixes,
        })
    };
    let unreach =
        |family: Family| vec(prefix(family), 0..5).prop_map(move |prefixes| V::MpUnreach { family, prefixes });
    prop_oneof![
        vec(segment(), 0..4).prop_map(V::AsPath),
        Just(V::Origin(Origin::Egp)),
        ipv4().prop_map(V::NextHop),
        any::<u32>().prop_map(V::Med),
        any::<u32>().prop_map(V::LocalPref),
        Just(V::AtomicAggregate),
        (asn(), any::<Ipv4Addr>()).prop_map(|(asn, by)| V::Aggregator(asn, by)),
        vec(any::<u32>(), 1..80).prop_map(V::Communities),
        any::<Ipv4Addr>().prop_map(V::OriginatorId),
        vec(any::<Ipv4Addr>(), 1..5).prop_map(V::ClusterList),
        reach(Family::Ipv4),
        reach(Family::Ipv6),
        unreach(Family::Ipv4),
        unreach(Family::Ipv6),
        (3_u16.., any::<u8>(), vec(any::<u8>(), 0..30), vec(any::<u8>(), 0..30))
            .prop_map(|(afi, safi, next_hop, nlri)| V::MpReachOther { afi, safi, next_hop, nlri }),
        (3_u16.., any::<u8>(), vec(any::<u8>(), 0..30)).prop_map(|(afi, safi, nlri)| V::MpUnreachOther {
            afi,
            safi,
            nlri
        }),
        vec(any::<[u8; 8]>(), 1..40).prop_map(V::ExtendedCommunities),
        vec(any::<[u32; 3]>(), 1..25).prop_map(V::LargeCommunities),
        (40_u8.., vec(any::<u8>(), 0..400)).prop_map(|(code, value)| V::Other { code, value }),
    ]
}

fn text() -> impl Strategy<Value = String> {
    "[a-z0-9.äß-]{0,60}"
}

fn capability() -> impl Strategy<Value = Capability> {
    let graceful = (any::<bool>(), any::<bool>(), 0_u16..4096, vec(any::<(u16, u8, bool)>(), 0..10)).prop_map(
        |(restarting, notification, restart_time_s, families)| {
            let family = |(afi, safi, forwarding)| GracefulFamily { afi, safi, forwarding };
            let families = families.into_iter().map(family).collect();
            Capability::GracefulRestart(GracefulRestart { restarting, notification, restart_time_s, families })
        },
    );
    prop_oneof![
        any::<(u16, u8)>().prop_map(|(afi, safi)| Capability::Multiprotocol { afi, safi }),
        Just(Capability::RouteRefresh),
        vec(any::<(u16, u16, u16)>(), 0..42).prop_map(Capability::ExtendedNextHop),
        Just(Capability::ExtendedMessage),
        any::<u8>().prop_map(Capability::Role),
        graceful,
        vec(any::<(u16, u8, u8)>(), 0..60).prop_map(Capability::AddPath),
        Just(Capability::EnhancedRouteRefresh),
        (text(), text()).prop_map(|(host, domain)| Capability::Fqdn { host, domain }),
        text().prop_map(Capability::SoftwareVersion),
        (100_u8.., vec(any::<u8>(), 0..256)).prop_map(|(code, value)| Capability::Other { code, value }),
    ]
}

proptest! {
    #[test]
    fn ipv4_routes_come_back(
        codec in codec(),
        attributes in attributes(ipv4().prop_map(NextHop::V4)),
        prefixes in vec(prefix(Family::Ipv4), 1..400),
    ) {
        comes_back(codec, &attributes, Family::Ipv4, &prefixes);
    }

    #[test]
    fn ipv6_routes_come_back(
        codec in codec(),
        attributes in attributes(v6_hop()),
        prefixes in vec(prefix(Family::Ipv6), 1..200),
    ) {
        comes_back(codec, &attributes, Family::Ipv6, &prefixes);
    }

    #[test]
    fn ipv4_routes_with_ipv6_next_hops_come_back(
        codec in codec(),
        attributes in attributes(v6_hop()),
        prefixes in vec(prefix(Family::Ipv4), 1..200),
    ) {
        comes_back(Codec { extended_next_hop: true, ..codec }, &attributes, Family::Ipv4, &prefixes);
    }

    #[test]
    fn any_update_comes_back(
        values in vec(attribute_value(), 0..8),
        partial in any::<bool>(),
        withdrawn in vec(prefix(Family::Ipv4), 0..20),
    ) {
        let mut attributes: Vec<Attribute> = Vec::new();
        for value in values {
            if attributes.iter().all(|other| other.value.code() != value.code()) {
                let mut attribute = value.with_flags();
                attribute.flags |= if partial { 0x20 } else { 0 };
                attributes.push(attribute);
            }
        }
        let sent = Update { withdrawn, attributes, announced: vec![], faults: vec![] };
        let codec = Codec::LENIENT;
        let mut out = Vec::new();
        sent.encode(&codec, &mut out).unwrap();
        let got = Update::decode(frame(&out).body, &codec).unwrap();
        prop_assert_eq!(&got.attributes, &sent.attributes);
        prop_assert_eq!(&got.withdrawn, &sent.withdrawn);
        let inspected = inspect(frame(&out).body, &codec).unwrap();
        prop_assert_eq!(inspected.withdrawn.total() as usize, got.all_withdrawn().count());
        prop_assert_eq!(inspected.announced.total() as usize, got.all_announced().count());
        prop_assert_eq!(inspected.reaction(), got.reaction());
    }

    #[test]
    fn any_open_comes_back(
        capabilities in vec(capability(), 0..12),
        asn in asn(),
        four in any::<bool>(),
        hold_time_s in prop_oneof![Just(0_u16), 3_u16..],
        id in 1_u32..,
    ) {
        let mut open = Open { asn, hold_time_s, router_id: RouterId::new(Ipv4Addr::from_bits(id)).unwrap(), capabilities };
        if four || !asn.is_mappable() {
            open.capabilities.push(Capability::FourOctetAs(asn));
        }
        let mut out = Vec::new();
        open.encode(&mut out);
        prop_assert_eq!(decode(&frame(&out), &Codec::LENIENT), Ok(Message::Open(open)));
    }

    #[test]
    fn any_notification_and_refresh_come_back(
        (code, subcode, data) in (any::<u8>(), any::<u8>(), vec(any::<u8>(), 0..300)),
        (afi, kind, safi) in any::<(u16, u8, u8)>(),
    ) {
        let notification = Message::Notification(Notification::new(code, subcode, data));
        let refresh = Message::RouteRefresh(RouteRefresh { afi, kind: RefreshKind::from_code(kind), safi });
        for message in [notification, refresh] {
            let mut out = Vec::new();
            message.encode(&Codec::LENIENT, &mut out).unwrap();
            prop_assert_eq!(decode(&frame(&out), &Codec::LENIENT), Ok(message));
        }
    }
}
