//! An HTTP probe: one GET on a connection of its own, the answer read to its end.

use super::{describe, open};
use holdfast_node::io::{CheckError, Failure};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use tokio_util::task::AbortOnDropHandle;

/// An answer may have this many bytes; a health page that is longer isn't one.
const ANSWER_MAX: usize = 64 * 1024;

pub(super) async fn get(address: SocketAddr, host: &str, path: &str, expect: &[(u16, u16)]) -> Result<(), CheckError> {
    let stream = open(address).await?;
    // One small write follows; Nagle has nothing to gather. A refusal changes nothing that matters.
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(ANSWER_MAX)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|e| in_words(&e))?;
    // Dies with this probe, so that a timeout closes the socket too.
    let _driver = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = Request::get(path)
        .header(header::HOST, host)
        .header(header::USER_AGENT, "holdfast")
        .header(header::CONNECTION, "close")
        .body(Empty::new())
        .map_err(|e| format!("can't ask: {e}"))?;
    let response = sender.send_request(request).await.map_err(|e| in_words(&e))?;
    let status = response.status().as_u16();
    let mut body = response.into_body();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| match in_words(&e) {
            w if w == CLOSED => "connection closed within the answer".to_owned(),
            w => w,
        })?;
        length += frame.data_ref().map_or(0, Bytes::len);
        if length > ANSWER_MAX {
            return Err("answer longer than 64 KiB".to_owned().into());
        }
    }
    if expect.iter().any(|(low, high)| (*low..=*high).contains(&status)) {
        Ok(())
    } else {
        Err(CheckError { what: format!("status {status}"), how: Failure::Answered })
    }
}

const CLOSED: &str = "connection closed before the answer";

fn in_words(e: &hyper::Error) -> String {
    if e.is_parse() || e.is_parse_too_large() {
        return "not an HTTP answer".to_owned();
    }
    if e.is_incomplete_message() || e.is_closed() || e.is_canceled() {
        return CLOSED.to_owned();
    }
    match e.source().and_then(|s| s.downcast_ref::<io::Error>()) {
        Some(io) => describe(io),
        None => e.to_string(),
    }
}
