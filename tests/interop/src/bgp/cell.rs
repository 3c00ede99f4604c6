//! The matrix: which router, over what, with which feature.

use holdfast_lab::bgp::net::{GATEWAY, Node, ROUTER, ROUTER_LL, ROUTER6, VIP, VIP6};
use holdfast_lab::bgp::router::{Bfd, NODE_AS, Neighbour, ROUTER_AS, Remote};
use std::fmt;
use std::net::IpAddr;

/// What the router is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// FRR.
    Frr,
    /// BIRD 2.
    Bird,
    /// gobgpd.
    Gobgp,
    /// ExaBGP, which writes down what it hears.
    Exabgp,
}

/// How the two reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// IPv6 link-local addresses, written down.
    LinkLocal,
    /// The interface alone is written down.
    Unnumbered,
}

/// What is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routes {
    /// An IPv4 VIP.
    V4,
    /// An IPv6 VIP.
    V6,
    /// Both.
    Both,
}

/// What is special.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Nothing.
    Plain,
    /// TCP MD5 (RFC 2385), with a wrong key first.
    Md5,
    /// GTSM (RFC 5082), with a router that is a hop too far first.
    Gtsm,
    /// The router's address is on no link of ours: up to so many hops.
    Multihop,
    /// BFD, 50 ms × 3.
    Bfd,
    /// The router keeps routes while we restart (RFC 4724).
    Restart,
    /// The router knows ASes of two octets only; ours has four.
    TwoOctet,
    /// IPv4 routes with an IPv6 next hop (RFC 8950).
    ExtendedNextHop,
    /// Two nodes, weights 1 and 3.
    Weights,
    /// We never call.
    WePassive,
    /// The router never calls, and we don't listen.
    TheyPassive,
}

/// One cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// The router.
    pub peer: Peer,
    /// iBGP; else eBGP.
    pub internal: bool,
    /// How they reach each other.
    pub transport: Transport,
    /// What is announced.
    pub routes: Routes,
    /// What is special.
    pub feature: Feature,
}

/// Our AS where it takes four octets (RFC 6793), and what a peer that knows two has instead.
const LONG_AS: u32 = 4_200_000_001;
const AS_TRANS: u32 = 23_456;
/// Hops of a session that isn't on a link.
pub const HOPS: u8 = 3;

impl Cell {
    /// Our AS.
    #[must_use]
    pub fn our_as(&self) -> u32 {
        match (self.internal, self.feature) {
            (true, _) => ROUTER_AS,
            // BIRD without the capability takes no such number, nor AS_TRANS from one who has it.
            (false, Feature::TwoOctet) if self.peer != Peer::Bird => LONG_AS,
            _ => NODE_AS,
        }
    }

    /// The VIPs.
    #[must_use]
    pub fn vips(&self) -> Vec<IpAddr> {
        match self.routes {
            Routes::V4 => vec![VIP.into()],
            Routes::V6 => vec![VIP6.into()],
            Routes::Both => vec![VIP.into(), VIP6.into()],
        }
    }

    /// How many nodes announce.
    #[must_use]
    pub fn nodes(&self) -> usize {
        if self.feature == Feature::Weights { 2 } else { 1 }
    }

    /// How the communities that say the weights are to be read, for a router that doesn't know them: draft-ietf-idr-link-bandwidth,
    /// bytes per second of as many times 100 Mbit/s, transitive or not.
    fn weights(&self) -> Vec<(u32, u32, u32)> {
        if self.feature != Feature::Weights || self.peer != Peer::Bird {
            return Vec::new();
        }
        let of = |n: usize| self.weight(Node(n)).unwrap_or(1);
        let each = (0..self.nodes()).map(of).flat_map(|w| [0x4004_0000, 0x0004_0000].map(|kind| (kind, w)));
        each.map(|(kind, w)| (kind | (self.our_as() & 0xffff), (w as f32 * 12_500_000.0).to_bits(), w)).collect()
    }

    /// A node's weight, where nodes have one.
    #[must_use]
    pub fn weight(&self, n: Node) -> Option<u32> {
        (self.feature == Feature::Weights).then(|| u32::try_from(1 + 2 * n.0).unwrap_or(u32::MAX))
    }

    /// The TTL or hop limit that all our frames must have: none beyond a link (RFC 4271 section 5.1.3 has eBGP on one),
    /// or GTSM's (RFC 5082); `None`: the kernel's own.
    #[must_use]
    pub fn ttl(&self) -> Option<u8> {
        match (self.feature, self.internal) {
            (Feature::Gtsm, _) => Some(255),
            (Feature::Multihop, _) => Some(HOPS),
            (_, false) => Some(1),
            (_, true) => None,
        }
    }

