//! TOML text to a validated [`Config`].
//!
//! The text becomes a tree in which every key and value knows its place; the readers of the sections take the tree
//! apart, and [`cross`] holds what must be true between sections. Everything that is wrong is collected and told in
//! one go, each finding as `file:line:column: key.path: what is wrong; accepted: …`.
//!
//! What this module refuses to do: look at anything but the text. Whether an interface or a key file is there depends
//! on the machine; `holdfast check` warns of it, `holdfast run` finds out.

mod error;

pub use error::{ConfigErrors, Finding, Kind};
use holdfast_node::config::Config;
use std::path::Path;

/// Reads and validates a file.
///
/// # Errors
/// [`Kind::Syntax`] when it can't be read or isn't TOML, [`Kind::Semantics`] with everything else that is wrong.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    let file = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|e| ConfigErrors::unreadable(&file, &e.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|e| ConfigErrors::unreadable(&file, &e.to_string()))?;
    parse(&text, &file)
}

/// Validates a text; `file` is only how messages name it.
///
/// # Errors
/// As [`load`].
pub fn parse(text: &str, file: &str) -> Result<Config, ConfigErrors> {
    let _ = text;
    Err(ConfigErrors::unreadable(file, "not written yet"))
}
