//! BGP and BFD on the nodes' ports of the switch, in both directions, with the kernel's times: when a withdrawal left a
//! node is when its frame came in at the switch.

use super::message::{Said, bfd, take};
use super::net::{Net, Node};
use crate::clock::Ns;
use crate::load::Stopper;
use crate::watch::stamped::Stamped;
use anyhow::{Context, Result};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// BGP's port, and BFD's for one hop and for several.
const BGP: u16 = 179;
const BFD: [u16; 2] = [3784, 4784];
/// No more messages than this are kept; a run has thousands.
const KEPT_MAX: usize = 1_000_000;

/// Something that was said on a node's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// When.
    pub at: Ns,
    /// On whose port.
    pub node: Node,
    /// By the node; else to it, by the router.
    pub by_node: bool,
    /// What.
    pub said: Said,
    /// The frame's TTL or hop limit.
    pub ttl: u8,
    /// A TCP segment with an MD5 signature (RFC 2385).
    pub signed: bool,
    /// Over IPv6.
    pub v6: bool,
}

/// The running watcher.
#[derive(Debug)]
pub struct Wire {
    stopper: Stopper,
    log: Arc<Mutex<Vec<Seen>>>,
}

impl Wire {
    /// Watches all nodes' ports.
    ///
    /// # Errors
    /// The namespace, or the packet socket.
    pub fn start(net: &Net) -> Result<Self> {
        let nodes: Vec<Node> = net.nodes().collect();
        let (mut socket, ports) = net.ns("sw").inside(|| {
            let ports: HashMap<u32, Node> = nodes
                .iter()
                .map(|n| Ok((nix::net::if_::if_nametoindex(n.port().as_str()).context("a node's port")?, *n)))
                .collect::<Result<_>>()?;
            Ok((packet_socket()?, ports))
        })?;
        let log: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let shared = log.clone();
        let stopper = Stopper::spawn("bgp-wire", move |stop| receive(&mut socket, &ports, &shared, stop))?;
        Ok(Self { stopper, log })
    }

    /// The watching thread, to give it priority.
    #[must_use]
    pub fn thread(&self) -> i32 {
        self.stopper.thread()
    }

    /// What was seen since `from`, in order.
    #[must_use]
    pub fn since(&self, from: Ns) -> Vec<Seen> {
        let Ok(log) = self.log.lock() else { return Vec::new() };
        let start = log.partition_point(|s| s.at < from);
        log.get(start..).unwrap_or_default().to_vec()
    }

    /// Stops and returns all.
    ///
    /// # Errors
    /// The thread failed.
    pub fn finish(self) -> Result<Vec<Seen>> {
        self.stopper.finish()?;
        Ok(self.log.lock().map(|mut l| std::mem::take(&mut *l)).unwrap_or_default())
    }
}

fn packet_socket() -> Result<Stamped<Socket>> {
    const ALL: u16 = 3; // ETH_P_ALL
    let protocol = Protocol::from(i32::from(ALL.to_be()));
    let s = Socket::new(Domain::PACKET, Type::RAW.cloexec(), Some(protocol)).context("packet socket")?;
    s.attach_filter(&filter()).context("the packet socket's filter")?;
    Stamped::new(s)
}

/// BGP's and BFD's ports as source or destination, IPv4 or IPv6: the clients' traffic isn't copied here.
fn filter() -> Vec<SockFilter> {
    const LOAD_HALF: u16 = 0x28;
    const LOAD_HALF_X: u16 = 0x48;
    const X_HEADER: u16 = 0xb1;
    const EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let ports = [BGP, BFD[0], BFD[1]].map(u32::from);
    // Where IPv6 begins, and the last instruction, which takes the frame; the one before refuses it.
    const V6: usize = 12;
    const TAKE: usize = 21;
    // Code, value, where to if equal.
    let mut program: Vec<(u16, u32, Option<usize>)> =
        vec![(LOAD_HALF, 12, None), (EQUAL, 0x86dd, Some(V6)), (X_HEADER, 14, None)];
    for (load, offset) in [(LOAD_HALF_X, 14), (LOAD_HALF_X, 16), (LOAD_HALF, 54), (LOAD_HALF, 56)] {
        program.push((load, offset, None));
        program.extend(ports.map(|p| (EQUAL, p, Some(TAKE))));
        if program.len() == V6 - 1 {
            program.push((RETURN, 0, None));
        }
    }
    program.push((RETURN, 0, None));
    program.push((RETURN, 0xffff, None));
    let jump = |from: usize, to: usize| u8::try_from(to - from - 1).unwrap_or(u8::MAX);
    let instruction = |(i, &(code, k, to)): (usize, &(u16, u32, Option<usize>))| {
        SockFilter::new(code, to.map_or(0, |t| jump(i, t)), 0, k)
    };
    program.iter().enumerate().map(instruction).collect()
}

