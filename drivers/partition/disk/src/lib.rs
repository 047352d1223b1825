//! Partitions as disks of their own.
//!
//! A partition forwards to its disk with an offset and does nothing else: no queue, no copy, no
//! lock. Whether a request stays inside is decided by [`Extent::translate`], which is tested on
//! the host; a request that does not is given back untouched, and the disk never hears of it.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kcore::block::{
    self, BlockIo, BlockOp, Disk, DiskExtent, DiskFeatures, DiskStats, Rejected, SubmitError,
};
use partition::{Extent, Partition, ScanError, SectorSource, Table, Unreadable, scan};

/// One partition of a disk.
pub struct PartitionDisk {
    disk: Arc<dyn Disk>,
    name: String,
    description: String,
    extent: Extent,
    /// What was passed on; what became of it is the disk's to count.
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    write_zeroes: AtomicU64,
}

impl PartitionDisk {
    fn new(disk: Arc<dyn Disk>, partition: &Partition) -> PartitionDisk {
        let name = partition_name(disk.name(), partition.number);
        let label = if partition.name.is_empty() { "" } else { " " };
        let description = format!("{}{label}{} on {}", partition.kind, partition.name, disk.name());
        PartitionDisk {
            disk,
            name,
            description,
            extent: partition.extent,
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            discards: AtomicU64::new(0),
            write_zeroes: AtomicU64::new(0),
        }
    }

    fn forward(
        &self,
        mut io: BlockIo,
        submit: impl FnOnce(&dyn Disk, BlockIo) -> Result<(), Rejected>,
    ) -> Result<(), Rejected> {
        let (op, first_sector) = (io.op, io.first_sector);
        if op != BlockOp::Flush {
            match self.extent.translate(first_sector, io.sectors) {
                Some(on_disk) => io.first_sector = on_disk,
                None => return Err(Rejected { error: SubmitError::OutOfRange, io }),
            }
        }
        submit(&*self.disk, io).map_err(|rejected| {
            let io = BlockIo { first_sector, ..rejected.io };
            Rejected { error: rejected.error, io }
        })?;
        let counter = match op {
            BlockOp::Read => &self.reads,
            BlockOp::Write => &self.writes,
            BlockOp::Flush => &self.flushes,
            BlockOp::Discard => &self.discards,
            BlockOp::WriteZeroes => &self.write_zeroes,
        };
        counter.fetch_add(1, Relaxed);
        Ok(())
    }
}

impl Disk for PartitionDisk {
    fn name(&self) -> &str {
        &self.name
    }

    fn model(&self) -> String {
        self.description.clone()
    }

    fn sector_bytes(&self) -> u32 {
        self.disk.sector_bytes()
    }

    fn sectors(&self) -> u64 {
        self.extent.sectors()
    }

    fn read_only(&self) -> bool {
        self.disk.read_only()
    }

    fn max_transfer_bytes(&self) -> u32 {
        self.disk.max_transfer_bytes()
    }

    fn extent(&self) -> DiskExtent {
        let whole = self.disk.extent();
        let first = whole.sectors.start + self.extent.first_sector();
        DiskExtent { disk: whole.disk, sectors: first..first + self.extent.sectors() }
    }

    fn features(&self) -> DiskFeatures {
        self.disk.features()
    }

    fn submit(&self, io: BlockIo) -> Result<(), Rejected> {
        self.forward(io, |disk, io| disk.submit(io))
    }

    fn submit_sync(&self, io: BlockIo) -> Result<(), Rejected> {
        self.forward(io, |disk, io| disk.submit_sync(io))
    }

    fn kick(&self) {
        self.disk.kick();
    }

    /// Transfers are those handed to the disk; errors, doorbells and interrupts are shown by the
    /// disk, for which they cannot be told apart by partition.
    fn stats(&self) -> DiskStats {
        DiskStats {
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            discards: self.discards.load(Relaxed),
            write_zeroes: self.write_zeroes.load(Relaxed),
            ..DiskStats::default()
        }
    }
}

/// A disk whose name ends in a digit gets a "p" in between: nvme0n1p1, but vda1.
fn partition_name(disk: &str, number: u32) -> String {
    let separator = if disk.ends_with(|last: char| last.is_ascii_digit()) { "p" } else { "" };
    format!("{disk}{separator}{number}")
}

struct Sectors<'a>(&'a dyn Disk);

impl SectorSource for Sectors<'_> {
    fn sector_bytes(&self) -> u32 {
        self.0.sector_bytes()
    }

    fn sectors(&self) -> u64 {
        self.0.sectors()
    }

    fn read(&mut self, first_sector: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        block::read(self.0, first_sector, into).map_err(|error| {
            log::error!("{}: sector {first_sector}: {error}", self.0.name());
            Unreadable
        })
    }
}

/// Registers every sound partition of `disk`, and says in the log what it refused. Sleeps; tasks
/// only. How many there are.
pub fn register_partitions(disk: &Arc<dyn Disk>) -> Result<usize, ScanError> {
    let layout = scan(&mut Sectors(&**disk))?;
    let name = disk.name();
    if let Table::Gpt(partition::GptCopy::Backup { damage }) = layout.table {
        log::warn!("{name}: the second copy of the GPT is used; the first: {damage}");
    }
    for refused in &layout.refused {
        log::warn!("{name}: partition {} is left out: {}", refused.number, refused.reason);
    }
    for partition in &layout.partitions {
        let partition = PartitionDisk::new(disk.clone(), partition);
        log::info!("{}: {} sectors, {}", partition.name, partition.extent.sectors(), partition.description);
        block::register(Arc::new(partition));
    }
    Ok(layout.partitions.len())
}

/// Registers the partitions of every disk that is known now. A disk whose table cannot be read is
/// still there as a whole. Sleeps; tasks only; once.
pub fn register_all() {
    for disk in block::disks() {
        if let Err(error) = register_partitions(&disk) {
            log::error!("{}: no partitions: {error}", disk.name());
        }
    }
}
