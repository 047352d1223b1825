//! What one served device can be asked for, and ranges that are known to respect it.

use crate::{DATAGRAM_OVERHEAD_BYTES, MAX_READ_DATAGRAMS};
use core::fmt;

/// The smallest sector of any disk.
pub const MIN_SECTOR_BYTES: u32 = 512;

/// The most data one datagram carries, whatever the MTU: a page, into which a server's disk reads at once.
pub const MAX_DATAGRAM_BYTES: u32 = 4096;

/// The size of a device and the most a request may ask of it. Holding one proves: the sector size
/// is a power of two of at least 512, at least one sector fits a datagram, the device has sectors,
/// and its size in bytes is a `u64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    sector_bytes: u32,
    sectors: u64,
    datagram_sectors: u32,
    read_only: bool,
}

/// Why a device cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitsError {
    /// The sector size is no power of two of at least 512.
    SectorBytes(u32),
    /// Not one sector fits a datagram.
    SectorTooLong {
        /// The device's sector.
        sector_bytes: u32,
        /// The datagram's limit.
        mtu: u16,
    },
    /// The device has no sectors.
    Empty,
    /// The device's size in bytes is more than 2^64 - 1.
    TooLarge,
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SectorBytes(bytes) => {
                write!(f, "sectors of {bytes} bytes: a power of two of at least {MIN_SECTOR_BYTES} is needed")
            }
            Self::SectorTooLong { sector_bytes, mtu } => write!(
                f,
                "a {sector_bytes}-byte sector does not fit a datagram: an MTU of {mtu} leaves {} \
                 bytes for data. Serve a disk with smaller sectors, or raise mtu= to at least {}",
                usize::from(mtu).saturating_sub(DATAGRAM_OVERHEAD_BYTES),
                u64::from(sector_bytes) + DATAGRAM_OVERHEAD_BYTES as u64,
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
    /// # Errors
    /// [`LimitsError`] says what about the device cannot be served.
    pub fn new(sector_bytes: u32, sectors: u64, mtu: u16, read_only: bool) -> Result<Self, LimitsError> {
        if sector_bytes < MIN_SECTOR_BYTES || !sector_bytes.is_power_of_two() {
            return Err(LimitsError::SectorBytes(sector_bytes));
        }
        let room = u32::from(mtu).saturating_sub(DATAGRAM_OVERHEAD_BYTES as u32).min(MAX_DATAGRAM_BYTES);
        let datagram_sectors = room / sector_bytes;
        if datagram_sectors == 0 {
            return Err(LimitsError::SectorTooLong { sector_bytes, mtu });
        }
        if sectors == 0 {
            return Err(LimitsError::Empty);
        }
        if sectors.checked_mul(u64::from(sector_bytes)).is_none() {
            return Err(LimitsError::TooLarge);
        }
        Ok(Self { sector_bytes, sectors, datagram_sectors, read_only })
    }

    /// Bytes of a sector.
    pub const fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    /// Sectors of the device.
    pub const fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Bytes of the device.
    pub const fn size_bytes(&self) -> u64 {
        self.sectors * self.sector_bytes as u64
    }

    /// Whether WRITE is refused.
    pub const fn read_only(&self) -> bool {
        self.read_only
    }

    /// The most data one datagram carries: the most a WRITE may bring.
    pub const fn datagram_bytes(&self) -> u32 {
        self.datagram_sectors * self.sector_bytes
    }

    /// The most a READ may ask for.
    pub const fn max_read_bytes(&self) -> u32 {
        self.datagram_bytes() * MAX_READ_DATAGRAMS
    }

    /// The range of a request that may move up to `max_bytes`.
    ///
    /// # Errors
    /// [`RangeError`]: empty, not whole sectors, too long, or not on the device; in that order.
    pub fn range(&self, offset: u64, length: u32, max_bytes: u32) -> Result<SectorRange, RangeError> {
        SectorRange::on_device(offset, length, max_bytes, self.sector_bytes, self.size_bytes())
    }
}

/// What is wrong with an offset and a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeError {
    /// No byte is asked for.
    Empty,
    /// Offset or length is not a whole number of sectors.
    Unaligned,
    /// More than the op may ask.
    TooLong,
    /// The end lies behind the device, or behind 2^64.
    OutOfRange,
}

/// Whole sectors that lie on the device whose [`Limits`] made it; never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SectorRange {
    offset: u64,
    length: u32,
    sector_bytes: u32,
}

impl SectorRange {
    /// Checks an offset and a length against a device; see [`Limits::range`].
    pub(crate) fn on_device(
        offset: u64,
        length: u32,
        max_bytes: u32,
        sector_bytes: u32,
        size_bytes: u64,
    ) -> Result<Self, RangeError> {
        if length == 0 {
            return Err(RangeError::Empty);
        }
        if !offset.is_multiple_of(u64::from(sector_bytes)) || !length.is_multiple_of(sector_bytes) {
            return Err(RangeError::Unaligned);
        }
        if length > max_bytes {
            return Err(RangeError::TooLong);
        }
        match offset.checked_add(u64::from(length)) {
            Some(end) if end <= size_bytes => Ok(Self { offset, length, sector_bytes }),
            _ => Err(RangeError::OutOfRange),
        }
    }

