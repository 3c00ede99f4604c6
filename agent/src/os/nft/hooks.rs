//! Whether the kernel translates at all.
//!
//! A replica of a translated flow is taken, and looks right, in a network namespace that has no chain of type nat; its
//! packets are then not translated. One chain is enough, in whatever hook, and an empty one will do.

use super::super::netlink::NetlinkSocket;
use super::batch::{NEWCHAIN, NFPROTO_INET, SUBSYSTEM};
use super::socket::attribute;
use nix::sys::socket::SockProtocol;
use std::io;

/// `NFT_MSG_GETCHAIN`; the kernel answers with `NFT_MSG_NEWCHAIN`.
const GETCHAIN: u16 = 4;
/// `struct nfgenmsg`.
const NFGENMSG: usize = 4;
const NFPROTO_IPV4: u8 = 2;
const NFPROTO_IPV6: u8 = 10;

/// For which families there is a chain of type nat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Translating {
    /// IPv4.
    pub four: bool,
    /// IPv6.
    pub six: bool,
}

impl Translating {
    /// Asks the kernel. The old iptables' rules (iptables-legacy) aren't seen.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn look() -> io::Result<Self> {
        let mut netlink = NetlinkSocket::open(SockProtocol::NetlinkNetFilter)?;
        let mut found = Self::default();
        // All families.
        let forget = |found: &mut Self| *found = Self::default();
        netlink.dump(SUBSYSTEM << 8 | GETCHAIN, &[0; NFGENMSG], &mut found, forget, |found, message| {
            if message.kind == SUBSYSTEM << 8 | NEWCHAIN {
                found.see(message.payload);
            }
        })?;
        Ok(found)
    }

    fn see(&mut self, payload: &[u8]) {
        let Some(([family, ..], chain)) = payload.split_first_chunk::<NFGENMSG>() else { return };
        // Chains without a hook have no type.
        if attribute(chain, 4).is_none() || attribute(chain, 7) != Some(b"nat\0") {
            return;
        }
        self.four |= matches!(*family, NFPROTO_INET | NFPROTO_IPV4);
        self.six |= matches!(*family, NFPROTO_INET | NFPROTO_IPV6);
    }
}
