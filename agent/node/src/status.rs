//! What `status` says, with ages.
/// Status of this node.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {}
