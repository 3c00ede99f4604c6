//! Just enough of BGP and BFD to say what was seen. Independent of the agent's own codec on purpose: what is put to the
//! test must not judge itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What somebody said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// A connection is opened.
    Syn,
    /// OPEN; whether it has graceful restart's R bit, if it has the capability at all.
    Open {
        /// The R bit of capability 64.
        restarting: Option<bool>,
    },
    /// UPDATE.
    Update(Update),
    /// NOTIFICATION.
    Notification {
        /// RFC 4271 section 4.5.
        code: u8,
        /// Of that code.
        subcode: u8,
    },
    /// KEEPALIVE.
    Keepalive,
    /// ROUTE-REFRESH.
    Refresh,
    /// The sender closes the connection.
    Fin,
    /// The sender breaks the connection off.
    Reset,
    /// A BFD packet.
    Bfd {
        /// 0 AdminDown, 1 Down, 2 Init, 3 Up.
        state: u8,
        /// RFC 5880 section 4.1.
        diagnostic: u8,
    },
}

/// What an UPDATE says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Update {
    /// Prefixes announced: address and length.
    pub announced: Vec<(IpAddr, u8)>,
    /// Prefixes withdrawn.
    pub withdrawn: Vec<(IpAddr, u8)>,
    /// End-of-RIB of some family.
    pub end_of_rib: bool,
    /// It carries GRACEFUL_SHUTDOWN (RFC 8326).
    pub shutdown: bool,
}

/// A header's size.
const HEADER: usize = 19;
/// No more prefixes of one message than this are kept.
const PREFIXES_MAX: usize = 8192;

/// Takes one message off the front of a stream; `None`: there is no whole one. What isn't BGP is thrown away up to the
/// next marker, since a watcher may begin in the middle.
pub fn take(stream: &mut Vec<u8>) -> Option<Said> {
    loop {
        let marker = stream.windows(16).position(|w| w.iter().all(|b| *b == 0xff));
        let Some(at) = marker else {
            // A marker may be half there.
            let keep = stream.len().min(15);
            stream.drain(..stream.len() - keep);
            return None;
        };
        stream.drain(..at);
        let length = usize::from(u16::from_be_bytes(*stream.get(16..)?.first_chunk()?));
        if length < HEADER {
            stream.drain(..1);
            continue;
        }
        if stream.len() < length {
            return None;
        }
        let message: Vec<u8> = stream.drain(..length).collect();
        if let Some(said) = message.get(18..).and_then(<[u8]>::split_first).and_then(|(kind, body)| read(*kind, body)) {
            return Some(said);
        }
    }
}

fn read(kind: u8, body: &[u8]) -> Option<Said> {
    match kind {
        1 => Some(Said::Open { restarting: restarting(body.get(10..)?) }),
        2 => update(body).map(Said::Update),
        3 => Some(Said::Notification { code: *body.first()?, subcode: *body.get(1)? }),
        4 => Some(Said::Keepalive),
        5 => Some(Said::Refresh),
        _ => None,
    }
}

/// Capability 64's R bit, out of the optional parameters (RFC 5492 section 4; RFC 9072's long form is not read).
fn restarting(mut parameters: &[u8]) -> Option<bool> {
    while let [kind, length, rest @ ..] = parameters {
        let (mut value, after) = rest.split_at_checked(usize::from(*length))?;
        if *kind == 2 {
            while let [code, size, tail @ ..] = value {
                let (capability, next) = tail.split_at_checked(usize::from(*size))?;
                if *code == 64 {
                    return Some(capability.first()? & 0x80 != 0);
                }
                value = next;
            }
        }
        parameters = after;
    }
    None
}

/// An UPDATE's body (RFC 4271 section 4.3, RFC 4760 sections 3 and 4).
fn update(body: &[u8]) -> Option<Update> {
    let mut u = Update::default();
    let (withdrawn, rest) = block(body)?;
    let (attributes, announced) = block(rest)?;
    prefixes(withdrawn, false, &mut u.withdrawn);
    prefixes(announced, false, &mut u.announced);
    u.end_of_rib = withdrawn.is_empty() && attributes.is_empty() && announced.is_empty();
    let mut left = attributes;
    while let [flags, kind, tail @ ..] = left {
        let (length, tail) = if flags & 0x10 != 0 {
            let (l, t) = tail.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*l)), t)
        } else {
            let (l, t) = tail.split_first()?;
            (usize::from(*l), t)
        };
        let (value, next) = tail.split_at_checked(length)?;
        match kind {
            8 => u.shutdown |= value.chunks_exact(4).any(|c| c == [0xff, 0xff, 0, 0]),
            14 => {
                let hop = usize::from(*value.get(3)?);
                prefixes(value.get(4 + hop + 1..)?, value.get(1) == Some(&2), &mut u.announced);
            }
            15 => {
                let list = value.get(3..)?;
                u.end_of_rib |= list.is_empty();
                prefixes(list, value.get(1) == Some(&2), &mut u.withdrawn);
            }
            _ => {}
        }
        left = next;
    }
    Some(u)
}

