//! From what the configuration names to the tree of processes.

use super::ask::in_words;
use super::plane::{Member, Plane};
use super::proc::{Stat, children, stat, text, title};
use super::{Process, Tree};
use crate::os::diag::Listener;
use holdfast_node::config::ProcessSource;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Longest pidfile that is looked at.
const PIDFILE_MAX: u64 = 4096;
/// How deep slices may be nested above a unit that isn't directly in `system.slice`.
const SLICES_MAX: usize = 4;
/// Processes of one balancer that are looked at.
const MEMBERS_MAX: usize = 256;
/// How deep below the named process its descendants are looked for.
const DESCENT_MAX: usize = 4;

/// Looks for one balancer. Remembers enough to see through a pid that was given to another process.
#[derive(Debug)]
pub(super) struct Finder {
    plane: Box<dyn Plane>,
    source: ProcessSource,
    /// Other than this machine's only in tests.
    proc: PathBuf,
    /// Mounts in which systemd keeps its tree: cgroup v2 ones and the named v1 one.
    cgroups: Vec<PathBuf>,
    /// The pidfile as it was when it last named a living process, and that process.
    named: Option<(FileVersion, Process)>,
    /// What was found last.
    last: Option<Tree>,
}

/// Tells one content of a file from the next: device, inode, modification time.
type FileVersion = (u64, u64, i64, i64);

