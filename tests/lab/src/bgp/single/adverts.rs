//! The adverts of a VRRP beside, as the switch receives them, with the kernel's times.

use super::agent::NODE;
use crate::bgp::net::Net;
use crate::clock::{Ns, ms_between};
use crate::load::Stopper;
use crate::watch::stamped::Stamped;
use anyhow::{Context, Result};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::sync::{Arc, Mutex};

/// Listens on the switch's port of a segment until finished.
#[derive(Debug)]
pub(super) struct Adverts {
    stopper: Stopper,
    seen: Arc<Mutex<Vec<Ns>>>,
}

impl Adverts {
    /// On the node's channel segment.
    pub(super) fn start(net: &Net) -> Result<Self> {
        let port = format!("c-{}", NODE.name());
        let (mut socket, port) = net.ns("sw").inside(|| {
            const ALL: u16 = 3; // ETH_P_ALL
            let s = Socket::new(Domain::PACKET, Type::RAW.cloexec(), Some(Protocol::from(i32::from(ALL.to_be()))))
                .context("packet socket")?;
            // IPv4 (half a word at 12) with VRRP's protocol number (the octet at 23), else nothing.
            let program =
                [(0x28, 0, 12), (0x15, 3, 0x0800), (0x30, 0, 23), (0x15, 1, 112), (0x06, 0, 0xffff), (6, 0, 0)];
            let refused = |i: usize| u8::try_from(program.len() - 2 - i).unwrap_or(0);
            let program: Vec<SockFilter> = program
                .iter()
                .enumerate()
                .map(|(i, &(code, _, k))| SockFilter::new(code, 0, if code == 0x15 { refused(i) } else { 0 }, k))
                .collect();
            s.attach_filter(&program).context("the packet socket's filter")?;
            Ok((Stamped::new(s)?, nix::net::if_::if_nametoindex(port.as_str()).context("the node's port")?))
        })?;
        let seen = Arc::<Mutex<Vec<Ns>>>::default();
        let shared = seen.clone();
        let stopper = Stopper::spawn("adverts", move |stop| {
            while !stop() {
                if let Some(f) = socket.receive().filter(|f| f.ifindex == port && !f.outgoing)
                    && let Ok(mut all) = shared.lock()
                {
                    all.push(f.at);
                }
            }
            Ok(())
        })?;
        Ok(Self { stopper, seen })
    }

    pub(super) fn thread(&self) -> i32 {
        self.stopper.thread()
    }

    pub(super) fn count(&self) -> usize {
        self.seen.lock().map(|s| s.len()).unwrap_or_default()
    }

    /// Stops; how much later than `interval` after the one before each advert came, ms.
    pub(super) fn finish(self, interval: Ns) -> Result<Vec<f64>> {
        self.stopper.finish()?;
        Ok(self.seen.lock().map(|s| late(&s, interval)).unwrap_or_default())
    }
}

fn late(at: &[Ns], interval: Ns) -> Vec<f64> {
    at.windows(2).filter_map(|w| Some(ms_between(*w.first()? + interval, *w.get(1)?).max(0.0))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MS;

    #[test]
    fn an_advert_that_didnt_come_makes_the_next_one_late() {
        assert_eq!(late(&[0, 20 * MS, 39 * MS, 80 * MS], 20 * MS), [0.0, 0.0, 21.0]);
    }
}
