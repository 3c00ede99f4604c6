//! Executes the node's steps: the only place that changes the kernel while a worker lives.
//!
//! What this module refuses to do: decide, retry, or remember what should be. A step that fails is reported, and the
//! node, which compares with what the kernel says it has, asks again.

mod extras;
mod filter;
mod thread;

use crate::os::addr::{AddressSocket, Wanted, step_error};
use crate::os::announce::Announcer;
use crate::os::ct;
use crate::os::link;
use crate::os::vrrp::{Batch, Family, Receiver, Sender};
use extras::Extras;
use filter::Desk;
pub use filter::Heard;
use holdfast_node::io::{Link, SocketKey, Step, StepError};
use holdfast_node::pool::Cut;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::task::{Context, Poll};
use thread::Thread;

/// How many steps were done and how many failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps that succeeded.
    pub done: u64,
    /// Steps that failed.
    pub failed: u64,
    /// Of those that succeeded: additions and refreshes of addresses.
    pub added: u64,
    /// Of those that succeeded: removals of addresses.
    pub removed: u64,
    /// Of those that succeeded: announcements.
    pub announced: u64,
}

/// A pair of VRRP sockets.
#[derive(Debug, Clone)]
pub struct VrrpSockets {
    /// Receives.
    pub receiver: Arc<Receiver>,
    /// Sends; the keeper gets a duplicate.
    pub sender: Arc<Sender>,
    /// The interface's MTU when the membership was last looked at.
    mtu: Option<u32>,
}

/// The thread that forgets flows: what it is asked for, what it answers.
type Forgetting = Thread<Arc<Cut>, (Step, Result<(), StepError>)>;

/// Owns the sockets through which the kernel is changed, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Executor {
    addresses: AddressSocket,
    announcer: Announcer,
    vrrp: BTreeMap<SocketKey, VrrpSockets>,
    /// Which socket was read last: the next [`Executor::poll_recv`] starts after it, so that none starves another.
    turn: Option<SocketKey>,
    extras: Extras,
    /// Started by the first change to the packet filter.
    filter: Option<Desk>,
    /// Started by the first flows to be forgotten.
    flows: Option<Forgetting>,
    /// Steps that were done at once, of those that are answered by [`Self::poll_later`]. The node waits for each of them
    /// before it asks for another.
    at_once: VecDeque<Step>,
    counters: Counters,
}

