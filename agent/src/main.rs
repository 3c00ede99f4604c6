//! The `holdfast` program: the agent and its command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    holdfast::ctl::main::run(std::env::args_os())
}
