//! The keeper's processes by what they are for: the worker with its socket, balancers, programs with their output.

use super::channel::{KeeperEnd, Received};
use crate::os::fdpass;
use crate::os::process::{Adopted, Child, Ended, Held, Spawn, pipe, start_time};
use holdfast_node::keeper::Process;
use holdfast_node::keeper::ipc::{ExecResult, OUTPUT_MAX, ToKeeper, ToWorker};
use rustix::process::Pid;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Messages for a worker that doesn't read. Full: it is stuck, and is killed.
const QUEUE_MAX: usize = 1_024;

/// Runs already, or waits for its release.
#[derive(Debug)]
pub(super) enum Started {
    Held(Held),
    Running(Child),
}

impl Started {
    fn new(held: Held) -> io::Result<(Self, Process)> {
        let pid = held.pid().as_raw_nonzero().get().unsigned_abs();
        match start_time(pid) {
            Some(start_time) => Ok((Self::Held(held), Process { pid, start_time })),
            None => {
                // Without /proc nothing of ours could be told apart later.
                let child = held.abandon();
                child.signal_group(libc::SIGKILL);
                let _ = child.reap();
                Err(io::Error::other("can't read its start time from /proc"))
            }
        }
    }

    pub(super) fn release(self) -> Self {
        match self {
            Self::Held(held) => Self::Running(held.release()),
            running => running,
        }
    }

    fn child(&self) -> &Child {
        match self {
            Self::Held(held) => held.child(),
            Self::Running(child) => child,
        }
    }
}

/// The worker: its process, our end of the socket pair, and what waits to be sent.
#[derive(Debug)]
pub(super) struct Worker {
    started: Started,
    /// `None`: closed.
    pub(super) end: Option<KeeperEnd>,
    queue: VecDeque<ToWorker>,
    /// Where it leaves word that it lives.
    pub(super) pulse: Option<OwnedFd>,
}

impl Worker {
    /// Starts a worker that waits for its release.
    pub(super) fn hold(argv: &[String]) -> io::Result<(Self, Process)> {
        let (ours, theirs) = fdpass::pair()?;
        let mut argv = argv.to_vec();
        argv.extend(["--ipc-fd".to_owned(), crate::os::process::INHERITED_FD.to_string()]);
        let spawn = Spawn {
            argv: &argv,
            environment: &[],
            inherit: Some(theirs.as_fd()),
            output: None,
            keep_capabilities: true,
        };
        let (started, process) = Started::new(spawn.hold()?)?;
        Ok((Self { started, end: Some(KeeperEnd::new(ours)), queue: VecDeque::new(), pulse: None }, process))
    }

    pub(super) fn release(self) -> Self {
        Self { started: self.started.release(), ..self }
    }

    /// SIGKILL to its group.
    pub(super) fn kill(&self) {
        self.started.child().signal_group(libc::SIGKILL);
    }

    pub(super) fn reap(&self) -> io::Result<Option<Ended>> {
        self.started.child().reap()
    }

    /// Sends now or later, in order. False: too much waits already.
    pub(super) fn send(&mut self, message: ToWorker) -> bool {
        if self.queue.len() >= QUEUE_MAX {
            return false;
        }
        self.queue.push_back(message);
        self.flush();
        true
    }

    /// Sends what waits, as far as it goes.
    pub(super) fn flush(&mut self) {
        let Some(end) = &self.end else { return self.queue.clear() };
        while let Some(message) = self.queue.front() {
            match end.send(message, None) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Sent; or it can't ever be, and its end will be seen by other means.
                _ => self.queue.pop_front(),
            };
        }
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn receive(&mut self) -> Received<ToKeeper> {
        let Some(end) = &mut self.end else { return Received::Empty };
        let received = end.receive().unwrap_or(Received::Closed);
        if matches!(received, Received::Closed) {
            self.end = None;
        }
        received
    }

    pub(super) fn process(&self) -> BorrowedFd<'_> {
        self.started.child().as_fd()
    }

    pub(super) fn pid(&self) -> Pid {
        self.started.child().pid()
    }
}

/// A balancer: started by us, or by a former keeper.
#[derive(Debug)]
pub(super) enum Balancer {
    Ours(Started),
    Adopted(Adopted),
}

impl Balancer {
    /// Starts one that waits for its release.
    pub(super) fn hold(argv: &[String]) -> io::Result<(Self, Process)> {
        let spawn = Spawn { argv, environment: &[], inherit: None, output: None, keep_capabilities: false };
        let (started, process) = Started::new(spawn.hold()?)?;
        Ok((Self::Ours(started), process))
    }

    pub(super) fn release(self) -> Self {
        match self {
            Self::Ours(started) => Self::Ours(started.release()),
            adopted => adopted,
        }
    }

    pub(super) fn signal(&self, signal: i32, group: bool) {
        match (self, group) {
            (Self::Ours(started), true) => started.child().signal_group(signal),
            (Self::Ours(started), false) => started.child().signal(signal),
            (Self::Adopted(adopted), true) => adopted.signal_group(signal),
            (Self::Adopted(adopted), false) => adopted.signal(signal),
        }
    }

    /// How it ended; `None`: it runs.
    pub(super) fn ended(&self) -> Option<String> {
        match self {
            Self::Ours(started) => match started.child().reap() {
                Ok(ended) => ended.map(|ended| ended.to_string()),
                Err(error) => Some(format!("lost: {error}")),
            },
            // The status of a process that isn't our child is its parent's.
            Self::Adopted(adopted) => {
                crate::os::process::has_ended(adopted.as_fd()).then(|| "ended, its status is unknown".to_owned())
            }
        }
    }

