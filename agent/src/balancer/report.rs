//! How a balancer is, in a look every so often: its admin side, its accept queues, its descriptors, its processes.
//!
//! One look at a time, each with a limit. Connections and queues are the kernel's own figures (`INET_DIAG`), states and
//! processor time those of `/proc`. What this module refuses to do: judge. A report is what was seen, no more.

use super::plane::{Asked, Plane, fuller, plane};
use super::proc::{Stat, files, sockets, stat};
use super::watch::{Looker, Shared};
use super::{Process, Tree};
use crate::os::diag::{Listener, Listeners};
use crate::os::timerfd::Pause;
use holdfast_node::config::{Balancer, BalancerId, Config};
use holdfast_node::io::{Level, OLD_WORKERS_MAX, OldWorker, PlaneReport, Reload};
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};

/// Reports on their way to the protocol thread. Full → the looks wait, the next one is fresher.
pub const REPORTS_MAX: usize = 64;
/// The admin side has half of the time between two looks, within these bounds.
const PATIENCE_MIN: Duration = Duration::from_millis(50);
const PATIENCE_MAX: Duration = Duration::from_millis(500);
/// A reload is shown as one for this long, while former processes finish.
const RELOAD_SHOWN: Duration = Duration::from_secs(10);
/// Descriptors of a process that are looked at to know its sockets.
const DESCRIPTORS_MAX: usize = 16_384;
/// Where systemd and the kernel mount control groups v2.
const CGROUPS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// What one look saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Of which balancer.
    pub balancer: BalancerId,
    /// What.
    pub report: PlaneReport,
}

/// Looks at one balancer.
#[derive(Debug)]
pub struct Reporter {
    balancer: BalancerId,
    plane: Box<dyn Plane>,
    poll: Duration,
    /// Of the VIPs that need it.
    addresses: BTreeSet<IpAddr>,
    shared: Shared,
    reports: mpsc::Sender<Seen>,
    /// Somebody wants to know now.
    look: Arc<Notify>,
    history: History,
    owner: Known,
    listeners: Listeners,
}

/// One for each balancer that is looked for. `looks`: of the balancers, in their order; told when a look can't wait.
pub fn reporters(
    config: &Config,
    lookers: &mut [Looker],
    reports: &mpsc::Sender<Seen>,
    looks: &[Arc<Notify>],
) -> Vec<Reporter> {
    let each = lookers.iter_mut().filter_map(|looker| {
        let id = looker.balancer();
        let balancer = config.balancers.get(usize::from(id.0))?;
        let of_it = config.vips.iter().filter(|vip| vip.balancers.contains(&id));
        let addresses = of_it.flat_map(|vip| vip.addresses.iter().map(|address| address.ip)).collect();
        let look = looks.get(usize::from(id.0))?;
        Reporter::new(id, balancer, addresses, looker.share(), reports.clone(), Arc::clone(look))
    });
    each.collect()
}

impl Reporter {
    /// `None`: it is no process.
    pub fn new(
        id: BalancerId,
        balancer: &Balancer,
        addresses: BTreeSet<IpAddr>,
        shared: Shared,
        reports: mpsc::Sender<Seen>,
        look: Arc<Notify>,
    ) -> Option<Self> {
        let (plane, poll) = (plane(balancer)?, balancer.poll);
        Some(Self {
            balancer: id,
            plane,
            poll,
            addresses,
            shared,
            reports,
            look,
            history: History::default(),
            owner: Known::default(),
            listeners: Listeners::default(),
        })
    }

    /// Which balancer it looks at.
    pub const fn balancer(&self) -> BalancerId {
        self.balancer
    }

    /// Until the receiver of reports is gone. As [`Looker::run`], it reads the kernel's files on the calling thread.
    pub async fn run(mut self) {
        let mut pause = Pause::new();
        loop {
            let began = Instant::now();
            let tree = self.shared.tree.borrow_and_update().clone();
            // Nothing is seen of what isn't there; its death has its own way.
            if let Some(report) = match tree {
                Some(tree) => self.look(&tree).await,
                None => None,
            } && self.reports.send(Seen { balancer: self.balancer, report }).await.is_err()
            {
                return;
            }
            // A tenth less or none: many nodes that were started at once don't ask at once for ever.
            let next = began + self.poll.mul_f64(1.0 - jitter() / 10.0);
            tokio::select! {
                () = pause.until(next) => {}
                () = self.look.notified() => {}
                () = self.reports.closed() => return,
            }
            if self.shared.tree.has_changed().is_err() {
                return;
            }
        }
    }

