//! An HTTP probe: one request on a connection of its own, the answer read to its end.

use super::{ANSWER_MAX, Answer, CLOSED, answered, tls, wire};
use holdfast_node::config::{Http, HttpMethod};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::io;
use tokio_util::task::AbortOnDropHandle;

pub(super) async fn ask(http: &Http, client: &tls::Client) -> Answer {
    let tls = http.tls.as_ref().map(|tls| (tls, client));
    let wire::Wire { stream, note } = wire::open(&http.endpoint, http.proxy, tls).await?;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(ANSWER_MAX)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|e| in_words(&e))?;
    // Dies with this probe, so that a timeout closes the socket too.
    let _driver = AbortOnDropHandle::new(tokio::spawn(connection));
    let method = match http.method {
        HttpMethod::Get => Method::GET,
        HttpMethod::Head => Method::HEAD,
        HttpMethod::Options => Method::OPTIONS,
    };
    let request = Request::builder()
        .method(method)
        .uri(http.path.as_str())
        .header(header::HOST, http.host.as_str())
        .header(header::USER_AGENT, "holdfast")
        .header(header::CONNECTION, "close")
        .body(Empty::new())
        .map_err(|e| format!("can't ask: {e}"))?;
    let response = sender.send_request(request).await.map_err(|e| in_words(&e))?;
    let status = response.status().as_u16();
    let body = whole(response.into_body()).await?;
    if !http.expect.iter().any(|(low, high)| (*low..=*high).contains(&status)) {
        return Err(answered(format!("status {status}")));
    }
    match &http.body {
        Some(expected) if !expected.is_in(&body) => Err(answered(format!("\"{expected}\" isn't in the body"))),
        _ => Ok(note),
    }
}

/// All of it, as far as that is allowed.
async fn whole(mut body: Incoming) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| match in_words(&e) {
            w if w == CLOSED => "connection closed within the answer".to_owned(),
            w => w,
        })?;
        all.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        if all.len() > ANSWER_MAX {
            return Err("answer longer than 64 KiB".to_owned());
        }
    }
    Ok(all)
}

fn in_words(e: &hyper::Error) -> String {
    if e.is_parse() || e.is_parse_too_large() {
        return "not an HTTP answer".to_owned();
    }
    if e.is_incomplete_message() || e.is_closed() || e.is_canceled() {
        return CLOSED.to_owned();
    }
    match e.source().and_then(|s| s.downcast_ref::<io::Error>()) {
        Some(io) => tls::in_words(io),
        None => e.to_string(),
    }
}
