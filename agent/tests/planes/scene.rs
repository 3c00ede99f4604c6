//! A balancer in a network namespace, watched and reported as in the agent.

use holdfast::balancer::plane::plane;
use holdfast::balancer::report::{Reporter, Seen};
use holdfast::balancer::watch::{self, Watcher};
use holdfast::balancer::{Process, Tree};
use holdfast::os::process::start_time;
use holdfast_node::config::{Balancer, BalancerId, BalancerKind, Name, ProcessSource};
use holdfast_node::io::{Admin, BalancerState, PlaneReport};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Longer than anything takes, so that a test that fails does so instead of hanging.
pub(crate) const LONG: Duration = Duration::from_secs(40);
/// Between two looks; the test machine is shared.
const POLL: Duration = Duration::from_millis(200);
/// Where the balancer listens for clients, and for us.
pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 10);
pub(crate) const PORT: u16 = 80;
pub(crate) const ADMIN: u16 = 9901;
/// Where its backend is, once [`Scene::backend`] has started it.
pub(crate) const BACKEND: u16 = 8081;

/// Runs a test in a namespace and a runtime of its own.
pub(crate) fn scene(name: &str, test: impl AsyncFnOnce(Scene) + Send) {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            use nix::sched::CloneFlags;
            // What it starts begins with this thread's signal mask, and a shell never unblocks what was blocked.
            nix::sys::signal::SigSet::empty().thread_set_mask().expect("a mask");
            let own = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
            nix::sched::unshare(own).expect("root may make a namespace");
            // Envoy leaves its shared memory behind when it is killed: here that goes with the namespace.
            for line in ["ip link set lo up", "mount --make-rslave /", "mount -t tmpfs shm /dev/shm"] {
                let words: Vec<&str> = line.split(' ').collect();
                let done = Command::new(words[0]).args(&words[1..]).status();
                assert!(done.is_ok_and(|status| status.success()), "{line}");
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let scene = Scene::new(name);
                tokio::time::timeout(LONG * 3, test(scene)).await.expect("the test ends in time");
            });
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// The balancer, its files, and what is said of it.
pub(crate) struct Scene {
    pub(crate) dir: PathBuf,
    children: Vec<Child>,
    watched: Option<(Watcher, mpsc::Receiver<Seen>)>,
    /// Every state that was told.
    pub(crate) states: Vec<BalancerState>,
    pub(crate) tree: Option<tokio::sync::watch::Receiver<Option<Tree>>>,
}

