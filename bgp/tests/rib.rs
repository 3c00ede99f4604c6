//! Adj-RIB-Out: what is told of a wanted table, over any session.

mod common;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use common::{desired, many, prefix, with_route};
use holdfast_bgp::rib::{AdjRibOut, Context, DEFAULT_LOCAL_PREF, Desired, Route, Sent, Unsent};
use holdfast_bgp::types::{Asn, Families, Family, NextHop, PathAttributes, Prefix};
use holdfast_bgp::wire::{AttributeValue, Codec, Frame, MAX_LEN, Message, RefreshKind, SegmentKind, Update, decode};
use proptest::prelude::*;

fn context() -> Context {
    Context {
        local_as: Asn(65_001),
        codec: Codec { extended_message: false, internal: false, extended_next_hop: false, ..Codec::LENIENT },
        local: Ipv4Addr::new(192, 0, 2, 1).into(),
        next_hop_ipv4: None,
        next_hop_ipv6: Some("2001:db8::1".parse().unwrap()),
        link_local: None,
    }
}

fn read(stream: &[u8]) -> Vec<Message> {
    let mut rest = stream;
    let mut messages = Vec::new();
    while let Some((frame, more)) = Frame::split(rest, false).unwrap() {
        assert!(frame.bytes.len() <= MAX_LEN);
        messages.push(decode(&frame, &Codec::LENIENT).unwrap());
        rest = more;
    }
    assert!(rest.is_empty());
    messages
}

fn updates(messages: &[Message]) -> Vec<&Update> {
    messages
        .iter()
        .filter_map(|message| if let Message::Update(update) = message { Some(update) } else { None })
        .collect()
}

/// All that is to be said, and what was done.
fn all(rib: &mut AdjRibOut) -> (Vec<Message>, Sent) {
    let mut out = Vec::new();
    let mut total = Sent::default();
    while rib.pending() {
        let sent = rib.poll(usize::MAX, &mut out);
        total.updates += sent.updates;
        total.refreshes += sent.refreshes;
        total.announced.extend(sent.announced);
        total.withdrawn.extend(sent.withdrawn);
        total.unsent.extend(sent.unsent);
    }
    (read(&out), total)
}

/// With this table told.
fn told(context: Context, desired: &Arc<Desired>) -> AdjRibOut {
    let mut rib = AdjRibOut::new(context, true);
    rib.want(desired);
    all(&mut rib);
    rib
}

// ---- What is said of a route.

#[test]
fn an_external_neighbour_is_told_our_as_and_prepends_and_no_local_preference() {
    let route =
        Route { prepend: 2, med: Some(50), local_pref: Some(7), communities: vec![0xffff_0000], ..Route::default() };
    let said = context().attributes(&route, Family::Ipv4).unwrap();
    assert_eq!((said.as_path, said.local_pref), (vec![Asn(65_001); 3], None));
    assert_eq!((said.med, said.communities), (Some(50), vec![0xffff_0000]));
    assert_eq!(said.next_hop, NextHop::V4([192, 0, 2, 1].into()));
}

// Complaint 41: what routers refuse by default, or with `enforce-first-as`.
#[test]
fn complaint_41_an_external_neighbour_never_sees_a_set_or_an_empty_path_and_always_our_as_first() {
    for prepend in [0, 1, 255] {
        let mut rib = AdjRibOut::new(context(), false);
        rib.want(&with_route(&["198.51.100.1/32", "2001:db8::1/128"], Route { prepend, ..Route::default() }));
        let (messages, _) = all(&mut rib);
        let told: Vec<_> = updates(&messages).into_iter().filter(|update| update.end_of_rib().is_none()).collect();
        assert_eq!(told.len(), 2);
        for path in told.iter().map(|update| update.as_path().unwrap()) {
            assert!(path.iter().all(|segment| segment.kind == SegmentKind::Sequence));
            let asns: Vec<_> = path.into_iter().flat_map(|segment| segment.asns).collect();
            assert_eq!(asns, vec![Asn(65_001); 1 + usize::from(prepend)]);
        }
    }
}

#[test]
fn an_internal_neighbour_is_told_an_empty_path_and_a_local_preference() {
    let internal = Context { codec: Codec { internal: true, ..context().codec }, ..context() };
    let said = |route: Route| internal.attributes(&route, Family::Ipv4).unwrap();
    let PathAttributes { as_path, local_pref, .. } =
        said(Route { prepend: 2, local_pref: Some(7), ..Route::default() });
    assert_eq!((as_path, local_pref), (vec![], Some(7)));
    assert_eq!(said(Route::default()).local_pref, Some(DEFAULT_LOCAL_PREF));
}

