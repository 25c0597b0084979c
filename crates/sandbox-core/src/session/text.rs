//! Encodings and line ranges of text files.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::error::{Error, Result};

/// How text and bytes of a file correspond; with the meaning that these names have for Node's `Buffer`, from which the clients of
/// such sessions come. Neither direction fails.
///
/// | encoding | bytes to text | text to bytes |
/// |---|---|---|
/// | `Utf8` | malformed sequences become U+FFFD, a BOM is kept | |
/// | `Utf16Le` | lone surrogates become U+FFFD, an odd last byte is dropped | |
/// | `Latin1` | each byte is U+0000 to U+00FF | the low byte of each UTF-16 unit |
/// | `Ascii` | the highest bit is dropped | as `Latin1` |
/// | `Hex` | two lower-case digits for each byte | up to the first pair that is not hexadecimal |
/// | `Base64` | with padding | both alphabets, other characters are skipped, up to the first `=` |
/// | `Base64Url` | URL alphabet, no padding | as `Base64` |
///
/// ```
/// use sandbox_core::Encoding;
/// assert_eq!("utf-8".parse::<Encoding>()?, Encoding::Utf8);
/// assert_eq!(Encoding::Latin1.encode("é"), [0xe9]);
/// assert_eq!(Encoding::Utf16Le.encode("é"), [0xe9, 0]);
/// assert_eq!(Encoding::Utf8.decode(&[0xff, 0x61]), "\u{fffd}a");
/// assert!("utf-9".parse::<Encoding>().is_err());
/// # Ok::<(), sandbox_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Encoding {
    /// `utf-8`, `utf8`.
    #[default]
    Utf8,
    /// `utf-16le`, `utf16le`, `ucs-2`, `ucs2`.
    Utf16Le,
    /// `latin1`, `binary`.
    Latin1,
    /// `ascii`.
    Ascii,
    /// `hex`.
    Hex,
    /// `base64`.
    Base64,
    /// `base64url`.
    Base64Url,
}

impl Encoding {
    /// The text of bytes.
    ///
    /// ```
    /// assert_eq!(sandbox_core::Encoding::Hex.decode(&[0, 0xff]), "00ff");
    /// ```
    pub fn decode(self, bytes: &[u8]) -> String {
        match self {
            Encoding::Utf8 => String::from_utf8_lossy(bytes).into_owned(),
            Encoding::Utf16Le => {
                let units = bytes
                    .chunks_exact(2)
                    .map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
                char::decode_utf16(units)
                    .map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER))
                    .collect()
            }
            Encoding::Latin1 => bytes.iter().copied().map(char::from).collect(),
            Encoding::Ascii => bytes.iter().map(|byte| char::from(byte & 0x7f)).collect(),
            Encoding::Hex => bytes
                .iter()
                .flat_map(|byte| [byte >> 4, byte & 15])
                .filter_map(|digit| char::from_digit(u32::from(digit), 16))
                .collect(),
            Encoding::Base64 => base64::engine::general_purpose::STANDARD.encode(bytes),
            Encoding::Base64Url => base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes),
        }
    }

    /// The bytes of a text.
    ///
    /// ```
    /// assert_eq!(sandbox_core::Encoding::Base64.encode("aGk="), b"hi");
    /// ```
    pub fn encode(self, text: &str) -> Vec<u8> {
        match self {
            Encoding::Utf8 => text.as_bytes().to_vec(),
            Encoding::Utf16Le => text.encode_utf16().flat_map(u16::to_le_bytes).collect(),
            Encoding::Latin1 | Encoding::Ascii => {
                text.encode_utf16().map(|unit| unit as u8).collect()
            }
            Encoding::Hex => from_hex(text),
            Encoding::Base64 | Encoding::Base64Url => from_base64(text),
        }
    }
}

impl FromStr for Encoding {
    type Err = Error;

