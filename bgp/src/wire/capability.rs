//! Capabilities in an OPEN (RFC 5492): what each side can do.

use std::fmt;

use super::reader::Reader;
use crate::types::{Asn, Family};

/// AFI of IPv6, the only next hop that RFC 8950 is about.
const AFI_IPV6: u16 = 2;

/// One capability. One of a known code that can't be read as that is [`Self::Other`], and so ignored, but for those that
/// decide how everything else is read (see [`Open::decode`](super::Open::decode)).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Capability {
    /// 1: routes of this family (RFC 4760 section 8).
    Multiprotocol {
        /// Address family identifier.
        afi: u16,
        /// Subsequent address family identifier.
        safi: u8,
    },
    /// 2: answers ROUTE-REFRESH (RFC 2918).
    RouteRefresh,
    /// 5: prefixes of these families with next hops of another (RFC 8950): AFI, SAFI, AFI of the next hop.
    ExtendedNextHop(Vec<(u16, u16, u16)>),
    /// 6: takes messages of up to 65,535 bytes (RFC 8654).
    ExtendedMessage,
    /// 9: its role (RFC 9234).
    Role(u8),
    /// 64: graceful restart (RFC 4724).
    GracefulRestart(GracefulRestart),
    /// 65: four-octet AS numbers, and its own (RFC 6793).
    FourOctetAs(Asn),
    /// 69: several paths per prefix (RFC 7911): AFI, SAFI, 1 receives, 2 sends, 3 both.
    AddPath(Vec<(u16, u8, u8)>),
    /// 70: frames the answer to a ROUTE-REFRESH (RFC 7313).
    EnhancedRouteRefresh,
    /// 73: its name, host and domain (a draft, but FRR and GoBGP send it).
    Fqdn {
        /// Host name.
        host: String,
        /// Domain, often empty.
        domain: String,
    },
    /// 75: its software (a draft).
    SoftwareVersion(String),
    /// Any other, or one that can't be read.
    Other {
        /// Which.
        code: u8,
        /// As it came.
        value: Vec<u8>,
    },
}

/// What a speaker says of its graceful restart (RFC 4724 section 3).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct GracefulRestart {
    /// R: it has restarted, and waits for no End-of-RIB of mine that waits for its.
    pub restarting: bool,
    /// N: a NOTIFICATION doesn't end it either, but for Hard Reset (RFC 8538).
    pub notification: bool,
    /// Seconds from loss of the session to the new one: at most 4,095.
    pub restart_time_s: u16,
    /// Which families.
    pub families: Vec<GracefulFamily>,
}

/// One family in [`GracefulRestart`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GracefulFamily {
    /// Address family identifier.
    pub afi: u16,
    /// Subsequent address family identifier.
    pub safi: u8,
    /// F: it went on forwarding through the restart.
    pub forwarding: bool,
}

impl GracefulFamily {
    /// Of one of our families.
    pub const fn new(family: Family, forwarding: bool) -> Self {
        Self { afi: family.afi(), safi: family.safi(), forwarding }
    }

    /// Which, if it's one of ours.
    pub const fn family(&self) -> Option<Family> {
        Family::from_afi_safi(self.afi, self.safi)
    }
}

impl Capability {
    /// Routes of one of our families.
    pub const fn family(family: Family) -> Self {
        Self::Multiprotocol { afi: family.afi(), safi: family.safi() }
    }

    /// IPv4 prefixes with IPv6 next hops: the case of RFC 8950 that we speak.
    pub fn ipv4_over_ipv6() -> Self {
        Self::ExtendedNextHop(vec![(Family::Ipv4.afi(), u16::from(Family::Ipv4.safi()), AFI_IPV6)])
    }

    /// Whether it's, or holds, [`Self::ipv4_over_ipv6`].
    pub fn has_ipv4_over_ipv6(&self) -> bool {
        let ours = (Family::Ipv4.afi(), u16::from(Family::Ipv4.safi()), AFI_IPV6);
        matches!(self, Self::ExtendedNextHop(tuples) if tuples.contains(&ours))
    }

