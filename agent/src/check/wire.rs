//! Connections: to an address or a socket of this host, with a PROXY header first and TLS around the rest.

use super::{describe, failed, proxy, refused, tls};
use holdfast_node::config::{Endpoint, ProxyVersion, Tls};
use holdfast_node::io::CheckError;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

/// What a probe talks on.
pub(super) trait Talk: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Talk for T {}

/// An open connection, and what is to be said of its certificate.
pub(super) struct Wire {
    pub(super) stream: Box<dyn Talk>,
    pub(super) note: Option<String>,
}

/// Opens a connection, or says in few words why not.
pub(super) async fn open(
    endpoint: &Endpoint,
    proxy: Option<ProxyVersion>,
    tls: Option<(&Tls, &tls::Client)>,
) -> Result<Wire, CheckError> {
    match endpoint {
        Endpoint::Ip(address) => {
            let stream = TcpStream::connect(address).await.map_err(|e| failed(&e))?;
            let local = stream.local_addr().ok();
            let met = local.is_some_and(|local| local.port() == address.port());
            // Each question to the kernel costs a system call: only who needs the answer asks.
            let peer = if met || proxy.is_some() { stream.peer_addr().ok() } else { None };
            // A target port in the ephemeral range on a local address can be met by our own SYN (simultaneous open with
            // ourselves): the connection "works" though nobody listens.
            if met && local == peer {
                return Err(refused("connection refused (met itself: nobody listens)"));
            }
            let ends = local.zip(peer);
            if proxy.is_some() || tls.is_some() {
                // More than one small write follows; Nagle has nothing to gather. A refusal changes nothing that matters.
                let _ = stream.set_nodelay(true);
            }
            Ok(dress(stream, proxy.map(|version| proxy::header(version, ends)), tls).await?)
        }
        Endpoint::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(|e| match e.kind() {
                io::ErrorKind::NotFound => refused("there is no such socket"),
                // unix(7): a full backlog doesn't wait where the socket doesn't.
                io::ErrorKind::WouldBlock => "the accept queue is full".to_owned().into(),
                _ => failed(&e),
            })?;
            Ok(dress(stream, proxy.map(|version| proxy::header(version, None)), tls).await?)
        }
    }
}

async fn dress<S: Talk + 'static>(
    mut stream: S,
    header: Option<Vec<u8>>,
    tls: Option<(&Tls, &tls::Client)>,
) -> Result<Wire, String> {
    if let Some(header) = header {
        stream.write_all(&header).await.map_err(|e| describe(&e))?;
    }
    let Some((config, client)) = tls else { return Ok(Wire { stream: Box::new(stream), note: None }) };
    let (stream, note) = client.handshake(config, stream).await?;
    Ok(Wire { stream: Box::new(stream), note })
}
