//! The drain machine and the operator's stored intents.
/// Stored intents of operators.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Intents {}
