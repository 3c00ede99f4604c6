//! Real peers, and the documentation's own words, against the real program.
//!
//! The tests need root, namespaces and the peer in question; without them they print why and pass. They run the
//! binary named by `HOLDFAST_BIN`, else the newest one under `target/` (`tests/unit.sh` builds it and names it).
//!
//! What this crate refuses to do: link the agent. It knows only what a host sees: a program, its files, the segment.

#![forbid(unsafe_code)]

pub mod agent;
pub mod beside;
pub mod bgp;
pub mod docs;
pub mod host;
pub mod mixed;

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;

/// The top of the tree.
#[must_use]
pub fn tree() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// What [`use_binary`] was told.
static BINARY: OnceLock<PathBuf> = OnceLock::new();

/// Says which agent [`holdfast`] gives, whatever the environment says.
///
/// # Errors
/// There is no such file.
pub fn use_binary(given: Option<&Path>) -> Result<()> {
    if let Some(given) = given {
        let given = given.canonicalize().with_context(|| given.display().to_string())?;
        BINARY.get_or_init(|| given);
    }
    Ok(())
}

/// The agent under test: [`use_binary`]'s, `HOLDFAST_BIN`, else the newest of the drill and the everyday build.
///
/// # Errors
/// There is none; the text says how to build one.
pub fn holdfast() -> Result<PathBuf> {
    if let Some(told) = BINARY.get() {
        return Ok(told.clone());
    }
    if let Some(given) = std::env::var_os("HOLDFAST_BIN") {
        let given = PathBuf::from(given);
        return given.canonicalize().with_context(|| format!("HOLDFAST_BIN={}", given.display()));
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| tree().join("target"), PathBuf::from);
    let built = ["demo", "debug"].map(|profile| target.join(profile).join("holdfast"));
    let newest = built.into_iter().filter_map(|p| Some((p.metadata().ok()?.modified().ok()?, p))).max();
    Ok(newest.context("no holdfast binary: cargo build -p holdfast --bin holdfast, or set HOLDFAST_BIN")?.1)
}

/// True, with the reason printed, where this machine can't run the test.
#[must_use]
pub fn skipped(programs: &[&str]) -> bool {
    let lacks = holdfast_lab::env::require_basics().err().map(|e| e.to_string()).or_else(|| {
        let lacks = programs.iter().find(|program| holdfast_lab::env::find_program(program).is_none())?;
        Some(format!("this machine lacks {lacks}"))
    });
    if let Some(why) = &lacks {
        println!("skipped: {why}");
    }
    lacks.is_some()
}

/// What a program said, both outputs, if it ended with 0.
///
/// # Errors
/// Another exit code, with what it said.
pub fn checked(what: &str, output: &Output) -> Result<String> {
    let said = said(output);
    if !output.status.success() {
        bail!("{what}: {}: {}", output.status, said.trim());
    }
    Ok(said)
}

/// Both outputs.
#[must_use]
pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
