//! The keeper's own lines on stderr: one per event, never blocking. A reader that doesn't read costs lines, counted.

use holdfast_node::keeper::ipc::describe_diagnostic;
use holdfast_node::keeper::{Event, KillReason, UndoReason};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::time::Duration;

/// A longer line is cut. A pipe that polls writable takes at least 4096 bytes.
const LINE_MAX: usize = 1_024;

/// The log.
#[derive(Debug, Default)]
pub(super) struct Log {
    lost: u64,
}

impl Log {
    pub(super) fn line(&mut self, text: &dyn fmt::Display) {
        let stderr = std::io::stderr();
        let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let writable = poll(&mut fds, Some(&now)).is_ok() && fds.iter().all(|fd| fd.revents() == PollFlags::OUT);
        if !writable {
            self.lost = self.lost.saturating_add(1);
            return;
        }
        let mut line = format!("holdfast keeper: {text}").replace('\n', " ");
        if self.lost > 0 {
            line.push_str(&format!(" ({} lines lost before)", std::mem::take(&mut self.lost)));
        }
        let mut bytes = line.into_bytes();
        bytes.truncate(LINE_MAX);
        bytes.push(b'\n');
        let _ = rustix::io::write(&stderr, &bytes);
    }
}

/// An event as a line for people.
pub(super) struct Line<'a>(pub(super) &'a Event);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Event::WorkerStarted { pid } => write!(f, "worker {pid} started"),
            Event::WorkerEnded { what, lived, restart_in } => {
                write!(f, "worker ended after {}: {what}; the next one starts {}", Span(*lived), In(*restart_in))
            }
            Event::WorkerReplaced { pid, lived } => {
                write!(f, "worker left in order after {}, {pid} has taken over", Span(*lived))
            }
            Event::NextFailed { why } => write!(f, "no other worker takes over, the living one goes on: {why}"),
            Event::WorkerNotStarted { why, retry_in } => {
                write!(f, "can't start a worker: {why}; tried again {}", In(*retry_in))
            }
            Event::WorkerKilled { why } => write!(f, "worker killed: {}", kill_reason(*why)),
            Event::Undone { vip, resigned, removed, why } => {
                let advert = if *resigned { "priority 0 sent, " } else { "" };
                write!(f, "vip {vip}: {advert}{removed} removed: {}", undo_reason(*why))
            }
            Event::Resumed { vip } => write!(f, "vip {vip}: resumed by the new worker"),
            Event::RemoveFailed { undo, what, retry_in } => {
                write!(f, "can't remove {undo}: {what}; tried again {}", In(*retry_in))
            }
            Event::BalancerStarted { name, pid } => write!(f, "balancer {name}: started as {pid}"),
            Event::BalancerEnded { name, what, restart_in: Some(wait) } => {
                write!(f, "balancer {name}: {what}; started again {}", In(*wait))
            }
            Event::BalancerEnded { name, what, restart_in: None } => write!(f, "balancer {name}: stopped, {what}"),
            Event::BalancerAdopted { name, pid } => write!(f, "balancer {name}: still runs as {pid}, adopted"),
            Event::BalancerUnclaimed { name, pid } => {
                write!(f, "balancer {name}: runs as {pid}, but the configuration doesn't name it; left alone")
            }
            Event::Refused { what } => write!(f, "refused: {what}"),
            Event::Late { by } => {
                write!(f, "this process was {} late: the machine or its scheduling stood still", Span(*by))
            }
            Event::Bfd { neighbor, from, to, diag, left_out } => {
                write!(f, "bfd {neighbor}: {from} to {to}: {}", describe_diagnostic(*diag))?;
                if *left_out > 0 { write!(f, " ({left_out} changes in between)") } else { Ok(()) }
            }
            Event::BfdProblem { neighbor, what } => write!(f, "bfd {neighbor}: can't run: {what}"),
            Event::BgpClosed { neighbor } => {
                write!(f, "bgp {neighbor}: closed, since no worker resumed the session in half its hold time")
            }
            Event::Forsaken => f.write_str("no worker can withdraw what is gone: bfd down, bgp sessions ended"),
            Event::Stopping => f.write_str("stopping"),
        }
    }
}

struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < Duration::from_secs(10) {
            write!(f, "{} ms", self.0.as_millis())
        } else {
            write!(f, "{} s", self.0.as_secs())
        }
    }
}

struct In(Duration);

impl fmt::Display for In {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_zero() { f.write_str("at once") } else { write!(f, "in {}", Span(self.0)) }
    }
}

fn kill_reason(why: KillReason) -> String {
    match why {
        KillReason::Hung(silent) => format!("no beat for {}", Span(silent)),
        KillReason::Closed => "it closed its socket and went on".to_owned(),
        KillReason::Stuck => "it doesn't read its socket".to_owned(),
        KillReason::Stays => "it didn't leave when the next one was ready".to_owned(),
        KillReason::Silent => "it didn't begin its work".to_owned(),
        KillReason::StopDeadline => "it didn't leave within the stop deadline".to_owned(),
        KillReason::Stopping => "stopping before it had begun".to_owned(),
    }
}

fn undo_reason(why: UndoReason) -> &'static str {
    match why {
        UndoReason::Hung => "the worker hung",
        UndoReason::Lapsed => "no worker resumed it in time",
        UndoReason::Left => "the worker left it behind",
        UndoReason::Balancer => "its balancer doesn't run and no worker is there",
        UndoReason::NotResumed => "the new worker came up as Backup",
        UndoReason::Stopping => "stopping",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::keeper::ipc::BfdState;

    #[test]
    fn lines_say_what_happened_and_what_follows() {
        let ended = Event::WorkerEnded {
            what: "signal 9".to_owned(),
            lived: Duration::from_millis(1_500),
            restart_in: Duration::ZERO,
        };
        assert_eq!(Line(&ended).to_string(), "worker ended after 1500 ms: signal 9; the next one starts at once");
        let undone = Event::Undone { vip: "web".to_owned(), resigned: true, removed: 2, why: UndoReason::Lapsed };
        let line = "vip web: priority 0 sent, 2 removed: no worker resumed it in time";
        assert_eq!(Line(&undone).to_string(), line);
        let (neighbor, from, to) = ("r1".to_owned(), BfdState::Down, BfdState::Init);
        let mut bfd = Event::Bfd { neighbor, from, to, diag: 0, left_out: 0 };
        assert_eq!(Line(&bfd).to_string(), "bfd r1: Down to Init: no diagnostic");
        if let Event::Bfd { left_out, .. } = &mut bfd {
            *left_out = 7;
        }
        assert_eq!(Line(&bfd).to_string(), "bfd r1: Down to Init: no diagnostic (7 changes in between)");
    }
}
