//! Policy rules that move with a VIP: add, remove, list ours, with the socket of [`super::route`].
//!
//! What this module refuses to do: decide, retry, or touch a rule of another.

use super::netlink::{Message, attributes, push_attribute};
use super::route::{PROTOCOL, Prefix, RouteSocket, TABLE_MAIN, check, family_number, parse_ip, parse_u32, push_ip};
use holdfast_node::config;
use holdfast_node::io::StepError;
use holdfast_node::kernel;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use std::fmt;
use std::io;
use std::net::IpAddr;

const RTM_NEWRULE: u16 = 32;
pub(super) const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;

/// `struct fib_rule_hdr`: family, destination length, source length, tos, table, two reserved, action, flags.
const RULE_HEADER: usize = 12;

const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_PROTOCOL: u16 = 21;

/// `FR_ACT_TO_TBL`
const TO_TABLE: u8 = 1;

/// A rule: what matches is looked up in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// For IPv6 (the rules of the two families are apart).
    pub six: bool,
    /// Source; `None`: any.
    pub from: Option<Prefix>,
    /// Destination; `None`: any.
    pub to: Option<Prefix>,
    /// Firewall mark: value and mask.
    pub mark: Option<(u32, u32)>,
    /// Table to look in; 0 means the main one.
    pub table: u32,
    /// Lower comes first. The kernel's own rules have 0, 32766 and 32767.
    pub priority: u32,
}

impl Rule {
    /// The rule of the configuration; `None`: a prefix is longer than an address, they are of two families, or there is
    /// neither (it would be for everybody's traffic, of no family).
    #[must_use]
    pub fn configured(rule: &config::Rule) -> Option<Self> {
        let prefix = |part: Option<(IpAddr, u8)>| match part {
            Some((ip, length)) => Prefix::new(ip, length).map(Some),
            None => Some(None),
        };
        let (from, to) = (prefix(rule.from)?, prefix(rule.to)?);
        let six = from.or(to)?.ip().is_ipv6();
        let mixed = [from, to].into_iter().flatten().any(|prefix| prefix.ip().is_ipv6() != six);
        let rule = Self { six, from, to, mark: None, table: rule.table, priority: rule.priority };
        (!mixed).then_some(rule)
    }

    /// As the kernel lists it.
    fn normal(mut self) -> Self {
        let meaningful = |prefix: &Prefix| prefix.length() > 0;
        self.from = self.from.filter(meaningful);
        self.to = self.to.filter(meaningful);
        if self.table == 0 {
            self.table = TABLE_MAIN;
        }
        self
    }
}

impl From<kernel::Rule> for Rule {
    fn from(rule: kernel::Rule) -> Self {
        let kernel::Rule { six, from, to, table, priority } = rule;
        let prefix = |part: Option<kernel::Prefix>| part.and_then(|p| Prefix::new(p.ip, p.length));
        Self { six, from: prefix(from), to: prefix(to), mark: None, table, priority }
    }
}

impl From<Rule> for kernel::Rule {
    fn from(rule: Rule) -> Self {
        let Rule { six, from, to, mark: _, table, priority } = rule.normal();
        let prefix = |part: Option<Prefix>| part.map(|p| kernel::Prefix { ip: p.ip(), length: p.length() });
        Self { six, from: prefix(from), to: prefix(to), table, priority }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.priority)?;
        match self.from {
            Some(from) => write!(f, " from {from}")?,
            None => f.write_str(" from all")?,
        }
        if let Some(to) = self.to {
            write!(f, " to {to}")?;
        }
        if let Some((mark, mask)) = self.mark {
            write!(f, " fwmark {mark:#x}/{mask:#x}")?;
        }
        write!(f, " lookup {}", self.table)
    }
}

impl RouteSocket {
    /// Adds the rule; there already as ours is success.
    ///
    /// # Errors
    /// `EEXIST` when another has just this rule; else the kernel's answer; `ETIMEDOUT` when it gave none within 200 ms.
    pub fn add_rule(&mut self, rule: &Rule) -> Result<(), StepError> {
        let rule = rule.normal();
        let ack = self.change(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, |out| encode(&rule, out));
        if matches!(&ack, Ok(ack) if ack.errno == libc::EEXIST) {
            if self.rules(rule.six).is_ok_and(|all| all.contains(&(rule, PROTOCOL))) {
                return Ok(());
            }
            let what = format!("add rule {rule}: it is there already and isn't ours");
            return Err(StepError { errno: libc::EEXIST, what });
        }
        check(ack, &[], || format!("add rule {rule}"))
    }

