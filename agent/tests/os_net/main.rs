//! Network adapters against a real kernel. Every test has network namespaces of its own, so it needs root; without,
//! it says so and is skipped.

mod addresses;
mod canary;
mod events;
mod gateway;
mod guard;
mod ipv6;
#[path = "../netns/mod.rs"]
mod netns;
mod routes;
mod segment;
mod sockets;
mod steps;
mod vmac;
mod world;
