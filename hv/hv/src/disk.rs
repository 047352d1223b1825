//! A guest's disk: a virtio function on one side, a disk or partition of the node on the other.
//!
//! The guest's data does not pass through the CPU: a transfer's memory is the guest's own pages,
//! lent for as long as the transfer is out ([`GuestMemory::lend`]). What the disk cannot take as it
//! lies in the guest (odd addresses, a sector in many small pieces) goes through one of a few
//! buffers that the disk was given when it was plugged in, so that there is always one to wait for.
//!
//! Transfers are submitted by the task of the guest's first CPU, in its rounds, with one doorbell
//! a round. Their ends come in interrupt context: noted, and the first CPU's bell is rung.
//!
//! The disk is the guest's alone while it runs, or read-only for all ([`block::claim`]). A guest
//! that is stopped keeps its memory until the last transfer is back ([`GuestDisk::drain`]); the
//! disk's own guard sees to it that each comes back, if need be with an error.
//!
//! Lock order: the transfers, the function, then whatever the disk takes.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hvarch::{GuestMemory, PIECE_BYTES};
use kcore::block::{self, Access, BlockIo, BlockOp, Claim, CompletionSink, Disk, IoStatus, SubmitError};
use kcore::dma::{DmaBuffer, DmaMemory};
use kcore::event::Event;
use kcore::frame::MAX_PIECES;
use kcore::sync::{IrqSpinLock, SpinLock};
use machine::pci::Identity;
use virtio_device::block::{
    Backend, BlockConfig, BlockCounters, BlockFunction, ID_BYTES, NotTaken, Operation, Transfer,
    TransferLimits,
};
use virtio_device::chain::Segment;
use virtio_device::{DeviceKind, GuestRam, Region};

use crate::bell::Bells;
use crate::devices::{Device, Round};

/// Transfers that one guest's disk may have out at once; the node's disk has places for more.
const MOST_TRANSFERS: usize = 32;
/// Buffers for what cannot be lent, and the length of each.
const BUFFERS: usize = 2;
const BUFFER_BYTES: u32 = 64 << 10;
/// Most request queues.
const MOST_QUEUES: usize = 8;
/// NVMe's descriptors want addresses and lengths in dwords (NVMe 2.0, PRP entries and SGL data
/// blocks); guests' own pages always fit.
const ALIGNMENT_BYTES: u32 = 4;
/// How long to wait for a disk that has no place though nothing of ours is out: others fill it, or
/// it is being reset. Both end without telling.
const RETRY_NS: u64 = 1_000_000;
/// Bytes copied at once between guest memory and a buffer.
const COPY_BYTES: usize = 4096;

/// A disk as a guest's description names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// The node's disk or partition.
    pub name: String,
    pub read_only: bool,
}

/// Counters of a guest's disk.
#[derive(Clone, Debug)]
pub struct DiskStats {
    pub name: String,
    pub read_only: bool,
    /// Transfers that the node's disk has.
    pub in_flight: u32,
    pub requests: BlockCounters,
}

/// Transfers that have ended, from the disk's interrupt handlers to the first CPU's task.
struct Completions {
    /// Has room for all that can be out, so that a push never allocates.
    ended: IrqSpinLock<Vec<Ended>>,
    /// There is work: transfers have ended, or the guest has notified.
    attention: AtomicBool,
    bells: Bells,
    /// Somebody waits in [`GuestDisk::drain`].
    draining: AtomicBool,
    news: Event,
}

impl Completions {
    /// There is something to look at for the first CPU.
    fn call(&self) {
        self.attention.store(true, Ordering::SeqCst);
        self.bells.ring_device_cpu();
    }
}

struct Ended {
    slot: usize,
    well: bool,
    memory: Option<DmaMemory>,
}

impl CompletionSink for Completions {
    fn complete(&self, cookie: u64, status: IoStatus, memory: Option<DmaMemory>) {
        let ended = Ended { slot: cookie as usize, well: status == IoStatus::Ok, memory };
        self.ended.lock().push(ended);
        self.call();
        if self.draining.load(Ordering::SeqCst) {
            self.news.signal();
        }
    }
}

