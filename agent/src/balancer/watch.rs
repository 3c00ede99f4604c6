//! Process descriptors on the protocol thread, looking elsewhere.
//!
//! [`pair`] gives the two halves: the [`Watcher`] is polled by the protocol thread, each [`Looker`] runs on a thread that
//! only this balancer's looks share. They share two bounded things: a queue of findings, and per balancer a wish to look
//! (which coalesces).

use super::find::Finder;
use super::plane::{Plane, plane};
use super::rules::Rules;
use super::{Process, Tree, proc};
use crate::os::asyncfd::AsyncDescriptor;
use crate::os::diag;
use crate::os::pidfd;
use crate::os::timerfd::Pause;
use holdfast_node::config::{Balancer, BalancerId, ProcessSource};
use holdfast_node::io::BalancerState;
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};

/// Findings that wait for the protocol thread. Full → the looker waits, its next look is fresher.
const FOUND_MAX: usize = 16;
/// Without being told, a balancer that runs is looked at this often (a reload shows up), …
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// … one of which nothing changes but by its death, which is told, this often, …
const LOOK_SELDOM: Duration = Duration::from_secs(1);
/// … one that doesn't run, this often.
const SEEK_EVERY: Duration = Duration::from_millis(50);
/// Workers that are watched; of more, the youngest.
const WORKERS_MAX: usize = 64;

/// What one look found.
#[derive(Debug)]
struct Found {
    balancer: BalancerId,
    began: Instant,
    result: Result<(Tree, Vec<(Process, OwnedFd)>), String>,
    /// Something of it lives, and something listens where it did.
    listens: bool,
}

/// What a look shares with [`super::report`]: the tree that was found goes there, the ports come from there.
#[derive(Debug)]
pub struct Shared {
    /// What was found last.
    pub tree: watch::Receiver<Option<Tree>>,
    /// The ports on which it listens for clients, as far as they are known.
    pub ports: watch::Sender<BTreeSet<u16>>,
}

/// The two halves for these balancers (indexed by [`BalancerId`]).
pub fn pair(balancers: &[Balancer]) -> (Watcher, Vec<Looker>) {
    let (tx, found) = mpsc::channel(FOUND_MAX);
    let mut watched = Vec::new();
    let mut lookers = Vec::new();
    for (id, b) in (0..).zip(balancers) {
        let (command, started) = watch::channel(None);
        let look = Arc::new(Notify::new());
        if let Some(plane) = plane(b) {
            lookers.push(Looker {
                balancer: BalancerId(id),
                plane,
                source: b.source.clone(),
                started,
                look: Arc::clone(&look),
                found: tx.clone(),
                trees: watch::channel(None).0,
                ports: watch::channel(BTreeSet::new()).1,
            });
        }
        watched.push(Watched { rules: Rules::new(b.kind, &b.source), descriptors: Vec::new(), look, command });
    }
    (Watcher { balancers: watched, found, ready: VecDeque::new() }, lookers)
}

/// Sees processes die. Lives on the protocol thread; every method must be called within its runtime.
#[derive(Debug)]
pub struct Watcher {
    balancers: Vec<Watched>,
    found: mpsc::Receiver<Found>,
    /// States not yet fetched. At most a few per finding or death, drained by [`Watcher::poll`] before it looks on.
    ready: VecDeque<(BalancerId, BalancerState)>,
}

#[derive(Debug)]
struct Watched {
    rules: Rules,
    descriptors: Vec<(Process, AsyncDescriptor)>,
    look: Arc<Notify>,
    command: watch::Sender<Option<Process>>,
}

impl Watcher {
    /// The next change, or pending with a wake-up arranged. Deaths come before findings.
    pub fn poll(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<(BalancerId, BalancerState)> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return Poll::Ready(change);
            }
            self.poll_deaths(cx, now);
            if !self.ready.is_empty() {
                continue;
            }
            match self.found.poll_recv(cx) {
                Poll::Ready(Some(found)) => self.take(found),
                // The lookers ended: the worker is stopping.
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// When [`Watcher::timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.balancers.iter().filter_map(|b| b.rules.poll_timeout()).min()
    }

    /// A time limit may have passed; what changed is given by the next [`Watcher::poll`].
    pub fn timeout(&mut self, now: Instant) {
        for (id, b) in (0..).zip(&mut self.balancers) {
            let change = b.rules.timeout(now);
            self.ready.extend(change.map(|s| (BalancerId(id), s)));
            b.after_change();
        }
    }

