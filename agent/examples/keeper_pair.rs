//! A keeper with a worker that does almost nothing, for the tests of the real keeper (`tests/keeper.rs`).
//!
//! `keeper_pair keeper DIR` runs the keeper; it starts `keeper_pair worker`, which takes its part from the environment:
//! `PAIR_LOG` (a file that gets one line per message), `PAIR_FAIL` (while this file exists the worker exits at once),
//! `PAIR_VIP` (`IFINDEX,ADDRESS,SOURCE`: added, recorded as Active, removed at the end), `PAIR_BALANCER` (a command),
//! `PAIR_EXEC` (a number of runs of a shell that ignores SIGTERM). `keeper_pair drop USER` drops its capabilities and
//! prints what the kernel then says.

use holdfast::keeper::channel::{Received, WorkerEnd};
use holdfast::keeper::{KeeperOptions, run};
use holdfast::os::{addr::AddressSocket, caps, process, vrrp};
use holdfast_node::keeper::ipc::{Resign, ToKeeper, ToWorker, Undo, VipAddress, VipRecord};
use std::io::Write;
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
        Self { end, log, vip }
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
        let ToWorker::Boot { .. } = message else { return };
        self.own(true);
        if let Some(Vip { address, .. }) = &self.vip {
            let mut socket = AddressSocket::open().expect("opened");
            let lifetime = Duration::from_secs(60);
            socket.add(address.ifindex, address.ip, address.prefix, lifetime).expect("added");
        }
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
