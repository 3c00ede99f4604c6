//! A client and a server with two hosts between them, of which either can forward: a strict rule set, one VIP, one
//! source address.

pub(crate) use crate::netns::{Namespace, PATIENCE, skipped, until};
use holdfast::os::ct::{Dump, Setting, Writer};
use holdfast_statesync::ct::{Batch, DumpFilter, Entry, Outcome, Replica};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

pub(crate) const VIP: &str = "10.9.9.9";
pub(crate) const VIP6: &str = "fd09:9::9";
pub(crate) const CLIENT: &str = "10.9.1.2";
pub(crate) const SERVER: &str = "10.9.2.2";
pub(crate) const SOURCE: &str = "10.9.2.100";

impl Namespace {
    /// One with a connection table of its own, events on.
    pub(crate) fn tracking(role: &str) -> Self {
        let namespace = Self::new(role);
        namespace.enter(|| {
            Setting::Events.write(1).expect("set");
            Setting::Timestamp.write(1).expect("set");
            Setting::TcpLoose.write(0).expect("set");
            assert_eq!(Setting::Events.read().expect("read"), 1);
        });
        namespace
    }

    /// Loads a rule set.
    pub(crate) fn nft(&self, rules: &str) {
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.name, "nft", "-f", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("nft is installed");
        child.stdin.take().expect("piped").write_all(format!("{rules}\n").as_bytes()).expect("written");
        assert!(child.wait().expect("ends").success(), "nft: {rules}");
    }

    pub(crate) fn writer(&self) -> Writer {
        self.enter(|| Writer::open().expect("opens"))
    }

    /// The table.
    pub(crate) fn dump(&self) -> Vec<Entry> {
        self.dump_of(&DumpFilter::default())
    }

    pub(crate) fn dump_of(&self, filter: &DumpFilter) -> Vec<Entry> {
        let mut dump = self.enter(|| Dump::open().expect("opens"));
        let mut entries = Vec::new();
        let dumped = dump.all(filter, |entry| entries.push(*entry)).expect("dumped");
        assert_eq!(dumped.entries, entries.len() as u64);
        assert_eq!(dumped.skipped.malformed, 0);
        entries
    }

    /// The flow from the client to this destination.
    pub(crate) fn flow_to(&self, destination: SocketAddr) -> Entry {
        let mut found: Vec<_> = self.dump().into_iter().filter(|e| e.original.destination() == destination).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    /// Writes them, all of which must be new.
    pub(crate) fn create(&self, replicas: &[Replica]) {
        let mut writer = self.writer();
        let mut batch = Batch::new();
        for chunk in replicas.chunks(Batch::MAX) {
            batch.clear();
            chunk.iter().for_each(|replica| assert!(batch.create(replica).is_ok(), "{replica:?}"));
            writer.write(&batch, |at, outcome| panic!("{:?}: {outcome}", chunk[at])).expect("written");
        }
    }
}

/// What came of each message of the batch.
pub(crate) fn outcomes(writer: &mut Writer, batch: &Batch) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::Done; batch.len()];
    writer.write(batch, |at, outcome| outcomes[at] = outcome).expect("written");
    outcomes
}

/// Which of the hosts forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    A,
    B,
}

/// Client, two hosts, server.
pub(crate) struct Fabric {
    pub(crate) client: Namespace,
    pub(crate) a: Namespace,
    pub(crate) b: Namespace,
    pub(crate) server: Namespace,
}

const RULES: &str = "
table inet lab {
    chain pre { type nat hook prerouting priority dstnat
        ip daddr 10.9.9.9 tcp dport 80 dnat ip to 10.9.2.2:8080
        ip daddr 10.9.9.9 udp dport 53 dnat ip to 10.9.2.2:5353
        ip daddr 10.9.9.9 icmp type echo-request dnat ip to 10.9.2.2
        ip6 daddr fd09:9::9 tcp dport 80 dnat ip6 to [fd09:2::2]:8080
        ip6 daddr fd09:9::9 icmpv6 type echo-request dnat ip6 to fd09:2::2
    }
    chain post { type nat hook postrouting priority srcnat
        ip daddr 10.9.2.2 snat ip to 10.9.2.100
        ip6 daddr fd09:2::2 snat ip6 to fd09:2::100
    }
    chain strict { type filter hook prerouting priority -150
        ct state invalid drop
        ct state new tcp flags & (fin|syn|rst|ack) != syn drop
    }
}
";

