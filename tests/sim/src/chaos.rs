//! A seed's run: a cluster drawn from the seed, safety under random faults for most of a minute of its time, then all is
//! mended but for what the seed leaves broken, and the cluster must agree (liveness).

use crate::checker::VERDICTS;
use crate::cluster::{Cluster, Options, PeerOptions, Shape, TrackOptions};
use crate::coverage::Coverage;
use crate::net::{Path, WIRES, Wire};
use crate::plane::{Looks, Plane};
use crate::rng::SimRng;
use crate::verbs::Forgery;
use holdfast_node::config::{LastNode, Partition};
use holdfast_node::plane::Standing;
use std::time::Duration;

/// Virtual time in which faults are made.
const FAULTY: Duration = Duration::from_secs(50);
/// What a balancer that serves badly is given before it is left, and until it was found out.
const MARGIN: Duration = Duration::from_millis(5500);
/// Virtual time of a run at least.
const RUN: Duration = Duration::from_secs(60);
/// After it is agreed who owns the VIP: the best one must have it within this …
const BEST: Duration = Duration::from_secs(75);
/// … and then nothing changes for this long, or three intervals.
const QUIET: Duration = Duration::from_secs(3);

/// What every hundred seeds must have shown.
pub const WANTED: &[&str] = &[
    "made: channel",
    "made: no channel",
    "made: V4",
    "made: Dual",
    "made: Group",
    "made: DualGroup",
    "made: VRRPv2",
    "made: unicast",
    "made: equal priorities",
    "made: nopreempt",
    "made: preempt_delay",
    "made: startup_delay",
    "made: hard track",
    "made: weighted track",
    "made: partition gateway",
    "made: partition neither",
    "made: balancers that nobody looks at",
    "made: balancers without an admin side",
    "made: balancers that are asked",
    "made: check group",
    "made: replication of flows",
    "made: plain peer",
    "made: plain peer with the other checksum",
    "made: 10 ms",
    "made: 1000 ms",
    "made: 5 hosts",
    "fault: balancer dead",
    "fault: balancer hung",
    "fault: balancer stopped",
    "fault: balancer doesn't listen",
    "fault: balancer full",
    "fault: balancer sick",
    "fault: pool empty",
    "fault: balancer reloads",
    "fault: balancer leaves",
    "fault: balancer unsupervised",
    "fault: something shared fails",
    "fault: every pool empty",
    "fault: connection table full",
    "fault: cut both ways",
    "fault: cut one way",
    "fault: channel cut",
    "fault: off the segment",
    "fault: loss and delay",
    "fault: stood still",
    "fault: clock stood still",
    "fault: crash",
    "fault: stop",
    "fault: worker crash",
    "fault: worker lost",
    "fault: address deleted",
    "fault: address deleted again and again",
    "fault: link",
    "fault: link of the other interface",
    "fault: interface made anew",
    "fault: own address gone",
    "fault: sending fails",
    "fault: drain",
    "fault: gateway silent",
    "fault: forged advert",
    "fault: replayed datagram",
    "fault: sync thread silent",
    "promoted: with its flows",
    "promoted: without",
    "left: nothing",
    "left: one host unfit",
    "left: one host drained",
    "left: one host down",
    "left: every host unfit",
    "left: every balancer sick",
    "left: every pool empty",
    "backup to active: the owner fell silent",
    "backup to active: the owner resigned",
    "backup to active: handed over",
    "backup to active: no owner was heard",
    "backup to active: preempts",
    "active to backup: outranked",
    "active to backup: resigned",
    "active to backup: yielded",
    "active to off: takes no part",
    "off to active: resumed",
    "off to backup: started",
    "plain peer: active",
    "plain peer: backup",
    "probe: answered",
    "probe: others answered",
    "probe: nobody answered",
    "event: Reasserted",
    "event: FailOpen",
    "event: HeldDown",
    "event: BalancerVerdict",
    "resigned: Bad, to somebody true",
    "resigned: Poor, to somebody true",
    "event: Keep",
    "event: TakeNow",
    "event: Stalled",
    "event: VipPriority",
    "event: AddressVanished",
    "event: AddressFault",
    "event: SendFailed",
    "event: SendRecovered",
    "event: DrainDone",
    "event: DrainRefused",
    "event: VrrpNotice",
    "event: Scrubbed",
    "event: PromotedUnsynced",
    "event: MovedUnsynced",
];

