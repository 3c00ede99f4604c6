//! A keeper with a worker that does almost nothing, for the tests of the real keeper (`tests/keeper.rs`,
//! `tests/keeper_bfd.rs`).
//!
//! `keeper_pair keeper DIR` runs the keeper; it starts `keeper_pair worker`, which takes its part from the environment:
//! `PAIR_LOG` (a file that gets one line per message), `PAIR_FAIL` (while this file exists the worker exits at once),
//! `PAIR_VIP` (`IFINDEX,ADDRESS,SOURCE`: added, recorded as Active, removed at the end), `PAIR_BALANCER` (a command),
//! `PAIR_EXEC` (a number of runs of a shell that ignores SIGTERM), `PAIR_BFD` (a file with a session a line: `NAME LOCAL
//! REMOTE INTERFACE MS MULTIPLIER MULTIHOP MIN_TTL`, `-` for none; read again at SIGHUP), `PAIR_BGP` (`ADDRESS,HOLD_MS`:
//! connected, and the keeper gets the socket; `ADDRESS,HOLD_MS,BYTES`: once something is there to be read, with a
//! farewell of that length, and all that is read is logged). `keeper_pair drop USER` drops its capabilities and
//! prints what the kernel then says.

use holdfast::keeper::channel::{Received, WorkerEnd};
use holdfast::keeper::{KeeperOptions, run};
use holdfast::os::{addr::AddressSocket, caps, process, vrrp};
use holdfast_node::keeper::ipc::{
    BfdSpec, BgpGrace, BgpSession, Resign, ToKeeper, ToWorker, Undo, VipAddress, VipRecord,
};
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let argument = |n: usize| arguments.get(n).map_or("", String::as_str);
    match argument(1) {
        "keeper" => {
            let me = std::env::current_exe().expect("known").display().to_string();
            run(KeeperOptions {
                worker_argv: vec![me, "worker".to_owned()],
                runtime_dir: argument(2).into(),
                stop_deadline: Duration::from_secs(5),
            })
        }
        "worker" if std::env::var("PAIR_FAIL").is_ok_and(|path| std::fs::exists(path).unwrap_or(false)) => {
            ExitCode::from(3)
        }
        "worker" => {
            let number = argument(3).parse().expect("--ipc-fd N");
            Worker::new(WorkerEnd::new(process::take_inherited(number).expect("inherited"))).run()
        }
        "drop" => {
            let dropped = caps::drop_to(argument(2), caps::WORKER).expect("dropped");
            println!("notes: {:?}", dropped.notes);
            println!("kept: {}", caps::names(dropped.kept));
            print!("{}", std::fs::read_to_string("/proc/self/status").expect("readable"));
            ExitCode::SUCCESS
        }
        other => panic!("what is {other:?}?"),
    }
}

struct Vip {
    address: VipAddress,
    source: Ipv4Addr,
}

struct Worker {
    end: WorkerEnd,
    log: std::fs::File,
    vip: Option<Vip>,
    bgp: Option<std::net::TcpStream>,
}

impl Worker {
    fn new(end: WorkerEnd) -> Self {
        let log = std::env::var("PAIR_LOG").expect("PAIR_LOG");
        let log = std::fs::File::options().append(true).create(true).open(log).expect("opened");
        let vip = std::env::var("PAIR_VIP").ok().map(|text| {
            let mut parts = text.split(',');
            let mut next = || parts.next().expect("IFINDEX,ADDRESS,SOURCE");
            let ifindex = next().parse().expect("a number");
            let address = VipAddress { ifindex, ip: next().parse().expect("an address"), prefix: 32 };
            Vip { address, source: next().parse().expect("an address") }
        });
        Self { end, log, vip, bgp: None }
    }

    fn say(&self, message: &ToKeeper) {
        self.end.send(message, None).expect("sent");
    }

    fn log(&mut self, line: String) {
        // One write per line: several processes append to it.
        self.log.write_all(format!("{} {line}\n", std::process::id()).as_bytes()).expect("written");
    }

    fn run(mut self) -> ExitCode {
        self.say(&ToKeeper::Hello { hang_limit: Duration::from_millis(500), resume_limit: Duration::from_millis(200) });
        loop {
            let mut fds = [rustix::event::PollFd::new(&self.end, rustix::event::PollFlags::IN)];
            let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            let _ = rustix::event::poll(&mut fds, Some(&wait));
            loop {
                match self.end.receive().expect("received") {
                    Received::Empty => break,
                    Received::Closed => {
                        self.log("closed".to_owned());
                        self.remove();
                        return ExitCode::SUCCESS;
                    }
                    Received::Message(ToWorker::Stop { .. }, _) => {
                        self.remove();
                        self.own(false);
                        self.say(&ToKeeper::Stopped);
                        return ExitCode::SUCCESS;
                    }
                    Received::Message(message, _) => self.take(message),
                }
            }
            self.say(&ToKeeper::Beat);
        }
    }

