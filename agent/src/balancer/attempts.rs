//! Reloads that nginx was told to do and didn't.
//!
//! A master that is told to reload opens its configuration file, and if it can't use what is in it, writes that to its
//! log and goes on with what it has: no process comes or goes, and no answer of it says so. What shows it are signs
//! together: the file was opened, the master (which sleeps otherwise) woke up, it is at rest again, and no new worker is
//! there. To be sure of the file, something in its folder must have changed since the workers started, so that who reads
//! it while the logs are rotated is no attempt. (`nginx -t`, and an `nginx -s reload` that refuses the file itself, open
//! it and don't wake the master: whoever called them sees them fail.)
//!
//! At rest is exact: outside of `sigsuspend` a master blocks the signals that it acts on, SIGHUP among them.
//!
//! [`Attempts`] judges, [`Opened`] sees the file being opened, [`changed`] looks at the folder.

use super::proc::Signals;
use super::{Process, Tree};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Whoever opens the file to tell the master something does so within this time.
const TOLD: Duration = Duration::from_secs(5);
/// Files below the folder that are looked at; of more, one may have changed.
const ENTRIES_MAX: usize = 4096;
/// Ticks of a process's start in a second (`USER_HZ`): the same on every architecture that systems are built for.
const TICKS: u64 = 100;

/// What the master was told to do, as far as it shows.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    last: Option<Last>,
    pending: Option<Pending>,
    /// Since the last one that took effect.
    failed: u64,
}

/// The last look.
#[derive(Debug)]
struct Last {
    master: Process,
    serving: BTreeSet<Process>,
    family: BTreeSet<u32>,
    /// How often the master went to sleep.
    sleeps: u64,
    /// When the first of these workers started.
    loaded: u64,
}

/// The file was opened.
#[derive(Debug)]
struct Pending {
    /// By the look before: this one may have found new workers beside the old ones.
    serving: BTreeSet<Process>,
    family: BTreeSet<u32>,
    sleeps: u64,
    /// When the file was last opened.
    opened: Instant,
}

impl Attempts {
    /// A look: the master's signals, whether its file was opened since the last look, and (asked only where it matters)
    /// the master's children now. Where there was an attempt without effect: when the configuration in use was loaded,
    /// in ticks since boot. It counts once [`Attempts::confirm`] says so.
    pub(super) fn look(
        &mut self,
        now: Instant,
        tree: &Tree,
        master: Signals,
        opened: bool,
        children: impl FnOnce() -> BTreeSet<u32>,
    ) -> Option<u64> {
        let serving: BTreeSet<Process> = tree.serving.iter().copied().collect();
        let first = tree.serving.iter().map(|p| p.start).min().unwrap_or(tree.main.start);
        let Some(last) = self.last.as_mut().filter(|last| last.master == tree.main) else {
            // Another one: what was opened before was its start.
            *self = Self::default();
            let family = family(tree).collect();
            self.last = Some(Last { master: tree.main, serving, family, sleeps: master.sleeps, loaded: first });
            return None;
        };
        match &mut self.pending {
            Some(pending) if opened => pending.opened = now,
            None if opened => {
                let (serving, family) = (last.serving.clone(), last.family.clone());
                self.pending = Some(Pending { serving, family, sleeps: last.sleeps, opened: now });
            }
            _ => {}
        }
        let mut without_effect = None;
        if let Some(pending) = &self.pending {
            if !serving.is_empty() && serving.is_disjoint(&pending.serving) {
                (self.pending, self.failed, last.loaded) = (None, 0, first);
            } else if master.rests && master.sleeps > pending.sleeps && pending.in_vain(master.sleeps, &children()) {
                (self.pending, without_effect) = (None, Some(last.loaded));
            } else if master.rests && now.saturating_duration_since(pending.opened) >= TOLD {
                self.pending = None;
            }
        }
        (last.serving, last.family, last.sleeps) = (serving, family(tree).collect(), master.sleeps);
        without_effect
    }

