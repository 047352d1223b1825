//! Values with a notation of their own: sizes, names, addresses. Each gives `None` for what it does not understand;
//! the caller knows the place and what was expected.

use core::fmt;
use core::net::Ipv4Addr;

use crate::NetblkKey;

/// An IPv4 address and the length of its network's prefix, as in `10.77.0.1/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Cidr {
    address: Ipv4Addr,
    prefix_bits: u8,
}

impl Ipv4Cidr {
    /// # Panics
    /// If the prefix is longer than an address.
    pub const fn new(address: Ipv4Addr, prefix_bits: u8) -> Self {
        assert!(prefix_bits <= 32);
        Ipv4Cidr { address, prefix_bits }
    }

    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// 0 to 32.
    pub const fn prefix_bits(&self) -> u8 {
        self.prefix_bits
    }

    /// The network mask, 255.255.255.0 for a prefix of 24.
    pub fn mask(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(self.prefix_bits)).unwrap_or(0))
    }

    /// Whether `other` is on the same network.
    pub fn contains(&self, other: Ipv4Addr) -> bool {
        let mask = self.mask().to_bits();
        self.address.to_bits() & mask == other.to_bits() & mask
    }

    /// Whether `other` can be a machine's address on this network: not the network's own address (all host bits 0)
    /// and not its broadcast address (all 1), as RFC 1122 section 3.2.1.3 reserves them. A /31 has neither (RFC 3021).
    pub fn is_host(&self, other: Ipv4Addr) -> bool {
        let host_mask = !self.mask().to_bits();
        let host = other.to_bits() & host_mask;
        self.contains(other) && (host_mask <= 1 || (host != 0 && host != host_mask))
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let prefix_bits = decimal(prefix)
            .and_then(|bits| u8::try_from(bits).ok())
            .filter(|bits| (1..=32).contains(bits))?;
        let cidr = Ipv4Cidr { address: address.parse().ok()?, prefix_bits };
        (is_unicast(cidr.address) && cidr.is_host(cidr.address)).then_some(cidr)
    }

    /// A network, whatever its address: `10.0.0.0/8`, `0.0.0.0/0`; a bare address is one machine.
    pub(crate) fn parse_network(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        let prefix_bits =
            decimal(prefix).and_then(|bits| u8::try_from(bits).ok()).filter(|&bits| bits <= 32)?;
        Some(Ipv4Cidr { address: address.parse().ok()?, prefix_bits })
    }
}

impl fmt::Display for Ipv4Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

/// An address that a machine can have: not of 0/8, 127/8, 224/4 or 240/4 (RFC 1122 section 3.2.1.3, RFC 1112), the same
/// that the node's stack refuses.
pub(crate) fn is_unicast(address: Ipv4Addr) -> bool {
    !matches!(address.octets()[0], 0 | 127 | 224..)
}

/// A secret of 32 bytes, as 64 hexadecimal digits.
pub(crate) fn netblk_key(text: &str) -> Option<NetblkKey> {
    let mut key = [0; 32];
    if text.len() != 2 * key.len() {
        return None;
    }
    for (place, digit) in text.chars().enumerate() {
        // A digit is less than 16. As many characters as bytes: all are ASCII.
        let digit = digit.to_digit(16)? as u8;
        key[place / 2] = key[place / 2] << 4 | digit;
    }
    Some(NetblkKey(key))
}

/// A size in bytes: `512 KiB`, `256 MiB`, `2 GiB`; the blank may be missing. Decimal units are not taken: memory is
/// bought in powers of two, and `MB` has meant both.
pub(crate) fn size_bytes(text: &str) -> Option<u64> {
    let split = text.find(|letter: char| !letter.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let shift = match unit.strip_prefix(' ').unwrap_or(unit) {
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    decimal(number)?.checked_mul(1 << shift)
}

/// A name that can be a host name (RFC 1123 section 2.1), a switch port's name and a word of a command.
pub(crate) fn is_name(text: &str) -> bool {
    text.len() <= 31
        && text.starts_with(|letter: char| letter.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// A device's name, as the shell's `disks` and `net` show it: `nvme0n1`, `nvme0n1p2`, `eth0`.
pub(crate) fn is_device_name(text: &str) -> bool {
    (1..=31).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// A file's name in the boot archive: relative, no `..`, nothing that a tar cannot carry.
pub(crate) fn is_file_name(text: &str) -> bool {
    (1..=99).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic())
        && text.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

fn decimal(text: &str) -> Option<u64> {
    // `parse` alone would take "+5".
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size_bytes("256 MiB"), Some(256 << 20));
        assert_eq!(size_bytes("2GiB"), Some(2 << 30));
        assert_eq!(size_bytes("16 KiB"), Some(16 << 10));
        for wrong in [
            "",
            "256",
            "256 MB",
            "MiB",
            "-1 MiB",
            "+1 MiB",
            "1  MiB",
            "1 MiB ",
            "99999999999999999999 KiB",
            "18014398509481984 KiB",
        ] {
            assert_eq!(size_bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn networks() {
        let cidr = Ipv4Cidr::parse("10.77.0.1/24").unwrap();
        assert_eq!(cidr.mask(), Ipv4Addr::new(255, 255, 255, 0));
        assert!(cidr.contains(Ipv4Addr::new(10, 77, 0, 200)));
        assert!(!cidr.contains(Ipv4Addr::new(10, 77, 1, 1)));
        assert!(!cidr.is_host(Ipv4Addr::new(10, 77, 0, 0)));
        assert!(!cidr.is_host(Ipv4Addr::new(10, 77, 0, 255)));
        assert!(Ipv4Cidr::parse("192.0.2.0/31").is_some());
        assert!(Ipv4Cidr::parse("192.0.2.7/32").is_some());
        for wrong in [
            "10.0.0.1",
            "10.0.0.1/33",
            "10.0.0.1/0",
            "10.0.0.1/+4",
            "10.0.0/8",
            "224.0.0.1/8",
            "10.77.0.0/24",
            "127.0.0.1/8",
            "240.0.0.1/24",
            "0.1.2.3/8",
            "10.77.0.255/24",
        ] {
            assert_eq!(Ipv4Cidr::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn names() {
        assert!(is_name("alpha") && is_name("web-2") && is_name("9to5"));
        assert!(
            !is_name("") && !is_name("-a") && !is_name("a b") && !is_name("ä") && !is_name(&"a".repeat(32))
        );
        assert!(is_file_name("guests/vmlinuz") && is_file_name("a"));
        assert!(
            !is_file_name("/etc/passwd")
                && !is_file_name("../a")
                && !is_file_name("a//b")
                && !is_file_name("")
        );
        assert!(is_device_name("nvme0n1p2") && !is_device_name("") && !is_device_name("nvme 0"));
    }
}
