//! What the kernel says of a flow.

use super::tuple::{Key, Tuple, Zone};

/// Bits of `IPS_…`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

impl Status {
    /// It was expected by another flow's helper.
    pub const EXPECTED: Self = Self(1);
    /// Packets went both ways.
    pub const SEEN_REPLY: Self = Self(1 << 1);
    /// It isn't the first to go when the table is full.
    pub const ASSURED: Self = Self(1 << 2);
    /// It is in the table.
    pub const CONFIRMED: Self = Self(1 << 3);
    /// Its source is translated.
    pub const SRC_NAT: Self = Self(1 << 4);
    /// Its destination is translated.
    pub const DST_NAT: Self = Self(1 << 5);
    /// Its TCP sequence numbers are shifted.
    pub const SEQ_ADJUST: Self = Self(1 << 6);
    /// The source's translation is settled.
    pub const SRC_NAT_DONE: Self = Self(1 << 7);
    /// The destination's translation is settled.
    pub const DST_NAT_DONE: Self = Self(1 << 8);
    /// It is being removed.
    pub const DYING: Self = Self(1 << 9);
    /// It has a timeout that doesn't run down.
    pub const FIXED_TIMEOUT: Self = Self(1 << 10);
    /// A template of `ct zone set` and the like, no flow.
    pub const TEMPLATE: Self = Self(1 << 11);
    /// It has an assigned helper.
    pub const HELPER: Self = Self(1 << 13);
    /// A flow table forwards it: no timeout, no TCP state.
    pub const OFFLOAD: Self = Self(1 << 14);
    /// The network card forwards it.
    pub const HW_OFFLOAD: Self = Self(1 << 15);

    /// All of these are set.
    #[must_use]
    pub const fn has(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// One of these is set.
    #[must_use]
    pub const fn has_any(self, bits: Self) -> bool {
        self.0 & bits.0 != 0
    }

    /// With these, too.
    #[must_use]
    pub const fn with(self, bits: Self) -> Self {
        Self(self.0 | bits.0)
    }

    /// Without these.
    #[must_use]
    pub const fn without(self, bits: Self) -> Self {
        Self(self.0 & !bits.0)
    }
}

/// TCP's state as conntrack sees it (`TCP_CONNTRACK_…`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum TcpState {
    /// Nothing known.
    None = 0,
    /// SYN seen.
    SynSent = 1,
    /// SYN and SYN-ACK seen.
    SynRecv = 2,
    /// Open.
    Established = 3,
    /// One side closed.
    FinWait = 4,
    /// The FIN was acknowledged.
    CloseWait = 5,
    /// Both closed.
    LastAck = 6,
    /// Closed, kept for late segments.
    TimeWait = 7,
    /// Reset.
    Close = 8,
    /// Both sent SYN.
    SynSent2 = 9,
}

impl TcpState {
    /// From its number on the wire.
    #[must_use]
    pub const fn from_wire(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::SynSent,
            2 => Self::SynRecv,
            3 => Self::Established,
            4 => Self::FinWait,
            5 => Self::CloseWait,
            6 => Self::LastAck,
            7 => Self::TimeWait,
            8 => Self::Close,
            9 => Self::SynSent2,
            _ => return None,
        })
    }
}

/// Bits of `IP_CT_TCP_FLAG_…`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// It offered to scale windows.
    pub const WINDOW_SCALE: Self = Self(0x01);
    /// It offered selective acknowledgements.
    pub const SACK_PERM: Self = Self(0x02);
    /// It sent the first FIN.
    pub const CLOSE_INIT: Self = Self(0x04);
    /// Segments outside the window are no reason to call it invalid.
    pub const BE_LIBERAL: Self = Self(0x08);
    /// Both sides opened at once.
    pub const SIMULTANEOUS_OPEN: Self = Self(0x80);

    /// All of these are set.
    #[must_use]
    pub const fn has(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// With these, too.
    #[must_use]
    pub const fn with(self, bits: Self) -> Self {
        Self(self.0 | bits.0)
    }
}

/// What conntrack learnt of one side's TCP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TcpSide {
    /// Windows are to be shifted left by so many bits (0 to 14).
    pub window_scale: u8,
    /// What it offered and did.
    pub flags: TcpFlags,
}

/// TCP's part of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tcp {
    /// The state.
    pub state: TcpState,
    /// The original sender's side, then the other. DESTROY events don't tell them.
    pub sides: Option<[TcpSide; 2]>,
}