    /// Its number (IANA "Capability Codes").
    pub const fn code(&self) -> u8 {
        match self {
            Self::Multiprotocol { .. } => 1,
            Self::RouteRefresh => 2,
            Self::ExtendedNextHop(_) => 5,
            Self::ExtendedMessage => 6,
            Self::Role(_) => 9,
            Self::GracefulRestart(_) => 64,
            Self::FourOctetAs(_) => 65,
            Self::AddPath(_) => 69,
            Self::EnhancedRouteRefresh => 70,
            Self::Fqdn { .. } => 73,
            Self::SoftwareVersion(_) => 75,
            Self::Other { code, .. } => *code,
        }
    }

    /// Reads one. Never fails: what it can't read is [`Self::Other`].
    pub(super) fn decode(code: u8, value: &[u8]) -> Self {
        Self::known(code, value).unwrap_or_else(|| Self::Other { code, value: value.to_vec() })
    }

    fn known(code: u8, value: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(value);
        let capability = match code {
            1 => {
                let afi = reader.u16()?;
                // Reserved: ignored (RFC 4760 section 8), but kept by nobody.
                let [_, safi] = reader.array()?;
                Self::Multiprotocol { afi, safi }
            }
            2 => Self::RouteRefresh,
            5 => Self::ExtendedNextHop(items(&mut reader, |[a, b, c, d, e, f]: [u8; 6]| {
                (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]), u16::from_be_bytes([e, f]))
            })),
            6 => Self::ExtendedMessage,
            9 => Self::Role(reader.u8()?),
            64 => {
                let first = reader.u16()?;
                Self::GracefulRestart(GracefulRestart {
                    restarting: first & 0x8000 != 0,
                    notification: first & 0x4000 != 0,
                    restart_time_s: first & 0x0fff,
                    families: items(&mut reader, |[a, b, safi, flags]: [u8; 4]| GracefulFamily {
                        afi: u16::from_be_bytes([a, b]),
                        safi,
                        forwarding: flags & 0x80 != 0,
                    }),
                })
            }
            65 => Self::FourOctetAs(Asn(reader.u32()?)),
            69 => Self::AddPath(items(&mut reader, |[a, b, safi, mode]: [u8; 4]| {
                (u16::from_be_bytes([a, b]), safi, mode)
            })),
            70 => Self::EnhancedRouteRefresh,
            73 => Self::Fqdn { host: text(&mut reader)?, domain: text(&mut reader)? },
            75 => Self::SoftwareVersion(text(&mut reader)?),
            _ => return None,
        };
        reader.is_empty().then_some(capability)
    }

    fn encode_value(&self, out: &mut Vec<u8>) {
        match self {
            Self::Multiprotocol { afi, safi } => {
                out.extend(afi.to_be_bytes());
                out.extend([0, *safi]);
            }
            Self::RouteRefresh | Self::ExtendedMessage | Self::EnhancedRouteRefresh => {}
            Self::ExtendedNextHop(tuples) => {
                for (afi, safi, next_hop) in tuples {
                    out.extend([*afi, *safi, *next_hop].into_iter().flat_map(u16::to_be_bytes));
                }
            }
            Self::Role(role) => out.push(*role),
            Self::GracefulRestart(graceful) => {
                let flags = u16::from(graceful.restarting) << 15 | u16::from(graceful.notification) << 14;
                out.extend((flags | graceful.restart_time_s.min(0x0fff)).to_be_bytes());
                for family in &graceful.families {
                    out.extend(family.afi.to_be_bytes());
                    out.extend([family.safi, u8::from(family.forwarding) << 7]);
                }
            }
            Self::FourOctetAs(asn) => out.extend(asn.0.to_be_bytes()),
            Self::AddPath(tuples) => {
                for (afi, safi, mode) in tuples {
                    out.extend(afi.to_be_bytes());
                    out.extend([*safi, *mode]);
                }
            }
            Self::Fqdn { host, domain } => {
                put_text(out, host);
                put_text(out, domain);
            }
            Self::SoftwareVersion(version) => put_text(out, version),
            Self::Other { value, .. } => out.extend(value),
        }
    }

    /// Writes code, length and value. One of more than 255 bytes can't be written, and leaves `out` as it is.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([self.code(), 0]);
        self.encode_value(out);
        match (u8::try_from(out.len() - start - 2), out.get_mut(start + 1)) {
            (Ok(length), Some(field)) => *field = length,
            _ => out.truncate(start),
        }
    }
}