impl Fabric {
    /// A forwards.
    pub(crate) fn new() -> Self {
        let fabric = Self {
            client: Namespace::tracking("c"),
            a: Namespace::tracking("a"),
            b: Namespace::tracking("b"),
            server: Namespace::tracking("s"),
        };
        fabric.client.ip("address add 10.9.1.2/32 dev lo");
        fabric.client.ip("address add fd09:1::2/128 dev lo nodad");
        fabric.server.ip("address add 10.9.2.2/32 dev lo");
        fabric.server.ip("address add fd09:2::2/128 dev lo nodad");
        for (host, n) in [(&fabric.a, 1), (&fabric.b, 2)] {
            host.set("ipv4/ip_forward", "1");
            host.set("ipv6/conf/all/forwarding", "1");
            for (end, side) in [(&fabric.client, 1), (&fabric.server, 2)] {
                let (front, eth) = (format!("e{side}"), format!("eth{n}"));
                host.ip(&format!("link add {front} type veth peer name {eth} netns {}", end.name));
                for (namespace, device, last) in [(host, &front, 1), (end, &eth, 2)] {
                    namespace.ip(&format!("link set {device} addrgenmode none up"));
                    namespace.ip(&format!("address add 10.9.{side}{n}.{last}/24 dev {device}"));
                    namespace.ip(&format!("address add fd09:{side}{n}::{last}/64 dev {device} nodad"));
                    // By these it asks for neighbours of what it forwards.
                    namespace.ip(&format!("address add fe80::{last}/64 dev {device} nodad"));
                }
                host.ip(&format!("route add 10.9.{side}.2 via 10.9.{side}{n}.2"));
                host.ip(&format!("route add fd09:{side}::2 via fd09:{side}{n}::2"));
            }
            host.nft(RULES);
        }
        fabric.move_to(Host::A);
        fabric
    }

    /// From now on this host forwards.
    pub(crate) fn move_to(&self, host: Host) {
        let n = if host == Host::A { 1 } else { 2 };
        for to in [VIP, SERVER] {
            self.client.ip(&format!("route replace {to} via 10.9.1{n}.1 src 10.9.1.2"));
        }
        self.client.ip(&format!("route replace {VIP6} via fd09:1{n}::1 src fd09:1::2"));
        for to in [SOURCE, CLIENT] {
            self.server.ip(&format!("route replace {to} via 10.9.2{n}.1 src 10.9.2.2"));
        }
        for to in ["fd09:2::100", "fd09:1::2"] {
            self.server.ip(&format!("route replace {to} via fd09:2{n}::1 src fd09:2::2"));
        }
    }

    /// A connection through the VIP: the client's end, the server's.
    pub(crate) fn connect(&self, six: bool) -> (TcpStream, TcpStream) {
        let address = if six { "[fd09:2::2]:8080" } else { "10.9.2.2:8080" };
        let listener = self.server.enter(|| TcpListener::bind(address).expect("free"));
        let near = self.client.enter(|| TcpStream::connect_timeout(&vip(six), PATIENCE).expect("forwarded"));
        let (far, _) = listener.accept().expect("connected");
        for stream in [&near, &far] {
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            stream.set_write_timeout(Some(PATIENCE)).expect("set");
            stream.set_nodelay(true).expect("set");
        }
        (near, far)
    }
}

pub(crate) fn vip(six: bool) -> SocketAddr {
    let ip: IpAddr = if six { VIP6 } else { VIP }.parse().expect("an address");
    SocketAddr::new(ip, 80)
}

/// So many bytes from one end to the other, all right or not at all.
pub(crate) fn transfer(from: &TcpStream, to: &TcpStream, bytes: usize) -> Result<(), String> {
    std::thread::scope(|scope| {
        let sent = scope.spawn(move || {
            let mut from = from;
            let data: Vec<u8> = (0..bytes).map(byte_at).collect();
            from.write_all(&data).map_err(|e| format!("not sent: {e}"))
        });
        let mut to = to;
        let mut buffer = vec![0; 1 << 16];
        let mut count = 0;
        while count < bytes {
            let limit = buffer.len().min(bytes - count);
            let read = to.read(&mut buffer[..limit]).map_err(|e| format!("after {count} of {bytes} bytes: {e}"))?;
            if read == 0 {
                return Err(format!("closed after {count} of {bytes} bytes"));
            }
            let right = buffer[..read].iter().enumerate().all(|(n, byte)| *byte == byte_at(count + n));
            if !right {
                return Err(format!("wrong bytes after {count}"));
            }
            count += read;
        }
        sent.join().expect("no panic")
    })
}

fn byte_at(n: usize) -> u8 {
    (n.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// Both ways at once.
pub(crate) fn exchange(near: &TcpStream, far: &TcpStream, bytes: usize) -> Result<(), String> {
    std::thread::scope(|scope| {
        let up = scope.spawn(|| transfer(near, far, bytes));
        transfer(far, near, bytes)?;
        up.join().expect("no panic")
    })
}

/// Whether a few bytes come through within a second.
pub(crate) fn speaks(near: &TcpStream, far: &TcpStream) -> bool {
    for stream in [near, far] {
        stream.set_read_timeout(Some(Duration::from_secs(1))).expect("set");
    }
    transfer(near, far, 100).and_then(|()| transfer(far, near, 100)).is_ok()
}
