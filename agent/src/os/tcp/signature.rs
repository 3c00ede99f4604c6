//! TCP MD5 signatures (RFC 2385).

use rustix::fd::{AsRawFd, BorrowedFd};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use zeroize::Zeroizing;

/// Longest key in bytes.
pub const KEY_MAX: usize = libc::TCP_MD5SIG_MAXKEYLEN;

/// A neighbour's key. Never printed; wiped from memory when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Zeroizing<Vec<u8>>);

impl Key {
    /// `None`: empty, or longer than [`KEY_MAX`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (1..=KEY_MAX).contains(&bytes.len()).then(|| Self(Zeroizing::new(bytes.to_vec())))
    }

    /// Every segment to and from `remote` must be signed with this key from now on: on a socket before it connects, or
    /// on a listening one.
    ///
    /// # Errors
    /// `ENOPROTOOPT`: the kernel can't; `EINVAL`: another family than the socket's.
    pub(super) fn sign(&self, fd: BorrowedFd<'_>, remote: IpAddr) -> io::Result<()> {
        set(fd, remote, &self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Segments of `remote` need no signature on this listening socket any more. None there is success.
pub(super) fn forget(fd: BorrowedFd<'_>, remote: IpAddr) -> io::Result<()> {
    match set(fd, remote, &[]) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

/// `struct tcp_md5sig` of linux/tcp.h.
#[repr(C)]
struct Md5Sig {
    address: libc::sockaddr_storage,
    flags: u8,
    prefix: u8,
    key_length: u16,
    ifindex: i32,
    key: [u8; KEY_MAX],
}

fn set(fd: BorrowedFd<'_>, remote: IpAddr, key: &[u8]) -> io::Result<()> {
    let mut option = Zeroizing::new([0_u8; size_of::<Md5Sig>()]);
    let (address, length) = (socket2::SockAddr::from(SocketAddr::new(remote, 0)), size_of::<Md5Sig>());
    // SAFETY: any bytes are valid for a sockaddr_storage's bytes; the storage outlives the slice, which is not written.
    let storage = unsafe { std::slice::from_raw_parts(address.as_ptr().cast::<u8>(), address.len() as usize) };
    let fits = |range: std::ops::Range<usize>, from: &[u8], option: &mut [u8]| {
        option.get_mut(range).filter(|to| to.len() == from.len()).map(|to| to.copy_from_slice(from))
    };
    let at = std::mem::offset_of!(Md5Sig, key);
    let key_length = u16::try_from(key.len()).map_err(|_| io::ErrorKind::InvalidInput)?.to_ne_bytes();
    let length_at = std::mem::offset_of!(Md5Sig, key_length);
    let written = fits(0..storage.len(), storage, &mut *option)
        .and_then(|()| fits(length_at..length_at + 2, &key_length, &mut *option))
        .and_then(|()| fits(at..at + key.len(), key, &mut *option));
    written.ok_or(io::ErrorKind::InvalidInput)?;
    let length = libc::socklen_t::try_from(length).expect("the structure is small");
    // SAFETY: the pointer is to as many live bytes as `length` says, laid out as `struct tcp_md5sig`; the kernel only reads them.
    let rc = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_MD5SIG, option.as_ptr().cast(), length)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
