//! The command line's end of the control socket.

use super::server::SOCKET;
use super::wire::ErrorBody;
use crate::config::file::in_words;
use axum::body::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;

/// Longest answer that is kept in memory, and longest line of one that comes in lines.
const ANSWER_MAX: usize = 16 << 20;
/// How long the agent has to begin with an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody is there, or it ended in the middle.
    #[error("the agent can't be reached: {0}")]
    Unreachable(String),
    /// It said no to the request as such.
    #[error("the agent refused the request: {0}")]
    Refused(String),
}

/// An answer that is read line by line.
#[derive(Debug)]
pub struct LineReader {
    body: Incoming,
    buffer: Vec<u8>,
    ended: bool,
}

/// Asks; the answer's body is still to be read.
///
/// # Errors
/// See [`ClientError`].
pub async fn ask(
    runtime_dir: &Path,
    method: Method,
    target: &str,
    body: Option<Vec<u8>>,
) -> Result<LineReader, ClientError> {
    let response = tokio::time::timeout(PATIENCE, send(runtime_dir, method, target, body))
        .await
        .map_err(|_| ClientError::Unreachable(format!("no answer within {} s", PATIENCE.as_secs())))??;
    let status = response.status();
    let mut reader = LineReader { body: response.into_body(), buffer: Vec::new(), ended: false };
    if status == StatusCode::OK {
        return Ok(reader);
    }
    let text = reader.all().await?;
    let why = serde_json::from_slice::<ErrorBody>(&text)
        .map_or_else(|_| String::from_utf8_lossy(&text).trim().to_owned(), |body| body.error);
    let why = if why.is_empty() { status.to_string() } else { why };
    Err(match status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => ClientError::Unreachable(why),
        _ => ClientError::Refused(why),
    })
}

async fn send(
    runtime_dir: &Path,
    method: Method,
    target: &str,
    body: Option<Vec<u8>>,
) -> Result<Response<Incoming>, ClientError> {
    let path = runtime_dir.join(SOCKET);
    let stream = UnixStream::connect(&path)
        .await
        .map_err(|e| ClientError::Unreachable(format!("{}: {}{}", path.display(), in_words(&e), hint(&e))))?;
    let broken = |e: hyper::Error| ClientError::Unreachable(e.to_string());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // Ends with the connection; its error is seen by whoever waits for the answer.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let mut request = Request::builder().method(method).uri(target).header(hyper::header::HOST, "holdfast");
    if body.is_some() {
        request = request.header(hyper::header::CONTENT_TYPE, "application/json");
    }
    let request = request
        .body(Full::new(Bytes::from(body.unwrap_or_default())))
        .map_err(|e| ClientError::Refused(e.to_string()))?;
    sender.send_request(request).await.map_err(broken)
}

fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
            " (is the agent running, and with this --runtime-dir?)"
        }
        std::io::ErrorKind::PermissionDenied => " (root and members of the group holdfast may)",
        _ => "",
    }
}

impl LineReader {
    /// The next line without its end; `None`: the answer is complete.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] when the agent ended in the middle.
    pub async fn line(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
                line.pop();
                return Ok(Some(line));
            }
            if self.ended {
                let rest = std::mem::take(&mut self.buffer);
                return Ok((!rest.is_empty()).then_some(rest));
            }
            self.more().await?;
        }
    }

    /// The whole answer.
    ///
    /// # Errors
    /// As [`LineReader::line`].
    pub async fn all(&mut self) -> Result<Vec<u8>, ClientError> {
        while !self.ended {
            self.more().await?;
        }
        Ok(std::mem::take(&mut self.buffer))
    }

    async fn more(&mut self) -> Result<(), ClientError> {
        match self.body.frame().await {
            None => self.ended = true,
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    if self.buffer.len() + data.len() > ANSWER_MAX {
                        return Err(ClientError::Unreachable("the answer is too long".to_owned()));
                    }
                    self.buffer.extend_from_slice(&data);
                }
            }
            Some(Err(error)) => return Err(ClientError::Unreachable(format!("it ended in the middle: {error}"))),
        }
        Ok(())
    }
}
