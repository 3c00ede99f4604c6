//! Which flows the kernel tells of, and of what: so that traffic that isn't replicated costs nothing.
//!
//! Each flow has a mask of events that it tells of; with `nf_conntrack_events=1` it begins with all of them. Our table
//! sets it, for each flow in one place only: were it set to nothing before and to something behind, an event that falls
//! between the two (another processor handles the other direction) would be lost.
//!
//! | chain | flows whose original destination is a VIP | all others |
//! |---|---|---|
//! | `before` (prerouting) | as they are | nothing |
//! | `through` (forward) | what their VIP says | as they are |
//! | `here` (input), `from_here` (output) | nothing: a proxy's, or our own | nothing |
//!
//! All are late in their hook, because whoever is last decides. Who else sets masks on this host: [`EventFilter::others`].
//!
//! Flows whose packets have met no chain of ours yet tell of all: older ones, and those that we insert.
//!
//! For replication ([`EventFilter::replicate`]) more: a chain of type nat, without which the kernel translates nothing of
//! what is inserted ([`super::hooks`]), `nf_conntrack_events=1`, and `nf_conntrack_timestamp=1`, by which events say when
//! they happened (a kernel without it says nothing of that, and replicates all the same). What they were before are names
//! of chains in our table, so that whoever removes the table, be it a later run, can put them back.

use super::super::ct::Setting;
use super::super::netlink::{Message, NetlinkSocket, attributes};
use super::batch::{Batch, Chain, Hook, KeyType, NEWCHAIN, NEWRULE, NFPROTO_INET, Policy, SUBSYSTEM};
use super::expr::{CT_EVENT_MASK, Comparison, Expression, Flow, Register, Verdict};
use super::socket::{NftSocket, attribute};
use holdfast_node::io::StepError;
use nix::sys::socket::SockProtocol;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

/// Our table for masks of events.
pub const EVENTS_TABLE: &str = "holdfast_events";

/// More VIPs are refused as a whole.
pub const FILTERED_MAX: usize = 2_048;

/// Behind what people use (`security` is 50, `conntrack helper` 300).
const PRIORITY: i32 = 400;

const BEFORE: &str = "before";
const THROUGH: &str = "through";
const HERE: &str = "here";
const FROM_HERE: &str = "from_here";
/// Of type nat, and empty.
const TRANSLATES: &str = "translates";
/// What is set while flows are replicated, and what the name of a chain begins with that ends with its former value.
const SETTINGS: [(Setting, &str); 2] = [(Setting::Events, "events_was_"), (Setting::Timestamp, "timestamp_was_")];
/// All flows can tell, inserted ones too; and of when.
const ON: u32 = 1;

/// The former values of [`SETTINGS`], as far as they are known.
type Former = [Option<u32>; SETTINGS.len()];

/// `NFT_MSG_GETCHAIN`; the kernel answers with `NFT_MSG_NEWCHAIN`.
const GETCHAIN: u16 = 4;

/// `NFT_MSG_GETRULE`; the kernel answers with `NFT_MSG_NEWRULE`.
const GETRULE: u16 = 7;
/// `struct nfgenmsg`.
const NFGENMSG: usize = 4;
/// Chains of others that are named; more are left out.
const OTHERS_MAX: usize = 64;

/// Bits of `ct state`: new, established. ICMP errors of ours about a forwarded flow are neither, and leave it alone.
const STATES: u32 = 1 << 3 | 1 << 1;

/// What a flow tells of (`IPCT_…`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventMask(pub u32);

impl EventMask {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// It began.
    pub const NEW: Self = Self(1);
    /// It ended.
    pub const DESTROY: Self = Self(1 << 2);
    /// It was answered.
    pub const REPLY: Self = Self(1 << 3);
    /// It is established, or streams.
    pub const ASSURED: Self = Self(1 << 4);
    /// TCP's state changed.
    pub const PROTOCOL: Self = Self(1 << 5);
    /// Its mark changed.
    pub const MARK: Self = Self(1 << 7);

    /// Two events in the life of a flow: it is assured, it ended.
    pub const AT_ASSURED: Self = Self(Self::ASSURED.0 | Self::DESTROY.0);
    /// From its first packet on.
    pub const AT_SYN: Self = Self(Self::NEW.0 | Self::REPLY.0 | Self::ASSURED.0 | Self::DESTROY.0);
}

