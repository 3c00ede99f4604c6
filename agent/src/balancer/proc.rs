//! What `/proc` says of a process.

use super::Process;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// One process's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) process: Process,
    pub(super) parent: u32,
    /// The kernel's name of it, at most 15 bytes.
    pub(super) name: String,
    /// Ended, and waits for its parent to notice.
    pub(super) zombie: bool,
    /// Stopped by a signal or a debugger, or stuck in the kernel.
    pub(super) stopped: bool,
    /// Processor time in clock ticks.
    pub(super) ticks: u64,
}

/// Longest part of a title that is looked at.
const TITLE_MAX: u64 = 4096;
/// Room for one of the kernel's files; most are shorter, and then it is read in one go.
const ROOM: usize = 4096;
/// Longest of the kernel's files that is read.
const TEXT_MAX: u64 = 1024 * 1024;

/// A file of the kernel's. It says 0 of its size, so that whoever asks for it first reads it in many small pieces.
pub(super) fn text(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(ROOM);
    fs::File::open(path)?.take(TEXT_MAX).read_to_end(&mut bytes)?;
    String::from_utf8(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// `None`: there is no such process, or it's on its way out.
pub(super) fn stat(proc: &Path, pid: u32) -> Option<Stat> {
    parse(&text(&proc.join(pid.to_string()).join("stat")).ok()?)
}

/// The name is in parentheses and may itself hold parentheses and spaces: the last `)` ends it.
fn parse(line: &str) -> Option<Stat> {
    let (head, tail) = line.rsplit_once(')')?;
    let (pid, name) = head.split_once(" (")?;
    let mut fields = tail.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // Counted from 1: state is field 3, parent 4, time in user mode 14, in the kernel 15, start 22.
    let user: u64 = fields.nth(9)?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    let start = fields.nth(6)?.parse().ok()?;
    Some(Stat {
        process: Process { start, pid: pid.trim().parse().ok()? },
        parent,
        name: name.to_owned(),
        zombie: matches!(state, "Z" | "X" | "x"),
        stopped: matches!(state, "T" | "t" | "D"),
        ticks: user.saturating_add(kernel),
    })
}

/// What the process calls itself, with its arguments, cut where they are long. Empty: none, or gone.
pub(super) fn title(proc: &Path, pid: u32) -> String {
    let mut bytes = Vec::with_capacity(ROOM);
    let read = fs::File::open(proc.join(pid.to_string()).join("cmdline"))
        .and_then(|file| file.take(TITLE_MAX).read_to_end(&mut bytes));
    let words = String::from_utf8_lossy(&bytes).replace('\0', " ");
    read.map(|_| words.trim_end().to_owned()).unwrap_or_default()
}

/// A process that waits for signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Signals {
    /// How often it went to sleep of its own accord.
    pub(super) sleeps: u64,
    /// It doesn't block SIGHUP.
    pub(super) rests: bool,
}

/// `None`: it is gone.
pub(super) fn signals(proc: &Path, pid: u32) -> Option<Signals> {
    waits(&text(&proc.join(pid.to_string()).join("status")).ok()?)
}

fn waits(status: &str) -> Option<Signals> {
    let value = |key| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let blocked = u64::from_str_radix(value("SigBlk:")?, 16).ok()?;
    let hangup = 1 << (libc::SIGHUP - 1);
    Some(Signals { sleeps: value("voluntary_ctxt_switches:")?.parse().ok()?, rests: blocked & hangup == 0 })
}

/// Open descriptors of a process and how many it may have. `None`: it is gone, has no limit, or isn't ours to look at.
pub(super) fn files(proc: &Path, pid: u32) -> Option<(u64, u64)> {
    let own = proc.join(pid.to_string());
    let limits = text(&own.join("limits")).ok()?;
    let limit = open_files(&limits)?;
    let fds = own.join("fd");
    // Since Linux 6.2 the directory's size is their number, for anybody; before, only their owner may count them.
    let open = match fs::metadata(&fds).ok()?.len() {
        0 => u64::try_from(fs::read_dir(&fds).ok()?.count()).ok()?,
        some => some,
    };
    Some((open, limit))
}

/// The soft limit in the text of `/proc/PID/limits`; `None`: unlimited.
fn open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// The inodes of the sockets that a process has open; `None`: not ours to look at. At most `max` descriptors are read.
pub(super) fn sockets(proc: &Path, pid: u32, max: usize) -> Option<Vec<u64>> {
    let entries = fs::read_dir(proc.join(pid.to_string()).join("fd")).ok()?;
    let mut inodes = Vec::new();
    for entry in entries.take(max) {
        let Ok(target) = fs::read_link(entry.ok()?.path()) else { continue };
        inodes.extend(target.to_str().and_then(socket_inode));
    }
    Some(inodes)
}

/// `socket:[1234]`.
fn socket_inode(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Children of a process. The kernel's own list where it has one, else every process is asked for its parent.
pub(super) fn children(proc: &Path, pid: u32) -> Vec<u32> {
    let own = proc.join(pid.to_string());
    match text(&own.join("task").join(pid.to_string()).join("children")) {
        // That list has the children of the main thread only: HAProxy's master and its like fork from there.
        Ok(list) => list.split_ascii_whitespace().filter_map(|p| p.parse().ok()).collect(),
        Err(_) if own.is_dir() => all(proc).filter(|p| stat(proc, *p).is_some_and(|s| s.parent == pid)).collect(),
        Err(_) => Vec::new(),
    }
}

fn all(proc: &Path) -> impl Iterator<Item = u32> {
    fs::read_dir(proc).into_iter().flatten().filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let line = "42 (a) (b c) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 0 0 18446744073709551615\n";
        let s = parse(line).expect("a well-formed line");
        assert_eq!((s.process, s.parent, s.zombie), (Process { start: 98765, pid: 42 }, 7, false));
        assert_eq!(s.name, "a) (b c");
    }

    #[test]
    fn state_and_processor_time_are_read() {
        let line = |state| format!("42 (a) {state} 7 42 42 0 -1 4194560 1 0 0 0 30 12 0 0 20 0 1 0 98765 0 0\n");
        let s = parse(&line("R")).expect("a well-formed line");
        assert_eq!((s.ticks, s.stopped), (42, false));
        for stopped in ["T", "t", "D"] {
            assert!(parse(&line(stopped)).is_some_and(|s| s.stopped), "{stopped}");
        }
    }

    #[test]
    fn the_limit_of_open_files_is_the_soft_one_and_unlimited_is_none() {
        let text = "Limit Soft Hard Units\nMax processes 1 2 processes\nMax open files            1024                 \
                    1048576              files     \n";
        assert_eq!(open_files(text), Some(1024));
        assert_eq!(
            open_files("Max open files            unlimited            unlimited            files     \n"),
            None
        );
        assert_eq!(open_files(""), None);
    }

    #[test]
    fn the_inode_of_a_socket_is_read_from_its_link() {
        assert_eq!(socket_inode("socket:[98]"), Some(98));
        for other in ["pipe:[98]", "socket:[x]", "socket:[", "/dev/null", ""] {
            assert_eq!(socket_inode(other), None, "{other}");
        }
        let _listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback can be bound");
        let mine = sockets(Path::new("/proc"), std::process::id(), 4096).expect("our own");
        assert!(!mine.is_empty());
        let (open, limit) = files(Path::new("/proc"), std::process::id()).expect("our own");
        assert!(open > 3 && open < limit, "{open} of {limit}");
    }

    #[test]
    fn who_blocks_sighup_does_not_rest() {
        let status = |blocked| format!("Name:\tnginx\nSigBlk:\t{blocked}\nvoluntary_ctxt_switches:\t16\n");
        let of = |blocked| waits(&status(blocked));
        assert_eq!(of("0000000018016a07"), Some(Signals { sleeps: 16, rests: false }));
        assert_eq!(of("0000000000000002"), Some(Signals { sleeps: 16, rests: true }));
        assert_eq!((of(""), waits("SigBlk:\t0\n")), (None, None));
        // Whether this process blocks it is up to who started it.
        assert!(signals(Path::new("/proc"), std::process::id()).is_some());
    }

    #[test]
    fn a_cut_line_is_no_process() {
        assert_eq!(parse("42 (a) S 7 42"), None);
        assert_eq!(parse("42 (a"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn this_process_finds_itself_and_its_child() {
        let proc = Path::new("/proc");
        let me = stat(proc, std::process::id()).expect("we run");
        assert!(!me.zombie);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep is there");
        // Test threads fork, so the kernel's per-thread list isn't asked here.
        let theirs = stat(proc, child.id()).expect("the child runs");
        // Its arguments are set up a moment after its files are closed, which is when `spawn` returns.
        while title(proc, child.id()).is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(title(proc, child.id()), "sleep 60");
        assert_eq!(theirs.parent, std::process::id());
        assert!(theirs.process > me.process);
        child.kill().expect("our own child can be killed");
        child.wait().expect("it was started");
        assert_eq!(stat(proc, child.id()), None);
    }
}
