//! The channel on a virtual network with a virtual clock: what it does when datagrams are lost, doubled, reordered,
//! recorded and sent again, damaged or forged, and when nodes restart.

mod batches;
mod golden;
mod handshake;
mod hostile;
mod liveness;
mod loss;
#[cfg(feature = "mutants")]
mod mutants;
mod net;
mod rekey;
