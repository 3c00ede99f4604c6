//! What goes with TLS: whom it's spoken to, and what the certificate is held against.

use super::super::tree::{Sink, Table, Value};
use super::super::values::{absolute_path, shown};
use holdfast_node::config::Tls;
use std::net::IpAddr;

/// Keys that only mean something with TLS.
const KEYS: [&str; 4] = ["server_name", "verify", "ca_file", "expiry_warning_days"];
const EXPIRY_WARNING_DAYS: u16 = 14;
const DAYS_ACCEPTED: &str = "0 (never) to 365 days";

/// `name`: the server's, where it isn't given.
pub(super) fn read(check: &Table<'_>, name: &str, sink: &mut Sink) -> Option<Tls> {
    let server_name = match check.get("server_name") {
        Some(value) => server_name(&value, sink),
        None if is_server_name(name) => Some(name.to_owned()),
        None => {
            let path = format!("{}.server_name", check.place.path);
            let what = format!("is missing: `{}` can't be the name of a server", shown(name));
            sink.push(check.place.span.clone(), &path, what, Some(ACCEPTED.to_owned()));
            None
        }
    };
    let verify = check.get("verify").map_or(Some(true), |value| value.boolean(sink));
    let ca_file = check.get("ca_file").map(|value| {
        if verify == Some(false) {
            value.refuse("has no effect with verify = false", "one of them", sink);
            return None;
        }
        absolute_path(&value, sink)
    });
    let days = check.get("expiry_warning_days").map_or(Some(EXPIRY_WARNING_DAYS), |value| {
        value.integer_in(0..366, DAYS_ACCEPTED, sink).and_then(|days| u16::try_from(days).ok())
    });
    let ca_file = match ca_file {
        None => None,
        Some(read) => Some(read?),
    };
    Some(Tls { server_name: server_name?, verify: verify?, ca_file, expiry_warning_days: days? })
}

/// There is no TLS: none of its keys either.
pub(super) fn none(check: &Table<'_>, with: &str, sink: &mut Sink) -> Option<()> {
    let mut right = Some(());
    for value in KEYS.into_iter().filter_map(|key| check.get(key)) {
        value.refuse(&format!("goes with {with} only"), "nothing without TLS", sink);
        right = None;
    }
    right
}

const ACCEPTED: &str = "the name that the certificate must have, as \"www.example.net\", or an address";

fn server_name(value: &Value<'_>, sink: &mut Sink) -> Option<String> {
    let text = value.string(ACCEPTED, sink)?;
    if !is_server_name(text) {
        value.refuse(&format!("`{}` can't be the name of a server", shown(text)), ACCEPTED, sink);
        return None;
    }
    Some(text.to_owned())
}

/// RFC 6066 section 3: a host name without a trailing dot; or an address, which isn't sent.
fn is_server_name(text: &str) -> bool {
    let label = |label: &str| {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    let digits = text.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    text.parse::<IpAddr>().is_ok() || (text.len() <= 253 && text.split('.').all(label) && !digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio_rustls::rustls::pki_types::ServerName;

    #[test]
    fn a_server_name_is_a_host_name_or_an_address() {
        for good in ["www.example.net", "localhost", "a_b.c", "127.0.0.1", "2001:db8::1", &"x".repeat(63)] {
            assert!(is_server_name(good), "{good}");
        }
        for bad in ["", ".", "a.", "-a", "a b", "ä.net", "a..b", "[::1]", "a:1", "1.2.3", &"x".repeat(64)] {
            assert!(!is_server_name(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_can_be_asked_for(text in "[-a-z0-9_.:]{0,20}") {
            if is_server_name(&text) {
                prop_assert!(ServerName::try_from(text.clone()).is_ok(), "{}", text);
            }
        }
    }
}
