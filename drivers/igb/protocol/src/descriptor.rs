//! Descriptors: 16 bytes each, little-endian.

/// Bytes of a descriptor.
pub const BYTES: usize = 16;

/// Where the card says that it is done with a descriptor, and in a received one what became of it.
pub(crate) const RECEIVE_STATUS: usize = 8;
/// Where a received descriptor has its length, in the lower half.
pub(crate) const RECEIVE_LENGTH: usize = 12;
pub(crate) const TRANSMIT_STATUS: usize = 12;

/// The card is done with it.
pub(crate) const DONE: u32 = 1 << 0;

/// What a received descriptor says (82576 sec 7.1.5, advanced descriptors as written back).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveWriteBack {
    /// Bytes in the buffer.
    pub bytes: u16,
    /// The packet's last.
    pub end_of_packet: bool,
    /// The packet was damaged on the wire. Only in its last descriptor.
    pub damaged: bool,
}

mod received {
    pub const END_OF_PACKET: u32 = 1 << 1;
    /// Carrier or symbol error.
    pub const RECEIVE_ERROR: u32 = 1 << 31;
}

impl ReceiveWriteBack {
    /// Out of the two double words behind the first eight bytes. `None`: the card still has it.
    #[must_use]
    pub fn decode(status: u32, length: u32) -> Option<ReceiveWriteBack> {
        (status & DONE != 0).then_some(ReceiveWriteBack {
            // The upper half is a VLAN tag.
            bytes: length as u16,
            end_of_packet: status & received::END_OF_PACKET != 0,
            damaged: status & received::RECEIVE_ERROR != 0,
        })
    }
}

/// A buffer to receive into, as the card reads it (82576 sec 7.1.5): its address, and no buffer for
/// headers alone, which also clears what was written back.
#[must_use]
pub const fn receive(address: u64) -> [u64; 2] {
    [address, 0]
}

/// The longest packet whose length a transmit descriptor can say.
pub const MAX_PAYLOAD_BYTES: u32 = (1 << 18) - 1;

mod transmit_command {
    /// An advanced data descriptor.
    pub const DATA: u32 = 0b0011 << 20;
    pub const END_OF_PACKET: u32 = 1 << 24;
    pub const INSERT_CHECKSUM: u32 = 1 << 25;
    pub const REPORT_STATUS: u32 = 1 << 27;
    pub const ADVANCED: u32 = 1 << 29;
}

/// A piece of a packet to send (82576 sec 7.2.2, advanced data descriptors): the card adds the Ethernet
/// checksum, and reports on the packet's last piece alone.
#[must_use]
pub const fn transmit(address: u64, bytes: u16, packet_bytes: u32, is_last: bool) -> [u64; 2] {
    use transmit_command as command;
    const PAYLOAD_SHIFT: u32 = 14;
    let last = if is_last { command::END_OF_PACKET | command::REPORT_STATUS } else { 0 };
    let command = command::DATA | command::INSERT_CHECKSUM | command::ADVANCED | last | bytes as u32;
    let payload = (packet_bytes & MAX_PAYLOAD_BYTES) << PAYLOAD_SHIFT;
    [address, (payload as u64) << 32 | command as u64]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_packet_of_one_piece() {
        // 60 bytes: advanced data, report status, insert checksum, end of packet.
        assert_eq!(transmit(0x1000, 60, 60, true), [0x1000, (60 << 14) << 32 | 0x2b30_003c]);
    }

    #[test]
    fn what_is_not_done_says_nothing() {
        assert_eq!(ReceiveWriteBack::decode(0b10, 60), None);
        let piece = ReceiveWriteBack::decode(0b11, 0xabcd_003c).unwrap();
        assert_eq!(piece, ReceiveWriteBack { bytes: 60, end_of_packet: true, damaged: false });
        assert!(ReceiveWriteBack::decode(1 << 31 | 0b11, 60).unwrap().damaged);
    }

    proptest! {
        /// A fresh descriptor is the card's, whatever its numbers.
        #[test]
        fn nothing_fresh_looks_done(address: u64, bytes: u16, packet_bytes: u32, is_last: bool) {
            prop_assert_eq!((transmit(address, bytes, packet_bytes, is_last)[1] >> 32) as u32 & DONE, 0);
            prop_assert_eq!(receive(address)[1] as u32 & DONE, 0);
        }
    }
}
