//! What `check` says of the replication of flows: what is replicated, and whether the way back finds it on a survivor.

use super::{Label, count};
use crate::config::duration::show;
use holdfast_node::config::{BalancerKind, Config, NatMode, Service, StateSync, SyncMode, Vip};
use std::fmt::Write as _;
use std::net::IpAddr;

/// When flows of a unit are replicated, to how many, and how what comes back finds them; nothing where they aren't.
pub(super) fn promise(config: &Config, vip: &Vip) -> String {
    let mut text = String::new();
    let Some((sync, mode)) = replicated(config, vip) else { return text };
    let peers = config.cluster.as_ref().map_or(0, |cluster| cluster.peers.len());
    let when = match mode {
        SyncMode::Assured => "when they are established".to_owned(),
        SyncMode::Syn => "from their first packet on".to_owned(),
        SyncMode::After(age) => format!("when they are established and {} old", show(age)),
        SyncMode::Off => return text,
    };
    let lease = show(sync.lease);
    let _ = writeln!(text, "  flows: at {} {when}; without their owner they live {lease} longer", count(peers, "peer"));
    for service in services(config, vip) {
        let ways = match way_back(config, vip, service) {
            Ok(way) => way,
            // The warning has it.
            Err(_) => continue,
        };
        let _ = writeln!(text, "  flows: {} {}: {ways}", service.protocol.word(), service.port);
    }
    text
}

/// What is replicated and of no use, or isn't replicated though somebody asked for it.
pub(super) fn warnings(config: &Config, warn: &mut impl FnMut(String, &str)) {
    for vip in &config.vips {
        let name = Label(vip);
        match replicated(config, vip) {
            Some((_, mode)) if mode != SyncMode::Off => {}
            _ => continue,
        }
        let mut served = services(config, vip).peekable();
        if served.peek().is_none() {
            let proxies: Vec<&str> = vip
                .balancers
                .iter()
                .filter_map(|id| config.balancers.get(usize::from(id.0)))
                .filter(|balancer| !matches!(balancer.kind, BalancerKind::Nft))
                .map(|balancer| balancer.name.as_str())
                .collect();
            let whose = if proxies.is_empty() { String::new() } else { format!(" (balancer {})", proxies.join(", ")) };
            warn(
                format!(
                    "{name}: its flows are to be replicated, but no [[nft.service]] forwards them: connections that end on \
                     this host{whose} can't be replicated"
                ),
                "fine if rules of your own translate them (DNAT) to backends; else remove it from [statesync] vips, drain \
                 before maintenance, and let a stick table or cookie bring clients back to the same backend",
            );
        }
        // One finding for each reason: a service may have many ports.
        let mut told: Vec<(String, &str, Vec<String>)> = Vec::new();
        for service in served {
            if let Err((why, remedy)) = way_back(config, vip, service) {
                let port = format!("{} {}", service.protocol.word(), service.port);
                match told.iter_mut().find(|(known, _, _)| *known == why) {
                    Some((_, _, ports)) => ports.push(port),
                    None => told.push((why, remedy, vec![port])),
                }
            }
        }
        for (why, remedy, ports) in told {
            warn(format!("{name}: flows of {} don't survive: {why}", shortened(&ports)), remedy);
        }
    }
    forwarding(config, warn);
}

/// Ports of which each is named.
const PORTS_SHOWN: usize = 4;

fn shortened(ports: &[String]) -> String {
    let mut text = ports.iter().take(PORTS_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if let Some(more) = ports.len().checked_sub(PORTS_SHOWN).filter(|more| *more > 0) {
        let _ = write!(text, " and {more} more");
    }
    text
}

fn replicated<'c>(config: &'c Config, vip: &Vip) -> Option<(&'c StateSync, SyncMode)> {
    let sync = config.statesync.as_ref()?;
    let is =
        |of: holdfast_node::config::VipId| config.vips.get(usize::from(of.0)).is_some_and(|of| of.name == vip.name);
    sync.vips.iter().find(|of| is(of.vip)).map(|of| (sync, of.mode))
}

/// The services at a unit's addresses.
fn services<'c>(config: &'c Config, vip: &'c Vip) -> impl Iterator<Item = &'c Service> {
    let is_of = |service: &&Service| vip.members.iter().any(|member| member.name == service.vip);
    config.nft.iter().flat_map(|nft| &nft.services).filter(is_of)
}

