//! The keeper: the small process that outlives the worker and undoes its work. The decisions are
//! [`holdfast_node::keeper`]'s; here are its processes, sockets and timers.

pub mod channel;
