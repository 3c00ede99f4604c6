//! How well a node serves, more exactly than [`Fitness`](super::Fitness) says it. A peer of an earlier version skips
//! these; a code of a later one is as good as unsaid.

/// What a node thinks of a balancer. Wire code in parentheses; 0 is unsaid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// (1) Not known (yet).
    Unknown,
    /// (2) It serves.
    Serving,
    /// (3) Its processes are gone.
    Dead,
    /// (4) Its processes are there and make no progress.
    Hung,
    /// (5) A check fails, and nothing tells why.
    Failing,
    /// (6) It answers, and badly, though it has backends.
    Sick,
    /// (7) It answers, and has no backend.
    PoolEmpty,
    /// (8) It says that it is about to stop, or that it shouldn't be used.
    Leaving,
    /// (9) It serves as much as it can, and more comes.
    Saturated,
    /// (10) It serves, and nobody would restart or reload it.
    Unsupervised,
    /// (11) It serves with an old configuration, since it refused a newer one.
    BadReload,
    /// (12) Old and new processes serve side by side.
    Reloading,
}

impl Verdict {
    /// All of them, in the order of their codes, which begin with 1.
    const ALL: [Self; 12] = [
        Self::Unknown,
        Self::Serving,
        Self::Dead,
        Self::Hung,
        Self::Failing,
        Self::Sick,
        Self::PoolEmpty,
        Self::Leaving,
        Self::Saturated,
        Self::Unsupervised,
        Self::BadReload,
        Self::Reloading,
    ];

    /// For status, journal and metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Serving => "serving",
            Self::Dead => "dead",
            Self::Hung => "hung",
            Self::Failing => "failing",
            Self::Sick => "sick",
            Self::PoolEmpty => "pool-empty",
            Self::Leaving => "leaving",
            Self::Saturated => "saturated",
            Self::Unsupervised => "unsupervised",
            Self::BadReload => "bad-reload",
            Self::Reloading => "reloading",
        }
    }

    pub(super) fn code(verdict: Option<Self>) -> u8 {
        let place = (1..).zip(Self::ALL).find(|(_, one)| Some(*one) == verdict);
        place.map_or(0, |(code, _)| code)
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

/// How well a node would serve a VIP, the worst first. Wire code in parentheses; 0 is unsaid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// (1) Not at all.
    Bad,
    /// (2) It answers, and badly: left for one that serves well, preferred to one that doesn't answer.
    Poor,
    /// (3) It has no room for more: keeps what it has.
    Full,
    /// (4) It serves; others had better take what is new.
    Degraded,
    /// (5) Well.
    Good,
}

impl Standing {
    /// All of them, in the order of their codes, which begin with 1.
    const ALL: [Self; 5] = [Self::Bad, Self::Poor, Self::Full, Self::Degraded, Self::Good];

    /// For status, journal and metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Poor => "poor",
            Self::Full => "full",
            Self::Degraded => "degraded",
            Self::Good => "good",
        }
    }

    pub(super) fn code(standing: Option<Self>) -> u8 {
        let place = (1..).zip(Self::ALL).find(|(_, one)| Some(*one) == standing);
        place.map_or(0, |(code, _)| code)
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_means_one_thing_and_the_rest_is_unsaid() {
        for (code, verdict) in (1..).zip(Verdict::ALL) {
            assert_eq!((Verdict::from_code(code), Verdict::code(Some(verdict))), (Some(verdict), code));
        }
        for (code, standing) in (1..).zip(Standing::ALL) {
            assert_eq!((Standing::from_code(code), Standing::code(Some(standing))), (Some(standing), code));
        }
        assert_eq!((Verdict::code(None), Standing::code(None)), (0, 0));
        for code in [0, 13, 255] {
            assert_eq!((Verdict::from_code(code), Standing::from_code(code)), (None, None));
        }
        assert!(Standing::ALL.is_sorted(), "compared by the decision");
    }
}
