//! What BGP speaks of: newtypes that carry their range, and the attributes of what we announce.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

/// An autonomous system number (RFC 6793). 0 is nobody's (RFC 7607): the wire refuses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asn(pub u32);

impl Asn {
    /// What stands for a number that doesn't fit into two octets (RFC 6793 section 9).
    pub const TRANS: Self = Self(23_456);

    /// As two octets: the number itself where it fits, else [`Self::TRANS`].
    pub fn two_octets(self) -> u16 {
        // AS_TRANS fits: it's 23456.
        u16::try_from(self.0).unwrap_or(23_456)
    }

    /// Whether it fits into two octets.
    pub const fn is_mappable(self) -> bool {
        self.0 <= 0xffff
    }
}

impl fmt::Display for Asn {
    /// Plain decimal (RFC 5396).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A BGP identifier (RFC 6286): any 32 bits but 0; ordered as an unsigned number, as collisions need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouterId(Ipv4Addr);

impl RouterId {
    /// `None` for 0.0.0.0.
    pub const fn new(id: Ipv4Addr) -> Option<Self> {
        if id.to_bits() == 0 { None } else { Some(Self(id)) }
    }

    /// As it's written.
    pub const fn get(self) -> Ipv4Addr {
        self.0
    }

    /// As the unsigned number that a collision compares (RFC 4271 section 6.8).
    pub const fn to_bits(self) -> u32 {
        self.0.to_bits()
    }
}

impl fmt::Display for RouterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An address family we speak: unicast (SAFI 1) of either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4 unicast: AFI 1, SAFI 1.
    Ipv4,
    /// IPv6 unicast: AFI 2, SAFI 1.
    Ipv6,
}

impl Family {
    /// Both, in the order in which they're announced.
    pub const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    /// The family of an address.
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }

    /// The family that two numbers on the wire mean; `None` for those we don't speak.
    pub const fn from_afi_safi(afi: u16, safi: u8) -> Option<Self> {
        match (afi, safi) {
            (1, 1) => Some(Self::Ipv4),
            (2, 1) => Some(Self::Ipv6),
            _ => None,
        }
    }

    /// Address family identifier.
    pub const fn afi(self) -> u16 {
        match self {
            Self::Ipv4 => 1,
            Self::Ipv6 => 2,
        }
    }

    /// Subsequent address family identifier: unicast.
    pub const fn safi(self) -> u8 {
        1
    }

    /// Bits of an address, the longest prefix.
    pub const fn bits(self) -> u8 {
        match self {
            Self::Ipv4 => 32,
            Self::Ipv6 => 128,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// A set of families: those configured, or those negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Families {
    /// IPv4 unicast.
    pub ipv4: bool,
    /// IPv6 unicast.
    pub ipv6: bool,
}

impl Families {
    /// None of them.
    pub const NONE: Self = Self { ipv4: false, ipv6: false };
    /// Both.
    pub const BOTH: Self = Self { ipv4: true, ipv6: true };

    /// Whether a family is in it.
    pub const fn contains(self, family: Family) -> bool {
        match family {
            Family::Ipv4 => self.ipv4,
            Family::Ipv6 => self.ipv6,
        }
    }

    /// With one more.
    #[must_use]
    pub const fn with(self, family: Family) -> Self {
        match family {
            Family::Ipv4 => Self { ipv4: true, ..self },
            Family::Ipv6 => Self { ipv6: true, ..self },
        }
    }

    /// What both hold: what two speakers have negotiated.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { ipv4: self.ipv4 && other.ipv4, ipv6: self.ipv6 && other.ipv6 }
    }

    /// Whether it holds none.
    pub const fn is_empty(self) -> bool {
        !self.ipv4 && !self.ipv6
    }

    /// Those in it, IPv4 first.
    pub fn iter(self) -> impl Iterator<Item = Family> {
        Family::ALL.into_iter().filter(move |family| self.contains(*family))
    }
}

impl FromIterator<Family> for Families {
    fn from_iter<I: IntoIterator<Item = Family>>(families: I) -> Self {
        families.into_iter().fold(Self::NONE, Self::with)
    }
}

/// A destination: an address and how many of its bits count; the others are 0. IPv4 sorts before IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    ip: IpAddr,
    length: u8,
}

impl Prefix {
    /// Clears the host bits. `None` if the length is more than the address has bits.
    pub const fn new(ip: IpAddr, length: u8) -> Option<Self> {
        if length > Family::of(ip).bits() {
            return None;
        }
        // A shift by all bits is none: `checked_shl` says so, and the mask of length 0 is 0.
        let ip = match ip {
            IpAddr::V4(ip) => {
                let mask = match u32::MAX.checked_shl(32 - length as u32) {
                    Some(mask) => mask,
                    None => 0,
                };
                IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & mask))
            }
            IpAddr::V6(ip) => {
                let mask = match u128::MAX.checked_shl(128 - length as u32) {
                    Some(mask) => mask,
                    None => 0,
                };
                IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask))
            }
        };
        Some(Self { ip, length })
    }

    /// One address: /32 or /128.
    pub const fn host(ip: IpAddr) -> Self {
        Self { ip, length: Family::of(ip).bits() }
    }

    /// Its first address.
    pub const fn ip(self) -> IpAddr {
        self.ip
    }

    /// How many bits count.
    pub const fn length(self) -> u8 {
        self.length
    }

    /// Of which family.
    pub const fn family(self) -> Family {
        Family::of(self.ip)
    }

    /// Whether an address is in it.
    pub fn contains(self, address: IpAddr) -> bool {
        Self::new(address, self.length) == Some(self)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.length)
    }
}

