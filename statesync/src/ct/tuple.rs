//! One direction of a flow.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Source and destination address, of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Addresses {
    /// IPv4.
    V4 {
        /// Who sends.
        source: Ipv4Addr,
        /// Who receives.
        destination: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Who sends.
        source: Ipv6Addr,
        /// Who receives.
        destination: Ipv6Addr,
    },
}

impl Addresses {
    /// Of these two; `None` where they are of different families.
    #[must_use]
    pub const fn new(source: IpAddr, destination: IpAddr) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Self::V4 { source, destination }),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Self::V6 { source, destination }),
            _ => None,
        }
    }

    /// Who sends.
    #[must_use]
    pub const fn source(&self) -> IpAddr {
        match *self {
            Self::V4 { source, .. } => IpAddr::V4(source),
            Self::V6 { source, .. } => IpAddr::V6(source),
        }
    }

    /// Who receives.
    #[must_use]
    pub const fn destination(&self) -> IpAddr {
        match *self {
            Self::V4 { destination, .. } => IpAddr::V4(destination),
            Self::V6 { destination, .. } => IpAddr::V6(destination),
        }
    }

    /// The other way round.
    #[must_use]
    pub const fn swapped(&self) -> Self {
        match *self {
            Self::V4 { source, destination } => Self::V4 { source: destination, destination: source },
            Self::V6 { source, destination } => Self::V6 { source: destination, destination: source },
        }
    }
}

/// What the protocol above IP tells flows apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer4 {
    /// TCP.
    Tcp {
        /// Port of who sends.
        source: u16,
        /// Port of who receives.
        destination: u16,
    },
    /// UDP.
    Udp {
        /// Port of who sends.
        source: u16,
        /// Port of who receives.
        destination: u16,
    },
    /// ICMP queries, in IPv4.
    Icmp {
        /// Identifier of the query.
        id: u16,
        /// ICMP type.
        kind: u8,
        /// ICMP code.
        code: u8,
    },
    /// ICMPv6 queries, in IPv6.
    Icmp6 {
        /// Identifier of the query.
        id: u16,
        /// ICMPv6 type.
        kind: u8,
        /// ICMPv6 code.
        code: u8,
    },
}

impl Layer4 {
    /// TCP's number above IP.
    pub const TCP: u8 = 6;
    /// UDP's number above IP.
    pub const UDP: u8 = 17;
    /// ICMP's number above IP.
    pub const ICMP: u8 = 1;
    /// ICMPv6's number above IP.
    pub const ICMP6: u8 = 58;

    /// The protocol's number above IP.
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        match self {
            Self::Tcp { .. } => Self::TCP,
            Self::Udp { .. } => Self::UDP,
            Self::Icmp { .. } => Self::ICMP,
            Self::Icmp6 { .. } => Self::ICMP6,
        }
    }

    /// The number that NAT may change in the source: a port, or a query's identifier.
    #[must_use]
    pub const fn source_port(&self) -> u16 {
        match *self {
            Self::Tcp { source, .. } | Self::Udp { source, .. } => source,
            Self::Icmp { id, .. } | Self::Icmp6 { id, .. } => id,
        }
    }

    /// Port of who receives; ICMP has none.
    #[must_use]
    pub const fn destination_port(&self) -> Option<u16> {
        match *self {
            Self::Tcp { destination, .. } | Self::Udp { destination, .. } => Some(destination),
            Self::Icmp { .. } | Self::Icmp6 { .. } => None,
        }
    }

    /// What answers have. `None`: a type of ICMP that the kernel knows no answer to, which can't be inserted.
    #[must_use]
    pub const fn inverse(&self) -> Option<Self> {
        Some(match *self {
            Self::Tcp { source, destination } => Self::Tcp { source: destination, destination: source },
            Self::Udp { source, destination } => Self::Udp { source: destination, destination: source },
            Self::Icmp { id, kind, code } => {
                let kind = match kind {
                    8 => 0, // echo
                    0 => 8,
                    13 => 14, // timestamp
                    14 => 13,
                    15 => 16, // information
                    16 => 15,
                    17 => 18, // address mask
                    18 => 17,
                    _ => return None,
                };
                Self::Icmp { id, kind, code }
            }
            Self::Icmp6 { id, kind, code } => {
                let kind = match kind {
                    128 => 129, // echo
                    129 => 128,
                    139 => 140, // node information
                    140 => 139,
                    _ => return None,
                };
                Self::Icmp6 { id, kind, code }
            }
        })
    }
}

