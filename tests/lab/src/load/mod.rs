//! The clients. All are open loop: what they send is set by the clock alone, never by what came back, because a
//! client that waits for an answer hides an outage.

pub mod fresh;
pub mod long;
pub mod udp;

use crate::clock::{Ns, SECOND};
use anyhow::{Context, Result};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use socket2::{Protocol, SockAddr, Socket, Type};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::JoinHandle;

/// A thread with a stop flag; dropping it stops and joins.
#[derive(Debug)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    tid: Arc<AtomicI32>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Stopper {
    /// Starts `f` on its own thread; it must return soon after its argument says true.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn spawn(label: &str, f: impl FnOnce(&dyn Fn() -> bool) -> Result<()> + Send + 'static) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let tid = Arc::new(AtomicI32::new(0));
        let (flag, id) = (stop.clone(), tid.clone());
        let thread = std::thread::Builder::new()
            .name(label.chars().take(15).collect())
            .spawn(move || {
                id.store(crate::process::thread_id(), Ordering::Release);
                f(&|| flag.load(Ordering::Acquire))
            })
            .with_context(|| format!("start thread {label}"))?;
        while tid.load(Ordering::Acquire) == 0 && !thread.is_finished() {
            std::thread::yield_now();
        }
        Ok(Self { stop, tid, thread: Some(thread) })
    }

    /// The thread's id.
    #[must_use]
    pub fn thread(&self) -> i32 {
        self.tid.load(Ordering::Acquire)
    }

    /// Stops, waits, and says how the thread ended.
    ///
    /// # Errors
    /// What the thread returned, or that it panicked.
    pub fn finish(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Release);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(r)) => r,
            Some(Err(_)) => anyhow::bail!("a measuring thread panicked"),
            None => Ok(()),
        }
    }
}

impl Drop for Stopper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(t) = self.thread.take() {
            let _ended = t.join();
        }
    }
}

/// Takes a socket out of an epoll set before it is closed. Closing alone does so only when nobody else has the socket,
/// and a child that was forked and hasn't got to its program yet has all of them: until then the set would wake a thread
/// of real-time priority for a socket that it doesn't know any more, again and again, and that child would never run.
pub fn forget(set: impl AsFd, socket: impl AsFd) {
    // One that was never in it needs nothing.
    let _absent = epoll::delete(set, socket);
}

/// Begins a TCP connection that `set` watches under `key`, for being readable and for being established.
pub(crate) fn connect(to: &SockAddr, set: impl AsFd, key: u64) -> std::io::Result<Socket> {
    let s = Socket::new(to.domain(), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    s.set_tcp_nodelay(true)?;
    match s.connect(to) {
        Ok(()) => {}
        Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(e) => return Err(e),
    }
    epoll::add(set, &s, epoll::EventData::new_u64(key), epoll::EventFlags::IN | epoll::EventFlags::OUT)?;
    Ok(s)
}

/// Waits up to `limit` for what `set` watches; `events` has only what came now.
pub(crate) fn wait(set: impl AsFd, events: &mut Vec<epoll::Event>, limit: Ns) -> Result<()> {
    let limit = Timespec { tv_sec: (limit / SECOND) as i64, tv_nsec: (limit % SECOND) as i64 };
    events.clear();
    match epoll::wait(set, spare_capacity(events), Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e).context("epoll wait"),
    }
}

/// What a complete HTTP response was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// Not complete yet.
    Partial,
    /// Complete: status, which load balancer (from 0; 255 unknown), bytes used.
    Complete(u16, u8, usize),
    /// Not HTTP.
    Garbage,
}

/// Reads one response with a Content-Length from the front of `b`.
#[must_use]
pub fn parse_response(b: &[u8]) -> Response {
    let Some(end) = crate::responder::find(b, b"\r\n\r\n") else {
        return if b.len() > 16_384 { Response::Garbage } else { Response::Partial };
    };
    let Some(head) = b.get(..end).and_then(|h| std::str::from_utf8(h).ok()) else { return Response::Garbage };
    let mut lines = head.split("\r\n");
    let Some(status) = lines.next().and_then(|l| l.strip_prefix("HTTP/1.")).and_then(|l| l.get(2..5)?.parse().ok())
    else {
        return Response::Garbage;
    };
    let (mut length, mut node) = (0_usize, u8::MAX);
    for (name, value) in lines.filter_map(|l| l.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            let Ok(n) = value.parse() else { return Response::Garbage };
            length = n;
        } else if name.eq_ignore_ascii_case("x-lb") {
            let number = value.strip_prefix("lb").and_then(|n| n.parse::<u8>().ok());
            node = number.and_then(|n| n.checked_sub(1)).unwrap_or(u8::MAX);
        }
    }
    let total = (end + 4).saturating_add(length);
    if b.len() < total { Response::Partial } else { Response::Complete(status, node, total) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_was_forgotten_wakes_nobody_though_another_still_has_it() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        let child = ours.try_clone().expect("as a fork has it");
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll set");
        epoll::add(&set, &ours, epoll::EventData::new_u64(1), epoll::EventFlags::IN).expect("added");
        drop(theirs);
        let woken = || {
            let mut events = Vec::with_capacity(4);
            wait(&set, &mut events, 0).expect("a look");
            events.len()
        };
        assert_eq!(woken(), 1);
        forget(&set, &ours);
        drop(ours);
        assert_eq!(woken(), 0);
        drop(child);
    }

    #[test]
    fn a_response_counts_only_when_its_whole_body_is_there() {
        let r = b"HTTP/1.1 200 OK\r\nx-lb: lb2\r\ncontent-length: 3\r\n\r\nb1\n";
        for n in 0..r.len() {
            assert_eq!(parse_response(&r[..n]), Response::Partial, "{n}");
        }
        assert_eq!(parse_response(r), Response::Complete(200, 1, r.len()));
        assert_eq!(parse_response(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"), Response::Complete(503, 255, 38));
        assert_eq!(parse_response(b"SSH-2.0\r\n\r\n"), Response::Garbage);
        assert_eq!(parse_response(b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"), Response::Garbage);
    }
}
