//! The real worker, in a network namespace, under a stand-in for the keeper. Needs root, `ip` and network namespaces.

use holdfast::keeper::channel::{End, KeeperEnd, Received};
use holdfast::os::fdpass;
use holdfast_node::keeper::ipc::{ExecResult, ToKeeper, ToWorker, Undo, VipRecord};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longer than any step takes on a busy machine, so that a test that fails does so instead of hanging.
const LONG: Duration = Duration::from_secs(30);
const VIP: &str = "192.0.2.10";

/// A namespace with one cable (`eth0`, 10.0.0.1), and directories; all is removed at the end.
struct Host {
    namespace: String,
    dir: PathBuf,
}

impl Host {
    fn new(vip: &str) -> Self {
        Self::with("", vip)
    }

    /// With more keys in `vrrp`, and more of the VIP and what follows it.
    fn with(vrrp: &str, vip: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("hfwk{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&dir).expect("a fresh directory");
        let host = Self { namespace: name, dir };
        run("ip", &["netns", "add", &host.namespace]);
        host.ip("link set lo up");
        host.ip("link add eth0 type veth peer name far0");
        host.ip("address add 10.0.0.1/24 dev eth0");
        host.ip("link set eth0 up");
        host.ip("link set far0 up");
        host.configure(vrrp, vip);
        host
    }

    fn configure(&self, vrrp: &str, vip: &str) {
        let config = format!(
            "[node]\nname = \"a\"\n\n[[vip]]\nname = \"web\"\naddresses = [\"{VIP}/32\"]\n\
             vrrp = {{ interface = \"eth0\", vrid = 10, priority = 254, interval = \"100ms\"{vrrp} }}\n{vip}"
        );
        std::fs::write(self.dir.join("holdfast.toml"), config).expect("writable");
    }

    /// What a program says in the namespace, also if it fails.
    fn says(&self, words: &[&str]) -> String {
        let output = Command::new("ip").args(["netns", "exec", &self.namespace]).args(words).output();
        String::from_utf8_lossy(&output.expect("it starts").stdout).into_owned()
    }

    /// Waits for a frame on the other end of the cable.
    fn hears(&self, filter: &str) {
        let heard = self.says(&["timeout", "20", "tcpdump", "-n", "-e", "-i", "far0", "-c", "1", filter]);
        assert!(!heard.is_empty(), "never heard: {filter}");
    }

    fn has_rule(&self) -> bool {
        self.ip("rule show priority 1000").contains("lookup 100")
    }

    fn has_route(&self) -> bool {
        self.says(&["ip", "route", "show", "table", "100"]).contains("10.0.0.254")
    }

    fn ip(&self, arguments: &str) -> String {
        let mut all = vec!["-n", self.namespace.as_str()];
        all.extend(arguments.split_whitespace());
        run("ip", &all)
    }

    fn has_vip(&self) -> bool {
        self.ip("-o address show dev eth0").contains(VIP)
    }

    fn until(&self, what: &str, mut true_now: impl FnMut() -> bool) {
        let end = Instant::now() + LONG;
        while !true_now() {
            assert!(Instant::now() < end, "never: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn client(&self, words: &[&str]) -> (Option<i32>, String) {
        let runtime = self.dir.join("run").display().to_string();
        let output = Command::new(env!("CARGO_BIN_EXE_holdfast"))
            .args(["--runtime-dir", &runtime])
            .args(words)
            .output()
            .expect("the program starts");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.namespace]).status();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("iproute2 is installed");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {error}", arguments.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A worker and the keeper's end of its line.
struct Worker {
    child: Child,
    keeper: Option<KeeperEnd>,
    started: Instant,
}

impl Worker {
    fn start(host: &Host) -> Self {
        let (keeper, worker) = fdpass::pair().expect("sockets");
        // The child inherits this one; ours is closed right after.
        rustix::io::fcntl_setfd(&worker, rustix::io::FdFlags::empty()).expect("ours");
        let path = |name: &str| host.dir.join(name).display().to_string();
        let started = Instant::now();
        let child = Command::new("ip")
            .args(["netns", "exec", &host.namespace, env!("CARGO_BIN_EXE_holdfast")])
            .args(["--config", &path("holdfast.toml")])
            .args(["--runtime-dir", &path("run"), "--state-dir", &path("state")])
            .args(["worker", "--ipc-fd", &worker.as_raw_fd().to_string()])
            .spawn()
            .expect("the worker starts");
        drop::<OwnedFd>(worker);
        Self { child, keeper: Some(End::new(keeper)), started }
    }

    fn keeper(&mut self) -> &mut KeeperEnd {
        self.keeper.as_mut().expect("still held")
    }

    /// The next message.
    fn hear(&mut self) -> ToKeeper {
        let end = Instant::now() + LONG;
        while Instant::now() < end {
            match self.keeper().receive().expect("the line works") {
                Received::Message(message, _) => return message,
                Received::Empty => std::thread::sleep(Duration::from_micros(200)),
                Received::Closed => panic!("the worker is gone"),
            }
        }
        panic!("the worker says nothing");
    }

    fn boot(&mut self, resume: &[(&str, u64)]) {
        assert!(matches!(self.hear(), ToKeeper::Hello { .. }), "the first message is the greeting");
        let resume = resume.iter().map(|(v, e)| ((*v).to_owned(), *e)).collect();
        let boot = ToWorker::Boot {
            resume,
            pseudo_header: Vec::new(),
            crashed_before: 0,
            former_end: String::new(),
            bgp_restarting: false,
            pulse: false,
        };
        self.keeper().send(&boot, None).expect("sent");
    }

    /// The first record of the VIP that satisfies `wanted`.
    fn record(&mut self, wanted: impl Fn(&VipRecord) -> bool) -> VipRecord {
        loop {
            match self.hear() {
                ToKeeper::Owner(record) if wanted(&record) => return record,
                _ => {}
            }
        }
    }

    fn active(&mut self) -> VipRecord {
        self.record(|r| r.active && !r.undo.is_empty())
    }

    fn ends(&mut self) -> ExitStatus {
        let end = Instant::now() + LONG;
        loop {
            if let Some(status) = self.child.try_wait().expect("our child") {
                return status;
            }
            assert!(Instant::now() < end, "the worker never ends");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_worker_takes_the_address_tells_the_keeper_first_and_gives_it_back_at_stop() {
    let host = Host::new("");
    let mut worker = Worker::start(&host);
    worker.boot(&[]);
    let record = worker.active();
    assert_eq!((record.vip.as_str(), record.interval), ("web", Duration::from_millis(100)));
    assert!(!record.resign.is_empty(), "the priority-0 advert is prepared");
    host.until("the address is there", || host.has_vip());
    let (code, status) = host.client(&["status", "--json"]);
    assert!(matches!(code, Some(0..=2)), "{code:?}");
    assert!(status.contains("\"advert_late_p99_us\""), "{status}");
    let (_, events) = host.client(&["events", "--json"]);
    assert!(events.contains("\"vip_state\""), "{events}");
    worker.keeper().send(&ToWorker::Stop { deadline: Duration::from_secs(5) }, None).expect("sent");
    let mut beats = 0;
    let last = loop {
        match worker.hear() {
            ToKeeper::Stopped => break None,
            ToKeeper::Beat => beats += 1,
            ToKeeper::Owner(record) => assert!(beats < 1_000, "{record:?}"),
            other => break Some(other),
        }
    };
    assert_eq!(last, None);
    assert!(!host.has_vip(), "released before it says so");
    assert!(worker.ends().success());
    let journal = std::fs::read_to_string(host.dir.join("state/events.jsonl")).expect("written");
    assert!(journal.contains("\"event\":\"stopped\""), "{journal}");
}

#[test]
fn an_exec_check_is_run_by_the_keeper_and_its_result_counts() {
    let host = Host::new(
        "checks = [\"pool\"]\n\n[[check]]\nname = \"pool\"\nexec = [\"/bin/pool-check\", \"-q\"]\ninterval = \"200ms\"\n\
         fast_interval = \"100ms\"\ntimeout = \"100ms\"\nfall = 2\nrise = 2\n",
    );
    let mut worker = Worker::start(&host);
    worker.boot(&[]);
    let answer = |worker: &mut Worker, status: i32| loop {
        if let ToKeeper::Exec { token, argv, timeout, .. } = worker.hear() {
            assert_eq!(
                (argv, timeout),
                (["/bin/pool-check", "-q"].map(str::to_owned).to_vec(), Duration::from_millis(100))
            );
            let output = if status == 0 { Vec::new() } else { b"pool is empty\n".to_vec() };
            let done = ToWorker::ExecDone { token, result: ExecResult::Status(status), output };
            worker.keeper().send(&done, None).expect("sent");
            return;
        }
    };
    let check = |host: &Host| {
        let (_, text) = host.client(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        status["checks"][0].clone()
    };
    while check(&host)["state"] != "passed" {
        answer(&mut worker, 0);
    }
    while check(&host)["state"] != "failed" {
        answer(&mut worker, 1);
    }
    let events = host.client(&["events", "--json"]).1;
    assert!(events.contains("exit status 1: pool is empty"), "{events}");
}

#[test]
fn a_new_worker_resumes_what_a_killed_one_held() {
    let host = Host::new("");
    let mut first = Worker::start(&host);
    first.boot(&[]);
    let record = first.active();
    host.until("the address is there", || host.has_vip());
    first.child.kill().expect("our child");
    let killed = Instant::now();
    drop(first);
    let mut second = Worker::start(&host);
    second.boot(&[("web", record.role_epoch)]);
    let again = second.active();
    println!("active again {:?} after exec, {:?} after the kill", second.started.elapsed(), killed.elapsed());
    assert!(again.role_epoch >= record.role_epoch);
    host.until("the address is there", || host.has_vip());
    let journal = host.dir.join("state/events.jsonl");
    host.until("the journal goes on", || {
        let text = std::fs::read_to_string(&journal).unwrap_or_default();
        text.matches("\"event\":\"started\"").count() == 2
    });
    let text = std::fs::read_to_string(&journal).expect("written");
    let ids: Vec<u64> =
        text.lines().filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok()?.get("id")?.as_u64()).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "ids go on over the restart: {ids:?}");
}

/// As many as fit into no single packet do.
#[test]
fn what_is_to_be_resumed_may_come_in_parts() {
    let host = Host::new("");
    let mut worker = Worker::start(&host);
    let part = ToWorker::Held { resume: vec![("web".to_owned(), 1_000)], pseudo_header: vec![] };
    worker.keeper().send(&part, None).expect("sent");
    worker.boot(&[]);
    assert!(worker.active().role_epoch >= 1_000);
}

#[test]
fn a_worker_whose_keeper_is_gone_releases_all_and_ends() {
    let host = Host::new("");
    let mut worker = Worker::start(&host);
    worker.boot(&[]);
    worker.active();
    host.until("the address is there", || host.has_vip());
    worker.keeper = None;
    assert!(worker.ends().success());
    assert!(!host.has_vip());
}

#[test]
fn a_worker_that_leaves_to_the_next_one_says_and_releases_nothing() {
    let host = Host::new("");
    let mut worker = Worker::start(&host);
    worker.boot(&[]);
    worker.active();
    host.until("the address is there", || host.has_vip());
    worker.keeper().send(&ToWorker::Leave { pid: 1 }, None).expect("sent");
    let end = Instant::now() + LONG;
    loop {
        match worker.keeper().receive().expect("the line works") {
            Received::Closed => break,
            Received::Message(message, _) => {
                let stays = matches!(&message, ToKeeper::Owner(record) if record.active && !record.undo.is_empty());
                assert!(stays || message == ToKeeper::Beat, "{message:?}");
            }
            Received::Empty => std::thread::sleep(Duration::from_micros(200)),
        }
        assert!(Instant::now() < end, "it stays");
    }
    let closed = Instant::now();
    assert!(worker.ends().success());
    println!("ended {:?} after its last word", closed.elapsed());
    assert!(host.has_vip());
}

#[test]
fn a_signal_to_the_worker_itself_changes_nothing() {
    let host = Host::new("");
    let mut worker = Worker::start(&host);
    worker.boot(&[]);
    worker.active();
    host.until("the control socket answers", || host.client(&["status", "--json"]).0 != Some(3));
    let pid = i32::try_from(worker.child.id()).expect("a pid");
    for signal in [nix::sys::signal::SIGTERM, nix::sys::signal::SIGINT, nix::sys::signal::SIGHUP] {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("our child");
    }
    for _ in 0..10 {
        while worker.hear() != ToKeeper::Beat {}
    }
    assert!(host.has_vip());
}

#[test]
fn without_a_greeting_answered_the_worker_takes_nothing() {
    let host = Host::new("");
    let mut worker = Worker::start(&host);
    assert!(matches!(worker.hear(), ToKeeper::Hello { .. }));
    worker.keeper = None;
    assert!(!worker.ends().success());
    assert!(!host.has_vip());
}

const ROUTED: &str = "routes = [{ to = \"default\", via = \"10.0.0.254\", interface = \"eth0\", table = 100, source = \"192.0.2.10\" }]\n\
                      rules = [{ from = \"192.0.2.10/32\", table = 100, priority = 1000 }]\n";

/// Until it is there again after somebody took it away; how long that took is printed.
fn put_back(host: &Host, what: &str, take_away: &[&str], there: impl Fn() -> bool) {
    host.until(what, &there);
    let begin = Instant::now();
    host.says(take_away);
    host.until(what, there);
    println!("{what}: back {:?} after the command to remove it began", begin.elapsed());
}

#[test]
fn what_somebody_takes_away_of_a_vip_is_put_back_and_a_stop_leaves_nothing() {
    let host = Host::with(", accept = false", ROUTED);
    let mut worker = Worker::start(&host);
    worker.boot(&[]);
    let record = worker.record(|r| r.active && r.undo.len() == 3);
    assert!(matches!(record.undo[..], [Undo::Rule(_), Undo::Route(_), Undo::Address(_)]), "{:?}", record.undo);
    put_back(&host, "the rule", &["ip", "rule", "del", "priority", "1000"], || host.has_rule());
    put_back(&host, "the route", &["ip", "route", "flush", "table", "100"], || host.has_route());
    let address = ["ip", "address", "del", "192.0.2.10/32", "dev", "eth0"];
    put_back(&host, "the address", &address, || host.has_vip() && host.has_route());
    assert!(host.says(&["nft", "list", "table", "inet", "holdfast"]).contains(VIP));
    host.ip("link set eth0 down");
    host.until("all is gone with the link", || !host.has_vip() && !host.has_rule());
    host.ip("link set eth0 up");
    host.until("all is back with the link", || host.has_vip() && host.has_route() && host.has_rule());
    let (_, events) = host.client(&["events", "--json"]);
    assert!(events.contains("rule from 192.0.2.10/32 lookup 100 priority 1000"), "{events}");
    worker.keeper().send(&ToWorker::Stop { deadline: Duration::from_secs(5) }, None).expect("sent");
    assert!(worker.ends().success());
    assert!(!host.has_vip() && !host.has_route() && !host.has_rule());
    assert_eq!(host.says(&["nft", "list", "tables"]), "", "the packet filter is as it was");
}

#[test]
fn what_a_killed_worker_left_and_its_successor_does_not_want_is_removed() {
    let host = Host::with(", accept = false", ROUTED);
    let mut first = Worker::start(&host);
    first.boot(&[]);
    host.until("all is there", || host.has_vip() && host.has_route() && host.has_rule());
    drop(first);
    assert!(host.has_route() && host.has_rule());
    host.configure("", "");
    let mut second = Worker::start(&host);
    second.boot(&[]);
    host.until("nothing is left", || !host.has_route() && !host.has_rule());
    host.until("the packet filter is as it was", || host.says(&["nft", "list", "tables"]).is_empty());
}

#[test]
fn a_virtual_mac_needs_what_the_parent_lacks_then_has_the_address_and_goes_at_stop() {
    let host = Host::with(", vmac = true", "");
    let mut worker = Worker::start(&host);
    worker.boot(&[]);
    host.until("the refusal is said in words", || {
        let (_, events) = host.client(&["events", "--json"]);
        events.contains("net.ipv4.conf.eth0.arp_ignore must be at least 1")
    });
    assert!(!host.has_vip(), "not on the parent");
    for setting in ["net.ipv4.conf.eth0.arp_ignore=1", "net.ipv4.conf.eth0.arp_announce=2"] {
        host.says(&["sysctl", "-q", "-w", setting]);
    }
    let devices = || host.ip("-o address show").lines().filter(|line| line.contains(VIP)).map(str::to_owned).collect();
    host.until("the address is on the device", || {
        let devices: Vec<String> = devices();
        devices.len() == 1 && devices[0].contains(": hf") && devices[0].contains(".10 ")
    });
    host.hears("ip proto 112 and ether src 00:00:5e:00:01:0a");
    host.hears("arp and ether src 00:00:5e:00:01:0a");
    worker.keeper().send(&ToWorker::Stop { deadline: Duration::from_secs(5) }, None).expect("sent");
    assert!(worker.ends().success());
    assert_eq!(devices(), Vec::<String>::new());
    assert!(!host.ip("-o link show").contains(": hf"), "{}", host.ip("-o link show"));
}

#[test]
fn over_ipv6_a_virtual_mac_sends_adverts_from_the_parents_address() {
    let host = Host::with(
        "",
        "\n[[vip]]\nname = \"six\"\naddresses = [\"2001:db8::10/128\"]\nannounce = { repeat = 1, refresh = \"1s\" }\n\
         vrrp = { interface = \"eth0\", vrid = 11, priority = 254, interval = \"100ms\", vmac = true }\n",
    );
    let mut worker = Worker::start(&host);
    worker.boot(&[]);
    let has = || host.ip("-o -6 address show").lines().any(|l| l.contains("2001:db8::10/128") && l.contains(": hf"));
    host.until("the address is on the device", has);
    host.hears("ip6 proto 112 and ether src 00:00:5e:00:02:0b");
    host.hears("icmp6 and ether src 00:00:5e:00:02:0b");
    let record = worker.record(|r| r.vip == "six" && r.active && r.undo.len() >= 3);
    let device = record.undo.iter().find_map(|undo| if let Undo::Vmac(vmac) = undo { Some(*vmac) } else { None });
    assert!(device.is_some_and(|vmac| vmac.six && vmac.vrid == 11), "{:?}", record.undo);
    let (_, status) = host.client(&["status", "--json"]);
    assert!(!status.contains("\"advert_send_errors\""), "{status}");
    worker.keeper().send(&ToWorker::Stop { deadline: Duration::from_secs(5) }, None).expect("sent");
    assert!(worker.ends().success());
    assert!(!host.ip("-o link show").contains(": hf"));
}

/// How late a real-time thread, like the one that is measured, was woken by the machine itself until it is asked.
struct Reference {
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    thread: std::thread::JoinHandle<Duration>,
}

impl Reference {
    fn start() -> Self {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let told = std::sync::Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            // Not permitted: then the worker runs without it too.
            let _ = holdfast::os::sched::realtime(holdfast::os::sched::PROTOCOL_PRIORITY);
            let mut worst = Duration::ZERO;
            while !told.load(Ordering::Relaxed) {
                let begin = Instant::now();
                std::thread::sleep(Duration::from_millis(1));
                worst = worst.max(begin.elapsed());
            }
            worst
        });
        Self { stop, thread }
    }

    fn worst(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it only sleeps")
    }
}

/// A promotion with 500 addresses and an advert each 20 ms: how late the adverts were meanwhile. The figure for an
/// optimised build is one interval, and a second for the last address; here, where the build is not optimised and the
/// machine is shared, three times that and 50 ms.
#[test]
fn five_hundred_addresses_hold_no_advert_up() {
    let (late_us, last) = (3 * 20_000 + 50_000, Duration::from_millis(3 * 1_000 + 50));
    let mut worst = 0;
    let mut valid = 0;
    for _ in 0..6 {
        let host = Host::new("");
        let addresses: Vec<String> = (0..500)
            .map(|n| format!("{{ ip = \"198.51.{}.{}/32\", advertise = {} }}", n / 200, n % 200 + 1, n == 0))
            .collect();
        let config = format!(
            "[node]\nname = \"a\"\n\n[[vip]]\nname = \"web\"\naddresses = [{}]\n\
             vrrp = {{ interface = \"eth0\", vrid = 10, priority = 254, interval = \"20ms\" }}\n",
            addresses.join(", ")
        );
        std::fs::write(host.dir.join("holdfast.toml"), config).expect("writable");
        let mut worker = Worker::start(&host);
        let reference = Reference::start();
        worker.boot(&[]);
        worker.record(|r| r.active);
        let begin = Instant::now();
        host.until("all addresses are there", || host.ip("-o address show dev eth0").lines().count() >= 501);
        let took = begin.elapsed();
        let late = || {
            let (_, text) = host.client(&["status", "--json"]);
            let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            (status["counters"]["advert_late_count"].as_u64(), status["counters"]["advert_late_max_us"].as_u64())
        };
        host.until("fifty adverts went out", || late().0 >= Some(50));
        worst = late().1.expect("counted");
        println!("500 addresses within {took:?} of the first record, an advert late by {worst} us at most");
        let disturbed = reference.worst();
        if worst < late_us && took < last {
            return;
        }
        println!("the machine itself was late by {disturbed:?}");
        valid += usize::from(disturbed < Duration::from_millis(50));
    }
    assert_eq!(
        valid, 0,
        "an advert was late by {worst} us, or the last address by {last:?}, on a machine that was not"
    );
    eprintln!("void: the machine was late each time");
}
