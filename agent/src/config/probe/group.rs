//! `all`, `any`, `weighted`: checks that count together. What they name stands before them in the file, so that nothing
//! can depend on itself.

use super::super::schema;
use super::super::tree::{Sink, Table, Value};
use super::super::values::{name, shown};
use super::Later;
use holdfast_node::config::{CheckId, Group, GroupMember, Probe};
use std::ops::Range;

/// Most checks of a group.
const MEMBERS_MAX: usize = 64;
/// Weights that can be told apart by people.
const WEIGHTS: Range<i64> = 1..1001;
const ACCEPTED: &str = "1 to 64 names of [[check]] sections that stand before this one";
const ACCEPTED_WEIGHTED: &str = "1 to 64 of { check = \"NAME\", weight = 1 to 1000 }";

pub(super) fn read(
    key: &str,
    check: &Table<'_>,
    value: &Value<'_>,
    later: &mut Later,
    sink: &mut Sink,
) -> Option<Probe> {
    let accepted = if key == "weighted" { ACCEPTED_WEIGHTED } else { ACCEPTED };
    let items = value.array(accepted, sink)?;
    if items.is_empty() || items.len() > MEMBERS_MAX {
        value.refuse(&format!("has {} elements", items.len()), accepted, sink);
        return None;
    }
    let shared = check.get("shared").and_then(|value| value.as_bool()).unwrap_or(false);
    let mut members: Vec<Option<GroupMember>> = Vec::with_capacity(items.len());
    for item in &items {
        let read = if key == "weighted" {
            weighted(item, later, shared, sink)
        } else {
            member(item, later, shared, sink).map(|check| GroupMember { check, weight: 1 })
        };
        let twice = read.is_some_and(|read| members.iter().flatten().any(|m| m.check == read.check));
        if twice {
            item.refuse("is there twice", "each check once", sink);
        }
        members.push(read.filter(|_| !twice));
    }
    let members: Vec<GroupMember> = members.into_iter().collect::<Option<_>>()?;
    let sum: u32 = members.iter().map(|member| u32::from(member.weight)).sum();
    let at_least = match key {
        "all" => sum,
        "any" => 1,
        _ => at_least(check, sum, sink)?,
    };
    Some(Probe::Group(Group { members, at_least }))
}

fn at_least(check: &Table<'_>, sum: u32, sink: &mut Sink) -> Option<u32> {
    let accepted = format!("1 to {sum}, the sum of the weights");
    let value = check.require("at_least", &accepted, sink)?;
    value.integer_in(1..i64::from(sum) + 1, &accepted, sink).and_then(|n| u32::try_from(n).ok())
}

fn weighted(item: &Value<'_>, later: &mut Later, shared: bool, sink: &mut Sink) -> Option<GroupMember> {
    let table = item.table(ACCEPTED_WEIGHTED, sink)?;
    table.known_keys(&schema::WEIGHTED, sink);
    let check = table.require("check", ACCEPTED, sink).and_then(|value| member(&value, later, shared, sink));
    let weight = table
        .require("weight", "1 to 1000", sink)
        .and_then(|value| value.integer_in(WEIGHTS, "1 to 1000", sink).and_then(|n| u16::try_from(n).ok()));
    Some(GroupMember { check: check?, weight: weight? })
}

/// What is named, if it can be in a group.
fn member(item: &Value<'_>, later: &mut Later, shared: bool, sink: &mut Sink) -> Option<CheckId> {
    let name = name(item, sink)?;
    let Some(known) = later.by_name.get(name.as_str()) else {
        let what = format!("`{}` is no [[check]] that stands before this one", shown(name.as_str()));
        item.refuse(&what, ACCEPTED, sink);
        return None;
    };
    if known.canary {
        item.refuse("is a canary: it decides nothing", "other checks", sink);
        return None;
    }
    if known.shared && !shared {
        item.refuse("is shared: it only ever warns, and so must this group", "shared = true here too", sink);
        return None;
    }
    let id = known.id;
    later.members.insert(id);
    Some(id)
}
