//! From words to an exit code.

use super::cli::{Bgp, Cli, Command, Places, Pool};
use super::{check, cleanup, commands, decode, exit, external, flows, instance, keygen, server};
use crate::config;
use clap::{CommandFactory as _, Parser as _};
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

/// Runs the command line. `arguments` begin with the program's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // `--help` and `--version` come here too, and are no error.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(exit::USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let places = cli.places;
    match cli.command {
        Command::Run => agent(&places),
        Command::Worker { ipc_fd } => crate::run::worker(crate::run::WorkerOptions {
            config: places.config,
            runtime_dir: places.runtime_dir,
            state_dir: places.state_dir,
            ipc_fd,
        }),
        command => ExitCode::from(other(command, &places)),
    }
}

fn other(command: Command, places: &Places) -> u8 {
    match command {
        Command::Check { file, json, rate } => check::run(&file.unwrap_or_else(|| places.config.clone()), json, rate),
        Command::Status { json, oneline } => commands::status(&places.runtime_dir, json, oneline),
        Command::Events { json, since, follow } => commands::events(&places.runtime_dir, json, since, follow),
        Command::Neighbors { json } => commands::neighbors(&places.runtime_dir, json),
        Command::Peers { json } => flows::peers(&places.runtime_dir, json),
        Command::Flows { vip, limit, json } => flows::list(&places.runtime_dir, vip.as_deref(), limit, json),
        Command::Explain { what, json } => flows::explain(&places.runtime_dir, &what.join(" "), json),
        Command::Bgp(Bgp::Decode { file, hex, port }) => decode::run(file.as_deref(), hex.as_deref(), port),
        Command::Drain(drain) => commands::drain(&places.runtime_dir, &drain),
        Command::Undrain => commands::undrain(&places.runtime_dir),
        Command::Upgrade => commands::upgrade(&places.runtime_dir),
        Command::Pool(Pool::Drain { backend }) => commands::pool(&places.runtime_dir, backend, true),
        Command::Pool(Pool::Undrain { backend }) => commands::pool(&places.runtime_dir, backend, false),
        Command::Keygen { file, out, public } => match public {
            Some(file) => keygen::show(&file),
            None => keygen::make(&file.or(out).unwrap_or_else(|| keygen::DEFAULT.into())),
        },
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "holdfast", &mut script);
            match std::io::stdout().write_all(&script) {
                Ok(()) => exit::OK,
                Err(_) => exit::FAILED,
            }
        }
        Command::Drill { arguments } => external::run("drill", arguments),
        Command::Lab { arguments } => external::run("lab", arguments),
        Command::Cleanup => cleanup::run(&places.runtime_dir),
        Command::Run | Command::Worker { .. } => exit::USAGE,
    }
}

/// The agent: nothing is started with a configuration that is wrong.
fn agent(places: &Places) -> ExitCode {
    let config = match config::load(&places.config) {
        Ok(config) => config,
        Err(errors) => {
            eprint!("{}", errors.render(super::render::colour_on_stderr()));
            eprintln!("holdfast: {}: refused, nothing was started", places.config.display());
            return ExitCode::from(errors.exit_code());
        }
    };
    if let Err(why) = check::realtime_suffices(&config, check::realtime_permitted) {
        eprintln!("holdfast: {}: {why}", places.config.display());
        return ExitCode::from(exit::SEMANTICS);
    }
    // The worker reads it too, and would fail again and again where nobody looks.
    if let Some(cluster) = &config.cluster
        && let Err(why) = crate::run::secret_key(&cluster.key_file)
    {
        eprintln!("holdfast: {why}");
        return ExitCode::from(exit::FAILED);
    }
    // The worker reads the file itself: what it gets may be newer.
    drop(config);
    let _lock = match instance::lock(&places.runtime_dir) {
        Ok(lock) => lock,
        Err(error) => {
            eprintln!("holdfast: {error}");
            return ExitCode::from(exit::FAILED);
        }
    };
    let code = super::start_keeper(places);
    // The worker could not: its user doesn't own the directory. We hold the lock, so nobody else made it anew.
    server::remove_stale(&places.runtime_dir);
    code
}
