//! Keys as text: 32 bytes in standard base64 with padding, 44 characters. Strict: one text per key, so that two
//! spellings of one key can't both be configured.

use std::fmt;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Why a text is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyTextError {
    /// Not 44 characters.
    Length(usize),
    /// A character that is not of the base64 alphabet, at this position (0-based).
    Character(usize),
    /// Doesn't end in one `=` after 256 bits: not the text of 32 bytes.
    Padding,
}

impl fmt::Display for KeyTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(have) => write!(f, "has {have} characters, a key has 44"),
            Self::Character(at) => write!(f, "character {} is not base64", at + 1),
            Self::Padding => write!(f, "is not the base64 text of exactly 32 bytes"),
        }
    }
}

impl std::error::Error for KeyTextError {}

/// The text of a key.
pub fn encode(key: &[u8; 32]) -> String {
    let digit = |bits: u32| char::from(ALPHABET[(bits & 63) as usize]);
    let mut text = String::with_capacity(44);
    for group in key.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..=group.len() {
            text.push(digit(bits >> (18 - 6 * place)));
        }
    }
    text.push('=');
    text
}

/// The key of a text.
///
/// # Errors
/// When `text` is not what [`encode`] gives for some key.
pub fn decode(text: &str) -> Result<[u8; 32], KeyTextError> {
    let characters = text.as_bytes();
    if characters.len() != 44 {
        return Err(KeyTextError::Length(text.chars().count()));
    }
    let mut key = [0_u8; 32];
    let mut bytes = key.iter_mut();
    let mut bits = 0_u32;
    let mut have = 0;
    for (at, character) in characters.iter().take(43).enumerate() {
        let value = ALPHABET.iter().position(|a| a == character).ok_or(KeyTextError::Character(at))?;
        bits = bits << 6 | value as u32;
        have += 6;
        if have >= 8 {
            have -= 8;
            let byte = bytes.next().ok_or(KeyTextError::Padding)?;
            *byte = (bits >> have) as u8;
            bits &= (1 << have) - 1;
        }
    }
    // 43 × 6 = 258 bits: the last two must be zero, or a second text would name the same key.
    if bits != 0 || characters.last() != Some(&b'=') {
        return Err(KeyTextError::Padding);
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_text_is_standard_base64() {
        assert_eq!(encode(&[0; 32]), "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
        assert_eq!(encode(&[0xff; 32]), "//////////////////////////////////////////8=");
        let counting: [u8; 32] = std::array::from_fn(|i| i as u8);
        assert_eq!(encode(&counting), "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
    }

    #[test]
    fn a_second_spelling_of_a_key_is_refused() {
        // Same 256 bits, one spare bit set.
        assert_eq!(decode("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB="), Err(KeyTextError::Padding));
        assert_eq!(decode("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"), Err(KeyTextError::Padding));
        assert_eq!(decode("AAAA"), Err(KeyTextError::Length(4)));
        assert_eq!(decode("A-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="), Err(KeyTextError::Character(1)));
    }

    proptest! {
        #[test]
        fn every_key_survives_its_text(key: [u8; 32]) {
            prop_assert_eq!(decode(&encode(&key)), Ok(key));
        }

        #[test]
        fn no_text_makes_it_panic_and_what_is_accepted_is_canonical(text in "[A-Za-z0-9+/=é]{40,46}") {
            if let Ok(key) = decode(&text) {
                prop_assert_eq!(encode(&key), text);
            }
        }
    }
}