/// A transfer that is out.
#[derive(Default)]
struct Out {
    token: u32,
    /// Where to copy what was read into a buffer.
    copy_to: Vec<Segment>,
}

/// The node's disk as the device's backend.
struct Transfers {
    ram: Arc<GuestMemory>,
    disk: Arc<dyn Disk>,
    completions: Arc<Completions>,
    out: Vec<Out>,
    free: Vec<usize>,
    buffers: Vec<DmaBuffer>,
    /// For the copies: neither a buffer nor guest memory may be referred to.
    scratch: Vec<u8>,
    /// Empty, between rounds.
    taken: Vec<Ended>,
    /// The disk has not been told of what was submitted.
    kick: bool,
}

impl Transfers {
    /// Takes what has ended: tokens, and whether they ended well. What was read into a buffer is
    /// in guest memory after this.
    fn take_ended(&mut self, tokens: &mut Vec<(u32, bool)>) {
        let mut taken = core::mem::take(&mut self.taken);
        // The other list has the same room, so the handlers need not allocate.
        core::mem::swap(&mut *self.completions.ended.lock(), &mut taken);
        for Ended { slot, mut well, memory } in taken.drain(..) {
            let Some(out) = self.out.get_mut(slot) else { continue };
            let token = out.token;
            let copy_to = core::mem::take(&mut out.copy_to);
            if let Some(buffer) = memory.and_then(DmaMemory::into_buffer) {
                if well && !copy_to.is_empty() {
                    well = self.copy_out(&buffer, &copy_to);
                }
                self.buffers.push(buffer);
            }
            self.free.push(slot);
            tokens.push((token, well));
        }
        self.taken = taken;
    }

    /// From a buffer to the guest. False if the guest's memory is not there.
    fn copy_out(&mut self, buffer: &DmaBuffer, pieces: &[Segment]) -> bool {
        let Self { ram, scratch, .. } = self;
        each_stretch(pieces, |address, offset, bytes| {
            let part = &mut scratch[..bytes];
            buffer.copy_out(offset, part);
            ram.write(address.into(), part).is_ok()
        })
    }

    /// From the guest to a buffer. False if the guest's memory is not there.
    fn copy_in(&mut self, buffer: &DmaBuffer, pieces: &[Segment]) -> bool {
        let Self { ram, scratch, .. } = self;
        each_stretch(pieces, |address, offset, bytes| {
            let part = &mut scratch[..bytes];
            let read = ram.read(address.into(), part).is_ok();
            buffer.copy_in(offset, part);
            read
        })
    }

    /// The memory of a transfer, and where its data is to be copied when it has ended.
    fn memory(&mut self, transfer: &Transfer<'_>) -> Result<(Option<DmaMemory>, Vec<Segment>), NotTaken> {
        if transfer.data.is_empty() {
            return Ok((None, Vec::new()));
        }
        if transfer.direct {
            let stretches = transfer.data.iter().map(|piece| (piece.address(), piece.len_bytes()));
            let lent = self.ram.lend(stretches).ok_or(NotTaken::Failed)?;
            return Ok((Some(lent), Vec::new()));
        }
        let reads = transfer.operation == Operation::Read;
        let bytes = transfer.data.iter().map(|piece| piece.len_bytes() as usize).sum();
        let buffer = self.buffers.pop().ok_or(NotTaken::Busy)?;
        let ready = bytes <= buffer.len_bytes() && (reads || self.copy_in(&buffer, transfer.data));
        let memory = if ready { DmaMemory::from_buffer(buffer, 0, bytes) } else { Err(buffer) };
        match memory {
            Ok(memory) => Ok((Some(memory), if reads { transfer.data.to_vec() } else { Vec::new() })),
            Err(buffer) => {
                self.buffers.push(buffer);
                Err(NotTaken::Failed)
            }
        }
    }
}

