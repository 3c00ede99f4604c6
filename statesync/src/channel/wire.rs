//! The datagrams' form. Integers are little-endian; every datagram starts with the major version and its type.
//!
//! ```text
//! 1 Greeting   version, type, Noise message 1 { index: u32, epoch: u64, stamp: u64 }, check: 16 bytes
//! 2 Answer     version, type, receiver: u32, Noise message 2 { index: u32, epoch: u64 }
//! 3 Transport  version, type, receiver: u32, counter: u64, sealed records
//! ```
//!
//! What stands in braces is encrypted and authenticated; bytes behind the known fields are skipped. `index` names the
//! sender's end of the session and comes back as `receiver`. The fields outside need no authentication of their own:
//! with any of them changed the datagram finds no session, or a session whose keys don't open it.

use super::MAX_DATAGRAM;
use super::noise::TAG_LEN;

/// Major version of the channel. Another one is refused.
pub(crate) const VERSION: u8 = 1;

const TYPE_GREETING: u8 = 1;
const TYPE_ANSWER: u8 = 2;
const TYPE_TRANSPORT: u8 = 3;

pub(crate) const CHECK_LEN: usize = 16;
pub(crate) const TRANSPORT_HEADER_LEN: usize = 14;

const KEY_LEN: usize = 32;
const GREETING_PAYLOAD_LEN: usize = 20;
const ANSWER_PAYLOAD_LEN: usize = 12;
const GREETING_NOISE_LEN: usize = 2 * KEY_LEN + GREETING_PAYLOAD_LEN + 2 * TAG_LEN;
const ANSWER_NOISE_LEN: usize = KEY_LEN + ANSWER_PAYLOAD_LEN + TAG_LEN;

/// Room for records in one datagram.
pub(crate) const CONTENT_ROOM: usize = MAX_DATAGRAM - TRANSPORT_HEADER_LEN - TAG_LEN;

/// Why bytes aren't a datagram of this channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FormError {
    /// Another major version.
    Version,
    /// Too short, too long or of an unknown type.
    Form,
}

/// A datagram whose form is right; nothing in it is authenticated yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Datagram<'a> {
    Greeting { checked: &'a [u8], noise: &'a [u8], check: [u8; CHECK_LEN] },
    Answer { receiver: u32, noise: &'a [u8] },
    Transport { receiver: u32, counter: u64, sealed: &'a [u8] },
}

impl<'a> Datagram<'a> {
    /// Looks at the form only.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, FormError> {
        if bytes.len() > MAX_DATAGRAM {
            return Err(FormError::Form);
        }
        let (&[version, kind], rest) = bytes.split_first_chunk::<2>().ok_or(FormError::Form)?;
        if version != VERSION {
            return Err(FormError::Version);
        }
        match kind {
            TYPE_GREETING => Self::greeting(bytes, rest),
            TYPE_ANSWER => Self::answer(rest),
            TYPE_TRANSPORT => Self::transport(rest),
            _ => Err(FormError::Form),
        }
    }

    fn greeting(bytes: &'a [u8], rest: &'a [u8]) -> Result<Self, FormError> {
        let (noise, check) = rest.split_last_chunk::<CHECK_LEN>().ok_or(FormError::Form)?;
        let (checked, _) = bytes.split_last_chunk::<CHECK_LEN>().ok_or(FormError::Form)?;
        if noise.len() < GREETING_NOISE_LEN {
            return Err(FormError::Form);
        }
        Ok(Self::Greeting { checked, noise, check: *check })
    }

    fn answer(rest: &'a [u8]) -> Result<Self, FormError> {
        let (receiver, noise) = rest.split_first_chunk::<4>().ok_or(FormError::Form)?;
        if noise.len() < ANSWER_NOISE_LEN {
            return Err(FormError::Form);
        }
        Ok(Self::Answer { receiver: u32::from_le_bytes(*receiver), noise })
    }

    fn transport(rest: &'a [u8]) -> Result<Self, FormError> {
        let (receiver, rest) = rest.split_first_chunk::<4>().ok_or(FormError::Form)?;
        let (counter, sealed) = rest.split_first_chunk::<8>().ok_or(FormError::Form)?;
        if sealed.len() < TAG_LEN {
            return Err(FormError::Form);
        }
        Ok(Self::Transport { receiver: u32::from_le_bytes(*receiver), counter: u64::from_le_bytes(*counter), sealed })
    }
}

/// A greeting without its Noise message and check.
pub(crate) fn greeting_header() -> Vec<u8> {
    vec![VERSION, TYPE_GREETING]
}

