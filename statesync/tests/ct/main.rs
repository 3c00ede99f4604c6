//! ctnetlink's bytes: what a kernel sent, read; what is written for it, byte by byte; and anything else, which is
//! refused, counted and harmless.

mod corpus;
mod encode;
mod hostile;
mod recorded;
mod support;
