//! What `/proc` says of a process.

use super::Process;
use std::fs;
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
}

/// `None`: there is no such process, or it's on its way out.
pub(super) fn stat(proc: &Path, pid: u32) -> Option<Stat> {
    parse(&fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?)
}

/// The name is in parentheses and may itself hold parentheses and spaces: the last `)` ends it.
fn parse(line: &str) -> Option<Stat> {
    let (head, tail) = line.rsplit_once(')')?;
    let (pid, name) = head.split_once(" (")?;
    let mut fields = tail.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // Field 22 counted from 1; state is field 3, parent field 4.
    let start = fields.nth(17)?.parse().ok()?;
    let process = Process { start, pid: pid.trim().parse().ok()? };
    Some(Stat { process, parent, name: name.to_owned(), zombie: matches!(state, "Z" | "X" | "x") })
}

/// Children of a process. The kernel's own list where it has one, else every process is asked for its parent.
pub(super) fn children(proc: &Path, pid: u32) -> Vec<u32> {
    let own = proc.join(pid.to_string());
    match fs::read_to_string(own.join("task").join(pid.to_string()).join("children")) {
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
        assert_eq!(theirs.parent, std::process::id());
        assert!(theirs.process > me.process);
        child.kill().expect("our own child can be killed");
        child.wait().expect("it was started");
        assert_eq!(stat(proc, child.id()), None);
    }
}
