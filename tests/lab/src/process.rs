//! Processes the lab starts and ends, by pidfd, so that a reused pid is never hit.

use crate::clock::{Ns, now};
use anyhow::{Context, Result, bail};
use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A handle on some process, ours or a child of ours.
#[derive(Debug)]
pub struct Pidfd {
    pid: i32,
    fd: OwnedFd,
}

impl Pidfd {
    /// Opens a handle on `pid`.
    ///
    /// # Errors
    /// No such process.
    pub fn open(pid: i32) -> Result<Self> {
        let Some(p) = Pid::from_raw(pid) else { bail!("pid {pid} names no process") };
        let fd = pidfd_open(p, PidfdFlags::empty()).with_context(|| format!("pidfd of {pid}"))?;
        Ok(Self { pid, fd })
    }

    /// The pid it was opened for.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends a signal; returns the time just before.
    ///
    /// # Errors
    /// The process is gone.
    pub fn signal(&self, signal: Signal) -> Result<Ns> {
        let t = now();
        pidfd_send_signal(&self.fd, signal).with_context(|| format!("signal {signal:?} to {}", self.pid))?;
        Ok(t)
    }

    /// Waits until the process has ended; false: still alive after `timeout`.
    #[must_use]
    pub fn wait_ended(&self, timeout: Duration) -> bool {
        let t = rustix::event::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&t)), Ok(n) if n > 0)
    }
}

/// Sees when a process ends, from a thread of its own that nothing keeps waiting: what of a reaction's time was the
/// kernel's, which tells of an end only when all that the process had is given back.
#[derive(Debug)]
pub struct Witness {
    thread: std::thread::JoinHandle<Option<Ns>>,
}

impl Witness {
    /// Watches `process` for as long as `limit` at `priority`.
    ///
    /// # Errors
    /// The thread can't be started or not have that priority.
    pub fn watch(process: Pidfd, priority: u8, limit: Duration) -> Result<Self> {
        let (tell, told) = std::sync::mpsc::channel();
        let watch = move || {
            // Nobody waits for it when the call below failed.
            let _unheard = tell.send(thread_id());
            process.wait_ended(limit).then(now)
        };
        let thread = std::thread::Builder::new().name("witness".into()).spawn(watch).context("witness thread")?;
        make_realtime(told.recv().context("witness thread")?, priority)?;
        Ok(Self { thread })
    }

    /// When it ended; `None`: not within the limit.
    #[must_use]
    pub fn ended(self) -> Option<Ns> {
        self.thread.join().ok().flatten()
    }
}

/// A program the lab started; it is ended when this is dropped.
#[derive(Debug)]
pub struct Proc {
    /// What it is, for messages.
    pub label: String,
    child: Child,
    fd: Pidfd,
    log: PathBuf,
}

impl Proc {
    /// Starts `command` with both outputs appended to `log`.
    ///
    /// # Errors
    /// The program can't be started.
    pub fn start(label: impl Into<String>, mut command: Command, log: &Path) -> Result<Self> {
        let label = label.into();
        let out = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("open {}", log.display()))?;
        // A child begins with this thread's signal mask, and many programs never unblock what was blocked: who started
        // the tests may have blocked SIGHUP.
        SigSet::empty().thread_set_mask().context("unblock signals")?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("start {label}"))?;
        let pid = i32::try_from(child.id()).context("pid fits an i32")?;
        let fd = Pidfd::open(pid)?;
        Ok(Self { label, child, fd, log: log.to_owned() })
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.fd.pid()
    }

    /// Where its output goes.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Its handle.
    #[must_use]
    pub fn fd(&self) -> &Pidfd {
        &self.fd
    }

    /// True while it hasn't ended.
    #[must_use]
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// SIGTERM, up to `grace`, then SIGKILL. Returns whether it ended by itself.
    pub fn stop(&mut self, grace: Duration) -> bool {
        if !self.alive() {
            return true;
        }
        let _gone = self.fd.signal(Signal::TERM);
        let clean = self.fd.wait_ended(grace);
        if !clean {
            let _gone = self.fd.signal(Signal::KILL);
        }
        let _reaped = self.child.wait();
        clean
    }

    /// Its exit code, once it has ended by itself within `timeout`; `None`: it lives, or a signal ended it.
    pub fn exit_code(&mut self, timeout: Duration) -> Option<i32> {
        if !self.fd.wait_ended(timeout) {
            return None;
        }
        self.child.wait().ok()?.code()
    }

    /// SIGKILL and reap; returns the time just before the signal.
    pub fn kill(&mut self) -> Ns {
        let t = self.fd.signal(Signal::KILL).unwrap_or_else(|_| now());
        let _reaped = self.child.wait();
        t
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        if self.alive() {
            self.kill();
        }
    }
}

