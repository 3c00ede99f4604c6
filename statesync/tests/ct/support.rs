//! Flows, and a reader of attributes that shares nothing with the crate's own.

use holdfast_statesync::ct::{Entry, Extras, Replica, Status, Tcp, TcpFlags, TcpSide, TcpState, Tuple, Zone};
use std::net::SocketAddr;
use std::path::PathBuf;

pub(crate) fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub(crate) fn tcp(source: &str, destination: &str) -> Tuple {
    Tuple::tcp(socket(source), socket(destination)).unwrap()
}

pub(crate) fn udp(source: &str, destination: &str) -> Tuple {
    Tuple::udp(socket(source), socket(destination)).unwrap()
}

/// Client 10.9.1.2 to VIP 10.9.9.9:80, which is 10.9.2.2:8080 and sees 10.9.2.1:50000: established, both scale.
pub(crate) fn translated() -> Replica {
    let side = |window_scale| TcpSide { window_scale, flags: TcpFlags::WINDOW_SCALE.with(TcpFlags::SACK_PERM) };
    Replica {
        original: tcp("10.9.1.2:40000", "10.9.9.9:80"),
        reply: tcp("10.9.2.2:8080", "10.9.2.1:50000"),
        zone: Zone::default(),
        status: Status(0x1be),
        timeout_s: 600,
        mark: None,
        tcp: Some(Tcp { state: TcpState::Established, sides: Some([side(7), side(9)]) }),
        sequence_adjustment: [None; 2],
        syn_proxy: None,
    }
}

/// What a dump says of a flow of which nothing but its tuples is known.
pub(crate) fn bare(original: Tuple, reply: Tuple) -> Entry {
    Entry {
        original,
        reply,
        zone: Zone::default(),
        status: None,
        timeout_s: None,
        mark: None,
        id: None,
        tcp: None,
        sequence_adjustment: [None; 2],
        syn_proxy: None,
        extras: Extras::default(),
        event_ns: None,
    }
}

/// Type with its flags, value.
pub(crate) type Attribute = (u16, Vec<u8>);

/// The attributes of a message or nest.
pub(crate) fn attributes(mut bytes: &[u8]) -> Vec<Attribute> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let length = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        all.push((u16::from_ne_bytes([bytes[2], bytes[3]]), bytes[4..length].to_vec()));
        bytes = &bytes[length.next_multiple_of(4)..];
    }
    all
}

/// What is at this path of types; `None`: not there.
pub(crate) fn at(attributes_of: &[u8], path: &[u16]) -> Option<Vec<u8>> {
    let (first, rest) = path.split_first()?;
    let (kind, value) = attributes(attributes_of).into_iter().find(|(kind, _)| kind & 0x3fff == *first)?;
    if rest.is_empty() {
        return Some(value);
    }
    assert_eq!(kind & 0x8000, 0x8000, "nests are marked as such: {path:?}");
    at(&value, rest)
}

/// A request, taken apart.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) family: u8,
    pub(crate) body: Vec<u8>,
}

pub(crate) fn requests(mut bytes: &[u8]) -> Vec<Request> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let length = u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize;
        assert_eq!(length % 4, 0);
        all.push(Request {
            kind: u16::from_ne_bytes([bytes[4], bytes[5]]),
            flags: u16::from_ne_bytes([bytes[6], bytes[7]]),
            sequence: u32::from_ne_bytes(bytes[8..12].try_into().unwrap()),
            family: bytes[16],
            body: bytes[20..length].to_vec(),
        });
        bytes = &bytes[length..];
    }
    all
}

/// The datagrams that a kernel sent, with their names.
pub(crate) fn recorded() -> Vec<(String, Vec<u8>)> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/ct/kernel-6.18.hex");
    let text = std::fs::read_to_string(file).unwrap();
    let line = |line: &str| {
        let (name, hex) = line.split_once(' ').unwrap();
        let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
        (name.to_owned(), (0..hex.len() / 2).map(byte).collect())
    };
    text.lines().filter(|text| !text.starts_with('#')).map(line).collect()
}
