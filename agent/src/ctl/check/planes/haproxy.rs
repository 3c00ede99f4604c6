//! haproxy.cfg, as far as it matters to who wraps it. Total: what isn't understood is passed over.

use super::model::{At, Bind, Detection, Front, OwnAnswer, Plane, Pool, shown};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// Words of a line, and lines of all files, that are looked at.
const WORDS_MAX: usize = 256;
const LINES_MAX: usize = 200_000;
/// Proxies that are looked at, and what one of them can have from its `defaults`: each has a copy.
const PROXIES_MAX: usize = 16_384;
const INHERITED_MAX: usize = 64;
/// HAProxy's own defaults.
const INTER: Duration = Duration::from_secs(2);
const FALL: u32 = 3;
/// Reloads that a process should outlive.
const RELOADS_FEW: u64 = 10;
/// Descriptors that connections aren't.
const DESCRIPTORS_ELSE: u64 = 100;
const REMEDY_STOP: &str = "add `hard-stop-after 5m` to `global`: longer than the longest request, shorter than a drain";

#[derive(Debug, Clone, Default)]
struct Params {
    inter: Option<Duration>,
    fastinter: Option<Duration>,
    fall: Option<u32>,
    checked: Option<bool>,
    observes: bool,
}

/// `frontend`, `backend`, `listen`, `defaults`.
#[derive(Debug, Clone, Default)]
struct Proxy {
    kind: String,
    name: String,
    at: At,
    tcp: bool,
    binds: Vec<Bind>,
    monitor_uri: Option<(String, At)>,
    monitor_judges: bool,
    own: Vec<OwnAnswer>,
    pool_acls: Vec<String>,
    monitor_conditions: Vec<String>,
    least: Option<At>,
    http_check: bool,
    timeout_check: Option<Duration>,
    timeout_connect: Option<Duration>,
    default: Params,
    servers: Vec<(Params, At)>,
}

#[derive(Debug, Default)]
struct Global {
    at: At,
    hard_stop: Option<(Option<Duration>, At)>,
    spread: Option<(Option<Duration>, At)>,
    grace: Option<(String, At)>,
    reloads: Option<(u64, At)>,
    maxconn: Option<(u64, At)>,
    ulimit: Option<(u64, At)>,
    hard_limit: Option<(u64, At)>,
}

/// Takes files apart, in the order in which the balancer reads them.
pub(super) fn read(files: &[(String, String)]) -> Plane {
    let mut plane = Plane::default();
    let mut global = Global::default();
    let mut proxies: Vec<Proxy> = Vec::new();
    let mut defaults: HashMap<String, Proxy> = HashMap::new();
    let mut last_defaults = Proxy::default();
    let mut section = String::new();
    let mut seen = 0usize;
    for (file, text) in files {
        for (n, line) in text.lines().enumerate() {
            seen += 1;
            if seen > LINES_MAX {
                let at = At { file: file.clone(), line: n + 1 };
                plane.find("unreadable", &at, "more lines than are looked at", "the rest is unknown", "split it");
                break;
            }
            let at = At { file: file.clone(), line: n + 1 };
            let words = words(line);
            let Some(first) = words.first().map(String::as_str) else { continue };
            if let "global" | "defaults" | "frontend" | "backend" | "listen" = first {
                section = first.to_owned();
                if section == "global" {
                    if global.at.line == 0 {
                        global.at = at;
                    }
                    continue;
                }
                if let Some(ended) = proxies.last().filter(|proxy| proxy.kind == "defaults") {
                    last_defaults = ended.clone();
                    if !ended.name.is_empty() {
                        defaults.insert(ended.name.clone(), ended.clone());
                    }
                }
                if proxies.len() >= PROXIES_MAX {
                    plane.find("unreadable", &at, "more proxies than are looked at", "the rest is unknown", "split it");
                    section = String::new();
                    break;
                }
                let from = words.iter().position(|w| w == "from").and_then(|i| words.get(i + 1));
                let base = from.and_then(|name| defaults.get(name)).unwrap_or(&last_defaults);
                let name = words.get(1).filter(|w| *w != "from").cloned().unwrap_or_default();
                let base = if section == "defaults" && from.is_none() { Proxy::default() } else { base.clone() };
                proxies.push(Proxy { kind: section.clone(), name, at, ..base });
                continue;
            }
            // `peers`, `resolvers`, `userlist` …: a word at the margin begins a section of no interest.
            if !line.starts_with([' ', '\t']) && is_other_section(first) {
                section = String::new();
                continue;
            }
            match section.as_str() {
                "global" => global_line(&mut global, &words, &at),
                "" => {}
                _ => {
                    let Some(proxy) = proxies.last_mut() else { continue };
                    proxy_line(proxy, &words, &at);
                }
            }
        }
    }
    if let (0, Some((file, _))) = (global.at.line, files.first()) {
        global.at = At { file: file.clone(), line: 0 };
    }
    judge_global(&mut plane, &global);
    for proxy in proxies.into_iter().filter(|proxy| proxy.kind != "defaults") {
        take(&mut plane, proxy);
    }
    plane
}

