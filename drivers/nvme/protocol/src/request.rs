//! From what somebody asks of a disk to a command that the disk may be given.
//!
//! A request comes from a client, a guest or a partition table, so its numbers are compared with
//! the namespace here, before anything is written into a queue: the controller would refuse a
//! range that does not exist, but it would believe a length that the memory does not have.

use crate::attachment::{Attachment, MAX_SEGMENTS, Range, Scatter, Segment};
use crate::command::Command;
use crate::identify::{CommandLimits, Controller, Namespace};
use crate::transfer::{MAX_TRANSFER_BYTES, Transfer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
}

/// What is asked. `memory` is where the data lies, in its order; none for what moves no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    pub operation: Operation,
    pub first_sector: u64,
    pub sectors: u32,
    pub force_unit_access: bool,
    pub memory: &'a [Segment],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The sectors do not exist, or are none, or more than one command may take.
    OutOfRange,
    /// The memory is missing, has another length, is not made of whole dwords at such places, or
    /// lies in more pieces than the controller can do with.
    BadMemory,
    ReadOnly,
    /// The controller does not have the command.
    Unsupported,
}

/// A request that was found sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    pub command: Command,
    pub attachment: Attachment,
}

impl Planned {
    /// A command that says it all.
    #[must_use]
    pub const fn alone(command: Command) -> Self {
        Self { command, attachment: Attachment::None }
    }
}

/// What a controller allows a command of any of its namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerLimits {
    /// `None` where the controller sets no limit.
    transfer_bytes: Option<u64>,
    has_sgl: bool,
    /// `None` where it does not have the command, as below.
    write_zeroes_bytes: Option<u64>,
    discard_sectors: Option<u64>,
}

impl ControllerLimits {
    /// From what the controller says of itself; `commands` if it has that structure.
    #[must_use]
    pub fn new(controller: &Controller, commands: Option<&CommandLimits>) -> Self {
        let no_limits = CommandLimits::default();
        let named = commands.unwrap_or(&no_limits);
        // Controllers that do not have the structure are from a time when the limit of a transfer
        // was taken to be that of WRITE ZEROES too.
        let write_zeroes_bytes = match commands {
            Some(commands) => commands.write_zeroes_bytes,
            None => controller.max_transfer_bytes,
        };
        let discard_sectors = u64::from(named.range_sectors.unwrap_or(u32::MAX))
            .min(named.deallocate_sectors.unwrap_or(u64::MAX));
        Self {
            transfer_bytes: controller.max_transfer_bytes,
            has_sgl: controller.has_sgl,
            write_zeroes_bytes: controller.has_write_zeroes.then_some(write_zeroes_bytes.unwrap_or(u64::MAX)),
            discard_sectors: controller.has_dataset_management.then_some(discard_sectors),
        }
    }
}

/// Most bytes of a discard or a write of zeroes here, whatever the controller allows: how long one
/// takes grows with it in many disks, and it must be over long before a command's deadline.
const MAX_COMMAND_BYTES: u64 = 256 << 20;

/// NLB of WRITE ZEROES has 16 bits and is zero-based.
const MAX_ZEROED_SECTORS: u64 = 1 << 16;

/// What one namespace can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    namespace_id: u32,
    namespace: Namespace,
    max_transfer_bytes: u32,
    max_segments: u16,
    /// 0: the controller does not have the command.
    max_discard_sectors: u32,
    max_write_zeroes_sectors: u32,
}

