//! Processes: start them with a clean slate, signal their group, learn how they ended, tell them apart by start time.
//!
//! A child is forked, cleaned up and then *held*: it waits for [`Held::release`] before it runs its program, so that
//! limits can be set from outside and its pid written down first. If we die meanwhile, it exits without having run.

use super::pidfd;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus};
use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

/// The number under which a child finds [`Spawn::inherit`].
pub const INHERITED_FD: RawFd = 3;
/// Our own descriptors are moved above the numbers a child gives to its inherited ones.
const SAFE_FD: RawFd = 10;
/// What only the process that the service manager started may use.
const MANAGER_VARIABLES: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// What to start and what it is given.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// Program (looked up in PATH when it has no slash) and arguments.
    pub argv: &'a [String],
    /// Added to our own environment, from which the service manager's variables are taken out.
    pub environment: &'a [(String, String)],
    /// A descriptor the child gets as number [`INHERITED_FD`].
    pub inherit: Option<BorrowedFd<'a>>,
    /// Where stdout and stderr go; `None`: where ours go. stdin is always /dev/null.
    pub output: Option<BorrowedFd<'a>>,
    /// Leave ambient and inheritable capabilities as they are: only for our own worker, which drops them itself.
    pub keep_capabilities: bool,
}

/// A child that waits for its release.
#[derive(Debug)]
pub struct Held {
    child: Child,
    go: OwnedFd,
}

/// A child process, leader of its own session and process group. Not reaped by its drop: see [`Child::reap`].
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
    /// Carries the error number when the program could not be run.
    failure: OwnedFd,
}

/// How a child ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Exit status.
    Status(i32),
    /// Killed by this signal.
    Signal(i32),
    /// The program could not be run.
    NotRun(io::ErrorKind, String),
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(status) => write!(f, "exit status {status}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::NotRun(_, why) => write!(f, "can't start: {why}"),
        }
    }
}

impl Spawn<'_> {
    /// Forks the child and holds it. It has default scheduling and nice value, an empty signal mask, default signal
    /// dispositions, no ambient or inheritable capability, our limits, a session of its own, and no descriptor but
    /// 0, 1, 2 and the inherited one.
    ///
    /// # Errors
    /// The program isn't there or isn't executable, or the system is out of something.
    pub fn hold(&self) -> io::Result<Held> {
        let program = self.argv.first().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no program"))?;
        // Everything that allocates happens before the fork.
        let path = c_string(find_program(program)?.as_os_str().as_bytes())?;
        let argv = self.argv.iter().map(|arg| c_string(arg.as_bytes())).collect::<io::Result<Vec<_>>>()?;
        let environment = self.c_environment()?;
        let argv = pointers(&argv);
        let environment_pointers = pointers(&environment);
        let null = above(fs::File::options().read(true).write(true).open("/dev/null")?.as_fd())?;
        let inherit = self.inherit.map(above).transpose()?;
        let output = self.output.map(above).transpose()?;
        let (go_read, go) = pipe()?;
        let (failure, failure_write) = pipe()?;
        let child = InChild {
            path: path.as_ptr(),
            argv: argv.as_ptr(),
            environment: environment_pointers.as_ptr(),
            null: null.as_raw_fd(),
            inherit: inherit.as_ref().map(AsRawFd::as_raw_fd),
            output: output.as_ref().map(AsRawFd::as_raw_fd),
            go: go_read.as_raw_fd(),
            go_writer: go.as_raw_fd(),
            failure: failure_write.as_raw_fd(),
            keep_capabilities: self.keep_capabilities,
        };
        // SAFETY: the child does nothing but `InChild::run`, which only makes system calls on memory that was
        // prepared above and never returns.
        let raw = unsafe { libc::fork() };
        if raw == 0 {
            child.run();
        }
        let pid = Pid::from_raw(raw).filter(|_| raw > 0).ok_or_else(io::Error::last_os_error)?;
        match pidfd::open(pid.as_raw_nonzero().get().unsigned_abs()) {
            Ok(pidfd) => Ok(Held { child: Child { pid, pidfd, failure }, go }),
            Err(error) => {
                // Closing the pipe ends it; nobody else will reap it.
                drop(go);
                let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
                Err(error)
            }
        }
    }

    fn c_environment(&self) -> io::Result<Vec<CString>> {
        let ours = std::env::vars_os().filter(|(name, _)| !MANAGER_VARIABLES.iter().any(|taken| name == taken));
        let mut all: BTreeMap<OsString, OsString> = ours.collect();
        all.extend(self.environment.iter().map(|(name, value)| (name.into(), value.into())));
        let entry = |(name, value): (OsString, OsString)| c_string(&[name.as_bytes(), b"=", value.as_bytes()].concat());
        all.into_iter().map(entry).collect()
    }
}