fn is_other_section(word: &str) -> bool {
    const OTHERS: [&str; 16] = [
        "peers",
        "resolvers",
        "userlist",
        "mailers",
        "program",
        "cache",
        "ring",
        "http-errors",
        "fcgi-app",
        "log-forward",
        "crt-store",
        "traces",
        "acme",
        "namespace_list",
        "healthcheck",
        "log-profile",
    ];
    OTHERS.contains(&word)
}

/// As HAProxy splits a line: blanks, quotes, backslashes, a comment at the end.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut begun, mut quote) = (Vec::new(), String::new(), false, None);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (None, '#') => break,
            (None | Some('"'), '\\') => {
                word.extend(chars.next());
                begun = true;
            }
            (None, '"' | '\'') => (quote, begun) = (Some(c), true),
            (Some(open), _) if open == c => quote = None,
            (None, c) if c.is_whitespace() => {
                if std::mem::take(&mut begun) {
                    words.push(std::mem::take(&mut word));
                }
            }
            (_, c) => {
                word.push(c);
                begun = true;
            }
        }
        if words.len() >= WORDS_MAX {
            return words;
        }
    }
    if begun {
        words.push(word);
    }
    words
}

/// A time of HAProxy; without a unit it is `unit`.
fn time(word: &str, unit: &str) -> Option<Duration> {
    let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (number, given) = word.split_at(digits);
    let n: u64 = number.parse().ok()?;
    let micros = match if given.is_empty() { unit } else { given } {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    };
    Some(Duration::from_micros(n.checked_mul(micros)?))
}

fn global_line(global: &mut Global, words: &[String], at: &At) {
    let value = words.get(1).map_or("", String::as_str);
    let number = || Some((value.parse().ok()?, at.clone()));
    match words.first().map_or("", String::as_str) {
        "hard-stop-after" => global.hard_stop = Some((time(value, "ms"), at.clone())),
        "close-spread-time" => global.spread = Some((time(value, "ms"), at.clone())),
        "grace" => global.grace = Some((value.to_owned(), at.clone())),
        "mworker-max-reloads" => global.reloads = number(),
        "maxconn" => global.maxconn = number(),
        "ulimit-n" => global.ulimit = number(),
        "fd-hard-limit" => global.hard_limit = number(),
        _ => {}
    }
}

fn judge_global(plane: &mut Plane, global: &Global) {
    if global.hard_stop.is_none() {
        plane.find(
            "hard-stop-after",
            &global.at,
            "hard-stop-after is not set",
            "an old process stays until its last connection ends: a drain or a reload may never finish",
            REMEDY_STOP,
        );
    }
    if let (Some((Some(stop), _)), Some((spread, at))) = (&global.hard_stop, &global.spread)
        && spread.is_none_or(|spread| spread >= *stop)
    {
        let long = spread.map_or_else(|| "infinite".to_owned(), shown);
        plane.find(
            "close-spread-time",
            at,
            format!("close-spread-time ({long}) is not shorter than hard-stop-after ({})", shown(*stop)),
            "connections that were to be closed gently over that time are cut when the process is stopped",
            format!("make it at most half of hard-stop-after: `close-spread-time {}`", shown(*stop / 2)),
        );
    }
    if let Some((time, at)) = &global.grace {
        plane.find(
            "grace",
            at,
            format!("grace {time} is set"),
            "after each reload the old process goes on accepting for that time, with the old configuration",
            "remove it: the agent moves the VIP first and stops the balancer then",
        );
    }
    match (&global.reloads, &global.hard_stop) {
        (Some((n, at)), _) if *n < RELOADS_FEW => plane.find(
            "mworker-max-reloads",
            at,
            format!("mworker-max-reloads {n}"),
            format!("a process that outlived {n} reloads is killed with the connections that it drains"),
            "use 50 or more, and bound old processes by hard-stop-after",
        ),
        (None, None) => plane.find(
            "mworker-max-reloads",
            &global.at,
            "neither mworker-max-reloads nor hard-stop-after is set",
            "a process that outlived 50 reloads (the default) is killed with the connections that it drains",
            "bound old processes by hard-stop-after, then they don't live that long",
        ),
        _ => {}
    }
    let Some((maxconn, at)) = &global.maxconn else { return };
    // A connection through a proxy is two sockets.
    let need = maxconn.saturating_mul(2).saturating_add(DESCRIPTORS_ELSE);
    let limits = [("ulimit-n", &global.ulimit), ("fd-hard-limit", &global.hard_limit)];
    for (key, (limit, _)) in limits.into_iter().filter_map(|(key, limit)| Some((key, limit.as_ref()?))) {
        if need > *limit {
            plane.find(
                "fd-limit",
                at,
                format!("maxconn {maxconn} needs {need} descriptors, {key} allows {limit}"),
                "connections wait or are refused long before maxconn is reached",
                format!("{key} {need}, or leave it out, or maxconn {}", limit.saturating_sub(DESCRIPTORS_ELSE) / 2),
            );
        }
    }
}

