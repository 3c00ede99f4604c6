//! Runs probes: one task and one connection per probe, so that a stuck target delays nothing but itself.
//!
//! What a result means (rise, fall, overdue) is the node's to say. `exec` probes are run by the keeper on the protocol
//! thread's request ([`crate::run`]) and never come here. What this module refuses to do: follow redirects, keep
//! connections, resume TLS sessions (a probe sees the whole handshake), resolve names.

mod address;
mod canary;
mod dialogue;
mod file;
pub mod gateway;
mod gather;
mod http;
pub mod proxy;
mod tls;
mod udp;
mod wire;

use gather::Told;
use holdfast_node::config::{Check, CheckId, Probe};
use holdfast_node::io::{CheckError, Failure};
use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

/// Probes of one check that may run at once. Each ends by its own timeout, so this is reached only where the timeout
/// is this many times the interval. Full → the new probe fails at once, saying so.
pub const PROBES_MAX: usize = 16;

/// Results that wait to be gathered. Full → they wait in their tasks.
const TOLD_MAX: usize = 256;

/// Most bytes of an answer; one that is longer isn't that of a health check.
const ANSWER_MAX: usize = 64 * 1024;

/// How a probe ended; becomes `Input::CheckDone`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// Which check.
    pub check: CheckId,
    /// The number that `Output::StartCheck` gave.
    pub sequence: u64,
    /// What came out.
    pub result: Result<(), CheckError>,
    /// What somebody should know though it changes no verdict.
    pub note: Option<String>,
}

/// Passed, perhaps with a note; or why not, in few words.
type Answer = Result<Option<String>, CheckError>;

/// A probe with what can be prepared for all of its runs.
#[derive(Debug)]
pub struct Prepared {
    probe: Probe,
    /// What a certificate is held against; made by the first run that needs it.
    tls: tls::Client,
    looks: file::Looks,
    /// What a canary asks through the VIP.
    through: Option<Box<Self>>,
}

impl Prepared {
    /// Nothing is opened or read yet.
    pub fn new(probe: Probe) -> Self {
        let through = match &probe {
            Probe::Canary(canary) => canary.through.as_deref().map(|probe| Box::new(Self::new(probe.clone()))),
            _ => None,
        };
        Self { probe, tls: tls::Client::default(), looks: file::Looks::default(), through }
    }

    /// Runs it to its end or its timeout. No question is asked from a `managed` address. Cancel safe; must be called
    /// inside a tokio runtime.
    ///
    /// # Errors
    /// Why it failed, in a few words for people. With `Ok` there may be something that somebody should know.
    pub async fn run(&self, managed: &BTreeSet<IpAddr>, timeout: Duration) -> Result<Option<String>, CheckError> {
        match tokio::time::timeout(timeout, self.attempt(managed, timeout)).await {
            Ok(result) => result,
            Err(_) => Err(CheckError { what: format!("no answer in {}", in_words(timeout)), how: Failure::Silent }),
        }
    }

    /// A canary has a probe within it, so the type is boxed.
    fn attempt<'a>(
        &'a self,
        managed: &'a BTreeSet<IpAddr>,
        timeout: Duration,
    ) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        Box::pin(async move {
            match &self.probe {
                Probe::Http(http) => http::ask(http, &self.tls).await,
                Probe::Tcp(stream) | Probe::Tls(stream) | Probe::Unix(stream) => {
                    dialogue::hold(stream, &self.tls).await
                }
                Probe::Udp(datagram) => udp::ask(datagram, timeout).await.map(|()| None),
                Probe::Exec { .. } => Err("exec probes are run by the keeper".to_owned().into()),
                Probe::File(file) => Ok(self.looks.look(file).await.map(|()| None)?),
                Probe::Address { ip, interface } => Ok(address::look(*ip, interface.as_ref()).map(|()| None)?),
                Probe::Gateway { target, interface, method } => {
                    let asked = gateway::ask(*target, interface.as_ref(), *method, managed, timeout);
                    Ok(asked.await.map(|()| None)?)
                }
                Probe::Canary(canary) => match canary::owner(canary, managed, timeout).await? {
                    canary::Owner::Here => Ok(Some("held by this node: nothing is asked".to_owned())),
                    canary::Owner::At(mac) => {
                        if let Some(through) = &self.through {
                            through.attempt(managed, timeout).await?;
                        }
                        Ok(Some(format!("{} is at {mac}", canary.target)))
                    }
                },
                Probe::Group(_) => Err("nothing is asked for a group".to_owned().into()),
            }
        })
    }
}

/// Starts probes on a runtime, from any thread, without ever blocking.
#[derive(Debug)]
pub struct Runner {
    checks: Vec<Arc<Probed>>,
    /// Never the source of a question.
    managed: Arc<BTreeSet<IpAddr>>,
    told: mpsc::Sender<Told>,
    running: Arc<AtomicUsize>,
    runtime: Handle,
}

