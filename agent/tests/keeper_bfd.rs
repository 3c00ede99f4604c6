//! The real keeper's BFD before real routers, and the BGP sockets that it holds: a worker of our own
//! (`examples/keeper_pair.rs`), BIRD and FRR in a second network namespace. Needs root and the daemon; without, a test
//! says so and passes. How long things take is printed; what must hold has limits for machines that are shared.

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::Signal::{SIGCONT, SIGHUP, SIGKILL, SIGSTOP, SIGTERM};
use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
const US: [&str; 2] = ["10.99.0.1", "fd99::1"];
const ROUTER: [&str; 2] = ["10.99.0.2", "fd99::2"];

fn program() -> PathBuf {
    let mut path = std::env::current_exe().expect("known");
    path.pop();
    let program = path.with_file_name("examples").join("keeper_pair");
    assert!(program.exists(), "first: cargo build -p holdfast --example keeper_pair");
    program
}

fn find(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/lib/frr"];
    folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn kill(pid: u32, signal: nix::sys::signal::Signal) {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.try_into().expect("a pid")), signal);
}

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        kill(self.0.id(), SIGCONT);
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two namespaces with a cable, our keeper in the first.
struct Scene {
    folder: PathBuf,
    namespaces: [Process; 2],
    keeper: Option<Process>,
    environment: Vec<(&'static str, String)>,
}

impl Scene {
    fn new(name: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: needs root");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("holdfast-bfd-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("created");
        let own = fs::read_link("/proc/self/ns/net").expect("readable");
        let namespaces = [0, 1].map(|_| {
            let child = Command::new("unshare").args(["-n", "sleep", "1000"]).stdin(Stdio::null()).spawn();
            let holder = Process(child.expect("util-linux is there"));
            let theirs = format!("/proc/{}/ns/net", holder.0.id());
            wait_for("the namespace", || fs::read_link(&theirs).ok().filter(|theirs| *theirs != own));
            holder
        });
        let environment = vec![
            ("PAIR_LOG", folder.join("log").display().to_string()),
            ("PAIR_FAIL", folder.join("fail").display().to_string()),
            ("PAIR_BFD", folder.join("bfd").display().to_string()),
        ];
        let scene = Self { folder, namespaces, keeper: None, environment };
        fs::write(scene.folder.join("bfd"), "").expect("written");
        let router = scene.namespaces[1].0.id().to_string();
        scene.ip(0, &format!("link add v0 type veth peer name v1 netns {router}"));
        for (side, device, addresses) in [(0, "v0", US), (1, "v1", ROUTER)] {
            scene.ip(side, "link set lo up");
            scene.ip(side, &format!("link set {device} up"));
            scene.ip(side, &format!("address add {}/24 dev {device}", addresses[0]));
            scene.ip(side, &format!("address add {}/64 dev {device} nodad", addresses[1]));
        }
        Some(scene)
    }