fn proxy_line(proxy: &mut Proxy, words: &[String], at: &At) {
    let word = |n: usize| words.get(n).map_or("", String::as_str);
    let rest = || words.iter().skip(1).map(String::as_str).collect::<Vec<_>>();
    if proxy.kind == "defaults" {
        let inherited = proxy.own.len() + proxy.pool_acls.len();
        // HAProxy takes none of the first there.
        if matches!(word(0), "bind" | "monitor" | "server" | "server-template") || inherited >= INHERITED_MAX {
            return;
        }
    }
    match word(0) {
        "mode" => proxy.tcp = word(1) == "tcp",
        "bind" => proxy.binds.extend(binds(words, at)),
        "monitor-uri" => proxy.monitor_uri = Some((word(1).to_owned(), at.clone())),
        "monitor" if word(1) == "fail" => proxy.monitor_conditions.extend(rest().into_iter().map(str::to_owned)),
        "acl" if rest().iter().any(|w| of_pool(w)) => proxy.pool_acls.push(word(1).to_owned()),
        "http-request" if matches!(word(1), "return" | "redirect" | "deny") => {
            // `if { path /healthz }`: several paths may follow.
            let from = words.iter().position(|w| matches!(w.as_str(), "path" | "path_beg")).unwrap_or(words.len());
            let prefix = words.get(from).is_some_and(|w| w == "path_beg");
            let judges_pool = words.iter().any(|w| of_pool(w));
            let paths = words.iter().skip(from + 1).take_while(|w| *w != "}").filter(|w| w.starts_with('/'));
            let own =
                |path: &String| OwnAnswer { path: path.clone(), prefix, judges_pool, monitor: false, at: at.clone() };
            proxy.own.extend(paths.take(WORDS_MAX).map(own));
        }
        "balance" => proxy.least = (word(1) == "leastconn").then(|| at.clone()),
        "option"
            if matches!(
                word(1),
                "httpchk" | "mysql-check" | "pgsql-check" | "redis-check" | "smtpchk" | "ldap-check"
            ) =>
        {
            proxy.http_check = true;
        }
        "http-check" | "tcp-check" => proxy.http_check = true,
        "timeout" if word(1) == "check" => proxy.timeout_check = time(word(2), "ms"),
        "timeout" if word(1) == "connect" => proxy.timeout_connect = time(word(2), "ms"),
        "default-server" => params(&mut proxy.default, words),
        "server" | "server-template" => {
            let mut own = proxy.default.clone();
            params(&mut own, words.get(3..).unwrap_or_default());
            let n = if word(0) == "server" { 1 } else { template(word(2)) };
            for _ in 0..n.min(4096usize.saturating_sub(proxy.servers.len())) {
                proxy.servers.push((own.clone(), at.clone()));
            }
        }
        _ => {}
    }
}

/// `1-5` or `5`.
fn template(word: &str) -> usize {
    let (from, to) = word.split_once('-').unwrap_or(("1", word));
    let number = |text: &str| text.parse::<usize>().unwrap_or(1);
    (number(to).saturating_sub(number(from))).saturating_add(1).min(4096)
}

/// A condition on what is left of a pool.
fn of_pool(word: &str) -> bool {
    word.starts_with("nbsrv")
        || word.starts_with("srv_is_up")
        || word.starts_with("connslots")
        || word.starts_with("avg_queue")
}

