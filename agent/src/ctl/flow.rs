//! A flow as people name it: `tcp 198.51.100.7:40000 192.0.2.10:80`, or a line of `conntrack -L`.

use crate::run::sync::query;
use holdfast_statesync::ct::{Layer4, Tuple};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Longest text that is looked at, bytes: a line of `conntrack -L` has about 250.
const TEXT_MAX: usize = 1024;

/// A flow's name: its original direction, as the client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowName {
    /// The client, and the VIP.
    pub tuple: Tuple,
    /// The zone of its original direction; 0 where no zones are used.
    pub zone: u16,
}

/// Why a text names no flow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFlow {
    /// Much too long.
    #[error("that is longer than {TEXT_MAX} bytes; {EXAMPLE}")]
    Long,
    /// It begins with something else than a protocol.
    #[error("`{0}` is no protocol whose flows are looked up: tcp or udp; {EXAMPLE}")]
    Protocol(String),
    /// Not an address with a port.
    #[error("`{word}` is no {whose} address with a port; {EXAMPLE}")]
    Address {
        /// `client's` or `VIP's`.
        whose: &'static str,
        /// What stands there.
        word: String,
    },
    /// Something isn't there.
    #[error("the {0} is missing; {EXAMPLE}")]
    Missing(&'static str),
    /// The client has another family than the VIP.
    #[error("{0} and {1} are of different address families; {EXAMPLE}")]
    Families(IpAddr, IpAddr),
    /// A zone that is none.
    #[error("`{0}` is no zone: 0 to 65535")]
    Zone(String),
    /// More than a flow.
    #[error("`{0}` stands behind the flow; {EXAMPLE}")]
    Trailing(String),
}

const EXAMPLE: &str = "write `tcp 198.51.100.7:40000 192.0.2.10:80` (client, then VIP; IPv6 as `[2001:db8::7]:40000`), \
                       or a line of `conntrack -L`";

