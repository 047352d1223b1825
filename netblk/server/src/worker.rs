//! The worker: between the rings, the disk and the card.

use alloc::boxed::Box;
use alloc::sync::Arc;

use kcore::block::{BlockIo, BlockOp, IoStatus, Rejected, SubmitError};
use kcore::frame::pool_stats;
use kcore::{task, time};
use netblk_logic::{IdlePoll, Queued, RateLimit, Turns, Wait, WaitPolicy, WriteFence, frames_to_take};
use netblk_proto::Durability;
use netblk_proto::v2::Status;

use crate::counters::Drop;
use crate::instance::Instance;
use crate::memory::{self, Loan};
use crate::outbox::{Outbox, settle};
use crate::polled::PolledCard;
use crate::slot::{Cargo, End, Job, SLOTS, Work};

/// A log line about failed transfers at most this often.
const LOG_INTERVAL_NS: u64 = 5_000_000_000;

/// How often a stopping worker says that it still waits for the disk.
const STOP_NOTICE_NS: u64 = 5_000_000_000;

/// Replies that may wait for the card before no more requests are taken; each holds a frame of the pool
/// that everybody shares.
const MOST_REPLIES: usize = SLOTS / 2;

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
    /// It keeps its place, and its client's others wait behind it.
    Held,
    /// As `Held`, and nobody else's could start either: the disk's queue is full, or no frame is free.
    AllHeld,
    /// It is done with; if there is a reply, it is in the outbox.
    Ended,
}

/// See the module.
pub(crate) struct Worker {
    instance: Arc<Instance>,
    wait: WaitPolicy,
    fence: Box<WriteFence>,
    turns: Turns,
    /// Slots whose transfers the disk has.
    with_disk: usize,
    /// Something stands in the way of everybody's requests.
    all_held: bool,
    /// Whether something may have changed for the held requests.
    try_held: bool,
    /// Frames that READs may still take in this round.
    frames_left: u32,
    outbox: Outbox,
    card: PolledCard,
    log_limit: RateLimit,
}

impl Worker {
    pub fn new(instance: Arc<Instance>, idle_poll: IdlePoll) -> Self {
        let card = PolledCard::new(instance.card.clone(), idle_poll);
        Self {
            instance,
            card,
            wait: WaitPolicy::new(idle_poll, time::now_ns()),
            fence: Box::default(),
            turns: Turns::new(),
            with_disk: 0,
            all_held: false,
            try_held: false,
            frames_left: 0,
            outbox: Outbox::new(),
            log_limit: RateLimit::new(LOG_INTERVAL_NS),
        }
    }

    /// Works until the service is stopped and the disk has given everything back.
    pub fn run(mut self) -> Leftovers {
        while !self.instance.is_stopping() {
            let polled = self.card.poll();
            let worked = self.round() || polled;
            let now_ns = time::now_ns();
            // Here too, for a worker that never sleeps.
            if self.instance.expiry_ns().is_some_and(|at_ns| at_ns <= now_ns) {
                self.instance.expire_sessions(now_ns);
            }
            if worked {
                self.wait.worked(now_ns);
                self.card.worked();
                // Rounds may follow each other for as long as requests come, and the softirq of
                // this CPU is no more urgent than the worker.
                task::yield_now();
                continue;
            }
            // Room in the transmit ring, and in a queue that others filled, comes without a signal.
            let stuck = !self.outbox.is_empty() || (self.turns.queued() > 0 && self.with_disk == 0);
            match self.wait.next(now_ns, self.with_disk, stuck, !task::others_wait()) {
                Wait::Poll => {
                    self.card.begin();
                    task::yield_now();
                }
                Wait::Sleep => {
                    self.card.end();
                    self.instance.counters.sleeps.one();
                    self.sleep();
                }
                Wait::SleepUntil(deadline_ns) => {
                    self.card.end();
                    self.instance.counters.sleeps.one();
                    self.instance.sleep(Some(deadline_ns));
                    self.try_held = true;
                }
            }
        }
        self.card.end();
        self.finish()
    }

    /// Sleeps until something happens, or until a session has been silent for too long.
    fn sleep(&self) {
        self.instance.sleep(self.instance.expiry_ns());
    }

