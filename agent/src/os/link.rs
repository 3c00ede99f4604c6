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
    // nix takes the null pointer of an unknown index for an empty name.
    let name = if_indextoname(ifindex).ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("#{ifindex}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_interface_that_is_gone_is_named_by_its_number() {
        assert_eq!(super::name(u32::MAX), format!("#{}", u32::MAX));
        assert_eq!(super::name(super::index("lo").expect("every host has one")), "lo");
    }
}
