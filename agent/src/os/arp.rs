//! The IPv4 forms of [`super::announce`] and [`super::probe`], until their callers have changed over.

pub use super::announce::Announcer;
use holdfast_node::io::ProbeOutcome;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

/// See [`super::probe::probe`].
///
/// # Errors
/// See [`super::probe::probe`].
pub async fn probe(
    ifindex: u32,
    source: Ipv4Addr,
    target: Ipv4Addr,
    others: &[Ipv4Addr],
    tries: u8,
    wait: Duration,
) -> io::Result<ProbeOutcome> {
    let others: Vec<_> = others.iter().map(|other| (*other).into()).collect();
    super::probe::probe(ifindex, source.into(), target.into(), &others, tries, wait).await
}