// Complaints 24 and 25: the table of next hops.
#[test]
fn complaint_25_each_family_has_the_next_hop_of_its_family_on_any_session() {
    let v4 = |text: &str| NextHop::V4(text.parse().unwrap());
    let v6 = |global: &str, local: &str| NextHop::V6 { global: global.parse().ok(), link_local: local.parse().ok() };
    let plain = Context { next_hop_ipv6: None, ..context() };
    let at = |local: &str| Context { local: local.parse().unwrap(), ..plain };
    let with_cap_5 =
        |context: Context| Context { codec: Codec { extended_next_hop: true, ..context.codec }, ..context };
    let configured = |context: Context| Context {
        next_hop_ipv4: Some([192, 0, 2, 9].into()),
        next_hop_ipv6: Some("2001:db8::9".parse().unwrap()),
        ..context
    };
    let on_link = |context: Context| Context { link_local: Some("fe80::1".parse().unwrap()), ..context };
    let none = |family| Err(Unsent::NoNextHop(family));
    // Session, next hop of IPv4, of IPv6.
    let table = [
        (at("192.0.2.1"), Ok(v4("192.0.2.1")), none(Family::Ipv6)),
        (configured(at("192.0.2.1")), Ok(v4("192.0.2.1")), Ok(v6("2001:db8::9", ""))),
        (on_link(at("192.0.2.1")), Ok(v4("192.0.2.1")), Ok(v6("", "fe80::1"))),
        (at("2001:db8::1"), none(Family::Ipv4), Ok(v6("2001:db8::1", ""))),
        (on_link(at("2001:db8::1")), none(Family::Ipv4), Ok(v6("2001:db8::1", "fe80::1"))),
        (configured(at("2001:db8::1")), Ok(v4("192.0.2.9")), Ok(v6("2001:db8::1", ""))),
        (with_cap_5(at("2001:db8::1")), Ok(v6("2001:db8::1", "")), Ok(v6("2001:db8::1", ""))),
        // Unnumbered.
        (at("fe80::1"), none(Family::Ipv4), Ok(v6("", "fe80::1"))),
        (with_cap_5(at("fe80::1")), Ok(v6("", "fe80::1")), Ok(v6("", "fe80::1"))),
        (configured(at("fe80::1")), Ok(v4("192.0.2.9")), Ok(v6("2001:db8::9", "fe80::1"))),
        // Not known: never 0.0.0.0 or ::.
        (at("0.0.0.0"), none(Family::Ipv4), none(Family::Ipv6)),
        (at("::"), none(Family::Ipv4), none(Family::Ipv6)),
    ];
    for (context, ipv4, ipv6) in table {
        assert_eq!(context.next_hop(&Route::default(), Family::Ipv4), ipv4, "{context:?}");
        assert_eq!(context.next_hop(&Route::default(), Family::Ipv6), ipv6, "{context:?}");
    }
    // A route's own counts before all.
    let route = Route {
        next_hop_ipv4: Some([203, 0, 113, 1].into()),
        next_hop_ipv6: Some("2001:db8::77".parse().unwrap()),
        ..Route::default()
    };
    for (context, _, _) in table {
        assert_eq!(context.next_hop(&route, Family::Ipv4), Ok(v4("203.0.113.1")));
        assert_eq!(context.next_hop(&route, Family::Ipv6), Ok(v6("2001:db8::77", "")));
    }
}

#[test]
fn complaint_25_a_changed_next_hop_is_told_for_the_routes_that_it_concerns() {
    let mut own = (*desired(&["2001:db8:1::1/128", "198.51.100.1/32"])).clone();
    let fixed = Route { next_hop_ipv6: Some("2001:db8::77".parse().unwrap()), ..Route::default() };
    own.insert(prefix("2001:db8:1::2/128"), Arc::new(fixed));
    let mut rib = told(context(), &Arc::new(own));
    rib.set_context(context());
    assert!(!rib.pending());
    rib.set_context(Context { next_hop_ipv6: Some("2001:db8::2".parse().unwrap()), ..context() });
    let (_, sent) = all(&mut rib);
    assert_eq!((sent.announced, sent.updates), (vec![prefix("2001:db8:1::1/128")], 1));
}

