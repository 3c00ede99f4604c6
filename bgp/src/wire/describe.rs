//! A message in words, as lines within lines: what `holdfast bgp decode` prints.

use std::fmt;

use super::attribute::{Attribute, AttributeValue, Name, OPTIONAL, PARTIAL, Segment, TRANSITIVE};
use super::capability::family_name;
use super::community::{Extended, Large, Standard};
use super::{Codec, Frame, Message, MessageType, Notification, Open, Update, decode};
use crate::types::{Family, Prefix};

/// Bytes in hex, the first 64 of them.
pub(super) struct Hex<'a>(pub(super) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 64;
        for byte in self.0.iter().take(SHOWN) {
            write!(f, "{byte:02x}")?;
        }
        if self.0.len() > SHOWN { write!(f, "… ({} bytes)", self.0.len()) } else { Ok(()) }
    }
}

/// A line, and the lines below it; [`Display`](fmt::Display) indents those by two spaces.
///
/// ```
/// use holdfast_bgp::wire::{Codec, Description, Frame};
///
/// let keepalive = [&[0xff; 16][..], &[0, 19, 4]].concat();
/// let (frame, _) = Frame::split(&keepalive, false)?.expect("a whole message");
/// assert_eq!(Description::of(&frame, &Codec::guess(&frame)).to_string(), "KEEPALIVE, 19 bytes");
/// # Ok::<(), holdfast_bgp::wire::HeaderError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Description {
    /// The line, without its end. What a peer chose freely is escaped.
    pub text: String,
    /// What stands below it.
    pub children: Vec<Self>,
}

impl Description {
    fn line(text: impl Into<String>) -> Self {
        Self { text: text.into(), children: Vec::new() }
    }

    fn list<T: fmt::Display>(text: impl Into<String>, items: impl IntoIterator<Item = T>) -> Self {
        Self { text: text.into(), children: items.into_iter().map(|item| Self::line(item.to_string())).collect() }
    }

    /// A message in words, or why it's refused and what its sender would be told.
    pub fn of(frame: &Frame<'_>, codec: &Codec) -> Self {
        let head = format!("{}, {} bytes", frame.kind, frame.bytes.len());
        match decode(frame, codec) {
            Ok(message) => {
                let mut description = message.describe();
                // "NOTIFICATION: Cease" keeps what it says.
                let said = description.text.strip_prefix(&frame.kind.to_string()).unwrap_or_default();
                description.text = format!("{head}{said}");
                description
            }
            Err(error) => {
                let mut children = vec![Self::line(format!("refused: {error}"))];
                children.extend(error.notification().map(|answer| Self::line(format!("answer: {answer}"))));
                children.push(Self::line(format!("body: {}", Hex(frame.body))));
                Self { text: head, children }
            }
        }
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Three levels deep at most: a message, its parts, their items.
        fn lines(f: &mut fmt::Formatter<'_>, description: &Description, depth: usize) -> fmt::Result {
            write!(f, "{:indent$}{}", "", description.text, indent = 2 * depth)?;
            for child in &description.children {
                f.write_str("\n")?;
                lines(f, child, depth + 1)?;
            }
            Ok(())
        }
        lines(f, self, 0)
    }
}

impl Codec {
    /// What was probably negotiated, seen from one message: for a tool that wasn't there. It takes what we can read
    /// ([`Self::LENIENT`]), and two-octet AS numbers where only they make sense of an UPDATE.
    pub fn guess(frame: &Frame<'_>) -> Self {
        if frame.kind != MessageType::Update {
            return Self::LENIENT;
        }
        let two = Self { four_octet_as: false, ..Self::LENIENT };
        let faults = |codec| Update::decode(frame.body, codec).map_or(usize::MAX, |update| update.faults.len());
        if faults(&two) < faults(&Self::LENIENT) { two } else { Self::LENIENT }
    }
}

impl Message {
    /// In words. What comes of a frame, [`Description::of`] tells with its length, and with its error if it's refused.
    pub fn describe(&self) -> Description {
        match self {
            Self::Open(open) => describe_open(open),
            Self::Update(update) => describe_update(update),
            Self::Notification(notification) => describe_notification(notification),
            Self::Keepalive => Description::line("KEEPALIVE"),
            Self::RouteRefresh(refresh) => Description::line(format!("ROUTE-REFRESH: {refresh}")),
        }
    }
}

fn describe_open(open: &Open) -> Description {
    let hold = match open.hold_time_s {
        0 => String::from("hold time 0: no keepalives"),
        seconds => format!("hold time {seconds} s"),
    };
    let mut children = vec![
        Description::line(format!("AS {}", open.asn)),
        Description::line(format!("identifier {}", open.router_id)),
        Description::line(hold),
    ];
    if !open.capabilities.is_empty() {
        children.push(Description::list("capabilities", &open.capabilities));
    }
    Description { text: String::from("OPEN"), children }
}