/// How what the backends send finds the node that took over; or why it doesn't, and what to do.
fn way_back(config: &Config, vip: &Vip, service: &Service) -> Result<String, (String, &'static str)> {
    match service.mode {
        NatMode::Snat if service.snat.is_empty() => Err((
            "backends answer to this host's own address, which no survivor has".to_owned(),
            "give the service `snat` addresses that are a VIP: of the same group with VRRP, of each node's own with BGP",
        )),
        NatMode::Snat => {
            for address in &service.snat {
                returns(config, vip, *address)?;
            }
            let addresses: Vec<String> = service.snat.iter().map(ToString::to_string).collect();
            let how = if vip.anycast() { "which a survivor takes over with its flows" } else { "which moves along" };
            Ok(format!("backends answer to {}, {how}", addresses.join(", ")))
        }
        NatMode::Dnat if vip.anycast() => {
            if config.vips.iter().any(|other| !other.anycast()) {
                Ok("backends answer to the client, through their gateway".to_owned())
            } else {
                Err((
                    "backends answer to the client through their gateway, and no VIP here could be that".to_owned(),
                    "make the backends' gateway a VIP that VRRP holds, so that a survivor takes it over",
                ))
            }
        }
        NatMode::Dnat => {
            let offers = |ip: &IpAddr| service.addresses.iter().any(|(of, _)| of == ip);
            let gateways: Vec<String> =
                vip.addresses.iter().filter(|a| !a.derived && !offers(&a.ip)).map(|a| a.ip.to_string()).collect();
            if gateways.is_empty() {
                Err((
                    "backends answer to the client through their gateway, and no other address moves along that could be it"
                        .to_owned(),
                    "make the backends' gateway a VIP of the same group, so that it moves along",
                ))
            } else {
                Ok(format!("backends answer to the client, through {}, which moves along", gateways.join(" or ")))
            }
        }
    }
}

/// Whether an address that backends answer to is where the flows are.
fn returns(config: &Config, vip: &Vip, address: IpAddr) -> Result<(), (String, &'static str)> {
    let Some(holder) = config.vips.iter().find(|of| of.addresses.iter().any(|a| a.ip == address)) else {
        return Err((
            format!("backends answer to {address}, which is no VIP: no survivor takes it over"),
            "make it a VIP: of the same group with VRRP, one of each node's own with BGP",
        ));
    };
    if vip.anycast() {
        if holder.anycast() {
            return Err((
                format!("backends answer to {address}, which every node announces: answers come to any of them"),
                "give each node an address of its own, as a VIP that VRRP holds: highest priority on its own node",
            ));
        }
    } else if holder.name != vip.name {
        return Err((
            format!("backends answer to {address}, which is in {} and moves apart from it", Label(holder)),
            "give both VIPs the same `group`, so that they move as one",
        ));
    }
    Ok(())
}

