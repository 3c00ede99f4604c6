//! nginx.conf, as far as it matters to who wraps it. Total: what isn't understood is passed over.

use super::model::{At, Bind, Detection, Front, OwnAnswer, Plane, Pool, shown};
use std::net::IpAddr;
use std::time::Duration;

/// Blocks in blocks, and directives in all files, that are looked at.
const DEPTH_MAX: usize = 32;
const DIRECTIVES_MAX: usize = 200_000;
const INCLUDES_MAX: usize = 256;
/// Without `worker_rlimit_nofile` a worker has what the unit gives: systemd's default.
const FILES: u64 = 1024;
const FILES_ELSE: u64 = 32;
/// nginx's own defaults.
const CONNECTIONS: u64 = 512;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// A directive with its arguments, and the block that follows it.
#[derive(Debug, Clone, Default)]
struct Directive {
    name: String,
    args: Vec<String>,
    block: Vec<Self>,
    at: At,
}

impl Directive {
    fn arg(&self, n: usize) -> &str {
        self.args.get(n).map_or("", String::as_str)
    }
}

/// What `include` names.
pub(super) type Include<'f> = &'f dyn Fn(&str) -> Included;

/// Name and text of each file, and why others aren't among them.
#[derive(Debug, Default)]
pub(super) struct Included {
    pub(super) files: Vec<(String, String)>,
    pub(super) missing: Vec<String>,
}

struct Reader<'f> {
    include: Include<'f>,
    includes: usize,
    directives: usize,
    problems: Vec<(At, String)>,
}

/// Takes the main file apart, and what it includes.
pub(super) fn read(file: &str, text: &str, include: Include<'_>) -> Plane {
    let mut plane = Plane::default();
    let mut reader = Reader { include, includes: 0, directives: 0, problems: Vec::new() };
    let main = reader.file(file, text, 0);
    for (at, why) in reader.problems {
        plane.find("unreadable", &at, why, "nothing is known of what is in it", "see that `nginx -t` accepts it");
    }
    let top = At { file: file.to_owned(), line: 0 };
    judge_main(&mut plane, &main, &top);
    for block in &main {
        match block.name.as_str() {
            "http" => http(&mut plane, &block.block),
            "stream" => stream(&mut plane, &block.block),
            _ => {}
        }
    }
    plane
}

/// What of a text is one.
enum Token {
    Word(String),
    Open,
    Close,
    End,
}

/// Words with the line they begin at.
fn tokens(text: &str) -> Vec<(Token, usize)> {
    let mut tokens = Vec::new();
    let (mut line, mut begun_at) = (1, 1);
    let (mut word, mut begun) = (String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let flush = |tokens: &mut Vec<(Token, usize)>, word: &mut String, begun: &mut bool| {
            if std::mem::take(begun) {
                tokens.push((Token::Word(std::mem::take(word)), begun_at));
            }
        };
        match c {
            '\n' => {
                flush(&mut tokens, &mut word, &mut begun);
                line += 1;
            }
            c if c.is_whitespace() => flush(&mut tokens, &mut word, &mut begun),
            '#' if !begun => while chars.next_if(|c| *c != '\n').is_some() {},
            '"' | '\'' if !begun => {
                (begun, begun_at) = (true, line);
                while let Some(inside) = chars.next() {
                    match inside {
                        '\\' => word.extend(chars.next()),
                        inside if inside == c => break,
                        inside => {
                            line += usize::from(inside == '\n');
                            word.push(inside);
                        }
                    }
                }
            }
            // `${name}` is part of a word.
            '$' if chars.peek() == Some(&'{') => {
                if !std::mem::replace(&mut begun, true) {
                    begun_at = line;
                }
                word.push(c);
                while let Some(inside) = chars.next_if(|c| *c != '}' && *c != '\n') {
                    word.push(inside);
                }
                word.extend(chars.next_if(|c| *c == '}'));
            }
            ';' | '{' | '}' => {
                flush(&mut tokens, &mut word, &mut begun);
                let token = match c {
                    ';' => Token::End,
                    '{' => Token::Open,
                    _ => Token::Close,
                };
                tokens.push((token, line));
            }
            '\\' => {
                if !std::mem::replace(&mut begun, true) {
                    begun_at = line;
                }
                word.extend(chars.next());
            }
            c => {
                if !std::mem::replace(&mut begun, true) {
                    begun_at = line;
                }
                word.push(c);
            }
        }
    }
    if begun {
        tokens.push((Token::Word(word), begun_at));
    }
    tokens
}

