//! What is observed beside the clients: frames on the segment, addresses in the kernels, and the machine itself.

pub mod address;
pub mod reference;
pub mod stamped;
pub mod wire;