fn params(params: &mut Params, words: &[String]) {
    let mut words = words.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        let mut value = || words.peek().copied().unwrap_or_default();
        match word {
            "check" => params.checked = Some(true),
            "no-check" => params.checked = Some(false),
            "inter" => params.inter = time(value(), "ms").or(params.inter),
            "fastinter" => params.fastinter = time(value(), "ms").or(params.fastinter),
            "fall" => params.fall = value().parse().ok().or(params.fall),
            "observe" => params.observes |= value() == "layer7",
            _ => {}
        }
    }
}

fn binds(words: &[String], at: &At) -> Vec<Bind> {
    let anywhere = words.iter().skip(2).any(|w| w == "transparent");
    let addresses = words.get(1).map_or("", String::as_str);
    addresses.split(',').take(WORDS_MAX).filter_map(|text| bind(text, anywhere, at)).collect()
}

fn bind(text: &str, anywhere: bool, at: &At) -> Option<Bind> {
    let (text, six) = match text.split_once('@') {
        Some(("ipv4", rest)) => (rest, false),
        Some(("ipv6", rest)) => (rest, true),
        Some(_) => return None,
        None => (text, false),
    };
    let (host, ports) = text.rsplit_once(':')?;
    let (from, to) = ports.split_once('-').unwrap_or((ports, ports));
    let ports = (from.parse().ok()?, to.parse().ok()?);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip = match host {
        "" | "*" if six => Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        "" | "*" => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        _ => Some(host.parse::<IpAddr>().ok()?),
    };
    Some(Bind { ip: ip.filter(|ip| !ip.is_unspecified()), ports, anywhere, at: at.clone() })
}

fn take(plane: &mut Plane, mut proxy: Proxy) {
    proxy.monitor_judges = proxy.monitor_conditions.iter().any(|w| of_pool(w) || proxy.pool_acls.contains(w));
    if !proxy.binds.is_empty() {
        let mut own = std::mem::take(&mut proxy.own);
        if let Some((path, at)) = proxy.monitor_uri.take() {
            own.push(OwnAnswer { path, prefix: false, judges_pool: proxy.monitor_judges, monitor: true, at });
        }
        let empty_status = (!proxy.tcp).then_some(503);
        let binds = std::mem::take(&mut proxy.binds);
        plane.fronts.push(Front {
            name: format!("{} {}", proxy.kind, proxy.name),
            binds,
            own,
            empty_status,
            opaque: false,
        });
    }
    if proxy.servers.is_empty() {
        return;
    }
    let checked: Vec<&(Params, At)> = proxy.servers.iter().filter(|(p, _)| p.checked == Some(true)).collect();
    let detection = checked.iter().map(|(params, at)| detection(params, &proxy, at)).max_by_key(|d| d.max);
    let every = checked.iter().map(|(params, _)| params.inter.unwrap_or(INTER)).min();
    let (checked, observed) = (checked.len(), proxy.servers.iter().all(|(p, _)| p.observes));
    if let Some(at) = proxy.least.as_ref().filter(|_| !proxy.http_check && !observed && !proxy.tcp) {
        plane.find(
            "failing-looks-fastest",
            at,
            format!("{} {}: balance leastconn, and only connections are checked", proxy.kind, proxy.name),
            "a backend that fails at once has the fewest connections, and gets the most requests",
            "add `option httpchk`, or `observe layer7` to its servers",
        );
    }
    let backends = proxy.servers.len();
    plane.pools.push(Pool { name: proxy.name, backends, detection, every, checked, at: proxy.at });
}

/// Checks follow each other at `inter` after the end of the one before, at `fastinter` once one has failed.
fn detection(params: &Params, proxy: &Proxy, at: &At) -> Detection {
    let inter = params.inter.unwrap_or(INTER);
    let fast = params.fastinter.unwrap_or(inter);
    let fall = params.fall.unwrap_or(FALL).clamp(1, 1000);
    // Without `timeout check` the whole check may take `inter`; with it, connecting has a limit of its own.
    let connect = proxy.timeout_connect.map_or(Duration::ZERO, |connect| connect.min(inter));
    let timeout = proxy.timeout_check.map_or(inter, |check| check.max(connect));
    let min = (fast.saturating_add(timeout)).saturating_mul(fall - 1).saturating_add(timeout);
    let mut how = format!("inter {}, fall {fall}, timeout {}", shown(inter), shown(timeout));
    if fast != inter {
        how.push_str(&format!(", fastinter {}", shown(fast)));
    }
    Detection { min, max: min.saturating_add(inter), how, at: at.clone() }
}
