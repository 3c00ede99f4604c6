//! The virtual MAC: a macvlan interface that has it, for as long as the router is Active.
//!
//! What this module refuses to do: decide, or touch an interface without our mark.

use super::sysctl::Wanted;
use holdfast_node::config::InterfaceName;
use holdfast_node::io::StepError;
use std::io;

/// A virtual router's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vmac {
    /// The interface it sits on.
    pub parent: u32,
    /// Virtual router, 1..=255.
    pub vrid: u8,
    /// Of the IPv6 virtual router.
    pub six: bool,
}

impl Vmac {
    /// Its interface's name: `hf` + parent's index (hexadecimal) + `.` (IPv4) or `-` (IPv6) + VRID.
    #[must_use]
    pub fn name(&self) -> String {
        format!("hf{:x}{}{}", self.parent, if self.six { '-' } else { '.' }, self.vrid)
    }

    /// RFC 9568 section 7.3.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        [0, 0, 0x5e, 0, if self.six { 2 } else { 1 }, self.vrid]
    }
}

/// A socket that makes and removes them, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct VmacSocket {}

impl VmacSocket {
    /// Opens the socket; changes need CAP_NET_ADMIN.
    ///
    /// # Errors
    /// Whatever the system says about the socket.
    pub fn open() -> io::Result<Self> {
        Ok(Self {})
    }

    /// Makes the interface, up and quiet, and returns its index. There already as ours is success.
    ///
    /// # Errors
    /// In words; nothing is left behind.
    pub fn add(&mut self, vmac: &Vmac) -> Result<u32, StepError> {
        let _ = vmac;
        Err(StepError { errno: libc::ENOSYS, what: "virtual MAC".to_owned() })
    }

    /// Removes it with everything on it, if it is ours. Gone already is success.
    ///
    /// # Errors
    /// In words.
    pub fn remove(&mut self, name: &str) -> Result<(), StepError> {
        let _ = name;
        Ok(())
    }

    /// Every interface of ours: index and name.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn ours(&mut self) -> io::Result<Vec<(u32, String)>> {
        Ok(Vec::new())
    }
}

/// What the parent interface must have set for a virtual MAC to work.
#[must_use]
pub fn parent_settings(parent: &InterfaceName) -> Vec<Wanted> {
    let _ = parent;
    Vec::new()
}