impl Executor {
    /// Opens the address socket; needs CAP_NET_ADMIN and CAP_NET_RAW from here on.
    ///
    /// # Errors
    /// Whatever the system says about the socket.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            addresses: AddressSocket::open()?,
            announcer: Announcer::new(),
            vrrp: BTreeMap::new(),
            turn: None,
            extras: Extras::open()?,
            filter: None,
            flows: None,
            at_once: VecDeque::new(),
            counters: Counters::default(),
        })
    }

    /// The socket by which addresses are added and refreshed, for [`Monitor::pass_over`](crate::os::monitor::Monitor::pass_over).
    ///
    /// # Errors
    /// None that the system documents.
    pub fn address_port(&self) -> io::Result<u32> {
        self.addresses.port()
    }

    /// Executes one step. `OpenVrrp` and `Balance` must happen inside a tokio runtime. If [`Self::is_answered_later`] says
    /// so, `Ok` is no answer yet.
    ///
    /// # Errors
    /// What the system said, in words with the object named.
    pub fn execute(&mut self, step: &Step) -> Result<(), StepError> {
        let result = self.try_execute(step);
        self.count(step, &result);
        result
    }

    /// Executes steps in order, additions and refreshes that follow each other in one system call; one result for
    /// each. A failure doesn't keep the others from being tried: they are independent unless the node says otherwise
    /// by giving them later.
    pub fn execute_all(&mut self, steps: &[Step]) -> Vec<Result<(), StepError>> {
        let mut results = Vec::with_capacity(steps.len());
        let mut rest = steps;
        while let Some(step) = rest.first() {
            let batch: Vec<Wanted> = rest.iter().map_while(wanted).collect();
            let (now, later) = rest.split_at(batch.len().max(1));
            if batch.len() > 1 {
                let outcome = self.addresses.add_many(&batch);
                now.iter().zip(&outcome).for_each(|(step, result)| self.count(step, result));
                results.extend(outcome);
            } else {
                results.push(self.execute(step));
            }
            rest = later;
        }
        results
    }

    /// The open VRRP sockets.
    pub fn sockets(&self) -> impl Iterator<Item = (SocketKey, &VrrpSockets)> {
        self.vrrp.iter().map(|(key, sockets)| (*key, sockets))
    }

    /// The socket that sends, while open. That of a device of a virtual router is opened at its first use.
    pub fn sender(&mut self, socket: SocketKey) -> Option<&Sender> {
        match self.vrrp.get(&socket) {
            Some(sockets) => Some(&*sockets.sender),
            None => self.extras.sender(socket),
        }
    }

    /// Waits for packets on any of the sockets, each in its turn, and takes what one of them has. Pending for ever while
    /// none is open.
    ///
    /// # Errors
    /// What the socket says; it stays usable.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>, batch: &mut Batch) -> Poll<io::Result<()>> {
        let after = self.turn.map_or(Bound::Unbounded, Bound::Excluded);
        let first = self.vrrp.range((after, Bound::Unbounded));
        let rest = self.turn.map(|turn| self.vrrp.range(..=turn)).into_iter().flatten();
        for (key, sockets) in first.chain(rest) {
            if let Poll::Ready(result) = sockets.receiver.poll_recv_many(cx, batch) {
                self.turn = Some(*key);
                return Poll::Ready(result);
            }
        }
        Poll::Pending
    }

    /// The interface is like this now: where IPv6 was lost with the MTU and is back, its socket joins the group again.
    /// `listed`: events before were lost.
    pub fn link_changed(&mut self, link: &Link, listed: bool) {
        let key = SocketKey { family: Family::V6, ifindex: Some(link.ifindex) };
        let Some(sockets) = self.vrrp.get_mut(&key) else { return };
        if sockets.mtu.replace(link.mtu) != Some(link.mtu) || listed {
            // It fails while there is no IPv6; the event that ends this comes here too.
            let _ = sockets.receiver.rejoin();
        }
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether the answer to a step comes by [`Self::poll_later`], unless executing it fails: the kernel may take longer
    /// for it than an advert may wait.
    #[must_use]
    pub fn is_answered_later(step: &Step) -> bool {
        matches!(step, Step::Guard { .. } | Step::Balance(_) | Step::Cut(_) | Step::EventFilter { .. })
    }

    /// Answers that come later, and what is heard of the embedded balancer's table. To be polled again after each step.
    pub fn poll_later(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        let heard = match self.at_once.pop_front() {
            Some(step) => Poll::Ready(Heard::Done(step, Ok(()))),
            None => self.poll_threads(cx),
        };
        if let Poll::Ready(Heard::Done(_, result)) = &heard {
            self.counters.done += u64::from(result.is_ok());
            self.counters.failed += u64::from(result.is_err());
        }
        heard
    }

    fn poll_threads(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        let heard = self.filter.as_mut().map_or(Poll::Pending, |desk| desk.poll(cx));
        if heard.is_ready() {
            return heard;
        }
        let flows = self.flows.as_mut().map_or(Poll::Pending, |thread| thread.poll(cx));
        flows.map(|(step, result)| Heard::Done(step, result))
    }

    fn cut(&mut self, cut: &Arc<Cut>) -> Result<(), StepError> {
        let thread = match &self.flows {
            Some(thread) => thread,
            None => {
                let work = |cut: Arc<Cut>| {
                    let what = || "forget flows whose backend is down".to_owned();
                    let result = ct::forget(&cut).map(|_| ()).map_err(|e| failure(&e, what));
                    Some((Step::Cut(cut), result))
                };
                let thread = Thread::start("flows", work).map_err(|e| failure(&e, || "start a thread".to_owned()))?;
                self.flows.insert(thread)
            }
        };
        thread.ask(Arc::clone(cut))
    }

    fn filter(&mut self, step: &Step) -> Result<(), StepError> {
        let desk = match &mut self.filter {
            Some(desk) => desk,
            None if filter::removes_nothing(step) => {
                self.at_once.push_back(step.clone());
                return Ok(());
            }
            none => {
                let desk = Desk::start().map_err(|e| failure(&e, || "start the thread for nft".to_owned()))?;
                none.insert(desk)
            }
        };
        desk.ask(step)
    }

    fn try_execute(&mut self, step: &Step) -> Result<(), StepError> {
        match step {
            Step::AddAddress { ifindex, ip, prefix, lifetime } => self.addresses.add(*ifindex, *ip, *prefix, *lifetime),
            Step::RemoveAddress { ifindex, ip, prefix } => self.addresses.remove(*ifindex, *ip, *prefix),
            Step::Announce { ifindex, ip } => self
                .announcer
                .announce(*ifindex, *ip)
                .map_err(|e| failure(&e, || format!("announce {ip} dev {}", link::name(*ifindex)))),
            Step::OpenVrrp { socket } => {
                if self.vrrp.contains_key(socket) {
                    return Ok(());
                }
                let what =
                    || socket.ifindex.map_or_else(|| socket.to_string(), |i| format!("{socket} ({})", link::name(i)));
                let sockets = open_vrrp(*socket).map_err(|e| failure(&e, || format!("open {}", what())))?;
                self.vrrp.insert(*socket, sockets);
                Ok(())
            }
            Step::CloseVrrp { socket } => {
                self.vrrp.remove(socket);
                if let Some(ifindex) = socket.ifindex {
                    self.announcer.forget(ifindex);
                }
                Ok(())
            }
            Step::AddRoute { route } => self.extras.routes.add_route(&(*route).into()),
            Step::RemoveRoute { route } => self.extras.routes.remove_route(&(*route).into()),
            Step::AddRule { rule } => self.extras.routes.add_rule(&(*rule).into()),
            Step::RemoveRule { rule } => self.extras.routes.remove_rule(&(*rule).into()),
            Step::Guard { .. } | Step::Balance(_) | Step::EventFilter { .. } => self.filter(step),
            Step::Cut(cut) => self.cut(cut),
            Step::AddVmac { vmac } => self.extras.add_vmac(*vmac),
            Step::RemoveVmac { vmac } => {
                let gone = self.extras.remove_vmac(*vmac)?;
                gone.into_iter().for_each(|ifindex| self.announcer.forget(ifindex));
                Ok(())
            }
        }
    }

    fn count(&mut self, step: &Step, result: &Result<(), StepError>) {
        if result.is_err() {
            self.counters.failed += 1;
            return;
        }
        if Self::is_answered_later(step) {
            // Counted when it is done.
            return;
        }
        self.counters.done += 1;
        match step {
            Step::AddAddress { .. } => self.counters.added += 1,
            Step::RemoveAddress { .. } => self.counters.removed += 1,
            Step::Announce { .. } => self.counters.announced += 1,
            Step::OpenVrrp { .. }
            | Step::CloseVrrp { .. }
            | Step::AddRoute { .. }
            | Step::RemoveRoute { .. }
            | Step::AddRule { .. }
            | Step::RemoveRule { .. }
            | Step::Guard { .. }
            | Step::Balance(_)
            | Step::Cut(_)
            | Step::EventFilter { .. }
            | Step::AddVmac { .. }
            | Step::RemoveVmac { .. } => {}
        }
    }
}

fn open_vrrp(key: SocketKey) -> io::Result<VrrpSockets> {
    let receiver = Arc::new(Receiver::open(key.family, key.ifindex)?);
    Ok(VrrpSockets { receiver, sender: Arc::new(Sender::open(key.family, key.ifindex)?), mtu: None })
}

fn wanted(step: &Step) -> Option<Wanted> {
    match step {
        Step::AddAddress { ifindex, ip, prefix, lifetime } => {
            Some(Wanted { ifindex: *ifindex, ip: *ip, prefix: *prefix, lifetime: *lifetime })
        }
        _ => None,
    }
}

fn failure(error: &io::Error, object: impl FnOnce() -> String) -> StepError {
    step_error(error.raw_os_error().unwrap_or(libc::EIO), None, "CAP_NET_RAW", object())
}
