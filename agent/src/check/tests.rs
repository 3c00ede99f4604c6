//! Probes against small servers.

use super::*;
use holdfast_node::config::{Http, Name};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const LONG: Duration = Duration::from_secs(20);

fn http(address: SocketAddr) -> Probe {
    match Probe::http(address, "web.example", "/healthz") {
        Probe::Http(http) => Probe::Http(Http { expect: vec![(200, 299)], ..http }),
        other => other,
    }
}

async fn listener() -> (TcpListener, SocketAddr) {
    let l = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
    let a = l.local_addr().expect("a bound socket has an address");
    (l, a)
}

/// Answers each connection with `answer` after the request's headers, then closes. Gives back the requests.
async fn serve(answer: &'static [u8]) -> (SocketAddr, mpsc::Receiver<String>) {
    let (l, address) = listener().await;
    let (tx, rx) = mpsc::channel(8);
    tokio::spawn(async move {
        while let Ok((mut s, _)) = l.accept().await {
            let mut seen = Vec::new();
            let mut buf = [0; 1024];
            while !seen.ends_with(b"\r\n\r\n") {
                match s.read(&mut buf).await {
                    Ok(n) if n > 0 => seen.extend_from_slice(&buf[..n]),
                    _ => break,
                }
            }
            let _ = tx.send(String::from_utf8_lossy(&seen).into_owned()).await;
            let _ = s.write_all(answer).await;
        }
    });
    (address, rx)
}

async fn probed(probe: &Probe, timeout: Duration) -> Result<(), CheckError> {
    run(probe, &BTreeSet::new(), timeout).await
}

async fn words(probe: &Probe, timeout: Duration) -> String {
    probed(probe, timeout).await.expect_err("this probe fails").what
}

#[tokio::test]
async fn http_succeeds_on_a_complete_answer_with_an_expected_status_and_sends_the_host() {
    let (a, mut requests) = serve(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(probed(&http(a), LONG).await, Ok(()));
    let request = requests.recv().await.expect("one request was made");
    assert!(request.starts_with("GET /healthz HTTP/1.1\r\n"), "{request}");
    assert!(request.to_lowercase().contains("\r\nhost: web.example\r\n"), "{request}");
}

#[tokio::test]
async fn http_fails_on_an_unexpected_status_and_names_it() {
    let (a, _r) = serve(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno").await;
    assert_eq!(words(&http(a), LONG).await, "status 503");
}

#[tokio::test]
async fn http_fails_when_the_connection_closes_before_the_answer() {
    let (a, _r) = serve(b"").await;
    assert_eq!(words(&http(a), LONG).await, "connection closed before the answer");
}

#[tokio::test]
async fn http_fails_when_the_body_is_cut() {
    let (a, _r) = serve(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").await;
    assert_eq!(words(&http(a), LONG).await, "connection closed within the answer");
}

#[tokio::test]
async fn http_fails_on_what_is_not_http() {
    let (a, _r) = serve(b"SSH-2.0-x\r\n\r\n").await;
    assert_eq!(words(&http(a), LONG).await, "not an HTTP answer");
}

#[tokio::test]
async fn http_refuses_an_endless_answer() {
    let (l, a) = listener().await;
    tokio::spawn(async move {
        while let Ok((mut s, _)) = l.accept().await {
            let _ = s.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            while s.write_all(&[b'x'; 4096]).await.is_ok() {}
        }
    });
    assert_eq!(words(&http(a), LONG).await, "answer longer than 64 KiB");
}

#[tokio::test]
async fn a_target_that_accepts_and_says_nothing_is_overdue() {
    let (_l, a) = listener().await;
    let e = probed(&http(a), Duration::from_millis(30)).await.expect_err("nobody answers");
    assert_eq!(e, CheckError { what: "no answer in 30ms".to_owned(), how: Failure::Silent });
}

#[tokio::test]
async fn tcp_succeeds_when_the_connection_is_accepted_and_says_refused_when_nobody_listens() {
    let (l, address) = listener().await;
    assert_eq!(probed(&Probe::tcp(address), LONG).await, Ok(()));
    drop(l);
    for probe in [Probe::tcp(address), http(address)] {
        let e = probed(&probe, LONG).await.expect_err("nobody listens");
        assert_eq!(e, CheckError { what: "connection refused".to_owned(), how: Failure::Refused });
    }
}

#[tokio::test]
async fn a_stuck_probe_does_not_delay_the_next_one_of_the_same_check() {
    let (l, address) = listener().await;
    let check = |probe| Check {
        name: Name::new("web").expect("a valid name"),
        probe,
        interval: LONG,
        fast_interval: LONG,
        timeout: LONG,
        jitter: Duration::ZERO,
        fall: 1,
        rise: 1,
        shared: false,
    };
    let (tx, mut rx) = mpsc::channel(8);
    let runner = Runner::new(&[check(http(address))], tx, Handle::current());
    runner.start(CheckId(0), 1, LONG);
    let (_stuck, _) = l.accept().await.expect("the first probe connects");
    runner.start(CheckId(0), 2, LONG);
    let (mut s, _) = l.accept().await.expect("the second probe connects though the first hangs");
    s.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.expect("it reads");
    let done = rx.recv().await.expect("a result comes");
    assert_eq!(done, [Done { check: CheckId(0), sequence: 2, result: Ok(()), note: None }]);
}

#[test]
fn a_pass_agrees_once_the_check_has_passed_as_often_as_it_has_to_and_a_failure_never_does() {
    let limit = Arc::new(Semaphore::new(1));
    let probe = Prepared::new(Probe::tcp(([127, 0, 0, 1], 1).into()));
    let probed = Probed { probe, limit, rise: 2, passes: AtomicU32::new(0) };
    let agreed = [true, true, true, true, false, true, true, true].map(|passed| probed.agrees(passed));
    assert_eq!(agreed, [false, false, true, true, false, false, false, true]);
}

#[test]
fn durations_are_said_as_people_write_them() {
    assert_eq!(in_words(Duration::from_millis(200)), "200ms");
    assert_eq!(in_words(Duration::from_secs(2)), "2s");
    assert_eq!(in_words(Duration::from_millis(1_500)), "1500ms");
}
