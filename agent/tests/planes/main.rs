//! Real data planes, and what the adapters say of them. Each test has a network namespace of its own; as root, after
//! tests/setup.sh.

mod envoy;
mod haproxy;
mod nginx;
mod scene;
