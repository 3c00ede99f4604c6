//! Events: what is lost shows, or isn't lost.

use crate::fabric::*;
use crate::table::{alone, flow};
use holdfast::os::ct::{Changes, Removals};
use holdfast_statesync::ct::{Batch, Event, EventKind, Replica, Skipped, Zone};
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

const MANY: u16 = 3_000;
/// Room for some dozens of events.
const LITTLE: usize = 32 * 1024;

fn flows() -> Vec<Replica> {
    (0..MANY).map(flow).collect()
}

fn delete_all(namespace: &Namespace) {
    let mut writer = namespace.writer();
    let mut batch = Batch::new();
    for chunk in flows().chunks(Batch::MAX) {
        batch.clear();
        for replica in chunk {
            batch.delete(&replica.original, Zone::default(), None).expect("fits");
        }
        writer.write(&batch, |at, outcome| panic!("{at}: {outcome}")).expect("written");
    }
}

#[test]
fn with_enough_room_each_event_is_told_once_with_its_time_and_who_did_it() {
    if skipped() {
        return;
    }
    let namespace = alone();
    let (mut changes, mut removals) = namespace.enter(|| {
        let changes = Changes::open(Changes::RECEIVE_BUFFER).expect("opens");
        (changes, Removals::open(Removals::RECEIVE_BUFFER).expect("opens"))
    });
    assert!(changes.receive_buffer().expect("asked") >= 32 << 20, "whatever the host's limit");
    let now = || u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("later").as_nanos()).expect("fits");
    let before = now();
    namespace.create(&flows());
    let mut seen: Vec<Event> = Vec::new();
    loop {
        let read = changes.read(|event| seen.push(event)).expect("read");
        assert!(!read.overrun);
        if !read.more {
            break;
        }
    }
    assert_eq!(seen.len(), usize::from(MANY));
    let keys: BTreeSet<_> = seen.iter().map(|event| event.entry.key()).collect();
    assert_eq!(keys.len(), usize::from(MANY));
    for event in &seen {
        assert_eq!(event.kind, EventKind::New);
        assert_ne!(event.port_id, 0);
        assert!((before..=now()).contains(&event.entry.event_ns.expect("told")), "{event:?}");
    }
    delete_all(&namespace);
    let mut gone = 0;
    while gone < usize::from(MANY) {
        let read = removals.read(|event| assert_eq!(event.kind, EventKind::Destroy)).expect("read");
        assert!(!read.overrun && read.datagrams > 0, "{gone}");
        gone += read.datagrams;
    }
    assert_eq!((changes.skipped(), removals.skipped()), (Skipped::default(), Skipped::default()));
    assert_eq!((changes.without_room(), removals.without_room()), (0, 0));
}

#[test]
fn changes_that_found_no_room_show_as_an_overrun_and_later_ones_come_again() {
    if skipped() {
        return;
    }
    let namespace = alone();
    let mut changes = namespace.enter(|| Changes::open(LITTLE).expect("opens"));
    for round in 0..3 {
        namespace.create(&flows());
        let (mut seen, mut overruns) = (0, 0);
        loop {
            let read = changes.read(|_| seen += 1).expect("an overrun is no error");
            overruns += u32::from(read.overrun);
            if !read.more {
                break;
            }
        }
        assert!(overruns >= 1, "round {round}");
        assert!(seen < usize::from(MANY), "round {round}: {seen}");
        assert!(changes.without_room() > 0);
        delete_all(&namespace);
        // The socket was read empty: from here on events come again.
        namespace.create(&[flow(MANY + 1)]);
        let mut last = None;
        assert!(!changes.read(|event| last = Some(event)).expect("read").overrun);
        assert_eq!(last.map(|event| event.entry.original), Some(flow(MANY + 1).original));
        let mut batch = Batch::new();
        batch.delete(&flow(MANY + 1).original, Zone::default(), None).expect("fits");
        namespace.writer().write(&batch, |_, outcome| panic!("{outcome}")).expect("written");
    }
}

#[test]
fn removals_that_found_no_room_are_told_later() {
    if skipped() {
        return;
    }
    let namespace = alone();
    let mut removals = namespace.enter(|| Removals::open(LITTLE).expect("opens"));
    namespace.create(&flows());
    // Nobody reads meanwhile.
    delete_all(&namespace);
    let mut seen = BTreeSet::new();
    until("all are told of", || {
        let read = removals.read(|event| seen.extend([event.entry.key()])).expect("never an error");
        assert!(!read.overrun);
        (seen.len() == usize::from(MANY)).then_some(())
    });
}
