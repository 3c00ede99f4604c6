//! The worker: everything but the keeper's few duties.
//!
//! | module | does |
//! |---|---|
//! | [`api`] | the handle by which the control API asks and listens |
//! | [`lateness`] | how late the protocol thread was, as a histogram |
//!
//! What this module refuses to do: decide anything ([`holdfast_node::Node`] does) and change the kernel
//! ([`crate::reconcile`] does). It moves inputs and outputs, each over a bounded queue.

pub mod api;
mod intents;
pub mod journal;
pub mod lateness;
mod record;
mod startup;
#[cfg(test)]
mod testing;

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::process::ExitCode;

/// How the keeper starts a worker.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The configuration file.
    pub config: PathBuf,
    /// Sockets and pidfiles (`/run/holdfast`).
    pub runtime_dir: PathBuf,
    /// Journal and intents (`/var/lib/holdfast`).
    pub state_dir: PathBuf,
    /// The socketpair to the keeper, inherited.
    pub ipc_fd: RawFd,
}

/// Runs the worker until the keeper says stop or vanishes. Never called but in a process of its own.
pub fn worker(options: WorkerOptions) -> ExitCode {
    let _ = options;
    ExitCode::FAILURE
}
