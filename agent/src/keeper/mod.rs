//! The keeper: the small process that outlives the worker and undoes its work.
//!
//! All decisions are [`holdfast_node::keeper`]'s. Here is one thread that waits for the worker's socket, for processes
//! to end, for signals and for the machine's timer, and does what the machine says. It holds no runtime, takes no lock
//! and parses nothing but the worker's messages and its own ledger.
//!
//! For the worker: [`channel::WorkerEnd`] is its side of the socket pair, which it inherits as the descriptor named by
//! `--ipc-fd` ([`crate::os::process::take_inherited`]).

mod bfd;
pub mod channel;
mod children;
mod ledger;
mod log;
mod notify;
pub mod pulse;
mod runner;
mod undo;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How a keeper runs.
#[derive(Debug, Clone)]
pub struct KeeperOptions {
    /// The worker's program and arguments; `--ipc-fd N` is appended.
    pub worker_argv: Vec<String>,
    /// Where the ledger is (`/run/holdfast`). The caller holds its lock ([`crate::ctl::instance`]): one keeper per
    /// directory.
    pub runtime_dir: PathBuf,
    /// How long the worker may take to leave in order at SIGTERM. A second later it is killed.
    pub stop_deadline: Duration,
}

/// Runs the keeper in this process, which must have no other thread, until SIGTERM or SIGINT has been obeyed.
///
/// Status 0: all is undone. 1: it could not start, or something could not be undone in time; stderr says what.
pub fn run(options: KeeperOptions) -> ExitCode {
    match runner::Runner::start(options) {
        Ok(runner) => ExitCode::from(runner.run()),
        Err(error) => {
            log::Log::default().line(&format_args!("can't start: {error}"));
            ExitCode::FAILURE
        }
    }
}
