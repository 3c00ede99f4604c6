//! Which network namespace this is.
//!
//! What this module refuses to do: enter another one.

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::io;
use std::mem;
use std::os::fd::AsRawFd;

/// `SO_NETNS_COOKIE`.
const NETNS_COOKIE: libc::c_int = 71;

/// The number of the calling thread's network namespace: unlike that of its file, no other one has had it since the boot.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 5.14.
pub fn cookie() -> io::Result<u64> {
    let fd = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(mem::size_of_val(&cookie)).expect("a word");
    // SAFETY: the pointer is to a live word of `length` bytes, which the kernel fills up to that.
    let rc = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, NETNS_COOKIE, (&raw mut cookie).cast(), &raw mut length)
    };
    if rc == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_namespace_has_one_number() {
        if let Ok(cookie) = super::cookie() {
            assert_eq!(super::cookie().expect("as before"), cookie);
            assert_ne!(cookie, 0);
        }
    }
}
