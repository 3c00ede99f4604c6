//! The segment that a connection began with. A limit that is set on an accepted connection is too late for what came
//! before: whoever is too far away would have been let in, and his first words with him.

use super::super::netlink::set_option;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Linux, not in libc for every target.
const TCP_SAVE_SYN: i32 = 27;
const TCP_SAVED_SYN: i32 = 28;
/// Both headers with all their options; one that is longer isn't given out.
const LENGTH: usize = 256;

/// Keeps it of each connection that comes from now on.
pub(super) fn keep(listener: BorrowedFd<'_>) -> io::Result<()> {
    set_option(listener, libc::IPPROTO_TCP, TCP_SAVE_SYN, 1)
}

/// Its TTL or hop limit, as it arrived. It can be asked for once.
///
/// # Errors
/// `ENODATA`: the kernel has none, since it answered a flood of them with cookies.
pub(super) fn ttl(accepted: BorrowedFd<'_>) -> io::Result<u8> {
    let mut bytes = [0_u8; LENGTH];
    let mut length = libc::socklen_t::try_from(LENGTH).expect("a few hundred fit");
    // SAFETY: the pointers are to a live buffer and its length, and the kernel writes no more than that.
    let rc = unsafe {
        let into = bytes.as_mut_ptr().cast();
        libc::getsockopt(accepted.as_raw_fd(), libc::IPPROTO_TCP, TCP_SAVED_SYN, into, &raw mut length)
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    let header = usize::try_from(length).ok().and_then(|length| bytes.get(..length)).unwrap_or_default();
    of(header).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODATA))
}

fn of(header: &[u8]) -> Option<u8> {
    let place = match header.first()? >> 4 {
        4 => 8,
        6 => 7,
        _ => return None,
    };
    header.get(place).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ttl_stands_where_its_version_has_it_and_nowhere_else() {
        let mut header = [0_u8; 40];
        (header[0], header[7], header[8]) = (0x45, 6, 4);
        assert_eq!(of(&header), Some(4));
        header[0] = 0x60;
        assert_eq!(of(&header), Some(6));
        header[0] = 0;
        assert_eq!((of(&header), of(&header[..0]), of(&[0x45; 8])), (None, None, None));
    }
}
