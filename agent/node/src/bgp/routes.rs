//! What each neighbour is told of each unit, and how each neighbour is spoken to.

use crate::config::{Bgp, Config, Form, Neighbor, NeighborAs, Vip, VipAddress, VipId};
use crate::world::World;
use holdfast_bgp::Route;
use holdfast_bgp::session::{PeerConfig, RemoteAs};
use holdfast_bgp::types::{Origin, Prefix};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Which addresses make a prefix: one, but where several are announced as one network.
pub(crate) type Owners = BTreeMap<Prefix, Vec<(VipId, IpAddr)>>;

/// The route to an address. Where a segment carries the address, its prefix length is the segment's, and only the address
/// itself is ours to announce.
pub(crate) fn prefix_of(vip: &Vip, address: &VipAddress) -> Prefix {
    let length = Prefix::new(address.ip, address.prefix).filter(|_| vip.anycast());
    length.unwrap_or_else(|| Prefix::host(address.ip))
}

/// Of all units that are announced.
pub(crate) fn owners(config: &Config) -> Owners {
    let mut owners = Owners::new();
    for (id, vip) in (0..).map(VipId).zip(&config.vips).filter(|(_, vip)| vip.bgp.is_some()) {
        for address in vip.addresses.iter().filter(|address| !address.derived) {
            owners.entry(prefix_of(vip, address)).or_default().push((id, address.ip));
        }
    }
    owners
}

/// What a neighbour is told of an address; `None`: nothing.
pub(crate) fn route(bgp: &Bgp, neighbor: &Neighbor, vip: &Vip, ip: IpAddr, form: Form) -> Option<Route> {
    let unit = vip.bgp.as_ref()?;
    let attributes = unit.attributes_for(bgp, neighbor, form, vip.bgp_position(ip))?;
    let next_hop = unit.next_hops_for(neighbor);
    Some(Route {
        origin: Origin::Igp,
        prepend: attributes.prepend,
        med: Some(attributes.med),
        local_pref: Some(attributes.local_pref),
        communities: attributes.communities,
        large: attributes.large,
        extended: attributes.extended,
        next_hop_ipv4: next_hop.ipv4,
        next_hop_ipv6: next_hop.ipv6,
    })
}

/// How a neighbour is spoken to, with our addresses as they are now.
pub(crate) fn peer_config(bgp: &Bgp, neighbor: &Neighbor, world: &World) -> PeerConfig {
    let remote_as = match neighbor.asn {
        NeighborAs::Exactly(asn) => RemoteAs::Exactly(asn),
        NeighborAs::Internal => RemoteAs::Internal,
        NeighborAs::External => RemoteAs::External,
    };
    let ifindex = interface_of(neighbor, world);
    let ours = ifindex.and_then(|ifindex| world.foreign.get(&ifindex));
    let usable = ours.into_iter().flatten().filter(|address| !address.tentative);
    let (mut ipv4, mut ipv6, mut link_local) = (None::<Ipv4Addr>, None::<Ipv6Addr>, None::<Ipv6Addr>);
    for address in usable {
        match address.ip {
            IpAddr::V4(ip) if !address.secondary => ipv4 = ipv4.or(Some(ip)),
            IpAddr::V4(_) => {}
            IpAddr::V6(ip) if ip.is_unicast_link_local() => link_local = link_local.or(Some(ip)),
            IpAddr::V6(ip) => ipv6 = ipv6.or(Some(ip)),
        }
    }
    PeerConfig {
        hold_time: neighbor.hold_time,
        connect_retry: neighbor.connect_retry,
        passive: neighbor.passive,
        families: neighbor.families,
        extended_next_hop: neighbor.extended_next_hop,
        graceful_restart: bgp.graceful_restart,
        next_hop_ipv4: ipv4,
        next_hop_ipv6: ipv6,
        link_local: link_local.filter(|_| neighbor.ttl() == 1 || neighbor.ttl_security == Some(1)),
        ..PeerConfig::new(bgp.asn, remote_as, bgp.router_id)
    }
}

/// The interface towards a neighbour, as far as that can be told: the one it is configured on, the one with the source
/// address, the one in whose network it is.
pub(crate) fn interface_of(neighbor: &Neighbor, world: &World) -> Option<u32> {
    if let Some(name) = &neighbor.interface {
        return world.link(name).map(|link| link.ifindex);
    }
    let with = |test: &dyn Fn(&crate::io::Address) -> bool| {
        world.foreign.iter().find(|(_, list)| list.iter().any(test)).map(|(ifindex, _)| *ifindex)
    };
    let source = neighbor.source.and_then(|source| with(&|address| address.ip == source));
    source.or_else(|| {
        let remote = neighbor.address?;
        with(&|address| Prefix::new(address.ip, address.prefix).is_some_and(|net| net.contains(remote)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{InterfaceName, Name, VipBgp, VrrpConfig};
    use crate::tests::lab;

    #[test]
    fn a_network_is_announced_as_written_where_bgp_alone_has_it_and_as_its_address_on_a_segment() {
        let ip: IpAddr = "192.0.2.10".parse().expect("an address");
        let interface = InterfaceName::new("lo").expect("a name");
        let address = VipAddress { ip, prefix: 24, interface, advertise: false, derived: false };
        let vrrp = lab::vip("web", ip, 10, 100).vrrp;
        let alone =
            |vrrp: VrrpConfig| Vip::single(Name::new("web").expect("a name"), vec![address.clone()], vec![], vrrp);
        let mut anycast = alone(vrrp);
        anycast.bgp = Some(VipBgp::to(vec![]));
        assert_eq!(prefix_of(&anycast, &address).to_string(), "192.0.2.0/24");
        let mut held = lab::vip("web", ip, 10, 100);
        held.addresses[0].prefix = 24;
        assert_eq!(prefix_of(&held, &held.addresses[0]).to_string(), "192.0.2.10/32");
    }
}
