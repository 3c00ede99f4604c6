//! Settings of conntrack under `/proc/sys/net/netfilter`, of the network namespace of the calling thread.

use super::super::sysctl::{read_number, write_number};
use holdfast_node::io::StepError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Setting {
    /// Which flows can emit events: 0 none, ever; 1 all; 2 those that begin while somebody listens. Only with 1 do both
    /// flows that are older than we and those that we insert.
    Events,
    /// Whether events say when they happened.
    Timestamp,
    /// Whether a TCP flow may begin in its middle: what hides that a replica is missing.
    TcpLoose,
    /// Whether segments outside of windows are fine, for all flows.
    TcpBeLiberal,
}

impl Setting {
    const fn key(self) -> &'static str {
        match self {
            Self::Events => "nf_conntrack_events",
            Self::Timestamp => "nf_conntrack_timestamp",
            Self::TcpLoose => "nf_conntrack_tcp_loose",
            Self::TcpBeLiberal => "nf_conntrack_tcp_be_liberal",
        }
    }

    fn path(self) -> PathBuf {
        PathBuf::from("/proc/sys/net/netfilter").join(self.key())
    }

    /// Its value now.
    ///
    /// # Errors
    /// `NotFound`: there is no connection table here, or no such setting.
    pub fn read(self) -> io::Result<u32> {
        read_number(&self.path())
    }

    /// Sets it. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// In words, with the setting named.
    pub fn write(self, value: u32) -> Result<(), StepError> {
        write_number(&self.path(), &self, value.into())
    }
}

/// How many entries the table of this network namespace has.
///
/// # Errors
/// `NotFound`: there is no connection table here.
pub fn entries() -> io::Result<u32> {
    read_number(&PathBuf::from("/proc/sys/net/netfilter/nf_conntrack_count"))
}

/// The kernel's own timeouts, in seconds: ICMP, UDP one way, TCP that is closing, UDP both ways, open TCP. Those that can't
/// be read are as given.
#[must_use]
pub fn timeouts(mut otherwise: [u32; 5]) -> [u32; 5] {
    let keys = ["icmp_timeout", "udp_timeout", "tcp_timeout_fin_wait", "udp_timeout_stream", "tcp_timeout_established"];
    for (timeout, key) in otherwise.iter_mut().zip(keys) {
        let path = PathBuf::from("/proc/sys/net/netfilter").join(format!("nf_conntrack_{key}"));
        *timeout = read_number(&path).unwrap_or(*timeout);
    }
    otherwise
}

impl fmt::Display for Setting {
    /// As `sysctl` writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "net.netfilter.{}", self.key())
    }
}