    /// `None`: nothing of it is left.
    async fn look(&mut self, tree: &Tree) -> Option<PlaneReport> {
        let now = Instant::now();
        let patience = (self.poll / 2).clamp(PATIENCE_MIN, PATIENCE_MAX);
        let listeners = self.listeners.look().unwrap_or_default();
        self.know(tree, &listeners).await;
        let kernel = Kernel::look(tree, &self.addresses, &listeners, &self.owner);
        let asked = self.plane.ask(tree, patience).await;
        let kernel = kernel?;
        if self.shared.ports.borrow().ne(&kernel.ports) {
            self.shared.ports.send_replace(kernel.ports.clone());
        }
        let reload = self.history.reload(now, tree, &asked);
        Some(PlaneReport {
            admin: asked.admin,
            connections: asked.connections,
            queue: kernel.queue,
            files: kernel.files,
            backends: asked.backends,
            stopped: kernel.stopped,
            cpu_ticks: Some(kernel.ticks),
            supervised: kernel.supervised,
            reload,
            leaving: asked.leaving,
        })
    }
}

impl Reporter {
    /// Who owns what, read where nobody waits for it, since it may be much: a look after a death can't wait.
    async fn know(&mut self, tree: &Tree, listeners: &[Listener]) {
        let mut owner = std::mem::take(&mut self.owner);
        let processes: Vec<Process> = tree.processes().collect();
        if owner.is_of(&processes, listeners) {
            self.owner = owner;
            return;
        }
        let listeners = listeners.to_vec();
        let read = tokio::task::spawn_blocking(move || {
            owner.of(Path::new("/proc"), processes, &listeners);
            owner
        });
        self.owner = read.await.unwrap_or_default();
    }
}

