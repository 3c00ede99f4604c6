//! `[[check]]`: what is asked, how often, and what counts as an answer.

use super::{CheckId, InterfaceName, Name, VipId, milliseconds};
use serde::{Serialize, Serializer};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// A readiness check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Unique among checks.
    pub name: Name,
    /// What it does.
    pub probe: Probe,
    /// From start to start of two probes.
    #[serde(rename = "interval_ms", serialize_with = "milliseconds")]
    pub interval: Duration,
    /// Used while one result disagrees with the state.
    #[serde(rename = "fast_interval_ms", serialize_with = "milliseconds")]
    pub fast_interval: Duration,
    /// Without an answer until then it counts as failed; never longer than `interval`.
    #[serde(rename = "timeout_ms", serialize_with = "milliseconds")]
    pub timeout: Duration,
    /// A probe starts up to so much earlier than `interval` after the last one, while the results agree with the state:
    /// many checks and nodes don't ask in step. Never later, and never before the last one's `timeout`, so that no bound
    /// of detection moves. At most half of `interval`.
    #[serde(rename = "jitter_ms", serialize_with = "milliseconds")]
    pub jitter: Duration,
    /// Failures in a row until it counts as failed, ≥ 1.
    pub fall: u8,
    /// Successes in a row until it counts as passed, ≥ 1.
    pub rise: u8,
    /// Depends on something every node shares: may warn, never withdraws. Always so for [`Probe::Canary`].
    pub shared: bool,
}

/// What a check does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// One request; success is a complete response with a status in `expect` and the text in its body.
    Http(Http),
    /// The connection is accepted, and what is sent gets the answer that is expected.
    Tcp(Stream),
    /// As `Tcp`, within TLS.
    Tls(Stream),
    /// One datagram is answered.
    Udp(Datagram),
    /// As `Tcp`, on a socket of this host.
    Unix(Stream),
    /// Exit status 0. Absolute path, no shell; run by the keeper.
    Exec {
        /// The program and its arguments.
        argv: Vec<String>,
    },
    /// A file is there, or isn't.
    File(File),
    /// An address is usable on this host.
    Address {
        /// Which.
        ip: IpAddr,
        /// On this interface; `None`: on any.
        interface: Option<InterfaceName>,
    },
    /// A router or another host of the segment answers.
    Gateway {
        /// Who is asked.
        target: IpAddr,
        /// Out of this interface; `None`: as the host routes (Icmp only).
        interface: Option<InterfaceName>,
        /// How it is asked.
        method: GatewayMethod,
    },
    /// Somebody else has a VIP, alone, and serves through it: asked over the wire by a node that doesn't hold it.
    Canary(Canary),
    /// Other checks together; nothing is asked for it.
    Group(Group),
}

impl Probe {
    /// A plain connection.
    pub fn tcp(address: SocketAddr) -> Self {
        Self::Tcp(Stream::new(Endpoint::Ip(address)))
    }

    /// A GET of `path`, passed by any status of 200 to 399.
    pub fn http(address: SocketAddr, host: &str, path: &str) -> Self {
        Self::Http(Http {
            endpoint: Endpoint::Ip(address),
            host: host.to_owned(),
            path: path.to_owned(),
            method: HttpMethod::Get,
            expect: vec![(200, 399)],
            body: None,
            tls: None,
            proxy: None,
        })
    }

    /// The address that it is about; `None`: about none.
    pub fn target(&self) -> Option<IpAddr> {
        match self {
            Self::Http(http) => http.endpoint.ip(),
            Self::Tcp(stream) | Self::Tls(stream) | Self::Unix(stream) => stream.endpoint.ip(),
            Self::Udp(datagram) => Some(datagram.address.ip()),
            Self::Gateway { target, .. } => Some(*target),
            Self::Address { ip, .. } => Some(*ip),
            Self::Canary(canary) => Some(canary.target),
            Self::Exec { .. } | Self::File(_) | Self::Group(_) => None,
        }
    }

    /// The checks that it consists of.
    pub fn members(&self) -> impl Iterator<Item = CheckId> {
        let members = match self {
            Self::Group(group) => group.members.as_slice(),
            _ => &[],
        };
        members.iter().map(|member| member.check)
    }

    /// As the configuration names it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::Tcp(_) => "tcp",
            Self::Tls(_) => "tls",
            Self::Udp(_) => "udp",
            Self::Unix(_) => "unix",
            Self::Exec { .. } => "exec",
            Self::File(_) => "file",
            Self::Address { .. } => "address",
            Self::Gateway { .. } => "gateway",
            Self::Canary(_) => "canary",
            Self::Group(_) => "group",
        }
    }
}

/// Where to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// An address and a port.
    Ip(SocketAddr),
    /// A stream socket of this host, by its absolute path.
    Unix(PathBuf),
}

impl Endpoint {
    /// `None`: a socket of this host.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Ip(address) => Some(address.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Serialize for Endpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// See [`Probe::Http`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Http {
    /// Where to connect.
    #[serde(rename = "address")]
    pub endpoint: Endpoint,
    /// The Host header.
    pub host: String,
    /// Path and query.
    pub path: String,
    /// The request's.
    pub method: HttpMethod,
    /// Ranges of statuses that pass, both ends included.
    pub expect: Vec<(u16, u16)>,
    /// Must be in the body.
    pub body: Option<Payload>,
    /// `None`: in the clear.
    pub tls: Option<Tls>,
    /// Sent before anything else.
    pub proxy: Option<ProxyVersion>,
}

