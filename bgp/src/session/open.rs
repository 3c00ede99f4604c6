//! What we offer in an OPEN, and what comes of the neighbour's.

use std::time::{Duration, Instant};

use super::config::{PeerConfig, RemoteAs};
use super::connection::Connection;
use super::io::Negotiated;
use super::{Peer, Phase};
use crate::mutants;
use crate::session::connection::{Hold, OpenConfirm};
use crate::session::io::{ConnId, Reason};
use crate::types::Families;
use crate::wire::{Capability, Codec, GracefulFamily, GracefulRestart, Notification, Open};

impl Peer {
    /// Our OPEN, as it is now.
    pub(super) fn our_open(&self, now: Instant) -> Vec<u8> {
        let config = &self.config;
        let restarting = self.restarting_until.is_some_and(|until| now < until) || mutants::off("r-bit-once");
        let serving = self.serving || mutants::off("honest-f-bit");
        let open = Open {
            asn: config.local_as,
            hold_time_s: seconds(config.hold_time),
            router_id: config.router_id,
            capabilities: if config.capabilities { capabilities(config, restarting, serving) } else { Vec::new() },
        };
        let mut bytes = Vec::new();
        open.encode(&mut bytes);
        bytes
    }

    /// An OPEN came in OpenSent (RFC 4271 section 6.2, and what follows from both sides' capabilities).
    pub(super) fn on_open(&mut self, now: Instant, id: ConnId, body: &[u8]) {
        self.counters.opens_received += 1;
        let open = match Open::decode(body) {
            Ok(open) => open,
            Err(error) => return self.fail(now, id, error.notification(), error.to_string()),
        };
        let negotiated = match agree(&self.config, &open) {
            Ok(negotiated) => negotiated,
            Err((notification, what)) => return self.fail(now, id, notification, what),
        };
        let internal = negotiated.asn == self.config.local_as;
        let Some(conn) = self.find_mut(id) else { return };
        conn.take(now, negotiated, internal);
        self.settle(now, Reason::OpenReceived);
        self.arbitrate(now);
    }
}

impl Connection {
    fn take(&mut self, now: Instant, negotiated: Negotiated, internal: bool) {
        self.negotiated = Some(negotiated);
        self.codec = Codec {
            four_octet_as: negotiated.four_octet_as,
            extended_message: negotiated.extended_message,
            extended_next_hop: negotiated.extended_next_hop,
            families: negotiated.families,
            internal,
        };
        self.phase = Phase::OpenConfirm(OpenConfirm {
            hold: Hold::new(now, negotiated.hold_time),
            confirmed: None,
            ready: false,
            patience: None,
            impatient: false,
            challenged: None,
        });
    }
}

fn capabilities(config: &PeerConfig, restarting: bool, serving: bool) -> Vec<Capability> {
    let mut capabilities: Vec<_> = config.families.iter().map(Capability::family).collect();
    capabilities.extend([Capability::RouteRefresh, Capability::EnhancedRouteRefresh, Capability::ExtendedMessage]);
    if config.extended_next_hop && config.families.ipv4 {
        capabilities.push(Capability::ipv4_over_ipv6());
    }
    if config.four_octet_as {
        capabilities.push(Capability::FourOctetAs(config.local_as));
    }
    if let Some(time) = config.graceful_restart {
        capabilities.push(Capability::GracefulRestart(GracefulRestart {
            restarting,
            notification: config.notification_gr,
            restart_time_s: seconds(time),
            families: config.families.iter().map(|family| GracefulFamily::new(family, serving)).collect(),
        }));
    }
    capabilities
}

/// What both sides can do, or what the neighbour is told instead.
fn agree(config: &PeerConfig, open: &Open) -> Result<Negotiated, (Notification, String)> {
    let expected = match config.remote_as {
        RemoteAs::Exactly(asn) => open.asn == asn,
        RemoteAs::Internal => open.asn == config.local_as,
        RemoteAs::External => open.asn != config.local_as,
    };
    if !expected {
        let what = match config.remote_as {
            RemoteAs::Exactly(asn) => format!("it is in AS {}, configured is {asn}", open.asn),
            RemoteAs::Internal => format!("it is in AS {}, configured is our own, {}", open.asn, config.local_as),
            RemoteAs::External => format!("it is in our own AS, {}", open.asn),
        };
        return Err((Notification::new(2, 2, Vec::new()), what));
    }
    // RFC 6286 section 2.2: within an AS identifiers are unique.
    if open.asn == config.local_as && open.router_id == config.router_id {
        let what = format!("it has our own BGP identifier, {}", open.router_id);
        return Err((Notification::new(2, 3, Vec::new()), what));
    }
    let ours = if config.capabilities { config.families } else { Families { ipv4: true, ipv6: false } };
    let families = ours.and(open.families());
    if families.is_empty() {
        // RFC 5492 section 5: the capabilities that are missed, as they stand in an OPEN.
        let wanted = ours.iter().flat_map(|family| [1, 4, 0, low(family.afi()), 0, family.safi()]).collect();
        let what = String::from("no address family in common");
        return Err((Notification::new(2, 7, wanted), what));
    }
    let said = |ours: bool, theirs: bool| config.capabilities && ours && theirs;
    let hold_time = config.hold_time.min(Duration::from_secs(open.hold_time_s.into()));
    let graceful = open.graceful_restart().filter(|_| said(config.graceful_restart.is_some(), true));
    Ok(Negotiated {
        router_id: open.router_id,
        asn: open.asn,
        hold_time,
        keepalive: hold_time / 3,
        families,
        four_octet_as: said(config.four_octet_as, open.four_octet_as()),
        extended_message: said(true, open.extended_message()),
        extended_next_hop: said(config.extended_next_hop, open.ipv4_over_ipv6()),
        graceful_restart: graceful.is_some(),
        notification_gr: config.notification_gr && graceful.is_some_and(|graceful| graceful.notification),
        route_refresh: said(true, open.route_refresh()),
        enhanced_refresh: said(true, open.enhanced_route_refresh()),
    })
}

/// The low octet of an AFI of ours.
fn low(afi: u16) -> u8 {
    let [_, low] = afi.to_be_bytes();
    low
}

fn seconds(time: Duration) -> u16 {
    u16::try_from(time.as_secs()).unwrap_or(u16::MAX)
}
