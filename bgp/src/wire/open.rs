//! OPEN: who speaks, and what it can do (RFC 4271 section 4.2, RFC 5492, RFC 9072).

use super::capability::{Capability, GracefulRestart};
use super::error::OpenError;
use super::header::{self, HEADER_LEN, MAX_LEN, MessageType};
use super::reader::Reader;
use crate::types::{Asn, Families, Family, RouterId};

const VERSION: u8 = 4;
/// Type of the optional parameter that holds capabilities.
const PARAMETER_CAPABILITIES: u8 = 2;
/// Length and type that mean the extended form (RFC 9072 section 2).
const EXTENDED: u8 = 255;

/// An OPEN message. What is here was checked: a number for an AS, an identifier, a hold time that may be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Open {
    /// The speaker's AS: of four octets, if it has said so.
    pub asn: Asn,
    /// The hold time that it offers, in seconds: 0, or 3 and more.
    pub hold_time_s: u16,
    /// Its identifier.
    pub router_id: RouterId,
    /// Its capabilities as they came, repeated and unknown ones too.
    pub capabilities: Vec<Capability>,
}

impl Open {
    /// The families it speaks. One that says nothing speaks IPv4 (RFC 4760 section 8).
    pub fn families(&self) -> Families {
        let mut said = false;
        let mut families = Families::NONE;
        for capability in &self.capabilities {
            if let Capability::Multiprotocol { afi, safi } = capability {
                said = true;
                families = Family::from_afi_safi(*afi, *safi).map_or(families, |family| families.with(family));
            }
        }
        if said { families } else { Families { ipv4: true, ipv6: false } }
    }

    /// Whether it speaks four-octet AS numbers.
    pub fn four_octet_as(&self) -> bool {
        self.capabilities.iter().any(|capability| matches!(capability, Capability::FourOctetAs(_)))
    }

    /// Its graceful restart: of several, the last (RFC 4724 section 3).
    pub fn graceful_restart(&self) -> Option<&GracefulRestart> {
        self.capabilities.iter().rev().find_map(|capability| match capability {
            Capability::GracefulRestart(graceful) => Some(graceful),
            _ => None,
        })
    }

    /// Whether it answers ROUTE-REFRESH.
    pub fn route_refresh(&self) -> bool {
        self.capabilities.contains(&Capability::RouteRefresh)
    }

    /// Whether it frames its answer to ROUTE-REFRESH, and takes ours framed.
    pub fn enhanced_route_refresh(&self) -> bool {
        self.capabilities.contains(&Capability::EnhancedRouteRefresh)
    }

    /// Whether it takes long messages.
    pub fn extended_message(&self) -> bool {
        self.capabilities.contains(&Capability::ExtendedMessage)
    }

    /// Whether it takes IPv4 prefixes with IPv6 next hops (RFC 8950).
    pub fn ipv4_over_ipv6(&self) -> bool {
        self.capabilities.iter().any(Capability::has_ipv4_over_ipv6)
    }

    /// Takes an OPEN's body.
    ///
    /// # Errors
    /// In the order of RFC 4271 section 6.2: version, parameters, AS, hold time, identifier. A capability that can't be
    /// read is ignored ([`Capability::Other`]), but for four-octet AS numbers and families: a guess there would misread
    /// all that follows.
    pub fn decode(body: &[u8]) -> Result<Self, OpenError> {
        let mut reader = Reader::new(body);
        let short = OpenError::Malformed("OPEN: shorter than its fixed part");
        let version = reader.u8().ok_or(short)?;
        if version != VERSION {
            return Err(OpenError::Version(version));
        }
        let (two_octets, hold_time_s) = reader.u16().zip(reader.u16()).ok_or(short)?;
        let router_id = reader.array::<4>().ok_or(short)?;
        let capabilities = parameters(&mut reader)?;
        let asn = asn(two_octets, &capabilities)?;
        if matches!(hold_time_s, 1 | 2) {
            return Err(OpenError::HoldTime(hold_time_s));
        }
        let router_id = RouterId::new(router_id.into()).ok_or(OpenError::Identifier)?;
        Ok(Self { asn, hold_time_s, router_id, capabilities })
    }

