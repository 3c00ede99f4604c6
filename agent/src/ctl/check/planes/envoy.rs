//! Envoy's bootstrap, YAML or JSON, as far as it matters to who wraps it. Total: what isn't understood is passed over.

use super::model::{At, Bind, Detection, Front, OwnAnswer, Plane, Pool, shown};
use super::yaml::{self, Yaml};
use std::time::Duration;

/// Envoy's own default.
const NO_TRAFFIC: Duration = Duration::from_secs(60);

/// Takes a file apart.
pub(super) fn read(plane: &mut Plane, file: &str, text: &str) {
    let at = |line: usize| At { file: file.to_owned(), line };
    let root = match yaml::parse(text) {
        Ok(root) => root,
        Err((line, why)) => {
            plane.find(
                "unreadable",
                &at(line),
                why,
                "nothing is known of what is in it",
                "see `envoy --mode validate`",
            );
            return;
        }
    };
    for listener in root.each("static_resources.listeners") {
        front(plane, listener, &at);
    }
    for cluster in root.each("static_resources.clusters") {
        pool(plane, cluster, &at);
    }
    if root.at("dynamic_resources").is_some() {
        plane.facts.push(format!("{file}: what dynamic_resources bring isn't in the file, and not looked at"));
    }
    limit(plane, &root, &at);
}

fn limit(plane: &mut Plane, root: &Yaml, at: &dyn Fn(usize) -> At) {
    let monitors = root.each("overload_manager.resource_monitors");
    let named = |monitor: &&Yaml| {
        let name = monitor.get("name").and_then(Yaml::text).unwrap_or_default();
        name.contains("global_downstream_max_connections")
    };
    let listeners = !root.each("static_resources.listeners").is_empty();
    if listeners && !monitors.iter().any(|monitor| named(&monitor)) {
        plane.find(
            "fd-limit",
            &at(root.get("overload_manager").map_or(0, |manager| manager.line)),
            "no limit of connections (overload_manager: envoy.resource_monitors.global_downstream_max_connections)",
            "descriptors run out first: accepting stops, and connections to backends and the admin side fail too",
            "add that monitor with max_active_downstream_connections below half of LimitNOFILE",
        );
    }
}

fn is_true(value: Option<&Yaml>) -> bool {
    value.and_then(Yaml::text) == Some("true")
}

fn bind(address: &Yaml, anywhere: bool, at: &dyn Fn(usize) -> At) -> Option<Bind> {
    let socket = address.get("socket_address")?;
    let port: u16 = socket.get("port_value")?.text()?.parse().ok()?;
    let host = socket.get("address")?;
    let ip = host.text()?.parse().ok().filter(|ip: &std::net::IpAddr| !ip.is_unspecified());
    Some(Bind { ip, ports: (port, port), anywhere, at: at(host.line) })
}

