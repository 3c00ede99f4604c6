//! How full the kernel's connection table is, and what it lost (`/proc/sys/net/netfilter`, ctnetlink's statistics).
//!
//! What this module refuses to do: write any of it (the limit is one for all namespaces of a host), judge it
//! ([`holdfast_node::conntrack`] does), or have the kernel load a module: without a table it asks nothing.

use super::netlink::{Message, NetlinkSocket, attributes};
use holdfast_node::conntrack::{Lost, Sample, TIME_WAIT, Timeouts};
use nix::sys::socket::SockProtocol;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET_STATS_CPU`; the kernel answers with the same.
const GET_STATS_CPU: u16 = 1 << 8 | 4;
/// `CTA_STATS_INSERT_FAILED`, `CTA_STATS_DROP`, `CTA_STATS_EARLY_DROP`.
const INSERT_FAILED: u16 = 9;
const DROP: u16 = 10;
const EARLY_DROP: u16 = 11;
/// `struct nfgenmsg`: family, version, then the processor in network order.
const NFGENMSG: usize = 4;
/// Processors that are told apart; more are left out.
const PROCESSORS_MAX: usize = 8_192;

/// Where looks at a connection table come from: the kernel, or a test.
pub trait Source: Send + 'static {
    /// One look.
    ///
    /// # Errors
    /// Why there can't be one, in words.
    fn look(&mut self) -> Result<Sample, String>;
}

/// The kernel's table, as this network namespace sees it.
#[derive(Debug)]
pub struct Table {
    folder: PathBuf,
    counters: Counters,
    /// Kept from one look to the next.
    socket: Option<NetlinkSocket>,
}

impl Table {
    /// The table of the namespace of the thread that looks (always the same one).
    #[must_use]
    pub fn new() -> Self {
        Self { folder: PathBuf::from("/proc/sys/net/netfilter"), counters: Counters::default(), socket: None }
    }

    /// What each processor counted. After an error the next look has a socket of its own.
    fn statistics(&mut self) -> io::Result<PerCpu> {
        let socket = self.socket.take().map_or_else(|| NetlinkSocket::open(SockProtocol::NetlinkNetFilter), Ok);
        let mut socket = socket?;
        let mut read = PerCpu::new();
        socket.dump(GET_STATS_CPU, &[0; NFGENMSG], &mut read, PerCpu::clear, |read, message| {
            if let Some((cpu, counts)) = of_cpu(message)
                && read.len() < PROCESSORS_MAX
            {
                read.insert(cpu, counts);
            }
        })?;
        self.socket = Some(socket);
        Ok(read)
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

impl Source for Table {
    fn look(&mut self) -> Result<Sample, String> {
        let (count, limit) = (number(&self.folder, "nf_conntrack_count")?, number(&self.folder, "nf_conntrack_max")?);
        // Not there on a kernel without it: then it is what it was built with.
        let time_wait = number(&self.folder, "nf_conntrack_tcp_timeout_time_wait");
        let time_wait = time_wait.map_or(TIME_WAIT, Duration::from_secs);
        // Without the privilege nothing is known of losses; the rest is worth having all the same.
        if let Ok(read) = self.statistics() {
            self.counters.take(&read);
        }
        let timeouts = timeouts(&self.folder).ok();
        Ok(Sample { count, limit, lost: self.counters.total, time_wait, timeouts })
    }
}

/// Whether this network namespace's kernel has a connection table.
#[must_use]
pub fn present() -> bool {
    Path::new("/proc/sys/net/netfilter/nf_conntrack_count").exists()
}

fn timeouts(folder: &Path) -> Result<Timeouts, String> {
    let seconds = |seconds: u64| u32::try_from(seconds).unwrap_or(u32::MAX);
    Ok(Timeouts {
        established_s: seconds(number(folder, "nf_conntrack_tcp_timeout_established")?),
        udp_stream_s: seconds(number(folder, "nf_conntrack_udp_timeout_stream")?),
    })
}

fn number(folder: &Path, name: &str) -> Result<u64, String> {
    let said = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => "the kernel has no connection table (nf_conntrack isn't loaded)".to_owned(),
        _ => format!("{name}: {e}"),
    };
    let text = std::fs::read_to_string(folder.join(name)).map_err(said)?;
    text.trim().parse().map_err(|_| format!("{name} is not a number"))
}

/// What each processor counted: `insert_failed`, `drop`, `early_drop`.
type PerCpu = BTreeMap<u16, [u32; 3]>;

fn of_cpu(message: &Message<'_>) -> Option<(u16, [u32; 3])> {
    if message.kind != GET_STATS_CPU {
        return None;
    }
    let (header, rest) = message.payload.split_first_chunk::<NFGENMSG>()?;
    let mut counts = [0; 3];
    for (kind, value) in attributes(rest) {
        let slot = match kind & 0x3fff {
            INSERT_FAILED => 0,
            DROP => 1,
            EARLY_DROP => 2,
            _ => continue,
        };
        let value = value.first_chunk::<4>().map(|value| u32::from_be_bytes(*value));
        if let (Some(slot), Some(value)) = (counts.get_mut(slot), value) {
            *slot = value;
        }
    }
    Some((u16::from_be_bytes([header[2], header[3]]), counts))
}

/// Sums what the processors count, each in 32 bits that wrap.
#[derive(Debug, Default)]
struct Counters {
    last: Option<PerCpu>,
    total: Lost,
}

impl Counters {
    fn take(&mut self, read: &PerCpu) {
        // The first look is where counting begins: what was lost before says nothing of now.
        let Some(last) = self.last.replace(read.clone()) else { return };
        for (cpu, counts) in read {
            let before = last.get(cpu).copied().unwrap_or_default();
            let [failed, dropped, early] = [0, 1, 2].map(|n: usize| {
                let at = |counts: &[u32; 3]| counts.get(n).copied().unwrap_or_default();
                u64::from(at(counts).wrapping_sub(at(&before)))
            });
            self.total.insert_failed = self.total.insert_failed.saturating_add(failed);
            self.total.dropped = self.total.dropped.saturating_add(dropped);
            self.total.early_dropped = self.total.early_dropped.saturating_add(early);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::netlink::push_attribute;
    use super::*;

    fn payload(cpu: u16, counts: [u32; 3]) -> Vec<u8> {
        let mut payload = vec![0, 0];
        payload.extend_from_slice(&cpu.to_be_bytes());
        for (kind, count) in [INSERT_FAILED, DROP, EARLY_DROP].into_iter().zip(counts) {
            push_attribute(&mut payload, kind, &count.to_be_bytes());
        }
        payload
    }

    #[test]
    fn each_processor_tells_what_it_lost() {
        let payload = payload(3, [1, 2, 0x0102_0304]);
        let message = |payload| Message { kind: GET_STATS_CPU, flags: 0, sequence: 1, payload };
        assert_eq!(of_cpu(&message(&payload)), Some((3, [1, 2, 0x0102_0304])));
        for cut in 0..payload.len() {
            let _ = of_cpu(&message(&payload[..cut]));
        }
        assert_eq!(of_cpu(&Message { kind: 1, ..message(&payload) }), None);
    }

    #[test]
    fn losses_are_summed_from_the_first_look_on_and_over_a_wrap() {
        let mut counters = Counters::default();
        counters.take(&PerCpu::from([(0, [9, u32::MAX, 5]), (1, [0, 7, 0])]));
        assert_eq!(counters.total, Lost::default(), "what was before");
        counters.take(&PerCpu::from([(0, [9, 1, 5]), (1, [1, 8, 0]), (2, [0, 0, 4])]));
        assert_eq!(counters.total, Lost { dropped: 3, early_dropped: 4, insert_failed: 1 });
    }

    #[test]
    fn the_kernel_of_this_machine_answers_or_it_is_said_why_not() {
        match Table::new().look() {
            Ok(sample) => assert!(sample.time_wait >= Duration::from_secs(1), "{sample:?}"),
            Err(why) => assert!(why.contains("nf_conntrack"), "{why}"),
        }
        // Needs CAP_NET_ADMIN: where it is there, each processor has its say.
        if let Ok(read) = Table::new().statistics() {
            assert!(!read.is_empty());
        }
    }

    #[test]
    fn a_kernel_without_a_table_and_a_file_that_is_no_number_are_told_apart() {
        let folder = std::env::temp_dir().join(format!("holdfast-conntrack-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a fresh folder");
        let mut table = Table { folder: folder.clone(), ..Table::new() };
        assert!(table.look().expect_err("empty").contains("nf_conntrack isn't loaded"));
        std::fs::write(folder.join("nf_conntrack_count"), "x\n").expect("writable");
        assert_eq!(table.look().expect_err("no number"), "nf_conntrack_count is not a number");
        std::fs::write(folder.join("nf_conntrack_count"), "95\n").expect("writable");
        std::fs::write(folder.join("nf_conntrack_max"), "100\n").expect("writable");
        let sample = table.look().expect("both are there");
        assert_eq!((sample.count, sample.limit, sample.time_wait), (95, 100, TIME_WAIT));
        std::fs::write(folder.join("nf_conntrack_tcp_timeout_time_wait"), "30\n").expect("writable");
        assert_eq!(table.look().expect("there").time_wait, Duration::from_secs(30));
        assert_eq!(table.look().expect("there").timeouts, None);
        std::fs::write(folder.join("nf_conntrack_tcp_timeout_established"), "432000\n").expect("writable");
        std::fs::write(folder.join("nf_conntrack_udp_timeout_stream"), "120\n").expect("writable");
        let timeouts = Timeouts { established_s: 432_000, udp_stream_s: 120 };
        assert_eq!(table.look().expect("there").timeouts, Some(timeouts));
        std::fs::remove_dir_all(folder).expect("ours");
    }
}
