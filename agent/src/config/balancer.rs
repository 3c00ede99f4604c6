//! `[[balancer]]`.

use super::schema;
use super::sections::Named;
use super::tree::{Sink, Table, Value};
use super::values::{absolute_path, argv, duration, flat, shown, target_address, word};
use holdfast_node::config::{Admin, Balancer, BalancerKind, HttpAt, POLL, ProcessSource};
use std::path::{Path, PathBuf};
use std::time::Duration;

const KINDS: &str = "haproxy, nginx, envoy, nft, process";
const POLL_MIN: Duration = Duration::from_millis(50);
const POLL_MAX: Duration = Duration::from_secs(60);
/// Most files in `config`.
const FILES_MAX: usize = 64;
/// Longest path of a request.
const PATH_MAX: usize = 1024;

/// One `[[balancer]]`.
pub(super) fn balancer(table: &Table<'_>, sink: &mut Sink) -> Named<Balancer> {
    table.known_keys(&schema::BALANCER, sink);
    let mut named = Named::new(table, sink);
    let kind = table.require("kind", KINDS, sink).and_then(|value| kind(&value, sink));
    let admin = table.get("admin").map(|value| admin(kind, &value, sink));
    let master = table.get("master").map(|value| master(kind, &value, sink));
    let config = table.get("config").map_or_else(|| Some(Vec::new()), |value| files(&value, sink));
    let poll = table.get("poll").map_or(Some(POLL), |value| duration(&value, POLL_MIN, POLL_MAX, sink));
    let source = if kind == Some(BalancerKind::Nft) { kernel(table, sink) } else { source(table, sink) };
    named.item = (|| {
        Some(Balancer {
            name: named.name()?,
            kind: kind?,
            source: source?,
            admin: flat(admin)?,
            master: flat(master)?,
            config: config?,
            poll: poll?,
        })
    })();
    named
}

fn kind(value: &Value<'_>, sink: &mut Sink) -> Option<BalancerKind> {
    if let Some(later @ "ipvs") = value.as_str() {
        value.refuse(&format!("`{later}` is not supported by this version"), KINDS, sink);
        return None;
    }
    use BalancerKind::{Envoy, Haproxy, Nft, Nginx, Process};
    let words = [Haproxy, Nginx, Envoy, Nft, Process];
    word(value, &words.map(|kind| (kind.word(), kind)), sink)
}

/// Where a balancer of this kind is asked; of an unknown kind nothing is said.
fn admin(kind: Option<BalancerKind>, value: &Value<'_>, sink: &mut Sink) -> Option<Admin> {
    match kind? {
        BalancerKind::Haproxy => absolute_path(value, sink).map(Admin::Socket),
        BalancerKind::Nginx => {
            let accepted = "where stub_status answers, as \"http://127.0.0.1:8080/status\" or \
                            \"http://unix:/run/nginx/status.sock:/status\"";
            http(value, accepted, sink)
        }
        BalancerKind::Envoy => {
            let accepted = "\"http://127.0.0.1:9901\", \"http://unix:/run/envoy/admin.sock\"";
            http(value, accepted, sink)
        }
        BalancerKind::Nft | BalancerKind::Process => {
            let what = if kind == Some(BalancerKind::Nft) {
                "the embedded balancer has no admin side: holdfast status shows it"
            } else {
                "a plain process has no admin side"
            };
            value.refuse(what, "admin with kind = \"haproxy\", \"nginx\" or \"envoy\"", sink);
            None
        }
    }
}

fn http(value: &Value<'_>, accepted: &str, sink: &mut Sink) -> Option<Admin> {
    let text = value.string(accepted, sink)?;
    match split(text) {
        Ok((at, path)) => Some(Admin::Http { at, path }),
        Err(why) => {
            value.refuse(&why, accepted, sink);
            None
        }
    }
}

