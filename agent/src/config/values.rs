//! Single values: from a place in the text to a type that can only be valid.

use super::duration;
use super::tree::{Sink, Value};
use super::vip::host;
use holdfast_node::config::{InterfaceName, Name};
use holdfast_vrrp::Family;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) use duration::shown;

/// Longest path or argument that is taken.
const TEXT_MAX: usize = 4096;
/// Most arguments of a program.
const ARGUMENTS_MAX: usize = 256;

/// What is read of a key that may be absent. Outer `None`: it is there and wrong.
pub(super) fn flat<T>(read: Option<Option<T>>) -> Option<Option<T>> {
    match read {
        None => Some(None),
        Some(read) => read.map(Some),
    }
}

pub(super) fn name(value: &Value<'_>, sink: &mut Sink) -> Option<Name> {
    let text = value.string(Name::ACCEPTED, sink)?;
    let name = Name::new(text);
    if name.is_none() {
        value.refuse(&format!("`{}` is not a name", shown(text)), Name::ACCEPTED, sink);
    }
    name
}

pub(super) fn interface(value: &Value<'_>, sink: &mut Sink) -> Option<InterfaceName> {
    let text = value.string(InterfaceName::ACCEPTED, sink)?;
    let name = InterfaceName::new(text);
    if name.is_none() {
        value.refuse(&format!("`{}` is not an interface name", shown(text)), InterfaceName::ACCEPTED, sink);
    }
    name
}

/// A duration within these bounds, both inclusive.
pub(super) fn duration(value: &Value<'_>, least: Duration, most: Duration, sink: &mut Sink) -> Option<Duration> {
    let accepted = format!("{} to {}, {}", duration::show(least), duration::show(most), duration::ACCEPTED);
    let text = value.string(&accepted, sink)?;
    match duration::parse(text) {
        Ok(given) if (least..=most).contains(&given) => return Some(given),
        Ok(_) => value.refuse(&format!("`{}` is out of range", shown(text)), &accepted, sink),
        Err(why) => value.refuse(&why, &accepted, sink),
    }
    None
}

/// As [`duration`], in whole seconds.
pub(super) fn seconds(
    value: &Value<'_>,
    least: Duration,
    most: Duration,
    accepted: &str,
    sink: &mut Sink,
) -> Option<Duration> {
    let text = value.string(accepted, sink)?;
    match duration::parse(text) {
        Ok(given) if given.subsec_millis() > 0 => {
            value.refuse(&format!("`{}` is not whole seconds", shown(text)), accepted, sink);
        }
        Ok(given) if (least..=most).contains(&given) => return Some(given),
        Ok(_) => value.refuse(&format!("`{}` is out of range", shown(text)), accepted, sink),
        Err(why) => value.refuse(&why, accepted, sink),
    }
    None
}

/// A count of 1..=255.
pub(super) fn count(value: &Value<'_>, sink: &mut Sink) -> Option<u8> {
    value.integer_in(1..256, "1 to 255", sink).and_then(|n| u8::try_from(n).ok())
}

/// `ip:port` with a real address and a port. Names are not resolved: nothing here may wait for DNS.
pub(super) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let Ok(address) = text.parse::<SocketAddr>() else {
        if text.parse::<IpAddr>().is_ok() {
            return Err(format!("`{}` has no port", shown(text)));
        }
        return Err(format!("`{}` is not ip:port (names are not resolved)", shown(text)));
    };
    if address.port() == 0 {
        return Err("port 0 can't be connected to".to_owned());
    }
    Ok(address)
}

/// As [`socket_address`], of something that is connected to.
pub(super) fn target_address(text: &str) -> Result<SocketAddr, String> {
    let address = socket_address(text)?;
    if address.ip().is_unspecified() || address.ip().is_multicast() {
        return Err(format!("{} is not the address of a host", address.ip()));
    }
    Ok(address)
}

