//! The control packet (RFC 5880 section 4.1).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-----+---------+---+-+-+-+-+-+-+---------------+---------------+
//! |Vers |  Diag   |Sta|P|F|C|A|D|M|  Detect Mult  |    Length     |
//! +-----+---------+---+-+-+-+-+-+-+---------------+---------------+
//! |                       My Discriminator                        |
//! |                      Your Discriminator                       |
//! |               Desired Min TX Interval, in µs                  |
//! |              Required Min RX Interval, in µs                  |
//! |            Required Min Echo RX Interval, in µs               |
//! ```
//! Decoding is total: any bytes give a packet or a typed refusal.

use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// Destination port over one hop (RFC 5881 section 4).
pub const PORT: u16 = 3784;
/// Destination port over several hops (RFC 5883 section 5).
pub const PORT_MULTIHOP: u16 = 4784;
/// The range that source ports come from (RFC 5881 section 4).
pub const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;
/// The TTL that packets are sent with, and over one hop must arrive with (RFC 5881 section 5).
pub const TTL: u8 = 255;
/// Bytes of a packet without authentication.
pub const LEN: usize = 24;
const LEN_AUTHENTICATED: u8 = 26;
const VERSION: u8 = 1;

const POLL: u8 = 0x20;
const FINAL: u8 = 0x10;
const CONTROL_PLANE_INDEPENDENT: u8 = 0x08;
const AUTHENTICATION: u8 = 0x04;
const DEMAND: u8 = 0x02;
const MULTIPOINT: u8 = 0x01;

/// Session state, as on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Taken down by the operator: says nothing about the path.
    AdminDown,
    /// The path doesn't work, or the session is new.
    Down,
    /// The neighbour is heard and wants the session up.
    Init,
    /// Both hear each other.
    Up,
}

impl State {
    const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::AdminDown,
            1 => Self::Down,
            2 => Self::Init,
            _ => Self::Up,
        }
    }

    const fn bits(self) -> u8 {
        match self {
            Self::AdminDown => 0,
            Self::Down => 1,
            Self::Init => 2,
            Self::Up => 3,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AdminDown => "AdminDown",
            Self::Down => "Down",
            Self::Init => "Init",
            Self::Up => "Up",
        })
    }
}

/// Why a session left its former state: a code of five bits. Those not named here are kept as they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Diagnostic(u8);

impl Diagnostic {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Control Detection Time Expired.
    pub const EXPIRED: Self = Self(1);
    /// Neighbor Signaled Session Down.
    pub const NEIGHBOR_DOWN: Self = Self(3);
    /// Forwarding Plane Reset: what is behind us doesn't serve (section 6.8.15).
    pub const DATA_PLANE: Self = Self(4);
    /// Administratively Down.
    pub const ADMIN_DOWN: Self = Self(7);

    /// The code, 0 to 31.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// A control packet without authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// Why the sender left its former state.
    pub diagnostic: Diagnostic,
    /// The sender's state.
    pub state: State,
    /// P: it wants an answer with F.
    pub poll: bool,
    /// F: it answers a P.
    pub final_: bool,
    /// C: its BFD doesn't share the fate of its control plane.
    pub control_plane_independent: bool,
    /// D: it wants no periodic packets while both are Up.
    pub demand: bool,
    /// Detect Mult; never 0.
    pub multiplier: u8,
    /// The sender's name of the session; never 0.
    pub my_discriminator: u32,
    /// The receiver's; 0: not known yet.
    pub your_discriminator: u32,
    /// How often the sender wants to send at most.
    pub desired_min_tx: Duration,
    /// How often it can receive at most; zero: it wants no periodic packets.
    pub required_min_rx: Duration,
    /// The same for echoes; zero: none.
    pub required_min_echo_rx: Duration,
}