/// The methods that change nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum HttpMethod {
    /// GET.
    Get,
    /// HEAD: there is no body.
    Head,
    /// OPTIONS.
    Options,
}

/// A connection, and what is said on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stream {
    /// Where to connect.
    #[serde(rename = "address")]
    pub endpoint: Endpoint,
    /// With [`Probe::Tls`], and only there.
    pub tls: Option<Tls>,
    /// Sent before anything else, in the clear.
    pub proxy: Option<ProxyVersion>,
    /// Sent first.
    pub send: Option<Payload>,
    /// Must be in what comes.
    pub expect: Option<Payload>,
}

impl Stream {
    /// Nothing is said on it.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, tls: None, proxy: None, send: None, expect: None }
    }
}

/// How TLS is spoken, and what the certificate must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tls {
    /// A name goes into the SNI extension and, like an address, must be in the certificate.
    pub server_name: String,
    /// False: any certificate will do.
    pub verify: bool,
    /// PEM file with the roots that are trusted; `None`: the system's.
    pub ca_file: Option<PathBuf>,
    /// Warn so many days before the certificate's end; 0: never.
    pub expiry_warning_days: u16,
}

/// The PROXY protocol of HAProxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProxyVersion {
    /// As text.
    V1,
    /// Binary.
    V2,
}

/// See [`Probe::Udp`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Datagram {
    /// To whom.
    pub address: SocketAddr,
    /// The question.
    pub send: Payload,
    /// Must be in the answer; `None`: any answer will do.
    pub expect: Option<Payload>,
}

/// See [`Probe::File`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct File {
    /// Absolute.
    pub path: PathBuf,
    /// Whether it must be there.
    pub present: bool,
    /// Changed no longer ago than this.
    #[serde(rename = "max_age_ms", serialize_with = "milliseconds_or_none")]
    pub max_age: Option<Duration>,
}

/// See [`Probe::Canary`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Canary {
    /// The VIP that the address is of.
    pub vip: VipId,
    /// The address.
    pub target: IpAddr,
    /// The interface that it is on.
    pub interface: InterfaceName,
    /// Who must answer: the virtual router's link address. `None`: any one host.
    pub mac: Option<[u8; 6]>,
    /// Asked through the address, once its owner has answered.
    pub through: Option<Box<Probe>>,
}

/// Checks that count together: it passes while the weights of those that pass are `at_least` so much.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Group {
    /// All of them stand before the group in [`super::Config::checks`].
    pub members: Vec<GroupMember>,
    /// 1 (any) to the sum of all weights (all).
    pub at_least: u32,
}

/// One check of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct GroupMember {
    /// Which.
    pub check: CheckId,
    /// What it adds.
    pub weight: u16,
}

/// How a gateway is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GatewayMethod {
    /// ARP request or neighbour solicitation.
    Neighbour,
    /// ICMP echo request.
    Icmp,
}

/// Bytes that are sent or looked for; at least one, at most [`Payload::MAX`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload(Vec<u8>);

impl Payload {
    /// Far more than a health check says.
    pub const MAX: usize = 1024;

    /// `None`: empty, or too long.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (1..=Self::MAX).contains(&bytes.len()).then_some(Self(bytes))
    }

    /// Two hexadecimal digits for each byte. `None`: something else, or as for [`Payload::new`].
    pub fn from_hex(text: &str) -> Option<Self> {
        let digit = |c: u8| char::from(c).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        if !text.len().is_multiple_of(2) {
            return None;
        }
        let byte = |pair: &[u8]| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        };
        Self::new(text.as_bytes().chunks(2).map(byte).collect::<Option<_>>()?)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether `bytes` has it somewhere.
    pub fn is_in(&self, bytes: &[u8]) -> bool {
        bytes.windows(self.0.len()).any(|window| window == self.0)
    }
}

/// What isn't printable is escaped.
impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_ascii().fmt(f)
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn milliseconds_or_none<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => milliseconds(duration, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_read_from_pairs_of_digits_and_found_wherever_it_is() {
        let payload = Payload::from_hex("00fF41").expect("three bytes");
        assert_eq!(payload.bytes(), [0, 255, b'A']);
        assert_eq!(payload.to_string(), "\\x00\\xffA");
        assert!(payload.is_in(&[1, 0, 255, b'A']) && payload.is_in(&[0, 255, b'A', 9]));
        assert!(!payload.is_in(&[0, 255]) && !payload.is_in(&[0, 255, b'B']) && !payload.is_in(&[]));
        for bad in ["", "0", "0g", "+1", "00 11", "é0"] {
            assert_eq!(Payload::from_hex(bad), None, "{bad:?}");
        }
        assert_eq!(Payload::new(vec![0; Payload::MAX + 1]), None);
        assert!(Payload::from_hex(&"00".repeat(Payload::MAX)).is_some());
    }

    #[test]
    fn an_endpoint_is_one_word_in_json() {
        let probe = Probe::http("[::1]:80".parse().expect("an address"), "web", "/x");
        let value = serde_json::to_value(&probe).expect("plain data");
        assert_eq!(value["http"]["address"], "[::1]:80");
        let stream = Stream::new(Endpoint::Unix("/run/a.sock".into()));
        assert_eq!(
            serde_json::to_value(Probe::Unix(stream)).expect("plain data")["unix"]["address"],
            "unix:/run/a.sock"
        );
    }
}
