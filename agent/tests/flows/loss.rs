//! Many flows at once: more than the agent has room for events, and adverts meanwhile.

use crate::fabric::{Host, Pair};
use crate::netns::{skipped, until};
use holdfast::os::ct::Writer;
use holdfast_statesync::ct::{
    Addresses, Batch, Layer4, Mark, Replica, Status, Tcp, TcpFlags, TcpSide, TcpState, Tuple, Zone,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The `n`th of many connections through the VIP, as the host's kernel would have it.
fn connection(n: u32) -> Replica {
    let [_, high, low, port] = n.to_be_bytes();
    let source = [10, 20 + high, low, 1].into();
    let sent = Layer4::Tcp { source: 1_024 + u16::from(port), destination: 80 };
    let original = Tuple { addresses: Addresses::V4 { source, destination: [10, 9, 1, 10].into() }, layer4: sent };
    // Clients differ in address and port, and what they are translated to in the port only: one of 60,000.
    let port = u16::try_from(2_000 + n % 60_000).expect("below 65,536");
    let answered = Layer4::Tcp { source: 80, destination: port };
    let (backend, snat) = ([10, 9, 2, 21].into(), [10, 9, 2, 10].into());
    let reply = Tuple { addresses: Addresses::V4 { source: backend, destination: snat }, layer4: answered };
    let side = TcpSide { flags: TcpFlags::BE_LIBERAL, ..TcpSide::default() };
    Replica {
        original,
        reply,
        zone: Zone::default(),
        status: Status::CONFIRMED
            .with(Status::SEEN_REPLY)
            .with(Status::ASSURED)
            .with(Status::DST_NAT)
            .with(Status::SRC_NAT),
        timeout_s: 3_600,
        mark: Some(Mark { value: 0, mask: u32::MAX }),
        tcp: Some(Tcp { state: TcpState::Established, sides: Some([side; 2]) }),
        sequence_adjustment: [None, None],
        syn_proxy: None,
    }
}

/// Puts these into the kernel of a host at once, as if they had just been opened there.
fn open(host: &Host, which: std::ops::Range<u32>) {
    let connections: Vec<Replica> = which.map(connection).collect();
    host.namespace.enter(|| {
        let mut writer = Writer::open().expect("opens");
        let mut batch = Batch::new();
        for some in connections.chunks(Batch::MAX) {
            batch.clear();
            some.iter().for_each(|one| assert!(batch.create(one).is_ok(), "{one:?}"));
            writer.write(&batch, |at, outcome| panic!("{:?}: {outcome}", some[at])).expect("written");
        }
    });
}

#[test]
fn events_that_find_no_room_are_counted_and_made_up_for() {
    if skipped() {
        return;
    }
    let pair = Pair::started("event_buffer = 65536");
    let [one, two] = &pair.hosts;
    let mut count = 0;
    until("events were lost", || {
        open(one, count..count + 2_000);
        count += 2_000;
        assert!(count < 60_000, "whatever comes is read in time");
        (one.counted("overruns") > 0).then_some(())
    });
    assert!(one.counted("events_lost") > 0);
    until("all are there", || (two.flows().len() == count as usize).then_some(()));
    until("and both say so", || {
        let sync = one.json(&["status", "--json"])["worker"]["sync"].clone();
        let peer = &sync["peers"][0];
        (peer["outbound"]["in_sync"] == true && peer["behind"] == 0).then_some(())
    });
    assert!(one.log().contains("events of the kernel were lost"), "the journal has it");
    assert_eq!((one.counted("foreign_deletes_applied"), two.counted("foreign_deletes_applied")), (0, 0));
}

/// How late a thread of ordinary priority was at worst.
struct Reference {
    ends: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Duration>,
}

impl Reference {
    fn start() -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let mut worst = Duration::ZERO;
            while !seen.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(Duration::from_millis(5));
                worst = worst.max(begun.elapsed().saturating_sub(Duration::from_millis(5)));
            }
            worst
        });
        Self { ends, thread }
    }

    fn worst(self) -> Duration {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().expect("it only sleeps")
    }
}

#[test]
fn many_flows_at_once_hold_no_advert_up() {
    if skipped() {
        return;
    }
    const FLOWS: u32 = 20_000;
    for _ in 0..3 {
        let pair = Pair::started("");
        let [one, two] = &pair.hosts;
        let reference = Reference::start();
        open(one, 0..FLOWS);
        until("all are there", || (two.flows().len() == FLOWS as usize).then_some(()));
        let late = one.json(&["status", "--json"])["worker"]["advert_late"].clone();
        let disturbed = reference.worst();
        println!("{FLOWS} flows: adverts late {late}, the machine by {disturbed:?}");
        // A tenth of the interval.
        if late["p99_us"].as_u64().is_some_and(|us| us < 10_000) {
            return;
        }
        assert!(disturbed >= Duration::from_millis(50), "adverts were late on a machine that was not: {late}");
    }
    eprintln!("void: the machine was late each time");
}
