//! Runs probes: one task and one connection per probe, so that a stuck target delays nothing but itself.
//!
//! What a result means (rise, fall, overdue) is the node's to say. `exec` probes are run by the keeper on the protocol
//! thread's request ([`crate::run`]) and never come here. What this module refuses to do: follow redirects, keep
//! connections, speak TLS, resolve names.

pub mod gateway;
mod http;
mod tcp;

use holdfast_node::config::{Check, CheckId, Probe};
use holdfast_node::io::{CheckError, Failure};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

/// Probes of one check that may run at once. Each ends by its own timeout, so this is reached only where the timeout
/// is this many times the interval. Full → the new probe fails at once, saying so.
pub const PROBES_MAX: usize = 16;

/// How a probe ended; becomes `Input::CheckDone`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// Which check.
    pub check: CheckId,
    /// The number that `Output::StartCheck` gave.
    pub sequence: u64,
    /// What came out.
    pub result: Result<(), CheckError>,
}

/// Starts probes on a runtime, from any thread, without ever blocking.
#[derive(Debug)]
pub struct Runner {
    checks: Vec<(Arc<Probe>, Arc<Semaphore>)>,
    /// Never the source of a question.
    managed: Arc<BTreeSet<IpAddr>>,
    results: mpsc::Sender<Done>,
    runtime: Handle,
}

impl Runner {
    /// A runner for these checks (indexed by [`CheckId`]). Results go to `results`; a result that finds the queue full
    /// waits in its own task, and if the receiver is gone it's dropped.
    pub fn new(checks: &[Check], results: mpsc::Sender<Done>, runtime: Handle) -> Self {
        let checks = checks.iter().map(|c| (Arc::new(c.probe.clone()), Arc::new(Semaphore::new(PROBES_MAX)))).collect();
        Self { checks, managed: Arc::default(), results, runtime }
    }

    /// The addresses that this node manages: no gateway is asked from one of them.
    #[must_use]
    pub fn with_managed(mut self, managed: BTreeSet<IpAddr>) -> Self {
        self.managed = Arc::new(managed);
        self
    }

    /// Starts a probe; it gives up after `timeout`. An id that isn't configured is ignored.
    pub fn start(&self, check: CheckId, sequence: u64, timeout: Duration) {
        let Some((probe, limit)) = self.checks.get(usize::from(check.0)) else { return };
        let results = self.results.clone();
        let permit = Arc::clone(limit).try_acquire_owned();
        let (probe, managed) = (Arc::clone(probe), Arc::clone(&self.managed));
        self.runtime.spawn(async move {
            let result = match permit {
                Ok(_running) => run(&probe, &managed, timeout).await,
                Err(_) => Err(format!("{PROBES_MAX} earlier probes still run").into()),
            };
            // Err: the worker is stopping, nobody wants to know.
            let _ = results.send(Done { check, sequence, result }).await;
        });
    }
}

/// Runs one probe to its end or its timeout. No gateway is asked from a `managed` address.
pub async fn run(probe: &Probe, managed: &BTreeSet<IpAddr>, timeout: Duration) -> Result<(), CheckError> {
    let attempt = async {
        match probe {
            Probe::Http { address, host, path, expect } => http::get(*address, host, path, expect).await,
            Probe::Tcp { address } => tcp::connect(*address).await.map_err(CheckError::from),
            Probe::Exec { .. } => Err("exec probes are run by the keeper".to_owned().into()),
            Probe::Gateway { target, interface, method } => {
                gateway::ask(*target, interface.as_ref(), *method, managed, timeout).await.map_err(CheckError::from)
            }
        }
    };
    match tokio::time::timeout(timeout, attempt).await {
        Ok(result) => result,
        Err(_) => Err(CheckError { what: format!("no answer in {}", in_words(timeout)), how: Failure::Silent }),
    }
}

/// `200ms`, `2s`.
pub(crate) fn in_words(d: Duration) -> String {
    if d.subsec_millis() == 0 { format!("{}s", d.as_secs()) } else { format!("{}ms", d.as_millis()) }
}

/// Opens a connection, or says in few words why not.
async fn open(address: SocketAddr) -> Result<TcpStream, String> {
    let stream = TcpStream::connect(address).await.map_err(|e| describe(&e))?;
    // A target port in the ephemeral range on a local address can be met by our own SYN (simultaneous open with
    // ourselves): the connection "works" though nobody listens.
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(local), Ok(peer)) if local == peer => Err("connection refused (met itself: nobody listens)".to_owned()),
        _ => Ok(stream),
    }
}

/// A socket error in the words of the status table.
fn describe(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
        io::ErrorKind::HostUnreachable => "host unreachable".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network unreachable".to_owned(),
        io::ErrorKind::TimedOut => "connection timed out".to_owned(),
        io::ErrorKind::AddrNotAvailable => "no local address or port left".to_owned(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => "connection closed before the answer".to_owned(),
        _ => match e.raw_os_error() {
            Some(errno) => io::Error::from_raw_os_error(errno).to_string().to_lowercase(),
            None => e.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::config::Name;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const LONG: Duration = Duration::from_secs(20);

    fn http(address: SocketAddr) -> Probe {
        Probe::Http { address, host: "web.example".to_owned(), path: "/healthz".to_owned(), expect: vec![(200, 299)] }
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
        assert_eq!(probed(&Probe::Tcp { address }, LONG).await, Ok(()));
        drop(l);
        assert_eq!(words(&Probe::Tcp { address }, LONG).await, "connection refused");
        assert_eq!(words(&http(address), LONG).await, "connection refused");
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
        assert_eq!(done, Done { check: CheckId(0), sequence: 2, result: Ok(()) });
    }

    #[test]
    fn durations_are_said_as_people_write_them() {
        assert_eq!(in_words(Duration::from_millis(200)), "200ms");
        assert_eq!(in_words(Duration::from_secs(2)), "2s");
        assert_eq!(in_words(Duration::from_millis(1_500)), "1500ms");
    }
}
