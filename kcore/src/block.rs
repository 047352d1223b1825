//! Disks: asynchronous transfers, and a synchronous form for those who may sleep.
//!
//! A transfer owns its memory until it is complete. Completion comes in interrupt context, to a
//! sink that pushes and signals and does nothing more. `submit` never blocks: a full queue says
//! so and gives the transfer back.

mod claim;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::dma::{DmaBuffer, DmaMemory};
use crate::event::Event;
use crate::memory::{OutOfMemory, PAGE_BYTES};
use crate::sync::IrqSpinLock;
use crate::{task, time};

pub use claim::{Access, Claim, DiskExtent, InUse, claim};

/// What a transfer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOp {
    /// From the disk to memory.
    Read,
    /// From memory to the disk.
    Write,
    /// Makes every completed write durable; no sectors, no memory.
    Flush,
    /// The sectors' contents are of no use any more; no memory. What they read as afterwards is the
    /// disk's choice, and so is doing nothing at all.
    Discard,
    /// The sectors read as zeroes afterwards; no memory.
    WriteZeroes,
}

/// What a disk can do beyond reading, writing and flushing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFeatures {
    /// Whether it takes [`BlockOp::Discard`].
    pub discard: bool,
    /// Whether it takes [`BlockOp::WriteZeroes`].
    pub write_zeroes: bool,
    /// Most sectors of one discard; 0 where there is none.
    pub max_discard_sectors: u32,
    /// Most sectors of one write of zeroes; 0 where there is none.
    pub max_write_zeroes_sectors: u32,
    /// Most pieces that a transfer's memory may lie in; 1: contiguous memory only.
    pub max_segments: u16,
    /// Whether completed writes may be lost with the power until a flush.
    pub volatile_cache: bool,
}

impl Default for DiskFeatures {
    /// The least a disk can do; a cache, since nothing is known.
    fn default() -> DiskFeatures {
        DiskFeatures {
            discard: false,
            write_zeroes: false,
            max_discard_sectors: 0,
            max_write_zeroes_sectors: 0,
            max_segments: 1,
            volatile_cache: true,
        }
    }
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoStatus {
    /// Done.
    Ok,
    /// The disk refused or failed; `code` is its own (NVMe: status code type and status code).
    DeviceError {
        /// The disk's own code.
        code: u16,
    },
    /// The disk is not there any more.
    Gone,
    /// The disk did not answer in time.
    TimedOut,
}

impl fmt::Display for IoStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IoStatus::Ok => write!(f, "done"),
            IoStatus::DeviceError { code } => write!(f, "the disk failed the command (status {code:#x})"),
            IoStatus::Gone => write!(f, "the disk is gone"),
            IoStatus::TimedOut => write!(f, "the disk did not answer in time"),
        }
    }
}

/// Who learns that a transfer is complete.
pub trait CompletionSink: Send + Sync {
    /// The transfer `cookie` ended; here is its memory. Interrupt context: push, signal, no more.
    fn complete(&self, cookie: u64, status: IoStatus, memory: Option<DmaMemory>);
}

/// One transfer.
pub struct BlockIo {
    /// What to do.
    pub op: BlockOp,
    /// First sector, of the disk's own size.
    pub first_sector: u64,
    /// Sectors; 0 for a flush.
    pub sectors: u32,
    /// Whether a write, of data or of zeroes, must be durable when it completes.
    pub force_unit_access: bool,
    /// The data's memory: exactly the sectors' bytes; `None` where no data is moved.
    pub memory: Option<DmaMemory>,
    /// Who learns of the end.
    pub sink: Arc<dyn CompletionSink>,
    /// What the sink knows the transfer by.
    pub cookie: u64,
}