    fn take(&mut self, message: ToWorker) {
        self.log(format!("{message:?}"));
        if let ToWorker::Boot { .. } | ToWorker::Reload = message {
            self.want_bfd();
        }
        let ToWorker::Boot { .. } = message else { return };
        self.own(true);
        if let Some(Vip { address, .. }) = &self.vip {
            let mut socket = AddressSocket::open().expect("opened");
            let lifetime = Duration::from_secs(60);
            socket.add(address.ifindex, address.ip, address.prefix, lifetime).expect("added");
        }
        self.connect();
        if let Ok(command) = std::env::var("PAIR_BALANCER") {
            let argv = command.split(' ').map(str::to_owned).collect();
            self.say(&ToKeeper::StartBalancer { name: "b".to_owned(), argv, soft_stop: None });
        }
        let runs = std::env::var("PAIR_EXEC").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
        for token in 0..runs {
            let script = "trap 'echo no' TERM; echo $PAIR_WORD; sleep 30 & while :; do wait; done";
            self.say(&ToKeeper::Exec {
                token,
                argv: ["/bin/sh", "-c", script].map(str::to_owned).into(),
                environment: vec![("PAIR_WORD".to_owned(), "word".to_owned())],
                timeout: Duration::from_millis(500),
            });
        }
    }

    fn want_bfd(&self) {
        let Ok(list) = std::env::var("PAIR_BFD").map(|path| std::fs::read_to_string(path).expect("readable")) else {
            return;
        };
        let spec = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [neighbor, local, remote, interface, ms, multiplier, multihop, min_ttl] = words[..] else {
                panic!("eight words: {line}")
            };
            let given = |word: &str| Some(word.to_owned()).filter(|word| word != "-");
            BfdSpec {
                neighbor: neighbor.to_owned(),
                local: given(local).map(|ip| ip.parse().expect("an address")),
                remote: remote.parse().expect("an address"),
                interface: given(interface),
                interval: Duration::from_millis(ms.parse().expect("a number")),
                multiplier: multiplier.parse().expect("a number"),
                multihop: multihop == "true",
                min_ttl: min_ttl.parse().expect("a number"),
            }
        };
        self.say(&ToKeeper::Bfd(list.lines().map(spec).collect()));
    }

    /// A session that speaks no BGP: the keeper doesn't look.
    fn connect(&mut self) {
        let Ok(text) = std::env::var("PAIR_BGP") else { return };
        let words: Vec<&str> = text.split(',').collect();
        let [address, hold, ref more @ ..] = words[..] else { panic!("ADDRESS,HOLD_MS: {text}") };
        let length: Option<usize> = more.first().map(|word| word.parse().expect("a number"));
        let stream = std::net::TcpStream::connect(address).expect("connected");
        let session = BgpSession {
            neighbor: "r1".to_owned(),
            hold: Duration::from_millis(hold.parse().expect("a number")),
            restart: Some(Duration::from_secs(15)),
            farewell: length.map_or_else(|| b"farewell".to_vec(), |length| vec![0; length]),
            active: true,
        };
        if length.is_some() {
            stream.peek(&mut [0]).expect("there is something");
        }
        self.end.send(&ToKeeper::BgpSession(session), Some(stream.as_fd())).expect("sent");
        if length.is_some() {
            let (mut stream, mut log) = (stream, self.log.try_clone().expect("another one"));
            std::thread::spawn(move || {
                let mut text = String::new();
                stream.read_to_string(&mut text).expect("readable");
                log.write_all(format!("read {text}\n").as_bytes()).expect("written");
            });
            return;
        }
        self.bgp = Some(stream);
        // An announced VIP without anything in the kernel, behind the balancer.
        let record = VipRecord {
            vip: "announced".to_owned(),
            active: true,
            role_epoch: 1,
            undo: Vec::new(),
            resign: Vec::new(),
            interval: Duration::from_millis(100),
            balancers: vec!["b".to_owned()],
            pseudo_header: vec![],
            bgp: Some(BgpGrace { grace: Duration::from_secs(60) }),
        };
        self.say(&ToKeeper::Owner(record));
    }

    fn own(&self, active: bool) {
        let Some(Vip { address, source }) = &self.vip else { return };
        // VRRPv3, VRID 10, priority 0, one address; the checksum is nobody's business here.
        let mut payload = vec![0x31, 10, 0, 1, 0, 10, 0, 0];
        payload.extend_from_slice(&[192, 0, 2, 10]);
        let record = VipRecord {
            vip: "web".to_owned(),
            active,
            role_epoch: 7,
            undo: if active { vec![Undo::Address(*address)] } else { Vec::new() },
            resign: vec![Resign {
                ifindex: address.ifindex,
                source: (*source).into(),
                destination: vrrp::GROUP.into(),
                payload,
            }],
            interval: Duration::from_millis(100),
            balancers: Vec::new(),
            pseudo_header: vec![],
            bgp: None,
        };
        let sender = vrrp::Sender::open(vrrp::Family::V4, Some(address.ifindex)).expect("opened");
        self.end.send(&ToKeeper::Owner(record), Some(sender.as_fd())).expect("sent");
    }

    fn remove(&self) {
        if let Some(Vip { address, .. }) = &self.vip {
            let mut socket = AddressSocket::open().expect("opened");
            socket.remove(address.ifindex, address.ip, address.prefix).expect("removed");
        }
    }
}