fn describe_notification(notification: &Notification) -> Description {
    let mut children = vec![Description::line(format!("code {}, subcode {}", notification.code, notification.subcode))];
    if !notification.data.is_empty() {
        children.push(Description::line(format!("data: {}", Hex(&notification.data))));
    }
    Description { text: format!("NOTIFICATION: {notification}"), children }
}

fn describe_update(update: &Update) -> Description {
    if let Some(family) = update.end_of_rib() {
        return Description {
            text: String::from("UPDATE"),
            children: vec![Description::line(format!("End-of-RIB of {family} unicast"))],
        };
    }
    let mut children = Vec::new();
    children.extend(prefixes("withdrawn", &update.withdrawn));
    if !update.attributes.is_empty() {
        children.push(Description {
            text: String::from("attributes"),
            children: update.attributes.iter().map(describe_attribute).collect(),
        });
    }
    children.extend(prefixes("announced", &update.announced));
    if !update.faults.is_empty() {
        let faults = update.faults.iter().map(|fault| format!("{fault}: {}", fault.reaction()));
        children.push(Description::list("wrong", faults));
    }
    Description { text: String::from("UPDATE"), children }
}

fn prefixes(what: &str, prefixes: &[Prefix]) -> Option<Description> {
    (!prefixes.is_empty()).then(|| Description::list(what, prefixes))
}

fn describe_attribute(attribute: &Attribute) -> Description {
    let name = Name(attribute.value.code());
    let partial = if attribute.flags & PARTIAL == 0 { "" } else { " (partial)" };
    let mut description = match &attribute.value {
        AttributeValue::MpReach { family, next_hop, prefixes } => {
            Description::list(format!("{name}: {}, next hop {next_hop}", unicast(*family)), prefixes)
        }
        AttributeValue::MpUnreach { family, prefixes } => {
            Description::list(format!("{name}: {}", unicast(*family)), prefixes)
        }
        value => Description::line(match in_words(value) {
            words if words.is_empty() => name.to_string(),
            words => format!("{name}: {words}"),
        }),
    };
    description.text.push_str(partial);
    if let AttributeValue::Other { .. } = attribute.value {
        let kind = match (attribute.flags & OPTIONAL != 0, attribute.flags & TRANSITIVE != 0) {
            (true, true) => "optional transitive",
            (true, false) => "optional",
            (false, _) => "well-known",
        };
        description.text = format!("{kind} {}", description.text);
    }
    description
}

fn unicast(family: Family) -> String {
    family_name(family.afi(), family.safi())
}

/// What an attribute says, in one line; empty where its name says it all.
fn in_words(value: &AttributeValue) -> String {
    match value {
        AttributeValue::Origin(origin) => origin.to_string(),
        AttributeValue::AsPath(path) | AttributeValue::As4Path(path) => describe_path(path),
        AttributeValue::NextHop(address) | AttributeValue::OriginatorId(address) => address.to_string(),
        AttributeValue::Med(value) | AttributeValue::LocalPref(value) => value.to_string(),
        AttributeValue::AtomicAggregate => String::new(),
        AttributeValue::Aggregator(asn, by) | AttributeValue::As4Aggregator(asn, by) => format!("AS {asn} by {by}"),
        AttributeValue::Communities(list) => joined(list.iter().map(|value| Standard(*value))),
        AttributeValue::ClusterList(list) => joined(list),
        AttributeValue::ExtendedCommunities(list) => {
            list.iter().map(|value| Extended(*value).to_string()).collect::<Vec<_>>().join(", ")
        }
        AttributeValue::LargeCommunities(list) => joined(list.iter().map(|value| Large(*value))),
        AttributeValue::MpReachOther { afi, safi, next_hop, nlri } => {
            format!("{}, next hop {}, prefixes {}", family_name(*afi, *safi), Hex(next_hop), Hex(nlri))
        }
        AttributeValue::MpUnreachOther { afi, safi, nlri } => {
            format!("{}, prefixes {}", family_name(*afi, *safi), Hex(nlri))
        }
        AttributeValue::Other { value, .. } => Hex(value).to_string(),
        // These have lines of their own.
        AttributeValue::MpReach { .. } | AttributeValue::MpUnreach { .. } => String::new(),
    }
}

fn describe_path(path: &[Segment]) -> String {
    if path.is_empty() { String::from("empty") } else { joined(path) }
}

fn joined<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(" ")
}