    /// The router's address in the session.
    #[must_use]
    pub fn router(&self) -> IpAddr {
        match self.transport {
            Transport::V4 if self.feature == Feature::Multihop => GATEWAY.into(),
            Transport::V4 => ROUTER.into(),
            Transport::V6 => ROUTER6.into(),
            Transport::LinkLocal | Transport::Unnumbered => ROUTER_LL.into(),
        }
    }

    /// A node's.
    #[must_use]
    pub fn node(&self, n: Node) -> IpAddr {
        match self.transport {
            Transport::V4 => n.front().into(),
            Transport::V6 => n.front6().into(),
            Transport::LinkLocal | Transport::Unnumbered => n.link_local().into(),
        }
    }

    /// The key of the session, if it has one.
    #[must_use]
    pub fn password(&self) -> Option<&'static str> {
        (self.feature == Feature::Md5).then_some("correct-horse-battery-staple")
    }

    /// BFD, if the session has it.
    #[must_use]
    pub fn bfd(&self) -> Option<Bfd> {
        (self.feature == Feature::Bfd).then_some(Bfd { interval_ms: 50, multiplier: 3 })
    }

    /// The session as the router is to have it.
    #[must_use]
    pub fn neighbour(&self, n: Node) -> Neighbour {
        let remote = match self.transport {
            Transport::Unnumbered => Remote::Interface,
            _ => Remote::Address(self.node(n)),
        };
        let two_octet = self.feature == Feature::TwoOctet;
        Neighbour {
            remote,
            local: self.router(),
            // FRR and BIRD read capability 65 of ours even when they send none.
            asn: if two_octet && self.peer == Peer::Exabgp { AS_TRANS } else { self.our_as() },
            password: self.password().map(str::to_owned),
            ttl_security: self.feature == Feature::Gtsm,
            ipv4: self.routes != Routes::V6,
            ipv6: self.routes != Routes::V4,
            extended_next_hop: self.extended_next_hop(),
            two_octet,
            bfd: self.bfd(),
            passive: self.feature == Feature::TheyPassive,
            multihop: (self.feature == Feature::Multihop).then_some(HOPS),
            weights: self.weights(),
            ..Neighbour::plain(n)
        }
    }

    /// IPv4 routes have IPv6 next hops.
    #[must_use]
    pub fn extended_next_hop(&self) -> bool {
        let only_link_local = matches!(self.transport, Transport::Unnumbered | Transport::LinkLocal);
        self.feature == Feature::ExtendedNextHop || only_link_local && self.routes != Routes::V6
    }

    /// The session is torn down and the route stays: graceful restart, and nothing that says otherwise.
    #[must_use]
    pub fn keeps_routes(&self) -> bool {
        self.feature == Feature::Restart
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = match self.peer {
            Peer::Frr => "frr",
            Peer::Bird => "bird",
            Peer::Gobgp => "gobgp",
            Peer::Exabgp => "exabgp",
        };
        let session = if self.internal { "iBGP" } else { "eBGP" };
        let transport = match self.transport {
            Transport::V4 => "IPv4",
            Transport::V6 => "IPv6",
            Transport::LinkLocal => "link-local",
            Transport::Unnumbered => "unnumbered",
        };
        let routes = match self.routes {
            Routes::V4 => "IPv4 route",
            Routes::V6 => "IPv6 route",
            Routes::Both => "both routes",
        };
        let feature = match self.feature {
            Feature::Plain => "",
            Feature::Md5 => ", MD5",
            Feature::Gtsm => ", GTSM",
            Feature::Multihop => ", multihop",
            Feature::Bfd => ", BFD",
            Feature::Restart => ", graceful restart",
            Feature::TwoOctet => ", two-octet AS",
            Feature::ExtendedNextHop => ", IPv6 next hop",
            Feature::Weights => ", weights",
            Feature::WePassive => ", we are passive",
            Feature::TheyPassive => ", it is passive",
        };
        write!(f, "{peer} {session} over {transport}, {routes}{feature}")
    }
}

