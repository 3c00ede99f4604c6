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
pub mod exit;
mod external;
pub mod instance;
pub mod keygen;
mod lines;
pub mod main;
mod render;
pub mod server;
pub mod wire;

use std::process::ExitCode;

/// Hands over to the keeper.
fn start_keeper(places: &cli::Places, config: holdfast_node::config::Config) -> ExitCode {
    let _ = (places, config);
    eprintln!("holdfast: the keeper is not there yet");
    ExitCode::from(exit::FAILED)
}