/// Why a transfer was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The queue is full; try again after a completion.
    Busy,
    /// The sectors do not lie on the disk, or are too many for one transfer.
    OutOfRange,
    /// The memory does not fit the sectors, or its addresses or number of pieces the disk.
    BadMemory,
    /// The disk or partition may not be written.
    ReadOnly,
    /// The disk cannot do this; see [`Disk::features`].
    Unsupported,
    /// The disk is not there any more.
    Gone,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Busy => "the disk's queue is full",
            SubmitError::OutOfRange => "the sectors do not lie on the disk",
            SubmitError::BadMemory => "the memory does not fit the transfer",
            SubmitError::ReadOnly => "the disk is read-only",
            SubmitError::Unsupported => "the disk cannot do that",
            SubmitError::Gone => "the disk is gone",
        })
    }
}

/// A transfer that was not taken, and why.
pub struct Rejected {
    /// Why.
    pub error: SubmitError,
    /// The transfer, whole.
    pub io: BlockIo,
}

/// Counters of a disk since boot.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskStats {
    /// Reads completed.
    pub reads: u64,
    /// Writes completed.
    pub writes: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Discards completed.
    pub discards: u64,
    /// Writes of zeroes completed.
    pub write_zeroes: u64,
    /// Transfers that failed.
    pub errors: u64,
    /// Submission doorbells rung.
    pub doorbells: u64,
    /// Completion interrupts taken.
    pub interrupts: u64,
}

/// A disk or a partition of one.
pub trait Disk: Send + Sync {
    /// Its name: nvme0n1, nvme0n1p1, ...
    fn name(&self) -> &str;

    /// What it says it is.
    fn model(&self) -> String;

    /// Bytes of a sector.
    fn sector_bytes(&self) -> u32;

    /// Sectors it has.
    fn sectors(&self) -> u64;

    /// Whether it refuses writes.
    fn read_only(&self) -> bool;

    /// Most bytes of one transfer of data.
    fn max_transfer_bytes(&self) -> u32;

    /// Where its sectors are, for [`claim`]: on itself, unless it is part of another.
    fn extent(&self) -> DiskExtent {
        DiskExtent { disk: String::from(self.name()), sectors: 0..self.sectors() }
    }

    /// What else it can do.
    fn features(&self) -> DiskFeatures {
        DiskFeatures::default()
    }

    /// Queues a transfer; never blocks. The disk need not see it before [`Disk::kick`].
    fn submit(&self, io: BlockIo) -> Result<(), Rejected>;

    /// As `submit`, from the part of the queue kept for the synchronous path.
    fn submit_sync(&self, io: BlockIo) -> Result<(), Rejected> {
        self.submit(io)
    }

    /// Tells the disk of everything queued on this CPU since the last call: one doorbell. A disk
    /// may have a queue per CPU, so whoever submits also kicks, from the same CPU; tasks, which
    /// never change theirs, do so by themselves.
    fn kick(&self);

    /// Its counters.
    fn stats(&self) -> DiskStats;
}

static DISKS: IrqSpinLock<Vec<Arc<dyn Disk>>> = IrqSpinLock::new(Vec::new());

/// Makes a disk known.
pub fn register(disk: Arc<dyn Disk>) {
    DISKS.lock().push(disk);
}

/// Forgets the disk called `name`; those who hold it go on.
pub fn unregister(name: &str) {
    let gone = {
        let mut disks = DISKS.lock();
        disks.iter().position(|disk| disk.name() == name).map(|place| disks.remove(place))
    };
    drop(gone);
}

/// Every disk, in the order of their registration.
pub fn disks() -> Vec<Arc<dyn Disk>> {
    DISKS.lock().clone()
}

/// How many disks there are.
pub(crate) fn count(whose: &crate::balance::Whose) -> usize {
    DISKS.lock().iter().filter(|disk| whose.has(&***disk)).count()
}

/// The disk called `name`.
pub fn find(name: &str) -> Option<Arc<dyn Disk>> {
    DISKS.lock().iter().find(|disk| disk.name() == name).cloned()
}