#[test]
fn a_next_hop_that_changes_while_a_table_is_on_its_way_counts_for_all_of_it() {
    let of = |last: u8| Context {
        next_hop_ipv4: Some([192, 0, 2, last].into()),
        local: IpAddr::V6(Ipv6Addr::LOCALHOST),
        ..context()
    };
    let host = |n: u32| Prefix::host(Ipv4Addr::from(0xc612_0000 + n).into());
    let wanted: Desired = (0..10).map(|n| (host(n), Arc::new(sixty(n)))).collect();
    let mut rib = AdjRibOut::new(of(1), true);
    rib.want(&Arc::new(wanted));
    let mut out = Vec::new();
    let first = rib.poll(1, &mut out);
    assert_eq!(first.announced, [host(0)]);
    rib.set_context(of(2));
    let (messages, sent) = all(&mut rib);
    assert_eq!(sent.announced, (0..10).map(host).collect::<Vec<_>>(), "the first one again");
    let hops = updates(&messages).into_iter().flat_map(|update| &update.attributes).filter_map(|attribute| {
        match attribute.value {
            AttributeValue::NextHop(hop) => Some(hop),
            _ => None,
        }
    });
    assert!(hops.eq([Ipv4Addr::new(192, 0, 2, 2); 10]));
}

#[test]
fn a_refresh_that_comes_while_the_other_familys_table_is_on_its_way_is_answered_whole() {
    let mut wanted = (*desired(&["2001:db8:1::1/128"])).clone();
    let mut rib = told(context(), &Arc::new(wanted.clone()));
    let host = |n: u32| Prefix::host(Ipv4Addr::from(0xc612_0000 + n).into());
    wanted.extend((0..10).map(|n| (host(n), Arc::new(sixty(n)))));
    rib.want(&Arc::new(wanted));
    rib.poll(1, &mut Vec::new());
    rib.refresh(Family::Ipv6);
    let (messages, sent) = all(&mut rib);
    assert_eq!(sent.announced.len(), 9 + 1);
    let at = |wanted: &dyn Fn(&Message) -> bool| messages.iter().position(wanted).unwrap();
    let mark = |kind| at(&|message| matches!(message, Message::RouteRefresh(refresh) if refresh.kind == kind));
    let again = at(
        &|message| matches!(message, Message::Update(update) if update.all_announced().eq([prefix("2001:db8:1::1/128")])),
    );
    assert!(mark(RefreshKind::Begin) < again && again < mark(RefreshKind::End));
}

#[test]
fn a_route_that_a_session_can_not_carry_is_told_to_the_operator_and_not_to_the_neighbour() {
    let only_v4 =
        Context { codec: Codec { families: Families::NONE.with(Family::Ipv4), ..context().codec }, ..context() };
    let mut rib = AdjRibOut::new(only_v4, false);
    rib.want(&desired(&["198.51.100.1/32", "2001:db8::1/128"]));
    let (messages, sent) = all(&mut rib);
    assert_eq!(messages.len(), 2, "a route, and one End-of-RIB");
    assert_eq!(sent.unsent, [(prefix("2001:db8::1/128"), Unsent::Family(Family::Ipv6))]);
    assert_eq!((rib.announced(), rib.unsent()), ((1, 0), 1));
    // Once.
    rib.want(&desired(&["198.51.100.1/32", "2001:db8::1/128"]));
    assert!(!rib.pending());
}

// ---- Sizes (complaint 29).

fn sixty(n: u32) -> Route {
    Route { communities: (0..60).map(|c| n << 16 | c).collect(), ..Route::default() }
}

#[test]
fn complaint_29_three_thousand_vips_with_sixty_communities_each_are_told_in_messages_of_4096_at_most() {
    let host = |n: u32| Prefix::host(Ipv4Addr::from(0xc612_0000 + n).into());
    let wanted: Desired = (0..3000).map(|n| (host(n), Arc::new(sixty(n)))).collect();
    let mut rib = AdjRibOut::new(context(), false);
    rib.want(&Arc::new(wanted.clone()));
    let (messages, _) = all(&mut rib);
    let mut seen: Vec<_> =
        updates(&messages).iter().flat_map(|update| update.all_announced().collect::<Vec<_>>()).collect();
    seen.sort_unstable();
    assert!(seen.iter().eq(wanted.keys()));
    // All with the same: packed.
    let mut rib = AdjRibOut::new(context(), false);
    let same = Arc::new(sixty(1));
    rib.want(&Arc::new(wanted.keys().map(|prefix| (*prefix, Arc::clone(&same))).collect()));
    let (messages, _) = all(&mut rib);
    assert_eq!(messages.len(), 4 + 2, "some 760 in each, and two End-of-RIBs");
}