/// One direction of a flow: 40 bytes. The zone is kept apart: [`Zone`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    /// From where to where.
    pub addresses: Addresses,
    /// Protocol above IP, with its ports.
    pub layer4: Layer4,
}

impl Tuple {
    /// TCP from here to there; `None` where the families differ.
    #[must_use]
    pub fn tcp(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        let layer4 = Layer4::Tcp { source: source.port(), destination: destination.port() };
        Addresses::new(source.ip(), destination.ip()).map(|addresses| Self { addresses, layer4 })
    }

    /// UDP from here to there; `None` where the families differ.
    #[must_use]
    pub fn udp(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        let layer4 = Layer4::Udp { source: source.port(), destination: destination.port() };
        Addresses::new(source.ip(), destination.ip()).map(|addresses| Self { addresses, layer4 })
    }

    /// The tuple of answers where nothing is translated. `None`: see [`Layer4::inverse`].
    #[must_use]
    pub const fn inverse(&self) -> Option<Self> {
        match self.layer4.inverse() {
            Some(layer4) => Some(Self { addresses: self.addresses.swapped(), layer4 }),
            None => None,
        }
    }

    /// Of the same family and protocol: they can be two directions of one flow.
    #[must_use]
    pub const fn is_like(&self, other: &Self) -> bool {
        matches!(
            (&self.addresses, &other.addresses),
            (Addresses::V4 { .. }, Addresses::V4 { .. }) | (Addresses::V6 { .. }, Addresses::V6 { .. })
        ) && self.layer4.protocol() == other.layer4.protocol()
    }

    /// Who sends; the port is an identifier with ICMP.
    #[must_use]
    pub const fn source(&self) -> SocketAddr {
        SocketAddr::new(self.addresses.source(), self.layer4.source_port())
    }

    /// Who receives; port 0 with ICMP.
    #[must_use]
    pub const fn destination(&self) -> SocketAddr {
        let port = match self.layer4.destination_port() {
            Some(port) => port,
            None => 0,
        };
        SocketAddr::new(self.addresses.destination(), port)
    }
}

impl fmt::Display for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source, destination) = (self.addresses.source(), self.addresses.destination());
        match self.layer4 {
            Layer4::Tcp { .. } => write!(f, "tcp {} > {}", self.source(), self.destination()),
            Layer4::Udp { .. } => write!(f, "udp {} > {}", self.source(), self.destination()),
            Layer4::Icmp { id, kind, .. } => write!(f, "icmp {source} > {destination} type {kind} id {id}"),
            Layer4::Icmp6 { id, kind, .. } => write!(f, "icmp6 {source} > {destination} type {kind} id {id}"),
        }
    }
}

/// Which tuples of a flow count in its zone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Both.
    #[default]
    Both,
    /// The original one; answers are looked up in zone 0.
    Original,
    /// That of answers; the original one is looked up in zone 0.
    Reply,
}

/// The zone of a flow; equal tuples of different zones are different flows. Zone 0 in both directions is the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Zone {
    /// Its number.
    pub id: u16,
    /// For which of the tuples.
    pub direction: Direction,
}

impl Zone {
    /// That of both directions.
    #[must_use]
    pub const fn both(id: u16) -> Self {
        Self { id, direction: Direction::Both }
    }

    /// The number in which the original tuple is looked up.
    #[must_use]
    pub const fn original(&self) -> u16 {
        match self.direction {
            Direction::Both | Direction::Original => self.id,
            Direction::Reply => 0,
        }
    }
}

/// What one kernel tells its flows apart by: the original tuple, and the zone in which that is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The original tuple.
    pub original: Tuple,
    /// [`Zone::original`].
    pub zone: u16,
}
