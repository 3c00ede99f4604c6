//! A client and a server, two hosts with an agent each between them, and two segments on which all of them are. Both hosts
//! hold one VIP on either segment, as one group: where clients come to, and what the server answers to.

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
const SERVER: &str = "10.9.2.21:80";

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
        self.namespace.ip("address show").contains(&format!("{VIP}/32"))
    }

    pub(crate) fn holdfast(&self, words: &[&str]) -> std::process::Output {
        agent::command(&self.namespace.name, &self.folder, words).output().expect("it starts")
    }

    /// Flows to the VIP, as this kernel has them.
    pub(crate) fn flows(&self) -> Vec<Entry> {
        let mut dump = self.namespace.enter(|| Dump::open().expect("opens"));
        let mut entries = Vec::new();
        let vip: IpAddr = VIP.parse().expect("an address");
        let to_vip = |entry: &Entry| entry.original.addresses.destination() == vip;
        dump.all(&DumpFilter::default(), |entry| entries.extend(Some(*entry).filter(to_vip))).expect("dumped");
        entries
    }

    /// Of this port of the client.
    pub(crate) fn flow(&self, port: u16) -> Option<Entry> {
        self.flows().into_iter().find(|entry| entry.original.layer4.source_port() == port)
    }

    pub(crate) fn events_setting(&self) -> Option<u32> {
        self.namespace.enter(|| Setting::Events.read().ok())
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
    /// Nobody runs yet. `more`: what else is in `[statesync]`.
    pub(crate) fn new(more: &str) -> Self {
        let (client, server, middle) = (Namespace::new("c"), Namespace::new("s"), Namespace::new("m"));
        for (bridge, side) in [("front", 1), ("back", 2)] {
            middle.ip(&format!("link add {bridge} type bridge"));
            middle.ip(&format!("link set {bridge} up"));
            let (end, last) = if side == 1 { (&client, 2) } else { (&server, 21) };
            attach(&middle, bridge, end, bridge);
            end.ip(&format!("address add 10.9.{side}.{last}/24 dev {bridge}"));
        }
        client.ip("route add default via 10.9.1.1 onlink dev front");
        let keys: Vec<_> = (1..=2).map(|n| holdfast_statesync::generate_keypair([n; 32])).collect();
        let host = |n: usize| {
            let namespace = Namespace::new(&format!("h{n}"));
            for (bridge, side) in [("front", 1), ("back", 2)] {
                attach(&middle, bridge, &namespace, bridge);
                namespace.ip(&format!("address add 10.9.{side}.1{}/24 dev {bridge}", n + 1));
            }
            namespace.set("ipv4/ip_forward", "1");
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
                 [[vip]]\nname = \"web\"\ngroup = \"pair\"\naddresses = [\"{VIP}/32\"]\n\
                 vrrp = {{ interface = \"front\", vrid = 7, priority = {priority}, interval = \"100ms\" }}\n\
                 [[vip]]\nname = \"inside\"\ngroup = \"pair\"\naddresses = [\"10.9.2.10/32\"]\n\
                 vrrp = {{ interface = \"back\", vrid = 8, priority = {priority}, interval = \"100ms\" }}\n\
                 [[nft.service]]\nvip = \"web\"\nprotocol = \"tcp\"\nport = 80\nbackends = [\"{SERVER}\"]\n\
                 mode = \"snat\"\nsnat = [\"10.9.2.10\"]\ncheck = false\n\
                 [cluster]\nlisten = \"10.9.1.1{own}:7712\"\nkey_file = \"{key}\"\n\
                 [[cluster.peer]]\nname = \"lb{other}\"\naddress = \"10.9.1.1{theirs}:7712\"\n\
                 public_keys = [\"{public}\"]\n\
                 [statesync]\nvips = [\"pair\"]\n{more}\n",
                priority = if n == 0 { 200 } else { 100 },
                own = n + 1,
                theirs = other + 1,
                key = folder.join("node.key").display(),
                public = holdfast_statesync::encode_key(&keys[other].1),
            );
            fs::write(folder.join("holdfast.toml"), config).expect("writable");
            Host { namespace, folder, agent: None }
        };
        let hosts = [host(0), host(1)];
        Self { client, server, hosts, _middle: middle }
    }

    /// Both run, the first one holds the VIP, and each has all of the other's flows.
    pub(crate) fn started(more: &str) -> Self {
        let mut pair = Self::new(more);
        pair.hosts.iter_mut().for_each(Host::start);
        until("the first one holds it", || pair.hosts[0].holds().then_some(()));
        until("both are in sync", || pair.hosts.iter().all(in_sync).then_some(()));
        pair
    }

    /// A connection through the VIP: the client's end, the server's, the client's port.
    pub(crate) fn connect(&self) -> (TcpStream, TcpStream, u16) {
        let listener = self.server.enter(|| until("the server's port is free", || TcpListener::bind(SERVER).ok()));
        let vip: SocketAddr = format!("{VIP}:80").parse().expect("an address");
        let near = self.client.enter(|| TcpStream::connect_timeout(&vip, PATIENCE).expect("forwarded"));
        let (far, _) = listener.accept().expect("connected");
        for stream in [&near, &far] {
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            stream.set_nodelay(true).expect("set");
        }
        let port = near.local_addr().expect("connected").port();
        (near, far, port)
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