impl Reader<'_> {
    fn file(&mut self, file: &str, text: &str, depth: usize) -> Vec<Directive> {
        let mut open: Vec<Directive> = vec![Directive::default()];
        let mut words: Vec<(String, usize)> = Vec::new();
        for (token, line) in tokens(text) {
            let at = At { file: file.to_owned(), line };
            match token {
                Token::Word(word) => words.push((word, line)),
                Token::End => {
                    let Some(directive) = directive(&mut words, file) else { continue };
                    let some = if directive.name == "include" {
                        self.included(&directive, depth + open.len())
                    } else {
                        vec![directive]
                    };
                    self.directives += some.len();
                    if let Some(parent) = open.last_mut() {
                        parent.block.extend(some);
                    }
                }
                Token::Open => {
                    open.push(directive(&mut words, file).unwrap_or_default());
                    if open.len() > DEPTH_MAX {
                        self.problems.push((at, "more blocks in blocks than are looked at".to_owned()));
                        break;
                    }
                }
                Token::Close => {
                    words.clear();
                    if open.len() < 2 {
                        self.problems.push((at, "a block ends that didn't begin".to_owned()));
                        continue;
                    }
                    close(&mut open);
                    self.directives += 1;
                }
            }
            if self.directives > DIRECTIVES_MAX {
                let at = At { file: file.to_owned(), line };
                self.problems.push((at, "more directives than are looked at".to_owned()));
                break;
            }
        }
        while open.len() > 1 {
            close(&mut open);
        }
        open.pop().map(|root| root.block).unwrap_or_default()
    }

    fn included(&mut self, directive: &Directive, depth: usize) -> Vec<Directive> {
        self.includes += 1;
        if depth > DEPTH_MAX || self.includes > INCLUDES_MAX {
            let why = format!("include {}: more includes than are followed", directive.arg(0));
            if self.includes <= INCLUDES_MAX + 1 {
                self.problems.push((directive.at.clone(), why));
            }
            return Vec::new();
        }
        let Included { files, missing } = (self.include)(directive.arg(0));
        for why in missing {
            self.problems.push((directive.at.clone(), format!("include {}: {why}", directive.arg(0))));
        }
        files.iter().flat_map(|(name, text)| self.file(name, text, depth + 1)).collect()
    }
}

fn directive(words: &mut Vec<(String, usize)>, file: &str) -> Option<Directive> {
    let mut words = std::mem::take(words).into_iter();
    let (name, line) = words.next()?;
    let at = At { file: file.to_owned(), line };
    Some(Directive { name, args: words.map(|(word, _)| word).collect(), block: Vec::new(), at })
}

fn close(open: &mut Vec<Directive>) {
    if let Some(done) = open.pop()
        && let Some(parent) = open.last_mut()
    {
        parent.block.push(done);
    }
}

/// A time of nginx: `30s`, `1m30s`, `500ms`; without a unit seconds.
fn time(word: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = word;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let unit_len = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_len);
        let n: u64 = number.parse().ok()?;
        let ms = match unit {
            "ms" => 1,
            "" | "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total = total.checked_add(Duration::from_millis(n.checked_mul(ms)?))?;
        rest = after;
    }
    (!word.is_empty()).then_some(total)
}

fn find<'d>(block: &'d [Directive], name: &str) -> Option<&'d Directive> {
    block.iter().rev().find(|directive| directive.name == name)
}

fn judge_main(plane: &mut Plane, main: &[Directive], top: &At) {
    if find(main, "worker_shutdown_timeout").is_none() {
        plane.find(
            "worker-shutdown-timeout",
            top,
            "worker_shutdown_timeout is not set",
            "old workers stay until their last client leaves: a drain or a reload may never finish",
            "add `worker_shutdown_timeout 5m;` to the main block: longer than the longest request, shorter than a drain",
        );
    }
    let events = find(main, "events").and_then(|events| find(&events.block, "worker_connections"));
    let connections = events.map_or(CONNECTIONS, |d| d.arg(0).parse().unwrap_or(CONNECTIONS));
    let limit = find(main, "worker_rlimit_nofile");
    let files = limit.map_or(FILES, |d| d.arg(0).parse().unwrap_or(FILES));
    // Both sides of a proxied connection count against worker_connections.
    let need = connections.saturating_add(FILES_ELSE);
    if need > files {
        let has = match limit {
            Some(_) => format!("worker_rlimit_nofile allows {files}"),
            None => format!("without worker_rlimit_nofile a worker has {files} under systemd"),
        };
        plane.find(
            "fd-limit",
            events.map_or(top, |d| &d.at),
            format!("worker_connections {connections} needs {need} descriptors, {has}"),
            "accepting stops (`Too many open files`) before worker_connections is reached",
            format!("add `worker_rlimit_nofile {};` to the main block", need.next_power_of_two()),
        );
    }
}