impl Scene {
    fn new(name: &str) -> Self {
        static N: AtomicU32 = AtomicU32::new(0);
        let n = N.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("hfplane-{name}-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a fresh directory");
        Self { dir, children: Vec::new(), watched: None, states: Vec::new(), tree: None }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).expect("writable");
        path.display().to_string()
    }

    /// Starts a program in a process group of its own, all of which is killed at the end.
    pub(crate) fn start(&mut self, program: &Path, args: &[&str]) -> u32 {
        let log = std::fs::File::options().create(true).append(true).open(self.path("log")).expect("writable");
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).process_group(0);
        command.stdout(log.try_clone().expect("a descriptor")).stderr(log);
        let child = command.spawn().unwrap_or_else(|e| {
            panic!("{}: {e} (tests/setup.sh installs it)", program.display());
        });
        let pid = child.id();
        self.children.push(child);
        pid
    }

    pub(crate) fn balancer(kind: BalancerKind, pid: Option<u32>, pidfile: &Path) -> Balancer {
        let source = match pid {
            Some(_) => ProcessSource::Command(vec!["given".to_owned()]),
            None => ProcessSource::Pidfile(pidfile.to_owned()),
        };
        Balancer { poll: POLL, ..Balancer::new(Name::new("lb").expect("a name"), kind, source) }
    }

    /// Watches it: `pid` is the process that the keeper would have started.
    pub(crate) fn watch(&mut self, balancer: &Balancer, pid: Option<u32>) {
        let (mut watcher, mut lookers) = watch::pair(std::slice::from_ref(balancer));
        let mut looker = lookers.pop().expect("one looker");
        let (tx, reports) = mpsc::channel(8);
        let shared = looker.share();
        self.tree = Some(shared.tree.clone());
        let addresses = BTreeSet::from([IpAddr::V4(VIP)]);
        let reporter =
            Reporter::new(BalancerId(0), balancer, addresses, shared, tx, Arc::default()).expect("it has processes");
        tokio::spawn(looker.run());
        tokio::spawn(reporter.run());
        if let Some(pid) = pid {
            watcher.started(BalancerId(0), Process { start: start_time(pid).expect("it runs"), pid });
        }
        self.watched = Some((watcher, reports));
    }

    /// The adapter by itself, for its acts.
    pub(crate) fn acts(balancer: &Balancer) -> Box<dyn holdfast::balancer::plane::Plane> {
        plane(balancer).expect("it has processes")
    }

    /// The next change of state or report.
    async fn next(&mut self) -> Option<PlaneReport> {
        let (watcher, reports) = self.watched.as_mut().expect("watched");
        let change = poll_fn(|cx| {
            let now = Instant::now();
            if watcher.poll_timeout().is_some_and(|at| at <= now) {
                watcher.timeout(now);
            }
            watcher.poll(cx, now)
        });
        let tick = tokio::time::sleep(Duration::from_millis(5));
        tokio::select! {
            biased;
            (_, state) = change => { self.states.push(state); None }
            seen = reports.recv() => seen.map(|seen| seen.report),
            () = tick => None,
        }
    }

    /// Waits for a report that says so.
    pub(crate) async fn report(&mut self, what: &str, wanted: impl Fn(&PlaneReport) -> bool) -> PlaneReport {
        let end = Instant::now() + LONG;
        let mut last = None;
        while Instant::now() < end {
            if let Some(report) = self.next().await {
                if wanted(&report) {
                    return report;
                }
                last = Some(report);
            }
        }
        let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        panic!("never reported: {what}; last {last:?}; states {:?}; log:\n{log}", self.states);
    }

    /// Waits until it's alive and its admin side answers.
    pub(crate) async fn well(&mut self) -> PlaneReport {
        let report = self.report("it is well", |r| !matches!(r.admin, Admin::Silent { .. }) && r.queue.is_some()).await;
        assert!(matches!(self.states.last(), Some(BalancerState::Alive { .. })), "{:?}", self.states);
        report
    }

    /// Waits until it is gone; why.
    pub(crate) async fn gone(&mut self) -> String {
        let end = Instant::now() + LONG;
        while Instant::now() < end {
            self.next().await;
            if let Some(BalancerState::Gone { why, .. }) = self.states.last() {
                return why.clone();
            }
        }
        panic!("never gone: {:?}", self.states);
    }

    /// Waits until it is alive as this process.
    pub(crate) async fn alive(&mut self, pid: u32) {
        let end = Instant::now() + LONG;
        while self.states.last() != Some(&BalancerState::Alive { pid }) {
            assert!(Instant::now() < end, "never alive as {pid}: {:?}", self.states);
            self.next().await;
        }
    }

    /// Lets time pass.
    pub(crate) async fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.next().await;
        }
    }

    /// Nothing that was told was a death, and it is alive.
    pub(crate) fn never_gone(&self) {
        let gone = self.states.iter().any(|s| matches!(s, BalancerState::Gone { .. }));
        assert!(!gone && matches!(self.states.last(), Some(BalancerState::Alive { .. })), "{:?}", self.states);
    }

    /// The processes that serve, once they satisfy `wanted`.
    pub(crate) async fn serving(&mut self, what: &str, wanted: impl Fn(&[u32]) -> bool) -> Vec<u32> {
        let end = Instant::now() + LONG;
        let mut pids = Vec::new();
        while Instant::now() < end {
            self.next().await;
            let tree = self.tree.as_ref().expect("watched").borrow().clone();
            pids = tree.iter().flat_map(|t| t.serving.iter().map(|p| p.pid)).collect();
            if wanted(&pids) {
                return pids;
            }
        }
        panic!("never: {what}; {pids:?}; {:?}", self.states);
    }

    /// A backend that answers every connection.
    pub(crate) async fn backend(&self) -> tokio::task::JoinHandle<()> {
        let listener = TcpListener::bind(("127.0.0.1", BACKEND)).await.expect("a port in our own namespace");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let _ = stream.read(&mut [0; 1024]).await;
                    let _ =
                        stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
                });
            }
        })
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = killpg(pid(child.id()), Signal::SIGKILL);
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn pid(raw: u32) -> Pid {
    Pid::from_raw(i32::try_from(raw).expect("a pid"))
}

/// To a process that we started. Gone already is fine.
pub(crate) fn signal(to: u32, signal: Signal) {
    let _ = kill(pid(to), signal);
}

/// A connection to the VIP that says nothing.
pub(crate) async fn connect() -> TcpStream {
    TcpStream::connect((VIP, PORT)).await.expect("it listens")
}

/// One request over the VIP: its status.
pub(crate) async fn get() -> Option<u16> {
    let ask = async {
        let mut stream = TcpStream::connect((VIP, PORT)).await.ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        answer.split(' ').nth(1)?.parse().ok()
    };
    tokio::time::timeout(Duration::from_secs(5), ask).await.ok().flatten()
}

pub(crate) fn answers(report: &PlaneReport) -> bool {
    matches!(report.admin, Admin::Answers { .. })
}

pub(crate) fn silent(report: &PlaneReport) -> bool {
    matches!(report.admin, Admin::Silent { .. })
}
