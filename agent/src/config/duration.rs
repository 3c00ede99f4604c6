//! Durations as people write them: a whole number and one unit.

use std::time::Duration;

/// What [`parse`] accepts, for messages.
pub const ACCEPTED: &str = "a whole number with a unit of ms, s, m or h, as \"500ms\"";

/// `500ms`, `2s`, `1m`, `2h`. Nothing else: one way to write a duration leaves no doubt about what `1m` or `100` means.
///
/// # Errors
/// What is wrong, in words.
pub fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!("`{}` doesn't start with a digit", shown(text)));
    }
    let factor_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "" => return Err(format!("`{}` has no unit", shown(text))),
        _ if unit.starts_with('.') => {
            return Err(format!("`{}` is not a whole number, use a smaller unit", shown(text)));
        }
        _ => return Err(format!("`{}` has the unknown unit `{}`", shown(text), shown(unit))),
    };
    let number: Option<u64> = number.parse().ok();
    let ms = number.and_then(|n| n.checked_mul(factor_ms)).filter(|ms| *ms <= MAX_MS);
    ms.map(Duration::from_millis).ok_or_else(|| format!("`{}` is too long", shown(text)))
}

/// A year: no duration of ours is longer, and no sum of a few can overflow.
const MAX_MS: u64 = 365 * 24 * 3_600_000;

/// The shortest text that [`parse`] reads back (whole milliseconds).
pub fn show(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = [(3_600_000, "h"), (60_000, "m"), (1000, "s")];
    let whole = units.into_iter().find(|(unit, _)| ms > 0 && ms.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{ms}ms"), |(unit, name)| format!("{}{name}", ms / unit))
}

/// Long nonsense is cut, control characters are escaped.
pub(super) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(40).flat_map(char::escape_debug).collect();
    if text.chars().nth(40).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_duration_is_a_whole_number_and_one_unit() {
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(parse("1m"), Ok(Duration::from_secs(60)));
        assert_eq!(parse("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(parse("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn everything_else_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "doesn't start with a digit"),
            ("ms", "doesn't start with a digit"),
            ("-1s", "doesn't start with a digit"),
            (" 1s", "doesn't start with a digit"),
            ("1", "has no unit"),
            ("1.5s", "not a whole number"),
            ("1 s", "unknown unit ` s`"),
            ("1S", "unknown unit"),
            ("1us", "unknown unit"),
            ("1m30s", "unknown unit"),
            ("9000h", "too long"),
            ("99999999999999999999999s", "too long"),
        ] {
            let refused = parse(text).expect_err(text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(ms in 0..MAX_MS) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse(&show(duration)), Ok(duration));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".*") {
            let _ = parse(&text);
        }
    }
}