    /// What [`Attempts::look`] gave was one. Meanwhile another may have taken effect: then it is of no interest.
    pub(super) fn confirm(&mut self, loaded: u64) {
        if self.last.as_ref().is_some_and(|last| last.loaded == loaded) {
            self.failed = self.failed.saturating_add(1);
        }
    }

    /// Those since the last one that took effect.
    pub(super) const fn failed(&self) -> u64 {
        self.failed
    }
}

impl Pending {
    /// It went to sleep so often, and has these children: it woke up more often than by their ends, and has no new one.
    fn in_vain(&self, sleeps: u64, children: &BTreeSet<u32>) -> bool {
        let ended = u64::try_from(self.family.difference(children).count()).unwrap_or(u64::MAX);
        children.is_subset(&self.family) && sleeps.saturating_sub(self.sleeps) > ended
    }
}

/// Its children, as far as they are known.
fn family(tree: &Tree) -> impl Iterator<Item = u32> + '_ {
    tree.serving.iter().chain(&tree.old).chain(&tree.others).map(|p| p.pid)
}

/// Tells when a file is opened, by whomever, and whatever replaces it. Its folder must be readable.
#[derive(Debug)]
pub(super) struct Opened {
    folder: PathBuf,
    name: OsString,
    events: OwnedFd,
}

impl Opened {
    /// From now on. `None`: it isn't there, or not for us to see.
    pub(super) fn of(file: &Path) -> Option<Self> {
        let target = fs::canonicalize(file).ok()?;
        let (folder, name) = (target.parent()?.to_owned(), target.file_name()?.to_owned());
        let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
        inotify::add_watch(&events, &folder, WatchFlags::OPEN | WatchFlags::ONLYDIR).ok()?;
        Some(Self { folder, name, events })
    }

    /// Whether it still looks where the other one does.
    pub(super) fn same(&self, other: &Self) -> bool {
        (&self.folder, &self.name) == (&other.folder, &other.name)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether it was since it was asked last. `None`: the folder is gone.
    pub(super) fn since(&self) -> Option<bool> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.events, &mut buffer);
        let mut opened = false;
        // Somebody who opens files without end shall not hold us: what is left is read in the next look.
        for _ in 0..ENTRIES_MAX {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => return None,
                // Too many at once to tell them apart.
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => opened = true,
                Ok(event) => opened |= event.file_name().is_some_and(|n| n.to_bytes() == self.name.as_bytes()),
                Err(_) => break,
            }
        }
        Some(opened)
    }
}

