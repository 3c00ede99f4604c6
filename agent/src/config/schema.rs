//! Which keys there are. The reference page `docs/configuration.md` is held against this table by a test.

/// The keys of one kind of table.
#[derive(Debug)]
pub struct Section {
    /// Its path in the file, `[]` after arrays: `cluster.peer[]`. Empty: the file itself.
    pub path: &'static str,
    /// Keys of this version.
    pub keys: &'static [&'static str],
    /// Keys of the design that this version refuses by name, with what there is instead.
    pub(super) not_yet: &'static [(&'static str, Option<&'static str>)],
}

pub(super) const ROOT: Section = Section {
    path: "",
    keys: &["node", "balancer", "check", "vip", "nft", "bgp", "cluster", "hook", "notify", "conntrack", "statesync"],
    not_yet: &[],
};
pub(super) const NODE: Section = Section { path: "node", keys: &["name"], not_yet: &[] };
pub(super) const BALANCER: Section = Section {
    path: "balancer[]",
    keys: &["name", "kind", "unit", "command", "pidfile", "admin", "master", "config", "poll"],
    not_yet: &[],
};
pub(super) const CHECK: Section = Section {
    path: "check[]",
    keys: &[
        "name",
        "http",
        "tcp",
        "tls",
        "udp",
        "unix",
        "exec",
        "file",
        "address",
        "gateway",
        "all",
        "any",
        "weighted",
        "at_least",
        "method",
        "interface",
        "host",
        "expect",
        "body",
        "send",
        "proxy",
        "server_name",
        "verify",
        "ca_file",
        "expiry_warning_days",
        "present",
        "max_age",
        "canary",
        "interval",
        "fast_interval",
        "timeout",
        "jitter",
        "fall",
        "rise",
        "shared",
    ],
    not_yet: &[],
};
pub(super) const WEIGHTED: Section = Section { path: "check[].weighted[]", keys: &["check", "weight"], not_yet: &[] };
/// `send`, `expect` and `body`.
pub(super) const PAYLOAD: Section = Section { path: "check[].send", keys: &["hex"], not_yet: &[] };
pub(super) const VIP: Section = Section {
    path: "vip[]",
    keys: &[
        "name",
        "group",
        "addresses",
        "balancer",
        "checks",
        "vrrp",
        "bgp",
        "track",
        "routes",
        "rules",
        "announce",
        "last_node",
    ],
    not_yet: &[],
};
pub(super) const ADDRESS: Section =
    Section { path: "vip[].addresses[]", keys: &["ip", "interface", "advertise"], not_yet: &[] };
pub(super) const VRRP: Section = Section {
    path: "vip[].vrrp",
    keys: &[
        "interface",
        "vrid",
        "priority",
        "interval",
        "version",
        "checksum",
        "peers",
        "source",
        "source6",
        "min_ttl",
        "link_local",
        "vmac",
        "preempt",
        "preempt_delay",
        "startup_delay",
        "accept",
        "partition",
        "gateway",
        "rivals",
    ],
    not_yet: &[],
};
pub(super) const TRACK: Section = Section {
    path: "vip[].track[]",
    keys: &["interface", "check", "balancer", "weight", "up_delay", "down_delay"],
    not_yet: &[],
};
pub(super) const ROUTE: Section =
    Section { path: "vip[].routes[]", keys: &["to", "via", "interface", "table", "source", "metric"], not_yet: &[] };
pub(super) const RULE: Section =
    Section { path: "vip[].rules[]", keys: &["from", "to", "table", "priority"], not_yet: &[] };
pub(super) const ANNOUNCE: Section =
    Section { path: "vip[].announce", keys: &["repeat", "second", "refresh"], not_yet: &[] };
pub(super) const VIP_BGP: Section = Section {
    path: "vip[].bgp",
    keys: &[
        "neighbors",
        "communities",
        "large_communities",
        "extended_communities",
        "med",
        "local_pref",
        "prepend",
        "link_bandwidth",
        "weight",
        "next_hop",
        "announce_delay",
        "withdraw_wait",
        "drain_wait",
        "on_down",
        "disable_file",
        "on_disabled",
        "increase",
        "rotate",
        "min_announcing",
        "damping",
        "settle",
    ],
    not_yet: &[],
};
/// What can be said otherwise.
const OVERRIDES: &[&str] =
    &["communities", "large_communities", "extended_communities", "med", "local_pref", "prepend"];
pub(super) const ON_DOWN: Section = Section { path: "vip[].bgp.on_down", keys: OVERRIDES, not_yet: &[] };
pub(super) const ON_DISABLED: Section = Section { path: "vip[].bgp.on_disabled", keys: OVERRIDES, not_yet: &[] };
pub(super) const LINK_BANDWIDTH: Section =
    Section { path: "vip[].bgp.link_bandwidth", keys: &["rate", "transitive"], not_yet: &[] };
pub(super) const NEXT_HOP: Section = Section { path: "vip[].bgp.next_hop", keys: &["ipv4", "ipv6"], not_yet: &[] };
pub(super) const DAMPING: Section =
    Section { path: "vip[].bgp.damping", keys: &["half_life", "suppress", "reuse", "max"], not_yet: &[] };
