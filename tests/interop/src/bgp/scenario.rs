//! The steps that every cell goes through, in order; each begins where the one before ended.

use super::cell::{Cell, Feature, Peer};

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// With a wrong key: no session, and no route.
    WrongKey,
    /// The router's frames have lost a hop: no session, and no route.
    TooFar,
    /// Started: the route comes.
    Up,
    /// Unfit: the route goes, the session stays.
    Unfit,
    /// The router ends and begins the session while we are unfit: the route stays away.
    FlapUnfit,
    /// Fit again: the route comes back.
    Fit,
    /// The router ends and begins the session while we are fit: the route comes back by itself.
    Flap,
    /// Everything of ours is frozen: BFD takes the route away; then it goes on, and the route comes back.
    Freeze,
    /// The worker is killed: without graceful restart the route comes back, with it the table doesn't notice.
    Crash,
    /// All of ours is killed and stays dead: the router drops the route after the restart time, and not at once.
    Die,
    /// Started again.
    UpAgain,
    /// Stopped in order: withdrawn before the connection closes.
    Stop,
}

/// All, in order.
pub const STEPS: [Step; 12] = [
    Step::WrongKey,
    Step::TooFar,
    Step::Up,
    Step::Unfit,
    Step::FlapUnfit,
    Step::Fit,
    Step::Flap,
    Step::Freeze,
    Step::Crash,
    Step::Die,
    Step::UpAgain,
    Step::Stop,
];

impl Step {
    /// Whether it makes sense for that cell.
    #[must_use]
    pub fn applies(self, cell: &Cell) -> bool {
        match self {
            Self::WrongKey => cell.feature == Feature::Md5,
            Self::TooFar => cell.feature == Feature::Gtsm,
            Self::Freeze => cell.feature == Feature::Bfd,
            Self::Die | Self::UpAgain => cell.feature == Feature::Restart,
            // One table is looked at here; that two nodes' weights arrive is seen in the others.
            Self::FlapUnfit | Self::Flap => cell.feature != Feature::Weights,
            // ExaBGP starts anew for this, which the flaps have shown.
            Self::Crash => cell.peer != Peer::Exabgp,
            Self::Up | Self::Unfit | Self::Fit | Self::Stop => true,
        }
    }

    /// Its column.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WrongKey => "wrong key",
            Self::TooFar => "too far",
            Self::Up => "up",
            Self::Unfit => "unfit",
            Self::FlapUnfit => "flap while unfit",
            Self::Fit => "fit",
            Self::Flap => "flap",
            Self::Freeze => "freeze",
            Self::Crash => "worker crash",
            Self::Die => "death",
            Self::UpAgain => "up again",
            Self::Stop => "stop",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bgp::cell::matrix;

    #[test]
    fn every_step_applies_somewhere_and_every_cell_begins_and_ends() {
        let all = matrix();
        for step in STEPS {
            assert!(all.iter().any(|c| step.applies(c)), "{}", step.name());
        }
        assert!(all.iter().all(|c| Step::Up.applies(c) && Step::Stop.applies(c)));
    }
}
