//! The worker's line to the keeper. Sending never blocks: what the keeper doesn't take waits here, in order.

use crate::keeper::channel::{Received, WorkerEnd};
use crate::os::asyncfd::AsyncDescriptor;
use holdfast_node::keeper::ipc::{ToKeeper, ToWorker};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};

/// Messages that wait for a keeper that doesn't read. Full → the oldest is dropped and counted; a VIP's record
/// replaces the one before, so records don't pile up.
const UNSENT_MAX: usize = 1_024;

/// The line. Must be made inside a tokio runtime.
#[derive(Debug)]
pub(super) struct KeeperLink {
    end: WorkerEnd,
    ready: AsyncDescriptor,
    unsent: VecDeque<ToKeeper>,
    /// Messages that were dropped.
    pub(super) dropped: u64,
}

impl KeeperLink {
    pub(super) fn new(end: WorkerEnd) -> io::Result<Self> {
        let ready = AsyncDescriptor::new(end.as_fd().try_clone_to_owned()?)?;
        Ok(Self { end, ready, unsent: VecDeque::new(), dropped: 0 })
    }

    /// Sends, or keeps for [`KeeperLink::flush`] (then without the descriptor, which the keeper can do without).
    pub(super) fn send(&mut self, message: ToKeeper, fd: Option<BorrowedFd<'_>>) {
        self.flush();
        if self.unsent.is_empty() && self.put(&message, fd) {
            return;
        }
        match &message {
            // An old beat says nothing.
            ToKeeper::Beat => return,
            ToKeeper::Owner(new) => {
                self.unsent.retain(|m| !matches!(m, ToKeeper::Owner(old) if old.vip == new.vip));
            }
            _ => {}
        }
        if self.unsent.len() >= UNSENT_MAX {
            self.unsent.pop_front();
            self.dropped += 1;
        }
        self.unsent.push_back(message);
    }

    /// Sends what waits.
    pub(super) fn flush(&mut self) {
        while let Some(message) = self.unsent.pop_front() {
            if !self.put(&message, None) {
                self.unsent.push_front(message);
                return;
            }
        }
    }

    /// Whether messages wait.
    pub(super) fn is_behind(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The next message; `None`: the keeper is gone.
    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Option<ToWorker>> {
        let end = &mut self.end;
        let received = self.ready.poll_read(cx, |_| match end.receive()? {
            Received::Message(message, _fd) => Ok(Some(message)),
            Received::Empty => Err(io::ErrorKind::WouldBlock.into()),
            Received::Closed => Ok(None),
        });
        // An error on a socket pair can't be waited out.
        received.map(|r| r.unwrap_or(None))
    }

    /// Whether it's off our hands: taken, or never to be taken.
    fn put(&mut self, message: &ToKeeper, fd: Option<BorrowedFd<'_>>) -> bool {
        match self.end.send(message, fd) {
            Ok(()) => true,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => false,
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                self.dropped += 1;
                true
            }
            // The keeper is gone: receiving says so.
            Err(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::channel::{End, KeeperEnd};
    use crate::os::fdpass;
    use holdfast_node::keeper::ipc::VipRecord;
    use std::future::poll_fn;
    use std::time::Duration;

    fn ends() -> (KeeperEnd, KeeperLink) {
        let (a, b) = fdpass::pair().expect("sockets");
        (End::new(a), KeeperLink::new(End::new(b)).expect("registered"))
    }

    fn record(vip: &str, role_epoch: u64) -> ToKeeper {
        ToKeeper::Owner(VipRecord {
            vip: vip.to_owned(),
            active: true,
            role_epoch,
            undo: Vec::new(),
            resign: vec![],
            interval: Duration::from_millis(100),
            balancers: vec![],
            pseudo_header: vec![],
            bgp: None,
        })
    }

    #[tokio::test]
    async fn what_the_keeper_does_not_read_waits_in_order_and_records_replace_each_other() {
        let (mut keeper, mut link) = ends();
        let mut filled = 0_u64;
        while !link.is_behind() {
            link.send(ToKeeper::StopBalancer { name: "x".repeat(4_000) }, None);
            filled += 1;
        }
        for epoch in 1..=5 {
            link.send(record("web", epoch), None);
            link.send(record("mail", epoch), None);
            link.send(ToKeeper::Beat, None);
        }
        let mut records = Vec::new();
        let mut stops = 0;
        for _ in 0..filled + 2 {
            link.flush();
            match keeper.receive().expect("open") {
                Received::Message(ToKeeper::Owner(r), _) => records.push((r.vip, r.role_epoch)),
                Received::Message(ToKeeper::StopBalancer { .. }, _) => stops += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(stops, filled);
        assert_eq!(records, [("web".to_owned(), 5), ("mail".to_owned(), 5)]);
        assert!(!link.is_behind() && link.dropped == 0);
    }

    #[tokio::test]
    async fn the_keepers_end_is_seen_after_its_last_message() {
        let (keeper, mut link) = ends();
        keeper.send(&ToWorker::Reload, None).expect("sent");
        drop(keeper);
        assert_eq!(poll_fn(|cx| link.poll_receive(cx)).await, Some(ToWorker::Reload));
        assert_eq!(poll_fn(|cx| link.poll_receive(cx)).await, None);
        link.send(ToKeeper::Beat, None);
        assert!(!link.is_behind());
    }
}
