//! The card's own address.

use crate::register::receive_address;

/// The station address that the card loaded from its memory, out of the first pair of receive address
/// registers (82576 sec 8.10, RAL and RAH). `None` if the pair is not valid, or holds no address that a
/// station can have: a group's, or none at all.
#[must_use]
pub fn station_address(low: u32, high: u32) -> Option<[u8; 6]> {
    let [a, b, c, d] = low.to_le_bytes();
    let [e, f, _, _] = high.to_le_bytes();
    let address = [a, b, c, d, e, f];
    // The lowest bit of the first byte is that of groups (IEEE 802 sec 8.2).
    let is_a_station = a & 1 == 0 && address != [0; 6];
    (high & receive_address::HIGH_VALID != 0 && is_a_station).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_are_in_the_order_of_the_wire() {
        assert_eq!(station_address(0x1200_5452, 0x8000_5634), Some([0x52, 0x54, 0x00, 0x12, 0x34, 0x56]));
    }

    #[test]
    fn an_empty_memory_gives_no_address() {
        for (low, high) in [(0x1200_5452, 0x5634), (0, 1 << 31), (u32::MAX, u32::MAX), (1, 1 << 31)] {
            assert_eq!(station_address(low, high), None);
        }
    }

    proptest! {
        #[test]
        fn an_address_is_a_stations(low: u32, high: u32) {
            if let Some(address) = station_address(low, high) {
                prop_assert_eq!(address[0] & 1, 0);
                prop_assert_ne!(address, [0; 6]);
                prop_assert_eq!(&address[..4], &low.to_le_bytes()[..]);
            }
        }
    }
}