    /// Writes the message: capabilities in one parameter, in the extended form only if they need it (RFC 9072 section
    /// 2). One that is longer than 255 bytes can't be written, and those that would make the message longer than 4,096
    /// aren't: no configuration comes near.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = header::begin(out, MessageType::Open);
        out.push(VERSION);
        out.extend(self.asn.two_octets().to_be_bytes());
        out.extend(self.hold_time_s.to_be_bytes());
        out.extend(self.router_id.get().octets());
        let mut capabilities = Vec::new();
        for capability in &self.capabilities {
            let before = capabilities.len();
            capability.encode(&mut capabilities);
            // Fixed part, and the extended form's six bytes.
            if capabilities.len() > MAX_LEN - HEADER_LEN - 10 - 6 {
                capabilities.truncate(before);
            }
        }
        let length = capabilities.len();
        match u8::try_from(length) {
            Ok(0) => out.push(0),
            Ok(length @ 1..=252) => out.extend([length + 2, PARAMETER_CAPABILITIES, length]),
            _ => {
                let two = |length: usize| u16::try_from(length).expect("below 4,096").to_be_bytes();
                out.extend([EXTENDED, EXTENDED]);
                out.extend(two(length + 3));
                out.push(PARAMETER_CAPABILITIES);
                out.extend(two(length));
            }
        }
        out.extend(capabilities);
        header::finish(out, start);
    }
}

/// The optional parameters, in the plain or the extended form.
fn parameters(reader: &mut Reader<'_>) -> Result<Vec<Capability>, OpenError> {
    let malformed = OpenError::Malformed("optional parameters");
    let length = reader.u8().ok_or(malformed)?;
    let mut peek = *reader;
    // RFC 9072 section 2: the extended form is told by the first parameter's type; the length before it should be 255,
    // and is ignored but for 0.
    let extended = length != 0 && peek.u8() == Some(EXTENDED);
    let length = if extended {
        *reader = peek;
        usize::from(reader.u16().ok_or(malformed)?)
    } else {
        usize::from(length)
    };
    if reader.len() != length {
        return Err(malformed);
    }
    let mut capabilities = Vec::new();
    while !reader.is_empty() {
        let kind = reader.u8().ok_or(malformed)?;
        let length = if extended { reader.u16() } else { reader.u8().map(u16::from) };
        let value = length.and_then(|length| reader.take(usize::from(length))).ok_or(malformed)?;
        if kind != PARAMETER_CAPABILITIES {
            return Err(OpenError::Parameter(kind));
        }
        read_capabilities(value, &mut capabilities)?;
    }
    Ok(capabilities)
}

/// The capabilities of one parameter.
fn read_capabilities(value: &[u8], capabilities: &mut Vec<Capability>) -> Result<(), OpenError> {
    let malformed = OpenError::Malformed("capabilities");
    let mut reader = Reader::new(value);
    while !reader.is_empty() {
        let (code, length) = reader.u8().zip(reader.u8()).ok_or(malformed)?;
        let value = reader.take(usize::from(length)).ok_or(malformed)?;
        let capability = Capability::decode(code, value);
        match (code, &capability) {
            (1, Capability::Other { .. }) => return Err(OpenError::Malformed("capability of a family")),
            (65, Capability::Other { .. }) => return Err(OpenError::Malformed("capability of four-octet AS numbers")),
            _ => capabilities.push(capability),
        }
    }
    Ok(())
}

/// The AS of the speaker: the capability's number, which the two octets mustn't contradict (RFC 6793 section 4.2.3).
fn asn(two_octets: u16, capabilities: &[Capability]) -> Result<Asn, OpenError> {
    let mut numbers = capabilities.iter().filter_map(|capability| match capability {
        Capability::FourOctetAs(asn) => Some(*asn),
        _ => None,
    });
    let Some(asn) = numbers.next() else {
        let wrong = OpenError::Asn { two_octets, capability: None };
        return if two_octets == 0 { Err(wrong) } else { Ok(Asn(u32::from(two_octets))) };
    };
    let agree = two_octets == asn.two_octets() || two_octets == Asn::TRANS.two_octets();
    if asn.0 == 0 || !agree || numbers.any(|other| other != asn) {
        return Err(OpenError::Asn { two_octets, capability: Some(asn.0) });
    }
    Ok(asn)
}
