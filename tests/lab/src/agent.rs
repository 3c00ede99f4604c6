//! The agent's program, whoever starts it: what it says, and which of its processes is which.

use crate::process::children;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What `--version` says; its name where that fails.
#[must_use]
pub fn version(binary: &Path) -> String {
    let out = Command::new(binary).arg("--version").output();
    let text = out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default();
    if text.is_empty() { "holdfast".into() } else { text }
}

/// What a command of it said, if it ended with 0.
///
/// # Errors
/// Another exit code, with what it said.
pub fn checked(out: Output, what: &str) -> Result<String> {
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if !out.status.success() {
        bail!("{what}: exit {}: {}", out.status.code().unwrap_or(-1), said.trim());
    }
    Ok(said)
}

/// Writes a new key to `file`; gives the public one.
///
/// # Errors
/// `keygen` failed, or printed no public key.
pub fn keygen(binary: &Path, file: &Path) -> Result<String> {
    let out = Command::new(binary).arg("keygen").arg(file).output().context("run holdfast keygen")?;
    let said = checked(out, "holdfast keygen")?;
    let public = said.split(|c: char| c.is_whitespace() || c == '"').find(|w| is_public_key(w));
    let public = public.with_context(|| format!("holdfast keygen printed no public key: {said}"))?.to_owned();
    if !file.exists() {
        bail!("holdfast keygen wrote no {}", file.display());
    }
    Ok(public)
}

fn is_public_key(word: &str) -> bool {
    word.len() == 44
        && word.ends_with('=')
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'='))
}

/// The last lines of its events.
#[must_use]
pub fn last_events(said: &str) -> Vec<String> {
    const LINES: usize = 40;
    let all: Vec<String> = said.lines().map(str::to_owned).collect();
    all[all.len().saturating_sub(LINES)..].to_vec()
}

/// The worker of a keeper: its child that is the same program.
///
/// # Errors
/// The keeper is gone, or has no worker.
pub fn worker_of(keeper: i32) -> Result<i32> {
    let own = program_of(keeper).context("the keeper is gone")?;
    let worker = children(keeper).into_iter().find(|s| program_of(s.pid).as_ref() == Some(&own));
    Ok(worker.context("the keeper has no worker")?.pid)
}

/// The program that a process runs. One that was swapped shows as "… (deleted)".
fn program_of(pid: i32) -> Option<PathBuf> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    Some(PathBuf::from(exe.to_string_lossy().trim_end_matches(" (deleted)")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_key_is_32_bytes_in_base64_and_nothing_else_is() {
        assert!(is_public_key("KjMFXgCkl3bVbBQ8sg1Z3xGT3cVp5a9Qm0eG3S9uY1E="));
        for other in ["", "KjMFXgCkl3bVbBQ8sg1Z3xGT3cVp5a9Qm0eG3S9uY1E", "KjMFXgCkl3bVbBQ8sg1Z3xGT3cVp5a9Qm0eG3S9u,1E="]
        {
            assert!(!is_public_key(other), "{other}");
        }
    }

    #[test]
    fn only_the_end_of_a_long_journal_is_kept() {
        let said: String = (0..50).map(|n| format!("{n}\n")).collect();
        let kept = last_events(&said);
        assert_eq!((kept.len(), kept.first().map(String::as_str)), (40, Some("10")));
    }
}
