//! The worker's line to the keeper. Sending never blocks: what the keeper doesn't take waits here, in order.
//!
//! What the node says of a VIP, of BFD or of a session it says once, when it changes: none of that is ever dropped. The
//! newer takes the place of an older one that still waits.

use crate::keeper::channel::{Received, WorkerEnd};
use crate::os::asyncfd::AsyncDescriptor;
use holdfast_node::config::VIPS_MAX;
use holdfast_node::keeper::ipc::{ToKeeper, ToWorker};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// Messages that wait for a keeper that doesn't read. A configuration has no more than a record for each VIP, and far
/// fewer balancers and neighbours than the rest: what comes after is dropped and counted.
const UNSENT_MAX: usize = VIPS_MAX + 4_096;
/// Programs among them, several times what may run at once, so that none of them takes the place of a state.
const PROGRAMS_MAX: usize = 1_024;
/// How soon what waits is tried again. While nothing does, nobody wakes for it.
const RETRY: Duration = Duration::from_millis(5);

/// The line. Must be made inside a tokio runtime.
#[derive(Debug)]
pub(super) struct KeeperLink {
    end: WorkerEnd,
    ready: AsyncDescriptor,
    unsent: Unsent,
    /// Running while something waits.
    retry: Option<Pin<Box<Sleep>>>,
    /// Messages that were dropped.
    pub(super) dropped: u64,
}

impl KeeperLink {
    pub(super) fn new(end: WorkerEnd) -> io::Result<Self> {
        let ready = AsyncDescriptor::new(end.as_fd().try_clone_to_owned()?)?;
        Ok(Self { end, ready, unsent: Unsent::default(), retry: None, dropped: 0 })
    }

    /// Sends, or keeps for [`KeeperLink::flush`] (then without the descriptor, which the keeper can do without).
    pub(super) fn send(&mut self, message: ToKeeper, fd: Option<BorrowedFd<'_>>) {
        if !self.put_now(&message, fd) {
            self.keep(message, None);
        }
    }

    /// The same, and what has to wait keeps its descriptor.
    pub(super) fn send_with(&mut self, message: ToKeeper, fd: Option<OwnedFd>) {
        if !self.put_now(&message, fd.as_ref().map(AsFd::as_fd)) {
            self.keep(message, fd);
        }
    }

    /// Unless something waits, which goes first.
    fn put_now(&mut self, message: &ToKeeper, fd: Option<BorrowedFd<'_>>) -> bool {
        self.flush();
        self.unsent.is_empty() && self.put(message, fd)
    }

    fn keep(&mut self, message: ToKeeper, fd: Option<OwnedFd>) {
        // An old beat says nothing.
        if message != ToKeeper::Beat {
            self.dropped += u64::from(!self.unsent.push(message, fd));
        }
    }

    /// Sends what waits.
    pub(super) fn flush(&mut self) {
        while let Some((place, message, fd)) = self.unsent.pop() {
            if !self.put(&message, fd.as_ref().map(AsFd::as_fd)) {
                self.unsent.put_back(place, message, fd);
                return;
            }
        }
        self.retry = None;
    }

    /// Whether messages wait.
    pub(super) fn is_behind(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The next message; `None`: the keeper is gone. Sends what waits as well, and wakes the caller for it.
    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Option<ToWorker>> {
        self.poll_flush(cx);
        let end = &mut self.end;
        let received = self.ready.poll_read(cx, |_| match end.receive()? {
            Received::Message(message, _fd) => Ok(Some(message)),
            Received::Empty => Err(io::ErrorKind::WouldBlock.into()),
            Received::Closed => Ok(None),
        });
        // An error on a socket pair can't be waited out.
        received.map(|r| r.unwrap_or(None))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) {
        self.flush();
        while self.is_behind() {
            let retry = self.retry.get_or_insert_with(|| Box::pin(sleep(RETRY)));
            if retry.as_mut().poll(cx).is_pending() {
                return;
            }
            self.retry = None;
            self.flush();
        }
    }

    /// Whether it's off our hands: taken, or never to be taken.
    fn put(&mut self, message: &ToKeeper, fd: Option<BorrowedFd<'_>>) -> bool {
        match self.end.send(message, fd) {
            Ok(()) => true,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => false,
            // The system is out of memory, or the keeper has not taken the descriptors that are on their way.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM | libc::ETOOMANYREFS)) => false,
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                self.dropped += 1;
                true
            }
            // The keeper is gone: receiving says so.
            Err(_) => true,
        }
    }
}

