//! From a VIP's addresses and its `vrrp` table to its virtual routers on the wire: one per address family.

use super::address::AddressRead;
use super::vrrp::LegKeys;
use crate::config::tree::{Place, Sink};
use holdfast_node::config::{InterfaceName, Leg, VipAddress};
use holdfast_vrrp::{ChecksumMode, Family, Version, Vrid, types};
use std::net::{IpAddr, Ipv6Addr};

/// RFC 9568 section 5.2.5: the count of addresses is 8 bits wide.
const ADVERTISED_MAX: usize = 255;
/// Prefix of the virtual router's link-local address: no route comes with it, since the interface's own link-local
/// address has the one to fe80::/64.
const LINK_LOCAL_PREFIX: u8 = 128;

/// The virtual routers of one VIP.
#[derive(Debug)]
pub(super) struct Legs {
    /// IPv4 before IPv6.
    pub(super) legs: Vec<Leg>,
    /// The IPv6 router's link-local address, if it isn't among the VIP's addresses.
    pub(super) link_local: Option<(VipAddress, AddressRead)>,
}

/// What they are made of.
pub(super) struct Parts<'p> {
    pub(super) interface: &'p InterfaceName,
    pub(super) vrid: Vrid,
    pub(super) vrid_place: &'p Place,
    pub(super) addresses: &'p [VipAddress],
    pub(super) addresses_place: &'p Place,
    pub(super) keys: &'p LegKeys,
}