/// Somebody else's rule that sets masks of events.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Other {
    /// The table, with its family: `inet fw4`.
    pub table: String,
    /// The chain.
    pub chain: String,
}

/// Keeps the kernel's masks of events.
#[derive(Debug)]
pub struct EventFilter {
    socket: NftSocket,
    /// What the settings were, should somebody else remove the table that says so.
    known: Former,
}

impl EventFilter {
    /// Opens the socket; changes need CAP_NET_ADMIN.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`: the kernel has no netfilter; else whatever the system says about the socket.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: NftSocket::open()?, known: Former::default() })
    }

    /// Forwarded flows to these addresses tell of this from now on, and no others of anything. Empty: the table goes, and
    /// flows that begin from then on tell of all.
    ///
    /// # Errors
    /// With the object named; then nothing has changed (`ETIMEDOUT`: that isn't known).
    pub fn set(&mut self, vips: &BTreeMap<IpAddr, EventMask>) -> Result<(), StepError> {
        if vips.is_empty() {
            return self.remove();
        }
        if vips.len() > FILTERED_MAX {
            return Err(too_many(vips));
        }
        self.socket.commit(&batch(vips))
    }

    /// All that replication needs: events of flows to these addresses, from all of them, and translation of those that are
    /// inserted. No others tell of anything; `None`: all flows tell of all.
    ///
    /// # Errors
    /// As [`Self::set`]; the setting may be what failed, and what came before it is there then.
    pub fn replicate(&mut self, vips: Option<&BTreeMap<IpAddr, EventMask>>) -> Result<(), StepError> {
        if let Some(vips) = vips.filter(|vips| vips.len() > FILTERED_MAX) {
            return Err(too_many(vips));
        }
        let load = |former: Former| {
            let mut batch = vips.map_or_else(unfiltered, batch);
            let chain = Chain { name: TRANSLATES, hook: Hook::Postrouting, priority: PRIORITY, policy: Policy::Accept };
            batch.add_nat_chain(chain);
            for (former, (_, name)) in former.into_iter().zip(SETTINGS) {
                if let Some(former) = former {
                    batch.add_plain_chain(&format!("{name}{former}"));
                }
            }
            batch
        };
        let told = self.former().unwrap_or_default();
        for (known, told) in self.known.iter_mut().zip(told) {
            *known = told.or(*known);
        }
        let complete = self.look();
        self.socket.commit(&load(self.known))?;
        if !complete && self.look() {
            // There was no connection table before our rules asked for one.
            self.socket.commit(&load(self.known))?;
        }
        // Without times there is less to measure, and nothing else.
        let _ = self.known[1].map(|_| turn_on(Setting::Timestamp));
        turn_on(Setting::Events)
    }

    /// Takes note of the settings whose former value isn't known. Whether all but what this kernel lacks are known now.
    fn look(&mut self) -> bool {
        for (known, (setting, _)) in self.known.iter_mut().zip(SETTINGS) {
            *known = known.or_else(|| setting.read().ok());
        }
        self.known[0].is_some()
    }

    /// Removes the table, and puts back what [`Self::replicate`] has changed; gone already is success.
    ///
    /// # Errors
    /// With the object named.
    pub fn remove(&mut self) -> Result<(), StepError> {
        let known = std::mem::take(&mut self.known);
        let told = self.former().unwrap_or_default();
        // First what its record is in the table for. Unless somebody else has set it since.
        for ((told, known), (setting, _)) in told.into_iter().zip(known).zip(SETTINGS) {
            if let Some(former) = told.or(known).filter(|former| *former != ON)
                && setting.read().is_ok_and(|now| now == ON)
            {
                setting.write(former)?;
            }
        }
        self.socket.remove(EVENTS_TABLE)
    }

    /// What the settings were before we changed them, as our table says.
    fn former(&mut self) -> io::Result<Former> {
        let mut netlink = NetlinkSocket::open(SockProtocol::NetlinkNetFilter)?;
        let mut found = Former::default();
        let kind = SUBSYSTEM << 8 | GETCHAIN;
        netlink.dump(
            kind,
            &[NFPROTO_INET, 0, 0, 0],
            &mut found,
            |found| *found = Former::default(),
            |found, message| {
                for (found, (_, name)) in found.iter_mut().zip(SETTINGS) {
                    *found = found.or_else(|| former_in(message, name));
                }
            },
        )?;
        Ok(found)
    }

    /// Whether the table is there: somebody may have flushed the whole rule set.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn is_there(&mut self) -> io::Result<bool> {
        self.socket.has(EVENTS_TABLE)
    }

    /// Who else sets masks: nftables' `ct event set`, and iptables' `CT --ctevents` where it is iptables-nft's. With
    /// one of these, filter what is told instead, or have the rule removed.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn others(&mut self) -> io::Result<BTreeSet<Other>> {
        let mut netlink = NetlinkSocket::open(SockProtocol::NetlinkNetFilter)?;
        let mut found = BTreeSet::new();
        // All families.
        netlink.dump(SUBSYSTEM << 8 | GETRULE, &[0; NFGENMSG], &mut found, BTreeSet::clear, |found, message| {
            if let Some(other) = other(message)
                && found.len() < OTHERS_MAX
            {
                found.insert(other);
            }
        })?;
        Ok(found)
    }
}