/// Whether anything below a folder changed since this tick after boot.
pub(super) fn changed(folder: &Path, since: u64) -> bool {
    let uptime = fs::read_to_string("/proc/uptime").ok();
    let uptime = uptime.and_then(|text| text.split(' ').next()?.parse::<f64>().ok()).map(Duration::from_secs_f64);
    let age = uptime.map(|up| up.saturating_sub(Duration::from_millis(since.saturating_mul(1000 / TICKS))));
    let Some(then) = age.and_then(|age| SystemTime::now().checked_sub(age)) else { return true };
    // A copy that keeps the time of its original still has its own time of change.
    let newer = |meta: &fs::Metadata| {
        let seconds = u64::try_from(meta.ctime()).unwrap_or(0);
        let nanos = u64::try_from(meta.ctime_nsec()).unwrap_or(0);
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_nanos(nanos) > then
    };
    let mut folders = vec![folder.to_owned()];
    let mut left = ENTRIES_MAX;
    while let Some(folder) = folders.pop() {
        if fs::metadata(&folder).is_ok_and(|meta| newer(&meta)) {
            return true;
        }
        for entry in fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
            let Some(rest) = left.checked_sub(1) else { return true };
            left = rest;
            // The link as well as what it leads to.
            let link = entry.metadata();
            if link.as_ref().is_ok_and(newer) || fs::metadata(entry.path()).is_ok_and(|meta| newer(&meta)) {
                return true;
            }
            if link.is_ok_and(|meta| meta.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LOOK: Duration = Duration::from_millis(500);
    const NONE: [u64; 0] = [];

    fn p(pid: u32) -> Process {
        Process { start: u64::from(pid), pid }
    }

    fn tree(serving: &[u32], old: &[u32]) -> Tree {
        let list = |pids: &[u32]| pids.iter().copied().map(p).collect();
        Tree { serving: list(serving), old: list(old), ..Tree::single(p(1)) }
    }

    /// Looks every half second.
    struct Course {
        attempts: Attempts,
        now: Instant,
    }

    impl Course {
        fn new(serving: &[u32]) -> Self {
            let mut course = Self { attempts: Attempts::default(), now: Instant::now() };
            assert_eq!(course.look(&tree(serving, &[]), 10, true), None, "its start opened it");
            course
        }

        fn look(&mut self, tree: &Tree, sleeps: u64, opened: bool) -> Option<u64> {
            let children = family(tree).collect();
            self.beside(tree, Signals { sleeps, rests: true }, opened, children)
        }

        /// With other children than those that were found.
        fn beside(&mut self, tree: &Tree, master: Signals, opened: bool, children: BTreeSet<u32>) -> Option<u64> {
            self.now += LOOK;
            self.attempts.look(self.now, tree, master, opened, || children)
        }

        /// Until long after anything could be pending.
        fn rest(&mut self, tree: &Tree, sleeps: u64) -> Vec<u64> {
            (0..40).filter_map(|_| self.look(tree, sleeps, false)).collect()
        }
    }

    #[test]
    fn a_master_that_opened_its_file_and_woke_up_and_has_no_new_workers_failed_once() {
        let mut course = Course::new(&[20, 21]);
        let same = tree(&[20, 21], &[]);
        assert_eq!(course.look(&same, 11, true), Some(20), "the configuration is as old as the workers");
        assert_eq!(course.rest(&same, 11), NONE);
        course.attempts.confirm(20);
        assert_eq!(course.attempts.failed(), 1);
        course.look(&tree(&[30, 31], &[20, 21]), 13, true);
        assert_eq!(course.attempts.failed(), 0, "now it has what it was told");
        course.attempts.confirm(20);
        assert_eq!(course.attempts.failed(), 0, "it took long to find out about one before that");
        assert_eq!(course.rest(&tree(&[30, 31], &[]), 15), NONE, "the old ones ended");
    }

    #[test]
    fn it_is_judged_only_when_the_master_rests_and_by_the_children_that_it_has_then() {
        let mut course = Course::new(&[20]);
        let same = tree(&[20], &[]);
        for sleeps in 11..40 {
            let reads = Signals { sleeps, rests: false };
            assert_eq!(course.beside(&same, reads, sleeps == 11, BTreeSet::from([20])), None, "it still reads");
        }
        let rests = Signals { sleeps: 40, rests: true };
        assert_eq!(course.beside(&same, rests, false, BTreeSet::from([20, 30])), None, "the next look finds it");
        assert_eq!(course.look(&tree(&[30], &[20]), 41, false), None);
        assert_eq!(course.rest(&tree(&[30], &[]), 42), NONE);
    }

    #[test]
    fn new_workers_beside_the_old_ones_are_what_comes_of_a_reload() {
        let mut course = Course::new(&[20]);
        let both = tree(&[20, 30], &[]);
        assert_eq!(course.look(&both, 12, true), None);
        assert_eq!(course.look(&both, 12, false), None);
        course.look(&tree(&[30], &[20]), 12, false);
        assert_eq!(course.rest(&tree(&[30], &[]), 13), NONE);
    }

    #[test]
    fn a_reader_of_the_file_a_master_that_rotates_logs_and_a_worker_that_died_are_no_attempts() {
        let mut course = Course::new(&[20, 21]);
        let same = tree(&[20, 21], &[]);
        course.look(&same, 10, true);
        assert_eq!(course.rest(&same, 10), NONE, "nginx -t");
        assert_eq!(course.rest(&same, 11), NONE, "logs");
        course.look(&same, 11, true);
        assert_eq!(course.rest(&tree(&[21, 99], &[]), 12), NONE, "nginx -t while a worker was replaced");
        course.look(&tree(&[21, 99], &[9]), 12, false);
        course.look(&tree(&[21, 99], &[9]), 12, true);
        let gone = BTreeSet::from([21, 99]);
        let woken = Signals { sleeps: 13, rests: true };
        assert_eq!(course.beside(&tree(&[21, 99], &[9]), woken, false, gone), None, "nginx -t while an old one ended");
    }

    #[test]
    fn a_worker_that_is_replaced_does_not_undo_a_failure_and_another_master_does() {
        let mut course = Course::new(&[20]);
        assert_eq!(course.look(&tree(&[20], &[]), 11, true), Some(20));
        course.attempts.confirm(20);
        assert_eq!(course.rest(&tree(&[30], &[]), 12), NONE);
        assert_eq!(course.attempts.failed(), 1, "it was started with what the master has");
        assert_eq!(course.look(&tree(&[30], &[]), 13, true), Some(20), "and that is as old as it was");
        assert_eq!(course.look(&Tree { main: p(2), ..tree(&[40], &[]) }, 5, true), None);
        assert_eq!(course.attempts.failed(), 0);
    }

    #[test]
    fn who_opens_the_file_first_and_tells_the_master_later_is_seen() {
        let mut course = Course::new(&[20]);
        let same = tree(&[20], &[]);
        course.look(&same, 10, true);
        (0..5).for_each(|_| assert_eq!(course.look(&same, 10, false), None));
        assert_eq!(course.look(&same, 11, false), Some(20));
    }

    #[test]
    fn a_file_that_is_opened_is_seen_also_when_it_was_replaced_and_others_are_not() {
        let dir = std::env::temp_dir().join(format!("holdfast-attempts-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a fresh directory");
        let (file, link) = (dir.join("nginx.conf"), dir.join("link.conf"));
        fs::write(&file, "1").expect("writable");
        std::os::unix::fs::symlink(&file, &link).expect("writable");
        let opened = Opened::of(&link).expect("it is there");
        assert!(opened.same(&Opened::of(&file).expect("it is there")));
        assert_eq!(opened.since(), Some(false));
        fs::write(dir.join("other"), "2").expect("writable");
        assert_eq!(opened.since(), Some(false));
        fs::read(&file).expect("readable");
        assert_eq!(opened.since(), Some(true));
        fs::rename(dir.join("other"), &file).expect("one directory");
        assert_eq!(opened.since(), Some(false));
        fs::read(&link).expect("readable");
        assert_eq!(opened.since(), Some(true));
        fs::remove_dir_all(&dir).expect("ours");
        assert_eq!(opened.since(), None);
        assert!(Opened::of(&file).is_none());
    }

    #[test]
    fn a_change_anywhere_below_the_folder_is_seen_and_what_is_older_is_not() {
        let dir = std::env::temp_dir().join(format!("holdfast-changed-{}", std::process::id()));
        fs::create_dir_all(dir.join("conf.d")).expect("a fresh directory");
        fs::write(dir.join("conf.d/site"), "1").expect("writable");
        let ticks = || {
            let text = fs::read_to_string("/proc/uptime").expect("readable");
            text.split(' ').next().and_then(|s| s.replace('.', "").parse::<u64>().ok()).expect("hundredths")
        };
        // The kernel gives a file the time of its last tick.
        let apart = Duration::from_millis(200);
        std::thread::sleep(apart);
        let now = ticks();
        assert!(!changed(&dir, now));
        std::thread::sleep(apart);
        fs::write(dir.join("conf.d/site"), "2").expect("writable");
        assert!(changed(&dir, now));
        assert!(changed(&dir, 0), "since boot");
        fs::remove_dir_all(&dir).expect("ours");
        assert!(!changed(&dir, now), "nothing is there any more");
    }

    proptest! {
        #[test]
        fn whoever_never_opens_the_file_never_fails(looks in prop::collection::vec((0_u64..9, 0_u32..4), 1..200)) {
            let mut course = Course::new(&[20]);
            for (sleeps, pid) in looks {
                prop_assert_eq!(course.look(&tree(&[20 + pid], &[]), sleeps, false), None);
            }
        }
    }
}