/// Where to connect, and the path; a unix socket as nginx writes it: `http://unix:/socket:/path`.
fn split(text: &str) -> Result<(HttpAt, String), String> {
    let Some(rest) = text.strip_prefix("http://") else {
        return Err(format!("`{}` doesn't start with http://", shown(text)));
    };
    let (at, path) = if let Some(rest) = rest.strip_prefix("unix:") {
        let (socket, path) = rest.split_once(':').unwrap_or((rest, ""));
        if !Path::new(socket).is_absolute() || socket.ends_with('/') || socket.contains('\0') {
            return Err(format!("`{}` is not the absolute path of a socket", shown(socket)));
        }
        (HttpAt::Unix(PathBuf::from(socket)), path)
    } else {
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        let address = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        (HttpAt::Tcp(target_address(&address)?), path)
    };
    let path = if path.is_empty() { "/" } else { path };
    let fits = path.starts_with('/') && path.len() <= PATH_MAX && path.bytes().all(|b| b.is_ascii_graphic());
    if !fits || path.contains('#') {
        return Err(format!("`{}` can't be asked for", shown(path)));
    }
    Ok((at, path.to_owned()))
}

fn master(kind: Option<BalancerKind>, value: &Value<'_>, sink: &mut Sink) -> Option<PathBuf> {
    if kind.is_some_and(|kind| kind != BalancerKind::Haproxy) {
        value.refuse("only HAProxy has a master socket (-S)", "master with kind = \"haproxy\"", sink);
        return None;
    }
    absolute_path(value, sink)
}

fn files(value: &Value<'_>, sink: &mut Sink) -> Option<Vec<PathBuf>> {
    let accepted = "the absolute paths of the balancer's own configuration files";
    let items = if value.is_array() { value.array(accepted, sink)? } else { vec![value.clone()] };
    if items.is_empty() || items.len() > FILES_MAX {
        value.refuse(&format!("has {} elements", items.len()), accepted, sink);
        return None;
    }
    items.iter().map(|item| absolute_path(item, sink)).collect()
}

/// The embedded balancer is no process.
fn kernel(table: &Table<'_>, sink: &mut Sink) -> Option<ProcessSource> {
    for key in ["unit", "command", "pidfile"] {
        if let Some(value) = table.get(key) {
            value.refuse(
                "kind = \"nft\" has no process: the kernel does its work",
                "nothing with kind = \"nft\"",
                sink,
            );
            return None;
        }
    }
    Some(ProcessSource::Kernel)
}

fn source(table: &Table<'_>, sink: &mut Sink) -> Option<ProcessSource> {
    let given: Vec<(&str, Value<'_>)> =
        ["unit", "command", "pidfile"].into_iter().filter_map(|key| Some((key, table.get(key)?))).collect();
    let [(key, value)] = given.as_slice() else {
        let what = if given.is_empty() {
            "doesn't say how its processes are found".to_owned()
        } else {
            format!("has {}", given.iter().map(|(key, _)| *key).collect::<Vec<_>>().join(" and "))
        };
        let accepted = Some("exactly one of unit, command, pidfile".to_owned());
        sink.push(table.place.span.clone(), &table.place.path, what, accepted);
        return None;
    };
    match *key {
        "unit" => unit(value, sink).map(ProcessSource::Unit),
        "command" => argv(value, true, sink).map(ProcessSource::Command),
        _ => absolute_path(value, sink).map(ProcessSource::Pidfile),
    }
}

/// systemd's own rule for unit names, for the one type that has processes of its own and is a balancer.
fn unit(value: &Value<'_>, sink: &mut Sink) -> Option<String> {
    let accepted = "a systemd service, as \"haproxy.service\"";
    let text = value.string(accepted, sink)?;
    let stem = text.strip_suffix(".service").unwrap_or_default();
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b':' | b'-' | b'_' | b'.' | b'\\' | b'@');
    if stem.is_empty() || text.len() > 255 || !stem.bytes().all(fits) || stem.ends_with('@') {
        value.refuse(&format!("`{}` is not a service unit", shown(text)), accepted, sink);
        return None;
    }
    Some(text.to_owned())
}
