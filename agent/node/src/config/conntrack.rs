//! When the connection table is to be worried about.

use serde::Serialize;

/// Levels of use of the kernel's connection table, percent of its limit, each larger than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Conntrack {
    /// Whether it is looked at.
    pub watch: bool,
    /// Somebody should look from here on.
    pub filling: u8,
    /// Nearly full.
    pub high: u8,
    /// As good as full: no further VIPs.
    pub full: u8,
    /// Judged by this limit if it is lower than the kernel's own.
    pub limit: Option<u64>,
}

impl Default for Conntrack {
    fn default() -> Self {
        Self { watch: true, filling: 70, high: 85, full: 95, limit: None }
    }
}
