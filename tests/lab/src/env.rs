//! What this machine can do, and by what name the thing it lacks goes.

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};

/// Something a drill needs and the machine lacks; exit code 3.
#[derive(Debug, thiserror::Error)]
#[error("this machine lacks {0}")]
pub struct Lacks(pub String);

/// Finds a program in PATH, and in the sbin directories that a user's PATH may leave out.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|d| d.join(name))
        .find(|p| p.is_file())
}

/// Root, iproute2 and namespaces: without them no drill runs.
///
/// # Errors
/// [`Lacks`], naming the first thing missing.
pub fn require_basics() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!(Lacks("root (network namespaces, packet sockets)".into()));
    }
    for (program, package) in [("ip", "iproute2"), ("bridge", "iproute2"), ("chrt", "util-linux")] {
        if find_program(program).is_none() {
            bail!(Lacks(format!("{program} (package {package})")));
        }
    }
    if !Path::new("/proc/self/ns/net").exists() {
        bail!(Lacks("network namespaces (CONFIG_NET_NS)".into()));
    }
    Ok(())
}

/// The agent's binary: what was given, else beside this one, else in PATH.
///
/// # Errors
/// [`Lacks`] when there is none.
pub fn holdfast(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(p) = given {
        if p.is_file() {
            return Ok(p.canonicalize()?);
        }
        bail!(Lacks(format!("the agent: no file {}", p.display())));
    }
    let beside = std::env::current_exe().ok().and_then(|p| Some(p.parent()?.join("holdfast")));
    match beside.filter(|p| p.is_file()).or_else(|| find_program("holdfast")) {
        Some(p) => Ok(p),
        None => bail!(Lacks("the agent: no `holdfast` beside this program or in PATH (--holdfast PATH)".into())),
    }
}

/// Another program of this house: beside this one, else in PATH.
///
/// # Errors
/// [`Lacks`] when there is none.
pub fn beside(name: &str) -> Result<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|p| Some(p.parent()?.join(name)));
    match beside.filter(|p| p.is_file()).or_else(|| find_program(name)) {
        Some(p) => Ok(p),
        None => bail!(Lacks(format!("{name} beside this program or in PATH"))),
    }
}

/// One line about the machine for reports: kernel, cores, load.
#[must_use]
pub fn describe() -> String {
    let u = rustix::system::uname();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    format!("Linux {}, {cores} cores, load {load}", u.release().to_string_lossy())
}