/// As many items of `N` bytes as there are; what is left over stays in the reader.
fn items<const N: usize, T>(reader: &mut Reader<'_>, item: impl Fn([u8; N]) -> T) -> Vec<T> {
    std::iter::from_fn(|| reader.array().map(&item)).collect()
}

/// A length and so many bytes of UTF-8.
fn text(reader: &mut Reader<'_>) -> Option<String> {
    let length = reader.u8()?;
    let bytes = reader.take(usize::from(length))?;
    std::str::from_utf8(bytes).ok().map(String::from)
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    // Too long a text makes the whole capability too long, and it isn't written.
    out.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
    out.extend(text.as_bytes());
}

/// A family in words, also one that we don't speak.
pub(super) fn family_name(afi: u16, safi: u8) -> String {
    let address = match afi {
        1 => String::from("IPv4"),
        2 => String::from("IPv6"),
        25 => String::from("L2VPN"),
        16388 => String::from("BGP-LS"),
        other => format!("AFI {other}"),
    };
    match safi {
        1 => format!("{address} unicast"),
        2 => format!("{address} multicast"),
        4 => format!("{address} labelled"),
        70 => format!("{address} EVPN"),
        128 => format!("{address} VPN"),
        133 => format!("{address} FlowSpec"),
        other => format!("{address} SAFI {other}"),
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Multiprotocol { afi, safi } => f.write_str(&family_name(*afi, *safi)),
            Self::RouteRefresh => f.write_str("route refresh"),
            Self::ExtendedNextHop(tuples) => {
                f.write_str("extended next hop:")?;
                for (at, (afi, safi, next_hop)) in tuples.iter().enumerate() {
                    let safi = u8::try_from(*safi).unwrap_or(u8::MAX);
                    let hop = if *next_hop == AFI_IPV6 { "IPv6" } else { "another" };
                    write!(f, "{} {} over {hop}", if at == 0 { "" } else { "," }, family_name(*afi, safi))?;
                }
                Ok(())
            }
            Self::ExtendedMessage => f.write_str("extended messages"),
            Self::Role(role) => {
                let name = ["provider", "route server", "route server's client", "customer", "peer"];
                match name.get(usize::from(*role)) {
                    Some(name) => write!(f, "role: {name}"),
                    None => write!(f, "role {role}"),
                }
            }
            Self::GracefulRestart(graceful) => graceful.fmt(f),
            Self::FourOctetAs(asn) => write!(f, "four-octet AS {asn}"),
            Self::AddPath(tuples) => {
                f.write_str("several paths:")?;
                for (at, (afi, safi, mode)) in tuples.iter().enumerate() {
                    let mode = match mode {
                        1 => "receives",
                        2 => "sends",
                        3 => "receives and sends",
                        _ => "in an unknown way",
                    };
                    write!(f, "{} {} {mode}", if at == 0 { "" } else { "," }, family_name(*afi, *safi))?;
                }
                Ok(())
            }
            Self::EnhancedRouteRefresh => f.write_str("enhanced route refresh"),
            Self::Fqdn { host, domain } if domain.is_empty() => write!(f, "name {host:?}"),
            Self::Fqdn { host, domain } => write!(f, "name {:?}", format!("{host}.{domain}")),
            Self::SoftwareVersion(version) => write!(f, "software {version:?}"),
            Self::Other { code, value } => {
                match code {
                    3 => f.write_str("outbound filters")?,
                    71 => f.write_str("long-lived graceful restart")?,
                    128 => f.write_str("route refresh of old Cisco")?,
                    _ => write!(f, "capability {code}")?,
                }
                if value.is_empty() { Ok(()) } else { write!(f, ": {}", super::describe::Hex(value)) }
            }
        }
    }
}

impl fmt::Display for GracefulRestart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "graceful restart within {} s", self.restart_time_s)?;
        if self.restarting {
            f.write_str(", has restarted")?;
        }
        if self.notification {
            f.write_str(", NOTIFICATION included")?;
        }
        for (at, GracefulFamily { afi, safi, forwarding }) in self.families.iter().enumerate() {
            let kept = if *forwarding { " kept" } else { "" };
            write!(f, "{} {}{kept}", if at == 0 { ":" } else { "," }, family_name(*afi, *safi))?;
        }
        Ok(())
    }
}