/// Why a synchronous transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoError {
    /// It was not taken.
    Rejected(SubmitError),
    /// It was taken and did not end well.
    Failed(IoStatus),
    /// The buffer is not a whole number of sectors.
    NotWholeSectors,
    /// No memory for the transfer.
    OutOfMemory(OutOfMemory),
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IoError::Rejected(error) => error.fmt(f),
            IoError::Failed(status) => status.fmt(f),
            IoError::NotWholeSectors => f.write_str("the length is not a whole number of sectors"),
            IoError::OutOfMemory(error) => error.fmt(f),
        }
    }
}

/// The task that waits for one synchronous transfer.
struct SyncWait {
    done: Event,
    result: IrqSpinLock<Option<(IoStatus, Option<DmaMemory>)>>,
}

impl CompletionSink for SyncWait {
    fn complete(&self, _cookie: u64, status: IoStatus, memory: Option<DmaMemory>) {
        *self.result.lock() = Some((status, memory));
        self.done.signal();
    }
}

/// A disk is busy when more tasks wait for it than it keeps identifiers for, and while it is being
/// reset. Both end by themselves, so a synchronous transfer tries again this often, this long.
const BUSY_RETRY_NS: u64 = 1_000_000;
const BUSY_LIMIT_NS: u64 = 30_000_000_000;

/// Reads whole sectors from `first_sector` into `to`. Sleeps; tasks only.
pub fn read(disk: &dyn Disk, first_sector: u64, to: &mut [u8]) -> Result<(), IoError> {
    each_piece(disk, first_sector, to.len(), |first_sector, sectors, range| {
        let buffer = DmaBuffer::new(range.len(), "a disk read").map_err(IoError::OutOfMemory)?;
        let buffer = transfer(disk, BlockOp::Read, first_sector, sectors, Some(buffer))?;
        if let Some(buffer) = buffer {
            buffer.copy_out(0, &mut to[range]);
        }
        Ok(())
    })
}

/// Writes whole sectors from `first_sector`. Sleeps; tasks only. Not durable before a flush.
pub fn write(disk: &dyn Disk, first_sector: u64, from: &[u8]) -> Result<(), IoError> {
    each_piece(disk, first_sector, from.len(), |first_sector, sectors, range| {
        let buffer = DmaBuffer::new(range.len(), "a disk write").map_err(IoError::OutOfMemory)?;
        buffer.copy_in(0, &from[range]);
        transfer(disk, BlockOp::Write, first_sector, sectors, Some(buffer)).map(drop)
    })
}

/// Makes every completed write durable. Sleeps; tasks only.
pub fn flush(disk: &dyn Disk) -> Result<(), IoError> {
    transfer(disk, BlockOp::Flush, 0, 0, None).map(drop)
}

/// Tells the disk that `sectors` sectors from `first_sector` are of no use any more. Sleeps; tasks
/// only.
pub fn discard(disk: &dyn Disk, first_sector: u64, sectors: u64) -> Result<(), IoError> {
    let most = disk.features().max_discard_sectors;
    without_data(disk, BlockOp::Discard, first_sector, sectors, most)
}

/// Writes zeroes to `sectors` sectors from `first_sector`. Sleeps; tasks only. Not durable before a
/// flush.
pub fn write_zeroes(disk: &dyn Disk, first_sector: u64, sectors: u64) -> Result<(), IoError> {
    let most = disk.features().max_write_zeroes_sectors;
    without_data(disk, BlockOp::WriteZeroes, first_sector, sectors, most)
}

