//! Another implementation of VRRP on a host: one state machine for each leg, bound together as a sync group, as
//! keepalived does it. It answers losing adverts as RFC 9568 says, and knows none of what we add to it: no last word of
//! a loser, no channel, no unit of several legs.
//!
//! With `pseudo_header` it is keepalived 2.2.7 as it comes: it sends that form of the checksum and drops the other.

use holdfast_node::config::Vip;
use holdfast_node::io::Packet;
use holdfast_vrrp::router::{Output, RouterConfig};
use holdfast_vrrp::{
    Addresses, AdvertInterval, ChecksumForm, ChecksumMode, Input, LegConfig, LegId, Priority, Router, State, Transport,
    wire,
};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How such a host is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerOptions {
    /// Of all its instances.
    pub priority: u8,
    /// Its own advert interval, milliseconds.
    pub interval_ms: u64,
    /// Sends the pseudo-header's checksum, and drops adverts with the other (VRRPv3 over IPv4).
    pub pseudo_header: bool,
}

/// What it wants done.
#[derive(Debug)]
pub enum Act {
    /// Send.
    Send {
        /// Leg of the unit.
        leg: usize,
        /// From.
        source: IpAddr,
        /// What, and to whom.
        packets: Arc<[holdfast_vrrp::Packet]>,
    },
    /// A leg's instance became Active, or ceased to be.
    Holds {
        /// Leg of the unit.
        leg: usize,
        /// Now.
        active: bool,
    },
}

/// See the module documentation.
#[derive(Debug)]
pub struct Peer {
    routers: Vec<Router>,
    drops: Option<ChecksumForm>,
    priority: Priority,
}

impl Peer {
    /// With one instance for each leg of this unit; `sources` by leg.
    pub fn new(now: Instant, vip: &Vip, options: PeerOptions, sources: &[IpAddr]) -> Self {
        let interval =
            AdvertInterval::from_duration(Duration::from_millis(options.interval_ms)).expect("a valid interval");
        let router = |(leg, source): (&holdfast_node::config::Leg, &IpAddr)| {
            let transport = if leg.peers.is_empty() {
                Transport::Multicast
            } else {
                Transport::Unicast { peers: leg.peers.clone(), min_ttl: leg.min_ttl }
            };
            let config = LegConfig {
                vrid: leg.vrid,
                version: leg.version,
                addresses: Addresses::new(leg.advertised.clone()).expect("the unit's addresses are valid"),
                transport,
                checksum: if options.pseudo_header { ChecksumMode::PseudoHeader } else { ChecksumMode::Rfc9568 },
            };
            let config = RouterConfig {
                legs: vec![config],
                interval,
                preempt: true,
                preempt_delay: Duration::ZERO,
                jitter: true,
            };
            let mut router = Router::new(config, now);
            router.handle(now, Input::Source { leg: LegId(0), source: *source });
            router
        };
        Self {
            routers: vip.legs.iter().zip(sources).map(router).collect(),
            drops: options.pseudo_header.then_some(ChecksumForm::Message),
            priority: Priority::configured(options.priority).expect("a valid priority"),
        }
    }

    /// All its interfaces came up or one went down.
    pub fn set_up(&mut self, now: Instant, up: bool) -> Vec<Act> {
        let priority = self.priority;
        let input = || if up { Input::Start { priority } } else { Input::Stop };
        self.routers.iter_mut().for_each(|router| router.handle(now, input()));
        self.acts(now)
    }

    /// A packet arrived on a leg.
    pub fn packet(&mut self, now: Instant, leg: usize, packet: Packet<'_>) -> Vec<Act> {
        let decoded = match packet {
            Packet::V4(packet) => wire::decode_v4(packet),
            Packet::V6 { source, destination, hop_limit, message } => {
                wire::decode_v6(source, destination, hop_limit, message)
            }
        };
        let (Ok(received), Some(router)) = (decoded, self.routers.get_mut(leg)) else { return vec![] };
        let Some(config) = router.config().legs.first() else { return vec![] };
        let form = received.checksum;
        let other = ChecksumForm::only(config.family(), config.version).is_none() && self.drops == Some(form);
        if other || config.accept(&received, router.config().interval).is_err() {
            return vec![];
        }
        let (leg, source, advert) = (LegId(0), received.source, &received.advert);
        router.handle(now, Input::Advert { leg, source, advert, form });
        self.acts(now)
    }

    /// Time has passed.
    pub fn timer(&mut self, now: Instant) -> Vec<Act> {
        self.routers.iter_mut().for_each(|router| router.handle(now, Input::Timer));
        self.acts(now)
    }

    /// When it wants to be woken.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.routers.iter().filter_map(Router::poll_timeout).min()
    }

    /// Any of its instances is Active.
    pub fn is_active(&self) -> bool {
        self.routers.iter().any(|router| router.state() == State::Active)
    }

    /// Drains the instances; what one becomes, the group becomes.
    fn acts(&mut self, now: Instant) -> Vec<Act> {
        let mut acts = Vec::new();
        let mut turn = true;
        while std::mem::take(&mut turn) {
            for leg in 0..self.routers.len() {
                let mut sends = Vec::new();
                let mut became = None;
                while let Some(output) = self.routers[leg].poll_output() {
                    match output {
                        Output::Send { source, packets, .. } => sends.push(Act::Send { leg, source, packets }),
                        Output::Transition(change) => {
                            if change.from == State::Active || change.to == State::Active {
                                became = Some(change.to == State::Active);
                            }
                            if matches!(change.reason, holdfast_vrrp::router::Reason::Outranked { .. }) {
                                // The last word of a loser is an addition of ours.
                                sends.clear();
                            }
                        }
                        Output::Reassert(_) | Output::Notice(_) => {}
                    }
                }
                acts.extend(sends);
                let Some(active) = became else { continue };
                acts.push(Act::Holds { leg, active });
                turn = true;
                for (other, router) in self.routers.iter_mut().enumerate() {
                    if other != leg {
                        router.handle(now, if active { Input::Promote } else { Input::Yield });
                    }
                }
            }
        }
        acts
    }
}
