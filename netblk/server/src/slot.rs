//! A slot: one datagram's work, from the softirq to the disk and back.
//!
//! ```text
//!            softirq            worker                    disk's interrupt         worker
//!   (free) ---------> (queued) ---------> (with the disk) ----------------> (ended) ------> (free)
//!                        ^                      |
//!                        +---- held: the disk's queue is full, no frame, an overlap
//! ```
//!
//! Who may touch a slot follows from which ring its number is in, or from who popped it last; the
//! flag `with_disk` is the one part that the interrupt handler does not take on trust.

use core::sync::atomic::{
    AtomicBool,
    Ordering::{AcqRel, Acquire, Release},
};

use kcore::block::IoStatus;
use kcore::dma::DmaMemory;
use kcore::frame::NetFrame;
use kcore::sync::{IrqSpinLock, SpinLock};
use netblk_proto::{Durability, Op, ReplyHeader, SectorRange, Status};
use netwire::UdpHeaders;

/// Slots of an instance: datagrams that are worked on at once.
pub const SLOTS: usize = 256;

/// What a slot asks of the disk.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// One datagram of a READ.
    Read(SectorRange, Durability),
    /// A WRITE, whose data starts at this byte of its frame.
    Write(SectorRange, Durability, usize),
    Flush,
}

/// One datagram's work, without its frame.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    /// The headers of the reply.
    pub addresses: UdpHeaders,
    pub cookie: u64,
    pub work: Work,
}

impl Job {
    pub fn op(&self) -> Op {
        match self.work {
            Work::Read(..) => Op::Read,
            Work::Write(..) => Op::Write,
            Work::Flush => Op::Flush,
        }
    }

    /// The header of the job's reply.
    pub fn reply(&self, status: Status) -> ReplyHeader {
        let (offset, length) = match self.work {
            Work::Read(range, _) | Work::Write(range, ..) => (range.offset(), range.length()),
            Work::Flush => (0, 0),
        };
        ReplyHeader::new(self.op(), self.cookie, offset, length, status)
    }
}

/// How a transfer ended.
pub(crate) struct End {
    pub status: IoStatus,
    pub memory: Option<DmaMemory>,
}

/// See the module.
pub(crate) struct Slot {
    /// The softirq's and the worker's, in turns. The frame is the received one of a WRITE or FLUSH,
    /// which becomes the reply, or a READ's once there is one; while the disk has it, it is not here.
    content: SpinLock<Option<(Job, Option<NetFrame>)>>,
    /// The interrupt handler's and the worker's, in turns.
    end: IrqSpinLock<Option<End>>,
    with_disk: AtomicBool,
}

impl Slot {
    pub const fn new() -> Self {
        Self { content: SpinLock::new(None), end: IrqSpinLock::new(None), with_disk: AtomicBool::new(false) }
    }

    /// Fills the slot, or puts back what the worker took out to look at.
    pub fn put(&self, job: Job, frame: Option<NetFrame>) {
        let old = self.content.lock().replace((job, frame));
        debug_assert!(old.is_none(), "a slot was filled twice");
    }

    pub fn take(&self) -> Option<(Job, Option<NetFrame>)> {
        self.content.lock().take()
    }

    /// The disk is about to get the slot's transfer.
    pub fn lend(&self) {
        self.with_disk.store(true, Release);
    }

    /// The disk did not want it.
    pub fn unlend(&self) {
        self.with_disk.store(false, Release);
    }

    /// The disk's transfer ended. `false`: it has none of this slot's, and what it says is ignored.
    pub fn ended(&self, end: End) -> bool {
        let lent = self.with_disk.swap(false, AcqRel);
        if lent {
            *self.end.lock() = Some(end);
        }
        lent
    }

    pub fn take_end(&self) -> Option<End> {
        self.end.lock().take()
    }

    /// Whether it holds a frame or waits for one: what a stopped service must not leave behind.
    pub fn is_empty(&self) -> bool {
        self.content.lock().is_none() && self.end.lock().is_none() && !self.with_disk.load(Acquire)
    }
}
