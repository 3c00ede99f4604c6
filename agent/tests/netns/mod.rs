//! Network namespaces, for the tests that have some of their own.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs::{self, File};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Nothing here takes a tenth of it; only a hang does.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn skipped() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("skipped: network namespaces need root");
    }
    !root
}

pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {error}", arguments.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A network namespace, removed when dropped (also by a panic), with everything in it.
pub(crate) struct Namespace {
    pub(crate) name: String,
}

impl Namespace {
    /// A new one, with `role` in its name.
    pub(crate) fn new(role: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("hf{}-{}{role}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        run("ip", &["netns", "add", &name]);
        let namespace = Self { name };
        namespace.ip("link set lo up");
        namespace
    }

    pub(crate) fn ip(&self, arguments: &str) -> String {
        let mut all = vec!["-n", self.name.as_str()];
        all.extend(arguments.split_whitespace());
        run("ip", &all)
    }

    pub(crate) fn exec(&self, words: &str) -> String {
        let mut all = vec!["netns", "exec", self.name.as_str()];
        all.extend(words.split_whitespace());
        run("ip", &all)
    }

    /// Runs `f` on a thread inside the namespace; a panic goes on here.
    pub(crate) fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let file = File::open(format!("/run/netns/{}", self.name)).expect("the namespace is there");
                nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).expect("root may enter it");
                f()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A setting under `/proc/sys/net`.
    pub(crate) fn set(&self, key: &str, value: &str) {
        let path = format!("/proc/sys/net/{key}");
        self.enter(|| fs::write(&path, value).unwrap_or_else(|e| panic!("{path}: {e}")));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}
