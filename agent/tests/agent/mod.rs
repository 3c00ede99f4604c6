//! The agent in a network namespace, with everything of it in one folder.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(crate) fn command(namespace: &str, folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, env!("CARGO_BIN_EXE_holdfast")]).args(words);
    for (option, name) in [("--config", "holdfast.toml"), ("--runtime-dir", "run"), ("--state-dir", "state")] {
        command.arg(option).arg(folder.join(name));
    }
    command
}

pub(crate) fn start(namespace: &str, folder: &Path) -> Child {
    let log = fs::File::create(folder.join("log")).expect("writable");
    command(namespace, folder, &["run"]).stdout(Stdio::null()).stderr(log).spawn().expect("it starts")
}

pub(crate) fn log(folder: &Path) -> String {
    fs::read_to_string(folder.join("log")).unwrap_or_default()
}