/// The longest `proxy_connect_timeout` of a block and all that is in it: which of them counts for an upstream, whoever
/// passes to it says.
fn connect_timeout(block: &[Directive]) -> Option<Duration> {
    let own = find(block, "proxy_connect_timeout").and_then(|d| time(d.arg(0)));
    block.iter().map(|d| connect_timeout(&d.block)).chain([own]).flatten().max()
}

fn http(plane: &mut Plane, block: &[Directive]) {
    let connect = connect_timeout(block).unwrap_or(CONNECT_TIMEOUT);
    for upstream in block.iter().filter(|d| d.name == "upstream") {
        let servers: Vec<&Directive> = upstream.block.iter().filter(|d| d.name == "server").collect();
        let fails = |d: &&Directive| {
            let given = d.args.iter().find_map(|a| a.strip_prefix("max_fails="));
            given.and_then(|n| n.parse::<u32>().ok()).unwrap_or(1).min(1000)
        };
        // 0: never taken out.
        let slowest = servers.iter().max_by_key(|d| fails(d));
        let detection = slowest.filter(|d| fails(d) > 0).map(|d| {
            let n = fails(d);
            let all = connect.saturating_mul(n);
            let how = format!("max_fails {n}, proxy_connect_timeout {}", shown(connect));
            Detection { min: Duration::ZERO, max: all, how, at: d.at.clone() }
        });
        let name = upstream.arg(0).to_owned();
        let backends = servers.len();
        plane.pools.push(Pool { name, backends, detection, every: None, checked: 0, at: upstream.at.clone() });
    }
    for server in block.iter().filter(|d| d.name == "server") {
        front(plane, server);
    }
}

fn front(plane: &mut Plane, server: &Directive) {
    let mut binds: Vec<Bind> = server.block.iter().filter(|d| d.name == "listen").filter_map(bind).collect();
    if !server.block.iter().any(|d| d.name == "listen") {
        binds.push(Bind { ip: None, ports: (80, 80), anywhere: false, at: server.at.clone() });
    }
    let mut own = Vec::new();
    let mut opaque = false;
    let mut proxied = false;
    for location in server.block.iter().filter(|d| d.name == "location") {
        let (exact, path) = match location.arg(0) {
            "=" => (true, location.arg(1)),
            "^~" => (false, location.arg(1)),
            "~" | "~*" => {
                opaque = true;
                continue;
            }
            path => (false, path),
        };
        let asks = ["proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass"];
        if location.block.iter().any(|d| asks.contains(&d.name.as_str())) {
            proxied = true;
            continue;
        }
        if location
            .block
            .iter()
            .any(|d| matches!(d.name.as_str(), "return" | "stub_status" | "root" | "alias" | "empty_gif"))
        {
            let (path, at) = (path.to_owned(), location.at.clone());
            own.push(OwnAnswer { path, prefix: !exact, judges_pool: false, monitor: false, at });
        }
    }
    // `return` of the whole server, or nothing is proxied: all of it is nginx's own.
    if server.block.iter().any(|d| d.name == "return") || !proxied && !opaque {
        let at = server.at.clone();
        own.push(OwnAnswer { path: "/".to_owned(), prefix: true, judges_pool: false, monitor: false, at });
    } else if own.iter().any(|own| own.path == "/" && own.prefix) {
        // Requests that no longer location takes: some of these are proxied, and which can't be told from prefixes alone.
        opaque = true;
    }
    let name = find(&server.block, "server_name").map_or("server", |d| d.arg(0)).to_owned();
    plane.fronts.push(Front { name, binds, own, empty_status: Some(502), opaque });
}

fn stream(plane: &mut Plane, block: &[Directive]) {
    for server in block.iter().filter(|d| d.name == "server") {
        let binds = server.block.iter().filter(|d| d.name == "listen").filter_map(bind).collect();
        let name = "stream server".to_owned();
        plane.fronts.push(Front { name, binds, own: Vec::new(), empty_status: None, opaque: false });
    }
}

fn bind(listen: &Directive) -> Option<Bind> {
    let text = listen.arg(0);
    if text.starts_with("unix:") {
        return None;
    }
    let port = |text: &str| -> Option<(u16, u16)> {
        let (from, to) = text.split_once('-').unwrap_or((text, text));
        Some((from.parse().ok()?, to.parse().ok()?))
    };
    let at = listen.at.clone();
    if let Some(ports) = port(text) {
        return Some(Bind { ip: None, ports, anywhere: false, at });
    }
    let (host, ports) = match text.rsplit_once(':') {
        Some((host, ports)) if !ports.contains(']') => (host, port(ports)?),
        _ => (text, (80, 80)),
    };
    let ip = match host.trim_start_matches('[').trim_end_matches(']') {
        "*" => None,
        host => Some(host.parse::<IpAddr>().ok()?),
    };
    Some(Bind { ip: ip.filter(|ip| !ip.is_unspecified()), ports, anywhere: false, at })
}