#[test]
fn complaint_29_attributes_too_large_for_a_message_are_an_error_that_is_seen_and_the_rest_goes_on() {
    let large = Route { large: vec![[1, 2, 3]; 400], ..Route::default() };
    let mut wanted = (*desired(&["198.51.100.1/32", "198.51.100.2/32"])).clone();
    wanted.insert(prefix("198.51.100.3/32"), Arc::new(large.clone()));
    let mut rib = AdjRibOut::new(context(), false);
    rib.want(&Arc::new(wanted));
    let (_, sent) = all(&mut rib);
    assert_eq!(sent.announced.len(), 2);
    let [(told, Unsent::TooLarge { bytes })] = sent.unsent[..] else { panic!("{:?}", sent.unsent) };
    assert!(told == prefix("198.51.100.3/32") && bytes > MAX_LEN);
    // One that was announced and grew: what the neighbour knew is no longer true.
    rib.want(&with_route(&["198.51.100.1/32"], large));
    let (_, sent) = all(&mut rib);
    assert_eq!((sent.withdrawn.len(), sent.unsent.len(), rib.unsent()), (2, 1, 1));
    // And shrunk again.
    rib.want(&desired(&["198.51.100.1/32"]));
    let (_, sent) = all(&mut rib);
    assert_eq!((sent.announced.len(), rib.unsent()), (1, 0));
}

#[test]
fn five_thousand_withdrawals_go_in_as_few_updates_as_can_be() {
    let mut rib = told(context(), &many(5000));
    rib.want(&many(0));
    let mut out = Vec::new();
    // Whatever the limit: what must not be used goes first, and at once.
    let sent = rib.poll(1, &mut out);
    assert_eq!(sent.withdrawn.len(), 5000);
    assert_eq!(sent.updates, 5000_u64.div_ceil((4096 - 23) / 5));
    assert!(out.len() < 26_000);
}

#[test]
fn announcements_come_in_batches_and_withdrawals_before_them() {
    let host = |n: u32| Prefix::host(Ipv4Addr::from(0xc612_0000 + n).into());
    let mut rib = told(context(), &many(10));
    let wanted: Desired = (10..1000).map(|n| (host(n), Arc::new(sixty(n)))).collect();
    rib.want(&Arc::new(wanted));
    let mut out = Vec::new();
    let first = rib.poll(10_000, &mut out);
    assert_eq!(first.withdrawn.len(), 10);
    assert_eq!(updates(&read(&out))[0].all_withdrawn().count(), 10);
    assert!((10_000..15_000).contains(&out.len()) && rib.pending());
    let (_, rest) = all(&mut rib);
    assert_eq!(first.announced.len() + rest.announced.len(), 990);
}

#[test]
fn a_table_that_was_never_wanted_is_not_empty_but_unknown() {
    let mut rib = AdjRibOut::new(context(), true);
    rib.refresh(Family::Ipv4);
    assert!(!rib.pending());
    rib.want(&many(0));
    let (messages, _) = all(&mut rib);
    assert_eq!(updates(&messages).iter().filter_map(|update| update.end_of_rib()).count(), 2);
    // RFC 7313: not before End-of-RIB.
    assert!(
        matches!(messages[0], Message::Update(_)) && matches!(messages[2], Message::RouteRefresh(_)),
        "{messages:?}"
    );
}

// ---- Properties.

/// A neighbour's view, made of what it was told.
#[derive(Default)]
struct View {
    routes: BTreeMap<Prefix, Vec<u32>>,
    ends: usize,
    /// What it knew of a family before a refresh, and hasn't heard again.
    stale: BTreeMap<Prefix, ()>,
}