impl Finder {
    /// On this machine.
    pub(super) fn new(plane: Box<dyn Plane>, source: ProcessSource) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let cgroups = mounts.lines().filter_map(systemd_mount).collect();
        Self { plane, source, proc: PathBuf::from("/proc"), cgroups, named: None, last: None }
    }

    /// The processes now, or in a few words why there are none. `command`: what the keeper last started.
    pub(super) fn find(&mut self, command: Option<Process>) -> Result<Tree, String> {
        let (main, members) = match self.source.clone() {
            ProcessSource::Command(_) => self.below(self.started(command)?),
            ProcessSource::Pidfile(path) => {
                let main = self.pidfile(&path)?;
                self.below(main)
            }
            ProcessSource::Unit(unit) => self.unit(&unit)?,
            ProcessSource::Kernel => return Err("has no process".to_owned()),
        };
        let named = |stat: Stat| {
            let title = if self.plane.titles() { title(&self.proc, stat.process.pid) } else { String::new() };
            Member::new(stat, title)
        };
        let members: Vec<Member> = members.into_iter().map(named).collect();
        let Some(main) = members.iter().find(|m| m.process == main).cloned() else {
            return Err(format!("process {} is gone", main.pid));
        };
        let mut tree = self.plane.shape(&main, &members);
        if let Some(last) = &self.last {
            tree.aborted = last.aborted + u64::from(aborted(last, &tree));
        }
        self.last = Some(tree.clone());
        Ok(tree)
    }

    /// Whether something that was seen last still lives, and one of these listeners has one of these ports. Whose it is
    /// can't be known where other users' descriptors are hidden from us. Without known ports any listener counts.
    pub(super) fn listens(&self, listeners: &[Listener], ports: &BTreeSet<u16>) -> bool {
        let lives = |p: Process| self.running(p.pid).is_some_and(|s| s.process == p);
        let company = self.last.iter().flat_map(|tree| tree.processes()).any(lives);
        company && listeners.iter().any(|l| ports.is_empty() || ports.contains(&l.port))
    }

    /// The directory to watch for changes of what the source names; `None`: nothing to watch.
    pub(super) fn watched_directory(&self) -> Option<&Path> {
        match &self.source {
            ProcessSource::Pidfile(path) => path.parent(),
            ProcessSource::Command(_) | ProcessSource::Unit(_) | ProcessSource::Kernel => None,
        }
    }

    /// A process and its descendants.
    fn below(&self, main: Stat) -> (Process, Vec<Stat>) {
        let process = main.process;
        let mut members = vec![main];
        let mut parents = vec![process.pid];
        for _ in 0..DESCENT_MAX {
            let of = |pid: u32| children(&self.proc, pid).into_iter().map(move |child| (pid, child));
            let born: Vec<Stat> = parents
                .drain(..)
                .flat_map(of)
                .filter_map(|(parent, child)| self.running(child).filter(|s| s.parent == parent))
                .take(MEMBERS_MAX.saturating_sub(members.len()))
                .collect();
            parents.extend(born.iter().map(|s| s.process.pid));
            members.extend(born);
            if parents.is_empty() {
                break;
            }
        }
        (process, members)
    }

    fn running(&self, pid: u32) -> Option<Stat> {
        stat(&self.proc, pid).filter(|s| !s.zombie)
    }

    fn started(&self, command: Option<Process>) -> Result<Stat, String> {
        let process = command.ok_or("not started yet")?;
        self.running(process.pid)
            .filter(|s| s.process.start == process.start)
            .ok_or_else(|| format!("process {} is gone", process.pid))
    }

    fn pidfile(&mut self, path: &Path) -> Result<Stat, String> {
        let said = |e: &io::Error| format!("{}: {}", path.display(), in_words(e));
        let meta = fs::metadata(path).map_err(|e| said(&e))?;
        if !meta.is_file() || meta.len() > PIDFILE_MAX {
            return Err(format!("{}: not a pidfile", path.display()));
        }
        let text = fs::read_to_string(path).map_err(|e| said(&e))?;
        let first = text.split_ascii_whitespace().next().unwrap_or_default();
        let pid: u32 = first.parse().map_err(|_| format!("{}: no pid in it", path.display()))?;
        let found = self.running(pid).ok_or_else(|| format!("{}: no process {pid}", path.display()))?;
        // Unchanged since it named a process that is gone: whatever has that pid now, the file doesn't mean it.
        // (The file's time against the process's start would say the same, until somebody sets the clock.)
        let version = (meta.dev(), meta.ino(), meta.mtime(), meta.mtime_nsec());
        match self.named {
            Some((v, process)) if v == version && process != found.process => {
                Err(format!("{}: stale, its process {pid} is gone", path.display()))
            }
            _ => {
                self.named = Some((version, found.process));
                Ok(found)
            }
        }
    }

    /// The processes of the unit, and the oldest one whose parent is not of the unit: reload helpers are younger.
    fn unit(&self, unit: &str) -> Result<(Process, Vec<Stat>), String> {
        let Some(group) = self.cgroups.iter().find_map(|root| unit_dir(root, unit)) else {
            return Err(format!("{unit}: not running (no such control group)"));
        };
        let list = text(&group.join("cgroup.procs")).map_err(|e| format!("{unit}: {}", in_words(&e)))?;
        let pids = list.split_ascii_whitespace().take(MEMBERS_MAX);
        let all: Vec<Stat> = pids.filter_map(|p| self.running(p.parse().ok()?)).collect();
        let root = |s: &&Stat| !all.iter().any(|other| other.process.pid == s.parent);
        let main = all.iter().filter(root).map(|s| s.process).min();
        Ok((main.ok_or_else(|| format!("{unit}: no process in its control group"))?, all))
    }
}

/// Whether the youngest is gone and one that it was to replace serves on.
fn aborted(last: &Tree, now: &Tree) -> bool {
    now.youngest().is_some_and(|serves| last.youngest() > Some(serves) && last.old.contains(&serves))
}

/// The mount point, if this line of mountinfo is a hierarchy that systemd may keep its units in.
fn systemd_mount(line: &str) -> Option<PathBuf> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let point = mount.split(' ').nth(4)?;
    let mut fields = filesystem.split(' ');
    let (kind, options) = (fields.next()?, fields.nth(1)?);
    let ours = kind == "cgroup2" || (kind == "cgroup" && options.split(',').any(|o| o == "name=systemd"));
    // Blanks in a mount point are written as \040; nobody mounts control groups there.
    ours.then(|| PathBuf::from(point))
}

fn unit_dir(root: &Path, unit: &str) -> Option<PathBuf> {
    let usual = root.join("system.slice").join(unit);
    if usual.is_dir() {
        return Some(usual);
    }
    below(root, unit, SLICES_MAX)
}