fn front(plane: &mut Plane, listener: &Yaml, at: &dyn Fn(usize) -> At) {
    let anywhere = is_true(listener.get("freebind")) || is_true(listener.get("transparent"));
    let more = listener.each("additional_addresses").iter().filter_map(|a| a.get("address"));
    let addresses = listener.get("address").into_iter().chain(more);
    let binds: Vec<Bind> = addresses.filter_map(|address| bind(address, anywhere, at)).collect();
    let (mut own, mut http, mut opaque) = (Vec::new(), false, false);
    let filters = listener.each("filter_chains").iter().flat_map(|chain| chain.each("filters"));
    for config in filters.filter_map(|filter| filter.get("typed_config")) {
        let kind = config.get("@type").and_then(Yaml::text).unwrap_or_default();
        if !kind.ends_with("HttpConnectionManager") {
            continue;
        }
        http = true;
        opaque |= config.get("rds").is_some();
        for host in config.each("route_config.virtual_hosts") {
            for route in host.each("routes") {
                if route.get("direct_response").is_none() && route.get("redirect").is_none() {
                    continue;
                }
                let Some(matched) = route.get("match") else { continue };
                let path = |key: &str| matched.get(key).and_then(Yaml::text);
                let Some((path, prefix)) = path("path").map(|p| (p, false)).or_else(|| Some((path("prefix")?, true)))
                else {
                    opaque = true;
                    continue;
                };
                let (path, at) = (path.to_owned(), at(route.line));
                own.push(OwnAnswer { path, prefix, judges_pool: false, monitor: false, at });
            }
        }
        for filter in config.each("http_filters").iter().filter_map(|filter| filter.get("typed_config")) {
            let kind = filter.get("@type").and_then(Yaml::text).unwrap_or_default();
            if kind.ends_with("health_check.v3.HealthCheck") && !is_true(filter.get("pass_through_mode")) {
                let paths = filter.each("headers").iter().filter_map(|h| h.at("string_match.exact")?.text());
                let judges_pool = filter.get("cluster_min_healthy_percentages").is_some();
                let at = at(filter.line);
                own.extend(paths.map(|path| {
                    let path = path.to_owned();
                    OwnAnswer { path, prefix: false, judges_pool, monitor: false, at: at.clone() }
                }));
            }
        }
    }
    let name = listener.get("name").and_then(Yaml::text).unwrap_or("listener").to_owned();
    plane.fronts.push(Front { name, binds, own, empty_status: http.then_some(503), opaque });
}

/// A protobuf duration: `1s`, `0.25s`.
fn time(value: Option<&Yaml>) -> Option<Duration> {
    let seconds: f64 = value?.text()?.strip_suffix('s')?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn pool(plane: &mut Plane, cluster: &Yaml, at: &dyn Fn(usize) -> At) {
    let name = cluster.get("name").and_then(Yaml::text).unwrap_or("cluster").to_owned();
    let endpoints = cluster.each("load_assignment.endpoints").iter().map(|l| l.each("lb_endpoints").len());
    let backends = endpoints.fold(0usize, usize::saturating_add);
    let (mut detection, mut every) = (None, None);
    for check in cluster.each("health_checks") {
        let at = at(check.line);
        let (Some(timeout), Some(interval)) = (time(check.get("timeout")), time(check.get("interval"))) else {
            continue;
        };
        let fall: u32 = check.get("unhealthy_threshold").and_then(Yaml::text).and_then(|n| n.parse().ok()).unwrap_or(1);
        let fall = fall.clamp(1, 1000);
        // The next one starts an interval after the end of the one before.
        let min = interval.saturating_add(timeout).saturating_mul(fall - 1).saturating_add(timeout);
        let how = format!("interval {}, unhealthy_threshold {fall}, timeout {}", shown(interval), shown(timeout));
        let found = Detection { min, max: min.saturating_add(interval), how, at: at.clone() };
        detection = detection.into_iter().chain([found]).max_by_key(|d: &Detection| d.max);
        every = every.into_iter().chain([interval]).min();
        let idle = time(check.get("no_traffic_interval")).unwrap_or(NO_TRAFFIC);
        if idle > interval {
            plane.find(
                "no-traffic-interval",
                &at,
                format!("cluster {name}: without traffic its backends are checked every {} only", shown(idle)),
                "a Backup has no traffic: what it knows of its backends is that old when it takes over",
                format!("no_traffic_interval: {}s, as interval is", interval.as_secs_f64()),
            );
        }
    }
    let least = cluster.get("lb_policy").filter(|policy| policy.text() == Some("LEAST_REQUEST"));
    if let Some(policy) = least.filter(|_| cluster.get("outlier_detection").is_none()) {
        plane.find(
            "failing-looks-fastest",
            &at(policy.line),
            format!("cluster {name}: LEAST_REQUEST without outlier_detection"),
            "a backend that fails at once has the fewest requests, and gets the most",
            "add outlier_detection with consecutive_5xx",
        );
    }
    let checked = if every.is_some() { backends } else { 0 };
    plane.pools.push(Pool { name, backends, detection, every, checked, at: at(cluster.line) });
}
