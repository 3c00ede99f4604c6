//! The embedded balancer in the kernel: a client, a balancer host and three backends in network namespaces of their own.
//! Needs root; without, it says so and is skipped.

mod fabric {
    use std::fs::{self, File};
    use std::io::{Read as _, Write as _};
    use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    /// Nothing here takes a tenth of it; only a hang does.
    pub(super) const PATIENCE: Duration = Duration::from_secs(30);
    pub(super) const VIP: &str = "10.9.1.10";
    pub(super) const VIP6: &str = "fd09:1::10";

    pub(super) fn skipped() -> bool {
        let root = nix::unistd::geteuid().is_root();
        if !root {
            eprintln!("skipped: network namespaces need root");
        }
        !root
    }

    pub(super) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn run(program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
        assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(super) struct Namespace(pub(super) String);

    impl Namespace {
        fn new(role: &str) -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("hfpool{}-{}{role}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            run("ip", &["netns", "add", &name]);
            let namespace = Self(name);
            namespace.ip("link set lo up");
            namespace
        }

        pub(super) fn ip(&self, arguments: &str) -> String {
            let mut all = vec!["-n", self.0.as_str()];
            all.extend(arguments.split_whitespace());
            run("ip", &all)
        }

        pub(super) fn exec(&self, words: &str) -> String {
            let mut all = vec!["netns", "exec", self.0.as_str()];
            all.extend(words.split_whitespace());
            run("ip", &all)
        }

        pub(super) fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    self.join();
                    f()
                });
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        }

        fn join(&self) {
            let file = File::open(format!("/run/netns/{}", self.0)).expect("the namespace is there");
            nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).expect("root may enter it");
        }

        fn set(&self, key: &str, value: &str) {
            let path = format!("/proc/sys/net/{key}");
            self.enter(|| fs::write(&path, value).unwrap_or_else(|e| panic!("{path}: {e}")));
        }
    }

    impl Drop for Namespace {
        fn drop(&mut self) {
            let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
        }
    }

    /// TCP and UDP on ports 80 and 53 of a backend: each answers its number and whom it saw.
    pub(super) struct Backend {
        pub(super) namespace: Namespace,
        pub(super) number: u8,
        stop: Arc<AtomicBool>,
    }

    impl Backend {
        pub(super) fn address(&self, port: u16) -> SocketAddr {
            SocketAddr::from(([10, 9, 2, 10 + self.number], port))
        }

        pub(super) fn start(&mut self) {
            self.stop = Arc::new(AtomicBool::new(false));
            let number = self.number;
            let (tcp, udp) = self.namespace.enter(|| {
                let tcp = TcpListener::bind("[::]:80").expect("free");
                let udp = UdpSocket::bind("[::]:53").expect("free");
                tcp.set_nonblocking(true).expect("set");
                udp.set_read_timeout(Some(Duration::from_millis(50))).expect("set");
                (tcp, udp)
            });
            let stop = Arc::clone(&self.stop);
            std::thread::spawn(move || {
                let mut buffer = [0; 64];
                while !stop.load(Ordering::Relaxed) {
                    if let Ok((_, from)) = udp.recv_from(&mut buffer) {
                        let _ = udp.send_to(&[number], from);
                    }
                }
            });
            let stop = Arc::clone(&self.stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    match tcp.accept() {
                        Ok((stream, from)) => drop(std::thread::spawn(move || serve(stream, from, number))),
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
            });
        }

        pub(super) fn stop(&self) {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// As many requests as come, one after the other.
    fn serve(mut stream: TcpStream, from: SocketAddr, number: u8) {
        let _ = stream.set_nonblocking(false);
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let mut buffer = [0; 1024];
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            let _ = read;
            let body = format!("{number} {}\n", from.ip().to_canonical());
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    /// A client on the front segment, the host, and backends behind it.
    pub(super) struct Fabric {
        pub(super) client: Namespace,
        pub(super) host: Namespace,
        pub(super) backends: Vec<Backend>,
    }

    impl Fabric {
        pub(super) fn new() -> Self {
            let (client, host) = (Namespace::new("c"), Namespace::new("h"));
            host.set("ipv4/ip_forward", "1");
            host.set("ipv6/conf/all/forwarding", "1");
            host.ip(&format!("link add front type veth peer name eth0 netns {}", client.0));
            host.ip("link add back type bridge");
            for device in ["front", "back"] {
                host.ip(&format!("link set {device} up"));
                // Or a backend that comes to a service is told of a shorter way, past us.
                host.set(&format!("ipv4/conf/{device}/send_redirects"), "0");
            }
            host.set("ipv4/conf/all/send_redirects", "0");
            client.ip("link set eth0 up");
            client.ip("address add 10.9.1.2/24 dev eth0");
            client.ip("address add fd09:1::2/64 dev eth0 nodad");
            host.ip("address add 10.9.1.1/24 dev front");
            host.ip("address add fd09:1::1/64 dev front nodad");
            host.ip("address add 10.9.2.1/24 dev back");
            host.ip("address add fd09:2::1/64 dev back nodad");
            client.ip("route add default via 10.9.1.1");
            client.ip("route add default via fd09:1::1");
            let backend = |number: u8| {
                let namespace = Namespace::new(&format!("b{number}"));
                host.ip(&format!("link add b{number} type veth peer name eth0 netns {}", namespace.0));
                host.ip(&format!("link set b{number} up master back"));
                // Where bridges filter too, one that is sent to itself would not leave by the port it came from.
                host.ip(&format!("link set b{number} type bridge_slave hairpin on"));
                namespace.ip("link set eth0 up");
                namespace.ip(&format!("address add 10.9.2.{}/24 dev eth0", 10 + number));
                namespace.ip(&format!("address add fd09:2::1{number}/64 dev eth0 nodad"));
                namespace.ip("route add default via 10.9.2.1");
                namespace.ip("route add default via fd09:2::1");
                let mut backend = Backend { namespace, number, stop: Arc::default() };
                backend.start();
                backend
            };
            let backends: Vec<Backend> = (1..=3).map(backend).collect();
            for backend in &backends {
                let address = backend.address(80);
                until("the backend is reached", || host.enter(|| TcpStream::connect(address).ok()));
            }
            Self { client, host, backends }
        }

        /// The VIPs, where no agent holds them.
        pub(super) fn hold(&self) {
            self.host.ip(&format!("address add {VIP}/32 dev front"));
            self.host.ip(&format!("address add {VIP6}/128 dev front nodad"));
        }

        /// Who answers a datagram from each of these ports of the client; 0: nobody.
        pub(super) fn ask_by_udp(&self, ports: std::ops::Range<u16>) -> Vec<u8> {
            self.client.enter(|| {
                let ask = |port: u16| {
                    let socket = UdpSocket::bind(("10.9.1.2", port)).expect("free");
                    socket.set_read_timeout(Some(Duration::from_secs(2))).expect("set");
                    let mut answer = [0];
                    // A loaded machine may lose one.
                    for _ in 0..3 {
                        let sent = socket.send_to(b"?", (VIP, 53)).and_then(|_| socket.recv(&mut answer));
                        if sent.is_ok() {
                            return answer[0];
                        }
                    }
                    0
                };
                ports.map(ask).collect()
            })
        }
    }

    impl Drop for Fabric {
        fn drop(&mut self) {
            self.backends.iter().for_each(Backend::stop);
        }
    }

    /// One request on a connection: which backend, and whom it saw.
    pub(super) fn ask(stream: &mut TcpStream) -> Option<(u8, IpAddr)> {
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
        let mut text = String::new();
        let mut buffer = [0; 512];
        while !text.ends_with('\n') || !text.contains("\r\n\r\n") {
            let read = stream.read(&mut buffer).ok().filter(|read| *read > 0)?;
            text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        let (number, seen) = text.rsplit_once("\r\n\r\n")?.1.trim().split_once(' ')?;
        Some((number.parse().ok()?, seen.parse().ok()?))
    }

    pub(super) fn connect(address: &str) -> Option<TcpStream> {
        let address: SocketAddr = address.parse().expect("an address");
        TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()
    }
}

use fabric::{Fabric, VIP, VIP6, ask, connect, skipped, until};
use holdfast::os::nft::Balancer;
use holdfast_node::config::{Affinity, NatMode, Service, SetId, Transport};
use holdfast_node::pool::maglev::Layout;
use holdfast_node::pool::{Balance, Ruleset, SetChange, SetTable, SlotChange};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn table(backends: &[SocketAddr], shares: &[u32]) -> SetTable {
    let layout = Layout::new(&backends.iter().map(|backend| (*backend, 1)).collect::<Vec<_>>());
    SetTable { backends: backends.into(), slots: layout.table(shares).into() }
}

fn service(ip: IpAddr, protocol: Transport, port: u16, set: u16) -> Service {
    Service {
        vip: holdfast_node::config::Name::new("web").expect("a name"),
        protocol,
        port,
        addresses: vec![(ip, SetId(set))],
        mode: NatMode::Snat,
        affinity: Affinity::Flow,
        snat: Vec::new(),
        mss: None,
    }
}

fn load(services: Vec<Service>, sets: Vec<SetTable>) -> Balance {
    Balance::Load(Arc::new(Ruleset { services: services.into(), sets }))
}

/// From one table of a set to another.
fn change(set: u16, from: &SetTable, to: &SetTable) -> Balance {
    let slots = (0..from.slots.len()).filter(|slot| from.slots[*slot] != to.slots[*slot]);
    let slots =
        slots.map(|slot| SlotChange { slot: u32::try_from(slot).expect("small"), taken: true, to: to.backend(slot) });
    Balance::Change([SetChange { set: SetId(set), six: from.is_six(), slots: slots.collect() }].into())
}

fn vip() -> IpAddr {
    VIP.parse().expect("an address")
}

fn udp_backends(fabric: &Fabric) -> Vec<SocketAddr> {
    fabric.backends.iter().map(|backend| backend.address(53)).collect()
}

#[test]
fn ten_thousand_flows_are_spread_by_weight_and_a_death_moves_only_its_own() {
    if skipped() {
        return;
    }
    const FLOWS: u16 = 10_000;
    let fabric = Fabric::new();
    fabric.hold();
    let backends = udp_backends(&fabric);
    let (all, two) = (table(&backends, &[1_000; 3]), table(&backends, &[1_000, 0, 1_000]));
    let tcp: Vec<SocketAddr> = fabric.backends.iter().map(|backend| backend.address(80)).collect();
    let (all_tcp, two_tcp) = (table(&tcp, &[1_000; 3]), table(&tcp, &[1_000, 0, 1_000]));
    let services = vec![service(vip(), Transport::Udp, 53, 0), service(vip(), Transport::Tcp, 80, 1)];
    let mut kernel = fabric.host.enter(|| Balancer::open().expect("open"));
    fabric.host.enter(|| kernel.apply(&load(services, vec![all.clone(), all_tcp.clone()])).expect("loaded"));
    let mut open: Vec<_> = fabric.client.enter(|| {
        let opened = (0..60).map(|_| connect(&format!("{VIP}:80")).expect("connected"));
        opened.map(|mut stream| (ask(&mut stream).expect("answered"), stream)).collect()
    });

    let ports = 20_000..20_000 + FLOWS;
    let first = fabric.ask_by_udp(ports.clone());
    let fair = f64::from(FLOWS) / 3.0;
    for number in 1..=3 {
        let got = first.iter().filter(|answer| **answer == number).count() as f64;
        assert!((got / fair - 1.0).abs() <= 0.05, "backend {number}: {got} of {FLOWS}");
    }
    let counted = fabric.host.enter(|| kernel.flows(SetId(0)).expect("read"));
    for (backend, number) in backends.iter().zip(1..) {
        let got = first.iter().filter(|answer| **answer == number).count() as u64;
        assert_eq!(counted.get(backend), Some(&got), "{counted:?}");
    }

    fabric.host.enter(|| {
        kernel.apply(&change(0, &all, &two)).expect("changed");
        kernel.apply(&change(1, &all_tcp, &two_tcp)).expect("changed");
    });
    // The same flows, as if they were new.
    fabric.host.exec("conntrack -D -p udp");
    let second = fabric.ask_by_udp(ports.clone());
    let moved = first.iter().zip(&second).filter(|(a, b)| a != b).count();
    assert!(second.iter().all(|answer| [1, 3].contains(answer)), "{second:?}");
    assert!(moved as f64 <= 1.3 / 3.0 * f64::from(FLOWS), "{moved}");
    let own = first.iter().filter(|answer| **answer == 2).count();
    assert_eq!(moved, own, "nobody else's flow moved");

    fabric.host.enter(|| kernel.apply(&change(0, &two, &all)).expect("changed"));
    fabric.host.exec("conntrack -D -p udp");
    assert_eq!(fabric.ask_by_udp(ports), first, "back where they were");

    // Connections that are established have never noticed, those to the one that was taken out included.
    for (before, stream) in &mut open {
        assert_eq!(ask(stream).as_ref(), Some(&*before));
    }
    assert!(open.iter().any(|((number, _), _)| *number == 2));
}

#[test]
fn both_families_sources_affinity_hairpin_and_segment_size_are_as_the_service_says() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    fabric.hold();
    for address in ["10.9.2.101/24", "10.9.2.102/24"] {
        fabric.host.ip(&format!("address add {address} dev back"));
    }
    let four: Vec<SocketAddr> = fabric.backends.iter().map(|backend| backend.address(80)).collect();
    let six: Vec<SocketAddr> = (1..=3).map(|n| format!("[fd09:2::1{n}]:80").parse().expect("an address")).collect();
    let vip6: IpAddr = VIP6.parse().expect("an address");
    let services = vec![
        service(vip(), Transport::Tcp, 80, 0),
        Service { mode: NatMode::Dnat, ..service(vip(), Transport::Tcp, 81, 0) },
        Service { affinity: Affinity::Source, mss: Some(1_200), ..service(vip(), Transport::Tcp, 82, 0) },
        Service {
            snat: vec!["10.9.2.101".parse().expect("an address"), "10.9.2.102".parse().expect("an address")],
            ..service(vip(), Transport::Tcp, 83, 0)
        },
        service(vip6, Transport::Tcp, 80, 1),
        Service { mode: NatMode::Dnat, affinity: Affinity::Source, ..service(vip6, Transport::Tcp, 81, 1) },
    ];
    let sets = vec![table(&four, &[1; 3]), table(&six, &[1; 3])];
    fabric.host.enter(|| Balancer::open().expect("open").apply(&load(services, sets)).expect("loaded"));
    assert!(fabric.host.exec("nft list table inet holdfast_pool").contains("chain pre"), "nft can show it");
    let several = |address: &str| -> Vec<(u8, IpAddr)> {
        let one = |_| connect(address).and_then(|mut stream| ask(&mut stream)).unwrap_or_else(|| panic!("{address}"));
        fabric.client.enter(|| (0..30).map(one).collect())
    };
    let numbers = |answers: &[(u8, IpAddr)]| answers.iter().map(|(n, _)| *n).collect::<std::collections::BTreeSet<_>>();
    let seen = |answers: &[(u8, IpAddr)]| {
        answers.iter().map(|(_, ip)| ip.to_string()).collect::<std::collections::BTreeSet<_>>()
    };
    let set = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<std::collections::BTreeSet<_>>();

    let answers = several(&format!("{VIP}:80"));
    assert_eq!((numbers(&answers).len(), seen(&answers)), (3, set(&["10.9.2.1"])), "the host's own address");
    let answers = several(&format!("{VIP}:81"));
    assert_eq!((numbers(&answers).len(), seen(&answers)), (3, set(&["10.9.1.2"])), "the client's");
    let answers = several(&format!("{VIP}:82"));
    assert_eq!(numbers(&answers).len(), 1, "one client, one backend");
    let answers = several(&format!("{VIP}:83"));
    assert_eq!((numbers(&answers).len(), seen(&answers)), (3, set(&["10.9.2.101", "10.9.2.102"])));
    let answers = several(&format!("[{VIP6}]:80"));
    assert_eq!((numbers(&answers).len(), seen(&answers)), (3, set(&["fd09:2::1"])));
    let answers = several(&format!("[{VIP6}]:81"));
    assert_eq!((numbers(&answers).len(), seen(&answers)), (1, set(&["fd09:1::2"])));

    // A backend that comes to the service itself would else be answered past the host.
    let own = fabric.backends[0].namespace.enter(|| {
        let one = |_| connect(&format!("{VIP}:81")).and_then(|mut stream| ask(&mut stream)).expect("answered");
        (0..30).map(one).collect::<Vec<_>>()
    });
    assert_eq!((numbers(&own).len(), seen(&own)), (3, set(&["10.9.2.1"])));
    // And so does the host.
    let host = fabric.host.enter(|| connect(&format!("{VIP}:80")).and_then(|mut stream| ask(&mut stream)));
    assert!(host.is_some());

    let mss = |port: u16| {
        fabric.client.enter(|| {
            let stream = connect(&format!("{VIP}:{port}")).expect("connected");
            nix::sys::socket::getsockopt(&stream, nix::sys::socket::sockopt::TcpMaxSeg).expect("read")
        })
    };
    // What the client may send: 12 bytes of each segment are its timestamps.
    assert_eq!((mss(82), mss(80) > 1_400), (1_200 - 12, true));
}

/// Answers by curl, through everything.
fn curl(fabric: &Fabric) -> Option<u8> {
    let words = ["netns", "exec", &fabric.client.0, "curl", "-s", "-m", "2", &format!("http://{VIP}/")];
    let output = Command::new("ip").args(words).output().expect("curl is installed");
    String::from_utf8_lossy(&output.stdout).split(' ').next()?.parse().ok()
}

struct Agent {
    folder: PathBuf,
    namespace: String,
    child: Option<Child>,
}

impl Agent {
    fn new(fabric: &Fabric) -> Self {
        let folder = std::env::temp_dir().join(format!("{}-agent", fabric.host.0));
        fs::create_dir(&folder).expect("a fresh name");
        let backends: Vec<String> = fabric.backends.iter().map(|b| format!("\"{}\"", b.address(80))).collect();
        let config = format!(
            "[node]\nname = \"a\"\n[[balancer]]\nname = \"l4\"\nkind = \"nft\"\n[[vip]]\nname = \"web\"\n\
             addresses = [\"{VIP}/32\"]\nvrrp = {{ interface = \"front\", vrid = 7, priority = 254, interval = \"100ms\" }}\n\
             [[nft.service]]\nvip = \"web\"\nprotocol = \"tcp\"\nport = 80\nbackends = [{}]\n\
             check = {{ http = \"/healthz\", interval = \"200ms\", timeout = \"100ms\", fall = 2, rise = 2 }}\n",
            backends.join(", ")
        );
        fs::write(folder.join("holdfast.toml"), config).expect("writable");
        Self { folder, namespace: fabric.host.0.clone(), child: None }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, env!("CARGO_BIN_EXE_holdfast")]).args(words);
        for (option, name) in [("--config", "holdfast.toml"), ("--runtime-dir", "run"), ("--state-dir", "state")] {
            command.arg(option).arg(self.folder.join(name));
        }
        command
    }

    fn start(&mut self) {
        let log = fs::File::create(self.folder.join("log")).expect("writable");
        self.child = Some(self.command(&["run"]).stdout(Stdio::null()).stderr(log).spawn().expect("it starts"));
    }

    fn ask(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("it starts")
    }

    fn pool(&self) -> Option<serde_json::Value> {
        let status: serde_json::Value = serde_json::from_slice(&self.ask(&["status", "--json"]).stdout).ok()?;
        status.get("pool").cloned()
    }

    /// Slots and state of each backend.
    fn backends(&self) -> Option<Vec<(u64, String)>> {
        let pool = self.pool()?;
        let backends = pool["sets"][0]["backends"].as_array()?;
        Some(
            backends
                .iter()
                .map(|b| (b["slots"].as_u64().unwrap_or(0), b["state"].as_str().unwrap_or("").to_owned()))
                .collect(),
        )
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn the_agent_alone_serves_drops_the_dead_puts_back_what_was_flushed_and_leaves_nothing() {
    if skipped() {
        return;
    }
    let mut fabric = Fabric::new();
    let mut agent = Agent::new(&fabric);
    agent.start();
    until("it serves", || curl(&fabric));
    let up = |agent: &Agent, expected: [&str; 3]| {
        agent.backends().filter(|all| all.iter().map(|(_, state)| state.as_str()).eq(expected))
    };
    until("the checks pass", || up(&agent, ["up", "up", "up"]));
    let text = String::from_utf8_lossy(&agent.ask(&["status"]).stdout).into_owned();
    assert!(text.contains("web tcp/80") && text.contains("10.9.2.13:80"), "{text}");

    // One that is flushed comes back, and a connection through it goes on.
    let mut stream = fabric.client.enter(|| connect(&format!("{VIP}:80"))).expect("connected");
    let before = ask(&mut stream).expect("answered");
    fabric.host.exec("nft flush ruleset");
    until("the table is back", || fabric.host.exec("nft list tables").contains("holdfast_pool").then_some(()));
    assert_eq!(ask(&mut stream), Some(before));
    until("it serves", || curl(&fabric));
    fabric.host.exec("nft delete chain inet holdfast_pool post");
    let whole = || fabric.host.exec("nft list chains").contains("chain post").then_some(());
    until("the chain is back", whole);

    fabric.backends[1].stop();
    let after = until("the dead one is out", || up(&agent, ["up", "down", "up"]));
    assert_eq!(after[1].0, 0);
    assert!((0..30).filter_map(|_| curl(&fabric)).all(|number| number != 2));
    fabric.backends[1].start();
    until("it is back", || up(&agent, ["up", "up", "up"]).filter(|all| all[1].0 > 300));

    let drained = agent.ask(&["pool", "drain", "10.9.2.11"]);
    assert_eq!(drained.status.code(), Some(0), "{}", String::from_utf8_lossy(&drained.stderr));
    until("the drained one is out", || agent.backends().filter(|all| all[0].0 == 0 && all[0].1 == "drained"));
    assert!((0..30).filter_map(|_| curl(&fabric)).all(|number| number != 1));
    assert_eq!(agent.ask(&["pool", "drain", "10.9.2.99"]).status.code(), Some(10));
    assert_eq!(agent.ask(&["pool", "undrain", "10.9.2.11:80"]).status.code(), Some(0));
    until("it is back", || agent.backends().filter(|all| all[0].0 > 300));
    let flows = |pool: &serde_json::Value| pool["sets"][0]["backends"][2]["flows"].as_u64();
    assert!(agent.pool().as_ref().and_then(flows).is_some_and(|flows| flows > 0), "{:?}", agent.pool());

    let mut child = agent.child.take().expect("started");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it runs");
    let code = until("it ends", || child.try_wait().expect("our child"));
    assert_eq!(code.code(), Some(0), "{}", agent.log());
    assert_eq!(fabric.host.exec("nft list tables"), "");
}

fn spread(sets: u16, services: u16) -> (Vec<Service>, Vec<SetTable>) {
    let backends = |set: u16| -> Vec<SocketAddr> {
        let [high, low] = set.to_be_bytes();
        (1..=5).map(|n| SocketAddr::from(([10, 100 + high, low, n], 80))).collect()
    };
    let all = (0..sets).map(|set| table(&backends(set), &[1; 5])).collect();
    let service = |n: u16| service(vip(), Transport::Tcp, 1_000 + n, n % sets);
    ((0..services).map(service).collect(), all)
}

#[test]
fn a_hundred_sets_fit_one_transaction_and_a_change_is_of_one() {
    if skipped() {
        return;
    }
    let fabric = Fabric::new();
    let (services, sets) = spread(100, 100);
    let from = sets[42].clone();
    let to = table(&from.backends, &[1, 1, 0, 1, 1]);
    fabric.host.enter(|| {
        let mut kernel = Balancer::open().expect("open");
        kernel.apply(&load(services, sets)).expect("loaded");
        kernel.apply(&change(42, &from, &to)).expect("changed");
        let gone = SlotChange { slot: 5_000, taken: true, to: None };
        let wrong = SetChange { set: SetId(42), six: false, slots: vec![gone] };
        let error = kernel.apply(&Balance::Change([wrong].into())).expect_err("there is no such slot");
        assert!(error.what.contains("m42"), "{}", error.what);
        kernel.apply(&Balance::Unload).expect("removed");
        assert!(!kernel.is_there().expect("asked"));
        kernel.apply(&Balance::Unload).expect("gone already");
    });
}

/// Run by hand on a quiet machine: `cargo test --release --test pool balance_cost -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn balance_cost() {
    let fabric = Fabric::new();
    for (sets, services) in [(100, 100), (20, 1_000)] {
        let (services, tables) = spread(sets, services);
        let from = tables[0].clone();
        let to = table(&from.backends, &[1, 1, 0, 1, 1]);
        let (mut loads, mut changes) = (Vec::new(), Vec::new());
        fabric.host.enter(|| {
            let mut kernel = Balancer::open().expect("open");
            for _ in 0..10 {
                let wanted = load(services.clone(), tables.clone());
                let begun = Instant::now();
                kernel.apply(&wanted).expect("loaded");
                loads.push(begun.elapsed());
                for (a, b) in [(&from, &to), (&to, &from)] {
                    let wanted = change(0, a, b);
                    let begun = Instant::now();
                    kernel.apply(&wanted).expect("changed");
                    changes.push(begun.elapsed());
                }
            }
        });
        for (what, mut took) in [("load", loads), ("change one", changes)] {
            took.sort();
            let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
            println!("{sets} sets, {} services: {what}: median {median:?}, worst {worst:?}", services.len());
        }
    }
}

/// Run by hand on a quiet machine: `cargo test --release --test pool forwarding_cost -- --ignored --nocapture`.
/// Our table beside one written by hand for the same backends, in turns: time for a number of exchanges on one flow
/// each, and the ratio of each pair. The upper bound is the fifteenth of twenty (95 %, one-sided, distribution-free).
#[test]
#[ignore = "a measurement"]
fn forwarding_cost() {
    const PAIRS: usize = 20;
    const EXCHANGES: usize = 20_000;
    let fabric = Fabric::new();
    fabric.hold();
    let backends = udp_backends(&fabric);
    let choices: Vec<String> =
        backends.iter().zip(0..).map(|(b, n)| format!("{n} : {} . {}", b.ip(), b.port())).collect();
    let by_hand = format!(
        "table ip byhand {{\n chain pre {{ type nat hook prerouting priority dstnat;\n ip daddr {VIP} udp dport 53 dnat ip to \
         jhash ip saddr . udp sport mod 3 map {{ {} }}\n }}\n chain post {{ type nat hook postrouting priority srcnat;\n \
         ip daddr 10.9.2.0/24 udp dport 53 masquerade\n }}\n}}\n",
        choices.join(", ")
    );
    let file = std::env::temp_dir().join(format!("{}.nft", fabric.host.0));
    fs::write(&file, by_hand).expect("writable");
    let ours = load(vec![service(vip(), Transport::Udp, 53, 0)], vec![table(&backends, &[1; 3])]);
    let measure = |embedded: bool, port: u16| -> Duration {
        fabric.host.exec("nft flush ruleset");
        fabric.host.exec("conntrack -F");
        if embedded {
            fabric.host.enter(|| Balancer::open().expect("open").apply(&ours).expect("loaded"));
        } else {
            fabric.host.exec(&format!("nft -f {}", file.display()));
        }
        fabric.client.enter(|| {
            let socket = std::net::UdpSocket::bind(("10.9.1.2", port)).expect("free");
            socket.connect((VIP, 53)).expect("connected");
            socket.set_read_timeout(Some(Duration::from_secs(2))).expect("set");
            let mut buffer = [0; 8];
            let mut exchange = || {
                socket.send(b"?").expect("sent");
                socket.recv(&mut buffer).expect("answered");
            };
            (0..1_000).for_each(|_| exchange());
            let begun = Instant::now();
            (0..EXCHANGES).for_each(|_| exchange());
            begun.elapsed()
        })
    };
    let mut ratios: Vec<f64> = (0..PAIRS)
        .map(|pair| {
            let port = 30_000 + u16::try_from(pair).expect("few");
            let first = pair % 2 == 0;
            let (a, b) = (measure(first, port), measure(!first, port));
            let (ours, theirs) = if first { (a, b) } else { (b, a) };
            println!("pair {pair}: ours {ours:?}, by hand {theirs:?}");
            ours.as_secs_f64() / theirs.as_secs_f64()
        })
        .collect();
    let _ = fs::remove_file(file);
    ratios.sort_by(f64::total_cmp);
    println!("ratio: median {:.3}, upper 95 % bound {:.3}", (ratios[9] + ratios[10]) / 2.0, ratios[14]);
}
