//! A small TCP forwarder, the balancer of last resort: round robin, no health checks, no policy.

use anyhow::{Context, Result};
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpStream};

/// Connections at once; beyond it new ones wait in the kernel's backlog.
const CONNECTIONS_MAX: usize = 4096;

/// Forwards every connection on `listen` to the next of `backends`, until killed.
///
/// # Errors
/// The listener.
pub fn run(listen: SocketAddr, backends: &[SocketAddr]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).await.with_context(|| format!("listen on {listen}"))?;
        let room = std::sync::Arc::new(tokio::sync::Semaphore::new(CONNECTIONS_MAX));
        let mut next = backends.iter().copied().cycle();
        loop {
            let permit = room.clone().acquire_owned().await?;
            let (mut client, _) = match listener.accept().await {
                Ok(c) => c,
                Err(_) => {
                    // Out of descriptors, say: give it a moment instead of spinning.
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                    continue;
                }
            };
            let backend = next.next().context("clap asks for at least one backend")?;
            tokio::spawn(async move {
                if let Ok(mut server) = TcpStream::connect(backend).await {
                    let _nodelay = (client.set_nodelay(true), server.set_nodelay(true));
                    let _ended = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                }
                drop(permit);
            });
        }
    })
}
