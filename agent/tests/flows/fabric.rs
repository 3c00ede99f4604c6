//! A client and a server, two hosts with an agent each between them, and two segments on which all of them are. Both hosts
//! hold one VIP on either segment, as one group: where clients come to, and what the server answers to. Or ([`Shape`]) both
//! announce where clients come to, and nothing is held. The hosts' interfaces have different names.

use crate::agent;
use crate::netns::{Namespace, PATIENCE, until};
use holdfast::os::ct::{Dump, Setting};
use holdfast_statesync::SecretKey;
use holdfast_statesync::ct::{DumpFilter, Entry};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

pub(crate) const VIP: &str = "10.9.1.10";
const VIP6: &str = "fd09:1::10";
/// Of each host: its interfaces on the two segments.
const DEVICES: [[&str; 2]; 2] = [["front", "back"], ["eth7", "lan3"]];

/// What a pair is like; by default IPv4 with VRRP, and the server is none of the hosts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shape<'s> {
    /// What else is in `[statesync]`.
    pub(crate) more: &'s str,
    /// Clients come by IPv6.
    pub(crate) six: bool,
    /// Both hosts announce the VIP by BGP (nobody listens), and the client's address isn't translated.
    pub(crate) shared: bool,
    /// The server is the first host itself, and the client's address isn't translated.
    pub(crate) at_home: bool,
}

impl Shape<'_> {
    /// An address on the client's (1) or the server's (2) side.
    pub(crate) fn at(&self, side: u8, last: u8) -> String {
        if self.six { format!("fd09:{side}::{last}") } else { format!("10.9.{side}.{last}") }
    }

    pub(crate) fn vip(&self) -> &'static str {
        if self.six { VIP6 } else { VIP }
    }

    fn backend(&self) -> SocketAddr {
        let ip = self.at(2, if self.at_home { 11 } else { 21 });
        SocketAddr::new(ip.parse().expect("an address"), 80)
    }

    fn service(&self) -> SocketAddr {
        SocketAddr::new(self.vip().parse().expect("an address"), 80)
    }
}

/// A host of the pair.
pub(crate) struct Host {
    pub(crate) namespace: Namespace,
    pub(crate) folder: PathBuf,
    agent: Option<Child>,
}

/// All of it.
pub(crate) struct Pair {
    pub(crate) client: Namespace,
    pub(crate) server: Namespace,
    pub(crate) hosts: [Host; 2],
    backend: SocketAddr,
    service: SocketAddr,
    at_home: bool,
    /// Has the bridges.
    _middle: Namespace,
}

impl Host {
    pub(crate) fn start(&mut self) {
        self.agent = Some(agent::start(&self.namespace.name, &self.folder));
    }

    pub(crate) fn pid(&self) -> i32 {
        self.agent.as_ref().and_then(|agent| i32::try_from(agent.id()).ok()).expect("it was started")
    }

    /// The worker's, once there is one.
    pub(crate) fn worker(&self) -> i32 {
        let keeper = self.pid();
        until("a worker runs", || {
            let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
            children.split_whitespace().next()?.parse().ok()
        })
    }

    pub(crate) fn signal(&self, pid: i32, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("it runs");
    }

    /// Ends it in order.
    pub(crate) fn stop(&mut self) {
        self.signal(self.pid(), nix::sys::signal::Signal::SIGTERM);
        let mut agent = self.agent.take().expect("it was started");
        let status = until("the agent ends", || agent.try_wait().expect("our child"));
        assert!(status.success(), "{status}: {}", self.log());
    }

    pub(crate) fn log(&self) -> String {
        agent::log(&self.folder)
    }

    pub(crate) fn holds(&self) -> bool {
        let all = self.namespace.ip("address show");
        [format!("{VIP}/32"), format!("{VIP6}/128")].iter().any(|vip| all.contains(vip))
    }

    pub(crate) fn holdfast(&self, words: &[&str]) -> std::process::Output {
        agent::command(&self.namespace.name, &self.folder, words).output().expect("it starts")
    }

    /// Flows to the VIP, as this kernel has them.
    pub(crate) fn flows(&self) -> Vec<Entry> {
        let mut dump = self.namespace.enter(|| Dump::open().expect("opens"));
        let mut entries = Vec::new();
        let vips: [IpAddr; 2] = [VIP, VIP6].map(|vip| vip.parse().expect("an address"));
        let to_vip = |entry: &Entry| vips.contains(&entry.original.addresses.destination());
        dump.all(&DumpFilter::default(), |entry| entries.extend(Some(*entry).filter(to_vip))).expect("dumped");
        entries
    }

    /// Of this port of the client.
    pub(crate) fn flow(&self, port: u16) -> Option<Entry> {
        self.flows().into_iter().find(|entry| entry.original.layer4.source_port() == port)
    }