/// Runs a seed to its end; what it has shown. Panics with the seed and the trace when something doesn't hold.
pub fn run(seed: u64) -> Coverage {
    let mut pick = SimRng::new(seed ^ 0x5eed);
    let options = draw(&mut pick, seed);
    let mut made = Coverage::default();
    describe(&options, &mut made);
    let mut cluster = Cluster::started(options);
    cluster.coverage.add(&made);
    let start = cluster.now();
    while cluster.now() - start < FAULTY {
        fault(&mut cluster, &mut pick);
        let pause = pick.between(20, 1500);
        cluster.run(Duration::from_millis(pause));
    }
    mend(&mut cluster);
    leave_broken(&mut cluster, &mut pick);
    agree(&mut cluster, seed);
    let rest = RUN.saturating_sub(cluster.now() - start);
    cluster.run(rest);
    cluster.coverage
}

fn index(pick: &mut SimRng, len: usize) -> usize {
    usize::try_from(pick.below(u64::try_from(len).expect("few"))).expect("few")
}

fn one<T: Copy>(pick: &mut SimRng, of: &[T]) -> T {
    of[index(pick, of.len())]
}

fn draw(pick: &mut SimRng, seed: u64) -> Options {
    let hosts = one(pick, &[2, 2, 2, 2, 3, 3, 3, 4, 4, 5]);
    let version2 = pick.chance(80);
    let shape = if version2 {
        one(pick, &[Shape::V4, Shape::Group])
    } else {
        one(pick, &[Shape::V4, Shape::V4, Shape::Dual, Shape::Dual, Shape::Group, Shape::DualGroup])
    };
    let interval_ms = if version2 { 1000 } else { one(pick, &[10, 20, 50, 100, 100, 100, 200, 200, 500, 1000]) };
    let plain = pick.chance(200).then(|| PeerOptions {
        priority: one(pick, &[100, 250, 254]),
        interval_ms: if version2 { 1000 } else { one(pick, &[interval_ms, interval_ms, 200, 1000]) },
        pseudo_header: pick.chance(500),
    });
    let others = hosts - usize::from(plain.is_some());
    let channel = others > 1 && pick.chance(700);
    let equal = pick.chance(150);
    let track = pick.chance(500).then(|| TrackOptions {
        weight: pick.chance(500).then_some(50),
        up_delay: one(pick, &[Duration::ZERO, Duration::from_millis(300)]),
    });
    let partition = match pick.below(20) {
        0..=2 => Partition::Gateway,
        3 | 4 if channel => Partition::Neither,
        _ => Partition::Both,
    };
    Options {
        hosts,
        channel,
        shape,
        version2,
        unicast: pick.chance(200),
        interval_ms,
        priorities: if equal { vec![200; hosts] } else { vec![253, 252, 251, 249, 248] },
        preempt: pick.chance(800),
        preempt_delay: if pick.chance(200) { one(pick, &[ms(500), ms(3000)]) } else { Duration::ZERO },
        startup_delay: if pick.chance(150) { one(pick, &[ms(300), ms(2000)]) } else { Duration::ZERO },
        track,
        partition,
        last_node: if pick.chance(100) { LastNode::Withdraw } else { LastNode::Keep },
        looks: one(pick, &[Looks::None, Looks::Processes, Looks::Whole, Looks::Whole, Looks::Whole]),
        check_group: pick.chance(200),
        // Drawn apart: the runs of all other seeds are what they were.
        flows: SimRng::new(seed ^ 0xf10).chance(400),
        plain,
        seed,
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn describe(options: &Options, coverage: &mut Coverage) {
    let group = matches!(options.shape, Shape::Group | Shape::DualGroup);
    coverage.see(if options.channel { "made: channel" } else { "made: no channel" });
    coverage.see(&format!("made: {:?}", options.shape));
    coverage.see(&format!("made: {} ms", options.interval_ms));
    coverage.see(&format!("made: {} hosts", options.hosts));
    let mut seen = |holds: bool, what: &str| {
        if holds {
            coverage.see(what);
        }
    };
    seen(options.version2, "made: VRRPv2");
    seen(options.unicast, "made: unicast");
    seen(options.priority(0) == options.priority(1), "made: equal priorities");
    seen(!options.preempt, "made: nopreempt");
    seen(!options.preempt_delay.is_zero(), "made: preempt_delay");
    seen(!options.startup_delay.is_zero(), "made: startup_delay");
    seen(options.track.is_some_and(|t| t.weight.is_none()) && !group, "made: hard track");
    seen(options.track.is_some_and(|t| t.weight.is_some()) && !group, "made: weighted track");
    seen(options.partition == Partition::Gateway, "made: partition gateway");
    seen(options.partition == Partition::Neither, "made: partition neither");
    seen(options.looks == Looks::None, "made: balancers that nobody looks at");
    seen(options.looks == Looks::Processes, "made: balancers without an admin side");
    seen(options.looks == Looks::Whole, "made: balancers that are asked");
    seen(options.check_group, "made: check group");
    seen(options.replicates(0), "made: replication of flows");
    seen(options.plain.is_some(), "made: plain peer");
    seen(options.plain.is_some_and(|p| p.pseudo_header), "made: plain peer with the other checksum");
}

fn fault(cluster: &mut Cluster, pick: &mut SimRng) {
    let i = index(pick, cluster.hosts.len());
    let j = (i + 1 + index(pick, cluster.hosts.len() - 1)) % cluster.hosts.len();
    let segment = if pick.chance(700) { 0 } else { 1 };
    let wire = Wire::Segment(segment);
    let seen = match pick.below(56) {
        0 | 1 => {
            cluster.set_plane(i, Plane::Dead);
            "fault: balancer dead"
        }
        2..=5 => {
            cluster.set_plane(i, Plane::Alive);
            "mended: balancer"
        }
        6 => {
            cluster.set_plane(i, Plane::Hung);
            "fault: balancer hung"
        }
        7 => {
            cluster.cut(wire, i, j, true);
            "fault: cut both ways"
        }
        8 => {
            cluster.note(format!("{wire:?} from lb{} to lb{}: cut", i + 1, j + 1));
            cluster.net.cut(wire, i, j, true);
            "fault: cut one way"
        }
        9 => {
            cluster.cut(Wire::Channel, i, j, true);
            "fault: channel cut"
        }
        10..=12 => {
            cluster.note("wires healed".to_owned());
            cluster.net.heal();
            "mended: wires"
        }
        13 | 14 => {
            let cut = pick.chance(600);
            if pick.chance(700) {
                cluster.isolate(i, cut);
            } else {
                cluster.note(format!("lb{}: off segment {segment} {cut}", i + 1));
                cluster.net.isolate(segment, i, cut);
            }
            "fault: off the segment"
        }
        15 | 16 => {
            let (loss, jitter_us) = (pick.below(200), pick.below(8000));
            cluster.note(format!("lb{} and lb{}: loss {loss}, jitter {jitter_us}", i + 1, j + 1));
            for (a, b) in [(i, j), (j, i)] {
                for wire in WIRES {
                    cluster.net.set(wire, a, b, Path { loss, duplicate: 50, jitter_us, ..Path::default() });
                }
            }
            "fault: loss and delay"
        }
        17 | 18 => {
            let longest = if pick.chance(800) { 2500 } else { 6000 };
            let time = pick.between(20, longest);
            cluster.pause(i, ms(time));
            "fault: stood still"
        }
        19 => {
            let time = pick.between(20, 5000);
            cluster.freeze(i, ms(time));
            "fault: clock stood still"
        }
        20 => {
            cluster.crash(i);
            if pick.chance(500) {
                let gap = pick.between(1, 1500);
                cluster.run(ms(gap));
                cluster.start(i);
            }
            "fault: crash"
        }
        21 => {
            cluster.stop(i);
            "fault: stop"
        }
        22 | 23 => {
            cluster.start(i);
            "mended: agent"
        }
        24 => {
            let gap = pick.between(2, 20);
            cluster.worker_crash(i, ms(gap));
            "fault: worker crash"
        }
        25 => {
            let gap = pick.between(250, 1500);
            cluster.worker_crash(i, ms(gap));
            "fault: worker lost"
        }
        26 => {
            cluster.delete_address(i);
            "fault: address deleted"
        }
        27 => {
            for _ in 0..30 {
                cluster.delete_address(i);
                cluster.run(ms(2));
            }
            "fault: address deleted again and again"
        }
        28 | 29 => {
            let up = pick.chance(600);
            cluster.set_carrier(i, up);
            "fault: link"
        }
        30 | 31 => {
            let up = pick.chance(600);
            cluster.set_carrier_of(i, 1, up);
            "fault: link of the other interface"
        }
        32 => {
            let gap = pick.between(1, 400);
            cluster.recreate(i, segment, ms(gap));
            "fault: interface made anew"
        }
        33 => {
            let based = pick.chance(600);
            cluster.set_based(i, segment, based);
            "fault: own address gone"
        }
        34 => {
            let mute = pick.chance(500);
            cluster.set_mute(i, mute);
            "fault: sending fails"
        }
        35 | 36 => {
            if pick.chance(500) {
                cluster.drain(i);
            } else {
                cluster.undrain(i);
            }
            "fault: drain"
        }
        37 => {
            cluster.gateway = pick.chance(600);
            let line = format!("gateway answers {}", cluster.gateway);
            cluster.note(line);
            "fault: gateway silent"
        }
        38 => {
            let leg = index(pick, 4);
            let forgery = one(pick, &[Forgery::Ttl, Forgery::Checksum, Forgery::Stranger]);
            cluster.forge(i, leg, forgery);
            "fault: forged advert"
        }
        39 => {
            cluster.replay();
            "fault: replayed datagram"
        }
        40..=50 => plane_fault(cluster, pick, i),
        51 | 52 => {
            let full = pick.chance(500);
            cluster.set_table(i, full);
            "fault: connection table full"
        }
        _ => {
            cluster.mend_planes();
            "mended: balancers"
        }
    };
    cluster.coverage.see(seen);
}

/// What is wrong with a balancer beside its death.
fn plane_fault(cluster: &mut Cluster, pick: &mut SimRng, i: usize) -> &'static str {
    let (plane, seen) = one(
        pick,
        &[
            (Plane::Stopped, "fault: balancer stopped"),
            (Plane::Closed, "fault: balancer doesn't listen"),
            (Plane::Saturated, "fault: balancer full"),
            (Plane::Saturated, "fault: balancer full"),
            (Plane::Sick, "fault: balancer sick"),
            (Plane::PoolEmpty, "fault: pool empty"),
            (Plane::Reloading, "fault: balancer reloads"),
            (Plane::Leaving, "fault: balancer leaves"),
            (Plane::Unsupervised, "fault: balancer unsupervised"),
            (Plane::Sick, "fault: something shared fails"),
            (Plane::PoolEmpty, "fault: every pool empty"),
        ],
    );
    match seen {
        // All ask it, in their own time; a balancer finds out about its backends in its own.
        "fault: something shared fails" => cluster.shared_failure(plane, Duration::ZERO),
        "fault: every pool empty" => cluster.shared_failure(plane, ms(2000)),
        _ => cluster.set_plane(i, plane),
    }
    seen
}

fn mend(cluster: &mut Cluster) {
    cluster.note("mended".to_owned());
    cluster.net.heal();
    cluster.gateway = true;
    for i in 0..cluster.hosts.len() {
        if let Some(until) = cluster.hosts[i].paused_until {
            let rest = until.saturating_duration_since(cluster.now());
            cluster.run(rest);
        }
    }
    if cluster.hosts.iter().any(|host| host.stopping) {
        cluster.run(ms(2100));
    }
    cluster.mend_planes();
    if cluster.options().flows {
        cluster.mend_flows();
    }
    for i in 0..cluster.hosts.len() {
        cluster.set_mute(i, false);
        for segment in 0..2 {
            cluster.set_carrier_of(i, segment, true);
            cluster.set_based(i, segment, true);
        }
        cluster.set_table(i, false);
        cluster.start(i);
        cluster.undrain(i);
    }
}

/// What stays broken, so that not always the first host is the one.
fn leave_broken(cluster: &mut Cluster, pick: &mut SimRng) {
    let i = index(pick, cluster.hosts.len());
    let seen = match pick.below(16) {
        0 => {
            cluster.set_plane(i, Plane::Dead);
            "left: one host unfit"
        }
        6..=8 => {
            let planes = [
                (Plane::Hung, "left: one balancer hung"),
                (Plane::Saturated, "left: one balancer full"),
                (Plane::Sick, "left: one balancer sick"),
                (Plane::PoolEmpty, "left: one pool empty"),
                (Plane::Leaving, "left: one balancer leaving"),
                (Plane::Unsupervised, "left: one balancer unsupervised"),
            ];
            let (plane, seen) = one(pick, &planes);
            cluster.set_plane(i, plane);
            seen
        }
        9 => {
            cluster.shared_failure(Plane::Sick, Duration::ZERO);
            cluster.run(ms(1));
            "left: every balancer sick"
        }
        10 => {
            cluster.shared_failure(Plane::PoolEmpty, ms(2000));
            cluster.run(ms(2001));
            "left: every pool empty"
        }
        11 => {
            cluster.set_table(i, true);
            "left: one connection table full"
        }
        1 => {
            cluster.run(ms(1500));
            drain_with_reason(cluster, i)
        }
        2 => {
            cluster.crash(i);
            "left: one host down"
        }
        3 => {
            cluster.set_carrier_of(i, 1, false);
            "left: the other interface down"
        }
        4 if pick.chance(500) => {
            (0..cluster.hosts.len()).for_each(|i| cluster.set_plane(i, Plane::Dead));
            "left: every host unfit"
        }
        5 => {
            cluster.set_carrier(i, false);
            "left: one host cut off"
        }
        _ => "left: nothing",
    };
    cluster.coverage.see(seen);
}

/// Drains a host, and says what that left. The interlocks may refuse, but not while another node could have taken the VIP
/// for a while: then it panics. A drain that was refused, or that ended because nobody took over, takes no host out.
pub fn drain_with_reason(cluster: &mut Cluster, i: usize) -> &'static str {
    let able = cluster.could_be_told(i);
    cluster.drain(i);
    if cluster.hosts[i].intents.drain.is_some() {
        return "left: one host drained";
    }
    let asked = cluster.hosts[i].node.is_some();
    assert!(!asked || able.is_empty(), "seed {}: {able:?} can serve\n{}", cluster.options().seed, cluster.trace());
    "left: nothing, a drain was refused"
}

