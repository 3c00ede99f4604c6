//! The kernel's connection table, as the sync thread uses it: events in an order that can be relied on, one dump at a
//! time, operations in batches.

use crate::os::asyncfd::AsyncDescriptor;
use crate::os::ct::{Changes, Dump, Progress, Removals, Writer};
use holdfast_statesync::ct::{Batch, DumpFilter, Entry, Event, Key, Outcome, Tuple, Zone};
use holdfast_statesync::flow::{KERNEL_WINDOW, Op, Ticket};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll};
use std::time::Instant;

/// Reads of one socket per turn, some dozens of events each.
const READS: usize = 8;
/// Turns for which removals wait for the changes before them, under a flood that never ends.
const HOLD_MAX: u32 = 8;
/// Datagrams of a dump per turn, a hundred entries each.
const DUMP_READS: usize = 4;
/// Flows that are looked up in a turn of an audit that goes by names.
const LOOK_UPS: usize = Writer::LOOK_UPS_MAX;
/// Operations written at once.
const WRITES: usize = 128;

/// What one turn has read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Something was read.
    pub(super) any: bool,
    /// What was read may be handled now.
    pub(super) ready: bool,
    /// Nothing is left unread.
    pub(super) drained: bool,
    /// Events were lost, and from here on none is any more.
    pub(super) overrun: bool,
}

/// The sockets, and what is between them and the flow side.
#[derive(Debug)]
pub(super) struct Kernel {
    changes: Changes,
    changes_ready: AsyncDescriptor,
    removals: Removals,
    removals_ready: AsyncDescriptor,
    dump: Dump,
    dumping: bool,
    /// What is left of an audit that goes by names.
    names: Option<Vec<Key>>,
    writer: Writer,
    port_id: Option<u32>,
    batch: Batch,
    /// To be written, in order; at most [`KERNEL_WINDOW`], the flow side hands out no more.
    ops: VecDeque<(Ticket, Op)>,
    /// Of the batch being written, and where in it each place of the batch stands: what can't be put isn't in it.
    results: Vec<(Ticket, Result<(), i32>)>,
    places: Vec<usize>,
    changed: Vec<Event>,
    removed: Vec<Event>,
    held: u32,
    lost: bool,
    /// Operations that did nothing, by what the kernel said.
    pub(super) refusals: BTreeMap<&'static str, u64>,
}

impl Kernel {
    /// Opens all sockets. Must be called inside a tokio runtime. `room`: bytes for unread events.
    ///
    /// # Errors
    /// In words.
    pub(super) fn open(room: usize) -> Result<Self, String> {
        let failed = |what: &'static str| move |e: io::Error| format!("{what}: {e}");
        // Before the first dump, so that nothing falls between.
        let changes = Changes::open(room).map_err(failed("events of the connection table"))?;
        let removals = Removals::open(room).map_err(failed("events of the connection table"))?;
        let writer = Writer::open().map_err(failed("writing into the connection table"))?;
        // Without this they are read, and passed over then.
        let port_id = writer.port_id().ok();
        if let Some(port) = port_id {
            let _ = changes.pass_over(port);
            let _ = removals.pass_over(port);
        }
        let registered = |fd: io::Result<std::os::fd::OwnedFd>| fd.and_then(AsyncDescriptor::new);
        let ready = failed("events of the connection table");
        Ok(Self {
            changes_ready: registered(changes.as_fd().try_clone_to_owned()).map_err(ready)?,
            removals_ready: registered(removals.as_fd().try_clone_to_owned()).map_err(ready)?,
            changes,
            removals,
            dump: Dump::open().map_err(failed("dumps of the connection table"))?,
            dumping: false,
            names: None,
            writer,
            port_id,
            batch: Batch::new(),
            ops: VecDeque::with_capacity(KERNEL_WINDOW),
            results: Vec::with_capacity(WRITES),
            places: Vec::with_capacity(WRITES),
            changed: Vec::new(),
            removed: Vec::new(),
            held: 0,
            lost: false,
            refusals: BTreeMap::new(),
        })
    }

    /// By what the kernel names our writes in events, if it says so.
    pub(super) const fn port_id(&self) -> Option<u32> {
        self.port_id
    }