/// What waits, in order.
#[derive(Debug, Default)]
struct Unsent {
    messages: BTreeMap<u64, (ToKeeper, Option<OwnedFd>)>,
    /// Where that is which a newer one replaces.
    places: BTreeMap<Subject, u64>,
    next: u64,
    programs: usize,
}

/// What a message is about that makes an older one about the same void.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Vip(String),
    Bfd,
    Session(String),
}

impl Subject {
    fn of(message: &ToKeeper) -> Option<Self> {
        match message {
            ToKeeper::Owner(record) => Some(Self::Vip(record.vip.clone())),
            ToKeeper::Bfd(_) => Some(Self::Bfd),
            ToKeeper::BgpSession(session) => Some(Self::Session(session.neighbor.clone())),
            ToKeeper::Hello { .. } | ToKeeper::Beat | ToKeeper::Exec { .. } | ToKeeper::Stopped => None,
            ToKeeper::StartBalancer { .. } | ToKeeper::StopBalancer { .. } | ToKeeper::Replace => None,
        }
    }
}

impl Unsent {
    fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// False: there is no room for it.
    fn push(&mut self, message: ToKeeper, fd: Option<OwnedFd>) -> bool {
        let subject = Subject::of(&message);
        // At the end: what was said of others in between must not come after it.
        if let Some(older) = subject.as_ref().and_then(|subject| self.places.remove(subject)) {
            self.messages.remove(&older);
        }
        let program = matches!(message, ToKeeper::Exec { .. });
        if self.messages.len() >= UNSENT_MAX || program && self.programs >= PROGRAMS_MAX {
            return false;
        }
        self.programs += usize::from(program);
        if let Some(subject) = subject {
            self.places.insert(subject, self.next);
        }
        self.messages.insert(self.next, (message, fd));
        self.next += 1;
        true
    }

    /// The first one, and its place.
    fn pop(&mut self) -> Option<(u64, ToKeeper, Option<OwnedFd>)> {
        let (place, (message, fd)) = self.messages.pop_first()?;
        self.programs -= usize::from(matches!(message, ToKeeper::Exec { .. }));
        if let Some(subject) = Subject::of(&message) {
            self.places.remove(&subject);
        }
        Some((place, message, fd))
    }