/// 0 to 1, from the seed that the standard library gets from the system for each of these.
fn jitter() -> f64 {
    let bits = RandomState::new().hash_one(0_u8);
    f64::from(u32::try_from(bits >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

/// What the kernel says.
#[derive(Debug)]
struct Kernel {
    queue: Option<Level>,
    files: Option<Level>,
    stopped: bool,
    ticks: u64,
    supervised: bool,
    /// On which it listens for clients.
    ports: BTreeSet<u16>,
}

impl Kernel {
    fn look(tree: &Tree, addresses: &BTreeSet<IpAddr>, listeners: &[Listener], owner: &Known) -> Option<Self> {
        let proc = Path::new("/proc");
        let living = |p: &Process| stat(proc, p.pid).filter(|s| s.process == *p && !s.zombie);
        let serving: Vec<Stat> = tree.serving.iter().filter_map(living).collect();
        let main = serving.iter().any(|s| s.process == tree.main) || living(&tree.main).is_some();
        let any = main || !serving.is_empty() || tree.old.iter().any(|p| living(p).is_some());
        any.then_some(())?;
        let fullest = serving.iter().filter_map(|s| files(proc, s.process.pid));
        let fullest = fullest.map(|(now, limit)| Level { now, limit }).max_by(fuller);
        let ours = owner.owner.as_ref().unwrap_or(&Owner::Unknown).listeners(listeners, addresses);
        let queue = ours.iter().map(|l| Level { now: l.waiting.into(), limit: l.backlog.into() }).max_by(fuller);
        Some(Self {
            queue,
            files: fullest,
            stopped: serving.iter().any(|s| s.stopped),
            ticks: serving.iter().fold(0, |sum, s| sum.saturating_add(s.ticks)),
            supervised: tree.supervised && main,
            ports: ours.iter().map(|l| l.port).collect(),
        })
    }
}

/// By what the sockets of a balancer are known.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    /// By the files that its processes have open.
    Files(BTreeSet<u64>),
    /// By the control group they were made in, if it is one of its own.
    Group(u64),
    /// Not at all: other users' files are hidden from us, and it has no group.
    Unknown,
}

/// Who owns what, as long as nobody came or went: a process has a descriptor for each of its connections, and all of
/// them would be read to find the few that listen.
#[derive(Debug, Default)]
struct Known {
    processes: Vec<Process>,
    /// Inodes of everything that listens.
    listeners: BTreeSet<u64>,
    owner: Option<Owner>,
}

impl Known {
    /// Whether it is of these, and known.
    fn is_of(&self, processes: &[Process], all: &[Listener]) -> bool {
        let listeners: BTreeSet<u64> = all.iter().map(|l| l.inode).collect();
        self.owner.is_some() && self.processes == processes && self.listeners == listeners
    }

    fn of(&mut self, proc: &Path, processes: Vec<Process>, all: &[Listener]) -> &Owner {
        if !self.is_of(&processes, all) {
            *self = Self { processes, listeners: all.iter().map(|l| l.inode).collect(), owner: None };
        }
        self.owner.get_or_insert_with(|| Owner::of(proc, &self.processes, &self.listeners))
    }
}

impl Owner {
    fn of(proc: &Path, processes: &[Process], listeners: &BTreeSet<u64>) -> Self {
        let open: Vec<Vec<u64>> = processes.iter().filter_map(|p| sockets(proc, p.pid, DESCRIPTORS_MAX)).collect();
        if !open.is_empty() {
            return Self::Files(open.into_iter().flatten().filter(|inode| listeners.contains(inode)).collect());
        }
        processes.first().and_then(|p| group(proc, p.pid)).map_or(Self::Unknown, Self::Group)
    }

    /// Those of the balancer on which clients come in: on one of these addresses, or on all; where there is none, on
    /// any (what has a VIP may be translated to another address).
    fn listeners(&self, all: &[Listener], addresses: &BTreeSet<IpAddr>) -> Vec<Listener> {
        let ours = |l: &&Listener| match self {
            Self::Files(inodes) => inodes.contains(&l.inode),
            Self::Group(group) => l.cgroup == Some(*group),
            Self::Unknown => addresses.contains(&l.address),
        };
        let ours: Vec<Listener> = all.iter().filter(ours).copied().collect();
        let outside = |l: &&Listener| l.address.is_unspecified() || addresses.contains(&l.address);
        let clients: Vec<Listener> = ours.iter().filter(outside).copied().collect();
        if clients.is_empty() { ours } else { clients }
    }
}

/// The control group (v2) of a process, as the kernel numbers it. `None`: there is none, or everybody's.
fn group(proc: &Path, pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(proc.join(pid.to_string()).join("cgroup")).ok()?;
    let below = group_path(&text)?;
    let directories = CGROUPS.iter().map(|root| PathBuf::from(root).join(below));
    directories.filter_map(|dir| std::fs::metadata(dir).ok()).map(|meta| meta.ino()).next()
}

/// The line `0::/system.slice/haproxy.service`, without its first slash.
fn group_path(text: &str) -> Option<&str> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    (!path.is_empty()).then_some(path)
}

/// What needs memory: reloads.
#[derive(Debug, Default)]
struct History {
    /// The youngest that served when a reload was counted last, and how many were.
    counted: Option<Process>,
    changes: u64,
    changed: Option<Instant>,
    /// When each was first seen to be of a former generation.
    old: BTreeMap<Process, Instant>,
    /// What the balancer with this main process said last: within a reload, or full, it may say nothing for a while.
    told: Option<Told>,
}

#[derive(Debug)]
struct Told {
    main: Process,
    generation: Option<u64>,
    failed: Option<u64>,
}

impl History {
    fn reload(&mut self, now: Instant, tree: &Tree, asked: &Asked) -> Reload {
        let youngest = tree.youngest();
        // Whoever served before us is none that we have seen.
        let counted = *self.counted.get_or_insert_with(|| youngest.unwrap_or(tree.main));
        // A worker that is replaced alone (nginx) is no reload: then nobody becomes old. Many become it one by one.
        let newly_old = tree.old.iter().any(|process| !self.old.contains_key(process));
        if newly_old && youngest > Some(counted) {
            self.changes = self.changes.saturating_add(1);
            self.changed = Some(now);
            self.counted = youngest;
        }
        self.old.retain(|process, _| tree.old.contains(process));
        for process in tree.old.iter().take(OLD_WORKERS_MAX) {
            self.old.entry(*process).or_insert(now);
        }
        let before = self.told.take().filter(|told| told.main == tree.main);
        let (generation, failed) = before.map_or((None, None), |told| (told.generation, told.failed));
        let (generation, failed) = (asked.generation.or(generation), asked.failed.or(failed));
        self.told = Some(Told { main: tree.main, generation, failed });
        let recent = self.changed.is_some_and(|at| now.saturating_duration_since(at) < RELOAD_SHOWN);
        Reload {
            generation: generation.unwrap_or(self.changes),
            failed: failed.unwrap_or(0),
            running: recent && !self.old.is_empty(),
            old: self.old.iter().map(|(process, since)| OldWorker { pid: process.pid, since: *since }).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::io::Admin;

    fn p(pid: u32) -> Process {
        Process { start: u64::from(pid), pid }
    }

    fn asked() -> Asked {
        Asked::only(Admin::NotConfigured)
    }

    #[test]
    fn a_reload_is_shown_while_former_processes_finish_and_not_for_ever() {
        let mut history = History::default();
        let t = Instant::now();
        let first = Tree { serving: vec![p(2)], ..Tree::single(p(1)) };
        assert_eq!(history.reload(t, &first, &asked()), Reload::default());
        let second = Tree { serving: vec![p(3)], old: vec![p(2)], ..Tree::single(p(1)) };
        let old = vec![OldWorker { pid: 2, since: t }];
        let shown = Reload { generation: 1, failed: 0, running: true, old: old.clone() };
        assert_eq!(history.reload(t, &second, &asked()), shown);
        let later = t + RELOAD_SHOWN;
        assert_eq!(history.reload(later, &second, &asked()), Reload { running: false, ..shown });
        let third = Tree { serving: vec![p(3)], ..Tree::single(p(1)) };
        assert_eq!(history.reload(later, &third, &asked()), Reload { generation: 1, ..Reload::default() });
    }

    #[test]
    fn workers_that_become_old_one_by_one_after_the_new_ones_came_are_one_reload() {
        let mut history = History::default();
        let t = Instant::now();
        let look = |serving: &[u32], old: &[u32]| Tree {
            serving: serving.iter().copied().map(p).collect(),
            old: old.iter().copied().map(p).collect(),
            ..Tree::single(p(1))
        };
        let looks = [look(&[2, 3], &[]), look(&[2, 3, 4, 5], &[]), look(&[3, 4, 5], &[2]), look(&[4, 5], &[2, 3])];
        let generations = looks.map(|tree| history.reload(t, &tree, &asked()).generation);
        assert_eq!(generations, [0, 0, 1, 1]);
        assert_eq!(history.reload(t, &look(&[], &[2, 3, 4, 5]), &asked()).generation, 1, "an orderly end is no reload");
    }

    #[test]
    fn a_worker_that_is_replaced_alone_is_no_reload() {
        let mut history = History::default();
        let t = Instant::now();
        history.reload(t, &Tree { serving: vec![p(2), p(3)], ..Tree::single(p(1)) }, &asked());
        let replaced = Tree { serving: vec![p(2), p(9)], ..Tree::single(p(1)) };
        assert_eq!(history.reload(t, &replaced, &asked()), Reload::default());
    }

    #[test]
    fn what_the_balancer_says_of_its_reloads_goes_before_what_was_counted() {
        let told = Asked { generation: Some(7), failed: Some(2), ..asked() };
        let reload = History::default().reload(Instant::now(), &Tree::single(p(1)), &told);
        assert_eq!((reload.generation, reload.failed), (7, 2));
    }

    #[test]
    fn what_it_said_of_its_reloads_stands_while_it_says_nothing_and_not_for_another_one() {
        let mut history = History::default();
        let mut look = |main, asked: &Asked| {
            let reload = history.reload(Instant::now(), &Tree::single(p(main)), asked);
            (reload.generation, reload.failed)
        };
        let told = Asked { generation: Some(7), failed: Some(2), ..asked() };
        let silent = Asked::only(Admin::Silent { why: "no answer in 250 ms".to_owned() });
        assert_eq!(look(1, &told), (7, 2));
        assert_eq!(look(1, &silent), (7, 2));
        assert_eq!(look(1, &Asked { failed: Some(0), ..silent.clone() }), (7, 0));
        assert_eq!(look(9, &silent), (0, 0));
    }

    #[test]
    fn old_processes_are_told_up_to_a_limit() {
        let old: Vec<Process> = (100..300).map(p).collect();
        let tree = Tree { serving: vec![p(900)], old, ..Tree::single(p(1)) };
        let reload = History::default().reload(Instant::now(), &tree, &asked());
        assert_eq!(reload.old.len(), OLD_WORKERS_MAX);
    }

    #[test]
    fn listeners_for_clients_are_those_on_the_vip_or_on_all_addresses() {
        let vip: IpAddr = "192.0.2.10".parse().expect("an address");
        let on = |address: &str, port, inode| Listener {
            address: address.parse().expect("an address"),
            port,
            inode,
            cgroup: Some(inode * 10),
            ..Listener::default()
        };
        let all = [on("192.0.2.10", 80, 1), on("0.0.0.0", 443, 1), on("127.0.0.1", 9000, 1), on("0.0.0.0", 22, 2)];
        let vips = BTreeSet::from([vip]);
        let ports = |owner: Owner, vips: &BTreeSet<IpAddr>| -> Vec<u16> {
            owner.listeners(&all, vips).iter().map(|l| l.port).collect()
        };
        assert_eq!(ports(Owner::Files(BTreeSet::from([1])), &vips), [80, 443]);
        assert_eq!(ports(Owner::Group(10), &vips), [80, 443]);
        assert_eq!(ports(Owner::Unknown, &vips), [80], "who listens on all addresses can't be known");
        assert_eq!(ports(Owner::Files(BTreeSet::from([2])), &BTreeSet::new()), [22]);
        let inside = [on("127.0.0.1", 9000, 1)];
        assert_eq!(Owner::Group(10).listeners(&inside, &vips), inside, "better than nothing");
    }

    #[test]
    fn descriptors_are_read_again_only_when_a_process_or_a_listener_came_or_went() {
        use std::os::unix::fs::symlink;
        let proc = std::env::temp_dir().join(format!("holdfast-report-{}", std::process::id()));
        let fds = proc.join("1/fd");
        std::fs::create_dir_all(&fds).expect("a fresh directory");
        let opens = |fd: &str, inode: u64| symlink(format!("socket:[{inode}]"), fds.join(fd)).expect("writable");
        let listening = |inodes: &[u64]| -> Vec<Listener> {
            inodes.iter().map(|inode| Listener { inode: *inode, ..Listener::default() }).collect()
        };
        let files = |inodes: &[u64]| Owner::Files(inodes.iter().copied().collect());
        opens("3", 30);
        opens("4", 40);
        let mut known = Known::default();
        assert_eq!(known.of(&proc, vec![p(1)], &listening(&[30, 99])), &files(&[30]), "40 is a connection");
        opens("5", 50);
        std::fs::remove_file(fds.join("3")).expect("ours");
        assert_eq!(known.of(&proc, vec![p(1)], &listening(&[30, 99])), &files(&[30]), "not read");
        assert_eq!(known.of(&proc, vec![p(1)], &listening(&[50, 99])), &files(&[50]));
        opens("6", 99);
        assert_eq!(known.of(&proc, vec![p(1), p(2)], &listening(&[50, 99])), &files(&[50, 99]));
        std::fs::remove_dir_all(proc).expect("ours");
    }

    #[test]
    fn the_root_group_is_everybodys() {
        assert_eq!(group_path("12:cpu:/x\n0::/system.slice/haproxy.service\n"), Some("system.slice/haproxy.service"));
        assert_eq!(group_path("0::/\n"), None);
        assert_eq!(group_path("1:name=systemd:/\n"), None);
    }

    #[test]
    fn the_jitter_stays_within_its_bounds_and_varies() {
        let some: Vec<f64> = (0..64).map(|_| jitter()).collect();
        assert!(some.iter().all(|j| (0.0..=1.0).contains(j)));
        assert!(some.iter().any(|j| (j - some[0]).abs() > 0.01));
    }
}
