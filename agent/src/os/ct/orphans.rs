//! Flows whose backend is down, forgotten by the kernel's connection table.
//!
//! Nobody else's flow is touched: only one of a service's address, protocol and port that was sent on to another
//! destination, and that to none of the backends which may keep theirs.
//!
//! What this module refuses to do: be quick. A table of a million flows takes seconds to walk through.

use super::{Dump, Writer};
use holdfast_node::config::Transport;
use holdfast_node::pool::Cut;
use holdfast_statesync::ct::{Batch, DumpFilter, Entry, Layer4, Outcome, Status};
use std::io;

/// A table that changes while it is walked through is walked through again, so often.
const WALKS: usize = 3;

/// Forgets them, in the network namespace of the calling thread. Returns how many there were.
///
/// # Errors
/// Some may be left. Needs CAP_NET_ADMIN.
pub fn forget(cut: &Cut) -> io::Result<u64> {
    let (mut dump, mut knife) = (Dump::open()?, Knife { writer: Writer::open()?, batch: Batch::new(), forgotten: 0 });
    let mut families = cut.services.keys().map(|(ip, ..)| ip.is_ipv6());
    let six = families.next().filter(|first| families.all(|six| six == *first));
    let filter = DumpFilter { status: Some((Status::DST_NAT, Status::DST_NAT)), six, ..DumpFilter::default() };
    for _ in 0..WALKS {
        // A dump must be read to its end: what fails within is kept until then.
        let mut failed = Ok(());
        let dumped = dump.all(&filter, |entry| {
            if failed.is_ok() && is_orphan(cut, entry) {
                failed = knife.forget(entry);
            }
        })?;
        failed?;
        knife.write()?;
        if !dumped.interrupted {
            break;
        }
    }
    Ok(knife.forgotten)
}

struct Knife {
    writer: Writer,
    batch: Batch,
    forgotten: u64,
}

impl Knife {
    fn forget(&mut self, entry: &Entry) -> io::Result<()> {
        if self.batch.is_full() {
            self.write()?;
        }
        // There is room, and a tuple that was read can be written.
        self.forgotten += u64::from(self.batch.delete(&entry.original, entry.zone, entry.id).is_ok());
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let mut failed = None;
        self.writer.write(&self.batch, |_, outcome| {
            // Gone already is what was wanted.
            if outcome != Outcome::Missing {
                failed = Some(outcome);
            }
        })?;
        self.batch.clear();
        failed.map_or(Ok(()), |outcome| Err(io::Error::other(outcome.to_string())))
    }
}

fn is_orphan(cut: &Cut, entry: &Entry) -> bool {
    let protocol = match entry.original.layer4 {
        Layer4::Tcp { .. } => Transport::Tcp,
        Layer4::Udp { .. } => Transport::Udp,
        _ => return false,
    };
    let service = entry.original.destination();
    let backends = cut.services.get(&(service.ip(), protocol, service.port()));
    // Whoever answers is who it was sent to.
    let sent_to = entry.reply.source();
    sent_to != service && backends.is_some_and(|backends| !backends.contains(&sent_to))
}
