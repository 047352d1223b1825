//! The worker: between the rings, the disk and the card.

use alloc::boxed::Box;
use alloc::sync::Arc;

use kcore::block::{BlockIo, BlockOp, IoStatus, Rejected, SubmitError};
use kcore::dma::DmaMemory;
use kcore::frame::{FrameChain, NetFrame};
use kcore::{task, time};
use netblk_logic::{DATA_START, RateLimit, Wait, WaitPolicy, WriteFence};
use netblk_proto::{Durability, Status};

use crate::instance::Instance;
use crate::slot::{End, Job, SLOTS, Work};

/// A log line about failed transfers at most this often.
const LOG_INTERVAL_NS: u64 = 5_000_000_000;

/// How often a stopping worker says that it still waits for the disk.
const STOP_NOTICE_NS: u64 = 5_000_000_000;

/// Replies that may wait for the card before no more requests are taken. What the disk has then
/// still ends, so at most twice as many wait, and every slot's frame besides.
const MOST_REPLIES: usize = SLOTS;

/// What a worker left undone when it was stopped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Leftovers {
    /// Queued requests that were dropped.
    pub requests: u64,
    /// Transfers that were with the disk and have ended.
    pub transfers: u64,
}

/// What became of a queued request.
enum HandOver {
    /// The disk has it.
    Submitted,
    /// It keeps its place and is tried again.
    Held,
    /// The disk refused it; the reply is in the chain.
    Answered,
}

/// See the module.
pub(crate) struct Worker {
    instance: Arc<Instance>,
    wait: WaitPolicy,
    fence: Box<WriteFence>,
    /// Slots whose transfers the disk has.
    with_disk: usize,
    /// The oldest request, if something stands in its way; younger ones wait behind it.
    held: Option<u32>,
    /// Whether something may have changed for the held request.
    try_held: bool,
    replies: FrameChain,
    log_limit: RateLimit,
}

impl Worker {
    pub fn new(instance: Arc<Instance>, idle_poll_ns: u64) -> Self {
        Self {
            instance,
            wait: WaitPolicy::new(idle_poll_ns, time::now_ns()),
            fence: Box::default(),
            with_disk: 0,
            held: None,
            try_held: false,
            replies: FrameChain::new(),
            log_limit: RateLimit::new(LOG_INTERVAL_NS),
        }
    }

    /// Works until the service is stopped and the disk has given everything back.
    pub fn run(mut self) -> Leftovers {
        while !self.instance.is_stopping() {
            let worked = self.round();
            let now_ns = time::now_ns();
            if worked {
                self.wait.worked(now_ns);
                // Rounds may follow each other for as long as requests come, and the softirq of
                // this CPU is no more urgent than the worker.
                task::yield_now();
                continue;
            }
            // Room in the transmit ring, and in a queue that others filled, comes without a signal.
            let stuck = !self.replies.is_empty() || (self.held.is_some() && self.with_disk == 0);
            match self.wait.next(now_ns, self.with_disk, stuck) {
                Wait::Poll => task::yield_now(),
                Wait::Sleep => {
                    self.instance.counters.sleeps.one();
                    self.instance.event.wait();
                }
                Wait::SleepUntil(deadline_ns) => {
                    self.instance.counters.sleeps.one();
                    self.instance.event.wait_until(deadline_ns);
                    self.try_held = true;
                }
            }
        }
        self.finish()
    }

    /// One look at everything. Whether there was something to do.
    fn round(&mut self) -> bool {
        let completed = self.take_completions();
        let submitted = self.take_requests();
        let sent = self.send_replies();
        completed || submitted || sent
    }

    fn take_completions(&mut self) -> bool {
        let mut taken = false;
        while let Some(number) = self.instance.next_completion() {
            taken = true;
            let slot = self.instance.slot(number);
            let (content, end) = (slot.take(), slot.take_end());
            self.instance.release(number);
            self.with_disk -= 1;
            if let (Some((job, frame)), Some(end)) = (content, end) {
                self.complete(&job, frame, end);
            }
        }
        self.try_held |= taken;
        taken
    }

    /// Turns an ended transfer into its reply.
    fn complete(&mut self, job: &Job, kept: Option<NetFrame>, end: End) {
        if let Work::Write(range, ..) = job.work {
            self.fence.leave(&range);
        }
        let frame = kept.or_else(|| end.memory.and_then(DmaMemory::into_frame));
        if end.status != IoStatus::Ok {
            self.log_failure(job, &end.status);
            return self.reply(job, frame, Status::IoError, 0);
        }
        let data_bytes = match job.work {
            Work::Read(piece, _) => {
                self.instance.counters.read_bytes.add(piece.length().into());
                piece.length() as usize
            }
            Work::Write(range, ..) => {
                self.instance.counters.written_bytes.add(range.length().into());
                0
            }
            Work::Flush => 0,
        };
        self.reply(job, frame, Status::Ok, data_bytes);
    }

    /// Puts a reply into the next batch.
    fn reply(&mut self, job: &Job, frame: Option<NetFrame>, status: Status, data_bytes: usize) {
        // Without its frame (a driver that lost it) there is nothing to answer in; the client asks
        // again.
        let Some(mut frame) = frame else { return self.instance.counters.strays.one() };
        self.instance.address(&mut frame, &job.addresses, &job.reply(status), data_bytes);
        self.replies.push(frame);
    }

