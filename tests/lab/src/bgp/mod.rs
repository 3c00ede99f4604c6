//! BGP: a router that spreads a client's flows over one to four nodes by ECMP, all of which announce the same VIP.
//!
//! | module | is |
//! |---|---|
//! | [`net`] | the network: client, router, switch, nodes, backends |
//! | [`fib`] | the router's kernel: every route event of the VIP, with its time |
//! | [`resilient`] | next hops that keep their flows when another one goes |
//! | [`wire`], [`message`] | what BGP and BFD said on each node's port |
//! | [`router`] | FRR and BIRD as the router |
//! | [`speaker`] | what is put to the test: Holdfast, and what people use today |
//! | [`drills`], [`run`], [`figures`] | the drills, how one is run, and what comes out |
//! | [`single`] | one agent and the lab itself as its neighbour: limits, and what may never be told |

pub mod drills;
pub mod fib;
pub mod figures;
pub mod message;
pub mod net;
pub mod resilient;
pub mod router;
pub mod run;
pub mod single;
pub mod speaker;
pub mod wire;
