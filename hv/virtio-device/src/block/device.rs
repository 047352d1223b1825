//! The device behind the request queues.

use alloc::vec;
use alloc::vec::Vec;

use crate::block::plan::{DataCursor, TransferLimits};
use crate::block::request::{MOST_RANGES, SectorRange, Status, Wish, parse};
use crate::block::{Backend, ID_BYTES, NotTaken, Operation, SECTOR_BYTES, Transfer};
use crate::chain::{Chain, Head, Segment};
use crate::fault::QueueFault;
use crate::features::Features;
use crate::function::{DeviceKind, DeviceModel, Function};
use crate::queue::Virtqueue;
use crate::ram::{GuestPhysAddr, GuestRam};

/// Entries of each queue.
const QUEUE_SIZE: u16 = 256;
/// Most data segments of a request: the queue's entries without header and status.
const SEG_MAX: u32 = QUEUE_SIZE as u32 - 2;
/// Requests that are begun and not answered. The guest's others wait in its rings.
const MOST_REQUESTS: usize = 128;
/// Most queues that a device can be given.
const MOST_QUEUES: u16 = 16;
/// What a file system should align to, whatever the sector (5.2.4, min_io_size).
const GOOD_IO_BYTES: u32 = 4096;

/// Bytes of struct virtio_blk_config up to write_zeroes_may_unmap and its padding (5.2.4).
const CONFIG_BYTES: usize = 60;

/// What the guest is told about its disk, and what the disk takes.
#[derive(Clone, Copy, Debug)]
pub struct BlockConfig {
    /// Bytes of the disk's sector: a power of two, 512 at least.
    pub sector_bytes: u32,
    /// In the disk's own sectors.
    pub sectors: u64,
    pub read_only: bool,
    /// Request queues, 1 to 16.
    pub queues: u16,
    /// Padded with zeroes.
    pub id: [u8; ID_BYTES],
    /// Of one transfer, in the disk's own sectors; 0: the disk does not discard.
    pub max_discard_sectors: u32,
    /// Of one transfer, in the disk's own sectors; 0: the disk has no such command.
    pub max_write_zeroes_sectors: u32,
    pub limits: TransferLimits,
}

impl BlockConfig {
    /// Bytes of device configuration, for the machine.
    pub const BYTES: u32 = CONFIG_BYTES as u32;

    /// Header sectors in one of the disk's.
    pub(super) fn ratio(&self) -> u64 {
        u64::from((self.sector_bytes / SECTOR_BYTES).max(1))
    }

    fn features(&self) -> Features {
        let mut features =
            Features::BLK_SEG_MAX | Features::BLK_BLK_SIZE | Features::BLK_FLUSH | Features::BLK_TOPOLOGY;
        if self.queues > 1 {
            features = features | Features::BLK_MQ;
        }
        if self.read_only {
            return features | Features::BLK_RO;
        }
        if self.max_discard_sectors > 0 {
            features = features | Features::BLK_DISCARD;
        }
        if self.max_write_zeroes_sectors > 0 {
            features = features | Features::BLK_WRITE_ZEROES;
        }
        features
    }

    /// struct virtio_blk_config (5.2.4).
    fn image(&self) -> [u8; CONFIG_BYTES] {
        let ratio = self.ratio();
        // Limits of a request, not of a transfer: a longer range is cut.
        let most = |sectors: u32| (u64::from(sectors) * ratio).min(u64::from(u32::MAX)) as u32;
        let good_blocks = (GOOD_IO_BYTES / self.sector_bytes).max(1) as u16; // at most 8
        let mut image = [0; CONFIG_BYTES];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.sectors.saturating_mul(ratio).to_le_bytes());
        put(12, &SEG_MAX.to_le_bytes());
        put(20, &self.sector_bytes.to_le_bytes());
        // The physical block is the sector, for all that is known, and blocks are aligned.
        put(26, &good_blocks.to_le_bytes());
        put(34, &self.queues.to_le_bytes());
        put(36, &most(self.max_discard_sectors).to_le_bytes());
        put(40, &MOST_RANGES.to_le_bytes());
        put(44, &(ratio as u32).to_le_bytes()); // a sector has less than 4 GiB
        put(48, &most(self.max_write_zeroes_sectors).to_le_bytes());
        put(52, &MOST_RANGES.to_le_bytes());
        image
    }
}

