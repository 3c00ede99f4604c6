//! `http`: the URL, what is sent and what must come back.

use super::super::tree::{Sink, Table, Value};
use super::super::values::{is_absolute, shown, target_address, word};
use super::{payload, proxy, tls};
use holdfast_node::config::{Endpoint, Http, HttpMethod, Probe};

const ACCEPTED_HTTP: &str = "http[s]://ip[:port][/path], as \"http://127.0.0.1:80/healthz\", or \
                             http[s]://unix:/absolute/socket[:/path]";
const ACCEPTED_EXPECT: &str = "statuses of 100 to 599 as [200, \"300-399\"]";
/// Longest path or host of a request.
const REQUEST_TEXT_MAX: usize = 1024;
/// Most ranges in `expect`.
const EXPECT_MAX: usize = 32;
const METHODS: [(&str, HttpMethod); 3] =
    [("GET", HttpMethod::Get), ("HEAD", HttpMethod::Head), ("OPTIONS", HttpMethod::Options)];

pub(super) fn read(check: &Table<'_>, value: &Value<'_>, sink: &mut Sink) -> Option<Probe> {
    let expect = statuses(check, sink);
    let given = check.get("host").map(|value| host(&value, sink));
    let method = check.get("method").map_or(Some(HttpMethod::Get), |value| word(&value, &METHODS, sink));
    let body = check.get("body").map(|value| {
        if method == Some(HttpMethod::Head) {
            value.refuse("an answer to HEAD has no body", "body with another method", sink);
            return None;
        }
        payload(&value, sink)
    });
    let proxy = proxy(check, sink);
    let text = value.string(ACCEPTED_HTTP, sink)?;
    let url = Url::parse(text).map_err(|why| value.refuse(&why, ACCEPTED_HTTP, sink)).ok()?;
    let host = given.unwrap_or(Some(url.authority))?;
    let tls = if url.secure {
        Some(tls::read(check, name_of(&host), sink)?)
    } else {
        tls::none(check, "tls, or http with https://", sink)?;
        None
    };
    let body = match body {
        None => None,
        Some(read) => Some(read?),
    };
    let (method, expect) = (method?, expect?);
    Some(Probe::Http(Http { endpoint: url.endpoint, host, path: url.path, method, expect, body, tls, proxy: proxy? }))
}

/// A Host header's name, without the port and the brackets of an IPv6 address.
fn name_of(host: &str) -> &str {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    };
    name.trim_start_matches('[').trim_end_matches(']')
}

/// A URL as far as it can be asked for.
#[derive(Debug)]
struct Url {
    endpoint: Endpoint,
    /// As written; of a socket of this host `localhost`.
    authority: String,
    /// With the query.
    path: String,
    secure: bool,
}

impl Url {
    fn parse(text: &str) -> Result<Self, String> {
        let (rest, secure) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => return Err(format!("`{}` doesn't start with http:// or https://", shown(text))),
        };
        if let Some(rest) = rest.strip_prefix("unix:") {
            let (socket, path) = rest.split_once(':').unwrap_or((rest, "/"));
            is_absolute(socket)?;
            let (endpoint, authority) = (super::unix_socket(socket)?, "localhost".to_owned());
            return Ok(Self { endpoint, authority, path: request_path(path)?, secure });
        }
        let slash = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(slash);
        if authority.contains('@') {
            return Err("user names and passwords are not supported".to_owned());
        }
        let path = request_path(path)?;
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        let port = if secure { 443 } else { 80 };
        let address = if has_port { authority.to_owned() } else { format!("{authority}:{port}") };
        let endpoint = Endpoint::Ip(target_address(&address)?);
        Ok(Self { endpoint, authority: authority.to_owned(), path, secure })
    }
}

/// What can be asked for, with the slash at its beginning.
pub(in super::super) fn request_path(path: &str) -> Result<String, String> {
    if path.len() > REQUEST_TEXT_MAX || !path.bytes().all(|b| b.is_ascii_graphic()) || path.contains('#') {
        return Err("the path has characters that can't be in a request".to_owned());
    }
    Ok(if path.starts_with('/') { path.to_owned() } else { format!("/{path}") })
}

pub(in super::super) fn host(value: &Value<'_>, sink: &mut Sink) -> Option<String> {
    let accepted = "what goes into the Host header, as \"www.example.net\"";
    let text = value.string(accepted, sink)?;
    let fits = !text.is_empty() && text.len() <= REQUEST_TEXT_MAX && text.bytes().all(|b| b.is_ascii_graphic());
    if !fits {
        value.refuse(&format!("`{}` can't be a Host header", shown(text)), accepted, sink);
    }
    fits.then(|| text.to_owned())
}

/// `expect`: what passes.
pub(in super::super) fn statuses(check: &Table<'_>, sink: &mut Sink) -> Option<Vec<(u16, u16)>> {
    check.get("expect").map_or_else(|| Some(vec![(200, 399)]), |value| expect(&value, sink))
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
    fn the_name_of_a_host_has_neither_port_nor_brackets() {
        for (host, name) in [
            ("www.example.net", "www.example.net"),
            ("www.example.net:8443", "www.example.net"),
            ("127.0.0.1:443", "127.0.0.1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
        ] {
            assert_eq!(name_of(host), name);
        }
    }

    #[test]
    fn a_url_is_taken_apart() {
        for (url, address, authority, path) in [
            ("http://127.0.0.1:80/healthz", "127.0.0.1:80", "127.0.0.1:80", "/healthz"),
            ("http://127.0.0.1", "127.0.0.1:80", "127.0.0.1", "/"),
            ("http://127.0.0.1:8080", "127.0.0.1:8080", "127.0.0.1:8080", "/"),
            ("http://127.0.0.1?a=b", "127.0.0.1:80", "127.0.0.1", "/?a=b"),
            ("http://[::1]/x", "[::1]:80", "[::1]", "/x"),
            ("https://127.0.0.1", "127.0.0.1:443", "127.0.0.1", "/"),
            ("https://[::1]:8443/x", "[::1]:8443", "[::1]:8443", "/x"),
            ("http://unix:/run/x.sock:/healthz?a", "unix:/run/x.sock", "localhost", "/healthz?a"),
            ("http://unix:/run/x.sock", "unix:/run/x.sock", "localhost", "/"),
            ("http://[::1]:81/x:1", "[::1]:81", "[::1]:81", "/x:1"),
        ] {
            let read = Url::parse(url).expect(url);
            let parts = (read.endpoint.to_string(), read.authority.as_str(), read.path.as_str());
            assert_eq!(parts, (address.to_owned(), authority, path), "{url}");
            assert_eq!(read.secure, url.starts_with("https"));
        }
    }

    #[test]
    fn a_url_that_could_not_be_sent_is_refused() {
        for (url, why) in [
            ("ftp://127.0.0.1/", "http://"),
            ("https://web/", "names are not resolved"),
            ("http://unix:run/x.sock:/y", "not absolute"),
            ("http://unix:/run/x.sock:/a b", "characters"),
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
            let refused = Url::parse(url).expect_err(url);
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
