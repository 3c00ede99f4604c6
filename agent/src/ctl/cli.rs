//! The command line's words. What they do is in the modules beside this one.

use crate::config::duration;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Keeps the address of a load balancer up.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, propagate_version = true, after_help = AFTER_HELP)]
pub struct Cli {
    /// Where things are.
    #[command(flatten)]
    pub places: Places,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "Exit codes of client commands: 0 done, 3 agent unreachable, 4 wrong command line; \
                          others with each command. See docs/cli.md.";

/// For the agent and for its clients alike, so that many nodes can share one file system.
#[derive(Debug, Clone, Args)]
pub struct Places {
    /// Configuration file
    #[arg(long, global = true, value_name = "FILE", default_value = "/etc/holdfast/holdfast.toml")]
    pub config: PathBuf,
    /// Where the agent's socket, lock and ledger are
    #[arg(long, global = true, value_name = "DIR", default_value = "/run/holdfast")]
    pub runtime_dir: PathBuf,
    /// Where the agent's journal and the operators' intents are
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/lib/holdfast")]
    pub state_dir: PathBuf,
}

/// The commands of this version.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent (exit 1: the file can't be read or isn't TOML, 2: it isn't a configuration)
    Run,
    /// Look over a configuration: syntax, semantics, time budgets (exit 0 ok, 1 syntax, 2 semantics)
    Check {
        /// The file [default: that of --config]
        file: Option<PathBuf>,
        /// The model as JSON
        #[arg(long)]
        json: bool,
        /// Requests in a second: says how many a failure costs
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
        rate: Option<u32>,
    },
    /// How this node is and what it knows of the others (exit 0 ok, 1 degraded, 2 critical)
    Status {
        /// Everything, as JSON
        #[arg(long, conflicts_with = "oneline")]
        json: bool,
        /// The verdict line only
        #[arg(long)]
        oneline: bool,
    },
    /// What happened, and what caused it
    Events {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
        /// Only entries after this id
        #[arg(long, value_name = "ID", default_value_t = 0)]
        since: u64,
        /// Go on with what comes
        #[arg(long)]
        follow: bool,
    },
    /// The routers that VIPs are announced to, and how it stands with each
    Neighbors {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// The other nodes: whether they are heard, and whether each side has the other's flows
    Peers {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Flows that are replicated, of this node and of the others
    Flows {
        /// Of this VIP only
        #[arg(long, value_name = "VIP")]
        vip: Option<String>,
        /// So many at most
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=10_000))]
        limit: u32,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Why a VIP is where it is, or whether a flow would survive on each peer, and why not
    Explain {
        /// A VIP's name, or a flow: `tcp 198.51.100.7:40000 192.0.2.10:80` (client, then VIP), or a line of `conntrack -L`
        /// [default: all VIPs]
        #[arg(value_name = "VIP|FLOW")]
        what: Vec<String>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Tools for BGP
    #[command(subcommand)]
    Bgp(Bgp),
    /// Take this node out for maintenance (exit 0 drained, 10 refused, 11 deadline, 12 aborted, 13 peer lost)
    Drain(Drain),
    /// Let this node take part again (exit 0, 10 refused)
    Undrain,
    /// Replace the worker by a new one, of the program and the configuration that are there now; nothing moves (exit 0, 1
    /// refused)
    Upgrade,
    /// Backends of the embedded balancer
    #[command(subcommand)]
    Pool(Pool),
    /// Make the channel's key pair: the secret key goes to a file, the public key is printed (exit 0, 1)
    Keygen {
        /// Where the secret key goes; never overwritten [default: /etc/holdfast/node.key]
        #[arg(value_name = "FILE", conflicts_with = "out")]
        file: Option<PathBuf>,
        /// The same as FILE
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Only print the public key of this secret key
        #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "out"])]
        public: Option<PathBuf>,
    },
    /// Print a shell's completions
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Prove it: run fault drills in network namespaces (needs holdfast-drill; exit 3 without it)
    #[command(disable_help_flag = true)]
    Drill {
        /// See `holdfast drill --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// The drills' network to play in (needs holdfast-drill; exit 3 without it)
    #[command(disable_help_flag = true)]
    Lab {
        /// See `holdfast lab --help`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// The keeper starts this
    #[command(hide = true)]
    Worker {
        /// The socketpair to the keeper
        #[arg(long)]
        ipc_fd: i32,
    },
    /// Remove addresses that a killed agent left (for ExecStopPost)
    #[command(hide = true)]
    Cleanup,
}

/// The commands of `bgp`.
#[derive(Debug, Clone, Subcommand)]
pub enum Bgp {
    /// BGP messages in words, out of hexadecimal text or a capture (exit 0, 1: some of it is refused or not BGP)
    Decode {
        /// Hexadecimal text, pcap or pcapng [default: standard input]
        #[arg(value_name = "FILE", conflicts_with = "hex")]
        file: Option<PathBuf>,
        /// The text itself
        #[arg(long, value_name = "TEXT")]
        hex: Option<String>,
        /// Where BGP is spoken in a capture
        #[arg(long, default_value_t = 179, value_parser = clap::value_parser!(u16).range(1..))]
        port: u16,
    },
}

/// The commands of `pool`.
#[derive(Debug, Clone, Subcommand)]
pub enum Pool {
    /// Give a backend no new flows; those that are established go on (exit 0, 10 refused)
    Drain {
        /// Its address, as ip:port, or ip for all of its ports
        backend: String,
    },
    /// Let a backend have new flows again (exit 0, 10 refused)
    Undrain {
        /// Its address, as ip:port, or ip for all of its ports
        backend: String,
    },
}

/// Flags of `drain`.
#[derive(Debug, Clone, Args)]
pub struct Drain {
    /// Why, for the journal and for those who look at the status
    #[arg(long, default_value = "", value_parser = reason)]
    pub reason: String,
    /// How long it may take
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration::parse)]
    pub deadline: Duration,
    /// Don't wait for the end
    #[arg(long)]
    pub detach: bool,
    /// Only say what would happen
    #[arg(long, conflicts_with = "detach")]
    pub dry_run: bool,
    /// Go ahead although this interlock refuses; may be repeated
    #[arg(long, value_name = "INTERLOCK")]
    pub force: Vec<String>,
}

fn reason(text: &str) -> Result<String, String> {
    let max = super::wire::REASON_MAX;
    if text.chars().count() > max { Err(format!("longer than {max} characters")) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn places_may_stand_before_and_behind_the_command() {
        for words in [["holdfast", "--runtime-dir", "/x", "status"], ["holdfast", "status", "--runtime-dir", "/x"]] {
            let cli = Cli::try_parse_from(words).expect("valid");
            assert_eq!(cli.places.runtime_dir, PathBuf::from("/x"));
        }
    }

    #[test]
    fn flags_of_the_design_that_do_not_exist_yet_are_refused() {
        for flag in ["--for=2h", "--until-reboot", "--on-deadline=cut", "--stop-balancer"] {
            assert!(Cli::try_parse_from(["holdfast", "drain", flag]).is_err(), "{flag}");
        }
    }
}