/// A direction of a connection: which node's port, by whom, both TCP ports.
type Key = (Node, bool, u16, u16);

#[derive(Default)]
struct Stream {
    next: Option<u32>,
    bytes: Vec<u8>,
}

fn receive(
    socket: &mut Stamped<Socket>,
    ports: &HashMap<u32, Node>,
    log: &Mutex<Vec<Seen>>,
    stop: &dyn Fn() -> bool,
) -> Result<()> {
    let mut streams: HashMap<Key, Stream> = HashMap::new();
    while !stop() {
        let Some(frame) = socket.receive() else { continue };
        // What the switch sends on a node's port is for the node.
        let (at, by_node) = (frame.at, !frame.outgoing);
        let Some(&node) = ports.get(&frame.ifindex) else { continue };
        let Some(packet) = Packet::of(frame.bytes) else { continue };
        // A switch that has lost a node floods what is for it to the others.
        if Node::with_address(if by_node { packet.from } else { packet.to }) != Some(node) {
            continue;
        }
        let all = understood(&mut streams, node, by_node, &packet);
        if let Ok(mut log) = log.lock() {
            // In order, also when the wall clock was set between two frames.
            let at = at.max(log.last().map_or(0, |s| s.at));
            let (ttl, signed, v6) = (packet.ttl, packet.signed(), packet.v6);
            let room = KEPT_MAX.saturating_sub(log.len());
            log.extend(all.into_iter().take(room).map(|said| Seen { at, node, by_node, said, ttl, signed, v6 }));
        }
    }
    Ok(())
}

fn understood(streams: &mut HashMap<Key, Stream>, node: Node, by_node: bool, p: &Packet<'_>) -> Vec<Said> {
    const SYN: u8 = 2;
    const RST: u8 = 4;
    const FIN: u8 = 1;
    let Some((source, rest)) = p.payload.split_first_chunk::<2>() else { return Vec::new() };
    let Some((destination, rest)) = rest.split_first_chunk::<2>() else { return Vec::new() };
    let (source, destination) = (u16::from_be_bytes(*source), u16::from_be_bytes(*destination));
    if p.protocol == Packet::UDP {
        let said = BFD.contains(&destination).then(|| p.payload.get(8..).and_then(bfd)).flatten();
        return said.into_iter().collect();
    }
    let (Some(&sequence), Some(&offset), Some(&flags)) =
        (rest.first_chunk::<4>(), p.payload.get(12), p.payload.get(13))
    else {
        return Vec::new();
    };
    let sequence = u32::from_be_bytes(sequence);
    let data = p.payload.get(usize::from(offset >> 4) * 4..).unwrap_or_default();
    let stream = streams.entry((node, by_node, source, destination)).or_default();
    let mut all = Vec::new();
    if flags & SYN != 0 {
        *stream = Stream { next: Some(sequence.wrapping_add(1)), bytes: Vec::new() };
        if destination == BGP {
            all.push(Said::Syn);
        }
        return all;
    }
    let next = *stream.next.get_or_insert(sequence);
    let ahead = sequence.wrapping_sub(next).cast_signed();
    if ahead > 0 {
        // Something was missed: what follows begins anew.
        stream.bytes.clear();
    }
    let fresh = data.get(usize::try_from(-ahead).unwrap_or(0)..).unwrap_or_default();
    if !fresh.is_empty() {
        stream.bytes.extend(fresh);
        stream.next = Some(sequence.wrapping_add(u32::try_from(data.len()).unwrap_or(0)));
    }
    while let Some(said) = take(&mut stream.bytes) {
        all.push(said);
    }
    if flags & RST != 0 {
        all.push(Said::Reset);
    } else if flags & FIN != 0 {
        all.push(Said::Fin);
    }
    all
}

