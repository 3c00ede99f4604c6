//! The data plane: from what is seen of a balancer to a verdict, and from the verdict to what is done.
//!
//! | verdict | what it rests on | what follows |
//! |---|---|---|
//! | dead | its processes are gone | the VIP leaves at once |
//! | hung | its admin side is silent, a check that asks it fails, and it is stopped or spends no processor time | leaves when the check has failed `fall` times |
//! | failing | a check that asks it fails, and nothing tells why | likewise |
//! | sick | a check fails by its answer, though the balancer has backends (or nothing is known of them) | leaves only for a peer that serves well |
//! | pool-empty | every backend is down | likewise |
//! | leaving | it says so itself | likewise, without waiting |
//! | saturated | its connections, an accept queue or its descriptors are at their limit, and it still works | keeps what it has, takes nothing new while others can |
//! | unsupervised | its master is gone | keeps, others had better take what is new |
//! | bad-reload | it refused a newer configuration | likewise |
//! | reloading | old and new processes serve side by side | nothing |
//!
//! A check that asks several VIPs' balancer belongs to it as a whole for the verdict, and to the VIP that names it for
//! what follows: a page that fails on one VIP moves that one.
//!
//! A group asks it by its members: those that fail count once the group fails, as if the VIP named them.
//!
//! - `view` keeps what looks at a balancer gave; `evidence` is what a verdict rests on, typed and with its age;
//!   `judge` makes the one of the other, as a pure function.
//! - `standing` says how well a node would serve a VIP ([`Standing`]) and what a holder does that serves badly.
//! - `hold_down` keeps a node that lost a VIP again and again from taking it back soon.
//!
//! What it refuses to do: to count failures (`checks` does), and to look at anything itself.

mod evidence;
mod hold_down;
mod judge;
mod observe;
pub(crate) mod standing;
mod view;

pub use evidence::{Evidence, Sign};
pub(crate) use hold_down::HoldDown;
pub use holdfast_statesync::message::{Standing, Verdict};
pub(crate) use judge::{Asking, checks_of, judge, leaves};
pub use view::PlaneView;

use std::time::Instant;

/// What a balancer is thought to be, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// The verdict.
    pub verdict: Verdict,
    /// When it began.
    pub since: Instant,
    /// What it rests on, and whatever else is odd.
    pub evidence: Vec<Evidence>,
    /// The journal entry that says so.
    pub event: Option<u64>,
}

impl Judged {
    /// Nothing is known.
    pub(crate) const fn nothing(now: Instant) -> Self {
        Self { verdict: Verdict::Unknown, since: now, evidence: Vec::new(), event: None }
    }

    /// Since when it is as it is, by the oldest sign that passes `test`.
    pub(crate) fn since(&self, test: impl Fn(&Sign) -> bool) -> Option<Instant> {
        self.evidence.iter().filter(|e| test(&e.sign)).map(|e| e.since).min()
    }

    /// The evidence in words.
    pub(crate) fn why(&self) -> String {
        let words: Vec<String> = self.evidence.iter().map(|e| e.sign.to_string()).collect();
        words.join(", ")
    }
}
