//! Every kind of finding, for the documentation and its test.

/// One kind of finding.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub(super) id: &'static str,
    /// Whose files.
    pub(super) planes: &'static str,
    pub(super) when: &'static str,
    pub(super) consequence: &'static str,
}

const fn rule(id: &'static str, planes: &'static str, when: &'static str, consequence: &'static str) -> Rule {
    Rule { id, planes, when, consequence }
}

pub(super) const RULES: &[Rule] = &[
    rule(
        "hard-stop-after",
        "haproxy",
        "`hard-stop-after` is not set",
        "an old process stays until its last connection ends: a drain or reload may never finish",
    ),
    rule(
        "close-spread-time",
        "haproxy",
        "`close-spread-time` is not shorter than `hard-stop-after`",
        "connections that were to be closed gently are cut",
    ),
    rule(
        "grace",
        "haproxy",
        "`grace` is set",
        "each reload keeps the old process's listeners open so long: it goes on taking new connections",
    ),
    rule(
        "mworker-max-reloads",
        "haproxy",
        "`mworker-max-reloads` is below 10, or neither it nor `hard-stop-after` is set",
        "a process that outlived so many reloads (50 by default) is killed with the connections that it drains",
    ),
    rule(
        "worker-shutdown-timeout",
        "nginx",
        "`worker_shutdown_timeout` is not set",
        "old workers stay until their last client leaves: a drain or reload may never finish",
    ),
    rule(
        "detection-faster",
        "all",
        "a check of ours can fail before the plane has taken a dead backend out",
        "one dead backend of many moves the VIP",
    ),
    rule(
        "detection-slower",
        "all",
        "a check of ours takes more than four times as long as the plane, and more than 10 s",
        "clients see errors long after the plane knows",
    ),
    rule(
        "nonlocal-bind",
        "all",
        "a listener binds to a VIP, without `transparent` (Envoy: `freebind`) or `ip_nonlocal_bind`",
        "the plane can't start or reload on a node that doesn't hold the VIP",
    ),
    rule(
        "pool-empty",
        "all",
        "a check of ours fails when all backends are down",
        "a node whose balancer is well becomes unfit for what no other node does better",
    ),
    rule(
        "fd-limit",
        "all",
        "more connections are allowed than there are descriptors for",
        "connections are accepted late or not at all, long before the plane says that it is full",
    ),
    rule(
        "monitor-uri",
        "haproxy",
        "a check of ours asks `monitor-uri`, and `admin` is not configured",
        "when `maxconn` is reached it isn't answered either: a balancer that is only full looks dead",
    ),
    rule(
        "failing-looks-fastest",
        "haproxy, envoy",
        "`leastconn` (Envoy: `LEAST_REQUEST`) without a check of answers (`observe layer7`, `option httpchk`, \
         `outlier_detection`)",
        "a backend that fails at once has the fewest connections, and gets the most requests",
    ),
    rule(
        "no-traffic-interval",
        "envoy",
        "`no_traffic_interval` is longer than `interval` (default 60 s)",
        "on a node without traffic (a Backup) what is known of the backends is that old when it takes over",
    ),
    rule(
        "probe-rate",
        "all",
        "a backend is checked more than 10 times a second by all nodes together",
        "checks are a load of their own",
    ),
    rule("unreadable", "all", "a file can't be read or taken apart", "nothing is known of what is in it"),
];

/// The table of the documentation.
pub(super) fn table() -> String {
    let mut text = "| finding | files | when | what happens |\n|---|---|---|---|\n".to_owned();
    for Rule { id, planes, when, consequence } in RULES {
        text.push_str(&format!("| `{id}` | {planes} | {when} | {consequence} |\n"));
    }
    text
}
