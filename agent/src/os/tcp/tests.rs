use super::*;
use std::future::poll_fn;

fn way(remote: SocketAddr) -> Way {
    Way { local: None, remote, interface: None, hops: Hops::Send(64), key: None, user_timeout: Duration::from_secs(9) }
}

async fn happens(connection: &mut Connection, buffer: &mut [u8]) -> Happened {
    poll_fn(|cx| connection.poll(cx, buffer)).await
}

async fn accepted(listener: &Listener, hops: Hops) -> Connection {
    let accepted = poll_fn(|cx| listener.poll_accept(cx)).await.expect("a connection");
    accepted.take(hops, Duration::ZERO).expect("taken")
}

#[tokio::test]
async fn what_is_said_arrives_in_order_and_the_end_after_it() {
    for any in ["127.0.0.1:0", "[::1]:0"] {
        let listener = Listener::bind(any.parse().expect("an address")).expect("listens");
        let remote = listener.address().expect("bound");
        let mut dialled = Connection::dial(&way(remote)).expect("dials");
        let mut taken = accepted(&listener, Hops::AtLeast(64)).await;
        let mut buffer = vec![0; 70_000];
        let local = match happens(&mut dialled, &mut buffer).await {
            Happened::Connected { local, remote: to } if to == remote => local,
            other => panic!("{other:?}"),
        };
        assert_eq!(taken.ends().expect("connected"), (remote, local));
        assert_eq!(dialled.send(b"hello".to_vec()), 0);
        dialled.end();
        assert_eq!(happens(&mut taken, &mut buffer).await, Happened::Received(5));
        assert_eq!(buffer.get(..5), Some(b"hello".as_slice()));
        assert!(matches!(happens(&mut taken, &mut buffer).await, Happened::Closed(None, _)));
    }
}

#[tokio::test]
async fn what_the_socket_does_not_take_waits_and_is_counted() {
    let listener = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("listens");
    let mut dialled = Connection::dial(&way(listener.address().expect("bound"))).expect("dials");
    let mut taken = accepted(&listener, Hops::Send(1)).await;
    let mut buffer = vec![0; 1 << 20];
    assert!(matches!(happens(&mut dialled, &mut buffer).await, Happened::Connected { .. }));
    let mut sent = 0_usize;
    while dialled.send(vec![7; 1 << 20]) == 0 {
        sent += 1 << 20;
        assert!(sent < 1 << 30, "the socket takes everything");
    }
    sent += 1 << 20;
    let mut received = 0;
    while received < sent {
        match happens(&mut taken, &mut buffer).await {
            Happened::Received(n) => received += n,
            other => panic!("{other:?}"),
        }
        let polled = poll_fn(|cx| Poll::Ready(dialled.poll(cx, &mut []))).await;
        assert!(matches!(polled, Poll::Pending | Poll::Ready(Happened::Queued(_))), "{polled:?}");
    }
    assert_eq!(dialled.queued(), 0);
}

#[tokio::test]
async fn a_refused_connection_says_so_in_words() {
    let listener = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("listens");
    let remote = listener.address().expect("bound");
    drop(listener);
    let mut dialled = Connection::dial(&way(remote)).expect("dials");
    match happens(&mut dialled, &mut []).await {
        Happened::Closed(Some(io::ErrorKind::ConnectionRefused), why) => assert!(why.contains("refused"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_aborted_connection_is_reset() {
    let listener = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("listens");
    let mut dialled = Connection::dial(&way(listener.address().expect("bound"))).expect("dials");
    let taken = accepted(&listener, Hops::Send(64)).await;
    let mut buffer = [0; 16];
    assert!(matches!(happens(&mut dialled, &mut buffer).await, Happened::Connected { .. }));
    taken.abort();
    let end = happens(&mut dialled, &mut buffer).await;
    assert!(matches!(end, Happened::Closed(Some(io::ErrorKind::ConnectionReset), _)), "{end:?}");
}

#[tokio::test]
async fn signed_both_ways_with_one_key_and_not_at_all_with_two() {
    let key = |text: &str| Key::new(text.as_bytes()).expect("a key");
    let listener = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("listens");
    let remote = listener.address().expect("bound");
    listener.set_key(remote.ip(), Some(&key("one"))).expect("the kernel signs");
    let mut buffer = [0; 16];
    let mut right = Connection::dial(&Way { key: Some(key("one")), ..way(remote) }).expect("dials");
    assert!(matches!(happens(&mut right, &mut buffer).await, Happened::Connected { .. }));
    for other in [Some(key("two")), None] {
        let mut wrong = Connection::dial(&Way { key: other, ..way(remote) }).expect("dials");
        let waited = tokio::time::timeout(Duration::from_millis(300), happens(&mut wrong, &mut buffer)).await;
        assert!(!matches!(waited, Ok(Happened::Connected { .. })), "{waited:?}");
    }
    listener.set_key(remote.ip(), None).expect("forgotten");
    listener.set_key(remote.ip(), None).expect("and again");
    let mut open = Connection::dial(&way(remote)).expect("dials");
    assert!(matches!(happens(&mut open, &mut buffer).await, Happened::Connected { .. }));
}

#[test]
fn a_key_is_1_to_80_bytes_and_never_printed() {
    assert_eq!((Key::new(b""), Key::new(&[b'x'; 81])), (None, None));
    let key = Key::new(&[b'x'; 80]).expect("80 bytes");
    assert_eq!(format!("{key:?}"), "Key");
}

#[tokio::test]
async fn what_protects_a_session_and_cannot_be_had_means_no_connection() {
    let gone = Way { interface: Some("hf-not-there".to_owned()), ..way("127.0.0.1:179".parse().expect("an address")) };
    assert_eq!(Connection::dial(&gone).expect_err("no such interface").raw_os_error(), Some(libc::ENODEV));
    let elsewhere = Way { local: Some([192, 0, 2, 1].into()), ..way("127.0.0.1:179".parse().expect("an address")) };
    assert_eq!(Connection::dial(&elsewhere).expect_err("not ours").raw_os_error(), Some(libc::EADDRNOTAVAIL));
}

/// RFC 5082: also what came before the connection could be guarded.
#[tokio::test]
async fn who_is_a_hop_too_far_away_gets_no_connection_however_early_he_speaks() {
    for any in ["127.0.0.1:0", "[::1]:0"] {
        let listener = Listener::bind(any.parse().expect("an address")).expect("listens");
        let far = Way { hops: Hops::Send(254), ..way(listener.address().expect("bound")) };
        let mut dialled = Connection::dial(&far).expect("dials");
        dialled.send(b"let me in".to_vec());
        let next = poll_fn(|cx| listener.poll_accept(cx)).await.expect("a connection");
        let refused = next.take(Hops::AtLeast(255), Duration::ZERO).expect_err("it is too far away");
        assert_eq!(refused.raw_os_error(), Some(libc::EHOSTUNREACH), "{any}");
        let near = Way { hops: Hops::Send(255), ..far };
        let _dialled = Connection::dial(&near).expect("dials");
        let _taken = accepted(&listener, Hops::AtLeast(255)).await;
    }
}