/// What became of the guest's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounters {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub write_zeroes: u64,
    /// Requests that were refused: past the end, not whole sectors, to a read-only disk, unknown.
    pub refused: u64,
    /// Requests without room for a header or a status.
    pub unanswerable: u64,
    /// Requests that the disk failed.
    pub failed: u64,
    /// Transfers handed to the disk, and those of them that went through a buffer.
    pub transfers: u64,
    pub bounced: u64,
    pub interrupts: u64,
}

/// Outcome of [`BlockFunction::work`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Served {
    /// The queues hold more, and no notification will come for it: call again, next round.
    pub more: bool,
    /// The backend was busy: call again when a transfer has ended, or a little later if none is
    /// out.
    pub busy: bool,
}

/// What is left to be submitted of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Data {
        operation: Operation,
        sector: u64,
    },
    /// The ranges from this one on, of which so many sectors are done.
    Ranges {
        operation: Operation,
        index: usize,
        done_sectors: u64,
    },
    Flush,
    Nothing,
}

/// A request that is begun.
#[derive(Debug)]
struct Request {
    queue: u16,
    /// Where the status goes. `None`: the place is free, or its driver has taken the queue away.
    answer: Option<(Head, GuestPhysAddr)>,
    status: Status,
    rest: Rest,
    data: DataCursor,
    ranges: Vec<SectorRange>,
    /// What the used ring says, see [`crate::block::request::Parsed`].
    written_bytes: u32,
    written_bytes_failed: u32,
    /// Transfers that are out.
    out: u32,
}

impl Request {
    fn new() -> Self {
        Self {
            queue: 0,
            answer: None,
            status: Status::Ok,
            rest: Rest::Nothing,
            data: DataCursor::default(),
            ranges: Vec::new(),
            written_bytes: 0,
            written_bytes_failed: 0,
            out: 0,
        }
    }

    /// It cannot be done: nothing more is submitted.
    fn fail(&mut self) {
        self.status = Status::IoError;
        self.rest = Rest::Nothing;
    }
}

/// The model: what is between the registers and the disk.
#[derive(Debug)]
pub struct Block {
    config: BlockConfig,
    queue_sizes: Vec<u16>,
    /// Places, each with its lists for the next request that takes it. A place's number is its
    /// transfers' token.
    requests: Vec<Request>,
    free: Vec<u32>,
    /// The request that has more for the disk than the disk would take.
    stalled: Option<u32>,
    /// Transfers that are out, those of queues that are gone included.
    out: u32,
    /// What is written must be durable at once: the driver does not flush (5.2.6.2).
    write_through: bool,
    chain: Chain,
    pieces: Vec<Segment>,
    /// The queue that is looked at first in the next round.
    turn: u16,
    counters: BlockCounters,
}

impl Block {
    pub fn new(mut config: BlockConfig) -> Self {
        config.queues = config.queues.clamp(1, MOST_QUEUES);
        Self {
            queue_sizes: vec![QUEUE_SIZE; usize::from(config.queues)],
            config,
            requests: Vec::new(),
            free: Vec::new(),
            stalled: None,
            out: 0,
            write_through: false,
            chain: Chain::with_room_for(QUEUE_SIZE),
            pieces: Vec::new(),
            turn: 0,
            counters: BlockCounters::default(),
        }
    }

    pub fn config(&self) -> &BlockConfig {
        &self.config
    }

    pub fn counters(&self) -> BlockCounters {
        self.counters
    }

    /// A place for a request, or `None` while all are taken.
    fn place(&mut self) -> Option<u32> {
        if let Some(token) = self.free.pop() {
            return Some(token);
        }
        let token = self.requests.len();
        (token < MOST_REQUESTS).then(|| {
            self.requests.push(Request::new());
            token as u32 // below MOST_REQUESTS
        })
    }

