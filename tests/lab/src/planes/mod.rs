//! The data planes: what each of them does in every situation, what the agent makes of it, and what clients see.
//!
//! | module | is |
//! |---|---|
//! | [`situation`] | every situation: its name, how long it lasts, what must come of it |
//! | [`plane`] | what HAProxy, nginx and Envoy are to these drills, and which verdict each must get |
//! | [`world`] | two hosts with a plane and an agent each, around them the fabric of all other drills |
//! | [`home`] | that stage between two drills |
//! | [`verdicts`] | what each agent thinks of its plane, with the time of every change |
//! | [`hogs`] | clients that hold connections and say nothing |
//! | [`faults`] | how a situation comes about on lb1, and how it ends |
//! | [`run`], [`figures`] | one run, and what comes out |
//! | [`table`] | all of that for the documents |
//!
//! A drill is a plane and a situation: `plane-haproxy-killed`. The plane is started by the lab, not by the agent, which
//! finds it by a pidfile: so the lab alone decides when one that is gone comes back.

mod envoy;
pub mod faults;
pub mod figures;
mod haproxy;
pub mod hogs;
pub mod home;
mod nginx;
pub mod plane;
pub mod run;
pub mod situation;
pub mod table;
pub mod verdicts;
pub mod world;

pub use plane::Kind;
pub use situation::Situation;

/// One drill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drill {
    /// The plane.
    pub plane: Kind,
    /// What it gets into.
    pub situation: Situation,
}

/// What the name of each of them begins with.
pub const PREFIX: &str = "plane-";

impl Drill {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        format!("{PREFIX}{}-{}", self.plane.name(), self.situation.name())
    }
}

/// Every drill, plane by plane.
pub fn drills() -> impl Iterator<Item = Drill> {
    let each = |plane| Situation::ALL.into_iter().map(move |situation| Drill { plane, situation });
    Kind::ALL.into_iter().flat_map(each)
}

/// The drill of that name; all of a plane by `plane-haproxy`, all there are by `plane-all`.
#[must_use]
pub fn find(name: &str) -> Vec<Drill> {
    let Some(rest) = name.strip_prefix(PREFIX) else { return Vec::new() };
    drills().filter(|d| rest == "all" || rest == d.plane.name() || name == d.name()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drill_is_found_by_its_own_name_and_all_of_a_plane_by_the_planes() {
        let all: Vec<Drill> = drills().collect();
        for d in &all {
            assert_eq!(find(&d.name()), [*d]);
        }
        assert_eq!(find("plane-all"), all);
        assert_eq!(find("plane-haproxy").len(), Situation::ALL.len());
        assert!(find("haproxy-killed").is_empty() && find("plane-haproxy-kill").is_empty());
    }
}