    /// One look at everything. Whether there was something to do.
    fn round(&mut self) -> bool {
        let completed = self.take_completions();
        let submitted = self.take_requests();
        let sent = self.outbox.send(&self.instance, &mut self.turns) > 0;
        // A client that was at its depth may go on now.
        self.try_held |= sent;
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
            if let (Some((job, cargo)), Some(end)) = (content, end) {
                self.complete(&job, cargo, end);
            }
        }
        self.try_held |= taken;
        taken
    }

    /// Turns an ended transfer into its replies.
    fn complete(&mut self, job: &Job, kept: Cargo, end: End) {
        if let Some(range) = job.changes() {
            self.fence.leave(&range);
        }
        let cargo = memory::reclaim(kept, end.memory);
        if end.status != IoStatus::Ok {
            self.log_failure(job, &end.status);
            return self.reply(job, cargo, Status::IoError);
        }
        let counters = &self.instance.counters;
        match job.work {
            Work::Read(piece) => {
                counters.read_bytes.add(piece.range.length().into());
                return self.reply_with_data(job, cargo);
            }
            Work::Write(range, _) => counters.written_bytes.add(range.length().into()),
            Work::Flush | Work::Discard(_) | Work::WriteZeroes(..) => {}
        }
        self.reply(job, cargo, Status::Ok);
    }

    /// Puts the one reply without data into the next batch; what becomes of the request's number is
    /// recorded first.
    fn reply(&mut self, job: &Job, cargo: Cargo, status: Status) {
        self.instance.record(job, status);
        let Some(mut frame) = memory::reply_frame(cargo) else {
            // Nothing to answer in; the client asks again.
            self.instance.counters.replies_lost.one();
            return settle(&self.instance, &mut self.turns, job.client, job.datagrams);
        };
        self.instance.address(&mut frame, &job.addresses, &job.reply(status).head(job), 0, &[]);
        self.outbox.push(frame, &job.addresses, job.client, job.datagrams);
    }

    /// Puts a READ's datagrams into the next batch.
    fn reply_with_data(&mut self, job: &Job, cargo: Cargo) {
        let outbox = &mut self.outbox;
        let sent = memory::datagrams(&self.instance, job, cargo, |frame| {
            outbox.push(frame, &job.addresses, job.client, 1);
        });
        let lost = job.datagrams.saturating_sub(sent);
        if lost > 0 {
            self.instance.counters.replies_lost.add(lost.into());
            settle(&self.instance, &mut self.turns, job.client, lost);
        }
    }

    /// Hands queued requests to the disk, each client's in its turn, then rings its doorbell once. Not
    /// while the card has a service's worth of replies to take.
    fn take_requests(&mut self) -> bool {
        let mut taken = false;
        while let Some(request) = self.instance.next_request() {
            self.turns.push(request);
            taken = true;
        }
        if core::mem::take(&mut self.try_held) {
            self.all_held = false;
            self.turns.unblock();
        }
        if self.turns.queued() == 0 || self.all_held || self.outbox.len() >= MOST_REPLIES {
            return taken;
        }
        let pool = pool_stats();
        self.frames_left = frames_to_take(self.instance.room.held(), pool.free, pool.total);
        let mut submitted = 0;
        while let Some(request) = self.turns.take() {
            match self.hand_over(request) {
                HandOver::Submitted => submitted += 1,
                HandOver::Ended => self.instance.release(request.slot),
                HandOver::Held => {
                    self.turns.put_back(request);
                    continue;
                }
                HandOver::AllHeld => {
                    self.turns.put_back(request);
                    self.all_held = true;
                    break;
                }
            }
            taken = true;
            if self.outbox.len() >= MOST_REPLIES {
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

    fn hand_over(&mut self, request: Queued) -> HandOver {
        let instance = self.instance.clone();
        let (slot, counters) = (instance.slot(request.slot), &instance.counters);
        // A slot in the request ring is filled.
        let Some((job, cargo)) = slot.take_cargo() else { return HandOver::Ended };
        if let Some(ticket) = job.ticket
            && !instance.is_live(ticket.session)
        {
            slot.take();
            counters.dropped(Drop::Ended);
            settle(&instance, &mut self.turns, job.client, job.datagrams);
            return HandOver::Ended;
        }
        if let Some(range) = job.changes()
            && !self.fence.enter(&range)
        {
            counters.held_overlap.one();
            slot.put_cargo(cargo);
            return HandOver::Held;
        }
        let Loan { memory, kept } = match memory::lend(&instance, &job, cargo, &mut self.frames_left) {
            Ok(loan) => loan,
            Err(cargo) => {
                counters.held_no_frame.one();
                self.leave(&job);
                slot.put_cargo(cargo);
                return HandOver::AllHeld;
            }
        };
        let (op, durability) = match job.work {
            Work::Read(piece) => (BlockOp::Read, piece.durability),
            Work::Write(_, durability) => (BlockOp::Write, durability),
            Work::Flush => (BlockOp::Flush, Durability::Cached),
            Work::Discard(_) => (BlockOp::Discard, Durability::Cached),
            Work::WriteZeroes(_, durability) => (BlockOp::WriteZeroes, durability),
        };
        let range = job.range();
        let io = BlockIo {
            op,
            first_sector: range.map_or(0, |range| range.first_sector()),
            sectors: range.map_or(0, |range| range.sectors()),
            force_unit_access: durability == Durability::ForceUnitAccess,
            memory,
            sink: instance.clone(),
            cookie: request.slot.into(),
        };
        // Before the disk has it, so that its interrupt finds the slot complete.
        slot.put_cargo(kept);
        slot.lend();
        match instance.disk.submit(io) {
            Ok(()) => HandOver::Submitted,
            Err(rejected) => {
                slot.unlend();
                self.rejected(request.slot, rejected)
            }
        }
    }

    /// A change does not start after all.
    fn leave(&mut self, job: &Job) {
        if let Some(range) = job.changes() {
            self.fence.leave(&range);
        }
    }

    /// The disk did not take a transfer: its queue is full, or it never will.
    fn rejected(&mut self, number: u32, rejected: Rejected) -> HandOver {
        let Rejected { error, io } = rejected;
        let instance = self.instance.clone();
        let slot = instance.slot(number);
        let Some((job, kept)) = slot.take_cargo() else { return HandOver::Ended };
        self.leave(&job);
        let cargo = memory::reclaim(kept, io.memory);
        let status = match error {
            SubmitError::Busy => {
                instance.counters.held_queue_full.one();
                slot.put_cargo(cargo);
                return HandOver::AllHeld;
            }
            SubmitError::ReadOnly => Status::ReadOnly,
            SubmitError::Unsupported => Status::Unsupported,
            SubmitError::OutOfRange | SubmitError::BadMemory | SubmitError::Gone => {
                self.log_failure(&job, &error);
                Status::IoError
            }
        };
        slot.take();
        self.reply(&job, cargo, status);
        HandOver::Ended
    }

    /// Drops what is queued, waits for what the disk has, and sends the last replies.
    fn finish(mut self) -> Leftovers {
        let mut leftovers = Leftovers { requests: 0, transfers: self.with_disk as u64 };
        let instance = self.instance.clone();
        let queued: alloc::vec::Vec<Queued> = self.turns.drain().collect();
        for Queued { slot, .. } in queued.into_iter().chain(core::iter::from_fn(|| instance.next_request())) {
            if let Some((job, _)) = instance.slot(slot).take() {
                settle(&instance, &mut self.turns, job.client, job.datagrams);
            }
            instance.release(slot);
            leftovers.requests += 1;
        }
        loop {
            self.take_completions();
            self.outbox.send(&instance, &mut self.turns);
            if self.with_disk == 0 {
                break;
            }
            let notice_ns = time::now_ns() + STOP_NOTICE_NS;
            instance.sleep(Some(notice_ns));
            if time::now_ns() >= notice_ns {
                let disk = instance.disk.name();
                log::warn!("netblk: stopping waits for {} transfers of {disk}", self.with_disk);
            }
        }
        let lost = self.outbox.discard(&instance, &mut self.turns);
        instance.counters.replies_lost.add(lost as u64);
        instance.end_sessions();
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
