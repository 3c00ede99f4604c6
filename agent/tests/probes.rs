//! Every kind of probe against a small server on loopback: passing, and failing in each way that it can.

#[path = "figures/mod.rs"]
mod figures;

use holdfast::check::{Prepared, proxy};
use holdfast_node::config::{Datagram, Endpoint, File, Http, Payload, Probe, ProxyVersion, Stream, Tls};
use holdfast_node::io::{CheckError, Failure};
use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixListener};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// For what is to pass, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);
/// For what never comes.
const SHORT: Duration = Duration::from_millis(300);

async fn probed(probe: Probe, timeout: Duration) -> Result<Option<String>, CheckError> {
    Prepared::new(probe).run(&BTreeSet::new(), timeout).await
}

/// Why it fails.
async fn wrong(probe: Probe) -> String {
    probed(probe, LONG).await.expect_err("this probe fails").what
}

/// Each connection is served by `serve`.
async fn server<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// Reads until `end`; what was read.
async fn until(stream: &mut (impl AsyncRead + Unpin), end: &[u8]) -> Vec<u8> {
    let mut seen = Vec::new();
    while !seen.ends_with(end) {
        match stream.read_u8().await {
            Ok(byte) => seen.push(byte),
            Err(_) => break,
        }
    }
    seen
}

/// Answers one request, and lets the other end close first, so that nothing is lost in a reset.
async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), answer: &[u8]) {
    until(stream, b"\r\n\r\n").await;
    let _ = stream.write_all(answer).await;
    let _ = stream.shutdown().await;
}

fn payload(text: &str) -> Option<Payload> {
    Some(Payload::new(text.as_bytes().to_vec()).expect("short"))
}

fn http(address: SocketAddr) -> Http {
    match Probe::http(address, "www.example.net", "/healthz") {
        Probe::Http(http) => http,
        other => panic!("{other:?}"),
    }
}

fn stream(address: SocketAddr, send: &str, expect: &str) -> Stream {
    Stream { send: payload(send), expect: payload(expect), ..Stream::new(Endpoint::Ip(address)) }
}

