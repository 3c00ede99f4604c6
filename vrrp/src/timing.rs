//! Timers in microseconds (RFC 9568 section 6.1).
