//! The control API and the command line that speaks with it.
//!
//! | module | does |
//! |---|---|
//! | [`server`] | HTTP over the unix socket, inside the worker |
//! | [`client`] | the other end |
//! | [`wire`] | what goes over it |
//! | [`instance`] | one agent per runtime directory |
//! | [`cli`], [`main`] | words to an exit code |
//!
//! What this module refuses to do: decide anything. It carries requests to the node and shows what comes back.

mod budget;
mod check;
mod cleanup;
pub mod cli;
pub mod client;
mod commands;
mod connection;
mod decode;
pub mod exit;
mod external;
pub mod flow;
mod flows;
pub mod instance;
pub mod keygen;
mod lines;
pub mod main;
mod render;
pub mod server;
pub mod wire;

use crate::keeper::{self, KeeperOptions};
use std::process::ExitCode;
use std::time::Duration;

/// How long leaving in order may take at SIGTERM. The unit's `TimeoutStopSec=` is longer.
pub const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// Hands over to the keeper, which starts this same program as its worker.
fn start_keeper(places: &cli::Places) -> ExitCode {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("holdfast: the path of this program isn't known: {error}");
            return ExitCode::from(exit::FAILED);
        }
    };
    let mut worker_argv = Vec::new();
    for word in [
        program.as_os_str(),
        "worker".as_ref(),
        "--config".as_ref(),
        places.config.as_os_str(),
        "--runtime-dir".as_ref(),
        places.runtime_dir.as_os_str(),
        "--state-dir".as_ref(),
        places.state_dir.as_os_str(),
    ] {
        let Some(word) = word.to_str() else {
            eprintln!("holdfast: {}: paths must be UTF-8", word.to_string_lossy());
            return ExitCode::from(exit::FAILED);
        };
        worker_argv.push(word.to_owned());
    }
    let runtime_dir = places.runtime_dir.clone();
    let code = keeper::run(KeeperOptions { worker_argv, runtime_dir, stop_deadline: STOP_DEADLINE });
    // The worker that made it may not write to this directory any more. Absent: no worker came that far.
    let _ = std::fs::remove_file(places.runtime_dir.join(server::SOCKET));
    code
}
