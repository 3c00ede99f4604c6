//! What a flow costs with the kernel's part in it. Figures, no limits: run alone, optimised, on a quiet machine:
//! `cargo test --profile demo -p holdfast --test ct -- --ignored --nocapture --test-threads=1`.

use crate::fabric::*;
use crate::table::{alone, flow};
use holdfast::os::ct::{Changes, Dump, Progress, Removals, Writer};
use holdfast_statesync::ct::{Addresses, Batch, DumpFilter, EncodeError, Key, Layer4, Replica, Status, Zone};
use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// Others than ours, beside which the table is read; half of them again would be too many for some hosts' limit.
const OTHERS: u32 = 200_000;
/// Ours.
const OURS: usize = 1_000;

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

/// How long the longest step took, and all of them.
fn longest(what: &str, mut step: impl FnMut() -> bool) {
    let (begun, mut worst) = (Instant::now(), 0.0_f64);
    loop {
        let step_begun = Instant::now();
        let more = step();
        worst = worst.max(step_begun.elapsed().as_secs_f64());
        if !more {
            break;
        }
    }
    println!("{what:42} {:8.1} ms, {:.2} ms of them in one go", begun.elapsed().as_secs_f64() * 1e3, worst * 1e3);
}

#[test]
#[ignore = "figures: on a quiet machine, optimised"]
fn what_an_audit_costs_beside_many_others() {
    if skipped() {
        return;
    }
    let limit: u32 = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .expect("there is a limit");
    if OTHERS + 2_000 > limit {
        eprintln!("skipped: the table holds {limit}");
        return;
    }
    let namespace = alone();
    let ours = &flows()[..OURS];
    let others: Vec<Replica> = (0..OTHERS)
        .map(|n| {
            let mut plain = flow(0);
            let client = (0x0b00_0000 + n).to_be_bytes().into();
            plain.original.addresses = Addresses::V4 { source: client, destination: [10, 8, 8, 8].into() };
            plain.reply = plain.original.inverse().expect("TCP has one");
            plain
        })
        .collect();
    namespace.enter(|| {
        let mut writer = Writer::open().expect("opens");
        write(&mut writer, &others, Batch::create);
        write(&mut writer, ours, Batch::create);
        let mut dump = Dump::open().expect("opens");
        let translated = DumpFilter { status: Some((Status::DST_NAT, Status::DST_NAT)), ..DumpFilter::default() };
        for (what, filter) in [("all is read", DumpFilter::default()), ("the kernel filters", translated)] {
            let mut count = 0;
            let mut first = true;
            longest(what, || {
                if std::mem::take(&mut first) {
                    // The kernel fills the first datagram here.
                    dump.begin(&filter).expect("begun");
                    return true;
                }
                dump.read(|_| count += 1).expect("read") == Progress::More
            });
            assert!(count >= OURS as u32, "{count}");
        }
        let keys: Vec<Key> = ours.iter().map(|one| Key { original: one.original, zone: 0 }).collect();
        let (mut some, mut count) = (keys.chunks(Writer::LOOK_UPS_MAX), 0);
        longest("ours by name", || {
            some.next().is_some_and(|some| {
                writer.look_up_all(some, |_| count += 1).expect("answered");
                true
            })
        });
        assert_eq!(count, OURS);
    });
}
