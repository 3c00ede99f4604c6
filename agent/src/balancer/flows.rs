//! The connections that clients have with VIPs, whoever serves them.
//!
//! A process ends connections: they are sockets with a VIP as their local end, of old workers and new ones alike. The
//! packet filter passes them on: they are flows toward a VIP whose destination is translated. Of those only the open
//! ones count: what was closed lingers in the table for minutes.

use crate::os::ct::{Dump, Writer};
use crate::os::{conntrack, diag};
use holdfast_statesync::ct::{Batch, DumpFilter, Entry, Layer4, Status, TcpState, Toward};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

/// Flows that are ended by one call.
const CUT_MAX: usize = 65_536;
/// For up to so many VIPs the kernel picks the flows of each; of more it gives every translated one.
const FILTERS_MAX: usize = 8;

/// How many there are, in the network namespace of the calling thread. The kernel walks its tables: call it for a person
/// or once a second, never on the protocol thread.
///
/// # Errors
/// Whatever the kernel says.
pub fn open(vips: &[IpAddr]) -> io::Result<u64> {
    let mut flows = 0;
    passed_on(vips, |entry| flows += u64::from(is_open(entry)))?;
    Ok(diag::established(vips)? + flows)
}

/// Ends them at once: the peer of a socket sees a reset; a flow is forgotten, and its next packet is one of nobody's. At
/// most 65,536 of each; how many were ended is returned.
///
/// # Errors
/// Whatever the kernel says: `EPERM` without CAP_NET_ADMIN, and see [`diag::destroy`].
pub fn cut(vips: &[IpAddr]) -> io::Result<u64> {
    let mut all = Vec::new();
    passed_on(vips, |entry| {
        if all.len() < CUT_MAX {
            all.push(*entry);
        }
    })?;
    let mut ended = 0;
    let mut batch = Batch::new();
    let mut writer = if all.is_empty() { None } else { Some(Writer::open()?) };
    for some in all.chunks(Batch::MAX) {
        batch.clear();
        for entry in some {
            // What was read can be written.
            let _ = batch.delete(&entry.original, entry.zone, entry.id);
        }
        let mut failed = 0;
        if let Some(writer) = &mut writer {
            writer.write(&batch, |_, _| failed += 1)?;
        }
        ended += (batch.len() - failed) as u64;
    }
    Ok(diag::destroy(vips)? + ended)
}

/// Gives each flow of the table that is passed on from one of these.
fn passed_on(vips: &[IpAddr], mut each: impl FnMut(&Entry)) -> io::Result<()> {
    // Without a table nothing is asked: the question alone could have the kernel load one.
    if vips.is_empty() || !conntrack::present() {
        return Ok(());
    }
    let vips: BTreeSet<IpAddr> = vips.iter().copied().collect();
    let translated = DumpFilter { status: Some((Status::DST_NAT, Status::DST_NAT)), ..DumpFilter::default() };
    let filters: Vec<DumpFilter> = if vips.len() <= FILTERS_MAX {
        let toward = |address| Some(Toward { address, protocol: None, port: None });
        vips.iter().map(|vip| DumpFilter { toward: toward(*vip), ..translated }).collect()
    } else {
        vec![translated]
    };
    let mut dump = Dump::open()?;
    for filter in &filters {
        // A kernel that doesn't know these filters gives everything.
        dump.all(filter, |entry| {
            if entry.is_dnat() && vips.contains(&entry.original.addresses.destination()) {
                each(entry);
            }
        })?;
    }
    Ok(())
}

fn is_open(entry: &Entry) -> bool {
    let status = entry.status.unwrap_or_default();
    match entry.original.layer4 {
        // One that a flow table passes on has no state.
        Layer4::Tcp { .. } => {
            entry.tcp.map_or_else(|| status.has(Status::OFFLOAD), |tcp| tcp.state == TcpState::Established)
        }
        Layer4::Udp { .. } => status.has(Status::SEEN_REPLY),
        Layer4::Icmp { .. } | Layer4::Icmp6 { .. } => false,
    }
}
