//! An HTTP probe: one request on a connection of its own, the answer read to its end.

use super::{ANSWER_MAX, Answer, CLOSED, answered, tls, wire};
use holdfast_node::config::{Http, HttpMethod};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::pin;

pub(super) async fn ask(http: &Http, client: &tls::Client) -> Answer {
    let tls = http.tls.as_ref().map(|tls| (tls, client));
    let wire::Wire { stream, note } = wire::open(&http.endpoint, http.proxy, tls).await?;
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(ANSWER_MAX)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|e| in_words(&e))?;
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
    let (status, body) = driven(connection, exchange(sender, request)).await?;
    if !http.expect.iter().any(|(low, high)| (*low..=*high).contains(&status)) {
        return Err(answered(format!("status {status}")));
    }
    match &http.body {
        Some(expected) if !expected.is_in(&body) => Err(answered(format!("\"{expected}\" isn't in the body"))),
        _ => Ok(note),
    }
}

/// Runs a connection for as long as the exchange on it takes: here, because a task of its own would have to be started,
/// woken and ended for each probe. A timeout that drops this closes the socket.
async fn driven<T>(connection: impl Future, exchange: impl Future<Output = T>) -> T {
    let (mut connection, mut exchange) = (pin!(connection), pin!(exchange));
    let mut open = true;
    poll_fn(|cx| {
        let mut over = exchange.as_mut().poll(cx);
        if open {
            // What it comes to, the exchange hears. Once that is over, this ends the connection in order.
            open = connection.as_mut().poll(cx).is_pending();
            if over.is_pending() {
                over = exchange.as_mut().poll(cx);
            }
        }
        over
    })
    .await
}

async fn exchange(
    mut sender: http1::SendRequest<Empty<Bytes>>,
    request: Request<Empty<Bytes>>,
) -> Result<(u16, Vec<u8>), String> {
    let response = sender.send_request(request).await.map_err(|e| in_words(&e))?;
    let status = response.status().as_u16();
    Ok((status, whole(response.into_body()).await?))
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
