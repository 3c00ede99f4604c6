//! What we have the kernel hold.

use super::entry::{Entry, SequenceAdjustment, Status, SynProxy, Tcp, TcpSide, TcpState};
use super::tuple::{Layer4, Tuple, Zone};

/// Bits of a flow's mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mark {
    /// What they are to be.
    pub value: u32,
    /// Which ones: others stay as they are.
    pub mask: u32,
}

/// A flow to write into the kernel's table. How it has to be put, so that it does there what it did here, is the
/// encoder's affair: give it what the owner's kernel said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replica {
    /// As the one who opened it sends.
    pub original: Tuple,
    /// As answers arrive: translated, as the owner's kernel dumped it.
    pub reply: Tuple,
    /// The zone.
    pub zone: Zone,
    /// Status bits as the owner's kernel said. What can't be written is left out.
    pub status: Status,
    /// Seconds: the lease, never the owner's countdown.
    pub timeout_s: u32,
    /// Bits of the mark.
    pub mark: Option<Mark>,
    /// TCP's part; `None` with TCP: established, and windows are not judged.
    pub tcp: Option<Tcp>,
    /// Shifts of sequence numbers: original direction, then reply.
    pub sequence_adjustment: [Option<SequenceAdjustment>; 2],
    /// What the SYN proxy shifts by.
    pub syn_proxy: Option<SynProxy>,
}

impl Replica {
    /// Of what a kernel said, with the lease in seconds and the mark as given. What the entry doesn't tell is made up
    /// such that the flow lives: offloaded flows have neither timeout nor TCP state and are established.
    #[must_use]
    pub fn of(entry: &Entry, lease_s: u32, mark: Option<Mark>) -> Self {
        let assumed = Tcp { state: TcpState::Established, sides: Some([TcpSide::default(); 2]) };
        let tcp = matches!(entry.original.layer4, Layer4::Tcp { .. }).then(|| entry.tcp.unwrap_or(assumed));
        Self {
            original: entry.original,
            reply: entry.reply,
            zone: entry.zone,
            status: entry.status.unwrap_or(Status::SEEN_REPLY.with(Status::ASSURED)),
            timeout_s: lease_s,
            mark,
            tcp,
            sequence_adjustment: entry.sequence_adjustment,
            syn_proxy: entry.syn_proxy,
        }
    }
}
