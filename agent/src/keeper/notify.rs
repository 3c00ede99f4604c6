//! What the service manager is told. Never blocks: a manager that doesn't read must not stop the keeper.

use sd_notify::NotifyState;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// The manager's socket, and when it wants to be pinged.
#[derive(Debug, Default)]
pub(super) struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Half of what the manager allows.
    every: Option<Duration>,
    next: Option<Instant>,
}

impl Manager {
    /// As the environment says (NOTIFY_SOCKET, WATCHDOG_USEC).
    pub(super) fn from_environment(now: Instant) -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|path| open(path.as_bytes()).ok());
        let every = sd_notify::watchdog_enabled().filter(|_| socket.is_some()).map(|limit| limit / 2);
        Self { socket, every, next: every.map(|_| now) }
    }

    pub(super) fn tell(&self, state: &NotifyState<'_>) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(state.to_string().as_bytes(), address);
        }
    }

    /// Pings when it is time to.
    pub(super) fn ping(&mut self, now: Instant) {
        if let (Some(every), Some(next)) = (self.every, self.next)
            && next <= now
        {
            self.tell(&NotifyState::Watchdog);
            self.next = Some(now + every);
        }
    }

    /// When [`Self::ping`] is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }
}

fn open(path: &[u8]) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match path.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abstract_socket_gets_the_states_and_a_ping_when_it_is_due() {
        let name = format!("holdfast-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("an address");
        let receiver = UnixDatagram::bind_addr(&address).expect("bound");
        receiver.set_nonblocking(true).expect("set");
        let now = Instant::now();
        let socket = Some(open(format!("@{name}").as_bytes()).expect("opened"));
        let mut manager = Manager { socket, every: Some(Duration::from_secs(1)), next: Some(now) };
        let mut buffer = [0; 64];
        let mut heard = || receiver.recv(&mut buffer).map(|n| String::from_utf8_lossy(&buffer[..n]).into_owned()).ok();
        manager.tell(&NotifyState::Ready);
        assert_eq!(heard().as_deref(), Some("READY=1"));
        manager.ping(now);
        manager.ping(now + Duration::from_millis(999));
        assert_eq!((heard().as_deref(), heard()), (Some("WATCHDOG=1"), None));
        manager.ping(now + Duration::from_secs(1));
        assert_eq!(heard().as_deref(), Some("WATCHDOG=1"));
    }
}
