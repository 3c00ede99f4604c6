//! Process descriptors: a death is seen in the same millisecond, by anyone, without being the parent.

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::OwnedFd;

/// A descriptor that becomes readable when the process ends. `NotFound`: there is no such process (any more).
///
/// A pid may have been reused before this call: compare the start time afterwards; once open, the descriptor stays
/// with its process.
pub fn open(pid: u32) -> io::Result<OwnedFd> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(pid) = raw else {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("no process can have the pid {pid}")));
    };
    pidfd_open(pid, PidfdFlags::NONBLOCK).map_err(|e| match e {
        rustix::io::Errno::SRCH => io::Error::new(io::ErrorKind::NotFound, "no such process"),
        other => other.into(),
    })
}
