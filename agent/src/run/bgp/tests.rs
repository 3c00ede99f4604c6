use super::*;
use holdfast_bgp::types::{Asn, RouterId};
use holdfast_node::config::{NeighborAs, RouterIdFrom};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// Says whether it was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Of a speaker on this port whose one neighbour never connects.
fn desk(port: u16) -> Desk {
    let bgp = Bgp {
        asn: Asn(65_010),
        router_id: RouterId::new(Ipv4Addr::new(10, 0, 0, 11)).expect("not zero"),
        router_id_from: RouterIdFrom::Configured,
        listen: true,
        listen_port: port,
        graceful_restart: None,
        neighbors: vec![Neighbor::new(Ipv4Addr::new(192, 0, 2, 1).into(), NeighborAs::External)],
    };
    Desk::new(&bgp, vec![None], Instant::now())
}

#[tokio::test]
async fn a_flood_of_strangers_takes_so_many_at_a_time_and_none_is_forgotten() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr()).expect("a free port").port();
    let (mut desk, mut buffer) = (desk(port), Vec::new());
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    assert!(desk.poll_next(&mut cx, Instant::now(), &mut buffer).is_pending());
    let flood: Vec<_> = (0..20).map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens")).collect();
    let mut most = 0;
    for _ in 0..1_000 {
        let before = desk.strangers;
        woken.0.store(false, Ordering::Relaxed);
        assert!(desk.poll_next(&mut cx, Instant::now(), &mut buffer).is_pending());
        most = most.max(desk.strangers - before);
        if desk.strangers == 20 {
            break;
        }
        // Whoever left some behind asks to be polled again; else the system says when there are more.
        let again = woken.0.load(Ordering::Relaxed);
        assert_eq!(again, desk.strangers - before == u64::from(ACCEPTS));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!((desk.strangers, most), (20, u64::from(ACCEPTS)));
    drop(flood);
}

#[tokio::test]
async fn a_port_that_is_taken_is_told_once_and_had_when_it_is_free() {
    let taken = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
    let port = taken.local_addr().expect("bound").port();
    let (mut desk, mut buffer, mut now) = (desk(port), Vec::new(), Instant::now());
    let mut cx = Context::from_waker(Waker::noop());
    let mut told = Vec::new();
    for _ in 0..5 {
        assert!(desk.poll_next(&mut cx, now, &mut buffer).is_pending());
        told.extend(desk.take_listen_error());
        now += RETRY;
    }
    assert_eq!(told, [(port, libc::EADDRINUSE)]);
    drop(taken);
    assert!(desk.poll_next(&mut cx, now, &mut buffer).is_pending());
    assert_eq!((desk.take_listen_error(), desk.poll_timeout()), (None, None));
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens");
}
