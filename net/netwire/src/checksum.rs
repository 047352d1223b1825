//! The Internet checksum: computed (RFC 1071) and updated (RFC 1624).
//!
//! A sum is kept in an [`Accumulator`] so that a pseudo-header and a payload can be
//! added separately. A change of one field costs a constant time by equation 3 of
//! RFC 1624, `HC' = ~(~HC + ~m + m')`; equation 4 and the one of RFC 1141 are not
//! used because they turn a zero sum into its other representation.

use core::net::Ipv4Addr;

/// A running one's complement sum of 16-bit big-endian words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Accumulator {
    /// Partial sums of 32-bit words; each addition adds less than 2^32, so the
    /// upper half holds the carries of more bytes than any frame has.
    sum: u64,
}

impl Accumulator {
    pub const fn new() -> Accumulator {
        Accumulator { sum: 0 }
    }

    /// Adds bytes that start on an even offset of what is summed. An odd last byte
    /// counts as the high half of a word (RFC 1071 section 4.1), so only the last
    /// piece may have an odd length.
    #[must_use]
    pub fn add_bytes(mut self, bytes: &[u8]) -> Accumulator {
        let (words, rest) = bytes.as_chunks::<4>();
        for word in words {
            self.sum += u64::from(u32::from_be_bytes(*word));
        }
        let mut last = [0u8; 4];
        last[..rest.len()].copy_from_slice(rest);
        self.sum += u64::from(u32::from_be_bytes(last));
        self
    }

    #[must_use]
    pub fn add_u16(mut self, value: u16) -> Accumulator {
        self.sum += u64::from(value);
        self
    }

    /// Adds the IPv4 pseudo-header of UDP and TCP (RFC 768, RFC 9293 section 3.1).
    #[must_use]
    pub fn add_pseudo_header(
        self,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        protocol: u8,
        transport_bytes: u16,
    ) -> Accumulator {
        self.add_bytes(&source.octets())
            .add_bytes(&destination.octets())
            .add_u16(u16::from(protocol))
            .add_u16(transport_bytes)
    }

    /// The folded sum, not complemented. 0xffff over data that holds its checksum.
    pub fn sum(self) -> u16 {
        let folded = (self.sum >> 32) + (self.sum & 0xffff_ffff);
        let folded = (folded >> 32) + (folded & 0xffff_ffff);
        let folded = (folded >> 16) + (folded & 0xffff);
        let folded = (folded >> 16) + (folded & 0xffff);
        let folded = (folded >> 16) + (folded & 0xffff);
        (folded & 0xffff) as u16
    }

    /// The checksum field for the data summed with that field zero.
    pub fn checksum(self) -> u16 {
        !self.sum()
    }
}

/// The checksum of `bytes` (whose own checksum field must be zero).
pub fn of(bytes: &[u8]) -> u16 {
    Accumulator::new().add_bytes(bytes).checksum()
}

/// Whether `bytes`, checksum field included, sum to "all ones".
pub fn is_valid(bytes: &[u8]) -> bool {
    Accumulator::new().add_bytes(bytes).sum() == 0xffff
}

/// The checksum after one 16-bit word under it changed from `old` to `new`.
#[must_use]
pub fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    Accumulator::new().add_u16(!checksum).add_u16(!old).add_u16(new).checksum()
}

/// The checksum after an IPv4 address under it changed.
#[must_use]
pub fn update_address(checksum: u16, old: Ipv4Addr, new: Ipv4Addr) -> u16 {
    let [a, b, c, d] = old.octets();
    let [e, f, g, h] = new.octets();
    let high = update_u16(checksum, u16::from_be_bytes([a, b]), u16::from_be_bytes([e, f]));
    update_u16(high, u16::from_be_bytes([c, d]), u16::from_be_bytes([g, h]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example of RFC 1071 section 3.
    #[test]
    fn example_of_rfc_1071() {
        let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Accumulator::new().add_bytes(&data).sum(), 0xddf2);
        assert_eq!(of(&data), !0xddf2);
    }

    /// The example of RFC 1624 section 4, where equation 2 went wrong.
    #[test]
    fn example_of_rfc_1624() {
        assert_eq!(update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    /// The plain definition, word by word, to hold the wide one against.
    fn reference(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
            sum += u32::from(word);
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !(sum as u16)
    }

    proptest! {
        #[test]
        fn wide_sum_is_the_plain_sum(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(of(&bytes), reference(&bytes));
        }

        #[test]
        fn pieces_sum_like_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..150
        ) {
            let cut = (cut * 2).min(bytes.len() & !1);
            let (a, b) = bytes.split_at(cut);
            prop_assert_eq!(Accumulator::new().add_bytes(a).add_bytes(b).checksum(), of(&bytes));
        }

        #[test]
        fn update_is_recomputation(
            words in proptest::collection::vec(any::<u16>(), 2..40), at in any::<prop::sample::Index>(),
            new in any::<u16>()
        ) {
            // A first word that is not zero, as every header has: over all-zero data
            // the two representations of zero are both right.
            let mut words = words;
            words[0] |= 0x4000;
            let at = 1 + at.index(words.len() - 1);
            let to_bytes = |w: &[u16]| w.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<u8>>();
            let before = of(&to_bytes(&words));
            let old = core::mem::replace(&mut words[at], new);
            prop_assert_eq!(update_u16(before, old, new), of(&to_bytes(&words)));
        }

        #[test]
        fn address_update_is_recomputation(old in any::<u32>(), new in any::<u32>(), rest in 1u16..) {
            let (old, new) = (Ipv4Addr::from(old), Ipv4Addr::from(new));
            let sum = |a: Ipv4Addr| Accumulator::new().add_u16(rest).add_bytes(&a.octets()).checksum();
            prop_assert_eq!(update_address(sum(old), old, new), sum(new));
        }
    }
}