fn below(dir: &Path, unit: &str, depth: usize) -> Option<PathBuf> {
    let slices = fs::read_dir(dir).ok()?.filter_map(Result::ok).filter(|e| {
        e.file_name().to_str().is_some_and(|n| n.ends_with(".slice")) && e.file_type().is_ok_and(|t| t.is_dir())
    });
    for slice in slices {
        let here = slice.path().join(unit);
        if here.is_dir() {
            return Some(here);
        }
        if depth > 1
            && let Some(found) = below(&slice.path(), unit, depth - 1)
        {
            return Some(found);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::plane::plane;
    use super::*;
    use holdfast_node::config::{Balancer, BalancerKind, Name};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A directory that looks like `/proc` and a control group mount, removed at the end.
    struct Fake(PathBuf);

    impl Fake {
        fn new() -> Self {
            static N: AtomicU32 = AtomicU32::new(0);
            let n = N.fetch_add(1, Ordering::Relaxed);
            let dir = std::env::temp_dir().join(format!("holdfast-find-{}-{n}", std::process::id()));
            fs::create_dir_all(dir.join("proc")).expect("a fresh directory");
            fs::create_dir_all(dir.join("cg")).expect("a fresh directory");
            Self(dir)
        }

        fn process(&self, pid: u32, name: &str, parent: u32, start: u64) -> &Self {
            let task = self.0.join(format!("proc/{pid}/task/{pid}"));
            fs::create_dir_all(&task).expect("writable");
            let line = format!("{pid} ({name}) S {parent} 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0\n");
            fs::write(self.0.join(format!("proc/{pid}/stat")), line).expect("writable");
            fs::write(task.join("children"), "").expect("writable");
            let list = self.0.join(format!("proc/{parent}/task/{parent}/children"));
            if let Ok(text) = fs::read_to_string(&list) {
                fs::write(list, format!("{text}{pid} ")).expect("writable");
            }
            self
        }

        fn unit(&self, below: &str, pids: &str) -> &Self {
            let dir = self.0.join("cg").join(below);
            fs::create_dir_all(&dir).expect("writable");
            fs::write(dir.join("cgroup.procs"), pids).expect("writable");
            self
        }

        fn finder(&self, kind: BalancerKind, source: ProcessSource) -> Finder {
            let name = Name::new("lb").expect("a name");
            let plane = plane(&Balancer::new(name, kind, source.clone())).expect("has processes");
            let (proc, cgroups) = (self.0.join("proc"), vec![self.0.join("cg")]);
            Finder { plane, source, proc, cgroups, named: None, last: None }
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn unit() -> ProcessSource {
        ProcessSource::Unit("haproxy.service".to_owned())
    }

    /// The main process and the others whose deaths matter, oldest first.
    fn pids(tree: Result<Tree, String>) -> (u32, Vec<u32>) {
        let tree = tree.expect("found");
        let mut all: Vec<Process> = tree.watched().filter(|p| *p != tree.main).collect();
        all.sort_unstable();
        (tree.main.pid, all.iter().map(|w| w.pid).collect())
    }

    #[test]
    fn in_a_unit_the_oldest_root_is_the_master_and_its_namesakes_are_the_workers() {
        let f = Fake::new();
        f.process(10, "haproxy", 1, 100).process(30, "haproxy", 10, 300).process(20, "haproxy", 10, 200);
        f.process(40, "dataplaneapi", 10, 150).process(50, "kill", 1, 50_000);
        f.unit("system.slice/haproxy.service", "10\n20\n30\n40\n50\n");
        assert_eq!(pids(f.finder(BalancerKind::Haproxy, unit()).find(None)), (10, vec![20, 30]));
        assert_eq!(pids(f.finder(BalancerKind::Process, unit()).find(None)), (10, vec![]));
    }

    #[test]
    fn descendants_of_a_named_process_are_its_company() {
        let f = Fake::new();
        let path = f.0.join("pid");
        fs::write(&path, "10\n").expect("writable");
        f.process(10, "lb", 1, 100).process(20, "sh", 10, 200).process(30, "sleep", 20, 300).process(40, "x", 1, 400);
        let mut finder = f.finder(BalancerKind::Process, ProcessSource::Pidfile(path));
        let tree = finder.find(None).expect("found");
        assert_eq!(tree.others.iter().map(|p| p.pid).collect::<Vec<_>>(), [20, 30]);
        let listener = |port| Listener { port, ..Listener::default() };
        let ports = BTreeSet::from([80]);
        assert!(finder.listens(&[listener(80)], &ports));
        assert!(!finder.listens(&[listener(81)], &ports), "somebody else");
        assert!(finder.listens(&[listener(81)], &BTreeSet::new()), "the ports aren't known yet");
        for pid in [10, 20, 30] {
            fs::remove_dir_all(f.0.join(format!("proc/{pid}"))).expect("it ends");
        }
        assert!(!finder.listens(&[listener(80)], &ports), "nobody of it is left");
    }

    #[test]
    fn a_unit_in_a_nested_slice_is_found_too() {
        let f = Fake::new();
        f.process(10, "haproxy", 1, 100).unit("edge.slice/edge-lb.slice/haproxy.service", "10\n");
        assert_eq!(pids(f.finder(BalancerKind::Haproxy, unit()).find(None)), (10, vec![]));
    }

    #[test]
    fn an_absent_unit_and_an_empty_one_say_why() {
        let f = Fake::new();
        let why = f.finder(BalancerKind::Haproxy, unit()).find(None).expect_err("absent");
        assert_eq!(why, "haproxy.service: not running (no such control group)");
        f.unit("system.slice/haproxy.service", "");
        let why = f.finder(BalancerKind::Haproxy, unit()).find(None).expect_err("empty");
        assert_eq!(why, "haproxy.service: no process in its control group");
    }

    #[test]
    fn a_pidfile_that_was_not_rewritten_does_not_name_a_later_process_with_the_same_pid() {
        let f = Fake::new();
        let path = f.0.join("pid");
        let mut finder = f.finder(BalancerKind::Process, ProcessSource::Pidfile(path.clone()));
        let said = |r: Result<Tree, String>| r.expect_err("not found").replace(&path.display().to_string(), "pid");
        assert_eq!(said(finder.find(None)), "pid: no such file or directory");
        fs::write(&path, "x\n").expect("writable");
        assert_eq!(said(finder.find(None)), "pid: no pid in it");
        fs::write(&path, "10\n").expect("writable");
        assert_eq!(said(finder.find(None)), "pid: no process 10");
        f.process(10, "lb", 1, 100);
        assert_eq!(pids(finder.find(None)), (10, vec![]));
        f.process(10, "other", 1, 999);
        assert_eq!(said(finder.find(None)), "pid: stale, its process 10 is gone");
        let renamed = path.with_extension("new");
        fs::write(&renamed, "10\n").expect("writable");
        fs::rename(&renamed, &path).expect("same directory");
        assert_eq!(pids(finder.find(None)), (10, vec![]));
    }

    #[test]
    fn a_command_is_the_started_process_and_not_its_successor_in_the_pid() {
        let f = Fake::new();
        f.process(10, "lb", 1, 100);
        let mut finder = f.finder(BalancerKind::Process, ProcessSource::Command(vec!["lb".to_owned()]));
        assert_eq!(finder.find(None), Err("not started yet".to_owned()));
        assert_eq!(pids(finder.find(Some(Process { start: 100, pid: 10 }))), (10, vec![]));
        assert_eq!(finder.find(Some(Process { start: 90, pid: 10 })), Err("process 10 is gone".to_owned()));
    }

    #[test]
    fn both_kinds_of_systemd_hierarchies_are_recognised_in_mountinfo() {
        let v2 = "35 25 0:29 / /sys/fs/cgroup rw,nosuid shared:5 - cgroup2 cgroup2 rw,nsdelegate";
        let v1 = "33 32 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd";
        let other = "36 32 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
        assert_eq!(systemd_mount(v2), Some(PathBuf::from("/sys/fs/cgroup")));
        assert_eq!(systemd_mount(v1), Some(PathBuf::from("/sys/fs/cgroup/systemd")));
        assert_eq!(systemd_mount(other), None);
        assert_eq!(systemd_mount("garbage"), None);
    }
}