/// Calls `each` for stretches of at most [`COPY_BYTES`]: guest address, offset in the data, bytes. It
/// ends, and is false, with the first that is.
fn each_stretch(pieces: &[Segment], mut each: impl FnMut(u64, usize, usize) -> bool) -> bool {
    let mut offset = 0;
    for piece in pieces {
        let (mut address, mut left) = (piece.address().as_u64(), piece.len_bytes() as usize);
        while left > 0 {
            let bytes = left.min(COPY_BYTES);
            if !each(address, offset, bytes) {
                return false;
            }
            address += bytes as u64;
            offset += bytes;
            left -= bytes;
        }
    }
    true
}

impl Backend for Transfers {
    fn submit(&mut self, transfer: &Transfer<'_>) -> Result<(), NotTaken> {
        let &slot = self.free.last().ok_or(NotTaken::Busy)?;
        let (memory, copy_to) = self.memory(transfer)?;
        let io = BlockIo {
            op: match transfer.operation {
                Operation::Read => BlockOp::Read,
                Operation::Write => BlockOp::Write,
                Operation::Flush => BlockOp::Flush,
                Operation::Discard => BlockOp::Discard,
                Operation::WriteZeroes => BlockOp::WriteZeroes,
            },
            first_sector: transfer.first_sector,
            sectors: transfer.sectors,
            force_unit_access: transfer.durable,
            memory,
            sink: self.completions.clone(),
            cookie: slot as u64,
        };
        match self.disk.submit(io) {
            Ok(()) => {
                // Its end, which may have come already, is looked at by this task alone.
                self.free.pop();
                self.out[slot] = Out { token: transfer.token, copy_to };
                self.kick = true;
                Ok(())
            }
            Err(rejected) => {
                if let Some(buffer) = rejected.io.memory.and_then(DmaMemory::into_buffer) {
                    self.buffers.push(buffer);
                }
                match rejected.error {
                    SubmitError::Busy => Err(NotTaken::Busy),
                    _ => Err(NotTaken::Failed),
                }
            }
        }
    }
}

/// The disk. Shared by the board (registers) and the first CPU's task (queues).
pub struct GuestDisk {
    name: String,
    /// In messages.
    what: String,
    config: BlockConfig,
    ram: Arc<GuestMemory>,
    transfers: SpinLock<Transfers>,
    function: SpinLock<BlockFunction>,
    completions: Arc<Completions>,
    /// When to try again though nothing will ring; 0: not at all.
    retry_ns: AtomicU64,
    /// Given back with the disk, when nothing is out any more.
    _claim: Claim,
}

impl GuestDisk {
    /// The disk that `spec` names, for guest `owner` with `cpus` CPUs and memory `ram`.
    pub fn new(
        spec: &DiskSpec,
        owner: &str,
        cpus: usize,
        ram: Arc<GuestMemory>,
        bells: Bells,
    ) -> Result<GuestDisk, String> {
        let name = spec.name.clone();
        let disk = block::find(&name)
            .ok_or_else(|| format!("there is no disk {name}; `disks` lists those there are"))?;
        let read_only = spec.read_only || disk.read_only();
        let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        let owner = format!("guest {owner}");
        let claim = block::claim(&*disk, &owner, access).map_err(|error| format!("{error}"))?;
        let config = describe(&*disk, read_only, cpus);
        let mut buffers = Vec::with_capacity(BUFFERS);
        for _ in 0..BUFFERS {
            let buffer = DmaBuffer::new(config.limits.bounce_bytes as usize, "a guest's disk");
            buffers.push(buffer.map_err(|error| format!("{error}"))?);
        }
        let completions = Arc::new(Completions {
            ended: IrqSpinLock::new(Vec::with_capacity(MOST_TRANSFERS)),
            attention: AtomicBool::new(false),
            bells,
            draining: AtomicBool::new(false),
            news: Event::new(),
        });
        let transfers = Transfers {
            ram: ram.clone(),
            disk,
            completions: completions.clone(),
            out: (0..MOST_TRANSFERS).map(|_| Out::default()).collect(),
            free: (0..MOST_TRANSFERS).rev().collect(),
            buffers,
            scratch: vec![0; COPY_BYTES],
            taken: Vec::with_capacity(MOST_TRANSFERS),
            kick: false,
        };
        Ok(GuestDisk {
            what: format!("disk {name}"),
            name,
            config,
            ram,
            transfers: SpinLock::new(transfers),
            function: SpinLock::new(BlockFunction::block(config, 0)),
            completions,
            retry_ns: AtomicU64::new(0),
            _claim: claim,
        })
    }