/// A host that doesn't forward has no flows to replicate. The file may be meant for another host: only a warning.
fn forwarding(config: &Config, warn: &mut impl FnMut(String, &str)) {
    let Some(sync) = &config.statesync else { return };
    let units = sync.vips.iter().filter(|of| of.mode != SyncMode::Off);
    let units: Vec<&Vip> = units.filter_map(|of| config.vips.get(usize::from(of.vip.0))).collect();
    for (six, path, key) in [
        (false, "/proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"),
        (true, "/proc/sys/net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding"),
    ] {
        let is_used = units.iter().flat_map(|vip| &vip.addresses).any(|a| !a.derived && a.ip.is_ipv6() == six);
        if is_used && std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "0") {
            let family = if six { "IPv6" } else { "IPv4" };
            warn(
                format!(
                    "this host doesn't forward {family} ({key} is 0): it has no connections that can be replicated"
                ),
                "set it to 1, here and in /etc/sysctl.d",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use holdfast_node::config::{SyncVip, VipId};

    const NFT: &str = "[[balancer]]\nname = \"l4\"\nkind = \"nft\"\n";
    const HAPROXY: &str = "[[balancer]]\nname = \"h\"\nkind = \"haproxy\"\npidfile = \"/run/h.pid\"\n";

    fn web(rest: &str, way: &str) -> String {
        format!("[[vip]]\nname = \"web\"\naddresses = [\"192.0.2.10/32\"]\n{rest}\n{way}\n")
    }

    fn inside(group: &str, address: &str) -> String {
        format!(
            "[[vip]]\nname = \"inside\"\n{group}\naddresses = [\"{address}\"]\n\
             vrrp = {{ interface = \"eth1\", vrid = 11, priority = 254 }}\n"
        )
    }

    fn service(mode: &str) -> String {
        format!(
            "[[nft.service]]\nvip = \"web\"\nprotocol = \"tcp\"\nport = 80\nbackends = [\"10.2.0.21:8080\"]\n{mode}\n"
        )
    }

    const VRRP: &str = "vrrp = { interface = \"eth0\", vrid = 10, priority = 254 }";
    const BGP: &str = "bgp = {}";
    const SPEAKER: &str = "[bgp]\nasn = 65010\n[[bgp.neighbor]]\naddress = \"10.0.0.1\"\nasn = 65000\n";

    fn of(parts: &[&str], mode: SyncMode) -> Config {
        let text = format!("[node]\nname = \"a\"\n{}", parts.join(""));
        let mut config = config::parse(&text, "test").unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        let vip = config.vips.iter().position(|vip| vip.members.iter().any(|m| m.name.as_str() == "web"));
        let vip = VipId(u16::try_from(vip.expect("it is there")).expect("few"));
        config.statesync = Some(StateSync::new(vec![SyncVip { vip, mode }]));
        config
    }

    /// What is said of what survives, on whatever machine.
    fn told(config: &Config) -> Vec<String> {
        let mut texts = Vec::new();
        warnings(config, &mut |text, _| texts.push(text));
        texts.retain(|text| !text.contains("doesn't forward"));
        texts
    }

    #[test]
    fn a_way_back_that_moves_along_is_said_and_no_warning() {
        let (group, moves) = ("group = \"edge\"", "backends answer to 10.2.0.10, which moves along");
        for (mode, way) in [
            ("snat = [\"10.2.0.10\"]", moves),
            ("mode = \"dnat\"", "backends answer to the client, through 10.2.0.10, which moves along"),
        ] {
            let parts = [NFT, &web(group, VRRP), &inside(group, "10.2.0.10/32"), &service(mode)];
            let config = of(&parts, SyncMode::Assured);
            assert_eq!(told(&config), Vec::<String>::new(), "{mode}");
            let text = promise(&config, &config.vips[0]);
            assert!(text.contains("when they are established; without their owner they live 10m longer"), "{text}");
            assert!(text.contains(&format!("tcp 80: {way}")), "{text}");
        }
        let parts = [NFT, SPEAKER, &web("", BGP), &inside("", "10.2.0.10/32"), &service("snat = [\"10.2.0.10\"]")];
        let config = of(&parts, SyncMode::Syn);
        assert_eq!(told(&config), Vec::<String>::new());
        let text = promise(&config, &config.vips[0]);
        assert!(text.contains("from their first packet on"), "{text}");
        assert!(text.contains("10.2.0.10, which a survivor takes over with its flows\n"), "{text}");
    }

    #[test]
    fn a_way_back_that_a_survivor_lacks_is_a_warning_with_a_remedy() {
        let group = "group = \"edge\"";
        let apart = inside("", "10.2.0.10/32");
        for (parts, part) in [
            (vec![NFT, &web("", VRRP), &service("")], "answer to this host's own address"),
            (vec![NFT, &web("", VRRP), &service("snat = [\"10.2.0.11\"]")], "10.2.0.11, which is no VIP"),
            (
                vec![NFT, &web("", VRRP), &apart, &service("snat = [\"10.2.0.10\"]")],
                "10.2.0.10, which is in vip inside and moves apart",
            ),
            (vec![NFT, &web("", VRRP), &service("mode = \"dnat\"")], "no other address moves along"),
            (vec![NFT, &web(group, VRRP), &apart, &service("mode = \"dnat\"")], "no other address moves along"),
            (vec![NFT, SPEAKER, &web("", BGP), &service("mode = \"dnat\"")], "no VIP here could be that"),
            (
                vec![
                    NFT,
                    SPEAKER,
                    &web("", BGP),
                    "[[vip]]\nname = \"all\"\naddresses = [\"10.2.0.10/32\"]\nbgp = {}\n",
                    &service("snat = [\"10.2.0.10\"]"),
                ],
                "which every node announces",
            ),
        ] {
            let config = of(&parts, SyncMode::Assured);
            let texts = told(&config);
            assert!(matches!(texts.as_slice(), [text] if text.contains(part)), "{part}: {texts:?}");
            assert!(texts[0].contains("flows of tcp 80 don't survive"), "{texts:?}");
            assert!(!promise(&config, &config.vips[0]).contains("tcp 80"), "what doesn't survive isn't promised");
            // Nobody asked for it.
            assert_eq!(told(&of(&parts, SyncMode::Off)), Vec::<String>::new());
            let without = Config { statesync: None, ..config };
            assert_eq!((told(&without).len(), promise(&without, &without.vips[0]).as_str()), (0, ""));
        }
    }

    #[test]
    fn a_vip_whose_connections_end_here_is_a_warning_that_names_the_balancer_and_the_remedy() {
        let config = of(&[HAPROXY, &web("", VRRP)], SyncMode::Assured);
        let texts = told(&config);
        assert!(matches!(texts.as_slice(), [text] if text.contains("(balancer h) can't be replicated")), "{texts:?}");
        let texts = told(&of(&[&web("", VRRP)], SyncMode::Assured));
        assert!(matches!(texts.as_slice(), [text] if text.contains("on this host can't be replicated")), "{texts:?}");
    }

    #[test]
    fn many_ports_are_one_finding() {
        let services: String =
            (1..=6).map(|port| service("").replace("port = 80", &format!("port = {port}"))).collect();
        let texts = told(&of(&[NFT, &web("", VRRP), &services], SyncMode::Assured));
        let [text] = texts.as_slice() else { panic!("{texts:?}") };
        assert!(text.contains("tcp 1, tcp 2, tcp 3, tcp 4 and 2 more don't survive"), "{text}");
    }
}