/// A part with its length in two octets before it, and what follows.
fn block(b: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = b.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

fn prefixes(mut b: &[u8], v6: bool, to: &mut Vec<(IpAddr, u8)>) {
    while let [length, rest @ ..] = b {
        let size = usize::from(length.div_ceil(8));
        let most = if v6 { 16 } else { 4 };
        let Some((bits, next)) = rest.split_at_checked(size).filter(|_| size <= most) else { return };
        let mut whole = [0_u8; 16];
        whole[..size].copy_from_slice(bits);
        let ip: IpAddr = if v6 {
            Ipv6Addr::from(whole).into()
        } else {
            Ipv4Addr::new(whole[0], whole[1], whole[2], whole[3]).into()
        };
        if to.len() < PREFIXES_MAX {
            to.push((ip, *length));
        }
        b = next;
    }
}

/// A BFD control packet (RFC 5880 section 4.1).
#[must_use]
pub fn bfd(payload: &[u8]) -> Option<Said> {
    let &[first, second, ..] = payload else { return None };
    (first >> 5 == 1 && payload.len() >= 24).then_some(Said::Bfd { state: second >> 6, diagnostic: first & 0x1f })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut m = vec![0xff; 16];
        m.extend(u16::try_from(HEADER + body.len()).expect("short").to_be_bytes());
        m.push(kind);
        m.extend(body);
        m
    }

    #[test]
    fn messages_come_out_whole_whatever_the_segments_and_wherever_one_begins() {
        let mut stream = vec![1, 2, 3];
        let all = [message(4, &[]), message(3, &[6, 2]), message(2, &[0, 0, 0, 0])].concat();
        let mut said = Vec::new();
        for byte in all {
            stream.push(byte);
            said.extend(take(&mut stream));
        }
        let end = Update { end_of_rib: true, ..Update::default() };
        assert_eq!(said, [Said::Keepalive, Said::Notification { code: 6, subcode: 2 }, Said::Update(end)]);
    }

    #[test]
    fn both_families_are_read_announced_and_withdrawn() {
        let vip: IpAddr = Ipv4Addr::new(10, 99, 0, 1).into();
        // Withdrawn 10.99.0.1/32; then the same announced with a community.
        let gone = update(&[0, 5, 32, 10, 99, 0, 1, 0, 0]).expect("well formed");
        assert_eq!(gone.withdrawn, [(vip, 32)]);
        assert!(!gone.end_of_rib);
        let come = update(&[0, 0, 0, 7, 0xc0, 8, 4, 0xff, 0xff, 0, 0, 32, 10, 99, 0, 1]).expect("well formed");
        assert_eq!((come.announced.as_slice(), come.shutdown), (&[(vip, 32)][..], true));
        let mut v6 = vec![0, 0, 0, 23, 0x80, 15, 20, 0, 2, 1, 128];
        v6.extend("2001:db8:99::1".parse::<Ipv6Addr>().expect("an address").octets());
        let gone = update(&v6).expect("well formed");
        assert_eq!(gone.withdrawn.len(), 1);
        let end = update(&[0, 0, 0, 6, 0x80, 15, 3, 0, 2, 1]).expect("well formed");
        assert!(end.end_of_rib && end.withdrawn.is_empty());
        for n in 0..v6.len() {
            let _total = update(&v6[..n]);
        }
    }

    #[test]
    fn graceful_restarts_r_bit_is_found_among_capabilities() {
        let open = |flag: u8| {
            let mut body = vec![4, 0, 1, 0, 9, 1, 1, 1, 1, 10, 2, 8, 2, 0, 64, 4, flag, 15, 0, 1];
            body[9] = 10;
            take(&mut message(1, &body))
        };
        assert_eq!(open(0x80), Some(Said::Open { restarting: Some(true) }));
        assert_eq!(open(0x00), Some(Said::Open { restarting: Some(false) }));
        assert_eq!(take(&mut message(1, &[4, 0, 1, 0, 9, 1, 1, 1, 1, 0])), Some(Said::Open { restarting: None }));
    }

    #[test]
    fn a_bfd_packet_tells_its_state() {
        let mut p = [0_u8; 24];
        (p[0], p[1]) = (0x21, 0xc0);
        assert_eq!(bfd(&p), Some(Said::Bfd { state: 3, diagnostic: 1 }));
        assert_eq!(bfd(&p[..23]), None);
    }
}
