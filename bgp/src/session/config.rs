//! How a neighbour is to be spoken to.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use thiserror::Error;

use crate::types::{Asn, Families, RouterId};

/// Which AS the neighbour must say it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RemoteAs {
    /// This one. Equal to ours: an iBGP session.
    Exactly(Asn),
    /// Ours, whatever it is.
    Internal,
    /// Any but ours.
    External,
}

/// How a neighbour is to be spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerConfig {
    /// Our AS.
    pub local_as: Asn,
    /// The neighbour's.
    pub remote_as: RemoteAs,
    /// Our BGP identifier.
    pub router_id: RouterId,
    /// What we offer: 0 (no keepalives at all) or 3 to 65,535 s. The smaller of both sides' counts.
    pub hold_time: Duration,
    /// RFC 4271 ConnectRetryTime: how long after a failed attempt the next one comes. Doubled, up to 60 s, after each
    /// failure that another attempt is unlikely to mend (the neighbour refuses what we say, or the other way round).
    pub connect_retry: Duration,
    /// Never dial, only accept.
    pub passive: bool,
    /// What may be announced, one at least.
    pub families: Families,
    /// Offer RFC 8950: IPv4 routes with an IPv6 next hop.
    pub extended_next_hop: bool,
    /// Offer graceful restart (RFC 4724) with this restart time, at most 4,095 s.
    pub graceful_restart: Option<Duration>,
    /// Offer graceful restart at NOTIFICATIONs too (RFC 8538). Nothing without `graceful_restart`.
    pub notification_gr: bool,
    /// Offer 4-octet AS numbers (RFC 6793). Off only for the sake of tests and very old neighbours.
    pub four_octet_as: bool,
    /// Offer capabilities at all. Off only for neighbours that refuse any OPEN with one; IPv4 only then.
    pub capabilities: bool,
    /// RFC 9687: how long the socket may take nothing before the session is given up. `None`: the RFC's, the longer of
    /// eight minutes and twice the hold time.
    pub send_hold: Option<Duration>,
    /// What "self" is as IPv4 next hop where the connection runs over IPv6 and RFC 8950 wasn't agreed on.
    pub next_hop_ipv4: Option<Ipv4Addr>,
    /// What "self" is as global IPv6 next hop where the connection's own address is none (IPv4, or link-local).
    pub next_hop_ipv6: Option<Ipv6Addr>,
    /// Our link-local address on the link to the neighbour, if it is directly connected: goes beside the global next
    /// hop (RFC 2545 section 3). Where the connection itself runs over link-local addresses, its own is taken.
    pub link_local: Option<Ipv6Addr>,
}

impl PeerConfig {
    /// The usual for a neighbour: hold time 9 s, connect retry 2 s, both families, graceful restart 15 s.
    pub const fn new(local_as: Asn, remote_as: RemoteAs, router_id: RouterId) -> Self {
        Self {
            local_as,
            remote_as,
            router_id,
            hold_time: Duration::from_secs(9),
            connect_retry: Duration::from_secs(2),
            passive: false,
            families: Families::BOTH,
            extended_next_hop: false,
            graceful_restart: Some(Duration::from_secs(15)),
            notification_gr: true,
            four_octet_as: true,
            capabilities: true,
            send_hold: None,
            next_hop_ipv4: None,
            next_hop_ipv6: None,
            link_local: None,
        }
    }

    /// Whether it can be run.
    pub fn check(&self) -> Result<(), ConfigError> {
        let hold = self.hold_time;
        if hold != Duration::ZERO && (hold < MIN_HOLD || hold > MAX_HOLD) {
            return Err(ConfigError::HoldTime(hold));
        }
        if self.connect_retry < MIN_CONNECT_RETRY || self.connect_retry > MAX_CONNECT_RETRY {
            return Err(ConfigError::ConnectRetry(self.connect_retry));
        }
        if self.graceful_restart.is_some_and(|time| time > MAX_RESTART) {
            return Err(ConfigError::RestartTime);
        }
        if self.families == Families::NONE {
            return Err(ConfigError::NoFamily);
        }
        if !self.capabilities && (self.families.ipv6 || !self.families.ipv4) {
            return Err(ConfigError::NoCapabilities);
        }
        if self.local_as.0 > 65_535 && !(self.four_octet_as && self.capabilities) {
            return Err(ConfigError::LocalAs(self.local_as));
        }
        Ok(())
    }

    /// Whether a session under the one can't go on under the other.
    pub(super) fn differs_in_session(&self, other: &Self) -> bool {
        let session = |config: &Self| Self {
            connect_retry: Duration::ZERO,
            passive: false,
            send_hold: None,
            next_hop_ipv4: None,
            next_hop_ipv6: None,
            link_local: None,
            ..config.clone()
        };
        session(self) != session(other)
    }
}

/// RFC 4271 section 4.2: a hold time is 0 or at least this.
pub const MIN_HOLD: Duration = Duration::from_secs(3);
/// The longest hold time that an OPEN can say.
pub const MAX_HOLD: Duration = Duration::from_secs(65_535);
/// The shortest ConnectRetryTime: more often than this is a burden to both.
pub const MIN_CONNECT_RETRY: Duration = Duration::from_millis(100);
/// No wait before an attempt is longer.
pub const MAX_CONNECT_RETRY: Duration = Duration::from_secs(60);
/// RFC 4724 section 3: a restart time has twelve bits.
pub const MAX_RESTART: Duration = Duration::from_secs(4095);

/// A configuration that can't be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Hold time out of range.
    #[error("hold time is {0:?}: 0 or 3 to 65535 s")]
    HoldTime(Duration),
    /// Connect retry out of range.
    #[error("connect retry is {0:?}: 100 ms to 60 s")]
    ConnectRetry(Duration),
    /// Restart time out of range.
    #[error("restart time: at most 4095 s")]
    RestartTime,
    /// Nothing to announce.
    #[error("no address family")]
    NoFamily,
    /// Without capabilities a session carries IPv4 and nothing else.
    #[error("without capabilities the family is ipv4 alone")]
    NoCapabilities,
    /// An AS number that a 2-octet OPEN can't carry.
    #[error("AS {} needs four octets", .0.0)]
    LocalAs(Asn),
}