/// A set of addresses of one family.
struct Set {
    name: String,
    six: bool,
}

fn batch(vips: &BTreeMap<IpAddr, EventMask>) -> Batch {
    let mut batch = Batch::to(EVENTS_TABLE);
    batch.replace_table();
    let mut sets = Vec::new();
    let by_mask = vips.iter().fold(BTreeMap::<_, Vec<IpAddr>>::new(), |mut all, (ip, mask)| {
        all.entry(*mask).or_default().push(*ip);
        all
    });
    for (mask, ips) in by_mask {
        for six in [false, true] {
            let of_family: Vec<_> = ips.iter().filter(|ip| ip.is_ipv6() == six).collect();
            if of_family.is_empty() {
                continue;
            }
            let name = format!("vips{}_{:x}", if six { 6 } else { 4 }, mask.0);
            let key = if six { KeyType::Ipv6 } else { KeyType::Ipv4 };
            batch.add_set(&name, key, of_family.into_iter().map(|ip| octets(*ip)));
            sets.push((mask, Set { name, six }));
        }
    }
    let chain = |name, hook| Chain { name, hook, priority: PRIORITY, policy: Policy::Accept };
    batch.add_chain(chain(BEFORE, Hook::Prerouting));
    batch.add_chain(chain(THROUGH, Hook::Forward));
    batch.add_chain(chain(HERE, Hook::Input));
    batch.add_chain(chain(FROM_HERE, Hook::Output));
    for (mask, set) in &sets {
        batch.add_rule(BEFORE, toward(set).chain([Expression::Verdict(Verdict::Accept)]));
        batch.add_rule(THROUGH, toward(set).chain(tell_of(*mask)));
    }
    batch.add_rule(BEFORE, tell_of(EventMask::NONE));
    for name in [HERE, FROM_HERE] {
        let state = Register(0);
        let ordinary = [
            Expression::Conntrack(Flow::State, state),
            Expression::AnyBit(state, STATES),
            Expression::Compare(Comparison::Unequal, vec![0; 4]),
        ];
        batch.add_rule(name, ordinary.into_iter().chain(tell_of(EventMask::NONE)));
    }
    batch
}

fn too_many(vips: &BTreeMap<IpAddr, EventMask>) -> StepError {
    let what = format!("nftables: masks of events of {} VIPs: at most {FILTERED_MAX} are possible", vips.len());
    StepError { errno: libc::E2BIG, what }
}

fn turn_on(setting: Setting) -> Result<(), StepError> {
    if setting.read().is_ok_and(|now| now == ON) { Ok(()) } else { setting.write(ON) }
}

/// The value that the name of a chain of ours holds, if it begins like this.
fn former_in(message: &Message<'_>, name: &str) -> Option<u32> {
    if message.kind != SUBSYSTEM << 8 | NEWCHAIN {
        return None;
    }
    let (_, chain) = message.payload.split_first_chunk::<NFGENMSG>()?;
    if text(attribute(chain, 1)?) != EVENTS_TABLE {
        return None;
    }
    text(attribute(chain, 3)?).strip_prefix(name)?.parse().ok()
}

/// Nothing is filtered; but the kernel has a connection table, since a rule looks into it.
fn unfiltered() -> Batch {
    let mut batch = Batch::to(EVENTS_TABLE);
    batch.replace_table();
    batch.add_chain(Chain { name: BEFORE, hook: Hook::Prerouting, priority: PRIORITY, policy: Policy::Accept });
    batch.add_rule(BEFORE, [Expression::Conntrack(Flow::State, Register(0))]);
    batch
}