/// How TCP sequence numbers of one direction are shifted (by a helper that rewrote the payload).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SequenceAdjustment {
    /// Sequence number of the last change.
    pub correction_position: u32,
    /// Shift before it.
    pub offset_before: i32,
    /// Shift from it on.
    pub offset_after: i32,
}

/// What a SYN proxy shifts by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SynProxy {
    /// Initial sequence number that the proxy chose.
    pub initial_sequence: u32,
    /// Initial time stamp.
    pub initial_timestamp: u32,
    /// Shift of time stamps.
    pub timestamp_offset: u32,
}

/// Parts of an entry that are seen, but not carried: a flow with one of these may need more than a replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Extras {
    /// A helper of the kernel reads it (FTP, SIP …).
    pub helper: bool,
    /// Another flow's helper expected it.
    pub master: bool,
    /// It has labels.
    pub labels: bool,
}

/// What a dump or an event says of one flow. Parts are `None` where the kernel didn't say: that is no news, so merge
/// ([`Entry::merge`]), never overwrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// As the one who opened it sends.
    pub original: Tuple,
    /// As answers arrive: translated. It shows the NAT: its source is the true destination, its destination what the
    /// source was translated to.
    pub reply: Tuple,
    /// The zone.
    pub zone: Zone,
    /// Status bits. DESTROY events have them, too.
    pub status: Option<Status>,
    /// Seconds until it expires. Offloaded flows have none, and DESTROY events only where time was left: where it was
    /// removed, and didn't run out.
    pub timeout_s: Option<u32>,
    /// The mark; `None` is also said of 0 by events of a flow whose mark never changed.
    pub mark: Option<u32>,
    /// The kernel's name for this very flow: another one with the same tuple has another. Means nothing elsewhere.
    pub id: Option<u32>,
    /// TCP's part. UPDATE events have it only if it changed.
    pub tcp: Option<Tcp>,
    /// Shifts of sequence numbers: original direction, then reply.
    pub sequence_adjustment: [Option<SequenceAdjustment>; 2],
    /// What the SYN proxy shifts by.
    pub syn_proxy: Option<SynProxy>,
    /// What else it has.
    pub extras: Extras,
    /// When the event happened: nanoseconds since 1970. Only with `nf_conntrack_timestamp=1`.
    pub event_ns: Option<u64>,
}

impl Entry {
    /// What the kernel tells it by.
    #[must_use]
    pub const fn key(&self) -> Key {
        Key { original: self.original, zone: self.zone.original() }
    }

    /// The source is translated.
    #[must_use]
    pub fn is_snat(&self) -> bool {
        self.reply.addresses.destination() != self.original.addresses.source()
            || match self.reply.layer4.destination_port() {
                Some(port) => port != self.original.layer4.source_port(),
                None => self.reply.layer4.source_port() != self.original.layer4.source_port(),
            }
    }

    /// The destination is translated.
    #[must_use]
    pub fn is_dnat(&self) -> bool {
        self.reply.addresses.source() != self.original.addresses.destination()
            || self.original.layer4.destination_port().is_some_and(|port| port != self.reply.layer4.source_port())
    }

    /// Takes over what a later entry of the same flow says, and keeps what it doesn't.
    pub fn merge(&mut self, later: &Self) {
        self.reply = later.reply;
        self.status = later.status.or(self.status);
        self.timeout_s = later.timeout_s.or(self.timeout_s);
        self.mark = later.mark.or(self.mark);
        self.id = later.id.or(self.id);
        self.tcp = match (self.tcp, later.tcp) {
            (Some(before), Some(now)) => Some(Tcp { state: now.state, sides: now.sides.or(before.sides) }),
            (before, now) => now.or(before),
        };
        for (before, now) in self.sequence_adjustment.iter_mut().zip(later.sequence_adjustment) {
            *before = now.or(*before);
        }
        self.syn_proxy = later.syn_proxy.or(self.syn_proxy);
        self.extras.helper |= later.extras.helper;
        self.extras.master |= later.extras.master;
        self.extras.labels |= later.extras.labels;
        self.event_ns = later.event_ns.or(self.event_ns);
    }
}

/// What happened to a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// It is in the table now.
    New,
    /// Something of it changed.
    Update,
    /// It is out of the table.
    Destroy,
}

/// The kernel tells of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The netlink socket whose request did it (compare with our own: loops); 0: packets, a timer, or an address that
    /// went. So 0 alone doesn't say that the flow is ours.
    pub port_id: u32,
    /// The flow, as far as the event tells.
    pub entry: Entry,
}
