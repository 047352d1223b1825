//! A device as a disk.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use arrayvec::ArrayVec;
use kcore::block::{BlockIo, BlockOp, Disk, DiskFeatures, DiskStats, Rejected, SubmitError};
use kcore::dma::DmaMemory;
use kcore::frame::MAX_PIECES;
use virtio_driver::blk::{Operation, Refusal, Request};
use virtio_driver::{Class, Segment};

use crate::device::{Device, Phase};
use crate::queue::{NotQueued, Outstanding};

/// See the module.
pub struct VirtioDisk {
    device: Arc<Device>,
}

impl VirtioDisk {
    pub fn new(device: Arc<Device>) -> VirtioDisk {
        VirtioDisk { device }
    }

    /// What a queue that is closed means to those who submit.
    fn closed(&self) -> SubmitError {
        match self.device.phase() {
            Phase::Finished => SubmitError::Gone,
            Phase::Running | Phase::Resetting => SubmitError::Busy,
        }
    }

    fn queue(&self, class: Class, io: BlockIo) -> Result<(), Rejected> {
        if self.device.phase() != Phase::Running {
            return Err(Rejected { error: self.closed(), io });
        }
        let operation = match io.op {
            BlockOp::Read => Operation::Read,
            BlockOp::Write => Operation::Write,
            BlockOp::Flush => Operation::Flush,
            BlockOp::Discard => Operation::Discard,
            BlockOp::WriteZeroes => Operation::WriteZeroes,
        };
        let request = Request {
            operation,
            first_block: io.first_sector,
            blocks: io.sectors,
            force_unit_access: io.force_unit_access,
            memory_bytes: io.memory.as_ref().map_or(0, |memory| memory.len_bytes() as u64),
            segments: io.memory.as_ref().map_or(0, DmaMemory::segment_count),
        };
        let planned = match self.device.shape().plan(&request) {
            Ok(planned) => planned,
            Err(refusal) => {
                let error = match refusal {
                    Refusal::OutOfRange => SubmitError::OutOfRange,
                    Refusal::BadMemory => SubmitError::BadMemory,
                    Refusal::ReadOnly => SubmitError::ReadOnly,
                    Refusal::Unsupported => SubmitError::Unsupported,
                };
                return Err(Rejected { error, io });
            }
        };
        // Only what moves data has memory that the device hears of; the plan has checked how much
        // and in how many pieces.
        let moves_data = planned.is_some_and(|planned| planned.data_bytes > 0);
        let segments: ArrayVec<_, MAX_PIECES> = io
            .memory
            .iter()
            .filter(|_| moves_data)
            .flat_map(DmaMemory::segments)
            .map(|segment| {
                // No longer than the transfer that it is cut to.
                let bytes = u32::try_from(segment.bytes).unwrap_or(u32::MAX);
                Segment { device_address: segment.phys.as_u64(), bytes }
            })
            .collect();
        let BlockIo { op, first_sector, sectors, force_unit_access, memory, sink, cookie } = io;
        let transfer = Outstanding {
            operation,
            first_block: first_sector,
            blocks: sectors,
            flush_behind: planned.is_some_and(|planned| planned.flush_behind),
            memory,
            sink,
            cookie,
        };
        let queue = self.device.queue_here();
        let queued = match planned {
            Some(planned) => queue.submit(class, &planned, &segments, transfer),
            None => queue.submit_done(transfer),
        };
        queued.map_err(|refused| {
            let (error, back) = match refused {
                NotQueued::Full(back) => (SubmitError::Busy, back),
                NotQueued::Closed(back) => (self.closed(), back),
            };
            let Outstanding { memory, sink, cookie, .. } = back;
            let io = BlockIo { op, first_sector, sectors, force_unit_access, memory, sink, cookie };
            Rejected { error, io }
        })
    }
}

impl Disk for VirtioDisk {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn model(&self) -> String {
        format!("virtio-blk at {}", self.device.address())
    }

    fn sector_bytes(&self) -> u32 {
        self.device.shape().block_bytes()
    }

    fn sectors(&self) -> u64 {
        self.device.shape().blocks()
    }

    fn read_only(&self) -> bool {
        self.device.shape().is_read_only()
    }

    fn max_transfer_bytes(&self) -> u32 {
        self.device.shape().max_transfer_bytes()
    }

    fn features(&self) -> DiskFeatures {
        let shape = self.device.shape();
        DiskFeatures {
            discard: shape.max_discard_blocks() > 0,
            write_zeroes: shape.max_write_zeroes_blocks() > 0,
            max_discard_sectors: shape.max_discard_blocks(),
            max_write_zeroes_sectors: shape.max_write_zeroes_blocks(),
            max_segments: shape.max_segments(),
            volatile_cache: shape.has_cache(),
        }
    }

    fn submit(&self, io: BlockIo) -> Result<(), Rejected> {
        self.queue(Class::Asynchronous, io)
    }

    fn submit_sync(&self, io: BlockIo) -> Result<(), Rejected> {
        self.queue(Class::Synchronous, io)
    }

    /// Announces what was submitted from this CPU: tasks do not change theirs.
    fn kick(&self) {
        self.device.queue_here().kick();
    }

    fn stats(&self) -> DiskStats {
        self.device.stats()
    }
}
