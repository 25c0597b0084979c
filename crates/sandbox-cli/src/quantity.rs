//! Durations and sizes as people write them: `1h30m`, `500ms`, `512m`, `1.5g`.

use std::time::Duration;

/// Decimal places that are read; more would be below a nanosecond of any unit that anybody gives fractions of.
const MOST_PLACES: usize = 9;

/// A duration from parts with units, largest first: `1s`, `500ms`, `1.5s`, `2m`, `1h30m`, `49d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, u128); 7] = [
        ("d", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
        ("ns", 1),
    ];
    let mut rest = text;
    let mut total: u128 = 0;
    let mut next_unit = 0;
    if text.is_empty() {
        return Err("it is empty; write for example 30s, 500ms, 2m or 1h30m".into());
    }
    while !rest.is_empty() {
        let (number, after) = Number::split(rest)?;
        let end = after
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(after.len());
        let (unit, remaining) = after.split_at(end);
        if unit.is_empty() {
            return Err("the unit is missing: write ms, s, m, h or d, for example 30s".into());
        }
        let index = UNITS
            .iter()
            .position(|(name, _)| *name == unit)
            .ok_or_else(|| format!("{unit:?} is no unit: write ms, s, m, h or d"))?;
        if index < next_unit {
            return Err("units go from large to small, each once, for example 1h30m".into());
        }
        next_unit = index + 1;
        total = number
            .times(UNITS[index].1)
            .and_then(|part| total.checked_add(part))
            .ok_or("it is too long")?;
        rest = remaining;
    }
    let seconds = u64::try_from(total / 1_000_000_000).map_err(|_| "it is too long")?;
    Ok(Duration::new(seconds, (total % 1_000_000_000) as u32))
}

/// A number of bytes: a plain number, or one with the unit k, m, g or t, each 1024 times the one before: `512m`, `1.5g`, `64KiB`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    if text.is_empty() {
        return Err("it is empty; write for example 64k, 512m or 1g".into());
    }
    let (number, unit) = Number::split(text)?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("{unit:?} is no unit: write k, m, g or t")),
    };
    number
        .times(1 << shift)
        .and_then(|bytes| u64::try_from(bytes).ok())
        .ok_or_else(|| "it is too large".into())
}

/// An unsigned decimal number, exactly: `digits / 10^places`.
struct Number {
    digits: u128,
    places: u32,
}

impl Number {
    /// Takes a number from the front of a text.
    fn split(text: &str) -> Result<(Number, &str), String> {
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, rest) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let bad = || format!("{text:?} does not start with a number, for example 10 or 1.5");
        if whole.is_empty() || number.ends_with('.') || fraction.contains('.') {
            return Err(bad());
        }
        if fraction.len() > MOST_PLACES {
            return Err(format!("more than {MOST_PLACES} decimal places"));
        }
        let digits = format!("{whole}{fraction}")
            .parse()
            .map_err(|_| "the number is too large".to_owned())?;
        let places = fraction.len() as u32;
        Ok((Number { digits, places }, rest))
    }

    /// This many of a unit, rounded down; `None` if that overflows.
    fn times(&self, unit: u128) -> Option<u128> {
        Some(self.digits.checked_mul(unit)? / 10_u128.pow(self.places))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_exactly() {
        for (text, nanoseconds) in [
            ("1s", 1_000_000_000_u128),
            ("500ms", 500_000_000),
            ("1.5s", 1_500_000_000),
            ("0.25ms", 250_000),
            ("2m", 120_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1d2h3m4s5ms6us7ns", 93_784_005_006_007),
            ("49d", 49 * 86_400_000_000_000),
            ("0s", 0),
            (
                "18446744073709551615s",
                18_446_744_073_709_551_615_000_000_000,
            ),
        ] {
            assert_eq!(
                duration(text).map(|d| d.as_nanos()),
                Ok(nanoseconds),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in [
            "",
            " ",
            "10",
            "-1s",
            "+1s",
            "s",
            "1",
            "1.s",
            ".5s",
            "1..5s",
            "1 s",
            "1s ",
            "1x",
            "1sec",
            "1S",
            "30m1h",
            "1s1s",
            "1e3s",
            "1h-30m",
            "∞",
            "NaNs",
            "1s\0",
            "0.1234567891s",
            "18446744073709551616s",
            "99999999999999999999999999999999999999999d",
            "340282366920938463463374607431768211455d",
        ] {
            assert!(
                duration(text).is_err(),
                "{text:?} was read as {:?}",
                duration(text)
            );
        }
    }

    #[test]
    fn a_missing_unit_is_named() {
        assert!(duration("10").unwrap_err().contains("unit is missing"));
        assert!(duration("1x").unwrap_err().contains("\"x\" is no unit"));
    }

    #[test]
    fn sizes_are_read_exactly() {
        for (text, bytes) in [
            ("0", 0),
            ("1", 1),
            ("64k", 65_536),
            ("512m", 512 << 20),
            ("512M", 512 << 20),
            ("512MiB", 512 << 20),
            ("1g", 1 << 30),
            ("1.5g", 3 << 29),
            ("0.5k", 512),
            ("2t", 2 << 40),
            ("7b", 7),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            " ",
            "-1",
            "-1g",
            "+1g",
            "g",
            "1.g",
            ".5g",
            "1..5g",
            "1 g",
            "1gg",
            "1x",
            "1e9",
            "0x10",
            "1,5g",
            "∞",
            "inf",
            "nan",
            "1g\0",
            "18446744073709551616",
            "16777216t",
            "1.0123456789g",
            "99999999999999999999999999999999999999999g",
        ] {
            assert!(size(text).is_err(), "{text:?} was read as {:?}", size(text));
        }
    }
}
