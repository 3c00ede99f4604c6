//! Why a packet is refused: one kind per cause, each with a counter.

use std::net::IpAddr;

use thiserror::Error;

use crate::types::{AdvertInterval, Family, Version};

/// Why a packet was refused (RFC 9568 section 7.1). All of them are dropped, counted, and logged at a limited rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum AdvertError {
    /// Ends before what its headers promise.
    #[error("truncated: {have} bytes where {need} are needed")]
    Truncated {
        /// Bytes there are.
        have: usize,
        /// Bytes needed at least.
        need: usize,
    },
    /// Not IPv4, or a header length or total length that can't be.
    #[error("malformed IPv4 header")]
    IpHeader,
    /// A fragment: adverts are never fragmented on their own segment.
    #[error("IPv4 fragment")]
    Fragment,
    /// Not VRRP.
    #[error("IP protocol {0} is not VRRP")]
    Protocol(u8),
    /// Sent from beyond the segment, or by a broken sender.
    #[error("TTL {0}, must be 255")]
    Ttl(u8),
    /// A source that no host can have (unspecified, multicast, broadcast).
    #[error("source {0} is no host's address")]
    Source(IpAddr),
    /// VRRPv2 over IPv6: there is none.
    #[error("VRRPv2 over IPv6 doesn't exist")]
    Version2,
    /// Neither 2 nor 3.
    #[error("unknown VRRP version {0}")]
    Version(u8),
    /// Not an ADVERTISEMENT, the only type there is.
    #[error("unknown VRRP type {0}")]
    Type(u8),
    /// No address (erratum 8299).
    #[error("address count 0")]
    NoAddresses,
    /// Bytes after the last address (and after VRRPv2's authentication data): a trailer that isn't ours to guess.
    #[error("{0} bytes after the end of the advert")]
    Trailing(usize),
    /// Wrong in every form that this family and version has.
    #[error("wrong checksum")]
    Checksum,
    /// VRID 0.
    #[error("VRID 0")]
    Vrid,
    /// Interval 0: would make every Backup fire at once (erratum 8301).
    #[error("advert interval 0")]
    Interval,
    /// VRRPv2 with authentication, which RFC 3768 abolished (section 5.3.6): set none at the peer.
    #[error("VRRPv2 authentication type {0}, must be 0")]
    AuthType(u8),
    /// A unicast packet that crossed more routers than `min_ttl` lets it.
    #[error("TTL {ttl}, must be at least {min}")]
    TtlBelowMinimum {
        /// As it arrived.
        ttl: u8,
        /// As configured.
        min: u8,
    },
    /// A unicast packet whose sender is none of the configured peers.
    #[error("{0} is not a configured peer")]
    UnknownPeer(IpAddr),
    /// Sent to a host, where adverts go to the group.
    #[error("sent to {0}, must go to the multicast group")]
    ExpectedMulticast(IpAddr),
    /// Sent to a group or to everybody, where adverts go to peers.
    #[error("sent to {0}, must go to a unicast address")]
    ExpectedUnicast(IpAddr),
    /// The other family.
    #[error("{0}, which this leg doesn't carry")]
    Family(Family),
    /// A version that this leg doesn't speak.
    #[error("VRRPv{theirs}, this virtual router speaks VRRPv{ours}")]
    VersionMismatch {
        /// Ours.
        ours: Version,
        /// Theirs.
        theirs: Version,
    },
    /// VRRPv2: intervals must be equal (RFC 3768 section 7.1).
    #[error("VRRPv2 advert interval {theirs}, ours is {ours}")]
    IntervalMismatch {
        /// Ours.
        ours: AdvertInterval,
        /// Theirs.
        theirs: AdvertInterval,
    },
    /// VRRPv2: other addresses than ours, from one that isn't their owner (RFC 3768 section 7.1).
    #[error("VRRPv2 advert for other addresses than ours")]
    AddressMismatch,
}

impl AdvertError {
    /// Every kind's counter name: first those of decoding in the order of the checks, then those of a leg's rules.
    pub const COUNTERS: [&'static str; 23] = [
        "truncated",
        "ip-header",
        "fragment",
        "protocol",
        "ttl",
        "source",
        "version-2",
        "version",
        "type",
        "no-addresses",
        "trailing",
        "checksum",
        "vrid",
        "interval",
        "auth-type",
        "ttl-below-minimum",
        "unknown-peer",
        "expected-multicast",
        "expected-unicast",
        "family",
        "version-mismatch",
        "interval-mismatch",
        "address-mismatch",
    ];

    /// A stable name to count it by: part of the metrics' interface, never changed.
    pub fn counter(&self) -> &'static str {
        match self {
            Self::Truncated { .. } => "truncated",
            Self::IpHeader => "ip-header",
            Self::Fragment => "fragment",
            Self::Protocol(_) => "protocol",
            Self::Ttl(_) => "ttl",
            Self::Source(_) => "source",
            Self::Version2 => "version-2",
            Self::Version(_) => "version",
            Self::Type(_) => "type",
            Self::NoAddresses => "no-addresses",
            Self::Trailing(_) => "trailing",
            Self::Checksum => "checksum",
            Self::Vrid => "vrid",
            Self::Interval => "interval",
            Self::AuthType(_) => "auth-type",
            Self::TtlBelowMinimum { .. } => "ttl-below-minimum",
            Self::UnknownPeer(_) => "unknown-peer",
            Self::ExpectedMulticast(_) => "expected-multicast",
            Self::ExpectedUnicast(_) => "expected-unicast",
            Self::Family(_) => "family",
            Self::VersionMismatch { .. } => "version-mismatch",
            Self::IntervalMismatch { .. } => "interval-mismatch",
            Self::AddressMismatch => "address-mismatch",
        }
    }
}
