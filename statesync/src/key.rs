//! X25519 keys and their text form: standard base64 (RFC 4648 section 4) of 32 bytes, 44 characters with the padding.
//!
//! Refuses to read anything that isn't the one canonical text of a key, and to show a secret key in `Debug`.

use crate::channel::noise;
use thiserror::Error;
use zeroize::Zeroizing;

/// Length of a public or secret key in bytes.
pub const KEY_LEN: usize = 32;

/// Length of a key's text form in characters.
pub const KEY_TEXT_LEN: usize = 44;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Why a text isn't a key. Never holds a part of the text, since it may have been a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyError {
    /// Not 44 characters.
    #[error("a key has {KEY_TEXT_LEN} characters, this one has {have}")]
    Length {
        /// Bytes in the text.
        have: usize,
    },
    /// A character outside the base64 alphabet.
    #[error("character {at} of the key isn't in the base64 alphabet (A-Z a-z 0-9 + /)")]
    Character {
        /// Position of the first one, from 0.
        at: usize,
    },
    /// The last character isn't `=`.
    #[error("a key ends with exactly one \"=\"")]
    Padding,
    /// The bits behind the last byte aren't zero: a mistyped last character.
    #[error("the key's last character carries stray bits, it was mistyped or cut")]
    StrayBits,
}

/// A node's secret key. Zeroed when dropped; `Debug` doesn't show it.
#[derive(Clone)]
pub struct SecretKey(Zeroizing<[u8; KEY_LEN]>);

impl SecretKey {
    /// Takes the 32 bytes of a secret key. Any value is a valid X25519 secret (RFC 7748 section 5 clamps it).
    pub fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Reads the text form, without surrounding white space.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        decode_key(text).map(Self::from_bytes)
    }

    /// The text form, for the key file; zeroed when dropped.
    pub fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(encode_key(&self.0))
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretKey(..)")
    }
}

/// The public key that belongs to a secret key.
pub fn public_key(secret: &SecretKey) -> [u8; KEY_LEN] {
    noise::public_key(secret.bytes())
}

/// Makes a key pair. `seed` must be fresh randomness of the operating system that is used for nothing else.
pub fn generate_keypair(seed: [u8; 32]) -> (SecretKey, [u8; KEY_LEN]) {
    let seed = Zeroizing::new(seed);
    let secret = SecretKey::from_bytes(noise::secret_from_seed(&seed));
    let public = public_key(&secret);
    (secret, public)
}

/// The text form of a key.
pub fn encode_key(key: &[u8; KEY_LEN]) -> String {
    let mut text = String::with_capacity(KEY_TEXT_LEN);
    for chunk in key.chunks(3) {
        let group = chunk.iter().fold(0u32, |bits, byte| (bits << 8) | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            if place <= chunk.len() {
                let letter = (group >> (18 - 6 * place)) & 0x3f;
                text.push(char::from(ALPHABET[letter as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// Reads the text form of a key: exactly 44 characters, no white space, canonical.
///
/// # Errors
/// [`KeyError`] says what is wrong, without repeating the text.
pub fn decode_key(text: &str) -> Result<[u8; KEY_LEN], KeyError> {
    let text: &[u8; KEY_TEXT_LEN] = text.as_bytes().try_into().map_err(|_| KeyError::Length { have: text.len() })?;
    let (letters, padding) = text.split_at(KEY_TEXT_LEN - 1);
    if padding != b"=" {
        return Err(KeyError::Padding);
    }
    let mut key = [0; KEY_LEN];
    let mut bytes = key.iter_mut();
    let (mut bits, mut have) = (0u32, 0u32);
    for (at, letter) in letters.iter().enumerate() {
        let value = ALPHABET.iter().position(|known| known == letter).ok_or(KeyError::Character { at })?;
        bits = ((bits << 6) | value as u32) & 0xffff;
        have += 6;
        if have >= 8 {
            have -= 8;
            if let Some(byte) = bytes.next() {
                *byte = (bits >> have) as u8;
            }
        }
    }
    // 43 letters carry 258 bits: the last two belong to no byte and must be zero, or one key would have four texts.
    if bits & 0b11 != 0 {
        return Err(KeyError::StrayBits);
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_key_pair_of_rfc_7748_section_6_1_comes_out() {
        let secret = SecretKey::from_bytes([
            0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2, 0x66, 0x45, 0xdf, 0x4c,
            0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a,
        ]);
        assert_eq!(encode_key(&public_key(&secret)), "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=");
    }

    #[test]
    fn texts_that_are_no_key_are_refused_with_the_reason() {
        let good = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
        assert!(decode_key(good).is_ok());
        assert_eq!(decode_key(""), Err(KeyError::Length { have: 0 }));
        assert_eq!(decode_key(&good[..43]), Err(KeyError::Length { have: 43 }));
        assert_eq!(decode_key(&format!("{good}\n")), Err(KeyError::Length { have: 45 }));
        assert_eq!(decode_key(&good.replace('=', "A")), Err(KeyError::Padding));
        assert_eq!(decode_key(&good.replace('/', "-")), Err(KeyError::Character { at: 23 }));
        assert_eq!(decode_key(&good.replace("o=", "==")), Err(KeyError::Character { at: 42 }));
        assert_eq!(decode_key(&good.replace("o=", "p=")), Err(KeyError::StrayBits));
    }

    #[test]
    fn a_secret_key_is_not_shown_by_debug() {
        let (secret, _) = generate_keypair([7; 32]);
        assert_eq!(format!("{secret:?}"), "SecretKey(..)");
    }

    #[test]
    fn different_seeds_make_different_keys_and_the_same_seed_the_same() {
        assert_eq!(generate_keypair([1; 32]).1, generate_keypair([1; 32]).1);
        assert_ne!(generate_keypair([1; 32]).1, generate_keypair([2; 32]).1);
    }

    proptest! {
        #[test]
        fn every_key_survives_its_text_form(key: [u8; 32]) {
            let text = encode_key(&key);
            prop_assert_eq!(text.len(), KEY_TEXT_LEN);
            prop_assert_eq!(decode_key(&text), Ok(key));
            prop_assert_eq!(SecretKey::from_text(&text).map(|secret| secret.to_text().to_string()), Ok(text));
        }

        #[test]
        fn any_text_decodes_to_a_key_or_a_refusal(text: String) {
            if let Ok(key) = decode_key(&text) {
                prop_assert_eq!(encode_key(&key), text);
            }
        }
    }
}
