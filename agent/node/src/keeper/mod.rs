//! The keeper's machine and the messages between keeper and worker.

pub mod ipc;
