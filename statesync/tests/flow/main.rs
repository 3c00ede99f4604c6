//! Flow replication in a virtual cluster: what happens when datagrams are lost, doubled, reordered or cut off, when nodes
//! stall, restart and reboot, when events are lost and tables flushed, and when VIPs move.

mod channel;
mod claims;
mod ecmp;
mod figures;
mod first;
mod gate;
mod heal;
mod hostile;
mod kernel;
mod limits;
#[cfg(feature = "mutants")]
mod mutants;
mod random;
mod sim;
mod wire;
