//! What holds for whatever is written.

use crate::files;
use holdfast::config;
use holdfast_node::config::{CheckId, Config, Tracked};
use holdfast_vrrp::{Addresses, Family, LegConfig, Transport, Version};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;
use std::collections::HashSet;
use std::fs;
use std::net::IpAddr;

/// What must be true of any configuration that was accepted.
pub(crate) fn consistent(config: &Config) -> Result<(), TestCaseError> {
    let mut routers = HashSet::new();
    let mut names = HashSet::new();
    let mut addresses = HashSet::new();
    let all = (config.balancers.len(), config.checks.len());
    for vip in &config.vips {
        prop_assert!(names.insert(vip.name.as_str()), "{} is there twice", vip.name);
        prop_assert!(!vip.legs.is_empty() && !vip.members.is_empty() && !vip.addresses.is_empty());
        prop_assert!(vip.group || vip.members.len() == 1);
        for leg in &vip.legs {
            prop_assert!((1..=255).contains(&leg.advertised.len()), "{} addresses", leg.advertised.len());
            prop_assert!(leg.advertised.iter().all(|ip| Family::of(*ip) == leg.family));
            prop_assert!(routers.insert((leg.interface.clone(), leg.family, leg.vrid)), "VRID {} twice", leg.vrid);
            prop_assert!(vip.vrrp.interval.fits(leg.version));
            prop_assert!(leg.version == Version::V3 || leg.family == Family::V4);
            prop_assert!(leg.peers.iter().chain(&leg.source).all(|ip| Family::of(*ip) == leg.family));
            prop_assert!(!leg.source.is_some_and(|source| leg.peers.contains(&source)));
            prop_assert!(leg.peers.is_empty() || !leg.vmac);
            let first = leg.advertised.first();
            prop_assert!(
                leg.family == Family::V4 || matches!(first, Some(IpAddr::V6(ip)) if ip.is_unicast_link_local()),
                "{first:?} is first"
            );
            // What the node makes of it can be run.
            let transport = match leg.peers.as_slice() {
                [] => Transport::Multicast,
                peers => Transport::Unicast { peers: peers.to_vec(), min_ttl: leg.min_ttl },
            };
            let leg = LegConfig {
                vrid: leg.vrid,
                version: leg.version,
                addresses: Addresses::new(leg.advertised.iter().copied()).expect("1 to 255 of one family"),
                transport,
                checksum: leg.checksum,
            };
            prop_assert_eq!(leg.check(vip.vrrp.interval), Ok(()));
        }
        for member in &vip.members {
            prop_assert!(!member.addresses.is_empty());
            let known = |ip| vip.addresses.iter().any(|address| address.ip == ip);
            prop_assert!(member.addresses.iter().all(|ip| known(*ip)));
        }
        for address in &vip.addresses {
            prop_assert!(addresses.insert((address.ip, address.interface.clone())), "{} is there twice", address.ip);
        }
        let mut balancers = vip.balancers.clone();
        let mut checks: Vec<CheckId> = vip.checks.iter().copied().chain(vip.vrrp.gateway).collect();
        for track in &vip.tracks {
            match track.what {
                Tracked::Check(id) => {
                    prop_assert!(track.weight.is_some() && !vip.checks.contains(&id));
                    checks.push(id);
                }
                Tracked::Balancer(id) => {
                    prop_assert!(track.weight.is_some() && !vip.balancers.contains(&id));
                    balancers.push(id);
                }
                Tracked::Interface { .. } => {}
            }
        }
        prop_assert!(balancers.iter().all(|id| usize::from(id.0) < all.0));
        prop_assert!(checks.iter().all(|id| usize::from(id.0) < all.1));
        prop_assert_eq!(vip.checks.iter().collect::<HashSet<_>>().len(), vip.checks.len());
    }
    Ok(())
}