    /// Begins the request in the chain last taken from `queue`, at the place `token`.
    fn begin<R: GuestRam + ?Sized>(&mut self, ram: &R, queue: u16, token: u32) -> Result<(), QueueFault> {
        let Some(request) = self.requests.get_mut(token as usize) else { return Ok(()) };
        request.data.clear();
        request.ranges.clear();
        (request.queue, request.out, request.status) = (queue, 0, Status::Ok);
        let (data, ranges) = (&mut request.data.segments, &mut request.ranges);
        let parsed = parse(ram, &self.chain, &self.config, data, ranges)?;
        let Some(parsed) = parsed else {
            self.counters.unanswerable += 1;
            request.answer = None;
            request.rest = Rest::Nothing;
            return Ok(());
        };
        request.answer = Some((self.chain.head(), parsed.status_at));
        request.written_bytes = parsed.written_bytes;
        request.written_bytes_failed = parsed.written_bytes_failed;
        let counters = &mut self.counters;
        request.rest = match parsed.wish {
            Wish::Read { first_sector, bytes } => {
                counters.reads += 1;
                counters.read_bytes += u64::from(bytes);
                Rest::Data { operation: Operation::Read, sector: first_sector }
            }
            Wish::Write { first_sector, bytes } => {
                counters.writes += 1;
                counters.written_bytes += u64::from(bytes);
                Rest::Data { operation: Operation::Write, sector: first_sector }
            }
            Wish::Flush => {
                counters.flushes += 1;
                Rest::Flush
            }
            Wish::Discard => {
                counters.discards += 1;
                Rest::Ranges { operation: Operation::Discard, index: 0, done_sectors: 0 }
            }
            Wish::WriteZeroes => {
                counters.write_zeroes += 1;
                Rest::Ranges { operation: Operation::WriteZeroes, index: 0, done_sectors: 0 }
            }
            Wish::Done => Rest::Nothing,
            Wish::Refused(status) => {
                counters.refused += 1;
                request.status = status;
                Rest::Nothing
            }
        };
        Ok(())
    }

    /// Hands the disk what is left of a request. False if the disk is busy.
    fn submit<B: Backend + ?Sized>(&mut self, token: u32, backend: &mut B) -> bool {
        let Self { config, requests, pieces, counters, .. } = self;
        let Some(request) = requests.get_mut(token as usize) else { return true };
        loop {
            pieces.clear();
            let mut transfer = Transfer {
                operation: Operation::Flush,
                first_sector: 0,
                sectors: 0,
                durable: false,
                data: &[],
                direct: true,
                token,
            };
            let next = match request.rest {
                Rest::Nothing => return true,
                Rest::Flush => (Rest::Nothing, None),
                Rest::Data { operation, sector } => {
                    let Some(piece) = request.data.next(&config.limits, config.sector_bytes, pieces) else {
                        if request.data.is_done() {
                            request.rest = Rest::Nothing;
                        } else {
                            request.fail();
                        }
                        return true;
                    };
                    let sectors = piece.bytes / config.sector_bytes;
                    transfer =
                        Transfer { operation, first_sector: sector, sectors, data: pieces, ..transfer };
                    transfer.direct = piece.direct;
                    (Rest::Data { operation, sector: sector + u64::from(sectors) }, Some(piece))
                }
                Rest::Ranges { operation, index, done_sectors } => {
                    let most = match operation {
                        Operation::Discard => config.max_discard_sectors,
                        _ => config.max_write_zeroes_sectors,
                    };
                    let Some(range) = request.ranges.get(index) else {
                        request.rest = Rest::Nothing;
                        return true;
                    };
                    let here = (range.sectors - done_sectors).min(u64::from(most.max(1)));
                    if here == 0 {
                        request.rest = Rest::Ranges { operation, index: index + 1, done_sectors: 0 };
                        continue;
                    }
                    transfer.operation = operation;
                    transfer.first_sector = range.first + done_sectors;
                    transfer.sectors = here as u32; // at most `most`
                    (Rest::Ranges { operation, index, done_sectors: done_sectors + here }, None)
                }
            };
            let writes = matches!(transfer.operation, Operation::Write | Operation::WriteZeroes);
            transfer.durable = writes && self.write_through;
            let bounced = !transfer.direct;
            match backend.submit(&transfer) {
                Ok(()) => {
                    request.out += 1;
                    self.out += 1;
                    counters.transfers += 1;
                    counters.bounced += u64::from(bounced);
                    if let Some(piece) = &next.1 {
                        request.data.pass(piece);
                    }
                    request.rest = next.0;
                }
                Err(NotTaken::Busy) => return false,
                Err(NotTaken::Failed) => {
                    counters.failed += 1;
                    request.fail();
                    return true;
                }
            }
        }
    }

