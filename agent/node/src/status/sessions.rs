//! How it stands with the routers: what fills [`NeighborStatus`] and [`RouteStatus`].

use super::{BfdStatus, NeighborError, NeighborStatus, RouteStatus, Verdict};
use crate::bgp::NeighborView;
use crate::bgp::form_word;
use crate::bgp::speakers::Speaker;
use crate::config::{Neighbor, NeighborId, VipId};
use crate::io::age_ms;
use crate::keeper::ipc::{BfdState, describe_diagnostic};
use crate::node::Node;
use holdfast_bgp::State;
use holdfast_bgp::session::{Counters, Info, Negotiated, Reason};
use holdfast_bgp::types::Family;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// After its start a node may take this long to reach its routers before that is worth a warning.
const REACH: Duration = Duration::from_secs(5);

/// All neighbours in file order.
pub(super) fn neighbors(node: &Node, now: Instant) -> Vec<NeighborStatus> {
    let Some(bgp) = &node.config.bgp else { return Vec::new() };
    let each = bgp.each().zip(&node.speakers.list).zip(&node.world.neighbors);
    each.map(|(((_, neighbor), speaker), view)| one(node, neighbor, speaker, view, now)).collect()
}

fn one(node: &Node, neighbor: &Neighbor, speaker: &Speaker, view: &NeighborView, now: Instant) -> NeighborStatus {
    let info = speaker.peer.info();
    let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let own = node.config.bgp.as_ref().map(|bgp| bgp.asn);
    let announced = info.announced.0.saturating_add(info.announced.1);
    let more = number(info.unsent).saturating_sub(1);
    let unsendable = info.unsent_example.map(|(prefix, why)| match more {
        0 => format!("{prefix}: {why}"),
        more => format!("{prefix} and {more} more: {why}"),
    });
    NeighborStatus {
        name: neighbor.name.clone(),
        address: speaker.remote.map(|ip| ip.to_string()),
        interface: neighbor.interface.as_ref().map(|name| name.as_str().to_owned()),
        asn: info.negotiated.map_or_else(|| neighbor.asn.to_string(), |negotiated| negotiated.asn.to_string()),
        internal: own.is_some_and(|own| neighbor.internal(own)),
        router_id: info.negotiated.map(|negotiated| negotiated.router_id.to_string()),
        state: state_word(info.state).to_owned(),
        age_ms: age_ms(now, info.since),
        local: info.addresses.map(|(local, _)| local.ip().to_string()),
        announced: number(announced),
        wanted: number(speaker.wanted()),
        unsendable: unsendable.into_iter().collect(),
        received: info.counters.routes_dropped,
        capabilities: info.negotiated.map(|negotiated| capabilities(neighbor, &negotiated)).unwrap_or_default(),
        hold_time_ms: info.negotiated.map(|negotiated| age_ms(now + negotiated.hold_time, now)),
        last_error: last_error(speaker, &info, now),
        counters: counters(&info.counters),
        bfd: neighbor.bfd.as_ref().map(|bfd| BfdStatus {
            state: view.bfd.map_or("unknown", |(state, _, _)| bfd_word(state)).to_owned(),
            age_ms: age_ms(now, view.bfd.map_or(node.started, |(_, _, since)| since)),
            diagnostic: view
                .bfd
                .filter(|(state, diag, _)| *state != BfdState::Up && *diag != 0)
                .map(|(_, diag, _)| describe_diagnostic(diag).to_owned()),
            interval_ms: age_ms(now + bfd.interval, now),
            multiplier: bfd.multiplier,
        }),
    }
}

/// What stands in the way now comes before what ended the last session.
fn last_error(speaker: &Speaker, info: &Info, now: Instant) -> Option<NeighborError> {
    if let Some((since, why)) = &speaker.problem {
        return Some(NeighborError { text: why.clone(), age_ms: age_ms(now, *since) });
    }
    let (at, reason) = info.last_error.as_ref()?;
    let what_to_do = match reason {
        Reason::NotificationSent { code: 2, subcode: 2, .. }
        | Reason::NotificationReceived { code: 2, subcode: 2, .. } => {
            "; `asn` must be what the router is configured with, and its idea of ours likewise"
        }
        Reason::NotificationReceived { code: 6, subcode: 5, .. } => "; the router doesn't know our address or AS",
        Reason::ConnectTimeout => "; with a password this is also how a wrong one looks",
        Reason::HoldExpired { .. } => "; the router, or the way to it, fell silent",
        _ => "",
    };
    Some(NeighborError { text: format!("{reason}{what_to_do}"), age_ms: age_ms(now, *at) })
}

