//! Executes the node's steps: the only place that changes the kernel while a worker lives.
//!
//! What this module refuses to do: decide, retry, or remember what should be. A step that fails is reported, and the
//! node, which compares with what the kernel says it has, asks again.

use crate::os::addr::{AddressSocket, Wanted, step_error};
use crate::os::arp::Announcer;
use crate::os::link;
use crate::os::vrrp::{self, VrrpReceiver, VrrpSender};
use holdfast_node::io::{Step, StepError};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

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

/// The VRRP sockets of one interface.
#[derive(Debug, Clone)]
pub struct VrrpSockets {
    /// Receives.
    pub receiver: Arc<VrrpReceiver>,
    /// Sends; the keeper gets a duplicate.
    pub sender: Arc<VrrpSender>,
}

/// Owns the sockets through which the kernel is changed, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Executor {
    addresses: AddressSocket,
    announcer: Announcer,
    vrrp: BTreeMap<u32, VrrpSockets>,
    /// Where the next [`Executor::poll_recv`] starts, so that no interface starves another.
    turn: u32,
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
            turn: 0,
            counters: Counters::default(),
        })
    }

    /// Executes one step. `OpenVrrp` must happen inside a tokio runtime.
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

    /// The VRRP sockets by interface index.
    pub fn sockets(&self) -> impl Iterator<Item = (u32, &VrrpSockets)> {
        self.vrrp.iter().map(|(ifindex, sockets)| (*ifindex, sockets))
    }

    /// The socket that sends on this interface, while open.
    #[must_use]
    pub fn sender(&self, ifindex: u32) -> Option<&VrrpSender> {
        self.vrrp.get(&ifindex).map(|sockets| &*sockets.sender)
    }

    /// Waits for a packet on any of the interfaces, each in its turn: interface index and length. Cancel safe.
    ///
    /// # Errors
    /// What the interface's socket says; it stays usable.
    pub async fn recv(&mut self, buffer: &mut [u8]) -> (u32, io::Result<usize>) {
        std::future::poll_fn(|cx| self.poll_recv(cx, buffer)).await
    }

    /// Like [`Self::recv`]. Pending for ever while no socket is open.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<(u32, io::Result<usize>)> {
        let turn = self.turn;
        for (ifindex, sockets) in self.vrrp.range(turn..).chain(self.vrrp.range(..turn)) {
            if let Poll::Ready(result) = sockets.receiver.poll_recv(cx, buffer) {
                self.turn = ifindex.wrapping_add(1);
                return Poll::Ready((*ifindex, result));
            }
        }
        Poll::Pending
    }

    /// What was done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn try_execute(&mut self, step: &Step) -> Result<(), StepError> {
        match step {
            Step::AddAddress { ifindex, ip, prefix, lifetime } => self.addresses.add(*ifindex, *ip, *prefix, *lifetime),
            Step::RemoveAddress { ifindex, ip, prefix } => self.addresses.remove(*ifindex, *ip, *prefix),
            Step::Announce { ifindex, ip } => self
                .announcer
                .announce(*ifindex, *ip)
                .map_err(|e| failure(&e, || format!("announce {ip} dev {}", link::name(*ifindex)))),
            Step::OpenVrrp { ifindex, interface } => {
                if self.vrrp.contains_key(ifindex) {
                    return Ok(());
                }
                let sockets = open_vrrp(*ifindex)
                    .map_err(|e| failure(&e, || format!("open VRRP sockets dev {}", interface.as_str())))?;
                self.vrrp.insert(*ifindex, sockets);
                Ok(())
            }
            Step::CloseVrrp { ifindex } => {
                self.vrrp.remove(ifindex);
                self.announcer.forget(*ifindex);
                Ok(())
            }
        }
    }

    fn count(&mut self, step: &Step, result: &Result<(), StepError>) {
        if result.is_err() {
            self.counters.failed += 1;
            return;
        }
        self.counters.done += 1;
        match step {
            Step::AddAddress { .. } => self.counters.added += 1,
            Step::RemoveAddress { .. } => self.counters.removed += 1,
            Step::Announce { .. } => self.counters.announced += 1,
            Step::OpenVrrp { .. } | Step::CloseVrrp { .. } => {}
        }
    }
}

fn open_vrrp(ifindex: u32) -> io::Result<VrrpSockets> {
    Ok(VrrpSockets { receiver: Arc::new(VrrpReceiver::open(ifindex)?), sender: Arc::new(vrrp::open_send(ifindex)?) })
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