pub(super) const BGP: Section = Section {
    path: "bgp",
    keys: &["asn", "router_id", "listen", "listen_port", "graceful_restart", "neighbor"],
    not_yet: &[],
};
pub(super) const NEIGHBOR: Section = Section {
    path: "bgp.neighbor[]",
    keys: &[
        "name",
        "address",
        "interface",
        "asn",
        "port",
        "hold_time",
        "connect_retry",
        "passive",
        "source",
        "password_file",
        "multihop",
        "ttl_security",
        "families",
        "capabilities",
        "extended_next_hop",
        "bfd",
        "next_hop",
        "communities",
        "large_communities",
        "extended_communities",
        "med",
        "local_pref",
        "prepend",
    ],
    not_yet: &[],
};
pub(super) const BFD: Section =
    Section { path: "bgp.neighbor[].bfd", keys: &["interval", "multiplier", "multihop", "min_ttl"], not_yet: &[] };
pub(super) const CLUSTER: Section = Section { path: "cluster", keys: &["listen", "key_file", "peer"], not_yet: &[] };
pub(super) const PEER: Section =
    Section { path: "cluster.peer[]", keys: &["name", "address", "public_keys"], not_yet: &[] };
pub(super) const NFT: Section = Section { path: "nft", keys: &["service"], not_yet: &[] };
pub(super) const NFT_SERVICE: Section = Section {
    path: "nft.service[]",
    keys: &[
        "vip",
        "protocol",
        "port",
        "backends",
        "mode",
        "snat",
        "affinity",
        "on_down",
        "check",
        "panic_threshold",
        "max_ejection",
        "slow_start",
        "mss",
    ],
    not_yet: &[],
};
pub(super) const NFT_BACKEND: Section =
    Section { path: "nft.service[].backends[]", keys: &["address", "weight"], not_yet: &[] };
pub(super) const NFT_CHECK: Section = Section {
    path: "nft.service[].check",
    keys: &["http", "host", "expect", "port", "interval", "fast_interval", "timeout", "fall", "rise"],
    not_yet: &[],
};
pub(super) const NOTIFY: Section = Section { path: "notify", keys: &["fifo"], not_yet: &[] };
pub(super) const CONNTRACK: Section =
    Section { path: "conntrack", keys: &["watch", "filling", "high", "full", "limit"], not_yet: &[] };
pub(super) const STATESYNC: Section = Section {
    path: "statesync",
    keys: &[
        "vips",
        "mode",
        "after",
        "listen",
        "lease",
        "max_flows",
        "mark_shift",
        "mark_bits",
        "filter",
        "event_buffer",
    ],
    not_yet: &[],
};
pub(super) const STATESYNC_VIP: Section =
    Section { path: "statesync.vips[]", keys: &["vip", "mode", "after"], not_yet: &[] };
pub(super) const HOOK: Section = Section { path: "hook[]", keys: &["name", "on", "exec", "timeout"], not_yet: &[] };

/// Every kind of table, for documentation and its test.
pub fn sections() -> [&'static Section; 33] {
    [
        &ROOT,
        &NODE,
        &BALANCER,
        &CHECK,
        &WEIGHTED,
        &PAYLOAD,
        &VIP,
        &ADDRESS,
        &VRRP,
        &VIP_BGP,
        &NEXT_HOP,
        &ON_DOWN,
        &ON_DISABLED,
        &LINK_BANDWIDTH,
        &DAMPING,
        &TRACK,
        &ROUTE,
        &RULE,
        &ANNOUNCE,
        &NFT,
        &NFT_SERVICE,
        &NFT_BACKEND,
        &NFT_CHECK,
        &BGP,
        &NEIGHBOR,
        &BFD,
        &CLUSTER,
        &PEER,
        &HOOK,
        &NOTIFY,
        &CONNTRACK,
        &STATESYNC,
        &STATESYNC_VIP,
    ]
}

/// The known key that was probably meant: at most two edits away, and fewer than half of it.
pub(super) fn nearest<'k>(name: &str, keys: &[&'k str]) -> Option<&'k str> {
    // Two edits can't bridge more; also bounds the work for absurdly long keys.
    if name.len() > 32 {
        return None;
    }
    let near = keys.iter().map(|key| (distance(name, key), *key)).min()?;
    (near.0 <= 2 && near.0 * 2 < near.1.len()).then_some(near.1)
}

/// Edit distance in which two neighbours that changed places are one edit (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let cost = usize::from(from != to);
            let mut best = (rows[i][j] + cost).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i - 1] == *to && *from == b[j - 1] {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_the_key_that_was_meant() {
        assert_eq!(nearest("vird", VRRP.keys), Some("vrid"));
        assert_eq!(nearest("intervall", CHECK.keys), Some("interval"));
        assert_eq!(nearest("prio", VRRP.keys), None);
        assert_eq!(nearest("x", CHECK.keys), None);
    }

    #[test]
    fn distance_counts_single_edits_and_swaps() {
        for (a, b, d) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("kitten", "sitting", 3),
            ("ab", "ba", 1),
            ("vird", "vrid", 1),
        ] {
            assert_eq!(distance(a, b), d, "{a:?} {b:?}");
        }
    }
}
