//! Why a VIP is as it is: typed, so that tests and machines can match; shown in words.

use crate::plane::Verdict;
use crate::world::FaultKind;
use holdfast_vrrp::Family;
use std::fmt;
use std::time::Duration;

/// One reason, in the order of weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The interface isn't there.
    LinkMissing(String),
    /// The interface has no carrier or is down.
    LinkDown(String),
    /// The interface has no address of its own to send from.
    NoSource {
        /// Its name.
        interface: String,
        /// Of which family.
        family: Family,
    },
    /// The VRRP socket isn't open: the node would be deaf.
    NoSocket(String),
    /// The agent has just started and waits this much longer before it takes anything.
    HoldsOff(Duration),
    /// No peer is reached over the channel, and this node may own nothing alone (`partition = "neither"`).
    CutOff,
    /// No peer is reached over the channel, and the gateway doesn't answer this check (`partition = "gateway"`).
    GatewaySilent(String),
    /// The agent has just started and announces nothing for this much longer.
    AnnounceDelay(Duration),
    /// Its disable file is there.
    Disabled,
    /// It came and went too often, and is held back for this much longer.
    Damped(Duration),
    /// No router that is to hear of it has a session with us.
    NoNeighbor,
    /// No router has had a session with us for long enough: another node had better hold it.
    BgpNotSettled,
    /// It is announced as worse than others (`on_down`).
    AnnouncedWorse,
    /// It is announced to routers.
    Announced,
    /// It will be announced when its addresses are there.
    AddressesFirst,
    /// It will be announced when this unit is here, at whose addresses it is answered.
    WayBackFirst(String),
    /// It would be given away, and stays while something comes here for this unit, which is answered at its addresses.
    WayBack(String),
    /// Something tracked fails: `interface eth1`.
    TrackFails(String),
    /// Something tracked fails and costs priority.
    Weighs {
        /// What.
        what: String,
        /// How much.
        weight: u8,
    },
    /// The operator drained this node.
    Drained,
    /// The agent stops.
    Stopping,
    /// The balancer's state isn't known.
    BalancerUnknown {
        /// Its name.
        balancer: String,
        /// Why.
        why: String,
    },
    /// The balancer is dead.
    BalancerGone {
        /// Its name.
        balancer: String,
        /// Why.
        why: String,
    },
    /// What is thought of a balancer that runs, and isn't all well.
    Balancer {
        /// Its name.
        balancer: String,
        /// What.
        verdict: Verdict,
        /// What that rests on.
        why: String,
    },
    /// The kernel's connection table is full; the figures.
    ConntrackFull(String),
    /// Flows that a peer has are missing here: behind those who have them. What is missing.
    NotInSync(String),
    /// It is ours, and its addresses wait for flows.
    FlowsFirst {
        /// What is missing.
        why: String,
        /// Not longer than this.
        left: Duration,
    },
    /// It is to be given away, and waits until its flows are at the peer.
    FlowsUnderWay(String),
    /// It was lost here again and again; behind the others for this much longer.
    HeldDown(Duration),
    /// It is served badly here. A peer that does better is believed after this much longer.
    Compares(Duration),
    /// Every node fails alike.
    Everywhere,
    /// A check has no verdict yet.
    CheckUnknown(String),
    /// A check failed.
    CheckFailed(String),
    /// A backup is held back after a single failure until `rise` successes.
    CheckUnclean(String),
    /// A check of something that every node shares failed: a warning only.
    SharedCheckFailed(String),
    /// It can't be held here for a while.
    Fault(FaultKind),
    /// Adverts have failed to go out for this long.
    SendFailing(Duration),
    /// A former worker held it; counts as fit until something is known.
    AssumedFit,
    /// Balancer and checks are well.
    Fit,
    /// A peer can serve and was told to take it.
    PeerCanServe(String),
    /// Every peer is as bad.
    NobodyBetter,
    /// It was given away and nobody took it.
    NobodyTook,
    /// What the other nodes can do isn't known.
    PeersUnknown,
    /// Given away; waits for the successor.
    Leaving,
    /// A peer owns it, by its word over the channel.
    YieldedTo(String),
    /// `last_node = "withdraw"`.
    Withdraw,
    /// This node owns it.
    Owner,
    /// Another node was heard as owner.
    OwnerHeard {
        /// Who.
        from: String,
        /// At which priority.
        priority: u8,
    },
    /// Waits for the owner to fall silent.
    Listening,
}

