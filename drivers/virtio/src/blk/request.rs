//! From what somebody asks of a disk to a request that the device may be given.

use super::{Kind, Shape};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
}

/// What is asked, in blocks of the disk's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub operation: Operation,
    pub first_block: u64,
    pub blocks: u32,
    pub force_unit_access: bool,
    /// Bytes of the data's memory; 0 where there is none.
    pub memory_bytes: u64,
    pub segments: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The blocks do not exist, or are none, or more than one request may take.
    OutOfRange,
    /// The memory is missing, has another length, or lies in more pieces than the device takes.
    BadMemory,
    ReadOnly,
    Unsupported,
}

/// Sectors of 512 bytes that are given up, and how (VIRTIO sec 5.2.6: struct
/// virtio_blk_discard_write_zeroes).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    pub sector: u64,
    pub sectors: u32,
    pub unmap: bool,
}

/// A request that was found sound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planned {
    pub kind: Kind,
    /// Of 512 bytes; 0 where the range says it.
    pub sector: u64,
    pub range: Option<Range>,
    /// Bytes that the device will read or write.
    pub data_bytes: u32,
    /// A flush must follow before the request is done: the protocol has no forced unit access.
    pub flush_behind: bool,
}

impl Planned {
    /// Everything that was written becomes durable.
    pub const FLUSH: Planned =
        Planned { kind: Kind::Flush, sector: 0, range: None, data_bytes: 0, flush_behind: false };
}

impl Shape {
    /// `None`: there is nothing to do, because the device has no cache to be flushed.
    pub fn plan(&self, request: &Request) -> Result<Option<Planned>, Refusal> {
        let Request { operation, first_block, blocks, .. } = *request;
        if operation == Operation::Flush {
            return Ok(self.has_flush.then_some(Planned::FLUSH));
        }
        if operation != Operation::Read && self.read_only {
            return Err(Refusal::ReadOnly);
        }
        let most = match operation {
            Operation::Discard => self.max_discard_blocks,
            Operation::WriteZeroes => self.max_write_zeroes_blocks,
            Operation::Read | Operation::Write | Operation::Flush => {
                self.max_transfer_bytes >> self.block_shift
            }
        };
        if most == 0 {
            return Err(Refusal::Unsupported);
        }
        let exists = first_block.checked_add(u64::from(blocks)).is_some_and(|end| end <= self.blocks);
        if !exists || blocks == 0 || blocks > most {
            return Err(Refusal::OutOfRange);
        }
        let to_sectors = self.block_shift - 9;
        // The capacity in sectors can be counted, and so can what lies below it.
        let sector = first_block << to_sectors;
        let flush_behind = request.force_unit_access
            && self.has_flush
            && matches!(operation, Operation::Write | Operation::WriteZeroes);
        let kind = match operation {
            Operation::Discard | Operation::WriteZeroes => {
                let zeroes = operation == Operation::WriteZeroes;
                // Unmapping on a discard is a reserved bit (VIRTIO sec 5.2.6.1).
                let unmap = zeroes && self.zeroes_may_unmap;
                let range = Some(Range { sector, sectors: blocks << to_sectors, unmap });
                let kind = if zeroes { Kind::WriteZeroes } else { Kind::Discard };
                return Ok(Some(Planned { kind, sector: 0, range, data_bytes: 0, flush_behind }));
            }
            Operation::Write => Kind::Out,
            Operation::Read | Operation::Flush => Kind::In,
        };
        // At most max_transfer_bytes.
        let data_bytes = blocks << self.block_shift;
        let fits = match request.segments {
            1 => request.memory_bytes >= u64::from(data_bytes),
            several => {
                request.memory_bytes == u64::from(data_bytes)
                    && (2..=usize::from(self.max_segments)).contains(&several)
            }
        };
        if !fits {
            return Err(Refusal::BadMemory);
        }
        Ok(Some(Planned { kind, sector, range: None, data_bytes, flush_behind }))
    }
}
