//! The two ends of the keeper's socket pair, with messages instead of bytes.

use crate::os::fdpass;
use holdfast_node::keeper::ipc::{MESSAGE_MAX, ToKeeper, ToWorker};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The worker's end: sends [`ToKeeper`], receives [`ToWorker`]. Non-blocking; wait for it by its descriptor.
pub type WorkerEnd = End<ToKeeper, ToWorker>;
/// The keeper's end: sends [`ToWorker`], receives [`ToKeeper`].
pub type KeeperEnd = End<ToWorker, ToKeeper>;

/// One end of the pair.
#[derive(Debug)]
pub struct End<Out, In> {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// Packets that didn't decode, since the start.
    garbled: u64,
    direction: PhantomData<fn(Out) -> In>,
}

/// What [`End::receive`] found.
#[derive(Debug)]
pub enum Received<In> {
    /// A message, and the descriptor that came with it.
    Message(In, Option<OwnedFd>),
    /// Nothing more at the moment.
    Empty,
    /// The other end is closed: its process is gone or about to be.
    Closed,
}

impl<Out: Serialize, In: DeserializeOwned> End<Out, In> {
    /// Takes the socket: one of [`fdpass::pair`], or in the worker the descriptor named by `--ipc-fd`.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, buffer: vec![0; MESSAGE_MAX], garbled: 0, direction: PhantomData }
    }

    /// Sends one message.
    ///
    /// # Errors
    /// `WouldBlock`: the other end doesn't read; `InvalidInput`: the message is longer than [`MESSAGE_MAX`];
    /// anything else: the other end is gone.
    pub fn send(&self, message: &Out, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let bytes = postcard::to_stdvec(message).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        if bytes.len() > MESSAGE_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "message too long"));
        }
        fdpass::send(self.socket.as_fd(), &bytes, fd)
    }

    /// Receives one message. Packets that don't decode are skipped and counted.
    ///
    /// # Errors
    /// What the system says, but for "nothing there" and "closed".
    pub fn receive(&mut self) -> io::Result<Received<In>> {
        loop {
            let got = match fdpass::receive(self.socket.as_fd(), &mut self.buffer) {
                Ok(got) => got,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(Received::Empty),
                    io::ErrorKind::Interrupted => continue,
                    io::ErrorKind::ConnectionReset => return Ok(Received::Closed),
                    _ => return Err(error),
                },
            };
            if got.len == 0 {
                return Ok(Received::Closed);
            }
            let packet = self.buffer.get(..got.len).unwrap_or_default();
            match postcard::from_bytes(packet) {
                Ok(message) if !got.truncated => return Ok(Received::Message(message, got.fd)),
                _ => self.garbled = self.garbled.saturating_add(1),
            }
        }
    }

    /// Packets that didn't decode, since the start.
    pub fn garbled(&self) -> u64 {
        self.garbled
    }
}

impl<Out, In> AsFd for End<Out, In> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<Out, In> std::os::fd::AsRawFd for End<Out, In> {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_node::config::VIPS_MAX;
    use holdfast_node::keeper::ipc::{BgpGrace, VipRecord};
    use holdfast_node::keeper::{Found, Input, Keeper, Options, Output, Process};
    use std::time::{Duration, Instant};

    fn ends() -> (KeeperEnd, WorkerEnd) {
        let (a, b) = fdpass::pair().expect("sockets");
        (End::new(a), End::new(b))
    }

    #[test]
    fn messages_arrive_in_order_and_the_close_comes_last() {
        let (mut keeper, worker) = ends();
        let hello =
            ToKeeper::Hello { hang_limit: Duration::from_millis(300), resume_limit: Duration::from_millis(200) };
        worker.send(&hello, None).expect("sent");
        worker.send(&ToKeeper::Beat, None).expect("sent");
        drop(worker);
        assert!(matches!(keeper.receive(), Ok(Received::Message(first, None)) if first == hello));
        assert!(matches!(keeper.receive(), Ok(Received::Message(ToKeeper::Beat, None))));
        assert!(matches!(keeper.receive(), Ok(Received::Closed)));
    }

    #[test]
    fn garbage_is_skipped_and_counted() {
        let (mut keeper, worker) = ends();
        fdpass::send(worker.as_fd(), &[0xff; 9], None).expect("sent");
        worker.send(&ToKeeper::Beat, None).expect("sent");
        assert!(matches!(keeper.receive(), Ok(Received::Message(ToKeeper::Beat, None))));
        assert_eq!(keeper.garbled(), 1);
        assert!(matches!(keeper.receive(), Ok(Received::Empty)));
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_by_the_sender() {
        let (_keeper, worker) = ends();
        let long = ToKeeper::StopBalancer { name: "x".repeat(MESSAGE_MAX) };
        assert_eq!(worker.send(&long, None).expect_err("too long").kind(), io::ErrorKind::InvalidInput);
    }

    /// A packet that is too long is never sent, and a worker that isn't answered takes nothing.
    #[test]
    fn a_new_worker_is_told_of_all_that_a_configuration_may_have_held() {
        let now = Instant::now();
        let mut machine = Keeper::new(now, Options { stop_deadline: Duration::ZERO, seed: 1 }, Found::default());
        let hello = ToKeeper::Hello { hang_limit: Duration::ZERO, resume_limit: Duration::MAX };
        let spawned = |pid| Input::WorkerSpawned(Process { pid, start_time: 1 });
        let name = |n: usize| format!("{n:0>63}");
        let record = |n| VipRecord {
            vip: name(n),
            active: true,
            role_epoch: u64::MAX,
            undo: vec![],
            resign: vec![],
            interval: Duration::from_secs(1),
            balancers: vec![],
            pseudo_header: vec![(u16::MAX, true); 8],
            bgp: Some(BgpGrace { grace: Duration::from_secs(60) }),
        };
        machine.handle(now, spawned(1));
        machine.handle(now, Input::Worker(hello.clone()));
        (0..VIPS_MAX).for_each(|n| machine.handle(now, Input::Worker(ToKeeper::Owner(record(n)))));
        machine.handle(now, Input::WorkerExited { what: String::new() });
        while machine.poll_output().is_some() {}
        machine.handle(now, spawned(2));
        machine.handle(now, Input::Worker(hello));
        let (keeper, mut worker): (KeeperEnd, WorkerEnd) = ends();
        let (mut resume, mut learnt, mut booted) = (Vec::new(), Vec::new(), false);
        while let Some(output) = machine.poll_output() {
            let Output::SendToWorker(message) = output else { continue };
            keeper.send(&message, None).expect("it fits");
            let Ok(Received::Message(
                ToWorker::Held { resume: r, pseudo_header: p } | ToWorker::Boot { resume: r, pseudo_header: p, .. },
                _,
            )) = worker.receive()
            else {
                panic!("{message:?}")
            };
            assert!(!booted, "that comes last");
            booted = matches!(message, ToWorker::Boot { .. });
            resume.extend(r);
            learnt.extend(p);
        }
        assert!(booted);
        assert_eq!(resume, (0..VIPS_MAX).map(|n| (name(n), u64::MAX)).collect::<Vec<_>>());
        assert_eq!(learnt, (0..VIPS_MAX).map(|n| (name(n), record(n).pseudo_header)).collect::<Vec<_>>());
    }
}