/// An operation on sectors that moves no data, in pieces of at most `most` sectors.
fn without_data(
    disk: &dyn Disk,
    op: BlockOp,
    first_sector: u64,
    sectors: u64,
    most: u32,
) -> Result<(), IoError> {
    // Before the first piece, lest half of it be done: what is asked must lie on the disk.
    match first_sector.checked_add(sectors) {
        Some(end) if end <= disk.sectors() => {}
        _ => return Err(IoError::Rejected(SubmitError::OutOfRange)),
    }
    if most == 0 {
        return Err(IoError::Rejected(SubmitError::Unsupported));
    }
    let (mut first_sector, mut left) = (first_sector, sectors);
    while left > 0 {
        let here = left.min(u64::from(most));
        // At most `most`.
        transfer(disk, op, first_sector, here as u32, None)?;
        first_sector += here;
        left -= here;
    }
    Ok(())
}

/// Cuts a transfer of `bytes` into pieces of at most a page or the disk's limit, whichever is less.
fn each_piece(
    disk: &dyn Disk,
    first_sector: u64,
    bytes: usize,
    mut piece: impl FnMut(u64, u32, core::ops::Range<usize>) -> Result<(), IoError>,
) -> Result<(), IoError> {
    let sector_bytes = disk.sector_bytes() as usize;
    if !bytes.is_multiple_of(sector_bytes) {
        return Err(IoError::NotWholeSectors);
    }
    let most =
        (disk.max_transfer_bytes() as usize).min(PAGE_BYTES).max(sector_bytes) / sector_bytes * sector_bytes;
    let mut start = 0;
    while start < bytes {
        let end = bytes.min(start + most);
        let sector = first_sector
            .checked_add((start / sector_bytes) as u64)
            .ok_or(IoError::Rejected(SubmitError::OutOfRange))?;
        piece(sector, ((end - start) / sector_bytes) as u32, start..end)?;
        start = end;
    }
    Ok(())
}

fn transfer(
    disk: &dyn Disk,
    op: BlockOp,
    first_sector: u64,
    sectors: u32,
    buffer: Option<DmaBuffer>,
) -> Result<Option<DmaBuffer>, IoError> {
    let memory = match buffer {
        Some(buffer) => {
            let bytes = buffer.len_bytes();
            let whole = DmaMemory::from_buffer(buffer, 0, bytes);
            Some(whole.map_err(|_| IoError::Rejected(SubmitError::BadMemory))?)
        }
        None => None,
    };
    let range = SectorRange { first_sector, sectors };
    Ok(run(disk, op, range, false, memory)?.and_then(DmaMemory::into_buffer))
}

/// Sectors of one transfer.
#[derive(Clone, Copy, Debug)]
pub struct SectorRange {
    /// The first of them.
    pub first_sector: u64,
    /// How many; 0 for a flush.
    pub sectors: u32,
}

/// One transfer, whatever memory it has, from its submission to its end; the memory comes back.
/// Sleeps; tasks only. Those who only want bytes use [`read`] and [`write`].
pub fn run(
    disk: &dyn Disk,
    op: BlockOp,
    range: SectorRange,
    force_unit_access: bool,
    memory: Option<DmaMemory>,
) -> Result<Option<DmaMemory>, IoError> {
    let SectorRange { first_sector, sectors } = range;
    let wait = Arc::new(SyncWait { done: Event::new(), result: IrqSpinLock::new(None) });
    let sink = wait.clone();
    let mut io = BlockIo { op, first_sector, sectors, force_unit_access, memory, sink, cookie: 0 };
    let give_up_ns = time::now_ns().saturating_add(BUSY_LIMIT_NS);
    while let Err(rejected) = disk.submit_sync(io) {
        if rejected.error != SubmitError::Busy || time::now_ns() >= give_up_ns {
            return Err(IoError::Rejected(rejected.error));
        }
        io = rejected.io;
        task::sleep_ns(BUSY_RETRY_NS);
    }
    disk.kick();
    loop {
        wait.done.wait();
        let result = wait.result.lock().take();
        match result {
            Some((IoStatus::Ok, memory)) => return Ok(memory),
            Some((status, _)) => return Err(IoError::Failed(status)),
            None => {}
        }
    }
}
