//! A namespace as a disk.

use alloc::string::String;
use alloc::sync::Arc;

use arrayvec::ArrayVec;
use kcore::block::{BlockIo, BlockOp, Disk, DiskFeatures, DiskStats, Rejected, SubmitError};
use kcore::dma::DmaMemory;
use kcore::time;
use nvme_protocol::{Class, Limits, MAX_SEGMENTS, Operation, Refusal, Request, Segment};

use crate::controller::{Controller, Phase};
use crate::io::Outstanding;
use crate::queue::NotQueued;

/// See the module.
pub struct NvmeDisk {
    controller: Arc<Controller>,
    name: String,
    /// Its place among the controller's disks.
    slot: usize,
    limits: Limits,
}

impl NvmeDisk {
    pub fn new(controller: Arc<Controller>, name: String, slot: usize, limits: Limits) -> NvmeDisk {
        NvmeDisk { controller, name, slot, limits }
    }

    /// What a queue that is closed means to those who submit.
    fn closed(&self) -> SubmitError {
        match self.controller.phase() {
            Phase::Finished => SubmitError::Gone,
            Phase::Running | Phase::Resetting => SubmitError::Busy,
        }
    }

    fn queue(&self, class: Class, io: BlockIo) -> Result<(), Rejected> {
        if self.controller.phase() != Phase::Running {
            return Err(Rejected { error: self.closed(), io });
        }
        let operation = match io.op {
            BlockOp::Read => Operation::Read,
            BlockOp::Write => Operation::Write,
            BlockOp::Flush => Operation::Flush,
            BlockOp::Discard => Operation::Discard,
            BlockOp::WriteZeroes => Operation::WriteZeroes,
        };
        // More than any controller here may be given.
        if io.memory.as_ref().is_some_and(|memory| memory.segment_count() > MAX_SEGMENTS) {
            return Err(Rejected { error: SubmitError::BadMemory, io });
        }
        let segments: ArrayVec<_, MAX_SEGMENTS> = io
            .memory
            .iter()
            .flat_map(DmaMemory::segments)
            .map(|segment| Segment { address: segment.phys.as_u64(), bytes: segment.bytes as u64 })
            .collect();
        let request = Request {
            operation,
            first_sector: io.first_sector,
            sectors: io.sectors,
            force_unit_access: io.force_unit_access,
            memory: &segments,
        };
        let planned = match self.limits.plan(&request) {
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
        let BlockIo { op, first_sector, sectors, force_unit_access, memory, sink, cookie } = io;
        let outstanding =
            Outstanding { operation, disk: self.slot, first_sector, sectors, memory, sink, cookie };
        let queue = self.controller.queue_here();
        queue.submit(class, &planned, outstanding, time::now_ns()).map_err(|refused| {
            let (error, back) = match refused {
                NotQueued::Full(back) => (SubmitError::Busy, back),
                NotQueued::Closed(back) => (self.closed(), back),
            };
            let Outstanding { memory, sink, cookie, .. } = back;
            Rejected {
                error,
                io: BlockIo { op, first_sector, sectors, force_unit_access, memory, sink, cookie },
            }
        })
    }
}

impl Disk for NvmeDisk {
    fn name(&self) -> &str {
        &self.name
    }

    fn model(&self) -> String {
        self.controller.model()
    }

    fn sector_bytes(&self) -> u32 {
        self.limits.namespace().sector_bytes()
    }

    fn sectors(&self) -> u64 {
        self.limits.namespace().sectors
    }

    fn read_only(&self) -> bool {
        self.limits.namespace().write_protected
    }

    fn max_transfer_bytes(&self) -> u32 {
        self.limits.max_transfer_bytes()
    }

    fn features(&self) -> DiskFeatures {
        let limits = &self.limits;
        DiskFeatures {
            discard: limits.max_discard_sectors() > 0,
            write_zeroes: limits.max_write_zeroes_sectors() > 0,
            max_discard_sectors: limits.max_discard_sectors(),
            max_write_zeroes_sectors: limits.max_write_zeroes_sectors(),
            max_segments: limits.max_segments(),
            volatile_cache: self.controller.has_volatile_cache(),
        }
    }

    fn submit(&self, io: BlockIo) -> Result<(), Rejected> {
        self.queue(Class::Asynchronous, io)
    }

    fn submit_sync(&self, io: BlockIo) -> Result<(), Rejected> {
        self.queue(Class::Synchronous, io)
    }

    /// Rings for what was submitted from this CPU: tasks do not change theirs.
    fn kick(&self) {
        self.controller.queue_here().rings().kick();
    }

    fn stats(&self) -> DiskStats {
        self.controller.stats(self.slot)
    }
}