/// The matrix; what takes longest comes first, so that cells side by side end together.
#[must_use]
pub fn matrix() -> Vec<Cell> {
    use Feature as F;
    use Peer::{Bird, Exabgp, Frr, Gobgp};
    use Routes as R;
    use Transport as T;
    let mut all = Vec::new();
    let mut cells = |peers: &[Peer], internal: bool, transport: T, routes: R, feature: F| {
        all.extend(peers.iter().map(|&peer| Cell { peer, internal, transport, routes, feature }));
    };
    let (every, kernel) = (&[Frr, Bird, Gobgp, Exabgp][..], &[Frr, Bird][..]);
    cells(kernel, false, T::V4, R::V4, F::Restart);
    cells(kernel, false, T::V6, R::Both, F::Restart);
    cells(every, false, T::V4, R::V4, F::Md5);
    cells(kernel, false, T::V6, R::V6, F::Md5);
    cells(kernel, false, T::V4, R::V4, F::Bfd);
    cells(kernel, false, T::V6, R::V6, F::Bfd);
    cells(&[Frr], false, T::Unnumbered, R::Both, F::Plain);
    cells(&[Bird], false, T::LinkLocal, R::Both, F::Plain);
    cells(every, false, T::V4, R::V4, F::Plain);
    cells(every, true, T::V4, R::V4, F::Plain);
    cells(every, false, T::V6, R::V6, F::Plain);
    cells(kernel, true, T::V6, R::V6, F::Plain);
    cells(kernel, false, T::V4, R::Both, F::Plain);
    cells(kernel, false, T::V6, R::Both, F::Plain);
    cells(every, false, T::V4, R::V4, F::Gtsm);
    cells(kernel, false, T::V6, R::V6, F::Gtsm);
    cells(kernel, false, T::V4, R::V4, F::Multihop);
    cells(&[Frr, Bird, Exabgp], false, T::V4, R::V4, F::TwoOctet);
    cells(kernel, false, T::V6, R::V4, F::ExtendedNextHop);
    cells(kernel, false, T::V4, R::V4, F::Weights);
    cells(&[Frr, Bird, Gobgp], false, T::V4, R::V4, F::WePassive);
    cells(&[Frr, Bird, Gobgp], false, T::V4, R::V4, F::TheyPassive);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_cell_has_a_name_of_its_own() {
        let all = matrix();
        let names: BTreeSet<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), all.len());
        assert!(names.contains("frr eBGP over unnumbered, both routes"), "{names:?}");
        assert!(names.contains("exabgp eBGP over IPv4, IPv4 route, two-octet AS"), "{names:?}");
    }

    #[test]
    fn complaint_28_weights_of_1_and_3_are_asked_for_and_looked_for_where_the_routes_are_in_a_kernel() {
        let all = matrix();
        let cells: Vec<&Cell> = all.iter().filter(|c| c.feature == Feature::Weights).collect();
        for peer in [Peer::Frr, Peer::Bird] {
            assert!(cells.iter().any(|c| c.peer == peer), "{cells:?}");
        }
        for c in cells {
            assert_eq!((c.nodes(), c.weight(Node(0)), c.weight(Node(1))), (2, Some(1), Some(3)), "{c}");
        }
        assert!(all.iter().all(|c| c.weight(Node(0)).is_some() == (c.feature == Feature::Weights)));
    }

    #[test]
    fn complaint_34_our_frames_have_a_ttl_of_1_and_255_with_gtsm_whatever_the_router() {
        let all = matrix();
        for peer in [Peer::Frr, Peer::Bird, Peer::Gobgp, Peer::Exabgp] {
            let of = |f| all.iter().filter(move |c: &&Cell| c.peer == peer && c.feature == f && !c.internal);
            for (feature, ttl) in [(Feature::Gtsm, 255), (Feature::Plain, 1)] {
                assert!(of(feature).count() > 0, "{peer:?} {feature:?}");
                assert!(of(feature).all(|c| c.ttl() == Some(ttl)), "{peer:?} {feature:?}");
            }
        }
        assert!(all.iter().filter(|c| c.internal).all(|c| c.ttl().is_none()));
        let far: Vec<&Cell> = all.iter().filter(|c| c.feature == Feature::Multihop).collect();
        assert!(far.iter().any(|c| c.peer == Peer::Frr) && far.iter().any(|c| c.peer == Peer::Bird), "{far:?}");
        assert!(far.iter().all(|c| c.ttl() == Some(HOPS) && c.router() == IpAddr::from(GATEWAY)));
    }

    #[test]
    fn a_peer_of_two_octets_is_told_the_as_that_stands_for_longer_ones() {
        let all = matrix();
        let old = |c: &&Cell| c.feature == Feature::TwoOctet && c.peer == Peer::Exabgp;
        let cell = all.iter().find(old).expect("in the matrix");
        assert_eq!((cell.our_as(), cell.neighbour(Node(0)).asn), (LONG_AS, AS_TRANS));
        let internal = all.iter().find(|c| c.internal).expect("in the matrix");
        assert_eq!(internal.our_as(), internal.neighbour(Node(0)).asn);
    }
}
