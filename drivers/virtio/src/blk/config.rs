//! The device's configuration, judged.

use core::fmt;

use super::{BLK_SIZE, DISCARD, FLUSH, MULTI_QUEUE, READ_ONLY, SEG_MAX, SIZE_MAX, WRITE_ZEROES};
use crate::Features;

/// Offsets (VIRTIO sec 5.2.4).
mod offset {
    pub const CAPACITY: usize = 0;
    pub const SIZE_MAX: usize = 8;
    pub const SEG_MAX: usize = 12;
    pub const BLK_SIZE: usize = 20;
    /// A 16-bit field in the upper half of the dword at 32.
    pub const NUM_QUEUES: usize = 32;
    pub const MAX_DISCARD_SECTORS: usize = 36;
    pub const MAX_WRITE_ZEROES_SECTORS: usize = 48;
    pub const WRITE_ZEROES_MAY_UNMAP: usize = 56;
}

/// What the device wrote, field by field; a field whose feature was not negotiated is zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Config {
    /// In sectors of 512 bytes.
    pub capacity: u64,
    pub size_max: u32,
    pub seg_max: u32,
    pub blk_size: u32,
    pub num_queues: u16,
    pub max_discard_sectors: u32,
    pub max_write_zeroes_sectors: u32,
    pub write_zeroes_may_unmap: bool,
}

impl Config {
    /// The least that a device's configuration has.
    pub const LEAST_BYTES: u32 = 8;

    /// The features that are of use with a configuration of so many bytes: those whose fields lie in it.
    pub fn usable(offered: Features, bytes: u32) -> Features {
        let fields = [
            (SIZE_MAX, 12),
            (SEG_MAX, 16),
            (BLK_SIZE, 24),
            (MULTI_QUEUE, 36),
            (DISCARD, 48),
            (WRITE_ZEROES, 60),
        ];
        fields
            .into_iter()
            .filter(|(_, end)| bytes < *end)
            .fold(offered, |features, (feature, _)| features.without(feature))
    }

    /// Reads what `features` say is there. `read` reads an aligned dword.
    pub fn read(features: Features, read: impl Fn(usize) -> u32) -> Config {
        let field = |feature, offset| if features.contains(feature) { read(offset) } else { 0 };
        let low = u64::from(read(offset::CAPACITY));
        Config {
            capacity: low | u64::from(read(offset::CAPACITY + 4)) << 32,
            size_max: field(SIZE_MAX, offset::SIZE_MAX),
            seg_max: field(SEG_MAX, offset::SEG_MAX),
            blk_size: field(BLK_SIZE, offset::BLK_SIZE),
            num_queues: (field(MULTI_QUEUE, offset::NUM_QUEUES) >> 16) as u16,
            max_discard_sectors: field(DISCARD, offset::MAX_DISCARD_SECTORS),
            max_write_zeroes_sectors: field(WRITE_ZEROES, offset::MAX_WRITE_ZEROES_SECTORS),
            write_zeroes_may_unmap: field(WRITE_ZEROES, offset::WRITE_ZEROES_MAY_UNMAP) & 0xff != 0,
        }
    }
}

/// Most bytes of a transfer here, whatever the device allows: what the NVMe driver takes too.
const MAX_TRANSFER_BYTES: u32 = 128 * 1024;
/// Most bytes of a discard or a write of zeroes: one must be over long before a request's deadline.
const MAX_COMMAND_BYTES: u64 = 256 << 20;
/// Most pieces that the memory of a transfer may lie in here: those of a packet.
const MAX_SEGMENTS: u16 = 6;