    /// Removes exactly this rule, if it is ours; gone already is success.
    ///
    /// # Errors
    /// The kernel's answer; `ETIMEDOUT` when it gave none within 200 ms.
    pub fn remove_rule(&mut self, rule: &Rule) -> Result<(), StepError> {
        let rule = rule.normal();
        // What isn't said (from, to, mark) the kernel takes for any: it might hit another rule of ours.
        if let Ok(all) = self.rules(rule.six)
            && !all.contains(&(rule, PROTOCOL))
        {
            return Ok(());
        }
        let ack = self.change(RTM_DELRULE, 0, |out| encode(&rule, out));
        check(ack, &[libc::ENOENT, libc::ESRCH], || format!("remove rule {rule}"))
    }

    /// Every rule of ours.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn our_rules(&mut self) -> io::Result<Vec<Rule>> {
        let mut all = self.rules(false)?;
        all.extend(self.rules(true)?);
        Ok(all.into_iter().filter(|(_, protocol)| *protocol == PROTOCOL).map(|(rule, _)| rule).collect())
    }

    fn rules(&mut self, six: bool) -> io::Result<Vec<(Rule, u8)>> {
        let mut body = vec![0; RULE_HEADER];
        if let Some(family) = body.first_mut() {
            *family = family_number(six);
        }
        let mut found = Vec::new();
        self.netlink.dump(RTM_GETRULE, &body, &mut found, Vec::clear, |found, message| found.extend(parse(message)))?;
        Ok(found)
    }
}

fn encode(rule: &Rule, out: &mut Vec<u8>) {
    let length = |prefix: Option<Prefix>| prefix.map_or(0, Prefix::length);
    out.extend_from_slice(&[family_number(rule.six), length(rule.to), length(rule.from), 0, 0, 0, 0, TO_TABLE]);
    out.extend_from_slice(&[0; 4]);
    if let Some(to) = rule.to {
        push_ip(out, FRA_DST, to.ip());
    }
    if let Some(from) = rule.from {
        push_ip(out, FRA_SRC, from.ip());
    }
    if let Some((mark, mask)) = rule.mark {
        push_attribute(out, FRA_FWMARK, &mark.to_ne_bytes());
        push_attribute(out, FRA_FWMASK, &mask.to_ne_bytes());
    }
    push_attribute(out, FRA_PRIORITY, &rule.priority.to_ne_bytes());
    push_attribute(out, FRA_TABLE, &rule.table.to_ne_bytes());
    push_attribute(out, FRA_PROTOCOL, &[PROTOCOL]);
}

/// Reads `RTM_NEWRULE`: the rule and its protocol (0: not said). `None` for all else, and for rules that do something
/// else than look in a table. A rule that matches by more than we know reads as if it didn't: only those of others do.
pub(super) fn parse(message: &Message<'_>) -> Option<(Rule, u8)> {
    if message.kind != RTM_NEWRULE {
        return None;
    }
    let head: &[u8; RULE_HEADER] = message.payload.first_chunk()?;
    let [family, to_length, from_length, _, table, _, _, action, ..] = *head;
    if action != TO_TABLE {
        return None;
    }
    let six = i32::from(family) == libc::AF_INET6;
    let mut rule = Rule { six, from: None, to: None, mark: None, table: table.into(), priority: 0 };
    let (mut mark, mut mask, mut protocol) = (None, None, 0);
    for (kind, value) in attributes(message.payload.get(RULE_HEADER..)?) {
        match kind {
            FRA_DST => rule.to = Prefix::new(parse_ip(value)?, to_length),
            FRA_SRC => rule.from = Prefix::new(parse_ip(value)?, from_length),
            FRA_PRIORITY => rule.priority = parse_u32(value)?,
            FRA_TABLE => rule.table = parse_u32(value)?,
            FRA_FWMARK => mark = parse_u32(value),
            FRA_FWMASK => mask = parse_u32(value),
            FRA_PROTOCOL => protocol = value.first().copied()?,
            _ => {}
        }
    }
    rule.mark = mark.map(|mark| (mark, mask.unwrap_or(u32::MAX)));
    Some((rule, protocol))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prefix(text: &str, length: u8) -> (IpAddr, u8) {
        (text.parse().expect("an address"), length)
    }

    #[test]
    fn a_configured_rule_has_one_family() {
        let rule = |from, to| Rule::configured(&config::Rule { from, to, table: 100, priority: 1000 });
        let four = Some(prefix("192.0.2.10", 32));
        let six = Some(prefix("2001:db8::10", 128));
        assert_eq!(rule(four, None).expect("valid").to_string(), "1000: from 192.0.2.10/32 lookup 100");
        assert_eq!(rule(None, six).expect("valid").to_string(), "1000: from all to 2001:db8::10/128 lookup 100");
        assert_eq!(rule(four, six), None, "two families");
        assert_eq!(rule(None, None), None, "no family");
        assert_eq!(rule(Some(prefix("192.0.2.10", 33)), None), None, "too long");
    }

    proptest! {
        #[test]
        fn no_message_makes_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            let _ = parse(&Message { kind: RTM_NEWRULE, flags: 0, sequence: 1, payload: &bytes });
        }
    }
}