/// A word of somebody else's, short enough to be repeated.
fn quoted(word: &str) -> String {
    word.chars().take(64).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl FlowName {
    /// Whether a text is meant as a flow, and not as the name of a VIP: it has more than one word.
    pub fn is_meant(text: &str) -> bool {
        text.split_whitespace().nth(1).is_some()
    }
}

impl FromStr for FlowName {
    type Err = BadFlow;

    fn from_str(text: &str) -> Result<Self, BadFlow> {
        if text.len() > TEXT_MAX {
            return Err(BadFlow::Long);
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        if words.iter().any(|word| word.starts_with("src=")) { listed(&words) } else { plain(&words) }
    }
}

/// `tcp CLIENT VIP`, with an arrow between the two and a zone behind if you like.
fn plain(words: &[&str]) -> Result<FlowName, BadFlow> {
    let mut words = words.iter().copied().filter(|word| !matches!(*word, ">" | "->"));
    let protocol = protocol(words.next().ok_or(BadFlow::Missing("protocol"))?)?;
    let mut address = |whose, what| {
        let word = words.next().ok_or(BadFlow::Missing(what))?;
        word.parse::<SocketAddr>().map_err(|_| BadFlow::Address { whose, word: quoted(word) })
    };
    let source = address("client's", "client's address")?;
    let destination = address("VIP's", "VIP's address")?;
    let zone = match words.next() {
        None => 0,
        Some(word) => zone(word).unwrap_or_else(|| Err(BadFlow::Trailing(quoted(word))))?,
    };
    if let Some(word) = words.next() {
        return Err(BadFlow::Trailing(quoted(word)));
    }
    named(protocol, source, destination, zone)
}

/// A line of `conntrack -L`, `-E` or `/proc/net/nf_conntrack`. What comes first of each key is the original direction.
fn listed(words: &[&str]) -> Result<FlowName, BadFlow> {
    let known = words.iter().find_map(|word| protocol(word).ok());
    let first = words.first().copied().unwrap_or_default();
    let protocol = known.ok_or_else(|| BadFlow::Protocol(quoted(first)))?;
    let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
    let end = |whose, what, address: &str, port: &str| {
        let address = value(address).ok_or(BadFlow::Missing(what))?;
        let port = value(port).ok_or(BadFlow::Missing(what))?;
        let bad = || BadFlow::Address { whose, word: quoted(&format!("{address} {port}")) };
        let ip: IpAddr = address.parse().map_err(|_| bad())?;
        Ok(SocketAddr::new(ip, port.parse().map_err(|_| bad())?))
    };
    let source = end("client's", "client's address (src= and sport=)", "src=", "sport=")?;
    let destination = end("VIP's", "VIP's address (dst= and dport=)", "dst=", "dport=")?;
    let zone = words.iter().find_map(|word| zone(word)).unwrap_or(Ok(0))?;
    named(protocol, source, destination, zone)
}

#[derive(Clone, Copy)]
enum Protocol {
    Tcp,
    Udp,
}

fn protocol(word: &str) -> Result<Protocol, BadFlow> {
    if word.eq_ignore_ascii_case("tcp") {
        Ok(Protocol::Tcp)
    } else if word.eq_ignore_ascii_case("udp") {
        Ok(Protocol::Udp)
    } else {
        Err(BadFlow::Protocol(quoted(word)))
    }
}

/// `zone=7`, as `conntrack` writes it for both directions, or `zone-orig=7`; `None`: another word.
fn zone(word: &str) -> Option<Result<u16, BadFlow>> {
    let number = word.strip_prefix("zone=").or_else(|| word.strip_prefix("zone-orig="))?;
    Some(number.parse().map_err(|_| BadFlow::Zone(quoted(number))))
}

fn named(protocol: Protocol, source: SocketAddr, destination: SocketAddr, zone: u16) -> Result<FlowName, BadFlow> {
    // An IPv4 address in IPv6's form is IPv4 in the kernel's table.
    let (source, destination) = (canonical(source), canonical(destination));
    let tuple = match protocol {
        Protocol::Tcp => Tuple::tcp(source, destination),
        Protocol::Udp => Tuple::udp(source, destination),
    };
    let tuple = tuple.ok_or_else(|| BadFlow::Families(source.ip(), destination.ip()))?;
    Ok(FlowName { tuple, zone })
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl From<FlowName> for query::FlowName {
    fn from(name: FlowName) -> Self {
        let tuple = &name.tuple;
        let (source, destination) = (tuple.source(), tuple.destination());
        Self { protocol: tuple.layer4.protocol(), source, destination, zone: name.zone }
    }
}

/// `tcp` or `udp`; `None`: neither.
fn word(tuple: &Tuple) -> Option<&'static str> {
    match tuple.layer4 {
        Layer4::Tcp { .. } => Some("tcp"),
        Layer4::Udp { .. } => Some("udp"),
        Layer4::Icmp { .. } | Layer4::Icmp6 { .. } => None,
    }
}

impl fmt::Display for FlowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = word(&self.tuple).unwrap_or("icmp");
        write!(f, "{protocol} {} {}", self.tuple.source(), self.tuple.destination())?;
        if self.zone != 0 {
            write!(f, " zone={}", self.zone)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> FlowName {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_flow_is_protocol_client_and_vip() {
        let name = parsed("tcp 198.51.100.7:40000 192.0.2.10:80");
        assert_eq!(name.tuple.source().to_string(), "198.51.100.7:40000");
        assert_eq!(name.tuple.destination().to_string(), "192.0.2.10:80");
        assert_eq!((name.zone, name.to_string().as_str()), (0, "tcp 198.51.100.7:40000 192.0.2.10:80"));
        // As it is printed elsewhere, too.
        for text in [
            "TCP 198.51.100.7:40000 -> 192.0.2.10:80",
            " tcp  198.51.100.7:40000 > 192.0.2.10:80 ",
            "tcp [::ffff:198.51.100.7]:40000 192.0.2.10:80 zone=0",
            &format!("{}", name.tuple),
        ] {
            assert_eq!(parsed(text), name, "{text}");
        }
        let six = parsed("udp [2001:db8::7]:5000 [2001:db8::10]:53 zone=9");
        assert_eq!((six.zone, six.to_string().as_str()), (9, "udp [2001:db8::7]:5000 [2001:db8::10]:53 zone=9"));
    }

    #[test]
    fn a_line_of_conntrack_names_its_flow_by_the_original_direction() {
        let name = parsed("tcp 198.51.100.7:40000 192.0.2.10:80");
        let listed = "src=198.51.100.7 dst=192.0.2.10 sport=40000 dport=80 src=10.2.0.21 dst=10.2.0.11 sport=8080 \
                      dport=40000 [ASSURED] mark=0 use=1";
        for before in ["tcp 6 431999 ESTABLISHED", "ipv4 2 tcp 6 431999 ESTABLISHED", "[UPDATE] tcp 6 60 SYN_RECV"] {
            assert_eq!(parsed(&format!("{before} {listed}")), name, "{before}");
        }
        assert_eq!(parsed(&format!("tcp 6 1 ESTABLISHED {listed} zone=4")).zone, 4);
        let icmp = "icmp 1 29 src=198.51.100.7 dst=192.0.2.10 type=8 code=0 id=4";
        assert_eq!(icmp.parse::<FlowName>(), Err(BadFlow::Protocol("icmp".to_owned())));
    }

    #[test]
    fn what_names_no_flow_is_told_with_what_is_wrong_and_what_to_write() {
        for (text, part) in [
            ("", "the protocol is missing"),
            ("sctp 198.51.100.7:1 192.0.2.10:2", "`sctp` is no protocol"),
            ("tcp", "the client's address is missing"),
            ("tcp 198.51.100.7:1", "the VIP's address is missing"),
            ("tcp 198.51.100.7 192.0.2.10:80", "`198.51.100.7` is no client's address with a port"),
            ("tcp 198.51.100.7:1 web:80", "`web:80` is no VIP's address with a port"),
            ("tcp 198.51.100.7:1 192.0.2.10:70000", "`192.0.2.10:70000` is no VIP's"),
            ("tcp 198.51.100.7:1 [2001:db8::10]:80", "198.51.100.7 and 2001:db8::10 are of different"),
            ("tcp 198.51.100.7:1 192.0.2.10:80 now", "`now` stands behind the flow"),
            ("tcp 198.51.100.7:1 192.0.2.10:80 zone=1 2", "`2` stands behind the flow"),
            ("tcp src=198.51.100.7 dst=192.0.2.10 sport=1", "(dst= and dport=) is missing"),
            ("tcp src=198.51.100.7 dst=192.0.2.10 sport=x dport=2", "`198.51.100.7 x` is no client's"),
        ] {
            let error = text.parse::<FlowName>().expect_err(text).to_string();
            assert!(error.contains(part) && error.contains("write `tcp 198.51.100.7:40000"), "{text}: {error}");
        }
        let zone = "tcp 198.51.100.7:1 192.0.2.10:80 zone=70000".parse::<FlowName>();
        assert_eq!(zone, Err(BadFlow::Zone("70000".to_owned())));
        let escape = "tcp \u{1b}[31m 192.0.2.10:80".parse::<FlowName>().expect_err("no address").to_string();
        assert!(!escape.contains('\u{1b}'), "{escape}");
        assert_eq!("tcp 1".repeat(300).parse::<FlowName>(), Err(BadFlow::Long));
    }

    #[test]
    fn one_word_is_the_name_of_a_vip() {
        assert!(!FlowName::is_meant("web") && !FlowName::is_meant(" tcp ") && !FlowName::is_meant(""));
        assert!(FlowName::is_meant("tcp 198.51.100.7:1"));
    }

    fn address() -> impl Strategy<Value = (IpAddr, IpAddr)> {
        prop_oneof![
            any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
            any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
        ]
    }

    proptest! {
        #[test]
        fn any_text_is_a_flow_or_an_error(text in "\\PC*") {
            let _ = text.parse::<FlowName>();
        }

        #[test]
        fn any_words_of_flows_are_a_flow_or_an_error(
            words in prop::collection::vec(
                prop_oneof![
                    Just("tcp".to_owned()), Just("udp".to_owned()), Just(">".to_owned()), Just("src=".to_owned()),
                    Just("dst=::1".to_owned()), Just("sport=1".to_owned()), Just("dport=65536".to_owned()),
                    Just("zone=".to_owned()), Just("[::1]:5".to_owned()), "[0-9.:\\[\\]=a-f]{0,20}",
                ],
                0..12,
            ),
        ) {
            let _ = words.join(" ").parse::<FlowName>();
        }

        #[test]
        fn what_is_printed_reads_back(
            (client, vip) in address(), ports in any::<(u16, u16)>(), tcp in any::<bool>(), zone in any::<u16>(),
        ) {
            let (client, vip) = (client.to_canonical(), vip.to_canonical());
            let (source, destination) = (SocketAddr::new(client, ports.0), SocketAddr::new(vip, ports.1));
            let tuple = if tcp { Tuple::tcp(source, destination) } else { Tuple::udp(source, destination) };
            prop_assume!(tuple.is_some());
            let name = FlowName { tuple: tuple.expect("assumed"), zone };
            prop_assert_eq!(name.to_string().parse::<FlowName>(), Ok(name));
        }
    }
}