/// What of a frame counts here.
struct Packet<'a> {
    v6: bool,
    protocol: u8,
    ttl: u8,
    from: IpAddr,
    to: IpAddr,
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    const TCP: u8 = 6;
    const UDP: u8 = 17;

    fn of(frame: &'a [u8]) -> Option<Self> {
        let packet = frame.get(14..)?;
        let v6 = match u16::from_be_bytes(*frame.get(12..)?.first_chunk()?) {
            0x0800 => false,
            0x86dd => true,
            _ => return None,
        };
        let (protocol, ttl, header, total) = if v6 {
            let length = u16::from_be_bytes(*packet.get(4..)?.first_chunk()?);
            (*packet.get(6)?, *packet.get(7)?, 40, 40 + usize::from(length))
        } else {
            let length = u16::from_be_bytes(*packet.get(2..)?.first_chunk()?);
            (*packet.get(9)?, *packet.get(8)?, usize::from(packet.first()? & 0x0f) * 4, usize::from(length))
        };
        let (from, to) = if v6 {
            let at = |n: usize| Some(IpAddr::from(*packet.get(n..)?.first_chunk::<16>()?));
            (at(8)?, at(24)?)
        } else {
            let at = |n: usize| Some(IpAddr::from(*packet.get(n..)?.first_chunk::<4>()?));
            (at(12)?, at(16)?)
        };
        // Short frames are padded: the length says where the packet ends.
        let payload = packet.get(header..total.min(packet.len()))?;
        matches!(protocol, Self::TCP | Self::UDP).then_some(Self { v6, protocol, ttl, from, to, payload })
    }

    /// Option 19 among TCP's.
    fn signed(&self) -> bool {
        let end = usize::from(self.payload.get(12).copied().unwrap_or(0) >> 4) * 4;
        let mut options = self.payload.get(20..end).unwrap_or_default();
        while let Some((&kind, rest)) = options.split_first() {
            match kind {
                19 => return self.protocol == Self::TCP,
                0 => return false,
                1 => options = rest,
                _ => {
                    let length = usize::from(rest.first().copied().unwrap_or(0)).max(2);
                    options = options.get(length..).unwrap_or_default();
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TCP segment from port 40000 to BGP's, in an IPv4 frame, padded to Ethernet's least.
    fn segment(sequence: u32, flags: u8, data: &[u8]) -> Vec<u8> {
        let mut f = vec![0; 12];
        f.extend([8, 0, 0x45, 0]);
        f.extend(u16::try_from(40 + data.len()).expect("short").to_be_bytes());
        f.extend([0, 0, 0, 0, 1, 6, 0, 0, 10, 60, 0, 11, 10, 60, 0, 1]);
        f.extend(40_000_u16.to_be_bytes());
        f.extend(BGP.to_be_bytes());
        f.extend(sequence.to_be_bytes());
        f.extend([0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        f.extend(data);
        f.resize(f.len().max(60), 0);
        f
    }

    fn keepalive() -> Vec<u8> {
        [&[0xff; 16][..], &[0, 19, 4]].concat()
    }

    #[test]
    fn a_segment_sent_twice_counts_once_and_a_message_may_span_two() {
        let mut streams = HashMap::new();
        let mut hear = |frame: &[u8]| {
            let p = Packet::of(frame).expect("a TCP frame");
            assert!(!p.signed());
            understood(&mut streams, Node(0), true, &p)
        };
        assert_eq!(hear(&segment(99, 2, &[])), [Said::Syn]);
        let k = keepalive();
        assert_eq!(hear(&segment(100, 0x18, &k)), [Said::Keepalive]);
        assert_eq!(hear(&segment(100, 0x18, &k)), []);
        assert_eq!(hear(&segment(119, 0x18, &k[..10])), []);
        assert_eq!(hear(&segment(129, 0x18, &k[10..])), [Said::Keepalive]);
        assert_eq!(hear(&segment(138, 0x11, &[])), [Said::Fin]);
    }

    #[test]
    fn what_was_missed_doesnt_stop_the_reading() {
        let mut streams = HashMap::new();
        let k = keepalive();
        let mut hear = |frame: &[u8]| understood(&mut streams, Node(0), true, &Packet::of(frame).expect("a TCP frame"));
        assert_eq!(hear(&segment(5000, 0x18, &k[5..])), []);
        assert_eq!(hear(&segment(7000, 0x18, &k)), [Said::Keepalive]);
    }

    #[test]
    fn the_filters_jumps_land_on_its_end() {
        // Per family two ports are looked at, for three values each; each family ends with a refusal.
        assert_eq!(filter().len(), 3 + 2 * 4 + 1 + 2 * 4 + 1 + 1);
    }
}