/// The last lines of a file.
#[must_use]
pub fn tail(file: &Path, lines: usize) -> String {
    let text = std::fs::read(file).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    let kept = all.get(all.len().saturating_sub(lines)..).unwrap_or_default();
    let mut t = format!("--- {}\n", file.display());
    kept.iter().for_each(|l| {
        let _ = writeln!(t, "    {l}");
    });
    t
}

/// Every pid in /proc.
#[must_use]
pub fn all_pids() -> Vec<i32> {
    let Ok(dir) = std::fs::read_dir("/proc") else { return Vec::new() };
    dir.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// What /proc/PID/stat says that we need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The process.
    pub pid: i32,
    /// Its parent.
    pub parent: i32,
    /// Its name as the kernel has it (≤ 15 bytes).
    pub comm: String,
    /// State letter; `Z` and `X` are dead.
    pub state: char,
}

impl Stat {
    /// Reads it; `None`: no such process.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        // The name may itself hold spaces and parentheses: it ends at the last one.
        let (head, tail) = text.rsplit_once(") ")?;
        let (pid, comm) = head.split_once(" (")?;
        let mut fields = tail.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        Some(Self { pid: pid.parse().ok()?, parent, comm: comm.to_owned(), state })
    }

    /// Not a zombie.
    #[must_use]
    pub fn alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

/// The living children of `parent`.
#[must_use]
pub fn children(parent: i32) -> Vec<Stat> {
    all_pids().into_iter().filter_map(Stat::of).filter(|s| s.parent == parent && s.alive()).collect()
}

/// True while `pid` exists and isn't a zombie.
#[must_use]
pub fn alive(pid: i32) -> bool {
    Stat::of(pid).is_some_and(|s| s.alive())
}

/// SIGKILL by pid through a fresh pidfd; a process that is gone is fine.
pub fn kill_pid(pid: i32) {
    if let Ok(p) = Pidfd::open(pid) {
        let _gone = p.signal(Signal::KILL);
    }
}

/// Gives threads of this process real-time priority. The crate has no unsafe code, so `chrt` (util-linux) does it.
///
/// # Errors
/// The host doesn't permit it; the text says what chrt said.
pub fn make_realtime(tid: i32, priority: u8) -> Result<()> {
    let out = Command::new("chrt")
        .args(["--rr", "--reset-on-fork", "--pid", &priority.to_string(), &tid.to_string()])
        .output()
        .context("run chrt")?;
    if !out.status.success() {
        bail!("chrt: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}

/// The calling thread's id.
#[must_use]
pub fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_survives_spaces_and_parentheses_in_a_name() {
        let s = Stat::parse("42 (a) b (c)) S 7 1 1 0").expect("well formed");
        assert_eq!(s, Stat { pid: 42, parent: 7, comm: "a) b (c)".into(), state: 'S' });
        assert!(s.alive());
        assert!(Stat::parse("42 no parens").is_none());
    }

    #[test]
    fn a_process_we_start_is_ours_to_stop() {
        let log = std::env::temp_dir().join(format!("holdfast-lab-test-{}", std::process::id()));
        let mut c = Command::new("sleep");
        c.arg("60");
        let mut p = Proc::start("sleep", c, &log).expect("sleep exists");
        assert!(children(i32::try_from(std::process::id()).expect("fits")).iter().any(|s| s.pid == p.pid()));
        assert!(p.stop(Duration::from_secs(5)));
        assert!(!alive(p.pid()));
        let _gone = std::fs::remove_file(log);
    }
}
