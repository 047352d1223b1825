//! A namespace as a disk.

use alloc::string::String;
use alloc::sync::Arc;

use kcore::block::{BlockIo, BlockOp, Disk, DiskStats, Rejected, SubmitError};
use kcore::time;
use nvme_protocol::{Class, Limits, Operation, Refusal, Request};

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
            BlockOp::Discard | BlockOp::WriteZeroes => {
                return Err(Rejected { error: SubmitError::Unsupported, io });
            }
        };
        if io.memory.as_ref().is_some_and(|memory| memory.segment_count() > 1) {
            return Err(Rejected { error: SubmitError::BadMemory, io });
        }
        let memory = io.memory.as_ref().and_then(|memory| memory.segments().next());
        let memory = memory.map(|segment| (segment.phys.as_u64(), segment.bytes as u64));
        let request = Request {
            operation,
            first_sector: io.first_sector,
            sectors: io.sectors,
            force_unit_access: io.force_unit_access,
            memory,
        };
        let planned = match self.limits.plan(&request) {
            Ok(planned) => planned,
            Err(refusal) => {
                let error = match refusal {
                    Refusal::OutOfRange => SubmitError::OutOfRange,
                    Refusal::BadMemory => SubmitError::BadMemory,
                    Refusal::ReadOnly => SubmitError::ReadOnly,
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