    /// The keeper started this process for a balancer with `command`.
    pub fn started(&mut self, balancer: BalancerId, process: Process) {
        if let Some(b) = self.balancers.get_mut(usize::from(balancer.0)) {
            b.command.send_replace(Some(process));
            b.look.notify_one();
        }
    }

    /// The keeper saw its balancer end, or (`pid` 0) could not start it.
    pub fn exited(&mut self, now: Instant, balancer: BalancerId, pid: u32, what: &str) {
        let Some(b) = self.balancers.get_mut(usize::from(balancer.0)) else { return };
        let change = if pid == 0 { b.rules.not_started(now, what) } else { b.rules.died(now, pid, Some(what)) };
        self.ready.extend(change.map(|s| (balancer, s)));
        b.after_change();
    }

    fn poll_deaths(&mut self, cx: &mut Context<'_>, now: Instant) {
        for (id, b) in (0..).zip(&mut self.balancers) {
            let mut dead = Vec::new();
            b.descriptors.retain(|(process, fd)| match fd.poll_read(cx, |_| Ok(())) {
                // An error means that the runtime's driver is gone; then nothing is seen any more anyway.
                Poll::Ready(_) => {
                    dead.push(process.pid);
                    false
                }
                Poll::Pending => true,
            });
            for pid in dead {
                let change = b.rules.died(now, pid, None);
                self.ready.extend(change.map(|s| (BalancerId(id), s)));
                b.after_change();
            }
        }
    }

    fn take(&mut self, found: Found) {
        let Some(b) = self.balancers.get_mut(usize::from(found.balancer.0)) else { return };
        let result = found.result.and_then(|(tree, descriptors)| {
            for (process, fd) in descriptors {
                if b.descriptors.iter().all(|(p, _)| *p != process) {
                    let fd =
                        AsyncDescriptor::new(fd).map_err(|e| format!("can't watch process {}: {e}", process.pid))?;
                    b.descriptors.push((process, fd));
                }
            }
            Ok(tree)
        });
        let change = b.rules.found(found.began, result, found.listens);
        self.ready.extend(change.map(|s| (found.balancer, s)));
        b.after_change();
    }
}

impl Watched {
    /// Drops what needn't be watched any more, and asks for a look where one is wanted.
    fn after_change(&mut self) {
        let Self { rules, descriptors, look, .. } = self;
        descriptors.retain(|(process, _)| rules.watched().any(|w| w == *process));
        if rules.take_look() {
            look.notify_one();
        }
    }
}

/// Looks for one balancer's processes.
#[derive(Debug)]
pub struct Looker {
    balancer: BalancerId,
    plane: Box<dyn Plane>,
    source: ProcessSource,
    started: watch::Receiver<Option<Process>>,
    look: Arc<Notify>,
    found: mpsc::Sender<Found>,
    trees: watch::Sender<Option<Tree>>,
    ports: watch::Receiver<BTreeSet<u16>>,
}

impl Looker {
    /// Whose processes it looks for.
    pub const fn balancer(&self) -> BalancerId {
        self.balancer
    }

    /// The other ends of what it shares. Once: a second call takes them away from the first.
    pub fn share(&mut self) -> Shared {
        let (ports, theirs) = watch::channel(BTreeSet::new());
        self.ports = theirs;
        Shared { tree: self.trees.subscribe(), ports }
    }

    /// Until the watcher is gone. What it reads are the kernel's files, and it reads them on the calling thread: that
    /// costs less than to have another one woken for it. A pidfile may be on a disk that is slow, and is read elsewhere.
    pub async fn run(mut self) {
        if self.source == ProcessSource::Kernel {
            // No process: whoever keeps the table says how it is.
            return;
        }
        if matches!(self.source, ProcessSource::Command(_)) {
            // Nothing is known, and nothing to say, before the keeper names a process.
            tokio::select! {
                known = self.started.wait_for(Option::is_some) => if known.is_err() { return },
                () = self.found.closed() => return,
            }
        }
        let slow = matches!(self.source, ProcessSource::Pidfile(_));
        // Whom a pidfile names may change, and the events of its folder are no promise.
        let look_every = if slow || self.plane.reloads() { LOOK_EVERY } else { LOOK_SELDOM };
        let mut finder = Finder::new(self.plane, self.source.clone());
        let mut pause = Pause::new();
        let mut events = None;
        let mut last: Option<Result<Tree, String>> = None;
        let mut asked = true;
        loop {
            let began = Instant::now();
            let command = *self.started.borrow();
            let ports = asked.then(|| self.ports.borrow().clone());
            let look = move |last: Option<Result<Tree, String>>| {
                let news = finder.look(command, ports, last.as_ref());
                (finder, last, news)
            };
            let looked = if slow { tokio::task::spawn_blocking(move || look(last)).await } else { Ok(look(last)) };
            let Ok((back, before, news)) = looked else { return };
            (finder, last) = (back, before);
            if let Some(Look { result, summary, listens }) = news {
                if let Ok(tree) = &summary {
                    self.trees.send_replace(Some(tree.clone()));
                }
                last = Some(summary);
                if self.found.send(Found { balancer: self.balancer, began, result, listens }).await.is_err() {
                    return;
                }
            }
            if events.is_none() {
                events = finder.watched_directory().and_then(directory_events);
            }
            let every = if matches!(last, Some(Ok(_))) { look_every } else { SEEK_EVERY };
            asked = tokio::select! {
                () = self.look.notified() => true,
                () = changed(&mut events) => false,
                () = pause.until(Instant::now() + every) => false,
                () = self.found.closed() => return,
            };
        }
    }
}