    /// Reads what is there, up to a bound. A removal is ready only when all changes before it are read: it is read first,
    /// so what the flow had before its end is in the other socket by then.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> io::Result<Seen> {
        let mut seen = Seen::default();
        if self.removed.is_empty() {
            let (removals, removed) = (&mut self.removals, &mut self.removed);
            for _ in 0..READS {
                let polled = self.removals_ready.poll_drain(cx, |_| {
                    let read = removals.read(|event| removed.push(event))?;
                    Ok((read, !read.more))
                });
                let Poll::Ready(read) = polled else { break };
                seen.any |= read?.datagrams > 0;
            }
        }
        let (changes, changed) = (&mut self.changes, &mut self.changed);
        for _ in 0..READS {
            let polled = self.changes_ready.poll_drain(cx, |_| {
                let read = changes.read(|event| changed.push(event))?;
                Ok((read, !read.more))
            });
            let Poll::Ready(read) = polled else {
                seen.drained = true;
                break;
            };
            let read = read?;
            seen.any |= read.datagrams > 0 || read.overrun;
            self.lost |= read.overrun;
        }
        self.held = if seen.drained { 0 } else { self.held + 1 };
        seen.ready = seen.drained || self.held >= HOLD_MAX;
        seen.overrun = seen.drained && std::mem::take(&mut self.lost);
        Ok(seen)
    }

    /// What was read: changes at once, removals when they are ready.
    pub(super) fn take(&mut self, seen: Seen) -> (Vec<Event>, Vec<Event>) {
        let removed = if seen.ready {
            self.held = 0;
            std::mem::take(&mut self.removed)
        } else {
            Vec::new()
        };
        (std::mem::take(&mut self.changed), removed)
    }

    /// Gives the memory back.
    pub(super) fn give_back(&mut self, (mut changed, mut removed): (Vec<Event>, Vec<Event>)) {
        changed.clear();
        self.changed = changed;
        if self.removed.is_empty() {
            removed.clear();
            self.removed = removed;
        }
    }

    /// Begins a dump.
    pub(super) fn begin_dump(&mut self) -> io::Result<()> {
        if !self.is_dumping() {
            self.dump.begin(&DumpFilter::default())?;
            self.dumping = true;
        }
        Ok(())
    }

    /// Instead of a dump: looks at these only. What is in the table besides costs nothing then.
    pub(super) fn begin_look(&mut self, names: Vec<Key>) {
        if !self.is_dumping() {
            self.names = Some(names);
        }
    }

    pub(super) const fn is_dumping(&self) -> bool {
        self.dumping || self.names.is_some()
    }

    /// Goes on with it; `Some`: it is at its end, and whether it is complete.
    pub(super) fn read_dump(&mut self, mut each: impl FnMut(&Entry)) -> Option<bool> {
        if let Some(names) = &mut self.names {
            let some = names.split_off(names.len().saturating_sub(LOOK_UPS));
            let is_last = names.is_empty();
            let failed = self.writer.look_up_all(&some, each).is_err();
            if failed || is_last {
                self.names = None;
            }
            return (failed || is_last).then_some(!failed);
        }
        for _ in 0..DUMP_READS {
            let complete = match self.dump.read(&mut each) {
                Ok(Progress::More) => continue,
                Ok(Progress::Done { interrupted }) => !interrupted,
                Err(_) => false,
            };
            self.dumping = false;
            return Some(complete);
        }
        None
    }

    /// To be written.
    pub(super) fn push(&mut self, ticket: Ticket, op: Op) {
        self.ops.push_back((ticket, op));
    }

    pub(super) fn has_ops(&self) -> bool {
        !self.ops.is_empty()
    }

    /// Writes a batch, and says what came of each.
    pub(super) fn write(&mut self) -> &[(Ticket, Result<(), i32>)] {
        self.batch.clear();
        self.results.clear();
        self.places.clear();
        while self.results.len() < WRITES
            && let Some((ticket, op)) = self.ops.pop_front()
        {
            let put = match &op {
                Op::Create(replica) => self.batch.create(replica),
                Op::Update(replica) => self.batch.update(replica, false),
                Op::Delete { key, id } => self.batch.delete(&key.original, Zone::both(key.zone), *id),
            };
            match put {
                Ok(_) => {
                    self.places.push(self.results.len());
                    self.results.push((ticket, Ok(())));
                }
                Err(_) => {
                    *self.refusals.entry("malformed").or_default() += 1;
                    self.results.push((ticket, Err(libc::EINVAL)));
                }
            }
        }
        let (results, places, refusals) = (&mut self.results, &self.places, &mut self.refusals);
        let written = self.writer.write(&self.batch, |position, outcome| {
            *refusals.entry(outcome.word()).or_default() += 1;
            let place = places.get(position).and_then(|place| results.get_mut(*place));
            if let Some((_, result)) = place {
                *result = errno(outcome).map_or(Ok(()), Err);
            }
        });
        if let Err(e) = written {
            // Nothing of it was done, or that isn't known: the next audit looks.
            *refusals.entry("unwritten").or_default() += 1;
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            results.iter_mut().for_each(|(_, result)| *result = Err(errno));
        }
        &self.results
    }

    /// What it still has to write, for its successor.
    pub(super) fn take_ops(&mut self) -> VecDeque<(Ticket, Op)> {
        std::mem::take(&mut self.ops)
    }

    /// Removes these, as many as can be until then.
    pub(super) fn clear(&mut self, keys: &[Key], limit: Instant) {
        for some in keys.chunks(WRITES) {
            if Instant::now() >= limit {
                return;
            }
            self.batch.clear();
            for key in some {
                // There is room, and what was written can be named.
                let _ = self.batch.delete(&key.original, Zone::both(key.zone), None);
            }
            // Gone already is what was wanted, and nobody waits for what can't be removed.
            let _ = self.writer.write(&self.batch, |_, _| {});
        }
    }

    /// A flow that the kernel has.
    pub(super) fn look_up(&mut self, original: &Tuple, zone: Zone) -> io::Result<Option<Entry>> {
        self.writer.look_up(original, zone)
    }

    /// Events that found no room, of both sockets.
    pub(super) fn without_room(&self) -> u64 {
        u64::from(self.changes.without_room()) + u64::from(self.removals.without_room())
    }
}

/// What the flow side goes by.
const fn errno(outcome: Outcome) -> Option<i32> {
    Some(match outcome {
        Outcome::Done => return None,
        Outcome::Exists => libc::EEXIST,
        Outcome::Missing | Outcome::ReplyClash => libc::ENOENT,
        Outcome::ChainFull => libc::ENOSPC,
        Outcome::TableFull => libc::ENOMEM,
        Outcome::Retry => libc::EAGAIN,
        Outcome::Unchangeable => libc::EBUSY,
        Outcome::NotPermitted => libc::EPERM,
        Outcome::Unsupported => libc::EOPNOTSUPP,
        Outcome::Invalid(errno) | Outcome::Other(errno) => errno,
    })
}