/// Two down times after the mending, and what is documented to be waited for, exactly one candidate owns the VIP; at
/// last it is the best one, and all others are silent.
fn agree(cluster: &mut Cluster, seed: u64) {
    let options = cluster.options().clone();
    let mut waits = VERDICTS + options.startup_delay + options.track.map_or(Duration::ZERO, |t| t.up_delay);
    if (0..cluster.hosts.len()).any(|i| cluster.hosts[i].plane.standing(options.looks) != Standing::Good) {
        waits += MARGIN;
    }
    cluster.run(waits + options.down_time() * 2);
    let faulty = |c: &Cluster| {
        let nodes = c.hosts.iter().filter_map(|host| host.node.as_ref());
        nodes.flat_map(|node| &node.world().vips).any(|vip| vip.fault.is_some())
    };
    // A fault that a node found lasts up to a minute, doubling: it may be the only one.
    let mut waited = Duration::ZERO;
    while faulty(cluster) && waited < Duration::from_secs(70) {
        cluster.run(ms(250));
        waited += ms(250);
    }
    if !waited.is_zero() {
        cluster.run(options.down_time() * 2);
        cluster.coverage.see("settled: after a fault that a node found");
    }
    let living = |c: &Cluster| -> Vec<usize> { c.owners().into_iter().filter(|&i| c.hosts[i].runs()).collect() };
    let (owners, mut candidates) = (living(cluster), cluster.candidates());
    candidates.extend(owners.iter().copied().filter(|&i| cluster.is_left_alone(i)));
    if candidates.is_empty() {
        assert!(owners.len() <= 1, "seed {seed}: {owners:?} own it\n{options:?}\n{}", cluster.trace());
        return;
    }
    let one = owners.len() == 1 && candidates.contains(&owners[0]);
    let trace = |c: &Cluster| format!("{:?}\n{}", c.options(), c.trace());
    assert!(one, "seed {seed}: one of {candidates:?} must own it, but {owners:?} do\n{}", trace(cluster));
    // Nodes that can't serve all run at the lowest priority: whoever holds it keeps it.
    let rated = options.preempt && cluster.eligible(owners[0]);
    let best = if rated { cluster.best() } else { candidates };
    let mut waited = Duration::ZERO;
    while !matches!(cluster.owners()[..], [owner] if best.contains(&owner)) {
        assert!(waited < BEST, "seed {seed}: {:?} own it, not one of {best:?}\n{}", cluster.owners(), trace(cluster));
        cluster.run(ms(250));
        waited += ms(250);
    }
    cluster.coverage.see(if waited > Duration::from_secs(10) { "settled: late" } else { "settled: in time" });
    cluster.run(options.interval());
    let before: Vec<(u64, u64)> = cluster.hosts.iter().map(|h| (h.adverts, h.transitions)).collect();
    let owner = cluster.owners();
    cluster.run(QUIET.max(options.interval() * 3));
    assert_eq!(cluster.owners(), owner, "seed {seed}: it keeps it\n{}", trace(cluster));
    for (i, host) in cluster.hosts.iter().enumerate() {
        assert_eq!(host.transitions, before[i].1, "seed {seed}: {} is at rest\n{}", host.name, trace(cluster));
        if ![i].contains(&owner[0]) {
            assert_eq!(host.adverts, before[i].0, "seed {seed}: {} is silent\n{}", host.name, trace(cluster));
        }
    }
}