/// A disk, in blocks of its own size. Holding one proves that it has blocks of 512 or 4096 bytes,
/// that their bytes can be counted, and that one block can be moved in one piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub(super) blocks: u64,
    /// 9 or 12.
    pub(super) block_shift: u8,
    pub(super) read_only: bool,
    pub(super) has_flush: bool,
    pub(super) max_transfer_bytes: u32,
    pub(super) max_segments: u16,
    pub(super) max_discard_blocks: u32,
    pub(super) max_write_zeroes_blocks: u32,
    pub(super) zeroes_may_unmap: bool,
    queues: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShapeError {
    Empty,
    BlockSize {
        bytes: u32,
    },
    TooLarge {
        capacity: u64,
    },
    /// Its longest piece of memory does not hold a block.
    SizeMax {
        bytes: u32,
    },
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShapeError::Empty => f.write_str("it has no sectors"),
            ShapeError::BlockSize { bytes } => {
                write!(f, "its blocks have {bytes} bytes; 512 and 4096 are supported")
            }
            ShapeError::TooLarge { capacity } => {
                write!(f, "its {capacity} sectors cannot be counted in bytes")
            }
            ShapeError::SizeMax { bytes } => {
                write!(f, "it takes no piece of memory beyond {bytes} bytes, which holds no block")
            }
        }
    }
}

impl core::error::Error for ShapeError {}

impl Shape {
    pub fn new(features: Features, config: &Config) -> Result<Shape, ShapeError> {
        let block_shift = match (features.contains(BLK_SIZE), config.blk_size) {
            (false, _) | (true, 512) => 9,
            (true, 4096) => 12,
            (true, bytes) => return Err(ShapeError::BlockSize { bytes }),
        };
        let capacity = config.capacity;
        if capacity > u64::MAX >> 9 {
            return Err(ShapeError::TooLarge { capacity });
        }
        // A piece of a block at the end is nobody's.
        let blocks = capacity >> (block_shift - 9);
        if blocks == 0 {
            return Err(ShapeError::Empty);
        }
        let limit =
            if features.contains(SIZE_MAX) { config.size_max } else { u32::MAX }.min(MAX_TRANSFER_BYTES);
        let max_transfer_bytes = limit >> block_shift << block_shift;
        if max_transfer_bytes == 0 {
            return Err(ShapeError::SizeMax { bytes: config.size_max });
        }
        // Whoever does not say how many pieces it takes is given one.
        let seg_max = if features.contains(SEG_MAX) { config.seg_max } else { 1 };
        let blocks_of = |feature, sectors: u32| match features.contains(feature) {
            true => (u64::from(sectors).min(MAX_COMMAND_BYTES >> 9) >> (block_shift - 9)) as u32,
            false => 0,
        };
        Ok(Shape {
            blocks,
            block_shift,
            read_only: features.contains(READ_ONLY),
            has_flush: features.contains(FLUSH),
            max_transfer_bytes,
            max_segments: seg_max.clamp(1, MAX_SEGMENTS.into()) as u16,
            max_discard_blocks: blocks_of(DISCARD, config.max_discard_sectors),
            max_write_zeroes_blocks: blocks_of(WRITE_ZEROES, config.max_write_zeroes_sectors),
            zeroes_may_unmap: config.write_zeroes_may_unmap,
            queues: config.num_queues.max(1),
        })
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    pub fn block_bytes(&self) -> u32 {
        1 << self.block_shift
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether completed writes may be lost with the power until a flush. A device that offers
    /// flushes has to be taken to need them (VIRTIO sec 5.2.6.2).
    pub fn has_cache(&self) -> bool {
        self.has_flush
    }

    pub fn max_transfer_bytes(&self) -> u32 {
        self.max_transfer_bytes
    }

    pub fn max_segments(&self) -> u16 {
        self.max_segments
    }

    /// 0 where there is no discard.
    pub fn max_discard_blocks(&self) -> u32 {
        self.max_discard_blocks
    }

    /// 0 where zeroes cannot be written without data.
    pub fn max_write_zeroes_blocks(&self) -> u32 {
        self.max_write_zeroes_blocks
    }

    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// For queues that can link no more than so many pieces.
    #[must_use]
    pub fn with_segments(self, most: u16) -> Shape {
        Shape { max_segments: self.max_segments.min(most.max(1)), ..self }
    }
}