impl Held {
    /// Its process id.
    pub fn pid(&self) -> Pid {
        self.child.pid
    }

    /// The process, which has not run its program yet.
    pub fn child(&self) -> &Child {
        &self.child
    }

    /// Lets it run its program.
    pub fn release(self) -> Child {
        let go = fs::File::from(self.go);
        // If it is dead already, its end is reported like any other.
        let _ = io::Write::write(&mut &go, b"g");
        self.child
    }

    /// Gives it up: it exits without having run its program.
    pub fn abandon(self) -> Child {
        self.child
    }
}

impl Child {
    /// Its process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Reaps it if it has ended; kills what is left of its process group before that, while its number can't have
    /// been given to anybody else.
    ///
    /// # Errors
    /// It isn't our child any more.
    pub fn reap(&self) -> io::Result<Option<Ended>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let id = || WaitId::PidFd(self.pidfd.as_fd());
        if rustix::process::waitid(id(), options | WaitIdOptions::NOWAIT)?.is_none() {
            return Ok(None);
        }
        self.signal_group(libc::SIGKILL);
        let Some(status) = rustix::process::waitid(id(), options)? else { return Ok(None) };
        Ok(Some(self.ended(&status)))
    }

    fn ended(&self, status: &WaitIdStatus) -> Ended {
        let mut errno = [0; 4];
        if let Ok(4) = rustix::io::read(&self.failure, &mut errno) {
            let error = io::Error::from_raw_os_error(i32::from_ne_bytes(errno));
            return Ended::NotRun(error.kind(), error.to_string());
        }
        match (status.exit_status(), status.terminating_signal()) {
            (Some(status), _) => Ended::Status(status),
            (None, signal) => Ended::Signal(signal.unwrap_or(0)),
        }
    }

    /// A signal to it alone. Gone already is success.
    pub fn signal(&self, signal: i32) {
        signal_process(self.pidfd.as_fd(), signal);
    }

    /// A signal to its whole process group. Must not be called after [`Self::reap`] has said how it ended.
    pub fn signal_group(&self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            let _ = rustix::process::kill_process_group(self.pid, signal);
        }
        // Before its setsid it has no group of its own.
        signal_process(self.pidfd.as_fd(), signal);
    }
}

impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// A signal to the process behind a pidfd. Gone already is success.
pub fn signal_process(pidfd: BorrowedFd<'_>, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        let _ = rustix::process::pidfd_send_signal(pidfd, signal);
    }
}

