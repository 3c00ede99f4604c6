//! The real keeper with a worker of our own (`examples/keeper_pair.rs`), each test in its own network namespace.
//! Needs root; without it every test says so and passes.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Machines are shared: nothing here measures, everything only has to happen.
const PATIENCE: Duration = Duration::from_secs(20);

fn program() -> PathBuf {
    let mut path = std::env::current_exe().expect("known");
    path.pop();
    let program = path.with_file_name("examples").join("keeper_pair");
    assert!(program.exists(), "first: cargo build -p holdfast --example keeper_pair");
    program
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Everything one test starts; ended by its drop.
struct Scene {
    folder: PathBuf,
    /// Keeps the network namespace.
    holder: Child,
    keeper: Option<Child>,
    /// Other processes to end.
    pids: Vec<u32>,
    environment: Vec<(&'static str, String)>,
}

impl Scene {
    /// `None`: this machine doesn't let us, and the reason is printed.
    fn new(name: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: needs root");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("holdfast-keeper-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("created");
        let holder = Command::new("unshare").args(["-n", "sleep", "1000"]).stdin(Stdio::null()).spawn();
        let holder = holder.expect("util-linux is there");
        let environment = vec![
            ("PAIR_LOG", folder.join("log").display().to_string()),
            ("PAIR_FAIL", folder.join("fail").display().to_string()),
        ];
        let scene = Self { folder, holder, keeper: None, pids: Vec::new(), environment };
        let own = fs::read_link("/proc/self/ns/net").expect("readable");
        let theirs = format!("/proc/{}/ns/net", scene.holder.id());
        wait_for("the namespace", || fs::read_link(&theirs).ok().filter(|theirs| *theirs != own));
        for words in
            ["link add v0 type veth peer name v1", "link set v0 up", "link set v1 up", "address add 10.0.0.1/24 dev v0"]
        {
            let output = scene.inside("ip", &words.split(' ').collect::<Vec<_>>());
            if !output.status.success() {
                println!("skipped: ip {words}: {}", String::from_utf8_lossy(&output.stderr));
                return None;
            }
        }
        Some(scene)
    }

    fn with_vip(mut self) -> Self {
        let links = self.inside("ip", &["-o", "link", "show", "v0"]).stdout;
        let index = String::from_utf8_lossy(&links).split(':').next().expect("an index").to_owned();
        self.environment.push(("PAIR_VIP", format!("{index},192.0.2.10,10.0.0.1")));
        self
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.holder.id().to_string(), "-n"]).arg(program).stdin(Stdio::null());
        command
    }

    fn inside(&self, program: &str, arguments: &[&str]) -> Output {
        self.command(Path::new(program)).args(arguments).output().expect("run")
    }

    fn start(&mut self) {
        let errors = fs::File::options().append(true).create(true).open(self.folder.join("stderr")).expect("opened");
        let mut command = self.command(&program());
        command.arg("keeper").arg(self.folder.join("run")).envs(self.environment.clone()).stderr(errors);
        self.keeper = Some(command.spawn().expect("started"));
    }

    fn keeper(&self) -> u32 {
        self.keeper.as_ref().expect("started").id()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_default()
    }

    /// Lines of the workers' log that hold this text.
    fn lines(&self, text: &str) -> Vec<String> {
        self.read("log").lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    /// The n-th line with this text, counted from 1: (pid of the worker that wrote it, line).
    fn line(&self, text: &str, n: usize) -> (u32, String) {
        let line = wait_for(&format!("line {n} of {text:?}"), || self.lines(text).get(n - 1).cloned());
        (line.split(' ').next().expect("a pid").parse().expect("a pid"), line)
    }

    fn has_vip(&self) -> bool {
        String::from_utf8_lossy(&self.inside("ip", &["-4", "-o", "address"]).stdout).contains("192.0.2.10/32")
    }

    fn watch_wire(&mut self) {
        let file = fs::File::create(self.folder.join("wire")).expect("created");
        let mut command = self.command(Path::new("tcpdump"));
        command.args(["-n", "-l", "-Z", "root", "-i", "v1", "ip proto 112"]).stdout(file);
        command.stderr(fs::File::create(self.folder.join("tcpdump")).expect("created"));
        self.pids.push(command.spawn().expect("tcpdump is there").id());
        wait_for("tcpdump", || self.read("tcpdump").contains("listening").then_some(()));
    }

    fn resigns(&self) -> usize {
        self.read("wire").lines().filter(|line| line.contains("prio 0")).count()
    }

    /// SIGTERM to the keeper; its exit status.
    fn stop(&mut self) -> Option<i32> {
        kill(self.keeper(), nix::sys::signal::Signal::SIGTERM);
        let status = wait_for("the keeper's end", || self.keeper.as_mut().expect("started").try_wait().expect("ours"));
        self.keeper = None;
        status.code()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("keeper's stderr:\n{}workers' log:\n{}", self.read("stderr"), self.read("log"));
        }
        if let Some(mut keeper) = self.keeper.take() {
            kill(keeper.id(), nix::sys::signal::Signal::SIGTERM);
            let end = Instant::now() + Duration::from_secs(15);
            while Instant::now() < end && keeper.try_wait().is_ok_and(|status| status.is_none()) {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
        for pid in &self.pids {
            kill(*pid, nix::sys::signal::Signal::SIGKILL);
        }
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn kill(pid: u32, signal: nix::sys::signal::Signal) {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.try_into().expect("a pid")), signal);
}

/// A field of /proc/PID/stat, numbered as in its manual (from 3 on).
fn stat(pid: u32, field: usize) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_ascii_whitespace().nth(field - 3).unwrap_or_default().to_owned()
}

fn status(pid: u32, key: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    value(&text, key)
}

fn value(status: &str, key: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

fn balancer_pid(line: &str) -> u32 {
    let (_, rest) = line.split_once("pid: ").expect("a pid");
    rest.split(',').next().expect("a pid").parse().expect("a pid")
}

fn children(pid: u32) -> Vec<u32> {
    let all =
        fs::read_dir("/proc").expect("mounted").filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|child| stat(*child, 4) == pid.to_string()).collect()
}

/// `None`: skipped; else whether the new worker resumed in time.
fn crash(attempt: u32) -> Option<bool> {
    let mut scene = Scene::new(&format!("crash{attempt}"))?.with_vip();
    scene.watch_wire();
    scene.start();
    let (worker, boot) = scene.line("Boot", 1);
    assert!(boot.contains("resume: []"), "{boot}");
    wait_for("the address", || scene.has_vip().then_some(()));
    kill(worker, nix::sys::signal::Signal::SIGKILL);
    let (next, boot) = scene.line("Boot", 2);
    assert_ne!(worker, next);
    assert!(boot.contains(r#"crashed_before: 1, former_end: "signal 9""#), "{boot}");
    let resumed = wait_for("one end or the other", || {
        let log = scene.read("stderr");
        log.contains("resumed by the new worker")
            .then_some(true)
            .or_else(|| log.contains("resumed it in time").then_some(false))
    });
    if resumed {
        assert!(boot.contains(r#"resume: [("web", 7)]"#), "{boot}");
        assert!(scene.has_vip());
        assert_eq!(scene.resigns(), 0);
    }
    assert_eq!(scene.stop(), Some(0));
    assert!(!scene.has_vip());
    assert!(!scene.folder.join("run/keeper.json").exists());
    Some(resumed)
}

#[test]
fn a_crashed_worker_is_replaced_and_resumes_and_the_address_never_leaves() {
    // A machine that is too busy to start a process within 200 ms shows the other row of the table: tried again.
    let resumed = (0..10).map(crash).find(|resumed| *resumed != Some(false));
    assert!(resumed.is_some(), "ten workers in a row were too late to resume");
}

#[test]
fn a_worker_that_can_not_start_again_loses_its_vip_and_is_tried_until_it_can() {
    let Some(scene) = Scene::new("lost") else { return };
    let mut scene = scene.with_vip();
    scene.watch_wire();
    scene.start();
    let (worker, _) = scene.line("Boot", 1);
    wait_for("the address", || scene.has_vip().then_some(()));
    fs::write(scene.folder.join("fail"), "").expect("written");
    kill(worker, nix::sys::signal::Signal::SIGKILL);
    wait_for("priority 0", || (scene.resigns() == 1).then_some(()));
    wait_for("the removal", || (!scene.has_vip()).then_some(()));
    wait_for("another try", || scene.read("stderr").contains("exit status 3").then_some(()));
    fs::remove_file(scene.folder.join("fail")).expect("removed");
    let (_, boot) = scene.line("Boot", 2);
    assert!(boot.contains("resume: []"), "{boot}");
    assert_eq!(scene.stop(), Some(0));
}

#[test]
fn a_hung_worker_is_killed_undone_and_replaced_by_one_with_nothing_to_resume() {
    let Some(scene) = Scene::new("hang") else { return };
    let mut scene = scene.with_vip();
    scene.watch_wire();
    scene.start();
    let (worker, _) = scene.line("Boot", 1);
    wait_for("the address", || scene.has_vip().then_some(()));
    kill(worker, nix::sys::signal::Signal::SIGSTOP);
    wait_for("priority 0", || (scene.resigns() == 1).then_some(()));
    let (_, boot) = scene.line("Boot", 2);
    assert!(boot.contains("resume: []") && boot.contains("hung, no beat for"), "{boot}");
    assert!(!Path::new(&format!("/proc/{worker}")).exists(), "no second worker beside the first");
    assert_eq!(scene.stop(), Some(0));
    assert!(!scene.has_vip());
}

#[test]
fn an_orphaned_balancer_is_adopted_by_the_next_keeper_and_ended_by_its_stop() {
    let Some(scene) = Scene::new("adopt") else { return };
    let mut scene = scene.with_vip();
    scene.environment.push(("PAIR_BALANCER", "sleep 1000".to_owned()));
    scene.start();
    let (_, line) = scene.line("Balancer {", 1);
    let balancer = balancer_pid(&line);
    scene.pids.push(balancer);
    wait_for("the address", || scene.has_vip().then_some(()));
    kill(scene.keeper(), nix::sys::signal::Signal::SIGKILL);
    let end = scene.keeper.take().expect("started").wait().expect("ours");
    assert_eq!(end.signal(), Some(9));
    scene.line("closed", 1);
    wait_for("the worker's clean leave", || (!scene.has_vip()).then_some(()));
    assert_eq!(stat(balancer, 3), "S", "the balancer lives on");
    scene.start();
    let (_, line) = scene.line("Balancer {", 2);
    assert_eq!(balancer_pid(&line), balancer, "never a second one");
    let sleeps = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n");
    assert_eq!(children(scene.keeper()).iter().filter(|pid| sleeps(pid)).count(), 0);
    assert_eq!(scene.stop(), Some(0));
    wait_for("the balancer's end", || (stat(balancer, 3) != "S").then_some(()));
    assert!(!scene.folder.join("run/keeper.json").exists());
}

#[test]
fn a_balancer_that_dies_is_started_again() {
    let Some(mut scene) = Scene::new("restart") else { return };
    scene.environment.push(("PAIR_BALANCER", "sleep 1000".to_owned()));
    scene.start();
    let first = balancer_pid(&scene.line("Balancer {", 1).1);
    kill(first, nix::sys::signal::Signal::SIGKILL);
    let (_, exited) = scene.line("BalancerExited", 1);
    assert!(exited.contains("signal 9"), "{exited}");
    assert_ne!(balancer_pid(&scene.line("Balancer {", 2).1), first);
    assert_eq!(scene.stop(), Some(0));
}

#[test]
fn a_balancer_inherits_no_scheduling_no_signal_mask_no_capability_and_no_descriptor() {
    let Some(mut scene) = Scene::new("clean") else { return };
    scene.environment.push(("PAIR_BALANCER", "sleep 1000".to_owned()));
    scene.start();
    let pid = balancer_pid(&scene.line("Balancer {", 1).1);
    let comm = format!("/proc/{pid}/comm");
    wait_for("its exec", || fs::read_to_string(&comm).is_ok_and(|name| name == "sleep\n").then_some(()));
    let keeper = scene.keeper();
    match stat(keeper, 41).as_str() {
        "2" => {}
        policy => println!("the keeper itself isn't real-time here (policy {policy}): {}", scene.read("stderr")),
    }
    assert_eq!((stat(pid, 41).as_str(), stat(pid, 19).as_str()), ("0", "0"), "policy and nice value");
    assert_eq!(stat(pid, 6), pid.to_string(), "a session of its own");
    for key in ["SigBlk", "SigIgn", "SigCgt", "CapInh", "CapAmb"] {
        assert_eq!(status(pid, key), "0000000000000000", "{key}");
    }
    assert_ne!(status(keeper, "SigBlk"), "0000000000000000", "or this proves nothing");
    let limits = |pid: u32| fs::read_to_string(format!("/proc/{pid}/limits")).expect("readable");
    assert_eq!(limits(pid), limits(std::process::id()), "those the keeper was started with");
    let mut fds: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("readable")
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .collect();
    fds.sort();
    assert_eq!(fds, ["0", "1", "2"]);
    assert_eq!(fs::read_link(format!("/proc/{pid}/fd/0")).expect("readable"), Path::new("/dev/null"));
    assert_eq!(scene.stop(), Some(0));
}

#[test]
fn a_hundred_programs_that_ignore_sigterm_all_time_out_and_leave_no_zombie_behind() {
    let Some(mut scene) = Scene::new("exec") else { return };
    // As many as may run at a time, then the rest.
    for (round, runs) in [(1, 50), (2, 50)] {
        scene.environment.retain(|(key, _)| *key != "PAIR_EXEC");
        scene.environment.push(("PAIR_EXEC", runs.to_string()));
        scene.start();
        let done = || scene.lines("ExecDone").len();
        wait_for("their ends", || (done() == round * 50).then_some(()));
        let own = children(scene.keeper());
        assert_eq!(own.len(), 1, "just the worker: {own:?}");
        assert_eq!(scene.stop(), Some(0));
    }
    let lines = scene.lines("ExecDone");
    assert!(lines.iter().all(|line| line.contains("result: TimedOut")), "{lines:?}");
    // Some shell was quick enough to say its word, to be told to stop, and to ignore it.
    let words = format!("output: {:?}", b"word\nno\n");
    assert!(lines.iter().any(|line| line.contains(&words)), "{lines:?}");
}

#[test]
fn a_worker_that_drops_to_a_user_keeps_three_capabilities_and_can_get_no_other() {
    if !nix::unistd::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let run = |user: &str| {
        let output = Command::new(program()).args(["drop", user]).output().expect("run");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // NET_BIND_SERVICE 10, NET_ADMIN 12, NET_RAW 13.
    let three = "0000000000003400";
    let nobody = run("nobody");
    for (key, wanted) in [("CapPrm", three), ("CapEff", three), ("CapBnd", three)] {
        assert_eq!(value(&nobody, key), wanted, "{key}");
    }
    for key in ["CapInh", "CapAmb"] {
        assert_eq!(value(&nobody, key), "0000000000000000", "{key}");
    }
    let id = nix::unistd::User::from_name("nobody").expect("looked up").expect("there").uid.to_string();
    assert_eq!(value(&nobody, "Uid").split_ascii_whitespace().collect::<Vec<_>>(), [id.as_str(); 4]);
    assert_eq!(value(&nobody, "NoNewPrivs"), "1");
    let missing = run("holdfast-no-such-user");
    assert!(missing.contains("doesn't exist: the worker keeps user id 0"), "{missing}");
    assert_eq!((value(&missing, "CapPrm").as_str(), value(&missing, "CapBnd").as_str()), (three, three));
}
