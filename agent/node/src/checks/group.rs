//! What several checks are together. Three-valued: a member without a verdict decides nothing.

use crate::config::{Check, Group, GroupMember};
use crate::world::{CheckState, CheckView};

/// Members that are named in an explanation.
const NAMED: usize = 4;

/// The group's state, and whether it's clean: whether it would pass if each member that failed lately had failed.
pub(super) fn judge(group: &Group, views: &[CheckView]) -> (CheckState, bool) {
    let sum = |counts: &dyn Fn(&CheckView) -> bool| -> u32 {
        let members = group.members.iter().filter(|member| view(member, views).is_some_and(counts));
        members.map(|member| u32::from(member.weight)).sum()
    };
    let passed = sum(&|view| view.state == CheckState::Passed);
    let unknown = sum(&|view| view.state == CheckState::Unknown);
    let clean = sum(&|view| view.state == CheckState::Passed && view.clean);
    let state = if passed >= group.at_least {
        CheckState::Passed
    } else if passed + unknown >= group.at_least {
        CheckState::Unknown
    } else {
        CheckState::Failed
    };
    (state, clean >= group.at_least)
}

/// Which members don't pass, by name; `None`: all do.
pub(super) fn why(group: &Group, checks: &[Check], views: &[CheckView]) -> Option<String> {
    let bad = |member: &&GroupMember| view(member, views).is_some_and(|view| view.state != CheckState::Passed);
    let bad: Vec<&GroupMember> = group.members.iter().filter(bad).collect();
    let name = |member: &&&GroupMember| checks.get(usize::from(member.check.0)).map(|check| check.name.as_str());
    let mut named: Vec<String> = bad.iter().take(NAMED).filter_map(|m| name(&m)).map(str::to_owned).collect();
    if let Some(more) = bad.len().checked_sub(NAMED).filter(|more| *more > 0) {
        named.push(format!("{more} more"));
    }
    let last = named.pop()?;
    let names = if named.is_empty() { last } else { format!("{} and {last}", named.join(", ")) };
    let (lost, of) = (weight(bad.into_iter()), weight(group.members.iter()));
    Some(format!("{names} not passed: {} of {of}, {} needed", of - lost, group.at_least))
}

/// The newest entry of a member's.
pub(super) fn cause(group: &Group, views: &[CheckView]) -> Option<u64> {
    group.members.iter().filter_map(|member| view(member, views)?.event).max()
}

fn view<'v>(member: &GroupMember, views: &'v [CheckView]) -> Option<&'v CheckView> {
    views.get(usize::from(member.check.0))
}

fn weight<'m>(members: impl Iterator<Item = &'m GroupMember>) -> u32 {
    members.map(|member| u32::from(member.weight)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CheckId;
    use proptest::prelude::*;
    use std::time::Instant;

    fn views(text: &str) -> Vec<CheckView> {
        #[allow(clippy::disallowed_methods, reason = "an instant that nothing depends on")]
        let since = Instant::now();
        let view = |c| {
            let (state, clean) = match c {
                '+' => (CheckState::Passed, true),
                '~' => (CheckState::Passed, false),
                '-' => (CheckState::Failed, false),
                _ => (CheckState::Unknown, false),
            };
            CheckView { state, clean, since, event: None }
        };
        text.chars().map(view).collect()
    }

    fn group(weights: &[u16], at_least: u32) -> Group {
        let member = |(at, weight): (u16, &u16)| GroupMember { check: CheckId(at), weight: *weight };
        Group { members: (0..).zip(weights).map(member).collect(), at_least }
    }

    fn word(group: &Group, members: &str) -> &'static str {
        match judge(group, &views(members)) {
            (CheckState::Passed, true) => "passed",
            (CheckState::Passed, false) => "unclean",
            (CheckState::Failed, _) => "failed",
            (CheckState::Unknown, _) => "unknown",
        }
    }

    #[test]
    fn all_fails_with_its_first_member_and_passes_with_its_last() {
        let all = group(&[1, 1, 1], 3);
        for (members, is) in
            [("+++", "passed"), ("++~", "unclean"), ("++?", "unknown"), ("++-", "failed"), ("-??", "failed")]
        {
            assert_eq!(word(&all, members), is, "{members}");
        }
    }

    #[test]
    fn any_passes_with_its_first_member_and_fails_with_its_last() {
        let any = group(&[1, 1, 1], 1);
        for (members, is) in
            [("+--", "passed"), ("~--", "unclean"), ("~+-", "passed"), ("?--", "unknown"), ("---", "failed")]
        {
            assert_eq!(word(&any, members), is, "{members}");
        }
    }

    #[test]
    fn weights_add_up() {
        let weighted = group(&[3, 2, 1], 4);
        for (members, is) in [
            ("++-", "passed"),
            ("+-+", "passed"),
            ("+--", "failed"),
            ("-++", "failed"),
            ("+-?", "unknown"),
            ("-+?", "failed"),
            ("+~-", "unclean"),
            ("+~+", "passed"),
        ] {
            assert_eq!(word(&weighted, members), is, "{members}");
        }
    }

    proptest! {
        #[test]
        fn a_member_that_gets_better_never_makes_the_group_worse(
            members in prop::collection::vec((1..9_u16, 0..4_usize), 1..6),
            which in any::<prop::sample::Index>(),
            share in 0.0..1.0_f64,
        ) {
            let weights: Vec<u16> = members.iter().map(|(weight, _)| *weight).collect();
            let sum: u32 = weights.iter().map(|weight| u32::from(*weight)).sum();
            let group = group(&weights, 1 + (f64::from(sum - 1) * share) as u32);
            const WORST_FIRST: [char; 4] = ['-', '?', '~', '+'];
            let rank = |text: &str| match word(&group, text) {
                "failed" => 0,
                "unknown" => 1,
                "unclean" => 2,
                _ => 3,
            };
            let text = |states: &[usize]| states.iter().map(|state| WORST_FIRST[*state]).collect::<String>();
            let mut states: Vec<usize> = members.iter().map(|(_, state)| *state).collect();
            let before = rank(&text(&states));
            let which = which.index(states.len());
            states[which] = (states[which] + 1).min(3);
            prop_assert!(rank(&text(&states)) >= before);
        }
    }
}
