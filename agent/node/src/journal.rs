//! Events with cause chains.
/// One journal entry.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {}
