//! What one served device can be asked for in version 2.

use super::DATAGRAM_OVERHEAD_BYTES;
use crate::MAX_READ_DATAGRAMS;
use crate::limits::{MAX_DATAGRAM_BYTES, MIN_SECTOR_BYTES, RangeError, SectorRange};
use core::fmt;

/// The longest sector: a page, which is what a server's disk reads into at once.
pub const MAX_SECTOR_BYTES: u32 = 4096;

/// The most parts a WRITE comes in: a page at an MTU of 606, the smallest that carries 512 bytes.
pub const MAX_WRITE_PARTS: usize = 8;

/// The most that one DISCARD or WRITE ZEROES asks. The server orders overlapping changes with a table of
/// bits that a longer range would fill.
pub const MAX_RANGE_BYTES: u32 = 8 << 20;

/// A device and how it is served; what [`Limits::new`] checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// Bytes of a sector.
    pub sector_bytes: u32,
    /// Sectors.
    pub sectors: u64,
    /// Whether what changes it is refused.
    pub read_only: bool,
    /// The most a WRITE shall bring, in as many parts as it takes. It is raised to a sector or a datagram's
    /// worth and lowered to what [`MAX_WRITE_PARTS`] and [`MAX_DATAGRAM_BYTES`] allow.
    pub max_write_bytes: u32,
    /// The most the disk discards at once; 0: it cannot.
    pub max_discard_bytes: u32,
    /// The most the disk zeroes at once; 0: it cannot.
    pub max_write_zeroes_bytes: u32,
}

/// The size of a device and the most a request may ask of it. Holding one proves: the sector size is a
/// power of two from 512 to 4096, a datagram carries a power of two of bytes from 512 to 4096, every
/// other limit is whole sectors and at least one (or none, for DISCARD and WRITE ZEROES), the longest
/// WRITE has at most [`MAX_WRITE_PARTS`] parts, and the size in bytes is a `u64` and not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    device: Device,
    datagram_bytes: u32,
}

/// Why a device cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitsError {
    /// The sector size is no power of two from 512 to 4096.
    SectorBytes(u32),
    /// Not 512 bytes fit a datagram.
    Mtu(u16),
    /// The device has no sectors.
    Empty,
    /// The device's size in bytes is more than 2^64 - 1.
    TooLarge,
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SectorBytes(bytes) => write!(
                f,
                "sectors of {bytes} bytes: a power of two from {MIN_SECTOR_BYTES} to {MAX_SECTOR_BYTES} is needed"
            ),
            Self::Mtu(mtu) => write!(
                f,
                "mtu={mtu} leaves no room for data: at least {} is needed",
                MIN_SECTOR_BYTES as usize + DATAGRAM_OVERHEAD_BYTES
            ),
            Self::Empty => f.write_str("the disk has no sectors"),
            Self::TooLarge => f.write_str("the disk has more than 2^64 - 1 bytes"),
        }
    }
}

impl core::error::Error for LimitsError {}

impl Limits {
    /// The limits of a device whose datagrams must fit `mtu` bytes (from the IP header on).
    ///
    /// A datagram carries the largest power of two that fits, up to a page: then datagrams and sectors
    /// always divide each other, whichever is longer.
    ///
    /// # Errors
    /// [`LimitsError`] says what cannot be served.
    pub fn new(device: Device, mtu: u16) -> Result<Self, LimitsError> {
        let sector_bytes = device.sector_bytes;
        if !sector_bytes.is_power_of_two() || !(MIN_SECTOR_BYTES..=MAX_SECTOR_BYTES).contains(&sector_bytes) {
            return Err(LimitsError::SectorBytes(sector_bytes));
        }
        let room = u32::from(mtu).saturating_sub(DATAGRAM_OVERHEAD_BYTES as u32).min(MAX_DATAGRAM_BYTES);
        if room < MIN_SECTOR_BYTES {
            return Err(LimitsError::Mtu(mtu));
        }
        let datagram_bytes = 1 << room.ilog2();
        if device.sectors == 0 {
            return Err(LimitsError::Empty);
        }
        if device.sectors.checked_mul(u64::from(sector_bytes)).is_none() {
            return Err(LimitsError::TooLarge);
        }
        let whole = |bytes: u32| bytes / sector_bytes * sector_bytes;
        // Eight datagrams hold at least a page, and a page at least a sector.
        let most_write_bytes = (datagram_bytes * MAX_WRITE_PARTS as u32).min(MAX_DATAGRAM_BYTES);
        let device = Device {
            max_write_bytes: whole(device.max_write_bytes)
                .clamp(sector_bytes.max(datagram_bytes), most_write_bytes),
            max_discard_bytes: whole(device.max_discard_bytes.min(MAX_RANGE_BYTES)),
            max_write_zeroes_bytes: whole(device.max_write_zeroes_bytes.min(MAX_RANGE_BYTES)),
            ..device
        };
        Ok(Self { device, datagram_bytes })
    }

    /// Bytes of a sector.
    pub const fn sector_bytes(&self) -> u32 {
        self.device.sector_bytes
    }