/// The address of one host, of this family if one is given.
pub(super) fn host_address(
    value: &Value<'_>,
    family: Option<Family>,
    accepted: &str,
    sink: &mut Sink,
) -> Option<IpAddr> {
    let text = value.string(accepted, sink)?;
    let wrong = match text.parse::<IpAddr>() {
        Ok(ip) if host(ip).is_err() => format!("{ip} is not the address of a host"),
        Ok(ip) if family.is_some_and(|family| family != Family::of(ip)) => format!("{ip} is {}", Family::of(ip)),
        Ok(ip) => return Some(ip),
        Err(_) if text.contains('%') => format!("`{}` has a zone: the interface is a key of its own", shown(text)),
        Err(_) if text.contains('/') => format!("`{}` has a prefix: this is one address", shown(text)),
        Err(_) => format!("`{}` is not an address (names are not resolved)", shown(text)),
    };
    value.refuse(&wrong, accepted, sink);
    None
}

pub(super) fn absolute_path(value: &Value<'_>, sink: &mut Sink) -> Option<PathBuf> {
    let accepted = "an absolute path";
    let text = value.string(accepted, sink)?;
    if let Err(why) = is_absolute(text) {
        value.refuse(&why, accepted, sink);
        return None;
    }
    Some(PathBuf::from(text))
}

pub(super) fn is_absolute(text: &str) -> Result<(), String> {
    if text.len() > TEXT_MAX || text.contains('\0') || text.ends_with('/') {
        return Err(format!("`{}` is not the path of a file", shown(text)));
    }
    if !Path::new(text).is_absolute() {
        return Err(format!("`{}` is not absolute", shown(text)));
    }
    Ok(())
}

/// A program and its arguments. `bare`: the program may be a name that is looked up in PATH.
pub(super) fn argv(value: &Value<'_>, bare: bool, sink: &mut Sink) -> Option<Vec<String>> {
    let accepted = if bare {
        "[\"program\", \"argument\", …] with an absolute path or a name without /"
    } else {
        "[\"/absolute/path\", \"argument\", …] (no shell)"
    };
    let items = value.array(accepted, sink)?;
    if items.is_empty() || items.len() > ARGUMENTS_MAX {
        value.refuse(&format!("has {} elements", items.len()), accepted, sink);
        return None;
    }
    let mut argv = Vec::with_capacity(items.len());
    for (n, item) in items.iter().enumerate() {
        let text = item.string(accepted, sink)?;
        let wrong = if n > 0 {
            (text.contains('\0') || text.len() > TEXT_MAX).then(|| "can't be an argument".to_owned())
        } else if bare && !text.contains('/') {
            (text.is_empty() || text.contains('\0')).then(|| "is not a program".to_owned())
        } else {
            is_absolute(text).err()
        };
        if let Some(wrong) = wrong {
            item.refuse(&wrong, accepted, sink);
            return None;
        }
        argv.push(text.to_owned());
    }
    Some(argv)
}

/// One of a few words.
pub(super) fn word<T: Copy>(value: &Value<'_>, words: &[(&str, T)], sink: &mut Sink) -> Option<T> {
    let accepted = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    let text = value.string(&accepted, sink)?;
    let found = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
    if found.is_none() {
        value.refuse(&format!("`{}` is not known", shown(text)), &accepted, sink);
    }
    found
}

/// A peer's public key.
pub(super) fn public_key(value: &Value<'_>, sink: &mut Sink) -> Option<[u8; 32]> {
    let accepted = "a public key as `holdfast keygen` prints it: 44 characters of base64";
    let text = value.string(accepted, sink)?;
    match holdfast_statesync::decode_key(text) {
        // X25519 with this one gives the same secret with everybody: never a real peer's.
        Ok([0, rest @ ..]) if rest.iter().all(|b| *b == 0) => value.refuse("is the all-zero key", accepted, sink),
        Ok(key) => return Some(key),
        Err(why) => value.refuse(&why.to_string(), accepted, sink),
    }
    None
}
