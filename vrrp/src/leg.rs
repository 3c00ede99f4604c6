//! A leg: one virtual router on the wire, and which packets it takes for its own.
//!
//! What can be judged from the packet and the leg's configuration alone is judged here, so that the state machine only
//! sees adverts that may count: the transport (who may speak, from how far), the version, and VRRPv2's stricter rules.

use std::net::IpAddr;

use thiserror::Error;

use crate::mutants;
use crate::types::{Addresses, AdvertInterval, Family, Priority, Version, Vrid};
use crate::wire::{self, AdvertError, Received};

/// One virtual router on the wire. A unit has one leg per member and address family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LegConfig {
    /// Virtual router identifier on its segment.
    pub vrid: Vrid,
    /// What it speaks; adverts in the other version are refused.
    pub version: Version,
    /// Advertised addresses, in order; their family is the leg's. IPv6: the virtual router's link-local first
    /// (derived: [`link_local`](crate::types::link_local)).
    pub addresses: Addresses,
    /// How it reaches the others.
    pub transport: Transport,
    /// Which checksum it sends; counts for VRRPv3 over IPv4 only, and both are accepted whatever it says.
    pub checksum: ChecksumMode,
}

/// How adverts get to the other routers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// To the group of the family, on the segment.
    Multicast,
    /// To each peer by its address: clouds, or across routers.
    Unicast {
        /// The peers, all of the leg's family. Nobody else is listened to.
        peers: Vec<IpAddr>,
        /// The lowest TTL that a peer's advert may arrive with; 255: no router between.
        min_ttl: u8,
    },
}

/// Which checksum to send with VRRPv3 over IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ChecksumMode {
    /// As RFC 9568 until the peers are heard, then as they do; both where they differ among themselves.
    #[default]
    Auto,
    /// The message only.
    Rfc9568,
    /// With pseudo-header, as older readings of RFC 5798.
    PseudoHeader,
}

impl LegConfig {
    /// The family of the leg.
    pub fn family(&self) -> Family {
        self.addresses.family()
    }

    /// Bytes of its adverts without the IP header: with that header (20 for IPv4, 40 for IPv6) it must not exceed the
    /// MTU, or a receiver drops the fragments.
    pub fn message_len(&self) -> usize {
        wire::message_len(self.version, self.family(), self.addresses.len())
    }

    /// Whether an advert is of this virtual router: VRID, version and family.
    pub fn carries(&self, advert: &wire::Advert) -> bool {
        (advert.vrid, advert.version, advert.addresses.family()) == (self.vrid, self.version, self.family())
    }

    /// Whether a packet with this leg's VRID counts for it. `interval` is the unit's own. The packet's VRID isn't looked
    /// at: by that the caller found the leg.
    ///
    /// VRRPv2 (RFC 3768 section 7.1) refuses another interval, and another address list unless its sender owns the
    /// addresses. VRRPv3 takes both; the router tells of them ([`Notice`](crate::router::Notice)).
    pub fn accept(&self, received: &Received, interval: AdvertInterval) -> Result<(), AdvertError> {
        let advert = &received.advert;
        let family = Family::of(received.source);
        if family != self.family() {
            return Err(AdvertError::Family(family));
        }
        self.transport.accept(received)?;
        if advert.version != self.version {
            return Err(AdvertError::VersionMismatch { ours: self.version, theirs: advert.version });
        }
        if self.version == Version::V2 {
            if advert.interval != interval {
                return Err(AdvertError::IntervalMismatch { ours: interval, theirs: advert.interval });
            }
            if advert.priority != Priority::OWNER && !advert.addresses.same_set(&self.addresses) {
                return Err(AdvertError::AddressMismatch);
            }
        }
        Ok(())
    }
}

impl Transport {
    /// Where an advert goes, one packet each.
    pub fn destinations(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        let (group, peers) = match self {
            Self::Multicast => (Some(family.group()), [].as_slice()),
            Self::Unicast { peers, .. } => (None, peers.as_slice()),
        };
        group.into_iter().chain(peers.iter().copied())
    }

    /// Whether a packet came by this way: to the group of its family with multicast; with unicast to a host, from a
    /// configured peer, and from no farther than `min_ttl` says.
    pub fn accept(&self, received: &Received) -> Result<(), AdvertError> {
        let Received { source, destination, ttl, .. } = *received;
        match self {
            Self::Multicast if destination != Family::of(source).group() => {
                Err(AdvertError::ExpectedMulticast(destination))
            }
            Self::Multicast => Ok(()),
            Self::Unicast { .. } if is_for_many(destination) => Err(AdvertError::ExpectedUnicast(destination)),
            Self::Unicast { peers, .. } if !peers.contains(&source) && !mutants::off("unicast-peers") => {
                Err(AdvertError::UnknownPeer(source))
            }
            Self::Unicast { min_ttl: min, .. } if ttl < *min && !mutants::off("min-ttl") => {
                Err(AdvertError::TtlBelowMinimum { ttl, min: *min })
            }
            Self::Unicast { .. } => Ok(()),
        }
    }
}

fn is_for_many(destination: IpAddr) -> bool {
    match destination {
        IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_multicast(),
    }
}

/// Why a unit can't be run as configured. The router itself takes anything; this is for whoever reads the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Nothing to speak on.
    #[error("a unit needs at least one leg")]
    NoLegs,
    /// More legs than a [`LegId`](crate::LegId) counts.
    #[error("{0} legs: a unit has at most 65535")]
    TooManyLegs(usize),
    /// RFC 3768 has no IPv6.
    #[error("VRRPv2 has no IPv6: VRID {0} needs version 3")]
    Version2Ipv6(Vrid),
    /// The interval can't be said in a leg's version.
    #[error("VRRPv{version} can't carry the advert interval {interval}")]
    Interval {
        /// The leg's version.
        version: Version,
        /// The unit's interval.
        interval: AdvertInterval,
    },
    /// Unicast to nobody.
    #[error("VRID {0}: unicast without a peer")]
    NoPeers(Vrid),
    /// A peer that the leg can't reach.
    #[error("peer {peer} is not {family}")]
    PeerFamily {
        /// The peer.
        peer: IpAddr,
        /// The leg's family.
        family: Family,
    },
    /// A peer that is no host.
    #[error("peer {0} is no host's address")]
    PeerAddress(IpAddr),
}

impl LegConfig {
    /// Whether the leg can be run with this interval.
    pub fn check(&self, interval: AdvertInterval) -> Result<(), ConfigError> {
        let family = self.family();
        if self.version == Version::V2 && family == Family::V6 {
            return Err(ConfigError::Version2Ipv6(self.vrid));
        }
        if !interval.fits(self.version) {
            return Err(ConfigError::Interval { version: self.version, interval });
        }
        let Transport::Unicast { peers, .. } = &self.transport else { return Ok(()) };
        if peers.is_empty() {
            return Err(ConfigError::NoPeers(self.vrid));
        }
        for peer in peers {
            if Family::of(*peer) != family {
                return Err(ConfigError::PeerFamily { peer: *peer, family });
            }
            if is_for_many(*peer) || peer.is_unspecified() {
                return Err(ConfigError::PeerAddress(*peer));
            }
        }
        Ok(())
    }
}