impl Control {
    /// The packet. Intervals above what the wire carries (71 minutes) become that.
    #[must_use]
    pub fn encode(&self) -> [u8; LEN] {
        let flag = |on, bit| if on { bit } else { 0 };
        let flags = flag(self.poll, POLL)
            | flag(self.final_, FINAL)
            | flag(self.control_plane_independent, CONTROL_PLANE_INDEPENDENT)
            | flag(self.demand, DEMAND);
        let us = |span: Duration| u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
        let words = [
            u32::from_be_bytes([
                VERSION << 5 | self.diagnostic.0 & 0x1f,
                self.state.bits() << 6 | flags,
                self.multiplier,
                LEN as u8,
            ]),
            self.my_discriminator,
            self.your_discriminator,
            us(self.desired_min_tx),
            us(self.required_min_rx),
            us(self.required_min_echo_rx),
        ];
        let mut bytes = [0; LEN];
        for (room, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *room = word.to_be_bytes();
        }
        bytes
    }

    /// Reads the payload of a datagram by the rules of section 6.8.6 that need no session.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let Some(header) = payload.first_chunk::<LEN>() else {
            return Err(DecodeError::Short { len: payload.len() });
        };
        let [head, my, your, tx, rx, echo] = words(header);
        let [version_diagnostic, state_flags, multiplier, length] = head.to_be_bytes();
        if version_diagnostic >> 5 != VERSION {
            return Err(DecodeError::Version { version: version_diagnostic >> 5 });
        }
        let authenticated = state_flags & AUTHENTICATION != 0;
        let least = if authenticated { LEN_AUTHENTICATED } else { LEN as u8 };
        if length < least || usize::from(length) > payload.len() {
            return Err(DecodeError::Length { length, payload: payload.len() });
        }
        if multiplier == 0 {
            return Err(DecodeError::Multiplier);
        }
        if state_flags & MULTIPOINT != 0 {
            return Err(DecodeError::Multipoint);
        }
        if my == 0 {
            return Err(DecodeError::MyDiscriminator);
        }
        let state = State::from_bits(state_flags >> 6);
        if your == 0 && matches!(state, State::Init | State::Up) && !crate::mutants::off("your-discriminator") {
            return Err(DecodeError::YourDiscriminator { state });
        }
        if authenticated {
            return Err(DecodeError::Authenticated);
        }
        let us = |n: u32| Duration::from_micros(n.into());
        Ok(Self {
            diagnostic: Diagnostic(version_diagnostic & 0x1f),
            state,
            poll: state_flags & POLL != 0,
            final_: state_flags & FINAL != 0,
            control_plane_independent: state_flags & CONTROL_PLANE_INDEPENDENT != 0,
            demand: state_flags & DEMAND != 0,
            multiplier,
            my_discriminator: my,
            your_discriminator: your,
            desired_min_tx: us(tx),
            required_min_rx: us(rx),
            required_min_echo_rx: us(echo),
        })
    }
}

fn words(header: &[u8; LEN]) -> [u32; 6] {
    let mut words = [0; 6];
    for (word, bytes) in words.iter_mut().zip(header.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    words
}

/// Why a datagram is no control packet that we take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Too short for any.
    #[error("{len} bytes are too few for a BFD packet")]
    Short {
        /// Its length.
        len: usize,
    },
    /// Not version 1.
    #[error("BFD version {version} is not 1")]
    Version {
        /// The version.
        version: u8,
    },
    /// Shorter than its header, or longer than what came.
    #[error("a BFD packet that says it has {length} bytes in a datagram of {payload}")]
    Length {
        /// What it says.
        length: u8,
        /// What came.
        payload: usize,
    },
    /// Detect Mult is 0.
    #[error("detection multiplier 0")]
    Multiplier,
    /// The multipoint bit, which nobody may set.
    #[error("the multipoint bit is set")]
    Multipoint,
    /// My Discriminator is 0.
    #[error("no discriminator of the sender")]
    MyDiscriminator,
    /// Your Discriminator is 0 in a state in which the sender must know it.
    #[error("no discriminator of ours in state {state}")]
    YourDiscriminator {
        /// The sender's state.
        state: State,
    },
    /// It is authenticated, and none of our sessions is.
    #[error("an authenticated packet, and this session has no key")]
    Authenticated,
}

#[cfg(test)]
pub(crate) mod tests;