impl Limits {
    /// The controller's limits count as far as they are below the driver's own. `None` where not
    /// even one sector could be moved.
    #[must_use]
    pub fn new(namespace_id: u32, namespace: Namespace, controller: &ControllerLimits) -> Option<Self> {
        let shift = namespace.sector_shift;
        let limit = controller.transfer_bytes.unwrap_or(u64::MAX).min(u64::from(MAX_TRANSFER_BYTES));
        // At most MAX_TRANSFER_BYTES, so nothing is lost.
        let max_transfer_bytes = (limit >> shift << shift) as u32;
        if max_transfer_bytes == 0 {
            return None;
        }
        let zeroed = controller.write_zeroes_bytes.unwrap_or(0).min(MAX_COMMAND_BYTES) >> shift;
        let discarded = controller.discard_sectors.unwrap_or(0).min(MAX_COMMAND_BYTES >> shift);
        Some(Self {
            namespace_id,
            namespace,
            max_transfer_bytes,
            max_segments: if controller.has_sgl { MAX_SEGMENTS as u16 } else { 1 },
            // Both at most MAX_COMMAND_BYTES / 512.
            max_discard_sectors: discarded as u32,
            max_write_zeroes_sectors: zeroed.min(MAX_ZEROED_SECTORS) as u32,
        })
    }

    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    #[must_use]
    pub fn max_transfer_bytes(&self) -> u32 {
        self.max_transfer_bytes
    }

    /// Most pieces of a transfer's memory.
    #[must_use]
    pub fn max_segments(&self) -> u16 {
        self.max_segments
    }

    /// Most sectors of a discard; 0 where there is none.
    #[must_use]
    pub fn max_discard_sectors(&self) -> u32 {
        self.max_discard_sectors
    }

    /// Most sectors of a write of zeroes; 0 where there is none.
    #[must_use]
    pub fn max_write_zeroes_sectors(&self) -> u32 {
        self.max_write_zeroes_sectors
    }

    pub fn plan(&self, request: &Request<'_>) -> Result<Planned, Refusal> {
        let Request { operation, first_sector, sectors, force_unit_access, memory } = *request;
        let namespace = self.namespace_id;
        if operation == Operation::Flush {
            return Ok(Planned::alone(Command::flush(namespace)));
        }
        if operation != Operation::Read && self.namespace.write_protected {
            return Err(Refusal::ReadOnly);
        }
        let most = match operation {
            Operation::Discard => self.max_discard_sectors,
            Operation::WriteZeroes => self.max_write_zeroes_sectors,
            _ => self.max_transfer_bytes >> self.namespace.sector_shift,
        };
        if most == 0 {
            return Err(Refusal::Unsupported);
        }
        let end = first_sector.checked_add(u64::from(sectors));
        let exists = end.is_some_and(|end| end <= self.namespace.sectors);
        if !exists || sectors == 0 || sectors > most {
            return Err(Refusal::OutOfRange);
        }
        let command = match operation {
            Operation::Discard => {
                let attachment = Attachment::Range(Range { first_sector, sectors });
                return Ok(Planned { command: Command::deallocate(namespace), attachment });
            }
            Operation::WriteZeroes => {
                let deallocate = self.namespace.zeroes_by_deallocation;
                let command =
                    Command::write_zeroes(namespace, first_sector, sectors, force_unit_access, deallocate);
                return Ok(Planned::alone(command));
            }
            Operation::Write => Command::write(namespace, first_sector, sectors, force_unit_access),
            Operation::Read | Operation::Flush => {
                Command::read(namespace, first_sector, sectors, force_unit_access)
            }
        };
        // At most max_transfer_bytes.
        self.with_memory(command, sectors << self.namespace.sector_shift, memory)
    }

    /// Memory in one piece is described by PRPs, which every controller has and which need no
    /// attachment where the data lies in two pages at most.
    fn with_memory(&self, command: Command, bytes: u32, memory: &[Segment]) -> Result<Planned, Refusal> {
        if memory.len() > usize::from(self.max_segments) {
            return Err(Refusal::BadMemory);
        }
        if let [whole] = memory {
            if whole.bytes < u64::from(bytes) {
                return Err(Refusal::BadMemory);
            }
            let transfer = Transfer::plan(whole.address, bytes).map_err(|_| Refusal::BadMemory)?;
            let command = command.with_transfer(&transfer);
            return Ok(Planned { command, attachment: Attachment::of(&transfer) });
        }
        let scatter = Scatter::plan(memory, bytes).map_err(|_| Refusal::BadMemory)?;
        Ok(Planned { command, attachment: Attachment::Scatter(scatter) })
    }
}

#[cfg(test)]
mod tests;