impl View {
    fn hear(&mut self, messages: &[Message]) {
        for message in messages {
            match message {
                Message::Update(update) if update.end_of_rib().is_some() => self.ends += 1,
                Message::Update(update) => {
                    for prefix in update.all_withdrawn() {
                        assert!(self.routes.remove(&prefix).is_some(), "{prefix} withdrawn and never announced");
                    }
                    let communities = update.attributes.iter().find_map(|attribute| match &attribute.value {
                        AttributeValue::Communities(communities) => Some(communities.clone()),
                        _ => None,
                    });
                    for prefix in update.all_announced() {
                        self.stale.remove(&prefix);
                        self.routes.insert(prefix, communities.clone().unwrap_or_default());
                    }
                }
                Message::RouteRefresh(refresh) => {
                    let family = refresh.family().unwrap();
                    match refresh.kind {
                        RefreshKind::Begin => {
                            let known = self.routes.keys().filter(|prefix| prefix.family() == family);
                            self.stale.extend(known.map(|prefix| (*prefix, ())));
                        }
                        RefreshKind::End => {
                            // RFC 7313: what wasn't heard again is gone.
                            let gone = std::mem::take(&mut self.stale);
                            let (gone, stale) = gone.into_iter().partition(|(prefix, ())| prefix.family() == family);
                            let gone: BTreeMap<Prefix, ()> = gone;
                            self.stale = stale;
                            self.routes.retain(|prefix, _| !gone.contains_key(prefix));
                        }
                        _ => panic!("{refresh:?}"),
                    }
                }
                _ => panic!("{message:?}"),
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Want(Vec<(u8, u8, bool)>),
    Poll(usize),
    Refresh(bool),
    NextHop(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let want = prop::collection::vec((0..20_u8, 0..3_u8, any::<bool>()), 0..20).prop_map(Step::Want);
    let step = prop_oneof![
        4 => want,
        3 => (0..400_usize).prop_map(Step::Poll),
        1 => any::<bool>().prop_map(Step::Refresh),
        1 => (1..4_u8).prop_map(Step::NextHop),
    ];
    prop::collection::vec(step, 1..30)
}

fn table(routes: &[(u8, u8, bool)]) -> Arc<Desired> {
    let one = |(n, kind, v6): &(u8, u8, bool)| {
        let ip: IpAddr = match v6 {
            true => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, (*n).into()).into(),
            false => Ipv4Addr::new(198, 51, 100, *n).into(),
        };
        (Prefix::host(ip), Arc::new(Route { communities: vec![(*kind).into(); (*kind).into()], ..Route::default() }))
    };
    Arc::new(routes.iter().map(one).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_wanted_in_whatever_order_the_neighbour_ends_with_just_that(steps in steps()) {
        let mut rib = AdjRibOut::new(context(), true);
        let mut view = View::default();
        let mut wanted = table(&[]);
        for step in steps {
            match step {
                Step::Want(routes) => {
                    wanted = table(&routes);
                    rib.want(&wanted);
                }
                Step::Poll(limit) => {
                    let mut out = Vec::new();
                    rib.poll(limit, &mut out);
                    view.hear(&read(&out));
                }
                Step::Refresh(v6) => rib.refresh(if v6 { Family::Ipv6 } else { Family::Ipv4 }),
                Step::NextHop(n) => {
                    let next_hop = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 1, n.into());
                    rib.set_context(Context { next_hop_ipv6: Some(next_hop), ..context() });
                }
            }
        }
        rib.want(&wanted);
        let (messages, _) = all(&mut rib);
        view.hear(&messages);
        let expected: BTreeMap<_, _> = wanted.iter().map(|(prefix, route)| (*prefix, route.communities.clone())).collect();
        prop_assert_eq!(view.routes, expected);
        prop_assert_eq!(view.ends, 2);
        // And a second time there is nothing to say.
        rib.want(&Arc::new((*wanted).clone()));
        prop_assert!(!rib.pending());
    }

    #[test]
    fn withdrawing_all_leaves_the_neighbour_nothing(routes in prop::collection::vec((0..20_u8, 0..3_u8, any::<bool>()), 0..40)) {
        let mut rib = AdjRibOut::new(context(), false);
        rib.want(&table(&routes));
        let mut view = View::default();
        view.hear(&all(&mut rib).0);
        let mut out = Vec::new();
        rib.withdraw_all(&mut out);
        view.hear(&read(&out));
        prop_assert!(view.routes.is_empty());
        prop_assert!(!rib.pending());
    }
}

/// Found by the property above: what is unwanted and wanted again while a refresh is being answered must be in the
/// answer, or the neighbour takes it for gone at its end.
#[test]
fn a_route_that_is_taken_back_while_a_refresh_is_answered_is_in_the_answer() {
    let mut rib = told(context(), &table(&[(3, 0, false), (13, 0, false)]));
    rib.refresh(Family::Ipv4);
    rib.want(&table(&[(13, 2, false)]));
    let mut out = Vec::new();
    rib.poll(0, &mut out);
    rib.want(&table(&[]));
    rib.want(&table(&[(13, 0, false)]));
    let (_, sent) = all(&mut rib);
    assert_eq!(sent.announced, [prefix("198.51.100.13/32")]);
}
