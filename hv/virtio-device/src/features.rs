//! Feature bits: what the device offers and what the driver takes (VIRTIO 1.2 section 2.2).

use core::fmt;
use core::ops::BitOr;

/// A set of feature bits. Bits 64 and up are not defined for any device here.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(u64);

impl Features {
    pub const NONE: Self = Self(0);

    /// 6: VIRTIO_F_INDIRECT_DESC.
    pub const INDIRECT_DESC: Self = Self::bit(28);
    /// 6: VIRTIO_F_EVENT_IDX.
    pub const EVENT_IDX: Self = Self::bit(29);
    /// 6: VIRTIO_F_VERSION_1. A driver that does not take it speaks the legacy interface, which
    /// these devices do not have.
    pub const VERSION_1: Self = Self::bit(32);

    // 5.1.3, the network device. CSUM and HOST_TSO4 (transmit), GUEST_CSUM, GUEST_TSO4 and
    // MRG_RXBUF (receive) are named here for the offload issue; no device offers them yet.
    pub const NET_CSUM: Self = Self::bit(0);
    pub const NET_GUEST_CSUM: Self = Self::bit(1);
    pub const NET_MTU: Self = Self::bit(3);
    pub const NET_MAC: Self = Self::bit(5);
    pub const NET_GUEST_TSO4: Self = Self::bit(7);
    pub const NET_HOST_TSO4: Self = Self::bit(11);
    pub const NET_MRG_RXBUF: Self = Self::bit(15);
    pub const NET_STATUS: Self = Self::bit(16);

    // 5.2.3, the block device.
    pub const BLK_SEG_MAX: Self = Self::bit(2);
    pub const BLK_RO: Self = Self::bit(5);
    pub const BLK_BLK_SIZE: Self = Self::bit(6);
    pub const BLK_FLUSH: Self = Self::bit(9);
    pub const BLK_TOPOLOGY: Self = Self::bit(10);
    pub const BLK_MQ: Self = Self::bit(12);
    pub const BLK_DISCARD: Self = Self::bit(13);
    pub const BLK_WRITE_ZEROES: Self = Self::bit(14);

    const fn bit(number: u32) -> Self {
        Self(1 << number)
    }

    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub const fn bits(self) -> u64 {
        self.0
    }

    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every bit of `other` is in the set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The 32 bits that the registers show for one value of a feature select register: 0 for
    /// every selector but 0 and 1 (4.1.4.3.1).
    pub(crate) fn word(self, select: u32) -> u32 {
        match select {
            0 => (self.0 & u64::from(u32::MAX)) as u32,
            1 => (self.0 >> 32) as u32,
            _ => 0,
        }
    }

    /// Replaces the 32 bits behind a selector; a selector without bits changes nothing.
    pub(crate) fn set_word(&mut self, select: u32, value: u32) {
        let value = u64::from(value);
        match select {
            0 => self.0 = (self.0 & !u64::from(u32::MAX)) | value,
            1 => self.0 = (self.0 & u64::from(u32::MAX)) | (value << 32),
            _ => {}
        }
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Features({:#x})", self.0)
    }
}