    pub fn stats(&self) -> DiskStats {
        let function = self.function.lock();
        DiskStats {
            name: self.name.clone(),
            read_only: self.config.read_only,
            in_flight: function.in_flight(),
            requests: function.counters(),
        }
    }
}

/// What the guest is told, and what one transfer may be.
fn describe(disk: &dyn Disk, read_only: bool, cpus: usize) -> BlockConfig {
    let features = disk.features();
    let mut id = [0; ID_BYTES];
    id.iter_mut().zip(disk.name().bytes()).for_each(|(place, byte)| *place = byte);
    BlockConfig {
        sector_bytes: disk.sector_bytes(),
        sectors: disk.sectors(),
        read_only,
        queues: cpus.clamp(1, MOST_QUEUES) as u16,
        id,
        max_discard_sectors: if features.discard { features.max_discard_sectors } else { 0 },
        max_write_zeroes_sectors: if features.write_zeroes { features.max_write_zeroes_sectors } else { 0 },
        limits: TransferLimits {
            max_bytes: disk.max_transfer_bytes(),
            max_pieces: features.max_segments.clamp(1, MAX_PIECES as u16),
            contiguous_bytes: PIECE_BYTES,
            alignment_bytes: ALIGNMENT_BYTES,
            bounce_bytes: BUFFER_BYTES.min(disk.max_transfer_bytes()),
        },
    }
}

impl Device for GuestDisk {
    fn identity(&self) -> Identity {
        Identity {
            virtio_type: DeviceKind::Block.id(),
            config_bytes: BlockConfig::BYTES,
            queues: self.config.queues,
        }
    }

    fn what(&self) -> &str {
        &self.what
    }

    fn read(&self, region: Region, offset: u32, bytes: u8) -> u64 {
        self.function.lock().read(region, offset, bytes)
    }

    fn write(&self, region: Region, offset: u32, bytes: u8, value: u64) {
        let event = self.function.lock().write(&*self.ram, region, offset, bytes, value);
        if event != virtio_device::Event::Nothing {
            self.completions.call();
        }
    }

    fn interrupt_line(&self) -> bool {
        self.function.lock().interrupt_line()
    }

    fn round(&self, now_ns: u64) -> Round {
        let retry_ns = self.retry_ns.load(Ordering::Relaxed);
        let due = retry_ns != 0 && retry_ns <= now_ns;
        // Every exit of the first CPU comes by here.
        if !self.completions.attention.swap(false, Ordering::SeqCst) && !due {
            return Round { due_ns: (retry_ns != 0).then_some(retry_ns), ..Round::default() };
        }
        let mut ended = Vec::new();
        let mut transfers = self.transfers.lock();
        transfers.take_ended(&mut ended);
        let (served, fault, in_flight) = {
            let mut function = self.function.lock();
            let served = function.work(&*self.ram, ended, &mut *transfers);
            (served, function.fault(), function.in_flight())
        };
        if core::mem::take(&mut transfers.kick) {
            transfers.disk.kick();
        }
        if served.more {
            self.completions.attention.store(true, Ordering::SeqCst);
        }
        let due_ns = (served.busy && in_flight == 0).then_some(now_ns + RETRY_NS);
        self.retry_ns.store(due_ns.unwrap_or(0), Ordering::Relaxed);
        Round { more: served.more, due_ns, fault }
    }

    fn drain(&self) {
        self.completions.draining.store(true, Ordering::SeqCst);
        let mut tokens = Vec::new();
        loop {
            {
                let mut transfers = self.transfers.lock();
                transfers.take_ended(&mut tokens);
                if transfers.free.len() == MOST_TRANSFERS {
                    return;
                }
            }
            tokens.clear();
            self.completions.news.wait();
        }
    }
}