    /// A transfer has ended.
    fn ended(&mut self, token: u32, well: bool) {
        self.out = self.out.saturating_sub(1);
        if let Some(request) = self.requests.get_mut(token as usize) {
            request.out = request.out.saturating_sub(1);
            if !well {
                self.counters.failed += u64::from(request.status == Status::Ok);
                request.fail();
                if self.stalled == Some(token) {
                    self.stalled = None;
                }
            }
        }
    }

    /// If the request has nothing left and nothing out, its place is free; and who must be told.
    fn finished(&mut self, token: u32) -> Option<Answer> {
        let request = self.requests.get_mut(token as usize)?;
        if request.out > 0 || request.rest != Rest::Nothing {
            return None;
        }
        self.free.push(token);
        let (head, status_at) = request.answer.take()?;
        let written_bytes = match request.status {
            Status::Ok => request.written_bytes,
            Status::IoError | Status::Unsupported => request.written_bytes_failed,
        };
        Some(Answer { queue: request.queue, head, status_at, status: request.status, written_bytes })
    }
}

/// How a request is given back.
struct Answer {
    queue: u16,
    head: Head,
    status_at: GuestPhysAddr,
    status: Status,
    written_bytes: u32,
}

impl Answer {
    fn give<R: GuestRam + ?Sized>(&self, ram: &R, queue: &mut Virtqueue) -> Result<(), QueueFault> {
        ram.write_u8(self.status_at, self.status as u8)?;
        queue.add_used(ram, self.head, self.written_bytes)
    }
}

impl DeviceModel for Block {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Block
    }

    fn features(&self) -> Features {
        self.config.features()
    }

    fn queue_sizes(&self) -> &[u16] {
        &self.queue_sizes
    }

    fn read_config(&self, offset: u32, into: &mut [u8]) {
        let image = self.config.image();
        let from = image.iter().skip(offset as usize);
        into.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }

    fn start(&mut self, chosen: Features) {
        self.write_through = !chosen.has(Features::BLK_FLUSH);
    }

    fn stop(&mut self) {
        self.stalled = None;
        for (token, request) in (0..).zip(&mut self.requests) {
            request.answer = None;
            if request.rest != Rest::Nothing && request.out == 0 {
                self.free.push(token);
            }
            request.rest = Rest::Nothing;
        }
    }

    fn holds_memory(&self) -> bool {
        self.out > 0
    }
}

/// A virtio disk on PCI.
pub type BlockFunction = Function<Block>;

impl BlockFunction {
    /// A disk with INTx and `msix_vectors` MSI-X vectors.
    pub fn block(config: BlockConfig, msix_vectors: u16) -> Self {
        Self::new(Block::new(config), msix_vectors)
    }

    pub fn counters(&self) -> BlockCounters {
        self.model.counters()
    }

    /// Transfers that are out: the guest's memory must stay while there are any.
    pub fn in_flight(&self) -> u32 {
        self.model.out
    }

    /// Takes note of the transfers that have `ended` (token, and whether they ended well), answers
    /// requests, and begins new ones. Call on a notification of any queue, when transfers have
    /// ended, on [`crate::Event::Started`], and again while there is `more` or it was `busy`.
    pub fn work<R: GuestRam + ?Sized, B: Backend + ?Sized>(
        &mut self,
        ram: &R,
        ended: impl IntoIterator<Item = (u32, bool)>,
        backend: &mut B,
    ) -> Served {
        let live = self.is_live();
        let mut fault = None;
        for (token, well) in ended {
            self.model.ended(token, well);
            fault = fault.or(self.answer(ram, token).err());
        }
        self.memory_released();
        if !live {
            return Served::default();
        }
        let served = match fault {
            Some(fault) => Err(fault),
            None => self.begin_all(ram, backend),
        };
        let told = served.and_then(|served| self.tell(ram).map(|()| served));
        told.unwrap_or_else(|(queue, fault)| {
            self.fail(queue, fault);
            Served::default()
        })
    }

