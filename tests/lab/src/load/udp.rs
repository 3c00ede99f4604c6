//! A UDP datagram every millisecond to an echo that doesn't depend on the balancer: it shows what the address did.

use crate::clock::{Ns, now};
use crate::load::Stopper;
use crate::metrics::{Class, Sample};
use crate::netns::Netns;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::{Arc, Mutex};

/// The running probe.
#[derive(Debug)]
pub struct Udp {
    stopper: Stopper,
    samples: Arc<Mutex<Vec<Sample>>>,
    deadline: Ns,
}

impl Udp {
    /// A datagram from `ns` to `to` every `interval`; lost when unanswered for `deadline`.
    ///
    /// # Errors
    /// The namespace, the socket or the thread.
    pub fn start(ns: &Netns, to: SocketAddrV4, interval: Ns, deadline: Ns) -> Result<Self> {
        let samples = Arc::new(Mutex::new(Vec::new()));
        let (ns, shared) = (ns.clone(), samples.clone());
        let stopper = Stopper::spawn("udp", move |stop| {
            ns.enter()?;
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("bind the UDP probe")?;
            socket.set_nonblocking(true)?;
            let mut due = now();
            while !stop() {
                let t = now();
                if t >= due {
                    due += interval * ((t - due) / interval + 1);
                    send(&socket, to, &shared, t);
                }
                let wait = due.saturating_sub(now());
                let ts = Timespec { tv_sec: 0, tv_nsec: wait as i64 };
                let mut fds = [PollFd::new(&socket, PollFlags::IN)];
                if matches!(poll(&mut fds, Some(&ts)), Ok(n) if n > 0) {
                    receive(&socket, &shared);
                }
            }
            Ok(())
        })?;
        Ok(Self { stopper, samples, deadline })
    }

    /// The sending thread, to give it priority.
    #[must_use]
    pub fn thread(&self) -> i32 {
        self.stopper.thread()
    }

    /// Stops and returns every datagram whose deadline has passed or that was answered.
    ///
    /// # Errors
    /// The thread failed.
    pub fn finish(self) -> Result<Vec<Sample>> {
        self.stopper.finish()?;
        let t = now();
        let all = self.samples.lock().map(|s| s.clone()).unwrap_or_default();
        let decided = |s: &Sample| s.class == Class::Ok || t.saturating_sub(s.sent) >= self.deadline;
        Ok(all.into_iter().filter(decided).collect())
    }
}

/// Notes the datagram as lost; an answer will correct that.
fn send(socket: &UdpSocket, to: SocketAddrV4, samples: &Mutex<Vec<Sample>>, t: Ns) {
    let Ok(mut all) = samples.lock() else { return };
    let seq = all.len() as u64;
    all.push(Sample { sent: t, done: t, class: Class::Timeout, node: 255 });
    drop(all);
    let _lost = socket.send_to(&seq.to_be_bytes(), to);
}

fn receive(socket: &UdpSocket, samples: &Mutex<Vec<Sample>>) {
    let mut b = [0; 64];
    while let Ok((n, _)) = socket.recv_from(&mut b) {
        let Some((seq, rest)) = b.get(..n).and_then(|b| b.split_first_chunk::<8>()) else { continue };
        let Ok(mut all) = samples.lock() else { return };
        if let (Ok(seq), Some(&node)) = (usize::try_from(u64::from_be_bytes(*seq)), rest.first())
            && let Some(s) = all.get_mut(seq)
        {
            (s.done, s.class, s.node) = (now(), Class::Ok, node);
        }
    }
}
