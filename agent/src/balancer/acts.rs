//! What can be done to a balancer: a command to its admin side, or a signal to one of its processes.
//!
//! Which acts lead where is the adapter's to say ([`super::plane::Plane`]). What this module refuses to do: decide when.

use super::{Process, ask};
use crate::os::process::Adopted;
use holdfast_node::config::HttpAt;
use rustix::process::{Signal, pidfd_send_signal};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

/// Longest answer to a command.
const ANSWER_MAX: usize = 16 * 1024;

/// One act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// A command to a socket that speaks HAProxy's language.
    Command {
        /// The socket.
        socket: PathBuf,
        /// Without the end of line.
        command: String,
    },
    /// A POST without a body.
    Post {
        /// Where to connect.
        at: HttpAt,
        /// Path and query.
        path: String,
    },
    /// A signal to exactly this process. Needs the right to send it: where the worker hasn't, it is the keeper's to do.
    Signal {
        /// Whom.
        process: Process,
        /// The signal's number.
        signal: i32,
    },
}

impl Act {
    pub(super) const fn signal(process: Process, signal: i32) -> Self {
        Self::Signal { process, signal }
    }

    /// Carries it out within `limit`.
    ///
    /// # Errors
    /// In words: nobody answers, the answer is a refusal, the process is gone.
    pub async fn perform(&self, limit: Duration) -> Result<(), String> {
        let done = async {
            match self {
                Self::Command { socket, command } => {
                    let answer = ask::command(socket, command, ANSWER_MAX).await?;
                    // Commands that do something say nothing, or a note; what is refused is said in words.
                    let text = String::from_utf8_lossy(&answer);
                    match text.trim() {
                        "" => Ok(()),
                        refused => Err(refused.lines().next().unwrap_or_default().to_owned()),
                    }
                }
                Self::Post { at, path } => match ask::http(at, "POST", path, ANSWER_MAX).await? {
                    (200..=299, _) => Ok(()),
                    (status, _) => Err(format!("status {status}")),
                },
                Self::Signal { process, signal } => {
                    let signal = Signal::from_named_raw(*signal).ok_or_else(|| format!("no signal {signal}"))?;
                    let adopted = Adopted::open(process.pid, process.start);
                    let adopted = adopted.ok_or_else(|| format!("process {} is gone", process.pid))?;
                    pidfd_send_signal(adopted.as_fd(), signal)
                        .map_err(|e| format!("process {}: {}", process.pid, ask::in_words(&e.into())))
                }
            }
        };
        tokio::time::timeout(limit, done).await.unwrap_or_else(|_| Err("no answer".to_owned()))
    }
}
