//! Commands that are programs of their own: `drill` and `lab` are `holdfast-drill`.

use super::exit;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = "holdfast-drill";

/// Becomes `holdfast-drill WORD ARGUMENTS…`, found beside this program, then in PATH. Returns only if that fails.
pub(super) fn run(word: &str, arguments: Vec<OsString>) -> u8 {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(PROGRAM)));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).arg(word).args(arguments).exec();
    if error.kind() == std::io::ErrorKind::NotFound {
        eprintln!("holdfast: {word} needs {PROGRAM}, which is neither beside this program nor in PATH");
    } else {
        eprintln!("holdfast: {}: {error}", program.display());
    }
    exit::UNREACHABLE
}