impl Reason {
    /// Nothing on this node answers, or can be reached: more than a check that fails.
    pub fn is_dead(&self) -> bool {
        matches!(
            self,
            Self::LinkMissing(_)
                | Self::LinkDown(_)
                | Self::BalancerGone { .. }
                | Self::BalancerUnknown { .. }
                | Self::Balancer { verdict: Verdict::Hung, .. }
                | Self::Fault(_)
        )
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AddressVanishes => "something on this host removes its address again and again",
            Self::AddressRefused => "its address can't be added",
            Self::SendFails => "adverts can't be sent",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkMissing(name) => write!(f, "interface {name} is not there"),
            Self::LinkDown(name) => write!(f, "interface {name} is down"),
            Self::NoSource { interface, family: Family::V4 } => {
                write!(f, "interface {interface} has no IPv4 address of its own (or not the one in `source`)")
            }
            Self::NoSource { interface, family: Family::V6 } => {
                write!(f, "interface {interface} has no usable IPv6 address to send from (link-local, or `source6`)")
            }
            Self::NoSocket(name) => write!(f, "the VRRP socket on {name} is not open"),
            Self::HoldsOff(left) => {
                write!(f, "the agent has just started and waits {} ms more (startup_delay)", left.as_millis())
            }
            Self::CutOff => f.write_str("no peer is reached, and alone it may own nothing (partition = \"neither\")"),
            Self::GatewaySilent(check) => {
                write!(f, "no peer is reached, and check {check} doesn't pass (partition = \"gateway\")")
            }
            Self::AnnounceDelay(left) => {
                write!(f, "the agent has just started and waits {} ms more (announce_delay)", left.as_millis())
            }
            Self::Disabled => f.write_str("its disable file is there"),
            Self::Damped(left) => {
                write!(f, "it came and went too often and is held back for {} s (damping)", left.as_secs() + 1)
            }
            Self::NoNeighbor => f.write_str("no router has a BGP session with this node"),
            Self::BgpNotSettled => {
                f.write_str("no router has had a BGP session with this node for long enough (settle)")
            }
            Self::AnnouncedWorse => f.write_str("announced as worse than others (on_down)"),
            Self::Announced => f.write_str("announced to routers"),
            Self::AddressesFirst => f.write_str("is announced as soon as its addresses are there"),
            Self::WayBackFirst(name) => write!(f, "is announced as soon as {name} is here, where backends answer to"),
            Self::WayBack(name) => write!(f, "stays while something comes here for {name}: backends answer to it"),
            Self::TrackFails(what) => write!(f, "{what} fails"),
            Self::Weighs { what, weight } => write!(f, "{what} fails and costs {weight} of priority"),
            Self::Drained => f.write_str("this node is drained"),
            Self::Stopping => f.write_str("the agent stops"),
            Self::BalancerUnknown { balancer, why } => write!(f, "balancer {balancer} is unknown: {why}"),
            Self::BalancerGone { balancer, why } => write!(f, "balancer {balancer} is dead: {why}"),
            Self::Balancer { balancer, verdict, why } => write!(f, "balancer {balancer} is {}: {why}", verdict.word()),
            Self::ConntrackFull(why) => write!(f, "the kernel's connection table is full: {why}"),
            Self::NotInSync(why) => write!(f, "not in sync: {why}"),
            Self::FlowsFirst { why, left } => {
                write!(f, "its addresses wait for flows, {} ms more: {why}", left.as_millis())
            }
            Self::FlowsUnderWay(why) => write!(f, "waits before it is given away: {why}"),
            Self::HeldDown(left) => {
                write!(f, "it was lost here again and again, others go first for {} s", left.as_secs() + 1)
            }
            Self::Compares(left) => {
                write!(f, "kept until the peers have had the time to see the same, {} ms more", left.as_millis())
            }
            Self::Everywhere => f.write_str("every node fails alike: something that all of them share is down"),
            Self::CheckUnknown(name) => write!(f, "check {name} has no verdict yet"),
            Self::CheckFailed(name) => write!(f, "check {name} failed"),
            Self::CheckUnclean(name) => write!(f, "check {name} failed lately"),
            Self::SharedCheckFailed(name) => write!(f, "shared check {name} failed (only a warning)"),
            Self::Fault(kind) => kind.fmt(f),
            Self::SendFailing(age) => write!(f, "adverts have failed to go out for {} ms", age.as_millis()),
            Self::AssumedFit => f.write_str("resumed; counts as fit until the first verdict"),
            Self::Fit => f.write_str("balancer and checks are well"),
            Self::PeerCanServe(name) => write!(f, "{name} can serve"),
            Self::NobodyBetter => f.write_str("kept: no peer is better (fail open)"),
            Self::NobodyTook => f.write_str("kept: nobody else took it (fail open)"),
            Self::PeersUnknown => f.write_str("what the other nodes can do is not known"),
            Self::Leaving => f.write_str("given away, waits for the successor"),
            Self::YieldedTo(name) => write!(f, "{name} owns it by its own word"),
            Self::Withdraw => f.write_str("an unfit node withdraws (last_node = \"withdraw\")"),
            Self::Owner => f.write_str("this node is Active"),
            Self::OwnerHeard { from, priority } => write!(f, "{from} is Active with priority {priority}"),
            Self::Listening => f.write_str("listens for an owner"),
        }
    }
}