    fn command(&self, side: usize, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.namespaces[side].0.id().to_string(), "-n"]).arg(program).stdin(Stdio::null());
        command
    }

    fn ip(&self, side: usize, words: &str) -> Output {
        let output = self.command(side, Path::new("ip")).args(words.split(' ')).output().expect("iproute2 is there");
        assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn start(&mut self) {
        let errors = fs::File::options().append(true).create(true).open(self.folder.join("stderr")).expect("opened");
        let mut command = self.command(0, &program());
        command.arg("keeper").arg(self.folder.join("run")).envs(self.environment.clone()).stderr(errors);
        self.keeper = Some(Process(command.spawn().expect("started")));
        self.log_line("Boot", 1);
    }

    fn keeper(&self) -> u32 {
        self.keeper.as_ref().expect("started").0.id()
    }

    /// The worker's list from here on.
    fn want(&self, list: &str) {
        fs::write(self.folder.join("bfd.new"), list).expect("written");
        fs::rename(self.folder.join("bfd.new"), self.folder.join("bfd")).expect("renamed");
        kill(self.keeper(), SIGHUP);
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_default()
    }

    fn lines(&self, text: &str) -> Vec<String> {
        self.read("log").lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    fn log_line(&self, text: &str, n: usize) -> String {
        wait_for(&format!("line {n} of {text:?}"), || self.lines(text).get(n - 1).cloned())
    }

    fn worker(&self) -> u32 {
        let line = self.lines("Boot").pop().expect("it began");
        line.split(' ').next().expect("a pid").parse().expect("a pid")
    }

    fn reports(&self, neighbor: &str, state: &str) -> usize {
        self.lines(&format!(r#"neighbor: "{neighbor}", state: {state},"#)).len()
    }

    fn wait_state(&self, neighbor: &str, state: &str) {
        wait_for(&format!("{neighbor} {state}"), || {
            let last = self.lines(&format!(r#"neighbor: "{neighbor}""#)).pop()?;
            last.contains(&format!("state: {state},")).then_some(())
        });
    }

    fn stop(&mut self) -> Option<i32> {
        kill(self.keeper(), SIGTERM);
        let keeper = &mut self.keeper.as_mut().expect("started").0;
        let status = wait_for("the keeper's end", || keeper.try_wait().expect("ours"));
        self.keeper = None;
        status.code()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("keeper's stderr:\n{}workers' log:\n{}", self.read("stderr"), self.read("log"));
        }
        if let Some(keeper) = &mut self.keeper {
            kill(keeper.0.id(), SIGCONT);
            kill(keeper.0.id(), SIGTERM);
            let end = Instant::now() + Duration::from_secs(15);
            while Instant::now() < end && keeper.0.try_wait().is_ok_and(|status| status.is_none()) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// BIRD in the second namespace, with these sessions.
struct Bird {
    process: Process,
    folder: PathBuf,
}

impl Bird {
    fn start(scene: &Scene, sessions: &str) -> Option<Self> {
        let Some(bird) = find("bird") else {
            println!("skipped: no BIRD here");
            return None;
        };
        let file = scene.folder.join("bird.conf");
        let text = format!("router id 10.99.0.2;\nprotocol device {{}}\nprotocol bfd {{\n{sessions}\n}}\n");
        fs::write(&file, text).expect("written");
        let mut command = scene.command(1, &bird);
        command.arg("-f").arg("-c").arg(&file).arg("-s").arg(scene.folder.join("bird.ctl"));
        let errors = fs::File::create(scene.folder.join("bird.err")).expect("created");
        let process = Process(command.stderr(errors).spawn().expect("started"));
        let bird = Self { process, folder: scene.folder.clone() };
        wait_for("BIRD", || (!bird.sessions().is_empty()).then_some(()));
        Some(bird)
    }

    /// Address, state, interval and detection time in ms.
    fn sessions(&self) -> Vec<(String, String, u64, u64)> {
        let birdc = find("birdc").expect("it comes with bird");
        let mut command = Command::new(birdc);
        command.arg("-s").arg(self.folder.join("bird.ctl")).args(["show", "bfd", "sessions"]);
        let output = command.output().expect("run").stdout;
        let text = String::from_utf8_lossy(&output).into_owned();
        let ms = |word: &str| word.parse::<f64>().ok().map(|seconds| (seconds * 1_000.0).round() as u64);
        let session = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [ip, _, state, .., interval, timeout] = words[..] else { return None };
            Some((ip.to_owned(), state.to_owned(), ms(interval)?, ms(timeout)?))
        };
        text.lines().filter_map(session).collect()
    }

    fn is(&self, wanted: &[(&str, &str, u64, u64)]) {
        let wanted: Vec<_> = wanted.iter().map(|(ip, s, i, t)| ((*ip).to_owned(), (*s).to_owned(), *i, *t)).collect();
        let end = Instant::now() + PATIENCE;
        while self.sessions() != wanted {
            assert!(Instant::now() < end, "BIRD says {:?}, not {wanted:?}", self.sessions());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

const SINGLE: &str = r#"interface "v1" { min rx interval 50 ms; min tx interval 50 ms; multiplier 3; };
neighbor 10.99.0.1 dev "v1";"#;

/// Facts about BFD's field complaints 15, 35, 36 and 37, as far as a router can see them.
#[test]
fn bird_sees_one_session_through_new_times_crashes_and_restarts_of_the_worker() {
    let Some(mut scene) = Scene::new("bird") else { return };
    let Some(bird) = Bird::start(&scene, SINGLE) else { return };
    scene.start();
    scene.want("r1 - 10.99.0.2 v0 50 3 false 255\n");
    scene.wait_state("r1", "Up");
    bird.is(&[(US[0], "Up", 50, 150)]);

    // Poll Sequences, both ways: the slower of both counts, and nobody goes down for it.
    scene.want("r1 - 10.99.0.2 v0 300 3 false 255\n");
    bird.is(&[(US[0], "Up", 300, 900)]);
    scene.want("r1 - 10.99.0.2 v0 50 5 false 255\n");
    bird.is(&[(US[0], "Up", 50, 250)]);

    // A crash, and a worker that can't start for a second.
    fs::write(scene.folder.join("fail"), "").expect("written");
    kill(scene.worker(), SIGKILL);
    std::thread::sleep(Duration::from_secs(1));
    bird.is(&[(US[0], "Up", 50, 250)]);
    fs::remove_file(scene.folder.join("fail")).expect("removed");
    scene.log_line("Boot", 2);
    scene.wait_state("r1", "Up");
    assert_eq!((scene.reports("r1", "Down"), scene.reports("r1", "AdminDown")), (1, 0), "Down only at the start");

    // A neighbour more, and less: the first one is not touched.
    scene.want("r1 - 10.99.0.2 v0 50 5 false 255\nr2 - 10.99.0.3 v0 50 3 false 255\n");
    wait_for("r2", || (scene.reports("r2", "Down") > 0).then_some(()));
    scene.want("r1 - 10.99.0.2 v0 50 3 false 255\n");
    bird.is(&[(US[0], "Up", 50, 150)]);
    assert_eq!(scene.reports("r1", "Down"), 1);

    // In order: the router is told that it is no failure.
    assert_eq!(scene.stop(), Some(0));
    wait_for("BIRD sees it", || bird.sessions().iter().any(|(_, state, ..)| state == "Down").then_some(()));
}

#[test]
fn a_router_that_stands_still_is_noticed_in_the_detection_time_and_so_are_we() {
    let Some(mut scene) = Scene::new("frozen") else { return };
    let Some(bird) = Bird::start(&scene, SINGLE) else { return };
    scene.start();
    scene.want("r1 - 10.99.0.2 v0 50 3 false 255\n");
    let mut took = Vec::new();
    for round in 1..=5 {
        scene.wait_state("r1", "Up");
        bird.is(&[(US[0], "Up", 50, 150)]);
        let before = scene.reports("r1", "Down");
        // nsenter has become the daemon.
        let at = Instant::now();
        kill(bird.process.0.id(), SIGSTOP);
        wait_for("the loss", || (scene.reports("r1", "Down") > before).then_some(()));
        took.push(at.elapsed());
        kill(bird.process.0.id(), SIGCONT);
        assert!(at.elapsed() < Duration::from_millis(500), "round {round}: {took:?}");
    }
    println!("router frozen, noticed after {took:?} (150 ms agreed)");
    // And the other way round.
    scene.wait_state("r1", "Up");
    bird.is(&[(US[0], "Up", 50, 150)]);
    let at = Instant::now();
    kill(scene.keeper(), SIGSTOP);
    wait_for("BIRD's loss of us", || bird.sessions().iter().any(|(_, state, ..)| state == "Down").then_some(()));
    println!("keeper frozen, BIRD noticed after {:?} (150 ms agreed)", at.elapsed());
    kill(scene.keeper(), SIGCONT);
    scene.wait_state("r1", "Up");
}

/// BIRD sends packets over several hops with the kernel's TTL of 64.
#[test]
fn ipv6_and_several_hops_work_with_bird() {
    let Some(mut scene) = Scene::new("six") else { return };
    let sessions = r#"interface "v1" { min rx interval 50 ms; min tx interval 50 ms; multiplier 3; };
multihop { min rx interval 100 ms; min tx interval 100 ms; multiplier 4; };
neighbor fd99::1 dev "v1";
neighbor 10.99.0.1 local 10.99.0.2 multihop yes;"#;
    let Some(bird) = Bird::start(&scene, sessions) else { return };
    scene.start();
    scene.want("six fd99::1 fd99::2 v0 50 3 false 255\nfar 10.99.0.1 10.99.0.2 - 100 4 true 64\n");
    scene.wait_state("six", "Up");
    scene.wait_state("far", "Up");
    let mut sessions = wait_for("both", || Some(bird.sessions()).filter(|s| s.iter().all(|s| s.1 == "Up")));
    sessions.sort();
    let wanted = [(US[0].to_owned(), "Up".to_owned(), 100, 400), (US[1].to_owned(), "Up".to_owned(), 50, 150)];
    wait_for("the times", || {
        sessions = bird.sessions();
        sessions.sort();
        (sessions == wanted).then_some(())
    });
}

/// Said in the long tests: how long the busy loops run, and that what it costs is compared, not only printed.
fn busy_seconds() -> Option<u64> {
    std::env::var("HOLDFAST_BUSY_SECONDS").ok().and_then(|n| n.parse().ok())
}

/// Gives a process fixed real-time priority, where the host permits it: it isn't what is tested.
fn prefer(pid: u32, priority: u8) {
    let words = ["-f", "-p", &priority.to_string(), &pid.to_string()].map(str::to_owned);
    let _ = Command::new("chrt").args(words).output();
}

/// Facts, complaint 37: eight busy loops for some seconds (`make full` runs ten minutes of it).
#[test]
fn busy_loops_cause_no_flap() {
    let Some(mut scene) = Scene::new("busy") else { return };
    let Some(bird) = Bird::start(&scene, SINGLE) else { return };
    prefer(bird.process.0.id(), 30);
    scene.start();
    // It only writes down when the keeper lost the router.
    prefer(scene.worker(), 20);
    scene.want("r1 - 10.99.0.2 v0 50 3 false 255\n");
    scene.wait_state("r1", "Up");
    bird.is(&[(US[0], "Up", 50, 150)]);
    let seconds = busy_seconds().unwrap_or(8);
    let spin = || Process(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("started"));
    let loops: Vec<Process> = (0..8).map(|_| spin()).collect();
    let seen = watch(Duration::from_secs(seconds), || scene.reports("r1", "Down") - 1);
    drop(loops);
    let lost = scene.reports("r1", "Down") - 1;
    let excused = seen.excused();
    let worst = seen.late.iter().map(|(_, late)| *late).max().unwrap_or_default();
    println!(
        "{lost} losses in {seconds} s of 8 busy loops, {excused} of them where the machine stood still; a thread with \
         the keeper's rights was {worst:?} late at worst"
    );
    assert_eq!(excused, lost, "losses at {:?}, late {:?}", seen.losses, seen.late);
}

/// What a thread with the keeper's rights saw.
struct Watched {
    /// When it came late, and by how much; empty where the host permits no real-time priority.
    late: Vec<(Instant, Duration)>,
    /// When the router was lost.
    losses: Vec<Instant>,
}

impl Watched {
    /// The losses for which the machine, not our scheduling, is to blame: it stood still within the detection time.
    fn excused(&self) -> usize {
        const STILL: Duration = Duration::from_millis(50);
        const DETECTION: Duration = Duration::from_millis(150);
        let still = |loss: &Instant| {
            let before = |at: &Instant| at <= loss && *loss - *at <= DETECTION;
            self.late.iter().any(|(at, late)| *late > STILL && before(at))
        };
        self.losses.iter().filter(|loss| still(loss)).count()
    }
}

/// Watches for so long the machine itself, and the number of losses.
fn watch(span: Duration, losses: impl Fn() -> usize + Send) -> Watched {
    const STEP: Duration = Duration::from_millis(5);
    const NOTED: Duration = Duration::from_millis(5);
    let look = move || {
        let permitted = holdfast::os::sched::realtime(holdfast::os::sched::KEEPER_PRIORITY);
        let mut seen = Watched { late: Vec::new(), losses: Vec::new() };
        let mut last = Instant::now();
        let end = last + span;
        while last < end {
            std::thread::sleep(STEP.saturating_sub(last.elapsed()));
            let now = Instant::now();
            let late = now.saturating_duration_since(last + STEP);
            if permitted.is_ok() && late > NOTED {
                seen.late.push((now, late));
            }
            last = now;
            seen.losses.resize(losses(), now);
        }
        seen
    };
    std::thread::scope(|threads| threads.spawn(look).join().expect("no panic"))
}

#[test]
fn a_loss_is_excused_by_a_machine_that_stood_still_just_before_it_and_by_nothing_else() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let excused = |late: &[(u64, u64)], losses: &[u64]| {
        let late = late.iter().map(|(t, by)| (at(*t), Duration::from_millis(*by))).collect();
        Watched { late, losses: losses.iter().map(|t| at(*t)).collect() }.excused()
    };
    assert_eq!(excused(&[(1000, 60)], &[1000, 1150]), 2);
    assert_eq!(excused(&[(1000, 60)], &[999, 1151]), 0);
    assert_eq!(excused(&[(1000, 50)], &[1010]), 0);
    assert_eq!(excused(&[], &[1000]), 0);
}

/// One wake-up per interval for what comes and what goes, as long as they go together, and three system calls for it.
#[test]
fn a_packet_costs_one_wake_up() {
    let Some(mut scene) = Scene::new("cost") else { return };
    let Some(bird) = Bird::start(&scene, SINGLE) else { return };
    scene.start();
    // Of all its threads: BIRD has one for BFD alone.
    let sum = |pid: u32, file: &str, number: fn(&str) -> Option<&str>| -> u64 {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").filter_map(Result::ok);
        let text = threads.filter_map(|thread| fs::read_to_string(thread.path().join(file)).ok());
        text.filter_map(|text| number(&text)?.trim().parse::<u64>().ok()).sum()
    };
    let cost = |pid: u32| sum(pid, "schedstat", |text| text.split(' ').next());
    let wakes = |pid: u32| {
        sum(pid, "status", |text| text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")))
    };
    let span = Duration::from_secs(if busy_seconds().is_some() { 30 } else { 5 });
    // Both at once: what else the machine does costs both.
    let processes = [scene.keeper(), bird.process.0.id()];
    let measure = || {
        let now = || processes.map(|pid| (cost(pid), wakes(pid)));
        let before = now();
        std::thread::sleep(span);
        let after = now();
        [0, 1].map(|i| (after[i].0 - before[i].0, after[i].1 - before[i].1))
    };
    let idle = measure();
    scene.want("r1 - 10.99.0.2 v0 50 3 false 255\n");
    scene.wait_state("r1", "Up");
    bird.is(&[(US[0], "Up", 50, 150)]);
    let busy = measure();
    let share = |ns: u64| ns as f64 / span.as_nanos() as f64 * 100.0;
    let [ours, birds] = [0, 1].map(|i| (busy[i].0.saturating_sub(idle[i].0), busy[i].1.saturating_sub(idle[i].1)));
    println!(
        "keeper idle {:.3} % of a core, {} wake-ups, its session {:.3} %, {}; BIRD's session {:.3} %, {}",
        share(idle[0].0),
        idle[0].1,
        share(ours.0),
        ours.1,
        share(birds.0),
        birds.1,
    );
    // 20 intervals a second of 75 to 100 % make 23 packets each way. Where the machine is late they part company.
    let seconds = span.as_secs();
    assert!((18 * seconds..=38 * seconds).contains(&ours.1), "{} wake-ups in {span:?}", ours.1);
    // Only an optimised program says what it costs, and beside other tests that says little (tests/unit.sh full).
    if busy_seconds().is_some() && !cfg!(debug_assertions) {
        assert!(ours.0 <= birds.0, "our session took {} ns of CPU in {span:?}, BIRD's {}", ours.0, birds.0);
    }
}

/// FRR asks for its own way into a namespace: zebra tells it of interfaces.
#[test]
fn frr_sees_one_session_and_new_times() {
    let Some(mut scene) = Scene::new("frr") else { return };
    let (Some(zebra), Some(bfdd), Some(vtysh)) = (find("zebra"), find("bfdd"), find("vtysh")) else {
        println!("skipped: no FRR here");
        return;
    };
    let home = PathBuf::from(format!("/tmp/hfbfd-{}", std::process::id()));
    fs::create_dir_all(&home).expect("created");
    let _ = Command::new("chown").arg("frr:frr").arg(&home).output();
    let text =
        "bfd\n peer 10.99.0.1 interface v1\n  detect-multiplier 3\n  transmit-interval 300\n  receive-interval 300\n";
    let daemon = |what: &Path, text: &str, made: &str, more: &[&str]| {
        let name = what.file_name().expect("a name").to_string_lossy().into_owned();
        let file = home.join(format!("{name}.conf"));
        fs::write(&file, text).expect("written");
        let mut command = scene.command(1, what);
        command.arg("-f").arg(&file).arg("-i").arg(home.join(format!("{name}.pid")));
        command.arg("-z").arg(home.join("zserv")).arg("--vty_socket").arg(&home).args(["-A", "127.0.0.1", "-P", "0"]);
        let process = Process(command.args(more).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started"));
        wait_for(&name, || home.join(made).exists().then_some(()));
        process
    };
    let _zebra = daemon(&zebra, "", "zserv", &[]);
    let control = home.join("bfdd.sock").display().to_string();
    let _bfdd = daemon(&bfdd, text, "bfdd.vty", &["--bfdctl", &control]);
    let ask = |lines: &[&str]| {
        let mut command = Command::new(&vtysh);
        command.arg("--vty_socket").arg(&home);
        lines.iter().for_each(|line| {
            command.args(["-c", line]);
        });
        String::from_utf8_lossy(&command.output().expect("run").stdout).into_owned()
    };
    let shows = |wanted: &[&str]| {
        let end = Instant::now() + PATIENCE;
        loop {
            let said = ask(&["show bfd peers json"]);
            if wanted.iter().all(|word| said.contains(word)) {
                return;
            }
            assert!(Instant::now() < end, "FRR says {said}, not {wanted:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    scene.start();
    scene.want("r1 - 10.99.0.2 v0 50 3 false 255\n");
    scene.wait_state("r1", "Up");
    // Its 300 ms against our 50: we send at its rate, and say ours.
    shows(&[
        r#""status":"up""#,
        r#""remote-receive-interval":50"#,
        r#""remote-transmit-interval":50"#,
        r#""remote-detect-multiplier":3"#,
    ]);
    scene.want("r1 - 10.99.0.2 v0 400 5 false 255\n");
    shows(&[
        r#""remote-receive-interval":400"#,
        r#""remote-transmit-interval":400"#,
        r#""remote-detect-multiplier":5"#,
    ]);
    // And its change: frr pull request 22932, as seen from the other side.
    ask(&["configure terminal", "bfd", "peer 10.99.0.1 interface v1", "transmit-interval 50", "receive-interval 50"]);
    scene.want("r1 - 10.99.0.2 v0 50 3 false 255\n");
    shows(&[r#""remote-receive-interval":50"#, r#""transmit-interval":50"#, r#""status":"up""#]);
    assert_eq!(scene.reports("r1", "Down"), 1, "Down only at the start");
    assert_eq!(scene.stop(), Some(0));
    // It was told: not a failure of the path.
    let said = ask(&["show bfd peers json"]);
    assert!(said.contains(r#""status":"down""#) && !said.contains("expired"), "{said}");
    let _ = fs::remove_dir_all(&home);
}

/// A listener in the router's namespace.
fn listener(scene: &Scene) -> TcpListener {
    let namespace = fs::File::open(format!("/proc/{}/ns/net", scene.namespaces[1].0.id())).expect("opened");
    let thread = std::thread::spawn(move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).expect("root may");
        TcpListener::bind((ROUTER[0], 0)).expect("bound")
    });
    thread.join().expect("no panic")
}

/// Up to the end of the connection, or `None` if that doesn't come in this time.
fn rest(stream: &mut TcpStream, patience: Duration) -> Option<Vec<u8>> {
    stream.set_read_timeout(Some(patience)).expect("set");
    let (mut all, mut buffer) = (Vec::new(), [0; 64]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Some(all),
            Ok(n) => all.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return None,
            Err(e) => panic!("{e}"),
        }
    }
}

/// The death table's BGP rows, on a real connection.
#[test]
fn a_dead_workers_connection_stays_open_and_ends_as_the_table_says() {
    // Half the hold time of 4 s: closed, and nothing is said.
    let Some(mut scene) = Scene::new("sockets") else { return };
    let listener = listener(&scene);
    let port = listener.local_addr().expect("bound").port();
    scene.environment.push(("PAIR_BGP", format!("{}:{port},4000", ROUTER[0])));
    scene.environment.push(("PAIR_BALANCER", "sleep 1000".to_owned()));
    scene.start();
    let (mut stream, _) = listener.accept().expect("connected");
    scene.log_line("Balancer {", 1);
    fs::write(scene.folder.join("fail"), "").expect("written");
    // What lies unread in the socket must not turn its end into a reset.
    std::io::Write::write_all(&mut stream, b"keepalive").expect("sent");
    kill(scene.worker(), SIGKILL);
    assert_eq!(rest(&mut stream, Duration::from_millis(800)), None, "it is held");
    assert_eq!(rest(&mut stream, PATIENCE), Some(Vec::new()), "half the hold time later it ends in silence");

    // A balancer that dies while no worker lives: the farewell, then the end.
    fs::remove_file(scene.folder.join("fail")).expect("removed");
    let (mut stream, _) = listener.accept().expect("connected");
    let balancer = scene.log_line("Balancer {", 2);
    let pid = balancer.split_once("pid: ").and_then(|(_, rest)| rest.split(',').next()).expect("a pid");
    fs::write(scene.folder.join("fail"), "").expect("written");
    std::io::Write::write_all(&mut stream, b"keepalive").expect("sent");
    kill(scene.worker(), SIGKILL);
    assert_eq!(rest(&mut stream, Duration::from_millis(500)), None, "it is held");
    kill(pid.parse().expect("a pid"), SIGKILL);
    assert_eq!(rest(&mut stream, PATIENCE), Some(b"farewell".to_vec()));
}

/// The keeper's descriptor shares its queue with the worker's.
#[test]
fn a_session_that_the_keeper_refuses_loses_nothing_of_what_its_worker_is_to_read() {
    let Some(mut scene) = Scene::new("refused") else { return };
    let listener = listener(&scene);
    let port = listener.local_addr().expect("bound").port();
    scene.environment.push(("PAIR_BGP", format!("{}:{port},4000,4097", ROUTER[0])));
    scene.start();
    let (mut stream, _) = listener.accept().expect("connected");
    std::io::Write::write_all(&mut stream, b"first ").expect("sent");
    wait_for("the refusal", || scene.read("stderr").contains("refused: too many BGP sessions").then_some(()));
    std::io::Write::write_all(&mut stream, b"second").expect("sent");
    drop(stream);
    assert_eq!(scene.log_line("read", 1), "read first second");
}