/// A check, as far as it is probed.
#[derive(Debug)]
struct Probed {
    probe: Prepared,
    limit: Arc<Semaphore>,
    /// So many passes in a row say that it passes.
    rise: u32,
    /// Passes in a row.
    passes: AtomicU32,
}

impl Probed {
    /// Whether this result says what is known already.
    fn agrees(&self, passed: bool) -> bool {
        let before = self.passes.load(Ordering::Relaxed);
        self.passes.store(if passed { before.saturating_add(1) } else { 0 }, Ordering::Relaxed);
        passed && before >= self.rise
    }
}

impl Runner {
    /// A runner for these checks (indexed by [`CheckId`]). Results go to `results`, up to 64 together: a pass of a check
    /// that passes waits up to 10 ms for others, if its timeout leaves time for that. A result that finds the queue full
    /// waits in its own task, and if the receiver is gone it's dropped.
    pub fn new(checks: &[Check], results: mpsc::Sender<Vec<Done>>, runtime: Handle) -> Self {
        let probed = |check: &Check| {
            Arc::new(Probed {
                probe: Prepared::new(check.probe.clone()),
                limit: Arc::new(Semaphore::new(PROBES_MAX)),
                rise: check.rise.into(),
                passes: AtomicU32::new(0),
            })
        };
        let (told, waiting) = mpsc::channel(TOLD_MAX);
        let running = Arc::<AtomicUsize>::default();
        runtime.spawn(gather::gather(waiting, Arc::clone(&running), results, gather::HOLD));
        Self { checks: checks.iter().map(probed).collect(), managed: Arc::default(), told, running, runtime }
    }

    /// The addresses that this node manages: no gateway is asked from one of them.
    #[must_use]
    pub fn with_managed(mut self, managed: BTreeSet<IpAddr>) -> Self {
        self.managed = Arc::new(managed);
        self
    }

    /// Starts a probe; it gives up after `timeout`. An id that isn't configured is ignored.
    pub fn start(&self, check: CheckId, sequence: u64, timeout: Duration) {
        let Some(probed) = self.checks.get(usize::from(check.0)).map(Arc::clone) else { return };
        let (told, running, managed) = (self.told.clone(), Arc::clone(&self.running), Arc::clone(&self.managed));
        let permit = Arc::clone(&probed.limit).try_acquire_owned();
        let begun = Instant::now();
        running.fetch_add(1, Ordering::Relaxed);
        self.runtime.spawn(async move {
            let result = match permit {
                Ok(_permit) => probed.probe.run(&managed, timeout).await,
                Err(_) => Err(format!("{PROBES_MAX} earlier probes still run").into()),
            };
            let (result, note) = match result {
                Ok(note) => (Ok(()), note),
                Err(e) => (Err(e), None),
            };
            // It must be heard before its deadline, on a machine that is busy too.
            let waits = probed.agrees(result.is_ok()) && begun.elapsed() + 2 * gather::HOLD <= timeout;
            running.fetch_sub(1, Ordering::Relaxed);
            // Err: the worker is stopping, nobody wants to know.
            let _ = told.send(Told { done: Done { check, sequence, result, note }, waits }).await;
        });
    }
}

/// Runs one probe that is needed once, as [`Prepared::run`].
///
/// # Errors
/// Why it failed.
pub async fn run(probe: &Probe, managed: &BTreeSet<IpAddr>, timeout: Duration) -> Result<(), CheckError> {
    Prepared::new(probe.clone()).run(managed, timeout).await.map(drop)
}

/// `200ms`, `2s`.
pub(crate) fn in_words(d: Duration) -> String {
    if d.subsec_millis() == 0 { format!("{}s", d.as_secs()) } else { format!("{}ms", d.as_millis()) }
}

const CLOSED: &str = "connection closed before the answer";

/// It answered, and not with what is expected.
fn answered(what: String) -> CheckError {
    CheckError { what, how: Failure::Answered }
}

/// Nobody listens there.
fn refused(what: &str) -> CheckError {
    CheckError { what: what.to_owned(), how: Failure::Refused }
}

/// A connection, or a question in one datagram, that went wrong.
fn failed(e: &io::Error) -> CheckError {
    match e.kind() {
        io::ErrorKind::ConnectionRefused => refused(&describe(e)),
        _ => describe(e).into(),
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
        io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => CLOSED.to_owned(),
        _ => match e.raw_os_error() {
            Some(errno) => io::Error::from_raw_os_error(errno).to_string().to_lowercase(),
            None => e.to_string(),
        },
    }
}

#[cfg(test)]
mod tests;
