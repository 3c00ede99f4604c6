//! Exit codes (DESIGN section 3). Numbers never change their meaning.

/// Done; for `status`: ok; for `drain`: drained.
pub const OK: u8 = 0;
/// `check`, `run`: the file can't be read or isn't TOML. `status`: degraded. Elsewhere: it failed.
pub const FAILED: u8 = 1;
/// `check`, `run`: not a configuration. `status`: critical.
pub const SEMANTICS: u8 = 2;
/// The agent can't be reached, or something that is needed isn't there.
pub const UNREACHABLE: u8 = 3;
/// The command line itself is wrong.
pub const USAGE: u8 = 4;
/// An interlock refused; it is named.
pub const REFUSED: u8 = 10;
/// The deadline passed.
pub const DEADLINE: u8 = 11;
/// Another request ended it.
pub const ABORTED: u8 = 12;
/// The peer was lost meanwhile.
pub const PEER_LOST: u8 = 13;
