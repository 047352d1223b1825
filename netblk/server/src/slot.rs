//! A slot: one command of the disk, from the softirq to the disk and back.
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

use alloc::boxed::Box;
use core::sync::atomic::{
    AtomicBool,
    Ordering::{AcqRel, Acquire, Release},
};

use arrayvec::ArrayVec;
use kcore::block::IoStatus;
use kcore::dma::{DmaMemory, FramePieces};
use kcore::frame::{NetFrame, Page};
use kcore::sync::{IrqSpinLock, SpinLock};
use netblk_logic::{Client, DATA_START, ROOM, V2_DATA_START};
use netblk_proto::v2::{self, Op, Status, TagKey};
use netblk_proto::{Durability, ReplyHeader, SectorRange};
use netwire::UdpHeaders;

/// Slots of a service: as many as there is room for datagrams.
pub const SLOTS: usize = ROOM as usize;

/// Frames that the data of one WRITE may lie in: eight parts, or a page in a few jumbo datagrams.
pub(crate) const MOST_FRAMES: usize = v2::MAX_WRITE_PARTS;

/// What a slot asks of the disk.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// A READ, or as much of one as the disk reads at once.
    Read(ReadPiece),
    Write(SectorRange, Durability),
    Flush,
    Discard(SectorRange),
    WriteZeroes(SectorRange, Durability),
}

/// What the disk reads at once of a READ.
#[derive(Clone, Copy)]
pub(crate) struct ReadPiece {
    pub range: SectorRange,
    pub durability: Durability,
    /// Which datagram of the whole answer is the first of this piece.
    pub first_part: u16,
    /// How many datagrams the whole answer has.
    pub parts: u16,
}

/// Whose request it is, in version 2.
#[derive(Clone, Copy)]
pub(crate) struct Ticket {
    pub session: u64,
    /// For the tags of replies.
    pub key: TagKey,
    /// The request's number, or 0.
    pub sequence: u64,
}

/// One slot's work, without its memory.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    /// The headers of the reply.
    pub addresses: UdpHeaders,
    pub cookie: u64,
    pub client: Client,
    /// The datagrams it is worth, whose room is given back when its replies are with the card.
    pub datagrams: u8,
    /// `None` in version 1.
    pub ticket: Option<Ticket>,
    pub work: Work,
}

impl Job {
    pub fn op(&self) -> Op {
        match self.work {
            Work::Read(_) => Op::Read,
            Work::Write(..) => Op::Write,
            Work::Flush => Op::Flush,
            Work::Discard(_) => Op::Discard,
            Work::WriteZeroes(..) => Op::WriteZeroes,
        }
    }

    /// The sectors that it changes.
    pub fn changes(&self) -> Option<SectorRange> {
        match self.work {
            Work::Write(range, _) | Work::Discard(range) | Work::WriteZeroes(range, _) => Some(range),
            Work::Read(_) | Work::Flush => None,
        }
    }

    /// The sectors that it is about.
    pub fn range(&self) -> Option<SectorRange> {
        match self.work {
            Work::Read(piece) => Some(piece.range),
            _ => self.changes(),
        }
    }

    /// Where the data of its replies starts in their frames.
    pub fn data_start(&self) -> usize {
        if self.ticket.is_some() { V2_DATA_START } else { DATA_START }
    }

    /// The reply for all of it, without data.
    pub fn reply(&self, status: Status) -> JobReply {
        let (part, parts) = match self.work {
            Work::Read(piece) => (piece.first_part, piece.parts),
            _ => (0, 1),
        };
        let (offset, length) = self.range().map_or((0, 0), |range| (range.offset(), range.length()));
        JobReply { status, offset, length, part, parts }
    }
}

/// What a reply to a job says.
#[derive(Clone, Copy)]
pub(crate) struct JobReply {
    pub status: Status,
    pub offset: u64,
    pub length: u32,
    pub part: u16,
    pub parts: u16,
}

/// A reply's header, of either version.
pub(crate) enum Head {
    V1(ReplyHeader),
    V2(v2::ReplyHeader, Option<TagKey>),
}

