//! TCP sockets by their local address (`INET_DIAG`): counted, listed where they listen, ended (`SOCK_DESTROY`).
//!
//! What this module refuses to do: choose whose connections are ended.

use super::netlink::{Message, NetlinkSocket, attributes, push_request};
use nix::sys::socket::SockProtocol;
use rtnetlink::packet_core::NLM_F_ACK;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

/// `SOCK_DIAG_BY_FAMILY`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `SOCK_DESTROY`.
const SOCK_DESTROY: u16 = 21;
/// `TCP_ESTABLISHED` and `TCP_LISTEN` as bits of the state mask.
const ESTABLISHED: u32 = 1 << 1;
const LISTEN: u32 = 1 << 10;
/// `struct inet_diag_req_v2`, and where the socket's identity is in it.
const REQUEST: usize = 56;
const IDENTITY: usize = 8;
/// `INET_DIAG_REQ_BYTECODE`, `INET_DIAG_BC_JMP`, `INET_DIAG_BC_S_COND`.
const BYTECODE: u16 = 1;
const JUMP: u8 = 1;
const SOURCE_CONDITION: u8 = 7;
/// `INET_DIAG_CGROUP_ID`, since Linux 5.8.
const CGROUP: u16 = 21;
/// `struct inet_diag_msg`.
const ANSWER: usize = 72;
/// Up to so many addresses the kernel gives only what was asked for; of more it gives everything.
const FILTERS_MAX: usize = 64;
/// Listeners that are told; of more the rest is left out.
const LISTENERS_MAX: usize = 4096;
/// Connections that are ended by one call.
const DESTROY_MAX: usize = 65_536;
/// Requests in one datagram.
const BATCH: usize = 64;

/// A socket that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// Its local address, an IPv4-mapped one as IPv4; unspecified: all.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Connections that wait to be accepted (`Recv-Q`).
    pub waiting: u32,
    /// How many may (`Send-Q`).
    pub backlog: u32,
    /// Of its file, as in `/proc/PID/fd`.
    pub inode: u64,
    /// Who made it.
    pub uid: u32,
    /// The control group (v2) that it was made in: the inode of its directory. `None`: the kernel doesn't tell.
    pub cgroup: Option<u64>,
}

impl Default for Listener {
    fn default() -> Self {
        let address = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
        Self { address, port: 0, waiting: 0, backlog: 0, inode: 0, uid: 0, cgroup: None }
    }
}

/// How many established TCP connections have one of these addresses as their local end, in the network namespace of
/// the calling thread. The kernel walks its whole table: call it for a person or once a second, never on the protocol
/// thread.
///
/// # Errors
/// Whatever the kernel says.
pub fn established(addresses: &[IpAddr]) -> io::Result<u64> {
    let mut total = 0;
    let count = |count: &mut u64, _: &Message<'_>| *count += 1;
    walk(addresses, count, |count| total += count)?;
    Ok(total)
}

/// Every TCP socket that listens in the network namespace of the calling thread. The kernel walks its (small) table of
/// those alone.
///
/// # Errors
/// Whatever the kernel says.
pub fn listeners() -> io::Result<Vec<Listener>> {
    Listeners::default().look()
}

/// Asks for all that listens, again and again on one socket.
#[derive(Debug, Default)]
pub struct Listeners {
    socket: Option<NetlinkSocket>,
}

impl Listeners {
    /// What [`listeners`] gives, of the network namespace of the thread that looked first.
    ///
    /// # Errors
    /// Whatever the kernel says; the next look begins anew.
    pub fn look(&mut self) -> io::Result<Vec<Listener>> {
        let socket = self.socket.take().map_or_else(|| NetlinkSocket::open(SockProtocol::NetlinkSockDiag), Ok);
        let mut socket = socket?;
        let all = listening(&mut socket)?;
        self.socket = Some(socket);
        Ok(all)
    }
}

fn listening(netlink: &mut NetlinkSocket) -> io::Result<Vec<Listener>> {
    let mut all = Vec::new();
    for family in FAMILIES {
        let mut some: Vec<Listener> = Vec::new();
        let body = request(family, LISTEN);
        netlink.dump(SOCK_DIAG_BY_FAMILY, &body, &mut some, Vec::clear, |some, message| {
            if some.len() < LISTENERS_MAX {
                some.extend(listener(message));
            }
        })?;
        all.append(&mut some);
    }
    Ok(all)
}

