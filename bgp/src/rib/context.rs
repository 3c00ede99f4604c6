//! What becomes of a route on one session: AS path, next hop, local preference.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Route, Unsent};
use crate::types::{Asn, Family, NextHop, PathAttributes};
use crate::wire::Codec;

/// LOCAL_PREF on iBGP, where it is mandatory, for a route that has none of its own.
pub const DEFAULT_LOCAL_PREF: u32 = 100;

/// A session, as far as it changes what is said of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// Our AS.
    pub local_as: Asn,
    /// What was agreed on; also whether it is iBGP.
    pub codec: Codec,
    /// Our address on the connection: next hop "self" of its family.
    pub local: IpAddr,
    /// "Self" for IPv4 prefixes where the connection runs over IPv6.
    pub next_hop_ipv4: Option<Ipv4Addr>,
    /// "Self" for IPv6 prefixes where the connection has no global IPv6 address.
    pub next_hop_ipv6: Option<Ipv6Addr>,
    /// Our link-local address, if the neighbour is on the same link.
    pub link_local: Option<Ipv6Addr>,
}

impl Context {
    /// What is said of a route.
    ///
    /// # Errors
    /// The family isn't carried, or there is no next hop. Whether it fits into a message isn't looked at.
    pub fn attributes(&self, route: &Route, family: Family) -> Result<PathAttributes, Unsent> {
        let next_hop = self.next_hop(route, family)?;
        let internal = self.codec.internal;
        Ok(PathAttributes {
            origin: route.origin,
            as_path: if internal { Vec::new() } else { vec![self.local_as; 1 + usize::from(route.prepend)] },
            med: route.med,
            local_pref: internal.then(|| route.local_pref.unwrap_or(DEFAULT_LOCAL_PREF)),
            communities: route.communities.clone(),
            large: route.large.clone(),
            extended: route.extended.clone(),
            next_hop,
        })
    }

    /// Where packets for it are to be sent.
    ///
    /// # Errors
    /// As [`attributes`](Self::attributes).
    pub fn next_hop(&self, route: &Route, family: Family) -> Result<NextHop, Unsent> {
        if !self.codec.families.contains(family) {
            return Err(Unsent::Family(family));
        }
        let next_hop = match (family, self.local) {
            (Family::Ipv6, _) => self.ipv6(route),
            (Family::Ipv4, _) if route.next_hop_ipv4.is_some() => route.next_hop_ipv4.map(NextHop::V4),
            (Family::Ipv4, IpAddr::V4(local)) if !local.is_unspecified() => Some(NextHop::V4(local)),
            (Family::Ipv4, _) if self.codec.extended_next_hop => self.ipv6(route),
            (Family::Ipv4, _) => self.next_hop_ipv4.map(NextHop::V4),
        };
        next_hop.ok_or(Unsent::NoNextHop(family))
    }

    fn ipv6(&self, route: &Route) -> Option<NextHop> {
        // Not self: our link-local address has no place beside it.
        if let Some(given) = route.next_hop_ipv6 {
            return Some(hop(given, None));
        }
        match self.local {
            // Unnumbered: the address that is sure to work, and the global one if there is any.
            IpAddr::V6(local) if local.is_unicast_link_local() => {
                Some(NextHop::V6 { global: self.next_hop_ipv6, link_local: Some(local) })
            }
            IpAddr::V6(local) if !local.is_unspecified() => Some(hop(local, self.link_local)),
            IpAddr::V6(_) | IpAddr::V4(_) => match (self.next_hop_ipv6, self.link_local) {
                (Some(global), link_local) => Some(hop(global, link_local)),
                (None, Some(link_local)) => Some(hop(link_local, None)),
                (None, None) => None,
            },
        }
    }
}

fn hop(address: Ipv6Addr, link_local: Option<Ipv6Addr>) -> NextHop {
    if address.is_unicast_link_local() {
        NextHop::V6 { global: None, link_local: Some(address) }
    } else {
        NextHop::V6 { global: Some(address), link_local }
    }
}
