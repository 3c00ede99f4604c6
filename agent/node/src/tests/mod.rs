//! Timelines of whole nodes.

mod alone;
pub(crate) mod lab;