/// Ends every established TCP connection that has one of these addresses as its local end: its peer sees a reset, and
/// whoever has it open an error. At most 65,536; how many were ended is returned.
///
/// # Errors
/// Whatever the kernel says: `EPERM` without CAP_NET_ADMIN, `EOPNOTSUPP` where it was built without
/// CONFIG_INET_DIAG_DESTROY. Gone meanwhile is no error.
pub fn destroy(addresses: &[IpAddr]) -> io::Result<u64> {
    let mut requests = Vec::new();
    let collect = |some: &mut Vec<[u8; REQUEST]>, message: &Message<'_>| {
        if some.len() < DESTROY_MAX {
            some.extend(destruction(message));
        }
    };
    walk(addresses, collect, |mut some| requests.append(&mut some))?;
    requests.truncate(DESTROY_MAX);
    let mut netlink = NetlinkSocket::open(SockProtocol::NetlinkSockDiag)?;
    let mut ended = 0;
    for batch in requests.chunks(BATCH) {
        let count = u32::try_from(batch.len()).expect("a batch is small");
        let first = netlink.sequence(count);
        let mut datagram = Vec::new();
        for (sequence, body) in (first..).zip(batch) {
            push_request(&mut datagram, SOCK_DESTROY, NLM_F_ACK, sequence, |out| out.extend_from_slice(body));
        }
        for ack in netlink.transact(&datagram, first, batch.len(), |_, _| {})? {
            match ack.map_or(libc::ETIMEDOUT, |ack| ack.errno) {
                0 => ended += 1,
                libc::ENOENT => {}
                errno => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }
    Ok(ended)
}

/// Both are small. A socket of a dual-stack listener is in the IPv6 table with an IPv4-mapped address: both are always
/// asked.
const FAMILIES: [u8; 2] = [libc::AF_INET as u8, libc::AF_INET6 as u8];

/// Gives every established connection from one of these addresses to `each`, and what it made of a part of the table to
/// `done`: each part starts anew where the table changed meanwhile. A walk costs the kernel as much as its table is
/// large, however little it gives: one for each family, whatever the number of addresses.
fn walk<S: Default>(
    addresses: &[IpAddr],
    each: impl Fn(&mut S, &Message<'_>),
    mut done: impl FnMut(S),
) -> io::Result<()> {
    let mut netlink = NetlinkSocket::open(SockProtocol::NetlinkSockDiag)?;
    for family in FAMILIES {
        // No socket of the IPv4 table has an IPv6 address.
        let possible = |ip: &IpAddr| family != FAMILIES[0] || ip.is_ipv4();
        let wanted: BTreeSet<IpAddr> = addresses.iter().copied().filter(possible).collect();
        if wanted.is_empty() {
            continue;
        }
        let mut body = request(family, ESTABLISHED).to_vec();
        if wanted.len() <= FILTERS_MAX {
            body.extend(any_of(&wanted));
        }
        let mut state = S::default();
        netlink.dump(
            SOCK_DIAG_BY_FAMILY,
            &body,
            &mut state,
            |state| *state = S::default(),
            |state, message| {
                if local_address(message).is_some_and(|ip| wanted.contains(&ip)) {
                    each(state, message);
                }
            },
        )?;
        done(state);
    }
    Ok(())
}

fn request(family: u8, states: u32) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    bytes[0] = family;
    bytes[1] = libc::IPPROTO_TCP as u8;
    bytes[4..8].copy_from_slice(&states.to_ne_bytes());
    bytes
}

/// The attribute by which the kernel gives only sockets with one of these local addresses; of an IPv4 one also where it
/// is mapped.
fn any_of(addresses: &BTreeSet<IpAddr>) -> Vec<u8> {
    let mut program: Vec<u8> = Vec::new();
    // From the last one on, each with what comes after it: the end of the program is where a socket is taken, and four
    // bytes behind it is where it isn't.
    for ip in addresses.iter().rev() {
        let mut one = condition(*ip);
        if !program.is_empty() {
            let over = u16::try_from(4 + program.len()).expect("64 of 32 bytes at most");
            one.extend_from_slice(&[JUMP, 4]);
            one.extend_from_slice(&over.to_ne_bytes());
        }
        one.append(&mut program);
        program = one;
    }
    let mut out = Vec::new();
    super::netlink::push_attribute(&mut out, BYTECODE, &program);
    out
}

/// Goes on behind itself if the local address is this one, else four bytes further.
fn condition(ip: IpAddr) -> Vec<u8> {
    let (family, address) = match ip {
        IpAddr::V4(ip) => (FAMILIES[0], ip.octets().to_vec()),
        IpAddr::V6(ip) => (FAMILIES[1], ip.octets().to_vec()),
    };
    // struct inet_diag_bc_op, struct inet_diag_hostcond, the address.
    let length = 4 + 8 + address.len();
    let (yes, no) = (u8::try_from(length).expect("28 at most"), u16::try_from(length + 4).expect("32 at most"));
    let mut condition = vec![SOURCE_CONDITION, yes];
    condition.extend_from_slice(&no.to_ne_bytes());
    condition.extend_from_slice(&[family, u8::try_from(address.len() * 8).expect("128 at most"), 0, 0]);
    // Any port.
    condition.extend_from_slice(&(-1i32).to_ne_bytes());
    condition.extend_from_slice(&address);
    condition
}

/// The request that ends the socket that this message tells of.
fn destruction(message: &Message<'_>) -> Option<[u8; REQUEST]> {
    let family = *message.payload.first()?;
    let mut body = request(family, u32::MAX);
    // Ports, addresses, interface and cookie: the same in both, four bytes later in the request.
    body[IDENTITY..REQUEST].copy_from_slice(message.payload.get(4..4 + REQUEST - IDENTITY)?);
    Some(body)
}

fn listener(message: &Message<'_>) -> Option<Listener> {
    let address = local_address(message)?;
    let word =
        |at: usize| message.payload.get(at..at + 4).and_then(|b| <[u8; 4]>::try_from(b).ok()).map(u32::from_ne_bytes);
    let port = message.payload.get(4..6).and_then(|b| <[u8; 2]>::try_from(b).ok()).map(u16::from_be_bytes)?;
    let cgroup = attributes(message.payload.get(ANSWER..)?)
        .find(|(kind, _)| *kind == CGROUP)
        .and_then(|(_, value)| <[u8; 8]>::try_from(value).ok().map(u64::from_ne_bytes));
    Some(Listener {
        address,
        port,
        waiting: word(56)?,
        backlog: word(60)?,
        uid: word(64)?,
        inode: u64::from(word(68)?),
        cgroup,
    })
}

/// The local address in a `struct inet_diag_msg`, an IPv4-mapped one as IPv4.
fn local_address(message: &Message<'_>) -> Option<IpAddr> {
    if message.kind != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let family = i32::from(*message.payload.first()?);
    // family, state, timer, retransmits; source and destination port; then the addresses in 16 bytes each.
    let source = message.payload.get(8..24)?;
    if family == libc::AF_INET {
        return source.first_chunk::<4>().map(|four| IpAddr::from(*four));
    }
    source.first_chunk::<16>().map(|sixteen| IpAddr::from(*sixteen).to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_address_counts_as_ipv4() {
        let mut payload = vec![0; 72];
        payload[0] = 10;
        payload[8..24].copy_from_slice(&std::net::Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().octets());
        let message = |payload| Message { kind: SOCK_DIAG_BY_FAMILY, flags: 0, sequence: 1, payload };
        assert_eq!(local_address(&message(&payload)), Some("192.0.2.1".parse().expect("valid")));
        for cut in 0..24 {
            assert_eq!(local_address(&message(&payload[..cut])), None, "cut at {cut}");
        }
        for cut in 0..72 {
            assert_eq!(listener(&message(&payload[..cut])), None, "cut at {cut}");
            assert!(destruction(&message(&payload[..cut])).is_none() || cut >= 52);
        }
    }

    /// The kernel refuses a program that it can't follow, and one that leads astray shows in the count.
    #[test]
    fn connections_of_several_addresses_of_both_families_are_counted_each_once() {
        use std::net::{TcpListener, TcpStream};
        let own = |text: &str| text.parse::<IpAddr>().expect("an address");
        // Of loopback, and no other test's.
        let (a, b, c) = (own("127.83.21.1"), own("127.83.21.2"), own("127.83.21.3"));
        let mut open = Vec::new();
        for (ip, n) in [(a, 1), (b, 2), (c, 4)] {
            let listener = TcpListener::bind((ip, 0)).expect("all of 127/8 is ours");
            let address = listener.local_addr().expect("bound");
            for _ in 0..n {
                // The near end has another address.
                open.push((TcpStream::connect(address).expect("it listens"), listener.accept().expect("connected").0));
            }
        }
        let mapped = TcpListener::bind("[::ffff:127.83.21.3]:0").ok();
        let count = |some: &[IpAddr]| established(some).expect("counted");
        assert_eq!([count(&[a]), count(&[b]), count(&[c])], [1, 2, 4]);
        let absent = own("2001:db8::1");
        assert_eq!(count(&[a, absent, c]), 5);
        assert_eq!(count(&[absent, b, a, c]), 7);
        assert_eq!(count(&[absent]), 0);
        if let Some(mapped) = mapped {
            let address = ("127.83.21.3".to_owned(), mapped.local_addr().expect("bound").port());
            open.push((TcpStream::connect(address).expect("it listens"), mapped.accept().expect("connected").0));
            assert_eq!(count(&[a, absent, c]), 6, "an IPv4 address in the IPv6 table");
        }
        let others = (1..=250).map(|n| own(&format!("127.83.22.{n}")));
        let many = |n: usize| -> Vec<IpAddr> { others.clone().take(n).chain([b]).collect() };
        assert_eq!([count(&many(FILTERS_MAX - 1)), count(&many(FILTERS_MAX))], [2, 2], "filtered there, or here");
    }

    #[test]
    fn a_listener_tells_its_queue_and_its_file() {
        use std::net::{TcpListener, TcpStream};
        use std::os::unix::fs::MetadataExt;
        let socket = TcpListener::bind("127.0.0.1:0").expect("loopback can be bound");
        let address = socket.local_addr().expect("bound");
        let waits = [TcpStream::connect(address), TcpStream::connect(address)].map(|c| c.expect("queued"));
        let all = listeners().expect("listed");
        let ours = all.iter().find(|l| l.port == address.port() && l.address == address.ip()).expect("listed");
        assert_eq!(ours.waiting, 2);
        assert!(ours.backlog >= 2, "{ours:?}");
        let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
        let file = std::fs::metadata(format!("/proc/self/fd/{fd}")).expect("ours");
        assert_eq!((ours.inode, ours.uid), (file.ino(), file.uid()));
        drop(waits);
    }
}
