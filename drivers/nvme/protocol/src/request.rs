//! From what somebody asks of a disk to a command that the disk may be given.
//!
//! A request comes from a client, a guest or a partition table, so its numbers are compared with
//! the namespace here, before anything is written into a queue: the controller would refuse a
//! range that does not exist, but it would believe a length that the memory does not have.

use crate::command::Command;
use crate::identify::Namespace;
use crate::transfer::{MAX_TRANSFER_BYTES, Transfer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Flush,
}

/// What is asked. `memory` is its physical address and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub operation: Operation,
    pub first_sector: u64,
    pub sectors: u32,
    pub force_unit_access: bool,
    pub memory: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The sectors do not exist, or are none, or more than one command may move.
    OutOfRange,
    /// The memory is missing, too short, or not at a multiple of four bytes.
    BadMemory,
    ReadOnly,
}

/// A request that was found sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    pub command: Command,
    /// `None` for a flush, which moves nothing.
    pub transfer: Option<Transfer>,
}

/// What one namespace can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    namespace_id: u32,
    namespace: Namespace,
    max_transfer_bytes: u32,
}

impl Limits {
    /// The controller's transfer limit counts as far as it is below the driver's own. `None`
    /// where not even one sector could be moved.
    #[must_use]
    pub fn new(namespace_id: u32, namespace: Namespace, controller_limit_bytes: Option<u64>) -> Option<Self> {
        let limit = controller_limit_bytes.unwrap_or(u64::MAX).min(u64::from(MAX_TRANSFER_BYTES));
        let whole_sectors = limit >> namespace.sector_shift << namespace.sector_shift;
        // At most MAX_TRANSFER_BYTES, so nothing is lost.
        let max_transfer_bytes = whole_sectors as u32;
        (max_transfer_bytes != 0).then_some(Self { namespace_id, namespace, max_transfer_bytes })
    }

    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    #[must_use]
    pub fn max_transfer_bytes(&self) -> u32 {
        self.max_transfer_bytes
    }