/// Whether the process behind a pidfd has ended; it needn't be our child.
pub fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// Start time of the process with this id, in clock ticks since boot; `None`: there is none.
pub fn start_time(pid: u32) -> Option<u64> {
    parse_start_time(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Field 22. The name (field 2) may hold spaces and brackets: fields count from the last bracket.
fn parse_start_time(stat: &[u8]) -> Option<u64> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(after_name + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// A process that isn't our child, found again by id and start time.
#[derive(Debug)]
pub struct Adopted {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Adopted {
    /// Opens it if it is still the one that started then.
    pub fn open(pid: u32, start: u64) -> Option<Self> {
        let fd = pidfd::open(pid).ok()?;
        // Compared after the open: from here on the descriptor stays with that process.
        (start_time(pid) == Some(start)).then_some(())?;
        Some(Self { pid: Pid::from_raw(i32::try_from(pid).ok()?)?, pidfd: fd })
    }

    /// A signal to it alone.
    pub fn signal(&self, signal: i32) {
        signal_process(self.pidfd.as_fd(), signal);
    }

    /// A signal to its whole process group, which is its own if we started it. Nothing when it has ended: its number
    /// may be another's then.
    pub fn signal_group(&self, signal: i32) {
        if !has_ended(self.pidfd.as_fd())
            && let Some(signal) = Signal::from_named_raw(signal)
        {
            let _ = rustix::process::kill_process_group(self.pid, signal);
        }
    }
}

impl AsFd for Adopted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// A close-on-exec pipe, both ends above the numbers that children are given: (read, write).
///
/// # Errors
/// Out of descriptors.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok((above(read.as_fd())?, above(write.as_fd())?))
}

fn above(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, SAFE_FD)?)
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "an argument holds a NUL"))
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Like execvp, but before the fork.
fn find_program(program: &str) -> io::Result<std::path::PathBuf> {
    let executable = |path: &std::path::Path| {
        fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("{program}: no such program"));
    if program.contains('/') {
        let path = std::path::PathBuf::from(program);
        return if executable(&path) { Ok(path) } else { Err(missing()) };
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    std::env::split_paths(&search).map(|folder| folder.join(program)).find(|path| executable(path)).ok_or_else(missing)
}

/// All that the child needs after the fork. Nothing in here allocates or takes a lock.
struct InChild {
    path: *const libc::c_char,
    argv: *const *const libc::c_char,
    environment: *const *const libc::c_char,
    null: RawFd,
    inherit: Option<RawFd>,
    output: Option<RawFd>,
    go: RawFd,
    go_writer: RawFd,
    failure: RawFd,
    keep_capabilities: bool,
}

impl InChild {
    fn run(&self) -> ! {
        // SAFETY: async-signal-safe system calls only; every pointer was prepared before the fork and the parent's
        // memory is copied, so they stay valid until exec or exit. The descriptors are this process's own.
        unsafe {
            libc::setsid();
            self.reset_signals();
            let normal = libc::sched_param { sched_priority: 0 };
            libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const normal);
            libc::setpriority(libc::PRIO_PROCESS, 0, 0);
            libc::dup2(self.null, 0);
            if let Some(output) = self.output {
                libc::dup2(output, 1);
                libc::dup2(output, 2);
            }
            if let Some(inherit) = self.inherit {
                libc::dup2(inherit, INHERITED_FD);
            }
            // Whatever we were given by our own parent without close-on-exec stays with us.
            let first = if self.inherit.is_some() { INHERITED_FD + 1 } else { INHERITED_FD };
            let close_on_exec = libc::c_uint::try_from(libc::CLOSE_RANGE_CLOEXEC).unwrap_or(0);
            libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, close_on_exec);
            // Ours of that pipe must be the only writing end, or its close would not be seen.
            libc::close(self.go_writer);
            if !self.keep_capabilities {
                clear_capabilities();
            }
            let mut go = 0_u8;
            loop {
                let got = libc::read(self.go, (&raw mut go).cast(), 1);
                if got == 1 {
                    break;
                }
                if got == 0 || *libc::__errno_location() != libc::EINTR {
                    libc::_exit(125);
                }
            }
            libc::execve(self.path, self.argv, self.environment);
            let errno = (*libc::__errno_location()).to_ne_bytes();
            libc::write(self.failure, errno.as_ptr().cast(), errno.len());
            libc::_exit(127)
        }
    }

    /// Default dispositions first, then nothing blocked. The C library keeps signals 32 and 33 for itself and refuses
    /// to touch them, yet an ancestor may have left them ignored: the system call is used instead.
    fn reset_signals(&self) {
        const SET_BYTES: usize = 8;
        // The kernel's struct sigaction, at least as long as on any platform: all zero is SIG_DFL without flags, and a
        // zeroed set is empty.
        let zero = [0_u64; 8];
        let none = std::ptr::null_mut::<u64>();
        // SAFETY: plain system calls that read `zero`, which is long enough, and write nothing.
        unsafe {
            for signal in 1..=64 {
                libc::syscall(libc::SYS_rt_sigaction, signal, zero.as_ptr(), none, SET_BYTES);
            }
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, zero.as_ptr(), none, SET_BYTES);
        }
    }
}

/// Nothing ambient, nothing inheritable: a program that isn't root's gets no capability by exec.
fn clear_capabilities() {
    let _ = rustix::thread::clear_ambient_capability_set();
    if let Ok(mut sets) = rustix::thread::capabilities(None) {
        sets.inheritable = super::caps::CapabilitySet::empty();
        let _ = rustix::thread::set_capabilities(None, sets);
    }
}

/// Takes the descriptor that [`Spawn::inherit`] gave us, or that a flag names. Once only.
///
/// # Errors
/// No such descriptor is open.
pub fn take_inherited(raw: RawFd) -> io::Result<OwnedFd> {
    if raw < 3 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an inherited descriptor"));
    }
    // SAFETY: only borrowed to ask whether it is open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(raw) };
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and by the contract of this function nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        for name in ["sleep", "a b", "tmux: (x) y", ")", "1 2 3)"] {
            assert_eq!(parse_start_time(format!("42 ({name}) {fields}").as_bytes()), Some(777), "{name}");
        }
        for garbage in [&b""[..], b"42", b"42 (x", b"42 (x) S 1", b"\xff)\xff", b")"] {
            assert_eq!(parse_start_time(garbage), None);
        }
        assert!(start_time(std::process::id()).is_some());
        assert_eq!(start_time(0), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_refused_before_any_fork() {
        let argv = ["/no/such/program".to_owned()];
        let spawn = Spawn { argv: &argv, environment: &[], inherit: None, output: None, keep_capabilities: false };
        assert_eq!(spawn.hold().expect_err("missing").kind(), io::ErrorKind::NotFound);
        assert_eq!(find_program("sh").expect("found").file_name(), Some("sh".as_ref()));
    }

    #[test]
    fn descriptors_below_three_are_never_taken() {
        assert!(take_inherited(1).is_err());
        assert!(take_inherited(-1).is_err());
        assert!(take_inherited(1_000_000).is_err());
    }
}
