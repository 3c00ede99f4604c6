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
mod http;
pub mod proxy;
mod tls;
mod udp;
mod wire;

use holdfast_node::config::{Check, CheckId, Probe};
use holdfast_node::io::{CheckError, Failure};
use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

/// Probes of one check that may run at once. Each ends by its own timeout, so this is reached only where the timeout
/// is this many times the interval. Full → the new probe fails at once, saying so.
pub const PROBES_MAX: usize = 16;

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
    checks: Vec<(Arc<Prepared>, Arc<Semaphore>)>,
    /// Never the source of a question.
    managed: Arc<BTreeSet<IpAddr>>,
    results: mpsc::Sender<Done>,
    runtime: Handle,
}

impl Runner {
    /// A runner for these checks (indexed by [`CheckId`]). Results go to `results`; a result that finds the queue full
    /// waits in its own task, and if the receiver is gone it's dropped.
    pub fn new(checks: &[Check], results: mpsc::Sender<Done>, runtime: Handle) -> Self {
        let prepared = |c: &Check| (Arc::new(Prepared::new(c.probe.clone())), Arc::new(Semaphore::new(PROBES_MAX)));
        Self { checks: checks.iter().map(prepared).collect(), managed: Arc::default(), results, runtime }
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
                Ok(_running) => probe.run(&managed, timeout).await,
                Err(_) => Err(format!("{PROBES_MAX} earlier probes still run").into()),
            };
            let (result, note) = match result {
                Ok(note) => (Ok(()), note),
                Err(e) => (Err(e), None),
            };
            // Err: the worker is stopping, nobody wants to know.
            let _ = results.send(Done { check, sequence, result, note }).await;
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
