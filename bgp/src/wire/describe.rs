//! A message in words, as lines within lines: what `holdfast bgp decode` prints.

use std::fmt;

/// Bytes in hex, the first 64 of them.
pub(super) struct Hex<'a>(pub(super) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 64;
        for byte in self.0.iter().take(SHOWN) {
            write!(f, "{byte:02x}")?;
        }
        if self.0.len() > SHOWN { write!(f, "… ({} bytes)", self.0.len()) } else { Ok(()) }
    }
}

/// A line, and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The line, without its end.
    pub text: String,
    /// What stands below it.
    pub children: Vec<Self>,
}