/// A `[[vip]]` out of few parts, so that they meet; most fit together.
fn vip_text(n: usize) -> impl Strategy<Value = String> {
    use prop::sample::select;
    let addresses = prop::collection::vec(
        select(vec![
            "\"192.0.2.N/32\"",
            "\"2001:db8::N/128\"",
            "{ ip = \"10.0.0.N/32\", advertise = false }",
            "\"fe80::N/64\"",
            "{ ip = \"198.51.100.N/32\", interface = \"eth2\" }",
        ]),
        1..4,
    );
    let vrrp = select(vec![
        "",
        "",
        "",
        "version = 2, interval = \"1s\"",
        "peers = [\"10.9.0.2\"]",
        "peers = [\"fe80::99\"]",
        "peers = [\"10.9.0.2\", \"fe80::99\"], min_ttl = 254",
        "source = \"10.9.0.1\"",
        "link_local = \"fe80::77\"",
        "vmac = true",
        "accept = false",
        "checksum = \"rfc9568\"",
        "partition = \"gateway\", gateway = \"gw\"",
        "rivals = [250]",
    ]);
    let rest = select(vec![
        "",
        "",
        "checks = []",
        "checks = [\"web\"]",
        "track = [{ check = \"web\" }, { interface = \"eth3\" }]",
        "track = [{ check = \"web\", weight = -20 }]",
        "track = [{ balancer = \"b\", weight = -9 }]",
    ]);
    let shared = (select(vec!["eth0", "eth1"]), 1..4_u8, select(vec!["", "", "group = \"g\"", "group = \"h\""]));
    (addresses, vrrp, rest, shared).prop_map(move |(addresses, vrrp, rest, (interface, vrid, group))| {
        let each = (0..).zip(&addresses).map(|(at, text)| text.replace('N', &(1 + n * 8 + at).to_string()));
        let addresses: Vec<String> = each.collect();
        let comma = if vrrp.is_empty() { "" } else { ", " };
        format!(
            "[[vip]]\nname = \"v{n}\"\naddresses = [{}]\n{rest}\n{group}\n\
             vrrp = {{ interface = \"{interface}\", vrid = {vrid}, priority = 254{comma}{vrrp} }}\n",
            addresses.join(", ")
        )
    })
}

#[test]
fn whatever_is_accepted_is_consistent() {
    let head = "[node]\nname = \"a\"\n[[balancer]]\nname = \"b\"\nkind = \"process\"\npidfile = \"/run/b.pid\"\n\
                [[check]]\nname = \"web\"\ntcp = \"127.0.0.1:80\"\n\
                [[check]]\nname = \"gw\"\ngateway = \"192.0.2.254\"\ninterface = \"eth0\"\n";
    let vips = (vip_text(0), vip_text(1), vip_text(2), 1..=3_usize);
    let (accepted, groups) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(2_000));
    runner
        .run(&vips, |(a, b, c, n)| {
            let text = head.to_owned() + &[a, b, c][..n].concat();
            let Ok(config) = config::parse(&text, "f") else { return Ok(()) };
            accepted.set(accepted.get() + 1);
            groups.set(groups.get() + usize::from(config.vips.iter().any(|vip| vip.members.len() > 1)));
            consistent(&config)
        })
        .unwrap_or_else(|error| panic!("{error}"));
    let (accepted, groups) = (accepted.get(), groups.get());
    assert!(accepted >= 100 && groups >= 10, "only {accepted} were accepted, {groups} with a group");
}

fn corpus() -> Vec<Vec<u8>> {
    let mut corpus: Vec<Vec<u8>> = Vec::new();
    for path in files("tests/config/good").into_iter().chain(files("packaging/examples")) {
        corpus.push(fs::read(path).expect("readable"));
    }
    corpus
}

/// Neither reading nor showing what is wrong may panic, and a refusal always says something.
fn survives(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(errors) = config::parse(&text, "f") {
        assert!(!errors.findings.is_empty());
        assert!(!errors.render(false).is_empty());
        assert!(!errors.render(true).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        survives(&bytes);
    }

    #[test]
    fn no_mutation_of_an_example_makes_it_panic(
        which in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..12),
    ) {
        let mut bytes = which.get(&corpus()).clone();
        for (at, byte, how) in edits {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => { bytes.remove(at); }
                // Whole lines move: tables change owners, keys their tables.
                _ => {
                    let end = bytes[at..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| at + n + 1);
                    let cut: Vec<u8> = bytes.drain(at..end).collect();
                    let to = usize::from(byte) * bytes.len() / 256;
                    bytes.splice(to..to, cut);
                }
            }
            if bytes.is_empty() { break; }
        }
        survives(&bytes);
    }

    #[test]
    fn no_value_in_the_place_of_another_makes_it_panic(
        which in any::<prop::sample::Index>(),
        line in any::<prop::sample::Index>(),
        value in prop::sample::select(vec![
            "0", "-1", "99999999999999999999", "1.5", "nan", "true", "\"\"", "\"\\u0000\"", "[]", "[[]]", "{}", "[{}]",
            "2026-01-01", "\"é€𝄞\"", "'\t'", "{ a = { b = [1] } }", "0xff", "\"1s\"", "\"/\"", "[\"/\", 1]",
        ]),
    ) {
        let text = String::from_utf8(which.get(&corpus()).clone()).expect("the examples are text");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let at = line.index(lines.len());
        if let Some((key, _)) = lines[at].clone().split_once('=') {
            lines[at] = format!("{key}= {value}");
        }
        survives(lines.join("\n").as_bytes());
    }
}
