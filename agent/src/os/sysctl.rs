//! Settings of an interface under `/proc/sys/net`.
//!
//! What this module refuses to do: decide, or build a path out of anything but a checked interface name and a key of
//! letters, digits and underscores.

use super::addr::step_error;
use holdfast_node::config::InterfaceName;
use holdfast_node::io::StepError;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Which of the two trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tree {
    /// `/proc/sys/net/ipv4/conf`
    V4,
    /// `/proc/sys/net/ipv6/conf`
    V6,
}

/// One setting of one interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Setting {
    tree: Tree,
    interface: InterfaceName,
    key: &'static str,
}

impl Setting {
    /// The setting `key` of an interface; `None`: the name can't be one in a path (`all` and `default` aren't
    /// interfaces either), or the key has other characters than letters, digits and underscores.
    #[must_use]
    pub fn new(tree: Tree, interface: &InterfaceName, key: &'static str) -> Option<Self> {
        let name = interface.as_str();
        let usable = !name.contains('/') && !["", ".", "..", "all", "default"].contains(&name);
        let plain = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        (usable && plain).then(|| Self { tree, interface: interface.clone(), key })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let tree = match self.tree {
            Tree::V4 => "/proc/sys/net/ipv4/conf",
            Tree::V6 => "/proc/sys/net/ipv6/conf",
        };
        Path::new(tree).join(self.interface.as_str()).join(self.key)
    }

    /// Its value now, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// `NotFound`: no such interface, or the kernel has no such setting; `InvalidData`: it isn't a number.
    pub fn read(&self) -> io::Result<i64> {
        read_number(&self.path())
    }

    /// Writes it. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// In words, with the setting named: no such interface, or `/proc/sys` is read-only here.
    pub fn write(&self, value: i64) -> Result<(), StepError> {
        fs::write(self.path(), value.to_string()).map_err(|e| {
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            let errno = if errno == libc::EACCES { libc::EPERM } else { errno };
            step_error(errno, None, "CAP_NET_ADMIN", format!("set {self} = {value}"))
        })
    }
}

impl fmt::Display for Setting {
    /// As `sysctl` writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tree = if self.tree == Tree::V4 { "ipv4" } else { "ipv6" };
        write!(f, "net.{tree}.conf.{}.{}", self.interface.as_str(), self.key)
    }
}

/// A setting with the value it should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// What.
    pub setting: Setting,
    /// The value.
    pub value: i64,
    /// Why, for the operator.
    pub why: &'static str,
}

fn read_number(path: &Path) -> io::Result<i64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}