/// An answer without its Noise message.
pub(crate) fn answer_header(receiver: u32) -> Vec<u8> {
    let mut bytes = vec![VERSION, TYPE_ANSWER];
    bytes.extend_from_slice(&receiver.to_le_bytes());
    bytes
}

/// A transport datagram without its content.
pub(crate) fn transport_header(receiver: u32, counter: u64) -> [u8; TRANSPORT_HEADER_LEN] {
    let mut header = [0; TRANSPORT_HEADER_LEN];
    header[..2].copy_from_slice(&[VERSION, TYPE_TRANSPORT]);
    header[2..6].copy_from_slice(&receiver.to_le_bytes());
    header[6..].copy_from_slice(&counter.to_le_bytes());
    header
}

/// What a greeting says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GreetingPayload {
    pub(crate) index: u32,
    /// Boot epoch, then a number that grows with each greeting: in this order the age of greetings.
    pub(crate) stamp: (u64, u64),
}

impl GreetingPayload {
    pub(crate) fn encode(self) -> [u8; GREETING_PAYLOAD_LEN] {
        let mut bytes = [0; GREETING_PAYLOAD_LEN];
        bytes[..4].copy_from_slice(&self.index.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.stamp.0.to_le_bytes());
        bytes[12..].copy_from_slice(&self.stamp.1.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (index, bytes) = bytes.split_first_chunk::<4>()?;
        let (epoch, bytes) = bytes.split_first_chunk::<8>()?;
        let (count, _) = bytes.split_first_chunk::<8>()?;
        let stamp = (u64::from_le_bytes(*epoch), u64::from_le_bytes(*count));
        Some(Self { index: u32::from_le_bytes(*index), stamp })
    }
}

/// What an answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnswerPayload {
    pub(crate) index: u32,
    pub(crate) epoch: u64,
}

impl AnswerPayload {
    pub(crate) fn encode(self) -> [u8; ANSWER_PAYLOAD_LEN] {
        let mut bytes = [0; ANSWER_PAYLOAD_LEN];
        bytes[..4].copy_from_slice(&self.index.to_le_bytes());
        bytes[4..].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (index, bytes) = bytes.split_first_chunk::<4>()?;
        let (epoch, _) = bytes.split_first_chunk::<8>()?;
        Some(Self { index: u32::from_le_bytes(*index), epoch: u64::from_le_bytes(*epoch) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn another_major_version_is_told_from_a_bad_form() {
        assert_eq!(Datagram::parse(&[]), Err(FormError::Form));
        assert_eq!(Datagram::parse(&[VERSION]), Err(FormError::Form));
        assert_eq!(Datagram::parse(&[VERSION + 1, 3]), Err(FormError::Version));
        assert_eq!(Datagram::parse(&[VERSION, 0]), Err(FormError::Form));
        assert_eq!(Datagram::parse(&[VERSION, 4]), Err(FormError::Form));
    }

    #[test]
    fn a_transport_datagram_carries_at_least_a_tag() {
        let mut bytes = transport_header(7, 9).to_vec();
        bytes.extend_from_slice(&[0; TAG_LEN]);
        assert_eq!(Datagram::parse(&bytes), Ok(Datagram::Transport { receiver: 7, counter: 9, sealed: &[0; TAG_LEN] }));
        assert_eq!(Datagram::parse(&bytes[..bytes.len() - 1]), Err(FormError::Form));
    }

    #[test]
    fn a_datagram_over_the_limit_is_refused() {
        let mut bytes = vec![0; MAX_DATAGRAM];
        bytes[..2].copy_from_slice(&[VERSION, TYPE_TRANSPORT]);
        assert!(Datagram::parse(&bytes).is_ok());
        bytes.push(0);
        assert_eq!(Datagram::parse(&bytes), Err(FormError::Form));
    }

    #[test]
    fn payloads_of_a_later_version_may_be_longer_but_not_shorter() {
        let greeting = GreetingPayload { index: 1, stamp: (2, 3) };
        let mut bytes = greeting.encode().to_vec();
        assert_eq!(GreetingPayload::decode(&bytes[..19]), None);
        bytes.push(99);
        assert_eq!(GreetingPayload::decode(&bytes), Some(greeting));
        let answer = AnswerPayload { index: 1, epoch: 2 };
        let mut bytes = answer.encode().to_vec();
        assert_eq!(AnswerPayload::decode(&bytes[..11]), None);
        bytes.push(99);
        assert_eq!(AnswerPayload::decode(&bytes), Some(answer));
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_form_or_are_refused(bytes: Vec<u8>, kind in 0u8..5) {
            let _ = Datagram::parse(&bytes);
            let _ = Datagram::parse(&[&[VERSION, kind][..], &bytes].concat());
        }
    }
}