/// What a look has to tell.
struct Look {
    result: Result<(Tree, Vec<(Process, OwnedFd)>), String>,
    /// Only so many are watched; who asks how it is wants to know of all.
    summary: Result<Tree, String>,
    listens: bool,
}

impl Finder {
    /// `ports`: somebody asked, and is told in any case; otherwise only what is another than `last` is told of.
    fn look(
        &mut self,
        command: Option<Process>,
        ports: Option<BTreeSet<u16>>,
        last: Option<&Result<Tree, String>>,
    ) -> Option<Look> {
        let found = self.find(command);
        // The same processes, and so the same descriptors.
        if ports.is_none() && last == Some(&found) {
            return None;
        }
        let result = found.clone().and_then(open);
        let summary = result.as_ref().map_err(String::clone).and(found);
        if ports.is_none() && last == Some(&summary) {
            return None;
        }
        // Only who is in doubt wants to know.
        let listens = ports.is_some_and(|ports| {
            // A kernel that doesn't tell: then nothing speaks for it.
            diag::listeners().is_ok_and(|all| self.listens(&all, &ports))
        });
        Some(Look { result, summary, listens })
    }
}

/// Descriptors for all processes of a tree whose deaths matter, each verified to be the one that was found.
fn open(mut tree: Tree) -> Result<(Tree, Vec<(Process, OwnedFd)>), String> {
    for list in [&mut tree.old, &mut tree.serving] {
        let excess = list.len().saturating_sub(WORKERS_MAX);
        list.drain(..excess);
    }
    let one = |process: Process| match pidfd::open(process.pid) {
        Ok(fd) => {
            let same = proc::stat(Path::new("/proc"), process.pid).is_some_and(|s| s.process == process && !s.zombie);
            if same { Ok(fd) } else { Err(format!("process {} is gone", process.pid)) }
        }
        Err(e) => Err(format!("can't watch process {}: {e}", process.pid)),
    };
    let mut descriptors = Vec::new();
    if tree.supervised {
        descriptors.push((tree.main, one(tree.main)?));
    }
    let known = tree.serving == [tree.main];
    // A worker that ended between look and open is no worker.
    for list in [&mut tree.serving, &mut tree.old] {
        list.retain(|process| {
            if known && *process == tree.main {
                return true;
            }
            one(*process).map(|fd| descriptors.push((*process, fd))).is_ok()
        });
    }
    Ok((tree, descriptors))
}

/// Tells that something in the directory changed. `None`: it isn't there or can't be watched; looking goes on anyway.
fn directory_events(dir: &Path) -> Option<AsyncDescriptor> {
    use rustix::fs::inotify;
    let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).ok()?;
    let flags = inotify::WatchFlags::CLOSE_WRITE | inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::ONLYDIR;
    inotify::add_watch(&fd, dir, flags).ok()?;
    AsyncDescriptor::new(fd).ok()
}