    fn from_str(label: &str) -> Result<Self> {
        Ok(match label.to_ascii_lowercase().as_str() {
            "utf-8" | "utf8" => Encoding::Utf8,
            "utf-16le" | "utf16le" | "ucs-2" | "ucs2" => Encoding::Utf16Le,
            "latin1" | "binary" => Encoding::Latin1,
            "ascii" => Encoding::Ascii,
            "hex" => Encoding::Hex,
            "base64" => Encoding::Base64,
            "base64url" => Encoding::Base64Url,
            _ => {
                return Err(Error::invalid_spec(
                    "encoding",
                    format!(
                        "{label:?} is unknown; there are utf-8, utf-16le, latin1, ascii, hex, base64 and base64url"
                    ),
                ));
            }
        })
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Encoding::Utf8 => "utf-8",
            Encoding::Utf16Le => "utf-16le",
            Encoding::Latin1 => "latin1",
            Encoding::Ascii => "ascii",
            Encoding::Hex => "hex",
            Encoding::Base64 => "base64",
            Encoding::Base64Url => "base64url",
        })
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    text.as_bytes()
        .chunks_exact(2)
        .map_while(|pair| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8))
        .collect()
}

fn from_base64(text: &str) -> Vec<u8> {
    let mut symbols: Vec<u8> = text
        .bytes()
        .take_while(|byte| *byte != b'=')
        .filter_map(|byte| match byte {
            b'-' => Some(b'+'),
            b'_' => Some(b'/'),
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' => Some(byte),
            _ => None,
        })
        .collect();
    if symbols.len() % 4 == 1 {
        // Six bits are no byte.
        symbols.pop();
    }
    let lenient = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(&alphabet::STANDARD, lenient)
        .decode(symbols)
        .unwrap_or_default()
}

/// A range of lines, counted from 1, both ends included. Open ends and ends beyond the text mean all that there is; a first line
/// below 1 means 1; a last line below the first, or below 1, means none.
///
/// Lines are separated by `\r\n` if the text has one anywhere, else by `\n`, else by `\r`; after a final separator there is one
/// more line, an empty one. The lines of a range are joined by the separator again, without a final one.
///
/// ```
/// use sandbox_core::LineRange;
/// let text = "a\nb\nc\n".to_owned();
/// assert_eq!(LineRange::new(Some(2), Some(3)).of(text.clone()), "b\nc");
/// assert_eq!(LineRange::new(Some(3), Some(99)).of(text.clone()), "c\n");
/// assert_eq!(LineRange::default().of(text.clone()), text);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineRange {
    first: Option<i64>,
    last: Option<i64>,
}

impl LineRange {
    /// From the first to the last line.
    ///
    /// ```
    /// let _ = sandbox_core::LineRange::new(Some(1), None);
    /// ```
    pub fn new(first: Option<i64>, last: Option<i64>) -> Self {
        LineRange { first, last }
    }