    pub(super) fn process(&self) -> BorrowedFd<'_> {
        match self {
            Self::Ours(started) => started.child().as_fd(),
            Self::Adopted(adopted) => adopted.as_fd(),
        }
    }
}

/// A program that runs once.
#[derive(Debug)]
pub(super) struct Exec {
    child: Child,
    /// `None`: at its end.
    pipe: Option<OwnedFd>,
    output: Vec<u8>,
}

impl Exec {
    pub(super) fn start(argv: &[String], environment: &[(String, String)]) -> io::Result<Self> {
        let (read, write) = pipe()?;
        rustix::io::ioctl_fionbio(&read, true)?;
        let spawn = Spawn { argv, environment, inherit: None, output: Some(write.as_fd()), keep_capabilities: false };
        let child = spawn.hold()?.release();
        Ok(Self { child, pipe: Some(read), output: Vec::new() })
    }

    pub(super) fn signal(&self, signal: i32) {
        self.child.signal_group(signal);
    }

    /// Reads what is there, a bounded piece at a time; beyond the cap it is thrown away.
    pub(super) fn read(&mut self) {
        let mut buffer = [0; 4_096];
        for _ in 0..16 {
            let Some(pipe) = &self.pipe else { return };
            match rustix::io::read(pipe, &mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(got) => {
                    let room = OUTPUT_MAX.saturating_sub(self.output.len()).min(got);
                    self.output.extend_from_slice(buffer.get(..room).unwrap_or_default());
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => self.pipe = None,
            }
        }
    }

    /// How it ended and what it wrote; `None`: it runs.
    pub(super) fn ended(&mut self) -> Option<(ExecResult, Vec<u8>)> {
        let result = match self.child.reap() {
            Ok(None) => return None,
            Ok(Some(Ended::Status(status))) => ExecResult::Status(status),
            Ok(Some(Ended::Signal(signal))) => ExecResult::Signal(signal),
            Ok(Some(Ended::NotRun(_, why))) => ExecResult::NotStarted(why),
            Err(error) => ExecResult::NotStarted(format!("lost: {error}")),
        };
        self.read();
        Some((result, std::mem::take(&mut self.output)))
    }

    pub(super) fn process(&self) -> BorrowedFd<'_> {
        self.child.as_fd()
    }

    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn shell(script: &str) -> Vec<String> {
        ["/bin/sh", "-c", script].map(str::to_owned).to_vec()
    }

    fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(Instant::now() < end, "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn ended(exec: &mut Exec) -> (ExecResult, String) {
        let (result, output) = until("its end", || exec.ended());
        (result, String::from_utf8_lossy(&output).into_owned())
    }

    /// The processes of this process group.
    fn group(leader: u32) -> Vec<u32> {
        let all = std::fs::read_dir("/proc").expect("procfs").filter_map(Result::ok);
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields = stat.rsplit(')').next().unwrap_or_default();
            fields.split_ascii_whitespace().nth(2) == Some(&leader.to_string())
        })
        .collect()
    }

    #[test]
    fn arguments_reach_the_program_as_they_are_written_and_no_shell_reads_them() {
        let argv = ["/bin/echo", "a b", "$HOME", "; false", "`id`", "*"].map(str::to_owned);
        let mut exec = Exec::start(&argv, &[]).expect("started");
        assert_eq!(ended(&mut exec), (ExecResult::Status(0), "a b $HOME ; false `id` *\n".to_owned()));
        let environment = [("HOLDFAST_EVENT".to_owned(), "$(false) active".to_owned())];
        let mut exec = Exec::start(&shell("echo \"$HOLDFAST_EVENT\""), &environment).expect("started");
        assert_eq!(ended(&mut exec), (ExecResult::Status(0), "$(false) active\n".to_owned()));
    }

    #[test]
    fn a_program_that_ignores_sigterm_is_killed_with_all_that_it_started() {
        let script = "trap 'echo no' TERM; echo ready; while :; do sleep 10; done";
        let mut exec = Exec::start(&shell(script), &[]).expect("started");
        let leader = exec.child.pid().as_raw_nonzero().get().unsigned_abs();
        until("its child", || {
            exec.read();
            (exec.output.ends_with(b"ready\n") && group(leader).len() == 2).then_some(())
        });
        assert!(!group(leader).contains(&std::process::id()), "a group of its own");
        exec.signal(libc::SIGTERM);
        // It says so when the sleep, which dies of it, is over.
        until("its word", || {
            exec.read();
            exec.output.ends_with(b"no\n").then_some(())
        });
        assert_eq!(exec.ended(), None, "it goes on");
        exec.signal(libc::SIGKILL);
        assert_eq!(ended(&mut exec).0, ExecResult::Signal(libc::SIGKILL));
        until("the end of its group", || group(leader).is_empty().then_some(()));
    }

    #[test]
    fn a_hundred_runs_leave_no_zombie() {
        for round in 0..100 {
            let script = if round % 2 == 0 { "exit 0" } else { "sleep 10 & exit 3" };
            let mut exec = Exec::start(&shell(script), &[]).expect("started");
            let pid = exec.child.pid();
            assert_eq!(ended(&mut exec).0, ExecResult::Status(if round % 2 == 0 { 0 } else { 3 }));
            let waited = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
            assert_eq!(waited.map(|w| w.is_some()), Err(rustix::io::Errno::CHILD), "reaped");
        }
    }
}
