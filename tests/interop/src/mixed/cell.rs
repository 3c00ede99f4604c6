//! The matrix: which two routers, speaking what.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// The virtual IPv6 address; the IPv4 one is the lab's.
pub const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, 0x10);
/// The first address of an IPv6 virtual router with the lab's VRID (RFC 9568 section 5.2.9): derived from its MAC.
pub const VIRTUAL_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x200, 0x5eff, 0xfe00, 0x020a);

/// What a router is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Ours.
    Holdfast,
    /// keepalived.
    Keepalived,
    /// FRR's vrrpd.
    Frr,
}

/// The protocol's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    /// RFC 3768: whole seconds.
    V2,
    /// RFC 9568.
    V3,
}

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// How adverts travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// To the group.
    Multicast,
    /// To each other.
    Unicast,
}

/// What the checksum of the peer's version 3 IPv4 adverts covers; the others have one form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Checksum {
    /// The message alone: RFC 9568.
    Message,
    /// A pseudo-header, too: RFC 5798 as many read it.
    PseudoHeader,
}

/// One pair and what it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// The router with the higher priority.
    pub preferred: Kind,
    /// The other one.
    pub other: Kind,
    /// The version.
    pub version: Version,
    /// The families of the virtual addresses.
    pub families: &'static [Family],
    /// How adverts travel.
    pub transport: Transport,
    /// What the peer's checksum covers.
    pub checksum: Checksum,
}

const V4: &[Family] = &[Family::V4];
const V6: &[Family] = &[Family::V6];
const BOTH: &[Family] = &[Family::V4, Family::V6];

impl Cell {
    /// Between two adverts.
    #[must_use]
    pub fn interval(&self) -> Duration {
        match self.version {
            Version::V2 => Duration::from_secs(1),
            Version::V3 => Duration::from_millis(100),
        }
    }

    /// The skew time of a router with that priority: RFC 3768 section 6.1, RFC 9568 section 6.1.
    #[must_use]
    pub fn skew(&self, priority: u8) -> Duration {
        let unit = match self.version {
            Version::V2 => Duration::from_secs(1),
            Version::V3 => self.interval(),
        };
        unit * (256 - u32::from(priority)) / 256
    }

    /// How long a router with that priority waits for the next advert.
    #[must_use]
    pub fn down_time(&self, priority: u8) -> Duration {
        self.interval() * 3 + self.skew(priority)
    }

    /// The router on lb1 (preferred) or lb2.
    #[must_use]
    pub fn kind(&self, index: usize) -> Kind {
        if index == 0 { self.preferred } else { self.other }
    }

    /// Whether one of the two is ours.
    #[must_use]
    pub fn mixed(&self) -> bool {
        self.preferred == Kind::Holdfast || self.other == Kind::Holdfast
    }

    /// Whether it needs newer peers than Debian 12 has: those have the pseudo-header's checksum only.
    #[must_use]
    pub fn newer(&self) -> bool {
        let choice = self.version == Version::V3 && self.families.contains(&Family::V4);
        choice && self.checksum == Checksum::Message
    }

    /// Why it can't be run, if it can't, whatever this machine has.
    #[must_use]
    pub fn impossible(&self) -> Option<&'static str> {
        let frr = self.preferred == Kind::Frr || self.other == Kind::Frr;
        if frr && self.transport == Transport::Unicast {
            return Some("vrrpd has no unicast");
        }
        None
    }

    /// How late the peer may be with its first advert after it answers for the address. vrrpd brings the interface up,
    /// loses the IPv6 advert that it sends meanwhile, and sends the next one after an interval; the instances of a
    /// keepalived sync group follow each other within an interval.
    #[must_use]
    pub fn late_first_advert(&self) -> Duration {
        let has = |kind| self.preferred == kind || self.other == kind;
        let late = match self.families {
            [Family::V4] => false,
            [_] => has(Kind::Frr),
            _ => has(Kind::Frr) || has(Kind::Keepalived),
        };
        if late { self.interval() } else { Duration::ZERO }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holdfast => "holdfast",
            Self::Keepalived => "keepalived",
            Self::Frr => "frr",
        })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = if self.version == Version::V2 { "v2" } else { "v3" };
        let families = match self.families {
            [Family::V4] => "IPv4",
            [Family::V6] => "IPv6",
            _ => "IPv4+IPv6",
        };
        let transport = if self.transport == Transport::Multicast { "multicast" } else { "unicast" };
        write!(f, "{} > {}, {version} {families} {transport}", self.preferred, self.other)?;
        if self.version == Version::V3 && self.families.contains(&Family::V4) {
            let checksum = if self.checksum == Checksum::Message { "message" } else { "pseudo-header" };
            write!(f, ", {checksum}")?;
        }
        Ok(())
    }
}

