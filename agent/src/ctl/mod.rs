//! The control API and the command line that speaks with it.
//!
//! | module | does |
//! |---|---|
//! | [`server`] | HTTP over the unix socket, inside the worker |
//! | [`instance`] | one agent per runtime directory |
//!
//! What this module refuses to do: decide anything. It carries requests to the node and shows what comes back.

pub mod instance;
pub mod server;
