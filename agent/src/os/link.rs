//! Names and numbers of interfaces, in the network namespace of the calling thread.

use nix::net::if_::{if_indextoname, if_nametoindex};
use std::io;

/// The interface's index.
///
/// # Errors
/// `ENODEV` when no interface has this name.
pub fn index(name: &str) -> io::Result<u32> {
    Ok(if_nametoindex(name)?)
}

/// The interface's name, or `#5` when it is gone: for messages, where it's good to say something.
#[must_use]
pub fn name(ifindex: u32) -> String {
    if_indextoname(ifindex).ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| format!("#{ifindex}"))
}
