//! A connection on which little or nothing is said: `tcp`, `tls`, `unix`. It is closed in order, since a reset would
//! show up in the target's log as a fault.

use super::{ANSWER_MAX, Answer, CLOSED, answered, describe, tls, wire};
use holdfast_node::config::{Payload, Stream};
use holdfast_node::io::CheckError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Bytes of a wrong answer that are shown.
const SHOWN: usize = 40;

pub(super) async fn hold(stream: &Stream, client: &tls::Client) -> Answer {
    let tls = stream.tls.as_ref().map(|tls| (tls, client));
    let wire::Wire { stream: mut wire, note } = wire::open(&stream.endpoint, stream.proxy, tls).await?;
    if let Some(send) = &stream.send {
        wire.write_all(send.bytes()).await.map_err(|e| describe(&e))?;
        wire.flush().await.map_err(|e| describe(&e))?;
    }
    if let Some(expect) = &stream.expect {
        hear(&mut *wire, expect).await?;
    }
    // With TLS its own goodbye first. The answer is there, so how this ends is of no interest.
    let _ = wire.shutdown().await;
    Ok(note)
}

/// Reads until what is expected is there.
async fn hear(wire: &mut (dyn wire::Talk + 'static), expect: &Payload) -> Result<(), CheckError> {
    let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let read = wire.read(&mut buffer).await.map_err(|e| describe(&e))?;
        let new = buffer.get(..read).unwrap_or_default();
        if new.is_empty() {
            return Err(if heard.is_empty() { CLOSED.to_owned().into() } else { answered(other(&heard)) });
        }
        // Only where the expected could end in what is new.
        let from = heard.len().saturating_sub(expect.bytes().len());
        heard.extend_from_slice(new);
        if expect.is_in(heard.get(from..).unwrap_or_default()) {
            return Ok(());
        }
        if heard.len() > ANSWER_MAX {
            return Err("answer longer than 64 KiB".to_owned().into());
        }
    }
}

/// `another answer: "-ERR\r\n"`.
pub(super) fn other(heard: &[u8]) -> String {
    let more = if heard.len() > SHOWN { "…" } else { "" };
    format!("another answer: \"{}{more}\"", heard.get(..SHOWN).unwrap_or(heard).escape_ascii())
}
