//! Sizes as people write them: 4096, 4k, 1M, 2GiB.

/// Reads a number of bytes with an optional suffix: k, M, G or T, by 1024, with or without "iB"
/// or "B" behind it.
///
/// # Errors
/// Says what may be written.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is no size: a number of bytes is needed, with k, M, G or T behind it");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let suffix = suffix.to_ascii_lowercase();
    let power = match suffix.strip_suffix("ib").or(suffix.strip_suffix('b')).unwrap_or(&suffix) {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << (10 * power)).ok_or_else(|| format!("{text} is more than 2^64 bytes"))
}

/// A number of bytes for people.
pub fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1).ilog2() as usize / 10).min(UNITS.len() - 1);
    if power == 0 {
        return format!("{bytes} bytes");
    }
    let unit = 1u64 << (10 * power);
    if bytes.is_multiple_of(unit) {
        format!("{} {}", bytes / unit, UNITS[power])
    } else {
        format!("{:.1} {}", bytes as f64 / unit as f64, UNITS[power])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn suffixes_multiply_by_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("4k", 4096),
            ("4KiB", 4096),
            ("1M", 1 << 20),
            ("2gb", 2 << 30),
            ("1T", 1 << 40),
            ("3B", 3),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn anything_else_is_explained() {
        for text in ["", "k", "-1", "1x", "1.5M", "1kk", " 1", "99999999999999999999"] {
            assert!(parse_size(text).unwrap_err().contains("is no size"), "{text}");
        }
        assert!(parse_size("18446744073709551615k").unwrap_err().contains("2^64"));
    }

    #[test]
    fn sizes_are_shown_short() {
        assert_eq!(show_size(0), "0 bytes");
        assert_eq!(show_size(1023), "1023 bytes");
        assert_eq!(show_size(1 << 30), "1 GiB");
        assert_eq!(show_size(1536), "1.5 KiB");
        assert_eq!(show_size(u64::MAX), "16777216.0 TiB");
    }

    proptest! {
        #[test]
        fn any_text_is_judged_without_panic(text: String) {
            let _ = parse_size(&text);
        }
    }
}
