//! The operator's stored intents and (in `node`) the drain that carries them out.

use serde::{Deserialize, Serialize};

/// Stored intents of operators. Survives restarts: [`crate::Output::Persist`] replaces what was stored, and
/// [`crate::io::Boot::intents`] brings it back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intents {
    /// This node is taken out for maintenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainIntent>,
}

/// Who took this node out, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainIntent {
    /// Who asked, as the agent names callers (`uid 0`).
    pub who: String,
    /// The operator's words.
    pub reason: String,
    /// Wall clock of the request, Unix milliseconds (from the request: the node has no wall clock).
    pub since_unix_ms: u64,
    /// Wall clock at which the drain ends by itself; `None`: until `undrain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_unix_ms: Option<u64>,
}
