//! What each event and each replica costs in user space: reading what the kernel sent, writing what it is to hold.
//! `cargo bench -p holdfast-statesync`. Neither may allocate.

use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher, black_box};
use holdfast_statesync::ct::{Batch, Message, Messages, Replica, Zone};
use std::path::PathBuf;

#[global_allocator]
static ALLOCATIONS: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// The datagrams that a kernel sent whose names begin so.
fn recorded(prefix: &str) -> Vec<Vec<u8>> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/ct/kernel-6.18.hex");
    let text = std::fs::read_to_string(file).expect("recorded");
    let datagram = |line: &str| {
        let (name, hex) = line.split_once(' ')?;
        let byte = |at: usize| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok();
        name.starts_with(prefix).then(|| (0..hex.len() / 2).filter_map(byte).collect())
    };
    text.lines().filter_map(datagram).collect()
}

fn read(bencher: Bencher<'_, '_>, prefix: &str) {
    let datagrams = recorded(prefix);
    assert!(!datagrams.is_empty(), "recorded");
    bencher.counter(ItemsCount::new(datagrams.len())).bench(|| {
        for datagram in &datagrams {
            for message in Messages::new(black_box(datagram)) {
                black_box(&message);
            }
        }
    });
}

#[divan::bench]
fn read_events_of_a_tcp_connection(bencher: Bencher<'_, '_>) {
    read(bencher, "event-tcp4");
}

#[divan::bench]
fn read_events_of_a_tcp_connection_ipv6(bencher: Bencher<'_, '_>) {
    read(bencher, "event-tcp6");
}

#[divan::bench]
fn read_ends(bencher: Bencher<'_, '_>) {
    read(bencher, "event-tcp4-deleted");
}

/// Established TCP, translated both ways; `six`: IPv6.
fn replica(six: bool) -> Replica {
    let prefix = if six { "event-tcp6-open" } else { "event-tcp4-open" };
    let datagram = recorded(prefix).pop().expect("recorded");
    let Some(Message::Event(event)) = Messages::new(&datagram).next() else { panic!("an event") };
    Replica::of(&event.entry, 120, None)
}

fn write(bencher: Bencher<'_, '_>, mut append: impl FnMut(&mut Batch)) {
    const COUNT: usize = 64;
    let mut batch = Batch::new();
    // Its memory is there from the second batch on.
    (0..COUNT).for_each(|_| append(&mut batch));
    bencher.counter(ItemsCount::new(COUNT)).bench_local(|| {
        batch.clear();
        (0..COUNT).for_each(|_| append(&mut batch));
        black_box(batch.bytes().len())
    });
}

#[divan::bench(args = [false, true])]
fn write_create(bencher: Bencher<'_, '_>, six: bool) {
    let replica = replica(six);
    write(bencher, |batch| batch.create(black_box(&replica)).map(drop).expect("fits"));
}

#[divan::bench]
fn write_update(bencher: Bencher<'_, '_>) {
    let replica = replica(false);
    write(bencher, |batch| batch.update(black_box(&replica), true).map(drop).expect("fits"));
}

#[divan::bench]
fn write_refresh(bencher: Bencher<'_, '_>) {
    let replica = replica(false);
    write(bencher, |batch| {
        batch.refresh(black_box(&replica.original), Zone::default(), 120, None).map(drop).expect("fits")
    });
}

#[divan::bench]
fn write_delete(bencher: Bencher<'_, '_>) {
    let replica = replica(false);
    write(bencher, |batch| batch.delete(black_box(&replica.original), Zone::default(), None).map(drop).expect("fits"));
}