/// A folder of this test, removed with all that is in it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hfprobes-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("made");
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn http_looks_for_a_text_in_the_body() {
    let address = server(|mut stream| async move {
        answer(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\nall is ready").await;
    })
    .await;
    assert_eq!(probed(Probe::Http(Http { body: payload("is ready"), ..http(address) }), LONG).await, Ok(None));
    let failed = probed(Probe::Http(Http { body: payload("unready"), ..http(address) }), LONG).await;
    let failed = failed.expect_err("it isn't there");
    assert_eq!((failed.what.as_str(), failed.how), ("\"unready\" isn't in the body", Failure::Answered));
}

#[tokio::test]
async fn an_answer_that_drips_is_as_good_as_none_at_the_deadline() {
    let address = server(|mut stream| async move {
        until(&mut stream, b"\r\n\r\n").await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n").await;
        while stream.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let failed = probed(Probe::Http(http(address)), SHORT).await.expect_err("it never ends");
    assert_eq!((failed.what.as_str(), failed.how), ("no answer in 300ms", Failure::Silent));
    let drips = server(|mut stream| async move {
        while stream.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let failed = probed(Probe::Tcp(stream(drips, "PING", "+PONG")), SHORT).await.expect_err("it never ends");
    assert_eq!(failed.how, Failure::Silent);
}

#[tokio::test]
async fn tcp_sends_and_finds_what_it_expects_wherever_the_answer_is_cut() {
    let address = server(|mut stream| async move {
        until(&mut stream, b"PING\r\n").await;
        for part in [&b"noise +PO"[..], b"NG\r\n"] {
            let _ = stream.write_all(part).await;
            let _ = stream.flush().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(probed(Probe::Tcp(stream(address, "PING\r\n", "+PONG")), LONG).await, Ok(None));
    let failed = probed(Probe::Tcp(stream(address, "PING\r\n", "+OK")), LONG).await.expect_err("another answer");
    assert_eq!((failed.what.as_str(), failed.how), ("another answer: \"noise +PONG\\r\\n\"", Failure::Answered));
    let closes = server(|stream| async move { drop(stream) }).await;
    let said = wrong(Probe::Tcp(Stream { send: None, ..stream(closes, "x", "+PONG") })).await;
    assert_eq!(said, "connection closed before the answer");
}

#[tokio::test]
async fn udp_is_asked_again_and_refuses_by_icmp() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("loopback can be bound");
    let address = socket.local_addr().expect("it is bound");
    tokio::spawn(async move {
        let mut buffer = [0; 64];
        // The first question of each is lost.
        let mut lost = false;
        while let Ok((read, from)) = socket.recv_from(&mut buffer).await {
            lost = !lost;
            if !lost {
                let _ = socket.send_to(&[b"re:", &buffer[..read]].concat(), from).await;
            }
        }
    });
    let ask =
        |expect: &str| Probe::Udp(Datagram { address, send: payload("hello").expect("text"), expect: payload(expect) });
    let timeout = Duration::from_secs(3);
    assert_eq!(probed(ask("re:hello"), timeout).await, Ok(None));
    let failed = probed(ask("no"), timeout).await.expect_err("another answer");
    assert_eq!((failed.what.as_str(), failed.how), ("another answer: \"re:hello\"", Failure::Answered));

    let closed = {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("loopback can be bound");
        socket.local_addr().expect("it is bound")
    };
    let datagram = |address| Datagram { address, send: payload("x").expect("text"), expect: None };
    assert_eq!(wrong(Probe::Udp(datagram(closed))).await, "port unreachable");
    let mute = UdpSocket::bind("127.0.0.1:0").await.expect("loopback can be bound");
    let mute_address = mute.local_addr().expect("it is bound");
    let failed = probed(Probe::Udp(datagram(mute_address)), SHORT).await.expect_err("nobody answers");
    assert_eq!(failed.how, Failure::Silent);
}

#[tokio::test]
async fn unix_sockets_are_connected_to_and_speak_http() {
    let folder = Folder::new("unix");
    let path = folder.path("web.sock");
    let listener = UnixListener::bind(&path).expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                answer(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            });
        }
    });
    let at = |path: &Path| Endpoint::Unix(path.to_path_buf());
    assert_eq!(probed(Probe::Unix(Stream::new(at(&path))), LONG).await, Ok(None));
    let any: SocketAddr = ([127, 0, 0, 1], 1).into();
    assert_eq!(probed(Probe::Http(Http { endpoint: at(&path), ..http(any) }), LONG).await, Ok(None));
    let gone = folder.path("gone.sock");
    assert_eq!(wrong(Probe::Unix(Stream::new(at(&gone)))).await, "there is no such socket");
    drop(std::os::unix::net::UnixListener::bind(&gone).expect("bound"));
    assert_eq!(wrong(Probe::Unix(Stream::new(at(&gone)))).await, "connection refused");
}

#[tokio::test]
async fn a_file_is_looked_for() {
    let folder = Folder::new("file");
    let path = folder.path("flag");
    let probe = |present, max_age| Probe::File(File { path: path.clone(), present, max_age });
    assert_eq!(wrong(probe(true, None)).await, "the file isn't there");
    assert_eq!(probed(probe(false, None), LONG).await, Ok(None));
    std::fs::write(&path, "").expect("written");
    assert_eq!(probed(probe(true, Some(Duration::from_secs(3_600))), LONG).await, Ok(None));
    assert_eq!(wrong(probe(false, None)).await, "the file is there");
}

#[tokio::test]
async fn the_proxy_header_comes_first_and_tells_the_connections_own_ends() {
    let address = server(|mut stream| async move {
        // As HAProxy with accept-proxy, version 1 only.
        let line = String::from_utf8_lossy(&until(&mut stream, b"\r\n").await).into_owned();
        let (peer, local) = (stream.peer_addr().expect("connected"), stream.local_addr().expect("connected"));
        let expected = format!("PROXY TCP4 {} {} {} {}\r\n", peer.ip(), local.ip(), peer.port(), local.port());
        if line == expected {
            answer(&mut stream, b"HTTP/1.1 204 No Content\r\n\r\n").await;
        }
    })
    .await;
    let with = |proxy| Probe::Http(Http { proxy, ..http(address) });
    assert_eq!(probed(with(Some(ProxyVersion::V1)), LONG).await, Ok(None));
    for refused in [None, Some(ProxyVersion::V2)] {
        let said = wrong(with(refused)).await;
        assert!(said.starts_with("connection "), "{refused:?}: {said}");
    }

    let v2 = server(|mut stream| async move {
        let header = proxy::header(ProxyVersion::V2, None);
        let mut got = vec![0; header.len()];
        if stream.read_exact(&mut got).await.is_ok() && got == header {
            let _ = stream.write_all(b"+OK").await;
        }
    })
    .await;
    let with = |proxy| Probe::Tcp(Stream { proxy, send: None, ..stream(v2, "x", "+OK") });
    assert_eq!(probed(with(Some(ProxyVersion::V2)), LONG).await, Ok(None));
    assert!(wrong(with(Some(ProxyVersion::V1))).await.starts_with("connection "));
}

/// A certificate with its key.
struct Pair {
    certificate: rcgen::Certificate,
    key: rcgen::KeyPair,
}

/// For www.example.net, valid so many days from today's beginning (UTC).
fn pair(days: i64) -> Pair {
    let today = jiff::tz::Offset::UTC.to_datetime(jiff::Timestamp::now()).date();
    let end = today.checked_add(jiff::Span::new().days(days)).expect("a date");
    let ymd = |date: jiff::civil::Date| {
        let part = |n: i8| u8::try_from(n).expect("positive");
        rcgen::date_time_ymd(i32::from(date.year()), part(date.month()), part(date.day()))
    };
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut parameters = rcgen::CertificateParams::new(vec!["www.example.net".to_owned()]).expect("a name");
    parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
    parameters.not_after = ymd(end);
    Pair { certificate: parameters.self_signed(&key).expect("signed"), key }
}

/// A TLS server that answers any request with 200, after a PROXY header of version 2 if there is one.
async fn tls_server(pair: &Pair, proxied: bool) -> SocketAddr {
    let chain = vec![CertificateDer::from(pair.certificate.der().to_vec())];
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("they belong together");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    server(move |mut stream| {
        let acceptor = acceptor.clone();
        async move {
            if proxied && stream.read_exact(&mut [0; 16]).await.is_err() {
                return;
            }
            if let Ok(mut stream) = acceptor.accept(stream).await {
                answer(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            }
        }
    })
    .await
}

fn tls(name: &str, ca_file: Option<PathBuf>) -> Tls {
    Tls { server_name: name.to_owned(), verify: ca_file.is_some(), ca_file, expiry_warning_days: 14 }
}

#[tokio::test]
async fn https_passes_with_the_right_name_and_issuer_and_warns_before_the_end() {
    let folder = Folder::new("https");
    for (days, note) in [(400, None), (5, Some("the certificate ends in 4 days"))] {
        let pair = pair(days);
        let ca = folder.path(&format!("ca-{days}.pem"));
        std::fs::write(&ca, pair.certificate.pem()).expect("written");
        let address = tls_server(&pair, false).await;
        let https = |name: &str| Probe::Http(Http { tls: Some(tls(name, Some(ca.clone()))), ..http(address) });
        assert_eq!(probed(https("www.example.net"), LONG).await, Ok(note.map(str::to_owned)));
        assert_eq!(wrong(https("other.example.net")).await, "the certificate isn't for other.example.net");
        let bare = Stream { tls: Some(tls("www.example.net", Some(ca.clone()))), ..Stream::new(Endpoint::Ip(address)) };
        assert_eq!(probed(Probe::Tls(bare), LONG).await, Ok(note.map(str::to_owned)));
    }
}

#[tokio::test]
async fn a_certificate_that_is_over_or_of_another_issuer_fails_unless_anything_goes() {
    let folder = Folder::new("expired");
    let (over, other) = (pair(-1), pair(400));
    let ca = folder.path("ca.pem");
    std::fs::write(&ca, over.certificate.pem()).expect("written");
    let (over_at, other_at) = (tls_server(&over, false).await, tls_server(&other, false).await);
    let https = |address, ca| Probe::Http(Http { tls: Some(tls("www.example.net", ca)), ..http(address) });
    assert_eq!(wrong(https(over_at, Some(ca.clone()))).await, "the certificate has expired");
    let said = wrong(https(other_at, Some(ca.clone()))).await;
    assert!(said.contains("issuer isn't trusted") || said.contains("BadSignature"), "{said}");
    assert_eq!(probed(https(over_at, None), LONG).await, Ok(Some("the certificate has expired".to_owned())));
    let missing = wrong(https(over_at, Some(folder.path("missing.pem")))).await;
    assert!(missing.starts_with("ca_file ") && missing.contains("missing.pem"), "{missing}");
}

#[tokio::test]
async fn tls_says_what_is_no_tls_and_goes_behind_a_proxy_header() {
    let plain = server(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        until(&mut stream, b"never").await;
    })
    .await;
    let bare = |address, proxy| {
        Probe::Tls(Stream { tls: Some(tls("www.example.net", None)), proxy, ..Stream::new(Endpoint::Ip(address)) })
    };
    assert_eq!(wrong(bare(plain, None)).await, "not a TLS answer");
    let closes = server(|mut stream| async move {
        // All of the client's first flight, so that no reset comes instead of the end.
        let _ = stream.read(&mut [0; 16_384]).await;
    })
    .await;
    assert_eq!(wrong(bare(closes, None)).await, "connection closed within the handshake");
    let mute = server(|mut stream| async move { drop(until(&mut stream, b"never").await) }).await;
    let failed = probed(bare(mute, None), SHORT).await.expect_err("nobody answers");
    assert_eq!(failed.how, Failure::Silent);
    let behind = tls_server(&pair(400), true).await;
    assert_eq!(probed(bare(behind, Some(ProxyVersion::V2)), LONG).await, Ok(None));
}

/// What ten checks at 500 ms cost: `make balance` on a quiet machine; the figure is processor time.
#[tokio::test]
#[ignore = "a figure, for a quiet machine"]
async fn ten_checks_twice_a_second_cost_little_of_a_core() {
    let address = server(|mut stream| async move {
        answer(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    })
    .await;
    let spent = || {
        let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD).expect("known");
        let us = |t: nix::sys::time::TimeVal| t.tv_sec() * 1_000_000 + t.tv_usec();
        us(usage.user_time()) + us(usage.system_time())
    };
    let probes: Vec<Prepared> = (0..10).map(|_| Prepared::new(Probe::Http(http(address)))).collect();
    let (load, begin, rounds) = (figures::load(), spent(), 40_u32);
    for _ in 0..rounds {
        for probe in &probes {
            assert_eq!(probe.run(&BTreeSet::new(), LONG).await, Ok(None));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    // The server's share is in it too.
    let share = (spent() - begin) as f64 / (f64::from(rounds) * 500_000.0) * 100.0;
    let report = serde_json::json!({
        "case": "10 HTTP checks at 500 ms, with the server that answers them", "load_average": load, "rounds": rounds,
        "cpu_percent_max": 0.5, "cpu_percent": share,
    });
    figures::record("probes", &[serde_json::json!({"pass": share < 0.5, "report": report})]);
}
