//! The embedded balancer: its services, and their backends.

use super::{age, table};
use holdfast_node::pool::status::{BackendStatus, PoolStatus, SetStatus};

/// A row for each backend of each set, after the services that come to it.
pub(super) fn rows(pool: &PoolStatus) -> String {
    let sets = (0..).zip(&pool.sets);
    let rows = sets.flat_map(|(id, set)| {
        let users = users(pool, id);
        let each = set.backends.iter().enumerate();
        each.map(move |(at, backend)| row(if at == 0 { &users } else { "" }, set, backend)).collect::<Vec<_>>()
    });
    let mut text = table(&["SERVICE", "BACKEND", "STATE", "SINCE", "SHARE", "NEW FLOWS", "LAST ANSWER"], rows);
    for (id, set) in (0..).zip(&pool.sets).filter(|(_, set)| set.mode != "normal") {
        text.push_str(&format!("  {}: {}\n", users(pool, id), set.mode));
    }
    if let Some(why) = &pool.why {
        text.push_str(&format!("  the table: {}\n", why.replace('\n', " ")));
    }
    text
}

fn row(users: &str, set: &SetStatus, backend: &BackendStatus) -> Vec<String> {
    let share = f64::from(backend.slots) * 100.0 / f64::from(set.slots.max(1));
    let state = if backend.ramping { format!("{} (ramping)", backend.state) } else { backend.state.clone() };
    vec![
        users.to_owned(),
        backend.address.clone(),
        state,
        age(backend.age_ms),
        format!("{share:.1} %"),
        backend.flows.map_or_else(|| "-".to_owned(), |flows| flows.to_string()),
        backend.last.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

/// The services that come to a set.
fn users(pool: &PoolStatus, set: u16) -> String {
    let uses = pool.services.iter().filter(|service| service.addresses.values().any(|of| *of == set));
    let names: Vec<String> = uses.map(|s| format!("{} {}/{}", s.vip, s.protocol, s.port)).collect();
    match names.as_slice() {
        [first, _, _, rest @ ..] if !rest.is_empty() => format!("{first} and {} more", names.len() - 1),
        _ => names.join(", "),
    }
}