    /// It could not be sent.
    fn put_back(&mut self, place: u64, message: ToKeeper, fd: Option<OwnedFd>) {
        self.programs += usize::from(matches!(message, ToKeeper::Exec { .. }));
        if let Some(subject) = Subject::of(&message) {
            self.places.insert(subject, place);
        }
        self.messages.insert(place, (message, fd));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::channel::{End, KeeperEnd};
    use crate::os::fdpass;
    use holdfast_node::keeper::ipc::{BgpSession, VipRecord};
    use std::future::poll_fn;
    use std::io::Read;

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

    fn fill(link: &mut KeeperLink) -> usize {
        let mut filled = 0;
        while !link.is_behind() {
            link.send(ToKeeper::StopBalancer { name: "x".repeat(4_000) }, None);
            filled += 1;
        }
        filled
    }

    fn session(neighbor: &str, active: bool) -> ToKeeper {
        ToKeeper::BgpSession(BgpSession {
            neighbor: neighbor.to_owned(),
            hold: Duration::from_secs(9),
            restart: None,
            farewell: Vec::new(),
            active,
        })
    }

    /// Everything that waits, without what filled the line.
    fn all(keeper: &mut KeeperEnd, link: &mut KeeperLink) -> Vec<(ToKeeper, Option<OwnedFd>)> {
        let mut all = Vec::new();
        loop {
            link.flush();
            match keeper.receive().expect("open") {
                Received::Message(ToKeeper::StopBalancer { .. }, _) => {}
                Received::Message(message, fd) => all.push((message, fd)),
                Received::Empty if !link.is_behind() => return all,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Each of these is said once.
    #[tokio::test]
    async fn as_many_records_as_a_configuration_has_vips_wait_and_no_state_is_lost() {
        let (mut keeper, mut link) = ends();
        fill(&mut link);
        link.send(ToKeeper::Bfd(Vec::new()), None);
        link.send(session("r1", false), None);
        let exec = |token| ToKeeper::Exec { token, argv: vec![], environment: vec![], timeout: Duration::ZERO };
        for n in 0..VIPS_MAX as u64 {
            link.send(record(&n.to_string(), 1), None);
            link.send(exec(n), None);
        }
        for n in 0..VIPS_MAX {
            link.send(record(&n.to_string(), 2), None);
        }
        let got = all(&mut keeper, &mut link);
        assert_eq!((got[0].0.clone(), got[1].0.clone()), (ToKeeper::Bfd(Vec::new()), session("r1", false)));
        let epochs: Vec<u64> = got
            .iter()
            .filter_map(|(message, _)| match message {
                ToKeeper::Owner(record) => Some(record.role_epoch),
                _ => None,
            })
            .collect();
        assert_eq!(epochs, vec![2; VIPS_MAX]);
        let programs = got.iter().filter(|(message, _)| matches!(message, ToKeeper::Exec { .. })).count();
        assert_eq!((programs, link.dropped), (PROGRAMS_MAX, (VIPS_MAX - PROGRAMS_MAX) as u64));
    }

    #[tokio::test]
    async fn of_bfd_and_of_a_session_the_last_word_is_what_waits() {
        let (mut keeper, mut link) = ends();
        fill(&mut link);
        for _ in 0..3 {
            link.send(ToKeeper::Bfd(Vec::new()), None);
            link.send(session("r1", true), None);
            link.send(session("r2", true), None);
            link.send(session("r1", false), None);
        }
        let got: Vec<_> = all(&mut keeper, &mut link).into_iter().map(|(message, _)| message).collect();
        assert_eq!(got, [ToKeeper::Bfd(Vec::new()), session("r2", true), session("r1", false)]);
    }

    #[tokio::test]
    async fn a_session_that_has_to_wait_brings_its_socket() {
        let (mut keeper, mut link) = ends();
        fill(&mut link);
        for text in ["the first one", "its successor"] {
            let (socket, mut writer) = std::io::pipe().expect("a pipe");
            std::io::Write::write_all(&mut writer, text.as_bytes()).expect("written");
            link.send_with(session("r1", true), Some(socket.into()));
        }
        let (message, fd) = all(&mut keeper, &mut link).pop().expect("it waited");
        assert_eq!(message, session("r1", true));
        let mut text = String::new();
        std::fs::File::from(fd.expect("with its socket")).read_to_string(&mut text).expect("readable");
        assert_eq!(text, "its successor");
    }

    /// Nothing more is said, and nothing comes.
    #[tokio::test]
    async fn what_waits_goes_as_soon_as_the_keeper_reads_again() {
        let (mut keeper, mut link) = ends();
        fill(&mut link);
        link.send(record("web", 1), None);
        let received = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            loop {
                match keeper.receive().expect("open") {
                    Received::Message(ToKeeper::Owner(record), _) => return record.role_epoch,
                    Received::Message(..) => {}
                    Received::Empty => std::thread::sleep(Duration::from_millis(1)),
                    Received::Closed => panic!("the worker is gone"),
                }
            }
        });
        let waiting = poll_fn(|cx| link.poll_receive(cx));
        let gone = tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it went, and the keeper left");
        assert_eq!((gone, received.join().expect("no panic")), (None, 1));
    }
}
