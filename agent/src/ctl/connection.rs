//! A bounded number of connections, each of which must say what it wants and take what it gets: one that does neither
//! gives its place to the next.

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// How long a client may take for its request, and how long it may leave an answer unread. More than the node may take
/// for a status, less than the next client's own patience.
const PATIENCE: Duration = Duration::from_secs(3);

/// Who is on the other end, as the kernel says (SO_PEERCRED).
#[derive(Debug, Clone)]
pub(super) struct Caller(pub(super) String);

impl Connected<IncomingStream<'_, Limited>> for Caller {
    fn connect_info(stream: IncomingStream<'_, Limited>) -> Self {
        Self(match stream.io().stream.peer_cred() {
            Ok(cred) => match cred.pid() {
                Some(pid) => format!("uid {} (pid {pid})", cred.uid()),
                None => format!("uid {}", cred.uid()),
            },
            Err(_) => "unknown".to_owned(),
        })
    }
}

/// A listener that takes so many connections at a time. More wait in the kernel's queue.
#[derive(Debug)]
pub(super) struct Limited {
    listener: UnixListener,
    permits: Arc<Semaphore>,
}

impl Limited {
    pub(super) fn new(listener: UnixListener, most: usize) -> Self {
        Self { listener, permits: Arc::new(Semaphore::new(most)) }
    }
}

impl axum::serve::Listener for Limited {
    type Io = Connection;
    type Addr = tokio::net::unix::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let permit = Arc::clone(&self.permits).acquire_owned().await.expect("the semaphore is never closed");
        let (stream, address) = axum::serve::Listener::accept(&mut self.listener).await;
        (Connection::new(stream, permit, PATIENCE), address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The request isn't answered yet: the deadline counts.
    Asks,
    /// What was answered was taken. Following events has no deadline.
    Reads,
    /// The answer is left unread: the deadline counts.
    Stalls,
}

/// A connection that gives its permit back when it ends.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    phase: Phase,
    patience: Duration,
    deadline: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: UnixStream, permit: OwnedSemaphorePermit, patience: Duration) -> Self {
        Self { stream, phase: Phase::Asks, patience, deadline: Box::pin(sleep(patience)), _permit: permit }
    }

    fn late<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.deadline.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Pending if self.phase == Phase::Asks => self.late(context),
            other => other,
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Pending => {
                if self.phase != Phase::Stalls {
                    self.phase = Phase::Stalls;
                    let until = Instant::now() + self.patience;
                    self.deadline.as_mut().reset(until);
                }
                self.late(context)
            }
            written => {
                self.phase = Phase::Reads;
                written
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// With next to no patience, and its client.
    async fn pair() -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("two descriptors");
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.expect("never closed");
        (Connection::new(ours, permit, Duration::from_millis(1)), theirs)
    }

    #[tokio::test]
    async fn a_client_that_asks_nothing_loses_its_place() {
        let (mut connection, _client) = pair().await;
        let error = connection.read_u8().await.expect_err("nothing comes");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_client_that_never_reads_loses_its_place() {
        let (mut connection, _client) = pair().await;
        let error = connection.write_all(&vec![0; 8 << 20]).await.expect_err("more than the kernel keeps");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_client_that_was_answered_may_stay() {
        let (mut connection, mut client) = pair().await;
        connection.write_all(b"answer").await.expect("room");
        client.read_exact(&mut [0; 6]).await.expect("the answer");
        tokio::time::sleep(Duration::from_millis(20)).await;
        client.write_all(b"x").await.expect("room");
        assert_eq!(connection.read_u8().await.expect("no deadline any more"), b'x');
    }
}