impl JobReply {
    pub fn head(&self, job: &Job) -> Head {
        let &JobReply { status, offset, length, part, parts } = self;
        match job.ticket {
            None => {
                Head::V1(ReplyHeader::new(v1_op(job.op()), job.cookie, offset, length, v1_status(status)))
            }
            Some(ticket) => {
                let header =
                    v2::ReplyHeader::new(job.op(), ticket.session, job.cookie, offset, length, status);
                Head::V2(header.numbered(ticket.sequence).in_parts(part, parts), Some(ticket.key))
            }
        }
    }
}

/// A version 1 job has an op that version 1 knows.
fn v1_op(op: Op) -> netblk_proto::Op {
    netblk_proto::Op::try_from(op.code()).unwrap_or(netblk_proto::Op::Info)
}

/// And statuses that it knows.
fn v1_status(status: Status) -> netblk_proto::Status {
    netblk_proto::Status::try_from(status.code()).unwrap_or(netblk_proto::Status::BadRequest)
}

/// Data in a frame.
pub(crate) struct Piece {
    pub frame: NetFrame,
    pub offset: usize,
    pub bytes: usize,
}

/// What a slot holds. What is rare lies on the heap, so that what is not moves fast.
pub(crate) enum Cargo {
    /// Nothing: a READ gets its memory when the disk is asked.
    None,
    /// The frame that brought the request, in which a WRITE's data lies behind the headers; the reply goes in
    /// it.
    Frame(NetFrame),
    /// A WRITE's data in several frames, in the order of its bytes. The first becomes the reply.
    Data(Box<ArrayVec<Piece, MOST_FRAMES>>),
    /// The same as the disk takes it.
    Pieces(Box<FramePieces>),
    /// What a READ brought.
    Page(Page),
    /// A WRITE's data, copied, and the frame for the reply.
    Copied(Page, NetFrame),
    /// The disk has the memory; it is of this kind.
    Lent(Lent),
    /// The disk has the copy; the reply goes in this frame.
    LentCopy(NetFrame),
}

/// What memory the disk has.
#[derive(Clone, Copy)]
pub(crate) enum Lent {
    Frame,
    Page,
    Pieces,
}

/// How a transfer ended.
pub(crate) struct End {
    pub status: IoStatus,
    pub memory: Option<DmaMemory>,
}

/// See the module.
pub(crate) struct Slot {
    /// The softirq's and the worker's, in turns.
    content: SpinLock<Content>,
    /// The interrupt handler's and the worker's, in turns.
    end: IrqSpinLock<Option<End>>,
    with_disk: AtomicBool,
}

struct Content {
    /// From the softirq's filling to the worker's emptying it stays where it is.
    job: Option<Job>,
    /// In the slot, in the worker's hands, or with the disk.
    cargo: Cargo,
}

impl Slot {
    pub const fn new() -> Self {
        Self {
            content: SpinLock::new(Content { job: None, cargo: Cargo::None }),
            end: IrqSpinLock::new(None),
            with_disk: AtomicBool::new(false),
        }
    }

    /// Fills the slot.
    pub fn fill(&self, job: Job, cargo: Cargo) {
        let mut content = self.content.lock();
        debug_assert!(content.job.is_none(), "a slot was filled twice");
        *content = Content { job: Some(job), cargo };
    }

    /// Its job, and its cargo to look at.
    pub fn take_cargo(&self) -> Option<(Job, Cargo)> {
        let mut content = self.content.lock();
        let cargo = core::mem::replace(&mut content.cargo, Cargo::None);
        content.job.map(|job| (job, cargo))
    }

    /// Puts its cargo back.
    pub fn put_cargo(&self, cargo: Cargo) {
        self.content.lock().cargo = cargo;
    }

    /// Empties it.
    pub fn take(&self) -> Option<(Job, Cargo)> {
        let mut content = self.content.lock();
        let cargo = core::mem::replace(&mut content.cargo, Cargo::None);
        content.job.take().map(|job| (job, cargo))
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
        let content = self.content.lock();
        content.job.is_none()
            && matches!(content.cargo, Cargo::None)
            && self.end.lock().is_none()
            && !self.with_disk.load(Acquire)
    }
}