impl Parts<'_> {
    /// The legs; `None` after something was refused.
    pub(super) fn legs(&self, sink: &mut Sink) -> Option<Legs> {
        let advertised = |family: Family| -> Vec<IpAddr> {
            let of = |a: &&VipAddress| a.advertise && Family::of(a.ip) == family;
            self.addresses.iter().filter(of).map(|a| a.ip).collect()
        };
        let (v4, mut v6) = (advertised(Family::V4), advertised(Family::V6));
        let families: Vec<Family> =
            [(Family::V4, &v4), (Family::V6, &v6)].into_iter().filter(|(_, a)| !a.is_empty()).map(|(f, _)| f).collect();
        let before = sink.len();
        let link_local = families.contains(&Family::V6).then(|| self.link_local(&mut v6)).flatten();
        for (family, advertised) in [(Family::V4, &v4), (Family::V6, &v6)] {
            self.fits(family, advertised.len(), sink);
        }
        self.of_the_families(&families, sink);
        let mut legs = Vec::new();
        for (family, advertised) in [(Family::V4, v4), (Family::V6, v6)].into_iter().filter(|(_, a)| !a.is_empty()) {
            self.sources(family, sink);
            legs.push(self.leg(family, advertised));
        }
        (sink.len() == before).then_some(Legs { legs, link_local })
    }

    fn leg(&self, family: Family, advertised: Vec<IpAddr>) -> Leg {
        let keys = self.keys;
        let peers = keys.peers.iter().flat_map(|(peers, _)| peers).map(|(ip, _)| *ip);
        let source = match family {
            Family::V4 => &keys.source,
            Family::V6 => &keys.source6,
        };
        let (version, checksum) = self.version_and_checksum(family);
        Leg {
            version,
            checksum,
            peers: peers.filter(|ip| Family::of(*ip) == family).collect(),
            min_ttl: keys.min_ttl,
            source: source.as_ref().map(|(ip, _)| *ip),
            vmac: keys.vmac.is_some(),
            ..Leg::multicast(self.interface.clone(), self.vrid, advertised)
        }
    }

    /// RFC 3768 has no IPv6; `checksum` is for VRRPv3 over IPv4, the others have one form only.
    fn version_and_checksum(&self, family: Family) -> (Version, ChecksumMode) {
        let version = if family == Family::V4 { self.keys.version.0 } else { Version::V3 };
        let given = self.keys.checksum.as_ref().map_or(ChecksumMode::Auto, |(mode, _)| *mode);
        (version, if (family, version) == (Family::V4, Version::V3) { given } else { ChecksumMode::Auto })
    }

    /// RFC 9568 section 5.2.9, erratum 8300: the first address of an IPv6 advert is the virtual router's link-local one:
    /// the one in `link_local`, else the first link-local one among the advertised addresses on the VRRP interface, else
    /// derived from the VRID.
    fn link_local(&self, advertised: &mut Vec<IpAddr>) -> Option<(VipAddress, AddressRead)> {
        let written = self.addresses.iter().find(|a| {
            let link_local = |ip: Ipv6Addr| ip.is_unicast_link_local();
            a.advertise && a.interface == *self.interface && matches!(a.ip, IpAddr::V6(ip) if link_local(ip))
        });
        let (ip, place, derived) = match (&self.keys.link_local, written) {
            (Some((ip, place)), _) => (*ip, place, false),
            (None, Some(written)) => {
                advertised.retain(|ip| *ip != written.ip);
                advertised.insert(0, written.ip);
                return None;
            }
            (None, None) => (types::link_local(self.vrid), self.vrid_place, true),
        };
        let ip = IpAddr::V6(ip);
        advertised.insert(0, ip);
        let interface = self.interface.clone();
        let read = AddressRead { ip, interface: Some(interface.clone()), place: place.clone(), derived };
        Some((VipAddress { ip, prefix: LINK_LOCAL_PREFIX, interface, advertise: true, derived }, read))
    }

    fn fits(&self, family: Family, advertised: usize, sink: &mut Sink) {
        if advertised > ADVERTISED_MAX {
            let link_local = if family == Family::V6 { ", the link-local one included" } else { "" };
            let what = format!(
                "has {advertised} advertised {family} addresses{link_local}: an advert counts up to {ADVERTISED_MAX}"
            );
            let accepted = format!("at most {ADVERTISED_MAX} of a family, the others with advertise = false");
            sink.push(self.addresses_place.span.clone(), &self.addresses_place.path, what, Some(accepted));
        }
    }

    /// Keys that speak of a family need addresses of it.
    fn of_the_families(&self, families: &[Family], sink: &mut Sink) {
        let keys = self.keys;
        let has = |family: Family| families.contains(&family);
        let mut refuse = |place: &Place, what: String, accepted: &str| {
            sink.push(place.span.clone(), &place.path, what, Some(accepted.to_owned()));
        };
        if keys.version.0 == Version::V2 {
            if !has(Family::V4) {
                refuse(&keys.version.1, "VRRPv2 has no IPv6, and no IPv4 address is advertised".to_owned(), "3");
            }
            if has(Family::V6) && !keys.interval.fits(Version::V3) {
                let what = "is longer than VRRPv3 can say, which the IPv6 addresses are advertised by".to_owned();
                refuse(&keys.interval_place, what, "1s to 40s with IPv4 by version 2 and IPv6");
            }
        }
        if let Some((_, place)) = &keys.checksum
            && !(has(Family::V4) && keys.version.0 == Version::V3)
        {
            let what = "has no effect: only VRRPv3 over IPv4 has two forms of checksum".to_owned();
            refuse(place, what, "nothing with version = 2 or IPv6 alone");
        }
        for (family, given, name) in [(Family::V4, &keys.source, "source"), (Family::V6, &keys.source6, "source6")] {
            if let Some((_, place)) = given.as_ref().filter(|_| !has(family)) {
                let what = format!("no {family} address is advertised, so nothing is sent from it");
                refuse(place, what, &format!("{name} with {family} addresses"));
            }
        }
        if let Some((_, place)) = keys.link_local.as_ref().filter(|_| !has(Family::V6)) {
            refuse(place, "no IPv6 address is advertised".to_owned(), "link_local with IPv6 addresses");
        }
        let Some((peers, place)) = &keys.peers else { return };
        for (peer, place) in peers.iter().filter(|(peer, _)| !has(Family::of(*peer))) {
            let family = Family::of(*peer);
            let what = format!("{peer} is {family}, and the vip advertises no {family} address");
            refuse(place, what, "peers of the families of the addresses");
        }
        for family in families {
            if !peers.iter().any(|(peer, _)| Family::of(*peer) == *family) {
                let what = format!("has no {family} peer, and the vip advertises {family} addresses");
                refuse(place, what, "for each family of the addresses, the other nodes' addresses");
            }
        }
    }

    /// What adverts come from must be one that the others take.
    fn sources(&self, family: Family, sink: &mut Sink) {
        let keys = self.keys;
        let source = match family {
            Family::V4 => &keys.source,
            Family::V6 => &keys.source6,
        };
        let mut refuse = |place: &Place, what: String, accepted: &str| {
            sink.push(place.span.clone(), &place.path, what, Some(accepted.to_owned()));
        };
        let link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let Some((peers, _)) = &keys.peers else {
            if let Some((ip, place)) = source.as_ref().filter(|(ip, _)| family == Family::V6 && !link_local(ip)) {
                let what = format!("{ip} is not link-local, and IPv6 adverts by multicast must come from such a one");
                refuse(place, what, "a link-local address of the interface, or peers");
            }
            return;
        };
        let peers = || peers.iter().filter(|(peer, _)| Family::of(*peer) == family);
        if let Some((_, place)) = peers().find(|(peer, _)| source.as_ref().is_some_and(|(own, _)| own == peer)) {
            let what = "is this node's own source: a peer is another node".to_owned();
            refuse(place, what, "the other nodes' addresses");
        }
        if family == Family::V4 {
            return;
        }
        // One source for all: a link-local one doesn't get beyond the segment, and beyond it nobody has it as peer.
        let near = peers().next().is_some_and(|(peer, _)| link_local(peer));
        if let Some((peer, place)) = peers().find(|(peer, _)| link_local(peer) != near) {
            let what =
                format!("{peer}: IPv6 peers are either all link-local or none is, since adverts have one source");
            refuse(place, what, "peers of one kind");
        } else if let Some((ip, place)) = source.as_ref().filter(|(ip, _)| link_local(ip) != near) {
            let is = if near { "is not link-local as the peers are" } else { "is link-local, and the peers are not" };
            refuse(place, format!("{ip} {is}"), "a source of the peers' kind");
        }
    }
}