    /// Bytes from the start of the device.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// The first sector.
    pub const fn first_sector(&self) -> u64 {
        self.offset / self.sector_bytes as u64
    }

    /// How many sectors.
    pub const fn sectors(&self) -> u32 {
        self.length / self.sector_bytes
    }

    /// The range datagram by datagram: each piece as long as `limits` lets a datagram be, the last
    /// one as long as is left.
    pub const fn pieces(&self, limits: &Limits) -> Pieces {
        self.cut(limits.datagram_bytes())
    }

    /// The range in pieces of `piece_bytes` bytes, which must be whole sectors and not none; the last
    /// one as long as is left.
    pub const fn cut(&self, piece_bytes: u32) -> Pieces {
        Pieces { rest: *self, piece_bytes }
    }
}

/// One datagram's share of a READ.
pub type Piece = SectorRange;

/// The iterator of [`SectorRange::pieces`].
#[derive(Debug, Clone)]
pub struct Pieces {
    rest: SectorRange,
    piece_bytes: u32,
}

impl Pieces {
    /// What has not been given out yet.
    pub const fn rest(&self) -> Option<SectorRange> {
        if self.rest.length == 0 { None } else { Some(self.rest) }
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let rest = self.rest()?;
        let length = rest.length.min(self.piece_bytes);
        self.rest.offset += u64::from(length);
        self.rest.length -= length;
        Some(SectorRange { length, ..rest })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.rest.length.div_ceil(self.piece_bytes) as usize;
        (count, Some(count))
    }
}

impl ExactSizeIterator for Pieces {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_sectors_of_512_bytes_fit_an_mtu_of_1500() {
        let limits = Limits::new(512, 100, 1500, false).unwrap();
        assert_eq!(limits.datagram_bytes(), 1024);
        assert_eq!(limits.max_read_bytes(), 16 * 1024);
        assert_eq!(limits.size_bytes(), 51_200);
    }

    #[test]
    fn sectors_of_4_kib_are_refused_with_the_way_out() {
        let error = Limits::new(4096, 100, 1500, false).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("4096-byte sector") && text.contains("1442") && text.contains("4154"),
            "{text}"
        );
        assert!(Limits::new(4096, 100, 4154, false).is_ok());
        assert!(Limits::new(4096, 100, 4153, false).is_err());
    }

    #[test]
    fn impossible_devices_are_refused() {
        for bytes in [0, 1, 256, 511, 513, 1000] {
            assert_eq!(Limits::new(bytes, 1, 1500, false), Err(LimitsError::SectorBytes(bytes)));
        }
        assert_eq!(Limits::new(512, 0, 1500, false), Err(LimitsError::Empty));
        assert_eq!(Limits::new(512, u64::MAX / 512 + 1, 1500, false), Err(LimitsError::TooLarge));
        assert!(Limits::new(512, u64::MAX / 512, 1500, false).is_ok());
        assert!(matches!(Limits::new(512, 1, 0, false), Err(LimitsError::SectorTooLong { .. })));
    }

    #[test]
    fn a_range_that_would_pass_the_end_of_the_number_line_is_out_of_range() {
        let limits = Limits::new(512, u64::MAX / 512, 1500, false).unwrap();
        let last = u64::MAX / 512 * 512;
        assert_eq!(limits.range(last, 512, 1024), Err(RangeError::OutOfRange));
        assert!(limits.range(last - 512, 512, 1024).is_ok());
    }

    proptest! {
        #[test]
        fn a_range_holds_what_its_type_says(
            shift in 9u32..13, sectors in 1u64..1 << 40, offset: u64, length: u32, max: u32, aligned: bool,
        ) {
            let limits = Limits::new(1 << shift, sectors, 9000, false).unwrap();
            let (offset, length) = if aligned {
                ((offset % (limits.size_bytes() * 2)) >> shift << shift, (length % 65536) >> shift << shift)
            } else {
                (offset, length)
            };
            if let Ok(range) = limits.range(offset, length, max) {
                prop_assert!(range.length() > 0 && range.length() <= max);
                prop_assert_eq!(range.first_sector() << shift, offset);
                prop_assert_eq!(range.sectors() << shift, length);
                prop_assert!(range.first_sector() + u64::from(range.sectors()) <= sectors);
            }
        }

        #[test]
        fn pieces_cover_the_range_in_order_without_gap_or_overlap(first in 0u64..1000, count in 1u32..32) {
            let limits = Limits::new(512, 2000, 1500, true).unwrap();
            let range = limits.range(first * 512, count * 512, limits.max_read_bytes()).unwrap();
            let pieces = range.pieces(&limits);
            prop_assert_eq!(pieces.len(), pieces.clone().count());
            prop_assert!(pieces.len() <= MAX_READ_DATAGRAMS as usize);
            let mut next = range.offset();
            for piece in pieces {
                prop_assert_eq!(piece.offset(), next);
                prop_assert!(piece.length() > 0 && piece.length() <= limits.datagram_bytes());
                next += u64::from(piece.length());
            }
            prop_assert_eq!(next, range.offset() + u64::from(range.length()));
        }
    }
}