    /// Gives the request back if it is done.
    fn answer<R: GuestRam + ?Sized>(&mut self, ram: &R, token: u32) -> Result<(), (u16, QueueFault)> {
        let Some(answer) = self.model.finished(token) else { return Ok(()) };
        // Without its queue there is nobody to answer to.
        let Some((queue, _)) = self.live_queue(answer.queue) else { return Ok(()) };
        answer.give(ram, queue).map_err(|fault| (answer.queue, fault))
    }

    /// Begins what waits in the queues, in turns, as long as the disk takes it.
    fn begin_all<R: GuestRam + ?Sized, B: Backend + ?Sized>(
        &mut self,
        ram: &R,
        backend: &mut B,
    ) -> Result<Served, (u16, QueueFault)> {
        if let Some(token) = self.model.stalled {
            if !self.model.submit(token, backend) {
                return Ok(Served { more: false, busy: true });
            }
            self.model.stalled = None;
            self.answer(ram, token)?;
        }
        let queues = self.model.config.queues;
        let first = self.model.turn;
        self.model.turn = (first + 1) % queues;
        let mut served = Served::default();
        for queue in (0..queues).map(|offset| (first + offset) % queues) {
            if let Err(fault) = self.begin_queue(ram, queue, backend, &mut served) {
                return Err((queue, fault));
            }
            if served.busy {
                break;
            }
        }
        Ok(served)
    }

    fn begin_queue<R: GuestRam + ?Sized, B: Backend + ?Sized>(
        &mut self,
        ram: &R,
        index: u16,
        backend: &mut B,
        served: &mut Served,
    ) -> Result<(), QueueFault> {
        let mut begun = 0;
        loop {
            let Some((queue, block)) = self.live_queue(index) else { return Ok(()) };
            if begun == 0 {
                queue.suppress_notify(ram)?;
            }
            if begun == queue.size() {
                served.more = true;
                return Ok(());
            }
            let Some(token) = block.place() else {
                // An answer frees one, and is when to come back.
                served.busy = true;
                return Ok(());
            };
            let taken = queue.pop(ram, &mut block.chain);
            if !matches!(taken, Ok(true)) {
                block.free.push(token);
                taken?;
                // True: something came before the driver could see the wish to be told.
                served.more |= queue.request_notify(ram)?;
                return Ok(());
            }
            begun += 1;
            block.begin(ram, index, token)?;
            let Some(request) = block.requests.get(token as usize) else { return Ok(()) };
            if request.answer.is_none() {
                let head = block.chain.head();
                block.free.push(token);
                queue.add_used(ram, head, 0)?;
                continue;
            }
            if !block.submit(token, backend) {
                block.stalled = Some(token);
                served.busy = true;
                return Ok(());
            }
            if let Some(answer) = block.finished(token) {
                answer.give(ram, queue)?;
            }
        }
    }

    /// Shows every driver's queue what was used, and interrupts where it is wanted.
    fn tell<R: GuestRam + ?Sized>(&mut self, ram: &R) -> Result<(), (u16, QueueFault)> {
        for index in 0..self.model.config.queues {
            let Some((queue, block)) = self.live_queue(index) else { continue };
            let mut publish = || {
                queue.publish_used(ram)?;
                let interrupt = queue.driver_wants_interrupt(ram)?;
                queue.settle_interrupt();
                Ok(interrupt)
            };
            let interrupt = publish().map_err(|fault| (index, fault))?;
            block.counters.interrupts += u64::from(interrupt);
            if interrupt {
                self.interrupt(index);
            }
        }
        Ok(())
    }
}