    /// Bytes of the device.
    pub const fn size_bytes(&self) -> u64 {
        self.device.sectors * self.device.sector_bytes as u64
    }

    /// Whether what changes the device is refused.
    pub const fn read_only(&self) -> bool {
        self.device.read_only
    }

    /// The most data one datagram carries: a power of two, perhaps less than a sector.
    pub const fn datagram_bytes(&self) -> u32 {
        self.datagram_bytes
    }

    /// The most a READ may ask for.
    pub const fn max_read_bytes(&self) -> u32 {
        // At least 16 times 512 bytes, so whole sectors and at least one.
        self.datagram_bytes * MAX_READ_DATAGRAMS
    }

    /// The most a WRITE may bring.
    pub const fn max_write_bytes(&self) -> u32 {
        self.device.max_write_bytes
    }

    /// The most a DISCARD may ask for; 0: the device cannot.
    pub const fn max_discard_bytes(&self) -> u32 {
        self.device.max_discard_bytes
    }

    /// The most a WRITE ZEROES may ask for; 0: the device cannot.
    pub const fn max_write_zeroes_bytes(&self) -> u32 {
        self.device.max_write_zeroes_bytes
    }

    /// In how many datagrams `length` bytes travel.
    pub const fn datagrams(&self, length: u32) -> u32 {
        length.div_ceil(self.datagram_bytes)
    }

    /// The range of a request that may move up to `max_bytes`.
    ///
    /// # Errors
    /// [`RangeError`]: empty, not whole sectors, too long, or not on the device; in that order.
    pub fn range(&self, offset: u64, length: u32, max_bytes: u32) -> Result<SectorRange, RangeError> {
        SectorRange::on_device(offset, length, max_bytes, self.sector_bytes(), self.size_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn device(sector_bytes: u32) -> Device {
        Device {
            sector_bytes,
            sectors: 1000,
            read_only: false,
            max_write_bytes: u32::MAX,
            max_discard_bytes: u32::MAX,
            max_write_zeroes_bytes: 0,
        }
    }

    #[test]
    fn datagrams_are_the_largest_power_of_two_that_fits() {
        let datagram = |mtu| Limits::new(device(512), mtu).map(|limits| limits.datagram_bytes());
        assert_eq!(datagram(605), Err(LimitsError::Mtu(605)));
        assert_eq!(datagram(606), Ok(512));
        assert_eq!(datagram(1117), Ok(512));
        assert_eq!(datagram(1118), Ok(1024));
        assert_eq!(datagram(1500), Ok(1024));
        assert_eq!(datagram(4189), Ok(2048));
        assert_eq!(datagram(4190), Ok(4096));
        assert_eq!(datagram(9000), Ok(4096));
    }

    #[test]
    fn a_sector_of_4_kib_travels_in_four_datagrams() {
        let limits = Limits::new(device(4096), 1500).unwrap();
        assert_eq!((limits.datagram_bytes(), limits.datagrams(4096)), (1024, 4));
        assert_eq!((limits.max_read_bytes(), limits.max_write_bytes()), (16384, 4096));
        assert_eq!((limits.max_discard_bytes(), limits.max_write_zeroes_bytes()), (8 << 20, 0));
    }

    #[test]
    fn impossible_devices_are_refused() {
        for bytes in [0, 1, 256, 511, 513, 8192] {
            assert_eq!(Limits::new(device(bytes), 1500), Err(LimitsError::SectorBytes(bytes)));
        }
        assert_eq!(Limits::new(Device { sectors: 0, ..device(512) }, 1500), Err(LimitsError::Empty));
        let too_large = Device { sectors: u64::MAX / 512 + 1, ..device(512) };
        assert_eq!(Limits::new(too_large, 1500), Err(LimitsError::TooLarge));
    }

    proptest! {
        #[test]
        fn limits_are_what_their_type_says(
            shift in 9u32..13, sectors in 1u64..1 << 40, mtu in 606u16.., write: u32, discard: u32, zeroes: u32,
        ) {
            let device = Device {
                sector_bytes: 1 << shift, sectors, read_only: false,
                max_write_bytes: write, max_discard_bytes: discard, max_write_zeroes_bytes: zeroes,
            };
            let limits = Limits::new(device, mtu).unwrap();
            let sector = limits.sector_bytes();
            prop_assert!(limits.datagram_bytes() as usize + DATAGRAM_OVERHEAD_BYTES <= usize::from(mtu));
            for limit in [limits.max_read_bytes(), limits.max_write_bytes()] {
                prop_assert!(limit > 0 && limit.is_multiple_of(sector));
            }
            prop_assert!(limits.max_discard_bytes().is_multiple_of(sector));
            prop_assert!(limits.max_write_zeroes_bytes().is_multiple_of(sector));
            prop_assert!(limits.datagrams(limits.max_write_bytes()) as usize <= MAX_WRITE_PARTS);
            prop_assert!(limits.max_write_bytes() >= limits.datagram_bytes().max(sector));
        }
    }
}