    pub fn plan(&self, request: &Request) -> Result<Planned, Refusal> {
        if request.operation == Operation::Flush {
            return Ok(Planned { command: Command::flush(self.namespace_id), transfer: None });
        }
        if request.operation == Operation::Write && self.namespace.write_protected {
            return Err(Refusal::ReadOnly);
        }
        let end = request.first_sector.checked_add(u64::from(request.sectors));
        let exists = end.is_some_and(|end| end <= self.namespace.sectors);
        // At most 2^32 sectors of 2^12 bytes: this product cannot overflow.
        let bytes = u64::from(request.sectors) << self.namespace.sector_shift;
        if !exists || bytes == 0 || bytes > u64::from(self.max_transfer_bytes) {
            return Err(Refusal::OutOfRange);
        }
        // Both bounded by MAX_TRANSFER_BYTES now: 256 sectors of 512 bytes at most.
        let (bytes, sectors) = (bytes as u32, request.sectors as u16);
        let (address, available) = request.memory.ok_or(Refusal::BadMemory)?;
        if available < u64::from(bytes) {
            return Err(Refusal::BadMemory);
        }
        let transfer = Transfer::plan(address, bytes).map_err(|_| Refusal::BadMemory)?;
        let build = match request.operation {
            Operation::Write => Command::write,
            Operation::Read | Operation::Flush => Command::read,
        };
        let command =
            build(self.namespace_id, request.first_sector, sectors, request.force_unit_access, &transfer);
        Ok(Planned { command, transfer: Some(transfer) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limits(sectors: u64, sector_shift: u8, write_protected: bool) -> Limits {
        Limits::new(1, Namespace { sectors, sector_shift, write_protected }, None).unwrap()
    }

    fn read(first_sector: u64, sectors: u32) -> Request {
        Request {
            operation: Operation::Read,
            first_sector,
            sectors,
            force_unit_access: false,
            memory: Some((0x1_0048, 0x4_0000)),
        }
    }

    #[test]
    fn the_last_sector_is_the_last() {
        let limits = limits(1000, 9, false);
        assert!(limits.plan(&read(999, 1)).is_ok());
        assert_eq!(limits.plan(&read(999, 2)), Err(Refusal::OutOfRange));
        assert_eq!(limits.plan(&read(1000, 1)), Err(Refusal::OutOfRange));
        assert_eq!(limits.plan(&read(u64::MAX, 1)), Err(Refusal::OutOfRange));
        assert_eq!(limits.plan(&read(u64::MAX, u32::MAX)), Err(Refusal::OutOfRange));
        assert_eq!(limits.plan(&read(0, 0)), Err(Refusal::OutOfRange));
    }

    #[test]
    fn the_smaller_transfer_limit_counts() {
        let namespace = Namespace { sectors: 1000, sector_shift: 12, write_protected: false };
        let limits = Limits::new(1, namespace, Some(8192)).unwrap();
        assert_eq!(limits.max_transfer_bytes(), 8192);
        assert!(limits.plan(&read(0, 2)).is_ok());
        assert_eq!(limits.plan(&read(0, 3)), Err(Refusal::OutOfRange));
        assert_eq!(Limits::new(1, namespace, Some(1 << 40)).unwrap().max_transfer_bytes(), 131_072);
        assert_eq!(Limits::new(1, namespace, Some(2048)), None);
    }

    #[test]
    fn memory_must_hold_what_is_moved() {
        let limits = limits(1000, 9, false);
        let with = |memory| limits.plan(&Request { memory, ..read(0, 2) });
        assert!(with(Some((0x1048, 1024))).is_ok());
        assert_eq!(with(Some((0x1048, 1023))), Err(Refusal::BadMemory));
        assert_eq!(with(Some((0x104a, 1024))), Err(Refusal::BadMemory));
        assert_eq!(with(None), Err(Refusal::BadMemory));
    }

    #[test]
    fn a_protected_namespace_is_read_and_flushed_only() {
        let limits = limits(1000, 9, true);
        assert!(limits.plan(&read(0, 1)).is_ok());
        let write = Request { operation: Operation::Write, ..read(0, 1) };
        assert_eq!(limits.plan(&write), Err(Refusal::ReadOnly));
        let flush = Request { operation: Operation::Flush, memory: None, ..read(0, 0) };
        assert_eq!(limits.plan(&flush), Ok(Planned { command: Command::flush(1), transfer: None }));
    }

    proptest! {
        /// Any numbers: what is planned lies on the namespace and in the memory.
        #[test]
        fn a_plan_never_leaves_the_disk_or_the_memory(
            first_sector: u64, sectors: u32, address: u64, bytes: u64,
            size in 1_u64..1 << 50, large_sectors: bool, near: bool, write: bool,
        ) {
            let shift = if large_sectors { 12 } else { 9 };
            let limits = limits(size, shift, false);
            // Half of the cases near the end of the disk, where the mistakes would be.
            let first_sector = if near { (size + 4).saturating_sub(first_sector % 300) } else { first_sector };
            let sectors = if near { sectors % 300 } else { sectors };
            let operation = if write { Operation::Write } else { Operation::Read };
            let memory = Some((address, bytes));
            let request = Request { operation, first_sector, sectors, force_unit_access: write, memory };
            if let Ok(planned) = limits.plan(&request) {
                prop_assert!(first_sector.checked_add(u64::from(sectors)).unwrap() <= size);
                let moved = u64::from(sectors) << shift;
                prop_assert!(moved <= bytes && moved <= u64::from(limits.max_transfer_bytes()));
                let entry = planned.command.with_identifier(0);
                prop_assert_eq!(u64::from(entry[10]) | u64::from(entry[11]) << 32, first_sector);
                prop_assert_eq!((entry[12] & 0xffff) + 1, sectors);
            }
        }
    }
}
