//! BFD as pure code (RFC 5880, 5881): wire format, session and timing.
//!
//! Empty but for this page: BFD comes together with BGP. It is a crate of its own because the keeper runs it, and the
//! keeper must stay small.

#![forbid(unsafe_code)]