    /// Hands every queued request to the disk, then rings its doorbell once. Not while the card has
    /// a service's worth of replies to take: each holds a frame of the pool that everybody shares.
    fn take_requests(&mut self) -> bool {
        if self.replies.len() >= MOST_REPLIES {
            return false;
        }
        if self.held.is_some() && !core::mem::take(&mut self.try_held) {
            return false;
        }
        let (mut taken, mut submitted) = (false, 0);
        while let Some(number) = self.held.take().or_else(|| self.instance.next_request()) {
            match self.hand_over(number) {
                HandOver::Submitted => submitted += 1,
                HandOver::Answered => self.instance.release(number),
                HandOver::Held => {
                    self.held = Some(number);
                    break;
                }
            }
            taken = true;
            if self.replies.len() >= MOST_REPLIES {
                break;
            }
        }
        if submitted > 0 {
            self.with_disk += submitted;
            self.instance.counters.kicks.one();
            self.instance.disk.kick();
        }
        taken
    }

    fn hand_over(&mut self, number: u32) -> HandOver {
        let instance = self.instance.clone();
        let (slot, counters) = (instance.slot(number), &instance.counters);
        // A slot in the request ring is filled.
        let Some((job, mut frame)) = slot.take() else { return HandOver::Answered };
        let (op, range, durability, data_start) = match job.work {
            Work::Read(piece, durability) => {
                frame = frame.or_else(NetFrame::alloc);
                if frame.is_none() {
                    counters.held_no_frame.one();
                    slot.put(job, None);
                    return HandOver::Held;
                }
                (BlockOp::Read, Some(piece), durability, DATA_START)
            }
            Work::Write(range, durability, data_start) => {
                if !self.fence.enter(&range) {
                    counters.held_overlap.one();
                    slot.put(job, frame);
                    return HandOver::Held;
                }
                (BlockOp::Write, Some(range), durability, data_start)
            }
            Work::Flush => (BlockOp::Flush, None, Durability::Cached, 0),
        };
        let mut memory = None;
        if let Some(range) = range
            && let Some(lent) = frame.take()
        {
            match DmaMemory::from_frame(lent, data_start, range.length() as usize) {
                Ok(part) => memory = Some(part),
                Err(back) => frame = Some(back),
            }
        }
        let io = BlockIo {
            op,
            first_sector: range.map_or(0, |range| range.first_sector()),
            sectors: range.map_or(0, |range| range.sectors()),
            force_unit_access: durability == Durability::ForceUnitAccess,
            memory,
            sink: instance.clone(),
            cookie: number.into(),
        };
        // Before the disk has it, so that its interrupt finds the slot complete.
        slot.put(job, frame);
        slot.lend();
        match instance.disk.submit(io) {
            Ok(()) => HandOver::Submitted,
            Err(rejected) => {
                slot.unlend();
                self.rejected(number, rejected)
            }
        }
    }

    /// The disk did not take a transfer: its queue is full, or it never will.
    fn rejected(&mut self, number: u32, rejected: Rejected) -> HandOver {
        let Rejected { error, io } = rejected;
        let instance = self.instance.clone();
        let slot = instance.slot(number);
        let Some((job, kept)) = slot.take() else { return HandOver::Answered };
        let frame = kept.or_else(|| io.memory.and_then(DmaMemory::into_frame));
        if let Work::Write(range, ..) = job.work {
            self.fence.leave(&range);
        }
        let status = match error {
            SubmitError::Busy => {
                instance.counters.held_queue_full.one();
                slot.put(job, frame);
                return HandOver::Held;
            }
            SubmitError::ReadOnly => Status::ReadOnly,
            SubmitError::OutOfRange
            | SubmitError::BadMemory
            | SubmitError::Unsupported
            | SubmitError::Gone => {
                self.log_failure(&job, &error);
                Status::IoError
            }
        };
        self.reply(&job, frame, status, 0);
        HandOver::Answered
    }

    /// Hands every reply to the card at once; what it has no room for is tried again.
    fn send_replies(&mut self) -> bool {
        !self.replies.is_empty() && self.instance.send(&mut self.replies) > 0
    }

    /// Drops what is queued, waits for what the disk has, and sends the last replies.
    fn finish(mut self) -> Leftovers {
        let mut leftovers = Leftovers { requests: 0, transfers: self.with_disk as u64 };
        while let Some(number) = self.held.take().or_else(|| self.instance.next_request()) {
            drop(self.instance.slot(number).take());
            self.instance.release(number);
            leftovers.requests += 1;
        }
        loop {
            self.take_completions();
            self.send_replies();
            if self.with_disk == 0 {
                break;
            }
            if !self.instance.event.wait_until(time::now_ns() + STOP_NOTICE_NS) {
                let disk = self.instance.disk.name();
                log::warn!("netblk: stopping waits for {} transfers of {disk}", self.with_disk);
            }
        }
        self.instance.counters.replies_lost.add(self.replies.len() as u64);
        leftovers
    }

    fn log_failure(&mut self, job: &Job, why: &dyn core::fmt::Display) {
        if let Some(suppressed) = self.log_limit.allow(time::now_ns()) {
            let reply = job.reply(Status::IoError);
            let (op, disk) = (job.op(), self.instance.disk.name());
            log::warn!(
                "netblk: {disk}: {op} of {} bytes at {} failed: {why} ({suppressed} such lines left out)",
                reply.length,
                reply.offset
            );
        }
    }
}
