//! The control lane's messages and their encoding. Total: any bytes decode to a message or a typed refusal.
//! Unknown message kinds and unknown trailing fields are skipped and counted, so that versions can differ by one.
//!
//! The layout is in [`codec`]. Refuses to judge what a message means for a virtual address, and to send or accept a
//! name outside `[A-Za-z0-9._-]{1,63}`.

pub mod codec;
mod verdict;

pub use codec::{DecodeError, EncodeError, MAX_ENTRIES, MAX_NAME_LEN};
pub use verdict::{Standing, Verdict};

/// What a node thinks of its own ability to serve a VIP or of a balancer. Wire code in parentheses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fitness {
    /// (0) Not known (yet).
    Unknown,
    /// (1) Can serve.
    Fit,
    /// (2) Can't serve.
    Unfit,
    /// (3) Could serve, but an operator took it out (drained or held back): never a target.
    Withheld,
}

/// A node's role for a VIP. Wire code in parentheses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// (0) Takes no part (interface gone, not started).
    Out,
    /// (1) RFC 9568 Backup.
    Backup,
    /// (2) RFC 9568 Active: answers for the address.
    Active,
}

/// One VIP's part of a report. A report is sent every 100 ms and at each change; big ones are split over datagrams,
/// each entry stands for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VipReport {
    /// The VIP's name as both configurations know it (1..=63 bytes).
    pub vip: String,
    /// Whether the sender can serve this VIP.
    pub fitness: Fitness,
    /// The sender's role for it.
    pub role: Role,
    /// Grows by one at each change of role; with the boot epoch it orders claims.
    pub role_epoch: u64,
    /// The priority now in force (255 owner, 1 last resort).
    pub priority: u8,
    /// Milliseconds since the role changed, saturating.
    pub role_age_ms: u32,
    /// How well the sender would serve it; `None`: it doesn't say.
    pub standing: Option<Standing>,
}

/// One balancer's part of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BalancerReport {
    /// The balancer's name in the sender's configuration (1..=63 bytes).
    pub balancer: String,
    /// Whether this balancer can serve.
    pub fitness: Fitness,
    /// The same more exactly; `None`: the sender doesn't say.
    pub verdict: Option<Verdict>,
}

/// Everything that is said on the control lane. Wire code in parentheses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// (1) State of the sender. A big report arrives as several with the same sequence; each entry stands for itself.
    Report {
        /// Grows by one with each report of a boot epoch.
        sequence: u64,
        /// The sender's VIPs.
        vips: Vec<VipReport>,
        /// The sender's balancers.
        balancers: Vec<BalancerReport>,
    },
    /// (2) "Take it now": the sender gives this VIP away. `linger`: it keeps answering until it sees the taker.
    TakeNow {
        /// The VIP's name.
        vip: String,
        /// The role epoch in which the sender gives it away.
        role_epoch: u64,
        /// The sender keeps answering until it sees the taker.
        linger: bool,
    },
    /// (3) The sender took the VIP: by down timer (then the receiver, if still Active, probes `probe` on the segment)
    /// or as answer to TakeNow.
    Claim {
        /// The VIP's name.
        vip: String,
        /// The sender's role epoch of this ownership.
        role_epoch: u64,
        /// Why it claims.
        cause: ClaimCause,
        /// The claimer's own address on the segment, to be probed by ARP or NS.
        probe: std::net::IpAddr,
    },
    /// (4) Answer to a claim: the sender reached the claimer on the segment and keeps the VIP; the claimer releases.
    Keep {
        /// The VIP's name.
        vip: String,
        /// The sender's role epoch of the ownership it keeps.
        role_epoch: u64,
    },
    /// (6) The sender's connection table. Peers that don't know this skip it.
    Table {
        /// Entries that it may have; 0: no limit.
        limit: u64,
        /// `None`: its agent doesn't say, or there are none.
        timeouts: Option<Timeouts>,
    },
    /// (7) The sender's embedded balancer. Peers that don't know this skip it.
    Pool {
        /// The same on every node that sends new flows to the same backends.
        fingerprint: u64,
    },
    /// (5) The sender leaves in order (stop): its reports end here, this is not a failure.
    Goodbye,
}

/// How long the connection table keeps what is idle, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// An established TCP connection.
    pub established_s: u32,
    /// A UDP stream, in which both sides have spoken.
    pub udp_stream_s: u32,
}

/// Why a VIP was claimed. Wire code in parentheses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimCause {
    /// (0) Down timer expired.
    DownTimer,
    /// (1) The former owner said TakeNow or priority 0.
    Handed,
    /// (2) Preemption.
    Preempt,
}