/// Not a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not a prefix: write an address, or an address, a slash and a length")]
pub struct PrefixError;

impl FromStr for Prefix {
    type Err = PrefixError;

    /// `192.0.2.1`, `192.0.2.0/24`, `2001:db8::/32`.
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        match text.split_once('/') {
            None => Ok(Self::host(text.parse().map_err(|_| PrefixError)?)),
            Some((ip, length)) => {
                let ip = ip.parse().map_err(|_| PrefixError)?;
                Self::new(ip, length.parse().map_err(|_| PrefixError)?).ok_or(PrefixError)
            }
        }
    }
}

/// Where a route came from (RFC 4271 section 5.1.1). Lower is preferred; we announce `Igp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Origin {
    /// Inside the originating AS.
    #[default]
    Igp,
    /// By EGP, long dead.
    Egp,
    /// By other means.
    Incomplete,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Igp => "IGP",
            Self::Egp => "EGP",
            Self::Incomplete => "incomplete",
        })
    }
}

/// Where a router is to send what goes to our prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NextHop {
    /// IPv4: for IPv4 prefixes.
    V4(Ipv4Addr),
    /// IPv6: for IPv6 prefixes, and for IPv4 ones where RFC 8950 was negotiated. At least one of them is there; both
    /// only on a shared link (RFC 2545 section 3).
    V6 {
        /// The global address.
        global: Option<Ipv6Addr>,
        /// The link-local address.
        link_local: Option<Ipv6Addr>,
    },
}

impl fmt::Display for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(address) => address.fmt(f),
            Self::V6 { global: Some(global), link_local: Some(local) } => write!(f, "{global} and {local}"),
            Self::V6 { global: Some(address), link_local: None }
            | Self::V6 { global: None, link_local: Some(address) } => address.fmt(f),
            Self::V6 { global: None, link_local: None } => f.write_str("none"),
        }
    }
}

/// What we say about prefixes that we announce; shared by all that have the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathAttributes {
    /// ORIGIN.
    pub origin: Origin,
    /// AS_PATH, written as AS_SEQUENCE, never as a set (RFC 9774): our own AS and prepends on eBGP, empty on iBGP.
    pub as_path: Vec<Asn>,
    /// MULTI_EXIT_DISC. Absent means 0 to many routers, and the worst to some.
    pub med: Option<u32>,
    /// LOCAL_PREF: written on iBGP only (RFC 4271 section 5.1.5).
    pub local_pref: Option<u32>,
    /// COMMUNITIES (RFC 1997), such as 65535:0, graceful shutdown (RFC 8326).
    pub communities: Vec<u32>,
    /// LARGE_COMMUNITY (RFC 8092).
    pub large: Vec<[u32; 3]>,
    /// Extended communities (RFC 4360), such as [`link_bandwidth`](crate::wire::community::link_bandwidth).
    pub extended: Vec<[u8; 8]>,
    /// NEXT_HOP, or the one in MP_REACH_NLRI.
    pub next_hop: NextHop,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_no_host_bits_and_no_more_bits_than_its_address() {
        let prefix = |text: &str| text.parse::<Prefix>();
        assert_eq!(prefix("192.0.2.77/24").expect("a prefix").to_string(), "192.0.2.0/24");
        assert_eq!(prefix("192.0.2.77").expect("a prefix").to_string(), "192.0.2.77/32");
        assert_eq!(prefix("2001:db8::1/32").expect("a prefix").to_string(), "2001:db8::/32");
        assert_eq!(prefix("203.0.113.9/0").expect("a prefix").to_string(), "0.0.0.0/0");
        assert_eq!(prefix("2001:db8::1/0").expect("a prefix").to_string(), "::/0");
        for wrong in ["192.0.2.0/33", "2001:db8::/129", "192.0.2.0/", "/24", "192.0.2/24", "192.0.2.0/-1", ""] {
            assert_eq!(prefix(wrong), Err(PrefixError), "{wrong}");
        }
    }

    #[test]
    fn a_prefix_contains_its_addresses_and_those_of_no_other_family() {
        let net = "192.0.2.0/25".parse::<Prefix>().expect("a prefix");
        assert!(net.contains("192.0.2.127".parse().expect("an address")));
        assert!(!net.contains("192.0.2.128".parse().expect("an address")));
        assert!(!net.contains("::".parse().expect("an address")));
    }

    #[test]
    fn router_ids_order_as_unsigned_numbers_and_are_never_zero() {
        let id = |text: &str| RouterId::new(text.parse().expect("an address"));
        assert_eq!(id("0.0.0.0"), None);
        assert!(id("200.0.0.1") > id("100.255.255.255"));
    }

    #[test]
    fn a_large_as_number_is_as_trans_in_two_octets() {
        assert_eq!(Asn(65_001).two_octets(), 65_001);
        assert_eq!(Asn(65_536).two_octets(), 23_456);
        assert_eq!(Asn(4_200_000_001).to_string(), "4200000001");
    }
}
