//! What a flow costs with the kernel's part in it. Figures, no limits: run alone, optimised, on a quiet machine:
//! `cargo test --profile demo -p holdfast --test ct -- --ignored --nocapture --test-threads=1`.

use crate::fabric::*;
use crate::table::{alone, flow};
use holdfast::os::ct::{Changes, Dump, Removals, Writer};
use holdfast_statesync::ct::{Addresses, Batch, DumpFilter, EncodeError, Layer4, Replica, Zone};
use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// Well below what the smallest host's table holds.
const FLOWS: u32 = 100_000;
const BATCH: usize = 64;

fn flows() -> Vec<Replica> {
    let one = |n: u32| {
        let mut replica = flow(0);
        let client = (0x0a00_0000 + n).to_be_bytes().into();
        replica.original.addresses = Addresses::V4 { source: client, destination: [10, 9, 9, 9].into() };
        let port = u16::try_from(1_024 + n % 60_000).expect("below the limit");
        let source = [10, 9, 3, u8::try_from(n / 60_000).expect("a few")].into();
        replica.reply.addresses = Addresses::V4 { source: [10, 9, 2, 2].into(), destination: source };
        replica.reply.layer4 = Layer4::Tcp { source: 8080, destination: port };
        replica
    };
    (0..FLOWS).map(one).collect()
}

/// Runs it, and prints how long each flow took, and how much of that on this thread's processor.
fn measured(what: &str, run: impl FnOnce()) {
    let cpu = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let (start, before) = (Instant::now(), cpu());
    run();
    let (wall, busy) = (start.elapsed().as_secs_f64(), cpu() - before);
    let each = |seconds: f64| seconds * 1e6 / f64::from(FLOWS);
    println!("{what:42} {:8.0} /s  {:.2} µs  {:.2} µs CPU", f64::from(FLOWS) / wall, each(wall), each(busy));
}

fn write(
    writer: &mut Writer,
    replicas: &[Replica],
    append: impl Fn(&mut Batch, &Replica) -> Result<usize, EncodeError>,
) {
    let mut batch = Batch::new();
    for chunk in replicas.chunks(BATCH) {
        batch.clear();
        for replica in chunk {
            append(&mut batch, replica).expect("fits");
        }
        writer.write(&batch, |at, outcome| panic!("{:?}: {outcome}", chunk[at])).expect("written");
    }
}

#[test]
#[ignore = "figures: on a quiet machine, optimised"]
fn what_a_flow_costs() {
    if skipped() {
        return;
    }
    let namespace = alone();
    let replicas = flows();
    namespace.enter(|| {
        let mut writer = Writer::open().expect("opens");
        measured("create, nobody listens", || write(&mut writer, &replicas, Batch::create));
        measured("update", || write(&mut writer, &replicas, |batch, replica| batch.update(replica, true)));
        measured("refresh", || {
            write(&mut writer, &replicas, |batch, replica| batch.refresh(&replica.original, replica.zone, 200, None));
        });
        let mut dump = Dump::open().expect("opens");
        measured("dump", || {
            let dumped = dump.all(&DumpFilter::default(), |_| ()).expect("dumped");
            assert_eq!(dumped.entries, u64::from(FLOWS));
        });
        let delete = |batch: &mut Batch, replica: &Replica| batch.delete(&replica.original, Zone::default(), None);
        measured("delete, nobody listens", || write(&mut writer, &replicas, delete));
        let mut changes = Changes::open(4 * Changes::RECEIVE_BUFFER).expect("opens");
        let mut removals = Removals::open(4 * Removals::RECEIVE_BUFFER).expect("opens");
        measured("create, somebody listens", || write(&mut writer, &replicas, Batch::create));
        let mut count = 0;
        measured("read NEW", || while changes.read(|_| count += 1).expect("read").more {});
        println!("{count} of {FLOWS} events");
        measured("delete, somebody listens", || write(&mut writer, &replicas, delete));
        let mut count = 0;
        measured("read DESTROY", || while removals.read(|_| count += 1).expect("read").more {});
        println!("{count} of {FLOWS} events");
    });
}
