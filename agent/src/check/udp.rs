//! A question in one datagram, and the answer to it.

use super::{answered, describe, dialogue, refused};
use holdfast_node::config::Datagram;
use holdfast_node::io::CheckError;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::UdpSocket;

/// How often it is asked within the timeout: one lost datagram is no dead server.
const TRIES: u32 = 3;
/// Longest answer: all that UDP carries.
const LONGEST: usize = 65_536;

/// Without an answer it goes on waiting: the caller ends it.
pub(super) async fn ask(datagram: &Datagram, timeout: Duration) -> Result<(), CheckError> {
    let own: SocketAddr = match datagram.address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(own).await.map_err(|e| describe(&e))?;
    // Connected: answers of others are not seen, and a port that is closed says so.
    socket.connect(datagram.address).await.map_err(|e| describe(&e))?;
    let mut buffer = vec![0; LONGEST];
    for _ in 0..TRIES {
        socket.send(datagram.send.bytes()).await.map_err(unheard)?;
        let Ok(read) = tokio::time::timeout(timeout / TRIES, socket.recv(&mut buffer)).await else { continue };
        return heard(datagram, buffer.get(..read.map_err(unheard)?).unwrap_or_default());
    }
    std::future::pending().await
}

fn heard(datagram: &Datagram, answer: &[u8]) -> Result<(), CheckError> {
    match &datagram.expect {
        Some(expect) if !expect.is_in(answer) => Err(answered(dialogue::other(answer))),
        _ => Ok(()),
    }
}

/// ICMP's port unreachable comes as a refusal.
fn unheard(e: io::Error) -> CheckError {
    match e.kind() {
        io::ErrorKind::ConnectionRefused => refused("port unreachable"),
        _ => describe(&e).into(),
    }
}
