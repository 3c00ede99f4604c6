//! What a check does: `http`, `tcp`, `exec` or `gateway`.

use super::tree::{Sink, Table, Value};
use super::values::{argv, host_address, interface, shown, target_address, word};
use holdfast_node::config::{GatewayMethod, Probe};
use std::net::{IpAddr, SocketAddr};

const ACCEPTED_HTTP: &str = "http://ip[:port][/path], as \"http://127.0.0.1:80/healthz\"";
const ACCEPTED_EXPECT: &str = "statuses of 100 to 599 as [200, \"300-399\"]";
/// Longest path or host of a request.
const REQUEST_TEXT_MAX: usize = 1024;
/// Most ranges in `expect`.
const EXPECT_MAX: usize = 32;

/// Keys that say what is done.
const KINDS: [&str; 4] = ["http", "tcp", "exec", "gateway"];

/// Reads the one of the four that is given.
pub(super) fn read(check: &Table<'_>, sink: &mut Sink) -> Option<Probe> {
    let given: Vec<(&str, Value<'_>)> = KINDS.into_iter().filter_map(|key| Some((key, check.get(key)?))).collect();
    let [(key, value)] = given.as_slice() else {
        let what = match given.as_slice() {
            // `tls` alone was already told as not supported.
            [] if check.get("tls").is_some() => return None,
            [] => "has nothing to do".to_owned(),
            several => format!("has {}", several.iter().map(|(key, _)| *key).collect::<Vec<_>>().join(" and ")),
        };
        let accepted = format!("exactly one of {}", KINDS.join(", "));
        sink.push(check.place.span.clone(), &check.place.path, what, Some(accepted));
        return None;
    };
    if *key != "http" {
        for only_http in ["host", "expect"] {
            if let Some(value) = check.get(only_http) {
                value.refuse("goes with http only", "nothing with tcp, exec or gateway", sink);
            }
        }
    }
    if *key != "gateway" {
        for only_gateway in ["method", "interface"] {
            if let Some(value) = check.get(only_gateway) {
                value.refuse("goes with gateway only", "nothing with http, tcp or exec", sink);
            }
        }
    }
    match *key {
        "http" => http(check, value, sink),
        "tcp" => {
            let accepted = "ip:port, as \"127.0.0.1:80\"";
            let text = value.string(accepted, sink)?;
            let address = target_address(text).map_err(|why| value.refuse(&why, accepted, sink)).ok()?;
            Some(Probe::Tcp { address })
        }
        "exec" => argv(value, false, sink).map(|argv| Probe::Exec { argv }),
        _ => gateway(check, value, sink),
    }
}

fn gateway(check: &Table<'_>, value: &Value<'_>, sink: &mut Sink) -> Option<Probe> {
    let target = host_address(value, None, "the address of a router or another host, as \"192.0.2.1\"", sink);
    let words = [("neighbour", GatewayMethod::Neighbour), ("icmp", GatewayMethod::Icmp)];
    let method = check.get("method").map_or(Some(GatewayMethod::Neighbour), |value| word(&value, &words, sink));
    let interface = check.get("interface").map(|value| interface(&value, sink));
    let (target, method) = (target?, method?);
    let on_link = matches!(target, IpAddr::V6(ip) if ip.is_unicast_link_local());
    if interface.is_none() && (method == GatewayMethod::Neighbour || on_link) {
        let why = if on_link { "a link-local address is one of an interface" } else { "neighbours are asked on one" };
        let path = format!("{}.interface", check.place.path);
        let accepted =
            Some("the interface that the gateway is on; or method = \"icmp\" for as the host routes".to_owned());
        sink.push(check.place.span.clone(), &path, format!("is missing: {why}"), accepted);
        return None;
    }
    let interface = match interface {
        None => None,
        Some(read) => Some(read?),
    };
    Some(Probe::Gateway { target, interface, method })
}

fn http(check: &Table<'_>, value: &Value<'_>, sink: &mut Sink) -> Option<Probe> {
    let expect = check.get("expect").map_or_else(|| Some(vec![(200, 399)]), |value| expect(&value, sink));
    let host = check.get("host").map(|value| host(&value, sink));
    let text = value.string(ACCEPTED_HTTP, sink)?;
    let (address, authority, path) = split_url(text).map_err(|why| value.refuse(&why, ACCEPTED_HTTP, sink)).ok()?;
    let host = host.unwrap_or(Some(authority))?;
    Some(Probe::Http { address, host, path, expect: expect? })
}

/// Address, authority as written, path with query.
fn split_url(text: &str) -> Result<(SocketAddr, String, String), String> {
    let Some(rest) = text.strip_prefix("http://") else {
        if text.starts_with("https://") {
            return Err("https is not supported by this version".to_owned());
        }
        return Err(format!("`{}` doesn't start with http://", shown(text)));
    };
    let slash = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(slash);
    if authority.contains('@') {
        return Err("user names and passwords are not supported".to_owned());
    }
    if path.len() > REQUEST_TEXT_MAX || !path.bytes().all(|b| b.is_ascii_graphic()) || path.contains('#') {
        return Err("the path has characters that can't be in a request".to_owned());
    }
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let address = if has_port { authority.to_owned() } else { format!("{authority}:80") };
    Ok((target_address(&address)?, authority.to_owned(), path))
}

fn host(value: &Value<'_>, sink: &mut Sink) -> Option<String> {
    let accepted = "what goes into the Host header, as \"www.example.net\"";
    let text = value.string(accepted, sink)?;
    let fits = !text.is_empty() && text.len() <= REQUEST_TEXT_MAX && text.bytes().all(|b| b.is_ascii_graphic());
    if !fits {
        value.refuse(&format!("`{}` can't be a Host header", shown(text)), accepted, sink);
    }
    fits.then(|| text.to_owned())
}

fn expect(value: &Value<'_>, sink: &mut Sink) -> Option<Vec<(u16, u16)>> {
    let items = value.array(ACCEPTED_EXPECT, sink)?;
    if items.is_empty() || items.len() > EXPECT_MAX {
        value.refuse(&format!("has {} elements", items.len()), ACCEPTED_EXPECT, sink);
        return None;
    }
    let mut ranges = Vec::with_capacity(items.len());
    for item in &items {
        if let Some(text) = item.as_str() {
            let Some(range) = status_range(text) else {
                item.refuse(&format!("`{}` is not a range of statuses", shown(text)), ACCEPTED_EXPECT, sink);
                return None;
            };
            ranges.push(range);
        } else {
            let status = item.integer_in(100..600, ACCEPTED_EXPECT, sink).and_then(|n| u16::try_from(n).ok())?;
            ranges.push((status, status));
        }
    }
    Some(ranges)
}

fn status_range(text: &str) -> Option<(u16, u16)> {
    let (from, to) = text.split_once('-')?;
    let status = |text: &str| {
        let three_digits = text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|n: &u16| three_digits && (100..600).contains(n))
    };
    let (from, to) = (status(from)?, status(to)?);
    (from <= to).then_some((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        for (url, address, authority, path) in [
            ("http://127.0.0.1:80/healthz", "127.0.0.1:80", "127.0.0.1:80", "/healthz"),
            ("http://127.0.0.1", "127.0.0.1:80", "127.0.0.1", "/"),
            ("http://127.0.0.1:8080", "127.0.0.1:8080", "127.0.0.1:8080", "/"),
            ("http://127.0.0.1?a=b", "127.0.0.1:80", "127.0.0.1", "/?a=b"),
            ("http://[::1]/x", "[::1]:80", "[::1]", "/x"),
            ("http://[::1]:81/x:1", "[::1]:81", "[::1]:81", "/x:1"),
        ] {
            let (a, h, p) = split_url(url).expect(url);
            assert_eq!((a.to_string().as_str(), h.as_str(), p.as_str()), (address, authority, path), "{url}");
        }
    }

    #[test]
    fn a_url_that_could_not_be_sent_is_refused() {
        for (url, why) in [
            ("ftp://127.0.0.1/", "http://"),
            ("https://127.0.0.1/", "https is not supported"),
            ("http://web/healthz", "names are not resolved"),
            ("http://a:b@127.0.0.1/", "passwords"),
            ("http://127.0.0.1:0/", "port 0"),
            ("http://127.0.0.1:99999/", "not ip:port"),
            ("http://0.0.0.0/", "not the address of a host"),
            ("http://127.0.0.1/a b", "characters"),
            ("http://127.0.0.1/a\r\nX: y", "characters"),
            ("http://127.0.0.1/#top", "characters"),
            ("http://", "not ip:port"),
        ] {
            let refused = split_url(url).expect_err(url);
            assert!(refused.contains(why), "{url}: {refused}");
        }
    }

    #[test]
    fn a_status_range_goes_upwards_within_100_to_599() {
        assert_eq!(status_range("200-299"), Some((200, 299)));
        for bad in ["299-200", "200", "99-200", "200-600", "+20-299", "200-", "2xx"] {
            assert_eq!(status_range(bad), None, "{bad}");
        }
    }
}