    /// Whether all flows tell of events, and of when they happened.
    pub(crate) fn settings(&self) -> [Option<u32>; 2] {
        self.namespace.enter(|| [Setting::Events, Setting::Timestamp].map(|setting| setting.read().ok()))
    }

    /// What the client command prints as JSON.
    pub(crate) fn json(&self, words: &[&str]) -> serde_json::Value {
        let output = self.holdfast(words);
        // A status that isn't well is one.
        let done = matches!(output.status.code(), Some(0..=2));
        assert!(done, "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// What the replication has counted.
    pub(crate) fn counted(&self, name: &str) -> u64 {
        self.json(&["status", "--json"])["worker"]["sync"]["counters"][name].as_u64().unwrap_or_default()
    }

    /// Takes its cables out.
    pub(crate) fn unplug(&self, n: usize) {
        DEVICES[n].iter().for_each(|device| drop(self.namespace.ip(&format!("link set {device} down"))));
    }

    pub(crate) fn tables(&self) -> String {
        self.namespace.exec("nft list tables")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.folder.display(), self.log());
            for words in [["flows", "--json"], ["peers", "--json"]] {
                eprintln!("{}", String::from_utf8_lossy(&self.holdfast(&words).stdout));
            }
        }
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Pair {
    /// Nobody runs yet.
    pub(crate) fn new(shape: Shape<'_>) -> Self {
        let (client, server, middle) = (Namespace::new("c"), Namespace::new("s"), Namespace::new("m"));
        for (bridge, side) in [("front", 1), ("back", 2)] {
            middle.ip(&format!("link add {bridge} type bridge"));
            middle.ip(&format!("link set {bridge} up"));
            let (end, last) = if side == 1 { (&client, 2) } else { (&server, 21) };
            end.set("ipv6/conf/default/accept_dad", "0");
            attach(&middle, bridge, end, bridge);
            addresses(end, side, last, bridge);
        }
        client.ip("route add default via 10.9.1.1 onlink dev front");
        let keys: Vec<_> = (1..=2).map(|n| holdfast_statesync::generate_keypair([n; 32])).collect();
        let host = |n: usize| {
            let namespace = Namespace::new(&format!("h{n}"));
            namespace.set("ipv6/conf/default/accept_dad", "0");
            for (bridge, (side, device)) in ["front", "back"].into_iter().zip((1..).zip(DEVICES[n])) {
                attach(&middle, bridge, &namespace, device);
                addresses(&namespace, side, if n == 0 { 11 } else { 12 }, device);
            }
            namespace.set("ipv4/ip_forward", "1");
            namespace.set("ipv6/conf/all/forwarding", "1");
            let folder = std::env::temp_dir().join(&namespace.name);
            fs::create_dir(&folder).expect("a fresh name");
            let other = 1 - n;
            let secret: SecretKey = keys[n].0.clone();
            let mut file = fs::OpenOptions::new();
            let mut file = file.write(true).create_new(true).mode(0o600).open(folder.join("node.key")).expect("new");
            writeln!(file, "{}", secret.to_text().as_str()).expect("written");
            let config = format!(
                "[node]\nname = \"lb{n}\"\n\
                 [[balancer]]\nname = \"kernel\"\nkind = \"nft\"\n\
                 {vips}\
                 [[nft.service]]\nvip = \"web\"\nprotocol = \"tcp\"\nport = 80\nbackends = [\"{backend}\"]\n\
                 check = false\n{mode}\n\
                 [cluster]\nlisten = \"10.9.1.1{own}:7712\"\nkey_file = \"{key}\"\n\
                 [[cluster.peer]]\nname = \"lb{other}\"\naddress = \"10.9.1.1{theirs}:7712\"\n\
                 public_keys = [\"{public}\"]\n\
                 [statesync]\nvips = [\"{unit}\"]\n{more}\n",
                vips = vips(shape, n),
                backend = shape.backend(),
                mode = if shape.shared || shape.at_home {
                    "mode = \"dnat\"".to_owned()
                } else {
                    format!("mode = \"snat\"\nsnat = [\"{}\"]", shape.at(2, 10))
                },
                own = n + 1,
                theirs = other + 1,
                key = folder.join("node.key").display(),
                public = holdfast_statesync::encode_key(&keys[other].1),
                unit = if shape.shared { "web" } else { "pair" },
                more = shape.more,
            );
            fs::write(folder.join("holdfast.toml"), config).expect("writable");
            Host { namespace, folder, agent: None }
        };
        let hosts = [host(0), host(1)];
        let (backend, service) = (shape.backend(), shape.service());
        Self { client, server, hosts, backend, service, at_home: shape.at_home, _middle: middle }
    }

    /// Both run, the first one holds the VIP, and each has all of the other's flows. `more`: what else is in `[statesync]`.
    pub(crate) fn started(more: &str) -> Self {
        Self::shaped(Shape { more, ..Shape::default() })
    }

    /// The same, otherwise; of a shared VIP both hold it.
    pub(crate) fn shaped(shape: Shape<'_>) -> Self {
        let mut pair = Self::new(shape);
        pair.hosts.iter_mut().for_each(Host::start);
        until("the first one holds it", || pair.hosts[0].holds().then_some(()));
        until("and the other one, if it is shared", || (!shape.shared || pair.hosts[1].holds()).then_some(()));
        until("both are in sync", || pair.hosts.iter().all(in_sync).then_some(()));
        pair
    }

    /// A connection through the VIP: the client's end, the server's, the client's port.
    pub(crate) fn connect(&self) -> (TcpStream, TcpStream, u16) {
        let server = if self.at_home { &self.hosts[0].namespace } else { &self.server };
        let listener = server.enter(|| until("the server's port is free", || TcpListener::bind(self.backend).ok()));
        let near =
            self.client.enter(|| until("it is forwarded", || TcpStream::connect_timeout(&self.service, PATIENCE).ok()));
        let (far, _) = listener.accept().expect("connected");
        for stream in [&near, &far] {
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            stream.set_nodelay(true).expect("set");
        }
        let port = near.local_addr().expect("connected").port();
        (near, far, port)
    }

    /// Kills the first host: its agent, and its links.
    pub(crate) fn kill_first(&self) {
        let host = &self.hosts[0];
        // Asked first: without its keeper nobody knows it.
        let worker = host.worker();
        host.signal(host.pid(), nix::sys::signal::Signal::SIGKILL);
        host.signal(worker, nix::sys::signal::Signal::SIGKILL);
        host.unplug(0);
        until("the other one holds it", || self.hosts[1].holds().then_some(()));
    }
}

/// What clients come to, and what the server answers to.
fn vips(shape: Shape<'_>, n: usize) -> String {
    let length = if shape.six { 128 } else { 32 };
    if shape.shared {
        return format!(
            "[[vip]]\nname = \"web\"\naddresses = [\"{vip}/{length}\"]\nbgp = {{}}\n\
             [bgp]\nasn = 65010\nrouter_id = \"10.9.1.1{own}\"\nlisten = false\n\
             [[bgp.neighbor]]\naddress = \"10.9.1.2\"\nasn = 65000\n",
            vip = shape.vip(),
            own = n + 1,
        );
    }
    let priority = if n == 0 { 200 } else { 100 };
    let one = |name, vip: &str, device, vrid| {
        format!(
            "[[vip]]\nname = \"{name}\"\ngroup = \"pair\"\naddresses = [\"{vip}/{length}\"]\n\
             vrrp = {{ interface = \"{device}\", vrid = {vrid}, priority = {priority}, interval = \"100ms\" }}\n"
        )
    };
    let [front, back] = DEVICES[n];
    one("web", shape.vip(), front, 7) + &one("inside", &shape.at(2, 10), back, 8)
}

/// Of both families.
fn addresses(end: &Namespace, side: u8, last: u8, device: &str) {
    for (six, length) in [(false, 24), (true, 64)] {
        let address = Shape { six, ..Shape::default() }.at(side, last);
        end.ip(&format!("address add {address}/{length} dev {device}"));
    }
}

/// As the journal's line in the log has it.
pub(crate) const OURS_THERE: &str = "\"outbound\":true,\"in_sync\":true";

/// As the log says; it may be out of sync again since.
pub(crate) fn in_sync(host: &Host) -> bool {
    let log = host.log();
    log.contains(OURS_THERE) && log.contains("\"outbound\":false,\"in_sync\":true")
}

/// A few bytes there and back.
pub(crate) fn speaks(near: &mut TcpStream, far: &mut TcpStream) -> bool {
    let mut both = || -> std::io::Result<()> {
        let mut buffer = [0; 5];
        near.write_all(b"hello")?;
        far.read_exact(&mut buffer)?;
        far.write_all(&buffer)?;
        near.read_exact(&mut buffer)
    };
    both().is_ok()
}

/// Sets how long an end waits.
pub(crate) fn patient(ends: [&TcpStream; 2], wait: Duration) {
    ends.into_iter().for_each(|end| end.set_read_timeout(Some(wait)).expect("set"));
}

fn attach(middle: &Namespace, bridge: &str, end: &Namespace, device: &str) {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let port = format!("p{}", NEXT.fetch_add(1, Ordering::Relaxed));
    middle.ip(&format!("link add {port} type veth peer name {device} netns {}", end.name));
    middle.ip(&format!("link set {port} up master {bridge}"));
    end.ip(&format!("link set {device} up"));
}