    /// The lines of a text that are in the range.
    ///
    /// ```
    /// assert_eq!(sandbox_core::LineRange::new(Some(2), Some(2)).of("a\r\nb".into()), "b");
    /// ```
    pub fn of(self, text: String) -> String {
        if self == LineRange::default() {
            return text;
        }
        let separator = ["\r\n", "\n"]
            .into_iter()
            .find(|separator| text.contains(separator))
            .unwrap_or("\r");
        let bound =
            |line: i64| usize::try_from(line).unwrap_or(if line < 0 { 0 } else { usize::MAX });
        let before = bound(self.first.unwrap_or(1).max(1) - 1);
        let until = self.last.map_or(usize::MAX, bound);
        let lines = text.split(separator).skip(before);
        let lines: Vec<&str> = lines.take(until.saturating_sub(before)).collect();
        lines.join(separator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ranges() {
        let cases: [(&str, Option<i64>, Option<i64>, &str); 25] = [
            ("a\nb\nc\n", None, None, "a\nb\nc\n"),
            ("a\nb\nc\n", Some(1), Some(1), "a"),
            ("a\nb\nc\n", Some(2), Some(2), "b"),
            ("a\nb\nc\n", Some(2), Some(3), "b\nc"),
            ("a\nb\nc\n", Some(3), Some(99), "c\n"),
            ("a\nb\nc\n", Some(4), Some(4), ""),
            ("a\nb\nc\n", Some(5), Some(9), ""),
            ("a\nb\nc\n", Some(2), None, "b\nc\n"),
            ("a\nb\nc\n", None, Some(2), "a\nb"),
            ("a\nb\nc\n", Some(3), Some(2), ""),
            ("a\nb\nc\n", None, Some(0), ""),
            ("a\nb\nc\n", Some(0), Some(1), "a"),
            ("a\nb\nc\n", Some(-7), Some(1), "a"),
            ("a\nb\nc\n", Some(1), Some(-1), ""),
            ("a\nb\nc\n", Some(i64::MIN), Some(i64::MAX), "a\nb\nc\n"),
            ("a\nb\nc\n", Some(i64::MAX), Some(i64::MAX), ""),
            ("a\r\nb\r\nc\r\n", Some(2), Some(3), "b\r\nc"),
            ("a\rb\rc", Some(2), Some(3), "b\rc"),
            ("a\r\nb\nc\r\n", Some(2), Some(2), "b\nc"),
            ("a\rb\nc", Some(1), Some(1), "a\rb"),
            ("whole", Some(1), Some(1), "whole"),
            ("whole", Some(2), Some(2), ""),
            ("", Some(1), Some(1), ""),
            ("\n", Some(1), Some(2), "\n"),
            ("é\nü", Some(2), Some(2), "ü"),
        ];
        for (text, first, last, expected) in cases {
            assert_eq!(
                LineRange::new(first, last).of(text.into()),
                expected,
                "{text:?} {first:?} {last:?}"
            );
        }
    }

    #[test]
    fn decoding() {
        let cases: [(&str, &[u8], &str); 14] = [
            ("utf-8", b"\xffa", "\u{fffd}a"),
            ("utf8", b"", ""),
            ("UTF-8", b"\xef\xbb\xbfx", "\u{feff}x"),
            ("utf8", b"\xe2\x82", "\u{fffd}"),
            ("utf16le", b"\xe9\x00a\x00b", "éa"),
            ("ucs2", b"\x3d\xd8\x00\xde", "😀"),
            ("utf-16le", b"\x3d\xd8a\x00", "\u{fffd}a"),
            ("latin1", b"\xe9\x80", "é\u{80}"),
            ("binary", b"\xff", "ÿ"),
            ("ascii", b"\xe1b", "ab"),
            ("hex", b"\x00\xaf", "00af"),
            ("base64", b"\xfb\xff\xfe\xfb", "+//++w=="),
            ("base64url", b"\xfb\xff\xfe\xfb", "-__--w"),
            ("base64", b"", ""),
        ];
        for (label, bytes, text) in cases {
            let encoding: Encoding = label.parse().unwrap();
            assert_eq!(encoding.decode(bytes), text, "{label} {bytes:?}");
        }
    }

    #[test]
    fn encoding() {
        let cases: [(&str, &str, &[u8]); 17] = [
            ("utf-8", "é", b"\xc3\xa9"),
            ("utf16le", "é", b"\xe9\x00"),
            ("ucs-2", "😀", b"\x3d\xd8\x00\xde"),
            ("latin1", "é€", b"\xe9\xac"),
            ("ascii", "é", b"\xe9"),
            ("hex", "00Ff", b"\x00\xff"),
            ("hex", "0", b""),
            ("hex", "11zz22", b"\x11"),
            ("hex", "é1", b""),
            ("base64", "aGk=", b"hi"),
            ("base64", "aGk", b"hi"),
            ("base64", "a G\nk=\n", b"hi"),
            ("base64", "-__-", b"\xfb\xff\xfe"),
            ("base64url", "+//+", b"\xfb\xff\xfe"),
            ("base64", "aGk=aGk=", b"hi"),
            ("base64", "aGkx!Y", b"hi1"),
            ("base64", "aR", b"i"),
        ];
        for (label, text, bytes) in cases {
            let encoding: Encoding = label.parse().unwrap();
            assert_eq!(encoding.encode(text), bytes, "{label} {text:?}");
        }
    }

    #[test]
    fn labels() {
        for encoding in [
            Encoding::Utf8,
            Encoding::Utf16Le,
            Encoding::Latin1,
            Encoding::Ascii,
            Encoding::Hex,
            Encoding::Base64,
            Encoding::Base64Url,
        ] {
            assert_eq!(encoding.to_string().parse::<Encoding>().unwrap(), encoding);
        }
        for label in ["", "utf-9", "utf-16be", " utf-8", "buffer"] {
            assert!(label.parse::<Encoding>().is_err(), "{label}");
        }
    }
}