/// Ends when something changed; never, without a descriptor. A directory that went away is watched anew later.
async fn changed(events: &mut Option<AsyncDescriptor>) {
    let Some(fd) = events else { return std::future::pending().await };
    let drained = fd.read(|fd| {
        let mut buffer = [0; 4096];
        let mut any = false;
        loop {
            match rustix::io::read(fd, &mut buffer) {
                Ok(0) => return Ok(()),
                Ok(_) => any = true,
                Err(rustix::io::Errno::AGAIN) if any => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    });
    if drained.await.is_err() {
        *events = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::ask;
    use super::*;
    use holdfast_node::config::{BalancerKind, Name};
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Longer than any step takes, so that a test that fails does so instead of hanging.
    const LONG: Duration = Duration::from_secs(20);

    /// A directory, and a process that is killed with all its children at the end.
    struct Lab {
        dir: PathBuf,
        child: Option<Child>,
        watcher: Watcher,
        tree: watch::Receiver<Option<Tree>>,
    }

    impl Lab {
        /// Must be called within a runtime.
        fn new(kind: BalancerKind, by_pidfile: bool) -> Self {
            static N: AtomicU32 = AtomicU32::new(0);
            let n = N.fetch_add(1, Ordering::Relaxed);
            let dir = std::env::temp_dir().join(format!("holdfast-watch-{}-{n}", std::process::id()));
            std::fs::create_dir_all(&dir).expect("a fresh directory");
            let source = if by_pidfile {
                ProcessSource::Pidfile(dir.join("pid"))
            } else {
                ProcessSource::Command(vec!["given".to_owned()])
            };
            let name = Name::new("lb").expect("a valid name");
            let (watcher, mut lookers) = pair(&[Balancer::new(name, kind, source)]);
            let tree = lookers.first_mut().expect("one looker").share().tree;
            lookers.into_iter().for_each(|l| drop(tokio::spawn(l.run())));
            Self { dir, child: None, watcher, tree }
        }

        fn start(&mut self, program: &str, args: &[&str]) -> u32 {
            let mut command = Command::new(program);
            command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
            let child = command.spawn().unwrap_or_else(|e| panic!("{program}: {e} (tests/setup.sh installs it)"));
            let pid = child.id();
            self.child = Some(child);
            pid
        }

        fn haproxy(&mut self, mode: &[&str]) -> u32 {
            let file = self.dir.join("haproxy.cfg");
            let socket = self.dir.join("front.sock");
            let text = format!(
                "global\n  maxconn 20\ndefaults\n  mode http\n  timeout connect 1s\n  timeout client 1s\n  \
                 timeout server 1s\nfrontend f\n  bind unix@{}\n  http-request return status 200\n",
                socket.display()
            );
            std::fs::write(&file, text).expect("writable");
            let file = file.display().to_string();
            let mut args = vec!["-f", file.as_str()];
            args.extend(mode);
            self.start("haproxy", &args)
        }

        fn command(&mut self, pid: u32) {
            let stat = proc::stat(Path::new("/proc"), pid).expect("it runs");
            self.watcher.started(BalancerId(0), stat.process);
        }

        async fn next(&mut self) -> BalancerState {
            let watcher = &mut self.watcher;
            let next = std::future::poll_fn(|cx| watcher.poll(cx, Instant::now()));
            tokio::time::timeout(LONG, next).await.expect("a change of state comes").1
        }

        /// Lets time pass, with the watcher polled.
        async fn quiet(&mut self, time: Duration) -> Option<BalancerState> {
            let watcher = &mut self.watcher;
            let next = std::future::poll_fn(|cx| watcher.poll(cx, Instant::now()));
            tokio::time::timeout(time, next).await.ok().map(|(_, state)| state)
        }

        fn workers(&self) -> Vec<Process> {
            let rules = &self.watcher.balancers.first().expect("one balancer").rules;
            let mut all: Vec<Process> = rules.watched().collect();
            all.sort_unstable();
            all.split_off(all.len().min(1))
        }

        /// Polls the watcher until it watches workers that satisfy `wanted`.
        async fn until_workers(&mut self, wanted: impl Fn(&[Process]) -> bool) -> Vec<Process> {
            let end = Instant::now() + LONG;
            while Instant::now() < end {
                if wanted(&self.workers()) {
                    return self.workers();
                }
                let early = self.quiet(Duration::from_millis(5)).await;
                assert!(!matches!(early, Some(BalancerState::Gone { .. })), "{early:?}");
            }
            panic!("these workers never came: {:?}", self.workers());
        }
    }

    impl Drop for Lab {
        fn drop(&mut self) {
            if let Some(child) = &mut self.child {
                for pid in proc::children(Path::new("/proc"), child.id()) {
                    signal(pid, nix::sys::signal::Signal::SIGKILL);
                }
                let _ = child.kill();
                let _ = child.wait();
            }
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }

    fn signal(pid: u32, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a pid"));
        // Already gone is fine.
        let _ = nix::sys::signal::kill(pid, signal);
    }

    use nix::sys::signal::Signal::{SIGKILL, SIGUSR2};

    fn gone_pid(state: &BalancerState) -> Option<u32> {
        match state {
            BalancerState::Gone { pid, .. } => Some(*pid),
            _ => None,
        }
    }

    #[tokio::test]
    async fn a_process_named_by_a_pidfile_is_seen_to_come_and_to_die() {
        let mut lab = Lab::new(BalancerKind::Process, true);
        assert!(
            matches!(lab.next().await, BalancerState::Unknown { why } if why.ends_with("no such file or directory"))
        );
        let pid = lab.start("sleep", &["600"]);
        std::fs::write(lab.dir.join("pid"), format!("{pid}\n")).expect("writable");
        // Between creation and the text of the file, a look may find it empty.
        let state = match lab.next().await {
            BalancerState::Unknown { why } if why.ends_with("no pid in it") => lab.next().await,
            other => other,
        };
        assert_eq!(state, BalancerState::Alive { pid });
        signal(pid, SIGKILL);
        assert_eq!(gone_pid(&lab.next().await), Some(pid));
    }

    #[tokio::test]
    async fn a_single_haproxy_that_is_killed_is_gone() {
        let mut lab = Lab::new(BalancerKind::Haproxy, false);
        let pid = lab.haproxy(&["-db"]);
        lab.command(pid);
        assert_eq!(lab.next().await, BalancerState::Alive { pid });
        signal(pid, SIGKILL);
        assert_eq!(gone_pid(&lab.next().await), Some(pid));
    }

    /// Until the master listens: HAProxy forgets a reload that it is asked for while it still starts.
    async fn master_listens(cli: &Path) {
        let end = Instant::now() + LONG;
        while !ask::command(cli, "show proc", 64 * 1024).await.is_ok_and(|answer| !answer.is_empty()) {
            assert!(Instant::now() < end, "its master never answers");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_reload_of_a_master_and_its_worker_is_no_death_and_the_new_workers_death_is() {
        let mut lab = Lab::new(BalancerKind::Haproxy, false);
        let cli = lab.dir.join("cli.sock");
        let pid = lab.haproxy(&["-W", "-S", &cli.display().to_string()]);
        lab.command(pid);
        assert_eq!(lab.next().await, BalancerState::Alive { pid });
        let before = lab.until_workers(|w| w.len() == 1).await;
        master_listens(&cli).await;
        assert_eq!(lab.quiet(Duration::from_millis(400)).await, None);
        for _ in 0..3 {
            let old = lab.workers();
            signal(pid, SIGUSR2);
            // The old worker has nothing to finish, so it ends at once.
            lab.until_workers(|w| w.len() == 1 && w != old).await;
            master_listens(&cli).await;
            assert_eq!(lab.quiet(Duration::from_millis(400)).await, None);
        }
        assert_ne!(lab.workers(), before);
        let worker = lab.workers().first().expect("one worker").pid;
        signal(worker, SIGKILL);
        assert_eq!(gone_pid(&lab.next().await), Some(pid));
    }

    #[tokio::test]
    async fn of_very_many_workers_the_youngest_are_watched_and_all_are_told() {
        let mut lab = Lab::new(BalancerKind::Haproxy, false);
        let fifo = lab.dir.join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a fresh directory");
        // Each waits for somebody to write.
        let script = "n=0; while [ $n -lt 70 ]; do (read x <\"$0\") & n=$((n+1)); done; wait";
        let pid = lab.start("sh", &["-c", script, &fifo.display().to_string()]);
        lab.command(pid);
        let mut tree = lab.tree.clone();
        let all = |tree: &Option<Tree>| tree.as_ref().is_some_and(|tree| tree.old.len() == 69);
        tokio::time::timeout(LONG, tree.wait_for(all)).await.expect("all are told").expect("it looks on");
        let watched = lab.until_workers(|w| w.len() == 1 + WORKERS_MAX).await;
        assert_eq!(watched.last().copied(), tree.borrow().as_ref().and_then(Tree::youngest));
    }

    #[tokio::test]
    async fn a_killed_master_is_gone() {
        let mut lab = Lab::new(BalancerKind::Haproxy, false);
        let pid = lab.haproxy(&["-W"]);
        lab.command(pid);
        lab.until_workers(|w| w.len() == 1).await;
        signal(pid, SIGKILL);
        assert_eq!(gone_pid(&lab.next().await), Some(pid));
    }
}
