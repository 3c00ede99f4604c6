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
use std::str::FromStr;

/// Which of the two trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tree {
    /// `/proc/sys/net/ipv4/conf`
    V4,
    /// `/proc/sys/net/ipv6/conf`
    V6,
}

impl Tree {
    fn root(self) -> &'static Path {
        Path::new(match self {
            Self::V4 => "/proc/sys/net/ipv4/conf",
            Self::V6 => "/proc/sys/net/ipv6/conf",
        })
    }
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
        self.tree.root().join(self.interface.as_str()).join(self.key)
    }

    /// Its value now or that for all interfaces, whichever is larger: what counts where the kernel takes the maximum.
    ///
    /// # Errors
    /// Like [`Self::read`].
    pub fn read_with_all(&self) -> io::Result<i64> {
        Ok(self.read()?.max(of_all(self.tree, self.key)?))
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
        write_number(&self.path(), self, value)
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

/// What is set for all interfaces together.
pub(super) fn of_all(tree: Tree, key: &'static str) -> io::Result<i64> {
    read_number(&tree.root().join("all").join(key))
}

/// Reads a setting; `InvalidData`: it isn't a number.
pub(super) fn read_number<N: FromStr>(path: &Path) -> io::Result<N> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// Writes one, which people know by this name.
pub(super) fn write_number(path: &Path, name: &dyn fmt::Display, value: i64) -> Result<(), StepError> {
    fs::write(path, value.to_string()).map_err(|e| {
        let errno = e.raw_os_error().unwrap_or(libc::EIO);
        let errno = if errno == libc::EACCES { libc::EPERM } else { errno };
        step_error(errno, None, "CAP_NET_ADMIN", format!("set {name} = {value}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(name: &str, key: &'static str) -> Option<Setting> {
        Setting::new(Tree::V4, &InterfaceName::new(name)?, key)
    }

    #[test]
    fn no_name_and_no_key_leads_out_of_the_tree() {
        let fine = setting("eth0.100", "arp_ignore").expect("an interface and a key");
        assert_eq!(fine.path(), Path::new("/proc/sys/net/ipv4/conf/eth0.100/arp_ignore"));
        assert_eq!(fine.to_string(), "net.ipv4.conf.eth0.100.arp_ignore");
        for name in ["..", ".", "all", "default", "../all", "a/b"] {
            assert_eq!(setting(name, "arp_ignore"), None, "{name}");
        }
        for key in ["", "..", "a/b", "a.b"] {
            assert_eq!(setting("eth0", key), None, "{key}");
        }
    }
}