/// What two routers can speak: version, families, transport, checksum.
const LANGUAGES: &[(Version, &[Family], Transport, Checksum)] = &[
    (Version::V2, V4, Transport::Multicast, Checksum::Message),
    (Version::V2, V4, Transport::Unicast, Checksum::Message),
    (Version::V3, V4, Transport::Multicast, Checksum::PseudoHeader),
    (Version::V3, V4, Transport::Multicast, Checksum::Message),
    (Version::V3, V4, Transport::Unicast, Checksum::PseudoHeader),
    (Version::V3, V4, Transport::Unicast, Checksum::Message),
    (Version::V3, V6, Transport::Multicast, Checksum::PseudoHeader),
    (Version::V3, V6, Transport::Unicast, Checksum::PseudoHeader),
    (Version::V3, BOTH, Transport::Multicast, Checksum::PseudoHeader),
];

/// Pairs with ours in them, in both roles.
const MIXED: &[(Kind, Kind)] = &[
    (Kind::Keepalived, Kind::Holdfast),
    (Kind::Holdfast, Kind::Keepalived),
    (Kind::Frr, Kind::Holdfast),
    (Kind::Holdfast, Kind::Frr),
];

/// Pairs without: what fails here is the peers' or the harness's doing.
const BASELINES: &[(Kind, Kind)] = &[
    (Kind::Keepalived, Kind::Keepalived),
    (Kind::Frr, Kind::Frr),
    (Kind::Keepalived, Kind::Frr),
    (Kind::Frr, Kind::Keepalived),
];

/// The matrix; the slow ones first, so that cells that run side by side end together.
#[must_use]
pub fn matrix(baselines: bool) -> Vec<Cell> {
    let pairs: Vec<_> = MIXED.iter().chain(if baselines { BASELINES } else { &[] }).collect();
    let of = |&(version, families, transport, checksum): &(_, _, _, _)| {
        pairs.iter().map(move |&&(preferred, other)| Cell { preferred, other, version, families, transport, checksum })
    };
    LANGUAGES.iter().flat_map(of).filter(|c| c.impossible().is_none()).collect()
}

/// The address of a router on the segment, by its number.
#[must_use]
pub fn address6(index: usize) -> Ipv6Addr {
    let last = if index == 0 { 0x11 } else { 0x12 };
    Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, last)
}

/// Its link-local address.
#[must_use]
pub fn link_local(index: usize) -> Ipv6Addr {
    let last = if index == 0 { 0x11 } else { 0x12 };
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last)
}

/// The watcher's link-local address.
pub const PROBER6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
/// The watcher's IPv4 address.
pub const PROBER4: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_cell_has_a_name_of_its_own() {
        let all = matrix(true);
        let names: BTreeSet<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), all.len());
        assert!(names.contains("frr > holdfast, v2 IPv4 multicast"), "{names:?}");
        assert!(names.contains("holdfast > keepalived, v3 IPv4 unicast, message"), "{names:?}");
        assert!(!names.iter().any(|n| n.contains("frr") && n.contains("unicast")), "{names:?}");
    }

    #[test]
    fn times_are_the_rfcs() {
        let all = matrix(false);
        let of = |v| all.iter().find(|c| c.version == v).expect("both versions are there");
        // RFC 3768 section 6.1: 3 x 1 s + 156/256 s. RFC 9568 section 6.1: 3 x 100 ms + 156/256 x 100 ms.
        assert_eq!(of(Version::V2).down_time(100), Duration::from_micros(3_609_375));
        assert_eq!(of(Version::V3).down_time(100), Duration::from_nanos(360_937_500));
    }
}
