//! What the routers around us believe of this node on a dead worker's word: that it can be reached (BFD), and that its
//! routes lead somewhere (BGP).

use super::bfd::Bfd;
use super::bgp_sockets::BgpSockets;
use super::types::Event;
use super::{Out, mutants};
use std::time::Instant;

/// BFD and BGP together.
#[derive(Debug)]
pub(super) struct Routers {
    pub(super) bfd: Bfd,
    pub(super) sockets: BgpSockets,
    /// A worker that has begun lives: it sees to its routes itself.
    pub(super) attended: bool,
}

impl Routers {
    pub(super) fn new(seed: u64) -> Self {
        Self { bfd: Bfd::new(seed), sockets: BgpSockets::default(), attended: false }
    }

    /// An address that was announced is about to go. If no worker can withdraw its route, every router must stop
    /// sending to us, those behind a session that is closed already too.
    pub(super) fn forsake(&mut self, now: Instant, out: &mut Out) {
        if self.attended || mutants::off("bfd-forsake") {
            return;
        }
        self.bfd.forsake(now, out);
        self.sockets.forsake(out);
        out.event(Event::Forsaken);
    }
}