/// Goes on for flows whose original destination is in the set.
fn toward(set: &Set) -> impl Iterator<Item = Expression> {
    let family = if set.six { Expression::ipv6() } else { Expression::ipv4() };
    let key = Register(0);
    let what = if set.six { Flow::Destination6 } else { Flow::Destination4 };
    family.into_iter().chain([Expression::Conntrack(what, key), Expression::Find { set: set.name.clone(), key }])
}

fn tell_of(mask: EventMask) -> [Expression; 2] {
    let register = Register(0);
    [Expression::Load(register, mask.0.to_ne_bytes().to_vec()), Expression::SetEventMask(register)]
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The chain of a rule that isn't ours and sets masks.
fn other(message: &Message<'_>) -> Option<Other> {
    if message.kind != SUBSYSTEM << 8 | NEWRULE {
        return None;
    }
    let ([family, ..], rule) = message.payload.split_first_chunk::<NFGENMSG>()?;
    let (table, chain) = (text(attribute(rule, 1)?), text(attribute(rule, 2)?));
    let sets = attributes(attribute(rule, 4)?).any(|(_, expression)| sets_mask(expression).unwrap_or_default());
    (sets && table != EVENTS_TABLE).then(|| Other { table: format!("{} {table}", word(*family)), chain })
}

fn sets_mask(expression: &[u8]) -> Option<bool> {
    let number = |bytes: &[u8]| bytes.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes));
    let data = attribute(expression, 2)?;
    Some(match text(attribute(expression, 1)?).as_str() {
        // A rule that only reads has no source.
        "ct" => attribute(data, 4).is_some() && number(attribute(data, 2)?) == Some(CT_EVENT_MASK),
        // `struct xt_ct_target_info`: flags and zone, then the events.
        "target" => {
            text(attribute(data, 1)?) == "CT" && attribute(data, 3)?.get(4..8).is_some_and(|mask| mask != [0; 4])
        }
        _ => false,
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.strip_suffix(&[0]).unwrap_or(bytes)).into_owned()
}

/// As `nft` names families.
fn word(family: u8) -> &'static str {
    match family {
        1 => "inet",
        2 => "ip",
        3 => "arp",
        5 => "netdev",
        7 => "bridge",
        10 => "ip6",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::netlink::{push_attribute, push_nested};
    use super::super::expr::{push_number, push_string};
    use super::*;

    fn rule(table: &str, expression: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut payload = vec![2, 0, 0, 0];
        push_string(&mut payload, 1, table);
        push_string(&mut payload, 2, "PREROUTING");
        push_nested(&mut payload, 4, |out| push_nested(out, 1, expression));
        payload
    }

    fn of(payload: &[u8]) -> Option<String> {
        let message = Message { kind: SUBSYSTEM << 8 | NEWRULE, flags: 0, sequence: 1, payload };
        other(&message).map(|other| format!("{} {}", other.table, other.chain))
    }

    fn target(events: [u8; 4]) -> Vec<u8> {
        rule("raw", |out| {
            push_string(out, 1, "target");
            push_nested(out, 2, |out| {
                push_string(out, 1, "CT");
                push_number(out, 2, 1);
                let mut info = vec![0; 16];
                info[4..8].copy_from_slice(&events);
                push_attribute(out, 3, &info);
            });
        })
    }

    #[test]
    fn iptables_is_found_out_only_where_it_names_events() {
        assert_eq!(of(&target([1, 0, 0, 0])).as_deref(), Some("ip raw PREROUTING"));
        assert_eq!(of(&target([0; 4])), None, "a zone, or a helper");
    }

    #[test]
    fn ours_and_those_that_set_something_else_are_no_others() {
        let set = |key| {
            move |out: &mut Vec<u8>| {
                push_string(out, 1, "ct");
                push_nested(out, 2, |out| {
                    push_number(out, 2, key);
                    push_number(out, 4, 8);
                });
            }
        };
        assert_eq!(of(&rule("x", set(CT_EVENT_MASK))).as_deref(), Some("ip x PREROUTING"));
        assert_eq!(of(&rule("x", set(3))), None, "the mark");
        assert_eq!(of(&rule(EVENTS_TABLE, set(CT_EVENT_MASK))), None);
    }

    #[test]
    fn a_rule_cut_anywhere_is_nobodys() {
        let payload = target([1, 0, 0, 0]);
        for cut in 0..payload.len() {
            assert_eq!(of(&payload[..cut]), None, "cut at {cut}");
        }
    }
}
