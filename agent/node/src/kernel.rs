//! What we put into the kernel beside addresses and sockets, in the kernel's own terms: so that what is wanted, what
//! is there and what a keeper would have to undo compare by value.

use crate::config;
use holdfast_vrrp::Family;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The table in which the kernel looks when no rule says otherwise.
const TABLE_MAIN: u32 = 254;
/// What the kernel makes of an IPv6 route without a metric.
const IPV6_METRIC: u32 = 1024;

/// A network: its address and the prefix length, without host bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Prefix {
    /// The network's address.
    pub ip: IpAddr,
    /// 0: everything of its family.
    pub length: u8,
}

impl Prefix {
    /// The network of an address. A length beyond the address's own is taken for that.
    pub fn new(ip: IpAddr, length: u8) -> Self {
        match ip {
            IpAddr::V4(four) => {
                let length = length.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                Self { ip: Ipv4Addr::from_bits(four.to_bits() & mask).into(), length }
            }
            IpAddr::V6(six) => {
                let length = length.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                Self { ip: Ipv6Addr::from_bits(six.to_bits() & mask).into(), length }
            }
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.length == 0 { f.write_str("default") } else { write!(f, "{}/{}", self.ip, self.length) }
    }
}

/// A route with one next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Route {
    /// Destination.
    pub to: Prefix,
    /// Next hop; `None`: the destination is on the segment.
    pub via: Option<IpAddr>,
    /// Out of this interface.
    pub ifindex: u32,
    /// Never 0.
    pub table: u32,
    /// Preferred source.
    pub source: Option<IpAddr>,
    /// As the kernel lists it: 0 only for IPv4.
    pub metric: u32,
}

impl Route {
    /// A configured route, out of the interface with this index.
    pub fn of(route: &config::Route, ifindex: u32) -> Self {
        let to = Prefix::new(route.to.0, route.to.1);
        Self {
            to,
            via: route.via,
            ifindex,
            table: route.table,
            source: route.source,
            metric: route.metric.unwrap_or(0),
        }
        .normal()
    }

    /// As the kernel lists it.
    pub fn normal(mut self) -> Self {
        if self.table == 0 {
            self.table = TABLE_MAIN;
        }
        if self.metric == 0 && self.to.ip.is_ipv6() {
            self.metric = IPV6_METRIC;
        }
        self
    }
}

/// As `ip route` writes it.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to)?;
        if let Some(via) = self.via {
            write!(f, " via {via}")?;
        }
        write!(f, " table {}", self.table)?;
        if let Some(source) = self.source {
            write!(f, " src {source}")?;
        }
        write!(f, " metric {}", self.metric)
    }
}

/// A policy rule: what matches is looked up in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rule {
    /// For IPv6.
    pub six: bool,
    /// Source; `None`: any.
    pub from: Option<Prefix>,
    /// Destination; `None`: any.
    pub to: Option<Prefix>,
    /// Never 0.
    pub table: u32,
    /// Its place among the rules.
    pub priority: u32,
}

impl Rule {
    /// A configured rule.
    pub fn of(rule: &config::Rule) -> Self {
        let prefix = |part: Option<(IpAddr, u8)>| part.map(|(ip, length)| Prefix::new(ip, length));
        let (from, to) = (prefix(rule.from), prefix(rule.to));
        let six = from.or(to).is_some_and(|prefix| prefix.ip.is_ipv6());
        let said = |prefix: &Prefix| prefix.length > 0;
        let table = if rule.table == 0 { TABLE_MAIN } else { rule.table };
        Self { six, from: from.filter(said), to: to.filter(said), table, priority: rule.priority }
    }
}

/// As `ip rule` writes it.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            Some(from) => write!(f, "from {from}")?,
            None => f.write_str("from all")?,
        }
        if let Some(to) = self.to {
            write!(f, " to {to}")?;
        }
        write!(f, " lookup {} priority {}", self.table, self.priority)
    }
}

/// The device with a virtual router's own link address (RFC 9568 section 7.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Vmac {
    /// The interface it sits on.
    pub parent: u32,
    /// 1..=255.
    pub vrid: u8,
    /// Of the IPv6 virtual router.
    pub six: bool,
}

impl Vmac {
    /// Of a leg whose interface has this index.
    pub fn of(leg: &config::Leg, parent: u32) -> Self {
        Self { parent, vrid: leg.vrid.get(), six: leg.family == Family::V6 }
    }

    /// The device's name: `hf`, the parent's index in hexadecimal, `.` (IPv4) or `-` (IPv6), VRID.
    pub fn name(&self) -> config::InterfaceName {
        let name = format!("hf{:x}{}{}", self.parent, if self.six { '-' } else { '.' }, self.vrid);
        config::InterfaceName::new(&name).expect("at most 14 bytes, none of them special")
    }

    /// The device that [`Self::name`] gives this name.
    pub fn named(name: &config::InterfaceName) -> Option<Self> {
        let rest = name.as_str().strip_prefix("hf")?;
        let at = rest.find(['.', '-'])?;
        let (parent, vrid) = (rest.get(..at)?, rest.get(at + 1..)?);
        let six = rest.get(at..=at)? == "-";
        let vmac = Self { parent: u32::from_str_radix(parent, 16).ok()?, vrid: vrid.parse().ok()?, six };
        // What reads the same may still be written otherwise (`hf002.7`): that one isn't ours.
        (vmac.vrid > 0 && vmac.name() == *name).then_some(vmac)
    }
}

impl fmt::Display for Vmac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::InterfaceName;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn what_is_configured_compares_with_what_the_kernel_lists() {
        let interface = InterfaceName::new("eth0").expect("a name");
        let written =
            config::Route { to: (ip("2001:db8::99"), 64), via: None, interface, table: 0, source: None, metric: None };
        let route = Route::of(&written, 7);
        assert_eq!((route.to, route.table, route.metric), (Prefix::new(ip("2001:db8::"), 64), 254, 1024));
        let four = config::Route { to: (ip("192.0.2.9"), 0), ..written };
        assert_eq!(Route::of(&four, 7).to_string(), "default table 254 metric 0");
        let rule =
            config::Rule { from: Some((ip("192.0.2.10"), 32)), to: Some((ip("0.0.0.0"), 0)), table: 9, priority: 1 };
        assert_eq!(Rule::of(&rule).to_string(), "from 192.0.2.10/32 lookup 9 priority 1");
    }

    #[test]
    fn the_device_of_a_virtual_router_is_found_by_its_name_and_no_other_is() {
        let vmac = Vmac { parent: 31, vrid: 10, six: true };
        assert_eq!(vmac.name().as_str(), "hf1f-10");
        assert_eq!(Vmac::named(&vmac.name()), Some(vmac));
        for other in ["hf1f", "hf1f.", "hf.10", "hf01f.10", "hf1f.0", "hf1f.256", "eth0", "hf1f-1-1", "hfü.1"] {
            assert_eq!(Vmac::named(&InterfaceName::new(other).expect("a name")), None, "{other}");
        }
    }
}