fn capabilities(neighbor: &Neighbor, negotiated: &Negotiated) -> Vec<String> {
    let families = negotiated.families.iter().map(|family| match family {
        Family::Ipv4 => "ipv4".to_owned(),
        Family::Ipv6 => "ipv6".to_owned(),
    });
    let others = [
        (negotiated.four_octet_as, "4-octet AS"),
        (negotiated.extended_next_hop, "IPv4 over IPv6 next hops"),
        (negotiated.graceful_restart, "graceful restart"),
        (negotiated.notification_gr, "graceful restart at notifications"),
        (negotiated.route_refresh, "route refresh"),
        (negotiated.enhanced_refresh, "enhanced route refresh"),
        (negotiated.extended_message, "extended messages"),
        (neighbor.ttl_security.is_some(), "TTL security"),
    ];
    families.chain(others.into_iter().filter(|(has, _)| *has).map(|(_, name)| name.to_owned())).collect()
}

fn counters(counters: &Counters) -> BTreeMap<String, u64> {
    let all = [
        ("established", counters.established),
        ("dialled", counters.dialled),
        ("accepted", counters.accepted),
        ("collisions", counters.collisions),
        ("opens_sent", counters.opens_sent),
        ("opens_received", counters.opens_received),
        ("updates_sent", counters.updates_sent),
        ("updates_received", counters.updates_received),
        ("updates_malformed", counters.updates_malformed),
        ("keepalives_sent", counters.keepalives_sent),
        ("keepalives_received", counters.keepalives_received),
        ("notifications_sent", counters.notifications_sent),
        ("notifications_received", counters.notifications_received),
        ("refreshes_sent", counters.refreshes_sent),
        ("refreshes_received", counters.refreshes_received),
        ("routes_dropped", counters.routes_dropped),
        ("withdrawals_dropped", counters.withdrawals_dropped),
        ("bytes_sent", counters.bytes_sent),
        ("bytes_received", counters.bytes_received),
    ];
    all.into_iter().map(|(name, n)| (name.to_owned(), n)).collect()
}

fn state_word(state: State) -> &'static str {
    match state {
        State::Idle => "idle",
        State::Connect => "connect",
        State::Active => "active",
        State::OpenSent => "open-sent",
        State::OpenConfirm => "open-confirm",
        State::Established => "established",
    }
}

fn bfd_word(state: BfdState) -> &'static str {
    match state {
        BfdState::AdminDown => "admin-down",
        BfdState::Down => "down",
        BfdState::Init => "init",
        BfdState::Up => "up",
    }
}

/// The routes of one unit.
pub(super) fn route(node: &Node, id: VipId) -> Option<RouteStatus> {
    let bgp = node.vip_config(id).bgp.as_ref()?;
    let name = |id: &NeighborId| node.neighbor_name(*id);
    let up = |id: &&NeighborId| node.world.neighbors.get(usize::from(id.0)).is_some_and(|view| view.up_since.is_some());
    let offered = node.view(id).bgp.offered;
    Some(RouteStatus {
        form: offered.map(|form| form_word(form).to_owned()),
        told: bgp.neighbors.iter().filter(up).filter(|_| offered.is_some()).map(name).collect(),
        neighbors: bgp.neighbors.iter().map(name).collect(),
    })
}

/// What somebody should look at, each with its remedy.
pub(super) fn warnings(node: &Node, rows: &[NeighborStatus], now: Instant) -> Vec<(Verdict, String, &'static str)> {
    let mut found = Vec::new();
    if node.stop.is_some() {
        return found;
    }
    for row in rows {
        let starts = now < node.started + REACH && row.last_error.is_none();
        if row.state != "established" && !starts {
            let why = row.last_error.as_ref().map_or_else(|| "no answer yet".to_owned(), |error| error.text.clone());
            found.push((
                Verdict::Degraded,
                format!("no session with {} ({}): {why}", row.name, row.state),
                "`holdfast neighbors` has the details; see that the router has this node as its neighbour",
            ));
        }
        found.extend(row.unsendable.iter().map(|what| {
            let text = format!("{} isn't told of {what}", row.name);
            (Verdict::Degraded, text, "configure the family, or next_hop, on both ends")
        }));
        let dead = |bfd: &&BfdStatus| bfd.state != "up" && row.state == "established" && row.age_ms > 10_000;
        if let Some(bfd) = row.bfd.as_ref().filter(dead) {
            let why = bfd.diagnostic.as_deref().unwrap_or("the router may not be configured for it");
            found.push((
                Verdict::Degraded,
                format!("BFD with {} is {}: {why}", row.name, bfd.state),
                "configure BFD for this neighbour on the router, or take `bfd` out here",
            ));
        }
    }
    found
}
